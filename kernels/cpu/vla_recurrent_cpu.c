/* vla, recurrent (Variational Linear Attention): uh = unit(u)/sqrt dk ; z = A uh ; A -= z z^T/(1 + uh.z) ; a = unit(A
 * kh) ; S += (v - S kh) a^T ; n += kf ; o = S qf / max(n.qf, eps), or S qf with plain output.
 *
 * q, k, u [B,H,T,dk] (u absent: the raw key), v [B,H,T,dv], o [B,H,T,dv], S [B,H,dv,dk], A [B,H,dk,dk] (symmetric),
 * n [B,H,dk], alpha [B,H,T,dk] on request. Two tokens a sweep of A and of S (recurrent.h): 6 dk^2 + 6 dk dv flops a
 * token, a load and a store an element for two tokens, beside O(dk) for what the second token must see of the first.
 * The decode step works on the caller's A and S in place. no_normalise: kh = kf and a = A kh.
 */
#include "kernels/cpu/vla_recurrent.h"

static const recurrent_kind kind = {.matrix = 1, .penalty = 1, .sum = 1, .residual = 1};

static void one_head(void *context, int64_t head, int worker)
{
    recurrent_head(kind, context, head, worker, vla_chain);
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

extern const vla_variant KERNEL(vla_recurrent_cpu);
const vla_variant KERNEL(vla_recurrent_cpu) = {NULL, workspace, run};
