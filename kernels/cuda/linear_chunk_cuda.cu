/* linear, chunkwise on the device's tensor cores, bf16 and f16: two ways, by prefixes of chunks (linear_prefix.cuh,
 * which takes every shape) and by segments where they take the shape and are faster (linear_walk.cuh, or in one launch
 * linear_once.cuh and linear_whole.cuh); which of them, launches and limits are here. */
#include "kernels/cuda/linear_prefix.cuh"
#include "kernels/cuda/linear_once.cuh"
#include "kernels/cuda/linear_walk.cuh"
#include "kernels/cuda/linear_whole.cuh"

namespace linear_form
{
constexpr int64_t BUDGET = (int64_t)1 << 29; /* bytes of workspace a stretch of chunks may take, beyond one a head */

struct layout {
    int64_t heads, chunks, stride, bytes;
    int64_t S_sum, S, n, bad, bad_carry, S_carry, n_carry;
    int dk, dv;              /* widths rounded up */
    int a_step;              /* by segments: chunks of 64 tokens a step; 0: by prefixes */
    int64_t segments, steps; /* a head; a segment */
    bool once;               /* in one launch, by linear_once.cuh or linear_whole.cuh */
    int64_t marks;
};

/* Segments are for devices with wgmma, for whole rows of one width class, and not for narrow states. */
bool takes_segments(const vla_problem *p)
{
    int device = 0, major = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
        return false;
    const bool narrow = p->dk <= 32 && p->dv <= 32, chunk = p->chunk == 0 || p->chunk == linear_walk::C;
    return major == 9 && chunk && p->dk % 8 == 0 && p->dv % 8 == 0 && (p->dk <= 64) == (p->dv <= 64) && !narrow;
}

/* Few heads of many tokens are faster by prefixes, which use the whole device (measured, H200). */
bool wants_segments(const vla_problem *p)
{
    const int64_t heads = p->B * p->H;
    if (p->T <= 512 || p->chunk == linear_walk::C) return true;
    return heads >= 12 || (heads >= 4 && (p->dk <= 64 || p->T > 2048));
}

/* In one launch, where a block or two a multiprocessor is all, blocks of half of dv counted (measured; more of them are
 * slower, and so are halves of the device). */
bool wants_once(int64_t heads, int64_t T, int dk)
{
    const int64_t processors = vla_cuda_sm_count(), segments = (T + linear_walk::ONCE - 1) / linear_walk::ONCE,
                  blocks = 2 * heads * segments;
    return dk == 128 && T > 512 && segments <= 8 && (blocks <= processors || (heads <= 16 && blocks <= 2 * processors));
}

/* As many segments as the device takes blocks at once, but not so many that adding up what is before them is the time.
 * Steps of four chunks where that leaves as many blocks as multiprocessors and the rest is start and end (measured). */
void plan_segments(layout &l, int64_t T)
{
    constexpr int64_t MOST = 32;
    const int64_t processors = vla_cuda_sm_count(), tokens = l.heads * T;
    const bool four = (l.heads <= 16 && tokens > 8192 && tokens <= 65536) || (2 * l.heads > processors && T > 256);
    l.a_step = l.dk == 64 && four ? 4 : 2;
    const int64_t step = linear_walk::C * l.a_step, steps = (T + step - 1) / step,
                  blocks = l.dk == 64 && l.a_step == 2 ? 2 : 1, fit = processors * blocks / l.heads,
                  wanted = fit < 1      ? 1
                           : fit < MOST ? fit
                                        : MOST;
    l.steps = (steps + wanted - 1) / wanted, l.segments = (steps + l.steps - 1) / l.steps;
}

layout plan(const vla_problem *p)
{
    layout l = {};
    l.heads = p->B * p->H, l.chunks = (p->T + G - 1) / G;
    l.dk = p->dk <= 64 ? 64 : 128, l.dv = p->dv <= 64 ? 64 : 128;
    int64_t at = 0;
    const auto take = [&](int64_t bytes) {
        const int64_t here = at;
        at += (bytes + 255) / 256 * 256;
        return here;
    };
    if (p->T > 0 && l.heads > 0 && takes_segments(p) && wants_segments(p)) plan_segments(l, p->T);
    l.once = l.a_step > 0 && wants_once(l.heads, p->T, l.dk);
    if (l.once) {
        l.segments = (p->T + linear_walk::ONCE - 1) / linear_walk::ONCE, l.steps = 1;
        const int64_t all = l.heads * l.segments;
        l.S_sum = take(all * l.dk * l.dv * 4), l.n = take(all * 2 * l.dk * 4), l.marks = take(all * 2 * 4);
        l.bytes = at;
        return l;
    }
    if (l.a_step > 0) {
        const int64_t all = l.heads * l.segments;
        l.S_sum = take(all * l.dk * l.dv * 4), l.n = take(all * l.dk * 4), l.bad = take(all * 8);
        l.bytes = at;
        return l;
    }
    const int64_t each = l.dk * l.dv * 6 + l.dk * 4 + 8, fit = BUDGET / (each * (l.heads > 0 ? l.heads : 1));
    l.stride = l.chunks < 1 ? 1 : l.chunks < fit ? l.chunks : fit > 1 ? fit : 1;
    const int64_t stretches = l.chunks > 0 ? (l.chunks + l.stride - 1) / l.stride : 1; /* of one length, or nearly */
    l.stride = l.chunks > 0 ? (l.chunks + stretches - 1) / stretches : 1;
    const int64_t all = l.heads * l.stride;
    l.S_sum = take(all * l.dk * l.dv * 4), l.S = take(all * l.dk * l.dv * 2), l.n = take(all * l.dk * 4);
    l.bad = take(all * 8), l.bad_carry = take(l.heads * 8);
    l.S_carry = take(l.heads * p->dk * p->dv * 4), l.n_carry = take(l.heads * p->dk * 4);
    l.bytes = at;
    return l;
}

vla_status workspace(const vla_problem *p, int, int64_t *bytes, vla_error *error)
{
    int64_t heads = 0, most = 0;
    if (!vla_size_mul(p->B, p->H, &heads) || !vla_size_mul(heads, (int64_t)1 << 20, &most))
        return vla_fail(error, VLA_ERR_MEMORY, "B*H %lld x %lld: the workspace is beyond 64-bit sizes", (long long)p->B,
                        (long long)p->H);
    *bytes = plan(p).bytes;
    return VLA_OK;
}

bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->dk > 128 || p->dv > 128)
        snprintf(reason, size, "dk %lld, dv %lld: accepted are up to 128", (long long)p->dk, (long long)p->dv);
    else if (p->chunk != 0 && p->chunk != G && !takes_segments(p))
        snprintf(reason, size, "chunk %lld: the device form has chunks of %d, or of %d for whole rows on Hopper",
                 (long long)p->chunk, G, linear_walk::C);
    else
        return true;
    return false;
}

