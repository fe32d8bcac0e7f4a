#include "tests/gpu/gpu.h"
#include "kernels/cuda/device.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/op/registry.h"
#include "lib/op/residual.h"
#include "lib/tensor/tensor.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Q, K, V, U, B, G, O, S, A, N, TENSORS, GUARD = 256, PERIOD = 1048583 };
static const char *const NAMES[TENSORS] = {"q", "k", "v", "u", "b", "g", "o", "S", "A", "n"};

/* One tensor of the case: count elements, on the host as float64 (already rounded) and on the device with guard bytes.
 */
typedef struct array {
    int64_t width, count; /* elements a head, in all; 0: absent */
    vla_dtype dtype;
    double *host;
    void *device;
} array;

typedef struct run {
    const gpu_case *c;
    array a[TENSORS];
    vla_exec *exec;
    vla_plan *plan;
    void *stream;
    int64_t t;
    bool repeats; /* inputs repeat after PERIOD elements: a run that is only timed */
    vla_error error;
} run;

gpu_case gpu_case_default(vla_op op, vla_form form, vla_dtype dtype, int64_t batch, int64_t H, int64_t T, int64_t d)
{
    gpu_case c;
    memset(&c, 0, sizeof c);
    c.problem = vla_problem_default(op, batch, H, T, d);
    c.form = form, c.dtype = dtype, c.key_scale = c.query_scale = c.value_scale = c.value_steps = 1, c.seed = 42;
    return c;
}

static void widths(run *r)
{
    const vla_problem *p = &r->c->problem;
    const int64_t Tk = p->op == VLA_SOFTMAX && p->Tk > 0 ? p->Tk : p->T;
    r->a[Q].width = p->T * p->dk, r->a[K].width = Tk * p->dk, r->a[V].width = Tk * p->dv, r->a[O].width = p->T * p->dv;
    if (p->op == VLA_VLA && !r->c->no_u) r->a[U].width = p->T * p->dk;
    if (p->op == VLA_DELTA && !r->c->no_b) r->a[B].width = p->T;
    if (p->gate != VLA_GATE_NONE) r->a[G].width = p->T * (p->gate == VLA_GATE_ROW ? p->dv : 1);
    if (vla_op_has_S(p->op)) r->a[S].width = p->dv * p->dk;
    if (vla_op_has_A(p->op)) r->a[A].width = p->dk * p->dk;
    if (vla_op_has_n(p->op)) r->a[N].width = p->dk;
    for (int i = 0; i < TENSORS; i++) {
        r->a[i].count = r->a[i].width * p->B * p->H;
        r->a[i].dtype = i >= S ? VLA_F32 : r->c->dtype;
    }
}

static void shape_keys(const run *r, double *k, int64_t count)
{
    const gpu_case *c = r->c;
    const int64_t dk = c->problem.dk;
    vla_rng rng = vla_rng_seed(c->seed, 77);
    double direction[1024];
    for (int64_t j = 0; j < dk; j++) direction[j] = vla_rng_normal(&rng);
    for (int64_t i = 0; i < count; i++) k[i] = c->key_scale * (k[i] + c->key_mean * direction[i % dk]) + c->key_shift;
    if (!c->zero_keys) return;
    for (int64_t row = 0; row < count / dk; row++)
        for (int64_t j = 0; j < dk; j++)
            if (row % 5 == 2)
                k[row * dk + j] = -1000;
            else if (row % 7 == 3)
                k[row * dk + j] -= 200;
}

static void shape_values(const run *r, double *v, int64_t count)
{
    const gpu_case *c = r->c;
    const double steps[] = {1, c->value_steps, 1 / c->value_steps};
    for (int64_t i = 0; i < count; i++) v[i] *= c->value_scale * steps[i / c->problem.dv % c->problem.T / 100 % 3];
}

