/* vla: the two halves of a chunk, A with the directions a it gives, and S with the outputs. The algebra is in
 * vla_chunk_cpu.c. */
#ifndef VLA_CPU_VLA_CHUNK_H
#define VLA_CPU_VLA_CHUNK_H
#include "kernels/cpu/chunk.h"

enum { USUAL_CHUNK = 8 };

/* Tokens from `at` to the end of the chunk; *refresh says that the last of them is followed by A += E I. */
static int64_t chunk_length(const vla_call *call, int64_t at, int64_t tokens, bool *refresh)
{
    const vla_problem *p = call->problem;
    int64_t length = p->T - at < tokens ? p->T - at : tokens;
    *refresh = false;
    if (p->refresh_period > 0) {
        const int64_t done = at + (call->tensors->state_in && call->tensors->t ? *call->tensors->t : 0);
        const int64_t left = p->refresh_period - done % p->refresh_period;
        *refresh = left <= length;
        length = *refresh ? left : length;
    }
    return length;
}

/* Penalties and keys of tokens b .. b + rows of the chunk; returns the first that is not finite, or rows. */
static int64_t load_key_penalty(const vla_call *call, int64_t head, int64_t at, int64_t b, int64_t rows,
                                const chunk_space *s)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t kp = s->kp, dk = s->dk;
    const real *k = token_row(t->k, p, head, at + b, dk);
    const real *u = t->u ? token_row(t->u, p, head, at + b, dk) : k;
    real *penalty = s->rows + b * kp, *key = s->rows + (s->cp + b) * kp, *kf = s->kf + b * kp;
    int64_t good = block_unit(VLA_IDENTITY, u, dk, rows, kp, penalty_scale(dk), penalty, penalty);
    if (p->no_normalise) {
        good = least(good, block_rows(p->features, k, dk, rows, kp, kf));
        memcpy(key, kf, (size_t)(rows * kp) * sizeof(real));
    } else {
        good = least(good, block_unit(p->features, k, dk, rows, kp, 1, kf, key));
    }
    return good;
}

/* a = unit(x), or x itself without normalisation. */
static void make_alpha(const vla_problem *p, const real *x, const chunk_space *s)
{
    if (p->no_normalise)
        memcpy(s->a, x, (size_t)(s->cp * s->kp) * sizeof(real));
    else
        for (int64_t b = 0; b < s->cp; b += BLOCK) block_normalise(x + b * s->kp, s->dk, s->kp, s->a + b * s->kp);
}

/* A -= W^T W. In long runs the sum is compensated: in float a million tokens would otherwise leave A's entries, by then
 * small, with few digits. Symmetric to the last bit either way, as entries (i, j) and (j, i) add the same products in
 * one order. */
static void downdate(const chunk_space *s)
{
    const int64_t kp = s->kp, cp = s->cp;
    const real *w = s->product;
    if (!s->compensate) {
        panel_downdate(s->A, kp, BLOCKS(s->dk), kp, w, kp, cp);
        return;
    }
    for (int64_t i = 0; i < cp * kp; i += LANES) vstore(s->a + i, -vload(w + i)); /* a is free until it is made */
    panel_update_carry(s->A, s->carry, kp, BLOCKS(s->dk), kp, w, kp, s->a, kp, cp);
}

/* From A at the start of the chunk: a for every token, and A at its end. */
static void advance_penalty(const vla_problem *p, int64_t tokens, bool refresh, chunk_space *s)
{
    const int64_t kp = s->kp, cp = s->cp;
    real *w = s->product, *x = s->product + cp * kp;
    panel_product(s->panel, 3 * cp, 2 * cp, s->A, kp, s->dk, kp, s->product, kp);
    panel_gram(w, kp, cp, s->panel, 3 * cp, s->dk, 2 * cp, s->gram, 2 * cp);
    cholesky(s->gram, 2 * cp, cp, s->lower, s->inverse);
    /* The same solve takes U A to W and the lanes of (K A U^T)^T to (K W^T)^T. */
    solve_lower(w, kp, cp, kp, s->lower, cp, 1, s->inverse);
    solve_lower(s->gram, 2 * cp, cp, 2 * cp, s->lower, cp, 1, s->inverse);
    apply_lower(x, kp, w, kp, cp, kp, s->gram + cp, 1, 2 * cp, -1);
    downdate(s);
    if (refresh) {
        const real e = (real)p->refresh_eps;
        const real *key = s->rows + (cp + tokens - 1) * kp;
        real *last = x + (tokens - 1) * kp;
        for (int64_t i = 0; i < s->dk; i++) {
            last[i] += e * key[i];
            s->A[i * kp + i] += e;
        }
    }
    make_alpha(p, x, s);
}

/* From a, S and the values in r: the outputs (in ks + cp rows) and S at the end of the chunk. panel [kp][ldp] holds K
 * and Q transposed side by side. */
static void advance_state(const real *panel, int64_t ldp, const real *a, chunk_space *s)
{
    const int64_t kp = s->kp, vp = s->vp, cp = s->cp;
    real *qs = s->ks + cp * vp;
    panel_product(panel, ldp, 2 * cp, s->S, vp, s->dk, vp, s->ks, vp);
    panel_gram(a, kp, cp, panel, ldp, s->dk, 2 * cp, s->gram, 2 * cp);
    subtract_rows(s->r, s->ks, cp * vp);
    solve_lower(s->r, vp, cp, vp, s->gram, 1, 2 * cp, NULL);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + cp, 1, 2 * cp, 1);
    panel_update(s->S, vp, BLOCKS(s->dk), vp, a, kp, s->r, vp, cp);
}

/* Writes alpha rows where the caller wants them. */
static void store_alpha(const vla_call *call, int64_t head, int64_t at, int64_t tokens, const chunk_space *s)
{
    if (!call->tensors->alpha) return;
    real *alpha = (real *)call->tensors->alpha + (head * call->problem->T + at) * s->dk;
    for (int64_t i = 0; i < tokens; i++) row_store(alpha + i * s->dk, s->a + i * s->kp, s->dk);
}

#endif
