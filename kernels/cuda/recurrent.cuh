/* The recurrent forms: every token of a sequence in one launch, the state in registers (the paper's fused kernel).
 *
 * q, k, u [B,H,T,dk], v [B,H,T,dv], b [B,H,T], g [B,H,T] or [B,H,T,dv], o [B,H,T,dv] in the plan's dtype;
 * S [B,H,dv,dk], A [B,H,dk,dk], n [B,H,dk] in float32, and so is all arithmetic.
 *
 * A block owns some rows of S of one head; rows of S are independent, A is made again by every block of a head. Its
 * warps take roles, each one tile of TILE tokens behind the one before, and meet at the tiles' ends: features  raw rows
 * to kh, kf, qf, uh, v, gates in shared memory penalty   (vla, rls) A in registers, one barrier a token: z = A uh and y
 * = A kh are taken from the same A, as A' kh = y - z (z.kh)/(1 + uh.z); needs the norm of no row, so nothing but A's
 * own chain is waited for ratio     n and 1/max(n.qf, eps) state     S in registers: residual, write, output Cost a
 * token: dk^2/32 + 3 rows dk/128 fused multiply-adds a lane; meant for decode and short T, and the exact float32
 * reference on the device. Not supported: dk above 256, with A above 128 (A is in one block's registers).
 */
#ifndef VLA_CUDA_RECURRENT_CUH
#define VLA_CUDA_RECURRENT_CUH
#include "kernels/cuda/rows8.cuh"

