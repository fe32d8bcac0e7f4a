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

INLINE vec vsqrt(vec x)
{
#if VLA_VEC_BYTES == 64
    return VLA_REAL_BITS == 64 ? (vec)_mm512_sqrt_pd((__m512d)x) : (vec)_mm512_sqrt_ps((__m512)x);
#elif VLA_VEC_BYTES == 32
    return VLA_REAL_BITS == 64 ? (vec)_mm256_sqrt_pd((__m256d)x) : (vec)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < LANES; i++) x[i] = real_sqrt(x[i]);
    return x;
#endif
}

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

/* One pass over a matrix M [rows, width] that changes it and multiplies by what it has become:
 *
 *   M = rows o M o columns + sum_i scale_i x_i y_i^T ;  out_j = M^T p_j
 *
 * Products are sums of rows, so that no vector is reduced. How many terms there are is fixed where the pass is inlined;
 * one pass instead of one for each term is what a recurrence of small matrices gains most by, as it is bound by loads
 * and stores. */
typedef struct pass_terms {
    const real *rows, *columns; /* [rows], [width]; NULL: 1 */
    struct {
        const real *x, *y; /* [rows], [width] */
        real scale;
    } add[4];
    struct {
        const real *p; /* [rows] */
        real *out;     /* [width] */
    } product[2];
} pass_terms;

INLINE void pass_columns(int adds, int products, int vectors, real *to, const real *from, int64_t rows, int64_t width,
                         int64_t first, const pass_terms *s)
{
    enum { ADDS = 4, PRODUCTS = 2, VECTORS = 2, WAYS = 4 };
    const int ways = products == 1 ? 4 : 2;
    vec y[ADDS][VECTORS], columns[VECTORS], sum[PRODUCTS][VECTORS][WAYS];
    UNROLL
    for (int c = 0; c < vectors; c++) {
        const int64_t at = first + c * LANES;
        UNROLL
        for (int i = 0; i < adds; i++) y[i][c] = vload(s->add[i].y + at) * s->add[i].scale;
        columns[c] = s->columns ? vload(s->columns + at) : vset(1);
        UNROLL
        for (int j = 0; j < products; j++) {
            UNROLL
            for (int w = 0; w < ways; w++) sum[j][c][w] = vset(0);
        }
    }
    int64_t r = 0;
    for (; r + ways <= rows; r += ways) {
        UNROLL
        for (int w = 0; w < ways; w++) {
            UNROLL
            for (int c = 0; c < vectors; c++) {
                const int64_t at = (r + w) * width + first + c * LANES;
                vec m = vload(from + at);
                if (s->columns) m *= columns[c];
                if (s->rows) m *= s->rows[r + w];
                UNROLL
                for (int i = 0; i < adds; i++) m += y[i][c] * s->add[i].x[r + w];
                if (adds) vstore(to + at, m);
                UNROLL
                for (int j = 0; j < products; j++) sum[j][c][w] += m * s->product[j].p[r + w];
            }
        }
    }
    for (; r < rows; r++) {
        UNROLL
        for (int c = 0; c < vectors; c++) {
            const int64_t at = r * width + first + c * LANES;
            vec m = vload(from + at);
            if (s->columns) m *= columns[c];
            if (s->rows) m *= s->rows[r];
            UNROLL
            for (int i = 0; i < adds; i++) m += y[i][c] * s->add[i].x[r];
            if (adds) vstore(to + at, m);
            UNROLL
            for (int j = 0; j < products; j++) sum[j][c][0] += m * s->product[j].p[r];
        }
    }
    UNROLL
    for (int j = 0; j < products; j++) {
        UNROLL
        for (int c = 0; c < vectors; c++) {
            vec total = sum[j][c][0] + sum[j][c][1];
            if (ways == 4) total += sum[j][c][2] + sum[j][c][3];
            vstore(s->product[j].out + first + c * LANES, total);
        }
    }
}

/* The new M goes to `to`, which may be `from`; NULL with no term to add. */
INLINE void pass_over(int adds, int products, real *to, const real *from, int64_t rows, int64_t width,
                      const pass_terms *s)
{
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES) pass_columns(adds, products, 2, to, from, rows, width, c, s);
    for (; c < width; c += LANES) pass_columns(adds, products, 1, to, from, rows, width, c, s);
}

/* The first `left` lanes of a row, or all where there are as many; zero in the rest. */
INLINE vec get(const real *p, int64_t left)
{
    return left >= LANES ? vload(p) : vload_part(p, left);
}
INLINE void put(real *p, vec x, int64_t left)
{
    if (left >= LANES) {
        vstore(p, x);
    } else {
        real lane[LANES];
        memcpy(lane, &x, sizeof x);
        memcpy(p, lane, (size_t)left * sizeof *p);
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
