/* The decode step: a few tokens of each of many sequences, where the time is that of reading and writing the states.
 *
 * A block takes one head after another, with A and S in registers over the tokens and those of its next head on their
 * way into shared memory. What a token needs of them is two products each, z = A uh, y = A kh, S kh, S qf, as
 *   A' = A - z z^T/(1 + uh.z) ; x = A' kh = y - z (z.kh)/(1 + uh.z) ; S' = S + r a^T ; S' qf = S qf + r (a.qf).
 * A row is shared by DK/4 lanes. Shapes, dtypes and operators are those of recurrent.cuh; dk and dv up to 128. */
#ifndef VLA_CUDA_DECODE_CUH
#define VLA_CUDA_DECODE_CUH
#include "kernels/cuda/recurrent_roles.cuh"

namespace recurrent
{
constexpr int64_t DECODE_TOKENS = 4; /* longer runs go by tiles */

template <int DK, int DV> struct decode_shape {
    static constexpr int threads = DK == 64 ? 256 : 512, warps = threads / 32;
    static constexpr int lanes = DK / 4, at_once = warps * 32 / lanes; /* of a row; rows of one pass */
    static constexpr int A_rows = DK / at_once, S_rows = DV / at_once; /* that a lane has a part of */
};

/* What is made of a token's rows. */
template <int DK, int DV> struct __align__(16) decode_token
{
    float kh[DK], kf[DK], qf[DK], uh[DK], v[DV], gate[DV];
    float beta;
};
template <int DK, int DV> struct decode_shared {
    float z[DK], y[DK];
    decode_token<DK, DV> token[2]; /* this one and the next */
    float n[DK];                   /* of the head at hand, of warp 6 alone */
    float inverse;
};

/* A matrix of a head on its way through shared memory, while the head before it is worked on: a lane copies what it
 * will keep, so that nothing has to be waited for but its own copies. Rows not of whole 16 bytes, and a state that is
 * not given, are made when they are taken. WHOLE: rows x width, all there. */
template <bool WHOLE, int ROWS, int AT_ONCE, int THREADS, int WIDTH>
__device__ __forceinline__ void send_matrix(float4 (&place)[ROWS * THREADS], const float *from, int row, int column,
                                            int rows, int width)
{
    if (WHOLE) width = WIDTH;
    if (!WHOLE && (!from || width % 4 != 0 || column >= width)) return;
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(&place[threadIdx.x]);
    from += (int64_t)row * width + column;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (WHOLE || row + i * AT_ONCE < rows)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * i * THREADS),
                         "l"(from + (int64_t)(i * AT_ONCE) * width)
                         : "memory");
}

template <bool WHOLE, int ROWS, int AT_ONCE, int THREADS>
__device__ __forceinline__ void take_matrix(float4 (&to)[ROWS], const float4 (&place)[ROWS * THREADS],
                                            const float *from, int row, int column, int rows, int width, float diagonal)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int r = row + i * AT_ONCE;
        if (WHOLE || (from && width % 4 == 0 && r < rows && column < width)) {
            to[i] = place[i * THREADS + (int)threadIdx.x];
        } else {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = from && r < rows && column + j < width ? from[(int64_t)r * width + column + j]
                       : r == column + j                      ? diagonal
                                                              : 0.0f;
            to[i] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }
}

template <bool WHOLE, int ROWS, int AT_ONCE, int WIDTH>
__device__ __forceinline__ void store_matrix(float *to, const float4 (&from)[ROWS], int row, int column, int rows,
                                             int width)
{
    if (WHOLE) width = WIDTH;
    to += (int64_t)row * width + column;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float *const at = to + (int64_t)(i * AT_ONCE) * width;
        if (WHOLE) {
            *(float4 *)at = from[i];
            continue;
        }
        if (row + i * AT_ONCE >= rows || column >= width) continue;
        if (width % 4 == 0) {
            *(float4 *)at = from[i];
        } else {
            const float x[4] = {from[i].x, from[i].y, from[i].z, from[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (column + j < width) at[j] = x[j];
        }
    }
}

__device__ __forceinline__ float dot4(float4 x, float4 y)
{
    return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, x.w * y.w)));
}

