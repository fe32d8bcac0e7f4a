#include "lib/measure/sweep.h"
#include "kernels/cuda/device.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/base/clock.h"
#include "lib/device/mirror.h"
#include "lib/measure/gain.h"
#include "lib/measure/rivals.h"
#include "lib/measure/variant.h"
#include "lib/op/registry.h"
#include "lib/op/work.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXECS = 16, MAX_SAMPLES = 300, WORKERS = 16 };

/* Seconds: long enough that waking the threads for a sample does not show. */
#define SHORTEST_SAMPLE 1e-3

struct vla_sweep {
    vla_sweep_config config;
    vla_records *rows;
    double started, floor;
    struct {
        int threads;
        vla_exec *exec;
    } execs[EXECS];
    int exec_count;
    vla_variants variants;
    vla_peaks peaks;
    bool peaks_missing; /* the device's cannot be measured */
    bool left_out_said[1 + WORKERS];
    vla_sweep_counts counts;
    double done, total; /* for the progress bar: cases */
};

vla_status vla_sweep_create(vla_sweep **result, const vla_sweep_config *config, vla_records *rows, vla_error *error)
{
    vla_sweep *s = calloc(1, sizeof *s);
    *result = s;
    if (!s) return vla_fail(error, VLA_ERR_MEMORY, "sweep: out of memory");
    s->config = *config;
    if (s->config.worker_count > WORKERS) s->config.worker_count = WORKERS;
    s->rows = rows;
    s->started = vla_now();
    s->floor = vla_clock_floor() > SHORTEST_SAMPLE ? vla_clock_floor() : SHORTEST_SAMPLE;
    return VLA_OK;
}

void vla_sweep_destroy(vla_sweep *s)
{
    if (!s) return;
    for (int i = 0; i < s->exec_count; i++) vla_exec_destroy(s->execs[i].exec);
    vla_variants_free(&s->variants);
    free(s);
}

vla_sweep_counts vla_sweep_totals(const vla_sweep *s)
{
    return s->counts;
}

const vla_peaks *vla_sweep_peaks(const vla_sweep *s)
{
    return &s->peaks;
}

double vla_sweep_remaining(const vla_sweep *s)
{
    const double left = s->config.time_limit - (vla_now() - s->started);
    return left > 0 ? left : 0;
}

double vla_sweep_limit(const vla_sweep *s)
{
    return s->config.time_limit;
}

bool vla_sweep_interrupted(const vla_sweep *s)
{
    return s->config.interrupted && s->config.interrupted();
}

static vla_status exec_for(vla_sweep *s, int threads, vla_exec **exec, vla_error *error)
{
    for (int i = 0; i < s->exec_count; i++)
        if (s->execs[i].threads == threads) {
            *exec = s->execs[i].exec;
            return VLA_OK;
        }
    if (s->exec_count == EXECS)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--threads: accepted are at most %d different counts", EXECS);
    vla_status status = vla_exec_create(exec, threads, s->config.isa, error);
    if (status) return status;
    s->execs[s->exec_count].threads = threads;
    s->execs[s->exec_count++].exec = *exec;
    return VLA_OK;
}

/* Rows. */

static vla_bench_facts facts_of(const vla_sweep *s)
{
    return (vla_bench_facts){.seed = s->config.seed, .input = s->config.digest};
}

/* A timeout or failure of an earlier run gives way to what is measured now. */
static bool keep_row(vla_records *rows, vla_record *record)
{
    const char *key = vla_record_text(record, "key", "");
    for (int64_t i = 0; i < rows->count; i++) {
        if (strcmp(vla_record_text(rows->rows[i], "key", "-"), key) ||
            strcmp(vla_record_text(rows->rows[i], "kind", ""), "sample"))
            continue;
        vla_record_destroy(rows->rows[i]);
        rows->rows[i] = record;
        return true;
    }
    return vla_records_push(rows, record);
}

