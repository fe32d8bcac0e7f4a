/* linear, recurrent on the device: S += v kf^T ; n += kf ; o = S qf / max(n.qf, eps).
 * Shapes, roles and limits: recurrent.cuh. */
#include "kernels/cuda/recurrent.cuh"

VLA_RECURRENT_VARIANTS(linear_recurrent_cuda, VLA_LINEAR)
