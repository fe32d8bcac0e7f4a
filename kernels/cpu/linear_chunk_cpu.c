/* linear attention, chunkwise and exact: S += v kf^T ; n += kf ; o = S qf / max(n.qf, eps). For C tokens with features
 * K, Q, values V and S at the chunk's start:
 *
 *   O = Q S^T + tril(Q K^T) V ;  S += V^T K
 *
 * q, k [B,H,T,dk], v, o [B,H,T,dv], S [B,H,dv,dk], n [B,H,dk].
 *
 * Idea: two register-tiled products against the cache-resident S a chunk. S grows with T, so the update is compensated
 * (Kahan, once a chunk and element): millions of tokens in float keep the accuracy of a few. Meant to beat: the
 * recurrent form from T about 8 on. Unsupported: chunk above 256.
 */
#include "kernels/cpu/chunk.h"

enum { USUAL_CHUNK = 16 };

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return chunk_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

static int64_t step(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const int64_t kp = s->kp, vp = s->vp, cp = s->cp, dk = s->dk, n = load_keys(call, head, at, s);
    const real *key = s->rows;
    real *qs = s->ks + cp * vp, den[CHUNK_MAX];
    panel_product(s->panel + cp, 2 * cp, cp, s->S, vp, dk, vp, qs, vp);
    /* Only the lanes of Q are used; those of K come along where one block of tokens does not fill a vector. */
    const int64_t spare = cp % LANES ? cp : 0;
    panel_gram(key, kp, cp, s->panel + cp - spare, 2 * cp, dk, cp + spare, s->gram, 2 * cp);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + spare, 1, 2 * cp, 1);
    panel_update_carry(s->S, s->carry, vp, BLOCKS(dk), vp, key, kp, s->r, vp, cp);
    chunk_ratio(s, key, key + cp * kp, den);
    chunk_output(call, head, at, n, s, qs, den);
    return n;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), step);
}

extern const vla_variant KERNEL(linear_chunk_cpu);
const vla_variant KERNEL(linear_chunk_cpu) = {chunk_supports, workspace, run};
