/* map of the chunkwise forms (chunk.cuh): a chunk's D, B, Qeff and O_loc, a block a chunk. */
#ifndef VLA_CUDA_CHUNK_MAP_CUH
#define VLA_CUDA_CHUNK_MAP_CUH
#include "kernels/cuda/chunk_prepare.cuh"

namespace chunked
{
constexpr int LOWER = CT * (CT + 1) / 2;
__host__ __device__ constexpr int lower(int i, int j)
{
    return i * (i + 1) / 2 + j;
}

template <int DK> struct map_shared {
    static constexpr int PITCH = DK + 8, VPITCH = 128 + 8;
    frag N[LOWER][32]; /* -N below the diagonal, the inverse on it */
    frag P[LOWER][32];
    small_matrix own[CT];
    float weight[C], query[C], start[C], factor[C]; /* |kf|, |qf|, n.unit q before the chunk, f */
    float top[sizes<DK>::warps];
    __half K[C * PITCH], A[C * PITCH], Q[C * PITCH]; /* unit keys, write directions, unit queries */
};
/* V follows, [C][dvp + 8] halves */

template <int DK> __host__ __device__ inline size_t map_bytes(int dvp)
{
    return sizeof(map_shared<DK>) + (size_t)C * (size_t)(dvp + 8) * sizeof(__half);
}

template <vla_op OP, int DK>
__device__ __forceinline__ void load_keys(map_shared<DK> &s, const arguments &a, int64_t head, int64_t at,
                                          int64_t token, int warp, int lane)
{
    constexpr int KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH, L = sizes<DK>::lanes;
    if constexpr (OP == VLA_VLA) {
        for (int tile = warp; tile < CT * KT; tile += sizes<DK>::warps) {
            const int offset = (tile / KT) * 16 * PITCH + (tile % KT) * 16;
            store_tile(s.K + offset, PITCH, lane, a.K[at * sizes<DK>::tiles + tile * 32 + lane]);
            store_tile(s.A + offset, PITCH, lane, a.X[at * sizes<DK>::tiles + tile * 32 + lane]);
        }
        if (threadIdx.x < C) s.weight[threadIdx.x] = a.norm[at * C + threadIdx.x];
    } else if constexpr (OP == VLA_DELTA) {
        feature_rows<DK>(
            s.K, a.k, a, head, token, a.features, [&](int r, const float(&unit)[8], const float(&)[8], float) {
                const bool in = token + r < a.T;
                float beta = 1, x[8];
                if (a.b && in)
                    beta = sigmoid(a.dtype == VLA_BF16 ? to_float(((const __nv_bfloat16 *)a.b)[head * a.T + token + r])
                                                       : to_float(((const __half *)a.b)[head * a.T + token + r]));
                if (!(beta >= 0)) {
                    beta = 0;
                    atomicMin(&a.bad[head], (unsigned long long)(token + r));
                }
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = beta * unit[i];
                put8(s.A + r * PITCH + 8 * ((int)threadIdx.x % L), x);
            });
    } else {
        feature_rows<DK>(s.K, a.k, a, head, token, a.features,
                         [&](int r, const float(&unit)[8], const float(&)[8], float norm) {
                             put8(s.A + r * PITCH + 8 * ((int)threadIdx.x % L), unit);
                             if ((int)threadIdx.x % L == 0) s.weight[r] = norm;
                         });
    }
}

/* Unit queries, their norms and their products with n. A NaN stays: it touches its own row only. */
template <int DK>
__device__ __forceinline__ void load_queries(map_shared<DK> &s, const arguments &a, int64_t head, int64_t at,
                                             int64_t token)
{
    constexpr int L = sizes<DK>::lanes, ROWS = 32 * sizes<DK>::warps / L;
    const int sub = (int)threadIdx.x % L;
    float n[8] = {};
    if (a.ratio)
#pragma unroll
        for (int j = 0; j < 8; j++) n[j] = a.n[at * DK + 8 * sub + j];
#pragma unroll
    for (int i = 0; i < C / ROWS; i++) {
        const int r = (int)threadIdx.x / L + i * ROWS;
        const bool in = token + r < a.T;
        float x[8], y[8], dot = 0;
        load8(x, a.q, a.dtype, head * a.T + token + r, 8 * sub, a.dk, in);
        float norm = unit8<false>(x, y, 8 * sub, a.dk, a.features, L);
        if (a.qk_l2 && norm > 0) norm = 1;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            x[j] = in ? x[j] : 0.0f;
            dot = fmaf(n[j], x[j], dot);
        }
        dot = group_sum(dot, L);
        put8(s.Q + r * map_shared<DK>::PITCH + 8 * sub, x);
        if (sub == 0) s.query[r] = in ? norm : 0.0f, s.start[r] = dot;
    }
}

