/* Feature maps and unit rows for the fast CPU kernels: one raw row in, one zero-padded row out.
 *
 *   phi(x)   elu1: x > 0 ? x + 1 : exp(x)    silu: x / (1 + exp(-x))    identity: x
 *   unit(x)  x / |x|, unit(0) = 0
 *
 * Every output row has `width` elements, a multiple of LANES no smaller than n; elements n.. are zero, so that products
 * over padded rows need no remainder loops. Raw rows are read within [0, n) only. Functions return whether the row they
 * made is free of NaN (a NaN or an infinite key gives a row of NaN, never a plausible direction).
 *
 * The usual row costs one pass and one sum of squares. Where that sum is near the ends of the exponent range the row is
 * made again in scaled double arithmetic: a key whose phi underflows in float keeps its direction, and is a zero key
 * only if phi is 0 in float64 for all its elements.
 */
#ifndef VLA_CPU_FEATURES_H
#define VLA_CPU_FEATURES_H
#include <stdbool.h>

#include "kernels/cpu/simd.h"
#include "lib/vla.h"

/* Sums of squares between these are neither over- nor underflowed by more than the rounding of their largest terms. */
#if VLA_REAL_BITS == 64
#define SQUARES_LOW 1e-270
#define SQUARES_HIGH 1e300
#else
#define SQUARES_LOW 1e-28f
#define SQUARES_HIGH 1e37f
#endif

