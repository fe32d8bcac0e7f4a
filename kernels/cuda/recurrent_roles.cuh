/* The roles of a recurrent block's warps; what they are and how they meet is told in recurrent.cuh. */
#ifndef VLA_CUDA_RECURRENT_ROLES_CUH
#define VLA_CUDA_RECURRENT_ROLES_CUH
#include "kernels/cuda/rows8.cuh"

namespace recurrent
{
constexpr int TILE = 16, RING = 3, STATE_THREADS = 128;
enum { BARRIER_PENALTY = 1, BARRIER_STATE = 2 };

template <vla_op OP> constexpr bool has_A = OP == VLA_VLA || OP == VLA_RLS;
template <vla_op OP> constexpr bool has_n = OP == VLA_VLA || OP == VLA_LINEAR;

template <vla_op OP, int DK, int ES> struct shape {
    static constexpr int lanes = DK / ES;              /* that share a row of S */
    static constexpr int rows = STATE_THREADS / lanes; /* of S in a block */
    static constexpr int penalty_lanes = DK / 8;       /* that share four rows of A, eight columns each */
    static constexpr int penalty_threads = has_A<OP> ? DK / 4 * penalty_lanes : 0;
    static constexpr int feature_warps = has_A<OP> || DK <= 64 ? 4 : 8;
    static constexpr int ratio_threads = has_n<OP> ? 32 : 0;
    static constexpr int threads = penalty_threads + STATE_THREADS + 32 * feature_warps + ratio_threads;
    /* kh, qf and, where the operator has them, kf and uh; rls writes along x, vla along a, both made by the penalty */
    static constexpr int key_rows = 2 + has_n<OP> + (OP == VLA_VLA);
    static constexpr int tile_floats = TILE * (key_rows * DK + 2 * rows + 2) + (has_A<OP> ? TILE * DK : 0);
    static constexpr int shared_bytes = (RING * tile_floats + 8 * DK) * (int)sizeof(float);
};

struct arguments {
    const void *q, *k, *v, *u, *b, *g;
    void *o, *alpha;
    const float *S_in, *A_in, *n_in; /* NULL: the start */
    float *S_out, *A_out, *n_out;    /* NULL: not wanted */
    int64_t T, begin, end;           /* tokens [begin, end) of T */
    int64_t first;                   /* steps before token 0, for the refresh */
    int dk, dv, slices;
    vla_dtype dtype;
    vla_features features;
    vla_gate gate;
    bool qk_l2, plain, normalise;
    float initial, root; /* 1/lambda0, 1/sqrt dk */
    int64_t refresh_period;
    float refresh_eps;
};

template <vla_op OP, int DK, int ES> struct tile {
    using form = shape<OP, DK, ES>;
    float *kh, *qf, *kf, *uh, *x, *v, *gate, *beta, *inverse;
    __device__ tile(float *shared, int64_t index)
    {
        kh = shared + (index % RING) * form::tile_floats;
        qf = kh + TILE * DK;
        kf = qf + TILE * DK;
        uh = kf + (has_n<OP> ? TILE * DK : 0);
        x = uh + (OP == VLA_VLA ? TILE * DK : 0);
        v = x + (has_A<OP> ? TILE * DK : 0);
        gate = v + TILE * form::rows;
        beta = gate + TILE * form::rows;
        inverse = beta + TILE;
    }
};

__device__ __forceinline__ void put_row(float *to, const float (&x)[8])
{
    ((float4 *)to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/* Raw rows of one token, eight elements a lane: loaded first, used later, so that all of a warp's loads are in flight.
 */
template <vla_op OP> struct raw_rows {
    raw8<2> q, k, u;
    __device__ __forceinline__ void load(const arguments &a, int64_t row, int column, bool valid)
    {
        load8(q, a.q, a.dtype, row, column, a.dk, valid);
        load8(k, a.k, a.dtype, row, column, a.dk, valid);
        if (OP == VLA_VLA) load8(u, a.u, a.dtype, row, column, a.dk, valid);
    }
};

/* A row past the sequence leaves zero keys and directions: the penalty takes tokens by twos. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void make_features(const arguments &a, const tile<OP, DK, ES> &out, const raw_rows<OP> &raw,
                                              int t, int column, bool valid)
{
    constexpr int L = DK / 8;
    const int at = t * DK + column;
    float x[8], y[8];
    convert8(x, raw.k, a.dtype);
    unit8<true>(x, y, column, a.dk, a.features, L);
    if (!valid)
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = y[i] = 0;
    if (has_n<OP>) put_row(out.kf + at, y);
    if (OP != VLA_LINEAR) {
        if (OP != VLA_VLA || a.normalise)
            put_row(out.kh + at, x);
        else
            put_row(out.kh + at, y);
    }
    convert8(x, raw.q, a.dtype);
    if (a.qk_l2) {
        unit8<true>(x, y, column, a.dk, a.features, L);
        put_row(out.qf + at, x);
    } else {
        features8<true>(y, x, a.features);
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = column + i < a.dk ? y[i] : 0.0f;
        put_row(out.qf + at, y);
    }
    if (OP == VLA_VLA) {
        convert8(x, raw.u, a.dtype);
        unit8<true>(x, y, column, a.dk, VLA_IDENTITY, L);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= a.root;
        put_row(out.uh + at, x);
    }
}

/* This thread's share of v and the gates. */
template <vla_op OP, int DK, int ES> struct raw_values {
    using form = shape<OP, DK, ES>;
    static constexpr int THREADS = 32 * form::feature_warps, VALUES = (TILE * form::rows + THREADS - 1) / THREADS;
    float v[VALUES], g[OP == VLA_DECAY ? VALUES : 1], beta;

    template <typename E>
    __device__ __forceinline__ void load(const arguments &a, int64_t base, int row0, int count, int thread)
    {
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            const int i = thread + j * THREADS, t = i / form::rows, r = i % form::rows;
            const bool in = t < count && row0 + r < a.dv;
            v[j] = in ? to_float(((const E *)a.v)[(base + t) * a.dv + row0 + r]) : 0.0f;
            if constexpr (OP == VLA_DECAY) {
                g[j] = 0;
                if (in && a.gate == VLA_GATE_ROW) g[j] = to_float(((const E *)a.g)[(base + t) * a.dv + row0 + r]);
                if (in && a.gate == VLA_GATE_TOKEN) g[j] = to_float(((const E *)a.g)[base + t]);
            }
        }
        if (OP == VLA_DELTA && a.b && thread < count) beta = to_float(((const E *)a.b)[base + thread]);
    }
    __device__ __forceinline__ void put(const arguments &a, const tile<OP, DK, ES> &out, int count, int thread)
    {
#pragma unroll
        for (int j = 0; j < VALUES; j++) {
            const int i = thread + j * THREADS;
            if (i < TILE * form::rows) {
                out.v[i] = v[j];
                if (OP == VLA_DECAY) out.gate[i] = a.gate == VLA_GATE_NONE ? 1.0f : sigmoid(g[j]);
            }
        }
        if (OP == VLA_DELTA && thread < count) out.beta[thread] = a.b ? sigmoid(beta) : 1.0f;
    }
};

template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_features(const arguments &a, const tile<OP, DK, ES> &out, int64_t head, int row0,
                                              int64_t start, int count, int thread)
{
    using form = shape<OP, DK, ES>;
    constexpr int L = DK / 8, AT_ONCE = 32 * form::feature_warps / L, PASSES = (TILE + AT_ONCE - 1) / AT_ONCE;
    const int64_t base = head * a.T + a.begin + start;
    const int column = 8 * (thread % L);
    raw_values<OP, DK, ES> values;
    if (a.dtype == VLA_F32)
        values.template load<float>(a, base, row0, count, thread);
    else if (a.dtype == VLA_BF16)
        values.template load<__nv_bfloat16>(a, base, row0, count, thread);
    else
        values.template load<__half>(a, base, row0, count, thread);
    if constexpr (PASSES == 1) {
        const int t = thread / L;
        raw_rows<OP> raw;
        raw.load(a, base + t, column, t < count);
        values.put(a, out, count, thread);
        if (AT_ONCE == TILE || thread / 32 * (32 / L) < TILE) /* whole warps */
            make_features<OP, DK, ES>(a, out, raw, t, column, t < count);
    } else {
        values.put(a, out, count, thread);
#pragma unroll 1
        for (int t = thread / L; t < TILE; t += AT_ONCE) {
            raw_rows<OP> raw;
            raw.load(a, base + t, column, t < count);
            make_features<OP, DK, ES>(a, out, raw, t, column, t < count);
        }
    }
}

/* acc += the part of A x that this lane holds. */
template <int QUADS, int LANES>
__device__ __forceinline__ float row_part(const float (&A)[4 * QUADS], const float4 *x, int part)
{
    float even = 0, odd = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        const float4 v = x[part + LANES * j];
        even = fmaf(A[4 * j], v.x, even), odd = fmaf(A[4 * j + 1], v.y, odd);
        even = fmaf(A[4 * j + 2], v.z, even), odd = fmaf(A[4 * j + 3], v.w, odd);
    }
    return even + odd;
}

template <int LANES> __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_WARP, x, offset);
    return x;
}

