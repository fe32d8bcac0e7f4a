#include "lib/device/mirror.h"
#include "kernels/cuda/device.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/tensor/tensor.h"
#include <stdlib.h>
#include <string.h>

enum { Q, K, V, U, B, G, O, ALPHA, S, A, N, PARTS, GUARD = 256, GRAPH_RUNS = 20 };

typedef struct part {
    const char *name;
    void *host, *device, *start; /* start: the state of the creation, on the device */
    int64_t count, bytes;        /* bytes on the device */
} part;

struct vla_mirror {
    vla_plan *plan;
    vla_dtype dtype;
    part parts[PARTS];
    vla_tensors tensors; /* on the device */
    int64_t t, first, *host_t;
    void *stream, *from, *to;
    void *single, *many; /* graphs */
};

static const char *const names[PARTS] = {"q", "k", "v", "u", "b", "g", "o", "alpha", "S", "A", "n"};

static bool is_state(int i)
{
    return i >= S;
}

static vla_status add_part(vla_mirror *m, int i, const void *host, int64_t rows, int64_t columns, const vla_problem *p,
                           vla_error *error)
{
    part *x = &m->parts[i];
    x->name = names[i];
    if (!host) return VLA_OK;
    const int64_t size = is_state(i) ? 4 : (int64_t)vla_dtype_size(m->dtype);
    const int64_t factors[] = {p->B, p->H, rows, columns};
    if (!vla_size_product(factors, 4, &x->count) || !vla_size_mul(x->count, size, &x->bytes) ||
        x->bytes > INT64_MAX - GUARD)
        return vla_fail(error, VLA_ERR_MEMORY, "%s on the device: beyond 64-bit sizes", x->name);
    memcpy(&x->host, &host, sizeof host); /* inputs are only read */
    vla_status status = vla_device_alloc(&x->device, x->bytes + GUARD, x->name, error);
    if (!status) status = vla_device_fill(x->device, 0xff, x->bytes + GUARD, m->stream, error);
    return status ? status : vla_device_stream_wait(m->stream, error);
}

/* The state is float32 on the device whatever the dtype. */
static vla_status upload_state(vla_mirror *m, part *x, vla_error *error)
{
    void *single = NULL;
    vla_status status = vla_alloc(&single, x->count, sizeof(float), x->name, error);
    if (status) return status;
    vla_convert(single, VLA_F32, x->host, m->dtype, x->count);
    status = vla_device_upload(x->device, single, x->bytes, error);
    vla_free(single);
    if (!status) status = vla_device_alloc(&x->start, x->bytes, x->name, error);
    return status ? status : vla_device_copy(x->start, x->device, x->bytes, m->stream, error);
}

static vla_status download_state(vla_mirror *m, part *x, vla_error *error)
{
    void *single = NULL;
    vla_status status = vla_alloc(&single, x->count, sizeof(float), x->name, error);
    if (status) return status;
    status = vla_device_download(single, x->device, x->bytes, error);
    if (!status) vla_convert(x->host, m->dtype, single, VLA_F32, x->count);
    vla_free(single);
    return status;
}

static vla_status add_parts(vla_mirror *m, const vla_problem *p, const vla_tensors *h, vla_error *error)
{
    const int64_t Tk = p->Tk > 0 ? p->Tk : p->T;
    vla_status status = add_part(m, Q, h->q, p->T, p->dk, p, error);
    if (!status) status = add_part(m, K, h->k, Tk, p->dk, p, error);
    if (!status) status = add_part(m, V, h->v, Tk, p->dv, p, error);
    if (!status) status = add_part(m, U, h->u, p->T, p->dk, p, error);
    if (!status) status = add_part(m, B, h->b, p->T, 1, p, error);
    if (!status) status = add_part(m, G, h->g, p->T, p->gate == VLA_GATE_ROW ? p->dv : 1, p, error);
    if (!status) status = add_part(m, O, h->o, p->T, p->dv, p, error);
    if (!status) status = add_part(m, ALPHA, h->alpha, p->T, p->dk, p, error);
    if (!status) status = add_part(m, S, h->S, p->dv, p->dk, p, error);
    if (!status) status = add_part(m, A, h->A, p->dk, p->dk, p, error);
    if (!status) status = add_part(m, N, h->n, 1, p->dk, p, error);
    for (int i = 0; !status && i < O; i++)
        if (m->parts[i].device)
            status = vla_device_upload(m->parts[i].device, m->parts[i].host, m->parts[i].bytes, error);
    for (int i = S; !status && h->state_in && i < PARTS; i++)
        if (m->parts[i].device) status = upload_state(m, &m->parts[i], error);
    return status;
}

static void bind(vla_mirror *m, const vla_tensors *h)
{
    const part *x = m->parts;
    m->tensors = (vla_tensors){.q = x[Q].device,
                               .k = x[K].device,
                               .v = x[V].device,
                               .u = x[U].device,
                               .b = x[B].device,
                               .g = x[G].device,
                               .o = x[O].device,
                               .S = x[S].device,
                               .A = x[A].device,
                               .n = x[N].device,
                               .t = &m->t,
                               .state_in = h->state_in,
                               .alpha = x[ALPHA].device};
    m->host_t = h->t;
    m->t = m->first = h->state_in && h->t ? *h->t : 0;
    vla_plan_set_stream(m->plan, m->stream);
}

