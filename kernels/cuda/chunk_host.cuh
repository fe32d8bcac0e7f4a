/* Launching the chunkwise forms (chunk.cuh). */
#ifndef VLA_CUDA_CHUNK_HOST_CUH
#define VLA_CUDA_CHUNK_HOST_CUH
#include "kernels/cuda/chunk_apart_pair.cuh"
#include "kernels/cuda/chunk_apart_walk.cuh"
#include "kernels/cuda/chunk_brief.cuh"
#include "kernels/cuda/chunk_map.cuh"
#include "kernels/cuda/chunk_penalty.cuh"
#include "kernels/cuda/chunk_prepare.cuh"
#include "kernels/cuda/chunk_wide.cuh"

namespace chunked
{
constexpr int64_t BUDGET =
    (int64_t)3 << 30; /* bytes of workspace that a stretch of chunks may take, beyond one chunk a head */

/* What comes after the write directions: map and walk apart, a chunk a step or two (pairs), or chunks with their walk
 * beside them: by chunk_map.cuh (dk to 64) or chunk_wide.cuh (beyond), or, of vla at dk to 64, by chunk_brief.cuh. */
enum class back_half { beside, apart, pairs, brief };

/* How a problem is cut, and where everything is in the workspace. */
struct layout {
    int64_t heads, chunks, stride, segments, bytes;
    int per_segment, dkp, dvp, walks;
    bool joined;
    back_half back;
    int64_t U, K, X, maps, columns, states, start, ready, norm, n, M, M_carry, n_carry, bad_row, bad, S;
};

/* An inverse costs about a chunk (two at 128): the length of segments that ends soonest, over the waves of segments
 * that a device takes, the end state's among them. Lone warps (dk to 64) find two places a scheduler, and take 8
 * instead of 5 where they share it. At 128 `fresh` heads' first segments need no inverse, so that they may wait for the
 * places of end states, or these for theirs (chunk_penalty.cuh). */
static int chunks_a_segment(int64_t heads, int64_t chunks, int dkp, bool fresh)
{
    const int blocks = dkp == 64 ? penalty_shape<64, 1>::blocks : penalty_shape<128, 4>::blocks;
    const int64_t at_once = (int64_t)vla_cuda_sm_count() * blocks, inverse = dkp == 64 ? 1 : 2, most = 128;
    int64_t best = 1, least = INT64_MAX;
    for (int64_t each = 1; each <= most && each <= (chunks > 1 ? chunks : 1); each++) {
        const int64_t segments = heads * ((chunks + each - 1) / each + 1),
                      spare = fresh && dkp == 128 && segments <= at_once + heads ? heads : 0,
                      waves = (segments - spare + at_once - 1) / at_once,
                      alone = dkp == 64 && 2 * (segments - (waves - 1) * at_once) <= at_once,
                      time = (8 * waves - (alone ? 3 : 0)) * (inverse + each);
        if (time < least) least = time, best = each;
    }
    return (int)best;
}

/* Where all segments but one a head, and the end states, find places at once, a `fresh` head's first segment takes the
 * second's chunks too, if these are no more than an inverse. */
static bool joins_first(int64_t heads, int64_t segments, int each, int dkp, bool fresh)
{
    const int64_t at_once = (int64_t)vla_cuda_sm_count() * penalty_shape<128, 4>::blocks;
    return fresh && dkp == 128 && each <= 2 && segments > 1 && heads * (segments + 1) > at_once &&
           heads * segments <= at_once;
}

/* Is the walk a kernel of its own? Beside the maps it waits for no launch and reads them out of cache, but it has few
 * warps a head: it pays where the maps take longer than its steps and find enough places beside it. */
static bool walks_apart(int64_t heads, int64_t chunks, int dkp, int walks)
{
    const int64_t places = (int64_t)vla_cuda_sm_count() * (dkp == 64 ? MAP_BLOCKS : wide::BLOCKS);
    const bool few = dkp == 64 ? heads < 16 || chunks < 64 : chunks < 17;
    return few || 8 * heads * walks > places;
}

/* Do steps of two chunks end sooner? They halve the walk, whose two blocks a strip must all be in at once; the maps
 * take longer, the more so where a multiprocessor gets more chunks for their coming in twos. From how many chunks on:
 * docs/cuda.md, "Steps of two chunks". */
template <vla_op OP> bool pays_in_pairs(int64_t heads, int64_t chunks, int dvp)
{
    const int64_t multiprocessors = vla_cuda_sm_count(),
                  most = (heads * chunks + multiprocessors - 1) / multiprocessors,
                  in_pairs = 2 * ((heads * ((chunks + 1) / 2) + multiprocessors - 1) / multiprocessors),
                  more = in_pairs > most ? in_pairs - most : 0;
    return dvp <= 64 && heads * (dvp / 8) <= multiprocessors &&
           chunks >= (more > 0        ? 16 + 16 * more
                      : OP == VLA_VLA ? 20
                                      : 16);
}

/* brief is taken where its walks are in at once and the blocks are several turns (how many: docs/cuda.md, "Chunks with
 * a walk of lone warps"). Delta, which makes its own keys in each chunk, gains nothing by it. */
template <vla_op OP, bool WIDE> back_half back_of(int64_t heads, int64_t chunks, int dkp, int dvp)
{
    if (WIDE) return back_half::apart;
    const int64_t multiprocessors = vla_cuda_sm_count(), turn = multiprocessors * MAP_BLOCKS;
    const bool pairs = dkp == 64 && pays_in_pairs<OP>(heads, chunks, dvp);
    const back_half apart = pairs ? back_half::pairs : back_half::apart;
    if (OP == VLA_VLA && dkp == 64 &&
        8 * heads * (dvp / brief::STRIP_ROWS) <= multiprocessors * brief::shape<64>::blocks) {
        const int64_t turns = heads < 16 ? 8 : pairs ? 4 : 2;
        return heads >= 12 && chunks > 64 && heads * chunks > turns * turn ? back_half::brief : apart;
    }
    return walks_apart(heads, chunks, dkp, (dvp + 63) / 64) ? apart : back_half::beside;
}

/* fresh: the run does not go on from a state. */
template <vla_op OP, bool WIDE> layout plan(const vla_problem *p, bool fresh)
{
    layout l = {};
    l.heads = p->B * p->H, l.chunks = (p->T + C - 1) / C;
    l.dkp = p->dk <= 64 && !(WIDE && p->dv > 64) ? 64 : 128; /* see map_values */
    l.dvp = (int)((p->dv + 15) / 16 * 16);
    l.walks = (l.dvp + 63) / 64;
    l.back = back_of<OP, WIDE>(l.heads, l.chunks, l.dkp, l.dvp);
    if (l.back == back_half::brief) l.walks = l.dvp / brief::STRIP_ROWS;
    const bool pairs = l.back == back_half::pairs, apart = l.back == back_half::apart || pairs,
               brief = l.back == back_half::brief;
    const int64_t KT = l.dkp / 16, strips = l.dvp / 16, rows = CT * KT * 512, square = KT * KT * 512,
                  mapped = OP == VLA_VLA ? rows : 0, sums = OP == VLA_DELTA ? 0 : 1,
                  beside = l.dkp == 128 ? wide::map_bytes(l.walks) : square + l.walks * KT * 2048,
                  maps = apart   ? square + rows + (WIDE ? apart::scales_bytes : 0)
                         : brief ? square
                                 : beside,
                  columns = apart   ? l.dvp / 8 * (KT + CT) * 256
                            : brief ? strips * KT * 512
                                    : 0,
                  states = apart ? 0 : strips * KT * 512;
    const int64_t each = 3 * mapped + maps + columns + states + sums * (C + l.dkp) * 4 + 4;
    const int64_t fit = BUDGET / (each * (l.heads > 0 ? l.heads : 1));
    l.stride = l.chunks < 1 ? 1 : l.chunks < fit ? l.chunks : fit > 1 ? fit : 1;
    const int64_t stretches = l.chunks > 0 ? (l.chunks + l.stride - 1) / l.stride : 1; /* of one length, or nearly */
    l.stride = l.chunks > 0 ? (l.chunks + stretches - 1) / stretches : 1;
    l.per_segment = OP == VLA_VLA ? chunks_a_segment(l.heads, l.stride, l.dkp, fresh) : 1;
    l.segments = (l.stride + l.per_segment - 1) / l.per_segment;
    l.joined = OP == VLA_VLA && joins_first(l.heads, l.segments, l.per_segment, l.dkp, fresh);
    int64_t at = 0;
    const auto take = [&](int64_t bytes) {
        const int64_t here = at;
        at += (bytes + 255) / 256 * 256;
        return here;
    };
    const int64_t all = l.heads * l.stride;
    l.U = take(all * mapped), l.K = take(all * mapped), l.X = take(all * mapped);
    const int64_t steps = l.heads * ((l.stride + 1) / 2); /* of pairs */
    l.maps = take(pairs ? steps * (square + 2 * rows) : all * maps);
    l.columns = take(pairs ? steps * strips * (KT + 2 * CT) * 512 : all * columns), l.states = take(all * states);
    l.start = take(pairs ? l.heads * p->dk * p->dv * 4 : 0);
    l.ready = take(l.heads * (l.stride + 1) * 4);
    l.norm = take(sums * all * C * 4), l.n = take(sums * all * l.dkp * 4);
    const int64_t matrix = OP == VLA_VLA ? KT * (KT + 1) / 2 * 1024 : 0;
    l.M = take(l.heads * l.segments * matrix), l.M_carry = take(l.heads * matrix);
    l.n_carry = take(sums * l.heads * l.dkp * 4), l.bad_row = take(sums * all * 4);
    l.bad = take(l.heads * 8), l.S = take(l.heads * p->dk * p->dv * 4);
    l.bytes = at;
    return l;
}

template <vla_op OP, bool WIDE> vla_status workspace(const vla_problem *p, int, int64_t *bytes, vla_error *error)
{
    int64_t heads = 0, most = 0;
    if (!vla_size_mul(p->B, p->H, &heads) || !vla_size_mul(heads, (int64_t)1 << 24, &most))
        return vla_fail(error, VLA_ERR_MEMORY, "B*H %lld x %lld: the workspace is beyond 64-bit sizes", (long long)p->B,
                        (long long)p->H);
    const int64_t one = plan<OP, WIDE>(p, true).bytes, other = plan<OP, WIDE>(p, false).bytes;
    *bytes = one > other ? one : other;
    return VLA_OK;
}

template <vla_op OP> bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->dk > 128 || p->dv > 128)
        snprintf(reason, size, "dk %lld, dv %lld: accepted are up to 128", (long long)p->dk, (long long)p->dv);
    else if (p->chunk != 0 && p->chunk != C)
        snprintf(reason, size, "chunk %lld: the device form has chunks of %d", (long long)p->chunk, C);
    else if (OP == VLA_VLA && p->refresh_period > 0)
        snprintf(reason, size, "refresh: A is not a sum then; the recurrent form has it");
    else if (OP == VLA_VLA && p->no_normalise)
        snprintf(reason, size, "no_normalise: the unstable form leaves float16; the recurrent form has it");
    else
        return true;
    return false;
}

