/* features, sums and starts of the float32 chunk and scan forms (scan.cuh). */
#ifndef VLA_CUDA_SCAN_PREPARE_CUH
#define VLA_CUDA_SCAN_PREPARE_CUH
#include "kernels/cuda/scan.cuh"

namespace scanned
{
constexpr int FEATURE_THREADS = 128;

/* Eight elements a lane; all of a row is zero when any of it is not finite, which is noted. */
__device__ __forceinline__ bool finite_row(const float (&x)[8], int lanes)
{
    float wrong = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (!(fabsf(x[i]) < INFINITY)) wrong = 1;
    return !(group_max(wrong, lanes) > 0);
}

__device__ __forceinline__ void put_row(float *to, const float (&x)[8], bool keep)
{
    const float4 zero = make_float4(0, 0, 0, 0);
    ((float4 *)to)[0] = keep ? make_float4(x[0], x[1], x[2], x[3]) : zero;
    ((float4 *)to)[1] = keep ? make_float4(x[4], x[5], x[6], x[7]) : zero;
}

/* DK/8 lanes a token, tokens past the sequence as zero rows. */
template <vla_op OP, int DK>
__global__ void __launch_bounds__(FEATURE_THREADS) features(const __grid_constant__ arguments a)
{
    constexpr int L = DK / 8;
    const int64_t at = ((int64_t)blockIdx.x * FEATURE_THREADS + threadIdx.x) / L, room = a.blocks * C;
    const int column = 8 * ((int)threadIdx.x % L);
    const int64_t head = at / room < a.heads ? at / room : a.heads - 1, row = at % room, t = a.first_token + row;
    const bool real = at / room < a.heads, in = real && t < a.T; /* whole warps stay for the sums over lanes */
    const int64_t from = head * a.T + t, to = (head * a.stride * C + row) * DK + column;
    raw8<2> raw_k, raw_q, raw_u;
    load8(raw_k, a.k, VLA_F32, from, column, a.dk, in);
    load8(raw_q, a.q, VLA_F32, from, column, a.dk, in);
    if (OP == VLA_VLA) load8(raw_u, a.u, VLA_F32, from, column, a.dk, in);
    bool good = true;
    for (int c = column; c < a.dv; c += 8 * L) {
        raw8<2> raw_v;
        float x[8];
        load8(raw_v, a.v, VLA_F32, from, c, a.dv, in);
        convert8(x, raw_v, VLA_F32);
#pragma unroll
        for (int i = 0; i < 8; i++) good = good && fabsf(x[i]) < INFINITY;
    }
    float x[8], y[8];
    convert8(x, raw_k, VLA_F32);
    const float norm = unit8<true>(x, y, column, a.dk, a.features, L);
    const bool keep = finite_row(y, L);
    good = good && keep;
    if (OP == VLA_LINEAR) {
        if (real) put_row(a.X + to, y, in && keep);
    } else if (real) {
        put_row(a.K + to, x, in && keep);
    }
    if (OP == VLA_DELTA) {
        float beta = a.b && in ? sigmoid(((const float *)a.b)[from]) : 1.0f;
        if (!(beta >= 0)) good = false, beta = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = beta * x[i];
        if (real) put_row(a.X + to, y, in && keep);
    }
    if (real && column == 0) a.norm[head * a.stride * C + row] = in && keep ? norm : 0.0f;
    convert8(x, raw_q, VLA_F32);
    unit8<true>(x, y, column, a.dk, a.features, L); /* a NaN stays: it touches its own row only */
    if (real) {
        if (a.qk_l2)
            put_row(a.Q + to, x, in);
        else
            put_row(a.Q + to, y, in);
    }
    if constexpr (OP == VLA_VLA) {
        convert8(x, raw_u, VLA_F32);
        unit8<true>(x, y, column, a.dk, VLA_IDENTITY, L);
        const bool direction = finite_row(x, L);
        good = good && direction;
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= a.root;
        if (real) put_row(a.U + to, x, in && direction);
    }
    if (in && !good) atomicMin(&a.bad[head], (unsigned long long)t);
}

/* The start of a run: S and n as given or 0, bad = none, A and M of no tokens. */
template <int DK>
__global__ void begin(const __grid_constant__ arguments a, const float *n_in, bool zero_S, bool zero_A)
{
    const int64_t head = blockIdx.x;
    if (threadIdx.x == 0) a.bad[head] = ~0ull;
    for (int c = (int)threadIdx.x; c < DK; c += blockDim.x)
        a.n[head * DK + c] = n_in && c < a.dk ? n_in[head * a.dk + c] : 0.0f;
    if (zero_S)
        for (int i = (int)threadIdx.x; i < a.dv * a.dk; i += blockDim.x) a.S[head * a.dv * a.dk + i] = 0;
    if (zero_A)
        for (int i = (int)threadIdx.x; i < DK * DK; i += blockDim.x) {
            a.A[head * (a.segments + 1) * DK * DK + i] = i / DK == i % DK ? a.initial : 0.0f;
            a.M[head * DK * DK + i] = i / DK == i % DK ? 1.0 / (double)a.initial : 0.0;
        }
}

constexpr int INVERT_THREADS = 512;

/* m [DK][DK + 1] -> its inverse, symmetric positive definite: Gauss-Jordan in place without pivoting, by a block. */
template <int DK> __device__ __forceinline__ void invert(double *m, double *row, double *column)
{
    constexpr int PITCH = DK + 1;
    for (int j = 0; j < DK; j++) {
        __syncthreads();
        const double pivot = 1.0 / m[j * PITCH + j];
        if (threadIdx.x < DK) {
            column[threadIdx.x] = m[threadIdx.x * PITCH + j];
            row[threadIdx.x] = threadIdx.x == j ? pivot : m[j * PITCH + threadIdx.x] * pivot;
        }
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < DK * DK / INVERT_THREADS; i++) {
            const int e = i * INVERT_THREADS + (int)threadIdx.x, r = e / DK, c = e % DK;
            double &x = m[r * PITCH + c];
            x = r == j ? row[c] : fma(-column[r], row[c], c == j ? 0.0 : x);
        }
    }
    __syncthreads();
}

