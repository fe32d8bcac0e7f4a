/* The roles of a recurrent block's warps; what they are and how they meet is told in recurrent.cuh. */
#ifndef VLA_CUDA_RECURRENT_ROLES_CUH
#define VLA_CUDA_RECURRENT_ROLES_CUH
#include "kernels/cuda/recurrent_penalty.cuh"
#include "kernels/cuda/rows8.cuh"

namespace recurrent
{
constexpr int TILE = 16, STATE_THREADS = 128;

template <vla_op OP> constexpr bool has_A = OP == VLA_VLA || OP == VLA_RLS;
template <vla_op OP> constexpr bool has_n = OP == VLA_VLA || OP == VLA_LINEAR;

template <vla_op OP, int DK, int ES> struct shape {
    static constexpr int lanes = DK / ES;                          /* that share a row of S */
    static constexpr int rows = STATE_THREADS / lanes;             /* of S in a block */
    static constexpr int penalty_threads = has_A<OP> ? 2 * DK : 0; /* a warp has sixteen rows of A */
    static constexpr int pitch = DK + 8; /* of a row in a tile: rows start in different banks */
    /* with A at most sixteen warps in all, which leaves each 128 registers */
    static constexpr int feature_warps = has_A<OP> ? (OP == VLA_VLA && DK == 128 ? 3 : 4) : DK <= 64 ? 4 : 8;
    static constexpr int ratio_threads = !has_n<OP> ? 0 : OP == VLA_VLA && DK <= 64 ? 64 : 32;
    static constexpr int behind = OP == VLA_VLA ? 3 : 2, ring = behind + 1; /* tiles the state is behind the features */
    static constexpr int threads = penalty_threads + STATE_THREADS + 32 * feature_warps + ratio_threads;
    /* kh, qf and, where the operator has them, kf and uh; rls writes along x, vla along a, both made by the penalty */
    static constexpr int key_rows = 2 + has_n<OP> + (OP == VLA_VLA);
    static constexpr int tile_floats = TILE * ((key_rows + has_A<OP>)*pitch + 2 * rows + 2);
    static constexpr int shared_bytes =
        ring * tile_floats * (int)sizeof(float) + (has_A<OP> ? (int)sizeof(sweep_shared<DK>) : 0);
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
        kh = shared + (index % form::ring) * form::tile_floats;
        qf = kh + TILE * form::pitch;
        kf = qf + TILE * form::pitch;
        uh = kf + (has_n<OP> ? TILE * form::pitch : 0);
        x = uh + (OP == VLA_VLA ? TILE * form::pitch : 0);
        v = x + (has_A<OP> ? TILE * form::pitch : 0);
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

/* A row past the sequence leaves zero keys and directions. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void make_features(const arguments &a, const tile<OP, DK, ES> &out, const raw_rows<OP> &raw,
                                              int t, int column, bool valid)
{
    constexpr int L = DK / 8;
    const int at = t * shape<OP, DK, ES>::pitch + column;
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

/* A tile's sweeps; a refresh ends one, and its token has one of its own. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_penalty(const arguments &a, const tile<OP, DK, ES> &in, float (&A)[DK / 8][4],
                                             sweep_shared<DK> &swept, int64_t &until, bool &poisoned, int count,
                                             int warp, int lane)
{
    constexpr bool KEYS = OP == VLA_VLA; /* rls: the direction is the key, and writes are not brought to unit length */
    const sweep_rows rows = {KEYS ? in.uh : in.kh, in.kh, in.x, shape<OP, DK, ES>::pitch};
    for (int first = 0; first < count;) {
        const int base = first / SWEEP * SWEEP;
        int last = base + SWEEP < count ? base + SWEEP : count;
        float add = 0;
        if (KEYS && a.refresh_period > 0) {
            if (until == 1)
                last = first + 1, add = a.refresh_eps;
            else if (until <= last - first)
                last = first + (int)until - 1;
            until -= last - first;
            if (until == 0) until = a.refresh_period;
        }
        sweep<DK, KEYS, KEYS ? 3 : 4>(A, rows, swept, base, first, last, add, poisoned, warp, lane);
        first = last;
    }
}

/* A tile at once: lane l has columns l, l + 32, .. of n, the tile's sums over lanes are dealt out to them. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_ratio(const tile<OP, DK, ES> &in, float (&n)[DK / 32], int count, int lane,
                                           bool plain)
{
    constexpr int PITCH = shape<OP, DK, ES>::pitch;
    float dots[TILE];
#pragma unroll
    for (int t = 0; t < TILE; t++) { /* rows past the sequence have zero keys */
        dots[t] = 0;
#pragma unroll
        for (int e = 0; e < DK / 32; e++) {
            n[e] += in.kf[t * PITCH + lane + 32 * e];
            dots[t] = fmaf(n[e], in.qf[t * PITCH + lane + 32 * e], dots[t]);
        }
    }
    const int token = deal_sums<TILE, 32>(dots, lane);
    const float floor = (float)VLA_RATIO_EPS;
    if (lane % 2 == 0 && token < count) in.inverse[token] = plain ? 1.0f : 1.0f / (dots[0] < floor ? floor : dots[0]);
}

