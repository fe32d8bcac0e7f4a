/* Parts of penalty (chunk_penalty.cuh): A of a segment in the registers of its warps, its sweep and its recursion; and
 * what a segment of one warp (chunk_penalty_lone.cuh) shares with them. */
#ifndef VLA_CUDA_CHUNK_PENALTY_ROWS_CUH
#define VLA_CUDA_CHUNK_PENALTY_ROWS_CUH
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/factor.cuh"

namespace chunked
{
/* Where a segment has several warps, warp w holds row tiles w T to w T + T - 1 of A as results of products. Fewer warps
 * mean fewer instructions in all, more warps a shorter chain. */
template <int DK, int WARPS> struct penalty_shape {
    static constexpr int KT = DK / 16, T = KT / WARPS, threads = 32 * WARPS, stages = 3,
                         blocks = 8 * (64 * 64) / (DK * DK) / (DK == 64 ? WARPS : 1); /* segments a multiprocessor */
};

template <int DK, int WARPS> struct penalty_shared {
    using form = penalty_shape<DK, WARPS>;
    frag input[form::stages][2][form::KT][32];        /* U and K of sixteen tokens */
    frag exchange[2][WARPS > 1 ? form::KT : 1][32];   /* W^T; in the sweep its high and low parts */
    float4 P[WARPS][2][32];                           /* a warp's part of K Z^T */
    float G[WARPS][FACTOR_MATRIX], unit[FACTOR_UNIT]; /* of Z U^T */
    float4 left[WARPS > 1 ? form::T : 1][2][32]; /* directions of the warp that will factor, not yet of unit length */
    frag KZ[32];
    __half factor[2][FACTOR_TILE]; /* (L^-1)^T; in the sweep high and low parts */
    float squares[WARPS][16], top[WARPS];
    int salt;
};
/* Tiles of M below the diagonal pass through the memory of these two first. */
template <int DK, int WARPS>
constexpr bool penalty_scratch_fits = sizeof(small_matrix) * (DK / 16) * (DK / 16 - 1) / 2 <=
                                      sizeof(penalty_shared<DK, WARPS>::input) +
                                          sizeof(penalty_shared<DK, WARPS>::exchange);

/* [row tile][column tile] of a warp's rows. */
template <int DK, int WARPS> using matrix_rows = float[DK / 16 / WARPS][DK / 16][2][4];

/* N = M on and below the diagonal. */
template <int DK, int WARPS>
__device__ __forceinline__ void load_rows(matrix_rows<DK, WARPS> &N, const float4 *M, int warp, int lane)
{
    constexpr int KT = DK / 16, T = KT / WARPS;
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int n = 0; n < KT; n++)
            if (n <= warp * T + m) {
                const float4 *tile = M + (int64_t)tile_below(warp * T + m, n) * 64 + lane;
                const float4 x = __ldcg(tile), y = __ldcg(tile + 32);
                float(&c)[2][4] = N[m][n];
                c[0][0] = x.x, c[0][1] = x.y, c[0][2] = x.z, c[0][3] = x.w;
                c[1][0] = y.x, c[1][1] = y.y, c[1][2] = y.z, c[1][3] = y.w;
            }
}

/* From there to N = -M, by way of shared memory. */
template <int DK, int WARPS>
__device__ __forceinline__ void complete_rows(matrix_rows<DK, WARPS> &N, penalty_shared<DK, WARPS> &shared, int warp,
                                              int lane)
{
    constexpr int KT = DK / 16, T = KT / WARPS;
    static_assert(penalty_scratch_fits<DK, WARPS>, "M does not fit where it is turned");
    small_matrix *scratch = (small_matrix *)&shared;
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int n = 0; n < KT; n++)
            if (n < warp * T + m) small_store(scratch[tile_below(warp * T + m - 1, n)], N[m][n], lane);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int n = 0; n < KT; n++)
            if (n > warp * T + m) small_load_transposed(N[m][n], scratch[tile_below(n - 1, warp * T + m)], lane);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int n = 0; n < KT; n++)
#pragma unroll
            for (int i = 0; i < 8; i++) N[m][n][i / 4][i % 4] = -N[m][n][i / 4][i % 4];
}

template <int DK, int WARPS> __device__ __forceinline__ void scale_all(matrix_rows<DK, WARPS> &N, float by)
{
#pragma unroll
    for (int m = 0; m < DK / 16 / WARPS; m++)
#pragma unroll
        for (int n = 0; n < DK / 16; n++)
#pragma unroll
            for (int i = 0; i < 8; i++) N[m][n][i / 4][i % 4] *= by;
}

