#include "lib/measure/gain.h"
#include "lib/base/clock.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/measure/setting.h"
#include "lib/op/registry.h"
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_TURNS = 300 };

/* Seconds that copies run for one sample. */
#define ABREAST_SECONDS 3e-3

typedef struct copy {
    vla_plan *plan;
    vla_buffers buffers;
    vla_tensors tensors;
    double rate; /* runs a second */
    vla_error error;
} copy;

struct vla_abreast {
    vla_pool *pool;
    int copies;
    copy *items;
    double seconds;
    atomic_int come; /* copies that are ready: none starts before the last */
};

vla_status vla_abreast_create(vla_abreast **result, const vla_case *c, vla_exec *alone, vla_exec *all,
                              const vla_inputs *inputs, vla_error *error)
{
    vla_abreast *a = *result = calloc(1, sizeof *a);
    if (!a) return vla_fail(error, VLA_ERR_MEMORY, "copies side by side: out of memory");
    a->pool = vla_exec_pool(all);
    a->items = calloc((size_t)vla_exec_threads(all), sizeof *a->items);
    vla_status status = a->items ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "copies side by side: out of memory");
    for (; !status && a->copies < vla_exec_threads(all); a->copies++) {
        copy *one = &a->items[a->copies];
        status = vla_plan_create(&one->plan, alone, &c->problem, c->form, c->backend, c->dtype, error);
        if (!status) status = vla_buffers_create(&one->buffers, c, error);
        if (!status) {
            vla_inputs_tensors(inputs, c->problem.op, &one->tensors);
            vla_buffers_bind(&one->buffers, &one->tensors);
        }
    }
    if (status) {
        vla_abreast_destroy(a);
        *result = NULL;
    }
    return status;
}

void vla_abreast_destroy(vla_abreast *a)
{
    if (!a) return;
    for (int i = 0; i < a->copies; i++) {
        vla_buffers_free(&a->items[i].buffers);
        vla_plan_destroy(a->items[i].plan);
    }
    free(a->items);
    free(a);
}

static void run_copy(void *context, int64_t item, int worker)
{
    (void)worker;
    vla_abreast *a = context;
    copy *one = &a->items[item];
    /* Once untimed: others had their turn since. */
    vla_status status = vla_plan_run(one->plan, &one->tensors, &one->error);
    atomic_fetch_add(&a->come, 1);
    while (atomic_load(&a->come) < a->copies) sched_yield();
    const double begun = vla_now();
    double spent = 0;
    int64_t runs = 0;
    for (; !status && (runs == 0 || spent < a->seconds); runs++) {
        status = vla_plan_run(one->plan, &one->tensors, &one->error);
        spent = vla_now() - begun;
    }
    one->error.status = status;
    one->rate = status || !(spent > 0) ? (double)NAN : (double)runs / spent;
}

vla_status vla_abreast_run(vla_abreast *a, double seconds, double *a_run, vla_error *error)
{
    double rate = 0;
    a->seconds = seconds;
    atomic_store(&a->come, 0);
    vla_pool_run(a->pool, a->copies, run_copy, a);
    for (int i = 0; i < a->copies; i++) {
        if (a->items[i].error.status) {
            if (error) *error = a->items[i].error;
            return a->items[i].error.status;
        }
        rate += a->items[i].rate;
    }
    *a_run = 1 / rate;
    return VLA_OK;
}

static bool same_operator(const vla_case *a, const vla_case *b)
{
    const vla_problem *p = &a->problem, *q = &b->problem;
    return a->dtype == b->dtype && a->isa == b->isa && p->op == q->op && p->features == q->features &&
           p->qk_l2 == q->qk_l2 && p->output == q->output && p->no_normalise == q->no_normalise &&
           p->lambda0 == q->lambda0 && p->refresh_period == q->refresh_period && p->refresh_eps == q->refresh_eps &&
           p->gate == q->gate;
}

static bool forward_on_cpu(const vla_bench *b)
{
    return b->c.backend == VLA_CPU && b->c.mode == VLA_PREFILL && !b->c.backward && vla_bench_can_time(b);
}

/* The one-thread run that a scan on several threads has to beat, by those seconds; -1: none. */
static int64_t rival_of(const vla_bench *benches, int64_t count, int64_t scan, double (*seconds)(const vla_bench *))
{
    const vla_bench *s = &benches[scan];
    int64_t best = -1;
    if (!forward_on_cpu(s) || s->c.form != VLA_SCAN || s->c.threads < 2) return -1;
    for (int64_t i = 0; i < count; i++) {
        const vla_bench *b = &benches[i];
        const bool rival = forward_on_cpu(b) && b->c.threads == 1 && b->c.form != VLA_NAIVE &&
                           same_operator(&b->c, &s->c) && seconds(b) > 0;
        if (rival && (best < 0 || seconds(b) < seconds(&benches[best]))) best = i;
    }
    return best;
}

static double first_seconds(const vla_bench *b)
{
    return b->run_seconds;
}

static double median_seconds(const vla_bench *b)
{
    vla_summary s;
    return vla_summarise(b->sampler.samples, b->sampler.n, &s, NULL) ? (double)NAN : s.median;
}

