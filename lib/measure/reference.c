#include "lib/measure/reference.h"
#include "lib/base/clock.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/op/registry.h"
#include <stdlib.h>

vla_status vla_naive_run(const vla_problem *problem, vla_exec *exec, const vla_tensors *tensors, vla_error *error)
{
    vla_plan *plan;
    vla_status status = vla_plan_create(&plan, exec, problem, VLA_NAIVE, VLA_CPU, VLA_F64, error);
    if (status == VLA_OK) status = vla_plan_run(plan, tensors, error);
    vla_plan_destroy(plan);
    return status;
}

/* One head's inputs in float64, those that the operator reads. */
static vla_status head_inputs(vla_inputs *head, const vla_inputs *inputs, vla_op op, int64_t index, vla_error *error)
{
    vla_inputs read = *inputs;
    for (int i = 0; i < VLA_INPUTS; i++)
        if (!vla_op_reads(op, (vla_input)i)) read.tensor[i].data = NULL;
    return vla_inputs_head(head, &read, index, VLA_F64, error);
}

static vla_status choose_rows(vla_reference *r, vla_error *error)
{
    void *memory;
    vla_rng rng = vla_rng_seed(r->rows.seed, 78 + (uint64_t)r->head);
    vla_status status = vla_alloc(&memory, r->rows.count, sizeof *r->row, "rows of the check", error);
    if (status) return status;
    r->row = memory;
    for (int64_t i = 0; i < r->rows.count; i++)
        r->row[i] = i == 0 ? 0 : i == 1 ? r->problem.T - 1 : (int64_t)vla_rng_below(&rng, (uint64_t)r->problem.T);
    return VLA_OK;
}

/* One query at a time against the keys it may see. */
static vla_status run_rows(vla_reference *r, const vla_inputs *in, vla_exec *exec, vla_error *error)
{
    vla_problem one = r->problem;
    one.B = one.H = one.T = 1;
    vla_status status = choose_rows(r, error);
    if (!status)
        status = vla_tensor_create(&r->o, VLA_F64, 2, (int64_t[]){r->rows.count, one.dv}, "o for the check", error);
    for (int64_t i = 0; !status && i < r->rows.count; i++) {
        one.Tk = r->row[i] + 1;
        const vla_tensors t = {.q = (double *)in->tensor[VLA_IN_Q].data + r->row[i] * one.dk,
                               .k = in->tensor[VLA_IN_K].data,
                               .v = in->tensor[VLA_IN_V].data,
                               .o = (double *)r->o.data + i * one.dv};
        status = vla_naive_run(&one, exec, &t, error);
    }
    return status;
}

static vla_status run_whole(vla_reference *r, const vla_inputs *in, vla_exec *exec, const vla_state *start, bool alpha,
                            vla_error *error)
{
    vla_problem p = r->problem;
    p.B = p.H = 1;
    vla_status status =
        start ? vla_state_head(&r->state, start, r->head, error) : vla_state_create(&r->state, &p, VLA_F64, error);
    if (!status) status = vla_tensor_create(&r->o, VLA_F64, 2, (int64_t[]){p.T, p.dv}, "o for the check", error);
    if (!status && alpha)
        status = vla_tensor_create(&r->alpha, VLA_F64, 2, (int64_t[]){p.T, p.dk}, "alpha for the check", error);
    if (status) return status;
    vla_tensors tensors = {.o = r->o.data, .alpha = r->alpha.data};
    vla_inputs_tensors(in, p.op, &tensors);
    vla_state_bind(&r->state, &tensors, start != NULL);
    return vla_naive_run(&p, exec, &tensors, error);
}

vla_status vla_reference_create(vla_reference *r, const vla_problem *problem, const vla_inputs *inputs,
                                const vla_state *start, int64_t head, vla_rows rows, bool alpha, vla_error *error)
{
    vla_inputs in = {0};
    vla_exec *exec = NULL;
    const double begun = vla_now();
    *r = (vla_reference){.problem = *problem, .head = head, .rows = rows};
    vla_status status = vla_exec_create(&exec, 1, VLA_ISA_BASE, error);
    if (!status) status = head_inputs(&in, inputs, problem->op, head, error);
    if (!status) status = rows.count ? run_rows(r, &in, exec, error) : run_whole(r, &in, exec, start, alpha, error);
    vla_inputs_destroy(&in);
    vla_exec_destroy(exec);
    r->seconds = vla_now() - begun;
    if (status) vla_reference_destroy(r);
    return status;
}