/* Sums of N values over LANES neighbouring lanes, the values dealt out as they are halved: afterwards lane l has the
 * sums of values base .. base + max(N / LANES, 1) - 1 in x[0..]. Takes N - 1 shuffles where one sum after another takes
 * N log2. */
template <int N, int OFFSET, int ALL> __device__ __forceinline__ void deal_step(float (&x)[ALL], int lane, int &base)
{
    if constexpr (OFFSET > 0 && N > 1) {
        constexpr int HALF = N / 2;
        const bool upper = (lane & OFFSET) != 0;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float mine = upper ? x[i + HALF] : x[i], other = upper ? x[i] : x[i + HALF];
            x[i] = mine + __shfl_xor_sync(FULL_WARP, other, OFFSET);
        }
        base += upper ? HALF : 0;
        deal_step<HALF, OFFSET / 2>(x, lane, base);
    } else if constexpr (OFFSET > 0) {
        x[0] += __shfl_xor_sync(FULL_WARP, x[0], OFFSET);
        deal_step<1, OFFSET / 2>(x, lane, base);
    }
}

template <int N, int LANES> __device__ __forceinline__ int deal_sums(float (&x)[N], int lane)
{
    int base = 0;
    deal_step<N, LANES / 2>(x, lane, base);
    return base;
}

