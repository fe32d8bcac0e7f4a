#include "lib/analysis/survey.h"
#include "lib/analysis/derivative.h"
#include "lib/analysis/spread.h"
#include "lib/base/names.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One case: an operator on a source at one shape and set of parameters. */
typedef struct job {
    const vla_survey *survey;
    vla_problem problem;
    vla_source source;
    const char *source_name, *replay;
    char label[200], key[20];
    int64_t seed; /* of the rows that come now */
    vla_status status;
    vla_error *error;
} job;

static vla_status name_job(job *j, vla_error *error)
{
    const vla_problem *p = &j->problem;
    int at = snprintf(j->label, sizeof j->label, "%s/jacobian/%s/B1_H%lld_T%lld_K%lld_V%lld_%s_l%g", vla_op_name(p->op),
                      j->source_name, (long long)j->source.heads, (long long)p->T, (long long)p->dk, (long long)p->dv,
                      vla_features_name(p->features), p->lambda0);
    if (p->refresh_period > 0 && at < (int)sizeof j->label)
        at += snprintf(j->label + at, sizeof j->label - (size_t)at, "_r%lld", (long long)p->refresh_period);
    if (p->no_normalise && at < (int)sizeof j->label)
        snprintf(j->label + at, sizeof j->label - (size_t)at, "_unnormalised");
    static const char *const fields[] = {"case", "input", "refresh_eps", "v_mean", "every", "seeds", NULL};
    const vla_trial *t = j->survey->trial;
    vla_record *r = vla_record_create("key");
    double *seeds = malloc((size_t)t->seed_count * sizeof *seeds);
    for (int64_t i = 0; seeds && i < t->seed_count; i++) seeds[i] = (double)t->seeds[i];
    const bool made = r && seeds;
    if (made) {
        vla_record_string(r, "case", j->label);
        vla_record_string(r, "input", t->input);
        vla_record_real(r, "refresh_eps", p->refresh_eps);
        vla_record_real(r, "v_mean", j->survey->v_mean);
        vla_record_int(r, "every", j->survey->every);
        vla_record_reals(r, "seeds", seeds, t->seed_count);
        vla_record_key(r, fields);
        snprintf(j->key, sizeof j->key, "%s", vla_record_text(r, "key", ""));
    }
    free(seeds);
    vla_record_destroy(r);
    return made ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", j->label);
}

static vla_record *start_record(const job *j, const char *kind)
{
    const vla_problem *p = &j->problem;
    vla_record *r = vla_record_create(kind);
    if (!r) return NULL;
    vla_record_string(r, "case", j->label);
    vla_record_string(r, "key", j->key);
    vla_record_string(r, "op", vla_op_name(p->op));
    vla_record_string(r, "source", j->source_name);
    vla_record_int(r, "T", p->T);
    vla_record_int(r, "dk", p->dk);
    vla_record_int(r, "dv", p->dv);
    vla_record_string(r, "features", vla_features_name(p->features));
    vla_record_real(r, "lambda0", p->lambda0);
    vla_record_int(r, "refresh_period", p->refresh_period);
    vla_record_real(r, "refresh_eps", p->refresh_eps);
    vla_record_bool(r, "no_normalise", p->no_normalise);
    return r;
}

