#include "lib/measure/peak.h"
#include "lib/base/sizes.h"
#include "lib/base/clock.h"
#include <cblas.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* From OpenBLAS itself; cblas.h of other libraries lacks them. */
extern void openblas_set_num_threads(int threads);
extern int openblas_get_num_threads(void);
extern char *openblas_get_config(void);

const char *vla_peak_library(void)
{
    return openblas_get_config();
}

static void multiply(vla_dtype dtype, int n, const void *a, const void *b, void *c)
{
    if (dtype == VLA_F64)
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, b, n, 0, c, n);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, b, n, 0, c, n);
}

static void fill(vla_dtype dtype, void *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double x = (double)(i % 17) * 0.1 - 0.8;
        if (dtype == VLA_F64)
            ((double *)data)[i] = x;
        else
            ((float *)data)[i] = (float)x;
    }
}

/* The library's idle threads keep polling for some 30 ms: wait until they sleep, or they would slow what is timed next.
 */
static void settle(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
}

vla_status vla_peak_matrix(vla_dtype dtype, int threads, double seconds, double *flops_per_s, vla_error *error)
{
    /* Small products fit between the turns that other programs take; large ones amortise best on a quiet machine. */
    static const int sizes[] = {1024, 512, 768, 512};
    enum { N = 1024, SIZES = sizeof sizes / sizeof *sizes };
    const vla_dtype real = dtype == VLA_F64 ? VLA_F64 : VLA_F32;
    const int64_t count = (int64_t)N * N;
    void *memory;
    *flops_per_s = 0;
    vla_status status = vla_alloc(&memory, 3 * count, vla_dtype_size(real), "matrices", error);
    if (status) return status;
    char *a = memory, *b = a + (size_t)count * vla_dtype_size(real), *c = b + (size_t)count * vla_dtype_size(real);
    fill(real, a, 2 * count);
    const int before = openblas_get_num_threads();
    openblas_set_num_threads(threads);
    multiply(real, N, a, b, c); /* wakes the library's threads */
    const double start = vla_now();
    double best = 0;
    for (int i = 0; i < SIZES || vla_now() - start < seconds; i++) {
        const int n = sizes[i % SIZES];
        const double t = vla_now();
        multiply(real, n, a, b, c);
        const double rate = 2.0 * n * n * n / (vla_now() - t);
        if (rate > best) best = rate;
    }
    openblas_set_num_threads(before);
    settle();
    vla_free(memory);
    *flops_per_s = best;
    return VLA_OK;
}

typedef struct copying {
    char *to;
    const char *from;
    int64_t part;
} copying;

static void copy_part(void *context, int64_t item, int worker)
{
    (void)worker;
    const copying *c = context;
    memcpy(c->to + item * c->part, c->from + item * c->part, (size_t)c->part);
}

vla_status vla_peak_copy(int threads, double seconds, double *bytes_per_s, vla_error *error)
{
    enum { FEWEST = 3 };
    const int64_t bytes = (int64_t)128 << 20;
    void *memory;
    vla_pool *pool;
    *bytes_per_s = 0;
    vla_status status = vla_pool_create(&pool, threads, error);
    if (status) return status;
    status = vla_alloc(&memory, 2 * bytes, 1, "copy arrays", error);
    if (!status) {
        memset(memory, 1, (size_t)(2 * bytes));
        copying c = {memory, (const char *)memory + bytes, bytes / vla_pool_threads(pool) / 64 * 64};
        const double moved = 2.0 * (double)(c.part * vla_pool_threads(pool)), start = vla_now();
        for (int i = 0; i < FEWEST || vla_now() - start < seconds; i++) {
            const double t = vla_now();
            vla_pool_run(pool, vla_pool_threads(pool), copy_part, &c);
            const double rate = moved / (vla_now() - t);
            if (rate > *bytes_per_s) *bytes_per_s = rate;
        }
        vla_free(memory);
    }
    vla_pool_destroy(pool);
    return status;
}

double vla_peaks_matrix(vla_peaks *peaks, vla_dtype dtype, int threads, double seconds)
{
    const vla_dtype real = dtype == VLA_F64 ? VLA_F64 : VLA_F32;
    int slot = 0;
    while (slot < peaks->count && (peaks->matrix[slot].dtype != real || peaks->matrix[slot].threads != threads)) slot++;
    if (slot == VLA_PEAK_SLOTS) slot = 0;
    if (slot >= peaks->count || peaks->matrix[slot].dtype != real || peaks->matrix[slot].threads != threads) {
        peaks->matrix[slot].dtype = real;
        peaks->matrix[slot].threads = threads;
        peaks->matrix[slot].flops_per_s = 0;
        if (slot == peaks->count) peaks->count++;
    }
    double rate;
    if (seconds > 0 && !vla_peak_matrix(real, threads, seconds, &rate, NULL) && rate > peaks->matrix[slot].flops_per_s)
        peaks->matrix[slot].flops_per_s = rate;
    return peaks->matrix[slot].flops_per_s;
}

double vla_peaks_copy(vla_peaks *peaks, int threads, double seconds)
{
    double rate;
    if (peaks->copy_threads != threads) peaks->bytes_per_s = 0;
    peaks->copy_threads = threads;
    if (seconds > 0 && !vla_peak_copy(threads, seconds, &rate, NULL) && rate > peaks->bytes_per_s)
        peaks->bytes_per_s = rate;
    return peaks->bytes_per_s;
}

const char *vla_arith_name(vla_arith arith)
{
    static const char *const names[VLA_ARITHS] = {"f64", "f32", "tf32", "bf16", "f16"};
    return names[arith];
}

vla_arith vla_arith_of(vla_dtype dtype)
{
    int a = 0;
    while (a < VLA_ARITHS - 1 && strcmp(vla_arith_name((vla_arith)a), vla_dtype_name(dtype))) a++;
    return (vla_arith)a;
}

vla_status vla_peaks_device(vla_peaks *peaks, const bool wanted[VLA_ARITHS], double seconds, vla_error *error)
{
    vla_cublas *cublas = NULL;
    bool missing = false;
    vla_status status = VLA_OK;
    if (!(peaks->device_bytes_per_s > 0)) status = vla_device_copy_rate(seconds, &peaks->device_bytes_per_s, error);
    for (int a = 0; a < VLA_ARITHS; a++) missing |= wanted[a] && !(peaks->device[a] > 0);
    if (status || !missing) return status;
    status = vla_cublas_create(&cublas, error);
    if (status) return status;
    snprintf(peaks->device_library, sizeof peaks->device_library, "%s", vla_cublas_label(cublas));
    for (int a = 0; !status && a < VLA_ARITHS; a++)
        if (wanted[a] && !(peaks->device[a] > 0))
            status = vla_cublas_rate(cublas, (vla_arith)a, seconds, &peaks->device[a], error);
    vla_cublas_destroy(cublas);
    return status;
}