vla_status vla_gains_start(vla_gains *gains, const vla_bench *benches, int64_t count, vla_exec *one_thread,
                           vla_error *error)
{
    *gains = (vla_gains){
        .items = calloc((size_t)count + 1, sizeof *gains->items), .begun = vla_now(), .stolen = vla_setting_stolen()};
    if (!gains->items) return vla_fail(error, VLA_ERR_MEMORY, "gains: out of memory");
    for (int64_t i = 0; i < count; i++) {
        vla_gain g = {.scan = i, .alone = rival_of(benches, count, i, first_seconds), .capacity = MOST_TURNS};
        if (g.alone < 0) continue;
        g.samples = calloc(MOST_TURNS, sizeof *g.samples);
        const vla_status status = g.samples ? vla_abreast_create(&g.abreast, &benches[g.alone].c, one_thread,
                                                                 benches[i].exec, benches[i].inputs, NULL)
                                            : VLA_ERR_MEMORY;
        if (status)
            free(g.samples);
        else
            gains->items[gains->count++] = g;
    }
    return VLA_OK;
}

vla_status vla_gains_step(vla_gains *gains, const vla_bench *benches, int64_t i, double limit, vla_error *error)
{
    for (int64_t j = 0; j < gains->count; j++) {
        vla_gain *g = &gains->items[j];
        const bool due = g->scan == i && g->n < g->capacity && g->n + 1 == benches[i].sampler.n && g->spent < limit;
        if (!due) continue;
        const double begun = vla_now();
        const vla_status status = vla_abreast_run(g->abreast, ABREAST_SECONDS, &g->samples[g->n++], error);
        g->spent += vla_now() - begun;
        if (status) return status;
    }
    return VLA_OK;
}

/* NAME, NAME_q1 and NAME_q3. */
static bool put_quartiles(vla_record *r, const char *name, double *values, int64_t n)
{
    char field[32];
    static const struct {
        const char *end;
        double p;
    } parts[] = {{"", 0.5}, {"_q1", 0.25}, {"_q3", 0.75}};
    bool ok = true;
    vla_sort(values, n);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(field, sizeof field, "%s%s", name, parts[i].end);
        ok = ok && vla_record_real(r, field, vla_quantile(values, n, parts[i].p));
    }
    return ok;
}

static bool put_gain(vla_record *r, const vla_gain *g, const vla_bench *benches, const vla_bench *fastest,
                     double *values)
{
    const double *scan = benches[g->scan].sampler.samples, *alone = benches[g->alone].sampler.samples;
    const double *best = fastest->sampler.samples;
    int64_t n = g->n;
    const int64_t others[] = {benches[g->scan].sampler.n, benches[g->alone].sampler.n, fastest->sampler.n};
    for (int i = 0; i < 3; i++) n = others[i] < n ? others[i] : n;
    bool ok = vla_record_string(r, "alone", vla_form_name(fastest->c.form)) && vla_record_int(r, "turns", n);
    for (int64_t i = 0; i < n; i++) values[i] = best[i] / scan[i];
    ok = ok && put_quartiles(r, "gain", values, n);
    for (int64_t i = 0; i < n; i++) values[i] = alone[i] / g->samples[i];
    ok = ok && put_quartiles(r, "ceiling", values, n);
    for (int64_t i = 0; i < n; i++) values[i] = best[i] / alone[i] * g->samples[i] / scan[i];
    return ok && put_quartiles(r, "of_ceiling", values, n);
}

static vla_status add_record(const vla_gain *g, const vla_bench *benches, int64_t count, const vla_bench_facts *facts,
                             vla_records *out, vla_error *error)
{
    const int64_t fastest = g->n ? rival_of(benches, count, g->scan, median_seconds) : -1;
    if (fastest < 0) return VLA_OK;
    const vla_bench *scan = &benches[g->scan];
    double *values = calloc((size_t)g->n, sizeof *values);
    vla_record *r = vla_record_create("gain");
    const bool ok = values && r && vla_case_record(&scan->c, facts->seed, facts->input, r) &&
                    put_gain(r, g, benches, &benches[fastest], values) && vla_record_real(r, "stolen", scan->stolen);
    free(values);
    if (ok && vla_records_push(out, r)) return VLA_OK;
    vla_record_destroy(r);
    return vla_fail(error, VLA_ERR_MEMORY, "gains: out of memory");
}

vla_status vla_gains_finish(const vla_gains *gains, vla_bench *benches, int64_t count, const vla_bench_facts *facts,
                            vla_records *out, vla_error *error)
{
    const double seconds = (vla_now() - gains->begun) * (double)vla_cpu_count();
    const double stolen = (vla_setting_stolen() - gains->stolen) / seconds;
    for (int64_t i = 0; i < count; i++) benches[i].stolen = stolen;
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < gains->count; i++)
        status = add_record(&gains->items[i], benches, count, facts, out, error);
    return status;
}

void vla_gains_free(vla_gains *gains)
{
    for (int64_t i = 0; i < gains->count; i++) {
        vla_abreast_destroy(gains->items[i].abreast);
        free(gains->items[i].samples);
    }
    free(gains->items);
    *gains = (vla_gains){0};
}
