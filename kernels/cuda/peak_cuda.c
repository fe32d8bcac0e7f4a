/* What the device can do at most: matrix products by cuBLAS and copies within its memory, timed by events.
 *
 * cuBLAS is loaded at run time, as VLA_CUBLAS, libcublas.so.13, .12 or libcublas.so; the few names used are declared
 * here with the values of cublas_api.h and library_types.h, which keep them stable. A product is n x n x n, both
 * operands random (of random signs and digits: the clock falls with the bits that toggle, and zeros would flatter the
 * device). */
#include "kernels/cuda/device.h"
#include "kernels/cuda/probe.h"
#include "lib/base/clock.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_F32 = 0, CUDA_F64 = 1, CUDA_F16 = 2, CUDA_BF16 = 14 };
enum { COMPUTE_F32 = 68, COMPUTE_F64 = 70, COMPUTE_TF32 = 77, OP_N = 0, ALGORITHM_DEFAULT = -1 };

struct vla_cublas {
    void *library, *handle, *stream, *from, *to;
    char label[32];
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*property)(int which, int *value);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,
                int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                int compute, int algorithm);
};

static bool open_library(vla_cublas *c)
{
    const char *chosen = getenv("VLA_CUBLAS");
    const char *const names[] = {chosen && *chosen ? chosen : "libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    for (int i = 0; !c->library && i < (chosen && *chosen ? 1 : 3); i++)
        c->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!c->library) return false;
    *(void **)&c->create = dlsym(c->library, "cublasCreate_v2");
    *(void **)&c->destroy = dlsym(c->library, "cublasDestroy_v2");
    *(void **)&c->set_stream = dlsym(c->library, "cublasSetStream_v2");
    *(void **)&c->property = dlsym(c->library, "cublasGetProperty");
    *(void **)&c->gemm = dlsym(c->library, "cublasGemmEx");
    return c->create && c->destroy && c->set_stream && c->property && c->gemm;
}

vla_status vla_cublas_create(vla_cublas **result, vla_error *error)
{
    int version[3] = {0};
    *result = NULL;
    vla_cublas *c = calloc(1, sizeof *c);
    if (!c) return vla_fail(error, VLA_ERR_MEMORY, "cuBLAS: out of memory");
    vla_status status = open_library(c) ? VLA_OK
                                        : vla_fail(error, VLA_ERR_UNSUPPORTED,
                                                   "cuBLAS is not installed (libcublas.so.13 is not found; VLA_CUBLAS "
                                                   "names it): shares of peak are not known");
    if (!status) status = vla_device_stream_create(&c->stream, error);
    if (!status) status = vla_device_event_create(&c->from, error);
    if (!status) status = vla_device_event_create(&c->to, error);
    if (!status && (c->create(&c->handle) != 0 || c->set_stream(c->handle, c->stream) != 0))
        status = vla_fail(error, VLA_ERR_UNSUPPORTED, "cuBLAS does not start on this device");
    if (status) {
        vla_cublas_destroy(c);
        return status;
    }
    for (int i = 0; i < 3; i++) (void)c->property(i, &version[i]);
    snprintf(c->label, sizeof c->label, "cublas %d.%d.%d", version[0], version[1], version[2]);
    *result = c;
    return VLA_OK;
}

void vla_cublas_destroy(vla_cublas *c)
{
    if (!c) return;
    if (c->handle) c->destroy(c->handle);
    vla_device_event_destroy(c->from);
    vla_device_event_destroy(c->to);
    vla_device_stream_destroy(c->stream);
    if (c->library) dlclose(c->library);
    free(c);
}

const char *vla_cublas_label(const vla_cublas *c)
{
    return c->label;
}

/* Random sign and digits, magnitudes 1 to 2. */
static void fill_host(void *data, int64_t count, int type)
{
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < count; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64 (Marsaglia 2003) */
        const uint64_t sign = x >> 63;
        if (type == CUDA_F64)
            ((uint64_t *)data)[i] = sign << 63 | (uint64_t)1023 << 52 | (x & 0xfffffffffffffu);
        else if (type == CUDA_F32)
            ((uint32_t *)data)[i] = (uint32_t)(sign << 31 | (uint64_t)127 << 23 | (x & 0x7fffffu));
        else if (type == CUDA_F16)
            ((uint16_t *)data)[i] = (uint16_t)(sign << 15 | 15u << 10 | (x & 0x3ffu));
        else
            ((uint16_t *)data)[i] = (uint16_t)(sign << 15 | 127u << 7 | (x & 0x7fu));
    }
}

static vla_status fill_device(void *to, int64_t bytes, int type, int64_t size, void *stream, vla_error *error)
{
    const int64_t piece = (int64_t)4 << 20;
    void *host;
    vla_status status = vla_alloc(&host, piece, 1, "matrices", error);
    if (status) return status;
    fill_host(host, piece / size, type);
    status = vla_device_upload(to, host, piece < bytes ? piece : bytes, error);
    for (int64_t at = piece; !status && at < bytes; at += piece)
        status = vla_device_copy((char *)to + at, to, bytes - at < piece ? bytes - at : piece, stream, error);
    vla_free(host);
    return status ? status : vla_device_stream_wait(stream, error);
}

typedef struct product {
    int type, compute, n;
    int64_t size;
    char *a, *b, *c;
} product;

