#include "lib/measure/bench.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/probe.h"
#include "lib/base/status.h"
#include "lib/base/clock.h"
#include "lib/op/registry.h"
#include "lib/op/work.h"
#include <stdio.h>
#include <string.h>

/* A device's sample is twenty runs back to back or 20 ms of them, whichever is less, and two at least: what
 * launching costs is spread over them, and ten samples hold twenty runs. */
enum { RUNS_A_SAMPLE = 20, FEWEST_RUNS = 2 };
#define LONG_SAMPLE 0.02
/* Seconds: a run so long is not repeated for nothing, and a sample of it is one run. The first run also loads code and
 * makes a library's plan, which takes a second or two. */
#define LONG_RUN 0.2
#define LONG_FIRST_RUN 3.0

static vla_status reset_state(void *context, vla_error *error)
{
    vla_bench *b = context;
    if (!b->start) return VLA_OK;
    if (b->mirror) return vla_mirror_reset(b->mirror, error);
    if (b->start->S) memcpy(b->buffers.S, b->start->S, (size_t)b->start->S_bytes);
    if (b->start->A) memcpy(b->buffers.A, b->start->A, (size_t)b->start->A_bytes);
    if (b->start->n) memcpy(b->buffers.n, b->start->n, (size_t)b->start->n_bytes);
    b->buffers.t = b->start->t;
    return VLA_OK;
}

static vla_status run(void *context, int64_t iterations, vla_error *error)
{
    vla_bench *b = context;
    vla_status status = VLA_OK;
    if (b->mirror) return vla_mirror_run(b->mirror, iterations, b->c.graph, &b->device_seconds, error);
    for (int64_t i = 0; !status && i < iterations; i++) {
        status = vla_plan_run(b->plan, &b->tensors, error);
        if (!status && b->backward) status = b->backward->run(b->backward_context, error);
    }
    return status;
}

static double device_seconds(void *context)
{
    return ((const vla_bench *)context)->device_seconds;
}

/* One run launch by launch, its outputs on the host. */
static vla_status run_once(vla_bench *b, vla_error *error)
{
    if (!b->mirror) return run(b, 1, error);
    const vla_status status = vla_mirror_run(b->mirror, 1, false, &b->device_seconds, error);
    return status ? status : vla_mirror_fetch(b->mirror, VLA_BUFFER_GUARD, error);
}

/* What a case cannot do is a row of its own, not the end of the run. */
static vla_status become_row(vla_bench *b, vla_status status, const vla_error *why)
{
    if (status != VLA_ERR_UNSUPPORTED && status != VLA_ERR_MEMORY && status != VLA_ERR_NUMERIC) return status;
    b->status = status == VLA_ERR_MEMORY ? VLA_ROW_OOM : status == VLA_ERR_NUMERIC ? VLA_ROW_FAIL : VLA_ROW_SKIP;
    snprintf(b->reason, sizeof b->reason, "%.*s", (int)sizeof b->reason - 1, why->message);
    return VLA_OK;
}

/* The first run loads code and plans; the next says what a run takes. */
static vla_status guess_time(vla_bench *b, double begun, vla_error *error)
{
    b->run_seconds = vla_now() - begun;
    if (!b->mirror) return VLA_OK;
    b->device_bytes = vla_mirror_bytes(b->mirror) + vla_plan_workspace(b->plan);
    if (b->device_seconds > LONG_FIRST_RUN) {
        b->run_seconds = b->device_seconds;
        return VLA_OK;
    }
    return vla_mirror_run(b->mirror, 1, false, &b->run_seconds, error);
}

static vla_status prepare_backward(vla_bench *b, const vla_bench_check *how, vla_error *error)
{
    if (!b->c.backward) return VLA_OK;
    if (!how->backward) return vla_fail(error, VLA_ERR_UNSUPPORTED, "pass fwdbwd: no backward pass is linked");
    const vla_status status = how->backward->create(&b->backward_context, &b->c, b->inputs, how->seed, error);
    if (!status) b->backward = how->backward;
    return status;
}

static vla_status open_mirror(vla_bench *b, vla_worker *worker, vla_error *error)
{
    const vla_case *c = &b->c;
    const vla_remote_job job = {c->problem, c->form, c->backend, c->dtype, c->cold};
    if (worker) return vla_mirror_create_there(&b->mirror, worker, b->plan, &job, &b->tensors, error);
    if (c->backend != VLA_CUDA) return VLA_OK;
    return vla_mirror_create(&b->mirror, b->plan, &c->problem, c->dtype, &b->tensors, c->cold, error);
}

static vla_status checked_run(vla_bench *b, const vla_bench_check *how, vla_error *error)
{
    vla_buffers_poison(&b->buffers);
    vla_status status = reset_state(b, error);
    if (!status) status = open_mirror(b, how->worker, error);
    const double begun = vla_now();
    if (!status) status = run_once(b, error);
    if (!status) status = guess_time(b, begun, error);
    if (status || b->c.problem.T == 0) return status;
    status = vla_check_run(&b->c, b->exec, b->inputs, b->start, &b->buffers, how->known, how->full, how->seed,
                           &b->check, error);
    if (!status && b->backward) status = b->backward->check(b->backward_context, &b->check, error);
    if (status) return status;
    b->checksum = vla_buffers_checksum(&b->buffers);
    if (!b->check.pass) {
        b->status = VLA_ROW_FAIL;
        snprintf(b->reason, sizeof b->reason, "%s", b->check.reason);
        vla_bad_input bad;
        if (vla_inputs_first_bad(b->inputs, b->c.problem.op, &bad))
            snprintf(b->reason, sizeof b->reason, "%s (%s is not finite at head %lld, token %lld)", b->check.reason,
                     vla_input_name(bad.input), (long long)bad.head, (long long)bad.token);
    }
    return VLA_OK;
}

