#include "lib/measure/bench.h"
#include "kernels/cuda/device.h"
#include "lib/base/status.h"
#include "lib/base/clock.h"
#include "lib/op/registry.h"
#include "lib/op/work.h"
#include <stdio.h>
#include <string.h>

enum { RUNS_A_SAMPLE = 20 };

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
    for (int64_t i = 0; !status && i < iterations; i++) status = vla_plan_run(b->plan, &b->tensors, error);
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

static vla_status checked_run(vla_bench *b, bool check_full, uint64_t seed, vla_error *error)
{
    vla_buffers_poison(&b->buffers);
    vla_status status = reset_state(b, error);
    const double begun = vla_now();
    if (!status && b->c.backend == VLA_CUDA)
        status = vla_mirror_create(&b->mirror, b->plan, &b->c.problem, b->c.dtype, &b->tensors, error);
    if (!status) status = run_once(b, error);
    b->run_seconds = vla_now() - begun;
    if (status || b->c.problem.T == 0) return status;
    status = vla_check_run(&b->c, b->exec, b->inputs, b->start, &b->buffers, check_full, seed, &b->check, error);
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
                             const vla_buffers *start, bool check_full, uint64_t seed, vla_error *error)
{
    vla_error why = {0};
    const double begun = vla_now();
    *b = (vla_bench){.c = *c, .exec = exec, .inputs = inputs, .start = vla_op_has_S(c->problem.op) ? start : NULL};
    vla_status status = vla_plan_create(&b->plan, exec, &c->problem, c->form, c->backend, c->dtype, &why);
    if (!status) status = vla_buffers_create(&b->buffers, c, &why);
    if (!status) {
        vla_inputs_tensors(inputs, c->problem.op, &b->tensors);
        vla_buffers_bind(&b->buffers, &b->tensors);
        b->tensors.state_in = b->start != NULL;
        b->inputs_checksum = vla_inputs_checksum(inputs);
        status = checked_run(b, check_full, seed, &why);
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

vla_status vla_bench_start(vla_bench *b, const vla_stop_rule *rule, double floor, vla_error *error)
{
    const vla_subject subject = {
        .context = b, .reset = b->start ? reset_state : NULL, .run = run, .elapsed = b->mirror ? device_seconds : NULL};
    if (b->mirror) { /* at least twenty runs a sample, so that launching is spread over them */
        vla_status status = run(b, 1, error);
        if (!status) status = run(b, 1, error);
        if (status) return status;
        if (floor < RUNS_A_SAMPLE * b->device_seconds) floor = RUNS_A_SAMPLE * b->device_seconds;
    }
    return vla_sampler_start(&b->sampler, &subject, rule, floor, error);
}

vla_status vla_bench_step(vla_bench *b, vla_error *error)
{
    return vla_sampler_step(&b->sampler, error);
}

/* Clocks fall back within milliseconds of the last sample: read while a run is on its way is not possible from here, so
 * the reading is the one just after. */
static void note_clock(vla_bench *b)
{
    vla_device_clocks clocks;
    if (!b->mirror || vla_device_clock(&clocks, NULL) != VLA_OK) return;
    b->sm_clock_hz = clocks.sm_hz;
    if (clocks.throttled) snprintf(b->throttle, sizeof b->throttle, "%.63s", clocks.reason);
}

vla_status vla_bench_verify(vla_bench *b, vla_error *error)
{
    note_clock(b);
    vla_status status = reset_state(b, error);
    if (!status) status = run_once(b, error);
    if (status) return status;
    b->drifted = vla_buffers_checksum(&b->buffers) != b->checksum;
    if (!vla_buffers_intact(&b->buffers) || vla_inputs_checksum(b->inputs) != b->inputs_checksum) {
        b->status = VLA_ROW_FAIL;
        snprintf(b->reason, sizeof b->reason, "the kernel wrote outside its outputs while it was timed");
    }
    return VLA_OK;
}

void vla_bench_free(vla_bench *b)
{
    vla_sampler_free(&b->sampler);
    vla_buffers_free(&b->buffers);
    vla_mirror_destroy(b->mirror);
    vla_plan_destroy(b->plan);
    b->mirror = NULL;
    b->plan = NULL;
}
