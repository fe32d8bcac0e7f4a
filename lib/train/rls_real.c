/* Recursive least squares, one head: exact least squares of v on kh with ridge lambda0.
 *
 *   p = P kh, s = 1 + kh.p, a = p/s, P -= p p^T/s, S += (v - S kh) a^T, o = S qf
 *
 * Adjoint, with G = dL/dP (symmetric): dp = da/s - 2 G p/s + ds kh, ds = -(da.p)/s^2 + p^T G p/s^2,
 * dkh += ds p + P' dp, G += sym(dp kh^T), P' the matrix before the step. */
#include "lib/train/state.h"

static void direction(tape *t, const attention_shape *s, int64_t i)
{
    const int64_t wk = t->wk;
    real *p = t->z + i * wk;
    product(t->A, t->kh + i * wk, s->dk, wk, p);
    t->s[i] = 1 + dotp(t->kh + i * wk, p, wk);
    scaled(t->a + i * wk, p, 1 / t->s[i], NULL, wk);
    outer(t->A, -1 / t->s[i], p, p, s->dk, wk);
}

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    tape_features(t, s, rows);
    tape_start(t, s);
    for (int64_t i = 0; i < s->len; i++) {
        if (keep) tape_mark(t, s, i, true);
        direction(t, s, i);
        tape_residual(t, s, rows, i);
        outer(t->S, 1, t->a + i * t->wk, t->r + i * t->wv, s->dk, t->wv);
        tape_output(t, s, rows, i, tell);
    }
}

static void forward(const attention_shape *s, const attention_rows *rows, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, true, false);
}

static void back_direction(tape *t, const attention_shape *s, const real *P, int64_t i)
{
    const int64_t wk = t->wk;
    const real *p = t->z + i * wk, *kh = t->kh + i * wk;
    real *dp = t->x1, *g = t->x2;
    const real inverse = 1 / t->s[i];
    product(t->G, p, s->dk, wk, g);
    const real ds = (dotp(p, g, wk) - dotp(t->da, p, wk)) * inverse * inverse;
    scaled(dp, t->da, inverse, NULL, wk);
    axpy(dp, -2 * inverse, g, wk);
    axpy(dp, ds, kh, wk);
    product(P, dp, s->dk, wk, t->da);
    axpy(t->dkh, 1, t->da, wk);
    axpy(t->dkh, ds, p, wk);
    clear(g, wk);
    symmetric2(t->G, dp, kh, g, g, s->dk, wk);
}

static void backward(const attention_shape *s, const attention_rows *rows, const attention_gradients *d, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, true);
    back_start(&t, s);
    for (int64_t from = (s->len - 1) / SEGMENT * SEGMENT; s->len > 0 && from >= 0; from -= SEGMENT) {
        for (int64_t i = replay(&t, s, from, true) - 1; i >= from; i--) {
            back_output(&t, s, rows, d, i);
            back_write(&t, s, t.S_steps + (i - from) * s->dv * t.wk, i);
            back_direction(&t, s, t.A_steps + (i - from) * s->dk * t.wk, i);
            clear(t.dkf, t.wk);
            back_features(&t, s, rows, d, i);
        }
    }
}

static real norm(const attention_shape *s, const attention_rows *rows, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, false);
    return state_norm(&t, s);
}

const attention KERNEL(attention_rls) = {state_scratch, forward, backward, norm};
