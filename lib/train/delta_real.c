/* DeltaNet's rule, one head: S += beta (v - S kh) kh^T, o = S qf; beta = sigmoid(g), 1 where g is absent.
 * With a = beta kh the state's adjoint gives da: dbeta = da.kh, dkh += beta da. */
#include "lib/train/state.h"

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    tape_features(t, s, rows);
    tape_start(t, s);
    for (int64_t i = 0; i < s->len; i++) {
        t->s[i] = rows->g ? sigmoid(rows->g[i * rows->g_stride]) : 1;
        scaled(t->a + i * t->wk, t->kh + i * t->wk, t->s[i], NULL, t->wk);
        tape_write(t, s, rows, i, keep);
        tape_output(t, s, rows, i, tell);
    }
}

static void forward(const attention_shape *s, const attention_rows *rows, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, true, false);
}

static void backward(const attention_shape *s, const attention_rows *rows, const attention_gradients *d, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, true);
    back_start(&t, s);
    for (int64_t i = s->len - 1; i >= 0; i--) {
        back_output(&t, s, rows, d, i);
        back_write(&t, s, i);
        const real dbeta = dotp(t.da, t.kh + i * t.wk, t.wk);
        axpy(t.dkh, t.s[i], t.da, t.wk);
        if (rows->g) d->g[i * rows->g_stride] = dbeta * t.s[i] * (1 - t.s[i]);
        clear(t.dkf, t.wk);
        back_features(&t, s, rows, d, i);
    }
}

static real norm(const attention_shape *s, const attention_rows *rows, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, false);
    return state_norm(&t, s);
}

const attention KERNEL(attention_delta) = {state_scratch, forward, backward, norm};
