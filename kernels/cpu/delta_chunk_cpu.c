/* delta (DeltaNet), chunkwise and exact: S += beta (v - S kh) kh^T, beta = sigmoid(b) or 1 ; o = S qf. For C tokens
 * with unit keys K, features Q, values V and S at the chunk's start, R the residuals times beta:
 *
 *   R = (I + diag(beta) stril(K K^T))^-1 diag(beta) (V - K S^T) ;  O = Q S^T + tril(Q K^T) R ;  S += R^T K
 *
 * q, k [B,H,T,dk], v, o [B,H,T,dv], b [B,H,T] logits or absent, S [B,H,dv,dk].
 *
 * Idea: two register-tiled products against the cache-resident S a chunk, one Gram product with tokens in lanes for K
 * K^T and Q K^T. Meant to beat: the recurrent form from T about 8 on. Unsupported: chunk above 256.
 */
#include "kernels/cpu/chunk.h"

enum { USUAL_CHUNK = 8 };

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return chunk_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

static int64_t step(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const int64_t kp = s->kp, vp = s->vp, cp = s->cp, dk = s->dk, n = load_keys(call, head, at, s);
    const real *key = s->rows;
    real *qs = s->ks + cp * vp;
    panel_product(s->panel, 2 * cp, 2 * cp, s->S, vp, dk, vp, s->ks, vp);
    panel_gram(key, kp, cp, s->panel, 2 * cp, dk, 2 * cp, s->gram, 2 * cp);
    subtract_rows(s->r, s->ks, cp * vp);
    solve_lower(s->r, vp, cp, vp, s->gram, 1, 2 * cp, call->tensors->b ? s->scalar : NULL);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + cp, 1, 2 * cp, 1);
    panel_update(s->S, vp, BLOCKS(dk), vp, key, kp, s->r, vp, cp);
    chunk_output(call, head, at, n, s, qs, NULL);
    return n;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), step);
}

extern const vla_variant KERNEL(delta_chunk_cpu);
const vla_variant KERNEL(delta_chunk_cpu) = {chunk_supports, workspace, run};
