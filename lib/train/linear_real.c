/* Linear attention, one head: S += v kf^T, n += kf, o = S qf/max(n.qf, floor).
 * Adjoint: D += dy qf^T, dv = D kf, dkf = D^T v + dn, dqf = S_t^T dy + dden n_t. */
#include "lib/train/state.h"

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    tape_features(t, s, rows);
    tape_start(t, s);
    memcpy(t->a, t->kf, (size_t)(s->len * t->wk) * sizeof *t->a);
    for (int64_t i = 0; i < s->len; i++) {
        if (keep) tape_mark(t, s, i, false);
        load_row(t->r + i * t->wv, rows->v + i * rows->v_stride, s->dv, t->wv);
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

static void back_token(tape *t, const attention_shape *s, const real *S, real dden, int64_t i)
{
    const int64_t wk = t->wk, wv = t->wv;
    const real *qf = t->qf + i * wk, *kf = t->kf + i * wk, *v = t->r + i * wv;
    outer(t->D1, 1, qf, t->dy, s->dk, wv);
    outer(t->D2, 1, t->dy, qf, s->dv, wk);
    product(t->D1, kf, s->dk, wv, t->dr);
    product(t->D2, v, s->dv, wk, t->dkf);
    product(S, t->dy, s->dv, wk, t->dqf);
    axpy(t->dqf, dotp(v, t->dy, wv), kf, wk);
    if (!s->ratio) return;
    axpy(t->dkf, 1, t->dn, wk);
    axpy(t->dqf, dden, t->n + i * wk, wk);
}

static void backward(const attention_shape *s, const attention_rows *rows, const attention_gradients *d, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, true);
    back_start(&t, s);
    clear(t.dkh, t.wk); /* the unit key is not used */
    for (int64_t from = (s->len - 1) / SEGMENT * SEGMENT; s->len > 0 && from >= 0; from -= SEGMENT) {
        for (int64_t i = replay(&t, s, from, false) - 1; i >= from; i--) {
            const real dden = back_output(&t, s, rows, d, i);
            back_token(&t, s, t.S_steps + (i - from) * s->dv * t.wk, dden, i);
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

const attention KERNEL(attention_linear) = {state_scratch, forward, backward, norm};
