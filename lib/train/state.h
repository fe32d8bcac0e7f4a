/* What the operators with a matrix state share: the tape of one head, its features, and the adjoint of
 *
 *   S_t = S_{t-1} + r_t a_t^T,  r_t = v_t - S_{t-1} kh_t,  y_t = S_t qf_t = S_{t-1} qf_t + r_t (a_t.qf_t).
 *
 * With D = dL/dS_t from later tokens and dy = dL/dy_t:
 *   dr = (D + dy qf^T) a = D a + dy (qf.a)            da = (D + dy qf^T)^T r = D^T r + qf (dy.r)
 *   dqf = S_t^T dy = S_{t-1}^T dy + a (r.dy)          dkh = -S_{t-1}^T dr        dv = dr
 *   dL/dS_{t-1} = D + dy qf^T - dr kh^T
 * D is kept twice, as [dk, dv] and as [dv, dk], so that both products are sums of rows.
 *
 * What a token adds to a matrix is added when the next token reads it, so that one pass does both: between tokens S, A
 * (forward), D and G (backward) lack the last token's part. Backward, S and A are those before the token: the forward
 * recursion's at the end of every SEGMENT tokens, and inside a segment what the token had added is taken off again.
 * Both are sums, so that this costs a rounding a token and never divides. */
#ifndef VLA_TRAIN_STATE_H
#define VLA_TRAIN_STATE_H
#include "lib/train/attention.h"

typedef struct tape {
    int64_t wk, wv;                                  /* padded widths */
    int64_t segment;                                 /* tokens from one mark to the next */
    real *qf, *kf, *kh, *uh, *a, *z, *n;             /* [len, wk] */
    real *r, *o;                                     /* [len, wv] */
    real *inv_q, *inv_k, *inv_u, *inv_x, *s, *den;   /* [len] */
    bool *floored;                                   /* [len]: the ratio's floor was used */
    real *S, *A;                                     /* S as [dk, wv], A [dk, wk]: the recursion's state */
    real *S_marks, *A_marks;                         /* before the last token of every segment, S as [dv, wk] */
    real *S_back, *A_back;                           /* before the token whose turn it is, S as [dv, wk] */
    real *D1, *D2, *G;                               /* dL/dS as [dk, wv] and [dv, wk]; dL/dA */
    real *dy, *dr, *gated_dy;                        /* [2, wv]: this token's and the later one's */
    real *dx, *dz;                                   /* [2, wk], the same */
    real *dqf, *dkf, *dkh, *duh, *da, *dn, *x1, *x2; /* [wk] */
    real *zero;                                      /* [wk or wv] */
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
    const int64_t wk = t->wk = PAD(s->dk), wv = t->wv = PAD(s->dv), len = s->len;
    t->segment = s->op == VLA_DECAY ? GATED_SEGMENT : SEGMENT;
    const int64_t marks = len / t->segment + 1, steps = s->op == VLA_DECAY ? GATED_SEGMENT : 1;
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
    t->S_back = take(&used, base, steps * s->dv * wk);
    t->A_back = take(&used, base, s->dk * wk);
    t->D1 = take(&used, base, s->dk * wv);
    t->D2 = take(&used, base, s->dv * wk);
    t->G = take(&used, base, s->dk * wk);
    t->dy = take(&used, base, 2 * wv);
    t->dr = take(&used, base, 2 * wv);
    t->gated_dy = take(&used, base, 2 * wv);
    t->dx = take(&used, base, 2 * wk);
    t->dz = take(&used, base, 2 * wk);
    real **rows[] = {&t->dqf, &t->dkf, &t->dkh, &t->duh, &t->da, &t->dn, &t->x1, &t->x2};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) *rows[i] = take(&used, base, wk);
    t->zero = take(&used, base, wk > wv ? wk : wv);
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

/* Row i of a [len, width] array, zeros for the tokens before the first and after the last. */
INLINE const real *row_of(const tape *t, const attention_shape *s, const real *rows, int64_t i, int64_t width)
{
    return i >= 0 && i < s->len ? rows + i * width : t->zero;
}

