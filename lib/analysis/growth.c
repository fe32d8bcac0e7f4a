#include "lib/analysis/growth.h"
#include "kernels/cpu/naive.h"
#include "lib/analysis/stepper.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/tensor/tensor.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 2048, HELD = 64 };

int64_t vla_checkpoints(int64_t first, int64_t T, int per_decade, int64_t *at, int64_t most)
{
    int64_t count = 0;
    for (int i = 0; count < most - 1; i++) {
        const double t = (double)first * pow(10, (double)i / per_decade);
        if (!(t < (double)T)) break;
        const int64_t rounded = (int64_t)llround(t);
        if (rounded < T && (count == 0 || rounded > at[count - 1])) at[count++] = rounded;
    }
    if (T >= 1) at[count++] = T;
    return count;
}

/* One operator's state over all heads, in the dtype of the run. */
typedef struct runner {
    vla_problem problem;
    vla_plan *plan; /* for plan_T tokens */
    int64_t plan_T, t;
    char *S, *A, *n, *o;
    double *head_S; /* [dv, dk], float64 */
    bool started;
} runner;

typedef struct growth {
    const vla_growth_options *options;
    vla_feed *feed;
    runner *runners;
    double *norm, *residual;
    double *k, *kh;
} growth;

static vla_status create_runner(runner *r, const vla_growth_options *o, vla_op op, vla_error *error)
{
    r->problem = *o->problem;
    r->problem.op = op;
    r->problem.B = 1;
    r->problem.H = o->source->heads;
    if (op == VLA_DECAY) r->problem.gate = vla_source_has_g(o->source) ? VLA_GATE_TOKEN : VLA_GATE_NONE;
    if (op != VLA_VLA) r->problem.refresh_period = 0;
    r->plan_T = -1;
    const int64_t dk = r->problem.dk, dv = r->problem.dv, heads = r->problem.H;
    const size_t size = vla_dtype_size(o->dtype);
    void *memory = NULL;
    vla_status status =
        vla_alloc(&memory, heads * (dv * dk + dk * dk + dk + BLOCK * dv), size, "state and outputs", error);
    if (status) return status;
    r->S = memory;
    r->A = r->S + size * (size_t)(heads * dv * dk);
    r->n = r->A + size * (size_t)(heads * dk * dk);
    r->o = r->n + size * (size_t)(heads * dk);
    if ((status = vla_alloc(&memory, dv * dk, sizeof(double), "state", error))) return status;
    r->head_S = memory;
    return VLA_OK;
}

static vla_status run_block(runner *r, const vla_growth_options *o, vla_tensors tensors, int64_t count,
                            vla_error *error)
{
    if (r->plan_T != count) {
        vla_plan_destroy(r->plan);
        r->plan = NULL;
        r->problem.T = count;
        r->problem.Tk = 0;
        const vla_status status = vla_plan_create(&r->plan, o->exec, &r->problem, o->form, VLA_CPU, o->dtype, error);
        if (status) return status;
        r->plan_T = count;
    }
    tensors.o = r->o;
    tensors.S = r->S;
    tensors.A = vla_op_has_A(r->problem.op) ? r->A : NULL;
    tensors.n = vla_op_has_n(r->problem.op) ? r->n : NULL;
    tensors.t = &r->t;
    tensors.state_in = r->started;
    if (r->problem.op != VLA_DECAY) tensors.g = NULL;
    if (r->problem.op != VLA_DELTA) tensors.b = NULL;
    if (r->problem.op != VLA_VLA) tensors.u = NULL;
    r->started = true;
    return vla_plan_run(r->plan, &tensors, error);
}

/* Root mean square of |v - S k| over the first `count` of `stride` tokens, for one head, S held in head_S. */
static double held_residual(growth *gr, const runner *r, int64_t head, const vla_tensors *tokens, int64_t stride,
                            int64_t count)
{
    const int64_t dk = r->problem.dk, dv = r->problem.dv;
    double sum = 0;
    for (int64_t row = head * stride; row < head * stride + count; row++) {
        for (int64_t i = 0; i < dk; i++) gr->k[i] = vla_load(tokens->k, gr->options->dtype, row * dk + i);
        vla_naive_unit_features(gr->kh, gr->k, dk, r->problem.features);
        for (int64_t i = 0; i < dv; i++) {
            double off = vla_load(tokens->v, gr->options->dtype, row * dv + i);
            for (int64_t c = 0; c < dk; c++) off -= r->head_S[i * dk + c] * gr->kh[c];
            sum += off * off;
        }
    }
    return sqrt(sum / (double)count);
}

