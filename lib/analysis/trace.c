#include "lib/analysis/trace.h"
#include "lib/analysis/spectral.h"
#include "lib/analysis/stepper.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 };

/* What the dense work of one step needs and gives. */
typedef struct item {
    vla_trace_row row;
    vla_jacobian jacobian;
    double log_det, product_scale, inverse_scale;
    double *A, *P, *inverse; /* copies, where this step is a row; else NULL */
    bool is_row, product_zero, product_singular;
    vla_status status;
    vla_error error;
} item;

typedef struct head_state {
    vla_stepper stepper;
    vla_stream stream;
    vla_product product;
    double *token;   /* k, v, u, b, g */
    double *vectors; /* [BLOCK, 2 dk]: a and k of the block's steps */
    double *copies;  /* [rows a block, 3 dk dk] */
    item items[BLOCK];
} head_state;

typedef struct trace {
    const vla_trace_options *options;
    int64_t heads, T, stride, first, count; /* the block: steps first+1 .. first+count */
    head_state *head;
    vla_spectral **spectral; /* one a worker */
    double **scratch;        /* [2 dk dk] a worker */
    int workers;
    vla_trace_summary *summaries;
} trace;

int64_t vla_trace_stride(int64_t T, int64_t every)
{
    if (every > 0) return every;
    return T > 100 ? T / 100 : 1;
}

static bool is_row(const trace *tr, int64_t t)
{
    return t % tr->stride == 0 || t == tr->T;
}

static vla_status check_token(const vla_source *source, int64_t head, int64_t t, const double *token, vla_error *error)
{
    const char *const name[] = {"k", "v", "u"};
    const int64_t width[] = {source->dk, source->dv, source->dk};
    for (int i = 0; i < 3; token += width[i++])
        for (int64_t j = 0; j < width[i]; j++)
            if (!isfinite(token[j]))
                return vla_fail(error, VLA_ERR_NUMERIC, "%s holds %s at head %lld, token %lld, element %lld", name[i],
                                isnan(token[j]) ? "NaN" : "an infinity", (long long)head, (long long)(t - 1),
                                (long long)j);
    return VLA_OK;
}

static void snapshot(head_state *h, item *it, double *copies, bool dense)
{
    const int64_t dk = h->stepper.problem.dk, square = dk * dk;
    vla_trace_row *row = &it->row;
    row->state_norm = vla_frobenius(h->stepper.S, h->stepper.problem.dv * dk);
    row->A_norm = vla_op_has_A(h->stepper.problem.op) ? vla_frobenius(h->stepper.A, square) : NAN;
    if (!dense) return;
    it->A = copies;
    it->P = copies + square;
    it->inverse = copies + 2 * square;
    memcpy(it->A, h->stepper.A, (size_t)square * sizeof(double));
    memcpy(it->P, h->product.P, (size_t)square * sizeof(double));
    memcpy(it->inverse, h->product.inverse, (size_t)square * sizeof(double));
    it->log_det = h->stepper.log_det;
    it->product_scale = h->product.log_scale;
    it->inverse_scale = h->product.inverse_log_scale;
    it->product_zero = h->product.zero;
    it->row.singular_at = h->product.singular_at;
}

