/* Rows of a block of BLOCK = 8 tokens at a time: feature maps, unit rows, running denominators. As the row functions of
 * features.h, with the eight sums across lanes done together.
 */
#ifndef VLA_CPU_BLOCK_H
#define VLA_CPU_BLOCK_H
#include "kernels/cpu/panel.h"

/* sum[r] = the sum of the lanes of x[r], by a transpose instead of eight horizontal sums. */
INLINE void block_sums(const vec x[BLOCK], real sum[BLOCK])
{
    square_vec half[BLOCK];
    UNROLL
    for (int r = 0; r < BLOCK; r++) {
#if VLA_VEC_BYTES / (VLA_REAL_BITS / 8) == 16
        half[r] = __builtin_shufflevector(x[r], x[r], 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(x[r], x[r], 8, 9, 10, 11, 12, 13, 14, 15);
#else
        half[r] = x[r];
#endif
    }
    UNROLL
    for (int r = 0; r < BLOCK; r += SQUARE) {
        square_transpose(half + r);
        square_vec total = half[r];
        UNROLL
        for (int i = 1; i < SQUARE; i++) total += half[r + i];
        *(square_vecu *)(sum + r) = total;
    }
}

INLINE void block_phi_of(vla_features features, const real *x, int64_t n, int64_t rows, int64_t width, real *out,
                         real squares[BLOCK])
{
    vec sum[BLOCK];
    UNROLL
    for (int r = 0; r < BLOCK; r++) sum[r] = vset(0);
    for (int64_t r = 0; r < rows; r++) sum[r] = row_phi(features, x + r * n, n, width, out + r * width);
    block_sums(sum, squares);
}

/* out = phi(x) for the first `rows` rows, x [rows][n], out [..][width]; squares: their sums of squares. */
static __attribute__((noinline, unused)) void block_phi(vla_features features, const real *x, int64_t n, int64_t rows,
                                                        int64_t width, real *out, real squares[BLOCK])
{
    if (features == VLA_ELU1)
        block_phi_of(VLA_ELU1, x, n, rows, width, out, squares);
    else if (features == VLA_SILU)
        block_phi_of(VLA_SILU, x, n, rows, width, out, squares);
    else
        block_phi_of(VLA_IDENTITY, x, n, rows, width, out, squares);
}

/* raw = phi(x) and out = scale unit(phi(x)); raw may be out. Returns the first row that is not finite, or `rows`. */
static __attribute__((unused)) int64_t block_unit(vla_features features, const real *x, int64_t n, int64_t rows,
                                                  int64_t width, real scale, real *raw, real *out)
{
    real squares[BLOCK], factor[BLOCK];
    int64_t first = rows;
    block_phi(features, x, n, rows, width, raw, squares);
    for (int r = 0; r < BLOCK; r++) factor[r] = scale / real_sqrt(squares[r]);
    for (int64_t r = 0; r < rows; r++) {
        if (squares[r] >= SQUARES_LOW && squares[r] <= SQUARES_HIGH)
            row_scale(out + r * width, raw + r * width, width, factor[r]);
        else if (!row_unit_scaled(features, x + r * n, n, width, scale, out + r * width) && first == rows)
            first = r;
    }
    return first;
}

/* out = phi(x); returns the first row that is not finite, or `rows`. */
static __attribute__((unused)) int64_t block_rows(vla_features features, const real *x, int64_t n, int64_t rows,
                                                  int64_t width, real *out)
{
    real squares[BLOCK];
    block_phi(features, x, n, rows, width, out, squares);
    for (int64_t r = 0; r < rows; r++)
        if (!(squares[r] <= SQUARES_HIGH) && !feature_row(features, x + r * n, n, width, out + r * width)) return r;
    return rows;
}

/* a = unit(x) for whole padded rows of width n. */
static __attribute__((unused)) void block_normalise(const real *x, int64_t n, int64_t width, real *a)
{
    vec sum[BLOCK];
    real squares[BLOCK], factor[BLOCK];
    UNROLL
    for (int r = 0; r < BLOCK; r++) sum[r] = vset(0);
    for (int64_t j = 0; j < width; j += LANES) {
        UNROLL
        for (int r = 0; r < BLOCK; r++) {
            const vec y = vload(x + r * width + j);
            sum[r] += y * y;
        }
    }
    block_sums(sum, squares);
    for (int r = 0; r < BLOCK; r++) factor[r] = 1 / real_sqrt(squares[r]);
    for (int64_t r = 0; r < BLOCK; r++) {
        if (squares[r] >= SQUARES_LOW && squares[r] <= SQUARES_HIGH)
            row_scale(a + r * width, x + r * width, width, factor[r]);
        else
            row_unit_scaled(VLA_IDENTITY, x + r * width, n, width, 1, a + r * width);
    }
}

/* n += kf token by token and den[i] = max(n_i . qf_i, eps), n_i being n after token i. n = n + carry is compensated
 * (Kahan, once a block), so that rounding does not pile up over millions of tokens. */
static __attribute__((unused)) void block_ratio(real *n, real *carry, const real *kf, const real *q, int64_t width,
                                                real den[BLOCK])
{
    vec dot[BLOCK];
    UNROLL
    for (int r = 0; r < BLOCK; r++) dot[r] = vset(0);
    for (int64_t j = 0; j < width; j += LANES) {
        const vec start = vload(n + j);
        vec now = start, sum = vload(carry + j);
        UNROLL
        for (int r = 0; r < BLOCK; r++) {
            const vec k = vload(kf + r * width + j);
            now += k;
            sum += k;
            dot[r] += now * vload(q + r * width + j);
        }
        const vec end = start + sum;
        vstore(carry + j, sum - (end - start));
        vstore(n + j, end);
    }
    block_sums(dot, den);
    for (int r = 0; r < BLOCK; r++)
        /* NaN stays; a denominator that overflowed becomes one, as S qf / infinity would be a plausible zero. */
        den[r] = den[r] < (real)VLA_RATIO_EPS ? (real)VLA_RATIO_EPS : den[r] + (den[r] - den[r]);
}

#endif