static vla_status add_row(vla_sweep *s, vla_record *record, vla_row_status status, vla_error *error)
{
    if (!record || !keep_row(s->rows, record)) {
        vla_record_destroy(record);
        return vla_fail(error, VLA_ERR_MEMORY, "results: out of memory");
    }
    s->counts.run++;
    s->counts.passed += status == VLA_ROW_OK;
    s->counts.failed += status == VLA_ROW_FAIL;
    s->counts.oom += status == VLA_ROW_OOM;
    s->counts.timeout += status == VLA_ROW_TIMEOUT;
    s->counts.skipped += status != VLA_ROW_OK && status != VLA_ROW_FAIL;
    return s->config.row ? s->config.row(s->config.context, record, error) : VLA_OK;
}

static vla_status add_empty(vla_sweep *s, const vla_case *c, vla_row_status status, const char *reason,
                            vla_error *error)
{
    const vla_bench_facts facts = facts_of(s);
    vla_variants_end(&s->variants, c, status, reason);
    return add_row(s, vla_bench_empty_record(c, status, reason, &facts), status, error);
}

/* One group: cases of one size. */

/* How many processes run a case: this one, and the workers where they do. */
static int processes(const vla_sweep *s, const vla_case *c)
{
    const bool shared = s->config.worker_count > 0 && !s->config.profile && !c->backward && s->config.in_workers(c);
    return shared ? 1 + s->config.worker_count : 1;
}

typedef struct group {
    vla_inputs whole;     /* prefill: T tokens; decode: the context */
    vla_inputs step;      /* decode: its last token */
    vla_inputs cached;    /* decode, softmax: the last query with every key; borrowed pointers */
    vla_bench *benches;   /* those of one case are neighbours, this process's first */
    vla_buffers *starts;  /* decode: the state each step begins with */
    vla_references known; /* prefill */
    vla_gains gains;      /* of scans among the benches */
    int64_t count;
} group;

static void free_group(group *g)
{
    vla_gains_free(&g->gains);
    for (int64_t i = 0; i < g->count; i++) {
        vla_bench_free(&g->benches[i]);
        vla_buffers_free(&g->starts[i]);
    }
    vla_inputs_destroy(&g->whole);
    vla_inputs_destroy(&g->step);
    vla_references_free(&g->known);
    free(g->benches);
    free(g->starts);
    *g = (group){0};
}

static vla_status make_inputs(vla_sweep *s, group *g, const vla_case *cases, int64_t count, vla_error *error)
{
    const vla_case *c = &cases[0];
    const int64_t T = vla_case_x(c);
    vla_problem all = c->problem;
    bool present[VLA_INPUTS] = {true, true, true};
    all.T = all.Tk = T;
    for (int64_t i = 0; i < count; i++) {
        for (int in = VLA_IN_U; in < VLA_INPUTS; in++) present[in] |= vla_op_reads(cases[i].problem.op, (vla_input)in);
        if (cases[i].problem.op == VLA_DECAY) all.gate = cases[i].problem.gate;
    }
    vla_status status = s->config.data
                            ? vla_inputs_slice(&g->whole, s->config.data, c->dtype, 0, T, error)
                            : vla_inputs_synthetic(&g->whole, &all, (uint64_t)s->config.seed, present, c->dtype, error);
    if (status || c->mode != VLA_DECODE) return status;
    status = vla_inputs_slice(&g->step, &g->whole, c->dtype, T - 1, 1, error);
    g->cached = g->whole;
    g->cached.T = 1;
    g->cached.tensor[VLA_IN_Q] = g->step.tensor[VLA_IN_Q];
    return status;
}

/* The state before the step: after the first T - 1 tokens of the context, of which at most 4,096 are run, and with many
 * heads fewer; a step costs the same whatever the state holds. */
