/* linear, scan: the chunkwise form (linear_chunk_cpu.c) with the rows of S split over the workers, for long T with
 * fewer heads than workers. Rows of S are independent; every worker keeps n.
 *
 * q, k [B,H,T,dk], v, o [B,H,T,dv], S [B,H,dv,dk], n [B,H,dk].
 *
 * Cost: products against S are shared out, features, the Gram product and the denominators are made again by each
 * worker. Meant to beat: the chunk form when B H is below the number of workers. Unsupported: chunk above 256. A slice
 * is at least one 64-byte vector of values wide.
 */
#include "kernels/cpu/linear_chunk.h"
#include "kernels/cpu/slices.h"

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return slices_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return slices_run(call, chunk_tokens(call->problem, USUAL_CHUNK), linear_chunk_step);
}

extern const vla_variant KERNEL(linear_scan_cpu);
const vla_variant KERNEL(linear_scan_cpu) = {chunk_supports, workspace, run};
