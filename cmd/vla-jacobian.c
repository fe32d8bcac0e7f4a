/* vla-jacobian: Jacobians, their products and the state of an operator, step by step; the paper's propositions on
 * trial. */
#include "cmd/jacobian.h"
#include "lib/analysis/claims.h"
#include "lib/analysis/survey.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/cli/progress.h"
#include "lib/op/inputs.h"
#include "lib/op/registry.h"

#include <cblas.h>
#include <fnmatch.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIGURE_T = 30000 };

typedef struct session { /* one run of the program */
    const jacobian_options *o;
    const char *program;
    vla_report *report;
    vla_records old, all; /* --from or --resume; what is printed, compared and plotted */
    vla_progress progress;
    vla_exec *exec;
    vla_inputs inputs;
    vla_source tensors;
    vla_source_kind kinds[VLA_SOURCES];
    vla_problem base;
    vla_trial trial;
    int64_t seed, run, passed, skipped, failed, refuted;
    double *lambda0;
    char *replay_options; /* each with a space before it */
    bool table, interrupted, adversary;
} session;

static vla_status add_row(void *context, vla_record *row, vla_error *error)
{
    session *s = context;
    if (!row) return vla_fail(error, VLA_ERR_MEMORY, "out of memory for a row");
    const char *kind = vla_record_text(row, "kind", ""), *status = vla_record_text(row, "status", "ok");
    if (!strcmp(kind, "summary") || !strcmp(kind, "verdict") || !strcmp(kind, "derivative")) {
        s->run++;
        s->passed += !strcmp(status, "ok");
        s->skipped += !strcmp(status, "skip");
        s->failed += !strcmp(status, "fail");
    }
    s->refuted += !strcmp(kind, "verdict") && !strcmp(vla_record_text(row, "verdict", ""), "refuted");
    return vla_report_keep(s->report, &s->all, row, error);
}

static bool matches(const vla_common *c, const char *label)
{
    if (c->cases.count == 0 && c->filters.count == 0) return true;
    for (int64_t i = 0; i < c->cases.count; i++)
        if (!strcmp(c->cases.values[i], label)) return true;
    for (int64_t i = 0; i < c->filters.count; i++)
        if (!fnmatch(c->filters.values[i], label, 0)) return true;
    return false;
}

static bool is_wanted(void *context, const char *label, const char *key)
{
    session *s = context;
    if (!matches(&s->o->common, label)) return false;
    if (s->o->common.dry_run) {
        printf("%s\n", label);
        return false;
    }
    for (int64_t i = 0; i < s->old.count; i++)
        if (!strcmp(vla_record_text(s->old.rows[i], "kind", ""), "summary") &&
            !strcmp(vla_record_text(s->old.rows[i], "key", ""), key))
            return false;
    return true;
}

static bool step(void *context, const char *label, double done, double total)
{
    session *s = context;
    vla_progress_update(&s->progress, label ? label : "", done, total);
    s->interrupted = s->interrupted || vla_interrupted();
    return !s->interrupted;
}

static void note(void *context, const char *line)
{
    vla_progress_note(&((session *)context)->progress, "vla-jacobian: %s", line);
}

/* --- from options to a trial --- */

static void read_sources(session *s)
{
    const vla_strings *given = &s->o->sources;
    const bool everything = jacobian_everything(s->o);
    s->trial.kind_count = 0;
    for (int k = 0; k < VLA_SOURCE_TENSORS; k++) {
        bool wanted = everything || (given->count == 0 && !s->o->common.input && k == VLA_SOURCE_PAPER);
        for (int64_t i = 0; i < given->count; i++)
            wanted = wanted || !strcmp(given->values[i], "all") ||
                     !strcmp(given->values[i], vla_source_name((vla_source_kind)k));
        if (wanted) s->kinds[s->trial.kind_count++] = (vla_source_kind)k;
    }
    s->adversary = jacobian_adversary(s->o);
}