/* One token of one head: the recurrence, the product, and copies of what the dense work will need. */
static void advance_step(trace *tr, head_state *h, int64_t head, int64_t i, int64_t *rows)
{
    const vla_source *source = tr->options->source;
    const int64_t dk = source->dk, dv = source->dv, t = tr->first + i + 1;
    double *k = h->token, *v = k + dk, *u = v + dv, *b = u + dk, *g = b + 1;
    item *it = &h->items[i];
    memset(it, 0, sizeof *it);
    vla_stream_next(&h->stream, k, v, u, b, g);
    if ((it->status = check_token(source, head, t, h->token, &it->error))) return;
    vla_stepper_step(&h->stepper, k, v, u, vla_source_has_b(source) ? b : NULL, vla_source_has_g(source) ? g : NULL);
    double *a = h->vectors + 2 * i * dk, *key = a + dk;
    memcpy(a, h->stepper.a, (size_t)dk * sizeof *a);
    memcpy(key, h->stepper.kh, (size_t)dk * sizeof *key);
    it->jacobian = h->stepper.jacobian;
    it->jacobian.a = a;
    it->jacobian.k = key;
    it->row.head = head;
    it->row.t = t;
    it->row.c = it->jacobian.c;
    it->row.gate = it->jacobian.g;
    it->row.residual = h->stepper.residual;
    it->row.sigma = it->row.sigma_closed = vla_jacobian_norm(&it->jacobian);
    it->row.radius = vla_jacobian_radius(&it->jacobian);
    it->row.metric_norm = it->row.log_product = it->row.growth_rate = it->row.log_bound = it->row.log_bound_sharp =
        it->row.log_sigma_min = NAN;
    it->is_row = is_row(tr, t);
    if (tr->options->dense) vla_product_multiply(&h->product, &it->jacobian);
    if (it->is_row) snapshot(h, it, h->copies + 3 * dk * dk * (*rows)++, tr->options->dense);
}

static void advance_head(void *context, int64_t head, int worker)
{
    (void)worker;
    trace *tr = context;
    int64_t rows = 0;
    for (int64_t i = 0; i < tr->count; i++) {
        advance_step(tr, &tr->head[head], head, i, &rows);
        if (tr->head[head].items[i].status) return;
    }
}

/* Bounds hold for vla with unit keys and directions (docs/propositions.md); the product of the others is bounded by 1:
 * rls telescopes to lambda0 P_t, delta and decay are contractions for unit keys, linear is I. */
static vla_status product_bounds(item *it, const vla_problem *p, vla_spectral *s, double *lambda, vla_error *error)
{
    it->row.log_bound = it->row.log_bound_sharp = 0;
    if (p->op != VLA_VLA) return VLA_OK;
    it->row.log_bound = it->row.log_bound_sharp = NAN;
    if (p->no_normalise) return VLA_OK;
    const vla_status status = vla_symmetric_eigenvalues(s, it->A, p->dk, lambda, error);
    if (status) return status;
    const double shrink = log(p->lambda0 * lambda[p->dk - 1]); /* log |A_t|/|A_0|: at most 0 unless refreshed */
    it->row.log_bound_sharp = 0.5 * (it->log_det + shrink);
    it->row.log_bound = 0.5 * (it->log_det + (p->refresh_period > 0 ? fmax(0, shrink) : 0));
    return VLA_OK;
}

static vla_status product_norms(item *it, int64_t dk, vla_spectral *s, vla_error *error)
{
    double norm = 0;
    vla_status status = VLA_OK;
    if (it->product_zero) {
        it->row.log_product = -INFINITY;
    } else {
        if ((status = vla_spectral_norm(s, it->P, dk, &norm, error))) return status;
        it->row.log_product = it->product_scale + log(norm);
    }
    it->row.growth_rate = it->row.log_product / (double)it->row.t;
    if (it->row.singular_at) return VLA_OK;
    if ((status = vla_spectral_norm(s, it->inverse, dk, &norm, error))) return status;
    it->row.log_sigma_min = 0 - (it->inverse_scale + log(norm));
    return VLA_OK;
}

static vla_status dense_row(item *it, const vla_problem *p, const double *J, vla_spectral *s, double *scratch,
                            vla_error *error)
{
    vla_status status = product_bounds(it, p, s, scratch, error);
    if (!status) status = product_norms(it, p->dk, s, error);
    if (status || !vla_op_has_A(p->op)) return status;
    if ((status = vla_cholesky(NULL, it->A, p->dk, error))) return status;
    return vla_metric_norm(s, J, it->A, p->dk, scratch, &it->row.metric_norm, error);
}

static vla_status dense_step(item *it, const vla_problem *p, vla_spectral *s, double *scratch, vla_error *error)
{
    double *J = scratch + p->dk * p->dk;
    vla_jacobian_dense(&it->jacobian, J);
    vla_status status = vla_spectral_norm(s, J, p->dk, &it->row.sigma, error);
    if (!status) status = vla_spectral_radius(s, J, p->dk, &it->row.radius, error);
    if (!status && it->is_row) status = dense_row(it, p, J, s, scratch, error);
    return status;
}

