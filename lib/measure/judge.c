#include "lib/measure/judge.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/op/registry.h"
#include <stdlib.h>

/* ref: of one head; out: of all heads. */
static void compare(vla_residual_sum *sum, const void *out, vla_dtype dtype, int64_t head, const vla_tensor *ref)
{
    if (!out || !ref->data) return;
    vla_residual_add(sum, (const char *)out + (size_t)(head * ref->count) * vla_dtype_size(dtype), dtype, ref->data,
                     ref->count);
}

static void compare_rows(vla_residual_sum *sum, const vla_judged *run, const vla_reference *ref)
{
    const vla_problem *p = run->problem;
    for (int64_t i = 0; i < ref->rows.count; i++)
        vla_residual_add(
            sum, (const char *)run->o + (size_t)((ref->head * p->T + ref->row[i]) * p->dv) * vla_dtype_size(run->dtype),
            run->dtype, (const double *)ref->o.data + i * p->dv, p->dv);
}

typedef struct judging {
    const vla_judged *run;
    const int64_t *head;    /* NULL: all */
    vla_residual_sum *sums; /* [count][VLA_PARTS] */
    vla_error *errors;      /* [count] */
    double *seconds;        /* [count] */
} judging;

static void judge_head(void *context, int64_t item, int worker)
{
    (void)worker;
    const judging *j = context;
    const vla_judged *run = j->run;
    const vla_state *end = run->end;
    const int64_t head = j->head ? j->head[item] : item;
    vla_residual_sum *sum = j->sums + item * VLA_PARTS;
    vla_reference own = {0};
    const vla_reference *ref = &own;
    const bool shared = run->known && !run->start && !run->alpha;
    const vla_reference *known = shared ? vla_references_find(run->known, run->problem, head, run->rows) : NULL;
    if (known)
        ref = known;
    else if (vla_reference_create(&own, run->problem, run->inputs, run->start, head, run->rows, run->alpha != NULL,
                                  &j->errors[item]))
        return;
    j->seconds[item] = ref->seconds;
    if (ref->rows.count)
        compare_rows(&sum[VLA_PART_O], run, ref);
    else {
        compare(&sum[VLA_PART_O], run->o, run->dtype, head, &ref->o);
        compare(&sum[VLA_PART_S], end->S.data, end->S.dtype, head, &ref->state.S);
        compare(&sum[VLA_PART_A], end->A.data, end->A.dtype, head, &ref->state.A);
        compare(&sum[VLA_PART_N], end->n.data, end->n.dtype, head, &ref->state.n);
        compare(&sum[VLA_PART_ALPHA], run->alpha, run->dtype, head, &ref->alpha);
    }
    vla_reference_destroy(&own);
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
                           vla_residual_sum sum[VLA_PARTS], double *seconds, vla_error *error)
{
    judging j = {.run = run, .head = head};
    j.sums = calloc((size_t)count * VLA_PARTS, sizeof *j.sums);
    j.errors = calloc((size_t)count, sizeof *j.errors);
    j.seconds = calloc((size_t)count, sizeof *j.seconds);
    vla_status status =
        j.sums && j.errors && j.seconds ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "check: out of memory");
    for (int part = 0; part < VLA_PARTS; part++) sum[part] = (vla_residual_sum){0};
    if (seconds) *seconds = 0;
    if (status == VLA_OK) vla_pool_run(vla_exec_pool(exec), count, judge_head, &j);
    for (int64_t i = 0; status == VLA_OK && i < count; i++) {
        if (j.errors[i].status != VLA_OK)
            status = vla_fail(error, j.errors[i].status, "check: %s", j.errors[i].message);
        for (int part = 0; part < VLA_PARTS; part++) add_sum(&sum[part], &j.sums[i * VLA_PARTS + part]);
        if (seconds && j.seconds[i] > *seconds) *seconds = j.seconds[i];
    }
    free(j.sums);
    free(j.errors);
    free(j.seconds);
    return status;
}
