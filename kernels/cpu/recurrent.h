/* What the recurrent forms of the state operators share.
 *
 * A head is run by one worker, two tokens at a time. The matrices lag one pair behind: the sweep that forms the
 * products of a pair with the state also applies the writes the previous pair left pending, so that each matrix is
 * loaded and stored once for two tokens; what the second token must see of the first is put right by scalar products of
 * rows. S is kept transposed, [dk][wv], in scratch. Runs of a few tokens (the decode step) work on the caller's state
 * in place.
 *
 * Feature rows are made for TOKENS tokens at a time. All of this is scratch whose size depends on the widths only.
 */
#ifndef VLA_CPU_RECURRENT_H
#define VLA_CPU_RECURRENT_H
#include "kernels/cpu/long_run.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/recurrent_rows.h"
#include "lib/base/sizes.h"

/* Copies rows of whole 16 bytes, aligned, past the caches. */
INLINE void stream_rows(real *to, const real *from, int64_t count)
{
#if defined(__SSE2__)
    for (int64_t i = 0; i < count; i += 16 / (int64_t)sizeof(real)) {
        __m128i part;
        memcpy(&part, from + i, sizeof part);
        _mm_stream_si128((__m128i *)(void *)(to + i), part);
    }
#else
    memcpy(to, from, (size_t)count * sizeof(real));
#endif
}

INLINE real *take(char *base, int64_t *used, int64_t count)
{
    real *at = base ? (real *)(void *)(base + *used) : NULL;
    *used += (count * (int64_t)sizeof(real) + 63) / 64 * 64;
    return at;
}

/* Lays out a worker's scratch from base (NULL: only counts); returns its bytes. */
static __attribute__((unused)) int64_t recurrent_carve(recurrent_kind kind, const vla_problem *p, char *base,
                                                       recurrent *r)
{
    int64_t used = 0;
    r->dk = p->dk, r->dv = r->lead = p->dv, r->wk = PAD(p->dk), r->wv = PAD(p->dv);
    r->A = kind.matrix ? take(base, &used, r->dk * r->wk) : NULL;
    r->A_base = kind.matrix ? take(base, &used, r->dk * r->wk) : NULL;
    r->A_lost = kind.matrix ? take(base, &used, r->dk * r->wk) : NULL;
    r->S = take(base, &used, r->dk * r->wv);
    r->base = kind.residual ? NULL : take(base, &used, r->dk * r->wv);
    r->lost = kind.residual ? NULL : take(base, &used, r->dk * r->wv);
    r->qf = take(base, &used, TOKENS * r->wk);
    r->kh = take(base, &used, TOKENS * r->wk);
    r->kf = kind.penalty ? take(base, &used, TOKENS * r->wk) : r->kh;
    r->uh = kind.penalty ? take(base, &used, TOKENS * r->wk) : NULL;
    r->scale = take(base, &used, TOKENS);
    r->beta = take(base, &used, TOKENS);
    r->gate = kind.gate ? take(base, &used, TOKENS * r->wv) : NULL;
    r->w = take(base, &used, 2 * r->wk);
    for (int i = 0; i < 2; i++) r->a[i] = take(base, &used, 2 * r->wk);
    r->e = take(base, &used, 2 * r->wv);
    r->decay = take(base, &used, r->wv);
    r->ap = take(base, &used, 4 * r->wk);
    r->sp = take(base, &used, 4 * r->wv);
    r->v = take(base, &used, 2 * r->wv);
    r->o = take(base, &used, 2 * r->wv);
    r->n = take(base, &used, r->wk);
    r->recent = take(base, &used, r->wk);
    r->total = (double *)(void *)take(base, &used, r->wk * (int64_t)(sizeof(double) / sizeof(real)));
    return used;
}

