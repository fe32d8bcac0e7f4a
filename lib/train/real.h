/* What the *_real.c files share: each is compiled once per element type and instruction set, like the fast kernels, so
 * that the gradients checked in float64 are those of the source that trains in float32. */
#ifndef VLA_TRAIN_REAL_H
#define VLA_TRAIN_REAL_H
#include "kernels/cpu/features.h"
#include <cblas.h>

/* C [m, n] = alpha op(A) op(B) + beta C, row-major; BLAS runs in the calling thread. */
INLINE void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, real alpha, const real *A,
                 int64_t lda, const real *B, int64_t ldb, real beta, real *C, int64_t ldc)
{
    if (m == 0 || n == 0) return;
#if VLA_REAL_BITS == 64
    cblas_dgemm
#else
    cblas_sgemm
#endif
        (CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, A, (int)lda, B, (int)ldb, beta, C, (int)ldc);
}

/* The loops below run over padded widths: whole vectors, zeros at the end. */

INLINE real dotp(const real *x, const real *y, int64_t width)
{
    vec sum = vset(0);
    for (int64_t i = 0; i < width; i += LANES) sum += vload(x + i) * vload(y + i);
    return vsum(sum);
}

/* y = x scale + add (add may be NULL: 0). */
INLINE void scaled(real *y, const real *x, real scale, const real *add, int64_t width)
{
    for (int64_t i = 0; i < width; i += LANES) {
        const vec sum = vload(x + i) * scale;
        vstore(y + i, add ? sum + vload(add + i) : sum);
    }
}

INLINE void axpy(real *y, real scale, const real *x, int64_t width)
{
    for (int64_t i = 0; i < width; i += LANES) vstore(y + i, vload(y + i) + vload(x + i) * scale);
}

/* y = M^T x for M [rows, width]: sums of rows, so that no vector is reduced. Two vectors of columns by four rows keep
 * eight sums in flight. */
INLINE void product2(const real *M, const real *x, int64_t rows, int64_t width, int64_t from, real *y)
{
    vec s0[4], s1[4];
    UNROLL
    for (int i = 0; i < 4; i++) s0[i] = s1[i] = vset(0);
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const real *row = M + (r + i) * width + from;
            s0[i] += vload(row) * x[r + i];
            s1[i] += vload(row + LANES) * x[r + i];
        }
    }
    for (; r < rows; r++) {
        s0[0] += vload(M + r * width + from) * x[r];
        s1[0] += vload(M + r * width + from + LANES) * x[r];
    }
    vstore(y + from, (s0[0] + s0[1]) + (s0[2] + s0[3]));
    vstore(y + from + LANES, (s1[0] + s1[1]) + (s1[2] + s1[3]));
}

INLINE void product(const real *M, const real *x, int64_t rows, int64_t width, real *y)
{
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES) product2(M, x, rows, width, c, y);
    for (; c < width; c += LANES) {
        vec sum = vset(0);
        for (int64_t r = 0; r < rows; r++) sum += vload(M + r * width + c) * x[r];
        vstore(y + c, sum);
    }
}

/* y1 = M^T x1 and y2 = M^T x2 in one pass over M. */
INLINE void products(const real *M, const real *x1, const real *x2, int64_t rows, int64_t width, real *y1, real *y2)
{
    for (int64_t c = 0; c < width; c += LANES) {
        vec a[4], b[4];
        UNROLL
        for (int i = 0; i < 4; i++) a[i] = b[i] = vset(0);
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                const vec m = vload(M + (r + i) * width + c);
                a[i] += m * x1[r + i];
                b[i] += m * x2[r + i];
            }
        }
        for (; r < rows; r++) {
            const vec m = vload(M + r * width + c);
            a[0] += m * x1[r];
            b[0] += m * x2[r];
        }
        vstore(y1 + c, (a[0] + a[1]) + (a[2] + a[3]));
        vstore(y2 + c, (b[0] + b[1]) + (b[2] + b[3]));
    }
}

/* to = from + scale x y^T, [rows, width]; in place when to == from. */
INLINE void outer_to(real *to, const real *from, real scale, const real *x, const real *y, int64_t rows, int64_t width)
{
    for (int64_t c = 0; c < width; c += LANES) {
        const vec column = vload(y + c) * scale;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = r * width + c;
            vstore(to + at, vload(from + at) + column * x[r]);
        }
    }
}

INLINE void outer(real *M, real scale, const real *x, const real *y, int64_t rows, int64_t width)
{
    outer_to(M, M, scale, x, y, rows, width);
}

/* M += x1 y1^T + x2 y2^T. */
INLINE void outer2(real *M, const real *x1, const real *y1, const real *x2, const real *y2, int64_t rows, int64_t width)
{
    for (int64_t c = 0; c < width; c += LANES) {
        const vec b1 = vload(y1 + c), b2 = vload(y2 + c);
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = r * width + c;
            vstore(M + at, vload(M + at) + (b1 * x1[r] + b2 * x2[r]));
        }
    }
}

/* M += (x1 y1^T + y1 x1^T + x2 y2^T + y2 x2^T)/2, which keeps M symmetric. */
INLINE void symmetric2(real *M, const real *x1, const real *y1, const real *x2, const real *y2, int64_t rows,
                       int64_t width)
{
    const real half = (real)0.5;
    for (int64_t c = 0; c < width; c += LANES) {
        const vec a1 = vload(x1 + c) * half, b1 = vload(y1 + c) * half;
        const vec a2 = vload(x2 + c) * half, b2 = vload(y2 + c) * half;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = r * width + c;
            vstore(M + at, vload(M + at) + ((b1 * x1[r] + a1 * y1[r]) + (b2 * x2[r] + a2 * y2[r])));
        }
    }
}

/* Row of n raw values into a padded row. */
INLINE void load_row(real *to, const real *from, int64_t n, int64_t width)
{
    const int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) vstore(to + i, vload(from + i));
    if (whole < n) vstore(to + whole, vload_part(from + whole, n - whole));
    for (int64_t i = whole < n ? whole + LANES : whole; i < width; i += LANES) vstore(to + i, vset(0));
}

/* Derivative of phi times g: elu1 1 or exp(x) = phi, silu s (1 + x (1 - s)), identity 1. y = phi(x). */
INLINE real phi_slope(vla_features features, real x, real y)
{
    if (features == VLA_ELU1) return x > 0 ? 1 : y;
    if (features == VLA_IDENTITY) return 1;
    const real s = x == 0 ? (real)0.5 : y / x;
    return s * (1 + x * (1 - s));
}

/* unit = x/|x| of a padded row, 0 for a zero row; returns 1/|x|, or 0. */
INLINE real make_unit(real *unit, const real *x, int64_t width)
{
    const real squares = dotp(x, x, width);
    const real inverse = squares > 0 ? 1 / (real)sqrt((double)squares) : squares * 0;
    for (int64_t i = 0; i < width; i += LANES) vstore(unit + i, vload(x + i) * inverse);
    return inverse;
}

/* dx += inverse (dy - y (y.dy)) for y = unit(x), inverse = 1/|x|. */
INLINE void add_unit_back(real *dx, const real *dy, const real *y, real inverse, int64_t width)
{
    const real along = dotp(y, dy, width);
    for (int64_t i = 0; i < width; i += LANES)
        vstore(dx + i, vload(dx + i) + (vload(dy + i) - vload(y + i) * along) * inverse);
}

INLINE real sigmoid(real x)
{
    const real e = (real)exp(-fabs((double)x));
    return (x < 0 ? e : 1) / (1 + e);
}

#endif
