/* linear in tf32, by segments as linear_walk.cuh, which is for 16-bit types: a head's sequence is cut into as many as
 * keep the device busy, a block each.
 *   sums   a segment's sum of v kf^T and of kf (not of a head's last)
 *   walk   a segment from the sums before it on, added in order, in steps of 64 tokens:
 *          O = (tril(Q K^T) V + Q S) / max(tril(Q K^T) 1 + Q n, eps) ;  S += K^T V ;  n += K^T 1       (S is [dk,dv])
 * k and v are read twice, q once, and a sum is written once a segment. Operands are float16 of unit scale, which has as
 * many bits of fraction as tf32: K divided by a power of two a step, V and S by one a step and 32 columns of dv, rows
 * of q where they are not in float16's good range. What is below 1e-4 of the largest that it shares a power with loses
 * bits, of tokens before that too (docs/cuda.md). n goes into its product as two parts. S itself is float32 in
 * registers, and sums over steps are ordinary ones, as those of the tensor cores cut off. A step's rows are asked for a
 * step ahead, to where each thread reads its own. The warps that make the outputs of sixteen tokens share their rows of
 * tril(Q K^T), each making some columns of it. NaN: rows of k or v that hold one are taken as zero and everything from
 * the first one on is NaN; a NaN in q touches its own row. Not supported: dk or dv above 128. */
#ifndef VLA_CUDA_LINEAR_TF32_CUH
#define VLA_CUDA_LINEAR_TF32_CUH
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows8.cuh"
#include "kernels/cuda/scales.cuh"

namespace linear_tf32
{
constexpr int C = 64, CT = C / 16; /* tokens a step, tiles of them */

struct arguments {
    const float *q, *k, *v;
    float *o;
    const float *S_in, *n_in; /* [heads,dv,dk], [heads,dk]: before the run; NULL: zero */
    float *S_out, *n_out;     /* after it; NULL: not wanted. S_out may be S_in */
    /* A segment (head, segment); the last of a head has no sums, and its place takes the state that the run goes on
     * from, which the end state may overwrite while segments begin. */
    float4 *S_sum;                     /* results of products, a thread's together */
    float *n;                          /* [D] */
    int64_t *bad;                      /* first token that is not finite */
    int64_t T, heads, segments, steps; /* a head; a segment */
    int dk, dv;
    vla_features features;
    bool qk_l2;
};

/* D: width class of dk and dv. Of outputs a warp has sixteen tokens and 32 columns of dv, of S 16 MT rows of dk and 32
 * columns of dv. */
template <int D> struct shape {
    static constexpr int NT = 4 * D, WARPS = NT / 32, MT = D / 64, KT = D / 16, LANES = D / 8, AT_ONCE = NT / LANES,
                         PASSES = C / AT_ONCE, PITCH = D + 8, P_PITCH = C + 8, /* halves */
        GROUPS = D / 32,                                    /* warps of the same tokens' outputs; of 32 columns of dv */
        BLOCKS = D == 64 ? 2 : 1;                           /* a multiprocessor */
    static constexpr int64_t matrix = (int64_t)4 * MT * NT; /* float4 of S */
};

/* A thread's eights of the rows of a step, on their way to where it alone reads them. */
template <int D> using own_rows = uint4[shape<D>::PASSES][2][shape<D>::NT];
template <int D> struct eights {
    using F = shape<D>;
    own_rows<D> &rows;
    static __device__ __forceinline__ int row(int i) { return (int)threadIdx.x / F::LANES + i * F::AT_ONCE; }
    static __device__ __forceinline__ int column() { return 8 * ((int)threadIdx.x % F::LANES); }
    __device__ __forceinline__ void fetch(const float *data, int64_t row0, int left, int width) const
    {
        const float *from = data + (row0 + row(0)) * width + column();
        if (width % 8 == 0)
#pragma unroll
            for (int i = 0; i < F::PASSES; i++) {
                const bool in = row(i) < left && column() < width;
                const float *at = in ? from + (int64_t)i * F::AT_ONCE * width : data;
                copy_async_shared_if(in, &rows[i][0][threadIdx.x], at);
                copy_async_shared_if(in, &rows[i][1][threadIdx.x], at + 4);
            }
        else
#pragma unroll 1
            for (int i = 0; i < F::PASSES; i++) {
                raw8<2> x;
                load8(x, data + (row0 + row(i)) * width, column(), width, row(i) < left);
                rows[i][0][threadIdx.x] = x.half[0], rows[i][1][threadIdx.x] = x.half[1];
            }
    }
    __device__ __forceinline__ void get(float (&x)[8], int i) const
    {
        raw8<2> raw;
        raw.half[0] = rows[i][0][threadIdx.x], raw.half[1] = rows[i][1][threadIdx.x];
        convert8(x, raw, VLA_F32);
    }
    static __device__ __forceinline__ void put(__half *rows, int i, const float (&x)[8], float by)
    {
        const f16_arithmetic M{};
        *(uint4 *)(rows + row(i) * F::PITCH + column()) =
            make_uint4(pack(M, x[0] * by, x[1] * by), pack(M, x[2] * by, x[3] * by), pack(M, x[4] * by, x[5] * by),
                       pack(M, x[6] * by, x[7] * by));
    }
    /* phi of an eight, zero past the width. */
    __device__ __forceinline__ void mapped(float (&x)[8], float (&y)[8], int i, const arguments &a) const
    {
        get(x, i);
        features8<false>(y, x, a.features);
        if (column() + 8 > a.dk)
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = column() + j < a.dk ? y[j] : 0.0f;
    }
};

/* The largest of this step and the next, of which each is told while the other is read: as float's bits. */
template <int D> struct tops {
    uint32_t K, V[shape<D>::GROUPS], S[shape<D>::GROUPS], n;
};
template <int D> struct __align__(16) rows_shared
{
    __half K[C * shape<D>::PITCH], V[C * shape<D>::PITCH];
    float n[D];             /* of kf before the step */
    own_rows<D> key, value; /* of the next step */
    tops<D> top[2];
    int bad[2]; /* first row of this step and the next that is not finite, C: none */
};
template <int D> struct walk_shared {
    rows_shared<D> in;
    __half Q[C * shape<D>::PITCH], S[D * shape<D>::PITCH], P[C * shape<D>::P_PITCH]; /* P: tril(Q K^T) */
    __half n[3][D];            /* of n before the step: rounded, what that leaves out, zeros */
    own_rows<D> next;          /* queries */
    float before[C], query[C]; /* Q n; what rows of q were multiplied by */
};

__device__ __forceinline__ bool finite8(const float (&x)[8])
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) sum = fmaf(x[j], 0.0f, sum);
    return sum == 0;
}

