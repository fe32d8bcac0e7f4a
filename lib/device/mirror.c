#include "lib/device/mirror.h"
#include "kernels/cuda/device.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/tensor/tensor.h"
#include <stdlib.h>
#include <string.h>

enum { Q, K, V, U, B, G, O, ALPHA, S, A, N, PARTS, GUARD = 256, GRAPH_RUNS = 20, MOST_SETS = 64 };

/* One tensor: `sets` copies on the device, `stride` bytes apart. */
typedef struct part {
    const char *name;
    void *host, *device, *start; /* start: the state of the creation, on the device, once */
    int64_t count, bytes, stride;
} part;

struct vla_mirror {
    vla_remote *remote; /* of another process; then nothing below but plan is used */
    vla_plan *plan;
    vla_dtype dtype;
    part parts[PARTS];
    int sets, next, last; /* copies; the one the next run takes; the one the last run took */
    int64_t bytes;
    vla_tensors tensors; /* of the first set, on the device */
    int64_t t, first, *host_t;
    void *stream, *from, *to;
    void *single[MOST_SETS], *many; /* graphs of one run, one a set; of many_runs runs, round the sets */
    int many_runs;
};

static const char *const names[PARTS] = {"q", "k", "v", "u", "b", "g", "o", "alpha", "S", "A", "n"};

static bool is_state(int i)
{
    return i >= S;
}

static void *at_set(const vla_mirror *m, int i, int set)
{
    const part *x = &m->parts[i];
    return x->device ? (char *)x->device + (int64_t)set * x->stride : NULL;
}

static vla_status size_part(vla_mirror *m, int i, const void *host, int64_t rows, int64_t columns, const vla_problem *p,
                            vla_error *error)
{
    part *x = &m->parts[i];
    x->name = names[i];
    if (!host) return VLA_OK;
    const int64_t size = is_state(i) ? 4 : (int64_t)vla_dtype_size(m->dtype);
    const int64_t factors[] = {p->B, p->H, rows, columns};
    int64_t all;
    if (!vla_size_product(factors, 4, &x->count) || !vla_size_mul(x->count, size, &x->bytes) ||
        x->bytes > INT64_MAX - 2 * GUARD || !vla_size_mul(x->bytes + 2 * GUARD, MOST_SETS, &all))
        return vla_fail(error, VLA_ERR_MEMORY, "%s on the device: beyond 64-bit sizes", x->name);
    x->stride = (x->bytes + GUARD + 255) / 256 * 256;
    m->bytes += x->stride;
    memcpy(&x->host, &host, sizeof host); /* inputs are only read */
    return VLA_OK;
}

static vla_status size_parts(vla_mirror *m, const vla_problem *p, const vla_tensors *h, vla_error *error)
{
    const int64_t Tk = p->Tk > 0 ? p->Tk : p->T;
    vla_status status = size_part(m, Q, h->q, p->T, p->dk, p, error);
    if (!status) status = size_part(m, K, h->k, Tk, p->dk, p, error);
    if (!status) status = size_part(m, V, h->v, Tk, p->dv, p, error);
    if (!status) status = size_part(m, U, h->u, p->T, p->dk, p, error);
    if (!status) status = size_part(m, B, h->b, p->T, 1, p, error);
    if (!status) status = size_part(m, G, h->g, p->T, p->gate == VLA_GATE_ROW ? p->dv : 1, p, error);
    if (!status) status = size_part(m, O, h->o, p->T, p->dv, p, error);
    if (!status) status = size_part(m, ALPHA, h->alpha, p->T, p->dk, p, error);
    if (!status) status = size_part(m, S, h->S, p->dv, p->dk, p, error);
    if (!status) status = size_part(m, A, h->A, p->dk, p->dk, p, error);
    return status ? status : size_part(m, N, h->n, 1, p->dk, p, error);
}

static vla_status choose_sets(vla_mirror *m, bool cold, vla_error *error)
{
    vla_device_info info;
    m->sets = 1;
    vla_status status = cold ? vla_device_query(&info, error) : VLA_OK;
    if (status || !cold || m->bytes == 0) return status;
    const int64_t sets = (3 * info.l2_bytes + m->bytes - 1) / m->bytes;
    m->sets = sets < 1 ? 1 : sets > MOST_SETS ? MOST_SETS : (int)sets;
    m->bytes *= m->sets;
    return VLA_OK;
}

