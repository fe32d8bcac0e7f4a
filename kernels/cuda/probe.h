/* What is asked of the device beside running kernels: its peaks, installed libraries, a profiler's range. */
#ifndef VLA_CUDA_PROBE_H
#define VLA_CUDA_PROBE_H
#include "lib/vla.h"

/* Begins or ends what a profiler that was started without a range records. */
vla_status vla_device_profiler(bool on, vla_error *error);

/* Peaks. The arithmetic of a matrix product, by cuBLAS, which is loaded at run time (VLA_CUBLAS names it). */
typedef enum vla_arith {
    VLA_ARITH_F64,
    VLA_ARITH_F32,
    VLA_ARITH_TF32,
    VLA_ARITH_BF16,
    VLA_ARITH_F16,
    VLA_ARITHS
} vla_arith;
typedef struct vla_cublas vla_cublas;
/* VLA_ERR_UNSUPPORTED where the library is not installed. */
vla_status vla_cublas_create(vla_cublas **cublas, vla_error *error);
void vla_cublas_destroy(vla_cublas *cublas);
const char *vla_cublas_label(const vla_cublas *cublas); /* "cublas 13.0.2" */
/* Best rate of square products (8,192, for f64 and f32 4,096) over about `seconds`, at least three, in flops a second.
 */
vla_status vla_cublas_rate(vla_cublas *cublas, vla_arith arith, double seconds, double *flops_per_s, vla_error *error);
/* Best rate of copying within the device, bytes read plus bytes written a second, over arrays far beyond the L2 cache.
 */
vla_status vla_device_copy_rate(double seconds, double *bytes_per_s, vla_error *error);
/* What softmax would take: version "9.14.0" and the file it is loaded from, or "" where cuDNN is not installed. */
void vla_cudnn_installed(char *version, size_t version_size, char *path, size_t path_size);

#endif
