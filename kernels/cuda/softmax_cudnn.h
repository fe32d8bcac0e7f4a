/* cuDNN's fused causal attention, loaded at run time. */
#ifndef VLA_SOFTMAX_CUDNN_H
#define VLA_SOFTMAX_CUDNN_H
#include "kernels/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vla_cudnn vla_cudnn;

/* A plan for exactly this problem and dtype (bf16 or f16). The message of a failure says what is missing. */
vla_status vla_cudnn_create(vla_cudnn **cudnn, const vla_problem *problem, vla_dtype dtype, vla_error *error);
vla_status vla_cudnn_run(vla_cudnn *cudnn, const vla_tensors *tensors, void *stream, vla_error *error);
void vla_cudnn_destroy(vla_cudnn *cudnn);
const char *vla_cudnn_label(const vla_cudnn *cudnn); /* "cudnn 9.14.0" */

#ifdef __cplusplus
}
#endif
#endif