static vla_status make_array(run *r, int which)
{
    array *a = &r->a[which];
    if (a->width == 0) return VLA_OK;
    vla_status status = vla_alloc((void **)&a->host, a->count, sizeof(double), NAMES[which], &r->error);
    void *raw = NULL;
    const int64_t bytes = a->count * (int64_t)vla_dtype_size(a->dtype);
    if (status == VLA_OK) status = vla_alloc(&raw, bytes, 1, NAMES[which], &r->error);
    if (status == VLA_OK) status = vla_device_alloc(&a->device, bytes + GUARD, NAMES[which], &r->error);
    if (status == VLA_OK) status = vla_device_fill(a->device, 0xff, bytes + GUARD, r->stream, &r->error);
    if (status == VLA_OK) status = vla_device_stream_wait(r->stream, &r->error);
    if (status == VLA_OK && which < O) {
        vla_rng rng = vla_rng_seed(r->c->seed, (uint64_t)which);
        const int64_t made = r->repeats && a->count > PERIOD ? PERIOD : a->count;
        for (int64_t i = 0; i < made; i++) a->host[i] = vla_rng_normal(&rng);
        if (which == K) shape_keys(r, a->host, made - made % r->c->problem.dk);
        if (which == V) shape_values(r, a->host, made);
        for (int64_t i = 0; which == Q && i < made; i++) a->host[i] *= r->c->query_scale;
        if (r->c->nan_tensor == which + 1) {
            const int64_t head = r->c->problem.B * r->c->problem.H / 2, row = a->width / r->c->problem.T;
            a->host[head * a->width + r->c->nan_token * row + row / 2] = NAN;
        }
        vla_convert(raw, a->dtype, a->host, VLA_F64, made);
        vla_convert(a->host, VLA_F64, raw, a->dtype, made);
        const int64_t size = (int64_t)vla_dtype_size(a->dtype);
        for (int64_t have = made, more = 0; have < a->count; have += more) {
            more = a->count - have < made ? a->count - have : made;
            memcpy((char *)raw + have * size, raw, (size_t)(more * size));
        }
        status = vla_device_upload(a->device, raw, bytes, &r->error);
    }
    vla_free(raw);
    return status;
}

static vla_tensors tensors_of(run *r)
{
    vla_tensors t;
    memset(&t, 0, sizeof t);
    t.q = r->a[Q].device, t.k = r->a[K].device, t.v = r->a[V].device, t.u = r->a[U].device, t.b = r->a[B].device;
    t.g = r->a[G].device, t.o = r->a[O].device, t.S = r->a[S].device, t.A = r->a[A].device, t.n = r->a[N].device;
    t.t = &r->t;
    return t;
}

/* Rows [from, from + T) of every head as a run of its own needs them contiguous: copied on the device. */
static vla_status run_part(run *r, int64_t from, int64_t T, bool resume)
{
    const vla_problem *whole = &r->c->problem;
    vla_problem p = *whole;
    p.T = T;
    vla_plan *plan = NULL;
    vla_status status = vla_plan_create(&plan, r->exec, &p, r->c->form, VLA_CUDA, r->c->dtype, &r->error);
    if (status != VLA_OK) return status;
    vla_plan_set_stream(plan, r->stream);
    vla_tensors t = tensors_of(r);
    t.state_in = resume;
    void *part[O + 1] = {NULL};
    const int64_t heads = whole->B * whole->H, size = (int64_t)vla_dtype_size(r->c->dtype);
    for (int i = 0; i <= O && status == VLA_OK; i++) {
        if (!r->a[i].width) continue;
        const int64_t row = r->a[i].width / whole->T * size;
        status = vla_device_alloc(&part[i], heads * T * row + 1, NAMES[i], &r->error);
        for (int64_t h = 0; h < heads && i < O && status == VLA_OK; h++)
            status =
                vla_device_copy((char *)part[i] + h * T * row, (char *)r->a[i].device + (h * whole->T + from) * row,
                                T * row, r->stream, &r->error);
    }
    t.q = part[Q], t.k = part[K], t.v = part[V], t.u = part[U], t.b = part[B], t.g = part[G], t.o = part[O];
    if (status == VLA_OK) status = vla_plan_run(plan, &t, &r->error);
    for (int64_t h = 0; h < heads && status == VLA_OK; h++) {
        const int64_t row = whole->dv * size;
        status = vla_device_copy((char *)r->a[O].device + (h * whole->T + from) * row, (char *)part[O] + h * T * row,
                                 T * row, r->stream, &r->error);
    }
    if (status == VLA_OK) status = vla_device_stream_wait(r->stream, &r->error);
    for (int i = 0; i <= O; i++) vla_device_free(part[i]);
    vla_plan_destroy(plan);
    return status;
}

