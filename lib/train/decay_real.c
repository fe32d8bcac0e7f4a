/* The rule the paper called DeltaNet, one head: S = g S + (v - S kh) kh^T, o = S qf, with one gate a row of S,
 * g = sigmoid(logits [dv]).
 *
 * Adjoint, with D = dL/dS_t including dy qf^T: dr = D kh, dv = dr, dkh = D^T r - S'^T dr, dg_j = D_j . S'_j,
 * dqf = S'^T (g dy) + kh (r.dy), dL/dS' = g D - dr kh^T. Taking a token off again would divide by its gate, which may
 * be near 0: states are kept at the start of every GATED_SEGMENT tokens and made again from there. */
#include "kernels/cpu/sweep.h"
#include "lib/train/state.h"

/* g of every token, 1 where absent, into the tape's o: without a ratio the outputs are not kept. */
static void gates(const tape *t, const attention_shape *s, const attention_rows *rows)
{
    for (int64_t i = 0; i < s->len; i++) {
        real *gate = t->o + i * t->wv;
        for (int64_t j = 0; j < t->wv; j += LANES) vstore(gate + j, vset(1));
        if (!rows->g) continue;
        const real *logits = rows->g + i * rows->g_stride;
        if (s->one_gate)
            for (int64_t j = 0; j < t->wv; j += LANES) vstore(gate + j, vset(*logits));
        else
            load_row(gate, logits, s->dv, t->wv);
        for (int64_t j = 0; j < t->wv; j += LANES) {
            const vec x = vload(gate + j), e = vexp_nonpositive(-vabs(x));
            vstore(gate + j, vselect(x < 0, e, vset(1)) / (e + 1));
        }
    }
}

static void multiply(real *to, const real *x, const real *y, int64_t width)
{
    for (int64_t i = 0; i < width; i += LANES) vstore(to + i, vload(x + i) * vload(y + i));
}

/* y = S qf = g (S' qf) + r (kh.qf). */
static void recur(tape *t, const attention_shape *s, const attention_rows *rows, bool tell, bool keep)
{
    const int64_t wk = t->wk, wv = t->wv;
    tape_features(t, s, rows);
    tape_start(t, s);
    gates(t, s, rows);
    real *read = t->dy, *y = t->dr;
    for (int64_t i = 0; i < s->len; i++) {
        const real *kh = t->kh + i * wk, *qf = t->qf + i * wk;
        real *r = t->r + i * wv;
        const pass_terms terms = {.columns = i ? t->o + (i - 1) * wv : t->zero,
                                  .add = {{row_of(t, s, t->kh, i - 1, wk), row_of(t, s, t->r, i - 1, wv), 1}},
                                  .product = {{kh, read}, {qf, y}}};
        pass_over(1, 2, t->S, t->S, s->dk, wv, &terms);
        load_row(r, rows->v + i * rows->v_stride, s->dv, wv);
        axpy(r, -1, read, wv);
        multiply(y, y, t->o + i * wv, wv);
        axpy(y, dotp(kh, qf, wk), r, wv);
        if (keep && i % t->segment == 0) turn_state(t, s, t->S, t->S_marks + i / t->segment * s->dv * wk);
        for (int64_t j = 0; tell && j < s->dv; j += LANES)
            put(rows->o + i * rows->o_stride + j, vload(y + j), s->dv - j);
    }
}

static void forward(const attention_shape *s, const attention_rows *rows, real *scratch)
{
    state_forward(recur, s, rows, scratch);
}

/* States before every token of the segment that starts at `from`, from its mark, into S_back [segment, dv, wk]. */
static int64_t replay(const tape *t, const attention_shape *s, int64_t from)
{
    const int64_t wk = t->wk, end = from + t->segment < s->len ? from + t->segment : s->len;
    memcpy(t->S_back, t->S_marks + from / t->segment * s->dv * wk, (size_t)(s->dv * wk) * sizeof *t->S);
    for (int64_t i = from; i + 1 < end; i++) {
        const real *S = t->S_back + (i - from) * s->dv * wk;
        real *next = t->S_back + (i - from + 1) * s->dv * wk;
        const pass_terms terms = {.rows = t->o + i * t->wv, .add = {{t->r + i * t->wv, t->kh + i * wk, 1}}};
        pass_over(1, 0, next, S, s->dv, wk, &terms);
    }
    return end;
}

