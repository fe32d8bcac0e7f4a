/* vla-capacity: how many associations a memory holds, without training (recall) and trained (mqar, copy). */
#include "cmd/capacity.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/names.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/cli/progress.h"
#include "lib/measure/setting.h"
#include "lib/op/inputs.h"
#include "lib/op/registry.h"
#include "lib/task/expect.h"
#include "lib/task/recall_verdict.h"
#include "lib/task/tables.h"
#include "lib/train/trained.h"

#include <cblas.h>
#include <fnmatch.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct session { /* one run of the program */
    capacity_options *o;
    const char *word;
    vla_report *report;
    vla_records old; /* --from, --resume */
    vla_records all; /* what is judged and plotted: old rows that count and new ones */
    vla_progress progress;
    vla_pool *pool;
    vla_key_bank bank;
    double started, told;
    bool table, stopped, warned, matched, told_skip;
    int64_t run, passed, skipped, failed, refuted, unexpected;
} session;

/* Why the first case is left out that is: rows alone would hide it from who reads the table. */
static void tell_skip(session *s, const vla_record *row)
{
    if (s->told_skip || s->o->common.quiet || s->o->from) return;
    s->told_skip = true;
    vla_progress_note(&s->progress, "vla-capacity: %s: skip: %s", vla_record_text(row, "case", "?"),
                      vla_record_text(row, "reason", "no reason given"));
}

static vla_status add_row(void *context, vla_record *row, vla_error *error)
{
    session *s = context;
    if (!row) return vla_fail(error, VLA_ERR_MEMORY, "out of memory for a row");
    const char *kind = vla_record_text(row, "kind", ""), *status = vla_record_text(row, "status", "ok");
    if (strcmp(kind, "recall") == 0 || strcmp(kind, "train") == 0) {
        const bool skipped = strcmp(status, "skip") == 0;
        s->run += !skipped;
        s->passed += strcmp(status, "ok") == 0;
        s->skipped += skipped;
        s->failed += strcmp(status, "fail") == 0;
        if (skipped) tell_skip(s, row);
    }
    s->refuted += strcmp(kind, "verdict") == 0 && strcmp(vla_record_text(row, "verdict", ""), "refuted") == 0;
    return vla_report_keep(s->report, &s->all, row, error);
}

/* A case is also named by any of its rows: recall/vla/gauss/d64_n48 asks for the curve recall/vla/gauss/d64, and
 * mqar/vla/tuned/n24_T73 for its networks of every rate and seed. */
static bool matches(const capacity_options *o, const char *label)
{
    const vla_strings *cases = &o->common.cases, *filters = &o->common.filters;
    if (cases->count == 0 && filters->count == 0) return true;
    for (int64_t i = 0; i < cases->count; i++) {
        const size_t asked = strlen(cases->values[i]), have = strlen(label), both = asked < have ? asked : have;
        const char next = asked > have ? cases->values[i][both] : asked < have ? label[both] : '_';
        if (strncmp(cases->values[i], label, both) == 0 && next == '_') return true;
    }
    for (int64_t i = 0; i < filters->count; i++)
        if (fnmatch(filters->values[i], label, 0) == 0) return true;
    return false;
}

static bool is_wanted(void *context, const char *label, const char *key)
{
    session *s = context;
    if (!matches(s->o, label)) return false;
    s->matched = true;
    if (s->o->common.dry_run) {
        printf("%s\n", label);
        return false;
    }
    for (int64_t i = 0; i < s->old.count; i++) /* a failed one is tried again */
        if (strcmp(vla_record_text(s->old.rows[i], "key", ""), key) == 0 &&
            strcmp(vla_record_text(s->old.rows[i], "status", ""), "fail") != 0)
            return false;
    return true;
}

static bool may_go_on(session *s)
{
    const double limit = s->o->common.time_limit;
    s->stopped = s->stopped || vla_interrupted() || (limit > 0 && vla_now() - s->started > limit);
    return !s->stopped;
}

static bool step(void *context, const char *label, double done)
{
    session *s = context;
    vla_progress_update(&s->progress, label, done, 1);
    return may_go_on(s);
}

