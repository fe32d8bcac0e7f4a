/* delta, recurrent on the device: S += beta (v - S kh) kh^T, beta = sigmoid(b) or 1 ; o = S qf.
 * Shapes, roles and limits: recurrent.cuh. */
#include "kernels/cuda/recurrent.cuh"

VLA_RECURRENT_VARIANTS(delta_recurrent_cuda, VLA_DELTA)