static void emit_row(void *context, const vla_trace_row *row)
{
    job *j = context;
    if (j->status || !j->survey->rows) return;
    vla_record *r = start_record(j, "jacobian");
    if (!r) {
        j->status = vla_fail(j->error, VLA_ERR_MEMORY, "%s: out of memory", j->label);
        return;
    }
    vla_record_int(r, "seed", j->seed);
    vla_record_int(r, "head", row->head);
    vla_record_int(r, "t", row->t);
    vla_record_real(r, "sigma", row->sigma);
    vla_record_real(r, "sigma_closed", row->sigma_closed);
    vla_record_real(r, "radius", row->radius);
    vla_record_real(r, "metric_norm", row->metric_norm);
    vla_record_real(r, "c", row->c);
    vla_record_real(r, "gate", row->gate);
    vla_record_real(r, "state_norm", row->state_norm);
    vla_record_real(r, "A_norm", row->A_norm);
    vla_record_real(r, "residual", row->residual);
    vla_record_real(r, "log10_product", vla_decades(row->log_product));
    vla_record_real(r, "growth_rate", row->growth_rate);
    vla_record_real(r, "log10_bound", vla_decades(row->log_bound));
    vla_record_real(r, "log10_bound_sharp", vla_decades(row->log_bound_sharp));
    vla_record_real(r, "log10_sigma_min", vla_decades(row->log_sigma_min));
    vla_record_string(r, "status", row->singular_at ? "singular" : "ok");
    j->status = j->survey->trial->emit(j->survey->trial->context, r, j->error);
}

static bool advance(void *context, int64_t done, int64_t total)
{
    const job *j = context;
    const vla_trial *t = j->survey->trial;
    return !t->progress || t->progress(t->context, j->label, (double)done, (double)total);
}

/* What a summary tells by its worst head and seed: the largest (sign > 0) or the smallest. */
static const struct {
    const char *name;
    vla_summary_field field;
    int sign;
} extremes[] = {
    {"sigma_max", VLA_SUMMARY_FIELD(sigma_max), 1},   {"sigma_min", VLA_SUMMARY_FIELD(sigma_min_norm), -1},
    {"closed_gap", VLA_SUMMARY_FIELD(closed_gap), 1}, {"radius_max", VLA_SUMMARY_FIELD(radius_max), 1},
    {"metric_max", VLA_SUMMARY_FIELD(metric_max), 1}, {"bound_margin", VLA_SUMMARY_FIELD(bound_margin), -1},
    {"c_min", VLA_SUMMARY_FIELD(c_min), -1},          {"state_max", VLA_SUMMARY_FIELD(state_max), 1},
};

/* What it tells by the median over heads and seeds, with its interval. */
static const struct {
    const char *name;
    vla_summary_field field;
} medians[] = {
    {"sigma_head_max", VLA_SUMMARY_FIELD(sigma_max)},
    {"sigma_mean", VLA_SUMMARY_FIELD(sigma_mean)},
    {"log10_product", VLA_SUMMARY_DECADES(log_product)},
    {"growth_rate", VLA_SUMMARY_FIELD(growth_rate)},
    {"log10_product_of_norms", VLA_SUMMARY_DECADES(log_norms)},
    {"log10_bound", VLA_SUMMARY_DECADES(log_bound)},
    {"log10_bound_sharp", VLA_SUMMARY_DECADES(log_bound_sharp)},
    {"log10_sigma_min", VLA_SUMMARY_DECADES(log_sigma_min)},
    {"c_mean", VLA_SUMMARY_FIELD(c_mean)},
    {"state_norm", VLA_SUMMARY_FIELD(state_norm)},
    {"A_norm", VLA_SUMMARY_FIELD(A_norm)},
    {"residual_mean", VLA_SUMMARY_FIELD(residual_mean)},
};

static vla_status put_extremes(vla_record *r, const vla_trace_summary *s, int64_t count, vla_error *error)
{
    vla_status status = VLA_OK;
    for (size_t i = 0; i < sizeof extremes / sizeof *extremes && !status; i++) {
        vla_spread spread;
        status = vla_spread_of(&spread, s, count, extremes[i].field, error);
        vla_record_real(r, extremes[i].name, extremes[i].sign > 0 ? spread.most : spread.least);
    }
    return status;
}