namespace recurrent
{
constexpr int TILE = 16, RING = 3, STATE_THREADS = 128, PENALTY_ELEMENTS = 32;
enum { BARRIER_PENALTY = 1, BARRIER_STATE = 2 };

template <vla_op OP> constexpr bool has_A = OP == VLA_VLA || OP == VLA_RLS;
template <vla_op OP> constexpr bool has_n = OP == VLA_VLA || OP == VLA_LINEAR;

template <vla_op OP, int DK, int ES> struct shape {
    static constexpr int lanes = DK / ES;              /* that share a row of S */
    static constexpr int rows = STATE_THREADS / lanes; /* of S in a block */
    static constexpr int penalty_lanes = DK / PENALTY_ELEMENTS;
    static constexpr int penalty_threads = has_A<OP> ? DK * penalty_lanes : 0;
    static constexpr int feature_warps = has_A<OP> || DK <= 64 ? 4 : 8;
    static constexpr int ratio_threads = has_n<OP> ? 32 : 0;
    static constexpr int threads = penalty_threads + STATE_THREADS + 32 * feature_warps + ratio_threads;
    /* kh, qf and, where the operator has them, kf and uh; rls writes along x, vla along a, both made by the penalty */
    static constexpr int key_rows = 2 + has_n<OP> + (OP == VLA_VLA);
    static constexpr int tile_floats = TILE * (key_rows * DK + 2 * rows + 2) + (has_A<OP> ? TILE * DK : 0);
    static constexpr int shared_bytes = (RING * tile_floats + 4 * DK) * (int)sizeof(float);
};

struct arguments {
    const void *q, *k, *v, *u, *b, *g;
    void *o, *alpha;
    const float *S_in, *A_in, *n_in; /* NULL: the start */
    float *S_out, *A_out, *n_out;    /* NULL: not wanted */
    int64_t T, first;                /* steps before this run, for the refresh */
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
    const int64_t base = head * a.T + start;
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

__device__ __forceinline__ float dot4(const float4 &x, const float4 &y, float sum)
{
    return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
}

/* Two tokens a sweep of A, for half the barriers and latencies: products with both directions are taken from the same
 * A, and the second's corrected for the first's update, z2' = z2 - c1 (u2.z1) z1. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_penalty_pairs(const tile<OP, DK, ES> &in, float (&A)[PENALTY_ELEMENTS],
                                                   float *z_shared, int count, int thread)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::penalty_lanes, QUADS = PENALTY_ELEMENTS / 4, DOT_QUADS = DK / 32;
    constexpr bool KEYS = OP == VLA_VLA; /* rls: the direction is the key */
    const int row = thread / LANES, part = thread % LANES, group = thread % 8;
    for (int t = 0; t < count; t += 2) {
        const float4 *u1 = (const float4 *)((KEYS ? in.uh : in.kh) + t * DK), *u2 = u1 + DK / 4;
        const float4 *k1 = (const float4 *)(in.kh + t * DK), *k2 = k1 + DK / 4;
        float z1 = row_part<QUADS, LANES>(A, u1, part), z2 = row_part<QUADS, LANES>(A, u2, part), y1 = 0, y2 = 0;
        if (KEYS) y1 = row_part<QUADS, LANES>(A, k1, part), y2 = row_part<QUADS, LANES>(A, k2, part);
        z1 = lanes_sum<LANES>(z1), z2 = lanes_sum<LANES>(z2);
        if (KEYS) y1 = lanes_sum<LANES>(y1), y2 = lanes_sum<LANES>(y2);
        /* Two buffers by parity: who is a step ahead writes the other one, and cannot be two ahead of the barrier. */
        float *zs = z_shared + (t & 2) * DK;
        if (part == 0) zs[row] = z1, zs[DK + row] = z2;
        named_barrier<form::penalty_threads>(BARRIER_PENALTY);
        const float4 *s1 = (const float4 *)zs, *s2 = s1 + DK / 4;
        float zu11 = 0, zu12 = 0, zu22 = 0, zk11 = 0, zk12 = 0, zk22 = 0;
#pragma unroll
        for (int j = 0; j < DOT_QUADS; j++) {
            const int i = group + 8 * j;
            const float4 a = s1[i], b = s2[i], p = u1[i], q = u2[i];
            zu11 = dot4(a, p, zu11), zu12 = dot4(a, q, zu12), zu22 = dot4(b, q, zu22);
            if (KEYS) {
                const float4 k = k1[i], l = k2[i];
                zk11 = dot4(a, k, zk11), zk12 = dot4(a, l, zk12), zk22 = dot4(b, l, zk22);
            }
        }
        zu11 = lanes_sum<8>(zu11), zu12 = lanes_sum<8>(zu12), zu22 = lanes_sum<8>(zu22);
        if (KEYS) zk11 = lanes_sum<8>(zk11), zk12 = lanes_sum<8>(zk12), zk22 = lanes_sum<8>(zk22);
        const float gain1 = reciprocal(1.0f + zu11), w = gain1 * zu12;
        const float gain2 = reciprocal(1.0f + fmaf(-w, zu12, zu22)), second = fmaf(-w, z1, z2);
        const float write2 = gain2 * second, write1 = gain1 * z1, mixed = fmaf(-w, write2, write1);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const float4 a = s1[part + LANES * j], b = s2[part + LANES * j];
            A[4 * j] = fmaf(-write2, b.x, fmaf(-mixed, a.x, A[4 * j]));
            A[4 * j + 1] = fmaf(-write2, b.y, fmaf(-mixed, a.y, A[4 * j + 1]));
            A[4 * j + 2] = fmaf(-write2, b.z, fmaf(-mixed, a.z, A[4 * j + 2]));
            A[4 * j + 3] = fmaf(-write2, b.w, fmaf(-mixed, a.w, A[4 * j + 3]));
        }
        if (part == 0) {
            in.x[t * DK + row] = KEYS ? fmaf(-write1, zk11, y1) : write1;
            in.x[(t + 1) * DK + row] = KEYS ? fmaf(-write2, fmaf(-w, zk12, zk22), fmaf(-write1, zk12, y2)) : write2;
        }
    }
}

