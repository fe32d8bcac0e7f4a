/* vla-run: push tensors through an operator, keep what comes out, and check it against the oracle. */
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/cli/options.h"
#include "lib/cli/progress.h"
#include "lib/measure/run.h"
#include "lib/op/registry.h"
#include "lib/tensor/npy.h"
#include <stdlib.h>
#include <string.h>

static const char program[] = "vla-run";
static const char usage[] =
    "vla-run OP (--input DIR | --q F --k F --v F [--u F] [--b F] [--g F] | --T N) [--out F] [--dump DIR]\n"
    "               [--state-in DIR] [--state-out DIR] [--check] [options]";
static const char summary[] =
    "Runs OP (softmax linear delta decay vla rls, a comma list or all) once over the given tensors: .npy files of\n"
    "[T,d], [H,T,d] or [B,H,T,d]; b and g [T], [H,T] or [B,H,T] (logits), g also [B,H,T,dv]. With --T and no files "
    "the\n"
    "inputs are standard normal numbers from --seed. Several operators, forms, dtypes, chunks or thread counts give a "
    "row\n"
    "each, and --dump and --state-out then get one directory a row below DIR.";

typedef struct settings {
    vla_common common;
    const char *files[VLA_INPUTS];
    const char *out, *dump, *state_in, *state_out;
    bool check;
    vla_op ops[VLA_OPS];
    int op_count;
    vla_form forms[VLA_FORMS + 1];
    int form_count;
    vla_dtype dtypes[VLA_DTYPES];
    int dtype_count;
    vla_isa isa;
    vla_backend backend;
} settings;

typedef struct session {
    const settings *set;
    vla_report *report;
    vla_records done; /* rows of earlier runs, for --resume */
    vla_inputs inputs;
    char digest[17];
    vla_state start; /* of --state-in, for the case at hand */
    char start_digest[17];
    vla_progress progress;
    int64_t cases, offered, current;
    int64_t passed, skipped, failed;
} session;

/* One row to come. */
typedef struct job {
    vla_op op;
    vla_form form;
    int64_t chunk, segments, threads;
} job;

static void say(vla_progress *progress, const char *message)
{
    vla_progress_note(progress, "%s: %s", program, message);
}

static vla_status parse_ops(settings *s, const vla_strings *words, vla_error *error)
{
    if (words->count > 1)
        return vla_fail(error, VLA_ERR_ARGUMENT, "unexpected word '%s'; accepted: one OP (a comma list for several)",
                        words->values[1]);
    if (words->count == 1 && s->common.ops.count > 0)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--op: OP is given already as '%s'; accepted: either of them",
                        words->values[0]);
    if (words->count == 1) {
        const vla_option_group *groups = vla_common_groups(&s->common);
        char option[] = "vla-run", *argv[] = {option, NULL, NULL};
        if (asprintf(&argv[1], "--op=%s", words->values[0]) < 0)
            return vla_fail(error, VLA_ERR_MEMORY, "out of memory");
        vla_strings none = {0};
        vla_error inner = {0};
        vla_status status = vla_options_parse(groups, 2, argv, &none, &inner);
        free(argv[1]);
        vla_strings_free(&none);
        if (status != VLA_OK) return vla_fail(error, status, "OP%s", inner.message + strlen("--op"));
    }
    s->op_count = vla_common_ops(&s->common, s->ops);
    if (s->op_count == 0)
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "OP: not given; accepted: softmax, linear, delta, decay, vla, rls, a comma list or all");
    return VLA_OK;
}

static bool any_file(const settings *s)
{
    bool any = false;
    for (int i = 0; i < VLA_INPUTS; i++) any = any || s->files[i];
    return any;
}

static int64_t at_least_one(int64_t count)
{
    return count ? count : 1;
}

static int64_t count_cases(const settings *s)
{
    const vla_common *c = &s->common;
    return s->op_count * s->form_count * s->dtype_count * at_least_one(c->chunk.count) *
           at_least_one(c->segments.count) * at_least_one(c->threads.count);
}

