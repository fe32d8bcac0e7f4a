/* One softmax row in double precision, for rows whose fast result is not finite.
 *
 * o = sum_s w_s v_s / sum_s w_s, w_s = exp(q.k_s / sqrt(dk) - max), over keys s = 0 .. keys-1; no key gives zeros. The
 * fast forms multiply weights that underflowed to zero, or masked to zero, with values: 0 * NaN and 0 * inf would then
 * reach a row that naive keeps finite, and float32 logits may overflow where float64 ones do not. Such rows are rare,
 * so they are simply done again here, with exactly the arithmetic of the naive form: two passes over the keys.
 */
#ifndef VLA_CPU_SOFTMAX_ROW_H
#define VLA_CPU_SOFTMAX_ROW_H
#include "kernels/cpu/simd.h"

/* Powers of two of the logit's base: exp(x) = 2^(x log2 e), so log2 e joins the scale. */
#define SOFTMAX_LOG2E 1.44269504088896340736

INLINE double softmax_logit(const real *q, const real *k, int64_t dk)
{
    double dot = 0;
    for (int64_t p = 0; p < dk; p++) dot += (double)q[p] * (double)k[p];
    return dot / sqrt((double)dk);
}

/* sum: dv doubles of scratch. */
static __attribute__((noinline)) void softmax_careful_row(const real *q, const real *k, const real *v, int64_t keys,
                                                          int64_t dk, int64_t dv, double *sum, real *o)
{
    double max = -INFINITY, total = 0;
    for (int64_t s = 0; s < keys; s++) {
        const double logit = softmax_logit(q, k + s * dk, dk);
        if (logit > max) max = logit;
    }
    for (int64_t j = 0; j < dv; j++) sum[j] = 0;
    for (int64_t s = 0; s < keys; s++) {
        const double w = exp(softmax_logit(q, k + s * dk, dk) - max);
        total += w;
        for (int64_t j = 0; j < dv; j++) sum[j] += w * (double)v[s * dv + j];
    }
    for (int64_t j = 0; j < dv; j++) o[j] = keys > 0 ? (real)(sum[j] / total) : 0;
}

/* 2^x for x <= 64, about 1 ulp; 0 below the smallest normal number; NaN stays NaN. The addition of shift rounds x to an
 * integer n and leaves n + BIAS in the low bits, which shifted up is the number 2^n; 2^(x - n) is its minimax
 * polynomial on [-1/2, 1/2] with its constant term held at 1 (relative error 2.6e-9 in f32, 1.8e-17 in f64). */
INLINE vec softmax_exp2(vec x)
{
#if VLA_REAL_BITS == 64
    const real shift = 0x1.8p52 + 1023, low = -1022;
    enum { MANTISSA = 52 };
    static const real c[] = {0x1.c0638527edf34p-32, 0x1.e605f979c7a5dp-28, 0x1.b54167a0b9061p-24, 0x1.62bfd49ed0adfp-20,
                             0x1.ffcbee3b0af8cp-17, 0x1.4309130961163p-13, 0x1.5d87fe7bbbe07p-10, 0x1.3b2ab6fba1e1cp-7,
                             0x1.c6b08d7048f31p-5,  0x1.ebfbdff82c598p-3,  0x1.62e42fefa39f3p-1,  0x1.0p+0};
#else
    const real shift = 0x1.8p23f + 127, low = -126;
    enum { MANTISSA = 23 };
    static const real c[] = {0x1.470b4ap-13f, 0x1.5f7276p-10f, 0x1.3b270ep-7f, 0x1.c6ae72p-5f,
                             0x1.ebfbe2p-3f,  0x1.62e432p-1f,  0x1.0p+0f};
#endif
    const vec big = x + shift;
    const vec r = x - (big - shift);
    vec p = vset(c[0]);
    UNROLL
    for (int i = 1; i < (int)(sizeof c / sizeof c[0]); i++) p = p * r + c[i];
    const vec y = p * (vec)((ivec)big << MANTISSA);
    return (vec)((ivec)y & ~(x < low));
}

#endif
