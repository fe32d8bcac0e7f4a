/* Variational linear attention, one head (kernels/cpu/vla_naive_cpu.c is the readable form), token by token.
 *
 *   z = A uh, s = 1 + uh.z, A -= z z^T/s (+ eps I every refresh_period), x = A kh, a = x/|x|, S += (v - S kh) a^T
 *
 * Adjoint of a step, with G = dL/dA (kept symmetric) and da from the state's adjoint:
 *   dx = (da - a (a.da))/|x|        dkh += A dx        G += sym(dx kh^T)
 *   ds = z^T G z/s^2                dz = -2 G z/s + ds uh        duh = ds z + A' dz        G += sym(dz uh^T)
 * where A' is A before the step, so A dx = A' dx - z (z.dx)/s (+ eps dx). One token costs about 20 dk^2 + 20 dk dv
 * multiply-adds. At the widths trained here (heads of 32, tens to hundreds of tokens) that is less work than the
 * chunkwise form's adjoint, whose products of C x C matrices only pay when dk is several times larger. */
#include "lib/train/state.h"

static void direction(tape *t, const attention_shape *s, int64_t i)
{
    const int64_t wk = t->wk;
    real *z = t->z + i * wk, *a = t->a + i * wk;
    const real *uh = t->uh + i * wk;
    product(t->A, uh, s->dk, wk, z);
    t->s[i] = 1 + dotp(uh, z, wk);
    outer(t->A, -1 / t->s[i], z, z, s->dk, wk);
    if (s->refresh_period && (i + 1) % s->refresh_period == 0)
        for (int64_t c = 0; c < s->dk; c++) t->A[c * wk + c] += s->refresh_eps;
    product(t->A, t->kh + i * wk, s->dk, wk, t->x1);
    t->inv_x[i] = make_unit(a, t->x1, wk);
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

/* dkh and duh of the token; G for the token before. */
static void back_direction(tape *t, const attention_shape *s, const real *A, int64_t i)
{
    const int64_t wk = t->wk;
    const real *z = t->z + i * wk, *uh = t->uh + i * wk, *kh = t->kh + i * wk, *a = t->a + i * wk;
    real *dx = t->x1, *dz = t->x2, *g = t->duh;
    const real inverse = 1 / t->s[i], half = (real)0.5;
    clear(dx, wk);
    add_unit_back(dx, t->da, a, t->inv_x[i], wk);
    product(t->G, z, s->dk, wk, g);
    axpy(g, half * dotp(kh, z, wk), dx, wk);
    axpy(g, half * dotp(dx, z, wk), kh, wk);
    const real ds = dotp(z, g, wk) * inverse * inverse;
    scaled(dz, g, -2 * inverse, NULL, wk);
    axpy(dz, ds, uh, wk);
    products(A, dx, dz, s->dk, wk, t->da, t->duh);
    axpy(t->dkh, 1, t->da, wk);
    axpy(t->dkh, -inverse * dotp(z, dx, wk), z, wk);
    if (s->refresh_period && (i + 1) % s->refresh_period == 0) axpy(t->dkh, s->refresh_eps, dx, wk);
    axpy(t->duh, ds, z, wk);
    symmetric2(t->G, dx, kh, dz, uh, s->dk, wk);
}

static void store_u_back(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                         int64_t i)
{
    const int64_t wk = t->wk;
    const real root = (real)sqrt((double)s->dk);
    scaled(t->x2, t->uh + i * wk, root, NULL, wk); /* unit(u) */
    clear(t->x1, wk);
    add_unit_back(t->x1, t->duh, t->x2, t->inv_u[i] / root, wk);
    memcpy(d->u + i * rows->u_stride, t->x1, (size_t)s->dk * sizeof *t->x1);
}

static void backward(const attention_shape *s, const attention_rows *rows, const attention_gradients *d, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, true);
    back_start(&t, s);
    for (int64_t from = (s->len - 1) / SEGMENT * SEGMENT; s->len > 0 && from >= 0; from -= SEGMENT) {
        for (int64_t i = replay(&t, s, from, true) - 1; i >= from; i--) {
            const real dden = back_output(&t, s, rows, d, i);
            back_write(&t, s, t.S_steps + (i - from) * s->dv * t.wk, i);
            if (s->ratio) axpy(t.dqf, dden, t.n + i * t.wk, t.wk);
            back_direction(&t, s, t.A_steps + (i - from) * s->dk * t.wk, i);
            store_u_back(&t, s, rows, d, i);
            memcpy(t.dkf, t.dn, (size_t)t.wk * sizeof *t.dn);
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

const attention KERNEL(attention_vla) = {state_scratch, forward, backward, norm};