static __attribute__((unused)) vla_status recurrent_workspace(recurrent_kind kind, const vla_problem *p, int threads,
                                                              int64_t *bytes, vla_error *error)
{
    recurrent r;
    int64_t square = 0;
    const int64_t widest = (p->dk > p->dv ? p->dk : p->dv) | 1;
    const bool fits = widest < INT64_MAX / 1024 && vla_size_mul(widest + 1024, widest + 1024, &square) &&
                      vla_size_mul(square, 8 * (int64_t)sizeof(real), &square);
    if (!fits || !vla_size_mul(recurrent_carve(kind, p, NULL, &r), threads, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "dk %lld, dv %lld, threads %d: scratch is beyond 64-bit sizes",
                        (long long)p->dk, (long long)p->dv, threads);
    return VLA_OK;
}

/* A row of values as whole vectors: where it lies when it is one, else a padded copy. */
INLINE const real *value_row(recurrent *r, int64_t token, int64_t slot)
{
    const real *v = row_of(r->t->v, token, r->lead);
    if (r->dv % LANES == 0) return v;
    real *copy = r->v + slot * r->wv;
    memcpy(copy, v, (size_t)r->dv * sizeof(real));
    for (int64_t j = r->dv; j < r->wv; j++) copy[j] = 0;
    return copy;
}

INLINE real *output_row(recurrent *r, int64_t token, int64_t slot)
{
    return r->dv % LANES == 0 && !r->apart ? (real *)r->t->o + token * r->lead : r->o + slot * r->wv;
}

INLINE void output_done(recurrent *r, int64_t token, int64_t slot)
{
    if (r->apart) {
        stream_rows((real *)r->t->o + token * r->lead, r->o + slot * r->wv, r->dv);
        return;
    }
    if (r->dv % LANES == 0) return;
    memcpy((real *)r->t->o + token * r->lead, r->o + slot * r->wv, (size_t)r->dv * sizeof(real));
}

/* Sweep of A: pending updates, and its products with `rows` rows for each of `tokens` tokens. In place (tokens = 1,
 * nothing pending) A is only read. */
INLINE void sweep_matrix(int tokens, int rows, recurrent *r, const real *x, const real *y)
{
    const int64_t wk = r->wk;
    sweep s = {.m = r->A,
               .rows = r->dk,
               .width = wk,
               .stride = wk,
               .x = {r->w, r->w + wk},
               .y = {r->w, r->w + wk},
               .base = r->A_base};
    for (int i = 0; i < 4; i++)
        s.c[i] = (rows == 1 || i % 2 == 0 ? x : y) + (rows == 1 ? i : i / 2) * wk, s.out[i] = r->ap + i * wk;
    if (r->in_place) {
        const sweep_kind shape = {0, rows, 1, 0, 0};
        sweep_run(shape, &s);
    } else if (r->A_base) {
        const sweep_kind shape = {2, tokens * rows, 1, 0, 1};
        sweep_run(shape, &s);
    } else {
        const sweep_kind shape = {2, tokens * rows, 1, 0, 0};
        sweep_run(shape, &s);
    }
}

/* Sweep of S: pending writes, and the products of the next `tokens` tokens: sp = S kh, S qf of each; linear: S qf. */
INLINE void sweep_state(recurrent_kind kind, int tokens, recurrent *r, int64_t slot)
{
    const real *k = r->kh + slot * r->wk, *q = r->qf + slot * r->wk;
    const int64_t wk = r->wk, wv = r->wv;
    sweep s = {.m = r->S, .rows = r->dk, .width = r->wv, .stride = r->wv, .base = r->base, .gate = r->decay};
    for (int i = 0; i < 2; i++) s.x[i] = r->a[r->current] + i * wk, s.y[i] = r->e + i * wv;
    for (int i = 0; i < 4; i++) s.out[i] = r->sp + i * wv;
    if (kind.residual) {
        s.c[0] = k, s.c[1] = q, s.c[2] = k + wk, s.c[3] = q + wk;
        const sweep_kind shape = {2, 2 * tokens, 0, kind.gate, 0};
        sweep_run(shape, &s);
    } else {
        s.c[0] = q, s.c[1] = q + wk;
        s.out[1] = r->sp + 2 * wv;
        const sweep_kind based = {2, tokens, 0, 0, 1}, plain = {2, tokens, 0, 0, 0};
        if (r->folded)
            sweep_run(based, &s);
        else
            sweep_run(plain, &s);
    }
}

/* dots[0..3] = a0.q0, a0.q1, a1.q1, a0.k1 */
INLINE void write_dots(int tokens, const recurrent *r, const real *a, int64_t slot, real *dots)
{
    const int64_t wk = r->wk;
    const real *k = r->kh + slot * wk, *q = r->qf + slot * wk;
    vec sum[4] = {vset(0), vset(0), vset(0), vset(0)};
    for (int64_t i = 0; i < wk; i += LANES) {
        const vec a0 = vload(a + i);
        sum[0] += a0 * vload(q + i);
        if (tokens == 2) {
            const vec q1 = vload(q + wk + i);
            sum[1] += a0 * q1;
            sum[2] += vload(a + wk + i) * q1;
            sum[3] += a0 * vload(k + wk + i);
        }
    }
    vsums(4, sum, dots);
}

/* From the products of sweep_state and the rows a of the new writes: residuals, outputs and what is left pending.
 *   e0 = beta0 (v0 - S k0)           o0 = g0 S q0 + e0 (a0.q0)
 *   e1 = beta1 (v1 - g0 S k1 - e0 (a0.k1))    o1 = g1 (g0 S q1 + e0 (a0.q1)) + e1 (a1.q1) */
INLINE void write_tokens(recurrent_kind kind, int tokens, recurrent *r, const real *a, int64_t token, int64_t slot)
{
    const int64_t wv = r->wv, width = r->dv % LANES == 0 ? r->dv : wv;
    const real *v0 = value_row(r, token, 0), *v1 = tokens == 2 ? value_row(r, token + 1, 1) : v0;
    real *o0 = output_row(r, token, 0), *o1 = tokens == 2 ? output_row(r, token + 1, 1) : o0;
    const real *gate = r->gate + (kind.gate ? slot * wv : 0), *sp = r->sp;
    real dots[4];
    write_dots(tokens, r, a, slot, dots);
    const real scale0 = kind.sum ? r->scale[slot] : 1, scale1 = kind.sum && tokens == 2 ? r->scale[slot + 1] : 1;
    const real beta0 = kind.beta ? r->beta[slot] : 1, beta1 = kind.beta && tokens == 2 ? r->beta[slot + 1] : 1;
    for (int64_t j = 0; j < width; j += LANES) {
        const vec g0 = kind.gate ? vload(gate + j) : vset(1);
        vec e0 = vload(v0 + j), q0 = vload(sp + wv + j);
        if (kind.residual)
            e0 -= vload(sp + j);
        else
            q0 = vload(sp + j);
        if (kind.beta) e0 *= beta0;
        if (kind.gate) q0 *= g0;
        vec y0 = q0 + e0 * dots[0];
        if (kind.sum) y0 *= scale0;
        vstore(o0 + j, y0);
        if (tokens == 2) {
            vec e1 = vload(v1 + j), q1 = vload(sp + (kind.residual ? 3 : 2) * wv + j);
            if (kind.residual) {
                const vec k1 = vload(sp + 2 * wv + j);
                e1 -= (kind.gate ? g0 * k1 : k1) + e0 * dots[3];
            }
            if (kind.beta) e1 *= beta1;
            if (kind.gate) q1 *= g0;
            q1 += e0 * dots[1];
            if (kind.gate) {
                const vec g1 = vload(gate + wv + j);
                q1 *= g1;
                e0 *= g1;
                vstore(r->decay + j, g0 * g1);
            }
            q1 += e1 * dots[2];
            if (kind.sum) q1 *= scale1;
            vstore(o1 + j, q1);
            vstore(r->e + wv + j, e1);
        } else {
            if (kind.gate) vstore(r->decay + j, g0);
            vstore(r->e + wv + j, vset(0));
        }
        vstore(r->e + j, e0);
    }
    output_done(r, token, 0);
    if (tokens == 2) output_done(r, token + 1, 1);
}

/* base += recent, with what rounding takes from the sum kept for the next time; recent = 0. */
static __attribute__((unused)) void fold_matrix(real *base, real *recent, real *lost_before, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES) {
        const vec old = vload(base + i), more = vload(recent + i) + vload(lost_before + i), sum = old + more;
        const vec grown = sum - old;
        const vec lost = (old - (sum - grown)) + (more - grown);
        vstore(lost_before + i, vselect(lost == lost, lost, vset(0))); /* an infinite sum has lost nothing */
        vstore(base + i, sum);
        vstore(recent + i, vset(0));
    }
}