static vla_status make_start(const vla_case *c, vla_exec *exec, const vla_inputs *whole, vla_buffers *start,
                             vla_error *error)
{
    enum { MOST = 4096, FEWEST = 64, MOST_ROWS = 65536 };
    const int64_t heads = c->problem.B * c->problem.H, rows = heads > 0 ? MOST_ROWS / heads : MOST;
    const int64_t most = rows > MOST ? MOST : rows < FEWEST ? FEWEST : rows;
    const int64_t before = whole->T - 1 < most ? whole->T - 1 : most;
    vla_case prefix = *c;
    vla_inputs inputs = {0};
    vla_tensors t = {0};
    vla_plan *plan = NULL;
    prefix.problem.T = before;
    vla_status status = vla_inputs_slice(&inputs, whole, whole->dtype, 0, before, error);
    if (!status) status = vla_buffers_create(start, &prefix, error);
    if (!status) status = vla_plan_create(&plan, exec, &prefix.problem, VLA_BEST, c->backend, c->dtype, error);
    if (!status) {
        vla_inputs_tensors(&inputs, c->problem.op, &t);
        vla_buffers_bind(start, &t);
        status = vla_plan_run_host(plan, &prefix.problem, c->dtype, &t, error);
    }
    vla_plan_destroy(plan);
    vla_inputs_destroy(&inputs);
    return status;
}

static uint64_t check_seed(const vla_sweep *s, const vla_case *c)
{
    return (uint64_t)s->config.seed + (uint64_t)c->problem.T;
}

static bool runs(const vla_case *c)
{
    char reason[160];
    const vla_kernel *kernel = vla_kernel_find(c->problem.op, c->form, c->backend);
    return kernel && vla_kernel_supports(kernel, &c->problem, c->dtype, reason, sizeof reason);
}

/* What the cases will be compared with, each once and all side by side; where that does not fit into memory every case
 * makes its own instead, head by head. */
static vla_status make_references(vla_sweep *s, group *g, const vla_case *cases, int64_t count, vla_error *error)
{
    vla_exec *exec;
    vla_status status = exec_for(s, vla_cpu_count(), &exec, error);
    if (status) return status;
    for (int64_t i = 0; !status && i < count; i++)
        if (cases[i].mode == VLA_PREFILL && cases[i].problem.T > 0 && runs(&cases[i]))
            status = vla_check_needs(&cases[i], s->config.check_full, check_seed(s, &cases[i]), &g->known, error);
    const bool fits = vla_references_bytes(&g->known, vla_exec_threads(exec)) < 0.3 * (double)vla_memory_available();
    if (!status && fits && g->known.count) status = vla_references_make(&g->known, &g->whole, exec, error);
    if (status == VLA_ERR_MEMORY) {
        vla_references_free(&g->known);
        return VLA_OK;
    }
    return status;
}

static vla_status prepare_one(vla_sweep *s, group *g, const vla_case *c, vla_error *error)
{
    vla_exec *exec;
    vla_error why = {0};
    char label[VLA_LABEL_SIZE];
    if (s->config.progress)
        s->config.progress(s->config.context, vla_case_label(c, label, sizeof label), s->done, s->total);
    vla_status status = exec_for(s, c->threads, &exec, error);
    if (status) return status;
    const bool decode = c->mode == VLA_DECODE, state = vla_op_has_S(c->problem.op);
    vla_buffers *start = &g->starts[g->count];
    vla_bench *bench = &g->benches[g->count];
    if (decode && state) status = make_start(c, exec, &g->whole, start, &why);
    if (status) vla_buffers_free(start);
    if (status == VLA_ERR_UNSUPPORTED || status == VLA_ERR_MEMORY)
        return add_empty(s, c, status == VLA_ERR_MEMORY ? VLA_ROW_OOM : VLA_ROW_SKIP, why.message, error);
    if (status) {
        if (error) *error = why;
        return status;
    }
    const vla_inputs *inputs = !decode ? &g->whole : state ? &g->step : &g->cached;
    vla_bench_check how = {&g->known, s->config.check_full, check_seed(s, c), s->config.backward, NULL};
    g->count++;
    status = vla_bench_prepare(bench, c, exec, inputs, decode && state ? start : NULL, &how, error);
    bool any = false;
    for (int i = 1; !status && i < processes(s, c); i++) {
        vla_bench *rival = &g->benches[g->count++];
        how.worker = s->config.workers[i - 1];
        status = vla_bench_prepare(rival, c, exec, inputs, NULL, &how, error);
        if (!status) vla_rivals_same(rival, vla_worker_name(how.worker));
        any |= rival->status == VLA_ROW_OK;
    }
    if (!status && any) vla_rivals_same(bench, s->config.here);
    return status;
}