vla_status vla_mirror_create(vla_mirror **result, vla_plan *plan, const vla_problem *problem, vla_dtype dtype,
                             const vla_tensors *host, vla_error *error)
{
    *result = NULL;
    vla_mirror *m = calloc(1, sizeof *m);
    if (!m) return vla_fail(error, VLA_ERR_MEMORY, "device run: out of memory");
    m->plan = plan;
    m->dtype = dtype;
    vla_status status = vla_device_stream_create(&m->stream, error);
    if (!status) status = vla_device_event_create(&m->from, error);
    if (!status) status = vla_device_event_create(&m->to, error);
    if (!status) status = add_parts(m, problem, host, error);
    if (status) {
        vla_mirror_destroy(m);
        return status;
    }
    bind(m, host);
    *result = m;
    return VLA_OK;
}

void vla_mirror_destroy(vla_mirror *m)
{
    if (!m) return;
    if (m->stream) (void)vla_device_stream_wait(m->stream, NULL);
    for (int i = 0; i < PARTS; i++) {
        vla_device_free(m->parts[i].device);
        vla_device_free(m->parts[i].start);
    }
    vla_device_graph_destroy(m->single);
    vla_device_graph_destroy(m->many);
    vla_device_event_destroy(m->from);
    vla_device_event_destroy(m->to);
    vla_device_stream_destroy(m->stream);
    free(m);
}

vla_status vla_mirror_reset(vla_mirror *m, vla_error *error)
{
    vla_status status = VLA_OK;
    m->t = m->first;
    for (int i = S; !status && i < PARTS; i++)
        if (m->parts[i].start)
            status = vla_device_copy(m->parts[i].device, m->parts[i].start, m->parts[i].bytes, m->stream, error);
    return status ? status : vla_device_stream_wait(m->stream, error);
}

static vla_status repeat(vla_mirror *m, int64_t runs, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < runs; i++) status = vla_plan_run(m->plan, &m->tensors, error);
    return status;
}

static vla_status record_graph(vla_mirror *m, int64_t runs, void **graph, vla_error *error)
{
    vla_status status = vla_device_graph_begin(m->stream, error);
    if (status) return status;
    status = repeat(m, runs, error);
    /* ended also after a failure, so that the stream is usable again */
    const vla_status ended = vla_device_graph_end(m->stream, graph, status ? NULL : error);
    return status ? status : ended;
}

static vla_status replay(vla_mirror *m, int64_t runs, vla_error *error)
{
    vla_status status = VLA_OK;
    for (; !status && runs >= GRAPH_RUNS && m->many; runs -= GRAPH_RUNS)
        status = vla_device_graph_launch(m->many, m->stream, error);
    for (; !status && runs > 0; runs--) status = vla_device_graph_launch(m->single, m->stream, error);
    return status;
}

static vla_status record_graphs(vla_mirror *m, vla_error *error)
{
    const double SHORT = 2e-3; /* seconds: below, launching graph by graph would show */
    double seconds = 0;
    vla_status status = record_graph(m, 1, &m->single, error);
    for (int i = 0; !status && i < 2; i++) { /* the first replay uploads the graph */
        status = vla_device_event_record(m->from, m->stream, error);
        if (!status) status = replay(m, 1, error);
        if (!status) status = vla_device_event_record(m->to, m->stream, error);
        if (!status) status = vla_device_event_seconds(m->from, m->to, &seconds, error);
    }
    return !status && seconds < SHORT ? record_graph(m, GRAPH_RUNS, &m->many, error) : status;
}

vla_status vla_mirror_run(vla_mirror *m, int64_t runs, bool graph, double *seconds, vla_error *error)
{
    vla_status status = graph && !m->single ? record_graphs(m, error) : VLA_OK;
    if (!status && graph) status = vla_mirror_reset(m, error);
    if (!status) status = vla_device_event_record(m->from, m->stream, error);
    if (!status) status = graph ? replay(m, runs, error) : repeat(m, runs, error);
    if (!status) status = vla_device_event_record(m->to, m->stream, error);
    if (!status) status = vla_device_stream_wait(m->stream, error);
    double elapsed = 0;
    if (!status) status = vla_device_event_seconds(m->from, m->to, &elapsed, error);
    if (seconds) *seconds = elapsed;
    return status;
}

vla_status vla_mirror_fetch(vla_mirror *m, int64_t guard_bytes, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int i = O; !status && i <= ALPHA; i++)
        if (m->parts[i].device)
            status = vla_device_download(m->parts[i].host, m->parts[i].device,
                                         m->parts[i].bytes + (i == O && guard_bytes <= GUARD ? guard_bytes : 0), error);
    for (int i = S; !status && i < PARTS; i++)
        if (m->parts[i].device) status = download_state(m, &m->parts[i], error);
    if (!status && m->host_t) *m->host_t = m->t;
    return status;
}

vla_status vla_plan_run_host(vla_plan *plan, const vla_problem *problem, vla_dtype dtype, const vla_tensors *host,
                             vla_error *error)
{
    if (vla_plan_backend(plan) != VLA_CUDA) return vla_plan_run(plan, host, error);
    vla_mirror *m = NULL;
    vla_status status = vla_mirror_create(&m, plan, problem, dtype, host, error);
    if (!status) status = vla_mirror_run(m, 1, false, NULL, error);
    if (!status) status = vla_mirror_fetch(m, 0, error);
    vla_mirror_destroy(m);
    return status;
}

vla_backend vla_backend_auto(const vla_problem *problem, vla_form form, vla_dtype dtype)
{
    vla_device_info info;
    char reason[160];
    if (vla_device_query(&info, NULL) != VLA_OK) return VLA_CPU;
    if (form == VLA_BEST) return vla_best_form(problem, VLA_CUDA, dtype, 1) == VLA_NAIVE ? VLA_CPU : VLA_CUDA;
    const vla_kernel *kernel = vla_kernel_find(problem->op, form, VLA_CUDA);
    return kernel && vla_kernel_supports(kernel, problem, dtype, reason, sizeof reason) ? VLA_CUDA : VLA_CPU;
}