static vla_status run_device(run *r)
{
    const gpu_case *c = r->c;
    if (c->split > 0) {
        const vla_status status = run_part(r, 0, c->split, false);
        return status == VLA_OK ? run_part(r, c->split, c->problem.T - c->split, true) : status;
    }
    vla_status status = vla_plan_create(&r->plan, r->exec, &c->problem, c->form, VLA_CUDA, c->dtype, &r->error);
    if (status != VLA_OK) return status;
    vla_plan_set_stream(r->plan, r->stream);
    const vla_tensors t = tensors_of(r);
    status = vla_plan_run(r->plan, &t, &r->error);
    return status == VLA_OK ? vla_device_stream_wait(r->stream, &r->error) : status;
}

/* The output `which` from the device as raw bytes; false with text when a guard byte was written. */
static bool download(run *r, int which, unsigned char **raw, char *text, size_t size)
{
    array *a = &r->a[which];
    const int64_t bytes = a->count * (int64_t)vla_dtype_size(a->dtype);
    vla_status status = vla_alloc((void **)raw, bytes + GUARD, 1, NAMES[which], &r->error);
    if (status == VLA_OK) status = vla_device_download(*raw, a->device, bytes + GUARD, &r->error);
    if (status != VLA_OK) {
        snprintf(text, size, "%s", r->error.message);
        return false;
    }
    for (int64_t i = 0; i < GUARD; i++)
        if ((*raw)[bytes + i] != 0xff) {
            snprintf(text, size, "%s: written past its end", NAMES[which]);
            return false;
        }
    return true;
}

/* Naive on some heads; results replace the host copies of the outputs, [heads][width]. */
static vla_status reference(run *r, const int64_t *heads, int n)
{
    vla_problem p = r->c->problem;
    p.B = 1, p.H = n;
    double *part[TENSORS] = {NULL};
    vla_status status = VLA_OK;
    for (int i = 0; i < TENSORS && status == VLA_OK; i++) {
        if (!r->a[i].width) continue;
        status = vla_alloc((void **)&part[i], n * r->a[i].width, sizeof(double), NAMES[i], &r->error);
        for (int h = 0; h < n && i < O && status == VLA_OK; h++)
            memcpy(part[i] + h * r->a[i].width, r->a[i].host + heads[h] * r->a[i].width,
                   (size_t)r->a[i].width * sizeof(double));
    }
    vla_plan *plan = NULL;
    vla_tensors t;
    memset(&t, 0, sizeof t);
    t.q = part[Q], t.k = part[K], t.v = part[V], t.u = part[U], t.b = part[B], t.g = part[G], t.o = part[O];
    t.S = part[S], t.A = part[A], t.n = part[N];
    if (status == VLA_OK) status = vla_plan_create(&plan, r->exec, &p, VLA_NAIVE, VLA_CPU, VLA_F64, &r->error);
    if (status == VLA_OK) status = vla_plan_run(plan, &t, &r->error);
    vla_plan_destroy(plan);
    for (int i = 0; i < TENSORS; i++)
        if (i >= O && part[i]) {
            vla_free(r->a[i].host);
            r->a[i].host = part[i];
        } else {
            vla_free(part[i]);
        }
    return status;
}

static int choose_heads(const run *r, int64_t *heads)
{
    const int64_t all = r->c->problem.B * r->c->problem.H;
    const int want = r->c->heads > 0 ? r->c->heads : 4;
    if (all <= want) {
        for (int64_t h = 0; h < all; h++) heads[h] = h;
        return (int)all;
    }
    vla_rng rng = vla_rng_seed(r->c->seed, 99);
    for (int h = 0; h < want; h++)
        heads[h] = h == 0 ? 0 : h == 1 ? all - 1 : h == 2 ? all / 2 : (int64_t)vla_rng_below(&rng, (uint64_t)all);
    return want;
}