static void dense_item(void *context, int64_t index, int worker)
{
    trace *tr = context;
    item *it = &tr->head[index / tr->count].items[index % tr->count];
    if (it->status || !it->row.t) return;
    vla_error inner = {VLA_OK, ""};
    it->status = dense_step(it, tr->options->problem, tr->spectral[worker], tr->scratch[worker], &inner);
    if (it->status)
        vla_fail(&it->error, it->status, "head %lld, step %lld: %.400s", (long long)it->row.head, (long long)it->row.t,
                 inner.message);
}

static void summarise_row(vla_trace_summary *sum, const vla_trace_row *row)
{
    sum->metric_max = fmax(sum->metric_max, row->metric_norm);
    sum->log_product = row->log_product;
    sum->log_product_max = fmax(sum->log_product_max, row->log_product);
    sum->growth_rate = row->growth_rate;
    sum->log_bound = row->log_bound;
    sum->log_bound_sharp = row->log_bound_sharp;
    sum->log_sigma_min = row->log_sigma_min;
    sum->singular_at = row->singular_at;
    sum->bound_margin = fmin(sum->bound_margin, row->log_bound_sharp - row->log_product);
    sum->state_norm = row->state_norm;
    sum->state_max = fmax(sum->state_max, row->state_norm);
    sum->A_norm = row->A_norm;
}

/* A NaN counts as above. */
static int bin_of(double c)
{
    if (c < 0) return VLA_C_BINS;
    if (!(c <= 1 + 1e-12)) return VLA_C_BINS + 1;
    return c < 1 ? (int)(c * VLA_C_BINS) : VLA_C_BINS - 1;
}

static void summarise(vla_trace_summary *sum, const item *it)
{
    const vla_trace_row *row = &it->row;
    const double n = (double)++sum->steps;
    if (sum->steps == 1 || row->sigma > sum->sigma_max) {
        sum->sigma_max = row->sigma;
        sum->sigma_max_at = row->t;
    }
    sum->sigma_min_norm = fmin(sum->sigma_min_norm, row->sigma);
    sum->sigma_mean += (row->sigma - sum->sigma_mean) / n;
    sum->closed_gap = fmax(sum->closed_gap, fabs(row->sigma - row->sigma_closed) / fmax(1, row->sigma));
    const double radius = vla_jacobian_radius(&it->jacobian);
    sum->radius_max = fmax(sum->radius_max, row->radius);
    sum->radius_gap = fmax(sum->radius_gap, fabs(row->radius - radius) / fmax(1, radius));
    sum->log_norms += log(row->sigma);
    sum->c_min = fmin(sum->c_min, row->c);
    sum->c_mean += (row->c - sum->c_mean) / n;
    sum->residual = row->residual;
    sum->residual_mean += (row->residual - sum->residual_mean) / n;
    sum->c_bins[bin_of(row->c)]++;
    if (it->is_row) summarise_row(sum, row);
}

static vla_status collect(trace *tr, vla_error *error)
{
    for (int64_t head = 0; head < tr->heads; head++)
        for (int64_t i = 0; i < tr->count; i++) {
            const item *it = &tr->head[head].items[i];
            if (it->status) {
                if (error) *error = it->error;
                return it->status;
            }
            summarise(&tr->summaries[head], it);
            if (it->is_row && tr->options->row) tr->options->row(tr->options->context, &it->row);
        }
    return VLA_OK;
}

