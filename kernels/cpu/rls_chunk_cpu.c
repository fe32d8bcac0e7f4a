/* rls, chunkwise and exact: p = P kh ; g = p/(1 + kh.p) ; S += (v - S kh) g^T ; P -= g p^T ; o = S qf. For C tokens
 * with unit keys K, features Q, values V, and P, S at the chunk's start:
 *
 *   G = I + K P K^T = L L^T ;  W = L^-1 K P ;  Y = L^-1 (V - K S^T)
 *   O = Q S^T + tril(Q W^T) Y ;  S += Y^T W ;  P -= W^T W
 *
 * The gains are a = diag(L)^-1 W and the residuals R = diag(L) Y; the diagonals cancel in every product R^T a, so
 * neither is formed. q, k [B,H,T,dk], v, o [B,H,T,dv], S [B,H,dv,dk], P [B,H,dk,dk] in the tensor A.
 *
 * Idea: as the vla chunk, with half the products against P and one solve for everything. Measured on AVX2 and AVX-512
 * it is slower than the two-token sweep of the recurrent form (d = 32 to 128): kept as the independent exact chunkwise
 * form. Unsupported: chunk above 256.
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
    real *w = s->product, *qs = s->ks + cp * vp;
    panel_product(s->panel, 2 * cp, cp, s->A, kp, dk, kp, w, kp);
    panel_product(s->panel, 2 * cp, 2 * cp, s->S, vp, dk, vp, s->ks, vp);
    panel_gram(w, kp, cp, s->panel, 2 * cp, dk, 2 * cp, s->gram, 2 * cp);
    cholesky(s->gram, 2 * cp, cp, s->lower, s->inverse);
    solve_lower(w, kp, cp, kp, s->lower, cp, 1, s->inverse);
    solve_lower(s->gram, 2 * cp, cp, 2 * cp, s->lower, cp, 1, s->inverse); /* lanes of (Q P K^T)^T become (Q W^T)^T */
    subtract_rows(s->r, s->ks, cp * vp);
    solve_lower(s->r, vp, cp, vp, s->lower, cp, 1, s->inverse);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + cp, 1, 2 * cp, 1);
    panel_update(s->S, vp, BLOCKS(dk), vp, w, kp, s->r, vp, cp);
    panel_downdate(s->A, kp, BLOCKS(dk), kp, w, kp, cp);
    chunk_output(call, head, at, n, s, qs, NULL);
    return n;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), step);
}

extern const vla_variant KERNEL(rls_chunk_cpu);
const vla_variant KERNEL(rls_chunk_cpu) = {chunk_supports, workspace, run};