/* V (linear: weighted by |kf|) as halves of unit scale; returns the scale. */
template <vla_op OP, int DK>
__device__ __forceinline__ float load_values(map_shared<DK> &s, __half *V, const arguments &a, int64_t head,
                                             int64_t token)
{
    constexpr int THREADS = 32 * sizes<DK>::warps;
    const int groups = a.dvp / 8, items = C * groups, warp = (int)threadIdx.x / 32;
    float top = 0;
    for (int i = (int)threadIdx.x; i < items; i += THREADS) {
        const int r = i / groups;
        float x[8];
        load8(x, a.v, a.dtype, head * a.T + token + r, 8 * (i % groups), a.dv, token + r < a.T);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float y = fabsf(OP == VLA_LINEAR ? x[j] * s.weight[r] : x[j]);
            if (!(y < INFINITY)) atomicMin(&a.bad[head], (unsigned long long)(token + r));
            top = y > top && y < INFINITY ? y : top;
        }
    }
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) s.top[warp] = top;
    __syncthreads();
    for (int w = 0; w < sizes<DK>::warps; w++) top = fmaxf(top, s.top[w]);
    const float scale = power_above(top), inverse = 1.0f / scale;
    for (int i = (int)threadIdx.x; i < items; i += THREADS) {
        const int r = i / groups;
        float x[8];
        load8(x, a.v, a.dtype, head * a.T + token + r, 8 * (i % groups), a.dv, token + r < a.T);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (OP == VLA_LINEAR) x[j] *= s.weight[r];
            x[j] = fabsf(x[j]) < INFINITY ? x[j] * inverse : 0.0f;
        }
        put8(V + r * (a.dvp + 8) + 8 * (i % groups), x);
    }
    return scale;
}

/* c = X_i Y_j^T for row tiles i, j of two [C][DK] arrays. */
template <int DK>
__device__ __forceinline__ void tile_product(float (&c)[2][4], const __half *x, int i, const __half *y, int j, int lane)
{
    constexpr int PITCH = map_shared<DK>::PITCH;
#pragma unroll
    for (int n = 0; n < 8; n++) c[n / 4][n % 4] = 0;
#pragma unroll
    for (int k = 0; k < sizes<DK>::KT; k++)
        mma_t<f16_arithmetic>(c, load_tile(x + i * 16 * PITCH + k * 16, PITCH, lane),
                              load_tile(y + j * 16 * PITCH + k * 16, PITCH, lane));
}

/* Above the diagonal to zero, by selection. */
__device__ __forceinline__ void keep_lower(float (&c)[2][4], int lane)
{
    const int g = lane / 4, t = lane % 4;
    c[0][0] = 2 * t > g ? 0.0f : c[0][0], c[1][2] = 2 * t > g ? 0.0f : c[1][2];
    c[0][1] = 2 * t + 1 > g ? 0.0f : c[0][1], c[1][3] = 2 * t + 1 > g ? 0.0f : c[1][3];
    c[1][0] = c[1][1] = 0;
}

