/* delta, scan: the rows of S split over the workers, for long T with fewer heads than workers. Rows of S are
 * independent: S += beta (v - S kh) kh^T reads and writes each row alone.
 *
 * q, k [B,H,T,dk], v, o [B,H,T,dv], b [B,H,T] logits or absent, S [B,H,dv,dk].
 *
 * Every slice makes the feature rows itself, which costs less than to have them from another core, and goes through
 * them with the two-token sweeps of the recurrent form (scan.h): features are what two workers do twice, so the gain
 * stays below the number of workers. Meant to beat: the recurrent form for a single head. Unsupported: chunk above 256
 * (here: tokens between looks at the other stages). A slice is at least one 64-byte vector of values wide.
 */
#include "kernels/cpu/scan.h"

static const recurrent_kind kind = {.residual = 1, .beta = 1};

static void one_worker(void *context, int64_t item, int worker)
{
    (void)worker;
    scan_worker(kind, context, item, chain_keys);
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

extern const vla_variant KERNEL(delta_scan_cpu);
const vla_variant KERNEL(delta_scan_cpu) = {chunk_supports, workspace, run};