/* Once in FOLD_TOKENS, few enough for S alone to lose less than 1e-6 to rounding. */
static __attribute__((unused)) void fold_state(recurrent *r)
{
    fold_matrix(r->base, r->S, r->lost, r->dk * r->wv);
    r->folded = true;
}

INLINE void fold_penalty(recurrent *r)
{
    fold_matrix(r->A_base, r->A, r->A_lost, r->dk * r->wk);
}

/* The state at the start of a head, with nothing pending; compensate: A is folded. */
static __attribute__((unused)) void recurrent_begin(recurrent_kind kind, recurrent *r, bool compensate)
{
    const vla_tensors *t = r->t;
    const int64_t dk = r->dk, dv = r->dv, wk = r->wk, wv = r->wv;
    const real *S = t->state_in ? t->S : NULL, *A = t->state_in ? t->A : NULL, *n = t->state_in ? t->n : NULL;
    memset(r->S, 0, (size_t)(dk * wv) * sizeof(real));
    for (int64_t i = 0; S && i < dk; i++)
        for (int64_t j = 0; j < dv; j++) r->S[i * wv + j] = S[(r->head * dv + j) * dk + i];
    if (!kind.residual) {
        memset(r->base, 0, (size_t)(dk * wv) * sizeof(real));
        memset(r->lost, 0, (size_t)(dk * wv) * sizeof(real));
    }
    if (kind.matrix) memset(r->A, 0, (size_t)(dk * wk) * sizeof(real));
    for (int64_t i = 0; kind.matrix && i < dk; i++) {
        if (A)
            memcpy(r->A + i * wk, A + (r->head * dk + i) * dk, (size_t)dk * sizeof(real));
        else
            r->A[i * wk + i] = (real)(1 / r->p->lambda0);
    }
    if (kind.matrix && compensate) {
        memset(r->A_base, 0, (size_t)(dk * wk) * sizeof(real));
        memset(r->A_lost, 0, (size_t)(dk * wk) * sizeof(real));
        fold_penalty(r);
    } else
        r->A_base = NULL;
    for (int64_t i = 0; i < wk; i++) {
        r->total[i] = kind.sum && n && i < dk ? (double)n[r->head * dk + i] : 0;
        r->n[i] = (real)r->total[i];
        r->recent[i] = 0;
    }
    memset(r->w, 0, (size_t)(2 * wk) * sizeof(real));
    memset(r->a[0], 0, (size_t)(2 * wk) * sizeof(real));
    memset(r->a[1], 0, (size_t)(2 * wk) * sizeof(real));
    memset(r->e, 0, (size_t)(2 * wv) * sizeof(real));
    for (int64_t j = 0; j < wv; j++) r->decay[j] = 1;
    r->current = 0;
}

