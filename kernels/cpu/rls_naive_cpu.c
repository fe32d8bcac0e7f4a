/* rls, naive (recursive least squares): p = P kh ; g = p/(1 + kh.p) ; S += (v - S kh) g^T ; P -= g p^T ; o = S qf.
 *
 * q, k [B,H,T,dk], v [B,H,T,dv], o [B,H,T,dv], S [B,H,dv,dk], P stored as A [B,H,dk,dk], float64.
 */
#include "kernels/cpu/naive.h"

static void one_head(const vla_call *call, int64_t head, double *scratch)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t dk = p->dk, dv = p->dv;
    double *S = scratch, *P = S + dv * dk, *qf = P + dk * dk, *kh = qf + dk, *Pk = kh + dk, *r = Pk + dk;
    vla_naive_start(call, head, S, P, NULL);
    for (int64_t i = 0; i < p->T; i++) {
        const int64_t row = head * p->T + i;
        const double *v = (const double *)t->v + row * dv;
        vla_naive_query(qf, (const double *)t->q + row * dk, dk, p);
        vla_naive_unit_features(kh, (const double *)t->k + row * dk, dk, p->features);
        vla_naive_matvec(Pk, P, kh, dk, dk);
        const double gain = 1.0 / (1.0 + vla_naive_dot(kh, Pk, dk));
        vla_naive_matvec(r, S, kh, dv, dk);
        for (int64_t c = 0; c < dv; c++) r[c] = v[c] - r[c];
        vla_naive_rank1(S, gain, r, Pk, dv, dk);
        vla_naive_rank1(P, -gain, Pk, Pk, dk, dk);
        vla_naive_matvec((double *)t->o + row * dv, S, qf, dv, dk);
    }
    vla_naive_finish(call, head, S, P, NULL);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return vla_naive_each_head(call, one_head);
}

extern const vla_variant rls_naive_cpu;
const vla_variant rls_naive_cpu = {NULL, vla_naive_workspace, run};