template <int DK> __device__ __forceinline__ void make_N(map_shared<DK> &s, int i, int lane)
{
    float c[2][4];
    for (int j = 0; j < i; j++) {
        tile_product<DK>(c, s.K, i, s.A, j, lane);
        s.N[lower(i, j)][lane] = negate(pack_tile<f16_arithmetic>(c[0], c[1]));
    }
    tile_product<DK>(c, s.K, i, s.A, i, lane);
    small_store(s.own[i], c, lane);
    small_invert<true>(s.own[i], lane);
    small_load(c, s.own[i], lane);
    s.N[lower(i, i)][lane] = pack_tile<f16_arithmetic>(c[0], c[1]);
}

template <vla_op OP, int DK>
__device__ __forceinline__ void make_P(map_shared<DK> &s, const arguments &a, int i, int lane)
{
    float c[2][4], upper = 0, below = 0;
    const int g = lane / 4, t = lane % 4;
    for (int j = 0; j <= i; j++) {
        tile_product<DK>(c, s.Q, i, s.A, j, lane);
        if (i == j) keep_lower(c, lane);
        s.P[lower(i, j)][lane] = pack_tile<f16_arithmetic>(c[0], c[1]);
        if (!a.ratio) continue;
        if (OP != VLA_LINEAR) {
            tile_product<DK>(c, s.Q, i, s.K, j, lane);
            if (i == j) keep_lower(c, lane);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float w0 = s.weight[16 * j + 8 * h + 2 * t], w1 = s.weight[16 * j + 8 * h + 2 * t + 1];
            upper = fmaf(c[h][0], w0, fmaf(c[h][1], w1, upper));
            below = fmaf(c[h][2], w0, fmaf(c[h][3], w1, below));
        }
    }
    upper = group_sum(upper, 4), below = group_sum(below, 4);
    if (t == 0)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = 16 * i + g + 8 * half;
            const float norm = s.query[r], den = norm * (s.start[r] + (half ? below : upper)),
                        floor = (float)VLA_RATIO_EPS;
            s.factor[r] = a.ratio ? norm / (den < floor ? floor : den) : norm;
        }
}

/* R^T = (N^-1 X)^T for sixteen columns of X, rows of the result, as frags by token tile: X from shared memory by its
 * transpose, block forward substitution in registers. */
template <int DK, bool SOLVE>
__device__ __forceinline__ void substitute(frag (&R)[CT], const map_shared<DK> &s, const __half *x, int pitch, int lane)
{
    using M = f16_arithmetic;
#pragma unroll
    for (int i = 0; i < CT; i++) {
        R[i] = load_tile_transposed(x + i * 16 * pitch, pitch, lane);
        if (!SOLVE) continue;
        float c[2][4], y[2][4] = {};
        unpack_tile<M>(c, R[i]);
#pragma unroll
        for (int k = 0; k < i; k++) mma_t<M>(c, R[k], s.N[lower(i, k)][lane]);
        mma_t<M>(y, pack_tile<M>(c[0], c[1]), s.N[lower(i, i)][lane]);
        R[i] = pack_tile<M>(y[0], y[1]);
    }
}

template <vla_op OP, int DK>
__device__ __forceinline__ void key_columns(map_shared<DK> &s, const arguments &a, int64_t at, int slice, int lane)
{
    using M = f16_arithmetic;
    constexpr int KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH;
    const int g = lane / 4;
    frag R[CT];
    if constexpr (OP != VLA_LINEAR) {
        substitute<DK, true>(R, s, s.K + slice * 16, PITCH, lane);
#pragma unroll 2
        for (int m = 0; m < KT; m++) {
            float c[2][4] = {};
#pragma unroll
            for (int i = 0; i < CT; i++)
                mma_t<M>(c, load_tile_transposed(s.A + i * 16 * PITCH + m * 16, PITCH, lane), R[i]);
            a.D[at * sizes<DK>::square + (m * KT + slice) * 32 + lane] = negate(pack_tile<bf16_arithmetic>(c[0], c[1]));
        }
    }
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4];
        unpack_tile<M>(c, load_tile(s.Q + m * 16 * PITCH + slice * 16, PITCH, lane));
        if constexpr (OP != VLA_LINEAR)
#pragma unroll
            for (int i = 0; i <= m; i++) mma_t<M>(c, s.P[lower(m, i)][lane], negate(R[i]));
        const float f0 = s.factor[16 * m + g], f1 = s.factor[16 * m + g + 8];
