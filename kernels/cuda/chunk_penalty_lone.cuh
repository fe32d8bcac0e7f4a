/* Penalty (chunk_penalty.cuh) of a segment that one warp has to itself. It holds N = -A, its tiles on and below the
 * diagonal: N += W^T W needs no change of sign. */
#ifndef VLA_CUDA_CHUNK_PENALTY_LONE_CUH
#define VLA_CUDA_CHUNK_PENALTY_LONE_CUH
#include "kernels/cuda/chunk_penalty_rows.cuh"

namespace chunked
{
/* sigma, a power of four that brings A sigma, with so large a diagonal, to 1. */
__device__ __forceinline__ float power_of_four(float diagonal)
{
    const int above = (int)(__float_as_uint(diagonal) >> 23) - 126, even = above + (above & 1);
    return __uint_as_float((uint32_t)(127 - max(-40, min(even, 30))) << 23);
}

/* The end state's A over M^-1. */
__device__ __forceinline__ float end_scale(const arguments &a, int64_t head)
{
    return first_bad(a, head) < a.T ? NAN : (float)a.dk;
}

/* At tile_below(row tile, column tile). */
template <int DK> using lower_tiles = float[DK / 16 * (DK / 16 + 1) / 2][2][4];

/* The transpose of a tile of factor_keep's, in the order of a right operand (mma_r). */
__device__ __forceinline__ frag load_right(const __half *tile, int lane)
{
    return load_turned(shared_address(tile) + plain_offset(FACTOR_PITCH, lane));
}

/* Products of operands in two bfloat16, low parts first. */
__device__ __forceinline__ void split_products(float (&d)[2][4], const float (&c)[2][4], const frag &high,
                                               const frag &low, const frag &right, const frag &rest)
{
    using S = bf16_arithmetic;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float e[4];
        mma_to(S{}, e, c[h], low.x, right.x[2 * h], right.x[2 * h + 1]);
        mma(S{}, e, high.x, rest.x[2 * h], rest.x[2 * h + 1]);
        mma(S{}, e, high.x, right.x[2 * h], right.x[2 * h + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++) d[h][i] = e[i];
    }
}
__device__ __forceinline__ void split(frag &high, frag &low, const float (&c)[2][4])
{
    high = pack_tile<bf16_arithmetic>(c[0], c[1]), low = pack_rest<bf16_arithmetic>(c[0], c[1], high);
}
/* From a tile of the pivots' columns to that of W^T, both in two parts, with L^-1's. */
__device__ __forceinline__ void split_solve(frag &high, frag &low, const frag &Lh, const frag &Ll)
{
    const float zero[2][4] = {};
    float w[2][4];
    split_products(w, zero, high, low, Lh, Ll);
    split(high, low, w);
}

/* A frag in registers of its own, which the compiler would copy for each product instead; zero is 0. */
__device__ __forceinline__ frag own_registers(frag f, int zero)
{
#pragma unroll
    for (int i = 0; i < 4; i++) f.x[i] |= (uint32_t)zero;
    return f;
}

/* A sweep of 16 pivots (as in sweep): what is left to do of it when the next pivots are known. The pivots' rows and
 * columns go to the end, every tile one up and one to the left. */
template <int DK> struct pending_sweep {
    static constexpr int KT = DK / 16;
    int zero;
    frag Lh, Ll, high[KT], low[KT]; /* L^-1 and W^T, in two parts; of W those of the pivots and of the next pivots */
    frag right[KT], right_low[KT];  /* W^T's again as right operands */

    __device__ __forceinline__ void copy(int m)
    {
        right[m] = own_registers(right_order(high[m]), zero), right_low[m] = own_registers(right_order(low[m]), zero);
    }
    __device__ __forceinline__ void make(const lower_tiles<DK> &N, int m) /* W^T of row tile m */
    {
        split(high[m], low[m], N[tile_below(m, 0)]);
        split_solve(high[m], low[m], Lh, Ll);
        copy(m);
    }
    __device__ __forceinline__ void move(float (&to)[2][4], const float (&from)[2][4], int m, int n) const
    {
        split_products(to, from, high[m % KT], low[m % KT], right[n % KT], right_low[n % KT]);
    }
    /* One part, 0 to 7, of all but the next pivots' tile; one of its results is returned. */
    __device__ __forceinline__ float rest(lower_tiles<DK> &N, int part)
    {
        constexpr int TILES = KT * (KT + 1) / 2 - 1;
        const float none[2][4] = {}; /* what the pivots' rows and columns start from */
        float any = 0;
#pragma unroll
        for (int m = 2; m < KT; m++)
            if (part == 1) make(N, m), any = __uint_as_float(low[m].x[0]);
#pragma unroll
        for (int m = 2; m <= KT; m++) /* to a place whose own tile has been read by then */
#pragma unroll
            for (int n = 1; n <= m; n++)
                if (tile_below(m - 1, n - 1) * 5 / (TILES + 1) + 2 == part) {
                    float(&to)[2][4] = N[tile_below(m - 1, n - 1)];
                    if (m < KT)
                        move(to, N[tile_below(m, n)], m, n);
                    else
                        move(to, none, m, n);
                    any = to[1][3];
                }
        return any;
    }
};

/* N = M^-1, from M's tiles, of which only the first is needed soon. `ask` is called for parts 0 to 7 beside the first
 * factorisation, `root` as in sweep. `zero` is 0, which the compiler does not know: what depends on it is done in
 * its place, between steps of a factorisation. SHARED has a matrix G, unit and factor. */
template <int DK, typename SHARED, typename F>
__device__ __forceinline__ void lone_sweeps(lower_tiles<DK> &N, SHARED &shared, float root, int zero, int lane, F &&ask)
{
    constexpr int KT = DK / 16, TILES = KT * (KT + 1) / 2;
    pending_sweep<DK> before;
    before.zero = zero;
#pragma unroll 1
    for (int p = 0; p < KT; p++) {
        float c[2][4], column[16];
#pragma unroll
        for (int i = 0; i < 8; i++) c[i / 4][i % 4] = N[0][i / 4][i % 4] * (root * root);
        factor_store(shared.G[0], c, lane);
        __syncwarp();
        factor_columns<1>(column, shared.G, shared.unit, lane);
        if (p == 0) {
            factor_invert(column, shared.G[0], [&](int i) {
                ask(i);
                return 0;
            });
            const float minus = __int_as_float(__float_as_int(-1.0f) | (__float_as_int(column[15]) & zero));
#pragma unroll
            for (int m = 1; m < TILES; m++)
#pragma unroll
                for (int i = 0; i < 8; i++) N[m][i / 4][i % 4] *= minus;
        } else {
            float any = 0;
            factor_invert(column, shared.G[0], [&](int i) {
                const int after = __float_as_int(any) & zero;
                any = before.rest(N, i);
                return after;
            });
        }
#pragma unroll
        for (int i = 0; i < 16; i++) column[i] *= root;
        factor_keep_split(shared.factor[0], shared.factor[1], column, lane);
        __syncwarp();
        before.Lh = load_right(shared.factor[0], lane), before.Ll = load_right(shared.factor[1], lane);
        before.high[0] = load_tile(shared.factor[0], FACTOR_PITCH, lane);
        before.low[0] = load_tile(shared.factor[1], FACTOR_PITCH, lane);
        before.copy(0);
        before.make(N, 1);
        before.move(N[0], N[tile_below(1, 1)], 1, 1);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) before.rest(N, i);
}

/* The end state's A, dk x dk, from N = M^-1. */
template <int DK>
__device__ __forceinline__ void lone_end(const lower_tiles<DK> &N, const arguments &a, int64_t head, int lane)
{
    const float by = end_scale(a, head);
    float *to = a.A_end + head * a.dk * a.dk;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < DK / 16; m++)
#pragma unroll
        for (int n = 0; n <= m; n++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int r = 16 * m + g + 8 * (i % 4 / 2), c = 16 * n + 8 * (i / 4) + 2 * t + i % 2;
                const float x = N[tile_below(m, n)][i / 4][i % 4] * by;
                if (r < a.dk && c < a.dk) to[r * a.dk + c] = x;
                if (n < m && r < a.dk && c < a.dk) to[c * a.dk + r] = x;
            }
}

