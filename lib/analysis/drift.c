#include "lib/analysis/drift.h"
#include "kernels/cpu/naive.h"
#include "lib/analysis/growth.h"
#include "lib/analysis/spectral.h"
#include "lib/analysis/stepper.h"
#include "lib/base/sizes.h"
#include "lib/tensor/tensor.h"
#include <cblas.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 1024 };

/* M is summed a block at a time, so that its own rounding stays near that of one block. With refreshes the exact A is
 * followed through A <- (A^-1 + sum u u^T)^-1, + eps I at every refresh. */
typedef struct drift_run {
    const vla_drift_options *options;
    vla_problem problem;
    vla_feed *feed;
    vla_spectral *spectral;
    char *S, *A, *n, *o;                      /* the plan's state and output */
    double *M, *R_inverse, *R, *direct, *A64; /* [dk, dk] each */
    double *U;                                /* [BLOCK, dk] uh in float64 */
    double *raw, *lambda;                     /* [dk] */
    int64_t t;
    bool started;
} drift_run;

static vla_status create(drift_run *d, vla_error *error)
{
    const vla_drift_options *o = d->options;
    const int64_t dk = d->problem.dk, dv = d->problem.dv;
    void *memory = NULL;
    vla_status status = vla_feed_create(&d->feed, o->source, BLOCK, o->dtype, error);
    if (!status) status = vla_spectral_create(&d->spectral, dk, NULL, error);
    if (!status)
        status = vla_alloc(&memory, dv * dk + dk * dk + dk + BLOCK * dv, vla_dtype_size(o->dtype), "state", error);
    if (status) return status;
    d->S = memory;
    d->A = d->S + vla_dtype_size(o->dtype) * (size_t)(dv * dk);
    d->n = d->A + vla_dtype_size(o->dtype) * (size_t)(dk * dk);
    d->o = d->n + vla_dtype_size(o->dtype) * (size_t)dk;
    if ((status = vla_alloc(&memory, 5 * dk * dk + BLOCK * dk + 2 * dk, sizeof(double), "inverse", error)))
        return status;
    d->M = memory;
    d->R_inverse = d->M + dk * dk;
    d->R = d->R_inverse + dk * dk;
    d->direct = d->R + dk * dk;
    d->A64 = d->direct + dk * dk;
    d->U = d->A64 + dk * dk;
    d->raw = d->U + BLOCK * dk;
    d->lambda = d->raw + dk;
    memset(d->M, 0, (size_t)(2 * dk * dk) * sizeof(double));
    for (int64_t i = 0; i < dk; i++) d->M[i * dk + i] = d->R_inverse[i * dk + i] = d->problem.lambda0;
    return VLA_OK;
}

static void destroy(drift_run *d)
{
    vla_feed_destroy(d->feed);
    vla_spectral_destroy(d->spectral);
    vla_free(d->S);
    vla_free(d->M);
}

static vla_status run_kernel(drift_run *d, vla_tensors tensors, int64_t count, vla_error *error)
{
    vla_plan *plan = NULL;
    d->problem.T = count;
    d->problem.Tk = 0;
    vla_status status =
        vla_plan_create(&plan, d->options->exec, &d->problem, d->options->form, VLA_CPU, d->options->dtype, error);
    if (status) return status;
    /* The plain recursion is on trial, so that no run may count as long enough for its sums to be compensated. */
    int64_t t = d->problem.refresh_period > 0 ? d->t % d->problem.refresh_period : 0;
    tensors.o = d->o;
    tensors.S = d->S;
    tensors.A = d->A;
    tensors.n = d->n;
    tensors.t = &t;
    tensors.b = tensors.g = NULL;
    tensors.state_in = d->started;
    d->started = true;
    status = vla_plan_run(plan, &tensors, error);
    vla_plan_destroy(plan);
    return status;
}

static void add_gram(double *M, const double *U, int64_t rows, int64_t dk)
{
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)dk, (int)dk, (int)rows, 1.0, U, (int)dk, U, (int)dk, 1.0,
                M, (int)dk);
}

