#include "lib/measure/judge.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/op/registry.h"
#include <stdlib.h>

vla_status vla_judge_naive(const vla_problem *problem, vla_exec *exec, const vla_tensors *tensors, vla_error *error)
{
    vla_plan *plan;
    vla_status status = vla_plan_create(&plan, exec, problem, VLA_NAIVE, VLA_CPU, VLA_F64, error);
    if (status == VLA_OK) status = vla_plan_run(plan, tensors, error);
    vla_plan_destroy(plan);
    return status;
}

vla_status vla_judge_inputs(vla_inputs *head, const vla_inputs *inputs, vla_op op, int64_t index, vla_error *error)
{
    vla_inputs read = *inputs;
    for (int i = 0; i < VLA_INPUTS; i++)
        if (!vla_op_reads(op, (vla_input)i)) read.tensor[i].data = NULL;
    return vla_inputs_head(head, &read, index, VLA_F64, error);
}

/* What naive reads and writes for one head. */
typedef struct reference {
    vla_problem problem;
    vla_inputs inputs;
    vla_state state;
    vla_tensor o, alpha;
} reference;

static vla_status make_reference(reference *ref, const vla_judged *run, int64_t head, vla_error *error)
{
    vla_problem *p = &ref->problem;
    *ref = (reference){.problem = *run->problem};
    p->B = p->H = 1;
    vla_status status = vla_judge_inputs(&ref->inputs, run->inputs, p->op, head, error);
    if (status == VLA_OK)
        status = run->start ? vla_state_head(&ref->state, run->start, head, error)
                            : vla_state_create(&ref->state, p, VLA_F64, error);
    if (status == VLA_OK)
        status = vla_tensor_create(&ref->o, VLA_F64, 2, (int64_t[]){p->T, p->dv}, "o for the check", error);
    if (status == VLA_OK && run->alpha)
        status = vla_tensor_create(&ref->alpha, VLA_F64, 2, (int64_t[]){p->T, p->dk}, "alpha for the check", error);
    return status;
}

static void free_reference(reference *ref)
{
    vla_inputs_destroy(&ref->inputs);
    vla_state_destroy(&ref->state);
    vla_tensor_destroy(&ref->o);
    vla_tensor_destroy(&ref->alpha);
}

static vla_status run_reference(reference *ref, bool started, vla_error *error)
{
    vla_exec *exec;
    vla_tensors tensors = {.o = ref->o.data, .alpha = ref->alpha.data};
    vla_status status = vla_exec_create(&exec, 1, VLA_ISA_BASE, error);
    if (status != VLA_OK) return status;
    vla_inputs_tensors(&ref->inputs, ref->problem.op, &tensors);
    vla_state_bind(&ref->state, &tensors, started);
    status = vla_judge_naive(&ref->problem, exec, &tensors, error);
    vla_exec_destroy(exec);
    return status;
}

/* ref: of one head; out: of all heads. */
static void compare(vla_residual_sum *sum, const void *out, vla_dtype dtype, int64_t head, const vla_tensor *ref)
{
    if (!out || !ref->data) return;
    vla_residual_add(sum, (const char *)out + (size_t)(head * ref->count) * vla_dtype_size(dtype), dtype, ref->data,
                     ref->count);
}

typedef struct judging {
    const vla_judged *run;
    const int64_t *head;    /* NULL: all */
    vla_residual_sum *sums; /* [count][VLA_PARTS] */
    vla_error *errors;      /* [count] */
} judging;

static void judge_head(void *context, int64_t item, int worker)
{
    (void)worker;
    const judging *j = context;
    const vla_judged *run = j->run;
    const vla_state *end = run->end;
    const int64_t head = j->head ? j->head[item] : item;
    vla_residual_sum *sum = j->sums + item * VLA_PARTS;
    reference ref;
    vla_status status = make_reference(&ref, run, head, &j->errors[item]);
    if (status == VLA_OK) status = run_reference(&ref, run->start != NULL, &j->errors[item]);
    if (status == VLA_OK) {
        compare(&sum[VLA_PART_O], run->o, run->dtype, head, &ref.o);
        compare(&sum[VLA_PART_S], end->S.data, end->S.dtype, head, &ref.state.S);
        compare(&sum[VLA_PART_A], end->A.data, end->A.dtype, head, &ref.state.A);
        compare(&sum[VLA_PART_N], end->n.data, end->n.dtype, head, &ref.state.n);
        compare(&sum[VLA_PART_ALPHA], run->alpha, run->dtype, head, &ref.alpha);
    }
    free_reference(&ref);
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

vla_status vla_judge_heads(const vla_judged *run, vla_exec *exec, const int64_t *head, int64_t count,
                           vla_residual_sum sum[VLA_PARTS], vla_error *error)
{
    judging j = {.run = run, .head = head};
    j.sums = calloc((size_t)count * VLA_PARTS, sizeof *j.sums);
    j.errors = calloc((size_t)count, sizeof *j.errors);
    vla_status status = j.sums && j.errors ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "check: out of memory");
    for (int part = 0; part < VLA_PARTS; part++) sum[part] = (vla_residual_sum){0};
    if (status == VLA_OK) vla_pool_run(vla_exec_pool(exec), count, judge_head, &j);
    for (int64_t i = 0; status == VLA_OK && i < count; i++) {
        if (j.errors[i].status != VLA_OK)
            status = vla_fail(error, j.errors[i].status, "check: %s", j.errors[i].message);
        for (int part = 0; part < VLA_PARTS; part++) add_sum(&sum[part], &j.sums[i * VLA_PARTS + part]);
    }
    free(j.sums);
    free(j.errors);
    return status;
}