static vla_status put_medians(vla_record *r, const vla_trace_summary *s, int64_t count, vla_error *error)
{
    vla_status status = VLA_OK;
    for (size_t i = 0; i < sizeof medians / sizeof *medians && !status; i++) {
        vla_spread spread;
        char name[64];
        status = vla_spread_of(&spread, s, count, medians[i].field, error);
        vla_record_real(r, medians[i].name, spread.middle.value);
        snprintf(name, sizeof name, "%s_lo", medians[i].name);
        vla_record_real(r, name, spread.middle.lo);
        snprintf(name, sizeof name, "%s_hi", medians[i].name);
        vla_record_real(r, name, spread.middle.hi);
    }
    return status;
}

static vla_status emit_summary(job *j, const vla_trace_summary *s, int64_t count, vla_error *error)
{
    const bool any = count > 0 && s[0].steps > 0;
    int64_t singular = 0;
    vla_record *r = start_record(j, "summary");
    if (!r) return vla_fail(error, VLA_ERR_MEMORY, "summary: out of memory");
    vla_record_int(r, "n", count);
    vla_status status = any ? put_extremes(r, s, count, error) : VLA_OK;
    if (!status && any) status = put_medians(r, s, count, error);
    if (status) {
        vla_record_destroy(r);
        return status;
    }
    for (int64_t i = 0; i < count; i++) singular += s[i].singular_at > 0;
    vla_record_int(r, "singular_heads", singular);
    vla_record_string(r, "status", "ok");
    if (j->replay) vla_record_string(r, "replay", j->replay);
    return j->survey->trial->emit(j->survey->trial->context, r, error);
}

static vla_status emit_histogram(const job *j, const vla_trace_summary *s, int64_t count, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int bin = 0; bin < VLA_C_BINS && !status; bin++) {
        int64_t hits = 0;
        for (int64_t i = 0; i < count; i++) hits += s[i].c_bins[bin];
        vla_record *r = start_record(j, "histogram");
        if (!r) return vla_fail(error, VLA_ERR_MEMORY, "histogram: out of memory");
        vla_record_real(r, "c_lo", (double)bin / VLA_C_BINS);
        vla_record_real(r, "c_hi", (double)(bin + 1) / VLA_C_BINS);
        vla_record_int(r, "count", hits);
        status = j->survey->trial->emit(j->survey->trial->context, r, error);
    }
    return status;
}

static vla_status emit_derivatives(job *j, int64_t *failed, vla_error *error)
{
    const vla_survey *sv = j->survey;
    const int64_t last = j->problem.T - 1, at[3] = {0, last / 2, last};
    vla_status status = VLA_OK;
    for (int f = 0; f < sv->form_count && !status; f++)
        for (int i = 0; i < 3 && at[i] >= 0 && !status; i++) {
            if (i > 0 && at[i] == at[i - 1]) continue;
            vla_record *r = start_record(j, "derivative");
            if (!r) return vla_fail(error, VLA_ERR_MEMORY, "derivative: out of memory");
            double gap = NAN;
            vla_error inner = {VLA_OK, ""};
            const vla_status run = vla_derivative_gap(&j->problem, &j->source, 0, at[i], sv->trial->exec, sv->forms[f],
                                                      sv->dtype, &gap, &inner);
            const double limit = vla_derivative_limit(sv->dtype);
            const bool skipped = run == VLA_ERR_UNSUPPORTED, ok = run == VLA_OK && gap <= limit;
            *failed += !skipped && !ok;
            vla_record_string(r, "form", sv->forms[f] == VLA_BEST ? "best" : vla_form_name(sv->forms[f]));
            vla_record_string(r, "dtype", vla_dtype_name(sv->dtype));
            vla_record_int(r, "t", at[i] + 1);
            vla_record_real(r, "gap", gap);
            vla_record_real(r, "limit", limit);
            vla_record_string(r, "status", skipped ? "skip" : ok ? "ok" : "fail");
            vla_record_string(r, "reason", run ? inner.message : NULL);
            status = sv->trial->emit(sv->trial->context, r, error);
        }
    return status;
}

