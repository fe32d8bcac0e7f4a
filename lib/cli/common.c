#include "lib/base/names.h"
#include "lib/base/status.h"
#include "lib/cli/options.h"
#include <float.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_T 1099511627776.0 /* 2^40 */
#define MOST_HEADS 2147483647.0
#define MOST_WIDTH 1048576.0
#define MOST_SEED 9007199254740991.0

static const char *const op_names[] = {"softmax", "linear", "delta", "decay", "vla", "rls", "all", NULL};
static const char *const form_names[] = {"naive", "recurrent", "stepwise", "chunk", "scan", "best", "all", NULL};
static const char *const dtype_names[] = {"f64", "f32", "bf16", "f16", "tf32", NULL};
static const char *const backend_names[] = {"cpu", "cuda", "auto", "cpu,cuda", NULL};
static const char *const isa_names[] = {"auto", "base", "avx2", "avx512", NULL};
static const char *const feature_names[] = {"elu1", "silu", "identity", NULL};
static const char *const norm_names[] = {"none", "l2", NULL};
static const char *const output_names[] = {"ratio", "plain", NULL};
static const char *const preset_names[] = {"delta-pub", NULL};
static const char *const format_names[] = {"md", "csv", "json", "jsonl", NULL};
static const char *const fail_names[] = {"slower", "refuted", NULL};

enum { most_rows = 24 };

typedef struct tables {
    vla_option rows[VLA_COMMON_GROUPS][most_rows];
    vla_option_group groups[VLA_COMMON_GROUPS + 1];
} tables;

void vla_common_init(vla_common *common)
{
    *common = (vla_common){.backend = "auto",
                           .isa = "auto",
                           .lambda0 = 0.1,
                           .refresh_eps = 1e-3,
                           .seed = 42,
                           .min_samples = 10,
                           .noise = 0.02};
}

void vla_common_free(vla_common *c)
{
    vla_strings *lists[] = {&c->ops, &c->forms, &c->dtypes, &c->cases, &c->filters, &c->outputs};
    vla_range *ranges[] = {&c->B, &c->H, &c->T, &c->d, &c->dk, &c->dv, &c->chunk, &c->segments, &c->threads, &c->seeds};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) vla_strings_free(lists[i]);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) vla_range_free(ranges[i]);
    free(c->tables);
    c->tables = NULL;
}

static vla_option flag(const char *name, char letter, bool *target, const char *help)
{
    return (vla_option){.name = name, .letter = letter, .type = VLA_OPT_FLAG, .target = target, .help = help};
}

static vla_option range(const char *name, vla_range *target, double min, double max, const char *help)
{
    return (vla_option){.name = name,
                        .type = VLA_OPT_RANGE,
                        .target = target,
                        .argument = "RANGE",
                        .help = help,
                        .min = min,
                        .max = max};
}

static vla_option list(const char *name, vla_strings *target, const char *const *choices, const char *help)
{
    return (vla_option){
        .name = name, .type = VLA_OPT_LIST, .target = target, .argument = "LIST", .help = help, .choices = choices};
}

static vla_option texts(const char *name, char letter, vla_strings *target, const char *argument, const char *help)
{
    return (vla_option){
        .name = name, .letter = letter, .type = VLA_OPT_TEXTS, .target = target, .argument = argument, .help = help};
}

static vla_option text(const char *name, const char **target, const char *argument, const char *help)
{
    return (vla_option){.name = name, .type = VLA_OPT_TEXT, .target = target, .argument = argument, .help = help};
}

static vla_option choice(const char *name, const char **target, const char *const *choices, const char *argument,
                         const char *help)
{
    return (vla_option){
        .name = name, .type = VLA_OPT_CHOICE, .target = target, .argument = argument, .help = help, .choices = choices};
}

static vla_option integer(const char *name, int64_t *target, double min, double max, const char *help)
{
    return (vla_option){
        .name = name, .type = VLA_OPT_INT, .target = target, .argument = "N", .help = help, .min = min, .max = max};
}

static vla_option real(const char *name, double *target, double min, double max, const char *help)
{
    return (vla_option){
        .name = name, .type = VLA_OPT_REAL, .target = target, .argument = "X", .help = help, .min = min, .max = max};
}

