/* Recursive least squares, one head: exact least squares of v on kh with ridge lambda0.
 *
 *   p = P kh, s = 1 + kh.p, a = p/s, P -= p p^T/s, S += (v - S kh) a^T, o = S qf
 *
 * Adjoint, with G = dL/dP (symmetric): dp = da/s - 2 G p/s + ds kh, ds = -(da.p)/s^2 + p^T G p/s^2,
 * dkh += ds p + P' dp, G += sym(dp kh^T), P' the matrix before the step. */
#include "lib/train/state.h"

static void direct(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i, bool keep)
{
    (void)rows;
    const int64_t wk = t->wk;
    real *p = t->z + i * wk;
    const real *kh = t->kh + i * wk, *p_before = row_of(t, s, t->z, i - 1, wk);
    const pass_terms terms = {.add = {{p_before, p_before, i ? -1 / t->s[i - 1] : 0}}, .product = {{kh, p}}};
    pass_over(1, 1, t->A, t->A, s->dk, wk, &terms);
    t->s[i] = 1 + dotp(kh, p, wk);
    scaled(t->a + i * wk, p, 1 / t->s[i], NULL, wk);
    if (keep && is_marked(t, s, i))
        memcpy(t->A_marks + i / t->segment * s->dk * wk, t->A, (size_t)(s->dk * wk) * sizeof *t->A);
}

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    recur_along(direct, t, s, rows, tell, keep);
}

static void back_direction(tape *t, const attention_shape *s, int64_t i)
{
    const int64_t wk = t->wk;
    const real *p = t->z + i * wk, *kh = t->kh + i * wk, *k_later = row_of(t, s, t->kh, i + 1, wk);
    const real *dp_later = later(t->dx, i, wk);
    real *dp = mine(t->dx, i, wk), *g = t->x2;
    const real inverse = 1 / t->s[i], half = (real)0.5;
    const pass_terms sums = {.add = {{dp_later, k_later, half}, {k_later, dp_later, half}}, .product = {{p, g}}};
    pass_over(2, 1, t->G, t->G, s->dk, wk, &sums);
    const real ds = (dotp(p, g, wk) - dotp(t->da, p, wk)) * inverse * inverse;
    scaled(dp, t->da, inverse, NULL, wk);
    axpy(dp, -2 * inverse, g, wk);
    axpy(dp, ds, kh, wk);
    const bool marked = is_marked(t, s, i);
    const pass_terms before = {.add = {{marked ? t->zero : p, p, inverse}}, .product = {{dp, t->da}}};
    pass_over(1, 1, t->A_back, marked ? t->A_marks + i / t->segment * s->dk * wk : t->A_back, s->dk, wk, &before);
    axpy(t->dkh, 1, t->da, wk);
    axpy(t->dkh, ds, p, wk);
}

static void back_token(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                       int64_t i, real dden)
{
    (void)rows, (void)d, (void)dden;
    back_write(t, s, i);
    back_direction(t, s, i);
    clear(t->dkf, t->wk);
}

STATE_ATTENTION(attention_rls);