/* The fewest samples asked for are taken also where checking has eaten the cases' share, unless they alone would cost
 * more than half of all time left. */
static void allow_fewest(const vla_sweep *s, vla_bench *b, int64_t timed)
{
    const double sample = 1.5 * b->sampler.first * (double)b->sampler.iterations;
    const double least = sample * (double)b->sampler.rule.min_samples;
    const double most = 0.5 * vla_sweep_remaining(s) / (double)timed;
    const double allowed = least < most ? least : most;
    if (b->sampler.rule.time_limit < allowed) b->sampler.rule.time_limit = allowed;
}

/* Every bench takes one sample a turn until all have stopped. */
static vla_status sample_in_turns(vla_sweep *s, group *g, double budget, vla_error *error)
{
    vla_exec *one_thread;
    vla_status status = exec_for(s, 1, &one_thread, error);
    if (!status) status = vla_gains_start(&g->gains, g->benches, s->config.gains ? g->count : 0, one_thread, error);
    if (status) return status;
    int64_t timed = g->gains.count;
    for (int64_t i = 0; i < g->count; i++) timed += vla_bench_can_time(&g->benches[i]);
    const double each = timed ? budget / (double)timed : 0;
    const vla_stop_rule rule = {.min_samples = s->config.min_samples,
                                .max_samples =
                                    s->config.min_samples > MAX_SAMPLES ? s->config.min_samples : MAX_SAMPLES,
                                .noise = s->config.noise,
                                .min_time = 0.05,
                                .time_limit = each};
    for (int64_t i = 0; i < g->count; i++) {
        vla_bench *b = &g->benches[i];
        if (!vla_bench_can_time(b)) continue;
        status = vla_bench_start(b, &rule, s->floor, error);
        if (status) return status;
        allow_fewest(s, b, timed);
    }
    for (bool more = timed > 0; more && !vla_sweep_interrupted(s);) {
        more = false;
        for (int64_t i = 0; i < g->count && !vla_sweep_interrupted(s); i++) {
            vla_bench *b = &g->benches[i];
            if (!vla_bench_can_time(b) || b->sampler.stop != VLA_GO_ON) continue;
            status = vla_bench_step(b, error);
            if (!status) status = vla_gains_step(&g->gains, g->benches, i, each, error);
            if (status) return status;
            more |= b->sampler.stop == VLA_GO_ON;
        }
    }
    const vla_bench_facts facts = facts_of(s);
    return vla_gains_finish(&g->gains, g->benches, g->count, &facts, s->config.gains, error);
}

/* One launch of what can be timed, for a profiler; nothing is timed. */
static vla_status profile(group *g, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < g->count; i++)
        if (vla_bench_can_time(&g->benches[i]) && g->benches[i].mirror)
            status = vla_bench_profile(&g->benches[i], error);
    return status;
}

static vla_status finish_one(vla_sweep *s, vla_bench *b, vla_error *error)
{
    vla_bench_facts facts = facts_of(s);
    vla_status status = VLA_OK;
    if (vla_bench_can_time(b)) {
        if (b->sampler.n == 0 && !s->config.profile) return VLA_OK; /* interrupted before the first sample */
        if (b->sampler.stop == VLA_GO_ON) b->sampler.stop = VLA_STOP_INTERRUPT;
        if (!s->config.profile) status = vla_bench_verify(b, error);
        const bool cpu = b->c.backend == VLA_CPU;
        facts.peak_flops =
            cpu ? vla_peaks_matrix(&s->peaks, b->c.dtype, b->c.threads, 0) : s->peaks.device[vla_arith_of(b->c.dtype)];
        facts.bandwidth = cpu ? s->peaks.bytes_per_s : s->peaks.device_bytes_per_s;
    }
    if (status) return status;
    vla_variants_ran(&s->variants, b);
    if (b->status != VLA_ROW_OK && b->status != VLA_ROW_FAIL)
        vla_variants_end(&s->variants, &b->c, b->status, b->reason);
    return add_row(s, vla_bench_record(b, &facts), b->status, error);
}