/* Rows of a head lie far apart, where no hardware prefetcher follows: AHEAD tokens from now. */
enum { AHEAD = 8, LINE = 64 / (int)sizeof(real) };

INLINE void fetch_row(const real *rows, int64_t i, int64_t stride, int64_t n, bool to_write)
{
    for (int64_t c = 0; c < n; c += LINE) {
        if (to_write)
            __builtin_prefetch(rows + i * stride + c, 1);
        else
            __builtin_prefetch(rows + i * stride + c, 0);
    }
}

/* qf, kf, kh of every token; uh where rows->u is there. */
INLINE void tape_features(tape *t, const attention_shape *s, const attention_rows *rows)
{
    const int64_t wk = t->wk;
    for (int64_t i = 0; i < s->len; i++) {
        real *qf = t->qf + i * wk, *kf = t->kf + i * wk;
        const int64_t next = i + AHEAD < s->len ? i + AHEAD : s->len - 1;
        fetch_row(rows->q, next, rows->stride, s->dk, false);
        fetch_row(rows->k, next, rows->stride, s->dk, false);
        fetch_row(rows->v, next, rows->v_stride, s->dv, false);
        if (rows->u) fetch_row(rows->u, next, rows->u_stride, s->dk, false);
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
    clear(t->zero, t->wk > t->wv ? t->wk : t->wv);
    clear(t->S, s->dk * t->wv);
    clear(t->n, t->wk);
    clear(t->A, s->dk * t->wk);
    for (int64_t i = 0; i < s->dk; i++) t->A[i * t->wk + i] = 1 / s->lambda0;
}

/* Is this the last token of its segment? */
INLINE bool is_marked(const tape *t, const attention_shape *s, int64_t i)
{
    return (i + 1) % t->segment == 0 || i + 1 == s->len;
}

/* S as [dv, wk] from S as [dk, wv]. */
INLINE void turn_state(const tape *t, const attention_shape *s, const real *S, real *to)
{
    clear(to, s->dv * t->wk);
    for (int64_t c = 0; c < s->dk; c++)
        for (int64_t j = 0; j < s->dv; j++) to[j * t->wk + c] = S[c * t->wv + j];
}

/* r and y of token i, whose a is known (y into the tape's o). Adds the token before to S. */
INLINE void tape_write(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i, bool keep)
{
    const int64_t wk = t->wk, wv = t->wv;
    real *r = t->r + i * wv, *o = t->o + i * wv;
    const real *a = t->a + i * wk, *qf = t->qf + i * wk;
    const pass_terms terms = {.add = {{row_of(t, s, t->a, i - 1, wk), row_of(t, s, t->r, i - 1, wv), 1}},
                              .product = {{t->kh + i * wk, t->dy}, {qf, o}}};
    pass_over(1, 2, t->S, t->S, s->dk, wv, &terms);
    load_row(r, rows->v + i * rows->v_stride, s->dv, wv);
    axpy(r, -1, t->dy, wv);
    axpy(o, dotp(a, qf, wk), r, wv);
    if (keep && is_marked(t, s, i)) turn_state(t, s, t->S, t->S_marks + i / t->segment * s->dv * wk);
}

/* o = y/max(n.qf, floor), or y. n [wk] is the sum of kf up to and with this token. */
INLINE void tape_output(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i, bool write)
{
    const int64_t wk = t->wk;
    real *o = t->o + i * t->wv, *n = t->n + i * wk;
    if (s->ratio) {
        scaled(n, t->kf + i * wk, 1, i ? n - wk : NULL, wk);
        const real den = dotp(n, t->qf + i * wk, wk);
        t->floored[i] = den <= s->floor; /* false for NaN, which stays visible */
        t->den[i] = t->floored[i] ? s->floor : den;
        scaled(o, o, 1 / t->den[i], NULL, t->wv);
    }
    if (!write) return;
    fetch_row(rows->o, i + AHEAD < s->len ? i + AHEAD : i, rows->o_stride, s->dv, true);
    for (int64_t j = 0; j < s->dv; j += LANES) put(rows->o + i * rows->o_stride + j, vload(o + j), s->dv - j);
}

INLINE void back_start(tape *t, const attention_shape *s)
{
    clear(t->D1, s->dk * t->wv);
    clear(t->D2, s->dv * t->wk);
    clear(t->G, s->dk * t->wk);
    clear(t->dn, t->wk);
    clear(t->dkh, t->wk); /* linear, which has no unit key, never writes it */
    clear(t->dy, 2 * t->wv);
    clear(t->dr, 2 * t->wv);
    clear(t->gated_dy, 2 * t->wv);
    clear(t->dx, 2 * t->wk);
    clear(t->dz, 2 * t->wk);
}

/* This token's row of a pair, and the later token's. */
INLINE real *mine(real *pair, int64_t i, int64_t width)
{
    return pair + (i & 1) * width;
}
INLINE const real *later(const real *pair, int64_t i, int64_t width)
{
    return pair + (~i & 1) * width;
}

/* dy, and what the ratio adds: *dden n to dqf, *dden qf to dn. */
INLINE real back_output(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                        int64_t i)
{
    real *dy = mine(t->dy, i, t->wv);
    const int64_t next = i >= AHEAD ? i - AHEAD : 0;
    fetch_row(d->o, next, rows->o_stride, s->dv, false);
    fetch_row(d->q, next, rows->stride, s->dk, true);
    fetch_row(d->k, next, rows->stride, s->dk, true);
    fetch_row(d->v, next, rows->v_stride, s->dv, true);
    load_row(dy, d->o + i * rows->o_stride, s->dv, t->wv);
    if (!s->ratio) return 0;
    const real inverse = 1 / t->den[i], dden = t->floored[i] ? 0 : -dotp(dy, t->o + i * t->wv, t->wv) * inverse;
    scaled(dy, dy, inverse, NULL, t->wv);
    axpy(t->dn, dden, t->qf + i * t->wk, t->wk);
    return dden;
}

/* S before token i as [dv, wk], with products of it in the same pass. */
INLINE void back_state(tape *t, const attention_shape *s, int64_t i, int products, pass_terms terms)
{
    const int64_t wk = t->wk;
    const bool marked = is_marked(t, s, i);
    const real *from = marked ? t->S_marks + i / t->segment * s->dv * wk : t->S_back;
    terms.add[0].x = marked ? t->zero : t->r + i * t->wv, terms.add[0].y = t->a + i * wk, terms.add[0].scale = -1;
    pass_over(1, products, t->S_back, from, s->dv, wk, &terms);
}

/* dr, da, dqf and dkh of token i. */
INLINE void back_write(tape *t, const attention_shape *s, int64_t i)
{
    const int64_t wk = t->wk, wv = t->wv;
    const real *qf = t->qf + i * wk, *a = t->a + i * wk, *r = t->r + i * wv;
    const real *q_later = row_of(t, s, t->qf, i + 1, wk), *k_later = row_of(t, s, t->kh, i + 1, wk);
    const real *dy_later = later(t->dy, i, wv), *dr_later = later(t->dr, i, wv);
    real *dy = mine(t->dy, i, wv), *dr = mine(t->dr, i, wv);
    const pass_terms first = {.add = {{q_later, dy_later, 1}, {k_later, dr_later, -1}}, .product = {{a, dr}}};
    pass_over(2, 1, t->D1, t->D1, s->dk, wv, &first);
    const pass_terms second = {.add = {{dy_later, q_later, 1}, {dr_later, k_later, -1}}, .product = {{r, t->da}}};
    pass_over(2, 1, t->D2, t->D2, s->dv, wk, &second);
    axpy(dr, dotp(qf, a, wk), dy, wv);
    const real along = dotp(dy, r, wv);
    axpy(t->da, along, qf, wk);
    back_state(t, s, i, 2, (pass_terms){.product = {{dy, t->dqf}, {dr, t->dkh}}});
    axpy(t->dqf, along, a, wk);
    scaled(t->dkh, t->dkh, -1, NULL, wk);
}

INLINE void store_feature_back(real *to, const real *raw, const real *y, const real *dy, vla_features features,
                               int64_t dk)
{
    if (features == VLA_ELU1) /* phi <= 1 exactly where its slope is phi; a NaN stays */
        for (int64_t c = 0; c < dk; c += LANES) put(to + c, vload(dy + c) * vmin(vset(1), vload(y + c)), dk - c);
    else
        for (int64_t c = 0; c < dk; c++) to[c] = dy[c] * phi_slope(features, raw[c], y[c]);
}

/* dqf, dkf and dkh to the raw rows' gradients; dv = dr. */
INLINE void back_features(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                          int64_t i)
{
    const int64_t wk = t->wk, at = i * rows->stride;
    const real *dr = mine(t->dr, i, t->wv);
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
    for (int64_t j = 0; j < s->dv; j += LANES) put(d->v + i * rows->v_stride + j, vload(dr + j), s->dv - j);
}

/* One head's passes, from what an operator file says of a token:
 *
 * recursion      fills the tape token by token; tell: writes o as well; keep: keeps the marks a backward pass needs
 * direction      a_t (and what makes it) of token i, before its r_t and y_t
 * token_adjoint  dqf, dkf, dkh and dr of token i, after back_output, whose dden it is given; u's and g's gradients */
typedef void recursion(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep);
typedef void direction(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i, bool keep);
typedef void token_adjoint(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                           int64_t i, real dden);

/* The recursion of an operator that writes r_t a_t^T. */
INLINE void recur_along(direction *direct, tape *t, const attention_shape *s, const attention_rows *rows, bool tell,
                        bool keep)
{
    tape_features(t, s, rows);
    tape_start(t, s);
    for (int64_t i = 0; i < s->len; i++) {
        direct(t, s, rows, i, keep);
        tape_write(t, s, rows, i, keep);
        tape_output(t, s, rows, i, tell);
    }
}

INLINE void state_forward(recursion *recur, const attention_shape *s, const attention_rows *rows, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, true, false);
}

