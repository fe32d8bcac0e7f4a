/* vla, chunkwise and exact. With K unit keys, U penalty directions, Q features and V values of C tokens, A and S at the
 * chunk's start:
 *
 *   G = I + U A U^T = L L^T ;  W = L^-1 U A ;  X = K A - tril(K W^T) W ;  a = unit(rows of X)
 *   R = (I + stril(K a^T))^-1 (V - K S^T) ;  O = Q S^T + tril(Q a^T) R ;  S += R^T a ;  A -= W^T W
 *
 * q, k, u [B,H,T,dk] (u absent: the raw key), v, o [B,H,T,dv], S [B,H,dv,dk], A [B,H,dk,dk], n [B,H,dk], alpha
 * optional.
 *
 * Idea: [U;K] A and [K;Q] S^T are register-tiled products against cache-resident matrices, U A U^T and K A U^T come
 * from one Gram product with tokens in lanes, and since K W^T = (K A U^T) L^-T the solve that gives W gives it too. A
 * chunk of 8 tokens costs 12 dk (dk + dv)/2 C multiply-adds for the state and about 16 C^2 d on top, so C stays small.
 * With a refresh period chunks end at its multiples, where A += E I enters the last token's X.
 * Meant to beat: the recurrent form from T about 8 on. Unsupported: chunk above 256.
 */
#include "kernels/cpu/chunk.h"

enum { USUAL_CHUNK = 8 };

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return chunk_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

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

/* Penalties, keys and values of tokens b .. b + rows of the chunk; returns the first that is not finite, or rows. */
static int64_t load_block(const vla_call *call, int64_t head, int64_t at, int64_t b, int64_t rows, const chunk_space *s)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t kp = s->kp, dk = s->dk;
    const real *k = token_row(t->k, p, head, at + b, dk), *v = token_row(t->v, p, head, at + b, s->dv);
    const real *u = t->u ? token_row(t->u, p, head, at + b, dk) : k;
    real *penalty = s->rows + b * kp, *key = s->rows + (s->cp + b) * kp, *kf = s->kf + b * kp;
    int64_t good = block_unit(VLA_IDENTITY, u, dk, rows, kp, penalty_scale(dk), penalty, penalty);
    if (p->no_normalise) {
        good = least(good, block_rows(p->features, k, dk, rows, kp, kf));
        memcpy(key, kf, (size_t)(rows * kp) * sizeof(real));
    } else {
        good = least(good, block_unit(p->features, k, dk, rows, kp, 1, kf, key));
    }
    return least(good, block_rows(VLA_IDENTITY, v, s->dv, rows, s->vp, s->r + b * s->vp));
}

/* Loads up to `length` tokens, ending before one that is not finite unless that is the first; returns how many. */
static int64_t load_chunk(const vla_call *call, int64_t head, int64_t at, int64_t length, chunk_space *s)
{
    const int64_t kp = s->kp, cp = s->cp;
    int64_t n = 0, rows = 0, good = 0;
    for (; n < length && good == rows; n += good) {
        rows = least(length - n, BLOCK);
        good = load_block(call, head, at, n, rows, s);
    }
    n = n > 0 ? n : 1;
    load_queries(call, head, at, n, s, s->rows + 2 * cp * kp);
    zero_rows(s->rows, n, cp, kp);
    zero_rows(s->rows + cp * kp, n, cp, kp);
    zero_rows(s->kf, n, cp, kp);
    zero_rows(s->r, n, cp, s->vp);
    panel_transpose(s->rows, kp, 3 * cp, kp, s->panel, 3 * cp);
    prefetch_chunk(call, head, at + n, s);
    return n;
}

/* a = unit(x), or x itself without normalisation. */
static void make_alpha(const vla_problem *p, const real *x, const chunk_space *s)
{
    if (p->no_normalise)
        memcpy(s->a, x, (size_t)(s->cp * s->kp) * sizeof(real));
    else
        for (int64_t b = 0; b < s->cp; b += BLOCK) block_normalise(x + b * s->kp, s->dk, s->kp, s->a + b * s->kp);
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
    panel_downdate(s->A, kp, BLOCKS(s->dk), kp, w, kp, cp);
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

/* From a and S: the outputs (in ks + cp rows) and S at the end of the chunk. */
static void advance_state(chunk_space *s)
{
    const int64_t kp = s->kp, vp = s->vp, cp = s->cp;
    real *qs = s->ks + cp * vp;
    panel_product(s->panel + cp, 3 * cp, 2 * cp, s->S, vp, s->dk, vp, s->ks, vp);
    panel_gram(s->a, kp, cp, s->panel + cp, 3 * cp, s->dk, 2 * cp, s->gram, 2 * cp);
    subtract_rows(s->r, s->ks, cp * vp);
    solve_lower(s->r, vp, cp, vp, s->gram, 1, 2 * cp, NULL);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + cp, 1, 2 * cp, 1);
    panel_update(s->S, vp, BLOCKS(s->dk), vp, s->a, kp, s->r, vp, cp);
}

static int64_t step(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const vla_problem *p = call->problem;
    bool refresh;
    const int64_t length = chunk_length(call, at, s->c, &refresh);
    const int64_t n = load_chunk(call, head, at, length, s);
    real den[CHUNK_MAX];
    advance_penalty(p, n, refresh && n == length, s);
    advance_state(s);
    chunk_ratio(s, s->kf, s->rows + 2 * s->cp * s->kp, den);
    chunk_output(call, head, at, n, s, s->ks + s->cp * s->vp, p->output == VLA_PLAIN ? NULL : den);
    if (call->tensors->alpha) {
        real *alpha = (real *)call->tensors->alpha + (head * p->T + at) * s->dk;
        for (int64_t i = 0; i < n; i++) row_store(alpha + i * s->dk, s->a + i * s->kp, s->dk);
    }
    return n;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), step);
}

extern const vla_variant KERNEL(vla_chunk_cpu);
const vla_variant KERNEL(vla_chunk_cpu) = {chunk_supports, workspace, run};