vla_status vla_bench_prepare(vla_bench *b, const vla_case *c, vla_exec *exec, const vla_inputs *inputs,
                             const vla_buffers *start, const vla_bench_check *how, vla_error *error)
{
    vla_error why = {0};
    const double begun = vla_now();
    *b = (vla_bench){.c = *c, .exec = exec, .inputs = inputs, .start = vla_op_has_S(c->problem.op) ? start : NULL};
    vla_status status = vla_plan_create(&b->plan, exec, &c->problem, c->form, c->backend, c->dtype, &why);
    if (!status) status = prepare_backward(b, how, &why);
    if (!status) status = vla_buffers_create(&b->buffers, c, &why);
    if (!status) {
        vla_inputs_tensors(inputs, c->problem.op, &b->tensors);
        vla_buffers_bind(&b->buffers, &b->tensors);
        b->tensors.state_in = b->start != NULL;
        if (c->backend == VLA_CPU) b->inputs_checksum = vla_inputs_checksum(inputs);
        status = checked_run(b, how, &why);
    }
    b->prepare_seconds = vla_now() - begun;
    if (status) status = become_row(b, status, &why);
    if (status && error) *error = why;
    return status;
}

bool vla_bench_can_time(const vla_bench *b)
{
    return b->status == VLA_ROW_OK && b->c.problem.T > 0;
}

/* Memory that runs out on the way is the case's row as well. */
static vla_status row_or_error(vla_bench *b, vla_status status, const vla_error *why, vla_error *error)
{
    if (status) status = become_row(b, status, why);
    if (status && error) *error = *why;
    return status;
}

static double device_floor(const vla_bench *b)
{
    double runs = LONG_SAMPLE / (b->device_seconds > 0 ? b->device_seconds : LONG_SAMPLE);
    runs = runs > RUNS_A_SAMPLE ? RUNS_A_SAMPLE : runs < FEWEST_RUNS ? FEWEST_RUNS : runs;
    if (b->device_seconds > LONG_RUN) runs = 1;
    return 0.99 * runs * b->device_seconds;
}

vla_status vla_bench_start(vla_bench *b, const vla_stop_rule *rule, double floor, vla_error *error)
{
    vla_error why = {0};
    vla_status status = VLA_OK;
    const vla_subject subject = {
        .context = b, .reset = b->start ? reset_state : NULL, .run = run, .elapsed = b->mirror ? device_seconds : NULL};
    if (b->mirror) {
        status = run(b, 1, &why); /* records the graphs */
        if (!status && b->device_seconds < LONG_RUN) status = run(b, 1, &why);
        if (!status && floor < device_floor(b)) floor = device_floor(b);
    }
    if (!status) status = vla_sampler_start(&b->sampler, &subject, rule, floor, &why);
    return row_or_error(b, status, &why, error);
}

vla_status vla_bench_step(vla_bench *b, vla_error *error)
{
    vla_error why = {0};
    const vla_status status = vla_sampler_step(&b->sampler, &why);
    return row_or_error(b, status, &why, error);
}

vla_status vla_bench_profile(vla_bench *b, vla_error *error)
{
    vla_status status = reset_state(b, error);
    if (!status) status = vla_device_profiler(true, error);
    if (!status) status = vla_mirror_run(b->mirror, 1, false, NULL, error);
    return status ? status : vla_device_profiler(false, error);
}

/* Clocks fall back within milliseconds of the last sample: read while a run is on its way is not possible from here, so
 * the reading is the one just after. */
static void note_clock(vla_bench *b)
{
    const double NEARLY = 0.98; /* a limit that costs a percent is not worth a warning */
    vla_device_clocks clocks;
    if (!b->mirror || vla_device_clock(&clocks, NULL) != VLA_OK) return;
    b->sm_clock_hz = clocks.sm_hz;
    b->sm_clock_max_hz = clocks.sm_max_hz;
    if (clocks.throttled && clocks.sm_hz < NEARLY * clocks.sm_max_hz)
        snprintf(b->throttle, sizeof b->throttle, "%.63s", clocks.reason);
}

static vla_status inputs_intact(const vla_bench *b, bool *intact, vla_error *error)
{
    if (b->mirror) return vla_mirror_inputs_intact(b->mirror, intact, error);
    *intact = vla_inputs_checksum(b->inputs) == b->inputs_checksum;
    return VLA_OK;
}

vla_status vla_bench_verify(vla_bench *b, vla_error *error)
{
    bool intact = true;
    vla_error why = {0};
    note_clock(b);
    vla_status status = reset_state(b, &why);
    if (!status) status = run_once(b, &why);
    if (!status) status = inputs_intact(b, &intact, &why);
    if (status) return row_or_error(b, status, &why, error);
    b->drifted = vla_buffers_checksum(&b->buffers) != b->checksum;
    if (!vla_buffers_intact(&b->buffers) || !intact) {
        b->status = VLA_ROW_FAIL;
        snprintf(b->reason, sizeof b->reason, "the kernel wrote outside its outputs while it was timed");
    }
    return VLA_OK;
}

void vla_bench_free(vla_bench *b)
{
    vla_sampler_free(&b->sampler);
    if (b->backward) b->backward->destroy(b->backward_context);
    b->backward = NULL;
    vla_buffers_free(&b->buffers);
    vla_mirror_destroy(b->mirror);
    vla_plan_destroy(b->plan);
    b->mirror = NULL;
    b->plan = NULL;
}
