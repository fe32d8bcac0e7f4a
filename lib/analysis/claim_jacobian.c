/* C8 (Proposition 2) and C9: the norm of one Jacobian, and of products of them. */
#include "lib/analysis/claims.h"
#include "lib/analysis/jacobian.h"
#include "lib/analysis/spread.h"
#include "lib/base/status.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A claim "exactly x" is given the rounding of an SVD of this size; a product is called kept within a factor of 10. */
static const double exact = 1e-9, decade = 1;

static const vla_summary_field mean_norm = VLA_SUMMARY_FIELD(sigma_mean),
                               least_norm = VLA_SUMMARY_FIELD(sigma_min_norm), rate = VLA_SUMMARY_FIELD(growth_rate),
                               norms_decades = VLA_SUMMARY_DECADES(log_norms),
                               product_decades = VLA_SUMMARY_DECADES(log_product);

typedef struct part {
    const char *name, *stated;
    bool corrected;
    vla_summary_field field;
    int sign; /* which side speaks against it */
    double expected, tolerance;
} part;

static const part parts[] = {
    {"norm", "|J_t|_2 = 1 at every step", false, VLA_SUMMARY_FIELD(sigma_max), 1, 1, exact},
    {"closed-form", "|J_t|_2 = (1 + sqrt(5 - 4 alpha.k))/2 (SVD against closed form)", true,
     VLA_SUMMARY_FIELD(closed_gap), 1, 0, 1e-12},
    {"radius", "the spectral radius of J_t is 1", true, VLA_SUMMARY_FIELD(radius_max), 1, 1, exact},
    {"metric-norm", "|J_t| in the norm of M_t is 1", true, VLA_SUMMARY_FIELD(metric_max), 1, 1, exact},
    {"product-bound", "|J_T .. J_1| <= sqrt(det M_T/(lambda0^(d-1) least eigenvalue of M_T)) (margin, decades)", true,
     VLA_SUMMARY_DECADES(bound_margin), -1, 0, 1e-9},
    {"explode", "gradients do not explode: largest |J_t .. J_1|, decades", false, VLA_SUMMARY_DECADES(log_product_max),
     1, 0, decade},
    {"vanish", "gradients do not vanish: |J_T .. J_1|, decades", false, VLA_SUMMARY_DECADES(log_product), -1, 0,
     decade},
};

static bool within(const part *p, const vla_verdict *v)
{
    return p->sign > 0 ? v->worst <= p->expected + p->tolerance : v->worst >= p->expected - p->tolerance;
}

static vla_status rule_part(const vla_trial *trial, const part *p, const char *source, const vla_trace_summary *s,
                            int64_t count, int64_t T, vla_error *error)
{
    vla_verdict v = vla_verdict_of("C8", p->name, source, p->stated);
    vla_spread spread, more;
    vla_status status = vla_spread_of(&spread, s, count, p->field, error);
    v.value = spread.middle;
    v.worst = p->sign > 0 ? spread.most : spread.least;
    v.corrected = p->corrected;
    v.expected = p->expected;
    v.tolerance = p->tolerance;
    v.ruling = within(p, &v) ? VLA_HOLDS : VLA_REFUTED;
    if (!status && !strcmp(p->name, "norm")) { /* exactly 1 also from below */
        status = vla_spread_of(&more, s, count, least_norm, error);
        if (!(more.least >= p->expected - p->tolerance)) v.ruling = VLA_REFUTED;
    }
    if (!status && !strcmp(p->name, "vanish")) {
        status = vla_spread_of(&more, s, count, rate, error);
        snprintf(v.condition, sizeof v.condition, "%.4g a token over T = %lld", more.middle.value, (long long)T);
    }
    return status ? status : vla_verdict_emit(trial, &v, error);
}

static vla_status rule_parts(const vla_trial *trial, const char *source, const vla_trace_summary *s, int64_t count,
                             int64_t T, vla_error *error)
{
    vla_status status = VLA_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++)
        status = rule_part(trial, &parts[i], source, s, count, T, error);
    return status;
}

/* Keys uniform on the sphere and A proportional to I: the product contracts at a rate that is known. The slope between
 * T/2 and T leaves out what the best of all starting directions gains at first. */