/* x += s y */
__device__ __forceinline__ void add4(float4 &x, float s, float4 y)
{
    x.x = fmaf(s, y.x, x.x), x.y = fmaf(s, y.y, x.y), x.z = fmaf(s, y.z, x.z), x.w = fmaf(s, y.w, x.w);
}

/* x -> unit(x) where squares leave float's range; four elements a lane, NaN in one makes the row NaN. */
static __device__ __noinline__ float4 unit4_scaled(float4 in, int lanes)
{
    float x[4] = {in.x, in.y, in.z, in.w};
    float largest = 0, squares = 0, wrong = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (!(fabsf(x[j]) < INFINITY)) wrong = 1;
        if (fabsf(x[j]) > largest) largest = fabsf(x[j]);
    }
    largest = group_max(largest, lanes), wrong = group_max(wrong, lanes);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        x[j] = largest > 0 ? x[j] / largest : 0.0f;
        squares = fmaf(x[j], x[j], squares);
    }
    squares = group_sum(squares, lanes);
    const float scale = largest > 0 ? rsqrtf(squares) : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = wrong > 0 ? NAN : x[j] * scale;
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* Raw rows of one token, asked for one token ahead, and what is made of them, a warp each: 0 the key, 1 the query, 2
 * the direction, 3 the values, 4 the gate, 5 beta. */
template <vla_op OP, int DK, int DV> struct decode_row {
    static constexpr int E = (DK > DV ? DK : DV) / 32;
    uint32_t bits[E]; /* as they are in memory: converting at once would wait for the load */

    __device__ __forceinline__ void load(const arguments &a, int64_t token, int warp, int lane)
    {
        const void *from = warp == 0   ? a.k
                           : warp == 1 ? a.q
                           : warp == 2 ? a.u
                           : warp == 3 ? a.v
                           : warp == 4 ? a.g
                                       : a.b;
        const bool row_gate = OP == VLA_DECAY && a.gate == VLA_GATE_ROW;
        const int width = warp < 3 ? a.dk : warp == 3 || (warp == 4 && row_gate) ? a.dv : 1;
        if (warp > 5 || !from || (warp == 2 && OP != VLA_VLA) ||
            (warp == 4 && (OP != VLA_DECAY || a.gate == VLA_GATE_NONE)) || (warp == 5 && OP != VLA_DELTA))
            return;
        const int64_t at = token * width + lane;
        if (a.dtype == VLA_F32) {
#pragma unroll
            for (int e = 0; e < E; e++) bits[e] = lane + 32 * e < width ? ((const uint32_t *)from)[at + 32 * e] : 0;
        } else {
#pragma unroll
            for (int e = 0; e < E; e++) bits[e] = lane + 32 * e < width ? ((const uint16_t *)from)[at + 32 * e] : 0;
        }
    }

    __device__ __forceinline__ float value(const arguments &a, int e) const
    {
        if (a.dtype == VLA_F32) return __uint_as_float(bits[e]);
        if (a.dtype == VLA_BF16) return __uint_as_float(bits[e] << 16);
        return __half2float(__ushort_as_half((unsigned short)bits[e]));
    }

    __device__ __forceinline__ void make(const arguments &a, decode_token<DK, DV> &s, int warp, int lane) const
    {
        if (warp < (OP == VLA_VLA ? 3 : 2)) {
            float raw[DK / 32], y[DK / 32], unit[DK / 32];
#pragma unroll
            for (int e = 0; e < DK / 32; e++) raw[e] = value(a, e);
            feature_row<DK / 32>(raw, y, unit, lane, a.dk, warp == 2 ? VLA_IDENTITY : a.features);
#pragma unroll
            for (int e = 0; e < DK / 32; e++) {
                const int c = lane + 32 * e;
                if (warp == 0)
                    s.kf[c] = y[e], s.kh[c] = OP != VLA_VLA || a.normalise ? unit[e] : y[e];
                else if (warp == 1)
                    s.qf[c] = a.qk_l2 ? unit[e] : y[e];
                else
                    s.uh[c] = unit[e] * a.root;
            }
        } else if (warp == 3) {
#pragma unroll
            for (int e = 0; e < DV / 32; e++) s.v[lane + 32 * e] = value(a, e);
        } else if (warp == 4 && OP == VLA_DECAY) {
            const float all = __shfl_sync(FULL_WARP, value(a, 0), 0);
#pragma unroll
            for (int e = 0; e < DV / 32; e++)
                s.gate[lane + 32 * e] =
                    a.gate == VLA_GATE_NONE ? 1.0f : sigmoid(a.gate == VLA_GATE_ROW ? value(a, e) : all);
        } else if (warp == 5 && OP == VLA_DELTA && lane == 0) {
            s.beta = a.b ? sigmoid(value(a, 0)) : 1.0f;
        }
    }
};

