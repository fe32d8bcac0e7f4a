/* decay, recurrent: S = g S + (v - S kh) kh^T ; o = S qf, g = sigmoid(gate) a token or a row of S, or 1.
 *
 * q, k [B,H,T,dk], v [B,H,T,dv], g [B,H,T] or [B,H,T,dv] logits or absent, o [B,H,T,dv], S [B,H,dv,dk]. Two tokens a
 * sweep of S (recurrent.h), 6 dk dv flops a token and one more multiplication an element for the gates, which are a
 * vector over rows of S in every case. The only form that takes a gate a row; also the decode step.
 */
#include "kernels/cpu/recurrent.h"

static const recurrent_kind kind = {.residual = 1, .gate = 1};

static void one_head(void *context, int64_t head, int worker)
{
    recurrent_head(kind, context, head, worker, chain_keys);
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

extern const vla_variant KERNEL(decay_recurrent_cpu);
const vla_variant KERNEL(decay_recurrent_cpu) = {NULL, workspace, run};