static vla_status check_settings(const settings *s, vla_error *error)
{
    const vla_common *c = &s->common;
    static const char whole[] = "sizes come from the input files; accepted: without --input and --q";
    static const char once[] = "several values; accepted: one (sweeps are vla-bench's)";
    static const char elsewhere[] = "not for vla-run; accepted by vla-bench";
    bool files = any_file(s), given = c->input || files;
    bool many = count_cases(s) > 1;
    const vla_rule rules[] = {
        {c->input && files, "--input", "given together with files; accepted: --input DIR, or --q F --k F --v F"},
        {!given && c->T.count == 0, "--input", "no input; accepted: --input DIR, --q F --k F --v F, or --T N"},
        {given && c->T.count, "--T", whole},
        {given && c->B.count, "--B", whole},
        {given && c->H.count, "--H", whole},
        {given && c->d.count, "--d", whole},
        {given && c->dk.count, "--dk", whole},
        {given && c->dv.count, "--dv", whole},
        {c->T.count > 1, "--T", once},
        {c->B.count > 1, "--B", once},
        {c->H.count > 1, "--H", once},
        {c->d.count > 1, "--d", once},
        {c->dk.count > 1, "--dk", once},
        {c->dv.count > 1, "--dv", once},
        {c->seeds.count > 0, "--seeds", "not for vla-run; accepted: --seed N"},
        {c->cases.count > 0, "--case", elsewhere},
        {c->filters.count > 0, "--filter", elsewhere},
        {c->plot != NULL, "--plot", elsewhere},
        {c->expect != NULL, "--expect", elsewhere},
        {c->fail_on != NULL, "--fail-on", elsewhere},
        {c->time_limit > 0, "--time-limit", elsewhere},
        {c->min_samples_given, "--min-samples", elsewhere},
        {c->noise_given, "--noise", elsewhere},
        {c->resume && c->outputs.count == 0, "--resume", "no file to go on from; accepted: with -o FILE"},
        {s->out && many, "--out", "more than one result; accepted: one operator, form, dtype, chunk and thread count"},
        {s->state_in && s->op_count > 1, "--state-in", "more than one operator; accepted: one"},
        {s->state_in && s->ops[0] == VLA_SOFTMAX, "--state-in",
         "softmax keeps no state but its keys; accepted: q shorter than k and v"},
        {s->state_out && s->op_count == 1 && s->ops[0] == VLA_SOFTMAX, "--state-out", "softmax has no state to write"},
    };
    return vla_rules_check(rules, sizeof rules / sizeof *rules, error);
}

static bool has_kernels(vla_backend backend)
{
    const vla_kernel *kernel;
    for (int i = 0; (kernel = vla_kernel_at(i)); i++)
        if (kernel->backend == backend) return true;
    return false;
}

static vla_status settle(settings *s, const vla_strings *words, vla_error *error)
{
    vla_status status = parse_ops(s, words, error);
    if (status != VLA_OK) return status;
    s->form_count = vla_common_forms(&s->common, s->forms);
    if (s->form_count == 0) s->forms[s->form_count++] = VLA_BEST;
    s->dtype_count = vla_common_dtypes(&s->common, s->dtypes);
    if (s->dtype_count == 0) s->dtypes[s->dtype_count++] = VLA_F32;
    s->isa = VLA_ISA_AUTO;
    s->backend = VLA_AUTO;
    if (strchr(s->common.backend, ','))
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "--backend %s: both in one run are for vla-bench; accepted here is one", s->common.backend);
    if (strcmp(s->common.isa, "auto") != 0) vla_isa_parse(s->common.isa, &s->isa);
    if (strcmp(s->common.backend, "auto") != 0) vla_backend_parse(s->common.backend, &s->backend);
    if (s->backend != VLA_AUTO && !has_kernels(s->backend))
        return vla_fail(error, VLA_ERR_DEVICE, "--backend: this build has no kernels for '%s'; accepted: cpu, auto",
                        s->common.backend);
    return check_settings(s, error);
}

static vla_status load_inputs(session *x, vla_dtype dtype, vla_error *error)
{
    const settings *s = x->set;
    const vla_common *c = &s->common;
    vla_status status;
    vla_inputs_destroy(&x->inputs);
    *x->digest = '\0';
    if (c->input) {
        status = vla_inputs_load_directory(&x->inputs, c->input, dtype, error);
    } else if (any_file(s)) {
        status = vla_inputs_load(&x->inputs, s->files, dtype, error);
    } else {
        static const bool all[VLA_INPUTS] = {true, true, true, true, true, true};
        vla_problem p = vla_problem_default(VLA_VLA, c->B.count ? c->B.values[0] : 1, c->H.count ? c->H.values[0] : 16,
                                            c->T.values[0], 64);
        p.gate = VLA_GATE_TOKEN;
        vla_common_width(c, 0, &p.dk, &p.dv);
        return vla_inputs_synthetic(&x->inputs, &p, (uint64_t)c->seed, all, dtype, error);
    }
    if (status == VLA_OK) vla_inputs_digest(&x->inputs, x->digest);
    return status;
}