/* The state is float32 on the device whatever the dtype. */
static vla_status upload_state(vla_mirror *m, part *x, vla_error *error)
{
    void *single = NULL;
    vla_status status = vla_alloc(&single, x->count, sizeof(float), x->name, error);
    if (status) return status;
    vla_convert(single, VLA_F32, x->host, m->dtype, x->count);
    status = vla_device_alloc(&x->start, x->bytes, x->name, error);
    if (!status) status = vla_device_upload(x->start, single, x->bytes, error);
    vla_free(single);
    m->bytes += x->bytes;
    return status;
}

static vla_status download_state(vla_mirror *m, int i, vla_error *error)
{
    void *single = NULL;
    const part *x = &m->parts[i];
    vla_status status = vla_alloc(&single, x->count, sizeof(float), x->name, error);
    if (status) return status;
    status = vla_device_download(single, at_set(m, i, m->last), x->bytes, error);
    if (!status) vla_convert(x->host, m->dtype, single, VLA_F32, x->count);
    vla_free(single);
    return status;
}

/* Everything NaN, inputs in the first set, and from there in the others. */
static vla_status fill_part(vla_mirror *m, int i, vla_error *error)
{
    part *x = &m->parts[i];
    if (!x->stride) return VLA_OK;
    vla_status status = vla_device_alloc(&x->device, m->sets * x->stride, x->name, error);
    if (!status) status = vla_device_fill(x->device, 0xff, m->sets * x->stride, m->stream, error);
    if (!status) status = vla_device_stream_wait(m->stream, error);
    if (!status && i < O) status = vla_device_upload(x->device, x->host, x->bytes, error);
    for (int set = 1; !status && i < O && set < m->sets; set++)
        status = vla_device_copy(at_set(m, i, set), x->device, x->bytes, m->stream, error);
    return status;
}

static vla_status fill_parts(vla_mirror *m, const vla_tensors *h, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int i = 0; !status && i < PARTS; i++) status = fill_part(m, i, error);
    for (int i = S; !status && h->state_in && i < PARTS; i++)
        if (m->parts[i].device) status = upload_state(m, &m->parts[i], error);
    return status ? status : vla_mirror_reset(m, error);
}

static vla_tensors tensors_of(const vla_mirror *m, int set)
{
    vla_tensors t = m->tensors;
    t.q = at_set(m, Q, set), t.k = at_set(m, K, set), t.v = at_set(m, V, set), t.u = at_set(m, U, set);
    t.b = at_set(m, B, set), t.g = at_set(m, G, set), t.o = at_set(m, O, set), t.alpha = at_set(m, ALPHA, set);
    t.S = at_set(m, S, set), t.A = at_set(m, A, set), t.n = at_set(m, N, set);
    return t;
}

vla_status vla_mirror_create(vla_mirror **result, vla_plan *plan, const vla_problem *problem, vla_dtype dtype,
                             const vla_tensors *host, bool cold, vla_error *error)
{
    *result = NULL;
    vla_mirror *m = calloc(1, sizeof *m);
    if (!m) return vla_fail(error, VLA_ERR_MEMORY, "device run: out of memory");
    m->plan = plan;
    m->dtype = dtype;
    m->tensors = (vla_tensors){.t = &m->t, .state_in = host->state_in};
    m->host_t = host->t;
    m->t = m->first = host->state_in && host->t ? *host->t : 0;
    vla_status status = vla_device_stream_create(&m->stream, error);
    if (!status) status = vla_device_event_create(&m->from, error);
    if (!status) status = vla_device_event_create(&m->to, error);
    if (!status) status = size_parts(m, problem, host, error);
    if (!status) status = choose_sets(m, cold, error);
    if (!status) status = fill_parts(m, host, error);
    if (status) {
        vla_mirror_destroy(m);
        return status;
    }
    vla_plan_set_stream(m->plan, m->stream);
    *result = m;
    return VLA_OK;
}