/* A bar on a terminal; with --verbose also a line every ten seconds, for logs. */
static bool tell(void *context, const char *label, const vla_train_now *now)
{
    session *s = context;
    char news[160], line[400];
    if (!s->warned && !s->o->common.quiet) vla_setting_warn_blas(stderr, "vla-capacity"); /* once a network trains */
    s->warned = true;
    snprintf(news, sizeof news, "loss %.4f accuracy %.3f %.3gk tokens/s, %.0f s left", now->loss, now->accuracy,
             1e-3 * now->tokens_per_s, now->left_s);
    vla_progress_update(&s->progress, news, (double)now->step, (double)now->steps);
    if (s->o->common.verbose && (vla_now() - s->told > 10 || now->step == now->steps)) {
        s->told = vla_now();
        snprintf(line, sizeof line, "%s step %lld of %lld: %s", label, (long long)now->step, (long long)now->steps,
                 news);
        vla_progress_note(&s->progress, "%s", line);
    }
    return may_go_on(s);
}

static int gates_of(const vla_strings *names, vla_write_gate *gates)
{
    int values[VLA_WRITE_GATES], count = 0;
    for (int64_t i = 0; i < names->count; i++) {
        vla_write_gate gate;
        if (vla_write_gate_parse(names->values[i], &gate))
            count = vla_add_once(values, count, (int)gate);
        else
            for (int all = 0; all < VLA_WRITE_GATES; all++) count = vla_add_once(values, count, all);
    }
    for (int i = 0; i < count; i++) gates[i] = (vla_write_gate)values[i];
    return count;
}

static int keys_of(const vla_strings *names, bool has_input, vla_key_source *keys)
{
    int values[VLA_KEY_SOURCES], count = 0;
    for (int64_t i = 0; i < names->count; i++) {
        vla_key_source source;
        if (vla_key_source_parse(names->values[i], &source))
            count = vla_add_once(values, count, (int)source);
        else
            for (int all = 0; all < (has_input ? VLA_KEY_SOURCES : VLA_KEYS_INPUT); all++)
                count = vla_add_once(values, count, all);
    }
    for (int i = 0; i < count; i++) keys[i] = (vla_key_source)values[i];
    return count;
}

static vla_recall_settings recall_settings(const session *s)
{
    const capacity_options *o = s->o;
    vla_recall_settings r = vla_recall_settings_default();
    const int ops = vla_common_ops(&o->common, r.ops);
    if (ops) r.op_count = ops;
    if (o->common.input) { /* real keys have one width, and are what is asked about unless --keys says more */
        r.bank = &s->bank, r.d = &s->bank.width, r.d_count = 1;
        r.keys[0] = VLA_KEYS_INPUT, r.key_count = 1;
    }
    if (o->keys.count) r.key_count = keys_of(&o->keys, o->common.input != NULL, r.keys);
    if (o->gates.count) r.gate_count = gates_of(&o->gates, r.gates);
    if (o->common.d.count) r.d = o->common.d.values, r.d_count = o->common.d.count;
    if (o->n.count) r.n = o->n.values, r.n_count = o->n.count;
    if (o->distractors.count) r.distractors = o->distractors.values, r.distractor_count = o->distractors.count;
    r.codebook = o->codebook, r.trials = o->trials;
    r.lambda0 = o->common.lambda0, r.decay = o->decay, r.u_scale = o->u_scale;
    r.u_random = o->u && strcmp(o->u, "random") == 0;
    r.match_state = o->match && strcmp(o->match, "state") == 0;
    r.seed = (uint64_t)o->common.seed;
    return r;
}

static vla_status load_keys(session *s, vla_error *error)
{
    vla_problem features = vla_problem_default(VLA_VLA, 1, 1, 1, 1);
    vla_inputs inputs;
    vla_status status = vla_common_problem(&s->o->common, &features, error);
    if (status || !s->o->common.input) return status;
    status = vla_inputs_load_directory(&inputs, s->o->common.input, VLA_F64, error);
    if (status) return status;
    vla_bad_input bad;
    if (vla_inputs_first_bad(&inputs, VLA_DELTA, &bad))
        status = vla_fail(error, VLA_ERR_FILE, "%s/%s.npy: token %lld of head %lld is not finite", s->o->common.input,
                          vla_input_name(bad.input), (long long)bad.token, (long long)bad.head);
    if (!status)
        status = vla_key_bank_create(&s->bank, inputs.tensor[VLA_IN_K].data, inputs.B * inputs.H, inputs.Tk, inputs.dk,
                                     features.features, error);
    vla_inputs_destroy(&inputs);
    return status;
}

/* Earlier measurements are judged and plotted with the new ones; with --from they are also written again. */
static vla_status keep_old(session *s, vla_error *error)
{
    static const char *const derived[] = {"meta", "verdict", "fit", "cell"};
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < s->old.count; i++) {
        bool keep = true;
        for (int d = 0; d < 4; d++) keep = keep && strcmp(vla_record_text(s->old.rows[i], "kind", ""), derived[d]) != 0;
        if (!keep) continue;
        if (s->o->from)
            status = add_row(s, vla_record_copy(s->old.rows[i]), error);
        else if (!vla_records_copy(&s->all, s->old.rows[i]))
            status = vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    }
    return status;
}

