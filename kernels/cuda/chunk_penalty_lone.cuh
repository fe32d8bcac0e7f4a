/* Penalty (chunk_penalty.cuh) of a segment that one warp has to itself. */
#ifndef VLA_CUDA_CHUNK_PENALTY_LONE_CUH
#define VLA_CUDA_CHUNK_PENALTY_LONE_CUH
#include "kernels/cuda/chunk_penalty_rows.cuh"

namespace chunked
{
/* sigma, a power of four that brings A sigma, with so large a diagonal, to 1. */
__device__ __forceinline__ float power_of_four(float diagonal)
{
    int exponent = diagonal > 0 ? ilogbf(diagonal) + 1 : 0;
    exponent += exponent & 1;
    exponent = exponent < -40 ? -40 : exponent > 30 ? 30 : exponent;
    return exp2f((float)-exponent);
}

/* Tiles above the diagonal from those below. */
template <int DK> __device__ __forceinline__ void mirror_tiles(matrix_rows<DK, 1> &A, small_matrix *scratch, int lane)
{
    constexpr int KT = DK / 16;
#pragma unroll
    for (int m = 1; m < KT; m++)
#pragma unroll
        for (int n = 0; n < m; n++) small_store(scratch[tile_below(m - 1, n)], A[m][n], lane);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < KT; m++)
#pragma unroll
        for (int n = m + 1; n < KT; n++) small_load_transposed(A[m][n], scratch[tile_below(n - 1, m)], lane);
}

/* A lone warp's segment: sweeps of 16 pivots while step < 0, then sixteens of tokens, as in sweep and recur. Both are
 * one loop because both factor. A tile of A goes one up and one to the left in a sweep as the result of its product,
 * which costs no moves; those above the diagonal are made when all sweeps are done. */
