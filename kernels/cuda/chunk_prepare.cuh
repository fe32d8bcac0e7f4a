/* prepare and prefix of the chunkwise forms (chunk.cuh). */
#ifndef VLA_CUDA_CHUNK_PREPARE_CUH
#define VLA_CUDA_CHUNK_PREPARE_CUH
#include "kernels/cuda/chunk.cuh"

namespace chunked
{
/* Features of 64 rows of one input into shared memory, rows past the sequence as zero. Calls row(r, unit, y, norm) for
 * each, with the eight mapped elements of this lane. */
template <int DK, typename F>
__device__ __forceinline__ void feature_rows(__half *to, const void *data, const arguments &a, int64_t head,
                                             int64_t token, vla_features features, F row)
{
    constexpr int L = sizes<DK>::lanes, AT_ONCE = 4, ROWS = 32 * sizes<DK>::warps / L; /* 16 rows a pass */
    const int sub = (int)threadIdx.x % L, r0 = (int)threadIdx.x / L;
    raw8<1> raw[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int64_t t = token + r0 + i * ROWS;
        load8(raw[i], data, a.dtype, head * a.T + t, 8 * sub, a.dk, t < a.T);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        float x[8], y[8];
        const int r = r0 + i * ROWS;
        convert8(x, raw[i], a.dtype);
        const bool in = token + r < a.T;
        float norm = unit8<false>(x, y, 8 * sub, a.dk, features, L);
        const bool bad =
            !(norm < INFINITY); /* something in the row is not finite: zeros instead, and its token noted */
        if (bad && in && sub == 0) atomicMin(&a.bad[head], (unsigned long long)(token + r));
        if (!in || bad) { /* phi(0) is not 0 */
            norm = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = y[j] = 0;
        }
        put8(to + r * (DK + 8) + 8 * sub, x);
        row(r, x, y, norm);
    }
}

/* A block a segment of a head. */
template <int DK, bool WITH_U>
__global__ void __launch_bounds__(32 * sizes<DK>::warps, DK == 64 ? 4 : 2) prepare(const __grid_constant__ arguments a)
{
    constexpr int KT = sizes<DK>::KT, L = sizes<DK>::lanes, WARPS = sizes<DK>::warps, PITCH = DK + 8;
    __shared__ __align__(16) __half rows[C * PITCH];
    __shared__ float sums[WARPS][DK];
    const int64_t head = blockIdx.x / a.segments, segment = blockIdx.x % a.segments;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    float M[WITH_U ? DK / 8 : 1][4] = {};
    for (int i = 0; i < a.per_segment; i++) {
        const int64_t chunk = segment * a.per_segment + i, at = head * a.stride + chunk,
                      token = a.first_token + chunk * C;
        if (chunk >= a.chunks) break;
        float column[8] = {};
        if (WITH_U) {
            feature_rows<DK>(rows, a.u, a, head, token, VLA_IDENTITY,
                             [](int, const float(&)[8], const float(&)[8], float) {});
            __syncthreads();
            for (int tile = warp; tile < CT * KT; tile += WARPS)
                a.U[at * sizes<DK>::tiles + tile * 32 + lane] =
                    load_tile(rows + (tile / KT) * 16 * PITCH + (tile % KT) * 16, PITCH, lane);
#pragma unroll
            for (int kt = 0; kt < CT; kt++) {
                const frag left = load_tile_transposed(rows + kt * 16 * PITCH + warp * 16, PITCH, lane);
#pragma unroll
                for (int n = 0; n < KT; n++) {
                    const frag right = load_tile_transposed(rows + kt * 16 * PITCH + n * 16, PITCH, lane);
                    if constexpr (WITH_U) {
                        mma(f16_arithmetic{}, M[2 * n], left.x, right.x[0], right.x[2]);
                        mma(f16_arithmetic{}, M[2 * n + 1], left.x, right.x[1], right.x[3]);
                    }
                }
            }
            __syncthreads();
        }
        feature_rows<DK>(rows, a.k, a, head, token, a.features,
                         [&](int r, const float(&)[8], const float(&y)[8], float norm) {
#pragma unroll
                             for (int j = 0; j < 8; j++) column[j] += y[j];
                             if ((int)threadIdx.x % L == 0) a.norm[at * C + r] = norm;
                         });
        /* sum over the rows of a warp, then over warps, in order */
#pragma unroll
        for (int j = 0; j < 8; j++)
            for (int offset = L; offset < 32; offset *= 2) column[j] += __shfl_xor_sync(FULL_WARP, column[j], offset);
        if (lane < L)
#pragma unroll
            for (int j = 0; j < 8; j++) sums[warp][8 * lane + j] = column[j];
        __syncthreads();
        if (threadIdx.x < DK) {
            float sum = 0;
            for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
            a.n[at * DK + threadIdx.x] = sum;
        }
        if (WITH_U)
            for (int tile = warp; tile < CT * KT; tile += WARPS)
                a.K[at * sizes<DK>::tiles + tile * 32 + lane] =
                    load_tile(rows + (tile / KT) * 16 * PITCH + (tile % KT) * 16, PITCH, lane);
        __syncthreads();
    }
    if constexpr (WITH_U) {
        float4 *to = a.M + (head * a.segments + segment) * sizes<DK>::matrix + (int64_t)warp * (DK / 8) * 32 + lane;
#pragma unroll
        for (int n = 0; n < DK / 8; n++) to[n * 32] = make_float4(M[n][0], M[n][1], M[n][2], M[n][3]);
    }
}

template <int DK> __global__ void prefix(const __grid_constant__ arguments a, bool with_M, bool with_n)
{
    const int64_t quads = sizes<DK>::matrix, per_head = quads + DK / 4,
                  i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t head = i / per_head, e = i % per_head;
    if (head >= a.heads) return;
    const bool is_M = e < quads;
    if (!(is_M ? with_M : with_n)) return;
    const int64_t count = is_M ? a.segments : a.chunks, step = is_M ? quads : DK / 4;
    float4 *at = is_M ? a.M + head * a.segments * quads + e : (float4 *)(a.n + head * a.stride * DK) + (e - quads);
    float4 *carry = is_M ? a.M_carry + head * quads + e : (float4 *)(a.n_carry + head * DK) + (e - quads);
    float4 sum = *carry;
    constexpr int AHEAD = 16;
    for (int64_t s = 0; s < count; s += AHEAD) {
        float4 x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) x[j] = s + j < count ? at[(s + j) * step] : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (s + j < count) at[(s + j) * step] = sum;
            sum.x += x[j].x, sum.y += x[j].y, sum.z += x[j].z, sum.w += x[j].w;
        }
    }
    *carry = sum;
}

