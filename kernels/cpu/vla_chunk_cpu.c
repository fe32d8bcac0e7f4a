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
 * Measured on AVX2 and AVX-512 it is
 * slower than the two-token sweep of the recurrent form (d = 32 to 128): kept as
 * the independent exact chunkwise form. Unsupported: chunk above 256.
 */
#include "kernels/cpu/vla_chunk.h"

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return chunk_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

/* Loads up to `length` tokens, ending before one that is not finite unless that is the first; returns how many. */
static int64_t load_chunk(const vla_call *call, int64_t head, int64_t at, int64_t length, chunk_space *s)
{
    const int64_t kp = s->kp, cp = s->cp;
    int64_t n = 0, rows = 0, good = 0;
    for (; n < length && good == rows; n += good) {
        rows = least(length - n, BLOCK);
        good = least(load_key_penalty(call, head, at, n, rows, s), load_values(call, head, at, n, rows, s));
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

static int64_t step(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const vla_problem *p = call->problem;
    bool refresh;
    const int64_t length = chunk_length(call, at, s->c, &refresh);
    const int64_t n = load_chunk(call, head, at, length, s);
    real den[CHUNK_MAX];
    advance_penalty(p, n, refresh && n == length, s);
    advance_state(s->panel + s->cp, 3 * s->cp, s->a, s);
    chunk_ratio(s, s->kf, s->rows + 2 * s->cp * s->kp, den);
    chunk_output(call, head, at, n, s, s->ks + s->cp * s->vp, p->output == VLA_PLAIN ? NULL : den);
    store_alpha(call, head, at, n, s);
    return n;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), step);
}

extern const vla_variant KERNEL(vla_chunk_cpu);
const vla_variant KERNEL(vla_chunk_cpu) = {chunk_supports, workspace, run};
