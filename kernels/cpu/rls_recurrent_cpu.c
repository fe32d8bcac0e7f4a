/* rls, recurrent (recursive least squares): p = P kh ; g = p/(1 + kh.p) ; S += (v - S kh) g^T ; P -= g p^T ; o = S qf.
 *
 * q, k [B,H,T,dk], v [B,H,T,dv], o [B,H,T,dv], S [B,H,dv,dk], P stored as A [B,H,dk,dk], symmetric. Two tokens a sweep
 * of P and of S (recurrent.h), 4 dk^2 + 6 dk dv flops a token; also the decode step.
 */
#include "kernels/cpu/recurrent.h"

static const recurrent_kind kind = {.matrix = 1, .residual = 1};

/* With P before the pair: w0 = P k0/sqrt(d0), d0 = 1 + k0.P k0 ; p1 = P k1 - w0 (w0.k1), d1 = 1 + k1.p1, w1 =
 * p1/sqrt(d1) ; g = w/sqrt(d). P -= w w^T keeps it symmetric to the last bit. */
static void chain(int tokens, recurrent *r, int64_t slot, real *a, real refresh)
{
    (void)refresh;
    const int64_t wk = r->wk;
    const real *k = r->kh + slot * wk, *pk0 = r->ap, *pk1 = r->ap + wk;
    vec sum[4] = {vset(0), vset(0), vset(0), vset(0)};
    real dot[4];
    if (tokens == 2)
        sweep_matrix(2, 1, r, k, k);
    else
        sweep_matrix(1, 1, r, k, k);
    for (int64_t i = 0; i < wk; i += LANES) {
        const vec p0 = vload(pk0 + i);
        sum[0] += vload(k + i) * p0;
        if (tokens == 2) {
            const vec k1 = vload(k + wk + i);
            sum[1] += k1 * p0;
            sum[2] += k1 * vload(pk1 + i);
        }
    }
    vsums(4, sum, dot);
    const real s0 = 1 / real_sqrt(1 + dot[0]), c = dot[1] * s0, s1 = 1 / real_sqrt(1 + dot[2] - c * c);
    for (int64_t i = 0; i < wk; i += LANES) {
        const vec w0 = vload(pk0 + i) * s0;
        vstore(r->w + i, w0);
        vstore(a + i, w0 * s0);
        const vec w1 = tokens == 2 ? (vload(pk1 + i) - w0 * c) * s1 : vset(0);
        vstore(r->w + wk + i, w1);
        vstore(a + wk + i, w1 * s1);
    }
}

static void one_head(void *context, int64_t head, int worker)
{
    recurrent_head(kind, context, head, worker, chain);
}

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return recurrent_workspace(kind, p, threads, bytes, error);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return recurrent_run(call, one_head);
}

extern const vla_variant KERNEL(rls_recurrent_cpu);
const vla_variant KERNEL(rls_recurrent_cpu) = {NULL, workspace, run};
