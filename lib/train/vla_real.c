/* Variational linear attention, one head (kernels/cpu/vla_naive_cpu.c is the readable form), token by token.
 *
 *   z = A uh, s = 1 + uh.z, A -= z z^T/s (+ eps I every refresh_period), x = A kh, a = x/|x|, S += (v - S kh) a^T
 *
 * Adjoint of a step, with G = dL/dA (kept symmetric) and da from the state's adjoint:
 *   dx = (da - a (a.da))/|x|        dkh += A dx        G += sym(dx kh^T)
 *   ds = z^T G z/s^2                dz = -2 G z/s + ds uh        duh = ds z + A' dz        G += sym(dz uh^T)
 * where A' is A before the step, so A dx = A' dx - z (z.dx)/s (+ eps dx), and z.dx, z.kh give G's sym(dx kh^T) z. */
#include "lib/train/state.h"

static bool is_refreshed(const attention_shape *s, int64_t i)
{
    return s->refresh_period && i >= 0 && (i + 1) % s->refresh_period == 0;
}

static void add_diagonal(real *A, const attention_shape *s, int64_t width, real eps)
{
    for (int64_t c = 0; c < s->dk; c++) A[c * width + c] += eps;
}

/* z, s and a of token i; x = A kh of the A after the token, from A before it. */
static void direct(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i, bool keep)
{
    (void)rows;
    const int64_t wk = t->wk;
    real *z = t->z + i * wk, *a = t->a + i * wk, *x = t->x1;
    const real *uh = t->uh + i * wk, *kh = t->kh + i * wk, *z_before = row_of(t, s, t->z, i - 1, wk);
    if (is_refreshed(s, i - 1)) add_diagonal(t->A, s, wk, s->refresh_eps);
    const pass_terms terms = {.add = {{z_before, z_before, i ? -1 / t->s[i - 1] : 0}}, .product = {{uh, z}, {kh, x}}};
    pass_over(1, 2, t->A, t->A, s->dk, wk, &terms);
    t->s[i] = 1 + dotp(uh, z, wk);
    axpy(x, -dotp(z, kh, wk) / t->s[i], z, wk);
    if (is_refreshed(s, i)) axpy(x, s->refresh_eps, kh, wk);
    t->inv_x[i] = make_unit(a, x, wk);
    if (keep && is_marked(t, s, i))
        memcpy(t->A_marks + i / t->segment * s->dk * wk, t->A, (size_t)(s->dk * wk) * sizeof *t->A);
}

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    recur_along(direct, t, s, rows, tell, keep);
}

/* A before token i times dx and dz, into da and duh. */
static void back_penalty(tape *t, const attention_shape *s, int64_t i, const real *dx, const real *dz)
{
    const int64_t wk = t->wk;
    const real *z = t->z + i * wk, *from = t->A_back;
    pass_terms terms = {.add = {{z, z, 1 / t->s[i]}}, .product = {{dx, t->da}, {dz, t->duh}}};
    if (is_marked(t, s, i))
        from = t->A_marks + i / t->segment * s->dk * wk, terms.add[0].x = t->zero;
    else if (is_refreshed(s, i))
        add_diagonal(t->A_back, s, wk, -s->refresh_eps);
    pass_over(1, 2, t->A_back, from, s->dk, wk, &terms);
}

/* dkh and duh of the token. */
static void back_direction(tape *t, const attention_shape *s, int64_t i)
{
    const int64_t wk = t->wk;
    const real *z = t->z + i * wk, *uh = t->uh + i * wk, *kh = t->kh + i * wk, *a = t->a + i * wk;
    const real *k_later = row_of(t, s, t->kh, i + 1, wk), *u_later = row_of(t, s, t->uh, i + 1, wk);
    const real *dx_later = later(t->dx, i, wk), *dz_later = later(t->dz, i, wk);
    real *dx = mine(t->dx, i, wk), *dz = mine(t->dz, i, wk), *g = t->x2;
    const real inverse = 1 / t->s[i], half = (real)0.5;
    const pass_terms terms = {.add = {{dx_later, k_later, half},
                                      {k_later, dx_later, half},
                                      {dz_later, u_later, half},
                                      {u_later, dz_later, half}},
                              .product = {{z, g}}};
    pass_over(4, 1, t->G, t->G, s->dk, wk, &terms);
    clear(dx, wk);
    add_unit_back(dx, t->da, a, t->inv_x[i], wk);
    const real dx_z = dotp(dx, z, wk);
    axpy(g, half * dotp(kh, z, wk), dx, wk);
    axpy(g, half * dx_z, kh, wk);
    const real ds = dotp(z, g, wk) * inverse * inverse;
    scaled(dz, g, -2 * inverse, NULL, wk);
    axpy(dz, ds, uh, wk);
    back_penalty(t, s, i, dx, dz);
    axpy(t->dkh, 1, t->da, wk);
    axpy(t->dkh, -inverse * dx_z, z, wk);
    if (is_refreshed(s, i)) axpy(t->dkh, s->refresh_eps, dx, wk);
    axpy(t->duh, ds, z, wk);
}

static void store_u_back(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                         int64_t i)
{
    const int64_t wk = t->wk;
    const real root = (real)sqrt((double)s->dk);
    scaled(t->x2, t->uh + i * wk, root, NULL, wk); /* unit(u) */
    clear(t->x1, wk);
    add_unit_back(t->x1, t->duh, t->x2, t->inv_u[i] / root, wk);
    for (int64_t c = 0; c < s->dk; c += LANES) put(d->u + i * rows->u_stride + c, vload(t->x1 + c), s->dk - c);
}

static void back_token(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                       int64_t i, real dden)
{
    back_write(t, s, i);
    if (s->ratio) axpy(t->dqf, dden, t->n + i * t->wk, t->wk);
    back_direction(t, s, i);
    store_u_back(t, s, rows, d, i);
    memcpy(t->dkf, t->dn, (size_t)t->wk * sizeof *t->dn);
}

STATE_ATTENTION(attention_vla);