/* A state of no tokens. */
static __global__ void fresh_state(float *S, float *A, float *n, int dk, int dv, float diagonal)
{
    const int64_t head = blockIdx.x;
    for (int i = (int)threadIdx.x; S && i < dv * dk; i += blockDim.x) S[head * dv * dk + i] = 0;
    for (int i = (int)threadIdx.x; A && i < dk * dk; i += blockDim.x)
        A[head * dk * dk + i] = i / dk == i % dk ? diagonal : 0.0f;
    for (int i = (int)threadIdx.x; n && i < dk; i += blockDim.x) n[head * dk + i] = 0;
}

/* Where kernels let the next one in early: shared memory that keeps a multiprocessor from taking more than its even
 * share of a kernel's blocks, as they come while some have room for more and others for none. `fixed`: what a block has
 * beside it. */
static size_t evenly(const arguments &a, int64_t blocks, int64_t shared, int64_t fixed = 0)
{
    const int64_t each = (blocks + vla_cuda_sm_count() - 1) / vla_cuda_sm_count(),
                  least = vla_cuda_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / (each + 1) -
                          vla_cuda_attribute(cudaDevAttrReservedSharedMemoryPerBlock) - fixed + 16;
    return (size_t)(a.early && shared < least ? least : shared);
}

/* Chunks and the walks beside them, which take an eighth of the places of the device at most: they wait for blocks that
 * come later. */
