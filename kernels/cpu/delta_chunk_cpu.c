/* delta (DeltaNet), chunkwise and exact: S += beta (v - S kh) kh^T, beta = sigmoid(b) or 1 ; o = S qf. For C tokens
 * with unit keys K, features Q, values V and S at the chunk's start, R the residuals times beta:
 *
 *   R = (I + diag(beta) stril(K K^T))^-1 diag(beta) (V - K S^T) ;  O = Q S^T + tril(Q K^T) R ;  S += R^T K
 *
 * q, k [B,H,T,dk], v, o [B,H,T,dv], b [B,H,T] logits or absent, S [B,H,dv,dk].
 *
 * Idea: two register-tiled products against the cache-resident S a chunk, one Gram product with tokens in lanes for K
 * K^T and Q K^T. Measured on AVX2 and AVX-512 it is
 * slower than the two-token sweep of the recurrent form (d = 32 to 128): kept as
 * the independent exact chunkwise form. Unsupported: chunk above 256.
 */
#include "kernels/cpu/delta_chunk.h"

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return chunk_workspace(p, chunk_tokens(p, USUAL_CHUNK), threads, bytes, error);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return chunk_run(call, chunk_tokens(call->problem, USUAL_CHUNK), delta_chunk_step);
}

extern const vla_variant KERNEL(delta_chunk_cpu);
const vla_variant KERNEL(delta_chunk_cpu) = {chunk_supports, workspace, run};