__device__ __forceinline__ float largest8(const float (&x)[8])
{
    float most = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) most = fmaxf(most, fabsf(x[j]));
    return most;
}
__device__ __forceinline__ void note_top(uint32_t &top, float x)
{
    atomicMax(&top, __float_as_uint(x));
}
/* The power of two that brings what is at most `top` to 1, and its reciprocal. */
struct scale {
    float by, back;
    __device__ __forceinline__ explicit scale(uint32_t top)
    {
        back = power_above(__uint_as_float(top)), by = power_of(254 - (int)(__float_as_uint(back) >> 23));
    }
};

/* Keys mapped, and values; what is not finite, or past the sequence, as zero. Their largest are told. */
template <int D> struct tokens {
    using F = shape<D>;
    using E = eights<D>;
    float key[F::PASSES][8], value[F::PASSES][8];
    __device__ __forceinline__ void take(rows_shared<D> &s, const E &keys, const E &values, const arguments &a,
                                         int left, int which)
    {
        float top_key = 0, top_value = 0;
#pragma unroll
        for (int i = 0; i < F::PASSES; i++) {
            float x[8];
            keys.mapped(x, key[i], i, a);
            bool good = finite8(key[i]);
            if (!good || E::row(i) >= left) /* phi(0) is not 0 */
#pragma unroll
                for (int j = 0; j < 8; j++) key[i][j] = 0;
            values.get(value[i], i);
            if (!finite8(value[i])) {
                good = false;
#pragma unroll
                for (int j = 0; j < 8; j++) value[i][j] = 0;
            }
            if (!good && E::row(i) < left) atomicMin(&s.bad[which], E::row(i));
            top_key = fmaxf(top_key, largest8(key[i])), top_value = fmaxf(top_value, largest8(value[i]));
        }
        top_key = warp_top(top_key);
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) /* of lanes with the same 32 columns */
            if (offset < 4 || offset >= F::LANES)
                top_value = fmaxf(top_value, __shfl_xor_sync(FULL_WARP, top_value, offset));
        const int lane = (int)threadIdx.x % 32;
        if (lane == 0) note_top(s.top[which].K, top_key);
        if (lane < F::LANES && lane % 4 == 0) note_top(s.top[which].V[lane / 4], top_value);
    }
    __device__ __forceinline__ void put(rows_shared<D> &s, int which) const
    {
        const float by_key = scale(s.top[which].K).by, by_value = scale(s.top[which].V[E::column() / 32]).by;
#pragma unroll
        for (int i = 0; i < F::PASSES; i++) E::put(s.K, i, key[i], by_key), E::put(s.V, i, value[i], by_value);
    }
};