static inline vla_status launch_beside(void (*kernel)(const arguments), int threads, size_t shared, arguments a,
                                       cudaStream_t stream, vla_error *error)
{
    int places = 0;
    const vla_status status = allow_shared(kernel, shared, error);
    if (status != VLA_OK) return status;
    VLA_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&places, kernel, threads, shared));
    const int64_t most = (int64_t)places * vla_cuda_sm_count() / (8 * a.walks), heads = most > 1 ? most : 1;
    a.at_once = (int)(heads < a.heads ? heads : a.heads);
    const bool exact = a.at_once > 1 && (uint64_t)a.at_once * (uint64_t)a.at_once * (uint64_t)a.chunks >> 32 == 0;
    a.inverse = exact ? (uint32_t)((((uint64_t)1 << 32) + (uint64_t)a.at_once - 1) / (uint64_t)a.at_once) : 0;
    return launch(kernel, a.heads * (a.walks + a.chunks), threads, shared, stream, a, error);
}

template <vla_op OP, int DK> vla_status launch_map(const arguments &a, cudaStream_t stream, vla_error *error)
{
    if constexpr (DK == 128) {
        return launch_beside(wide::chunks<OP>, wide::THREADS, wide::bytes(), a, stream, error);
    } else {
        const size_t own = map_bytes<DK>(a.dvp), walks = sizeof(walk_shared<DK>);
        return launch_beside(map<OP, DK>, map_shared<DK>::THREADS, own > walks ? own : walks, a, stream, error);
    }
}