static void operator_rows(vla_common *c, vla_option *row)
{
    *row++ = list("op", &c->ops, op_names, "operators: softmax linear delta decay vla rls, or all");
    *row++ = list("form", &c->forms, form_names, "naive recurrent stepwise chunk scan, best or all (default: best)");
    *row++ =
        choice("backend", &c->backend, backend_names, "NAME", "cpu, cuda, auto, or cpu,cuda for both (default: auto)");
    *row++ = choice("isa", &c->isa, isa_names, "NAME", "instruction set: auto, base, avx2, avx512 (default: auto)");
    *row++ = list("dtype", &c->dtypes, dtype_names, "f64 f32 bf16 f16 tf32 (default: f32)");
    *row++ = range("threads", &c->threads, 1, 4096, "threads (default: processors this process may use)");
    *row++ = range("chunk", &c->chunk, 1, 65536, "tokens per chunk (default: chosen)");
    *row++ = range("segments", &c->segments, 1, 1048576, "segments of a scan (default: chosen)");
    *row = real("lambda0", &c->lambda0, DBL_MIN, 1e300, "vla, rls: A starts as I/lambda0 (default: 0.1)");
    row++->given = &c->lambda0_given;
    *row++ = choice("features", &c->features, feature_names, "NAME", "elu1, silu or identity (default: elu1)");
    *row++ = choice("qk-norm", &c->qk_norm, norm_names, "NAME", "l2: unit query features too; none (default: none)");
    *row++ = choice("output", &c->output, output_names, "NAME", "vla: ratio divides by n.q, or plain (default: ratio)");
    *row++ =
        flag("no-normalise", 0, &c->no_normalise, "vla: the unstable form, keys and a not normalised (default: off)");
    *row++ = integer("refresh-period", &c->refresh_period, 0, MOST_T, "vla: add to A every N steps (default: 0, off)");
    *row++ = real("refresh-eps", &c->refresh_eps, DBL_MIN, 1e300, "vla: what a refresh adds, times I (default: 0.001)");
    *row++ = choice("preset", &c->preset, preset_names, "NAME",
                    "delta-pub: DeltaNet as published, SiLU features, unit q and k (default: none)");
}

static void problem_rows(vla_common *c, vla_option *row)
{
    *row++ = range("B", &c->B, 1, MOST_HEADS, "sequences (default: 1)");
    *row++ = range("H", &c->H, 1, MOST_HEADS, "heads (default: 16)");
    *row++ = range("T", &c->T, 0, MOST_T, "tokens");
    *row++ = range("d", &c->d, 1, MOST_WIDTH, "key and value width: sets --dk and --dv (default: 64)");
    *row++ = range("dk", &c->dk, 1, MOST_WIDTH, "key width (default: --d)");
    *row++ = range("dv", &c->dv, 1, MOST_WIDTH, "value width (default: --d)");
    *row++ = text("input", &c->input, "DIR", "tensors: DIR/q.npy k.npy v.npy [u.npy b.npy g.npy] (default: synthetic)");
    *row++ = integer("seed", &c->seed, 0, MOST_SEED, "seed of every random number (default: 42)");
    *row++ = range("seeds", &c->seeds, 0, MOST_SEED, "one run per seed (default: --seed)");
    *row++ = texts("case", 0, &c->cases, "STRING", "a case as `list` prints it, vla/chunk/cpu/f32/B1_H4_T2048_K64_V64");
    *row++ = texts("filter", 0, &c->filters, "GLOB", "only cases that match, 'vla/*/f32/*' (default: all)");
}

static void output_rows(vla_common *c, vla_option *row)
{
    *row++ = real("time-limit", &c->time_limit, DBL_MIN, 1e9, "seconds for the whole run (default: the program's)");
    *row = integer("min-samples", &c->min_samples, 1, 1e6, "samples of a time at least (default: 10)");
    row++->given = &c->min_samples_given;
    *row = real("noise", &c->noise, DBL_MIN, 10, "relative noise at which sampling may stop (default: 0.02)");
    row++->given = &c->noise_given;
    *row++ =
        texts("out-file", 'o', &c->outputs, "FILE", "write records; .md .csv .json .jsonl, repeatable (default: none)");
    *row++ = choice("format", &c->format, format_names, "NAME",
                    "md, csv, json or jsonl on stdout (default: a readable table)");
    *row++ = text("plot", &c->plot, "DIR", "write figures: data, gnuplot script, PNG and PDF (default: none)");
    *row++ = flag("resume", 0, &c->resume, "keep what -o files hold and measure only what is missing (default: off)");
    *row++ = flag("dry-run", 0, &c->dry_run, "print what would run (default: off)");
    *row++ = text("expect", &c->expect, "FILE", "exit 1 when results differ from the records in FILE (default: none)");
    *row++ = choice("fail-on", &c->fail_on, fail_names, "WHAT", "slower or refuted: exit 5 when met (default: none)");
    *row++ = flag("strict", 0, &c->strict, "exit 1 also for skipped cases, timeouts and refuted claims (default: off)");
    *row++ = flag("quiet", 'q', &c->quiet, "no progress and no notes on stderr (default: off)");
    *row++ = flag("verbose", 'v', &c->verbose, "more columns and notes (default: off)");
    *row++ = flag("help", 'h', &c->help, "print this and exit");
    *row++ = flag("version", 0, &c->version, "print the version and exit");
}

