/* Bits of numbers, and numbers of 16 bits. */
#ifndef VLA_EMULATE_NUMBERS_H
#define VLA_EMULATE_NUMBERS_H
#include "tests/emulate/runtime.h"

inline float __uint_as_float(uint32_t x)
{
    float y;
    memcpy(&y, &x, 4);
    return y;
}
inline uint32_t __float_as_uint(float x)
{
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
inline int __float_as_int(float x)
{
    return (int)__float_as_uint(x);
}
inline float __int_as_float(int x)
{
    return __uint_as_float((uint32_t)x);
}

struct __half;
struct __nv_bfloat16;
namespace emu
{
inline float half_to_float(uint16_t x)
{
    return _cvtsh_ss(x);
}
inline uint16_t float_to_half(float x)
{
    if (x != x) return 0x7fff;
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
inline float bf16_to_float(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}
inline uint16_t float_to_bf16(float x)
{
    if (x != x) return 0x7fff;
    const uint32_t b = __float_as_uint(x);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
} // namespace emu
struct alignas(2) __half {
    uint16_t x;
    __half() = default;
    explicit __half(float f) : x(emu::float_to_half(f)) {}
    explicit operator float() const { return emu::half_to_float(x); }
};
struct alignas(2) __nv_bfloat16 {
    uint16_t x;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float f) : x(emu::float_to_bf16(f)) {}
    explicit operator float() const { return emu::bf16_to_float(x); }
};
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __half2 half2;
inline float __half2float(__half h)
{
    return (float)h;
}
inline __half __float2half_rn(float f)
{
    return __half(f);
}
inline float __bfloat162float(__nv_bfloat16 h)
{
    return (float)h;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}
inline __half2 __floats2half2_rn(float x, float y)
{
    return {__half(x), __half(y)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline float2 __half22float2(__half2 h)
{
    return {(float)h.x, (float)h.y};
}
inline unsigned short __half_as_ushort(__half h)
{
    return h.x;
}
inline __half __ushort_as_half(unsigned short x)
{
    __half h;
    h.x = x;
    return h;
}
inline __half __hadd(__half a, __half b)
{
    return __half((float)a + (float)b);
}
inline __half2 __hadd2(__half2 a, __half2 b)
{
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}

#endif