static vla_run_facts facts_of(const session *x)
{
    const settings *s = x->set;
    return (vla_run_facts){.input = s->common.input ? s->common.input : s->files[VLA_IN_Q],
                           .digest = *x->digest ? x->digest : NULL,
                           .seed = s->common.seed,
                           .has_u = x->inputs.tensor[VLA_IN_U].data,
                           .has_b = x->inputs.tensor[VLA_IN_B].data,
                           .state_in = s->state_in ? x->start_digest : NULL,
                           .isa = s->isa};
}

/* DIR itself for a single case, else DIR/vla.chunk.f32[.c64][.n2]. */
static char *case_directory(const session *x, const char *directory, const vla_run *run)
{
    char name[128];
    if (x->cases == 1) return strdup(directory);
    int used = snprintf(name, sizeof name, "%s.%s.%s", vla_op_name(run->problem.op), vla_form_name(run->form),
                        vla_dtype_name(run->dtype));
    const vla_common *c = &x->set->common;
    if (c->chunk.count > 1)
        used += snprintf(name + used, sizeof name - (size_t)used, ".c%lld", (long long)run->problem.chunk);
    if (c->segments.count > 1)
        used += snprintf(name + used, sizeof name - (size_t)used, ".g%lld", (long long)run->problem.segments);
    if (c->threads.count > 1) snprintf(name + used, sizeof name - (size_t)used, ".n%d", run->threads);
    return vla_path_join(directory, name);
}

static vla_status write_below(const session *x, const vla_run *run, const char *directory, bool dump, vla_error *error)
{
    if (!directory || (!dump && !run->state.S.data)) return VLA_OK;
    vla_status status = vla_directory_make(directory, error);
    char *path = status == VLA_OK ? case_directory(x, directory, run) : NULL;
    if (status == VLA_OK && !path) status = vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
    if (status == VLA_OK) status = dump ? vla_run_dump(run, path, error) : vla_state_save(&run->state, path, error);
    free(path);
    return status;
}

static vla_status write_outputs(const session *x, const vla_run *run, vla_error *error)
{
    const settings *s = x->set;
    vla_status status = VLA_OK;
    if (s->out) status = vla_npy_write_tensor(s->out, &run->o, error);
    if (status == VLA_OK) status = write_below(x, run, s->dump, true, error);
    return status == VLA_OK ? write_below(x, run, s->state_out, false, error) : status;
}

static vla_status add_row(session *x, const vla_run *run, const char *status, const char *reason, vla_error *error)
{
    vla_run_facts facts = facts_of(x);
    vla_record *row = vla_run_record(run, &facts, status, reason);
    if (!row) return vla_fail(error, VLA_ERR_MEMORY, "out of memory for a row");
    if (strcmp(status, "ok") == 0)
        x->passed++;
    else if (strcmp(status, "fail") == 0)
        x->failed++;
    else
        x->skipped++;
    return vla_report_add(x->report, row, error);
}

static bool lacks_check(const session *x, const vla_record *old)
{
    return x->set->check && strcmp(vla_record_text(old, "status", ""), "ok") == 0 &&
           !*vla_record_text(old, "checked", "");
}

static bool is_done(const session *x, const vla_run *run)
{
    if (x->done.count == 0) return false;
    vla_run_facts facts = facts_of(x);
    vla_record *row = vla_run_record(run, &facts, "ok", NULL);
    const char *key = row ? vla_record_text(row, "key", "") : "";
    bool found = false;
    for (int64_t i = 0; i < x->done.count && !found;
         i++) { /* a failed check is tried again, lest its row be forgotten */
        const vla_record *old = x->done.rows[i];
        found = strcmp(vla_record_text(old, "key", "-"), key) == 0 &&
                strcmp(vla_record_text(old, "status", ""), "fail") != 0 && !lacks_check(x, old);
    }
    vla_record_destroy(row);
    return found;
}