INLINE void state_backward(recursion *recur, token_adjoint *back, const attention_shape *s, const attention_rows *rows,
                           const attention_gradients *d, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, true);
    back_start(&t, s);
    for (int64_t i = s->len - 1; i >= 0; i--) {
        const real dden = back_output(&t, s, rows, d, i);
        back(&t, s, rows, d, i, dden);
        back_features(&t, s, rows, d, i);
    }
}

/* |S_T|_F; what the last token adds S still lacks. */
INLINE real state_norm(recursion *recur, const attention_shape *s, const attention_rows *rows, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, false);
    const pass_terms last = {.add = {{row_of(&t, s, t.a, s->len - 1, t.wk), row_of(&t, s, t.r, s->len - 1, t.wv), 1}}};
    pass_over(1, 0, t.S, t.S, s->dk, t.wv, &last);
    return (real)sqrt((double)dotp(t.S, t.S, s->dk * t.wv));
}

/* The table of a file with a recursion `recur` and a token_adjoint `back_token`. */
#define STATE_ATTENTION(name)                                                                                \
    static void forward(const attention_shape *s, const attention_rows *rows, real *scratch)                 \
    {                                                                                                        \
        state_forward(recur, s, rows, scratch);                                                              \
    }                                                                                                        \
    static void backward(const attention_shape *s, const attention_rows *rows, const attention_gradients *d, \
                         real *scratch)                                                                      \
    {                                                                                                        \
        state_backward(recur, back_token, s, rows, d, scratch);                                              \
    }                                                                                                        \
    static real norm(const attention_shape *s, const attention_rows *rows, real *scratch)                    \
    {                                                                                                        \
        return state_norm(recur, s, rows, scratch);                                                          \
    }                                                                                                        \
    const attention KERNEL(name) = {state_scratch, forward, backward, norm}

#endif