__device__ __forceinline__ void load_columns(float (&x)[8], const float *vector, int lane, int lanes)
{
    const float4 a = ((const float4 *)vector)[lane], b = ((const float4 *)vector)[lane + lanes];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

__device__ __forceinline__ float dot8(const float (&x)[8], const float (&y)[8])
{
    float even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 2) even = fmaf(x[i], y[i], even), odd = fmaf(x[i + 1], y[i + 1], odd);
    return even + odd;
}

/* A: a thread has rows 4 group .. + 3 and columns 4 lane .. + 3, 4 (lane + lanes) .. + 3, so that a vector read from
 * shared memory serves four rows: its bandwidth is what limits a step. Two tokens a sweep, for half the barriers and
 * latencies: with both directions' products taken from the same A, A1 = A - c1 z1 z1^T + e1 I ; z2' = A1 u2 = z2 - c1
 * (u2.z1) z1 + e1 u2 ; A2 = A1 - c2 z2' z2'^T + e2 I, e the refresh where one is due, else 0. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_penalty(const arguments &a, const tile<OP, DK, ES> &in, float (&A)[4][8],
                                             float *z_shared, int64_t &until, int count, int thread)
{
    using form = shape<OP, DK, ES>;
    constexpr bool KEYS = OP == VLA_VLA; /* rls: the direction is the key */
    constexpr int LANES = form::penalty_lanes, KINDS = KEYS ? 4 : 2, VALUES = 4 * KINDS,
                  DEALT = VALUES > LANES ? VALUES / LANES : 1;
    const int group = thread / LANES, lane = thread % LANES;
    for (int t = 0; t < count; t += 2) {
        const float *u_rows = (KEYS ? in.uh : in.kh) + t * DK, *k_rows = in.kh + t * DK;
        float u1[8], u2[8], k1[8], k2[8], sums[VALUES];
        load_columns(u1, u_rows, lane, LANES), load_columns(u2, u_rows + DK, lane, LANES);
        if (KEYS) load_columns(k1, k_rows, lane, LANES), load_columns(k2, k_rows + DK, lane, LANES);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            sums[r] = dot8(A[r], u1), sums[4 + r] = dot8(A[r], u2);
            if constexpr (KEYS) sums[8 + r] = dot8(A[r], k1), sums[12 + r] = dot8(A[r], k2);
        }
        const int base = deal_sums<VALUES, LANES>(sums, lane);
        /* Two buffers by parity: who is a step ahead writes the other one, and cannot be two ahead of the barrier. */
        float *zs = z_shared + (t & 2) * 2 * DK; /* [KINDS][DK] */
        if (VALUES >= LANES || lane % (LANES / VALUES > 0 ? LANES / VALUES : 1) == 0)
