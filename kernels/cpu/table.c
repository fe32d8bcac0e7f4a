/* Every CPU kernel. Adding a form is one file and one line here: FAST(operator, form, stem) for files compiled for each
 * element type and instruction set, NAIVE(operator, stem) for plain float64. */
#include "kernels/kernel.h"

/* clang-format off */
#define KERNELS \
    NAIVE(VLA_SOFTMAX, softmax_naive_cpu) \
    NAIVE(VLA_LINEAR, linear_naive_cpu) \
    NAIVE(VLA_DELTA, delta_naive_cpu) \
    NAIVE(VLA_DECAY, decay_naive_cpu) \
    NAIVE(VLA_VLA, vla_naive_cpu) \
    NAIVE(VLA_RLS, rls_naive_cpu) \
    FAST(VLA_LINEAR, VLA_CHUNK, linear_chunk_cpu) \
    FAST(VLA_DELTA, VLA_CHUNK, delta_chunk_cpu) \
    FAST(VLA_DECAY, VLA_CHUNK, decay_chunk_cpu) \
    FAST(VLA_VLA, VLA_CHUNK, vla_chunk_cpu) \
    FAST(VLA_RLS, VLA_CHUNK, rls_chunk_cpu) \
    FAST(VLA_LINEAR, VLA_SCAN, linear_scan_cpu) \
    FAST(VLA_DELTA, VLA_SCAN, delta_scan_cpu) \
    FAST(VLA_VLA, VLA_SCAN, vla_scan_cpu) \
    FAST(VLA_SOFTMAX, VLA_CHUNK, softmax_chunk_cpu) \
    FAST(VLA_SOFTMAX, VLA_RECURRENT, softmax_recurrent_cpu) \
    FAST(VLA_LINEAR, VLA_RECURRENT, linear_recurrent_cpu) \
    FAST(VLA_DELTA, VLA_RECURRENT, delta_recurrent_cpu) \
    FAST(VLA_DECAY, VLA_RECURRENT, decay_recurrent_cpu) \
    FAST(VLA_VLA, VLA_RECURRENT, vla_recurrent_cpu) \
    FAST(VLA_RLS, VLA_RECURRENT, rls_recurrent_cpu)
/* clang-format on */

#define NAIVE(OP, stem) extern const vla_variant stem;
#if defined(__x86_64__)
#define FAST(OP, FORM, stem)                                                                                        \
    extern const vla_variant stem##_f32_base, stem##_f32_avx2, stem##_f32_avx512, stem##_f64_base, stem##_f64_avx2, \
        stem##_f64_avx512;
#else
#define FAST(OP, FORM, stem) extern const vla_variant stem##_f32_base, stem##_f64_base;
#endif
KERNELS
#undef NAIVE
#undef FAST

#define NAIVE(OP, stem) {OP, VLA_NAIVE, VLA_CPU, {[VLA_F64] = {&stem}}},
#if defined(__x86_64__)
#define FAST(OP, FORM, stem)                                                \
    {OP,                                                                    \
     FORM,                                                                  \
     VLA_CPU,                                                               \
     {[VLA_F64] = {&stem##_f64_base, &stem##_f64_avx2, &stem##_f64_avx512}, \
      [VLA_F32] = {&stem##_f32_base, &stem##_f32_avx2, &stem##_f32_avx512}}},
#else
#define FAST(OP, FORM, stem) {OP, FORM, VLA_CPU, {[VLA_F64] = {&stem##_f64_base}, [VLA_F32] = {&stem##_f32_base}}},
#endif
const vla_kernel vla_cpu_kernels[] = {KERNELS{.op = VLA_OPS}};