/* A thread's part of S: rows of dk 16 m + g + 8 (i / 2) from row() on, columns 8 n + 2 t + i % 2 from column() on. */
template <int D> struct state {
    using F = shape<D>;
    float x[F::MT][4][4];
    int lane, row, column;

    __device__ __forceinline__ state(int lane_, int warp)
    {
        lane = lane_, row = 16 * F::MT * (warp % 4) + lane / 4, column = 32 * (warp / 4) + 2 * (lane % 4);
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) x[m][n][i] = 0;
    }
    /* element(value, place in [dv,dk]) for each that is there. */
    template <typename E> __device__ __forceinline__ void each(const arguments &a, E element)
    {
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int r = row + 16 * m + i / 2 * 8, c = column + 8 * n + i % 2;
                    if (r < a.dk && c < a.dv) element(x[m][n][i], (int64_t)c * a.dk + r);
                }
    }
    __device__ __forceinline__ void load(const arguments &a, int64_t head)
    {
        const float *from = a.S_in + head * a.dv * a.dk;
        each(a, [&](float &to, int64_t at) { to = from[at]; });
    }
    __device__ __forceinline__ void add(const float4 *sums)
    {
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float4 y = __ldcg(sums + (4 * m + n) * F::NT + threadIdx.x);
                x[m][n][0] += y.x, x[m][n][1] += y.y, x[m][n][2] += y.z, x[m][n][3] += y.w;
            }
    }
    __device__ __forceinline__ void store(float4 *sums) const
    {
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                sums[(4 * m + n) * F::NT + threadIdx.x] = make_float4(x[m][n][0], x[m][n][1], x[m][n][2], x[m][n][3]);
    }
    __device__ __forceinline__ void note(uint32_t &top) const
    {
        float most = 0;
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) most = fmaxf(most, fabsf(x[m][n][i]));
        most = warp_top(most);
        if (lane == 0) note_top(top, most);
    }
    /* Divided by a power of two, to where products with it read it. */
    __device__ __forceinline__ void publish(__half *S, float by) const
    {
        const uint32_t to =
            shared_address(S + (row - lane / 4) * F::PITCH + column - 2 * (lane % 4)) + plain_offset(F::PITCH, lane);
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                float y[2][4];
#pragma unroll
                for (int i = 0; i < 8; i++) y[i / 4][i % 4] = x[m][n + i / 4][i % 4] * by;
                store_frag<false>(to + 32 * m * F::PITCH + 16 * n, pack_tile<f16_arithmetic>(y[0], y[1]));
            }
    }
    /* += K^T V over a step, and n += K^T 1 by the warps of the first columns; what is then the largest is told. */
    __device__ __forceinline__ void step(rows_shared<D> &s, int which)
    {
        using M = f16_arithmetic;
        const int row0 = row - lane / 4, column0 = column - 2 * (lane % 4);
        const bool sums = column0 == 0;
        const uint32_t K = shared_address(s.K + row0) + turned_offset(F::PITCH, lane),
                       V = shared_address(s.V + column0) + plain_offset(F::PITCH, lane), one = 0x3c003c00u;
        float d[F::MT][2][2][4] = {}, n[F::MT][4] = {};
#pragma unroll
        for (int j = 0; j < CT; j++) {
            frag left[F::MT];
#pragma unroll
            for (int m = 0; m < F::MT; m++) {
                left[m] = load_turned(K + 32 * j * F::PITCH + 32 * m);
                if (sums) mma(M{}, n[m], left[m].x, one, one);
            }
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const frag right = load_turned(V + 32 * j * F::PITCH + 32 * p);
#pragma unroll
                for (int m = 0; m < F::MT; m++) mma_r<M>(d[m][p], left[m], right);
            }
        }
        const float keys = scale(s.top[which].K).back, values = scale(s.top[which].V[column0 / 32]).back;
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                x[m][i / 4][i % 4] = fmaf(d[m][i / 8][i / 4 % 2][i % 4] * keys, values, x[m][i / 4][i % 4]);
        note(s.top[1 - which].S[column0 / 32]);
        if (!sums) return;
        float most = 0;
        if (lane % 4 == 0)