const vla_option_group *vla_common_groups(vla_common *common)
{
    tables *t = common->tables;
    if (!t) t = common->tables = calloc(1, sizeof *t);
    if (!t) return NULL;
    operator_rows(common, t->rows[0]);
    problem_rows(common, t->rows[1]);
    output_rows(common, t->rows[2]);
    const char *titles[VLA_COMMON_GROUPS] = {"operator and kernel", "problem", "measurement and output"};
    for (int i = 0; i < VLA_COMMON_GROUPS; i++) t->groups[i] = (vla_option_group){titles[i], t->rows[i]};
    return t->groups;
}

void vla_common_explain(vla_common *common, const char *option, const char *help)
{
    tables *t = common->tables;
    for (int i = 0; t && i < VLA_COMMON_GROUPS; i++)
        for (vla_option *row = t->rows[i]; row->name; row++)
            if (strcmp(row->name, option) == 0) row->help = help;
}

vla_status vla_rules_check(const vla_rule *rules, size_t count, vla_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (rules[i].broken) return vla_fail(error, VLA_ERR_ARGUMENT, "%s: %s", rules[i].option, rules[i].why);
    return VLA_OK;
}

int vla_add_once(int *values, int count, int value)
{
    for (int i = 0; i < count; i++)
        if (values[i] == value) return count;
    values[count] = value;
    return count + 1;
}

int vla_common_ops(const vla_common *common, vla_op *ops)
{
    int values[VLA_OPS], count = 0;
    for (int64_t i = 0; i < common->ops.count; i++) {
        vla_op op;
        if (vla_op_parse(common->ops.values[i], &op))
            count = vla_add_once(values, count, (int)op);
        else
            for (int all = 0; all < VLA_OPS; all++) count = vla_add_once(values, count, all);
    }
    for (int i = 0; i < count; i++) ops[i] = (vla_op)values[i];
    return count;
}

int vla_common_forms(const vla_common *common, vla_form *forms)
{
    int values[VLA_FORMS + 1], count = 0;
    for (int64_t i = 0; i < common->forms.count; i++) {
        const char *name = common->forms.values[i];
        vla_form form;
        if (strcmp(name, "best") == 0)
            count = vla_add_once(values, count, VLA_BEST);
        else if (vla_form_parse(name, &form))
            count = vla_add_once(values, count, (int)form);
        else
            for (int all = 0; all < VLA_FORMS; all++) count = vla_add_once(values, count, all);
    }
    for (int i = 0; i < count; i++) forms[i] = (vla_form)values[i];
    return count;
}

bool vla_common_form_named(const vla_common *common, vla_form form)
{
    bool named = false;
    for (int64_t i = 0; i < common->forms.count; i++)
        named = named || strcmp(common->forms.values[i], form == VLA_BEST ? "best" : vla_form_name(form)) == 0;
    return named;
}

int vla_common_dtypes(const vla_common *common, vla_dtype *dtypes)
{
    int values[VLA_DTYPES], count = 0;
    for (int64_t i = 0; i < common->dtypes.count; i++) {
        vla_dtype dtype;
        if (vla_dtype_parse(common->dtypes.values[i], &dtype)) count = vla_add_once(values, count, (int)dtype);
    }
    for (int i = 0; i < count; i++) dtypes[i] = (vla_dtype)values[i];
    return count;
}

bool vla_common_width(const vla_common *c, int64_t i, int64_t *dk, int64_t *dv)
{
    static const int64_t usual[] = {64};
    int64_t d_count = c->d.count ? c->d.count : 1;
    const int64_t *d = c->d.count ? c->d.values : usual;
    if (c->dk.count == 0 && c->dv.count == 0) {
        if (i >= d_count) return false;
        *dk = *dv = d[i];
        return true;
    }
    int64_t dk_count = c->dk.count ? c->dk.count : d_count;
    int64_t dv_count = c->dv.count ? c->dv.count : d_count;
    if (i / dv_count >= dk_count) return false;
    *dk = (c->dk.count ? c->dk.values : d)[i / dv_count];
    *dv = (c->dv.count ? c->dv.values : d)[i % dv_count];
    return true;
}

static vla_status apply_preset(const vla_common *common, vla_problem *problem, vla_error *error)
{
    if (!common->preset) return VLA_OK;
    if (strcmp(common->preset, "delta-pub") != 0)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--preset: unknown value '%s'; accepted: delta-pub", common->preset);
    if (problem->op != VLA_DELTA) return VLA_OK; /* the preset of one operator leaves its rivals as they are */
    problem->features = VLA_SILU;
    problem->qk_l2 = true;
    return VLA_OK;
}