vla_status vla_mirror_create_there(vla_mirror **result, vla_worker *worker, vla_plan *plan, const vla_remote_job *job,
                                   const vla_tensors *host, vla_error *error)
{
    *result = NULL;
    vla_mirror *m = calloc(1, sizeof *m);
    if (!m) return vla_fail(error, VLA_ERR_MEMORY, "device run: out of memory");
    m->plan = plan;
    const vla_status status = vla_remote_create(&m->remote, worker, job, host, error);
    if (status) {
        free(m);
        return status;
    }
    *result = m;
    return VLA_OK;
}

const char *vla_mirror_label(const vla_mirror *m)
{
    return m->remote ? vla_remote_label(m->remote) : vla_plan_label(m->plan);
}

void vla_mirror_destroy(vla_mirror *m)
{
    if (!m) return;
    vla_remote_destroy(m->remote);
    if (m->stream) (void)vla_device_stream_wait(m->stream, NULL);
    for (int i = 0; i < PARTS; i++) {
        vla_device_free(m->parts[i].device);
        vla_device_free(m->parts[i].start);
    }
    for (int set = 0; set < MOST_SETS; set++) vla_device_graph_destroy(m->single[set]);
    vla_device_graph_destroy(m->many);
    vla_device_event_destroy(m->from);
    vla_device_event_destroy(m->to);
    vla_device_stream_destroy(m->stream);
    free(m);
}

int64_t vla_mirror_bytes(const vla_mirror *m)
{
    return m->remote ? vla_remote_bytes(m->remote) : m->bytes;
}

vla_status vla_mirror_reset(vla_mirror *m, vla_error *error)
{
    vla_status status = VLA_OK;
    if (m->remote) return VLA_OK; /* no state there */
    m->t = m->first;
    for (int i = S; i < PARTS; i++)
        for (int set = 0; !status && m->parts[i].start && set < m->sets; set++)
            status = vla_device_copy(at_set(m, i, set), m->parts[i].start, m->parts[i].bytes, m->stream, error);
    return status ? status : vla_device_stream_wait(m->stream, error);
}

static vla_status repeat(vla_mirror *m, int64_t runs, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < runs; i++) {
        const vla_tensors t = tensors_of(m, m->next);
        status = vla_plan_run(m->plan, &t, error);
        m->last = m->next;
        m->next = (m->next + 1) % m->sets;
    }
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

static vla_status replay_one(vla_mirror *m, vla_error *error)
{
    vla_status status = VLA_OK;
    if (!m->single[m->next]) {
        const int set = m->next;
        status = record_graph(m, 1, &m->single[set], error);
        m->next = set;
    }
    if (!status) status = vla_device_graph_launch(m->single[m->next], m->stream, error);
    m->last = m->next;
    m->next = (m->next + 1) % m->sets;
    return status;
}

/* Copies are gone round whole, so that the next run always finds the first evicted: more runs than asked for, then. */
static vla_status replay(vla_mirror *m, int64_t runs, int64_t *done, vla_error *error)
{
    vla_status status = VLA_OK;
    *done = m->many && m->sets > 1 ? (runs + m->many_runs - 1) / m->many_runs * m->many_runs : runs;
    for (runs = *done; !status && m->many && runs >= m->many_runs; runs -= m->many_runs)
        status = vla_device_graph_launch(m->many, m->stream, error);
    for (; !status && runs > 0; runs--) status = replay_one(m, error);
    return status;
}

/* Keeps the device at work while the host launches what is timed: otherwise the first launch's way there would count.
 */
static vla_status lead_in(vla_mirror *m, vla_error *error)
{
    enum { RUNS = 3 };
    vla_status status = VLA_OK;
    if (!m->many) return VLA_OK; /* a long run does not notice */
    if (m->sets > 1) return vla_device_graph_launch(m->many, m->stream, error);
    for (int i = 0; !status && i < RUNS; i++) status = replay_one(m, error);
    return status;
}

