/* What the machine can do at most: matrix rate and copy bandwidth, measured with OpenBLAS and memcpy, on a device with
 * cuBLAS and its own copies. */
#ifndef VLA_MEASURE_PEAK_H
#define VLA_MEASURE_PEAK_H
#include "kernels/cuda/probe.h"
#include "lib/base/threads.h"
#include "lib/vla.h"

/* Best rate of sgemm (f32 and below) or dgemm (f64) on square matrices for about `seconds`, in flops a second. */
vla_status vla_peak_matrix(vla_dtype dtype, int threads, double seconds, double *flops_per_s, vla_error *error);
/* Best rate at which `threads` copy arrays well beyond the caches, bytes read plus bytes written a second. */
vla_status vla_peak_copy(int threads, double seconds, double *bytes_per_s, vla_error *error);
/* "OpenBLAS 0.3.21 ..." */
const char *vla_peak_library(void);

/* Peaks seen so far in a run: probing again can only raise them, so a disturbed first probe does not flatter a kernel.
 */
enum { VLA_PEAK_SLOTS = 16 };
typedef struct vla_peaks {
    struct {
        vla_dtype dtype;
        int threads;
        double flops_per_s;
    } matrix[VLA_PEAK_SLOTS];
    int count;
    double bytes_per_s; /* with copy_threads threads; 0: not measured */
    int copy_threads;
    double device[VLA_ARITHS]; /* flops a second; 0: not measured */
    double device_bytes_per_s;
    char device_library[32]; /* "cublas 13.0.2" */
} vla_peaks;

/* Probes (again) for about seconds and returns the best so far; 0 when the probe failed. */
double vla_peaks_matrix(vla_peaks *peaks, vla_dtype dtype, int threads, double seconds);
double vla_peaks_copy(vla_peaks *peaks, int threads, double seconds);
/* The device's matrix rates at the arithmetics wanted and its copy bandwidth, each for about seconds; those known
 * already are not measured again. A library that is missing is an error, and the bandwidth is there all the same. */
vla_status vla_peaks_device(vla_peaks *peaks, const bool wanted[VLA_ARITHS], double seconds, vla_error *error);
/* Arithmetic of a device kernel's products, by its dtype. */
vla_arith vla_arith_of(vla_dtype dtype);
const char *vla_arith_name(vla_arith arith); /* "tf32" */

#endif