template <vla_op OP, int DK, int DV> struct decode_places {
    using form = decode_shape<DK, DV>;
    float4 S[form::S_rows * form::threads], A[has_A<OP> ? form::A_rows * form::threads : 1];
};

/* WHOLE: one token, dk and dv are DK and DV, and the state is given. */
template <vla_op OP, int DK, int DV, bool WHOLE>
__global__ void __launch_bounds__(decode_shape<DK, DV>::threads)
    decode(const __grid_constant__ arguments a, int64_t heads)
{
    using form = decode_shape<DK, DV>;
    constexpr int L = form::lanes, AT_ONCE = form::at_once, THREADS = form::threads;
    constexpr int AR = form::A_rows, SR = form::S_rows;
    constexpr bool KEYS = OP == VLA_VLA;
    extern __shared__ __align__(16) unsigned char raw[];
    decode_places<OP, DK, DV> &places = *(decode_places<OP, DK, DV> *)raw;
    __shared__ __align__(16) decode_shared<DK, DV> s;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, part = lane % L;
    const int row = warp * (32 / L) + lane / L, column = 4 * part;
    const int dk = WHOLE ? DK : a.dk, dv = WHOLE ? DV : a.dv;
    const int64_t square = (int64_t)dk * dk, values = (int64_t)dv * dk;
    const auto at = [](const float *base, int64_t offset) { return WHOLE || base ? base + offset : base; };
    const auto send = [&](int64_t head) {
        if constexpr (has_A<OP>)
            send_matrix<WHOLE, AR, AT_ONCE, THREADS, DK>(places.A, at(a.A_in, head * square), row, column, dk, dk);
        send_matrix<WHOLE, SR, AT_ONCE, THREADS, DK>(places.S, at(a.S_in, head * values), row, column, dv, dk);
    };
    decode_row<OP, DK, DV> input;
    input.load(a, blockIdx.x * a.T, warp, lane);
    send(blockIdx.x);
    const auto load_n = [&](int64_t head) { /* in the place of a raw row, which this warp has none of */
                                            if (has_n<OP> && warp == 6)
#pragma unroll
                                                for (int e = 0; e < DK / 32; e++)
                                                    input.bits[e] =
                                                        a.n_in && lane + 32 * e < dk
                                                            ? __float_as_uint(a.n_in[head * dk + lane + 32 * e])
                                                            : 0;
    };
    const auto take_n = [&] {
        if (has_n<OP> && warp == 6)
#pragma unroll
            for (int e = 0; e < DK / 32; e++) s.n[lane + 32 * e] = __uint_as_float(input.bits[e]);
    };
    load_n(blockIdx.x);
    int64_t ahead_head = blockIdx.x, ahead_token = 0; /* of the row last asked for */
    const auto load_next = [&] {
        if (++ahead_token == (WHOLE ? 1 : a.T)) ahead_token = 0, ahead_head += gridDim.x;
        if (ahead_head < heads) input.load(a, ahead_head * a.T + ahead_token, warp, lane);
    };
    input.make(a, s.token[0], warp, lane);
    load_next();
    int turn = 0;
    for (int64_t head = blockIdx.x; head < heads; head += gridDim.x) {
        float4 A[has_A<OP> ? AR : 1], S[SR];
        asm volatile("cp.async.wait_all;" ::: "memory");
        if constexpr (has_A<OP>)
            take_matrix<WHOLE, AR, AT_ONCE, THREADS>(A, places.A, at(a.A_in, head * square), row, column, dk, dk,
                                                     a.initial);
        take_matrix<WHOLE, SR, AT_ONCE, THREADS>(S, places.S, at(a.S_in, head * values), row, column, dv, dk, 0.0f);
        take_n();
        if (head + gridDim.x < heads) send(head + gridDim.x), load_n(head + gridDim.x);
        const int64_t length = WHOLE ? 1 : a.T;
        int64_t step = a.first;
        for (int64_t t = 0; t < length; t++, turn ^= 1) {
            const int64_t token = head * length + t;
            const decode_token<DK, DV> &in = s.token[turn];
            __syncthreads();
            if (has_n<OP> && warp == 6) {
                float dot = 0;
#pragma unroll
                for (int e = 0; e < DK / 32; e++) {
                    const int c = lane + 32 * e;
                    const float n = s.n[c] + in.kf[c];
                    s.n[c] = n, dot = fmaf(n, in.qf[c], dot);
                }
                dot = warp_sum(dot);
                const float floor = (float)VLA_RATIO_EPS;
                if (lane == 0) s.inverse = a.plain ? 1.0f : 1.0f / (dot < floor ? floor : dot);
            }
            const float4 kh = ((const float4 *)in.kh)[part], qf = ((const float4 *)in.qf)[part];
            const float4 uh = ((const float4 *)(KEYS ? in.uh : in.kh))[part];
            float4 w = OP == VLA_LINEAR ? ((const float4 *)in.kf)[part] : kh; /* what is written along */
            if constexpr (has_A<OP>) {
                constexpr int N = (KEYS ? 2 : 1) * AR, APART = L / N; /* lanes to a sum */
                float sums[N];
#pragma unroll
                for (int i = 0; i < AR; i++) {
                    sums[i] = dot4(A[i], uh);
                    if (KEYS) sums[AR + i] = dot4(A[i], kh);
                }
                const int base = deal_sums<N, L>(sums, part);
                if (part % APART == 0) (base < AR ? s.z : s.y)[row + base % AR * AT_ONCE] = sums[0];
            }
            float sums[2 * SR];
#pragma unroll
            for (int i = 0; i < SR; i++) sums[i] = dot4(S[i], kh), sums[SR + i] = dot4(S[i], qf);
            deal_sums<2 * SR, L>(sums, part); /* sum i is with lane i L/(2 SR) of the row's lanes */
            if (has_A<OP> || has_n<OP>) __syncthreads();
            float wq;
            if constexpr (has_A<OP>) {
                const float4 z = ((const float4 *)s.z)[part];
                const float uz = group_sum(dot4(uh, z), L), zk = KEYS ? group_sum(dot4(z, kh), L) : 0.0f;
                const float gain = 1.0f / (1.0f + uz);
                const bool refresh = KEYS && a.refresh_period > 0 && (step + 1) % a.refresh_period == 0;
                const float add = refresh ? a.refresh_eps : 0.0f;
                if constexpr (KEYS) {
                    w = ((const float4 *)s.y)[part];
                    add4(w, -gain * zk, z);
                    if (refresh) add4(w, add, kh);
                    const float squares = group_sum(dot4(w, w), L);
                    wq = group_sum(dot4(w, qf), L);
                    if (a.normalise) {
                        if (__all_sync(FULL_WARP, squares >= SQUARES_LOW && squares <= SQUARES_HIGH)) {
                            const float scale = rsqrtf(squares);
                            w = make_float4(w.x * scale, w.y * scale, w.z * scale, w.w * scale), wq *= scale;
                        } else {
                            w = unit4_scaled(w, L);
                            wq = group_sum(dot4(w, qf), L);
                        }
                    }
                    if (a.alpha && row == 0) {
                        const float x[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            if (column + j < dk) store_element(a.alpha, a.dtype, token * dk + column + j, x[j]);
                    }
                } else {
                    w = make_float4(z.x * gain, z.y * gain, z.z * gain, z.w * gain);
                    wq = group_sum(dot4(w, qf), L);
                }
#pragma unroll
                for (int i = 0; i < AR; i++) {
                    const int r = row + i * AT_ONCE;
                    add4(A[i], -gain * s.z[r], z);
                    if (refresh) {
                        A[i].x += r == column ? add : 0.0f, A[i].y += r == column + 1 ? add : 0.0f;
                        A[i].z += r == column + 2 ? add : 0.0f, A[i].w += r == column + 3 ? add : 0.0f;
                    }
                }
            } else {
                wq = group_sum(dot4(w, qf), L);
            }
            /* lane EACH i of a row's lanes has the residual and the output of row i */
            constexpr int EACH = L / (2 * SR);
            const int mine = row + part / EACH % SR * AT_ONCE;
            const float sq = __shfl_xor_sync(FULL_WARP, sums[0], L / 2), value = in.v[mine];
            const float beta = OP == VLA_DELTA ? in.beta : 1.0f, gate = OP == VLA_DECAY ? in.gate[mine] : 1.0f;
            const float residual = OP == VLA_LINEAR ? value : beta * (value - sums[0]);
            float y = fmaf(residual, wq, gate * sq);
            if (has_n<OP>) y *= s.inverse;
            if (part % EACH == 0 && part < L / 2 && (WHOLE || mine < dv))
                store_element(a.o, a.dtype, token * dv + mine, y);
#pragma unroll
            for (int i = 0; i < SR; i++) {
                const float r = __shfl_sync(FULL_WARP, residual, lane / L * L + i * EACH);
                if (OP == VLA_DECAY) {
                    const float by = in.gate[row + i * AT_ONCE];
                    S[i].x *= by, S[i].y *= by, S[i].z *= by, S[i].w *= by;
                }
                add4(S[i], r, w);
            }
            step++;
            if (t + 1 == length) {
                if constexpr (has_A<OP>)
                    if (WHOLE || a.A_out)
                        store_matrix<WHOLE, AR, AT_ONCE, DK>(a.A_out + head * square, A, row, column, dk, dk);
                if (WHOLE || a.S_out)
                    store_matrix<WHOLE, SR, AT_ONCE, DK>(a.S_out + head * values, S, row, column, dv, dk);
                if (has_n<OP> && a.n_out && warp == 6)
#pragma unroll
                    for (int e = 0; e < DK / 32; e++)
                        if (lane + 32 * e < dk) a.n_out[head * dk + lane + 32 * e] = s.n[lane + 32 * e];
            }
            input.make(a, s.token[turn ^ 1], warp, lane);
            load_next();
        }
    }
}

template <vla_op OP, int DK, int DV, bool WHOLE>
vla_status launch_decode(const arguments &a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    const auto kernel = decode<OP, DK, DV, WHOLE>;
    constexpr int threads = decode_shape<DK, DV>::threads, bytes = (int)sizeof(decode_places<OP, DK, DV>);
    VLA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    int each = 0;
    VLA_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, (size_t)bytes));
    const int64_t blocks = (int64_t)vla_cuda_sm_count() * (each > 0 ? each : 1); /* that run at once */
    kernel<<<(unsigned)(heads < blocks ? heads : blocks), threads, bytes, stream>>>(a, heads);
    VLA_CUDA(cudaGetLastError());
    return VLA_OK;
}

inline bool decodes(const vla_problem *p)
{
    return p->T > 0 && p->T <= DECODE_TOKENS && p->dk <= 128 && p->dv <= 128 && p->B * p->H <= 2147483647;
}

template <vla_op OP, int DK, int DV>
vla_status choose_decode(const arguments &a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    if constexpr (DK == DV)
        if (a.dk == DK && a.dv == DV && a.T == 1 && a.S_in && a.S_out && (!has_A<OP> || (a.A_in && a.A_out)))
            return launch_decode<OP, DK, DV, true>(a, heads, stream, error);
    return launch_decode<OP, DK, DV, false>(a, heads, stream, error);
}

template <vla_op OP> vla_status run_decode(const arguments &a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    if (a.dk <= 64 && a.dv <= 64) return choose_decode<OP, 64, 64>(a, heads, stream, error);
    if (a.dk <= 64) return choose_decode<OP, 64, 128>(a, heads, stream, error);
    if (a.dv <= 64) return choose_decode<OP, 128, 64>(a, heads, stream, error);
    return choose_decode<OP, 128, 128>(a, heads, stream, error);
}
} /* namespace recurrent */

#endif
