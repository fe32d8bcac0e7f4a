/* rls, recurrent on the device: p = P kh ; g = p/(1 + kh.p) ; S += (v - S kh) g^T ; P -= g p^T ; o = S qf.
 * Shapes, roles and limits: recurrent.cuh. */
#include "kernels/cuda/recurrent.cuh"

VLA_RECURRENT_VARIANTS(rls_recurrent_cuda, VLA_RLS)
