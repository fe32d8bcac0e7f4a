/* tf32 scan by the kernels of the 16-bit chunk form (chunk.cuh) with float32 inputs and outputs: float16 operands of
 * unit scale have tf32's ten bits, and what is not of unit scale is brought there by powers of two. A chunk of 16 or
 * a number of segments asks for the kernels of scan.cuh. */
#ifndef VLA_CUDA_SCAN_CHUNKS_CUH
#define VLA_CUDA_SCAN_CHUNKS_CUH
#include "kernels/cuda/chunk_host.cuh"
#include "kernels/cuda/scan_host.cuh"

namespace scan_tf32
{
inline bool by_chunks(const vla_problem *p)
{
    return p->chunk != scanned::C && p->segments == 0;
}

template <vla_op OP> bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->chunk == 0 || p->chunk == chunked::C || p->chunk == scanned::C)
        return by_chunks(p) ? chunked::supports<OP>(p, reason, size) : scanned::supports<OP>(p, reason, size);
    snprintf(reason, size, "chunk %lld: tf32 scan has chunks of %d, or of %d", (long long)p->chunk, chunked::C,
             scanned::C);
    return false;
}

template <vla_op OP> vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    return by_chunks(p) ? chunked::workspace<OP, true>(p, threads, bytes, error)
                        : scanned::workspace<OP, true>(p, threads, bytes, error);
}

template <vla_op OP> vla_status run(const vla_call *call, vla_error *error)
{
    return by_chunks(call->problem) ? chunked::run<OP, true>(call, VLA_F32, error)
                                    : scanned::run<OP, 1, true>(call, error);
}
} /* namespace scan_tf32 */

/* The variant, as op_scan_cuda_tf32. */
#define VLA_SCAN_BY_CHUNKS(name, OP)                                                                  \
    extern "C" {                                                                                      \
    extern const vla_variant name;                                                                    \
    const vla_variant name = {scan_tf32::supports<OP>, scan_tf32::workspace<OP>, scan_tf32::run<OP>}; \
    }

#endif
