/* Launching the float32 chunk and scan forms (scan.cuh). */
#ifndef VLA_CUDA_SCAN_HOST_CUH
#define VLA_CUDA_SCAN_HOST_CUH
#include "kernels/cuda/scan_penalty.cuh"
#include "kernels/cuda/scan_prepare.cuh"
#include "kernels/cuda/scan_walk.cuh"

namespace scanned
{
/* Bytes of workspace that a stretch of tokens may take, beyond four blocks a head. */
constexpr int64_t BUDGET = (int64_t)1 << 30;

/* How a problem is cut, and where everything is in the workspace. */
struct layout {
    int64_t heads, blocks, stride, segments, per_segment, bytes;
    int dkp, row_tiles;
    int64_t K, Q, U, X, norm, N, P, M_sum, M, A, n_sum, n_start, n, map_B, map_P, S_start, S, bad;
};

/* Segments that keep the device busy, none shorter than four blocks of tokens. */
inline int64_t segments_wanted(const vla_problem *p, int64_t heads, int64_t blocks)
{
    const int64_t at_once = 3 * (int64_t)vla_cuda_sm_count(), most = blocks / 4 > 1 ? blocks / 4 : 1;
    int64_t wanted = p->segments > 0 ? p->segments : (at_once + heads - 1) / heads;
    return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

template <vla_op OP> layout plan(const vla_problem *p, bool scan)
{
    layout l = {};
    l.heads = p->B * p->H, l.blocks = (p->T + C - 1) / C;
    l.dkp = p->dk <= 64 ? 64 : 128, l.row_tiles = (int)((p->dv + 15) / 16);
    const int64_t heads = l.heads > 0 ? l.heads : 1, row = 4 * l.dkp, square = 4 * (int64_t)l.dkp * l.dkp;
    const int64_t each = C * row * (OP == VLA_VLA ? 4 : 3) + C * 4 + 2 * PAIR_TILES * 256;
    const int64_t fit = BUDGET / (each * heads), least = 4;
    l.stride = l.blocks < 1 ? 1 : l.blocks <= (fit > least ? fit : least) ? l.blocks : fit > least ? fit : least;
    const int64_t stretches = l.blocks > 0 ? (l.blocks + l.stride - 1) / l.stride : 1; /* of one length, or nearly */
    l.stride = l.blocks > 0 ? (l.blocks + stretches - 1) / stretches : 1;
    const int64_t wanted = scan ? segments_wanted(p, heads, l.stride) : 1;
    l.per_segment = (l.stride + wanted - 1) / wanted;
    l.segments = (l.stride + l.per_segment - 1) / l.per_segment;
    int64_t at = 0;
    const auto take = [&](int64_t bytes) {
        const int64_t here = at;
        at += (bytes + 255) / 256 * 256;
        return here;
    };
    const int64_t all = l.heads * l.stride, places = l.heads * l.segments, ends = places + l.heads;
    const int64_t mapped = scan ? 1 : 0, has_A = OP == VLA_VLA ? 1 : 0, rows = (int64_t)l.row_tiles * 16 * row;
    l.K = take(OP == VLA_LINEAR ? 0 : all * C * row), l.Q = take(all * C * row), l.X = take(all * C * row);
    l.U = take(has_A * all * C * row), l.norm = take(all * C * 4);
    l.N = take(all * PAIR_TILES * 256), l.P = take(all * PAIR_TILES * 256);
    l.M_sum = take(mapped * has_A * places * square), l.M = take(2 * l.heads * square), l.A = take(ends * square);
    l.n_sum = take(mapped * places * row), l.n_start = take(ends * row), l.n = take(l.heads * row);
    l.map_B = take(mapped * places * rows), l.map_P = take(OP == VLA_LINEAR ? 0 : mapped * places * square);
    l.S_start = take(mapped * places * rows), l.S = take(l.heads * p->dk * p->dv * 4), l.bad = take(l.heads * 8);
    l.bytes = at;
    return l;
}

template <vla_op OP, bool SCAN> vla_status workspace(const vla_problem *p, int, int64_t *bytes, vla_error *error)
{
    int64_t heads = 0, most = 0;
    if (!vla_size_mul(p->B, p->H, &heads) || !vla_size_mul(heads, (int64_t)1 << 24, &most))
        return vla_fail(error, VLA_ERR_MEMORY, "B*H %lld x %lld: the workspace is beyond 64-bit sizes", (long long)p->B,
                        (long long)p->H);
    *bytes = plan<OP>(p, SCAN).bytes;
    return VLA_OK;
}

template <vla_op OP> bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->dk > 128 || p->dv > 128)
        snprintf(reason, size, "dk %lld, dv %lld: accepted are up to 128", (long long)p->dk, (long long)p->dv);
    else if (p->chunk != 0 && p->chunk != C)
        snprintf(reason, size, "chunk %lld: the float32 device forms have chunks of %d", (long long)p->chunk, C);
    else if (OP == VLA_VLA && p->refresh_period > 0)
        snprintf(reason, size, "refresh: A is not a sum then; the recurrent form has it");
    else if (OP == VLA_VLA && p->no_normalise)
        snprintf(reason, size, "no_normalise: the recurrent form has it");
    else
        return true;
    return false;
}