/* With a NaN planted: rows before it as the oracle has them, the head not finite from there on, other heads clean. */
static gpu_verdict judge_nan(const run *r, const unsigned char *raw, const int64_t *heads, int n, char *text,
                             size_t size)
{
    const vla_problem *p = &r->c->problem;
    const array *o = &r->a[O];
    const int64_t bad_head = p->B * p->H / 2, es = (int64_t)vla_dtype_size(o->dtype);
    vla_residual_sum sum;
    memset(&sum, 0, sizeof sum);
    bool seen = false;
    for (int h = 0; h < n; h++) {
        const int64_t rows = heads[h] == bad_head ? r->c->nan_token : p->T;
        vla_residual_add(&sum, raw + heads[h] * o->width * es, o->dtype, o->host + h * o->width, rows * p->dv);
        for (int64_t i = rows * p->dv; i < o->width; i++)
            seen |= !isfinite(vla_load(raw, o->dtype, heads[h] * o->width + i));
    }
    const vla_residual res = vla_residual_finish(&sum);
    snprintf(text, size, "residual before %.2e nonfinite %lld seen after %d", res.residual, (long long)res.nonfinite,
             seen);
    return vla_residual_pass(&res, vla_residual_limit(p->op, r->c->dtype)) && seen ? GPU_PASS : GPU_FAIL;
}

static gpu_verdict judge(run *r, char *text, size_t size)
{
    int64_t heads[8];
    const int n = choose_heads(r, heads);
    if (reference(r, heads, n) != VLA_OK) {
        snprintf(text, size, "%s", r->error.message);
        return GPU_FAIL;
    }
    gpu_verdict verdict = GPU_PASS;
    size_t used = 0;
    text[0] = 0;
    for (int i = O; i < TENSORS; i++) {
        if (!r->a[i].width) continue;
        unsigned char *raw = NULL;
        if (!download(r, i, &raw, text, size)) {
            vla_free(raw);
            return GPU_FAIL;
        }
        if (r->c->nan_tensor) {
            const gpu_verdict v = judge_nan(r, raw, heads, n, text, size);
            vla_free(raw);
            return v;
        }
        vla_residual_sum sum;
        memset(&sum, 0, sizeof sum);
        for (int h = 0; h < n; h++)
            vla_residual_add(&sum, raw + heads[h] * r->a[i].width * (int64_t)vla_dtype_size(r->a[i].dtype),
                             r->a[i].dtype, r->a[i].host + h * r->a[i].width, r->a[i].width);
        vla_free(raw);
        const vla_residual res = vla_residual_finish(&sum);
        const double limit = vla_residual_limit(r->c->problem.op, r->c->dtype);
        if (!vla_residual_pass(&res, limit)) verdict = GPU_FAIL;
        used += (size_t)snprintf(text + used, size - used, "%s %.2e (max %.1e)%s ", NAMES[i], res.residual,
                                 res.max_residual, res.nonfinite ? " NONFINITE" : "");
    }
    snprintf(text + used, size - used, "%s", r->plan ? vla_plan_label(r->plan) : "");
    return verdict;
}

/* More runs on the same data give the same bits. */
static bool same_again(run *r, char *text, size_t size)
{
    unsigned char *first = NULL;
    bool same = download(r, O, &first, text, size);
    const vla_tensors t = tensors_of(r);
    for (int again = 0; same && again < r->c->repeat; again++) {
        unsigned char *other = NULL;
        if (vla_plan_run(r->plan, &t, &r->error) != VLA_OK || vla_device_stream_wait(r->stream, &r->error) != VLA_OK) {
            snprintf(text, size, "run %d: %s", again + 2, r->error.message);
            same = false;
        }
        same = same && download(r, O, &other, text, size);
        if (same && memcmp(first, other, (size_t)(r->a[O].count * (int64_t)vla_dtype_size(r->a[O].dtype))) != 0) {
            snprintf(text, size, "run %d differs from the first", again + 2);
            same = false;
        }
        vla_free(other);
    }
    vla_free(first);
    return same;
}