/* Says once of each version of a library that it cannot run a case which another can. */
static void note_left_out(vla_sweep *s, const vla_bench *benches, int count, const char *const *names)
{
    bool any = false;
    for (int i = 0; i < count; i++) any |= benches[i].status == VLA_ROW_OK;
    for (int i = 0; any && i < count; i++) {
        char text[640], label[VLA_LABEL_SIZE];
        if (benches[i].status == VLA_ROW_OK || s->left_out_said[i] || !s->config.note) continue;
        s->left_out_said[i] = true;
        snprintf(text, sizeof text, "%s is left out of %s: %s", names[i],
                 vla_case_label(&benches[i].c, label, sizeof label), benches[i].reason);
        s->config.note(s->config.context, text);
    }
}

/* The benches of one case, from *at on, become its row: the fastest of several. */
static vla_status finish_case(vla_sweep *s, group *g, int64_t *at, vla_error *error)
{
    vla_bench *first = &g->benches[*at], *best = first;
    const int count = processes(s, &first->c);
    const char *names[1 + WORKERS] = {s->config.here};
    *at += count;
    if (count > 1) {
        for (int i = 1; i < count; i++) names[i] = vla_worker_name(s->config.workers[i - 1]);
        note_left_out(s, first, count, names);
        best = first + vla_rivals_fastest(first, count);
        vla_rivals_note(first, count, names, best);
    }
    return finish_one(s, best, error);
}

/* The machine's peaks at the dtypes and threads of these cases: measured at first, probed briefly again later. */
static void probe_peaks(vla_sweep *s, const vla_case *cases, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const vla_case *c = &cases[i];
        const bool again = i > 0 && c->dtype == cases[i - 1].dtype && c->threads == cases[i - 1].threads;
        if (again || c->backend != VLA_CPU || vla_sweep_remaining(s) < 1) continue;
        const bool known = vla_peaks_matrix(&s->peaks, c->dtype, c->threads, 0) > 0;
        vla_peaks_matrix(&s->peaks, c->dtype, c->threads, known ? 0.03 : 0.3);
        if (s->peaks.bytes_per_s <= 0) vla_peaks_copy(&s->peaks, c->threads, 0.15);
    }
}

/* The same of a device, once a run; what is missing is said once and leaves its columns empty. */
static void probe_device(vla_sweep *s, const vla_case *cases, int64_t count)
{
    const double seconds = 0.1;
    bool wanted[VLA_ARITHS] = {false}, any = false;
    vla_error why = {0};
    for (int64_t i = 0; i < count; i++)
        if (cases[i].backend == VLA_CUDA) wanted[vla_arith_of(cases[i].dtype)] = any = true;
    if (!any || s->peaks_missing || s->config.profile || vla_sweep_remaining(s) < 3) return;
    if (vla_peaks_device(&s->peaks, wanted, seconds, &why) == VLA_OK) return;
    s->peaks_missing = true;
    if (s->config.note) s->config.note(s->config.context, why.message);
}

