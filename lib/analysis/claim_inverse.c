/* C3: is A_t the inverse of M_t over a million steps?  C4: is the recursion the minimiser it is derived from? */
#include "lib/analysis/claims.h"
#include "lib/analysis/drift.h"
#include "lib/analysis/growth.h"
#include "lib/analysis/objective.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKPOINTS = 32 };

typedef struct setting {
    const char *part;
    vla_dtype dtype;
    bool refresh;
    double lambda0; /* 0: the trial's */
} setting;

/* "Exactly" is given more room than rounding needs, and less than would change an output. */
static const double exact[] = {[VLA_F64] = 1e-8, [VLA_F32] = 1e-4};

static const setting settings[] = {
    {"f64", VLA_F64, false, 0},
    {"f32", VLA_F32, false, 0},
    {"f64-refresh", VLA_F64, true, 0},
    {"f32-refresh", VLA_F32, true, 0},
    {"f64-tiny-lambda0", VLA_F64, false, 1e-9},
    {"f32-tiny-lambda0", VLA_F32, false, 1e-9},
};

static bool advance(void *context, int64_t done, int64_t total)
{
    return vla_trial_go_on(context, (double)done, (double)total);
}

static vla_status drift_rows(const vla_trial *trial, const char *source, const setting *set, const vla_problem *p,
                             const char *form, const vla_drift *drift, int64_t count, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        const vla_drift *d = &drift[i];
        vla_record *r = vla_record_create("drift");
        if (!r) return vla_fail(error, VLA_ERR_MEMORY, "C3: out of memory");
        vla_record_string(r, "source", source);
        vla_record_string(r, "part", set->part);
        vla_record_string(r, "form", form);
        vla_record_string(r, "dtype", vla_dtype_name(set->dtype));
        vla_record_int(r, "dk", p->dk);
        vla_record_real(r, "lambda0", p->lambda0);
        vla_record_int(r, "refresh_period", p->refresh_period);
        vla_record_real(r, "refresh_eps", p->refresh_eps);
        vla_record_int(r, "t", d->t);
        vla_record_real(r, "drift", d->drift);
        vla_record_real(r, "bias", d->bias);
        vla_record_real(r, "asymmetry", d->asymmetry);
        vla_record_real(r, "least_eigenvalue_ratio", d->least);
        vla_record_real(r, "condition_number", d->condition);
        vla_record_int(r, "nonfinite", d->nonfinite);
        status = trial->emit(trial->context, r, error);
    }
    return status;
}

static vla_status rule_drift(const vla_trial *trial, const char *source, const setting *set, double lambda0,
                             const vla_drift *drift, int64_t count, vla_error *error)
{
    vla_verdict v = vla_verdict_of("C3", set->part, source,
                                   "A_t = M_t^-1, M_t = lambda0 I + sum u u^T: |A_t - M_t^-1|_F over |M_t^-1|_F");
    if (count == 0) return VLA_OK;
    double worst = 0, drifted = 0;
    for (int64_t i = 0; i < count; i++) {
        worst = drift[i].bias <= worst ? worst : drift[i].bias; /* NaN is kept */
        drifted = drift[i].drift <= drifted ? drifted : drift[i].drift;
    }
    const vla_drift *last = &drift[count - 1], *lost = NULL;
    for (int64_t i = count - 1; i >= 0; i--)
        if (drift[i].nonfinite) lost = &drift[i];
    v.value = (vla_interval){last->bias, NAN, NAN, 1};
    v.worst = worst;
    v.expected = 0;
    v.tolerance = exact[set->dtype];
    v.ruling = worst <= v.tolerance ? VLA_HOLDS : VLA_REFUTED;
    if (lost)
        snprintf(v.condition, sizeof v.condition, "lambda0 = %g: A_t is not finite at t = %lld", lambda0,
                 (long long)lost->t);
    else
        snprintf(
            v.condition, sizeof v.condition,
            "lambda0 = %g, T = %lld: rounding drift %.1e, asymmetry %.1e, least eigenvalue %.4g of the exact one%s",
            lambda0, (long long)last->t, drifted, last->asymmetry, last->least,
            set->refresh ? "; every refresh adds eps I, which no M_t has" : "");
    return vla_verdict_emit(trial, &v, error);
}

