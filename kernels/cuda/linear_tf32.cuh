/* linear in tf32, by segments as linear_walk.cuh, which is for 16-bit types: a head's sequence is cut into as many as
 * keep the device busy, a block each.
 *   sums   a segment's sum of v kf^T and of kf (not of a head's last)
 *   walk   a segment from the sums before it on, added in order, in steps of 64 tokens:
 *          O = (tril(Q K^T) V + Q S) / max(tril(Q K^T) 1 + Q n, eps) ;  S += K^T V ;  n += K^T 1       (S is [dk,dv])
 * k and v are read twice, q once, and a sum is written once a segment. Rows are rounded to tf32 on their way to shared
 * memory, where S lies rounded too; n goes into its product as two parts. S itself is float32 in registers, and sums
 * over steps are ordinary ones, as those of the tensor cores cut off. The warps that make the outputs of sixteen tokens
 * share their rows of tril(Q K^T), each making some columns of it. Pitches of shared memory keep the lanes of an
 * operand load in different banks, with columns in pairs where dk is summed over (tf32.cuh). NaN: rows of k or v that
 * hold one are taken as zero and everything from the first one on is NaN; a NaN in q touches its own row. Not
 * supported: dk or dv above 128. */
#ifndef VLA_CUDA_LINEAR_TF32_CUH
#define VLA_CUDA_LINEAR_TF32_CUH
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/rows8.cuh"
#include "kernels/cuda/tf32.cuh"

namespace linear_tf32
{
constexpr int C = 64; /* tokens a step */

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
    static constexpr int NT = 4 * D, WARPS = NT / 32, MT = D / 64, LANES = D / 8, AT_ONCE = NT / LANES,
                         PASSES = C / AT_ONCE, PITCH = D + 8, S_PITCH = D + 4, P_PITCH = C + 4, SLICES = NT / D,
                         BLOCKS = D == 64 ? 2 : 1;          /* a multiprocessor */
    static constexpr int GROUPS = D / 32;                   /* warps of the same tokens' outputs */
    static constexpr int64_t matrix = (int64_t)4 * MT * NT; /* float4 of S */
};

template <int D> struct __align__(16) rows_shared
{ /* tf32 bits */
    uint32_t K[C * shape<D>::PITCH], V[C * shape<D>::PITCH];
    float part[shape<D>::SLICES][D]; /* sums of kf over a step's rows */
    float n[D];                      /* of kf before the step */
    int bad[2];                      /* first row of this step and the next that is not finite, C: none */
};
template <int D> struct walk_shared {
    rows_shared<D> in;
    uint32_t Q[C * shape<D>::PITCH], S[D * shape<D>::S_PITCH];
    float P[C * shape<D>::P_PITCH]; /* tril(Q K^T), rounded */
    float before[C];                /* Q n */
    uint32_t n[3][D];               /* of n before the step: rounded, what that leaves out, zeros */
};

/* A thread's eights of a step's rows. */
template <int D> struct eights {
    using F = shape<D>;
    raw8<2> raw[F::PASSES];
    static __device__ __forceinline__ int row(int i) { return (int)threadIdx.x / F::LANES + i * F::AT_ONCE; }
    static __device__ __forceinline__ int column() { return 8 * ((int)threadIdx.x % F::LANES); }
    __device__ __forceinline__ void load(const float *data, int64_t row0, int left, int width)
    {
        if (width % 8 == 0) { /* the branch is around all the loads, so that none waits for another */
            const float *from = data + (row0 + row(0)) * width + column();
#pragma unroll
            for (int i = 0; i < F::PASSES; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    raw[i].half[h] = make_uint4(0, 0, 0, 0);
                    if (row(i) < left && column() < width)
                        raw[i].half[h] = ((const uint4 *)(from + (int64_t)i * F::AT_ONCE * width))[h];
                }
        } else {
            for (int i = 0; i < F::PASSES; i++)
                load8(raw[i], data + (row0 + row(i)) * width, column(), width, row(i) < left);
        }
    }
    static __device__ __forceinline__ void put(uint32_t *rows, int i, const float (&x)[8])
    {
        uint4 *to = (uint4 *)(rows + row(i) * F::PITCH + column());
        to[0] = make_uint4(tf32::rounded(x[0]), tf32::rounded(x[1]), tf32::rounded(x[2]), tf32::rounded(x[3]));
        to[1] = make_uint4(tf32::rounded(x[4]), tf32::rounded(x[5]), tf32::rounded(x[6]), tf32::rounded(x[7]));
    }
    /* phi of an eight, zero past the width. */
    __device__ __forceinline__ void mapped(float (&x)[8], float (&y)[8], int i, const arguments &a) const
    {
        convert8(x, raw[i], VLA_F32);
        features8<false>(y, x, a.features);
        if (column() + 8 > a.dk)
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = column() + j < a.dk ? y[j] : 0.0f;
    }
};

