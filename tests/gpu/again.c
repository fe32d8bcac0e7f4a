#include "kernels/cuda/device.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/op/registry.h"
#include "lib/tensor/tensor.h"
#include "tests/gpu/gpu.h"
#include <stdio.h>
#include <string.h>

/* Inputs repeat after PERIOD elements. TRAFFIC: bytes copied to and fro beside a run. */
enum { Q, K, V, U, B, INPUTS, O = INPUTS, S, A, N, TENSORS, PERIOD = 1048583, TRAFFIC = 1 << 28 };
static const char *const NAMES[TENSORS] = {"q", "k", "v", "u", "b", "o", "S", "A", "n"};

typedef struct again_run {
    const gpu_case *c;
    const vla_variant *variant;
    int64_t width[TENSORS], bytes[TENSORS], work_bytes; /* width: elements a head */
    void *x[TENSORS], *first[TENSORS], *other;          /* on the device; on the host */
    void *work, *traffic, *stream, *beside;
    vla_session session;
    vla_error error;
} again_run;

static int64_t element(const again_run *r, int i)
{
    return i > O ? 4 : (int64_t)vla_dtype_size(r->c->dtype);
}

static void size_tensors(again_run *r)
{
    const vla_problem *p = &r->c->problem;
    r->width[Q] = r->width[K] = p->T * p->dk, r->width[V] = r->width[O] = p->T * p->dv;
    r->width[U] = p->op == VLA_VLA ? p->T * p->dk : 0, r->width[B] = p->op == VLA_DELTA ? p->T : 0;
    r->width[S] = p->dv * p->dk, r->width[A] = vla_op_has_A(p->op) ? p->dk * p->dk : 0;
    r->width[N] = vla_op_has_n(p->op) ? p->dk : 0;
    for (int i = 0; i < TENSORS; i++) r->bytes[i] = r->width[i] * p->B * p->H * element(r, i);
}

static vla_status fill_input(again_run *r, int which)
{
    const int64_t size = element(r, which), period = PERIOD * size, all = r->bytes[which];
    double *values = NULL;
    void *raw = NULL;
    vla_status status = vla_alloc((void **)&values, PERIOD, sizeof *values, "inputs", &r->error);
    if (status == VLA_OK) status = vla_alloc(&raw, PERIOD, (size_t)size, "inputs", &r->error);
    if (status == VLA_OK) {
        vla_rng rng = vla_rng_seed(r->c->seed, (uint64_t)which);
        for (int64_t i = 0; i < PERIOD; i++) values[i] = vla_rng_normal(&rng);
        vla_convert(raw, r->c->dtype, values, VLA_F64, PERIOD);
    }
    for (int64_t have = 0; have < all && status == VLA_OK; have += period)
        status =
            vla_device_upload((char *)r->x[which] + have, raw, all - have < period ? all - have : period, &r->error);
    vla_free(values);
    vla_free(raw);
    return status;
}

static vla_status open_again(again_run *r, const gpu_case *c)
{
    const vla_problem *p = &c->problem;
    const vla_kernel *kernel = vla_kernel_find(p->op, c->form, VLA_CUDA);
    int64_t most = 0;
    memset(r, 0, sizeof *r);
    r->c = c, r->variant = kernel ? vla_kernel_variant(kernel, c->dtype, VLA_ISA_BASE, NULL) : NULL;
    if (!r->variant) return vla_fail(&r->error, VLA_ERR_UNSUPPORTED, "not built");
    size_tensors(r);
    vla_status status = VLA_OK;
    if (r->variant->workspace) status = r->variant->workspace(p, 1, &r->work_bytes, &r->error);
    if (status == VLA_OK) status = vla_device_stream_create(&r->stream, &r->error);
    if (status == VLA_OK) status = vla_device_stream_create(&r->beside, &r->error);
    if (status == VLA_OK) status = vla_device_alloc(&r->work, r->work_bytes + 1, "workspace", &r->error);
    if (status == VLA_OK) status = vla_device_alloc(&r->traffic, 2 * (int64_t)TRAFFIC, "copies", &r->error);
    for (int i = 0; i < TENSORS && status == VLA_OK; i++) {
        if (!r->bytes[i]) continue;
        status = vla_device_alloc(&r->x[i], r->bytes[i], NAMES[i], &r->error);
        if (status == VLA_OK && i < INPUTS) status = fill_input(r, i);
        if (status == VLA_OK && i >= O) status = vla_alloc(&r->first[i], r->bytes[i], 1, NAMES[i], &r->error);
        most = i >= O && r->bytes[i] > most ? r->bytes[i] : most;
    }
    return status == VLA_OK ? vla_alloc(&r->other, most, 1, "outputs", &r->error) : status;
}