INLINE real real_sqrt(real x)
{
#if VLA_REAL_BITS == 64
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

INLINE vec vabs(vec x)
{
    const ireal sign = (ireal)((ireal)1 << (VLA_REAL_BITS - 2)); /* half the sign bit: shifting it in would overflow */
    return (vec)((ivec)x & (sign - 1 + sign));
}

/* The first `count` lanes from memory, zero in the rest. */
INLINE vec vload_part(const real *p, int64_t count)
{
    real lane[LANES] = {0};
    memcpy(lane, p, (size_t)count * sizeof(real));
    return vload(lane);
}

/* x in the first `count` lanes, zero in the rest. */
INLINE vec vkeep(vec x, int64_t count)
{
    ireal lane[LANES];
    for (int i = 0; i < LANES; i++) lane[i] = i < count ? -1 : 0;
    ivec mask;
    memcpy(&mask, lane, sizeof mask);
    return (vec)((ivec)x & mask);
}

/* max(x, 0) + exp(min(x, 0)); exp(0) is exactly 1, and NaN passes through both. */
INLINE vec phi_elu1(vec x)
{
    return vmax(vset(0), x) + vexp_nonpositive(vmin(vset(0), x));
}

INLINE vec phi_silu(vec x)
{
    const vec e = vexp_nonpositive(-vabs(x));
    return x * vselect(x < 0, e, vset(1)) / (e + 1);
}

INLINE vec phi(vla_features features, vec x)
{
    return features == VLA_ELU1 ? phi_elu1(x) : features == VLA_SILU ? phi_silu(x) : x;
}

INLINE void row_zero_from(real *out, int64_t from, int64_t width)
{
    for (int64_t i = from; i < width; i += LANES) vstore(out + i, vset(0));
}

/* out = phi(x); returns the lanes' sums of squares as far as `real` can hold them. */
INLINE vec row_phi(vla_features features, const real *x, int64_t n, int64_t width, real *out)
{
    const int64_t whole = n / LANES * LANES;
    vec squares = vset(0);
    for (int64_t i = 0; i < whole; i += LANES) {
        const vec y = phi(features, vload(x + i));
        squares += y * y;
        vstore(out + i, y);
    }
    if (whole < n) {
        const vec y = vkeep(phi(features, vload_part(x + whole, n - whole)), n - whole);
        squares += y * y;
        vstore(out + whole, y);
    }
    row_zero_from(out, whole < n ? whole + LANES : whole, width);
    return squares;
}

INLINE void row_scale(real *out, const real *x, int64_t width, real factor)
{
    for (int64_t i = 0; i < width; i += LANES) vstore(out + i, vload(x + i) * factor);
}

/* log |phi(x)| in double; -inf where phi is 0 in float64, NaN or +inf where it is not finite. */
static __attribute__((unused)) double phi_log(vla_features features, double x)
{
    if (x != x) return x;
    if (features == VLA_ELU1) return x > 0 ? log1p(x) : exp(x) > 0 ? x : -INFINITY;
    if (features == VLA_SILU && !(fabs(x) < INFINITY)) return INFINITY; /* -inf sigmoid(-inf) is NaN */
    if (features == VLA_SILU)
        return fabs(x) * exp(fmin(x, 0)) > 0 ? log(fabs(x)) + fmin(x, 0) - log1p(exp(-fabs(x))) : -INFINITY;
    return log(fabs(x));
}

/* phi(x) e^shift in double. Half the shift at a time: its exponential may exceed the range of double. */
static __attribute__((unused)) double phi_shifted(vla_features features, double x, double shift)
{
    const double half = exp(0.5 * shift);
    if (features == VLA_ELU1) return x > 0 ? (x + 1) * half * half : exp(x + shift);
    if (features == VLA_SILU) return x * half * exp(fmin(x, 0) + 0.5 * shift) / (1 + exp(-fabs(x)));
    return x * half * half;
}

/* out = scale unit(phi(x)) in double with the row's largest |phi| brought to about 1. */
static __attribute__((noinline, unused)) bool row_unit_scaled(vla_features features, const real *x, int64_t n,
                                                              int64_t width, real scale, real *out)
{
    double top = -INFINITY, squares = 0;
    bool visible = false; /* a NaN, or an infinite phi */
    for (int64_t i = 0; i < n; i++) {
        const double magnitude = phi_log(features, (double)x[i]);
        visible |= !(magnitude < INFINITY);
        top = magnitude > top ? magnitude : top;
    }
    memset(out, 0, (size_t)width * sizeof(real));
    if (visible) {
        for (int64_t i = 0; i < n; i++) out[i] = (real)NAN;
        return false;
    }
    if (!(top > -INFINITY)) return true; /* phi is 0: the zero key */
    for (int64_t i = 0; i < n; i++) {
        const double y = phi_shifted(features, (double)x[i], -top);
        squares += y * y;
    }
    const double factor = (double)scale / sqrt(squares);
    for (int64_t i = 0; i < n; i++) out[i] = (real)(factor * phi_shifted(features, (double)x[i], -top));
    return true;
}

/* out = phi(x). Unlike the unit rows this may hold infinities; returns whether all elements are finite. */
INLINE bool feature_row(vla_features features, const real *x, int64_t n, int64_t width, real *out)
{
    const real squares = vsum(row_phi(features, x, n, width, out));
    if (squares <= SQUARES_HIGH) return true;
    vec zero = vset(0);
    for (int64_t i = 0; i < width; i += LANES) zero += vload(out + i) * 0;
    return vsum(zero) == 0;
}

/* out = scale unit(phi(x)). */
INLINE bool feature_unit_row(vla_features features, const real *x, int64_t n, int64_t width, real scale, real *out)
{
    const real squares = vsum(row_phi(features, x, n, width, out));
    if (!(squares >= SQUARES_LOW && squares <= SQUARES_HIGH)) return row_unit_scaled(features, x, n, width, scale, out);
    row_scale(out, out, width, scale / real_sqrt(squares));
    return true;
}

/* kf = phi(k) and kh = unit(kf) of one raw key. */
INLINE bool feature_key(vla_features features, const real *k, int64_t n, int64_t width, real *kf, real *kh)
{
    const real squares = vsum(row_phi(features, k, n, width, kf));
    if (!(squares >= SQUARES_LOW && squares <= SQUARES_HIGH)) return row_unit_scaled(features, k, n, width, 1, kh);
    row_scale(kh, kf, width, 1 / real_sqrt(squares));
    return true;
}

/* qf = phi(q), or unit(phi(q)) with l2. */
INLINE bool feature_query(vla_features features, bool l2, const real *q, int64_t n, int64_t width, real *qf)
{
    return l2 ? feature_unit_row(features, q, n, width, 1, qf) : feature_row(features, q, n, width, qf);
}

INLINE real penalty_scale(int64_t dk)
{
    return (real)(1 / sqrt((double)dk));
}

/* uh = unit(u)/sqrt(dk) of one raw penalty row (or raw key where u is absent). */
INLINE bool feature_penalty(const real *u, int64_t n, int64_t width, real *uh)
{
    return feature_unit_row(VLA_IDENTITY, u, n, width, penalty_scale(n), uh);
}

/* out = x, zero-padded; returns whether all elements are finite. */
INLINE bool row_load(const real *x, int64_t n, int64_t width, real *out)
{
    return feature_row(VLA_IDENTITY, x, n, width, out);
}

#endif