__device__ __forceinline__ bool finite8(const float (&x)[8])
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) sum = fmaf(x[j], 0.0f, sum);
    return sum == 0;
}

/* Keys and values to shared memory; what is not finite, or past the sequence, as zero. */
template <int D>
__device__ __forceinline__ void put_tokens(rows_shared<D> &s, const eights<D> &keys, const eights<D> &values,
                                           const arguments &a, int left, int which)
{
    using E = eights<D>;
#pragma unroll
    for (int i = 0; i < shape<D>::PASSES; i++) {
        float x[8], y[8];
        keys.mapped(x, y, i, a);
        bool good = finite8(y);
        if (!good || E::row(i) >= left) /* phi(0) is not 0 */
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = 0;
        E::put(s.K, i, y);
        convert8(x, values.raw[i], VLA_F32);
        if (!finite8(x)) {
            good = false;
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = 0;
        }
        E::put(s.V, i, x);
        if (!good && E::row(i) < left) atomicMin(&s.bad[which], E::row(i));
    }
}

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
    /* Rounded, to where products with it read it. */
    __device__ __forceinline__ void publish(uint32_t *S) const
    {
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *(uint2 *)(S + (row + 16 * m + 8 * h) * F::S_PITCH + column + 8 * n) =
                        make_uint2(tf32::rounded(x[m][n][2 * h]), tf32::rounded(x[m][n][2 * h + 1]));
    }
    /* += K^T V over a step. */
    __device__ __forceinline__ void step(const rows_shared<D> &s)
    {
        const int g = lane / 4, t = lane % 4;
        const uint32_t *K = s.K + t * F::PITCH + row, *V = s.V + t * F::PITCH + column - 2 * t + g;
        float d[F::MT][4][4] = {};
#pragma unroll 4
        for (int j = 0; j < C / 8; j++, K += 8 * F::PITCH, V += 8 * F::PITCH) {
            uint32_t left[F::MT][4];
#pragma unroll
            for (int m = 0; m < F::MT; m++) {
                left[m][0] = K[16 * m], left[m][1] = K[16 * m + 8];
                left[m][2] = K[4 * F::PITCH + 16 * m], left[m][3] = K[4 * F::PITCH + 16 * m + 8];
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const uint32_t right[2] = {V[8 * n], V[4 * F::PITCH + 8 * n]};
#pragma unroll
                for (int m = 0; m < F::MT; m++) tf32::product(d[m][n], left[m], right);
            }
        }
#pragma unroll
        for (int m = 0; m < F::MT; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) x[m][n][i] += d[m][n][i];
    }
};

/* A slice of the step's rows of kf added up; then, after a barrier, all of them to n. */
template <int D> __device__ __forceinline__ void sum_rows(rows_shared<D> &s)
{
    constexpr int EACH = C / shape<D>::SLICES;
    const int c = (int)threadIdx.x % D, slice = (int)threadIdx.x / D;
    float sum = 0;
#pragma unroll
    for (int r = 0; r < EACH; r++) sum += __uint_as_float(s.K[(slice * EACH + r) * shape<D>::PITCH + c]);
    s.part[slice][c] = sum;
}
template <int D> __device__ __forceinline__ void add_rows(rows_shared<D> &s)
{
    if (threadIdx.x >= D) return;
    float sum = s.n[threadIdx.x];
#pragma unroll
    for (int i = 0; i < shape<D>::SLICES; i++) sum += s.part[i][threadIdx.x];
    s.n[threadIdx.x] = sum;
}

template <int D> __device__ __forceinline__ void begin_rows(rows_shared<D> &s)
{
    if (threadIdx.x < 2) s.bad[threadIdx.x] = C;
    if (threadIdx.x < D) {
        s.n[threadIdx.x] = 0;
#pragma unroll
        for (int i = 0; i < shape<D>::SLICES; i++) s.part[i][threadIdx.x] = 0;
    }
}

