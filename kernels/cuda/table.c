/* Every CUDA kernel. Adding a form is one file and one line here. */
#include "kernels/cuda/table.h"

#define KERNELS                                           \
    ALL(VLA_SOFTMAX, VLA_CHUNK, softmax_chunk_cuda)       \
    ALL(VLA_LINEAR, VLA_RECURRENT, linear_recurrent_cuda) \
    EVERY(VLA_LINEAR, VLA_CHUNK, linear_chunk_cuda)       \
    WIDE(VLA_LINEAR, VLA_SCAN, linear_scan_cuda)          \
    ALL(VLA_DELTA, VLA_RECURRENT, delta_recurrent_cuda)   \
    EVERY(VLA_DELTA, VLA_CHUNK, delta_chunk_cuda)         \
    WIDE(VLA_DELTA, VLA_SCAN, delta_scan_cuda)            \
    ALL(VLA_DECAY, VLA_RECURRENT, decay_recurrent_cuda)   \
    ALL(VLA_VLA, VLA_RECURRENT, vla_recurrent_cuda)       \
    EVERY(VLA_VLA, VLA_CHUNK, vla_chunk_cuda)             \
    WIDE(VLA_VLA, VLA_SCAN, vla_scan_cuda)                \
    ALL(VLA_VLA, VLA_STEPWISE, vla_stepwise_cuda)         \
    ALL(VLA_RLS, VLA_RECURRENT, rls_recurrent_cuda)

/* Dtypes: f32, bf16, f16 ; those and tf32 ; f32 and tf32. */
#define ALL(OP, FORM, stem) extern const vla_variant stem##_f32, stem##_bf16, stem##_f16;
#define EVERY(OP, FORM, stem) extern const vla_variant stem##_f32, stem##_bf16, stem##_f16, stem##_tf32;
#define WIDE(OP, FORM, stem) extern const vla_variant stem##_f32, stem##_tf32;
KERNELS
#undef ALL
#undef EVERY
#undef WIDE

#define ALL(OP, FORM, stem) \
    {OP, FORM, VLA_CUDA, {[VLA_F32] = {&stem##_f32}, [VLA_BF16] = {&stem##_bf16}, [VLA_F16] = {&stem##_f16}}},
#define EVERY(OP, FORM, stem)      \
    {OP,                           \
     FORM,                         \
     VLA_CUDA,                     \
     {[VLA_F32] = {&stem##_f32},   \
      [VLA_BF16] = {&stem##_bf16}, \
      [VLA_F16] = {&stem##_f16},   \
      [VLA_TF32] = {&stem##_tf32}}},
#define WIDE(OP, FORM, stem) {OP, FORM, VLA_CUDA, {[VLA_F32] = {&stem##_f32}, [VLA_TF32] = {&stem##_tf32}}},
const vla_kernel vla_cuda_kernels[] = {KERNELS{.op = VLA_OPS}};