/* A filter that leaves nothing is a mistake, not a run that passed. */
static vla_status check_matched(const session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    const bool narrowed = c->cases.count > 0 || c->filters.count > 0;
    if (!narrowed || s->matched || s->stopped || s->all.count > 0 || s->o->from || c->dry_run) return VLA_OK;
    return vla_fail(error, VLA_ERR_ARGUMENT, "nothing to measure: no case matches --filter or --case");
}

static void tell_stop(const session *s)
{
    if (!s->stopped) return;
    fprintf(stderr, "vla-capacity: %s%s\n", vla_interrupted() ? "interrupted" : "stopped at --time-limit",
            s->o->checkpoints            ? "; --resume goes on from its checkpoint"
            : s->o->common.outputs.count ? "; --resume goes on"
                                         : "");
}

static vla_status recall(session *s, const vla_row_sink *sink, vla_error *error)
{
    vla_status status = load_keys(s, error);
    const vla_recall_settings settings = recall_settings(s);
    for (int i = 0; !status && i < settings.key_count; i++)
        if (settings.keys[i] == VLA_KEYS_INPUT && !s->o->common.input)
            status = vla_fail(error, VLA_ERR_ARGUMENT, "--keys input: needs --input DIR");
    if (!status && !s->o->from) status = vla_recall_sweep(&settings, s->pool, sink, error);
    vla_progress_clear(&s->progress);
    if (!status) status = check_matched(s, error);
    if (s->o->common.dry_run || status) return status;
    tell_stop(s);
    status = vla_recall_fits(&s->all, settings.seed, sink, error);
    if (!status) status = vla_recall_verdicts(&s->all, sink, error);
    if (s->table) vla_recall_tables(stdout, &s->all, s->o->common.verbose);
    return status;
}