/* A -= w w^T of the last `tokens` tokens. */
INLINE void sweep_matrix_pending(int tokens, recurrent *r)
{
    const int64_t wk = r->wk;
    const sweep s = {
        .m = r->A, .rows = r->dk, .width = wk, .stride = wk, .x = {r->w, r->w + wk}, .y = {r->w, r->w + wk}};
    const sweep_kind shape = {tokens, 0, 1, 0, 0};
    sweep_run(shape, &s);
}

/* Applies what is pending and hands the state out. */
static __attribute__((unused)) void recurrent_end(recurrent_kind kind, recurrent *r)
{
    const vla_tensors *t = r->t;
    const int64_t dk = r->dk, dv = r->dv, wk = r->wk, wv = r->wv;
    const real *a = r->a[r->current];
    const sweep s = {.m = r->S,
                     .rows = dk,
                     .width = wv,
                     .stride = wv,
                     .x = {a, a + wk},
                     .y = {r->e, r->e + wv},
                     .base = r->base,
                     .gate = r->decay};
    const sweep_kind shape = {2, 0, 0, kind.gate, 0};
    sweep_run(shape, &s);
    if (kind.matrix) sweep_matrix_pending(2, r);
    if (r->A_base) fold_penalty(r);
    if (!kind.residual) fold_state(r);
    if (t->S) state_store((real *)t->S + r->head * dv * dk, dk, dv, kind.residual ? r->S : r->base, wv);
    if (kind.matrix && t->A) matrix_store((real *)t->A + r->head * dk * dk, dk, r->A_base ? r->A_base : r->A, wk);
    for (int64_t i = 0; kind.sum && t->n && i < dk; i++) ((real *)t->n)[r->head * dk + i] = (real)r->total[i];
}

