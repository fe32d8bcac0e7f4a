/* vla-capacity: how many associations a memory holds, without training (recall) and trained (mqar, copy). */
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/cli/options.h"
#include "lib/cli/progress.h"
#include "lib/task/recall_verdict.h"

#include <cblas.h>
#include <fnmatch.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const key_names[] = {"gauss", "silu", "elu1", "orth", "input", "all", NULL};
static const char *const gate_names[] = {"unit", "interpolate", "rls", "all", NULL};
static const char *const u_names[] = {"tied", "random", NULL};
static const char *const match_names[] = {"state", "none", NULL};

typedef struct options {
    vla_common common;
    vla_range n, distractors;
    vla_strings keys, gates;
    int64_t trials, codebook;
    double decay, u_scale;
    const char *u, *match, *from;
} options;

typedef struct session { /* one run of the program */
    options *o;
    vla_report *report;
    vla_records old; /* --from, --resume */
    vla_records all; /* what is judged and plotted: old rows that count and new ones */
    vla_progress progress;
    vla_pool *pool;
    bool table, interrupted;
    int64_t run, passed, skipped, failed;
} session;

static vla_status add_row(void *context, vla_record *row, vla_error *error)
{
    session *s = context;
    if (!vla_records_push(&s->all, vla_record_copy(row))) return vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    const char *kind = vla_record_text(row, "kind", ""), *status = vla_record_text(row, "status", "ok");
    if (strcmp(kind, "recall") == 0) {
        s->run++;
        s->passed += strcmp(status, "ok") == 0;
        s->skipped += strcmp(status, "skip") == 0;
        s->failed += strcmp(status, "fail") == 0;
    }
    return vla_report_add(s->report, row, error);
}

/* A case is also named by any of its rows: recall/vla/gauss/d64_n48 asks for the curve recall/vla/gauss/d64. */
static bool matches(const options *o, const char *label)
{
    const vla_strings *cases = &o->common.cases, *filters = &o->common.filters;
    if (cases->count == 0 && filters->count == 0) return true;
    for (int64_t i = 0; i < cases->count; i++)
        if (strncmp(cases->values[i], label, strlen(label)) == 0) return true;
    for (int64_t i = 0; i < filters->count; i++)
        if (fnmatch(filters->values[i], label, 0) == 0) return true;
    return false;
}

static bool is_wanted(void *context, const char *label, const char *key)
{
    session *s = context;
    if (!matches(s->o, label)) return false;
    if (s->o->common.dry_run) {
        printf("%s\n", label);
        return false;
    }
    for (int64_t i = 0; i < s->old.count; i++)
        if (strcmp(vla_record_text(s->old.rows[i], "key", ""), key) == 0) return false;
    return true;
}

static bool step(void *context, const char *label, double done)
{
    session *s = context;
    vla_progress_update(&s->progress, label, done, 1);
    s->interrupted = s->interrupted || vla_interrupted();
    return !s->interrupted;
}