#pragma unroll
            for (int m = 0; m < F::MT; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float &to = s.n[row + 16 * m + 8 * h];
                    to = fmaf(n[m][2 * h], keys, to);
                    most = fmaxf(most, fabsf(to));
                }
        most = warp_top(most);
        if (lane == 0) note_top(s.top[1 - which].n, most);
    }
};

/* No row is bad yet, nothing is large, n is zero. */
template <int D> __device__ __forceinline__ void begin_rows(rows_shared<D> &s)
{
    if (threadIdx.x < 2) s.bad[threadIdx.x] = C, s.top[threadIdx.x] = {};
    if (threadIdx.x < D) s.n[threadIdx.x] = 0;
}
/* The next step's marks; what they were has been read, and they are not told before a barrier. */
template <int D> __device__ __forceinline__ void next_rows(rows_shared<D> &s, int which)
{
    if (threadIdx.x == 0) s.bad[1 - which] = C, s.top[1 - which] = {};
}

__device__ __forceinline__ int tokens_left(const arguments &a, int64_t token)
{
    return (int)(a.T - token < C ? a.T - token : C);
}

/* A block a segment but the last of a head. */
template <int D>
__global__ void __launch_bounds__(shape<D>::NT, shape<D>::BLOCKS) sums(const __grid_constant__ arguments a)
{
    using F = shape<D>;
    extern __shared__ __align__(16) unsigned char raw[];
    rows_shared<D> &s = *(rows_shared<D> *)raw;
    const int64_t head = blockIdx.x / (a.segments - 1), segment = blockIdx.x % (a.segments - 1),
                  at = head * a.segments + segment;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    begin_rows(s);
    grid_wait(); /* for the inputs */
    state<D> S(lane, warp);
    int64_t token = segment * a.steps * C, bad = INT64_MAX;
    const eights<D> keys = {s.key}, values = {s.value};
    const auto fetch = [&](int64_t from) {
        keys.fetch(a.k, head * a.T + from, C, a.dk), values.fetch(a.v, head * a.T + from, C, a.dv);
        copy_commit();
    };
    fetch(token);
    __syncthreads();
#pragma unroll 1
    for (int64_t step = 0; step < a.steps; step++, token += C) {
        const int which = (int)(step % 2);
        copy_wait<0>();
        tokens<D> these;
        these.take(s, keys, values, a, C, which);
        __syncthreads(); /* all have left the rows, and the largest are told */
        these.put(s, which);
        next_rows(s, which);
        __syncthreads();
        if (step + 1 < a.steps) fetch(token + C);
        if (s.bad[which] < C && token + s.bad[which] < bad) bad = token + s.bad[which];
        S.step(s, which);
    }
    __syncthreads();
    S.store(a.S_sum + at * F::matrix);
    if (threadIdx.x < D) a.n[at * D + threadIdx.x] = s.n[threadIdx.x];
    if (threadIdx.x == 0) a.bad[at] = bad;
    if (segment > 0 || !a.S_in) return;
    state<D> before(lane, warp);
    before.load(a, head);
    before.store(a.S_sum + (at + a.segments - 1) * F::matrix);
    if (threadIdx.x < D)
        a.n[(at + a.segments - 1) * D + threadIdx.x] =
            a.n_in && (int)threadIdx.x < a.dk ? a.n_in[head * a.dk + threadIdx.x] : 0.0f;
}

/* Queries, rows of which are multiplied by a power of two where they are not in float16's good range. A NaN stays. */
template <int D>
__device__ __forceinline__ void put_queries(walk_shared<D> &s, const eights<D> &queries, const arguments &a)
{
    using F = shape<D>;
    using E = eights<D>;
#pragma unroll
    for (int i = 0; i < F::PASSES; i++) {
        float x[8], y[8], by = 1;
        queries.mapped(x, y, i, a);
        if (a.qk_l2) {
            queries.get(x, i);
            unit8<true>(x, y, E::column(), a.dk, a.features, F::LANES);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = x[j];
        } else {
            float most = largest8(y);
            if (!__all_sync(FULL_WARP, (most < 256.0f && most > 0.0625f) || E::column() >= a.dk)) {
                most = group_max(most, F::LANES);
                if (most < INFINITY) by = scale(__float_as_uint(most)).by;
            }
        }
        E::put(s.Q, i, y, by);
        if (E::column() == 0) s.query[E::row(i)] = by;
    }
}

