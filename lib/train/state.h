/* What the operators with a matrix state share: the tape of one head, its features, and the adjoint of
 *
 *   S_t = S_{t-1} + r_t a_t^T,  r_t = v_t - S_{t-1} kh_t,  y_t = S_t qf_t.
 *
 * With D = dL/dS_t from later tokens and dy = dL/dy_t:
 *   dr = (D + dy qf^T) a = D a + dy (qf.a)            da = (D + dy qf^T)^T r = D^T r + qf (dy.r)
 *   dqf = S_t^T dy = S_{t-1}^T dy + a (r.dy)          dkh = -S_{t-1}^T dr        dv = dr
 *   dL/dS_{t-1} = D + dy qf^T - dr kh^T
 * D is kept twice, as [dk, dv] and as [dv, dk], so that both products are sums of rows. */
#ifndef VLA_TRAIN_STATE_H
#define VLA_TRAIN_STATE_H
#include "lib/train/attention.h"

typedef struct tape {
    int64_t wk, wv;                                  /* padded widths */
    real *qf, *kf, *kh, *uh, *a, *z, *n;             /* [len, wk] */
    real *r, *o;                                     /* [len, wv] */
    real *inv_q, *inv_k, *inv_u, *inv_x, *s, *den;   /* [len] */
    bool *floored;                                   /* [len]: the ratio's floor was used */
    real *S, *A;                                     /* S as [dk, wv], A [dk, wk]: the recursion's state */
    real *S_marks, *A_marks;                         /* at every SEGMENT tokens, S as [dv, wk] */
    real *S_steps, *A_steps;                         /* within a segment, before every token */
    real *D1, *D2, *G;                               /* dL/dS as [dk, wv] and [dv, wk]; dL/dA */
    real *dy, *dr, *minus_dr;                        /* [wv] */
    real *dqf, *dkf, *dkh, *duh, *da, *dn, *x1, *x2; /* [wk] */
} tape;

INLINE real *take(int64_t *used, real *base, int64_t count)
{
    real *at = base ? base + *used : NULL;
    *used += PAD(count);
    return at;
}

/* Lays the tape out over base; returns the elements it takes (base NULL: only counts). */
INLINE int64_t tape_make(tape *t, const attention_shape *s, real *base)
{
    int64_t used = 0;
    const int64_t wk = t->wk = PAD(s->dk), wv = t->wv = PAD(s->dv), len = s->len, marks = len / SEGMENT + 1;
    real **wide[] = {&t->qf, &t->kf, &t->kh, &t->uh, &t->a, &t->z, &t->n};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) *wide[i] = take(&used, base, len * wk);
    t->r = take(&used, base, len * wv);
    t->o = take(&used, base, len * wv);
    real **scalars[] = {&t->inv_q, &t->inv_k, &t->inv_u, &t->inv_x, &t->s, &t->den};
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) *scalars[i] = take(&used, base, len);
    t->floored = (bool *)take(&used, base, len);
    t->S = take(&used, base, s->dk * wv);
    t->A = take(&used, base, s->dk * wk);
    t->S_marks = take(&used, base, marks * s->dv * wk);
    t->A_marks = take(&used, base, marks * s->dk * wk);
    t->S_steps = take(&used, base, (SEGMENT + 1) * s->dv * wk);
    t->A_steps = take(&used, base, (SEGMENT + 1) * s->dk * wk);
    t->D1 = take(&used, base, s->dk * wv);
    t->D2 = take(&used, base, s->dv * wk);
    t->G = take(&used, base, s->dk * wk);
    t->dy = take(&used, base, wv);
    t->dr = take(&used, base, wv);
    t->minus_dr = take(&used, base, wv);
    real **rows[] = {&t->dqf, &t->dkf, &t->dkh, &t->duh, &t->da, &t->dn, &t->x1, &t->x2};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) *rows[i] = take(&used, base, wk);
    return used;
}

INLINE int64_t state_scratch(const attention_shape *s)
{
    tape t;
    return tape_make(&t, s, NULL);
}

INLINE void clear(real *x, int64_t count)
{
    memset(x, 0, (size_t)count * sizeof *x);
}

