/* map of two neighbouring chunks as one step of the walk (chunk.cuh), for dk and dv to 64: a block of two groups of
 * four warps, a chunk each, as in chunk_apart_map.cuh. With E = -D^T of a chunk and T = 1 + E the state goes through a
 * chunk as S^T' = T S^T + B^T, and through both as
 *   E = T2 E1 + E2,  B = B1 T2^T + B2,
 * and the second chunk's outputs by the state before the first are
 *   Qeff = Qeff2 T1,  O_loc = O_loc2 + Qeff2 B1^T.
 * The first group makes the first line (E transposed), the second the second, each after its own chunk's part. What one
 * needs of the other goes through shared memory as float16 of unit scale, E^T in K's place, B in V's, Qeff in Q's. Only
 * as a factor is T rounded, never E. A second chunk beyond the last has no tokens: E2 = B2 = 0. */
#ifndef VLA_CUDA_CHUNK_APART_PAIR_CUH
#define VLA_CUDA_CHUNK_APART_PAIR_CUH
#include "kernels/cuda/chunk_apart_map.cuh"

namespace chunked::apart
{
/* Of a pair Qeff of the first chunk, E of both, Qeff of the second; of sixteen columns O_loc of the first, B of both,
 * O_loc of the second. A block of the walk takes E and B with what is before or behind them. */
template <int DK> struct pair_record {
    frag Q1[CT][DK / 16][32], D[DK / 16][DK / 16][32], Q2[CT][DK / 16][32];
};
template <int DK> constexpr int64_t pair_frags = sizeof(pair_record<DK>) / sizeof(frag);
template <int DK> constexpr int64_t pair_strip_frags = (int64_t)(DK / 16 + 2 * CT) * 32;

template <int DK> struct pair_shared {
    static constexpr int GROUP = map_shared<DK>::THREADS, THREADS = 2 * GROUP; /* threads: a block is GROUP x 2 */
    float scale[4]; /* of V of both chunks; two unused, for 16 bytes */
};
template <int DK> size_t pair_bytes(int dvp)
{
    return sizeof(pair_shared<DK>) + 2 * map_bytes<DK>(dvp);
}

__device__ __forceinline__ uint32_t add_pair(uint32_t x, uint32_t y)
{
    const __half2 sum = __hadd2(*(const __half2 *)&x, *(const __half2 *)&y);
    return *(const uint32_t *)&sum;
}

/* The diagonal of a right operand of E to that of 1 + E. */
__device__ __forceinline__ void add_unit(frag &x, const frag &unit)
{
    x.x[0] = add_pair(x.x[0], unit.x[0]), x.x[3] = add_pair(x.x[3], unit.x[3]);
}

/* A tile in shared memory turned by way of it: stored as its transpose, read as the left operand that this is. */
__device__ __forceinline__ frag turn_through(uint32_t tile, uint32_t turned, uint32_t plain, const frag &f)
{
    store_frag<true>(tile + turned, f);
    __syncwarp();
    return load_plain(tile + plain);
}

/* Of sixteen columns (a strip): B or O_loc as the walk wants it. */
__device__ __forceinline__ frag by_columns(const float (&d)[2][4])
{
    using W = bf16_arithmetic;
    return {{pack(W{}, d[0][0], d[0][1]), pack(W{}, d[1][0], d[1][1]), pack(W{}, d[0][2], d[0][3]),
             pack(W{}, d[1][2], d[1][3])}};
}

/* EARLY as in solve_chunk, TOGETHER as in put_queries. */
template <vla_op OP, int DK, bool EARLY, bool TOGETHER>
__global__ void __launch_bounds__(pair_shared<DK>::THREADS, 2) map_pairs(const __grid_constant__ arguments a)
{
    using M = f16_arithmetic;
    constexpr int GROUP = pair_shared<DK>::GROUP, ALL = pair_shared<DK>::THREADS, KT = sizes<DK>::KT,
                  PITCH = map_shared<DK>::PITCH, ROWS = 32 * PITCH; /* bytes of sixteen rows */
    constexpr int FIRST = 3, SECOND = 4;                            /* barriers: that group's operands are there */
    static_assert(map_shared<DK>::WARPS == KT, "a warp takes sixteen columns of K");
    extern __shared__ __align__(16) unsigned char raw[];
    const int lane = (int)threadIdx.x % 32, warp = warp_number(), group = __shfl_sync(FULL_WARP, (int)threadIdx.y, 0);
    pair_shared<DK> &both = *(pair_shared<DK> *)raw;
    unsigned char *const own = raw + sizeof both + (group == 0 ? 0 : map_bytes<DK>(a.dvp)),
                         *const others = raw + sizeof both + (group == 0 ? map_bytes<DK>(a.dvp) : 0);
    map_shared<DK> &s = *(map_shared<DK> *)own;
    const int64_t pairs = (a.chunks + 1) / 2, head = blockIdx.x / pairs, pair = blockIdx.x % pairs,
                  chunk = 2 * pair + group, left64 = a.T - a.first_token - chunk * C;
    const int left = chunk >= a.chunks ? 0 : (int)(left64 < C ? left64 : C);
    const auto group_meets = [&]() { meet<GROUP>(1 + group); };
    const float scale = solve_chunk<OP, DK, false, EARLY, TOGETHER, true>(
        s, (__half *)(own + sizeof(map_shared<DK>)), a, head, chunk, left, warp, lane, group_meets);
    if (threadIdx.x == 0) both.scale[group] = scale;
    if (pair == 0 && (!a.first || a.resume)) /* the blocks that walk the same rows read it, one of them writes S */
        for (int i = GROUP * group + (int)threadIdx.x; i < a.dk * a.dv; i += ALL)
            a.start[head * a.dk * a.dv + i] = a.S[head * a.dk * a.dv + i];
    const bool has_values = warp < a.dvp / 16;
    const int key = warp, value = has_values ? warp : 0, g = lane / 4, t = lane % 4;
    const uint32_t plain = plain_offset(PITCH, lane), turned = turned_offset(PITCH, lane), K = shared_address(s.K),
                   A = shared_address(s.A), Q = shared_address(s.Q), V = shared_address(own + sizeof(map_shared<DK>)),
                   to_other = shared_address(others) - shared_address(own);
    const frag unit = right_order(unit_tile<M>(lane));
    frag RK[CT], RV[CT];
#pragma unroll
    for (int i = 0; i < CT; i++) {
        RK[i] = load_turned(K + i * ROWS + 32 * key + turned);
        RV[i] = load_turned(V + i * ROWS + 32 * value + turned);
        substitute<DK>(RK, s, unit, i, lane);
        substitute<DK>(RV, s, unit, i, lane);
    }
#pragma unroll
    for (int i = 0; i < CT; i++) RK[i] = negate(RK[i]);
    group_meets(); /* K and V have been read, factors are there */
#pragma unroll
    for (int m = 0; m < KT; m++) {
        float c[2][4] = {}, d[2][4] = {};
#pragma unroll
        for (int i = 0; i < CT; i++) {
            const frag x = load_turned(A + i * ROWS + 32 * m + plain);
            mma_r<M>(c, RK[i], x);
            mma_r<M>(d, RV[i], x);
        }
        store_frag<false>(K + key * ROWS + 32 * m + plain, pack_tile<M>(c[0], c[1]));
        if (has_values) store_frag<false>(V + value * ROWS + 32 * m + plain, pack_tile<M>(d[0], d[1]));
    }
    meet_later<ALL>(group == 0 ? FIRST : SECOND);
    const int64_t at = head * ((a.stride + 1) / 2) + pair;
    pair_record<DK> &maps = ((pair_record<DK> *)a.maps)[at];
    frag *strip = a.columns + (at * (a.dvp / 16) + value) * pair_strip_frags<DK> + lane;
    float O[CT][2][4];
#pragma unroll
    for (int m = 0; m < CT; m++) { /* Qeff in the place of Q, O_loc */
        float c[2][4] = {}, d[2][4] = {};
        mma_r<M>(c, load_turned(Q + m * ROWS + 32 * key + turned), unit);
#pragma unroll
        for (int i = 0; i <= m; i++) {
            const frag P = s.P[1][lower(m, i)][lane];
            mma_r<M>(c, RK[i], P);
            mma_r<M>(d, RV[i], P);
        }
        const float2 e0 = *(const float2 *)&s.value_factor[16 * m + 2 * t],
                     e1 = *(const float2 *)&s.value_factor[16 * m + 8 + 2 * t];
        const float e[4] = {e0.x, e0.y, e1.x, e1.y};
#pragma unroll
        for (int n = 0; n < 8; n++) O[m][n / 4][n % 4] = d[n / 4][n % 4] * e[n / 4 * 2 + n % 2];
        frag q = pack_tile<M>(c[0], c[1]);
        if (group == 0) {
            const float2 f0 = *(const float2 *)&s.factor[16 * m + 2 * t],
                         f1 = *(const float2 *)&s.factor[16 * m + 8 + 2 * t];
            const float f[4] = {f0.x, f0.y, f1.x, f1.y};
#pragma unroll
            for (int n = 0; n < 8; n++) c[n / 4][n % 4] *= f[n / 4 * 2 + n % 2];
            q = pack_tile<bf16_arithmetic>(c[0], c[1]);
            if (has_values) strip[m * 32] = by_columns(O[m]);
        }
        store_frag<true>(Q + m * ROWS + 32 * key + turned, q);
    }
    if (group == 0) {
        __syncwarp();
#pragma unroll
        for (int m = 0; m < CT; m++) maps.Q1[m][key][lane] = load_plain(Q + m * ROWS + 32 * key + plain);
        meet<ALL>(SECOND);
        const float scale2 = both.scale[1];
        const uint32_t E2 = K + to_other, B2 = V + to_other;
        frag E[KT], B[KT];
#pragma unroll
        for (int j = 0; j < KT; j++) {
            E[j] = load_plain(K + key * ROWS + 32 * j + plain);
            B[j] = load_plain(V + value * ROWS + 32 * j + plain);
        }
#pragma unroll
        for (int m = 0; m < KT; m++) {
            float c[2][4] = {}, d[2][4] = {}, b[2][4];
            mma_r<M>(c, load_plain(E2 + key * ROWS + 32 * m + plain), unit);
#pragma unroll
            for (int j = 0; j < KT; j++) {
                frag x = load_turned(E2 + j * ROWS + 32 * m + plain);
                if (j == m) add_unit(x, unit);
                mma_r<M>(c, E[j], x);
                mma_r<M>(d, B[j], x);
            }
            maps.D[m][key][lane] =
                turn_through(A + m * ROWS + 32 * key, turned, plain, pack_tile<bf16_arithmetic>(c[0], c[1]));
            if (!has_values) continue;
            unpack_tile<M>(b, load_plain(B2 + value * ROWS + 32 * m + plain));
#pragma unroll
            for (int n = 0; n < 8; n++) d[n / 4][n % 4] = fmaf(b[n / 4][n % 4], scale2, d[n / 4][n % 4] * scale);
            strip[(CT + m) * 32] = by_columns(d);
        }
    } else {
        meet<ALL>(FIRST); /* and all of this group's Qeff is there */
        const float scale1 = both.scale[0];
        const uint32_t E1 = K + to_other, B1 = V + to_other;
        frag T[KT], left_B[KT];
#pragma unroll
        for (int j = 0; j < KT; j++) {
            T[j] = load_plain(E1 + key * ROWS + 32 * j + turned);
            if (j == key) add_unit(T[j], unit);
            left_B[j] = load_plain(B1 + value * ROWS + 32 * j + plain);
        }
#pragma unroll
        for (int m = 0; m < CT; m++) {
            float c[2][4] = {}, d[2][4] = {};
#pragma unroll
            for (int j = 0; j < KT; j++) {
                mma_r<M>(c, load_plain(Q + m * ROWS + 32 * j + plain), T[j]);
                mma_r<M>(d, left_B[j], load_plain(Q + m * ROWS + 32 * j + turned));
            }
            const float f0 = s.factor[16 * m + g], f1 = s.factor[16 * m + g + 8];
#pragma unroll
            for (int h = 0; h < 2; h++) c[h][0] *= f0, c[h][1] *= f0, c[h][2] *= f1, c[h][3] *= f1;
            maps.Q2[m][key][lane] = pack_tile<bf16_arithmetic>(c[0], c[1]);
            const float2 e0 = *(const float2 *)&s.factor[16 * m + 2 * t],
                         e1 = *(const float2 *)&s.factor[16 * m + 8 + 2 * t];
            float e[4] = {e0.x, e0.y, e1.x, e1.y};
#pragma unroll
            for (int n = 0; n < 4; n++) e[n] = e[n] == e[n] ? e[n] * scale1 : 0.0f;
#pragma unroll
            for (int n = 0; n < 8; n++)
                d[n / 4][n % 4] = fmaf(d[n / 4][n % 4], e[n / 4 * 2 + n % 2], O[m][n / 4][n % 4]);
            if (has_values) strip[(CT + KT + m) * 32] = by_columns(d);
        }
    }
}
} /* namespace chunked::apart */

#endif
