#include "kernels/cuda/device.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/op/registry.h"
#include "lib/op/residual.h"
#include "lib/tensor/tensor.h"
#include "tests/gpu/gpu.h"
#include <stdio.h>
#include <string.h>

/* Inputs repeat after PERIOD elements, a prime number, so that an offset cut to 32 bits meets other values. */
enum { Q, K, V, U, O, TENSORS, PERIOD = 1048583 };

typedef struct far_run {
    const gpu_case *c;
    int64_t whole; /* tokens over all heads */
    void *x[TENSORS], *o_again, *S[2], *A[2], *n[2];
    vla_exec *exec;
    void *stream;
    vla_error error;
} far_run;

static vla_status fill_input(far_run *r, int which, int64_t count)
{
    const vla_dtype dtype = r->c->dtype;
    const int64_t size = (int64_t)vla_dtype_size(dtype), period = PERIOD;
    double *values = NULL;
    void *raw = NULL;
    vla_status status = vla_alloc((void **)&values, period, sizeof *values, "inputs", &r->error);
    if (status == VLA_OK) status = vla_alloc(&raw, period, (size_t)size, "inputs", &r->error);
    if (status == VLA_OK) {
        vla_rng rng = vla_rng_seed(r->c->seed, (uint64_t)which);
        for (int64_t i = 0; i < period; i++) values[i] = vla_rng_normal(&rng);
        vla_convert(raw, dtype, values, VLA_F64, period);
        status = vla_device_upload(r->x[which], raw, (count < period ? count : period) * size, &r->error);
    }
    for (int64_t have = period; have < count && status == VLA_OK; have *= 2)
        status = vla_device_copy((char *)r->x[which] + have * size, r->x[which],
                                 (count - have < have ? count - have : have) * size, r->stream, &r->error);
    vla_free(values);
    vla_free(raw);
    return status;
}

static vla_status open_far(far_run *r, const gpu_case *c)
{
    memset(r, 0, sizeof *r);
    const vla_problem *p = &c->problem;
    r->c = c, r->whole = p->B * p->H * p->T;
    vla_status status = vla_exec_create(&r->exec, 1, VLA_ISA_AUTO, &r->error);
    if (status == VLA_OK) status = vla_device_stream_create(&r->stream, &r->error);
    const int64_t size = (int64_t)vla_dtype_size(c->dtype), heads = p->B * p->H;
    for (int i = 0; i < TENSORS && status == VLA_OK; i++) {
        const int64_t count = r->whole * (i == V || i == O ? p->dv : p->dk);
        if (i == U && p->op != VLA_VLA) continue;
        status = vla_device_alloc(&r->x[i], count * size, "tensor", &r->error);
        if (status == VLA_OK && i < O) status = fill_input(r, i, count);
    }
    for (int i = 0; i < 2 && status == VLA_OK; i++) {
        status = vla_device_alloc(&r->S[i], heads * p->dv * p->dk * 4, "S", &r->error);
        if (status == VLA_OK) status = vla_device_alloc(&r->A[i], heads * p->dk * p->dk * 4, "A", &r->error);
        if (status == VLA_OK) status = vla_device_alloc(&r->n[i], heads * p->dk * 4, "n", &r->error);
    }
    return status;
}

static void close_far(far_run *r)
{
    for (int i = 0; i < TENSORS; i++) vla_device_free(r->x[i]);
    vla_device_free(r->o_again);
    for (int i = 0; i < 2; i++) {
        vla_device_free(r->S[i]);
        vla_device_free(r->A[i]);
        vla_device_free(r->n[i]);
    }
    vla_device_stream_destroy(r->stream);
    vla_exec_destroy(r->exec);
}

