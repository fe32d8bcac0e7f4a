/* DeltaNet's rule, one head: S += beta (v - S kh) kh^T, o = S qf; beta = sigmoid(g), 1 where g is absent.
 * With a = beta kh the state's adjoint gives da: dbeta = da.kh, dkh += beta da. */
#include "lib/train/state.h"

static void direct(tape *t, const attention_shape *s, const attention_rows *rows, int64_t i, bool keep)
{
    (void)s, (void)keep;
    t->s[i] = rows->g ? sigmoid(rows->g[i * rows->g_stride]) : 1;
    scaled(t->a + i * t->wk, t->kh + i * t->wk, t->s[i], NULL, t->wk);
}

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    recur_along(direct, t, s, rows, tell, keep);
}

static void back_token(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                       int64_t i, real dden)
{
    (void)dden;
    back_write(t, s, i);
    const real dbeta = dotp(t->da, t->kh + i * t->wk, t->wk);
    axpy(t->dkh, t->s[i], t->da, t->wk);
    if (rows->g) d->g[i * rows->g_stride] = dbeta * t->s[i] * (1 - t->s[i]);
    clear(t->dkf, t->wk);
}

STATE_ATTENTION(attention_delta);