/* qf, kf, kh of every token; uh where rows->u is there. */
INLINE void tape_features(tape *t, const attention_shape *s, const attention_rows *rows)
{
    const int64_t wk = t->wk;
    for (int64_t i = 0; i < s->len; i++) {
        real *qf = t->qf + i * wk, *kf = t->kf + i * wk;
        row_phi(s->features, rows->q + i * rows->stride, s->dk, wk, qf);
        if (s->qk_l2) t->inv_q[i] = make_unit(qf, qf, wk);
        row_phi(s->key_features, rows->k + i * rows->stride, s->dk, wk, kf);
        t->inv_k[i] = make_unit(t->kh + i * wk, kf, wk);
        if (!rows->u) continue;
        real *uh = t->uh + i * wk;
        load_row(uh, rows->u + i * rows->u_stride, s->dk, wk);
        t->inv_u[i] = make_unit(uh, uh, wk);
        scaled(uh, uh, (real)(1 / sqrt((double)s->dk)), NULL, wk);
    }
}

INLINE void tape_start(tape *t, const attention_shape *s)
{
    clear(t->S, s->dk * t->wv);
    clear(t->n, t->wk);
    clear(t->A, s->dk * t->wk);
    for (int64_t i = 0; i < s->dk; i++) t->A[i * t->wk + i] = 1 / s->lambda0;
}

/* S as [dv, wk] from S as [dk, wv]. */
INLINE void tape_mark(tape *t, const attention_shape *s, int64_t i, bool with_A)
{
    if (i % SEGMENT) return;
    real *mark = t->S_marks + i / SEGMENT * s->dv * t->wk;
    clear(mark, s->dv * t->wk);
    for (int64_t c = 0; c < s->dk; c++)
        for (int64_t j = 0; j < s->dv; j++) mark[j * t->wk + c] = t->S[c * t->wv + j];
    if (with_A) memcpy(t->A_marks + i / SEGMENT * s->dk * t->wk, t->A, (size_t)(s->dk * t->wk) * sizeof *t->A);
}

/* r = v - S kh into the tape. */
INLINE void tape_residual(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i)
{
    real *r = t->r + i * t->wv;
    product(t->S, t->kh + i * t->wk, s->dk, t->wv, t->dy);
    load_row(r, rows->v + i * rows->v_stride, s->dv, t->wv);
    axpy(r, -1, t->dy, t->wv);
}

/* o = y/max(n.qf, floor), or y. n [wk] is the sum of kf up to and with this token. */
INLINE void tape_output(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i, bool write)
{
    const int64_t wk = t->wk;
    real *o = t->o + i * t->wv, *n = t->n + i * wk;
    product(t->S, t->qf + i * wk, s->dk, t->wv, o);
    if (s->ratio) {
        scaled(n, t->kf + i * wk, 1, i ? n - wk : NULL, wk);
        const real den = dotp(n, t->qf + i * wk, wk);
        t->floored[i] = den <= s->floor; /* false for NaN, which stays visible */
        t->den[i] = t->floored[i] ? s->floor : den;
        scaled(o, o, 1 / t->den[i], NULL, t->wv);
    }
    if (write) memcpy(rows->o + i * rows->o_stride, o, (size_t)s->dv * sizeof *o);
}

INLINE void back_start(tape *t, const attention_shape *s)
{
    clear(t->D1, s->dk * t->wv);
    clear(t->D2, s->dv * t->wk);
    clear(t->G, s->dk * t->wk);
    clear(t->dn, t->wk);
}

/* dy, and what the ratio adds: *dden n to dqf, *dden qf to dn. */
INLINE real back_output(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                        int64_t i)
{
    load_row(t->dy, d->o + i * rows->o_stride, s->dv, t->wv);
    if (!s->ratio) return 0;
    const real dden = t->floored[i] ? 0 : -dotp(t->dy, t->o + i * t->wv, t->wv) / t->den[i];
    scaled(t->dy, t->dy, 1 / t->den[i], NULL, t->wv);
    axpy(t->dn, dden, t->qf + i * t->wk, t->wk);
    return dden;
}