/* x -> a = unit(x), in place, a tile at once by one warp. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void role_normalise(const arguments &a, const tile<OP, DK, ES> &in, int64_t row0, int count,
                                               int lane, bool keep)
{
    constexpr int PITCH = shape<OP, DK, ES>::pitch, E = DK / 32;
    float squares[TILE];
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        squares[t] = 0;
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float x = t < count ? in.x[t * PITCH + lane + 32 * e] : 1.0f;
            squares[t] = fmaf(x, x, squares[t]);
        }
    }
    deal_sums<TILE, 32>(squares, lane); /* lanes 2t and 2t + 1 have that of token t */
    const bool usual = squares[0] >= SQUARES_LOW && squares[0] <= SQUARES_HIGH;
    const float scale = a.normalise ? rsqrtf(squares[0]) : 1.0f;
    if (!a.normalise || __all_sync(FULL_WARP, usual)) {
#pragma unroll
        for (int t = 0; t < TILE; t++) {
            const float by = __shfl_sync(FULL_WARP, scale, 2 * t);
            if (t >= count) continue;
#pragma unroll
            for (int e = 0; e < E; e++) in.x[t * PITCH + lane + 32 * e] *= by;
        }
    } else {
#pragma unroll 1
        for (int t = 0; t < count; t++) {
            float x[E], y[E], unit[E];
#pragma unroll
            for (int e = 0; e < E; e++) x[e] = in.x[t * PITCH + lane + 32 * e];
            feature_row<E>(x, y, unit, lane, DK, VLA_IDENTITY);
#pragma unroll
            for (int e = 0; e < E; e++) in.x[t * PITCH + lane + 32 * e] = unit[e];
        }
    }
    if (!keep) return;
    for (int t = 0; t < count; t++)
#pragma unroll
        for (int e = 0; e < E; e++) {
            const int c = lane + 32 * e;
            if (c < a.dk) store_element(a.alpha, a.dtype, (row0 + t) * a.dk + c, in.x[t * PITCH + c]);
        }
}

/* S = gate S + r w, and this lane's part of S q. */
template <int QUADS, int LANES, bool GATED>
__device__ __forceinline__ float write_row(float (&S)[4 * QUADS], float gate, float r, const float4 *w4,
                                           const float4 *q4, int part)
{
    float even = 0, odd = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        const float4 w = w4[part + LANES * j], q = q4[part + LANES * j];
        if (GATED) S[4 * j] *= gate, S[4 * j + 1] *= gate, S[4 * j + 2] *= gate, S[4 * j + 3] *= gate;
        S[4 * j] = fmaf(r, w.x, S[4 * j]), S[4 * j + 1] = fmaf(r, w.y, S[4 * j + 1]);
        S[4 * j + 2] = fmaf(r, w.z, S[4 * j + 2]), S[4 * j + 3] = fmaf(r, w.w, S[4 * j + 3]);
        even = fmaf(S[4 * j], q.x, even), odd = fmaf(S[4 * j + 1], q.y, odd);
        even = fmaf(S[4 * j + 2], q.z, even), odd = fmaf(S[4 * j + 3], q.w, odd);
    }
    return even + odd;
}

/* One token: S advanced, and this lane's part of S q returned. */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ float advance_one(const tile<OP, DK, ES> &in, float (&S)[ES], int t, int row, int part)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::lanes, QUADS = ES / 4, PITCH = form::pitch;
    const float *w = OP == VLA_LINEAR ? in.kf : has_A<OP> ? in.x : in.kh;
    float r = in.v[t * form::rows + row], gate = 1;
    if (OP != VLA_LINEAR) r -= lanes_sum<LANES>(row_part<QUADS, LANES>(S, (const float4 *)(in.kh + t * PITCH), part));
    if (OP == VLA_DELTA) r *= in.beta[t];
    if (OP == VLA_DECAY) gate = in.gate[t * form::rows + row];
    return write_row<QUADS, LANES, OP == VLA_DECAY>(S, gate, r, (const float4 *)(w + t * PITCH),
                                                    (const float4 *)(in.qf + t * PITCH), part);
}