/* Tokens that a lone warp brings from memory, some steps ahead. */
template <int DK> struct ring_tokens {
    using form = penalty_shape<DK, 1>;
    penalty_shared<DK, 1> &shared;
    const arguments &a;
    int64_t at;
    int steps, lane;
    static constexpr int ahead = form::stages;
    __device__ __forceinline__ void ask(int step) const { fetch<DK, 1>(shared, a, at, step, steps, 0, lane); }
    __device__ __forceinline__ void first() const /* before all others */
    {
        grid_release(a.early); /* not before: what the next kernel does first would slow the sweeps down */
        copy_wait<form::stages - 1>();
        __syncwarp();
    }
    __device__ __forceinline__ void await() const /* the next ones; a __syncwarp follows */
    {
        copy_wait<form::stages - 2>();
    }
    __device__ __forceinline__ void done(int step) const /* with these */ { ask(step + ahead); }
    __device__ __forceinline__ frag u(int step, int k) const { return shared.input[step % form::stages][0][k][lane]; }
    __device__ __forceinline__ frag key(int step, int k) const { return shared.input[step % form::stages][1][k][lane]; }
};

/* The frag of tile (m, n) of a symmetric matrix. */
template <int DK> __device__ __forceinline__ void pack_lower(frag (&p)[DK / 16][DK / 16], const lower_tiles<DK> &N)
{
#pragma unroll
    for (int m = 0; m < DK / 16; m++)
#pragma unroll
        for (int n = 0; n <= m; n++) {
            const float(&c)[2][4] = N[tile_below(m, n)];
            p[m][n] = pack_tile<f16_arithmetic>(c[0], c[1]);
            if (n < m) p[n][m] = transpose(p[m][n]);
        }
}