#pragma unroll
            for (int i = 0; i < DEALT; i++) zs[(base + i) / 4 * DK + 4 * group + (base + i) % 4] = sums[i];
        named_barrier<form::penalty_threads>(BARRIER_PENALTY);
        float z1[8], z2[8], dots[KEYS ? 6 : 3];
        load_columns(z1, zs, lane, LANES), load_columns(z2, zs + DK, lane, LANES);
        dots[0] = dot8(z1, u1), dots[1] = dot8(z1, u2), dots[2] = dot8(z2, u2);
        if constexpr (KEYS) dots[3] = dot8(z1, k1), dots[4] = dot8(z1, k2), dots[5] = dot8(z2, k2);
#pragma unroll
        for (int i = 0; i < (KEYS ? 6 : 3); i++) dots[i] = lanes_sum<LANES>(dots[i]);
        float e1 = 0, e2 = 0, uu = 0, uk = 0;
        if (KEYS && a.refresh_period > 0) {
            if (--until == 0) e1 = a.refresh_eps, until = a.refresh_period;
            if (t + 1 < count && --until == 0) e2 = a.refresh_eps, until = a.refresh_period;
            uu = lanes_sum<LANES>(dot8(u2, u2)), uk = lanes_sum<LANES>(dot8(u2, k2));
        }
        const float gain1 = reciprocal(1.0f + dots[0]), w = gain1 * dots[1];
        const float gain2 = reciprocal(1.0f + fmaf(e1, uu, fmaf(-w, dots[1], dots[2])));
        const float4 row1 = ((const float4 *)zs)[group], row2 = ((const float4 *)(zs + DK))[group];
        const float rows1[4] = {row1.x, row1.y, row1.z, row1.w}, rows2[4] = {row2.x, row2.y, row2.z, row2.w};
        float refreshed[4] = {}; /* rows of u2 where e1 is not 0 */
        if (KEYS && e1 != 0)
#pragma unroll
            for (int r = 0; r < 4; r++) refreshed[r] = u_rows[DK + 4 * group + r];
        float second[8]; /* z2', by columns */
#pragma unroll
        for (int i = 0; i < 8; i++) second[i] = fmaf(e1, u2[i], fmaf(-w, z1[i], z2[i]));
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float z2_row = fmaf(-w, rows1[r], rows2[r]);
            if (KEYS) z2_row = fmaf(e1, refreshed[r], z2_row);
            const float write1 = gain1 * rows1[r], write2 = gain2 * z2_row;
#pragma unroll
            for (int i = 0; i < 8; i++) A[r][i] = fmaf(-write2, second[i], fmaf(-write1, z1[i], A[r][i]));
        }
        if (KEYS && e1 + e2 != 0)
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (4 * (lane + LANES * (i % 8 / 4)) + i % 4 == 4 * group + i / 8) A[i / 8][i % 8] += e1 + e2;
        if (lane < 4) { /* what the two tokens write along, a row a lane */
            const int row = 4 * group + lane;
            const float z1_row = zs[row], write1 = gain1 * z1_row;
            float z2_row = fmaf(-w, z1_row, zs[DK + row]), x1 = write1, x2 = 0;
            if constexpr (KEYS) {
                z2_row = fmaf(e1, u_rows[DK + row], z2_row);
                const float inner = fmaf(e1, uk, fmaf(-w, dots[4], dots[5]));
                x1 = fmaf(e1, k_rows[row], fmaf(-write1, dots[3], zs[2 * DK + row]));
                x2 = fmaf(e1 + e2, k_rows[DK + row],
                          fmaf(-gain2 * z2_row, inner, fmaf(-write1, dots[4], zs[3 * DK + row])));
            } else {
                x2 = gain2 * z2_row;
            }
            in.x[t * DK + row] = x1, in.x[(t + 1) * DK + row] = x2;
        }
    }
}

template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_ratio(const tile<OP, DK, ES> &in, float (&n)[DK / 32], int count, int lane,
                                           bool plain)
{
#pragma unroll 4
    for (int t = 0; t < count; t++) {
        float dot = 0;
#pragma unroll
        for (int e = 0; e < DK / 32; e++) {
            n[e] += in.kf[t * DK + lane + 32 * e];
            dot = fmaf(n[e], in.qf[t * DK + lane + 32 * e], dot);
        }
        dot = warp_sum(dot);
        const float floor = (float)VLA_RATIO_EPS;
        if (lane == 0) in.inverse[t] = plain ? 1.0f : 1.0f / (dot < floor ? floor : dot);
    }
}