static vla_status record_graphs(vla_mirror *m, vla_error *error)
{
    const double SHORT = 2e-3; /* seconds: below, launching graph by graph would show */
    const double LONG = 0.2;   /* seconds: above, not repeated for nothing */
    double seconds = 0;
    vla_status status = VLA_OK;
    for (int i = 0; !status && i < 3 && seconds < LONG; i++) { /* the first replay records and uploads the graph */
        m->next = 0;
        status = vla_device_event_record(m->from, m->stream, error);
        if (!status) status = replay_one(m, error);
        if (!status) status = vla_device_event_record(m->to, m->stream, error);
        if (!status) status = vla_device_event_seconds(m->from, m->to, &seconds, error);
    }
    m->many_runs = (GRAPH_RUNS + m->sets - 1) / m->sets * m->sets;
    m->next = 0;
    if (!status && seconds < SHORT) status = record_graph(m, m->many_runs, &m->many, error);
    for (int set = 1; !status && !m->many && set < m->sets; set++) { /* not while the clock runs */
        m->next = set;
        status = replay_one(m, error);
    }
    m->next = 0;
    return status;
}

vla_status vla_mirror_run(vla_mirror *m, int64_t runs, bool graph, double *seconds, vla_error *error)
{
    int64_t done = runs;
    if (m->remote) return vla_remote_run(m->remote, runs, graph, seconds, error);
    vla_status status = graph && !m->single[0] ? record_graphs(m, error) : VLA_OK;
    if (!status && graph) status = vla_mirror_reset(m, error);
    if (!status && graph) status = lead_in(m, error);
    if (!status) status = vla_device_event_record(m->from, m->stream, error);
    if (!status) status = graph ? replay(m, runs, &done, error) : repeat(m, runs, error);
    if (!status) status = vla_device_event_record(m->to, m->stream, error);
    if (!status) status = vla_device_stream_wait(m->stream, error);
    double elapsed = 0;
    if (!status) status = vla_device_event_seconds(m->from, m->to, &elapsed, error);
    if (seconds) *seconds = done > 0 ? elapsed * (double)runs / (double)done : elapsed;
    return status;
}

vla_status vla_mirror_fetch(vla_mirror *m, int64_t guard_bytes, vla_error *error)
{
    vla_status status = VLA_OK;
    if (m->remote) return vla_remote_fetch(m->remote, guard_bytes, error);
    for (int i = O; !status && i <= ALPHA; i++)
        if (m->parts[i].device)
            status = vla_device_download(m->parts[i].host, at_set(m, i, m->last),
                                         m->parts[i].bytes + (i == O && guard_bytes <= GUARD ? guard_bytes : 0), error);
    for (int i = S; !status && i < PARTS; i++)
        if (m->parts[i].device) status = download_state(m, i, error);
    if (!status && m->host_t) *m->host_t = m->t;
    return status;
}

vla_status vla_mirror_inputs_intact(const vla_mirror *m, bool *intact, vla_error *error)
{
    const int64_t piece = (int64_t)16 << 20, pieces = 8;
    void *copy;
    if (m->remote) return vla_remote_inputs_intact(m->remote, intact, error);
    *intact = true;
    vla_status status = vla_alloc(&copy, piece, 1, "inputs of the device", error);
    for (int i = 0; !status && *intact && i < O; i++) {
        const int64_t all = m->parts[i].bytes, beyond = all > piece ? all - piece : 0;
        const int64_t step = beyond > (pieces - 1) * piece ? (beyond + pieces - 2) / (pieces - 1) : piece;
        for (int64_t at = 0; !status && *intact && at < all; at += step) {
            const int64_t bytes = all - at < piece ? all - at : piece;
            status = vla_device_download(copy, (const char *)at_set(m, i, m->last) + at, bytes, error);
            *intact = !status && !memcmp(copy, (const char *)m->parts[i].host + at, (size_t)bytes);
        }
    }
    vla_free(copy);
    return status;
}

vla_status vla_plan_run_host(vla_plan *plan, const vla_problem *problem, vla_dtype dtype, const vla_tensors *host,
                             vla_error *error)
{
    if (vla_plan_backend(plan) != VLA_CUDA) return vla_plan_run(plan, host, error);
    vla_mirror *m = NULL;
    vla_status status = vla_mirror_create(&m, plan, problem, dtype, host, false, error);
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