void vla_reference_destroy(vla_reference *r)
{
    vla_tensor_destroy(&r->o);
    vla_tensor_destroy(&r->alpha);
    vla_state_destroy(&r->state);
    vla_free(r->row);
    r->row = NULL;
}

static bool same_operator(const vla_problem *a, const vla_problem *b)
{
    return a->op == b->op && a->B == b->B && a->H == b->H && a->T == b->T && a->Tk == b->Tk && a->dk == b->dk &&
           a->dv == b->dv && a->features == b->features && a->qk_l2 == b->qk_l2 && a->output == b->output &&
           a->no_normalise == b->no_normalise && !(a->lambda0 < b->lambda0 || a->lambda0 > b->lambda0) &&
           a->refresh_period == b->refresh_period &&
           !(a->refresh_eps < b->refresh_eps || a->refresh_eps > b->refresh_eps) && a->gate == b->gate;
}

static vla_reference *find(const vla_references *refs, const vla_problem *problem, int64_t head, vla_rows rows)
{
    for (int64_t i = 0; i < refs->count; i++) {
        vla_reference *r = &refs->items[i];
        if (r->head == head && r->rows.count == rows.count && r->rows.seed == rows.seed &&
            same_operator(&r->problem, problem))
            return r;
    }
    return NULL;
}

const vla_reference *vla_references_find(const vla_references *refs, const vla_problem *problem, int64_t head,
                                         vla_rows rows)
{
    const vla_reference *r = find(refs, problem, head, rows);
    return r && r->o.data ? r : NULL;
}

vla_status vla_references_add(vla_references *refs, const vla_problem *problem, int64_t head, vla_rows rows,
                              vla_error *error)
{
    if (find(refs, problem, head, rows)) return VLA_OK;
    if (refs->count == refs->capacity) {
        const int64_t capacity = refs->capacity ? 2 * refs->capacity : 32;
        vla_reference *items = realloc(refs->items, (size_t)capacity * sizeof *items);
        if (!items) return vla_fail(error, VLA_ERR_MEMORY, "check: out of memory");
        refs->items = items;
        refs->capacity = capacity;
    }
    refs->items[refs->count++] = (vla_reference){.problem = *problem, .head = head, .rows = rows};
    return VLA_OK;
}

double vla_references_bytes(const vla_references *refs, int threads)
{
    double kept = 0, working = 0;
    for (int64_t i = 0; i < refs->count; i++) {
        const vla_problem *p = &refs->items[i].problem;
        const double rows = (double)(refs->items[i].rows.count ? refs->items[i].rows.count : p->T);
        const double inputs = (double)p->T * (double)(3 * p->dk + 2 * p->dv);
        kept += 8 * (rows * (double)p->dv + (double)p->dk * (double)(p->dk + p->dv));
        if (8 * inputs > working) working = 8 * inputs;
    }
    return kept + working * (double)(refs->count < threads ? refs->count : threads);
}

typedef struct making {
    vla_references *refs;
    const vla_inputs *inputs;
} making;

static void make_one(void *context, int64_t item, int worker)
{
    (void)worker;
    const making *m = context;
    vla_reference *r = &m->refs->items[item];
    const vla_reference asked = *r;
    vla_error why = {0};
    (void)vla_reference_create(r, &asked.problem, m->inputs, NULL, asked.head, asked.rows, false, &why);
    r->error = why;
}

vla_status vla_references_make(vla_references *refs, const vla_inputs *inputs, vla_exec *exec, vla_error *error)
{
    making m = {.refs = refs, .inputs = inputs};
    vla_pool_run(vla_exec_pool(exec), refs->count, make_one, &m);
    for (int64_t i = 0; i < refs->count; i++)
        if (refs->items[i].error.status)
            return vla_fail(error, refs->items[i].error.status, "check: %s", refs->items[i].error.message);
    return VLA_OK;
}

void vla_references_free(vla_references *refs)
{
    for (int64_t i = 0; i < refs->count; i++) vla_reference_destroy(&refs->items[i]);
    free(refs->items);
    *refs = (vla_references){0};
}
