/* A of one head, held as results of products by DK/16 warps of sixteen rows each, and advanced eight tokens a sweep:
 *   Z = U A ; G = I + Z U^T = L L^T ; W = L^-1 Z ; A -= W^T W
 *   vla: X = K A - tril(K W^T) W, row t of it A_t k_t ;  rls (U = K): row t of X is p/(1 + k.p) = W[t]/L[t][t]
 * which is what Sherman-Morrison gives token by token, with two meetings of the warps a sweep. Products are tf32, split
 * in TERMS 3, with float32 sums (tf32.cuh). */
#ifndef VLA_CUDA_RECURRENT_PENALTY_CUH
#define VLA_CUDA_RECURRENT_PENALTY_CUH
#include "kernels/cuda/tf32.cuh"

namespace recurrent
{
constexpr int SWEEP = 8;
enum { BARRIER_PENALTY = 1, BARRIER_TILE = 2 };

template <int DK> struct sweep_shared {
    static constexpr int WARPS = DK / 16, TURN = 12; /* pitch */
    float turn[WARPS][16 * TURN];                    /* a warp's part of Z^T, to be read transposed */
    float4 sums[WARPS][32];                          /* its part of Z U^T and Z K^T */
    float4 W[DK / 8][32];                            /* W^T as right operands, split: {high, high, low, low} */
    float none[DK];                                  /* zeros: the row of a token that is not of the sweep */
};

/* Rows of uh, kh and x in a tile; x is the result. */
struct sweep_rows {
    const float *u, *k;
    float *x;
    int pitch;
};

/* Tokens [first, last) of the eight from `base`; KEYS: vla. add: what is added to A's diagonal after the last one (then
 * the only one). A direction that is not finite would reach the other tokens of the sweep: it and those after it are
 * taken as zero, `poisoned` is set, and their x is NaN. */
template <int DK, bool KEYS, int TERMS>
__device__ __forceinline__ void sweep(float (&A)[DK / 8][4], const sweep_rows &rows, sweep_shared<DK> &s, int base,
                                      int first, int last, float add, bool &poisoned, int warp, int lane)
{
    using namespace tf32;
    constexpr int WARPS = DK / 16;
    const int g = lane / 4, t = lane % 4;
    const bool active = base + g >= first && base + g < last;
    const float2 *const none = (const float2 *)s.none + t;
    const float2 *u_row = active ? (const float2 *)(rows.u + (base + g) * rows.pitch) + t : none;
    const float2 *k_row = active ? (const float2 *)(rows.k + (base + g) * rows.pitch) + t : none;
    float2 u_first[2] = {u_row[0], u_row[4]}, k_first[2] = {k_row[0], k_row[4]}; /* on their way during the test */
    const unsigned lanes = __ballot_sync(FULL_WARP, !(fabsf(u_first[0].x) < INFINITY));
    int clean = last; /* tokens from here on write NaN */
    if (poisoned || lanes != 0) {
        const int token = base + (__ffs((int)lanes) - 1) / 4;
        clean = poisoned ? first : token;
        if (base + g >= clean) {
            u_row = k_row = none;
            u_first[0] = u_first[1] = k_first[0] = k_first[1] = make_float2(0, 0);
        }
        poisoned = true;
    }
    sum_t<TERMS> z_sum, y_sum;
#pragma unroll
    for (int n = 0; n < DK / 8; n++) {
        const float2 u = n < 2 ? u_first[n % 2] : u_row[4 * n];
        const left_t<TERMS> part = left<TERMS>(A[n]);
        z_sum.add(part, right<TERMS>(u.x, u.y));
        if (KEYS) {
            const float2 k = n < 2 ? k_first[n % 2] : k_row[4 * n];
            y_sum.add(part, right<TERMS>(k.x, k.y));
        }
    }
    sum_t<TERMS> gh_sum, w_sum, kw_sum;
    float z[4], y[4], gh[4], w[4], kw[4];
    z_sum.take(z), y_sum.take(y);
    float *turn = s.turn[warp];
    *(float2 *)(turn + g * s.TURN + 2 * t) = make_float2(z[0], z[1]);
    *(float2 *)(turn + (g + 8) * s.TURN + 2 * t) = make_float2(z[2], z[3]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float2 u = u_row[4 * (2 * warp + j)], k = KEYS ? k_row[4 * (2 * warp + j)] : make_float2(0, 0);
        left_t<TERMS> directions;
        directions.set(0, u.x), directions.set(1, k.x), directions.set(2, u.y), directions.set(3, k.y);
        gh_sum.add(directions,
                   right<TERMS>(turn[(8 * j + 2 * t) * s.TURN + g], turn[(8 * j + 2 * t + 1) * s.TURN + g]));
    }
    gh_sum.take(gh);
    s.sums[warp][lane] = make_float4(gh[0], gh[1], gh[2], gh[3]);
    named_barrier<32 * WARPS>(BARRIER_PENALTY);
    float G[2] = {2 * t == g ? 1.0f : 0.0f, 2 * t + 1 == g ? 1.0f : 0.0f}, H[2] = {0, 0};
#pragma unroll
    for (int other = 0; other < WARPS; other++) {
        const float4 x = s.sums[other][lane];
        G[0] += x.x, G[1] += x.y, H[0] += x.z, H[1] += x.w;
    }
    const float diagonal = factor8(G, lane);
    w_sum.add(left<TERMS>(z), right<TERMS>(G[0], G[1]));
    w_sum.take(w);
    const left_t<TERMS> W = left<TERMS>(w);
#pragma unroll
    for (int i = 0; i < 2; i++) { /* a left operand is in the order {0, 2}, {1, 3} */
        constexpr int LOW = TERMS >= 3 ? 1 : 0;
        s.W[2 * warp + i][lane] = make_float4(__uint_as_float(W.high[i]), __uint_as_float(W.high[i + 2]),
                                              __uint_as_float(W.low[LOW * i]), __uint_as_float(W.low[LOW * (i + 2)]));
    }
    if constexpr (KEYS) {
        const float h[4] = {H[0], H[1], 0, 0};
        kw_sum.add(left<TERMS>(h), right<TERMS>(G[0], G[1]));
        kw_sum.take(kw);
        mma<TERMS>(y, W, right<TERMS>(2 * t > g ? 0.0f : -kw[0], 2 * t + 1 > g ? 0.0f : -kw[1]));
    } else {
        const float gain = rsqrtf(diagonal), gain0 = __shfl_sync(FULL_WARP, gain, 8 * t),
                    gain1 = __shfl_sync(FULL_WARP, gain, 8 * t + 4);
        y[0] = w[0] * gain0, y[1] = w[1] * gain1, y[2] = w[2] * gain0, y[3] = w[3] * gain1;
    }
    if (KEYS && add != 0)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (base + 2 * t + i % 2 == first)
                y[i] = fmaf(add, rows.k[first * rows.pitch + 16 * warp + g + 8 * (i / 2)], y[i]);
    float *const x_row = rows.x + (base + 2 * t) * rows.pitch + 16 * warp + g;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = base + 2 * t + i % 2;
        const float x = token < clean ? y[i] : NAN;
        if (token >= first && token < last) x_row[i % 2 * rows.pitch + 8 * (i / 2)] = x;
    }
    named_barrier<32 * WARPS>(BARRIER_PENALTY);
#pragma unroll
    for (int n = 0; n < DK / 8; n++) {
        const float4 b = s.W[n][lane];
        right_t<TERMS> other;
        other.high[0] = __float_as_uint(b.x), other.high[1] = __float_as_uint(b.y);
        if constexpr (TERMS >= 3) other.low[0] = __float_as_uint(b.z), other.low[1] = __float_as_uint(b.w);
        float change[4] =
            {}; /* taken off by an ordinary sum: that of a product cuts off, which would shrink A with T */
        mma<TERMS>(change, W, other);
#pragma unroll
        for (int i = 0; i < 4; i++) A[n][i] -= change[i];
    }
    if (KEYS && add != 0)
#pragma unroll
        for (int n = 0; n < DK / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (16 * warp + g + 8 * (i / 2) == 8 * n + 2 * t + i % 2) A[n][i] += add;
}
} /* namespace recurrent */

#endif