/* Makes rows a (and w, for A) of the next `tokens` tokens; what differs between operators. */
typedef void (*recurrent_chain)(int tokens, recurrent *r, int64_t slot, real *a, real refresh);

/* The steps at which A += refresh_eps I, counted from 1 at the start of the sequence. */
INLINE bool refreshes(const recurrent *r, int64_t step)
{
    return r->p->refresh_period > 0 && step % r->p->refresh_period == 0;
}

INLINE void alpha_out(recurrent_kind kind, int tokens, const recurrent *r, int64_t token, const real *a)
{
    real *alpha = kind.penalty ? r->t->alpha : NULL;
    for (int i = 0; alpha && i < tokens; i++)
        memcpy(alpha + (token + i) * r->dk, a + i * r->wk, (size_t)r->dk * sizeof(real));
}

INLINE void recurrent_step(recurrent_kind kind, int tokens, recurrent *r, recurrent_chain chain, int64_t token,
                           int64_t slot, real refresh)
{
    real *a = r->a[!r->current];
    chain(tokens, r, slot, a, refresh);
    sweep_state(kind, tokens, r, slot);
    if (tokens == 1) memset(a + r->wk, 0, (size_t)r->wk * sizeof(real));
    write_tokens(kind, tokens, r, a, token, slot);
    alpha_out(kind, tokens, r, token, a);
    r->current = !r->current;
}

/* Tokens two at a time; a token that refreshes A must be the last of its step. */
INLINE void recurrent_tokens(recurrent_kind kind, recurrent *r, recurrent_chain chain, int64_t done)
{
    const int64_t len = r->p->T, first = r->head * len;
    for (int64_t from = 0; from < len; from += TOKENS) {
        const int64_t count = len - from < TOKENS ? len - from : TOKENS;
        prepare(kind, r, first + from, count);
        if (!kind.residual && from % FOLD_TOKENS == 0 && from > 0) fold_state(r);
        if (r->A_base && from % FOLD_PENALTY == 0 && from > 0) fold_penalty(r);
        for (int64_t slot = 0; slot < count;) {
            const int64_t token = from + slot, step = done + token + 1;
            const bool pair = slot + 1 < count && !(kind.penalty && refreshes(r, step));
            const bool refresh = kind.penalty && refreshes(r, pair ? step + 1 : step);
            const real eps = refresh ? (real)r->p->refresh_eps : 0;
            if (pair)
                recurrent_step(kind, 2, r, chain, first + token, slot, eps);
            else
                recurrent_step(kind, 1, r, chain, first + token, slot, eps);
            slot += pair ? 2 : 1;
        }
    }
}

/* The in-place step on `rows` rows of S [dv][dk] from row j, lanes over dk: e = beta (v - S k), S = g S + e a^T,
 * o = scale (g S q + e (a.q)). The sums of QUAD rows are formed together. */
INLINE void step_rows(recurrent_kind kind, int rows, recurrent *r, real *S, int64_t j, int64_t token, int64_t slot,
                      const real *a, real aq)
{
    const int64_t dk = r->dk;
    const real *k = r->kh + slot * dk, *q = r->qf + slot * dk, *v = row_of(r->t->v, token, r->dv) + j;
    real *o = (real *)r->t->o + token * r->dv + j, sums[2 * QUAD];
    vec dots[2 * QUAD];
    UNROLL
    for (int i = 0; i < 2 * QUAD; i++) dots[i] = vset(0);
    for (int64_t c = 0; c < dk; c += LANES) {
        const vec key = vload(k + c), query = vload(q + c);
        UNROLL
        for (int i = 0; i < rows; i++) {
            const vec s = vload(S + (j + i) * dk + c);
            if (kind.residual) dots[i] += s * key;
            dots[QUAD + i] += s * query;
        }
    }
    vsums(2 * QUAD, dots, sums);
    const real scale = kind.sum ? r->scale[slot] : 1;
    real e[QUAD], gate[QUAD];
    UNROLL
    for (int i = 0; i < rows; i++) {
        gate[i] = kind.gate ? r->gate[slot * r->wv + j + i] : 1;
        e[i] = kind.residual ? v[i] - sums[i] : v[i];
        if (kind.beta) e[i] *= r->beta[slot];
        o[i] = (gate[i] * sums[QUAD + i] + e[i] * aq) * scale;
    }
    for (int64_t c = 0; c < dk; c += LANES) {
        const vec row = vload(a + c);
        UNROLL
        for (int i = 0; i < rows; i++) {
            real *at = S + (j + i) * dk + c;
            vstore(at, (kind.gate ? vload(at) * gate[i] : vload(at)) + row * e[i]);
        }
    }
}

