/* The CUDA kernels, ended by an entry with op == VLA_OPS. Listed also where no device is; empty without VLA_WITH_CUDA.
 */
#ifndef VLA_CUDA_TABLE_H
#define VLA_CUDA_TABLE_H
#include "kernels/kernel.h"

#ifdef VLA_WITH_CUDA
extern const vla_kernel vla_cuda_kernels[];
#endif

#endif