/* The states as they are, before `tokens` [heads, stride] are run. */
static void checkpoint(growth *gr, int64_t index, const vla_tensors *tokens, int64_t stride)
{
    const vla_growth_options *o = gr->options;
    const int64_t heads = o->source->heads, count = stride < HELD ? stride : HELD;
    for (int op = 0; op < o->op_count; op++)
        for (int64_t h = 0; h < heads; h++) {
            runner *r = &gr->runners[op];
            const int64_t size = r->problem.dv * r->problem.dk, to = (op * heads + h) * o->checkpoints + index;
            vla_convert(r->head_S, VLA_F64, r->S + vla_dtype_size(o->dtype) * (size_t)(h * size), o->dtype, size);
            gr->norm[to] = vla_frobenius(r->head_S, size);
            if (gr->residual && count > 0) gr->residual[to] = held_residual(gr, r, h, tokens, stride, count);
        }
}

static int64_t next_count(const vla_growth_options *o, int64_t t, int64_t stop)
{
    int64_t count = stop - t;
    if (count <= 0) count = HELD; /* past the last checkpoint: tokens to predict only */
    if (count > BLOCK) count = BLOCK;
    if (o->source->kind == VLA_SOURCE_TENSORS && o->source->T - t < count) count = o->source->T - t;
    return count > 0 ? count : 0;
}

static vla_status run_all(growth *gr, vla_error *error)
{
    const vla_growth_options *o = gr->options;
    const int64_t last = o->checkpoints > 0 ? o->at[o->checkpoints - 1] : 0;
    int64_t next = 0; /* checkpoint to come */
    for (int64_t t = 0; next < o->checkpoints;) {
        const bool due = t == o->at[next];
        const int64_t stop = due ? next + 1 < o->checkpoints ? o->at[next + 1] : t : o->at[next];
        const int64_t count = next_count(o, t, stop);
        vla_tensors tokens = {0};
        vla_feed_next(gr->feed, count, o->exec, &tokens);
        if (due) checkpoint(gr, next++, &tokens, count);
        if (next == o->checkpoints) break;
        if (count == 0)
            return vla_fail(error, VLA_ERR_ARGUMENT, "T %lld: the input has %lld tokens", (long long)last,
                            (long long)t);
        for (int op = 0; op < o->op_count; op++) {
            const vla_status status = run_block(&gr->runners[op], o, tokens, count, error);
            if (status) return status;
        }
        t += count;
        if (o->advance && !o->advance(o->context, t, last)) return VLA_OK;
    }
    return VLA_OK;
}

static vla_status create(growth *gr, vla_error *error)
{
    const vla_growth_options *o = gr->options;
    gr->runners = calloc((size_t)o->op_count, sizeof *gr->runners);
    if (!gr->runners) return vla_fail(error, VLA_ERR_MEMORY, "state growth: out of memory");
    vla_status status = vla_feed_create(&gr->feed, o->source, BLOCK, o->dtype, error);
    for (int op = 0; op < o->op_count && !status; op++) status = create_runner(&gr->runners[op], o, o->ops[op], error);
    void *memory = NULL;
    if (!status) status = vla_alloc(&memory, 2 * o->source->dk, sizeof(double), "keys", error);
    gr->k = memory;
    gr->kh = gr->k ? gr->k + o->source->dk : NULL;
    return status;
}

static void destroy(growth *gr)
{
    for (int op = 0; gr->runners && op < gr->options->op_count; op++) {
        vla_plan_destroy(gr->runners[op].plan);
        vla_free(gr->runners[op].S);
        vla_free(gr->runners[op].head_S);
    }
    free(gr->runners);
    vla_feed_destroy(gr->feed);
    vla_free(gr->k);
}

vla_status vla_growth_run(const vla_growth_options *options, double *norm, double *residual, vla_error *error)
{
    const int64_t count = options->op_count * options->source->heads * options->checkpoints;
    for (int64_t i = 0; i < count; i++) {
        norm[i] = NAN;
        if (residual) residual[i] = NAN;
    }
    growth gr = {.options = options, .norm = norm, .residual = residual};
    vla_status status = create(&gr, error);
    if (!status) status = run_all(&gr, error);
    destroy(&gr);
    return status;
}
