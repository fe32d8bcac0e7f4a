/* What every CUDA kernel file shares: launch checks, element types, feature maps and unit rows, one warp a row.
 *
 * Inputs, o and alpha are in the plan's dtype (float32, bfloat16 or float16); S, A and n are float32 whatever the
 * dtype, as a state rounded to 16 bits would not survive a split. All arithmetic that is not a stated matrix product is
 * float32.
 */
#ifndef VLA_CUDA_COMMON_CUH
#define VLA_CUDA_COMMON_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>

extern "C" {
#include "kernels/cuda/device.h"
#include "kernels/kernel.h"
#include "lib/base/sizes.h"
}

/* Returns from the caller with VLA_ERR_DEVICE (VLA_ERR_MEMORY when the device is out of it) and what was asked of CUDA.
 */
#define VLA_CUDA(call)                                                                   \
    do {                                                                                 \
        const cudaError_t cuda_error_ = (call);                                          \
        if (cuda_error_ != cudaSuccess) return vla_cuda_fail(error, cuda_error_, #call); \
    } while (0)

static inline vla_status vla_cuda_fail(vla_error *error, cudaError_t code, const char *what)
{
    (void)cudaGetLastError(); /* clear what is not sticky */
    const vla_status status = code == cudaErrorMemoryAllocation ? VLA_ERR_MEMORY : VLA_ERR_DEVICE;
    return vla_fail(error, status, "CUDA: %s (%.60s)", cudaGetErrorString(code), what);
}

constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ float to_float(float x)
{
    return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}

__device__ __forceinline__ float load_element(const void *data, vla_dtype dtype, int64_t i)
{
    if (dtype == VLA_F32) return ((const float *)data)[i];
    if (dtype == VLA_BF16) return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    return __half2float(((const __half *)data)[i]);
}

__device__ __forceinline__ void store_element(void *data, vla_dtype dtype, int64_t i, float x)
{
    if (dtype == VLA_F32)
        ((float *)data)[i] = x;
    else if (dtype == VLA_BF16)
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(x);
    else
        ((__half *)data)[i] = __float2half_rn(x);
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_WARP, x, offset);
    return x;
}

/* A NaN is not ordered and loses: callers test for it apart. */
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, x, offset);
        x = other > x ? other : x;
    }
    return x;
}

/* 1 ulp, without the branch for the ends of the range that a division has. */
__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float sigmoid(float x)
{
    if (x >= 0) return 1.0f / (1.0f + expf(-x));
    const float e = expf(x);
    return e / (1.0f + e);
}

static __device__ __noinline__ float silu_call(float x)
{
    return x * sigmoid(x);
} /* one copy of rarely used code */

__device__ __forceinline__ float feature(float x, vla_features features)
{
    if (features == VLA_ELU1) {
        const float e = expf(x);
        return x > 0 ? x + 1.0f : e;
    }
    return features == VLA_SILU ? silu_call(x) : x;
}

/* phi(x)/exp(shift), shift != 0 only where the whole row is negative. */
__device__ __forceinline__ float feature_shifted(float x, float shift, vla_features features)
{
    if (features == VLA_ELU1) return x > 0 ? x + 1.0f : expf(x - shift);
    if (features == VLA_SILU) return x > 0 ? silu_call(x) : x * expf(x - shift) / (1.0f + expf(x));
    return x;
}

/* Sums of squares between these lose nothing to the ends of float's range. */
constexpr float SQUARES_LOW = 1e-28f, SQUARES_HIGH = 1e37f;
/* exp(x) is 0 in float64 below this. */
constexpr float EXP_ZERO = -745.13322f;

/* out = unit(phi(x)) for rows whose squares leave float's range, with exp(max x) taken out and the largest |phi|
 * brought to 1: a key whose phi underflows keeps its direction and is the zero key only if phi is 0 in float64; NaN or
 * infinity make the whole row NaN. Lane l holds elements l, l + 32, .. of a row of n; elements past n stay 0. */
template <int E>
__device__ __forceinline__ void unit_row_scaled(const float (&x)[E], float (&out)[E], int lane, int n,
                                                vla_features features)
{
    float top = -INFINITY, largest = 0, sum = 0;
#pragma unroll
    for (int e = 0; e < E; e++) /* silu(0) is 0 whatever the scale */
        if (lane + 32 * e < n && x[e] > top && !(features == VLA_SILU && x[e] == 0)) top = x[e];
    top = warp_max(top);
    const bool maps = features != VLA_IDENTITY, zero = maps && top < EXP_ZERO;
    const float shift = maps && top < 0 && !zero ? top : 0.0f;
    bool bad = false;
#pragma unroll
    for (int e = 0; e < E; e++) {
        out[e] = lane + 32 * e < n ? feature_shifted(x[e], shift, features) : 0.0f;
        bad |= !(fabsf(out[e]) < INFINITY);
        if (fabsf(out[e]) > largest) largest = fabsf(out[e]);
    }
    largest = warp_max(largest);
    bad = __any_sync(FULL_WARP, bad);
#pragma unroll
    for (int e = 0; e < E; e++) {
        out[e] = largest > 0 ? out[e] / largest : 0.0f;
        sum = fmaf(out[e], out[e], sum);
    }
    sum = warp_sum(sum);
    const float scale = largest > 0 && !zero ? 1.0f / sqrtf(sum) : 0.0f;
#pragma unroll
    for (int e = 0; e < E; e++) out[e] = bad ? (lane + 32 * e < n ? NAN : 0.0f) : out[e] * scale;
}

/* y = phi(x), unit = unit(phi(x)); elements past n are 0 in both. */
template <int E>
__device__ __forceinline__ void feature_row(const float (&x)[E], float (&y)[E], float (&unit)[E], int lane, int n,
                                            vla_features features)
{
    float sum = 0;
#pragma unroll
    for (int e = 0; e < E; e++) {
        y[e] = lane + 32 * e < n ? feature(x[e], features) : 0.0f;
        sum = fmaf(y[e], y[e], sum);
    }
    sum = warp_sum(sum);
    if (sum >= SQUARES_LOW && sum <= SQUARES_HIGH) {
        const float scale = rsqrtf(sum);
#pragma unroll
        for (int e = 0; e < E; e++) unit[e] = y[e] * scale;
    } else {
        unit_row_scaled<E>(x, unit, lane, n, features);
    }
}

template <int N> __device__ __forceinline__ void named_barrier(int id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(N) : "memory");
}

/* The same where warps come to it from different places of the code. */
template <int N> __device__ __forceinline__ void meet(int id)
{
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "n"(N) : "memory");
}

/* Counted there without waiting: what this warp stored before is seen by those that meet. */
template <int N> __device__ __forceinline__ void meet_later(int id)
{
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "n"(N) : "memory");
}

static inline int vla_cuda_attribute(cudaDeviceAttr attribute)
{
    int device = 0, value = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 0;
    return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

static inline int vla_cuda_sm_count(void)
{
    const int count = vla_cuda_attribute(cudaDevAttrMultiProcessorCount);
    return count > 0 ? count : 1;
}

#endif
