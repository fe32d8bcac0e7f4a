#include "lib/train/bench_backward.h"
#include "lib/base/clock.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/measure/slice.h"
#include "lib/op/registry.h"
#include "lib/train/backward.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Gradients in the order of the inputs they belong to; NULL where the operator reads no such input. */
typedef struct gradients {
    void *of[VLA_INPUTS];
    int64_t count[VLA_INPUTS], bytes;
} gradients;

typedef struct backward_pass {
    vla_case c;
    const vla_inputs *inputs;
    vla_pool *pool;
    vla_backward *backward;
    vla_tensors tensors;
    void *upstream; /* dL/do [B,H,T,dv], standard normal */
    int64_t upstream_count;
    gradients gradients;
} backward_pass;

static void free_gradients(gradients *g)
{
    for (int i = 0; i < VLA_INPUTS; i++) vla_free(g->of[i]);
}

static void destroy(void *context)
{
    backward_pass *x = context;
    vla_backward_destroy(x->backward);
    vla_pool_destroy(x->pool);
    free_gradients(&x->gradients);
    vla_free(x->upstream);
    free(x);
}

static bool has_gradient(const backward_pass *x, vla_input input)
{
    return vla_op_reads(x->c.problem.op, input) && x->inputs->tensor[input].data;
}

static vla_status take_gradients(const backward_pass *x, vla_dtype dtype, gradients *g, vla_error *error)
{
    vla_status status = VLA_OK;
    *g = (gradients){.bytes = 0};
    for (int i = 0; !status && i < VLA_INPUTS; i++) {
        if (!has_gradient(x, (vla_input)i)) continue;
        g->count[i] = x->inputs->tensor[i].count;
        g->bytes += g->count[i] * (int64_t)vla_dtype_size(dtype);
        status = vla_alloc(&g->of[i], g->count[i], vla_dtype_size(dtype), "gradients", error);
        if (!status) memset(g->of[i], 0xff, (size_t)g->count[i] * vla_dtype_size(dtype)); /* NaN until written */
    }
    return status;
}

static vla_gradients bind_gradients(const gradients *g, const void *upstream)
{
    return (vla_gradients){upstream,        g->of[VLA_IN_Q], g->of[VLA_IN_K], g->of[VLA_IN_V],
                           g->of[VLA_IN_U], g->of[VLA_IN_B], g->of[VLA_IN_G]};
}

static vla_status make_upstream(backward_pass *x, uint64_t seed, vla_error *error)
{
    const vla_problem *p = &x->c.problem;
    x->upstream_count = p->B * p->H * p->T * p->dv;
    const vla_status status =
        vla_alloc(&x->upstream, x->upstream_count, vla_dtype_size(x->c.dtype), "gradient of o", error);
    vla_rng rng = vla_rng_seed(seed, 0x6f);
    for (int64_t i = 0; !status && i < x->upstream_count; i++) {
        const double value = vla_rng_normal(&rng);
        if (x->c.dtype == VLA_F64)
            ((double *)x->upstream)[i] = value;
        else
            ((float *)x->upstream)[i] = (float)value;
    }
    return status;
}

static vla_status create(void **context, const vla_case *c, const vla_inputs *inputs, uint64_t seed, vla_error *error)
{
    if (c->backend != VLA_CPU)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "pass fwdbwd: the backward pass is built for the CPU");
    backward_pass *x = calloc(1, sizeof *x);
    if (!x) return vla_fail(error, VLA_ERR_MEMORY, "backward: out of memory");
    *x = (backward_pass){.c = *c, .inputs = inputs};
    vla_inputs_tensors(inputs, c->problem.op, &x->tensors);
    vla_status status = vla_pool_create(&x->pool, c->threads, error);
    if (!status) status = vla_backward_create(&x->backward, &c->problem, c->dtype, c->isa, x->pool, error);
    if (!status) status = make_upstream(x, seed, error);
    if (!status) status = take_gradients(x, c->dtype, &x->gradients, error);
    if (status)
        destroy(x);
    else
        *context = x;
    return status;
}

static vla_status run(void *context, vla_error *error)
{
    backward_pass *x = context;
    const vla_gradients g = bind_gradients(&x->gradients, x->upstream);
    return vla_backward_run(x->backward, &x->tensors, &g, error);
}

/* The same in double, by the code without vector instructions. */
static vla_status refer(const backward_pass *x, gradients *g, vla_error *error)
{
    vla_inputs inputs = {.B = 0};
    vla_backward *backward = NULL;
    double *upstream = NULL;
    vla_status status = vla_inputs_slice(&inputs, x->inputs, VLA_F64, 0, x->c.problem.T, error);
    if (!status) status = vla_backward_create(&backward, &x->c.problem, VLA_F64, VLA_ISA_BASE, x->pool, error);
    if (!status) status = vla_alloc((void **)&upstream, x->upstream_count, sizeof *upstream, "gradient of o", error);
    for (int64_t i = 0; !status && i < x->upstream_count; i++)
        upstream[i] =
            x->c.dtype == VLA_F64 ? ((const double *)x->upstream)[i] : (double)((const float *)x->upstream)[i];
    if (!status) status = take_gradients(x, VLA_F64, g, error);
    if (!status) {
        vla_tensors tensors = {.t = 0};
        vla_inputs_tensors(&inputs, x->c.problem.op, &tensors);
        const vla_gradients to = bind_gradients(g, upstream);
        status = vla_backward_run(backward, &tensors, &to, error);
    }
    vla_backward_destroy(backward);
    vla_free(upstream);
    vla_inputs_destroy(&inputs);
    return status;
}

static vla_status check(void *context, vla_check *found, vla_error *error)
{
    backward_pass *x = context;
    const double begun = vla_now();
    gradients exact;
    vla_status status = refer(x, &exact, error);
    for (int i = 0; !status && i < VLA_INPUTS; i++) {
        if (!exact.of[i]) continue;
        vla_residual_sum sum = {.compared = 0};
        vla_residual_add(&sum, x->gradients.of[i], x->c.dtype, exact.of[i], exact.count[i]);
        const vla_residual r = vla_residual_finish(&sum);
        if (!vla_residual_pass(&r, found->limit) && found->pass) {
            found->pass = false;
            snprintf(found->reason, sizeof found->reason, "gradient of %s: residual %.3g above %.3g",
                     vla_input_name((vla_input)i), r.residual, found->limit);
        }
        if (!(r.residual <= found->residual.residual)) found->residual.residual = r.residual;
        if (!(r.max_residual <= found->residual.max_residual)) found->residual.max_residual = r.max_residual;
        found->residual.nonfinite += r.nonfinite;
    }
    free_gradients(&exact);
    found->seconds += vla_now() - begun;
    return status;
}

static int64_t bytes(const void *context)
{
    const backward_pass *x = context;
    return vla_backward_workspace(x->backward) + x->gradients.bytes +
           x->upstream_count * (int64_t)vla_dtype_size(x->c.dtype);
}

const vla_bench_backward vla_backward_pass = {create, run, check, bytes, destroy};