/* dr, da, dqf and dkh of token i, and D for the token before; S: the state before the token as [dv, wk]. */
INLINE void back_write(tape *t, const attention_shape *s, const real *S, int64_t i)
{
    const int64_t wk = t->wk, wv = t->wv;
    const real *qf = t->qf + i * wk, *a = t->a + i * wk, *kh = t->kh + i * wk, *r = t->r + i * wv;
    product(t->D1, a, s->dk, wv, t->dr);
    axpy(t->dr, dotp(qf, a, wk), t->dy, wv);
    product(t->D2, r, s->dv, wk, t->da);
    axpy(t->da, dotp(t->dy, r, wv), qf, wk);
    products(S, t->dy, t->dr, s->dv, wk, t->dqf, t->dkh);
    axpy(t->dqf, dotp(r, t->dy, wv), a, wk);
    scaled(t->dkh, t->dkh, -1, NULL, wk);
    scaled(t->minus_dr, t->dr, -1, NULL, wv);
    scaled(t->x1, kh, -1, NULL, wk);
    outer2(t->D1, qf, t->dy, kh, t->minus_dr, s->dk, wv);
    outer2(t->D2, t->dy, qf, t->dr, t->x1, s->dv, wk);
}

INLINE void store_feature_back(real *to, const real *raw, const real *y, const real *dy, vla_features features,
                               int64_t dk)
{
    if (features == VLA_ELU1) /* phi <= 1 exactly where its slope is phi */
        for (int64_t c = 0; c < dk; c++) to[c] = dy[c] * (y[c] > 1 ? 1 : y[c]);
    else
        for (int64_t c = 0; c < dk; c++) to[c] = dy[c] * phi_slope(features, raw[c], y[c]);
}

/* dqf, dkf and dkh to the raw rows' gradients; dv = dr. */
INLINE void back_features(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                          int64_t i)
{
    const int64_t wk = t->wk, at = i * rows->stride;
    add_unit_back(t->dkf, t->dkh, t->kh + i * wk, t->inv_k[i], wk);
    store_feature_back(d->k + at, rows->k + at, t->kf + i * wk, t->dkf, s->key_features, s->dk);
    if (s->qk_l2) { /* phi(q) again: the tape has its unit row */
        clear(t->x1, wk);
        add_unit_back(t->x1, t->dqf, t->qf + i * wk, t->inv_q[i], wk);
        row_phi(s->features, rows->q + at, s->dk, wk, t->x2);
        store_feature_back(d->q + at, rows->q + at, t->x2, t->x1, s->features, s->dk);
    } else {
        store_feature_back(d->q + at, rows->q + at, t->qf + i * wk, t->dqf, s->features, s->dk);
    }
    memcpy(d->v + i * rows->v_stride, t->dr, (size_t)s->dv * sizeof *t->dr);
}

/* States before every token of the segment that starts at `from`, from its mark. a_scale: how A loses z z^T. */
INLINE int64_t replay(tape *t, const attention_shape *s, int64_t from, bool with_A)
{
    const int64_t wk = t->wk, end = from + SEGMENT < s->len ? from + SEGMENT : s->len;
    memcpy(t->S_steps, t->S_marks + from / SEGMENT * s->dv * wk, (size_t)(s->dv * wk) * sizeof *t->S);
    if (with_A) memcpy(t->A_steps, t->A_marks + from / SEGMENT * s->dk * wk, (size_t)(s->dk * wk) * sizeof *t->A);
    for (int64_t i = from; i + 1 < end; i++) {
        real *S = t->S_steps + (i - from) * s->dv * wk;
        outer_to(S + s->dv * wk, S, 1, t->r + i * t->wv, t->a + i * wk, s->dv, wk);
        if (!with_A) continue;
        real *A = t->A_steps + (i - from) * s->dk * wk, *next = A + s->dk * wk;
        outer_to(next, A, -1 / t->s[i], t->z + i * wk, t->z + i * wk, s->dk, wk);
        if (s->op == VLA_VLA && s->refresh_period && (i + 1) % s->refresh_period == 0)
            for (int64_t c = 0; c < s->dk; c++) next[c * wk + c] += s->refresh_eps;
    }
    return end;
}

INLINE real state_norm(const tape *t, const attention_shape *s)
{
    return (real)sqrt((double)dotp(t->S, t->S, s->dk * t->wv));
}

#endif
