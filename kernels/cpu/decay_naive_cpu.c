/* decay, naive: S = g S + (v - S kh) kh^T, g = sigmoid(gate) or 1 ; o = S qf. The residual uses S before the decay.
 *
 * q, k [B,H,T,dk], v [B,H,T,dv], g [B,H,T] or [B,H,T,dv] logits (one gate a token, or one a row of S), o [B,H,T,dv],
 * S [B,H,dv,dk], float64. What the paper compared with under the name DeltaNet.
 */
#include "kernels/cpu/naive.h"

static double gate_of(const vla_call *call, int64_t row, int64_t c)
{
    const double *g = call->tensors->g;
    switch (call->problem->gate) {
    case VLA_GATE_TOKEN:
        return vla_naive_sigmoid(g[row]);
    case VLA_GATE_ROW:
        return vla_naive_sigmoid(g[row * call->problem->dv + c]);
    default:
        return 1.0;
    }
}

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
        vla_naive_query(qf, (const double *)t->q + row * dk, dk, p);
        vla_naive_unit_features(kh, (const double *)t->k + row * dk, dk, p->features);
        vla_naive_matvec(r, S, kh, dv, dk);
        for (int64_t c = 0; c < dv; c++) {
            const double gate = gate_of(call, row, c), residual = v[c] - r[c];
            for (int64_t j = 0; j < dk; j++) S[c * dk + j] = gate * S[c * dk + j] + residual * kh[j];
        }
        vla_naive_matvec((double *)t->o + row * dv, S, qf, dv, dk);
    }
    vla_naive_finish(call, head, S, NULL, NULL);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return vla_naive_each_head(call, one_head);
}

extern const vla_variant decay_naive_cpu;
const vla_variant decay_naive_cpu = {NULL, vla_naive_workspace, run};