/* What the case starts from. */
static vla_status load_start(session *x, const vla_run *run, vla_error *error)
{
    if (!x->set->state_in) return VLA_OK;
    vla_state_destroy(&x->start);
    vla_status status = vla_state_load(&x->start, &run->problem, run->dtype, x->set->state_in, error);
    if (status == VLA_OK) vla_state_digest(&x->start, x->start_digest);
    return status;
}

/* An error of one case among several is a row; of the only case it ends the program. */
static vla_status refused(session *x, const vla_run *run, const vla_error *why, vla_error *error)
{
    bool device = run->backend == VLA_CUDA && why->status == VLA_ERR_UNSUPPORTED;
    if (x->cases == 1 || why->status == VLA_ERR_DEVICE)
        return vla_fail(error, device ? VLA_ERR_DEVICE : why->status, "%s", why->message);
    if (x->set->common.dry_run) {
        say(&x->progress, why->message);
        return VLA_OK;
    }
    if (why->status == VLA_ERR_NUMERIC) return add_row(x, run, "fail", why->message, error);
    return add_row(x, run, why->status == VLA_ERR_MEMORY ? "oom" : "skip", why->message, error);
}

static vla_status execute(session *x, vla_run *run, vla_exec *exec, vla_error *error)
{
    vla_error why = {0};
    vla_status status = vla_run_execute(run, exec, &x->inputs, x->set->state_in ? &x->start : NULL, &why);
    if (status != VLA_OK) return refused(x, run, &why, error);
    if (*run->warning) vla_progress_note(&x->progress, "%s: warning: %s", program, run->warning);
    status = write_outputs(x, run, error);
    if (status != VLA_OK) return status;
    bool failed = run->checked && !run->pass;
    const char *reason = *run->warning ? run->warning : "differs from naive by more than the limit";
    return add_row(x, run, failed ? "fail" : "ok", failed ? reason : NULL, error);
}

static vla_status print_label(const session *x, const vla_run *run, vla_error *error)
{
    vla_run_facts facts = facts_of(x);
    vla_record *row = vla_run_record(run, &facts, "ok", NULL);
    if (!row) return vla_fail(error, VLA_ERR_MEMORY, "out of memory for a row");
    puts(vla_record_text(row, "case", ""));
    vla_record_destroy(row);
    return VLA_OK;
}

static vla_status run_job(session *x, const job *j, vla_dtype dtype, vla_exec *exec, vla_error *error)
{
    const settings *s = x->set;
    vla_error why = {0};
    vla_run run = {.problem = vla_problem_default(j->op, 1, 1, 0, 1),
                   .form = j->form,
                   .backend = s->backend,
                   .dtype = dtype,
                   .want_alpha = s->dump != NULL,
                   .want_check = s->check};
    vla_status status = vla_common_problem(&s->common, &run.problem, error);
    if (status != VLA_OK) return status;
    run.problem.chunk = j->chunk;
    run.problem.segments = j->segments;
    status = vla_run_prepare(&run, &x->inputs, vla_exec_threads(exec), &why);
    vla_progress_update(&x->progress, vla_op_name(j->op), (double)x->current++, (double)x->cases);
    if (status != VLA_OK) return refused(x, &run, &why, error);
    status = load_start(x, &run, error);
    if (status != VLA_OK || is_done(x, &run)) return status;
    status = s->common.dry_run ? print_label(x, &run, error) : execute(x, &run, exec, error);
    vla_run_destroy(&run);
    return status;
}

static int64_t value_or(const vla_range *range, int64_t i, int64_t fallback)
{
    return range->count ? range->values[i] : fallback;
}

/* "all" means the forms there are; one asked for by name that does not exist is a row that says so. */
static bool is_offered(const settings *s, const job *j, vla_dtype dtype)
{
    if (j->form == VLA_BEST || vla_common_form_named(&s->common, j->form)) return true;
    const bool cpu = s->backend != VLA_CUDA && vla_kernel_exists(j->op, j->form, VLA_CPU, dtype);
    return cpu || (s->backend == VLA_CUDA && vla_kernel_exists(j->op, j->form, VLA_CUDA, dtype));
}