static vla_status run_group(vla_sweep *s, const vla_case *cases, int64_t count, double budget, vla_error *error)
{
    group g = {0};
    vla_error why = {0};
    const double begun = vla_now();
    size_t all = 0;
    for (int64_t i = 0; i < count; i++) all += (size_t)processes(s, &cases[i]);
    g.benches = calloc(all, sizeof *g.benches);
    g.starts = calloc(all, sizeof *g.starts);
    vla_status status = g.benches && g.starts ? make_inputs(s, &g, cases, count, &why)
                                              : vla_fail(&why, VLA_ERR_MEMORY, "sweep: out of memory");
    if (status == VLA_ERR_MEMORY) {
        status = VLA_OK;
        for (int64_t i = 0; !status && i < count; i++)
            status = add_empty(s, &cases[i], VLA_ROW_OOM, why.message, error);
        free_group(&g);
        return status;
    }
    if (!status) status = make_references(s, &g, cases, count, &why);
    if (status && error) *error = why;
    for (int64_t i = 0; !status && i < count && !vla_sweep_interrupted(s); i++)
        status = prepare_one(s, &g, &cases[i], error);
    if (!status && s->config.profile) status = profile(&g, error);
    if (!status && !s->config.profile) status = sample_in_turns(s, &g, budget - (vla_now() - begun), error);
    for (int64_t i = 0; !status && i < g.count;) status = finish_case(s, &g, &i, error);
    free_group(&g);
    return status;
}

/* Many groups. */

static bool same_size(const vla_case *a, const vla_case *b)
{
    const vla_problem *p = &a->problem, *q = &b->problem;
    return a->dtype == b->dtype && a->mode == b->mode && a->depth == b->depth && a->backend == b->backend &&
           p->B == q->B && p->H == q->H && p->T == q->T && p->dk == q->dk && p->dv == q->dv;
}

/* More memory than there is, for its inputs and outputs alone. */
static bool needs_memory(const vla_case *c, char *reason, size_t size)
{
    const double gib = 1073741824.0, have = (double)vla_memory_available();
    const double needs = vla_work_bytes(&c->problem, c->dtype, true, true) + vla_state_bytes(&c->problem, c->dtype);
    snprintf(reason, size, "needs %.1f GiB, have %.1f GiB", needs / gib, have / gib);
    return needs > have;
}

/* Keeps what has to be measured; what cannot be is given its row here. */
static vla_status choose(vla_sweep *s, const vla_case *cases, int64_t count, vla_case *chosen, int64_t *kept,
                         vla_error *error)
{
    vla_status status = VLA_OK;
    char reason[240];
    double foreseen = 0; /* seconds for those kept so far */
    *kept = 0;
    for (int64_t i = 0; !status && i < count; i++) {
        vla_row_status end;
        const vla_case *c = &cases[i];
        const double left = vla_sweep_remaining(s) - foreseen;
        const double needed = vla_variants_foresee(&s->variants, c, s->config.check_full);
        s->done++;
        if (vla_case_among(c, s->config.seed, s->config.digest, s->rows))
            s->counts.resumed++;
        else if (vla_variants_ended(&s->variants, c, &end, reason, sizeof reason))
            status = add_empty(s, c, end, reason, error);
        else if (needs_memory(c, reason, sizeof reason))
            status = add_empty(s, c, VLA_ROW_OOM, reason, error);
        else if (left <= 0 || needed > left) {
            snprintf(reason, sizeof reason, "needs about %.3g s with its check; %.3g s of --time-limit %.4g are left",
                     needed, left > 0 ? left : 0, s->config.time_limit);
            status = add_empty(s, c, VLA_ROW_TIMEOUT, reason, error);
        } else {
            foreseen += needed;
            chosen[(*kept)++] = *c;
        }
    }
    return status;
}

/* Workspaces and a library's own memory need room beside inputs, outputs and states. */
static bool fits_device(const vla_case *cases, int64_t count, double bytes)
{
    int64_t left = 0, total = 0;
    if (count == 0 || cases[0].backend != VLA_CUDA || vla_device_memory(&left, &total, NULL) != VLA_OK) return true;
    return bytes < 0.4 * (double)left;
}

