/* Rows dealt to lanes by eights: width/8 neighbouring lanes share a row, so that a load is 16 bytes a lane and a warp
 * makes several rows at once. */
#ifndef VLA_CUDA_ROWS8_CUH
#define VLA_CUDA_ROWS8_CUH
#include "kernels/cuda/common.cuh"

__device__ __forceinline__ float group_sum(float x, int lanes)
{
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_WARP, x, offset);
    return x;
}

__device__ __forceinline__ float group_max(float x, int lanes)
{
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, x, offset);
        x = other > x ? other : x;
    }
    return x;
}

/* Eight neighbouring elements of a row as they are in memory: 16 bytes of a 16-bit type, 32 of float. Apart from their
 * use, so that many loads are in flight. Rows whose width is a multiple of 8 are loaded whole (inputs are 16-byte
 * aligned). */
template <int QUADS> struct raw8 { /* 1: 16-bit types only */
    uint4 half[QUADS];
};

template <typename E, int MOST>
__device__ __forceinline__ void load8(raw8<MOST> &raw, const E *row, int column, int width, bool valid)
{
    constexpr int QUADS = (int)sizeof(E) / 2; /* uint4 */
    static_assert(QUADS <= MOST, "a raw8 this small holds 16-bit types");
#pragma unroll
    for (int q = 0; q < QUADS; q++) raw.half[q] = make_uint4(0, 0, 0, 0);
    if (!valid || column >= width) return;
    if (width % 8 == 0) {
#pragma unroll
        for (int q = 0; q < QUADS; q++) raw.half[q] = ((const uint4 *)(row + column))[q];
    } else {
        E x[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = column + i < width ? row[column + i] : E(0.0f);
#pragma unroll
        for (int q = 0; q < QUADS; q++) raw.half[q] = ((const uint4 *)x)[q];
    }
}

template <int MOST>
__device__ __forceinline__ void load8(raw8<MOST> &raw, const void *data, vla_dtype dtype, int64_t row, int column,
                                      int width, bool valid)
{
    if constexpr (MOST == 2)
        if (dtype == VLA_F32) return load8(raw, (const float *)data + row * width, column, width, valid);
    load8(raw, (const __half *)data + row * width, column, width, valid); /* bfloat16 too: bits are bits */
}

template <int MOST> __device__ __forceinline__ void convert8(float (&x)[8], const raw8<MOST> &raw, vla_dtype dtype)
{
    constexpr int LAST = MOST - 1;
    const uint32_t word[8] = {raw.half[0].x,    raw.half[0].y,    raw.half[0].z,    raw.half[0].w,
                              raw.half[LAST].x, raw.half[LAST].y, raw.half[LAST].z, raw.half[LAST].w};
    if (dtype == VLA_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[2 * i] = __uint_as_float(word[i] << 16), x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    } else if (MOST == 1 || dtype == VLA_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 v = __half22float2(*(const __half2 *)&word[i]);
            x[2 * i] = v.x, x[2 * i + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = __uint_as_float(word[i]);
    }
}

/* Of a 16-bit type, at once. */
__device__ __forceinline__ void load8(float (&x)[8], const void *data, vla_dtype dtype, int64_t row, int column,
                                      int width, bool valid)
{
    raw8<1> raw;
    load8(raw, data, dtype, row, column, width, valid);
    convert8(x, raw, dtype);
}

/* As good as a 16-bit operand needs; subnormal results are zero. */
__device__ __forceinline__ float coarse_exp(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ float coarse_rsqrt(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* phi of eight elements. The usual map is written out; the others go through one copy of their code. */
static __device__ __noinline__ float feature_call(float x, vla_features features)
{
    return feature(x, features);
}

/* EXACT: the exponential to float32's own accuracy; otherwise as good as a 16-bit operand needs. */
template <bool EXACT>
__device__ __forceinline__ void features8(float (&y)[8], const float (&x)[8], vla_features features)
{
    if (features == VLA_ELU1) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float e = EXACT ? expf(x[i]) : coarse_exp(x[i]);
            y[i] = x[i] > 0 ? x[i] + 1.0f : e;
        }
    } else if (features == VLA_IDENTITY) {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = x[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = feature_call(x[i], features);
    }
}

struct eight {
    float x[8];
};

/* The unit row where squares leave float's range, as unit_row_scaled; the norm in `norm`. */
static __device__ __noinline__ eight unit8_scaled(eight in, int column, int width, vla_features features, int lanes,
                                                  float *norm)
{
    float top = -INFINITY, largest = 0, squares = 0, wrong = 0;
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        if (column + i < width && in.x[i] > top && !(features == VLA_SILU && in.x[i] == 0)) top = in.x[i];
    top = group_max(top, lanes);
    const bool maps = features != VLA_IDENTITY, zero = maps && top < EXP_ZERO;
    const float shift = maps && top < 0 && !zero ? top : 0.0f;
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        in.x[i] = column + i < width ? feature_shifted(in.x[i], shift, features) : 0.0f;
        if (!(fabsf(in.x[i]) < INFINITY)) wrong = 1;
        if (fabsf(in.x[i]) > largest) largest = fabsf(in.x[i]);
    }
    largest = group_max(largest, lanes), wrong = group_max(wrong, lanes);
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        in.x[i] = largest > 0 ? in.x[i] / largest : 0.0f;
        squares = fmaf(in.x[i], in.x[i], squares);
    }
    squares = group_sum(squares, lanes);
    const float scale = largest > 0 && !zero ? rsqrtf(squares) : 0.0f;
    *norm = wrong > 0 ? NAN : zero ? 0.0f : sqrtf(squares) * largest * expf(shift);
#pragma unroll 1
    for (int i = 0; i < 8; i++) in.x[i] = wrong > 0 ? NAN : in.x[i] * scale;
    return in;
}

/* x -> phi(x) in y (zero past the width), unit(phi(x)) in x; returns |phi(x)|. `lanes` lanes share the row, 8 elements
 * each. */
template <bool EXACT>
__device__ __forceinline__ float unit8(float (&x)[8], float (&y)[8], int column, int width, vla_features features,
                                       int lanes)
{
    float sum = 0;
    features8<EXACT>(y, x, features);
    if (column + 8 > width)
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = column + i < width ? y[i] : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(y[i], y[i], sum);
    sum = group_sum(sum, lanes);
    const bool usual = sum >= SQUARES_LOW && sum <= SQUARES_HIGH;
    const float scale = coarse_rsqrt(sum); /* used where the sum is usual */
    float norm = sum * scale;
    if (__all_sync(FULL_WARP, usual)) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = y[i] * scale;
        return norm;
    }
    eight row;
    float other;
#pragma unroll
    for (int i = 0; i < 8; i++) row.x[i] = x[i];
    row = unit8_scaled(row, column, width, features, lanes, &other);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = row.x[i];
    return usual ? norm : other;
}

#endif