template <int DK, int WARPS, int UNITS = 1>
vla_status launch_penalty(const arguments &a, cudaStream_t stream, vla_error *error)
{
    const int64_t units = a.heads * (a.segments - (a.joined ? 1 : 0) + (a.A_end ? 1 : 0)),
                  blocks = (units + UNITS - 1) / UNITS;
    return launch(penalty<DK, WARPS, UNITS>, blocks, penalty_shape<DK, WARPS>::threads * UNITS,
                  evenly(a, blocks, sizeof(penalty_shared<DK, WARPS>) * UNITS), stream, a, error);
}

template <vla_op OP, int DK, bool WIDE>
vla_status launch_stretch(const arguments &a, back_half back, cudaStream_t stream, vla_error *error)
{
    constexpr int THREADS = 32 * sizes<DK>::warps;
    constexpr bool WITH_U = OP == VLA_VLA;
    vla_status status = VLA_OK;
    if constexpr (OP != VLA_DELTA) {
        status = launch(prepare<DK, WITH_U, WIDE>, a.heads * a.segments, THREADS,
                        evenly(a, a.heads * a.segments, sizeof(prepare_shared<DK, WITH_U, WIDE>)), stream, a, error);
        using blocks = prefix_blocks<DK, WITH_U>;
        if (status == VLA_OK)
            status = launch(prefix<DK, WITH_U>, a.heads * (blocks::M + blocks::n), PREFIX_THREADS,
                            evenly(a, a.heads * (blocks::M + blocks::n), 0, 4 * PREFIX_THREADS), stream, a, error);
    } else {
        status = launch(clear_flags, (a.heads * (a.stride + 1) + 127) / 128, 128, 0, stream, a, error);
    }
    if constexpr (WITH_U && DK == 128)
        if (status == VLA_OK) status = launch_penalty<128, 4>(a, stream, error);
    if constexpr (WITH_U && DK == 64)
        if (status == VLA_OK)
            status = a.lone ? launch_penalty<64, 1, 4>(a, stream, error) : launch_penalty<64, 1>(a, stream, error);
    if (status != VLA_OK) return status;
    if constexpr (!WIDE) {
        if constexpr (OP == VLA_VLA && DK == 64)
            if (back == back_half::brief)
                return launch_beside(brief::chunks<DK>, brief::shape<DK>::threads, brief::bytes<DK>(a.dvp), a, stream,
                                     error);
        if (back == back_half::beside) return launch_map<OP, DK>(a, stream, error);
    }
    constexpr bool EARLY = OP == VLA_VLA && !WIDE, DELTA = OP == VLA_DELTA, TOGETHER = EARLY || DELTA;
    const bool early = EARLY && a.early;
    if constexpr (DK == 64 && !WIDE)
        if (back == back_half::pairs) {
            const int64_t blocks = a.heads * ((a.chunks + 1) / 2);
            status = launch(early && a.one_turn ? apart::map_pairs<OP, DK, EARLY, TOGETHER>
                            : early             ? apart::map_pairs<OP, DK, EARLY, DELTA>
                                                : apart::map_pairs<OP, DK, false, DELTA>,
                            blocks, dim3(apart::pair_shared<DK>::GROUP, 2),
                            evenly(a, blocks, apart::pair_bytes<DK>(a.dvp)), stream, a, error);
            return status == VLA_OK ? launch(apart::walk<DK, 2, false, true>, a.heads * (a.dvp / 8),
                                             apart::walk_shape<DK, 2, false>::threads,
                                             sizeof(apart::walk_shared<DK, 2, false>), stream, a, error)
                                    : status;
        }
    status = launch(early && a.one_turn ? apart::map<OP, DK, WIDE, EARLY, TOGETHER>
                    : early             ? apart::map<OP, DK, WIDE, EARLY, DELTA>
                                        : apart::map<OP, DK, WIDE, false, DELTA>,
                    a.heads * a.chunks, apart::map_shared<DK>::THREADS,
                    evenly(a, a.heads * a.chunks, apart::map_bytes<DK>(a.dvp)), stream, a, error);
    return status == VLA_OK ? launch(apart::walk<DK, 2, WIDE, false>, a.heads * (a.dvp / 16),
                                     apart::walk_shape<DK, 2, WIDE>::threads, sizeof(apart::walk_shared<DK, 2, WIDE>),
                                     stream, a, error)
                            : status;
}