static void recall_table(FILE *stream, const vla_records *rows, bool verbose)
{
    static const vla_column columns[] = {{"d", "d", NULL, true},
                                         {"keys", "keys", NULL, true},
                                         {"op", "operator", NULL, false},
                                         {"setting", "setting", NULL, false},
                                         {"dk", "dk", NULL, true},
                                         {"distractors", "distractors", NULL, true},
                                         {"n", "n", NULL, false},
                                         {"accuracy", "accuracy", "%.3f", false},
                                         {"accuracy_lo", "95 % lo", "%.3f", false},
                                         {"accuracy_hi", "hi", "%.3f", false},
                                         {"accuracy_inner", "inner", "%.3f", false},
                                         {"relative_error", "error", "%.3f", false},
                                         {"norm", "|S|", "%.3g", false},
                                         {"age_q1", "oldest", "%.2f", false},
                                         {"age_q2", "2nd", "%.2f", false},
                                         {"age_q3", "3rd", "%.2f", false},
                                         {"age_q4", "newest", "%.2f", false},
                                         {"state_bytes", "state", "bytes", false},
                                         {"reason", "reason", NULL, true}};
    static const vla_column capacity[] = {{"op", "operator", NULL, false}, {"setting", "setting", NULL, false},
                                          {"keys", "keys", NULL, true},    {"d", "d", NULL, false},
                                          {"dk", "dk", NULL, true},        {"distractors", "distractors", NULL, true},
                                          {"n95", "n95", NULL, false},     {"n95_lo", "lo", NULL, false},
                                          {"n95_hi", "hi", NULL, false},   {"censored", "at least", NULL, false}};
    static const vla_column fits[] = {{"case", "n95 = c d^p", NULL, false},   {"coefficient", "c", "%.3f", false},
                                      {"exponent", "p", "%.2f", false},       {"exponent_lo", "lo", "%.2f", false},
                                      {"exponent_hi", "hi", "%.2f", false},   {"points", "points", NULL, true},
                                      {"censored", "lower bound", NULL, true}};
    if (verbose) vla_table_print(stream, rows, "recall", columns, sizeof columns / sizeof *columns);
    vla_table_print(stream, rows, "capacity", capacity, sizeof capacity / sizeof *capacity);
    vla_table_print(stream, rows, "fit", fits, sizeof fits / sizeof *fits);
}

static void verdict_table(FILE *stream, const vla_records *rows)
{
    static const vla_column columns[] = {
        {"claim", "claim", NULL, false},        {"source", "source", NULL, false}, {"verdict", "verdict", NULL, false},
        {"value", "value", "%.3f", false},      {"lo", "lo", "%.3f", false},       {"hi", "hi", "%.3f", false},
        {"condition", "condition", NULL, false}};
    vla_table_print(stream, rows, "verdict", columns, sizeof columns / sizeof *columns);
}

static int gates_of(const vla_strings *names, vla_write_gate *gates)
{
    int count = 0;
    for (int64_t i = 0; i < names->count && count < VLA_WRITE_GATES; i++) {
        if (strcmp(names->values[i], "all") == 0) {
            for (count = 0; count < VLA_WRITE_GATES; count++) gates[count] = (vla_write_gate)count;
            return count;
        }
        vla_write_gate_parse(names->values[i], &gates[count++]);
    }
    return count;
}

static int keys_of(const vla_strings *names, bool has_input, vla_key_source *keys)
{
    int count = 0;
    for (int64_t i = 0; i < names->count && count < VLA_KEY_SOURCES; i++) {
        if (strcmp(names->values[i], "all") == 0) {
            for (count = 0; count < (has_input ? VLA_KEY_SOURCES : VLA_KEYS_INPUT); count++)
                keys[count] = (vla_key_source)count;
            return count;
        }
        vla_key_source_parse(names->values[i], &keys[count++]);
    }
    return count;
}

static vla_recall_settings recall_settings(const options *o)
{
    vla_recall_settings s = vla_recall_settings_default();
    const int ops = vla_common_ops(&o->common, s.ops);
    if (ops) s.op_count = ops;
    if (o->keys.count) s.key_count = keys_of(&o->keys, o->common.input != NULL, s.keys);
    if (o->gates.count) s.gate_count = gates_of(&o->gates, s.gates);
    if (o->common.d.count) s.d = o->common.d.values, s.d_count = o->common.d.count;
    if (o->n.count) s.n = o->n.values, s.n_count = o->n.count;
    if (o->distractors.count) s.distractors = o->distractors.values, s.distractor_count = o->distractors.count;
    s.codebook = o->codebook, s.trials = o->trials;
    s.lambda0 = o->common.lambda0, s.decay = o->decay, s.u_scale = o->u_scale;
    s.u_random = o->u && strcmp(o->u, "random") == 0;
    s.match_state = o->match && strcmp(o->match, "state") == 0;
    s.seed = (uint64_t)o->common.seed;
    return s;
}