/* Sixteen tokens, from 16 `tile` on, and 32 columns of dv of a step's outputs. The tile's warps meet. */
template <int D>
__device__ __forceinline__ void outputs(walk_shared<D> &s, const arguments &a, int64_t row0, int left, int finite,
                                        int which, int tile, int group, int lane)
{
    using F = shape<D>;
    using M = f16_arithmetic;
    constexpr int OWN = CT / F::GROUPS; /* tiles of P */
    const int g = lane / 4, t = lane % 4, row = 16 * tile + g;
    const uint32_t Q = shared_address(s.Q + 16 * tile * F::PITCH) + plain_offset(F::PITCH, lane),
                   S = shared_address(s.S + 32 * group) + plain_offset(F::PITCH, lane),
                   K = shared_address(s.in.K + 16 * OWN * group * F::PITCH) + turned_offset(F::PITCH, lane),
                   P = shared_address(s.P + 16 * tile * F::P_PITCH) + plain_offset(F::P_PITCH, lane),
                   V = shared_address(s.in.V + 32 * group) + plain_offset(F::PITCH, lane), one = 0x3c003c00u;
    const bool ratio = group == F::GROUPS - 1;
    const uint32_t *n = (const uint32_t *)s.n[min(g, 2)] + t;
    const tops<D> &top = s.in.top[which];
    float o[2][2][4] = {}, den[4] = {}, part[OWN][2][4] = {};
#pragma unroll 4
    for (int k = 0; k < F::KT; k++) {
        const frag q = load_plain(Q + 32 * k);
#pragma unroll
        for (int p = 0; p < 2; p++) mma_r<M>(o[p], q, load_turned(S + 32 * k * F::PITCH + 32 * p));
#pragma unroll
        for (int j = 0; j < OWN; j++)
            if (OWN * group + j <= tile) mma_r<M>(part[j], q, load_plain(K + 32 * j * F::PITCH + 32 * k));
        if (ratio) mma(M{}, den, q.x, n[8 * k], n[8 * k + 4]);
    }
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        const int column = OWN * group + j; /* tile */
        if (column > tile) continue;
        if (column == tile) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (8 * (i / 4) + 2 * t + i % 2 > g + i % 4 / 2 * 8) part[j][i / 4][i % 4] = 0;
        }
        store_frag<false>(P + 32 * column, pack_tile<M>(part[j][0], part[j][1]));
    }
    const float sum_scale = scale(top.n).back;
    if (ratio && t == 0)
        s.before[row] = (den[0] + den[1]) * sum_scale, s.before[row + 8] = (den[2] + den[3]) * sum_scale;
    meet<32 * F::GROUPS>(1 + tile);
    float d[2][2][4] = {}, sum[4] = {};
#pragma unroll
    for (int j = 0; j < CT; j++)
        if (j <= tile) {
            const frag left_P = load_plain(P + 32 * j);
            mma(M{}, sum, left_P.x, one, one);
#pragma unroll
            for (int p = 0; p < 2; p++) mma_r<M>(d[p], left_P, load_turned(V + 32 * j * F::PITCH + 32 * p));
        }
    const float keys = scale(top.K).back, values = scale(top.V[group]).back, states = scale(top.S[group]).back;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = row + 8 * h, c = 32 * group + 2 * t;
        const float total = fmaf(sum[2 * h], keys, s.before[r]), floor = (float)VLA_RATIO_EPS * s.query[r],
                    by = r >= finite ? NAN : reciprocal(total < floor ? floor : total);
        float *to = a.o + (row0 + r) * a.dv + c;
        if (r >= left) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = o[i / 2][i % 2] + 2 * h, *y = d[i / 2][i % 2] + 2 * h;
            const float2 z = make_float2(fmaf(y[0] * keys, values, x[0] * states) * by,
                                         fmaf(y[1] * keys, values, x[1] * states) * by);
            if (a.dv % 2 == 0) {
                if (c + 8 * i < a.dv) *(float2 *)(to + 8 * i) = z;
            } else {
                if (c + 8 * i < a.dv) to[8 * i] = z.x;
                if (c + 8 * i + 1 < a.dv) to[8 * i + 1] = z.y;
            }
        }
    }
}

