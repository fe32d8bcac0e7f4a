/* linear, recurrent: S += v kf^T ; n += kf ; o = S qf / max(n.qf, eps).
 *
 * q, k [B,H,T,dk], v [B,H,T,dv], o [B,H,T,dv], S [B,H,dv,dk], n [B,H,dk]. Two tokens a sweep of S (recurrent.h), 4 dk
 * dv flops a token; n is summed in double and S carries its rounding errors, so that millions of tokens stay accurate.
 * The decode step, and short runs; chunk does the same flops as matrix products.
 */
#include "kernels/cpu/recurrent.h"

static const recurrent_kind kind = {.sum = 1};

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

extern const vla_variant KERNEL(linear_recurrent_cpu);
const vla_variant KERNEL(linear_recurrent_cpu) = {NULL, workspace, run};