/* The end state: A as asked for, NaN in all of it where a token was not finite. */
template <int DK>
__global__ void finish(const __grid_constant__ arguments a, const float *A, int64_t step, float *A_out, float *n_out)
{
    const int64_t head = blockIdx.x;
    const bool bad = first_bad(a, head) < a.T;
    for (int i = (int)threadIdx.x; A_out && i < a.dk * a.dk; i += blockDim.x)
        A_out[head * a.dk * a.dk + i] = bad ? NAN : A[head * step + i / a.dk * DK + i % a.dk];
    for (int c = (int)threadIdx.x; n_out && c < a.dk; c += blockDim.x)
        n_out[head * a.dk + c] = bad ? NAN : a.n[head * DK + c];
    for (int i = (int)threadIdx.x; bad && i < a.dv * a.dk; i += blockDim.x) a.S[head * a.dv * a.dk + i] = NAN;
}

template <typename K> vla_status allow_shared(K *kernel, size_t bytes, vla_error *error)
{
    int device = 0, most = 0;
    VLA_CUDA(cudaGetDevice(&device));
    VLA_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (bytes > (size_t)most)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "needs %zu bytes of shared memory a block, the device has %d",
                        bytes, most);
    VLA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return VLA_OK;
}

template <vla_op OP, int DK, int TERMS, bool SCAN>
vla_status launch_stretch(const arguments &a, cudaStream_t stream, vla_error *error)
{
    const int64_t lanes = a.heads * a.blocks * C * (DK / 8), all = a.heads * a.blocks, places = a.heads * a.segments;
    features<OP, DK><<<(unsigned)((lanes + FEATURE_THREADS - 1) / FEATURE_THREADS), FEATURE_THREADS, 0, stream>>>(a);
    VLA_CUDA(cudaGetLastError());
    vla_status status = VLA_OK;
    if constexpr (SCAN) {
        sums<OP, DK><<<(unsigned)places, 2 * DK, 0, stream>>>(a);
        VLA_CUDA(cudaGetLastError());
        const size_t bytes = OP == VLA_VLA ? invert_bytes<DK>() : 0;
        status = allow_shared(starts<OP, DK>, bytes, error);
        if (status != VLA_OK) return status;
        starts<OP, DK><<<(unsigned)(places + a.heads), INVERT_THREADS, bytes, stream>>>(a);
        VLA_CUDA(cudaGetLastError());
    }
    if constexpr (OP == VLA_VLA) {
        const size_t bytes = sizeof(penalty_shared<DK>);
        status = allow_shared(penalty < DK, SCAN ? TERMS : 3 >, bytes, error);
        if (status != VLA_OK) return status;
        penalty<DK, SCAN ? TERMS : 3><<<(unsigned)places, 2 * DK, bytes, stream>>>(a, !SCAN);
        VLA_CUDA(cudaGetLastError());
    }
    pairs<OP, DK, TERMS><<<(unsigned)((all + WARPS - 1) / WARPS), 32 * WARPS, 0, stream>>>(a);
    VLA_CUDA(cudaGetLastError());
    const int groups = (a.row_tiles + WARPS - 1) / WARPS;
    if constexpr (SCAN) {
        const int tiles = a.row_tiles + (OP == VLA_LINEAR ? 0 : DK / 16), map_groups = (tiles + WARPS - 1) / WARPS;
        const size_t bytes = sizeof(walk_shared<DK, false>);
        status = allow_shared(maps<OP, DK, TERMS>, bytes, error);
        if (status != VLA_OK) return status;
        if (a.segments > 1)
            maps<OP, DK, TERMS>
                <<<(unsigned)(a.heads * (a.segments - 1) * map_groups), 32 * WARPS, bytes, stream>>>(a, map_groups);
        VLA_CUDA(cudaGetLastError());
        compose<OP, DK><<<(unsigned)(a.heads * (a.row_tiles * 16 / COMPOSE_ROWS)), DK, 0, stream>>>(a);
        VLA_CUDA(cudaGetLastError());
    }
    const size_t bytes = sizeof(walk_shared<DK, true>);
    status = allow_shared(walk<OP, DK, TERMS>, bytes, error);
    if (status != VLA_OK) return status;
    walk<OP, DK, TERMS><<<(unsigned)(places * groups), 32 * (WARPS + 1), bytes, stream>>>(a, groups, SCAN);
    carry<OP, DK><<<(unsigned)a.heads, 256, 0, stream>>>(a, SCAN);
    VLA_CUDA(cudaGetLastError());
    return VLA_OK;
}

