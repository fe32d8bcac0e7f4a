/* delta in float32 and tf32 on the device, chunk (one segment) and scan (parallel over segments). Formulas, launches
 * and limits: scan.cuh; of scan in tf32 scan_chunks.cuh. */
#include "kernels/cuda/scan_chunks.cuh"

VLA_SCAN_VARIANT(delta_chunk_cuda_f32, VLA_DELTA, 3, false)
VLA_SCAN_VARIANT(delta_chunk_cuda_tf32, VLA_DELTA, 1, false)
VLA_SCAN_VARIANT(delta_scan_cuda_f32, VLA_DELTA, 3, true)
VLA_SCAN_BY_CHUNKS(delta_scan_cuda_tf32, VLA_DELTA)