/* Claims are tried on k, v and u: a NaN among them is told with its place, rather than where it first does harm. */
static vla_status check_finite(const vla_inputs *in, const char *directory, const vla_range *T, vla_error *error)
{
    const vla_input used[] = {VLA_IN_K, VLA_IN_V, VLA_IN_U};
    const int64_t tokens = T->count ? T->values[0] : in->Tk;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        const double *data = in->tensor[used[i]].data;
        const int64_t width = used[i] == VLA_IN_V ? in->dv : in->dk;
        for (int64_t row = 0; data && row < in->B * in->H * in->Tk; row++)
            for (int64_t c = 0; c < width && row % in->Tk < tokens; c++)
                if (!isfinite(data[row * width + c]))
                    return vla_fail(error, VLA_ERR_NUMERIC,
                                    "%s: %s holds %s at head %lld, token %lld, element %lld; accepted: finite numbers",
                                    directory, vla_input_name(used[i]),
                                    isnan(data[row * width + c]) ? "NaN" : "an infinity", (long long)(row / in->Tk),
                                    (long long)(row % in->Tk), (long long)c);
    }
    return VLA_OK;
}

static vla_status read_input(session *s, vla_error *error)
{
    const char *directory = s->o->common.input;
    if (!directory) return VLA_OK;
    const vla_status status = vla_inputs_load_directory(&s->inputs, directory, VLA_F64, error);
    if (status) return status;
    const vla_inputs *in = &s->inputs;
    if (in->T != in->Tk)
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: q has %lld tokens, k has %lld: a state needs as many", directory,
                        (long long)in->T, (long long)in->Tk);
    s->tensors = (vla_source){.kind = VLA_SOURCE_TENSORS,
                              .heads = in->B * in->H,
                              .dk = in->dk,
                              .dv = in->dv,
                              .T = in->Tk,
                              .k = in->tensor[VLA_IN_K].data,
                              .v = in->tensor[VLA_IN_V].data,
                              .u = in->tensor[VLA_IN_U].data,
                              .b = in->tensor[VLA_IN_B].data,
                              .g = in->gate == VLA_GATE_TOKEN ? in->tensor[VLA_IN_G].data : NULL};
    for (int64_t i = 0; i < s->o->common.T.count; i++)
        if (s->o->common.T.values[i] > in->Tk)
            return vla_fail(error, VLA_ERR_ARGUMENT, "--T %lld: %s has %lld tokens",
                            (long long)s->o->common.T.values[i], directory, (long long)in->Tk);
    const vla_status finite = s->o->verify.count ? check_finite(in, directory, &s->o->common.T, error) : VLA_OK;
    if (finite) return finite;
    if (in->gate == VLA_GATE_ROW) note(s, "warning: g has a gate per row of S, which has one Jacobian a row: not used");
    return VLA_OK;
}

/* Options that change numbers, as they were given: every replay line repeats them. */
static vla_status replay_options(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    const struct {
        const char *name;
        const vla_range *range;
    } ranges[] = {{"T", &c->T}, {"d", &c->d}, {"H", &c->H}, {"seeds", &c->seeds}};
    size_t size = 0;
    FILE *to = open_memstream(&s->replay_options, &size);
    if (!to) return vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int64_t n = 0; n < ranges[i].range->count; n++) {
            if (n == 0) fprintf(to, " --%s ", ranges[i].name);
            fprintf(to, "%s%lld", n ? "," : "", (long long)ranges[i].range->values[n]);
        }
    if (c->seed != 42) fprintf(to, " --seed %lld", (long long)c->seed);
    if (c->lambda0_given) fprintf(to, " --lambda0 %.17g", c->lambda0);
    if (c->features) fprintf(to, " --features %s", c->features);
    if (c->refresh_period)
        fprintf(to, " --refresh-period %lld --refresh-eps %.17g", (long long)c->refresh_period, c->refresh_eps);
    return fclose(to) == 0 ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "out of memory");
}