/* A row of A is shared by penalty_lanes lanes; lane l holds its float4s l, l + lanes, .. so that the lanes of a row
 * read neighbouring words of a vector and the rows of a warp the same ones. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_penalty(const arguments &a, const tile<OP, DK, ES> &in,
                                             float (&A)[PENALTY_ELEMENTS], float *z_shared, int64_t &until, int count,
                                             int thread)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::penalty_lanes, QUADS = PENALTY_ELEMENTS / 4, DOT_QUADS = DK / 32;
    const int row = thread / LANES, part = thread % LANES, group = thread % 8;
    for (int t = 0; t < count; t++) {
        const float4 *u4 = (const float4 *)((OP == VLA_VLA ? in.uh : in.kh) + t * DK);
        const float4 *k4 = (const float4 *)(in.kh + t * DK);
        float z = 0, y = 0, z1 = 0, y1 = 0;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const float4 u = u4[part + LANES * j];
            z = fmaf(A[4 * j], u.x, z), z1 = fmaf(A[4 * j + 1], u.y, z1);
            z = fmaf(A[4 * j + 2], u.z, z), z1 = fmaf(A[4 * j + 3], u.w, z1);
            if (OP == VLA_VLA) {
                const float4 k = k4[part + LANES * j];
                y = fmaf(A[4 * j], k.x, y), y1 = fmaf(A[4 * j + 1], k.y, y1);
                y = fmaf(A[4 * j + 2], k.z, y), y1 = fmaf(A[4 * j + 3], k.w, y1);
            }
        }
        z += z1, y += y1;
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) {
            z += __shfl_xor_sync(FULL_WARP, z, offset);
            if (OP == VLA_VLA) y += __shfl_xor_sync(FULL_WARP, y, offset);
        }
        /* Two buffers by parity: who is a step ahead writes the other one, and cannot be two ahead of the barrier. */
        float *zs = z_shared + (t & 1) * DK;
        if (part == 0) zs[row] = z;
        named_barrier<form::penalty_threads>(BARRIER_PENALTY);
        const float4 *z4 = (const float4 *)zs;
        float uz = 0, kz = 0;
#pragma unroll
        for (int j = 0; j < DOT_QUADS; j++) {
            const float4 zz = z4[group + 8 * j], u = u4[group + 8 * j];
            uz = fmaf(zz.x, u.x, fmaf(zz.y, u.y, fmaf(zz.z, u.z, fmaf(zz.w, u.w, uz))));
            if (OP == VLA_VLA) {
                const float4 k = k4[group + 8 * j];
                kz = fmaf(zz.x, k.x, fmaf(zz.y, k.y, fmaf(zz.z, k.z, fmaf(zz.w, k.w, kz))));
            }
        }
#pragma unroll
        for (int offset = 4; offset > 0; offset /= 2) {
            uz += __shfl_xor_sync(FULL_WARP, uz, offset);
            if (OP == VLA_VLA) kz += __shfl_xor_sync(FULL_WARP, kz, offset);
        }
        const float gain = z * reciprocal(1.0f + uz);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const float4 zz = z4[part + LANES * j];
            A[4 * j] = fmaf(-gain, zz.x, A[4 * j]), A[4 * j + 1] = fmaf(-gain, zz.y, A[4 * j + 1]);
            A[4 * j + 2] = fmaf(-gain, zz.z, A[4 * j + 2]), A[4 * j + 3] = fmaf(-gain, zz.w, A[4 * j + 3]);
        }
        float x = OP == VLA_VLA ? fmaf(-gain, kz, y) : gain;
        if (OP == VLA_VLA && --until == 0) {
            until = a.refresh_period;
            x = fmaf(a.refresh_eps, in.kh[t * DK + row], x);
#pragma unroll
            for (int e = 0; e < PENALTY_ELEMENTS; e++)
                if (4 * (part + LANES * (e / 4)) + e % 4 == row) A[e] += a.refresh_eps;
        }
        if (part == 0) in.x[t * DK + row] = x;
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

template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_state(const arguments &a, const tile<OP, DK, ES> &in, float (&S)[ES], int64_t head,
                                           int row0, int64_t start, int count, int thread)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::lanes, QUADS = ES / 4;
    const int row = thread / LANES, part = thread % LANES;
    const bool writes = part == 0 && row0 + row < a.dv;
    int64_t out = (head * a.T + start) * a.dv + row0 + row;
