#include "lib/measure/check.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/base/clock.h"
#include "lib/op/registry.h"
#include "lib/tensor/tensor.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 64, SAMPLED_HEADS = 4, SAMPLED_ROWS = 66 };

static vla_status make_buffer(void **memory, int64_t *bytes, bool wanted, int64_t rows, int64_t columns,
                              const vla_case *c, const char *name, vla_error *error)
{
    int64_t size;
    if (!wanted) return VLA_OK;
    const int64_t factors[] = {c->problem.B, c->problem.H, rows, columns, (int64_t)vla_dtype_size(c->dtype)};
    if (!vla_size_product(factors, 5, &size) || size > INT64_MAX - GUARD_BYTES) size = INT64_MAX - GUARD_BYTES;
    *bytes = size;
    return vla_alloc(memory, size + GUARD_BYTES, 1, name, error);
}

vla_status vla_buffers_create(vla_buffers *b, const vla_case *c, vla_error *error)
{
    const vla_problem *p = &c->problem;
    *b = (vla_buffers){0};
    vla_status status = make_buffer(&b->o, &b->o_bytes, true, p->T, p->dv, c, "o", error);
    if (!status) status = make_buffer(&b->S, &b->S_bytes, vla_op_has_S(p->op), p->dv, p->dk, c, "S", error);
    if (!status) status = make_buffer(&b->A, &b->A_bytes, vla_op_has_A(p->op), p->dk, p->dk, c, "A", error);
    if (!status) status = make_buffer(&b->n, &b->n_bytes, vla_op_has_n(p->op), 1, p->dk, c, "n", error);
    if (status) vla_buffers_free(b);
    return status;
}

void vla_buffers_free(vla_buffers *b)
{
    vla_free(b->o);
    vla_free(b->S);
    vla_free(b->A);
    vla_free(b->n);
    *b = (vla_buffers){0};
}

void vla_buffers_poison(vla_buffers *b)
{
    if (b->o) memset(b->o, 0xff, (size_t)(b->o_bytes + GUARD_BYTES));
    if (b->S) memset(b->S, 0xff, (size_t)(b->S_bytes + GUARD_BYTES));
    if (b->A) memset(b->A, 0xff, (size_t)(b->A_bytes + GUARD_BYTES));
    if (b->n) memset(b->n, 0xff, (size_t)(b->n_bytes + GUARD_BYTES));
}

static bool guarded(const void *memory, int64_t bytes)
{
    if (!memory) return true;
    const unsigned char *guard = (const unsigned char *)memory + bytes;
    for (int i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != 0xff) return false;
    return true;
}

bool vla_buffers_intact(const vla_buffers *b)
{
    return guarded(b->o, b->o_bytes) && guarded(b->S, b->S_bytes) && guarded(b->A, b->A_bytes) &&
           guarded(b->n, b->n_bytes);
}

void vla_buffers_bind(vla_buffers *b, vla_tensors *tensors)
{
    tensors->o = b->o;
    tensors->S = b->S;
    tensors->A = b->A;
    tensors->n = b->n;
    tensors->t = b->S ? &b->t : NULL;
}

uint64_t vla_buffers_checksum(const vla_buffers *b)
{
    uint64_t sum = vla_checksum(b->o, b->o_bytes, 1);
    if (b->S) sum = vla_checksum(b->S, b->S_bytes, sum);
    if (b->A) sum = vla_checksum(b->A, b->A_bytes, sum);
    return b->n ? vla_checksum(b->n, b->n_bytes, sum) : sum;
}

/* The heads that are compared, and float64 copies of what naive reads and writes for them. */
typedef struct judge {
    const vla_case *c;
    vla_problem problem; /* B = 1, H = heads compared */
    int64_t heads, head[SAMPLED_HEADS];
    bool every;
    void *inputs[VLA_INPUTS];
    vla_buffers out;
} judge;

static void choose_heads(judge *j, bool full, uint64_t seed)
{
    const int64_t total = j->c->problem.B * j->c->problem.H;
    j->every = full || total <= SAMPLED_HEADS;
    j->heads = j->every ? total : SAMPLED_HEADS;
    if (j->every) return;
    vla_rng rng = vla_rng_seed(seed, 77);
    j->head[0] = 0;
    j->head[1] = 1 + (int64_t)vla_rng_below(&rng, (uint64_t)(total - 2));
    do j->head[2] = 1 + (int64_t)vla_rng_below(&rng, (uint64_t)(total - 2));
    while (j->head[2] == j->head[1]);
    j->head[3] = total - 1;
}