template <int DK>
__device__ __forceinline__ void lone_segment(matrix_rows<DK, 1> &A, penalty_shared<DK, 1> &shared, const arguments &a,
                                             int64_t at, int steps, float root, int lane)
{
    using form = penalty_shape<DK, 1>;
    using S = bf16_arithmetic;
    using M = f16_arithmetic;
    constexpr int KT = form::KT;
    const int g = lane / 4, t = lane % 4;
    frag *out = a.X + at * sizes<DK>::tiles + lane;
    float sigma = 1;
#pragma unroll 1
    for (int step = -KT; step < steps; step++) {
        const auto &U = shared.input[(step + KT * form::stages) % form::stages][0],
                   &K = shared.input[(step + KT * form::stages) % form::stages][1];
        float c[2][4], x[KT][2][4], column[16];
        frag W[KT], KZ;
        if (step < 0) {
#pragma unroll
            for (int i = 0; i < 8; i++) c[i / 4][i % 4] = A[0][0][i / 4][i % 4] * (root * root);
        } else {
            if (step == 0) { /* A sigma, with sigma a power of four that brings the diagonal to 1 */
                float diagonal = 0;
#pragma unroll
                for (int m = 0; m < KT; m++) {
                    const float upper = g % 2 ? A[m][m][0][1] : A[m][m][0][0],
                                lower = g % 2 ? A[m][m][1][3] : A[m][m][1][2];
                    if (g / 2 == t) diagonal = fmaxf(diagonal, fmaxf(fabsf(upper), fabsf(lower)));
                }
                sigma = power_of_four(warp_top(diagonal));
                scale_all<DK, 1>(A, -sigma);
                grid_release(a.early); /* not before: what the next kernel does first would slow the sweeps down */
            }
            copy_wait<form::stages - 2>();
            __syncwarp();
            float z[KT][2][4] = {}, P[2][4] = {};
#pragma unroll
            for (int m = 0; m < KT; m++)
#pragma unroll
                for (int i = 0; i < 8; i++) x[m][i / 4][i % 4] = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) c[i / 4][i % 4] = 0;
#pragma unroll
            for (int k = 0; k < KT; k++) {
                const frag u = U[k][lane], key = K[k][lane];
#pragma unroll
                for (int m = 0; m < KT; m++) {
                    const frag p = pack_tile<M>(A[m][k][0], A[m][k][1]);
                    mma_t<M>(z[m], u, p);
                    mma_t<M>(x[m], key, p);
                }
            }
            if (g / 2 == t) {
                if (g % 2)
                    c[0][1] = c[1][3] = sigma;
                else
                    c[0][0] = c[1][2] = sigma;
            }
#pragma unroll
            for (int m = 0; m < KT; m++) {
                const frag Z = pack_tile<M>(z[m][0], z[m][1]);
                mma_t<M>(c, Z, U[m][lane]);
                mma_t<M>(P, K[m][lane], Z);
                W[m] = transpose(Z);
            }
            KZ = pack_tile<M>(P[0], P[1]);
        }
        factor_store(shared.G[0], c, lane);
        __syncwarp();
        if (step >= 0) fetch<DK, 1>(shared, a, at, step + form::stages - 1, steps, 0, lane);
        factor_columns<1>(column, shared.G, shared.unit, lane);
        factor_invert(column);
        if (step < 0) {
#pragma unroll
            for (int i = 0; i < 16; i++) column[i] *= root;
            factor_keep_split(shared.factor[0], shared.factor[1], column, lane);
            __syncwarp();
            const frag Lh = load_tile_transposed(shared.factor[0], FACTOR_PITCH, lane),
                       Ll = load_tile_transposed(shared.factor[1], FACTOR_PITCH, lane);
            frag high[KT], low[KT], right[KT], rest[KT];
            high[0] = negate(load_tile(shared.factor[0], FACTOR_PITCH, lane));
            low[0] = negate(load_tile(shared.factor[1], FACTOR_PITCH, lane));
#pragma unroll
            for (int m = 1; m < KT; m++) {
                float w[2][4] = {};
                const frag z = pack_tile<S>(A[m][0][0], A[m][0][1]), left = pack_rest<S>(A[m][0][0], A[m][0][1], z);
                mma_t<S>(w, left, Lh);
                mma_t<S>(w, z, Ll);
                mma_t<S>(w, z, Lh);
                high[m] = pack_tile<S>(w[0], w[1]), low[m] = pack_rest<S>(w[0], w[1], high[m]);
            }
#pragma unroll
            for (int m = 0; m < KT; m++) right[m] = negate(high[m]), rest[m] = negate(low[m]);
            const float zero[4] = {};
#pragma unroll
            for (int m = 1; m <= KT; m++) /* to a place whose own tile has been read by then */
#pragma unroll
                for (int n = 1; n <= m; n++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const bool kept = m < KT && n < KT; /* the pivots' rows and columns start from zero */
                        float(&d)[4] = A[m - 1][n - 1][h];
                        float e[4];
                        const frag &r = right[n % KT], &s = rest[n % KT];
                        if (kept)
                            mma_to(S{}, e, A[m % KT][n % KT][h], low[m % KT].x, r.x[h], r.x[2 + h]);
                        else
                            mma_to(S{}, e, zero, low[m % KT].x, r.x[h], r.x[2 + h]);
                        mma(S{}, e, high[m % KT].x, s.x[h], s.x[2 + h]);
                        mma(S{}, e, high[m % KT].x, r.x[h], r.x[2 + h]);
#pragma unroll
                        for (int i = 0; i < 4; i++) d[i] = e[i];
                    }
            if (step == -1) mirror_tiles<DK>(A, shared.mirror, lane);
        } else {
            factor_keep(shared.factor[0], column, lane);
            __syncwarp();
            const frag L = load_tile_transposed(shared.factor[0], FACTOR_PITCH, lane);
#pragma unroll
            for (int m = 0; m < KT; m++) {
                float w[2][4] = {};
                mma_t<M>(w, W[m], L);
                W[m] = pack_tile<M>(w[0], w[1]);
            }
            const auto directions = [&]() {
                float KW[2][4] = {}, upper = 0, lower = 0;
                mma_t<M>(KW, KZ, L);
                if (2 * t > g) KW[0][0] = KW[1][2] = 0; /* a later direction than the key's own token */
                if (2 * t + 1 > g) KW[0][1] = KW[1][3] = 0;
                KW[1][0] = KW[1][1] = 0;
                const frag left = negate(pack_tile<M>(KW[0], KW[1]));
#pragma unroll
                for (int m = 0; m < KT; m++) {
                    mma_t<M>(x[m], left, W[m]);
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        upper = fmaf(x[m][h][0], x[m][h][0], fmaf(x[m][h][1], x[m][h][1], upper));
                        lower = fmaf(x[m][h][2], x[m][h][2], fmaf(x[m][h][3], x[m][h][3], lower));
                    }
                }
                upper = group_sum(upper, 4), lower = group_sum(lower, 4);
                write_unit(x, upper, lower, out + (int64_t)step * KT * 32);
            };
            if (step + 1 < steps) {
#pragma unroll
                for (int n = 0; n < KT; n++) {
                    const frag right = negate(W[n]);
#pragma unroll
                    for (int m = 0; m < KT; m++) mma_t<M>(A[m][n], W[m], right);
                }
                directions();
            } else { /* no one needs A any more */
                directions();
            }
        }
    }
}
} /* namespace chunked */

#endif