template <int DK, int WARPS>
__device__ __forceinline__ void set_diagonal(matrix_rows<DK, WARPS> &N, float x, int warp, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < DK / 16 / WARPS; m++)
#pragma unroll
        for (int n = 0; n < DK / 16; n++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const bool diagonal =
                    warp * (DK / 16 / WARPS) + m == n && g + 8 * (i % 4 / 2) == 8 * (i / 4) + 2 * t + i % 2;
                N[m][n][i / 4][i % 4] = diagonal ? x : 0.0f;
            }
}

/* A power of two whose square brings x near 1, for any positive x that is not at the ends of float's range. */
__device__ __forceinline__ float root_below(float x)
{
    const int exponent = (int)(__float_as_uint(x) >> 23) - 127; /* -20 to 20, say */
    return __uint_as_float((uint32_t)(127 - (exponent >> 1)) << 23);
}

/* The first BY column tiles to the end. */
template <int BY, int T, int KT> __device__ __forceinline__ void rotate(float (&N)[T][KT][2][4])
{
#pragma unroll
    for (int m = 0; m < T; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x[KT];
#pragma unroll
            for (int n = 0; n < KT; n++) x[n] = N[m][n][i / 4][i % 4];
#pragma unroll
            for (int n = 0; n < KT; n++) N[m][n][i / 4][i % 4] = x[(n + BY) % KT];
        }
}

/* N = -A -> A^-1 by symmetric sweeps of 16 pivots: with W = L^-1 N_p for the pivot rows N_p, -N_pp = L L^T, then rows
 * and columns p set to zero and W_p = L^-1, the sweep is N += W^T W, as in the recursion. The first column tile goes to
 * the end each time, so that the pivot's is always first: the same instructions serve every pivot. A lone warp does it
 * in lone_sweeps. What is factored is N_pp root^2, root a power of two that brings it near 1. N comes as load_rows
 * leaves it, `complete` makes it -M when the first pivots' tile has been factored. */
template <int DK, int WARPS, typename F>
__device__ __forceinline__ void sweep(matrix_rows<DK, WARPS> &N, penalty_shared<DK, WARPS> &shared, float root,
                                      int warp, int lane, F &&complete)
{
    using M = bf16_arithmetic;
    constexpr int KT = DK / 16, T = KT / WARPS;
#pragma unroll 1
    for (int p = 0; p < KT; p++) {
        const bool owner = warp == p / T;
        const int mine = p % T;
        frag high[T], low[T]; /* of the pivots' columns, then of W^T */
        const auto split = [&](int m) {
            high[m] = pack_tile<M>(N[m][0][0], N[m][0][1]), low[m] = pack_rest<M>(N[m][0][0], N[m][0][1], high[m]);
        };
        if (owner) {
            float column[16];
#pragma unroll
            for (int m = 0; m < T; m++)
                if (m == mine) {
                    float c[2][4];
#pragma unroll
                    for (int i = 0; i < 8; i++) c[i / 4][i % 4] = N[m][0][i / 4][i % 4] * (root * root);
                    factor_store(shared.G[warp], c, lane);
                }
            __syncwarp();
            factor_columns<1>(column, shared.G + warp, shared.unit, lane);
            factor_invert(column, shared.G[warp]);
#pragma unroll
            for (int i = 0; i < 16; i++) column[i] *= root;
            factor_keep_split(shared.factor[0], shared.factor[1], column, lane);
        }
        if (p == 0) complete();
        if (!owner) {
#pragma unroll
            for (int m = 0; m < T; m++) split(m);
        }
        __syncthreads();
        const frag Lh = load_tile_transposed(shared.factor[0], FACTOR_PITCH, lane),
                   Ll = load_tile_transposed(shared.factor[1], FACTOR_PITCH, lane);
#pragma unroll
        for (int m = 0; m < T; m++) {
            if (owner && m == mine) {
                high[m] = load_tile(shared.factor[0], FACTOR_PITCH, lane);
                low[m] = load_tile(shared.factor[1], FACTOR_PITCH, lane);
#pragma unroll
                for (int n = 1; n < KT; n++)
#pragma unroll
                    for (int i = 0; i < 8; i++) N[m][n][i / 4][i % 4] = 0;
            } else {
                if (owner) split(m);
                float w[2][4] = {};
                mma_t<M>(w, low[m], Lh);
                mma_t<M>(w, high[m], Ll);
                mma_t<M>(w, high[m], Lh);
                high[m] = pack_tile<M>(w[0], w[1]), low[m] = pack_rest<M>(w[0], w[1], high[m]);
            }
            const int place = (warp * T + m - p + KT) % KT; /* among the column tiles now */
            shared.exchange[0][place][lane] = high[m], shared.exchange[1][place][lane] = low[m];
#pragma unroll
            for (int i = 0; i < 8; i++) N[m][0][i / 4][i % 4] = 0;
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < KT; n++) {
            const frag right = shared.exchange[0][n][lane], rest = shared.exchange[1][n][lane];
#pragma unroll
            for (int m = 0; m < T; m++) {
                mma_t<M>(N[m][n], low[m], right);
                mma_t<M>(N[m][n], high[m], rest);
                mma_t<M>(N[m][n], high[m], right);
            }
        }
        rotate<1>(N);
    }
}