static int position(const char *const *names, const char *name)
{
    for (int i = 0; name && names[i]; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

static vla_trained_settings trained_settings(const capacity_options *o, vla_task_kind kind)
{
    static const int64_t quick_n[] = {4};
    static const vla_op quick_op = VLA_VLA;
    vla_trained_settings s = vla_trained_settings_default(kind);
    vla_isa isa;
    vla_features features;
    if (o->quick) s.quick = true, s.vocab = 32, s.n = quick_n, s.n_count = 1, s.ops[0] = quick_op, s.op_count = 1;
    const int ops = vla_common_ops(&o->common, s.ops);
    if (ops) s.op_count = ops;
    s.tuned = position(capacity_protocol_names, o->protocol) == 1;
    s.published = o->common.preset != NULL;
    if (o->n.count && !vla_sequences_is_copy(kind)) s.n = o->n.values, s.n_count = o->n.count;
    if (o->common.T.count) s.T = o->common.T.values, s.T_count = o->common.T.count;
    s.seeds = o->common.seeds.count ? o->common.seeds.values : &o->common.seed;
    s.seed_count = o->common.seeds.count ? o->common.seeds.count : 1;
    if (o->vocab) s.vocab = o->vocab;
    s.steps = o->steps, s.batch = o->batch, s.lr = o->lr;
    s.conv = o->short_conv ? 4 : 0;
    s.gate_bias = o->gate_bias;
    s.out_norm = position(capacity_norm_names, o->out_norm);
    if (vla_isa_parse(o->common.isa, &isa)) s.isa = isa;
    s.checkpoints = o->checkpoints, s.resume = o->common.resume, s.dump = o->dump;
    s.gradients = o->gradients, s.norms = o->norms;
    if (o->common.lambda0_given) s.lambda0 = o->common.lambda0;
    if (o->common.features && vla_features_parse(o->common.features, &features)) s.features = (int)features;
    if (o->common.refresh_period) s.refresh_period = o->common.refresh_period, s.refresh_eps = o->common.refresh_eps;
    return s;
}

static vla_status trained(session *s, const vla_row_sink *sink, vla_error *error)
{
    const bool zoology = position(capacity_form_names, s->o->mqar_form) == 1;
    const bool own = position(capacity_copy_names, s->o->copy_form) == 1;
    const vla_task_kind kind = strcmp(s->word, "copy") != 0 ? (zoology ? VLA_MQAR_ZOOLOGY : VLA_MQAR)
                               : own                        ? VLA_COPY_OWN
                                                            : VLA_COPY;
    const vla_trained_settings settings = trained_settings(s->o, kind);
    const vla_trained_watch watch = {tell, s};
    vla_status status =
        s->o->from ? VLA_OK : vla_trained_run(&settings, s->pool, &s->all, sink, &watch, &s->stopped, error);
    vla_progress_clear(&s->progress);
    /* A search whose rates are not all there offers no case of its own yet. */
    if (!status && !settings.tuned) status = check_matched(s, error);
    if (status || s->o->common.dry_run) return status;
    tell_stop(s);
    status = vla_trained_table(&s->all, kind, sink, error);
    if (s->table) vla_trained_tables(stdout, &s->all);
    return status;
}

static int complain(const vla_error *error)
{
    fprintf(stderr, "vla-capacity: %s\n", error->message);
    return vla_exit_code(error->status);
}

static vla_status read_old(session *s, vla_error *error)
{
    if (s->o->from) return vla_records_read(&s->old, s->o->from, error);
    return vla_common_earlier(&s->o->common, &s->old, error);
}

static vla_status open_session(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    const int threads = c->threads.count ? (int)c->threads.values[0] : vla_cpu_count();
    s->started = s->told = vla_now();
    s->progress = vla_progress_start(c->quiet);
    vla_status status = read_old(s, error);
    if (!status) status = vla_pool_create(&s->pool, threads, error);
    vla_record *meta = status ? NULL : vla_meta(threads);
    if (!status) status = vla_common_report(c, meta, &s->report, &s->table, error);
    vla_record_destroy(meta);
    return status;
}

static vla_status draw(session *s, vla_error *error)
{
    char note[200];
    int64_t written = 0;
    vla_status status = vla_directory_make(s->o->common.plot, error);
    if (!status) status = vla_task_figures(s->o->common.plot, &s->all, &written, note, sizeof note, error);
    if (!status && note[0] && !s->o->common.quiet) fprintf(stderr, "vla-capacity: %s\n", note);
    return status;
}

static vla_status meet(session *s, vla_error *error)
{
    vla_records expected = {0};
    const vla_status status = vla_records_read(&expected, s->o->common.expect, error);
    if (!status) s->unexpected = vla_task_expect_differs(&expected, &s->all, stderr);
    vla_records_clear(&expected);
    return status;
}

static vla_status close_session(session *s, vla_status status, vla_error *error)
{
    vla_progress_clear(&s->progress);
    const bool done = s->report && !status && !s->o->common.dry_run;
    if (done && s->o->common.expect) status = meet(s, error);
    if (done && s->table) vla_verdict_table(stdout, &s->all);
    if (done && !status && s->o->common.plot) status = draw(s, error);
    if (!status) status = vla_stream_flush(stdout, "stdout", error);
    const vla_status closed = s->report ? vla_report_close(s->report, status ? NULL : error) : VLA_OK;
    vla_records_clear(&s->old);
    vla_records_clear(&s->all);
    vla_key_bank_destroy(&s->bank);
    vla_pool_destroy(s->pool);
    return status ? status : closed;
}

static vla_status run(session *s, vla_error *error)
{
    const vla_row_sink sink = {add_row, is_wanted, step, s};
    const vla_status status = keep_old(s, error);
    if (status) return status;
    if (s->o->from && s->run == 0)
        return vla_fail(error, VLA_ERR_FILE, "%s: holds no records of vla-capacity", s->o->from);
    return strcmp(s->word, "recall") == 0 ? recall(s, &sink, error) : trained(s, &sink, error);
}

static int result_of(const session *s)
{
    const vla_common *c = &s->o->common;
    if (vla_interrupted()) return 130;
    if (s->failed || s->unexpected || (c->strict && (s->skipped || s->refuted || s->stopped))) return 1;
    return s->refuted && c->fail_on && strcmp(c->fail_on, "refuted") == 0 ? 5 : 0;
}

static int start(capacity_options *o, const char *task)
{
    session s = {.o = o, .word = task};
    vla_error error = {0};
    vla_interrupt_install();
    vla_status status = open_session(&s, &error);
    if (!status) status = run(&s, &error);
    status = close_session(&s, status, &error);
    if (status) return complain(&error);
    if (!o->common.quiet && !o->common.dry_run) vla_closing_line(s.passed, s.skipped, s.failed);
    return result_of(&s);
}

int main(int argc, char **argv)
{
    capacity_options o;
    const char *task;
    int exit_code = 0;
    setlocale(LC_ALL, "C");
    openblas_set_num_threads(1); /* work is shared out by the pool */
    if (capacity_parse(&o, argc, argv, &task, &exit_code)) exit_code = start(&o, task);
    capacity_free(&o);
    return exit_code;
}