#pragma unroll
        for (int h = 0; h < 2; h++) c[h][0] *= f0, c[h][1] *= f0, c[h][2] *= f1, c[h][3] *= f1;
        a.Q[at * sizes<DK>::tiles + (m * KT + slice) * 32 + lane] = pack_tile<bf16_arithmetic>(c[0], c[1]);
    }
}

template <vla_op OP, int DK>
__device__ __forceinline__ void value_columns(map_shared<DK> &s, const __half *V, const arguments &a, int64_t at,
                                              int slice, float scale, int lane)
{
    using M = f16_arithmetic;
    constexpr int KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH;
    const int g = lane / 4;
    const int64_t column = at * (a.dvp / 8) + 2 * slice;
    frag R[CT];
    substitute<DK, OP != VLA_LINEAR>(R, s, V + slice * 16, a.dvp + 8, lane);
#pragma unroll 2
    for (int m = 0; m < KT; m++) {
        float c[2][4] = {};
#pragma unroll
        for (int i = 0; i < CT; i++)
            mma_t<M>(c, load_tile_transposed(s.A + i * 16 * PITCH + m * 16, PITCH, lane), R[i]);
#pragma unroll
        for (int h = 0; h < 2; h++)
            a.B[((column + h) * KT + m) * 32 + lane] =
                make_uint2(pack(bf16_arithmetic{}, c[h][0] * scale, c[h][1] * scale),
                           pack(bf16_arithmetic{}, c[h][2] * scale, c[h][3] * scale));
    }
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4] = {};
#pragma unroll
        for (int i = 0; i <= m; i++) mma_t<M>(c, s.P[lower(m, i)][lane], R[i]);
        const float f0 = scale * s.factor[16 * m + g], f1 = scale * s.factor[16 * m + g + 8];
#pragma unroll
        for (int h = 0; h < 2; h++)
            a.O[((column + h) * CT + m) * 32 + lane] = make_uint2(pack(bf16_arithmetic{}, c[h][0] * f0, c[h][1] * f0),
                                                                  pack(bf16_arithmetic{}, c[h][2] * f1, c[h][3] * f1));
    }
}

template <vla_op OP, int DK>
__global__ void __launch_bounds__(32 * sizes<DK>::warps, DK == 64 ? 4 : 2) map(const __grid_constant__ arguments a)
{
    constexpr int WARPS = sizes<DK>::warps, L = sizes<DK>::lanes;
    extern __shared__ __align__(16) unsigned char raw[];
    map_shared<DK> &s = *(map_shared<DK> *)raw;
    __half *V = (__half *)(raw + sizeof(map_shared<DK>));
    const int64_t head = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks, at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    grid_release(a.early);
    grid_wait();
    load_keys<OP, DK>(s, a, head, at, token, warp, lane);
    load_queries<DK>(s, a, head, at, token);
    __syncthreads();
    const float scale = load_values<OP, DK>(s, V, a, head, token);
    const int row_tile = warp % CT;
    if (OP != VLA_LINEAR && warp < CT) make_N<DK>(s, row_tile, lane);
    if (WARPS == CT || warp >= CT) make_P<OP, DK>(s, a, row_tile, lane);
    if (OP == VLA_VLA && a.alpha)
        for (int i = (int)threadIdx.x; i < C * a.dk; i += 32 * WARPS) {
            const int r = i / a.dk, c = i % a.dk;
            if (token + r < a.T)
                store_element(a.alpha, a.dtype, (head * a.T + token + r) * a.dk + c,
                              __half2float(s.A[r * (DK + 8) + c]));
        }
    __syncthreads();
    (void)L;
    const int tasks = WARPS + a.dvp / 16;
    for (int task = warp; task < tasks; task += WARPS) {
        if (task < WARPS)
            key_columns<OP, DK>(s, a, at, task, lane);
        else
            value_columns<OP, DK>(s, V, a, at, task - WARPS, scale, lane);
    }
}
} /* namespace chunked */

#endif