static vla_status run_job(job *j, int64_t *failed, vla_error *error)
{
    const vla_survey *sv = j->survey;
    vla_status status = name_job(j, error);
    if (status) return status;
    if (sv->wanted && !sv->wanted(sv->trial->context, j->label, j->key)) return VLA_OK;
    const int64_t heads = j->source.heads, seeds = vla_trial_seeds(sv->trial, &j->source);
    vla_trace_summary *s = calloc((size_t)(heads * seeds), sizeof *s);
    if (!s) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", j->label);
    j->error = error;
    for (int64_t i = 0; i < seeds && !status; i++) {
        if (j->source.kind != VLA_SOURCE_TENSORS) j->source.seed = (uint64_t)sv->trial->seeds[i];
        j->seed = sv->trial->seeds[i];
        const vla_trace_options o = {.problem = &j->problem,
                                     .source = &j->source,
                                     .every = sv->every,
                                     .dense = true,
                                     .pool = sv->trial->pool,
                                     .row = emit_row,
                                     .advance = advance,
                                     .context = j};
        vla_error inner = {VLA_OK, ""};
        status = vla_trace_run(&o, s + i * heads, &inner);
        if (status) vla_fail(error, status, "%s: %s", j->label, inner.message);
        if (!status) status = j->status;
    }
    const bool whole = s[heads * seeds - 1].steps == j->problem.T; /* not when interrupted */
    if (!status && whole) status = emit_summary(j, s, heads * seeds, error);
    if (!status && whole && j->problem.op == VLA_VLA && j->problem.T > 0)
        status = emit_histogram(j, s, heads * seeds, error);
    if (!status && whole) status = emit_derivatives(j, failed, error);
    free(s);
    return status;
}

/* Refresh and lambda0 apply to some operators only: one case of the others is enough. */
static bool distinct(vla_op op, int64_t lambda, int64_t refresh)
{
    return (lambda == 0 || vla_op_has_A(op)) && (refresh == 0 || op == VLA_VLA);
}

static vla_status run_shape(const vla_survey *sv, int64_t T, int64_t d, int64_t *failed, vla_error *error)
{
    const vla_trial *trial = sv->trial;
    const int64_t heads = trial->heads ? trial->heads : 4;
    vla_status status = VLA_OK;
    for (int op = 0; op < sv->op_count; op++)
        for (int64_t l = 0; l < sv->lambda0_count; l++)
            for (int64_t r = 0; r < sv->refresh_count; r++) {
                if (!distinct(sv->ops[op], l, r)) continue;
                job j = {.survey = sv};
                for (int i = 0;
                     !status && vla_trial_source(trial, i, heads, sv->dk[d], sv->ops[op], T, &j.source, &j.problem);
                     i++) {
                    if (j.source.kind == VLA_SOURCE_TENSORS && d > 0) continue; /* has its own width */
                    j.source_name = vla_trial_source_name(trial, &j.source);
                    if (j.source.kind != VLA_SOURCE_TENSORS) j.source.dv = j.problem.dv = sv->dv[d];
                    j.source.v_mean = sv->v_mean;
                    j.problem.lambda0 = sv->lambda0[l];
                    j.problem.refresh_period = sv->ops[op] == VLA_VLA ? sv->refresh[r] : 0;
                    j.problem.no_normalise = trial->base->no_normalise && sv->ops[op] == VLA_VLA;
                    status = run_job(&j, failed, error);
                }
                if (status || !vla_trial_go_on(trial, 1, 1)) return status;
            }
    return status;
}

vla_status vla_survey_run(const vla_survey *survey, int64_t *failed, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t t = 0; t < survey->T_count && !status; t++)
        for (int64_t d = 0; d < survey->d_count && !status; d++)
            status = run_shape(survey, survey->T[t], d, failed, error);
    return status;
}

