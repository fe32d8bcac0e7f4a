/* linear, naive: S += v kf^T ; n += kf ; o = S qf / max(n.qf, eps).
 *
 * q, k [B,H,T,dk], v [B,H,T,dv], o [B,H,T,dv], S [B,H,dv,dk], n [B,H,dk], float64, as readable as the formula.
 */
#include "kernels/cpu/naive.h"

static void one_head(const vla_call *call, int64_t head, double *scratch)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t dk = p->dk, dv = p->dv;
    double *S = scratch, *n = S + dv * dk, *qf = n + dk, *kf = qf + dk, *y = kf + dk;
    vla_naive_start(call, head, S, NULL, n);
    for (int64_t i = 0; i < p->T; i++) {
        const int64_t row = head * p->T + i;
        const double *v = (const double *)t->v + row * dv;
        double *o = (double *)t->o + row * dv;
        vla_naive_query(qf, (const double *)t->q + row * dk, dk, p);
        vla_naive_features(kf, (const double *)t->k + row * dk, dk, p->features);
        vla_naive_rank1(S, 1.0, v, kf, dv, dk);
        for (int64_t c = 0; c < dk; c++) n[c] += kf[c];
        vla_naive_matvec(y, S, qf, dv, dk);
        const double den = vla_naive_dot(n, qf, dk);
        for (int64_t c = 0; c < dv; c++) o[c] = vla_naive_ratio(y[c], den);
    }
    vla_naive_finish(call, head, S, NULL, n);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return vla_naive_each_head(call, one_head);
}

extern const vla_variant linear_naive_cpu;
const vla_variant linear_naive_cpu = {NULL, vla_naive_workspace, run};