__device__ __forceinline__ int tokens_left(const arguments &a, int64_t token)
{
    return (int)(a.T - token < C ? a.T - token : C);
}

/* Rows that will be loaded, to L2. */
__device__ __forceinline__ void fetch_step(const float *data, int64_t row0, int left, int width)
{
    if (width % 8 == 0) fetch_to_l2(data + row0 * width, (uint32_t)(left * width * 4));
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
#pragma unroll 1
    for (int64_t step = 0; step < a.steps; step++, token += C) {
        const int which = (int)(step % 2);
        eights<D> keys, values;
        keys.load(a.k, head * a.T + token, C, a.dk);
        values.load(a.v, head * a.T + token, C, a.dv);
        if (threadIdx.x == 0 && step + 1 < a.steps) {
            fetch_step(a.k, head * a.T + token + C, C, a.dk);
            fetch_step(a.v, head * a.T + token + C, C, a.dv);
        }
        __syncthreads(); /* all have left the rows */
        add_rows(s);
        put_tokens(s, keys, values, a, C, which);
        __syncthreads();
        if (s.bad[which] < C && token + s.bad[which] < bad) bad = token + s.bad[which];
        if (threadIdx.x == 0) s.bad[1 - which] = C;
        sum_rows(s);
        S.step(s);
    }
    __syncthreads();
    add_rows(s);
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

/* Sixteen tokens, from 16 `tile` on, and 32 columns of dv of a step's outputs. The tile's warps meet. */
template <int D>
__device__ __forceinline__ void outputs(walk_shared<D> &s, const arguments &a, int64_t row0, int left, int finite,
                                        int tile, int group, int lane)
{
    using F = shape<D>;
    constexpr int OWN = C / 8 / F::GROUPS; /* tiles of eight columns of P */
    const int g = lane / 4, t = lane % 4, row = 16 * tile + g;
    const uint32_t *Q = s.Q + row * F::PITCH + 2 * t, *S = s.S + 2 * t * F::S_PITCH + 32 * group + g,
                   *K = s.in.K + (8 * OWN * group + g) * F::PITCH + 2 * t;
    const bool ratio = group == F::GROUPS - 1;
    const uint32_t *sums = s.n[min(g, 2)] + 2 * t;
    float o[4][4] = {}, den[4] = {}, part[OWN][4] = {};
#pragma unroll 2
    for (int k = 0; k < D / 8; k++, Q += 8, K += 8, S += 8 * F::S_PITCH) {
        const uint2 x = *(const uint2 *)Q, y = *(const uint2 *)(Q + 8 * F::PITCH);
        const uint32_t q[4] = {x.x, y.x, x.y, y.y};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t right[2] = {S[8 * n], S[F::S_PITCH + 8 * n]};
            tf32::product(o[n], q, right);
        }
#pragma unroll
        for (int j = 0; j < OWN; j++)
            if (OWN * group + j < 2 * tile + 2) {
                const uint2 key = *(const uint2 *)(K + 8 * j * F::PITCH);
                const uint32_t right[2] = {key.x, key.y};
                tf32::product(part[j], q, right);
            }
        if (ratio) {
            const uint2 part_of_n = *(const uint2 *)(sums + 8 * k);
            const uint32_t right[2] = {part_of_n.x, part_of_n.y};
            tf32::product(den, q, right);
        }
    }
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        const int first = OWN * group + j, column = 8 * first + 2 * t;
        if (first >= 2 * tile + 2) continue;
        float *to = s.P + row * F::P_PITCH + column;
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[j][i] = column + i % 2 > row + i / 2 * 8 ? 0.0f : __uint_as_float(tf32::rounded(part[j][i]));
        *(float2 *)to = make_float2(part[j][0], part[j][1]);
        *(float2 *)(to + 8 * F::P_PITCH) = make_float2(part[j][2], part[j][3]);
    }
    if (ratio && t == 0) s.before[row] = den[0] + den[1], s.before[row + 8] = den[2] + den[3];
    meet<32 * F::GROUPS>(1 + tile);
    const uint32_t *V = s.in.V + t * F::PITCH + 32 * group + g;
    const float *P = s.P + row * F::P_PITCH + t;
    float sum[2] = {};