INLINE void step_in_place(recurrent_kind kind, recurrent *r, recurrent_chain chain, int64_t token, int64_t slot,
                          real refresh)
{
    const int64_t dk = r->dk, dv = r->dv;
    real *S = (real *)r->t->S + r->head * dv * dk, *a = r->a[0], dots[4];
    chain(1, r, slot, a, refresh);
    if (kind.matrix) sweep_matrix_pending(1, r);
    write_dots(1, r, a, slot, dots);
    int64_t j = 0;
    for (; j + QUAD <= dv; j += QUAD) step_rows(kind, QUAD, r, S, j, token, slot, a, dots[0]);
    for (; j < dv; j++) step_rows(kind, 1, r, S, j, token, slot, a, dots[0]);
    alpha_out(kind, 1, r, token, a);
}

/* Few tokens on a given state, whose rows are whole vectors: no copies. */
INLINE bool runs_in_place(const recurrent *r)
{
    return r->p->T <= IN_PLACE_TOKENS && r->t->state_in && r->wk == r->dk;
}

INLINE void recurrent_in_place(recurrent_kind kind, recurrent *r, recurrent_chain chain, int64_t done)
{
    const int64_t len = r->p->T, first = r->head * len, dk = r->dk;
    real *n = (real *)r->t->n + (kind.sum ? r->head * dk : 0);
    if (kind.matrix) r->A = (real *)r->t->A + r->head * dk * dk;
    for (int64_t i = 0; kind.sum && i < dk; i++) {
        r->total[i] = (double)n[i];
        r->n[i] = n[i];
        r->recent[i] = 0;
    }
    prepare(kind, r, first, len);
    for (int64_t slot = 0; slot < len; slot++) {
        const bool refresh = kind.penalty && refreshes(r, done + slot + 1);
        step_in_place(kind, r, chain, first + slot, slot, refresh ? (real)r->p->refresh_eps : 0);
    }
    for (int64_t i = 0; kind.sum && i < dk; i++) n[i] = r->n[i];
}

INLINE void recurrent_head(recurrent_kind kind, const vla_call *call, int64_t head, int worker, recurrent_chain chain)
{
    const vla_tensors *t = call->tensors;
    recurrent r = {.p = call->problem, .t = t, .head = head};
    const int64_t bytes = recurrent_carve(kind, call->problem, NULL, &r);
    const int64_t done = t->state_in && t->t ? *t->t : 0;
    recurrent_carve(kind, call->problem, (char *)call->work + worker * bytes, &r);
    r.in_place = runs_in_place(&r);
    if (r.in_place) {
        recurrent_in_place(kind, &r, chain, done);
        return;
    }
    recurrent_begin(kind, &r, is_long(call));
    recurrent_tokens(kind, &r, chain, done);
    recurrent_end(kind, &r);
}

/* Writes rows kh as they are: linear, delta, decay. */
INLINE void chain_keys(int tokens, recurrent *r, int64_t slot, real *a, real refresh)
{
    (void)refresh;
    memcpy(a, r->kh + slot * r->wk, (size_t)(tokens * r->wk) * sizeof(real));
}

INLINE vla_status recurrent_run(const vla_call *call, vla_task one_head)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    vla_pool_run(call->pool, p->B * p->H, one_head, (void *)(uintptr_t)call);
    if (t->t) *t->t = (t->state_in ? *t->t : 0) + p->T;
    return VLA_OK;
}

#endif