static vla_status drift_of(const vla_trial *trial, const vla_source *source, const vla_problem *problem,
                           const setting *set, vla_error *error)
{
    int64_t at[CHECKPOINTS], reached = 0;
    vla_drift drift[CHECKPOINTS];
    const int64_t count = vla_checkpoints(100, problem->T, 2, at, CHECKPOINTS);
    const vla_kernel *recurrent = vla_kernel_find(VLA_VLA, VLA_RECURRENT, VLA_CPU);
    const vla_form form = recurrent ? VLA_RECURRENT : VLA_CHUNK;
    union {
        const vla_trial *in;
        void *out;
    } context = {trial};
    vla_problem p = *problem;
    if (set->lambda0 > 0) p.lambda0 = set->lambda0;
    p.refresh_period = set->refresh ? problem->refresh_period ? problem->refresh_period : 20 : 0;
    p.refresh_eps = set->refresh ? problem->refresh_period ? problem->refresh_eps : 1e-3 : 0;
    const vla_drift_options o = {.problem = &p,
                                 .source = source,
                                 .at = at,
                                 .checkpoints = count,
                                 .exec = trial->exec,
                                 .form = form,
                                 .dtype = set->dtype,
                                 .advance = advance,
                                 .context = context.out};
    vla_status status = vla_drift_run(&o, drift, &reached, error);
    const char *name = vla_trial_source_name(trial, source);
    if (!status) status = drift_rows(trial, name, set, &p, vla_form_name(form), drift, reached, error);
    if (!status) status = rule_drift(trial, name, set, p.lambda0, drift, reached, error);
    return status;
}

vla_status vla_claim_inverse(const vla_trial *trial, vla_error *error)
{
    const int64_t T = trial->T ? trial->T : 1000000, d = trial->d ? trial->d : 16;
    vla_source source;
    vla_problem problem;
    vla_status status = VLA_OK;
    for (int i = 0; !status && vla_trial_source(trial, i, 1, d, VLA_VLA, T, &source, &problem); i++) {
        if (source.kind == VLA_SOURCE_ISOTROPIC || source.kind == VLA_SOURCE_GAUSS) continue; /* nothing harder there */
        problem.no_normalise = false;
        problem.H = source.heads = 1;
        if (source.kind != VLA_SOURCE_TENSORS) source.dv = problem.dv = 1; /* values do not reach A */
        for (size_t s = 0; s < sizeof settings / sizeof *settings && !status; s++)
            if (vla_trial_wants(trial, settings[s].part))
                status = drift_of(trial, &source, &problem, &settings[s], error);
    }
    return status;
}

/* Objective of the state over its minimum, at checkpoints; the largest and the last. */
typedef struct gap {
    double last, largest, distance; /* F(S)/F(S*) - 1; |S - S*|/|S*| at the end */
} gap;

