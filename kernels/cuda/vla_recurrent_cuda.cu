/* vla, recurrent on the device: z = A uh ; A -= z z^T/(1 + uh.z) ; a = unit(A kh) ; S += (v - S kh) a^T ; n += kf ;
 * o = S qf / max(n.qf, eps).
 * Shapes, roles and limits: recurrent.cuh. */
#include "kernels/cuda/recurrent.cuh"

VLA_RECURRENT_VARIANTS(vla_recurrent_cuda, VLA_VLA)

template vla_status recurrent::choose_width<VLA_VLA>(const arguments &, int64_t, cudaStream_t,
                                                     vla_error *); /* for stepwise */