template <int DK> constexpr size_t invert_bytes()
{
    return (size_t)DK * (DK + 1) * sizeof(double);
}

/* A given state's A, for the first segment, and with_M its inverse M. */
template <int DK>
__global__ void __launch_bounds__(INVERT_THREADS)
    resume(const __grid_constant__ arguments a, const float *A_in, bool with_M)
{
    extern __shared__ double m[];
    __shared__ double row[DK], column[DK];
    const int64_t head = blockIdx.x;
    for (int i = (int)threadIdx.x; i < DK * DK; i += INVERT_THREADS) {
        const int r = i / DK, c = i % DK;
        const bool in = r < a.dk && c < a.dk;
        const float x = in ? A_in[(head * a.dk + r) * a.dk + c] : r == c ? a.initial : 0.0f;
        a.A[head * (a.segments + 1) * DK * DK + i] = x;
        if (with_M) m[r * (DK + 1) + c] = in ? 0.5 * ((double)x + (double)A_in[(head * a.dk + c) * a.dk + r]) : x;
    }
    if (!with_M) return;
    invert<DK>(m, row, column);
    for (int i = (int)threadIdx.x; i < DK * DK; i += INVERT_THREADS)
        a.M[head * DK * DK + i] = m[i / DK * (DK + 1) + i % DK];
}

