/* Powers of two that bring operands to unit scale. */
#ifndef VLA_CUDA_SCALES_CUH
#define VLA_CUDA_SCALES_CUH
#include "kernels/cuda/common.cuh"

/* Exponents as float's bits have them, 127 for 1: of the power of two that is not below x, x >= 0 and finite. */
__device__ __forceinline__ int exponent_above(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return (int)((bits >> 23) + ((bits & 0x7fffffu) ? 1u : 0u));
}
/* That power, or the nearest that is normal. */
__device__ __forceinline__ float power_of(int exponent)
{
    return __uint_as_float((uint32_t)min(max(exponent, 1), 254) << 23);
}
/* The power of two that is not below x, of those that are normal; 1 for x = 0. */
__device__ __forceinline__ float power_above(float x)
{
    return x > 0 ? power_of(exponent_above(x)) : 1.0f;
}

__device__ __forceinline__ float warp_top(float x) /* x >= 0 */
{
    return __uint_as_float(__reduce_max_sync(FULL_WARP, __float_as_uint(x)));
}

#endif