/* Cases of one size together, or one at a time where their outputs would not fit beside each other. */
static vla_status run_size(vla_sweep *s, const vla_case *cases, int64_t count, double budget, vla_error *error)
{
    vla_case *chosen = calloc((size_t)count, sizeof *chosen);
    int64_t kept = 0;
    double bytes = 0;
    if (!chosen) return vla_fail(error, VLA_ERR_MEMORY, "sweep: out of memory");
    vla_status status = choose(s, cases, count, chosen, &kept, error);
    for (int64_t i = 0; i < kept; i++) /* another process has copies of its own on the host */
        bytes += (2 * vla_work_bytes(&chosen[i].problem, chosen[i].dtype, true, true) +
                  3 * vla_state_bytes(&chosen[i].problem, chosen[i].dtype)) *
                 (2 * processes(s, &chosen[i]) - 1);
    const bool together = bytes < 0.4 * (double)vla_memory_available() && fits_device(chosen, kept, bytes);
    if (!status && kept > 0) probe_peaks(s, chosen, kept);
    if (!status && kept > 0) probe_device(s, chosen, kept);
    if (!status && kept > 0 && together) status = run_group(s, chosen, kept, budget, error);
    for (int64_t i = 0; !status && !together && i < kept && !vla_sweep_interrupted(s); i++)
        status = run_group(s, &chosen[i], 1, budget / (double)kept, error);
    free(chosen);
    return status;
}

/* Seconds of cases: what they cost at least (check, warm-up, one sample, last comparison), and what their other samples
 * would take at a usual share of the peak, with some more against noise. */
typedef struct wish {
    double least, more;
} wish;

static wish wish_of(const vla_sweep *s, const vla_case *cases, int64_t count)
{
    const double peak = s->peaks.count ? s->peaks.matrix[0].flops_per_s : 0;
    const double rate = peak > 0 ? 0.4 * peak : 4e10;
    wish sum = {0, 0};
    for (int64_t i = 0; i < count; i++) {
        sum.least += vla_variants_foresee(&s->variants, &cases[i], s->config.check_full);
        sum.more += 0.2 + (double)s->config.min_samples * vla_work_flops(&cases[i].problem) / rate;
    }
    return sum;
}

/* Said before anything is measured: a check of a long sequence in plain C may cost more than its timing. */
static void warn_of_checks(const vla_sweep *s, const vla_case *cases, int64_t count)
{
    const double usual_naive = 1.2e9; /* flops a second and thread */
    double seconds = 0, longest = 0;
    const vla_case *at = NULL;
    for (int64_t i = 0; i < count; i++) {
        const bool again =
            i > 0 && cases[i].problem.op == cases[i - 1].problem.op && same_size(&cases[i], &cases[i - 1]);
        if (again || !runs(&cases[i])) continue; /* forms share what they are compared with */
        const double mine = vla_check_work(&cases[i], s->config.check_full) / (usual_naive * (double)vla_cpu_count());
        seconds += mine;
        if (mine > longest) longest = mine, at = &cases[i];
    }
    if (!(seconds > 0.5 * s->config.time_limit) || !s->config.note) return;
    char text[400], label[VLA_LABEL_SIZE];
    snprintf(text, sizeof text,
             "checking against float64 needs about %.0f s (%.0f s for %s) of --time-limit %.4g: raise it, or expect "
             "fewer samples and timeouts",
             seconds, longest, vla_case_label(at, label, sizeof label), s->config.time_limit);
    s->config.note(s->config.context, text);
}

vla_status vla_sweep_run(vla_sweep *s, const vla_case *cases, int64_t count, double until, vla_error *error)
{
    vla_status status = VLA_OK;
    if (s->done == 0) warn_of_checks(s, cases, count);
    s->total += (double)count;
    for (int64_t from = 0, to; !status && from < count && !vla_sweep_interrupted(s); from = to) {
        for (to = from + 1; to < count && same_size(&cases[from], &cases[to]);) to++;
        const double left = vla_sweep_remaining(s) - (1 - until) * s->config.time_limit;
        const wish here = wish_of(s, cases + from, to - from), all = wish_of(s, cases + from, count - from);
        const double spare = left > all.least ? (left - all.least) * here.more / all.more : 0;
        status = run_size(s, cases + from, to - from, here.least + spare, error);
    }
    return status;
}