static vla_status contraction(const vla_trial *trial, int64_t T, int64_t d, int64_t heads, vla_trace_summary *s,
                              vla_error *error)
{
    const int64_t count = heads * trial->seed_count, half = T / 2;
    vla_source source = {.kind = VLA_SOURCE_ISOTROPIC, .heads = heads, .dk = d, .dv = d, .features = VLA_IDENTITY};
    vla_problem p = *trial->base;
    p.op = VLA_VLA;
    p.dk = p.dv = d;
    p.features = VLA_IDENTITY;
    p.no_normalise = false;
    p.refresh_period = 0;
    double *slope = malloc((size_t)count * sizeof *slope);
    vla_status status = slope ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "C8: out of memory");
    for (int pass = 0; pass < 2 && !status; pass++) {
        p.T = pass ? T : half;
        status = vla_trial_trace(trial, &source, &p, true, s, error);
        for (int64_t i = 0; i < count && !status; i++)
            slope[i] = pass ? (s[i].log_product - slope[i]) / (double)(T - half) : s[i].log_product;
    }
    vla_verdict v = vla_verdict_of("C8", "contraction-rate", "isotropic",
                                   "iid keys on the sphere, u = 0: log|product| a token is "
                                   "(digamma((d-1)/2) - digamma(d/2))/2, about -1/(2d)");
    if (slope) v.value = vla_interval_of(slope, count);
    free(slope);
    if (status) return status;
    v.worst = v.value.value;
    v.corrected = true;
    v.expected = vla_contraction_rate(d);
    v.tolerance = 0.1 * fabs(v.expected);
    v.ruling = fabs(v.value.value - v.expected) <= v.tolerance ? VLA_HOLDS : VLA_REFUTED;
    return vla_verdict_emit(trial, &v, error);
}

static vla_status adversary_verdict(const vla_trial *trial, vla_goal goal, int64_t T, int64_t d, vla_error *error)
{
    vla_witness w;
    const bool single = goal == VLA_GOAL_JACOBIAN;
    const double unit = vla_goal_unit(goal);
    vla_verdict v = vla_verdict_of("C8", single ? "norm" : "explode", "adversary",
                                   single ? "|J_t|_2 = 1 at every step"
                                          : "gradients do not explode: largest |J_t .. J_1|, decades");
    vla_status status = vla_trial_witness(trial, goal, VLA_VLA, T, d, &w, v.replay, sizeof v.replay, error);
    if (status) return status;
    v.expected = single ? 1 : 0;
    v.tolerance = single ? exact : decade;
    v.worst = w.value / unit;
    v.value = (vla_interval){v.worst, NAN, NAN, 1};
    v.ruling = v.worst <= v.expected + v.tolerance ? VLA_HOLDS : VLA_REFUTED;
    snprintf(v.condition, sizeof v.condition, "d = %lld, T = %lld; best of random inputs %.4g, no input exceeds %.6g",
             (long long)d, (long long)T, w.random_value / unit, w.bound_value / unit);
    status = vla_verdict_emit(trial, &v, error);
    if (!status) {
        vla_verdict c = vla_verdict_of("C8", single ? "norm-bound" : "polynomial-bound", "adversary",
                                       single ? "|J_t| <= (1 + sqrt(5 - 8 sqrt(K)/(1 + K)))/2 < 1.6181, "
                                                "K = 1 + t/(d lambda0): attained"
                                              : "|J_T .. J_1| <= (1 + T/(d (d-1) lambda0))^((d-1)/2): decades of "
                                                "room left by the adversary");
        c.corrected = true;
        c.worst = (w.bound_value - w.value) / unit;
        c.value = (vla_interval){c.worst, NAN, NAN, 1};
        c.expected = 0;
        c.tolerance = 1e-9;
        c.ruling = c.worst >= -c.tolerance ? VLA_HOLDS : VLA_REFUTED;
        status = vla_verdict_emit(trial, &c, error);
    }
    vla_witness_destroy(&w);
    return status;
}

vla_status vla_claim_unit_norm(const vla_trial *trial, vla_error *error)
{
    const int64_t T = trial->T ? trial->T : 4000, d = trial->d ? trial->d : 64, heads = trial->heads ? trial->heads : 4;
    const int64_t most =
        (trial->tensors && trial->tensors->heads > heads ? trial->tensors->heads : heads) * trial->seed_count;
    vla_trace_summary *s = calloc((size_t)most, sizeof *s);
    if (!s) return vla_fail(error, VLA_ERR_MEMORY, "C8: out of memory");
    vla_source source;
    vla_problem problem;
    vla_status status = VLA_OK;
    bool isotropic = false;
    for (int i = 0; !status && vla_trial_source(trial, i, heads, d, VLA_VLA, T, &source, &problem); i++) {
        problem.no_normalise = false;
        isotropic = isotropic || source.kind == VLA_SOURCE_ISOTROPIC;
        status = vla_trial_trace(trial, &source, &problem, true, s, error);
        if (!status)
            status = rule_parts(trial, vla_trial_source_name(trial, &source), s,
                                source.heads * vla_trial_seeds(trial, &source), problem.T, error);
    }
    if (!status && isotropic && d > 1 && T > 1 && vla_trial_wants(trial, "contraction-rate"))
        status = contraction(trial, T, d, heads, s, error);
    free(s);
    if (status || !trial->adversary) return status;
    const int64_t worst_d = trial->d ? trial->d : 8, worst_T = trial->T ? trial->T : 1680;
    status = adversary_verdict(trial, VLA_GOAL_JACOBIAN, worst_T, worst_d, error);
    if (!status) status = adversary_verdict(trial, VLA_GOAL_PRODUCT, worst_T, worst_d, error);
    return status;
}

enum { UNNORMALISED_WIDTHS = 4 };
static const int64_t widths[UNNORMALISED_WIDTHS] = {32, 64, 96, 128};