/* The exact recursion over one block, cut at its refreshes. */
static vla_status follow(drift_run *d, const vla_tensors *tensors, int64_t count, vla_error *error)
{
    const int64_t dk = d->problem.dk, period = d->problem.refresh_period;
    const double root = sqrt((double)dk);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t c = 0; c < dk; c++) d->raw[c] = vla_load(tensors->u, d->options->dtype, i * dk + c);
        vla_naive_unit(d->U + i * dk, d->raw, dk);
        cblas_dscal((int)dk, 1 / root, d->U + i * dk, 1);
    }
    add_gram(d->M, d->U, count, dk);
    for (int64_t i = 0; i < count;) {
        int64_t rows = count - i;
        const int64_t to_refresh = period > 0 ? period - (d->t + i) % period : rows + 1;
        if (to_refresh < rows) rows = to_refresh;
        add_gram(d->R_inverse, d->U + i * dk, rows, dk);
        i += rows;
        if (rows != to_refresh) continue;
        vla_status status = vla_spd_inverse(d->R, d->R_inverse, dk, error);
        for (int64_t c = 0; c < dk; c++) d->R[c * dk + c] += d->problem.refresh_eps;
        if (!status) status = vla_spd_inverse(d->R_inverse, d->R, dk, error);
        if (status) return status;
    }
    return VLA_OK;
}

static double relative_distance(const double *a, const double *b, int64_t count)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        off += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(off / size);
}

static vla_status measure(drift_run *d, vla_drift *out, vla_error *error)
{
    const int64_t dk = d->problem.dk, square = dk * dk;
    *out = (vla_drift){.t = d->t, .drift = NAN, .bias = NAN, .asymmetry = NAN, .least = NAN, .condition = NAN};
    vla_convert(d->A64, VLA_F64, d->A, d->options->dtype, square);
    for (int64_t i = 0; i < square; i++) out->nonfinite += !isfinite(d->A64[i]);
    vla_status status = vla_spd_inverse(d->R, d->R_inverse, dk, error);
    if (!status) status = vla_spd_inverse(d->direct, d->M, dk, error);
    if (!status) status = vla_symmetric_eigenvalues(d->spectral, d->R, dk, d->lambda, error);
    if (status) return status;
    const double least = d->lambda[0];
    out->condition = d->lambda[dk - 1] / least;
    if (out->nonfinite) return VLA_OK;
    out->drift = relative_distance(d->A64, d->R, square);
    out->bias = relative_distance(d->A64, d->direct, square);
    double skew = 0;
    for (int64_t i = 0; i < dk; i++)
        for (int64_t j = 0; j < i; j++) {
            const double half = 0.5 * (d->A64[i * dk + j] - d->A64[j * dk + i]);
            skew += 8 * half * half;
            d->A64[i * dk + j] = d->A64[j * dk + i] += half;
        }
    out->asymmetry = sqrt(skew) / vla_frobenius(d->A64, square);
    if ((status = vla_symmetric_eigenvalues(d->spectral, d->A64, dk, d->lambda, error))) return status;
    out->least = d->lambda[0] / least;
    return VLA_OK;
}

vla_status vla_drift_run(const vla_drift_options *options, vla_drift *drift, int64_t *reached, vla_error *error)
{
    drift_run d = {.options = options, .problem = *options->problem};
    d.problem.B = d.problem.H = 1;
    *reached = 0;
    vla_status status = create(&d, error);
    for (int64_t i = 0; i < options->checkpoints && !status; i++) {
        while (d.t < options->at[i] && !status) {
            const int64_t left = options->at[i] - d.t, count = left < BLOCK ? left : BLOCK;
            vla_tensors tensors = {0};
            vla_feed_next(d.feed, count, options->exec, &tensors);
            status = run_kernel(&d, tensors, count, error);
            if (!status) status = follow(&d, &tensors, count, error);
            d.t += count;
            if (options->advance && !options->advance(options->context, d.t, options->at[options->checkpoints - 1]))
                goto out;
        }
        if (!status) status = measure(&d, &drift[i], error);
        if (!status) ++*reached;
    }
out:
    destroy(&d);
    return status;
}