static int64_t head_at(const judge *j, int64_t i)
{
    return j->every ? i : j->head[i];
}

/* Copies the chosen heads of an array [heads, count] to float64. */
static vla_status gather(const judge *j, void **to, const void *from, int64_t count, vla_dtype dtype, vla_error *error)
{
    int64_t total;
    if (!from) return VLA_OK;
    if (!vla_size_mul(j->heads, count, &total)) total = INT64_MAX;
    vla_status status = vla_alloc(to, total, sizeof(double), "float64 copy for the check", error);
    if (status) return status;
    for (int64_t i = 0; i < j->heads; i++)
        vla_convert((double *)*to + i * count, VLA_F64,
                    (const char *)from + (size_t)(head_at(j, i) * count) * vla_dtype_size(dtype), dtype, count);
    return VLA_OK;
}

/* float64 copies of the chosen heads of everything the operator reads. */
static vla_status gather_inputs(judge *j, const vla_inputs *in, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int i = 0; !status && i < VLA_INPUTS; i++) {
        const vla_tensor *t = &in->tensor[i];
        if (!t->data || !vla_op_reads(j->c->problem.op, (vla_input)i)) continue;
        status = gather(j, &j->inputs[i], t->data, t->count / (in->B * in->H), t->dtype, error);
    }
    return status;
}

static void bind_inputs(const judge *j, vla_tensors *t)
{
    t->q = j->inputs[VLA_IN_Q];
    t->k = j->inputs[VLA_IN_K];
    t->v = j->inputs[VLA_IN_V];
    t->u = j->inputs[VLA_IN_U];
    t->b = j->inputs[VLA_IN_B];
    t->g = j->inputs[VLA_IN_G];
}

static vla_status gather_state(judge *j, const vla_buffers *start, vla_error *error)
{
    const vla_problem *p = &j->problem;
    vla_status status = gather(j, &j->out.S, start->S, p->dv * p->dk, j->c->dtype, error);
    if (!status) status = gather(j, &j->out.A, start->A, p->dk * p->dk, j->c->dtype, error);
    if (!status) status = gather(j, &j->out.n, start->n, p->dk, j->c->dtype, error);
    j->out.t = start->t;
    return status;
}

static vla_status naive(const vla_problem *problem, vla_exec *exec, const vla_tensors *tensors, vla_error *error)
{
    vla_plan *plan;
    vla_status status = vla_plan_create(&plan, exec, problem, VLA_NAIVE, VLA_CPU, VLA_F64, error);
    if (status) return status;
    status = vla_plan_run(plan, tensors, error);
    vla_plan_destroy(plan);
    return status;
}

static void compare(const judge *j, const void *out, const double *ref, int64_t count, vla_residual_sum *sum)
{
    const size_t size = vla_dtype_size(j->c->dtype);
    for (int64_t i = 0; ref && i < j->heads; i++)
        vla_residual_add(sum, (const char *)out + (size_t)(head_at(j, i) * count) * size, j->c->dtype, ref + i * count,
                         count);
}

static void keep_worst(vla_check *check, const vla_residual_sum *sum)
{
    const vla_residual r = vla_residual_finish(sum);
    vla_residual *worst = &check->residual;
    /* A NaN residual replaces any number and is replaced by none. */
    if (sum->compared && !isnan(worst->residual) && !(r.residual <= worst->residual)) worst->residual = r.residual;
    if (sum->compared && !isnan(worst->max_residual) && !(r.max_residual <= worst->max_residual))
        worst->max_residual = r.max_residual;
    worst->nonfinite += r.nonfinite;
    worst->compared += r.compared;
}

/* Whole heads: o and, for state operators, S. */
static vla_status check_heads(judge *j, vla_exec *exec, const vla_buffers *start, const vla_buffers *buffers,
                              vla_check *check, vla_error *error)
{
    const vla_problem *p = &j->problem;
    vla_tensors t = {.state_in = start != NULL};
    vla_status status = start ? gather_state(j, start, error) : VLA_OK;
    if (!status) status = vla_alloc(&j->out.o, j->heads * p->T * p->dv, sizeof(double), "o for the check", error);
    if (!status && !j->out.S && vla_op_has_S(p->op))
        status = vla_alloc(&j->out.S, j->heads * p->dv * p->dk, sizeof(double), "S for the check", error);
    if (status) return status;
    bind_inputs(j, &t);
    vla_buffers_bind(&j->out, &t);
    const double begun = vla_now();
    status = naive(p, exec, &t, error);
    check->seconds = vla_now() - begun;
    if (status) return status;
    vla_residual_sum o = {0}, S = {0};
    compare(j, buffers->o, j->out.o, p->T * p->dv, &o);
    compare(j, buffers->S, j->out.S, p->dv * p->dk, &S);
    keep_worst(check, &o);
    keep_worst(check, &S);
    return VLA_OK;
}