/* dg_j = (D_j + dy_j qf).S_j, times the slope of the sigmoid; four rows at a time, as each sum crosses lanes. */
static void back_gate(const tape *t, const attention_shape *s, const real *S, const real *dy, const real *qf,
                      const real *gate, real *out)
{
    enum { TOGETHER = 4 };
    const int64_t wk = t->wk;
    real whole = 0;
    for (int64_t j = 0; j < s->dv; j += TOGETHER) {
        const int count = s->dv - j < TOGETHER ? (int)(s->dv - j) : TOGETHER;
        vec sums[TOGETHER] = {vset(0), vset(0), vset(0), vset(0)};
        real dg[TOGETHER];
        for (int w = 0; w < count; w++)
            for (int64_t c = 0; c < wk; c += LANES) {
                const int64_t at = (j + w) * wk + c;
                sums[w] += (vload(t->D2 + at) + vload(qf + c) * dy[j + w]) * vload(S + at);
            }
        vsums(TOGETHER, sums, dg);
        for (int w = 0; w < count; w++) {
            const real slope = dg[w] * gate[j + w] * (1 - gate[j + w]);
            if (s->one_gate)
                whole += slope;
            else
                out[j + w] = slope;
        }
    }
    if (s->one_gate) *out = whole;
}

static void back_token(tape *t, const attention_shape *s, const attention_rows *rows, const attention_gradients *d,
                       const real *S, int64_t i)
{
    const int64_t wk = t->wk, wv = t->wv;
    const real *qf = t->qf + i * wk, *kh = t->kh + i * wk, *r = t->r + i * wv, *gate = t->o + i * wv;
    const real *q_later = row_of(t, s, t->qf, i + 1, wk), *k_later = row_of(t, s, t->kh, i + 1, wk);
    const real *gate_later = row_of(t, s, t->o, i + 1, wv);
    const real *dy_later = later(t->gated_dy, i, wv), *dr_later = later(t->dr, i, wv), *dy = mine(t->dy, i, wv);
    real *dr = mine(t->dr, i, wv), *gated_dy = mine(t->gated_dy, i, wv);
    const pass_terms first = {
        .columns = gate_later, .add = {{q_later, dy_later, 1}, {k_later, dr_later, -1}}, .product = {{kh, dr}}};
    pass_over(2, 1, t->D1, t->D1, s->dk, wv, &first);
    const pass_terms second = {
        .rows = gate_later, .add = {{dy_later, q_later, 1}, {dr_later, k_later, -1}}, .product = {{r, t->da}}};
    pass_over(2, 1, t->D2, t->D2, s->dv, wk, &second);
    axpy(dr, dotp(qf, kh, wk), dy, wv);
    const real along = dotp(dy, r, wv);
    axpy(t->da, along, qf, wk);
    multiply(gated_dy, gate, dy, wv);
    if (rows->g) back_gate(t, s, S, dy, qf, gate, d->g + i * rows->g_stride);
    const pass_terms products = {.product = {{gated_dy, t->dqf}, {dr, t->dkh}}};
    pass_over(0, 2, NULL, S, s->dv, wk, &products);
    axpy(t->dqf, along, kh, wk);
    scaled(t->dkh, t->dkh, -1, t->da, wk);
}

static void backward(const attention_shape *s, const attention_rows *rows, const attention_gradients *d, real *scratch)
{
    tape t;
    tape_make(&t, s, scratch);
    recur(&t, s, rows, false, true);
    back_start(&t, s);
    for (int64_t from = (s->len - 1) / t.segment * t.segment; s->len > 0 && from >= 0; from -= t.segment) {
        for (int64_t i = replay(&t, s, from) - 1; i >= from; i--) {
            back_output(&t, s, rows, d, i);
            back_token(&t, s, rows, d, t.S_back + (i - from) * s->dv * t.wk, i);
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
    if (s->len == 0) return 0;
    const int64_t last = s->len - 1;
    const pass_terms terms = {.columns = t.o + last * t.wv, .add = {{t.kh + last * t.wk, t.r + last * t.wv, 1}}};
    pass_over(1, 0, t.S, t.S, s->dk, t.wv, &terms);
    return (real)sqrt((double)dotp(t.S, t.S, s->dk * t.wv));
}

const attention KERNEL(attention_decay) = {state_scratch, forward, backward, norm};