/* Earlier measurements are judged and plotted with the new ones; with --from they are also written again. */
static vla_status keep_old(session *s, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < s->old.count; i++) {
        const char *kind = vla_record_text(s->old.rows[i], "kind", "");
        if (strcmp(kind, "meta") == 0 || strcmp(kind, "verdict") == 0 || strcmp(kind, "fit") == 0) continue;
        vla_record *copy = vla_record_copy(s->old.rows[i]);
        if (s->o->from)
            status = copy ? add_row(s, copy, error) : vla_fail(error, VLA_ERR_MEMORY, "out of memory");
        else if (!vla_records_push(&s->all, copy))
            status = vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    }
    return status;
}

static vla_status recall(session *s, vla_error *error)
{
    const vla_row_sink sink = {add_row, is_wanted, step, s};
    const vla_recall_settings settings = recall_settings(s->o);
    vla_status status = keep_old(s, error);
    if (!status && !s->o->from) status = vla_recall_sweep(&settings, s->pool, &sink, error);
    vla_progress_clear(&s->progress);
    if (s->o->common.dry_run || status) return status;
    status = vla_recall_fits(&s->all, settings.seed, &sink, error);
    if (!status) status = vla_recall_verdicts(&s->all, &sink, error);
    if (s->table) recall_table(stdout, &s->all, s->o->common.verbose);
    return status;
}

static void free_options(options *o)
{
    vla_range_free(&o->n);
    vla_range_free(&o->distractors);
    vla_strings_free(&o->keys);
    vla_strings_free(&o->gates);
    vla_common_free(&o->common);
}

static bool parse(options *o, int argc, char **argv, vla_strings *words, int *exit_code)
{
    const vla_option rows[] = {{.name = "n",
                                .type = VLA_OPT_RANGE,
                                .target = &o->n,
                                .argument = "RANGE",
                                .help = "pairs (recall: 1 to 4d)",
                                .min = 1,
                                .max = 1 << 24},
                               {.name = "from",
                                .type = VLA_OPT_TEXT,
                                .target = &o->from,
                                .argument = "FILE",
                                .help = "judge and plot earlier records, measure nothing (default: none)"},
                               {.name = NULL}};
    const vla_option recall_rows[] = {{.name = "keys",
                                       .type = VLA_OPT_LIST,
                                       .target = &o->keys,
                                       .argument = "LIST",
                                       .help = "gauss silu elu1 orth input, or all (default: all that need no file)",
                                       .choices = key_names},
                                      {.name = "trials",
                                       .type = VLA_OPT_INT,
                                       .target = &o->trials,
                                       .argument = "N",
                                       .help = "random repetitions (default: 20)",
                                       .min = 1,
                                       .max = 1 << 20},
                                      {.name = "codebook",
                                       .type = VLA_OPT_INT,
                                       .target = &o->codebook,
                                       .argument = "N",
                                       .help = "Gaussian vectors values are drawn from (default: 128)",
                                       .min = 2,
                                       .max = 1 << 20},
                                      {.name = "distractors",
                                       .type = VLA_OPT_RANGE,
                                       .target = &o->distractors,
                                       .argument = "RANGE",
                                       .help = "pairs written between storing and asking (default: 0)",
                                       .min = 0,
                                       .max = 1 << 24},
                                      {.name = "gate",
                                       .type = VLA_OPT_LIST,
                                       .target = &o->gates,
                                       .argument = "LIST",
                                       .help = "vla's write: unit interpolate rls, or all (default: unit)",
                                       .choices = gate_names},
                                      {.name = "u",
                                       .type = VLA_OPT_CHOICE,
                                       .target = &o->u,
                                       .argument = "NAME",
                                       .help = "vla's penalty: tied to the key, or random (default: tied)",
                                       .choices = u_names},
                                      {.name = "u-scale",
                                       .type = VLA_OPT_REAL,
                                       .target = &o->u_scale,
                                       .argument = "X",
                                       .help = "length of u times sqrt(d) (default: 1)",
                                       .min = 0,
                                       .max = 1e150},
                                      {.name = "decay",
                                       .type = VLA_OPT_REAL,
                                       .target = &o->decay,
                                       .argument = "X",
                                       .help = "decay's gate g (default: 0.88)",
                                       .min = 0,
                                       .max = 1},
                                      {.name = "match",
                                       .type = VLA_OPT_CHOICE,
                                       .target = &o->match,
                                       .argument = "NAME",
                                       .help = "state: wider keys for memories with one matrix (default: none)",
                                       .choices = match_names},
                                      {.name = NULL}};
    vla_option_group groups[3 + VLA_COMMON_GROUPS] = {{"vla-capacity", rows}, {"recall", recall_rows}};
    const vla_option_group *shared = vla_common_groups(&o->common);
    if (!shared) return *exit_code = 2, false;
    memcpy(groups + 2, shared, (VLA_COMMON_GROUPS + 1) * sizeof *groups);
    const vla_cli cli = {"vla-capacity", "vla-capacity recall [OPTIONS]",
                         "How many associations a memory holds: recall writes random pairs and asks for each.", groups,
                         &o->common};
    return vla_cli_parse(&cli, argc, argv, words, stdout, stderr, exit_code);
}