/* Sampled rows of softmax, one query each against the keys it may see: affordable at any T. */
static vla_status check_rows(judge *j, vla_exec *exec, const vla_buffers *buffers, uint64_t seed, vla_check *check,
                             vla_error *error)
{
    const vla_problem *p = &j->problem;
    const size_t size = vla_dtype_size(j->c->dtype);
    vla_rng rng = vla_rng_seed(seed, 78);
    vla_residual_sum sum = {0};
    vla_status status = vla_alloc(&j->out.o, p->dv, sizeof(double), "o for the check", error);
    const double begun = vla_now();
    for (int64_t i = 0; !status && i < j->heads; i++)
        for (int r = 0; !status && r < SAMPLED_ROWS; r++) {
            const int64_t row = r == 0 ? 0 : r == 1 ? p->T - 1 : (int64_t)vla_rng_below(&rng, (uint64_t)p->T);
            vla_problem one = *p;
            one.H = one.T = 1;
            one.Tk = row + 1;
            const vla_tensors t = {.q = (double *)j->inputs[VLA_IN_Q] + (i * p->T + row) * p->dk,
                                   .k = (double *)j->inputs[VLA_IN_K] + i * p->T * p->dk,
                                   .v = (double *)j->inputs[VLA_IN_V] + i * p->T * p->dv,
                                   .o = j->out.o};
            status = naive(&one, exec, &t, error);
            if (!status)
                vla_residual_add(&sum, (const char *)buffers->o + (size_t)((head_at(j, i) * p->T + row) * p->dv) * size,
                                 j->c->dtype, j->out.o, p->dv);
        }
    check->seconds = vla_now() - begun;
    keep_worst(check, &sum);
    return status;
}

static void judge_result(const vla_case *c, const vla_buffers *buffers, vla_check *check)
{
    const vla_problem *p = &c->problem;
    int64_t head, token;
    check->limit = vla_residual_limit(p->op, c->dtype);
    check->pass = vla_residual_pass(&check->residual, check->limit);
    if (vla_first_nonfinite(buffers->o, c->dtype, p->B * p->H, p->T, p->dv, &head, &token)) {
        check->pass = false;
        snprintf(check->reason, sizeof check->reason, "o is not finite, first at head %lld, token %lld",
                 (long long)head, (long long)token);
    } else if (!vla_buffers_intact(buffers)) {
        check->pass = false;
        snprintf(check->reason, sizeof check->reason, "written past the end of an output");
    } else if (!check->pass)
        snprintf(check->reason, sizeof check->reason, "residual %.3g against naive is above %.3g",
                 check->residual.residual, check->limit);
}

vla_status vla_check_run(const vla_case *c, vla_exec *exec, const vla_inputs *inputs, const vla_buffers *start,
                         const vla_buffers *buffers, bool full, uint64_t seed, vla_check *check, vla_error *error)
{
    judge j = {.c = c, .problem = c->problem};
    *check = (vla_check){0};
    choose_heads(&j, full, seed);
    j.problem.B = 1;
    j.problem.H = j.heads;
    const bool rows = c->problem.op == VLA_SOFTMAX && c->mode == VLA_PREFILL && !full && c->problem.T > SAMPLED_ROWS;
    vla_status status = gather_inputs(&j, inputs, error);
    if (!status)
        status = rows ? check_rows(&j, exec, buffers, seed, check, error)
                      : check_heads(&j, exec, start, buffers, check, error);
    for (int i = 0; i < VLA_INPUTS; i++) vla_free(j.inputs[i]);
    vla_buffers_free(&j.out);
    if (status) return status;
    if (j.every && !rows)
        snprintf(check->checked, sizeof check->checked, "all");
    else if (rows)
        snprintf(check->checked, sizeof check->checked, "%lld heads, %d rows", (long long)j.heads, SAMPLED_ROWS);
    else
        snprintf(check->checked, sizeof check->checked, "%lld heads", (long long)j.heads);
    judge_result(c, buffers, check);
    return VLA_OK;
}
