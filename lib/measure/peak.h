/* What the machine can do at most: matrix rate and copy bandwidth, measured with OpenBLAS and memcpy. */
#ifndef VLA_MEASURE_PEAK_H
#define VLA_MEASURE_PEAK_H
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
} vla_peaks;

/* Probes (again) for about seconds and returns the best so far; 0 when the probe failed. */
double vla_peaks_matrix(vla_peaks *peaks, vla_dtype dtype, int threads, double seconds);
double vla_peaks_copy(vla_peaks *peaks, int threads, double seconds);

#endif