static void close_again(again_run *r)
{
    if (r->session.close) r->session.close(r->session.data);
    for (int i = 0; i < TENSORS; i++) {
        vla_device_free(r->x[i]);
        vla_free(r->first[i]);
    }
    vla_free(r->other);
    vla_device_free(r->work);
    vla_device_free(r->traffic);
    vla_device_stream_destroy(r->stream);
    vla_device_stream_destroy(r->beside);
}

/* One run on outputs that are all NaN: `fill` >= 0 is a byte that the workspace is full of before, `copies` how many
 * copies of memory go on beside it. */
static vla_status run_once(again_run *r, int fill, int copies)
{
    const vla_tensors t = {.q = r->x[Q],
                           .k = r->x[K],
                           .v = r->x[V],
                           .u = r->x[U],
                           .b = r->x[B],
                           .o = r->x[O],
                           .S = r->x[S],
                           .A = r->x[A],
                           .n = r->x[N]};
    const vla_call call = {&r->c->problem, &t, NULL, r->work, r->stream, &r->session};
    vla_status status = VLA_OK;
    for (int i = O; i < TENSORS && status == VLA_OK; i++)
        if (r->bytes[i]) status = vla_device_fill(r->x[i], 0xff, r->bytes[i], r->stream, &r->error);
    if (fill >= 0 && status == VLA_OK) status = vla_device_fill(r->work, fill, r->work_bytes, r->stream, &r->error);
    for (int i = 0; i < copies && status == VLA_OK; i++)
        status = vla_device_copy((char *)r->traffic + (i % 2 ? 0 : TRAFFIC), (char *)r->traffic + (i % 2 ? TRAFFIC : 0),
                                 TRAFFIC, r->beside, &r->error);
    if (status == VLA_OK) status = r->variant->run(&call, &r->error);
    if (status == VLA_OK) status = vla_device_stream_wait(r->stream, &r->error);
    return status == VLA_OK ? vla_device_stream_wait(r->beside, &r->error) : status;
}

/* How much of an output differs from the first run's and where first: of o its chunk of 64 tokens, row and column. */
static void say_where(const again_run *r, int which, int run, char *text, size_t size)
{
    const int64_t es = element(r, which), all = r->bytes[which] / es;
    const int64_t row = which == O ? r->c->problem.dv : r->c->problem.dk;
    int64_t count = 0, first = -1;
    for (int64_t i = 0; i < all; i++)
        if (memcmp((char *)r->first[which] + i * es, (char *)r->other + i * es, (size_t)es) != 0) {
            if (first < 0) first = i;
            count++;
        }
    const int64_t head = first / r->width[which], in = first % r->width[which];
    snprintf(text, size, "run %d: %lld of %lld elements of %s differ from the first run's, first at head %lld ", run,
             (long long)count, (long long)all, NAMES[which], (long long)head);
    const size_t used = strlen(text);
    if (which == O)
        snprintf(text + used, size - used, "chunk %lld row %lld column %lld", (long long)(in / row / 64),
                 (long long)(in / row % 64), (long long)(in % row));
    else
        snprintf(text + used, size - used, "row %lld column %lld", (long long)(in / row), (long long)(in % row));
}

static vla_status same_as_first(again_run *r, int run, bool *same, char *text, size_t size)
{
    vla_status status = VLA_OK;
    for (int i = O; i < TENSORS && *same && status == VLA_OK; i++) {
        if (!r->bytes[i]) continue;
        status = vla_device_download(run == 1 ? r->first[i] : r->other, r->x[i], r->bytes[i], &r->error);
        if (status != VLA_OK || run == 1) continue;
        *same = memcmp(r->first[i], r->other, (size_t)r->bytes[i]) == 0;
        if (!*same) say_where(r, i, run, text, size);
    }
    return status;
}

gpu_verdict gpu_again(const gpu_case *c, int runs, char *text, size_t size)
{
    static const int fills[] = {-1, 0xff, 0x3c, -1, 0x00, 0x7f}; /* -1: as the run before left it */
    again_run r;
    bool same = true;
    vla_status status = open_again(&r, c);
    snprintf(text, size, "%d runs give the same bits", runs);
    for (int run = 1; run <= runs && same && status == VLA_OK; run++) {
        status = run_once(&r, fills[run % 6], run % 4 == 3 ? 4 : run % 2);
        if (status == VLA_OK) status = same_as_first(&r, run, &same, text, size);
    }
    close_again(&r);
    if (status == VLA_OK) return same ? GPU_PASS : GPU_FAIL;
    snprintf(text, size, "%s", r.error.message);
    return status == VLA_ERR_UNSUPPORTED || status == VLA_ERR_MEMORY ? GPU_SKIP : GPU_FAIL;
}
