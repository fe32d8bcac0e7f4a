/* Portable vectors for the fast CPU kernels.
 *
 * Every fast kernel file is compiled once per element type (VLA_REAL_BITS 32 or 64) and instruction set
 * (VLA_ISA_TAG base, avx2 or avx512); KERNEL(stem) is its symbol, such as vla_chunk_cpu_f32_avx2. Code is written with
 * vector extensions only, so the base build is SSE2 on x86-64 and NEON on AArch64. Loads and stores through vecu are
 * unaligned. No fast-math: NaN and infinities keep their meaning.
 */
#ifndef VLA_CPU_SIMD_H
#define VLA_CPU_SIMD_H
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(VLA_ISA_avx512)
#define VLA_VEC_BYTES 64
#define VLA_ISA_TAG avx512
#define VLA_VEC_REGISTERS 32
#elif defined(VLA_ISA_avx2)
#define VLA_VEC_BYTES 32
#define VLA_ISA_TAG avx2
#define VLA_VEC_REGISTERS 16
#else
#define VLA_VEC_BYTES 16
#define VLA_ISA_TAG base
#if defined(__aarch64__)
#define VLA_VEC_REGISTERS 32
#else
#define VLA_VEC_REGISTERS 16
#endif
#endif

#if VLA_REAL_BITS == 64
typedef double real;
typedef int64_t ireal;
#define VLA_REAL_TAG f64
#define REAL_EPSILON DBL_EPSILON
#else
typedef float real;
typedef int32_t ireal;
#define VLA_REAL_TAG f32
#define REAL_EPSILON FLT_EPSILON
#endif

#define VLA_PASTE3_(a, b, c) a##_##b##_##c
#define VLA_PASTE3(a, b, c) VLA_PASTE3_(a, b, c)
#define KERNEL(stem) VLA_PASTE3(stem, VLA_REAL_TAG, VLA_ISA_TAG)

typedef real vec __attribute__((vector_size(VLA_VEC_BYTES)));
typedef real vecu __attribute__((vector_size(VLA_VEC_BYTES), aligned(sizeof(real)), may_alias));
typedef real real2 __attribute__((vector_size(2 * sizeof(real))));
typedef real real4 __attribute__((vector_size(4 * sizeof(real))));
typedef real real8 __attribute__((vector_size(8 * sizeof(real))));
typedef ireal ivec __attribute__((vector_size(VLA_VEC_BYTES)));

enum { LANES = VLA_VEC_BYTES / (int)sizeof(real) };
/* Widths of padded rows: a whole number of the widest vectors, whatever the instruction set. */
#define PAD_LANES ((int64_t)(64 / sizeof(real)))
#define PAD(n) (((int64_t)(n) + PAD_LANES - 1) / PAD_LANES * PAD_LANES)

#define INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