static vla_status create_head(trace *tr, int64_t head, vla_error *error)
{
    const vla_trace_options *o = tr->options;
    head_state *h = &tr->head[head];
    const int64_t dk = o->source->dk, dv = o->source->dv;
    const int64_t rows = tr->stride >= BLOCK ? 2 : BLOCK / tr->stride + 2;
    vla_status status = vla_stepper_create(&h->stepper, o->problem, error);
    if (!status) status = vla_stream_create(&h->stream, o->source, head, error);
    if (!status && o->dense) status = vla_product_create(&h->product, dk, true, error);
    void *memory = NULL;
    const int64_t copies = o->dense ? 3 * dk * dk * rows : 0;
    if (!status) status = vla_alloc(&memory, 2 * dk + dv + 2 + 2 * BLOCK * dk + copies, sizeof(double), "trace", error);
    if (status) return status;
    h->token = memory;
    h->vectors = h->token + 2 * dk + dv + 2;
    h->copies = h->vectors + 2 * BLOCK * dk;
    tr->summaries[head] = (vla_trace_summary){.head = head,
                                              .sigma_min_norm = INFINITY,
                                              .c_min = INFINITY,
                                              .metric_max = NAN,
                                              .log_product = NAN,
                                              .log_product_max = NAN,
                                              .log_sigma_min = NAN,
                                              .log_bound = NAN,
                                              .log_bound_sharp = NAN,
                                              .growth_rate = NAN,
                                              .bound_margin = NAN,
                                              .A_norm = NAN};
    return VLA_OK;
}

static vla_status create_workers(trace *tr, vla_error *error)
{
    const int64_t dk = tr->options->source->dk;
    tr->workers = vla_pool_threads(tr->options->pool);
    tr->spectral = calloc((size_t)tr->workers, sizeof(vla_spectral *));
    tr->scratch = calloc((size_t)tr->workers, sizeof(double *));
    if (!tr->spectral || !tr->scratch) return vla_fail(error, VLA_ERR_MEMORY, "trace: out of memory");
    for (int w = 0; w < tr->workers; w++) {
        void *memory = NULL;
        vla_status status = vla_alloc(&memory, 2 * dk * dk, sizeof(double), "trace", error);
        tr->scratch[w] = memory;
        if (!status) status = vla_spectral_create(&tr->spectral[w], dk, NULL, error);
        if (status) return status;
    }
    return VLA_OK;
}

static void destroy(trace *tr)
{
    for (int64_t h = 0; tr->head && h < tr->heads; h++) {
        vla_stepper_destroy(&tr->head[h].stepper);
        vla_stream_destroy(&tr->head[h].stream);
        vla_product_destroy(&tr->head[h].product);
        vla_free(tr->head[h].token);
    }
    free(tr->head);
    for (int w = 0; w < tr->workers; w++) {
        if (tr->spectral) vla_spectral_destroy(tr->spectral[w]);
        if (tr->scratch) vla_free(tr->scratch[w]);
    }
    free(tr->spectral);
    free(tr->scratch);
}

static vla_status run_blocks(trace *tr, vla_error *error)
{
    const vla_trace_options *o = tr->options;
    for (tr->first = 0; tr->first < tr->T; tr->first += tr->count) {
        tr->count = tr->T - tr->first < BLOCK ? tr->T - tr->first : BLOCK;
        vla_pool_run(o->pool, tr->heads, advance_head, tr);
        if (o->dense) vla_pool_run(o->pool, tr->heads * tr->count, dense_item, tr);
        const vla_status status = collect(tr, error);
        if (status) return status;
        if (o->advance && !o->advance(o->context, tr->first + tr->count, tr->T)) return VLA_OK;
    }
    return VLA_OK;
}

vla_status vla_trace_run(const vla_trace_options *options, vla_trace_summary *summaries, vla_error *error)
{
    trace tr = {.options = options, .heads = options->source->heads, .T = options->problem->T, .summaries = summaries};
    if (options->source->kind == VLA_SOURCE_TENSORS && tr.T > options->source->T)
        return vla_fail(error, VLA_ERR_ARGUMENT, "T %lld: the input has %lld tokens", (long long)tr.T,
                        (long long)options->source->T);
    tr.stride = vla_trace_stride(tr.T, options->every);
    tr.head = calloc((size_t)(tr.heads > 0 ? tr.heads : 1), sizeof *tr.head);
    vla_status status = tr.head ? create_workers(&tr, error) : vla_fail(error, VLA_ERR_MEMORY, "trace: out of memory");
    for (int64_t h = 0; !status && h < tr.heads; h++) status = create_head(&tr, h, error);
    if (!status) status = run_blocks(&tr, error);
    destroy(&tr);
    return status;
}
