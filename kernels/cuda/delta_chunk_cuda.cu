/* delta, chunkwise on the device's tensor cores, bf16 and f16: formulas, launches and limits in chunk.cuh. */
#include "kernels/cuda/chunk_host.cuh"

VLA_CHUNK_VARIANTS(delta_chunk_cuda, VLA_DELTA)