/* U and K of a sixteen of tokens asked for; nothing of one beyond the last, without a branch. */
template <int DK, int WARPS>
__device__ __forceinline__ void fetch(penalty_shared<DK, WARPS> &shared, const arguments &a, int64_t at, int step,
                                      int steps, int warp, int lane)
{
    using form = penalty_shape<DK, WARPS>;
    const int64_t from = at * sizes<DK>::tiles + ((int64_t)step * form::KT + warp * form::T) * 32 + lane;
    frag(*to)[form::KT][32] = shared.input[step % form::stages];
#pragma unroll
    for (int m = 0; m < form::T; m++) {
        copy_async_if(step < steps, &to[0][warp * form::T + m][lane], a.U + from + m * 32);
        copy_async_if(step < steps, &to[1][warp * form::T + m][lane], a.K + from + m * 32);
    }
    copy_commit();
}

/* Sixteen rows of -x, x of unit length, their squares' sums given, to `out`. */
template <int T> __device__ __forceinline__ void write_unit(float (&x)[T][2][4], float upper, float lower, frag *out)
{
    upper = upper == 0 ? 0.0f : -quick_rsqrt(upper), lower = lower == 0 ? 0.0f : -quick_rsqrt(lower);
#pragma unroll
    for (int m = 0; m < T; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) x[m][h][0] *= upper, x[m][h][1] *= upper, x[m][h][2] *= lower, x[m][h][3] *= lower;
        out[m * 32] = pack_tile<f16_arithmetic>(x[m][0], x[m][1]);
    }
}

template <int DK, int WARPS>
__device__ __forceinline__ void write_directions(float (&x)[DK / 16 / WARPS][2][4],
                                                 const penalty_shared<DK, WARPS> &shared, frag *out, int lane)
{
    float upper = 0, lower = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) upper += shared.squares[w][lane / 4], lower += shared.squares[w][lane / 4 + 8];
    write_unit(x, upper, lower, out);
}

/* The tokens of `steps` sixteens from chunk `at` on. N is -A sigma, its column tiles starting from the warp's own rows,
 * so that every operand is near 1: Z = U N, L L^T = sigma I - Z U^T, W = L^-1 Z, N += W^T W, -X = K N + tril(K W^T) W.
 * One warp factors, and directions are written a step late, when their squares are known, by those that do not. */