static int complain(const vla_error *error)
{
    fprintf(stderr, "vla-capacity: %s\n", error->message);
    return vla_exit_code(error->status);
}

static vla_status read_old(session *s, vla_error *error)
{
    if (s->o->from) return vla_records_read(&s->old, s->o->from, error);
    for (int64_t i = 0; s->o->common.resume && i < s->o->common.outputs.count; i++) {
        const char *path = s->o->common.outputs.values[i];
        const char *dot = strrchr(path, '.');
        if (!dot || strcmp(dot, ".md") == 0 || access(path, R_OK) != 0) continue;
        return vla_records_read(&s->old, path, error);
    }
    return VLA_OK;
}

static vla_status open_session(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    const int threads = c->threads.count ? (int)c->threads.values[0] : vla_cpu_count();
    vla_status status = read_old(s, error);
    if (!status) status = vla_pool_create(&s->pool, threads, error);
    vla_record *meta = status ? NULL : vla_meta(threads);
    if (!status) status = vla_common_report(c, meta, &s->report, &s->table, error);
    vla_record_destroy(meta);
    s->progress = vla_progress_start(c->quiet);
    return status;
}

static vla_status close_session(session *s, vla_status status, vla_error *error)
{
    vla_progress_clear(&s->progress);
    if (s->report && s->table && !status && !s->o->common.dry_run) verdict_table(stdout, &s->all);
    const vla_status closed = s->report ? vla_report_close(s->report, status ? NULL : error) : VLA_OK;
    vla_records_clear(&s->old);
    vla_records_clear(&s->all);
    vla_pool_destroy(s->pool);
    return status ? status : closed;
}

int main(int argc, char **argv)
{
    options o = {.trials = 20, .codebook = 128, .decay = 0.88, .u_scale = 1};
    vla_common_init(&o.common);
    vla_strings words = {0};
    vla_error error = {0};
    int exit_code = 0;
    setlocale(LC_ALL, "C");
    openblas_set_num_threads(1); /* work is shared out by the pool */
    if (parse(&o, argc, argv, &words, &exit_code)) {
        vla_interrupt_install();
        session s = {.o = &o};
        vla_status status = VLA_OK;
        if (words.count != 1 || strcmp(words.values[0], "recall") != 0)
            status = vla_fail(&error, VLA_ERR_ARGUMENT, "'%s': recall is accepted", words.count ? words.values[0] : "");
        if (!status) status = open_session(&s, &error);
        if (!status) status = recall(&s, &error);
        status = close_session(&s, status, &error);
        if (!status && !o.common.quiet)
            fprintf(stderr, "run %lld, passed %lld, skipped %lld, failed %lld\n", (long long)s.run, (long long)s.passed,
                    (long long)s.skipped, (long long)s.failed);
        exit_code = status ? complain(&error) : s.failed || (s.skipped && o.common.strict) ? 1 : 0;
    }
    vla_strings_free(&words);
    free_options(&o);
    return exit_code;
}