vla_status vla_common_problem(const vla_common *common, vla_problem *problem, vla_error *error)
{
    vla_status status = apply_preset(common, problem, error);
    if (status != VLA_OK) return status;
    if (common->features && !vla_features_parse(common->features, &problem->features))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--features: unknown value '%s'; accepted: elu1, silu, identity",
                        common->features);
    if (common->qk_norm) problem->qk_l2 = strcmp(common->qk_norm, "l2") == 0;
    if (common->output) problem->output = strcmp(common->output, "plain") == 0 ? VLA_PLAIN : VLA_RATIO;
    problem->lambda0 = common->lambda0;
    problem->no_normalise = common->no_normalise;
    problem->refresh_period = common->refresh_period;
    problem->refresh_eps = common->refresh_period ? common->refresh_eps : 0;
    return VLA_OK;
}

static bool holds_records(const char *path, vla_format *format)
{
    struct stat info;
    return vla_format_of_path(path, format) && *format != VLA_FORMAT_MD && stat(path, &info) == 0 &&
           S_ISREG(info.st_mode) && info.st_size > 0;
}

vla_status vla_common_earlier(const vla_common *common, vla_records *rows, vla_error *error)
{
    vla_status status = VLA_OK;
    vla_format format;
    for (int64_t i = 0; common->resume && status == VLA_OK && i < common->outputs.count; i++)
        if (holds_records(common->outputs.values[i], &format))
            status = vla_records_read(rows, common->outputs.values[i], error);
    return status;
}

/* Rows only: the facts of the run that measured them stay with that run's file. */
static vla_status write_rows(const char *path, vla_format format, const vla_records *rows, vla_error *error)
{
    vla_report *report;
    vla_status status = vla_report_create(&report, NULL, error);
    if (status != VLA_OK) return status;
    status = vla_report_output(report, path, format, false, error);
    for (int64_t i = 0; status == VLA_OK && i < rows->count; i++) {
        if (strcmp(vla_record_text(rows->rows[i], "kind", ""), "meta") == 0) continue;
        vla_record *copy = vla_record_copy(rows->rows[i]);
        status = copy ? vla_report_add(report, copy, error) : vla_fail(error, VLA_ERR_MEMORY, "-o: out of memory");
    }
    const vla_status closed = vla_report_close(report, status == VLA_OK ? error : NULL);
    return status == VLA_OK ? closed : status;
}

/* What one -o file holds is not measured again, so a file that is new must be given it. */
static vla_status share_earlier(const vla_common *common, vla_error *error)
{
    vla_records earlier = {0};
    vla_format format;
    vla_status status = VLA_OK;
    for (int64_t i = 0; status == VLA_OK && earlier.count == 0 && i < common->outputs.count; i++)
        if (holds_records(common->outputs.values[i], &format))
            status = vla_records_read(&earlier, common->outputs.values[i], error);
    for (int64_t i = 0; status == VLA_OK && earlier.count > 0 && i < common->outputs.count; i++) {
        const char *path = common->outputs.values[i];
        if (!holds_records(path, &format) && vla_format_of_path(path, &format) && format != VLA_FORMAT_MD)
            status = write_rows(path, format, &earlier, error);
    }
    vla_records_clear(&earlier);
    return status;
}

vla_status vla_common_report(const vla_common *common, const vla_record *meta, vla_report **report, bool *table,
                             vla_error *error)
{
    vla_status status = common->resume ? share_earlier(common, error) : VLA_OK;
    if (status == VLA_OK) status = vla_report_create(report, meta, error);
    if (status != VLA_OK) return status;
    *table = common->format == NULL;
    for (int64_t i = 0; status == VLA_OK && i < common->outputs.count; i++) {
        const char *path = common->outputs.values[i];
        vla_format format;
        if (!vla_format_of_path(path, &format))
            status = vla_fail(error, VLA_ERR_ARGUMENT,
                              "-o: '%s' has no known extension; accepted: .md .csv .json .jsonl", path);
        else
            status = vla_report_output(*report, path, format, common->resume, error);
    }
    vla_format format;
    if (status == VLA_OK && common->format && vla_format_parse(common->format, &format))
        status = vla_report_output(*report, NULL, format, false, error);
    if (status != VLA_OK) {
        vla_report_close(*report, NULL);
        *report = NULL;
    }
    return status;
}

int vla_exit_code(vla_status status)
{
    switch (status) {
    case VLA_OK:
        return 0;
    case VLA_ERR_NUMERIC:
        return 1;
    case VLA_ERR_ARGUMENT:
    case VLA_ERR_UNSUPPORTED:
    case VLA_ERR_MEMORY:
        return 2;
    case VLA_ERR_FILE:
        return 3;
    case VLA_ERR_DEVICE:
        return 4;
    }
    return 1;
}