/* A state of no tokens. */
__global__ void fresh_state(float *S, float *n, int dk, int dv)
{
    const int64_t head = blockIdx.x;
    for (int i = (int)threadIdx.x; S && i < dv * dk; i += blockDim.x) S[head * dv * dk + i] = 0;
    for (int i = (int)threadIdx.x; n && i < dk; i += blockDim.x) n[head * dk + i] = 0;
}

template <int DK, int DV> vla_status launch_all(arguments a, const layout &l, cudaStream_t stream, vla_error *error)
{
    for (int64_t first = 0; first < l.chunks; first += l.stride) {
        a.first = first == 0, a.last = first + l.stride >= l.chunks;
        a.first_token = first * G, a.chunks = (int)(a.last ? l.chunks - first : l.stride);
        const int64_t blocks = a.heads * a.chunks, items = a.heads * prefix_items<DK, DV>();
        a.early = blocks <= 4 * (int64_t)vla_cuda_sm_count(); /* let in early, blocks end up unevenly spread */
        vla_status status = launch(sums<DK, DV>, blocks, 32 * WARPS, sizeof(rows_shared<DK, DV>), stream, a, error);
        if (status == VLA_OK) status = launch(prefix<DK, DV>, (items + 127) / 128, 128, 0, stream, a, error);
        if (status == VLA_OK)
            status = launch(outputs<DK, DV>, blocks, 32 * shape<DK, DV>::OUTPUT_WARPS, sizeof(output_shared<DK, DV>),
                            stream, a, error);
        if (status != VLA_OK) return status;
        a.S_in = a.S_out, a.n_in = a.n_out;
    }
    return VLA_OK;
}

template <int D, int CH> vla_status launch_walk(linear_walk::arguments a, cudaStream_t stream, vla_error *error)
{
    using F = linear_walk::shape<D, CH>;
    a.first = a.segments == 1;
    if (!a.first) {
        const vla_status status = launch(linear_walk::sums<D, CH>, a.heads * (a.segments - 1), F::NT,
                                         sizeof(linear_walk::sums_shared<D, CH>), stream, a, error);
        if (status != VLA_OK) return status;
    }
    return launch(linear_walk::walk<D, CH>, a.heads * a.segments, F::NT, sizeof(linear_walk::walk_shared<D, CH>),
                  stream, a, error);
}