#pragma unroll
    for (int j = 0; j < C / 8; j++)
        if (j < 2 * tile + 2) {
            const float x[4] = {P[8 * j], P[8 * F::P_PITCH + 8 * j], P[8 * j + 4], P[8 * F::P_PITCH + 8 * j + 4]};
            const uint32_t left_P[4] = {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                                        __float_as_uint(x[3])};
            sum[0] += x[0] + x[2], sum[1] += x[1] + x[3];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const uint32_t right[2] = {V[8 * j * F::PITCH + 8 * n], V[(8 * j + 4) * F::PITCH + 8 * n]};
                tf32::product(o[n], left_P, right);
            }
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = 16 * tile + g + 8 * h, c = 32 * group + 2 * t;
        const float total = group_sum(sum[h], 4) + s.before[r], floor = (float)VLA_RATIO_EPS,
                    by = r >= finite ? NAN : reciprocal(total < floor ? floor : total);
        float *to = a.o + (row0 + r) * a.dv + c;
        if (r >= left) continue;
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (a.dv % 2 == 0) {
                if (c + 8 * n < a.dv) *(float2 *)(to + 8 * n) = make_float2(o[n][2 * h] * by, o[n][2 * h + 1] * by);
            } else {
                if (c + 8 * n < a.dv) to[8 * n] = o[n][2 * h] * by;
                if (c + 8 * n + 1 < a.dv) to[8 * n + 1] = o[n][2 * h + 1] * by;
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
    if (threadIdx.x < D) s.n[2][threadIdx.x] = 0;
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
#pragma unroll 1
    for (int64_t step = 0; step < steps; step++, token += C) {
        const int which = (int)(step % 2), left = tokens_left(a, token);
        E keys, values, queries;
        keys.load(a.k, head * a.T + token, left, a.dk);
        values.load(a.v, head * a.T + token, left, a.dv);
        queries.load(a.q, head * a.T + token, left, a.dk);
        if (threadIdx.x == 0 && step + 1 < steps) {
            const int64_t next = head * a.T + token + C;
            fetch_step(a.k, next, tokens_left(a, token + C), a.dk);
            fetch_step(a.v, next, tokens_left(a, token + C), a.dv);
            fetch_step(a.q, next, tokens_left(a, token + C), a.dk);
        }
        __syncthreads(); /* all have left rows and S, and sums of rows are there */
        add_rows(s.in);
        if (threadIdx.x < D) {
            const float n = s.in.n[threadIdx.x];
            const uint32_t high = tf32::rounded(n);
            s.n[0][threadIdx.x] = high, s.n[1][threadIdx.x] = tf32::rounded(n - __uint_as_float(high));
        }
        S.publish(s.S);
        put_tokens(s.in, keys, values, a, left, which);
#pragma unroll
        for (int i = 0; i < F::PASSES; i++) {
            float x[8], y[8];
            queries.mapped(x, y, i, a);
            if (a.qk_l2) {
                convert8(x, queries.raw[i], VLA_F32);
                unit8<true>(x, y, E::column(), a.dk, a.features, F::LANES);
#pragma unroll
                for (int j = 0; j < 8; j++) y[j] = x[j];
            }
            E::put(s.Q, i, y);
        }
        __syncthreads();
        if (s.in.bad[which] < C && token + s.in.bad[which] < bad) bad = token + s.in.bad[which];
        if (threadIdx.x == 0) s.in.bad[1 - which] = C;
        outputs(s, a, head * a.T + token, left, (int)(bad - token < C ? bad - token : C), (warp + warp / 4) % 4,
                warp / 4, lane); /* the tiles of a scheduler's warps differ */
        sum_rows(s.in);
        S.step(s.in);
    }
    if (segment + 1 < a.segments) return;
    const bool lost = bad < a.T; /* the end state too */
    if (a.S_out) {
        float *to = a.S_out + head * a.dv * a.dk;
        S.each(a, [&](float x, int64_t at) { to[at] = lost ? NAN : x; });
    }
    __syncthreads();
    add_rows(s.in);
    if (a.n_out && (int)threadIdx.x < a.dk) a.n_out[head * a.dk + threadIdx.x] = lost ? NAN : s.in.n[threadIdx.x];
}
} /* namespace linear_tf32 */

#endif
