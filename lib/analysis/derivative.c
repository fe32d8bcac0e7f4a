#include "lib/analysis/derivative.h"
#include "lib/analysis/stepper.h"
#include "lib/base/sizes.h"
#include "lib/op/registry.h"
#include "lib/tensor/tensor.h"
#include <math.h>
#include <string.h>

typedef struct subject {
    vla_problem problem; /* T = 1, H = dk + 1 */
    vla_stepper stepper;
    double *memory, *token, *S, *A, *n, *k, *v, *u, *b, *g, *o, *J;
    int64_t count; /* elements of S..o, one run of memory */
    double h;
} subject;

double vla_derivative_limit(vla_dtype dtype)
{
    return dtype == VLA_F64 ? 1e-10 : dtype == VLA_F32 ? 5e-4 : 0.1;
}

static vla_status allocate(subject *s, const vla_source *source, vla_error *error)
{
    const int64_t dk = source->dk, dv = source->dv, heads = dk + 1, square = dk * dk;
    s->count = heads * (dv * dk + square + 4 * dk + 2 * dv + 2);
    void *memory = NULL;
    const vla_status status =
        vla_alloc(&memory, s->count + 2 * dk + dv + 2 + square, sizeof(double), "finite difference", error);
    if (status) return status;
    memset(memory, 0, (size_t)(s->count + 2 * dk + dv + 2 + square) * sizeof(double));
    s->memory = s->S = memory;
    s->A = s->S + heads * dv * dk;
    s->n = s->A + heads * square;
    s->k = s->n + heads * dk;
    s->u = s->k + heads * dk;
    s->v = s->u + heads * dk;
    s->b = s->v + heads * dv;
    s->g = s->b + heads;
    s->o = s->g + heads;
    s->token = s->S + s->count;
    s->J = s->token + 2 * dk + dv + 2;
    return VLA_OK;
}

/* dk + 1 copies of the state and of the token; copy j + 1 has h on axis j of every row of S. */
static void fill(subject *s, const vla_source *source)
{
    const int64_t dk = source->dk, dv = source->dv;
    const double *k = s->token, *v = k + dk, *u = v + dv, *b = u + dk, *g = b + 1;
    s->h = fmax(1, vla_frobenius(s->stepper.S, dv * dk));
    for (int64_t j = 0; j <= dk; j++) {
        double *S = s->S + j * dv * dk;
        memcpy(S, s->stepper.S, (size_t)(dv * dk) * sizeof *S);
        for (int64_t row = 0; j > 0 && row < dv; row++) S[row * dk + j - 1] += s->h;
        memcpy(s->A + j * dk * dk, s->stepper.A, (size_t)(dk * dk) * sizeof *S);
        memcpy(s->n + j * dk, s->stepper.n, (size_t)dk * sizeof *S);
        memcpy(s->k + j * dk, k, (size_t)dk * sizeof *S);
        memcpy(s->u + j * dk, u, (size_t)dk * sizeof *S);
        memcpy(s->v + j * dv, v, (size_t)dv * sizeof *S);
        s->b[j] = *b;
        s->g[j] = *g;
    }
}

static vla_status run_plan(subject *s, const vla_source *source, vla_exec *exec, vla_form form, vla_dtype dtype,
                           vla_error *error)
{
    vla_plan *plan = NULL;
    vla_status status = vla_plan_create(&plan, exec, &s->problem, form, VLA_CPU, dtype, error);
    if (status) return status;
    const size_t size = vla_dtype_size(dtype);
    void *rounded = NULL;
    if (!(status = vla_alloc(&rounded, s->count, size, "finite difference", error))) {
        char *base = rounded;
        vla_convert(base, dtype, s->S, VLA_F64, s->count);
        int64_t t = s->stepper.t;
        vla_tensors x = {.q = base + (size_t)(s->k - s->S) * size,
                         .k = base + (size_t)(s->k - s->S) * size,
                         .v = base + (size_t)(s->v - s->S) * size,
                         .u = base + (size_t)(s->u - s->S) * size,
                         .o = base + (size_t)(s->o - s->S) * size,
                         .S = base,
                         .A = base + (size_t)(s->A - s->S) * size,
                         .n = base + (size_t)(s->n - s->S) * size,
                         .t = &t,
                         .state_in = true};
        if (vla_source_has_b(source)) x.b = base + (size_t)(s->b - s->S) * size;
        if (vla_source_has_g(source)) x.g = base + (size_t)(s->g - s->S) * size;
        status = vla_plan_run(plan, &x, error);
        if (!status) vla_convert(s->S, VLA_F64, rounded, dtype, s->count);
    }
    vla_free(rounded);
    vla_plan_destroy(plan);
    return status;
}

static double largest_gap(subject *s, const vla_source *source)
{
    const int64_t dk = source->dk, dv = source->dv;
    double *k = s->token, *v = k + dk, *u = v + dv, *b = u + dk, *g = b + 1, gap = 0;
    vla_stepper_step(&s->stepper, k, v, u, vla_source_has_b(source) ? b : NULL, vla_source_has_g(source) ? g : NULL);
    vla_jacobian_dense(&s->stepper.jacobian, s->J);
    const double scale = fmax(1, vla_jacobian_norm(&s->stepper.jacobian));
    for (int64_t j = 0; j < dk; j++)
        for (int64_t row = 0; row < dv; row++)
            for (int64_t c = 0; c < dk; c++) {
                const double moved = s->S[((j + 1) * dv + row) * dk + c], still = s->S[row * dk + c];
                const double off = fabs((moved - still) / s->h - s->J[c * dk + j]) / scale;
                gap = off <= gap ? gap : off; /* NaN is kept */
            }
    return gap;
}

static vla_status advance(subject *s, vla_stream *stream, int64_t steps)
{
    const vla_source *source = stream->source;
    const int64_t dk = source->dk, dv = source->dv;
    double *k = s->token, *v = k + dk, *u = v + dv, *b = u + dk, *g = b + 1;
    for (int64_t t = 0; t <= steps; t++) {
        vla_stream_next(stream, k, v, u, b, g);
        if (t < steps)
            vla_stepper_step(&s->stepper, k, v, u, vla_source_has_b(source) ? b : NULL,
                             vla_source_has_g(source) ? g : NULL);
    }
    return VLA_OK;
}

vla_status vla_derivative_gap(const vla_problem *problem, const vla_source *source, int64_t head, int64_t steps,
                              vla_exec *exec, vla_form form, vla_dtype dtype, double *gap, vla_error *error)
{
    subject s = {.problem = *problem};
    s.problem.B = 1;
    s.problem.H = problem->dk + 1;
    s.problem.T = 1;
    if (problem->op == VLA_DECAY && vla_source_has_g(source)) s.problem.gate = VLA_GATE_TOKEN;
    vla_stream stream = {0};
    vla_status status = vla_stepper_create(&s.stepper, problem, error);
    if (!status) status = vla_stream_create(&stream, source, head, error);
    if (!status) status = allocate(&s, source, error);
    if (!status) status = advance(&s, &stream, steps);
    if (!status) {
        fill(&s, source);
        status = run_plan(&s, source, exec, form, dtype, error);
    }
    if (!status) *gap = largest_gap(&s, source);
    vla_free(s.memory);
    vla_stream_destroy(&stream);
    vla_stepper_destroy(&s.stepper);
    return status;
}
