/* linear attention, chunkwise and exact: S += v kf^T ; n += kf ; o = S qf / max(n.qf, eps). For C tokens with features
 * K, Q, values V and S at the chunk's start:
 *
 *   O = Q S^T + tril(Q K^T) V ;  S += V^T K
 *
 * q, k [B,H,T,dk], v, o [B,H,T,dv], S [B,H,dv,dk], n [B,H,dk].
 *
 * Idea: two register-tiled products against the cache-resident S a chunk. S grows with T, so the update is compensated
 * (Kahan, once a chunk and element): millions of tokens in float keep the accuracy of a few. Measured on AVX2 and
 * AVX-512 it is slower than the two-token sweep of the recurrent form (d = 32 to 128): kept as the independent exact
 * chunkwise form. Unsupported: chunk above 256.
 */
#include "kernels/cpu/linear_chunk.h"

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return chunk_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), linear_chunk_step);
}

extern const vla_variant KERNEL(linear_chunk_cpu);
const vla_variant KERNEL(linear_chunk_cpu) = {chunk_supports, workspace, run};
