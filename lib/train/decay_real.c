/* The rule the paper called DeltaNet, one head: S = g S + (v - S kh) kh^T, o = S qf, with one gate a row of S,
 * g = sigmoid(logits [dv]).
 *
 * Adjoint, with D = dL/dS_t including dy qf^T: dr = D kh, dv = dr, dkh = D^T r - S'^T dr, dg_j = D_j . S'_j,
 * dqf = S'^T (g dy) + kh (r.dy), dL/dS' = g D - dr kh^T. Going backwards through a gate near 0 would divide by it,
 * which is why states are replayed from marks rather than undone. */
#include "lib/train/state.h"

/* g of token i into gate [wv], 1 where absent. */
static void gates(real *gate, const tape *t, const attention_shape *s, const attention_rows *rows, int64_t i)
{
    for (int64_t j = 0; j < t->wv; j += LANES) vstore(gate + j, vset(1));
    if (!rows->g) return;
    load_row(gate, rows->g + i * rows->g_stride, s->dv, t->wv);
    for (int64_t j = 0; j < t->wv; j += LANES) {
        const vec x = vload(gate + j), e = vexp(-vabs(x));
        vstore(gate + j, vselect(x < 0, e, vset(1)) / (e + 1));
    }
}

static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    tape_features(t, s, rows);
    tape_start(t, s);
    for (int64_t i = 0; i < s->len; i++) {
        if (keep) tape_mark(t, s, i, false);
        const real *kh = t->kh + i * t->wk, *r = t->r + i * t->wv;
        tape_residual(t, s, rows, i);
        gates(t->dr, t, s, rows, i);
        for (int64_t c = 0; c < s->dk; c++)
            for (int64_t j = 0; j < t->wv; j += LANES) {
                real *at = t->S + c * t->wv + j;
                vstore(at, vload(at) * vload(t->dr + j) + vload(r + j) * kh[c]);
            }
        tape_output(t, s, rows, i, tell);
    }
}

static void forward(const attention_shape *s, const attention_rows *rows, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, true, false);
}

static int64_t replay_gated(tape *t, const attention_shape *s, const attention_rows *rows, int64_t from)
{
    const int64_t wk = t->wk, end = from + SEGMENT < s->len ? from + SEGMENT : s->len;
    memcpy(t->S_steps, t->S_marks + from / SEGMENT * s->dv * wk, (size_t)(s->dv * wk) * sizeof *t->S);
    for (int64_t i = from; i + 1 < end; i++) {
        const real *S = t->S_steps + (i - from) * s->dv * wk, *kh = t->kh + i * wk;
        real *next = t->S_steps + (i - from + 1) * s->dv * wk;
        gates(t->dr, t, s, rows, i);
        for (int64_t j = 0; j < s->dv; j++)
            for (int64_t c = 0; c < wk; c += LANES)
                vstore(next + j * wk + c, vload(S + j * wk + c) * t->dr[j] + vload(kh + c) * t->r[i * t->wv + j]);
    }
    return end;
}

static void back_token(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                       const real *S, int64_t i)
{
    const int64_t wk = t->wk, wv = t->wv;
    const real *qf = t->qf + i * wk, *kh = t->kh + i * wk, *r = t->r + i * wv;
    real *gate = t->minus_dr, *gated_dy = t->o + i * wv; /* the output is not needed without a ratio */
    outer(t->D1, 1, qf, t->dy, s->dk, wv);
    outer(t->D2, 1, t->dy, qf, s->dv, wk);
    product(t->D1, kh, s->dk, wv, t->dr);
    product(t->D2, r, s->dv, wk, t->da);
    gates(gate, t, s, rows, i);
    for (int64_t j = 0; j < wv; j += LANES) vstore(gated_dy + j, vload(gate + j) * vload(t->dy + j));
    products(S, gated_dy, t->dr, s->dv, wk, t->dqf, t->dkh);
    axpy(t->dqf, dotp(r, t->dy, wv), kh, wk);
    scaled(t->dkh, t->dkh, -1, t->da, wk);
    for (int64_t j = 0; j < s->dv; j++) {
        const real dg = dotp(t->D2 + j * wk, S + j * wk, wk);
        if (rows->g) d->g[i * rows->g_stride + j] = dg * gate[j] * (1 - gate[j]);
        for (int64_t c = 0; c < wk; c += LANES) {
            real *at = t->D2 + j * wk + c;
            vstore(at, vload(at) * gate[j] - vload(kh + c) * t->dr[j]);
        }
    }
    for (int64_t c = 0; c < s->dk; c++)
        for (int64_t j = 0; j < wv; j += LANES) {
            real *at = t->D1 + c * wv + j;
            vstore(at, vload(at) * vload(gate + j) - vload(t->dr + j) * kh[c]);
        }
}

static void backward(const attention_shape *s, const attention_rows *rows, const attention_gradients *d, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, true);
    back_start(&t, s);
    for (int64_t from = (s->len - 1) / SEGMENT * SEGMENT; s->len > 0 && from >= 0; from -= SEGMENT) {
        for (int64_t i = replay_gated(&t, s, rows, from) - 1; i >= from; i--) {
            back_output(&t, s, rows, d, i);
            back_token(&t, s, rows, d, t.S_steps + (i - from) * s->dv * t.wk, i);
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

const attention KERNEL(attention_decay) = {state_scratch, forward, backward, norm};
