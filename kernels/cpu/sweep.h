/* One pass over a state matrix: apply what earlier tokens owe it, and form its products with the next tokens' rows.
 *
 *   M[i][:] = gate o M[i][:] +- sum_u x_u[i] y_u[:]        out_p[:] = sum_i c_p[i] M[i][:]
 *
 * Lanes run over columns, so no product needs a horizontal sum. With two updates and four products an element is loaded
 * and stored once for six fused multiply-adds, which keeps the arithmetic units, not memory, the limit for as long as M
 * lies in a cache. Rows are rows of A (symmetric, so out = A c) or of S transposed. A based sweep forms its
 * products with base + M: M holds the writes of late only, so that a sum over millions of tokens does not lose small
 * ones.
 */
#ifndef VLA_CPU_SWEEP_H
#define VLA_CPU_SWEEP_H
#include "kernels/cpu/simd.h"

enum { SWEEP_UPDATES = 2, SWEEP_PRODUCTS = 4, SWEEP_VECS = 4 };

typedef struct sweep {
    real *m;                       /* [rows, stride], the first `width` columns used */
    int64_t rows, width, stride;   /* width: a multiple of LANES */
    const real *x[SWEEP_UPDATES];  /* [rows] */
    const real *y[SWEEP_UPDATES];  /* [width] */
    const real *base;              /* as m */
    const real *gate;              /* [width] */
    const real *c[SWEEP_PRODUCTS]; /* [rows] */
    real *out[SWEEP_PRODUCTS];     /* [width] */
} sweep;

/* What a sweep does; constants, so that each use compiles to its own loop. */
typedef struct sweep_kind {
    int updates, products;
    int minus; /* subtract the updates */
    int gated, based;
} sweep_kind;

INLINE void sweep_tile(sweep_kind kind, int vecs, const sweep *s, int64_t column)
{
    vec acc[SWEEP_PRODUCTS][SWEEP_VECS], y[SWEEP_UPDATES][SWEEP_VECS], gate[SWEEP_VECS];
    const real *x0 = s->x[0], *x1 = s->x[1];
    const real *c[SWEEP_PRODUCTS] = {s->c[0], s->c[1], s->c[2], s->c[3]};
    real *m = s->m + column;
    const real *base = s->base + (kind.based ? column : 0);
    UNROLL
    for (int v = 0; v < vecs; v++) {
        UNROLL
        for (int u = 0; u < kind.updates; u++) y[u][v] = vload(s->y[u] + column + v * LANES);
        UNROLL
        for (int p = 0; p < kind.products; p++) acc[p][v] = vset(0);
        if (kind.gated) gate[v] = vload(s->gate + column + v * LANES);
    }
    for (int64_t i = 0; i < s->rows; i++, m += s->stride, base += kind.based ? s->stride : 0) {
        vec a[SWEEP_VECS];
        UNROLL
        for (int v = 0; v < vecs; v++) a[v] = vload(m + v * LANES);
        if (kind.gated) {
            UNROLL
            for (int v = 0; v < vecs; v++) a[v] *= gate[v];
        }
        UNROLL
        for (int u = 0; u < kind.updates; u++) {
            const vec x = vset(u == 0 ? x0[i] : x1[i]);
            UNROLL
            for (int v = 0; v < vecs; v++) a[v] = kind.minus ? a[v] - x * y[u][v] : a[v] + x * y[u][v];
        }
        if (kind.updates || kind.gated) {
            UNROLL
            for (int v = 0; v < vecs; v++) vstore(m + v * LANES, a[v]);
        }
        if (kind.based) {
            UNROLL
            for (int v = 0; v < vecs; v++) a[v] += vload(base + v * LANES);
        }
        UNROLL
        for (int p = 0; p < kind.products; p++) {
            const vec b = vset(c[p][i]);
            UNROLL
            for (int v = 0; v < vecs; v++) acc[p][v] += b * a[v];
        }
    }
    UNROLL
    for (int p = 0; p < kind.products; p++) {
        UNROLL
        for (int v = 0; v < vecs; v++) vstore(s->out[p] + column + v * LANES, acc[p][v]);
    }
}

INLINE void sweep_run(sweep_kind kind, const sweep *s)
{
    int64_t column = 0;
    if (kind.products <= 2 || kind.updates == 0)
        for (; column + 4 * LANES <= s->width; column += 4 * LANES) sweep_tile(kind, 4, s, column);
    for (; column + 2 * LANES <= s->width; column += 2 * LANES) sweep_tile(kind, 2, s, column);
    for (; column < s->width; column += LANES) sweep_tile(kind, 1, s, column);
}

/* Sums of many vectors at once: folded to 16 bytes each, then transposed and added. */
typedef real sweep_quad __attribute__((vector_size(16)));
enum { QUAD = 16 / (int)sizeof(real) };

INLINE sweep_quad fold(vec x)
{
    union {
        vec whole;
        sweep_quad part[VLA_VEC_BYTES / 16];
    } u = {x};
    sweep_quad sum = u.part[0];
    UNROLL
    for (int i = 1; i < VLA_VEC_BYTES / 16; i++) sum += u.part[i];
    return sum;
}

/* out[i] = sum of x[i]; x and out hold a multiple of QUAD entries. */
INLINE void vsums(int count, const vec *x, real *out)
{
    UNROLL
    for (int i = 0; i < count; i += QUAD) {
        sweep_quad a = fold(x[i]), b = fold(x[i + 1]);
#if VLA_REAL_BITS == 64
        const sweep_quad sum = __builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3);
#else
        sweep_quad c = fold(x[i + 2]), d = fold(x[i + 3]);
        a = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
        c = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
        const sweep_quad sum = __builtin_shufflevector(a, c, 0, 1, 4, 5) + __builtin_shufflevector(a, c, 2, 3, 6, 7);
#endif
        memcpy(out + i, &sum, sizeof sum);
    }
}

#endif