/* H heads of T tokens, contiguous, from the given token of all on; o to `out`, state `s`. */
static vla_status run_far(far_run *r, int64_t H, int64_t T, int64_t from, void *out, int s, bool resume)
{
    vla_problem p = r->c->problem;
    p.B = 1, p.H = H, p.T = T;
    vla_plan *plan = NULL;
    vla_status status = vla_plan_create(&plan, r->exec, &p, r->c->form, VLA_CUDA, r->c->dtype, &r->error);
    if (status != VLA_OK) return status;
    vla_plan_set_stream(plan, r->stream);
    const size_t size = vla_dtype_size(r->c->dtype), k = (size_t)(from * p.dk) * size, v = (size_t)(from * p.dv) * size;
    int64_t t = 0;
    const vla_tensors tensors = {.q = (char *)r->x[Q] + k,
                                 .k = (char *)r->x[K] + k,
                                 .v = (char *)r->x[V] + v,
                                 .u = r->x[U] ? (char *)r->x[U] + k : NULL,
                                 .o = out,
                                 .S = r->S[s],
                                 .A = r->A[s],
                                 .n = r->n[s],
                                 .t = &t,
                                 .state_in = resume};
    status = vla_plan_run(plan, &tensors, &r->error);
    if (status == VLA_OK) status = vla_device_stream_wait(r->stream, &r->error);
    vla_plan_destroy(plan);
    return status;
}

/* Residual between two stretches of device memory. */
static vla_status compare(far_run *r, const void *x, const void *y, vla_dtype dtype, int64_t count, double *residual)
{
    const int64_t size = (int64_t)vla_dtype_size(dtype);
    void *a = NULL, *b = NULL;
    double *ref = NULL;
    vla_status status = vla_alloc(&a, count, (size_t)size, "rows", &r->error);
    if (status == VLA_OK) status = vla_alloc(&b, count, (size_t)size, "rows", &r->error);
    if (status == VLA_OK) status = vla_alloc((void **)&ref, count, sizeof *ref, "rows", &r->error);
    if (status == VLA_OK) status = vla_device_download(a, x, count * size, &r->error);
    if (status == VLA_OK) status = vla_device_download(b, y, count * size, &r->error);
    if (status == VLA_OK) {
        vla_residual_sum sum;
        memset(&sum, 0, sizeof sum);
        vla_convert(ref, VLA_F64, b, dtype, count);
        vla_residual_add(&sum, a, dtype, ref, count);
        const vla_residual res = vla_residual_finish(&sum);
        *residual = res.nonfinite || sum.ref2 == 0 ? 1e9 : res.residual;
    }
    vla_free(a);
    vla_free(b);
    vla_free(ref);
    return status;
}

gpu_verdict gpu_far(const gpu_case *c, char *text, size_t size)
{
    far_run r;
    const vla_problem *p = &c->problem;
    const int64_t heads = p->B * p->H, rows = p->T < 4096 ? p->T : 4096, half = p->T / 2;
    double by_o = 0, by_S = 0;
    vla_status status = open_far(&r, c);
    const int64_t es = (int64_t)vla_dtype_size(c->dtype), again = heads > 1 ? p->T : p->T - half;
    if (status == VLA_OK)
        status = vla_device_alloc(&r.o_again, (half > again ? half : again) * p->dv * es, "o", &r.error);
    if (status == VLA_OK) status = run_far(&r, heads, p->T, 0, r.x[O], 0, false);
    if (heads > 1) { /* the last head alone */
        if (status == VLA_OK) status = run_far(&r, 1, p->T, (heads - 1) * p->T, r.o_again, 1, false);
    } else { /* in two halves, neither of which has far offsets */
        if (status == VLA_OK) status = run_far(&r, 1, half, 0, r.o_again, 1, false);
        if (status == VLA_OK) status = run_far(&r, 1, p->T - half, half, r.o_again, 1, true);
    }
    if (status == VLA_OK)
        status = compare(&r, (char *)r.x[O] + (r.whole - rows) * p->dv * es,
                         (char *)r.o_again + (again - rows) * p->dv * es, c->dtype, rows * p->dv, &by_o);
    if (status == VLA_OK)
        status = compare(&r, (char *)r.S[0] + (heads - 1) * p->dv * p->dk * 4, r.S[1], VLA_F32, p->dv * p->dk, &by_S);
    close_far(&r);
    if (status != VLA_OK) {
        snprintf(text, size, "%s", r.error.message);
        return status == VLA_ERR_UNSUPPORTED || status == VLA_ERR_MEMORY ? GPU_SKIP : GPU_FAIL;
    }
    const double limit = vla_residual_limit(p->op, c->dtype);
    snprintf(text, size, "last %lld rows %.2e, S %.2e of a run with near offsets", (long long)rows, by_o, by_S);
    return by_o <= limit && by_S <= limit ? GPU_PASS : GPU_FAIL;
}