static vla_status multiply(const vla_cublas *cublas, const product *p, vla_error *error)
{
    const float one = 1, zero = 0;
    const double one_wide = 1, zero_wide = 0;
    const bool wide = p->compute == COMPUTE_F64;
    const int code = cublas->gemm(cublas->handle, OP_N, OP_N, p->n, p->n, p->n, wide ? (const void *)&one_wide : &one,
                                  p->a, p->type, p->n, p->b, p->type, p->n, wide ? (const void *)&zero_wide : &zero,
                                  p->c, p->type, p->n, p->compute, ALGORITHM_DEFAULT);
    return code == 0 ? VLA_OK : vla_fail(error, VLA_ERR_UNSUPPORTED, "cuBLAS: a product failed (status %d)", code);
}

static vla_status best_rate(const vla_cublas *cublas, const product *p, double seconds, double *rate, vla_error *error)
{
    enum { FEWEST = 3 };
    const double flops = 2.0 * p->n * p->n * p->n;
    vla_status status = multiply(cublas, p, error); /* loads the kernel */
    if (!status) status = vla_device_stream_wait(cublas->stream, error);
    const double begun = vla_now();
    for (int i = 0; !status && (i < FEWEST || vla_now() - begun < seconds); i++) {
        double elapsed = 0;
        status = vla_device_event_record(cublas->from, cublas->stream, error);
        if (!status) status = multiply(cublas, p, error);
        if (!status) status = vla_device_event_record(cublas->to, cublas->stream, error);
        if (!status) status = vla_device_event_seconds(cublas->from, cublas->to, &elapsed, error);
        if (!status && elapsed > 0 && flops / elapsed > *rate) *rate = flops / elapsed;
    }
    return status;
}

vla_status vla_cublas_rate(vla_cublas *cublas, vla_arith arith, double seconds, double *flops_per_s, vla_error *error)
{
    static const struct {
        int type, compute, n;
        int64_t size;
    } kinds[VLA_ARITHS] = {[VLA_ARITH_F64] = {CUDA_F64, COMPUTE_F64, 4096, 8},
                           [VLA_ARITH_F32] = {CUDA_F32, COMPUTE_F32, 4096, 4},
                           [VLA_ARITH_TF32] = {CUDA_F32, COMPUTE_TF32, 8192, 4},
                           [VLA_ARITH_BF16] = {CUDA_BF16, COMPUTE_F32, 8192, 2},
                           [VLA_ARITH_F16] = {CUDA_F16, COMPUTE_F32, 8192, 2}};
    const int64_t bytes = (int64_t)kinds[arith].n * kinds[arith].n * kinds[arith].size;
    void *memory = NULL;
    *flops_per_s = 0;
    vla_status status = vla_device_alloc(&memory, 3 * bytes, "matrices", error);
    if (!status) status = fill_device(memory, 2 * bytes, kinds[arith].type, kinds[arith].size, cublas->stream, error);
    if (!status) {
        const product p = {.type = kinds[arith].type,
                           .compute = kinds[arith].compute,
                           .n = kinds[arith].n,
                           .size = kinds[arith].size,
                           .a = memory,
                           .b = (char *)memory + bytes,
                           .c = (char *)memory + 2 * bytes};
        status = best_rate(cublas, &p, seconds, flops_per_s, error);
    }
    vla_device_free(memory);
    return status;
}

vla_status vla_device_copy_rate(double seconds, double *bytes_per_s, vla_error *error)
{
    enum { FEWEST = 5, AT_ONCE = 4 };
    const int64_t bytes = (int64_t)1 << 30;
    void *memory = NULL, *stream = NULL, *from = NULL, *to = NULL;
    *bytes_per_s = 0;
    vla_status status = vla_device_alloc(&memory, 2 * bytes, "copy arrays", error);
    if (!status) status = vla_device_stream_create(&stream, error);
    if (!status) status = vla_device_event_create(&from, error);
    if (!status) status = vla_device_event_create(&to, error);
    if (!status) status = vla_device_fill(memory, 1, 2 * bytes, stream, error);
    if (!status) status = vla_device_stream_wait(stream, error);
    const double begun = vla_now();
    for (int i = 0; !status && (i < FEWEST || vla_now() - begun < seconds); i++) {
        double elapsed = 0;
        status = vla_device_event_record(from, stream, error);
        for (int j = 0; !status && j < AT_ONCE; j++)
            status = vla_device_copy((char *)memory + bytes, memory, bytes, stream, error);
        if (!status) status = vla_device_event_record(to, stream, error);
        if (!status) status = vla_device_event_seconds(from, to, &elapsed, error);
        const double rate = elapsed > 0 ? 2.0 * AT_ONCE * (double)bytes / elapsed : 0;
        if (!status && rate > *bytes_per_s) *bytes_per_s = rate;
    }
    vla_device_event_destroy(from);
    vla_device_event_destroy(to);
    vla_device_stream_destroy(stream);
    vla_device_free(memory);
    return status;
}

vla_status vla_device_profiler(bool on, vla_error *error)
{
    cudaError_t code = cudaDeviceSynchronize();
    if (code == cudaSuccess) code = on ? cudaProfilerStart() : cudaProfilerStop();
    if (code == cudaSuccess) return VLA_OK;
    return vla_fail(error, VLA_ERR_DEVICE, "CUDA: %s (range of a profiler)", cudaGetErrorString(code));
}