static vla_status unnormalised_row(const vla_trial *trial, int64_t d, double lambda0, int64_t T, const char *source,
                                   const vla_interval *norm, const vla_interval *norms, const vla_interval *product,
                                   vla_error *error)
{
    vla_record *r = vla_record_create("unnormalised");
    if (!r) return vla_fail(error, VLA_ERR_MEMORY, "C9: out of memory");
    vla_record_string(r, "source", source);
    vla_record_int(r, "d", d);
    vla_record_real(r, "lambda0", lambda0);
    vla_record_int(r, "T", T);
    vla_record_real(r, "sigma_mean", norm->value);
    vla_record_real(r, "log10_product_of_norms", norms->value);
    vla_record_real(r, "log10_product_of_norms_lo", norms->lo);
    vla_record_real(r, "log10_product_of_norms_hi", norms->hi);
    vla_record_real(r, "log10_norm_of_product", product->value);
    vla_record_real(r, "log10_norm_of_product_lo", product->lo);
    vla_record_real(r, "log10_norm_of_product_hi", product->hi);
    return trial->emit(trial->context, r, error);
}

static vla_status unnormalised_verdicts(const vla_trial *trial, const char *source, const double *step,
                                        const vla_interval *norms, const vla_interval *product, vla_error *error)
{
    double d[UNNORMALISED_WIDTHS], exponent[1];
    for (int i = 0; i < UNNORMALISED_WIDTHS; i++) d[i] = (double)widths[i];
    vla_verdict v = vla_verdict_of("C9", "norm", source,
                                   "|J_t| grows in proportion to d/lambda0: exponent in d of mean |J_t| + 1 is 1");
    exponent[0] = vla_log_slope(d, step, UNNORMALISED_WIDTHS, 1);
    v.value = vla_interval_of(exponent, 1);
    v.worst = exponent[0];
    v.expected = 1;
    v.tolerance = 0.1;
    v.ruling = fabs(exponent[0] - 1) <= v.tolerance ? VLA_HOLDS : VLA_REFUTED;
    vla_status status = vla_verdict_emit(trial, &v, error);
    if (status) return status;
    v = vla_verdict_of("C9", "product", source,
                       "gradients grow by 1e32 in 25 steps, d = 96: norm of the product, decades");
    v.value = product[2];
    v.worst = product[2].value;
    v.expected = 32;
    v.tolerance = 1.5;
    const bool of_product = fabs(product[2].value - 32) <= v.tolerance, of_norms = fabs(norms[2].value - 32) <= 1.5;
    v.ruling = of_product ? VLA_HOLDS : of_norms ? VLA_HOLDS_IF : VLA_REFUTED;
    if (v.ruling == VLA_HOLDS_IF)
        snprintf(v.condition, sizeof v.condition,
                 "the product of the norms is meant (10^%.1f); the norm of the product is 10^%.1f", norms[2].value,
                 product[2].value);
    return vla_verdict_emit(trial, &v, error);
}

vla_status vla_claim_unnormalised(const vla_trial *trial, vla_error *error)
{
    const int64_t heads = trial->heads ? trial->heads : 8, T = 25, count = heads * trial->seed_count;
    vla_trace_summary *s = calloc((size_t)count, sizeof *s);
    if (!s) return vla_fail(error, VLA_ERR_MEMORY, "C9: out of memory");
    vla_source source;
    vla_problem problem;
    vla_status status = VLA_OK;
    for (int i = 0; !status && i < trial->kind_count; i++) {
        double step[UNNORMALISED_WIDTHS];
        vla_interval norms[UNNORMALISED_WIDTHS], product[UNNORMALISED_WIDTHS];
        for (int w = 0; !status && w < UNNORMALISED_WIDTHS; w++) {
            if (!vla_trial_source(trial, i, heads, widths[w], VLA_VLA, T, &source, &problem)) goto out;
            problem.no_normalise = true;
            problem.lambda0 = trial->lambda0_given ? trial->base->lambda0 : 10;
            status = vla_trial_trace(trial, &source, &problem, true, s, error);
            if (status) break;
            vla_spread norm, of_norms, of_product;
            status = vla_spread_of(&norm, s, count, mean_norm, error);
            if (!status) status = vla_spread_of(&of_norms, s, count, norms_decades, error);
            if (!status) status = vla_spread_of(&of_product, s, count, product_decades, error);
            if (status) break;
            norms[w] = of_norms.middle;
            product[w] = of_product.middle;
            step[w] = norm.middle.value + 1; /* |kf|^2/lambda0 - 1, plus 1 */
            status = unnormalised_row(trial, widths[w], problem.lambda0, T, vla_source_name(source.kind), &norm.middle,
                                      &norms[w], &product[w], error);
        }
        if (!status)
            status = unnormalised_verdicts(trial, vla_source_name(trial->kinds[i]), step, norms, product, error);
    }
out: /* all tried, or interrupted */
    free(s);
    return status;
}