/* Every operator, form, chunk and segment count with one set of threads. */
static vla_status run_jobs(session *x, vla_dtype dtype, vla_exec *exec, vla_error *error)
{
    const settings *s = x->set;
    const vla_common *c = &s->common;
    int64_t chunks = at_least_one(c->chunk.count), segments = at_least_one(c->segments.count);
    int64_t total = s->op_count * s->form_count * chunks * segments;
    vla_status status = VLA_OK;
    for (int64_t i = 0; i < total && status == VLA_OK && !vla_interrupted(); i++) {
        const job j = {.segments = value_or(&c->segments, i % segments, 0),
                       .chunk = value_or(&c->chunk, i / segments % chunks, 0),
                       .form = s->forms[i / segments / chunks % s->form_count],
                       .op = s->ops[i / segments / chunks / s->form_count]};
        if (!is_offered(s, &j, dtype)) continue;
        x->offered++;
        status = run_job(x, &j, dtype, exec, error);
    }
    return status;
}

static vla_status run_all(session *x, vla_error *error)
{
    const settings *s = x->set;
    vla_status status = VLA_OK;
    for (int d = 0; d < s->dtype_count && status == VLA_OK; d++) {
        status = load_inputs(x, s->dtypes[d], error);
        for (int64_t t = 0; t < at_least_one(s->common.threads.count) && status == VLA_OK; t++) {
            vla_exec *exec = NULL;
            status = vla_exec_create(&exec, (int)value_or(&s->common.threads, t, 0), s->isa, error);
            if (status == VLA_OK) status = run_jobs(x, s->dtypes[d], exec, error);
            vla_exec_destroy(exec);
        }
    }
    if (status == VLA_OK && x->offered == 0 && !vla_interrupted())
        status = vla_fail(error, VLA_ERR_ARGUMENT, "--form all: no form of %s has a %s kernel here",
                          vla_op_name(s->ops[0]), vla_dtype_name(s->dtypes[0]));
    return status;
}

static void print_table(const session *x)
{
    const vla_column all[] = {
        {"op", "op", NULL, false},
        {"form", "form", NULL, true},
        {"backend", "backend", NULL, true},
        {"dtype", "dtype", NULL, true},
        {"isa", "isa", NULL, true},
        {"threads", "threads", NULL, true},
        {"B", "B", NULL, true},
        {"H", "H", NULL, true},
        {"T", "T", NULL, true},
        {"dk", "dk", NULL, true},
        {"dv", "dv", NULL, true},
        {"chunk", "chunk", NULL, true},
        {"input", "input", NULL, true},
        {"time_s", "time", "time", false},
        {"tokens_per_s", "tokens/s", "count", false},
        {"o_norm", "|o|", "%.4g", false},
        {"S_norm", "|S|", "%.4g", false},
        {"status", "status", NULL, true},
        {"reason", "reason", NULL, true},
        {"residual", "residual", "%.2e", false},
        {"max_residual", "max", "%.2e", false},
        {"residual_S", "S", "%.2e", false},
        {"residual_A", "A", "%.2e", false},
        {"verdict", "verdict", NULL, false},
    };
    int count = (int)(sizeof all / sizeof *all) - (x->set->check ? 0 : 5);
    vla_table_print(stdout, vla_report_rows(x->report), "run", all, count);
}

static vla_status read_done(session *x, vla_error *error)
{
    const settings *s = x->set;
    if (s->out || s->dump || s->state_out) return VLA_OK; /* files to write whatever the records say */
    return vla_common_earlier(&s->common, &x->done, error);
}

static vla_status open_report(session *x, bool *table, vla_error *error)
{
    const vla_range *threads = &x->set->common.threads;
    vla_status status = read_done(x, error);
    if (status != VLA_OK || x->set->common.dry_run) return status;
    vla_record *meta = vla_meta(threads->count ? (int)threads->values[0] : vla_cpu_count());
    if (!meta) return vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    status = vla_common_report(&x->set->common, meta, &x->report, table, error);
    vla_record_destroy(meta);
    return status;
}

