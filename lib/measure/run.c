#include "lib/measure/run.h"
#include "kernels/cuda/device.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/base/clock.h"
#include "lib/device/mirror.h"
#include "lib/op/registry.h"
#include "lib/tensor/npy.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vla_run_destroy(vla_run *run)
{
    vla_tensor_destroy(&run->o);
    vla_tensor_destroy(&run->alpha);
    vla_state_destroy(&run->state);
}

static vla_status make_outputs(vla_run *run, const vla_state *start, vla_error *error)
{
    const vla_problem *p = &run->problem;
    vla_status status = vla_tensor_create(&run->o, run->dtype, 4, (int64_t[]){p->B, p->H, p->T, p->dv}, "o", error);
    if (status == VLA_OK && run->want_alpha && p->op == VLA_VLA)
        status = vla_tensor_create(&run->alpha, run->dtype, 4, (int64_t[]){p->B, p->H, p->T, p->dk}, "alpha", error);
    if (status != VLA_OK) return status;
    return start ? vla_state_copy(&run->state, start, error) : vla_state_create(&run->state, p, run->dtype, error);
}

/* Outputs start as NaN, so that what a kernel leaves out cannot pass for a result. */
static void poison(vla_tensor *t)
{
    if (t->data) memset(t->data, 0xff, (size_t)t->count * vla_dtype_size(t->dtype));
}

static void note_inputs(vla_run *run, const vla_inputs *inputs)
{
    vla_bad_input bad;
    if (!vla_inputs_first_bad(inputs, run->problem.op, &bad)) return;
    snprintf(run->warning, sizeof run->warning, "%s is not finite, first at batch %lld, head %lld, t %lld",
             vla_input_name(bad.input), (long long)(bad.head / inputs->H), (long long)(bad.head % inputs->H),
             (long long)bad.token);
}

static void note_output(vla_run *run)
{
    const vla_problem *p = &run->problem;
    int64_t head, token;
    if (*run->warning || !vla_first_nonfinite(run->o.data, run->dtype, p->B * p->H, p->T, p->dv, &head, &token)) return;
    snprintf(run->warning, sizeof run->warning, "o is not finite, first at batch %lld, head %lld, t %lld",
             (long long)(head / p->H), (long long)(head % p->H), (long long)token);
}

static vla_status check(vla_run *run, vla_exec *exec, const vla_inputs *inputs, const vla_state *start,
                        vla_error *error)
{
    const vla_judged judged = {.problem = &run->problem,
                               .inputs = inputs,
                               .dtype = run->dtype,
                               .start = start,
                               .end = &run->state,
                               .o = run->o.data,
                               .alpha = run->alpha.data};
    vla_residual_sum sum[VLA_PARTS];
    vla_status status = vla_judge_heads(&judged, exec, NULL, run->problem.B * run->problem.H, sum, NULL, error);
    if (status != VLA_OK) return status;
    run->checked = run->pass = true;
    run->limit = vla_residual_limit(run->problem.op, run->dtype);
    for (int part = 0; part < VLA_PARTS; part++) {
        run->residual[part] = vla_residual_finish(&sum[part]);
        if (sum[part].compared && !vla_residual_pass(&run->residual[part], run->limit)) run->pass = false;
    }
    return VLA_OK;
}

static vla_status run_plan(vla_run *run, vla_plan *plan, const vla_inputs *inputs, const vla_state *start,
                           vla_error *error)
{
    vla_tensors tensors = {0};
    run->isa = vla_plan_isa(plan);
    run->workspace = vla_plan_workspace(plan);
    vla_status status = make_outputs(run, start, error);
    if (status != VLA_OK) return status;
    poison(&run->o);
    poison(&run->alpha);
    vla_inputs_tensors(inputs, run->problem.op, &tensors);
    vla_state_bind(&run->state, &tensors, start != NULL);
    tensors.o = run->o.data;
    tensors.alpha = run->alpha.data;
    double begin = vla_now();
    status = vla_plan_run_host(plan, &run->problem, run->dtype, &tensors, error);
    run->seconds = vla_now() - begin;
    return status;
}

vla_status vla_run_prepare(vla_run *run, const vla_inputs *inputs, int threads, vla_error *error)
{
    run->threads = threads;
    run->isa = VLA_ISA_AUTO;
    run->seconds = (double)NAN;
    vla_status status = vla_inputs_problem(inputs, &run->problem, error);
    vla_device_info device;
    vla_error why = {0};
    if (status == VLA_OK && run->backend == VLA_CUDA && vla_device_query(&device, &why) != VLA_OK)
        return vla_fail(error, VLA_ERR_DEVICE, "backend cuda: %.400s", why.message);
    if (status == VLA_OK && run->backend == VLA_AUTO)
        run->backend = vla_backend_auto(&run->problem, run->form, run->dtype);
    if (status != VLA_OK || run->form != VLA_BEST) return status;
    const vla_form best = vla_best_form(&run->problem, run->backend, run->dtype, threads);
    if (vla_kernel_exists(run->problem.op, best, run->backend, run->dtype))
        run->form = best; /* else its plan says why */
    return VLA_OK;
}

vla_status vla_run_execute(vla_run *run, vla_exec *exec, const vla_inputs *inputs, const vla_state *start,
                           vla_error *error)
{
    vla_plan *plan = NULL;
    vla_status status = vla_plan_create(&plan, exec, &run->problem, run->form, run->backend, run->dtype, error);
    if (status == VLA_OK) status = run_plan(run, plan, inputs, start, error);
    vla_plan_destroy(plan);
    if (status != VLA_OK) return status;
    note_inputs(run, inputs);
    note_output(run);
    if (run->problem.T == 0 || *run->warning) run->seconds = (double)NAN;
    return run->want_check ? check(run, exec, inputs, start, error) : VLA_OK;
}

static vla_status dump_one(const char *directory, const char *name, const vla_tensor *t, vla_error *error)
{
    char file[16];
    if (!t->data) return VLA_OK;
    snprintf(file, sizeof file, "%s.npy", name);
    char *path = vla_path_join(directory, file);
    if (!path) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
    vla_status status = vla_npy_write(path, t->data, t->dtype, t->rank, t->shape, error);
    free(path);
    return status;
}

vla_status vla_run_dump(const vla_run *run, const char *directory, vla_error *error)
{
    vla_status status = vla_directory_make(directory, error);
    if (status == VLA_OK) status = dump_one(directory, "o", &run->o, error);
    if (status == VLA_OK) status = dump_one(directory, "S", &run->state.S, error);
    if (status == VLA_OK) status = dump_one(directory, "A", &run->state.A, error);
    if (status == VLA_OK) status = dump_one(directory, "n", &run->state.n, error);
    return status == VLA_OK ? dump_one(directory, "alpha", &run->alpha, error) : status;
}
