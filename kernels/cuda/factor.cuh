/* The inverse Cholesky factor of a 16 x 16 matrix by one warp. Lane c < 16 holds column c, lane 16 + c column c of the
 * identity, which the elimination of the first sixteen turns into column c of L^-1. Pivots go in pairs: a pair's
 * inverse takes one reciprocal, of its determinant, so that the chain is a shuffle, a reciprocal and five
 * multiplications for two pivots. */
#ifndef VLA_CUDA_FACTOR_CUH
#define VLA_CUDA_FACTOR_CUH
#include "kernels/cuda/mma.cuh"

/* Pitches that keep neighbouring rows in different banks and 16-byte aligned: floats of a matrix to be factored, halves
 * of a factor. */
constexpr int FACTOR_ROW = 20, FACTOR_MATRIX = 16 * FACTOR_ROW, FACTOR_PITCH = 24, FACTOR_TILE = 16 * FACTOR_PITCH;

/* Approximate to 1 or 2 ulp, denormals as zero: without the branches for those. */
__device__ __forceinline__ float quick_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float quick_rsqrt(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void factor_store(float *m, const float (&c)[2][4], int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        *(float2 *)(m + g * FACTOR_ROW + 8 * h + 2 * t) = make_float2(c[h][0], c[h][1]);
        *(float2 *)(m + (g + 8) * FACTOR_ROW + 8 * h + 2 * t) = make_float2(c[h][2], c[h][3]);
    }
}

/* The identity, then a row of zeros: what lanes 16 to 31 read. */
constexpr int FACTOR_UNIT = FACTOR_MATRIX + 16;
__device__ __forceinline__ void factor_unit(float *unit, int thread, int threads)
{
    for (int i = thread; i < FACTOR_UNIT; i += threads)
        unit[i] = i % (FACTOR_ROW + 1) == 0 && i < FACTOR_MATRIX ? 1.0f : 0.0f;
}

/* Columns of the symmetric matrix m[0] + m[1] + .. and of the identity. */
template <int PARTS>
__device__ __forceinline__ void factor_columns(float (&a)[16], const float (*m)[FACTOR_MATRIX], const float *unit,
                                               int lane)
{
    const int c = lane % 16 * FACTOR_ROW;
#pragma unroll
    for (int w = 0; w < PARTS; w++) {
        const float *row = lane < 16 ? m[w] + c : w == 0 ? unit + c : unit + FACTOR_MATRIX;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const float4 x = ((const float4 *)row)[q];
            if (w == 0)
                a[4 * q] = x.x, a[4 * q + 1] = x.y, a[4 * q + 2] = x.z, a[4 * q + 3] = x.w;
            else
                a[4 * q] += x.x, a[4 * q + 1] += x.y, a[4 * q + 2] += x.z, a[4 * q + 3] += x.w;
        }
    }
}

/* m: the matrix in memory, where the first pair's columns are read from, or NULL. A matrix of the other sign gives L^-1
 * too, with rows of any sign. `meanwhile` is called for what else is to be done, by parts 0 to 7; what it returns,
 * zero, is waited for. */
template <typename F> __device__ __forceinline__ void factor_invert(float (&a)[16], const float *m, F &&meanwhile)
{
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
        const int after = meanwhile(j / 2);
        float first[16], second[16]; /* columns j and j + 1 */
        if (j == 0 && m) {
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                const float4 x = *(const float4 *)(m + i), y = *(const float4 *)(m + FACTOR_ROW + i);
                first[i] = x.x, first[i + 1] = x.y, first[i + 2] = x.z, first[i + 3] = x.w;
                second[i] = y.x, second[i + 1] = y.y, second[i + 2] = y.z, second[i + 3] = y.w;
            }
        } else {
#pragma unroll
            for (int i = j; i < 16; i++) {
                first[i] = __shfl_sync(FULL_WARP, a[i], i == j ? j | after : j);
                if (i > j) second[i] = __shfl_sync(FULL_WARP, a[i], j + 1);
            }
        }
        const float d = first[j], e = first[j + 1], f = second[j + 1];
        const float determinant = fmaf(d, f, -e * e), inverse = quick_reciprocal(determinant), u = a[j], v = a[j + 1];
        const float w = fmaf(d, v, -e * u), x = fmaf(f, u, -e * v) * inverse, y = w * inverse;
#pragma unroll
        for (int i = j + 2; i < 16; i++) a[i] = fmaf(-first[i], x, fmaf(-second[i], y, a[i]));
        /* the rows of L^-1: the pair's own factor has sqrt(d) and sqrt(determinant / d) on its diagonal */
        const float scale = quick_rsqrt(fabsf(d));
        a[j] = u * scale, a[j + 1] = w * (scale * quick_rsqrt(determinant));
    }
}
__device__ __forceinline__ void factor_invert(float (&a)[16], const float *m)
{
    factor_invert(a, m, [](int) { return 0; });
}

template <typename M> __device__ __forceinline__ void factor_rows(uint4 (&raw)[2], const float (&a)[16])
{
    raw[0] = make_uint4(pack(M{}, a[0], a[1]), pack(M{}, a[2], a[3]), pack(M{}, a[4], a[5]), pack(M{}, a[6], a[7]));
    raw[1] =
        make_uint4(pack(M{}, a[8], a[9]), pack(M{}, a[10], a[11]), pack(M{}, a[12], a[13]), pack(M{}, a[14], a[15]));
}

/* (L^-1)^T, row by row, as float16. */
__device__ __forceinline__ void factor_keep(__half *to, const float (&a)[16], int lane)
{
    uint4 raw[2];
    factor_rows<f16_arithmetic>(raw, a);
    if (lane < 16) return;
    uint4 *row = (uint4 *)(to + (lane - 16) * FACTOR_PITCH);
    row[0] = raw[0], row[1] = raw[1];
}

/* (L^-1)^T as two bfloat16. */
__device__ __forceinline__ void factor_keep_split(__half *high, __half *low, float (&a)[16], int lane)
{
    uint4 raw[2], rest[2];
    factor_rows<bf16_arithmetic>(raw, a);
    const uint32_t words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w, raw[1].x, raw[1].y, raw[1].z, raw[1].w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 kept = unpack(bf16_arithmetic{}, words[i]);
        a[2 * i] -= kept.x, a[2 * i + 1] -= kept.y;
    }
    factor_rows<bf16_arithmetic>(rest, a);
    if (lane < 16) return;
    uint4 *row = (uint4 *)(high + (lane - 16) * FACTOR_PITCH), *below = (uint4 *)(low + (lane - 16) * FACTOR_PITCH);
    row[0] = raw[0], row[1] = raw[1], below[0] = rest[0], below[1] = rest[1];
}

#endif
