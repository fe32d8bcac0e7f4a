#include "lib/measure/run.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/base/clock.h"
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

typedef struct checker {
    const vla_run *run;
    const vla_inputs *inputs;
    const vla_state *start;
    vla_residual_sum *sums; /* [heads][VLA_PARTS]: added in the order of heads, whatever the threads did */
    vla_error *errors;      /* [heads] */
} checker;

/* Compares one part of one head; out holds all heads. */
static void compare(const checker *c, int64_t head, vla_part part, const vla_tensor *out, const double *ref,
                    int64_t count)
{
    if (!out->data || !ref) return;
    const char *at = (const char *)out->data + (size_t)(head * count) * vla_dtype_size(out->dtype);
    vla_residual_add(&c->sums[head * VLA_PARTS + part], at, out->dtype, ref, count);
}

static vla_status naive_head(vla_problem *problem, const vla_inputs *inputs, vla_run *ref, const vla_state *start,
                             vla_error *error)
{
    vla_exec *exec = NULL;
    vla_plan *plan = NULL;
    vla_tensors tensors = {0};
    ref->problem = *problem;
    vla_status status = make_outputs(ref, start, error);
    if (status == VLA_OK) status = vla_exec_create(&exec, 1, VLA_ISA_BASE, error);
    if (status == VLA_OK) status = vla_plan_create(&plan, exec, problem, VLA_NAIVE, VLA_CPU, VLA_F64, error);
    if (status == VLA_OK) {
        vla_inputs_tensors(inputs, problem->op, &tensors);
        vla_state_bind(&ref->state, &tensors, start != NULL);
        tensors.o = ref->o.data;
        tensors.alpha = ref->alpha.data;
        status = vla_plan_run(plan, &tensors, error);
    }
    vla_plan_destroy(plan);
    vla_exec_destroy(exec);
    return status;
}

static void check_head(void *context, int64_t head, int worker)
{
    const checker *c = context;
    const vla_run *run = c->run;
    vla_inputs inputs = {0};
    vla_state start = {0};
    vla_problem problem = run->problem;
    vla_run ref = {.form = VLA_NAIVE, .dtype = VLA_F64, .want_alpha = run->alpha.data != NULL};
    vla_error *error = &c->errors[head];
    (void)worker;
    problem.B = problem.H = 1;
    vla_status status = vla_inputs_head(&inputs, c->inputs, head, VLA_F64, error);
    if (status == VLA_OK && c->start) status = vla_state_head(&start, c->start, head, error);
    if (status == VLA_OK) status = naive_head(&problem, &inputs, &ref, c->start ? &start : NULL, error);
    if (status == VLA_OK) {
        compare(c, head, VLA_PART_O, &run->o, ref.o.data, ref.o.count);
        compare(c, head, VLA_PART_S, &run->state.S, ref.state.S.data, ref.state.S.count);
        compare(c, head, VLA_PART_A, &run->state.A, ref.state.A.data, ref.state.A.count);
        compare(c, head, VLA_PART_N, &run->state.n, ref.state.n.data, ref.state.n.count);
        compare(c, head, VLA_PART_ALPHA, &run->alpha, ref.alpha.data, ref.alpha.count);
    }
    vla_run_destroy(&ref);
    vla_state_destroy(&start);
    vla_inputs_destroy(&inputs);
}

static void add_sum(vla_residual_sum *to, const vla_residual_sum *from)
{
    to->diff2 += from->diff2;
    to->ref2 += from->ref2;
    to->out2 += from->out2;
    /* written so that a NaN wins */
    if (!(from->max_diff <= to->max_diff)) to->max_diff = from->max_diff;
    if (!(from->max_ref <= to->max_ref)) to->max_ref = from->max_ref;
    if (!(from->max_out <= to->max_out)) to->max_out = from->max_out;
    to->nonfinite += from->nonfinite;
    to->compared += from->compared;
}

static vla_status finish_check(vla_run *run, const checker *c, int64_t heads, vla_error *error)
{
    vla_residual_sum total[VLA_PARTS] = {{0}};
    for (int64_t h = 0; h < heads; h++) {
        if (c->errors[h].status != VLA_OK)
            return vla_fail(error, c->errors[h].status, "check: %s", c->errors[h].message);
        for (int part = 0; part < VLA_PARTS; part++) add_sum(&total[part], &c->sums[h * VLA_PARTS + part]);
    }
    run->checked = run->pass = true;
    run->limit = vla_residual_limit(run->problem.op, run->dtype);
    for (int part = 0; part < VLA_PARTS; part++) {
        run->residual[part] = vla_residual_finish(&total[part]);
        if (total[part].compared && !vla_residual_pass(&run->residual[part], run->limit)) run->pass = false;
    }
    return VLA_OK;
}

static vla_status check(vla_run *run, vla_exec *exec, const vla_inputs *inputs, const vla_state *start,
                        vla_error *error)
{
    int64_t heads = run->problem.B * run->problem.H;
    checker c = {.run = run, .inputs = inputs, .start = start};
    c.sums = calloc((size_t)heads * VLA_PARTS, sizeof *c.sums);
    c.errors = calloc((size_t)heads, sizeof *c.errors);
    vla_status status = VLA_OK;
    if (!c.sums || !c.errors) status = vla_fail(error, VLA_ERR_MEMORY, "check: out of memory");
    if (status == VLA_OK) {
        vla_pool_run(vla_exec_pool(exec), heads, check_head, &c);
        status = finish_check(run, &c, heads, error);
    }
    free(c.sums);
    free(c.errors);
    return status;
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
    status = vla_plan_run(plan, &tensors, error);
    run->seconds = vla_now() - begin;
    return status;
}

vla_status vla_run_prepare(vla_run *run, const vla_inputs *inputs, int threads, vla_error *error)
{
    run->threads = threads;
    run->isa = VLA_ISA_AUTO;
    run->seconds = (double)NAN;
    if (run->backend == VLA_AUTO) run->backend = VLA_CPU;
    vla_status status = vla_inputs_problem(inputs, &run->problem, error);
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