vla_status launch_once(const linear_walk::arguments &a, cudaStream_t stream, vla_error *error)
{
    const int64_t blocks = a.heads * a.segments, marks = 2 * blocks;
    const vla_status status = launch(linear_walk::clear_marks, (marks + 255) / 256, 256, 0, stream, a, error);
    if (status != VLA_OK) return status;
    /* halves of dv where they find a place at once */
    return marks <= vla_cuda_sm_count()
               ? launch(linear_walk::once, marks, 512, sizeof(linear_walk::once_shared), stream, a, error)
               : launch(linear_walk::whole, blocks, 512, sizeof(linear_walk::whole_shared), stream, a, error);
}

vla_status run(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const layout l = plan(p);
    cudaStream_t stream = (cudaStream_t)call->stream;
    if (l.heads == 0) return VLA_OK;
    if (l.heads * l.stride > 2147483647 || l.heads * l.segments > 2147483647 || l.heads > 2147483647 / 128)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld: more than 2^31 blocks", (long long)l.heads);
    if (p->T == 0 && !t->state_in) {
        fresh_state<<<(unsigned)l.heads, 128, 0, stream>>>((float *)t->S, (float *)t->n, (int)p->dk, (int)p->dv);
        VLA_CUDA(cudaGetLastError());
    }
    if (call->session) call->session->chunk = l.a_step > 0 ? linear_walk::C : G, call->session->segments = l.segments;
    unsigned char *work = (unsigned char *)call->work;
    arguments a = {};
    a.q = t->q, a.k = t->k, a.v = t->v, a.o = t->o;
    a.S_in = t->state_in ? (const float *)t->S : NULL, a.n_in = t->state_in ? (const float *)t->n : NULL;
    const bool carries = l.stride < l.chunks;
    a.S_out = t->S ? (float *)t->S : carries ? (float *)(work + l.S_carry) : NULL;
    a.n_out = t->n ? (float *)t->n : carries ? (float *)(work + l.n_carry) : NULL;
    a.S_sum = (float4 *)(work + l.S_sum), a.S = (uint4 *)(work + l.S), a.n = (float *)(work + l.n);
    a.bad = (int64_t *)(work + l.bad), a.bad_carry = (int64_t *)(work + l.bad_carry);
    a.T = p->T, a.heads = l.heads, a.dk = (int)p->dk, a.dv = (int)p->dv, a.dtype = dtype, a.features = p->features;
    a.qk_l2 = p->qk_l2, a.narrow = p->dk <= 32 && p->dv <= 32;
    vla_status status = VLA_OK;
    if (l.a_step > 0) {
        linear_walk::arguments w = {};
        (arguments &)w = a;
        w.segments = l.segments, w.steps = l.steps, w.marks = (int *)(work + l.marks);
        status = l.once          ? launch_once(w, stream, error)
                 : l.dk == 128   ? launch_walk<128, 2>(w, stream, error)
                 : l.a_step == 4 ? launch_walk<64, 4>(w, stream, error)
                                 : launch_walk<64, 2>(w, stream, error);
    } else if (p->T > 0) {
        if (l.dk == 64)
            status = l.dv == 64 ? launch_all<64, 64>(a, l, stream, error) : launch_all<64, 128>(a, l, stream, error);
        else
            status = l.dv == 64 ? launch_all<128, 64>(a, l, stream, error) : launch_all<128, 128>(a, l, stream, error);
    }
    if (status == VLA_OK && t->t) *t->t = (t->state_in ? *t->t : 0) + p->T;
    return status;
}

vla_status run_bf16(const vla_call *c, vla_error *e)
{
    return run(c, VLA_BF16, e);
}
vla_status run_f16(const vla_call *c, vla_error *e)
{
    return run(c, VLA_F16, e);
}
} /* namespace linear_form */

extern "C" {
extern const vla_variant linear_chunk_cuda_bf16, linear_chunk_cuda_f16;
const vla_variant linear_chunk_cuda_bf16 = {linear_form::supports, linear_form::workspace, linear_form::run_bf16};
const vla_variant linear_chunk_cuda_f16 = {linear_form::supports, linear_form::workspace, linear_form::run_f16};
}
