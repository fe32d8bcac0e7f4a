/* Linear attention, one head: S += v kf^T, n += kf, o = S qf/max(n.qf, floor).
 * Adjoint: D += dy qf^T, dv = D kf, dkf = D^T v + dn, dqf = S_t^T dy + dden n_t. */
#include "lib/train/state.h"

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    const int64_t wk = t->wk, wv = t->wv;
    tape_features(t, s, rows);
    tape_start(t, s);
    memcpy(t->a, t->kf, (size_t)(s->len * wk) * sizeof *t->a);
    for (int64_t i = 0; i < s->len; i++) {
        real *v = t->r + i * wv, *o = t->o + i * wv;
        const real *qf = t->qf + i * wk;
        load_row(v, rows->v + i * rows->v_stride, s->dv, wv);
        const pass_terms terms = {.add = {{row_of(t, s, t->a, i - 1, wk), row_of(t, s, t->r, i - 1, wv), 1}},
                                  .product = {{qf, o}}};
        pass_over(1, 1, t->S, t->S, s->dk, wv, &terms);
        axpy(o, dotp(t->kf + i * wk, qf, wk), v, wv);
        if (keep && is_marked(t, s, i)) turn_state(t, s, t->S, t->S_marks + i / t->segment * s->dv * wk);
        tape_output(t, s, rows, i, tell);
    }
}

static void back_token(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                       int64_t i, real dden)
{
    (void)rows, (void)d;
    const int64_t wk = t->wk, wv = t->wv;
    const real *qf = t->qf + i * wk, *kf = t->kf + i * wk, *v = t->r + i * wv;
    const real *q_later = row_of(t, s, t->qf, i + 1, wk), *dy_later = later(t->dy, i, wv), *dy = mine(t->dy, i, wv);
    real *dv = mine(t->dr, i, wv);
    const pass_terms first = {.add = {{q_later, dy_later, 1}}, .product = {{kf, dv}}};
    pass_over(1, 1, t->D1, t->D1, s->dk, wv, &first);
    const pass_terms second = {.add = {{dy_later, q_later, 1}}, .product = {{v, t->dkf}}};
    pass_over(1, 1, t->D2, t->D2, s->dv, wk, &second);
    axpy(dv, dotp(qf, kf, wk), dy, wv);
    const real along = dotp(dy, v, wv);
    axpy(t->dkf, along, qf, wk);
    back_state(t, s, i, 1, (pass_terms){.product = {{dy, t->dqf}}});
    axpy(t->dqf, along, kf, wk);
    if (!s->ratio) return;
    axpy(t->dkf, 1, t->dn, wk);
    axpy(t->dqf, dden, t->n + i * wk, wk);
}

STATE_ATTENTION(attention_linear);