template <vla_op OP, int DK, int TERMS, bool SCAN>
vla_status run_width(arguments a, const layout &l, const vla_call *call, vla_error *error)
{
    const vla_tensors *t = call->tensors;
    cudaStream_t stream = (cudaStream_t)call->stream;
    const bool resume_A = OP == VLA_VLA && t->state_in;
    a.segments = l.segments;
    begin<DK><<<(unsigned)l.heads, 256, 0, stream>>>(a, t->state_in && a.has_ratio ? (const float *)t->n : NULL,
                                                     !t->state_in, OP == VLA_VLA && !resume_A);
    VLA_CUDA(cudaGetLastError());
    if constexpr (OP == VLA_VLA)
        if (resume_A) {
            const vla_status status = allow_shared(resume<DK>, invert_bytes<DK>(), error);
            if (status != VLA_OK) return status;
            resume<DK><<<(unsigned)l.heads, INVERT_THREADS, invert_bytes<DK>(), stream>>>(a, (const float *)t->A, SCAN);
            VLA_CUDA(cudaGetLastError());
        }
    int64_t step = l.segments + 1, end = 0; /* where the last A is */
    for (int64_t first = 0; first < l.blocks; first += l.stride) {
        a.first_token = first * C;
        a.blocks = l.blocks - first < l.stride ? l.blocks - first : l.stride;
        a.segments = (a.blocks + l.per_segment - 1) / l.per_segment;
        step = a.segments + 1, end = SCAN ? a.segments : 0;
        const vla_status status = launch_stretch<OP, DK, TERMS, SCAN>(a, stream, error);
        if (status != VLA_OK) return status;
    }
    finish<DK><<<(unsigned)l.heads, 256, 0, stream>>>(a, a.A + end * DK * DK, step * DK * DK,
                                                      OP == VLA_VLA ? (float *)t->A : NULL,
                                                      a.has_ratio ? (float *)t->n : NULL);
    VLA_CUDA(cudaGetLastError());
    return VLA_OK;
}

template <vla_op OP, int TERMS, bool SCAN> vla_status run(const vla_call *call, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const layout l = plan<OP>(p, SCAN);
    if (l.heads == 0) return VLA_OK;
    if (l.heads > 2147483647 / (l.stride * C * (l.dkp / 8)) || l.heads > 2147483647 / (4 * (l.segments + 1)))
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld: more than 2^31 blocks", (long long)l.heads);
    if (call->session) {
        const int64_t stretches = (l.blocks + l.stride - 1) / l.stride;
        call->session->chunk = C, call->session->segments = stretches * l.segments;
    }
    unsigned char *work = (unsigned char *)call->work;
    arguments a = {};
    a.q = t->q, a.k = t->k, a.v = t->v, a.u = t->u ? t->u : t->k, a.b = t->b, a.o = t->o;
    a.alpha = OP == VLA_VLA ? t->alpha : NULL;
    a.T = p->T, a.heads = l.heads, a.stride = l.stride, a.per_segment = l.per_segment;
    a.dk = (int)p->dk, a.dv = (int)p->dv, a.row_tiles = l.row_tiles;
    a.features = p->features, a.qk_l2 = p->qk_l2;
    a.has_ratio = OP == VLA_VLA || OP == VLA_LINEAR, a.plain = OP == VLA_VLA && p->output == VLA_PLAIN;
    a.root = (float)(1.0 / sqrt((double)p->dk)), a.initial = (float)(1.0 / p->lambda0);
    a.K = (float *)(work + l.K), a.Q = (float *)(work + l.Q), a.U = (float *)(work + l.U), a.X = (float *)(work + l.X);
    a.norm = (float *)(work + l.norm), a.N = (float2 *)(work + l.N), a.P = (float2 *)(work + l.P);
    a.M_sum = (float *)(work + l.M_sum), a.M = (double *)(work + l.M), a.A = (float *)(work + l.A);
    a.n_sum = (float *)(work + l.n_sum), a.n_start = (float *)(work + l.n_start), a.n = (float *)(work + l.n);
    a.map_B = (float *)(work + l.map_B), a.map_P = (float *)(work + l.map_P);
    a.S_start = (float *)(work + l.S_start), a.S = t->S ? (float *)t->S : (float *)(work + l.S);
    a.bad = (unsigned long long *)(work + l.bad);
    const int64_t before = t->state_in && t->t ? *t->t : 0;
    const vla_status status = l.dkp == 64 ? run_width<OP, 64, TERMS, SCAN>(a, l, call, error)
                                          : run_width<OP, 128, TERMS, SCAN>(a, l, call, error);
    if (status == VLA_OK && t->t) *t->t = before + p->T;
    return status;
}
} /* namespace scanned */

/* The chunk and scan variants of an operator in float32 and tf32, as op_chunk_cuda_f32 and so on. */
#define VLA_SCAN_VARIANT(name, OP, TERMS, SCAN)                                                 \
    static vla_status run_##name(const vla_call *c, vla_error *e)                               \
    {                                                                                           \
        return scanned::run<OP, TERMS, SCAN>(c, e);                                             \
    }                                                                                           \
    extern "C" {                                                                                \
    extern const vla_variant name;                                                              \
    const vla_variant name = {scanned::supports<OP>, scanned::workspace<OP, SCAN>, run_##name}; \
    }

#endif