template <vla_op OP, int DK, bool WIDE>
vla_status run_width(arguments a, const layout &l, const vla_call *call, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    cudaStream_t stream = (cudaStream_t)call->stream;
    a.resume = t->state_in, a.diagonal = (float)((double)p->dk * p->lambda0);
    a.n_in = t->state_in && OP != VLA_DELTA ? (const float *)t->n : NULL;
    if constexpr (OP == VLA_VLA)
        if (t->state_in) {
            const size_t square = (size_t)DK * (DK + 1) * sizeof(float);
            a.A_end = (float *)t->A;
            const vla_status status = launch(invert_state<DK>, l.heads, INVERT_THREADS, square, stream, a, error);
            if (status != VLA_OK) return status;
        }
    for (int64_t first = 0; first < l.chunks; first += l.stride) {
        const bool last = first + l.stride >= l.chunks;
        a.first = first == 0, a.first_token = first * C;
        a.chunks = last ? l.chunks - first : l.stride;
        a.segments = (a.chunks + a.per_segment - 1) / a.per_segment;
        a.joined = l.joined && first == 0 && a.segments > 1;
        a.A_end = last && OP == VLA_VLA ? (float *)t->A : NULL;
        a.n_end = last && OP != VLA_DELTA ? (float *)t->n : NULL;
        const vla_status status = launch_stretch<OP, DK, WIDE>(a, l.back, stream, error);
        if (status != VLA_OK) return status;
    }
    return VLA_OK;
}