/* Sums of u^T u and of kf over a segment. A warp has sixteen rows of u^T u. */
template <vla_op OP, int DK> __global__ void __launch_bounds__(2 * DK) sums(const __grid_constant__ arguments a)
{
    using namespace tf32;
    constexpr int PITCH = DK + 4, THREADS = 2 * DK;
    __shared__ __align__(16) float U[2][C * PITCH], K[2][C * PITCH];
    __shared__ float weight[2][C];
    const int64_t head = blockIdx.x / a.segments, segment = blockIdx.x % a.segments;
    const int64_t block0 = head * a.stride + segment * a.per_segment, count = segment_blocks(a, segment);
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const float *keys = OP == VLA_LINEAR ? a.X : a.K;
    const auto fetch = [&](int64_t i) {
        if (i < count) {
            if (OP == VLA_VLA) fetch_rows<DK, PITCH, THREADS>(U[i & 1], a.U + (block0 + i) * C * DK, thread);
            fetch_rows<DK, PITCH, THREADS>(K[i & 1], keys + (block0 + i) * C * DK, thread);
            if (thread < C) weight[i & 1][thread] = OP == VLA_LINEAR ? 1.0f : a.norm[(block0 + i) * C + thread];
        }
        fetch_commit();
    };
    float M[DK / 8][4] = {}, n = 0;
    fetch(0);
    for (int64_t i = 0; i < count; i++) {
        fetch(i + 1);
        fetch_wait<1>();
        __syncthreads();
        const float *u = U[i & 1];
        if constexpr (OP == VLA_VLA) {
            left_t<3> l[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float *at = u + (8 * j + 2 * t) * PITCH + 16 * warp + g;
                l[j].set(0, at[0]), l[j].set(1, at[8]), l[j].set(2, at[PITCH]), l[j].set(3, at[PITCH + 8]);
            }
#pragma unroll
            for (int m = 0; m < DK / 8; m++) {
                float change[4] = {};
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float *at = u + (8 * j + 2 * t) * PITCH + 8 * m + g;
                    mma<3>(change, l[j], right<3>(at[0], at[PITCH]));
                }
#pragma unroll
                for (int e = 0; e < 4; e++) M[m][e] += change[e];
            }
        }
        if (thread < DK)
#pragma unroll
            for (int r = 0; r < C; r++) n = fmaf(weight[i & 1][r], K[i & 1][r * PITCH + thread], n);
        __syncthreads();
    }
    const int64_t at = head * a.segments + segment;
    if (OP == VLA_VLA)
#pragma unroll
        for (int m = 0; m < DK / 8; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a.M_sum[at * DK * DK + (16 * warp + g + 8 * (e / 2)) * DK + 8 * m + 2 * t + e % 2] = M[m][e];
    if (thread < DK) a.n_sum[at * DK + thread] = n;
}

/* A and n at a segment's start, and of one more after the last: the end. Segment 0 of the first stretch has its A. */
template <vla_op OP, int DK>
__global__ void __launch_bounds__(INVERT_THREADS) starts(const __grid_constant__ arguments a)
{
    extern __shared__ double m[];
    __shared__ double row[OP == VLA_VLA ? DK : 1], column[OP == VLA_VLA ? DK : 1];
    const int64_t head = blockIdx.x / (a.segments + 1), segment = blockIdx.x % (a.segments + 1);
    for (int c = (int)threadIdx.x; c < DK; c += INVERT_THREADS) {
        float n = a.n[head * DK + c];
        for (int64_t s = 0; s < segment; s++) n += a.n_sum[(head * a.segments + s) * DK + c];
        a.n_start[(head * (a.segments + 1) + segment) * DK + c] = n;
    }
    if constexpr (OP == VLA_VLA) {
        if (segment == 0 && a.first_token == 0) return;
        for (int i = (int)threadIdx.x; i < DK * DK; i += INVERT_THREADS) {
            const int r = i / DK, c = i % DK, e = r < c ? c * DK + r : i; /* the lower part for both */
            double sum = a.M[head * DK * DK + i];
            for (int64_t s = 0; s < segment; s++) sum += (double)a.M_sum[(head * a.segments + s) * DK * DK + e];
            m[r * (DK + 1) + c] = sum;
        }
        invert<DK>(m, row, column);
        float *A = a.A + (head * (a.segments + 1) + segment) * DK * DK;
        for (int i = (int)threadIdx.x; i < DK * DK; i += INVERT_THREADS) A[i] = (float)m[i / DK * (DK + 1) + i % DK];
    }
}

/* Sums taken into what the next stretch starts from. */
template <vla_op OP, int DK> __global__ void carry(const __grid_constant__ arguments a, bool with_M)
{
    const int64_t head = blockIdx.x;
    for (int i = (int)threadIdx.x; OP == VLA_VLA && with_M && i < DK * DK; i += blockDim.x) {
        const int r = i / DK, c = i % DK, e = r < c ? c * DK + r : i;
        double sum = a.M[head * DK * DK + i];
        for (int64_t s = 0; s < a.segments; s++) sum += (double)a.M_sum[(head * a.segments + s) * DK * DK + e];
        a.M[head * DK * DK + i] = sum;
    }
    for (int c = (int)threadIdx.x; c < DK; c += blockDim.x)
        a.n[head * DK + c] = a.n_start[(head * (a.segments + 1) + a.segments) * DK + c];
}
} /* namespace scanned */

#endif