static int finish(session *x, bool table, vla_status status, vla_error *error)
{
    vla_progress_clear(&x->progress);
    if (status != VLA_OK) say(&x->progress, error->message);
    if (table) print_table(x);
    vla_error late = {0};
    vla_status closed = vla_stream_flush(stdout, "stdout", &late);
    if (closed == VLA_OK)
        closed = vla_report_close(x->report, &late);
    else
        vla_report_close(x->report, NULL);
    if (closed != VLA_OK) say(&x->progress, late.message);
    const bool said = status == VLA_OK || x->passed + x->skipped + x->failed > 0;
    if (!x->set->common.quiet && !x->set->common.dry_run && said) vla_closing_line(x->passed, x->skipped, x->failed);
    if (status != VLA_OK) return vla_exit_code(status);
    if (closed != VLA_OK) return vla_exit_code(closed);
    if (vla_interrupted()) return 130;
    return x->failed > 0 || (x->set->common.strict && x->skipped > 0) ? 1 : 0;
}

static int run(const settings *s)
{
    session x = {.set = s, .cases = count_cases(s), .progress = vla_progress_start(s->common.quiet)};
    vla_error error = {0};
    bool table = false;
    vla_interrupt_install();
    vla_status status = open_report(&x, &table, &error);
    if (status != VLA_OK) {
        say(&x.progress, error.message);
        vla_records_clear(&x.done);
        return vla_exit_code(status);
    }
    status = run_all(&x, &error);
    int code = finish(&x, table, status, &error);
    vla_inputs_destroy(&x.inputs);
    vla_state_destroy(&x.start);
    vla_records_clear(&x.done);
    return code;
}

int main(int argc, char **argv)
{
    settings s = {0};
    vla_common_init(&s.common);
    const vla_option own[] = {
        {.name = "q", .type = VLA_OPT_TEXT, .target = &s.files[VLA_IN_Q], .argument = "F", .help = "queries, .npy"},
        {.name = "k", .type = VLA_OPT_TEXT, .target = &s.files[VLA_IN_K], .argument = "F", .help = "keys, .npy"},
        {.name = "v", .type = VLA_OPT_TEXT, .target = &s.files[VLA_IN_V], .argument = "F", .help = "values, .npy"},
        {.name = "u",
         .type = VLA_OPT_TEXT,
         .target = &s.files[VLA_IN_U],
         .argument = "F",
         .help = "vla: penalty directions (default: k)"},
        {.name = "b",
         .type = VLA_OPT_TEXT,
         .target = &s.files[VLA_IN_B],
         .argument = "F",
         .help = "delta: logits of beta (default: beta = 1)"},
        {.name = "g",
         .type = VLA_OPT_TEXT,
         .target = &s.files[VLA_IN_G],
         .argument = "F",
         .help = "decay: logits of the gate (default: gate = 1)"},
        {.name = "out",
         .type = VLA_OPT_TEXT,
         .target = &s.out,
         .argument = "F",
         .help = "write o, .npy (default: none)"},
        {.name = "dump",
         .type = VLA_OPT_TEXT,
         .target = &s.dump,
         .argument = "DIR",
         .help = "write o S A n alpha, .npy (default: none)"},
        {.name = "state-in",
         .type = VLA_OPT_TEXT,
         .target = &s.state_in,
         .argument = "DIR",
         .help = "start from S.npy A.npy n.npy t.npy [op.txt] (default: an empty state)"},
        {.name = "state-out",
         .type = VLA_OPT_TEXT,
         .target = &s.state_out,
         .argument = "DIR",
         .help = "write the state after the last token (default: none)"},
        {.name = "check",
         .type = VLA_OPT_FLAG,
         .target = &s.check,
         .help = "compare o, the state and alpha with naive in float64; exit 1 when one differs (default: off)"},
        {.name = NULL}};
    const vla_option_group *shared = vla_common_groups(&s.common);
    if (!shared) return 2;
    const vla_option_group groups[] = {{"tensors", own}, shared[0], shared[1], shared[2], {NULL, NULL}};
    const vla_cli cli = {program, usage, summary, groups, &s.common};
    vla_strings words = {0};
    vla_error error = {0};
    int code = 0;
    if (vla_cli_parse(&cli, argc, argv, &words, stdout, stderr, &code)) {
        vla_status status = settle(&s, &words, &error);
        if (status == VLA_OK)
            code = run(&s);
        else {
            fprintf(stderr, "%s: %s\n", program, error.message);
            code = vla_exit_code(status);
        }
    }
    vla_strings_free(&words);
    vla_common_free(&s.common);
    return code;
}
