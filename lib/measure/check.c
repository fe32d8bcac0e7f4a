#include "lib/measure/check.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/base/clock.h"
#include "lib/measure/judge.h"
#include "lib/op/registry.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = VLA_BUFFER_GUARD, SAMPLED_HEADS = 4, SAMPLED_ROWS = 66 };

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

/* The heads that are compared. */
typedef struct sample {
    int64_t count, head[SAMPLED_HEADS];
    bool every; /* head i is i */
} sample;

static sample choose_heads(const vla_case *c, bool full, uint64_t seed)
{
    const int64_t total = c->problem.B * c->problem.H;
    if (full || total <= SAMPLED_HEADS) return (sample){.count = total, .every = true};
    sample s = {.count = SAMPLED_HEADS, .head = {0}};
    vla_rng rng = vla_rng_seed(seed, 77);
    s.head[1] = 1 + (int64_t)vla_rng_below(&rng, (uint64_t)(total - 2));
    do s.head[2] = 1 + (int64_t)vla_rng_below(&rng, (uint64_t)(total - 2));
    while (s.head[2] == s.head[1]);
    s.head[3] = total - 1;
    return s;
}

/* S, A and n of the buffers as a state, which owns nothing. */
static vla_state state_of(const vla_buffers *b, const vla_case *c)
{
    const vla_problem *p = &c->problem;
    return (vla_state){.S = {.dtype = c->dtype, .rank = 4, .shape = {p->B, p->H, p->dv, p->dk}, .data = b->S},
                       .A = {.dtype = c->dtype, .rank = 4, .shape = {p->B, p->H, p->dk, p->dk}, .data = b->A},
                       .n = {.dtype = c->dtype, .rank = 3, .shape = {p->B, p->H, p->dk}, .data = b->n},
                       .t = b->t};
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

/* The rows of o that are compared: a row of softmax costs O(T) alone. */
static vla_rows choose_rows(const vla_case *c, bool full, uint64_t seed)
{
    const bool some = c->problem.op == VLA_SOFTMAX && c->mode == VLA_PREFILL && !full && c->problem.T > SAMPLED_ROWS;
    return (vla_rows){.count = some ? SAMPLED_ROWS : 0, .seed = some ? seed : 0};
}

vla_status vla_check_needs(const vla_case *c, bool full, uint64_t seed, vla_references *references, vla_error *error)
{
    const sample heads = choose_heads(c, full, seed);
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < heads.count; i++)
        status = vla_references_add(references, &c->problem, heads.every ? i : heads.head[i],
                                    choose_rows(c, full, seed), error);
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
                         const vla_buffers *buffers, const vla_references *known, bool full, uint64_t seed,
                         vla_check *check, vla_error *error)
{
    const sample heads = choose_heads(c, full, seed);
    const vla_rows rows = choose_rows(c, full, seed);
    const double begun = vla_now();
    double reference = 0;
    vla_residual_sum sum[VLA_PARTS];
    const vla_state begin = start ? state_of(start, c) : (vla_state){0}, end = state_of(buffers, c);
    const vla_judged judged = {.problem = &c->problem,
                               .inputs = inputs,
                               .dtype = c->dtype,
                               .start = start ? &begin : NULL,
                               .end = &end,
                               .o = buffers->o,
                               .rows = rows,
                               .known = known};
    *check = (vla_check){0};
    vla_status status =
        vla_judge_heads(&judged, exec, heads.every ? NULL : heads.head, heads.count, sum, &reference, error);
    const double own = vla_now() - begun;
    check->seconds = own > reference ? own : reference; /* shared ones were made before */
    if (status) return status;
    for (int part = 0; part < VLA_PART_ALPHA; part++) keep_worst(check, &sum[part]);
    if (heads.every && !rows.count)
        snprintf(check->checked, sizeof check->checked, "all");
    else if (rows.count)
        snprintf(check->checked, sizeof check->checked, "%lld heads, %d rows", (long long)heads.count, SAMPLED_ROWS);
    else
        snprintf(check->checked, sizeof check->checked, "%lld heads", (long long)heads.count);
    judge_result(c, buffers, check);
    return VLA_OK;
}
