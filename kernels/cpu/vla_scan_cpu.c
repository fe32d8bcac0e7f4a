/* vla, scan: one head on several workers, for long T with few heads. A does not depend on S, so A runs ahead: while one
 * worker takes A through a block of tokens and leaves their directions a, the others apply the blocks before it to S,
 * whose rows (columns of v) are split between them (scan.h).
 *
 *   penalty     z = A uh ; A -= z z^T/(1 + uh.z) ; a = unit(A kh)                             two tokens a sweep of A
 *   state       S += (v - S kh) a^T ; n += kf ; o = S qf / max(n.qf, eps), or S qf            two tokens a sweep of S
 *
 * q, k, u [B,H,T,dk] (u absent: the raw key), v, o [B,H,T,dv], S [B,H,dv,dk], A [B,H,dk,dk], n [B,H,dk], alpha
 * optional.
 *
 * The sweeps are those of the recurrent form, the fastest on one thread. The two halves, each with its own features,
 * cost about the same when dk = dv; the only work done twice is a unit key. Results equal the recurrent form's. Meant
 * to beat: the recurrent form for a single head. Unsupported: chunk above 256 (here: tokens handed over at a time).
 * More workers than two gain only where S is the larger share, as A stays with one: prefix sums of u u^T would let more
 * share A, but cost 2 dk^2 a token in double (in float the inverse of the sum loses the condition number of M), as much
 * as the sweeps they would save.
 */
#include "kernels/cpu/scan.h"
#include "kernels/cpu/vla_recurrent.h"

static const recurrent_kind kind = {.matrix = 1, .penalty = 1, .sum = 1, .residual = 1};

static void one_worker(void *context, int64_t item, int worker)
{
    (void)worker;
    scan_worker(kind, context, item, vla_chain);
}

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return scan_workspace(kind, p, threads, bytes, error);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return scan_run(kind, call, one_worker);
}

extern const vla_variant KERNEL(vla_scan_cpu);
const vla_variant KERNEL(vla_scan_cpu) = {chunk_supports, workspace, run};