#pragma unroll 2
    for (int t = 0; t < count; t++, out += a.dv) {
        const float4 *k4 = (const float4 *)(in.kh + t * DK);
        const float4 *w4 = (const float4 *)((OP == VLA_LINEAR ? in.kf : has_A<OP> ? in.x : in.kh) + t * DK);
        const float4 *q4 = (const float4 *)(in.qf + t * DK);
        const float v = in.v[t * form::rows + row];
        float r = v, gate = 1;
        if (OP != VLA_LINEAR) {
            float s = 0, s1 = 0;
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const float4 k = k4[part + LANES * j];
                s = fmaf(S[4 * j], k.x, s), s1 = fmaf(S[4 * j + 1], k.y, s1);
                s = fmaf(S[4 * j + 2], k.z, s), s1 = fmaf(S[4 * j + 3], k.w, s1);
            }
            s += s1;
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset /= 2) s += __shfl_xor_sync(FULL_WARP, s, offset);
            r = v - s;
            if (OP == VLA_DELTA) r *= in.beta[t];
            if (OP == VLA_DECAY) gate = in.gate[t * form::rows + row];
        }
        float y = 0, y1 = 0;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const float4 w = w4[part + LANES * j], q = q4[part + LANES * j];
            if (OP == VLA_DECAY) S[4 * j] *= gate, S[4 * j + 1] *= gate, S[4 * j + 2] *= gate, S[4 * j + 3] *= gate;
            S[4 * j] = fmaf(r, w.x, S[4 * j]), S[4 * j + 1] = fmaf(r, w.y, S[4 * j + 1]);
            S[4 * j + 2] = fmaf(r, w.z, S[4 * j + 2]), S[4 * j + 3] = fmaf(r, w.w, S[4 * j + 3]);
            y = fmaf(S[4 * j], q.x, y), y1 = fmaf(S[4 * j + 1], q.y, y1);
            y = fmaf(S[4 * j + 2], q.z, y), y1 = fmaf(S[4 * j + 3], q.w, y1);
        }
        y += y1;
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) y += __shfl_xor_sync(FULL_WARP, y, offset);
        if (has_n<OP>) y *= in.inverse[t];
        if (writes) store_element(a.o, a.dtype, out, y);
    }
}

/* Column of element e of a row shared by LANES lanes. */
template <int LANES> __device__ __forceinline__ int column_of(int e, int part)
{
    return 4 * (part + LANES * (e / 4)) + e % 4;
}

template <vla_op OP, int DK, int ES>
__global__ void __launch_bounds__(shape<OP, DK, ES>::threads, 1) kernel(const __grid_constant__ arguments a)
{
    using form = shape<OP, DK, ES>;
    extern __shared__ __align__(16) float shared[];
    float *z_shared = shared + RING * form::tile_floats;
    const int64_t head = blockIdx.x / a.slices;
    const int slice = (int)(blockIdx.x % a.slices), row0 = slice * form::rows;
    const int64_t tiles = (a.T + TILE - 1) / TILE, rounds = tiles + 2;
    const auto count_of = [&](int64_t i) { return (int)(a.T - i * TILE < TILE ? a.T - i * TILE : TILE); };
    int thread = (int)threadIdx.x;
    const auto role = [&](int threads) { /* the next `threads` threads take a role */
                                         thread -= threads;
                                         return thread < 0;
    };

    if (form::penalty_threads > 0 && role(form::penalty_threads)) {
        thread += form::penalty_threads;
        constexpr int LANES = form::penalty_lanes > 0 ? form::penalty_lanes : 1;
        const int row = thread / LANES, part = thread % LANES;
        /* steps until the next refresh; never reaches 0 without one */
        int64_t until = a.refresh_period > 0 ? a.refresh_period - a.first % a.refresh_period : INT64_MAX;
        float A[PENALTY_ELEMENTS];
#pragma unroll
        for (int e = 0; e < PENALTY_ELEMENTS; e++) {
            const int c = column_of<LANES>(e, part);
            if (a.A_in && row < a.dk && c < a.dk)
                A[e] = a.A_in[(head * a.dk + row) * a.dk + c];
            else
                A[e] = row == c ? a.initial : 0.0f;
        }
        for (int64_t i = 0; i < rounds; i++) {
            if constexpr (has_A<OP>)
                if (i >= 1 && i - 1 < tiles) {
                    const tile<OP, DK, ES> in(shared, i - 1);
                    if (a.refresh_period > 0)
                        role_penalty<OP, DK, ES>(a, in, A, z_shared, until, count_of(i - 1), thread);
                    else
                        role_penalty_pairs<OP, DK, ES>(in, A, z_shared, count_of(i - 1), thread);
                }
            __syncthreads();
        }
        if (a.A_out && slice == 0 && row < a.dk)
#pragma unroll
            for (int e = 0; e < PENALTY_ELEMENTS; e++) {
                const int c = column_of<LANES>(e, part);
                if (c < a.dk) a.A_out[(head * a.dk + row) * a.dk + c] = A[e];
            }
    } else if (role(STATE_THREADS)) {
        thread += STATE_THREADS;
        constexpr int LANES = form::lanes;
        const int row = thread / LANES, part = thread % LANES;
        const bool mine = row0 + row < a.dv;
        float S[ES];
#pragma unroll
        for (int e = 0; e < ES; e++) {
            const int c = column_of<LANES>(e, part);
            S[e] = a.S_in && mine && c < a.dk ? a.S_in[(head * a.dv + row0 + row) * a.dk + c] : 0.0f;
        }
        for (int64_t i = 0; i < rounds; i++) {
            if (i >= 2) {
                const tile<OP, DK, ES> in(shared, i - 2);
                if constexpr (OP == VLA_VLA)
                    normalise_writes<OP, DK, ES>(a, in, head * a.T + (i - 2) * TILE, count_of(i - 2), thread,
                                                 a.alpha && slice == 0);
                role_state<OP, DK, ES>(a, in, S, head, row0, (i - 2) * TILE, count_of(i - 2), thread);
            }
            __syncthreads();
        }
        if (a.S_out && mine)
#pragma unroll
            for (int e = 0; e < ES; e++) {
                const int c = column_of<LANES>(e, part);
                if (c < a.dk) a.S_out[(head * a.dv + row0 + row) * a.dk + c] = S[e];
            }
    } else if (form::ratio_threads > 0 && role(form::ratio_threads)) {
        const int lane = thread + form::ratio_threads;
        float n[DK / 32];
#pragma unroll
        for (int e = 0; e < DK / 32; e++)
            n[e] = a.n_in && lane + 32 * e < a.dk ? a.n_in[head * a.dk + lane + 32 * e] : 0.0f;
        for (int64_t i = 0; i < rounds; i++) {
            if constexpr (has_n<OP>)
                if (i >= 1 && i - 1 < tiles)
                    role_ratio<OP, DK, ES>(tile<OP, DK, ES>(shared, i - 1), n, count_of(i - 1), lane, a.plain);
            __syncthreads();
        }
        if (a.n_out && slice == 0)
#pragma unroll
            for (int e = 0; e < DK / 32; e++)
                if (lane + 32 * e < a.dk) a.n_out[head * a.dk + lane + 32 * e] = n[e];
    } else {
        for (int64_t i = 0; i < rounds; i++) {
            if (i < tiles)
                role_features<OP, DK, ES>(a, tile<OP, DK, ES>(shared, i), head, row0, i * TILE, count_of(i), thread);
            __syncthreads();
        }
    }
}