INLINE vec vload(const real *p)
{
    return *(const vecu *)p;
}
INLINE void vstore(real *p, vec x)
{
    *(vecu *)p = x;
}
INLINE vec vset(real x)
{
    return x - (vec){0};
} /* x - 0 keeps -0, NaN and infinities */
INLINE vec vselect(ivec mask, vec a, vec b)
{
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}
/* NaN in either operand gives b: put the value that must survive second. The x86 instructions have the same rule. */
#if defined(__AVX512F__) && VLA_VEC_BYTES == 64
#define VLA_VEC_MINMAX(OP, a, b)                                             \
    (VLA_REAL_BITS == 64 ? (vec)_mm512_##OP##_pd((__m512d)(a), (__m512d)(b)) \
                         : (vec)_mm512_##OP##_ps((__m512)(a), (__m512)(b)))
#elif defined(__AVX__) && VLA_VEC_BYTES == 32
#define VLA_VEC_MINMAX(OP, a, b)                                             \
    (VLA_REAL_BITS == 64 ? (vec)_mm256_##OP##_pd((__m256d)(a), (__m256d)(b)) \
                         : (vec)_mm256_##OP##_ps((__m256)(a), (__m256)(b)))
#elif defined(__SSE2__)
#define VLA_VEC_MINMAX(OP, a, b)                                          \
    (VLA_REAL_BITS == 64 ? (vec)_mm_##OP##_pd((__m128d)(a), (__m128d)(b)) \
                         : (vec)_mm_##OP##_ps((__m128)(a), (__m128)(b)))
#endif
INLINE vec vmax(vec a, vec b)
{
#if defined(VLA_VEC_MINMAX)
    return VLA_VEC_MINMAX(max, a, b);
#else
    return vselect(a > b, a, b);
#endif
}
INLINE vec vmin(vec a, vec b)
{
#if defined(VLA_VEC_MINMAX)
    return VLA_VEC_MINMAX(min, a, b);
#else
    return vselect(a < b, a, b);
#endif
}

/* Sum of the lanes, halves first. */
INLINE real vsum(vec x)
{
#if VLA_VEC_BYTES / (VLA_REAL_BITS / 8) == 16
    const real8 x8 = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#elif VLA_VEC_BYTES / (VLA_REAL_BITS / 8) == 8
    const real8 x8 = x;
#endif
#if VLA_VEC_BYTES / (VLA_REAL_BITS / 8) >= 8
    const real4 x4 = __builtin_shufflevector(x8, x8, 0, 1, 2, 3) + __builtin_shufflevector(x8, x8, 4, 5, 6, 7);
#elif VLA_VEC_BYTES / (VLA_REAL_BITS / 8) == 4
    const real4 x4 = x;
#endif
#if VLA_VEC_BYTES / (VLA_REAL_BITS / 8) >= 4
    const real2 x2 = __builtin_shufflevector(x4, x4, 0, 1) + __builtin_shufflevector(x4, x4, 2, 3);
#else
    const real2 x2 = x;
#endif
    return x2[0] + x2[1];
}

/* exp(x), about 1 ulp; 0 below the smallest normal's logarithm, infinity above the largest; NaN stays NaN.
 * x = n ln2 + r with |r| <= ln2/2, exp(r) by its Taylor series, scaled by 2^n in two steps so that n may reach the
 * ends of the exponent range. */
INLINE vec vexp(vec x)
{
#if VLA_REAL_BITS == 64
    const real shift = 0x1.8p52, high = 709.79, low = -708.39;
    const real ln2_hi = 0x1.62e42feep-1, ln2_lo = 0x1.a39ef35793c76p-33;
    static const real c[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                             1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
                             1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};
    enum { MANTISSA = 52, BIAS = 1023 };
#else
    const real shift = 0x1.8p23f, high = 88.73f, low = -87.33f;
    const real ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;
    static const real c[] = {1.0f / 5040.0f, 1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f};
    enum { MANTISSA = 23, BIAS = 127 };
#endif
    const vec clamped = vmin(vset(high), vmax(vset(low), x)); /* NaN passes both */
    const vec big = clamped * (real)1.44269504088896340736 + shift;
    const vec n = big - shift;
    vec r = clamped - n * ln2_hi;
    r = r - n * ln2_lo;
    vec p = vset(c[0]);
    UNROLL
    for (int i = 1; i < (int)(sizeof c / sizeof c[0]); i++) p = p * r + c[i];
    p = p * (r * r) + (r + (real)1);
    const ivec e = (ivec)big - (ivec)vset(shift); /* n as an integer */
    const ivec half = e >> 1;
    const vec s1 = (vec)((half + BIAS) << MANTISSA), s2 = (vec)((e - half + BIAS) << MANTISSA);
    const vec y = p * s1 * s2;
    return vselect(x < low, vset(0), y);
}

/* exp(x) for x <= 0 (and NaN), about 1 ulp; 0 below the smallest normal's logarithm. Cheaper than vexp: 2^n is never
 * out of range, and the shift that rounds to an integer carries the exponent's bias. */
INLINE vec vexp_nonpositive(vec x)
{
#if VLA_REAL_BITS == 64
    const real shift = 0x1.8p52 + 1023, low = -708.39;
    const real ln2_hi = 0x1.62e42feep-1, ln2_lo = 0x1.a39ef35793c76p-33;
    const real c[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                      1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
                      1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};
    enum { MANTISSA = 52 };
#else
    const real shift = 0x1.8p23f + 127, low = -87.33f;
    const real ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;
    const real c[] = {1.0f / 5040.0f, 1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f};
    enum { MANTISSA = 23 };
#endif
    const vec big = x * (real)1.44269504088896340736 + shift, n = big - shift;
    vec r = x - n * ln2_hi;
    r = r - n * ln2_lo;
    vec p = vset(c[0]);
    UNROLL
    for (int i = 1; i < (int)(sizeof c / sizeof c[0]); i++) p = p * r + c[i];
    p = p * (r * r) + (r + (real)1);
    const vec y = p * (vec)((ivec)big << MANTISSA);
    return (vec)((ivec)y & ~(x < low));
}

#endif