static vla_status emit_witness(const job *j, vla_goal goal, const vla_witness *w, vla_error *error)
{
    const vla_trial *trial = j->survey->trial;
    vla_record *r = start_record(j, "witness");
    if (!r) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", j->label);
    const double unit = vla_goal_unit(goal);
    vla_record_string(r, "goal", vla_goal_name(goal));
    vla_record_string(r, "quantity", vla_goal_field(goal));
    vla_record_real(r, "value", w->value / unit);
    vla_record_real(r, "random_value", w->random_value / unit);
    vla_record_real(r, "bound_value", w->bound_value / unit);
    vla_record_real(r, "input_bound", trial->bound);
    vla_record_int(r, "turns", w->turns);
    vla_record_string(r, "replay", j->replay);
    return trial->emit(trial->context, r, error);
}

vla_status vla_survey_adversary(const vla_survey *sv, vla_goal goal, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t t = 0; t < sv->T_count && !status; t++)
        for (int64_t d = 0; d < sv->d_count && !status; d++) {
            vla_witness w;
            char replay[1100], name[40];
            snprintf(name, sizeof name, "adversary-%s", vla_goal_name(goal));
            status = vla_trial_witness(sv->trial, goal, VLA_VLA, sv->T[t], sv->dk[d], &w, replay, sizeof replay, error);
            if (status) return status;
            job j = {.survey = sv,
                     .source_name = name,
                     .source = vla_witness_source(&w),
                     .problem = *sv->trial->base,
                     .replay = replay};
            j.problem.op = VLA_VLA;
            j.problem.B = j.problem.H = 1;
            j.problem.T = sv->T[t];
            j.problem.dk = j.problem.dv = sv->dk[d];
            int64_t failed = 0;
            status = run_job(&j, &failed, error);
            if (!status && vla_trial_go_on(sv->trial, 1, 1)) status = emit_witness(&j, goal, &w, error);
            vla_witness_destroy(&w);
        }
    return status;
}

/* Sums of log norms and the log-norm of the product after each step, of the first head. */
typedef struct growth_rows {
    const vla_trial *trial;
    int64_t d;
    double lambda0, norms;
    vla_status status;
    vla_error *error;
} growth_rows;

static void growth_row(void *context, const vla_trace_row *row)
{
    growth_rows *g = context;
    g->norms += log(row->sigma);
    if (g->status) return;
    vla_record *r = vla_record_create("growth");
    if (!r) {
        g->status = vla_fail(g->error, VLA_ERR_MEMORY, "growth: out of memory");
        return;
    }
    vla_record_int(r, "d", g->d);
    vla_record_real(r, "lambda0", g->lambda0);
    vla_record_int(r, "t", row->t);
    vla_record_real(r, "sigma", row->sigma);
    vla_record_real(r, "log10_product_of_norms", vla_decades(g->norms));
    vla_record_real(r, "log10_norm_of_product", vla_decades(row->log_product));
    g->status = g->trial->emit(g->trial->context, r, g->error);
}

vla_status vla_survey_unnormalised(const vla_trial *trial, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t d = 32; d <= 128 && !status; d += 32) {
        growth_rows g = {.trial = trial, .d = d, .error = error};
        vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 25, d);
        p.no_normalise = true;
        g.lambda0 = p.lambda0 = trial->lambda0_given ? trial->base->lambda0 : 10;
        const vla_source source = {.kind = VLA_SOURCE_PAPER,
                                   .heads = 1,
                                   .dk = d,
                                   .dv = d,
                                   .features = p.features,
                                   .seed = (uint64_t)trial->seeds[0]};
        vla_trace_summary s;
        const vla_trace_options o = {.problem = &p,
                                     .source = &source,
                                     .every = 1,
                                     .dense = true,
                                     .pool = trial->pool,
                                     .row = growth_row,
                                     .context = &g};
        status = vla_trace_run(&o, &s, error);
        if (!status) status = g.status;
    }
    return status;
}
