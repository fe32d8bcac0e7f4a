/* delta, naive (DeltaNet, Schlag 2021): S += beta (v - S kh) kh^T, beta = sigmoid(b) or 1 ; o = S qf.
 *
 * q, k [B,H,T,dk], v [B,H,T,dv], b [B,H,T] logits, o [B,H,T,dv], S [B,H,dv,dk], float64.
 */
#include "kernels/cpu/naive.h"

static void one_head(const vla_call *call, int64_t head, double *scratch)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t dk = p->dk, dv = p->dv;
    double *S = scratch, *qf = S + dv * dk, *kh = qf + dk, *r = kh + dk;
    vla_naive_start(call, head, S, NULL, NULL);
    for (int64_t i = 0; i < p->T; i++) {
        const int64_t row = head * p->T + i;
        const double *v = (const double *)t->v + row * dv;
        const double beta = t->b ? vla_naive_sigmoid(((const double *)t->b)[row]) : 1.0;
        vla_naive_query(qf, (const double *)t->q + row * dk, dk, p);
        vla_naive_unit_features(kh, (const double *)t->k + row * dk, dk, p->features);
        vla_naive_matvec(r, S, kh, dv, dk);
        for (int64_t c = 0; c < dv; c++) r[c] = v[c] - r[c];
        vla_naive_rank1(S, beta, r, kh, dv, dk);
        vla_naive_matvec((double *)t->o + row * dv, S, qf, dv, dk);
    }
    vla_naive_finish(call, head, S, NULL, NULL);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return vla_naive_each_head(call, one_head);
}

extern const vla_variant delta_naive_cpu;
const vla_variant delta_naive_cpu = {NULL, vla_naive_workspace, run};