/* The start of a run: M = d lambda0 I, S = 0, n = 0 where there is no state; bad = none. */
template <int DK>
__global__ void start(const __grid_constant__ arguments a, const float *n_in, bool zero_S, bool zero_M, float diagonal)
{
    const int64_t head = blockIdx.x;
    if (threadIdx.x == 0) a.bad[head] = ~0ull;
    if (a.n_carry)
        for (int c = (int)threadIdx.x; c < DK; c += blockDim.x)
            a.n_carry[head * DK + c] = n_in && c < a.dk ? n_in[head * a.dk + c] : 0.0f;
    if (zero_S)
        for (int i = (int)threadIdx.x; i < a.dv * a.dk; i += blockDim.x) a.S[head * a.dv * a.dk + i] = 0;
    if (zero_M) {
        float *M = (float *)(a.M_carry + head * sizes<DK>::matrix);
        for (int i = (int)threadIdx.x; i < DK * DK; i += blockDim.x)
            M[result_index<DK>(i / DK, i % DK)] = i / DK == i % DK ? diagonal : 0.0f;
    }
}

constexpr int INVERT_THREADS = 1024;

/* M = (A/d)^-1 of a given state, by elimination in shared memory in float32, a block a head: resuming only. Widths past
 * dk get the identity. */
template <int DK>
__global__ void __launch_bounds__(INVERT_THREADS) invert_state(const __grid_constant__ arguments a, const float *A)
{
    extern __shared__ float m[]; /* [DK][DK + 1] */
    __shared__ float column[DK], row[DK];
    const int64_t head = blockIdx.x;
    float *M = (float *)(a.M_carry + head * sizes<DK>::matrix);
    for (int i = (int)threadIdx.x; i < DK * DK; i += blockDim.x) {
        const int r = i / DK, c = i % DK;
        m[r * (DK + 1) + c] = r < a.dk && c < a.dk ? A[(head * a.dk + r) * a.dk + c] / (float)a.dk
                              : r == c             ? 1.0f
                                                   : 0.0f;
    }
    for (unsigned j = 0; j < DK; j++) { /* Gauss-Jordan in place: no pivoting, the matrix is positive definite */
        __syncthreads();
        const float pivot = 1.0f / m[j * (DK + 1) + j];
        if (threadIdx.x < DK) column[threadIdx.x] = m[threadIdx.x * (DK + 1) + j];
        if (threadIdx.x < DK) row[threadIdx.x] = threadIdx.x == j ? pivot : m[j * (DK + 1) + threadIdx.x] * pivot;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DK * DK / INVERT_THREADS; i++) {
            const unsigned e = (unsigned)i * INVERT_THREADS + threadIdx.x, r = e / DK, c = e % DK;
            float &x = m[r * (DK + 1) + c];
            x = r == j ? row[c] : fmaf(-column[r], row[c], c == j ? 0.0f : x);
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DK * DK; i += blockDim.x) {
        const int r = i / DK, c = i % DK;
        M[result_index<DK>(r, c)] = 0.5f * (m[r * (DK + 1) + c] + m[c * (DK + 1) + r]);
    }
}
} /* namespace chunked */

#endif