template <vla_op OP, int DK, int ES>
vla_status launch(arguments a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    using form = shape<OP, DK, ES>;
    a.slices = (a.dv + form::rows - 1) / form::rows;
    const int64_t blocks = heads * a.slices;
    if (blocks > 2147483647)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld: accepted are up to %lld heads of dv %d",
                        (long long)heads, (long long)(2147483647 / a.slices), a.dv);
    VLA_CUDA(cudaFuncSetAttribute(kernel<OP, DK, ES>, cudaFuncAttributeMaxDynamicSharedMemorySize, form::shared_bytes));
    kernel<OP, DK, ES><<<(unsigned)blocks, form::threads, form::shared_bytes, stream>>>(a);
    VLA_CUDA(cudaGetLastError());
    return VLA_OK;
}

/* More slices of fewer rows keep more multiprocessors busy, while there are any idle. */
template <vla_op OP, int DK>
vla_status choose_slices(const arguments &a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    constexpr int rows = shape<OP, DK, 8>::rows;
    const int64_t blocks = heads * ((a.dv + rows - 1) / rows), fit = (has_A<OP> ? 1 : 3) * vla_cuda_sm_count();
    if (blocks <= fit) return launch<OP, DK, 8>(a, heads, stream, error);
    return launch<OP, DK, 32>(a, heads, stream, error);
}

template <vla_op OP> vla_status choose_width(const arguments &a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    if constexpr (has_A<OP>)
        if (a.dk <= 32) return choose_slices<OP, 32>(a, heads, stream, error);
    if (a.dk <= 64) return choose_slices<OP, 64>(a, heads, stream, error);
    if (a.dk <= 128) return choose_slices<OP, 128>(a, heads, stream, error);
    if constexpr (!has_A<OP>) return choose_slices<OP, 256>(a, heads, stream, error);
    return vla_fail(error, VLA_ERR_UNSUPPORTED, "dk %d: accepted are up to 128", a.dk);
}

