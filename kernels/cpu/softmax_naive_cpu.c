/* softmax, naive: o_i = sum_j softmax_j(q_i.k_j / sqrt dk) v_j over keys j <= Tk - T + i.
 *
 * q [B,H,T,dk], k [B,H,Tk,dk], v [B,H,Tk,dv], o [B,H,T,dv], float64. Two passes over the keys of each query, O(dv)
 * memory: the judge of the blocked forms. Keys a query may not see are never read, so their NaN cannot reach it.
 */
#include "kernels/cpu/naive.h"
#include <math.h>

static void one_head(const vla_call *call, int64_t head, double *scratch)
{
    (void)scratch;
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const double *k = (const double *)t->k + head * p->Tk * p->dk;
    const double *v = (const double *)t->v + head * p->Tk * p->dv;
    const double scale = 1.0 / sqrt((double)p->dk);
    for (int64_t i = 0; i < p->T; i++) {
        const double *q = (const double *)t->q + (head * p->T + i) * p->dk;
        double *o = (double *)t->o + (head * p->T + i) * p->dv;
        const int64_t last = p->Tk - p->T + i;
        double largest = -INFINITY, sum = 0;
        for (int64_t c = 0; c < p->dv; c++) o[c] = 0;
        for (int64_t j = 0; j <= last; j++) {
            const double logit = scale * vla_naive_dot(q, k + j * p->dk, p->dk);
            if (!(logit <= largest)) largest = logit;
        }
        for (int64_t j = 0; j <= last; j++) {
            const double weight = exp(scale * vla_naive_dot(q, k + j * p->dk, p->dk) - largest);
            sum += weight;
            for (int64_t c = 0; c < p->dv; c++) o[c] += weight * v[j * p->dv + c];
        }
        for (int64_t c = 0; c < p->dv && last >= 0; c++) o[c] /= sum;
    }
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return vla_naive_each_head(call, one_head);
}

extern const vla_variant softmax_naive_cpu;
const vla_variant softmax_naive_cpu = {NULL, vla_naive_workspace, run};
