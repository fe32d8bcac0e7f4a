/* decay, recurrent on the device: S = g S + (v - S kh) kh^T, g = sigmoid(gate) a token or a row of S, or 1 ; o = S qf.
 * Shapes, roles and limits: recurrent.cuh. */
#include "kernels/cuda/recurrent.cuh"

VLA_RECURRENT_VARIANTS(decay_recurrent_cuda, VLA_DECAY)