template <vla_op OP, bool WIDE> vla_status run(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const layout l = plan<OP, WIDE>(p, !call->tensors->state_in);
    if (l.heads == 0) return VLA_OK;
    if (l.heads * (l.stride + l.walks) > 2147483647 || l.heads * (l.dvp / 8) > 2147483647)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld: more than 2^31 blocks", (long long)l.heads);
    if (p->T == 0) {
        if (!t->state_in)
            fresh_state<<<(unsigned)l.heads, 128, 0, (cudaStream_t)call->stream>>>(
                (float *)t->S, OP == VLA_VLA ? (float *)t->A : NULL, OP == VLA_DELTA ? NULL : (float *)t->n, (int)p->dk,
                (int)p->dv, (float)(1.0 / p->lambda0));
        VLA_CUDA(cudaGetLastError());
    }
    if (call->session) {
        const int64_t stretches = (l.chunks + l.stride - 1) / l.stride;
        call->session->chunk = C, call->session->segments = OP == VLA_VLA ? stretches * l.segments : 0;
    }
    unsigned char *work = (unsigned char *)call->work;
    arguments a = {};
    a.q = t->q, a.k = t->k, a.v = t->v, a.u = t->u ? t->u : t->k, a.b = t->b, a.o = t->o, a.alpha = t->alpha;
    a.S = t->S ? (float *)t->S : (float *)(work + l.S);
    a.T = p->T, a.heads = l.heads, a.stride = l.stride, a.per_segment = l.per_segment;
    a.dk = (int)p->dk, a.dv = (int)p->dv, a.dvp = l.dvp, a.dtype = dtype, a.features = p->features, a.qk_l2 = p->qk_l2;
    a.ratio = OP == VLA_VLA && p->output == VLA_RATIO;
    a.U = (frag *)(work + l.U), a.K = (frag *)(work + l.K), a.X = (frag *)(work + l.X);
    a.maps = (frag *)(work + l.maps), a.columns = (frag *)(work + l.columns), a.states = (frag *)(work + l.states),
    a.start = (float *)(work + l.start), a.ready = (int *)(work + l.ready), a.walks = l.walks;
    a.norm = (float *)(work + l.norm), a.n = (float *)(work + l.n), a.M = (float4 *)(work + l.M);
    a.M_carry = (float4 *)(work + l.M_carry), a.n_carry = OP == VLA_DELTA ? NULL : (float *)(work + l.n_carry);
    a.bad_row = (int *)(work + l.bad_row), a.bad = (unsigned long long *)(work + l.bad);
    /* where blocks come in few turns, so that launches count: up to eight, by measurement */
    const int64_t places = (int64_t)vla_cuda_sm_count() * (l.dkp == 64 ? MAP_BLOCKS : wide::BLOCKS);
    a.early = OP == VLA_VLA && !WIDE && vla_cuda_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 &&
              (l.back == back_half::apart || l.back == back_half::pairs) && l.chunks <= l.stride &&
              l.heads * l.chunks <= 8 * places;
    /* one warp of penalty a scheduler, four a block */
    a.lone = a.early && l.dkp == 64 && l.heads * (l.segments + 1) > 3 * (int64_t)vla_cuda_sm_count();
    a.one_turn = l.heads * l.chunks <= places;
    vla_status status = VLA_OK;
    if (p->T > 0)
        status = l.dkp == 64 ? run_width<OP, 64, WIDE>(a, l, call, error) : run_width<OP, 128, WIDE>(a, l, call, error);
    if (status == VLA_OK && t->t) *t->t = (t->state_in ? *t->t : 0) + p->T;
    return status;
}
} /* namespace chunked */

/* The variants of an operator, named by the file's stem. */
#define VLA_CHUNK_VARIANTS(stem, OP)                                                                  \
    static vla_status run_bf16(const vla_call *c, vla_error *e)                                       \
    {                                                                                                 \
        return chunked::run<OP, false>(c, VLA_BF16, e);                                               \
    }                                                                                                 \
    static vla_status run_f16(const vla_call *c, vla_error *e)                                        \
    {                                                                                                 \
        return chunked::run<OP, false>(c, VLA_F16, e);                                                \
    }                                                                                                 \
    extern "C" {                                                                                      \
    extern const vla_variant stem##_bf16, stem##_f16;                                                 \
    const vla_variant stem##_bf16 = {chunked::supports<OP>, chunked::workspace<OP, false>, run_bf16}; \
    const vla_variant stem##_f16 = {chunked::supports<OP>, chunked::workspace<OP, false>, run_f16};   \
    }

#endif