template <int DK, int WARPS>
__device__ __forceinline__ void recur(matrix_rows<DK, WARPS> &N, penalty_shared<DK, WARPS> &shared, const arguments &a,
                                      int64_t at, int steps, float sigma, int warp, int lane)
{
    using form = penalty_shape<DK, WARPS>;
    using M = f16_arithmetic;
    constexpr int KT = form::KT, T = form::T;
    const int g = lane / 4, t = lane % 4, first = warp * T;
    frag *out = a.X + at * sizes<DK>::tiles + first * 32 + lane;
    float waiting[T][2][4]; /* directions of the step before */
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const auto &U = shared.input[step % form::stages][0], &K = shared.input[step % form::stages][1];
        const bool owner = warp == step % WARPS;
        frag Z[T];
        float x[T][2][4] = {}, z[T][2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) {
            const frag u = U[(first + k) % KT][lane], key = K[(first + k) % KT][lane];
#pragma unroll
            for (int m = 0; m < T; m++) {
                const frag p = pack_tile<M>(N[m][k][0], N[m][k][1]);
                mma_t<M>(z[m], u, p);
                mma_t<M>(x[m], key, p);
            }
        }
        float G[2][4] = {}, P[2][4] = {};
        if (owner && g / 2 == t) {
            if (g % 2)
                G[0][1] = G[1][3] = -sigma;
            else
                G[0][0] = G[1][2] = -sigma;
        }
#pragma unroll
        for (int m = 0; m < T; m++) {
            Z[m] = pack_tile<M>(z[m][0], z[m][1]);
            mma_t<M>(G, Z[m], U[first + m][lane]);
            mma_t<M>(P, K[first + m][lane], Z[m]);
        }
        factor_store(shared.G[warp], G, lane);
#pragma unroll
        for (int h = 0; h < 2; h++) shared.P[warp][h][lane] = make_float4(P[h][0], P[h][1], P[h][2], P[h][3]);
        frag W[T];
#pragma unroll
        for (int m = 0; m < T; m++) W[m] = transpose(Z[m]);
        __syncthreads();
        if (!owner) {
            if (step > 0) {
                frag *to = out + (int64_t)(step - 1) * KT * 32;
                write_directions<DK, WARPS>(waiting, shared, to, lane);
                if (warp == (step + WARPS / 2) % WARPS) {
#pragma unroll
                    for (int m = 0; m < T; m++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const float4 part = shared.left[m][h][lane];
                            float(&c)[4] = waiting[m][h];
                            c[0] = part.x, c[1] = part.y, c[2] = part.z, c[3] = part.w;
                        }
                    write_directions<DK, WARPS>(waiting, shared, to + (step % WARPS * T - first) * 32, lane);
                }
            }
            fetch<DK, WARPS>(shared, a, at, step + form::stages - 1, steps, warp, lane);
            copy_wait<form::stages - 2>();
        } else {
            copy_wait<form::stages - 3>();
        }
        if (owner) {
            float column[16];
            factor_columns<WARPS>(column, shared.G, shared.unit, lane);
            factor_invert(column, NULL);
            factor_keep(shared.factor[0], column, lane);
        }
        if (warp == (step + 1) % WARPS) {
            float sum[2][4] = {};
#pragma unroll
            for (int w = 0; w < WARPS; w++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float4 part = shared.P[w][h][lane];
                    sum[h][0] += part.x, sum[h][1] += part.y, sum[h][2] += part.z, sum[h][3] += part.w;
                }
            shared.KZ[lane] = pack_tile<M>(sum[0], sum[1]);
        }
        __syncthreads();
        if (owner) fetch<DK, WARPS>(shared, a, at, step + form::stages - 1, steps, warp, lane);
        const frag KZ = shared.KZ[lane];
        const frag L = load_tile_transposed(shared.factor[0], FACTOR_PITCH, lane);
#pragma unroll
        for (int m = 0; m < T; m++) {
            float w[2][4] = {};
            mma_t<M>(w, W[m], L);
            W[m] = pack_tile<M>(w[0], w[1]);
            shared.exchange[0][first + m][lane] = W[m];
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < KT; n++) {
            const frag right = n < T ? W[n % T] : shared.exchange[0][(first + n) % KT][lane];
#pragma unroll
            for (int m = 0; m < T; m++) mma_t<M>(N[m][n], W[m], right);
        }
        float KW[2][4] = {};
        mma_t<M>(KW, KZ, L);
        if (2 * t > g) KW[0][0] = KW[1][2] = 0; /* a later direction than the key's own token */
        if (2 * t + 1 > g) KW[0][1] = KW[1][3] = 0;
        KW[1][0] = KW[1][1] = 0;
        const frag left = pack_tile<M>(KW[0], KW[1]);
        float upper = 0, lower = 0;
#pragma unroll
        for (int m = 0; m < T; m++) {
            mma_t<M>(x[m], left, W[m]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                upper = fmaf(x[m][h][0], x[m][h][0], fmaf(x[m][h][1], x[m][h][1], upper));
                lower = fmaf(x[m][h][2], x[m][h][2], fmaf(x[m][h][3], x[m][h][3], lower));
            }
        }
        upper = group_sum(upper, 4), lower = group_sum(lower, 4);
        if (t == 0) shared.squares[warp][g] = upper, shared.squares[warp][g + 8] = lower;
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) waiting[m][i / 4][i % 4] = x[m][i / 4][i % 4];
        if (warp == (step + 1) % WARPS) { /* it will have no time to */
#pragma unroll
            for (int m = 0; m < T; m++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    shared.left[m][h][lane] = make_float4(x[m][h][0], x[m][h][1], x[m][h][2], x[m][h][3]);
        }
    }
    __syncthreads();
    write_directions<DK, WARPS>(waiting, shared, out + (int64_t)(steps - 1) * KT * 32, lane);
}
} /* namespace chunked */

#endif