static vla_status set_trial(session *s, vla_error *error)
{
    const jacobian_options *o = s->o;
    const vla_common *c = &o->common;
    read_sources(s);
    vla_status status = read_input(s, error);
    s->base = vla_problem_default(VLA_VLA, 1, 1, 1, 1);
    if (!status) status = vla_common_problem(c, &s->base, error);
    if (!status && c->dk.count + c->dv.count > 0 && o->verify.count)
        status = vla_fail(error, VLA_ERR_ARGUMENT, "--dk, --dv: claims are tried with square states; use --d");
    if (status) return status;
    if ((status = replay_options(s, error))) return status;
    s->seed = c->seed;
    const vla_trial sources = s->trial;
    s->trial = (vla_trial){.program = s->program,
                           .options = s->replay_options,
                           .base = &s->base,
                           .features_given = c->features != NULL,
                           .lambda0_given = c->lambda0_given,
                           .T = c->T.count ? c->T.values[0] : 0,
                           .d = c->d.count ? c->d.values[0] : 0,
                           .heads = c->H.count ? c->H.values[0] : 0,
                           .seeds = c->seeds.count ? c->seeds.values : &s->seed,
                           .seed_count = c->seeds.count ? c->seeds.count : 1,
                           .kinds = s->kinds,
                           .kind_count = sources.kind_count,
                           .tensors = c->input ? &s->tensors : NULL,
                           .input = c->input,
                           .part = o->part,
                           .adversary = s->adversary,
                           .bound = o->bound,
                           .witness = o->witness,
                           .pool = vla_exec_pool(s->exec),
                           .exec = s->exec,
                           .progress = step,
                           .emit = add_row,
                           .context = s};
    return VLA_OK;
}

static vla_status read_lambda0(session *s, int64_t *count, vla_error *error)
{
    const vla_strings *list = &s->o->lambda0s;
    *count = list->count ? list->count : 1;
    s->lambda0 = calloc((size_t)*count, sizeof *s->lambda0);
    if (!s->lambda0) return vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    s->lambda0[0] = s->base.lambda0;
    for (int64_t i = 0; i < list->count; i++) {
        char *end = NULL;
        s->lambda0[i] = strtod(list->values[i], &end);
        if (!*list->values[i] || *end || !(s->lambda0[i] > 0) || !isfinite(s->lambda0[i]))
            return vla_fail(error, VLA_ERR_ARGUMENT, "--lambda0s: '%s': positive numbers are accepted",
                            list->values[i]);
    }
    return VLA_OK;
}

/* --- what runs --- */

static vla_status adversaries(session *s, const vla_survey *survey, vla_error *error)
{
    const vla_strings *given = &s->o->goals;
    vla_status status = VLA_OK;
    for (int goal = 0; goal < VLA_GOALS && !status && !s->interrupted; goal++) {
        bool wanted = given->count == 0;
        for (int64_t i = 0; i < given->count; i++)
            wanted =
                wanted || !strcmp(given->values[i], "all") || !strcmp(given->values[i], vla_goal_name((vla_goal)goal));
        if (wanted) status = vla_survey_adversary(survey, (vla_goal)goal, error);
    }
    return status;
}

/* A claim (or a file) has given this operator's growth already. */
static bool has_states(const session *s, vla_op op)
{
    for (int64_t i = 0; i < s->all.count; i++)
        if (!strcmp(vla_record_text(s->all.rows[i], "kind", ""), "state") &&
            !strcmp(vla_record_text(s->all.rows[i], "op", ""), vla_op_name(op)))
            return true;
    return false;
}