/* x -> a = unit(x), in place, the state's warps taking a token each. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void normalise_writes(const arguments &a, const tile<OP, DK, ES> &in, int64_t row0,
                                                 int count, int thread, bool keep)
{
    const int lane = thread % 32;
    for (int t = thread / 32; t < count; t += STATE_THREADS / 32) {
        float x[DK / 32], y[DK / 32], unit[DK / 32];
#pragma unroll
        for (int e = 0; e < DK / 32; e++) x[e] = in.x[t * DK + lane + 32 * e];
        feature_row<DK / 32>(x, y, unit, lane, DK, VLA_IDENTITY);
#pragma unroll
        for (int e = 0; e < DK / 32; e++) {
            const int c = lane + 32 * e;
            const float out = a.normalise ? unit[e] : x[e];
            in.x[t * DK + c] = out;
            if (keep && c < a.dk) store_element(a.alpha, a.dtype, (row0 + t) * a.dk + c, out);
        }
    }
    named_barrier<STATE_THREADS>(BARRIER_STATE);
}

/* One token: S advanced, and this lane's part of S q returned. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ float advance_state(const tile<OP, DK, ES> &in, float (&S)[ES], int t, int row, int part)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::lanes, QUADS = ES / 4;
    const float4 *k4 = (const float4 *)(in.kh + t * DK);
    const float4 *w4 = (const float4 *)((OP == VLA_LINEAR ? in.kf : has_A<OP> ? in.x : in.kh) + t * DK);
    const float4 *q4 = (const float4 *)(in.qf + t * DK);
    float r = in.v[t * form::rows + row], gate = 1;
    if (OP != VLA_LINEAR) {
        r -= lanes_sum<LANES>(row_part<QUADS, LANES>(S, k4, part));
        if (OP == VLA_DELTA) r *= in.beta[t];
        if (OP == VLA_DECAY) gate = in.gate[t * form::rows + row];
    }
    float even = 0, odd = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        const float4 w = w4[part + LANES * j], q = q4[part + LANES * j];
        if (OP == VLA_DECAY) S[4 * j] *= gate, S[4 * j + 1] *= gate, S[4 * j + 2] *= gate, S[4 * j + 3] *= gate;
        S[4 * j] = fmaf(r, w.x, S[4 * j]), S[4 * j + 1] = fmaf(r, w.y, S[4 * j + 1]);
        S[4 * j + 2] = fmaf(r, w.z, S[4 * j + 2]), S[4 * j + 3] = fmaf(r, w.w, S[4 * j + 3]);
        even = fmaf(S[4 * j], q.x, even), odd = fmaf(S[4 * j + 1], q.y, odd);
        even = fmaf(S[4 * j + 2], q.z, even), odd = fmaf(S[4 * j + 3], q.w, odd);
    }
    return even + odd;
}

/* Four tokens at a time, so that the sums of their outputs over lanes overlap and one store writes several. WHOLE:
 * count is TILE, and no branch keeps a token's loads from moving ahead of the one before. */
template <vla_op OP, int DK, int ES, bool WHOLE>
__device__ __forceinline__ void role_state(const arguments &a, const tile<OP, DK, ES> &in, float (&S)[ES], int64_t head,
                                           int row0, int64_t start, int count, int thread)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::lanes, BATCH = 4, EACH = LANES < BATCH ? LANES : BATCH; /* tokens a store writes */
    const int row = thread / LANES, part = thread % LANES;
    const bool mine = part < EACH && row0 + row < a.dv;
    const int64_t out = (head * a.T + a.begin + start) * a.dv + row0 + row;
    for (int t = 0; t < count; t += BATCH) {
        float y[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            y[i] = WHOLE || t + i < count ? advance_state<OP, DK, ES>(in, S, t + i, row, part) : 0.0f;
#pragma unroll
        for (int i = 0; i < BATCH; i++) y[i] = lanes_sum<LANES>(y[i]);
#pragma unroll
        for (int i = 0; i < BATCH; i += EACH) {
            float x = y[i];
#pragma unroll
            for (int l = 1; l < EACH; l++) x = part == l ? y[i + l] : x;
            const int token = t + i + part;
            if (mine && token < count) {
                if (has_n<OP>) x *= in.inverse[token];
                store_element(a.o, a.dtype, out + token * a.dv, x);
            }
        }
    }
}
} /* namespace recurrent */

#endif