template <vla_op OP> bool supports(const vla_problem *p, char *reason, size_t size)
{
    const int most = has_A<OP> ? 128 : 256;
    if (p->dk > most) {
        snprintf(reason, size, "dk %lld above %d: the state of a head is kept in one block's registers",
                 (long long)p->dk, most);
        return false;
    }
    if (p->dv > 1 << 20) {
        snprintf(reason, size, "dv %lld above %d", (long long)p->dv, 1 << 20);
        return false;
    }
    return true;
}

/* Copies of A and n at the start: with several blocks a head one may finish and write them before another has read. */
template <vla_op OP> vla_status workspace(const vla_problem *p, int, int64_t *bytes, vla_error *error)
{
    int64_t heads = 0;
    const int64_t a_head = 4 * ((has_A<OP> ? p->dk * p->dk : 0) + (has_n<OP> ? p->dk : 0));
    if (!vla_size_mul(p->B, p->H, &heads) || !vla_size_mul(heads, a_head, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "B*H %lld x %lld: the state is beyond 64-bit sizes", (long long)p->B,
                        (long long)p->H);
    return VLA_OK;
}

template <vla_op OP> vla_status run(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    cudaStream_t stream = (cudaStream_t)call->stream;
    const int64_t heads = p->B * p->H;
    if (heads == 0) return VLA_OK;
    arguments a = {};
    a.q = t->q, a.k = t->k, a.v = t->v, a.u = t->u ? t->u : t->k, a.b = t->b, a.g = t->g, a.o = t->o;
    a.alpha = OP == VLA_VLA ? t->alpha : NULL;
    a.S_out = (float *)t->S, a.A_out = has_A<OP> ? (float *)t->A : NULL, a.n_out = has_n<OP> ? (float *)t->n : NULL;
    a.T = p->T, a.first = t->state_in && t->t ? *t->t : 0;
    a.dk = (int)p->dk, a.dv = (int)p->dv, a.dtype = dtype, a.features = p->features;
    a.gate = p->gate, a.qk_l2 = p->qk_l2, a.plain = OP == VLA_VLA && p->output == VLA_PLAIN;
    a.normalise = !p->no_normalise;
    a.initial = (float)(1.0 / p->lambda0), a.root = (float)(1.0 / sqrt((double)p->dk));
    a.refresh_period = p->refresh_period, a.refresh_eps = (float)p->refresh_eps;
    if (t->state_in) {
        a.S_in = (const float *)t->S;
        float *copy = (float *)call->work;
        if (has_A<OP>) {
            const int64_t count = heads * p->dk * p->dk;
            VLA_CUDA(cudaMemcpyAsync(copy, t->A, (size_t)count * 4, cudaMemcpyDeviceToDevice, stream));
            a.A_in = copy, copy += count;
        }
        if (has_n<OP>) {
            VLA_CUDA(cudaMemcpyAsync(copy, t->n, (size_t)(heads * p->dk) * 4, cudaMemcpyDeviceToDevice, stream));
            a.n_in = copy;
        }
    }
    const vla_status status = choose_width<OP>(a, heads, stream, error);
    if (status == VLA_OK && t->t) *t->t = a.first + p->T;
    return status;
}
} /* namespace recurrent */

/* The three variants of an operator, named by the file's stem. */
#define VLA_RECURRENT_VARIANTS(stem, OP)                                                           \
    static vla_status run_f32(const vla_call *c, vla_error *e)                                     \
    {                                                                                              \
        return recurrent::run<OP>(c, VLA_F32, e);                                                  \
    }                                                                                              \
    static vla_status run_bf16(const vla_call *c, vla_error *e)                                    \
    {                                                                                              \
        return recurrent::run<OP>(c, VLA_BF16, e);                                                 \
    }                                                                                              \
    static vla_status run_f16(const vla_call *c, vla_error *e)                                     \
    {                                                                                              \
        return recurrent::run<OP>(c, VLA_F16, e);                                                  \
    }                                                                                              \
    extern "C" {                                                                                   \
    extern const vla_variant stem##_f32, stem##_bf16, stem##_f16;                                  \
    const vla_variant stem##_f32 = {recurrent::supports<OP>, recurrent::workspace<OP>, run_f32};   \
    const vla_variant stem##_bf16 = {recurrent::supports<OP>, recurrent::workspace<OP>, run_bf16}; \
    const vla_variant stem##_f16 = {recurrent::supports<OP>, recurrent::workspace<OP>, run_f16};   \
    }

#endif