static vla_status objective_gap(const vla_source *source, int64_t head, const vla_problem *problem, gap *out,
                                vla_error *error)
{
    vla_stepper st = {0};
    vla_stream stream = {0};
    vla_objective obj = {0};
    void *memory = NULL;
    const int64_t dk = source->dk, dv = source->dv;
    vla_status status = vla_stepper_create(&st, problem, error);
    if (!status) status = vla_stream_create(&stream, source, head, error);
    if (!status) status = vla_objective_create(&obj, problem, error);
    if (!status) status = vla_alloc(&memory, 2 * dk + dv + 2 + dv * dk, sizeof(double), "objective", error);
    double *k = memory, *v = k ? k + dk : NULL, *u = v ? v + dv : NULL, *b = u ? u + dk : NULL, *g = b ? b + 1 : NULL;
    double *S = g ? g + 1 : NULL;
    *out = (gap){NAN, 0, NAN};
    for (int64_t t = 1; t <= problem->T && !status; t++) {
        vla_stream_next(&stream, k, v, u, b, g);
        vla_stepper_step(&st, k, v, u, NULL, NULL);
        vla_objective_add(&obj, &st, v);
        if (t % (problem->T > 20 ? problem->T / 20 : 1) && t != problem->T) continue;
        if ((status = vla_objective_minimiser(&obj, S, error))) break;
        const double least = vla_objective_value(&obj, S), reached = vla_objective_value(&obj, st.S);
        out->last = reached / least - 1;
        if (!(out->last <= out->largest)) out->largest = out->last;
        const double size = vla_frobenius(S, dv * dk);
        for (int64_t i = 0; i < dv * dk; i++) S[i] -= st.S[i];
        out->distance = vla_frobenius(S, dv * dk) / size;
    }
    vla_free(memory);
    vla_objective_destroy(&obj);
    vla_stream_destroy(&stream);
    vla_stepper_destroy(&st);
    return status;
}

static vla_status rule_objective(const vla_trial *trial, const vla_source *source, const vla_problem *problem,
                                 vla_error *error)
{
    const int64_t seeds = vla_trial_seeds(trial, source), count = source->heads * seeds;
    double *x = malloc((size_t)(2 * count) * sizeof *x);
    if (!x) return vla_fail(error, VLA_ERR_MEMORY, "C4: out of memory");
    const bool rls = problem->op == VLA_RLS;
    vla_verdict v =
        vla_verdict_of("C4", rls ? "rls" : "vla", vla_trial_source_name(trial, source),
                       rls ? "the recursion of rls is the minimiser of sum |v - S k|^2 + lambda0 |S|_F^2: "
                             "objective over minimum, less 1"
                           : "S_t minimises sum |v - S k|^2 + tr(S M_t S^T): objective over minimum, less 1");
    vla_status status = VLA_OK;
    v.worst = 0;
    for (int64_t i = 0; i < count && !status; i++) {
        vla_source seeded = *source;
        gap found;
        seeded.seed = (uint64_t)trial->seeds[i / source->heads];
        status = objective_gap(&seeded, i % source->heads, problem, &found, error);
        x[i] = found.last;
        x[count + i] = found.distance;
        v.worst = found.largest <= v.worst ? v.worst : found.largest;
        if (!vla_trial_go_on(trial, (double)i, (double)count)) break;
    }
    if (!status) {
        v.value = vla_interval_of(x, count);
        const vla_interval distance = vla_interval_of(x + count, count);
        v.expected = 0;
        v.tolerance = 1e-9;
        v.corrected = rls;
        v.ruling = v.worst <= v.tolerance ? VLA_HOLDS : VLA_REFUTED;
        snprintf(v.condition, sizeof v.condition, "|S_T - S*|_F over |S*|_F = %.3g at T = %lld, d = %lld",
                 distance.value, (long long)problem->T, (long long)problem->dk);
        status = vla_verdict_emit(trial, &v, error);
    }
    free(x);
    return status;
}

vla_status vla_claim_objective(const vla_trial *trial, vla_error *error)
{
    const int64_t T = trial->T ? trial->T : 1000, d = trial->d ? trial->d : 32, heads = trial->heads ? trial->heads : 4;
    const vla_op ops[] = {VLA_VLA, VLA_RLS};
    vla_source source;
    vla_problem problem;
    vla_status status = VLA_OK;
    for (int op = 0; op < 2; op++)
        for (int i = 0; !status && vla_trial_source(trial, i, heads, d, ops[op], T, &source, &problem); i++) {
            problem.no_normalise = false;
            problem.refresh_period = 0;
            if (problem.T > 0) status = rule_objective(trial, &source, &problem, error);
        }
    return status;
}