static vla_status measure(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    static const vla_op every_op[] = {VLA_VLA, VLA_LINEAR, VLA_DELTA, VLA_DECAY, VLA_RLS};
    static const vla_form naive = VLA_NAIVE;
    static const int64_t usual_T = 1000, none = 0;
    vla_op ops[VLA_OPS];
    vla_form forms[VLA_FORMS + 1];
    vla_dtype dtypes[VLA_DTYPES];
    int64_t dk[256], dv[256], d_count = 0, lambda0_count = 0;
    int op_count = 0;
    const int given = vla_common_ops(c, ops), form_count = vla_common_forms(c, forms);
    for (int i = 0; i < given; i++) /* "all" holds softmax, which has no state */
        if (ops[i] != VLA_SOFTMAX || given == 1) ops[op_count++] = ops[i];
    while (d_count < 256 && vla_common_width(c, d_count, &dk[d_count], &dv[d_count])) d_count++;
    vla_status status = read_lambda0(s, &lambda0_count, error);
    if (status) return status;
    const vla_survey survey = {.trial = &s->trial,
                               .ops = op_count ? ops : every_op,
                               .op_count = op_count  ? op_count
                                           : c->plot ? 5
                                                     : 1,
                               .T = c->T.count ? c->T.values
                                    : c->input ? &s->tensors.T
                                               : &usual_T,
                               .T_count = c->T.count ? c->T.count : 1,
                               .dk = dk,
                               .dv = dv,
                               .d_count = d_count,
                               .lambda0 = s->lambda0,
                               .lambda0_count = lambda0_count,
                               .refresh = s->o->refresh_periods.count ? s->o->refresh_periods.values
                                          : c->refresh_period         ? &c->refresh_period
                                                                      : &none,
                               .refresh_count = s->o->refresh_periods.count ? s->o->refresh_periods.count : 1,
                               .every = s->o->every,
                               .rows = true,
                               .forms = form_count ? forms : &naive,
                               .form_count = form_count ? form_count : 1,
                               .dtype = vla_common_dtypes(c, dtypes) ? dtypes[0] : VLA_F64,
                               .v_mean = s->o->v_mean,
                               .wanted = is_wanted};
    int64_t failed = 0;
    if (s->o->refresh_periods.count) s->base.refresh_eps = c->refresh_eps;
    status = vla_survey_run(&survey, &failed, error);
    if (!status && s->adversary) status = adversaries(s, &survey, error);
    if (status || !c->plot || s->interrupted || c->dry_run) return status;
    vla_op missing[VLA_OPS];
    int missing_count = 0;
    for (int i = 0; i < survey.op_count; i++)
        if (!has_states(s, survey.ops[i])) missing[missing_count++] = survey.ops[i];
    status = vla_survey_unnormalised(&s->trial, error);
    return status ? status : vla_survey_states(&s->trial, missing, missing_count, FIGURE_T, error);
}

static vla_status keep_old(session *s, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; i < s->old.count && !status; i++) {
        if (!strcmp(vla_record_text(s->old.rows[i], "kind", ""), "meta")) continue;
        if (s->o->from)
            status = add_row(s, vla_record_copy(s->old.rows[i]), error);
        else if (!vla_records_copy(&s->all, s->old.rows[i]))
            status = vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    }
    return status;
}

static vla_status read_old(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    if (s->o->from) return vla_records_read(&s->old, s->o->from, error);
    return vla_common_earlier(c, &s->old, error);
}

static void dry_claims(const session *s)
{
    for (const vla_claim *c = vla_claims; c->id; c++)
        for (int64_t i = 0; i < s->o->verify.count; i++)
            if (!strcmp(s->o->verify.values[i], c->id) || !strcmp(s->o->verify.values[i], "all"))
                printf("%s: %s\n", c->id, c->stated);
}

static vla_status judge(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    int64_t differences = 0;
    vla_status status = VLA_OK;
    if (c->expect) status = vla_claims_compare(&s->all, c->expect, &differences, note, s, error);
    s->failed += differences;
    const char *kind = s->o->verify.count ? "verdict" : "summary";
    for (int64_t i = 0; i < s->o->wants.count && !status; i++) {
        int64_t off = 0;
        status = vla_claims_want(&s->all, kind, s->o->wants.values[i], &off, note, s, error);
        s->failed += off;
    }
    if (!status && c->plot) status = vla_jacobian_figures(&s->all, c->plot, note, s, error);
    return status;
}