static vla_status open_run(run *r, const gpu_case *c, bool repeats)
{
    memset(r, 0, sizeof *r);
    r->c = c, r->repeats = repeats;
    widths(r);
    vla_status status = vla_exec_create(&r->exec, 0, VLA_ISA_AUTO, &r->error);
    if (status == VLA_OK) status = vla_device_stream_create(&r->stream, &r->error);
    for (int i = 0; i < TENSORS && status == VLA_OK; i++) status = make_array(r, i);
    return status;
}

static void close_run(run *r)
{
    for (int i = 0; i < TENSORS; i++) {
        vla_free(r->a[i].host);
        vla_device_free(r->a[i].device);
    }
    vla_plan_destroy(r->plan);
    vla_device_stream_destroy(r->stream);
    vla_exec_destroy(r->exec);
}

gpu_verdict gpu_run(const gpu_case *c, char *text, size_t size)
{
    run r;
    vla_status status = open_run(&r, c, false);
    if (status == VLA_OK) status = run_device(&r);
    gpu_verdict verdict = GPU_FAIL;
    if (status == VLA_OK) {
        verdict = judge(&r, text, size);
        if (verdict == GPU_PASS && c->repeat && c->problem.T > 0 && !same_again(&r, text, size)) verdict = GPU_FAIL;
    } else {
        snprintf(text, size, "%s", r.error.message);
        if (status == VLA_ERR_UNSUPPORTED) verdict = GPU_SKIP;
    }
    close_run(&r);
    return verdict;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static vla_status time_replays(run *r, int runs, int replays, double *seconds)
{
    void *graph = NULL, *from = NULL, *to = NULL;
    vla_tensors t = tensors_of(r);
    vla_status status =
        vla_plan_create(&r->plan, r->exec, &r->c->problem, r->c->form, VLA_CUDA, r->c->dtype, &r->error);
    if (status != VLA_OK) return status;
    vla_plan_set_stream(r->plan, r->stream);
    status = vla_plan_run(r->plan, &t, &r->error);
    if (status == VLA_OK) status = vla_device_stream_wait(r->stream, &r->error);
    t.state_in = r->c->resume;
    if (status == VLA_OK) status = vla_device_graph_begin(r->stream, &r->error);
    for (int i = 0; i < runs && status == VLA_OK; i++) status = vla_plan_run(r->plan, &t, &r->error);
    if (status == VLA_OK) status = vla_device_graph_end(r->stream, &graph, &r->error);
    if (status == VLA_OK) status = vla_device_event_create(&from, &r->error);
    if (status == VLA_OK) status = vla_device_event_create(&to, &r->error);
    for (int i = -2; i < replays && status == VLA_OK; i++) {
        status = vla_device_event_record(from, r->stream, &r->error);
        if (status == VLA_OK) status = vla_device_graph_launch(graph, r->stream, &r->error);
        if (status == VLA_OK) status = vla_device_event_record(to, r->stream, &r->error);
        double one = 0;
        if (status == VLA_OK) status = vla_device_event_seconds(from, to, &one, &r->error);
        if (i >= 0) seconds[i] = one / runs;
    }
    vla_device_event_destroy(from);
    vla_device_event_destroy(to);
    vla_device_graph_destroy(graph);
    return status;
}

double gpu_time(const gpu_case *c, int runs, int replays, char *text, size_t size)
{
    run r;
    double seconds[64] = {0};
    if (replays > 64) replays = 64;
    vla_status status = open_run(&r, c, true);
    if (status == VLA_OK) status = time_replays(&r, runs, replays, seconds);
    snprintf(text, size, "%s", status == VLA_OK ? vla_plan_label(r.plan) : r.error.message);
    close_run(&r);
    if (status != VLA_OK) return -1;
    qsort(seconds, (size_t)replays, sizeof *seconds, by_value);
    return seconds[replays / 2];
}