/* Two tokens with one wait for sums over lanes: S1 k2 = gate1 S k2 + r1 (w1.k2). */
template <vla_op OP, int DK, int ES>
__device__ __forceinline__ void advance_two(float (&y)[2], const tile<OP, DK, ES> &in, float (&S)[ES], int t, int row,
                                            int part)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::lanes, QUADS = ES / 4, PITCH = form::pitch;
    const float *w = OP == VLA_LINEAR ? in.kf : has_A<OP> ? in.x : in.kh;
    const float4 *w1 = (const float4 *)(w + t * PITCH), *k2 = (const float4 *)(in.kh + (t + 1) * PITCH);
    float r1 = in.v[t * form::rows + row], r2 = in.v[(t + 1) * form::rows + row], gate1 = 1, gate2 = 1;
    if (OP == VLA_DECAY) gate1 = in.gate[t * form::rows + row], gate2 = in.gate[(t + 1) * form::rows + row];
    if (OP != VLA_LINEAR) {
        float p1 = row_part<QUADS, LANES>(S, (const float4 *)(in.kh + t * PITCH), part);
        float p2 = row_part<QUADS, LANES>(S, k2, part), inner = 0;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const float4 x = w1[part + LANES * j], k = k2[part + LANES * j];
            inner = fmaf(x.x, k.x, fmaf(x.y, k.y, fmaf(x.z, k.z, fmaf(x.w, k.w, inner))));
        }
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) {
            p1 += __shfl_xor_sync(FULL_WARP, p1, offset), p2 += __shfl_xor_sync(FULL_WARP, p2, offset);
            inner += __shfl_xor_sync(FULL_WARP, inner, offset);
        }
        r1 -= p1;
        if (OP == VLA_DELTA) r1 *= in.beta[t];
        r2 -= fmaf(r1, inner, OP == VLA_DECAY ? gate1 * p2 : p2);
        if (OP == VLA_DELTA) r2 *= in.beta[t + 1];
    }
    const float4 *q4 = (const float4 *)(in.qf + t * PITCH);
    y[0] = write_row<QUADS, LANES, OP == VLA_DECAY>(S, gate1, r1, w1, q4, part);
    y[1] = write_row<QUADS, LANES, OP == VLA_DECAY>(S, gate2, r2, w1 + PITCH / 4, q4 + PITCH / 4, part);
}

/* Four tokens at a time, so that the sums of their outputs over lanes overlap and one store writes several. WHOLE:
 * count is TILE, and no branch keeps a token's loads from moving ahead of the one before. */
template <vla_op OP, int DK, int ES, bool WHOLE>
__device__ __forceinline__ void role_state(const arguments &a, const tile<OP, DK, ES> &in, float (&S)[ES], int64_t head,
                                           int row0, int64_t start, int count, int thread)
{
    using form = shape<OP, DK, ES>;
    constexpr int LANES = form::lanes, BATCH = 4, SUMS = LANES < BATCH ? BATCH / LANES : 1, /* that a lane ends with */
        SHARE = LANES < BATCH ? 1 : LANES / BATCH; /* lanes that have the same */
    const int row = thread / LANES, part = thread % LANES;
    const bool mine = part % SHARE == 0 && row0 + row < a.dv;
    const int64_t out = (head * a.T + a.begin + start) * a.dv + row0 + row;
    for (int t = 0; t < count; t += BATCH) {
        float y[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i += 2) {
            float two[2] = {};
            if (WHOLE || t + i + 1 < count)
                advance_two<OP, DK, ES>(two, in, S, t + i, row, part);
            else if (t + i < count)
                two[0] = advance_one<OP, DK, ES>(in, S, t + i, row, part);
            y[i] = two[0], y[i + 1] = two[1];
        }
        const int base = t + deal_sums<BATCH, LANES>(y, part);
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const int token = base + i;
            if (mine && token < count)
                store_element(a.o, a.dtype, out + token * a.dv, has_n<OP> ? y[i] * in.inverse[token] : y[i]);
        }
    }
}
} /* namespace recurrent */

#endif