/* A block a segment. */
template <int D>
__global__ void __launch_bounds__(shape<D>::NT, shape<D>::BLOCKS) walk(const __grid_constant__ arguments a)
{
    using F = shape<D>;
    using E = eights<D>;
    extern __shared__ __align__(16) unsigned char raw[];
    walk_shared<D> &s = *(walk_shared<D> *)raw;
    const int64_t head = blockIdx.x / a.segments, segment = blockIdx.x % a.segments;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    begin_rows(s.in);
    if (threadIdx.x < D) s.n[2][threadIdx.x] = __half(0.0f);
    grid_wait();
    state<D> S(lane, warp);
    int64_t token = segment * a.steps * C, bad = INT64_MAX;
    const int64_t all = (a.T - token + C - 1) / C, steps = all < a.steps ? all : a.steps;
    if (a.S_in && a.segments == 1) S.load(a, head);
    if (a.S_in && a.segments > 1) S.add(a.S_sum + (head * a.segments + a.segments - 1) * F::matrix);
#pragma unroll 4
    for (int64_t i = 0; i < segment; i++) {
        S.add(a.S_sum + (head * a.segments + i) * F::matrix);
        const int64_t first = __ldcg(a.bad + head * a.segments + i);
        bad = first < bad ? first : bad;
    }
    if (threadIdx.x < D) {
        float n = 0;
        if (a.n_in && (int)threadIdx.x < a.dk)
            n = a.segments == 1 ? a.n_in[head * a.dk + threadIdx.x]
                                : __ldcg(a.n + (head * a.segments + a.segments - 1) * D + threadIdx.x);
#pragma unroll 4
        for (int64_t i = 0; i < segment; i++) n += __ldcg(a.n + (head * a.segments + i) * D + threadIdx.x);
        s.in.n[threadIdx.x] = n;
    }
    const E keys = {s.in.key}, values = {s.in.value}, queries = {s.next};
    const auto fetch = [&](int64_t from) {
        const int left = tokens_left(a, from);
        keys.fetch(a.k, head * a.T + from, left, a.dk), values.fetch(a.v, head * a.T + from, left, a.dv);
        queries.fetch(a.q, head * a.T + from, left, a.dk);
        copy_commit();
    };
    fetch(token);
    __syncthreads();
    S.note(s.in.top[0].S[warp / 4]);
    if (threadIdx.x < D) note_top(s.in.top[0].n, fabsf(s.in.n[threadIdx.x]));
#pragma unroll 1
    for (int64_t step = 0; step < steps; step++, token += C) {
        const int which = (int)(step % 2), left = tokens_left(a, token);
        copy_wait<0>();
        {
            tokens<D> these;
            these.take(s.in, keys, values, a, left, which);
            __syncthreads(); /* all have left rows and S, and the largest are told */
            these.put(s.in, which);
        }
        const tops<D> &top = s.in.top[which];
        if (threadIdx.x < D) {
            const float n = s.in.n[threadIdx.x] * scale(top.n).by;
            const __half high = __float2half_rn(n);
            s.n[0][threadIdx.x] = high, s.n[1][threadIdx.x] = __float2half_rn(n - __half2float(high));
        }
        S.publish(s.S, scale(top.S[warp / 4]).by);
        put_queries(s, queries, a);
        next_rows(s.in, which);
        __syncthreads();
        if (step + 1 < steps) fetch(token + C);
        if (s.in.bad[which] < C && token + s.in.bad[which] < bad) bad = token + s.in.bad[which];
        outputs(s, a, head * a.T + token, left, (int)(bad - token < C ? bad - token : C), which, (warp + warp / 4) % 4,
                warp / 4, lane); /* the tiles of a scheduler's warps differ */
        S.step(s.in, which);
    }
    if (segment + 1 < a.segments) return;
    const bool lost = bad < a.T; /* the end state too */
    if (a.S_out) {
        float *to = a.S_out + head * a.dv * a.dk;
        S.each(a, [&](float x, int64_t at) { to[at] = lost ? NAN : x; });
    }
    __syncthreads();
    if (a.n_out && (int)threadIdx.x < a.dk) a.n_out[head * a.dk + threadIdx.x] = lost ? NAN : s.in.n[threadIdx.x];
}
} /* namespace linear_tf32 */

#endif