static vla_status open_session(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    const int threads = c->threads.count ? (int)c->threads.values[0] : vla_cpu_count();
    s->progress = vla_progress_start(c->quiet);
    vla_status status = jacobian_check(s->o, error);
    if (!status) status = read_old(s, error);
    vla_isa isa = VLA_ISA_AUTO;
    if (strcmp(c->isa, "auto") != 0) vla_isa_parse(c->isa, &isa);
    if (!status) status = vla_exec_create(&s->exec, threads, isa, error);
    if (!status) status = set_trial(s, error);
    vla_record *meta = status ? NULL : vla_meta(threads);
    if (!status) status = vla_common_report(c, meta, &s->report, &s->table, error);
    vla_record_destroy(meta);
    return status;
}

static vla_status run(session *s, vla_error *error)
{
    const jacobian_options *o = s->o;
    vla_status status = open_session(s, error);
    if (!status) status = keep_old(s, error);
    if (!status && o->common.dry_run && o->verify.count)
        dry_claims(s);
    else if (!status && !o->from)
        status =
            o->verify.count ? vla_claims_run(&s->trial, o->verify.values, o->verify.count, error) : measure(s, error);
    vla_progress_clear(&s->progress);
    if (o->common.dry_run) return status ? status : vla_stream_flush(stdout, "stdout", error);
    if (s->report && s->table && s->all.count) vla_jacobian_tables(stdout, &s->all, o->common.verbose);
    if (!status) status = vla_stream_flush(stdout, "stdout", error);
    if (!status && !s->interrupted && (o->from ? s->run == 0 : s->all.count == 0))
        status = o->from ? vla_fail(error, VLA_ERR_FILE, "%s: holds no records of vla-jacobian", o->from)
                         : vla_fail(error, VLA_ERR_ARGUMENT, "nothing to measure: no case matches %s",
                                    o->part ? "--part" : "--filter or --case");
    if (!status && !s->interrupted) status = judge(s, error);
    return status;
}

static int close_session(session *s, vla_status status, vla_error *error)
{
    const vla_common *c = &s->o->common;
    vla_progress_clear(&s->progress);
    const vla_status closed = s->report ? vla_report_close(s->report, status ? NULL : error) : VLA_OK;
    if (!status) status = closed;
    vla_records_clear(&s->old);
    vla_records_clear(&s->all);
    vla_inputs_destroy(&s->inputs);
    vla_exec_destroy(s->exec);
    free(s->lambda0);
    free(s->replay_options);
    if (status) fprintf(stderr, "vla-jacobian: %s\n", error->message);
    if (!status && s->interrupted) fprintf(stderr, "vla-jacobian: interrupted\n");
    if (!status && !c->quiet && !c->dry_run) vla_closing_line(s->passed, s->skipped, s->failed);
    if (status) return vla_exit_code(status);
    if (s->interrupted) return 130;
    if (s->failed || (c->strict && (s->skipped || s->refuted))) return 1;
    return c->fail_on && !strcmp(c->fail_on, "refuted") && s->refuted ? 5 : 0;
}

static int start(const jacobian_options *o, const char *program)
{
    session s = {.o = o, .program = program};
    vla_error error = {0};
    vla_interrupt_install();
    const vla_status status = run(&s, &error);
    return close_session(&s, status, &error);
}

int main(int argc, char **argv)
{
    jacobian_options o;
    int exit_code = 0;
    setlocale(LC_ALL, "C");
    const int blas_threads = openblas_get_num_threads();
    openblas_set_num_threads(1); /* heads and steps are shared out by the pool */
    if (jacobian_parse(&o, argc, argv, &exit_code)) exit_code = start(&o, argv[0]);
    openblas_set_num_threads(blas_threads);
    jacobian_free(&o);
    return exit_code;
}
