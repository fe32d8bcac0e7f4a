/* vla, stepwise on the device: the recurrent kernel launched once a token, its state read from and written to memory
 * every time. What a framework without a fused kernel does; kept to measure what fusing is worth. Formula:
 * vla_recurrent_cuda.cu. */
#include "kernels/cuda/recurrent.cuh"

/* the same kernels, compiled there */
extern template vla_status recurrent::choose_width<VLA_VLA>(const arguments &, int64_t, cudaStream_t, vla_error *);

VLA_STEPWISE_VARIANTS(vla_stepwise_cuda, VLA_VLA)
