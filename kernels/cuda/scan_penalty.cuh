/* penalty and pairs of the float32 chunk and scan forms (scan.cuh). */
#ifndef VLA_CUDA_SCAN_PENALTY_CUH
#define VLA_CUDA_SCAN_PENALTY_CUH
#include "kernels/cuda/scan.cuh"

namespace scanned
{
template <int DK> struct penalty_shared {
    static constexpr int PITCH = DK + 8;
    float U[2][C * PITCH], K[2][C * PITCH], X[C * PITCH];
    recurrent::sweep_shared<DK> sweep;
};

/* A segment a block. keep: A at the end takes the place of A at the start (the chunk form). */
template <int DK, int TERMS>
__global__ void __launch_bounds__(2 * DK) penalty(const __grid_constant__ arguments a, bool keep)
{
    constexpr int PITCH = penalty_shared<DK>::PITCH, THREADS = 2 * DK, WARPS_HERE = DK / 16;
    extern __shared__ __align__(16) unsigned char raw[];
    penalty_shared<DK> &s = *(penalty_shared<DK> *)raw;
    const int64_t head = blockIdx.x / a.segments, segment = blockIdx.x % a.segments;
    const int64_t block0 = head * a.stride + segment * a.per_segment, count = segment_blocks(a, segment);
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const auto fetch = [&](int64_t i) {
        if (i < count) {
            fetch_rows<DK, PITCH, THREADS>(s.U[i & 1], a.U + (block0 + i) * C * DK, thread);
            fetch_rows<DK, PITCH, THREADS>(s.K[i & 1], a.K + (block0 + i) * C * DK, thread);
        }
        fetch_commit();
    };
    fetch(0);
    float A[DK / 8][4];
    float2 *at = (float2 *)(a.A + (head * (a.segments + 1) + segment) * DK * DK + (16 * warp + g) * DK + 2 * t);
#pragma unroll
    for (int n = 0; n < DK / 8; n++) {
        const float2 upper = at[4 * n], lower = at[4 * n + 4 * DK];
        A[n][0] = upper.x, A[n][1] = upper.y, A[n][2] = lower.x, A[n][3] = lower.y;
    }
    if (thread < DK) s.sweep.none[thread] = 0;
    bool poisoned = false; /* never: features has taken out what is not finite */
    const int64_t bad = first_bad(a, head);
    for (int64_t i = 0; i < count; i++) {
        fetch(i + 1);
        fetch_wait<1>();
        __syncthreads();
        const recurrent::sweep_rows rows = {s.U[i & 1], s.K[i & 1], s.X, PITCH};
#pragma unroll 1
        for (int base = 0; base < C; base += recurrent::SWEEP)
            recurrent::sweep<DK, true, TERMS>(A, rows, s.sweep, base, base, base + recurrent::SWEEP, 0.0f, poisoned,
                                              warp, lane);
        __syncthreads();
        const int64_t token0 = a.first_token + (segment * a.per_segment + i) * C;
#pragma unroll
        for (int j = 0; j < C / WARPS_HERE; j++) {
            const int r = warp + j * WARPS_HERE;
            constexpr int E = DK / 32;
            float x[E], y[E], unit[E];
#pragma unroll
            for (int e = 0; e < E; e++) x[e] = s.X[r * PITCH + lane + 32 * e];
            feature_row<E>(x, y, unit, lane, DK, VLA_IDENTITY);
#pragma unroll
            for (int e = 0; e < E; e++) {
                const int c = lane + 32 * e;
                a.X[((block0 + i) * C + r) * DK + c] = unit[e];
                if (a.alpha && token0 + r < a.T && c < a.dk)
                    ((float *)a.alpha)[(head * a.T + token0 + r) * a.dk + c] = token0 + r < bad ? unit[e] : NAN;
            }
        }
    }
    if (!keep) return;
#pragma unroll
    for (int n = 0; n < DK / 8; n++)
        at[4 * n] = make_float2(A[n][0], A[n][1]), at[4 * n + 4 * DK] = make_float2(A[n][2], A[n][3]);
}

/* Sums over DK of sixteen rows of x with sixteen rows of y, from global memory. */
template <int DK, int TERMS>
__device__ __forceinline__ void row_products(float (&c)[2][4], const float *x, const float *y, int lane)
{
    using namespace tf32;
    const int g = lane / 4, t = lane % 4;
    const float2 *left_rows = (const float2 *)(x + g * DK + 2 * t), *right_rows = (const float2 *)(y + g * DK + 2 * t);
    sum_t<TERMS> sum[2];
#pragma unroll 4
    for (int n = 0; n < DK / 8; n++) {
        const float2 upper = left_rows[4 * n], lower = left_rows[4 * n + 4 * DK];
        left_t<TERMS> l;
        l.set(0, upper.x), l.set(1, lower.x), l.set(2, upper.y), l.set(3, lower.y);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float2 other = right_rows[4 * n + 4 * j * DK];
            sum[j].add(l, right<TERMS>(other.x, other.y));
        }
    }
    sum[0].take(c[0]), sum[1].take(c[1]);
}

/* A block of tokens a warp. */
template <vla_op OP, int DK, int TERMS>
__global__ void __launch_bounds__(32 * WARPS) pairs(const __grid_constant__ arguments a)
{
    __shared__ small_matrix small[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int64_t index = (int64_t)blockIdx.x * WARPS + warp;
    if (index >= a.heads * a.blocks) return; /* whole warps; no barrier follows */
    const int64_t block = index / a.blocks * a.stride + index % a.blocks, from = block * C * DK;
    float c[2][4];
    row_products<DK, TERMS>(c, a.Q + from, a.X + from, lane);
    float2 *to = a.P + block * PAIR_TILES * 32 + lane;
    const bool first = 2 * t > g, second = 2 * t + 1 > g; /* above the diagonal of a diagonal tile */
    to[0] = make_float2(first ? 0.0f : c[0][0], second ? 0.0f : c[0][1]);
    to[32] = make_float2(c[0][2], c[0][3]);
    to[64] = make_float2(first ? 0.0f : c[1][2], second ? 0.0f : c[1][3]);
    if constexpr (OP != VLA_LINEAR) {
        row_products<DK, TERMS>(c, a.K + from, a.X + from, lane);
        float *m = small[warp];
        small_store(m, c, lane);
        small_invert(m, lane);
        to = a.N + block * PAIR_TILES * 32 + lane;
        const float *row = m + g * SMALL_PITCH + 2 * t, *lower = row + 8 * SMALL_PITCH;
        to[0] = make_float2(row[0], row[1]), to[32] = make_float2(lower[0], lower[1]);
        to[64] = make_float2(lower[8], lower[9]);
    }
}
} /* namespace scanned */

#endif