/* `steps` sixteens of tokens as in recur, from N = M^-1. The directions go to `out`. */
template <int DK, typename SHARED, typename TOKENS>
__device__ __forceinline__ void lone_tokens(lower_tiles<DK> &N, SHARED &shared, const TOKENS &tokens, frag *out,
                                            int steps, int zero, int lane)
{
    using M = f16_arithmetic;
    constexpr int KT = DK / 16;
    const int g = lane / 4, t = lane % 4;
    out += lane;
    float diagonal = 0;
#pragma unroll
    for (int m = 0; m < KT; m++) {
        const float(&c)[2][4] = N[tile_below(m, m)];
        const float upper = g % 2 ? c[0][1] : c[0][0], lower = g % 2 ? c[1][3] : c[1][2];
        if (g / 2 == t) diagonal = fmaxf(diagonal, fmaxf(fabsf(upper), fabsf(lower)));
    }
    const float sigma = power_of_four(warp_top(diagonal));
#pragma unroll
    for (int m = 0; m < KT * (KT + 1) / 2; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) N[m][i / 4][i % 4] *= -sigma;
    float x[KT][2][4];
    frag W[KT], p[KT][KT], KZ;
    /* Z = U N, which is packed into W, and -G = -sigma I + Z U^T, which goes to be factored */
    const auto project = [&](int step) {
        float z[KT][2][4] = {}, c[2][4] = {}, d[2][4] = {};
        pack_lower<DK>(p, N);
        if (g / 2 == t) {
            if (g % 2)
                c[0][1] = c[1][3] = -sigma;
            else
                c[0][0] = c[1][2] = -sigma;
        }
#pragma unroll
        for (int m = 0; m < KT; m += 2) { /* four chains keep the tensor cores busy, and half of G is made meanwhile */
#pragma unroll
            for (int k = 0; k < KT; k++) {
                const frag u = tokens.u(step, k);
                mma_t<M>(z[m], u, p[m][k]);
                mma_t<M>(z[m + 1], u, p[m + 1][k]);
            }
            W[m] = pack_tile<M>(z[m][0], z[m][1]), W[m + 1] = pack_tile<M>(z[m + 1][0], z[m + 1][1]);
            mma_t<M>(c, W[m], tokens.u(step, m));
            mma_t<M>(d, W[m + 1], tokens.u(step, m + 1));
        }
#pragma unroll
        for (int i = 0; i < 8; i++) c[i / 4][i % 4] += d[i / 4][i % 4];
        factor_store(shared.G[0], c, lane);
    };
    /* -X = K N + tril(K W^T) W */
    const auto directions = [&](int step, const frag &L, const frag(&R)[KT]) {
        float KW[2][4] = {}, upper = 0, lower = 0;
        mma_r<M>(KW, KZ, L);
        if (2 * t > g) KW[0][0] = KW[1][2] = 0; /* a later direction than the key's own token */
        if (2 * t + 1 > g) KW[0][1] = KW[1][3] = 0;
        KW[1][0] = KW[1][1] = 0;
        const frag left = pack_tile<M>(KW[0], KW[1]);
#pragma unroll
        for (int m = 0; m < KT; m++) {
            mma_r<M>(x[m], left, R[m]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                upper = fmaf(x[m][h][0], x[m][h][0], fmaf(x[m][h][1], x[m][h][1], upper));
                lower = fmaf(x[m][h][2], x[m][h][2], fmaf(x[m][h][3], x[m][h][3], lower));
            }
        }
        upper = group_sum(upper, 4), lower = group_sum(lower, 4);
        write_unit(x, upper, lower, out + (int64_t)step * KT * 32);
    };
    tokens.first();
    project(0);
#pragma unroll 1
    for (int step = 0;; step++) {
        float column[16], P[2][4] = {};
        __syncwarp();
        factor_columns<1>(column, shared.G, shared.unit, lane);
#pragma unroll
        for (int m = 0; m < KT; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) x[m][i / 4][i % 4] = 0;
        frag key;
        float any = 0;
        factor_invert(column, shared.G[0], [&](int i) {
            const int after = __float_as_int(any) & zero;
#pragma unroll
            for (int q = 0; q < KT * KT; q++) {
                const int k = q / KT, m = q % KT;
                if (q * 7 / (KT * KT) != i) continue;
                if (m == 0) {
                    key = tokens.key(step, k);
                    mma_t<M>(P, key, W[k]);
                    W[k] = transpose(W[k]);
                }
                mma_t<M>(x[m], key, p[m][k]);
                any = x[m][1][3];
            }
            return after;
        });
        KZ = pack_tile<M>(P[0], P[1]);
        factor_keep(shared.factor[0], column, lane);
        tokens.await();
        __syncwarp();
        const frag L = load_right(shared.factor[0], lane);
        frag R[KT];
#pragma unroll
        for (int m = 0; m < KT; m++) {
            float w[2][4] = {};
            mma_r<M>(w, W[m], L);
            W[m] = pack_tile<M>(w[0], w[1]), R[m] = own_registers(right_order(W[m]), zero);
        }
        if (step + 1 == steps) { /* no one needs A any more */
            directions(step, L, R);
            return;
        }
        tokens.done(step);
#pragma unroll
        for (int n = 0; n < KT; n++)
#pragma unroll
            for (int m = n; m < KT; m++) mma_r<M>(N[tile_below(m, n)], W[m], R[n]);
        uint32_t last = 0;
#pragma unroll
        for (int m = 0; m < KT * (KT + 1) / 2; m++) last |= __float_as_uint(N[m][1][3]);
        KZ.x[0] |= last & (uint32_t)zero; /* what the next step waits for comes first */
        directions(step, L, R);
        project(step + 1);
    }
}
} /* namespace chunked */

#endif
