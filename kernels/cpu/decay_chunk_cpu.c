/* decay, chunkwise and exact, one gate a token: S = g S + (v - S kh) kh^T, g = sigmoid(gate) or 1 ; o = S qf; the
 * residual uses S before the decay. For C tokens, with D(t, s) = g_{s+1} .. g_t, D(t, -1) = g_0 .. g_t and S at the
 * chunk's start:
 *
 *   R_t = v_t - D(t-1, -1) S k_t - sum_{s<t} D(t-1, s) (k_t . k_s) R_s
 *   O_t = D(t, -1) S q_t + sum_{s<=t} D(t, s) (q_t . k_s) R_s ;  S = D(C-1, -1) S + sum_s D(C-1, s) R_s k_s^T
 *
 * q, k [B,H,T,dk], v, o [B,H,T,dv], g [B,H,T] logits or absent, S [B,H,dv,dk].
 *
 * Idea: as the delta chunk, with the Gram's entries scaled by D. D is built by products along the chunk, row t from row
 * t - 1, never by quotients, so that gates near 0 underflow to 0 as they do token by token. Measured on AVX2 and
 * AVX-512 it is slower than the two-token sweep of the recurrent form (d = 32 to 128): kept as the independent exact
 * chunkwise form. Unsupported: a gate per row of S, chunk above 256.
 */
#include "kernels/cpu/chunk.h"

enum { USUAL_CHUNK = 8 };

static bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->gate == VLA_GATE_ROW) {
        snprintf(reason, size, "a gate per row of S has no chunk form: use recurrent");
        return false;
    }
    return chunk_supports(p, reason, size);
}

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return chunk_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

/* Scales the Gram's lanes of K by D(t-1, s) and of Q by D(t, s); before[t] = D(t-1, -1), until[s] = D(C-1, s) and the
 * return value D(C-1, -1). Zero rows after the last token have gate 1. */
static real apply_gates(const chunk_space *s, real *before, real *until)
{
    const int64_t cp = s->cp;
    real since_start = 1;
    for (int64_t t = 0; t < cp; t++) {
        const real gate = s->scalar[t];
        before[t] = since_start;
        for (int64_t e = 0; e < t; e++) {
            s->gram[e * 2 * cp + t] *= until[e];
            until[e] *= gate;
            s->gram[e * 2 * cp + cp + t] *= until[e];
        }
        until[t] = 1;
        since_start *= gate;
    }
    return since_start;
}

static int64_t step(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const int64_t kp = s->kp, vp = s->vp, cp = s->cp, dk = s->dk, n = load_keys(call, head, at, s);
    const real *key = s->rows;
    real *qs = s->ks + cp * vp, decay = 1, before[CHUNK_MAX], until[CHUNK_MAX];
    const bool gated = call->problem->gate == VLA_GATE_TOKEN;
    panel_product(s->panel, 2 * cp, 2 * cp, s->S, vp, dk, vp, s->ks, vp);
    panel_gram(key, kp, cp, s->panel, 2 * cp, dk, 2 * cp, s->gram, 2 * cp);
    if (gated) {
        decay = apply_gates(s, before, until);
        for (int64_t t = 0; t < cp; t++) {
            row_scale(s->ks + t * vp, s->ks + t * vp, vp, before[t]);
            row_scale(qs + t * vp, qs + t * vp, vp, before[t] * s->scalar[t]);
        }
    }
    subtract_rows(s->r, s->ks, cp * vp);
    solve_lower(s->r, vp, cp, vp, s->gram, 1, 2 * cp, NULL);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + cp, 1, 2 * cp, 1);
    for (int64_t t = 0; gated && t < cp; t++) row_scale(s->r + t * vp, s->r + t * vp, vp, until[t]);
    panel_update_scaled(s->S, vp, BLOCKS(dk), vp, key, kp, s->r, vp, cp, decay);
    chunk_output(call, head, at, n, s, qs, NULL);
    return n;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), step);
}

extern const vla_variant KERNEL(decay_chunk_cpu);
const vla_variant KERNEL(decay_chunk_cpu) = {supports, workspace, run};
