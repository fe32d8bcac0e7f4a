#include "cmd/bench.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/measure/compare.h"
#include "lib/measure/expect.h"
#include "lib/measure/peak.h"
#include "lib/measure/setting.h"
#include "lib/op/registry.h"
#include "lib/report/sink.h"
#include "lib/train/bench_backward.h"
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define USUAL_TIME_LIMIT 25.0
/* Share of the time limit kept for measuring between the sizes of the sweep. */
#define SEARCH_SHARE 0.3

typedef struct session {
    const bench_options *o;
    vla_progress progress;
    vla_report *report;
    bool table, write_failed;
    vla_inputs data;
    bool has_data;
    char digest[17];
    vla_cases cases;
    vla_pair pairs[BENCH_MOST_PAIRS];
    int pair_count;
    vla_records rows, extra; /* samples; crossovers, peaks and ratios */
    vla_records expected;    /* --expect */
    vla_records said;        /* crossovers, peaks and ratios of earlier runs */
    vla_sweep *sweep;
    double time_limit;
    bench_cudnn cudnn;
} session;

int bench_fail(const vla_error *error)
{
    fprintf(stderr, "vla-bench: %s\n", error->message);
    return vla_exit_code(error->status);
}

/* A lost output is said once; other outputs go on, and without any the run ends. */
static vla_status write_record(session *s, const vla_record *record, vla_error *error)
{
    vla_record *copy = vla_record_copy(record);
    if (!copy) return vla_fail(error, VLA_ERR_MEMORY, "results: out of memory");
    vla_error why = {0};
    if (vla_report_add(s->report, copy, &why) == VLA_OK) return VLA_OK;
    s->write_failed = true;
    const bool only_output = s->o->common.outputs.count + (s->o->common.format != NULL) <= 1 && !s->table;
    if (only_output) {
        if (error) *error = why;
        return why.status;
    }
    vla_progress_note(&s->progress, "vla-bench: %s", why.message);
    return VLA_OK;
}

static vla_status on_row(void *context, const vla_record *record, vla_error *error)
{
    session *s = context;
    const char *status = vla_record_text(record, "status", "ok"), *reason = vla_record_text(record, "reason", NULL);
    if (strcmp(status, "ok") && !s->o->common.quiet)
        vla_progress_note(&s->progress, "vla-bench: %s: %s%s%s", vla_record_text(record, "case", ""), status,
                          reason ? ": " : "", reason ? reason : "");
    return write_record(s, record, error);
}

static void on_progress(void *context, const char *label, double done, double total)
{
    session *s = context;
    vla_progress_update(&s->progress, label, done, total);
}

static void on_note(void *context, const char *text)
{
    session *s = context;
    if (!s->o->common.quiet) vla_progress_note(&s->progress, "vla-bench: note: %s", text);
}

static vla_status check_options(const bench_options *o, vla_error *error)
{
    if (!strcmp(o->pass, "fwdbwd") && !strcmp(o->mode, "decode"))
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "--pass fwdbwd: a decode step is not trained; accepted is --mode prefill");
    if (o->common.seeds.count > 1)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--seeds: vla-bench times one seed a run; accepted is a single value");
    if (o->common.fail_on && !o->common.expect && !o->baseline)
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "--fail-on slower: needs --baseline OP or --expect FILE to be slower than, or compare OLD NEW");
    if (o->common.resume && o->common.outputs.count == 0)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--resume: needs -o FILE with the rows to go on from");
    return VLA_OK;
}

static int64_t seed_of(const bench_options *o)
{
    return o->common.seeds.count ? o->common.seeds.values[0] : o->common.seed;
}

/* CSV keeps what is concluded beside the rows, a file a kind. */
static vla_status read_said(session *s, vla_error *error)
{
    static const char *const kinds[] = {"crossover", "gain", "peak", "ratio"};
    const vla_strings *outputs = &s->o->common.outputs;
    vla_status status = VLA_OK;
    for (int64_t i = 0; s->o->common.resume && i < outputs->count; i++)
        for (size_t k = 0; !status && k < sizeof kinds / sizeof *kinds; k++) {
            const char *end = strrchr(outputs->values[i], '.');
            if (!end || strcmp(end, ".csv")) continue;
            char *path = vla_csv_kind_path(outputs->values[i], kinds[k]);
            if (!path) return vla_fail(error, VLA_ERR_MEMORY, "--resume: out of memory");
            if (access(path, R_OK) == 0) status = vla_records_read(&s->said, path, error);
            free(path);
        }
    return status;
}

/* Rows of earlier runs, once each. */
static vla_status read_earlier(session *s, vla_error *error)
{
    vla_records read = {0};
    vla_status status = vla_common_earlier(&s->o->common, &read, error);
    if (!status) status = vla_merge(&s->rows, &read, error);
    vla_records_clear(&read);
    return status ? status : read_said(s, error);
}

/* Kept in float64; every case rounds its prefix to its own dtype. */
static vla_status load_data(session *s, vla_error *error)
{
    const char *directory = s->o->common.input;
    vla_status status = vla_inputs_load_directory(&s->data, directory, VLA_F64, error);
    if (status) return status;
    s->has_data = true;
    vla_inputs_digest(&s->data, s->digest);
    if (s->data.T == s->data.Tk && s->data.T > 0) return VLA_OK;
    return vla_fail(error, VLA_ERR_FILE,
                    "--input %s: %lld queries and %lld keys; accepted here are as many of both, and some", directory,
                    (long long)s->data.T, (long long)s->data.Tk);
}

/* A profiler wants one launch of one case. */
static vla_status only_one(session *s, vla_error *error)
{
    const vla_case *c = &s->cases.items[0];
    if (!s->o->profile || c->backend != VLA_CUDA) return VLA_OK;
    s->pair_count = 0;
    if (s->cases.count == 1) return VLA_OK;
    return vla_fail(error, VLA_ERR_ARGUMENT,
                    "--profile: these options make %lld cases; accepted is one, as --case or --filter say it",
                    (long long)s->cases.count);
}

static vla_status open_session(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    vla_status status = check_options(s->o, error);
    if (!status && c->input) {
        status = load_data(s, error);
    }
    if (!status) status = bench_cases(s->o, false, s->has_data ? &s->data : NULL, &s->cases, error);
    for (int64_t i = 0; !status && s->has_data && i < s->cases.count; i++)
        if (vla_case_x(&s->cases.items[i]) > s->data.T)
            status = vla_fail(error, VLA_ERR_ARGUMENT, "--%s %lld: the tensors of --input hold %lld tokens",
                              s->cases.items[i].mode == VLA_DECODE ? "depth" : "T",
                              (long long)vla_case_x(&s->cases.items[i]), (long long)s->data.T);
    if (status) return status;
    vla_op ops[VLA_OPS];
    int op_count = 0;
    for (int64_t i = 0; i < s->cases.count && op_count < VLA_OPS; i++) {
        bool known = false;
        for (int j = 0; j < op_count; j++) known |= ops[j] == s->cases.items[i].problem.op;
        if (!known) ops[op_count++] = s->cases.items[i].problem.op;
    }
    status = bench_pairs(s->o, ops, c->cases.count && s->o->crossovers.count == 0 ? 0 : op_count, s->pairs,
                         &s->pair_count, error);
    if (!status) status = only_one(s, error);
    if (!status) status = read_earlier(s, error);
    if (!status && c->expect) status = vla_records_read(&s->expected, c->expect, error);
    if (!status && c->expect && !vla_expects(&s->expected))
        status = vla_fail(error, VLA_ERR_FILE, "%s: holds no samples or crossovers to expect", c->expect);
    return status;
}

static vla_status open_report(session *s, vla_error *error)
{
    vla_record *meta = vla_meta(vla_cpu_count());
    if (!meta || !bench_cudnn_meta(&s->cudnn, meta)) {
        vla_record_destroy(meta);
        return vla_fail(error, VLA_ERR_MEMORY, "report: out of memory");
    }
    if (s->o->common.plot) {
        vla_status status = vla_directory_make(s->o->common.plot, error);
        if (status) {
            vla_record_destroy(meta);
            return status;
        }
    }
    vla_status status = vla_common_report(&s->o->common, meta, &s->report, &s->table, error);
    vla_record_destroy(meta);
    return status;
}

static vla_status open_sweep(session *s, vla_error *error)
{
    const vla_common *c = &s->o->common;
    vla_isa isa = VLA_ISA_AUTO;
    if (c->isa) vla_isa_parse(c->isa, &isa);
    if (isa != VLA_ISA_AUTO && isa > vla_isa_detect())
        return vla_fail(error, VLA_ERR_ARGUMENT, "--isa %s: this processor has up to %s", c->isa,
                        vla_isa_name(vla_isa_detect()));
    const double usual = (double)s->cases.count > USUAL_TIME_LIMIT ? (double)s->cases.count : USUAL_TIME_LIMIT;
    s->time_limit = c->time_limit > 0 ? c->time_limit : usual;
    const vla_sweep_config config = {.time_limit = s->time_limit,
                                     .min_samples = c->min_samples,
                                     .noise = c->noise,
                                     .check_full = !strcmp(s->o->check, "full"),
                                     .profile = s->o->profile,
                                     .seed = seed_of(s->o),
                                     .isa = isa,
                                     .backward = &vla_backward_pass,
                                     .workers = s->cudnn.workers,
                                     .worker_count = s->cudnn.worker_count,
                                     .here = s->cudnn.here,
                                     .in_workers = bench_by_cudnn,
                                     .gains = &s->extra,
                                     .data = s->has_data ? &s->data : NULL,
                                     .digest = s->has_data ? s->digest : NULL,
                                     .context = s,
                                     .row = on_row,
                                     .progress = on_progress,
                                     .note = on_note,
                                     .interrupted = vla_interrupted};
    return vla_sweep_create(&s->sweep, &config, &s->rows, error);
}

/* Records that say again what an earlier run's file already says are not written twice. */
static bool among(const vla_records *rows, const vla_record *r)
{
    static const char *const fields[] = {"key", "lo", "hi", "state", "x_min", "x_max"};
    for (int64_t i = 0; i < rows->count; i++) {
        const vla_record *old = rows->rows[i];
        if (strcmp(vla_record_text(old, "kind", ""), vla_record_text(r, "kind", ""))) continue;
        bool same = true;
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
            same = same && !strcmp(vla_record_text(old, fields[f], ""), vla_record_text(r, fields[f], "")) &&
                   vla_record_number(old, fields[f], -1) == vla_record_number(r, fields[f], -1);
        if (same) return true;
    }
    return false;
}

static vla_status write_extra(session *s, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < s->extra.count; i++)
        if (!among(&s->rows, s->extra.rows[i]) && !among(&s->said, s->extra.rows[i]))
            status = write_record(s, s->extra.rows[i], error);
    return status;
}

static vla_status add_peak(session *s, const char *backend, const char *dtype, int threads, double flops, double bytes,
                           const char *library, vla_error *error)
{
    vla_record *r = vla_record_create("peak");
    const bool ok = r && vla_record_string(r, "backend", backend) && vla_record_string(r, "dtype", dtype) &&
                    (threads ? vla_record_int(r, "threads", threads) : vla_record_null(r, "threads")) &&
                    vla_record_real(r, "flops_per_s", flops) && vla_record_real(r, "bytes_per_s", bytes) &&
                    vla_record_string(r, "library", *library ? library : NULL);
    if (ok && vla_records_push(&s->extra, r)) return VLA_OK;
    vla_record_destroy(r);
    return vla_fail(error, VLA_ERR_MEMORY, "peaks: out of memory");
}

/* Every arithmetic of the device; one that its library has not is left out. */
static vla_status add_device_peaks(session *s, vla_peaks *peaks, vla_error *error)
{
    const bool all[VLA_ARITHS] = {true, true, true, true, true};
    vla_error why = {0};
    vla_status status = VLA_OK;
    if (vla_peaks_device(peaks, all, 0.2, &why)) on_note(s, why.message);
    for (int a = 0; !status && a < VLA_ARITHS; a++)
        if (peaks->device[a] > 0)
            status = add_peak(s, "cuda", vla_arith_name((vla_arith)a), 0, peaks->device[a], peaks->device_bytes_per_s,
                              peaks->device_library, error);
    return status;
}

static vla_status add_peaks(session *s, vla_error *error)
{
    vla_peaks peaks = *vla_sweep_peaks(s->sweep);
    const vla_case *first = NULL;
    bool device = false;
    vla_status status = VLA_OK;
    for (int64_t i = 0; i < s->cases.count; i++) {
        device |= s->cases.items[i].backend == VLA_CUDA;
        if (!first && s->cases.items[i].backend == VLA_CPU) first = &s->cases.items[i];
    }
    if (first) {
        vla_peaks_matrix(&peaks, first->dtype, first->threads, 0.3);
        vla_peaks_copy(&peaks, first->threads, 0.3);
    }
    for (int i = 0; first && !status && i < peaks.count; i++)
        status = add_peak(s, "cpu", vla_dtype_name(peaks.matrix[i].dtype), peaks.matrix[i].threads,
                          peaks.matrix[i].flops_per_s, peaks.bytes_per_s, vla_peak_library(), error);
    return !status && device ? add_device_peaks(s, &peaks, error) : status;
}

static vla_status measure(session *s, vla_error *error)
{
    vla_status status = open_sweep(s, error);
    if (!status)
        status = vla_sweep_run(s->sweep, s->cases.items, s->cases.count, s->pair_count ? 1 - SEARCH_SHARE : 1, error);
    if (!status && s->pair_count)
        status = vla_search_crossovers(s->sweep, &s->rows, s->cases.items, s->cases.count, s->pairs, s->pair_count,
                                       (uint64_t)seed_of(s->o), &s->extra, error);
    if (!status && s->o->peak) status = add_peaks(s, error);
    return status;
}

static void print_tables(session *s)
{
    bench_print_samples(&s->rows, s->o->common.verbose);
    bench_print_kind(&s->extra, "gain");
    bench_print_kind(&s->extra, "ratio");
    bench_print_kind(&s->extra, "peak");
    bench_print_crossovers(&s->extra);
}

/* How many rows carry each kind of warning, with what to do about it. */
static void print_warnings(const session *s)
{
    static const struct {
        const char *sign, *remedy;
    } kinds[] = {{"rate above the machine's measured peak",
                  "the clock or the peak (matrix products of the BLAS named) is wrong: run again on a quiet machine"},
                 {"outputs differ between runs", "the kernel is not deterministic: compare with --threads 1"},
                 {"fewer samples than asked", "raise --time-limit"},
                 {"noise target not met", "raise --time-limit, close other programs or accept more with --noise"},
                 {"samples shorter than the clock allows", "raise --T or --H"},
                 {"clock held down", "let the device cool, or raise its power limit: times of such rows are too long"},
                 {"stolen", "the host is busy with other machines: run again, and compare within a turn only"},
                 {"slow first sample", "something was still warming up: raise --min-samples"},
                 {"outliers", "other programs are using this machine"}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int64_t count = 0;
        const char *example = "";
        for (int64_t i = 0; i < s->rows.count; i++)
            if (strstr(vla_record_text(s->rows.rows[i], "warning", ""), kinds[k].sign)) {
                if (!count++) example = vla_record_text(s->rows.rows[i], "case", "");
            }
        if (count)
            fprintf(stderr, "vla-bench: warning: %s in %lld row%s (%s%s): %s\n", kinds[k].sign, (long long)count,
                    count == 1 ? "" : "s", example, count == 1 ? "" : ", ..", kinds[k].remedy);
    }
}

/* A baseline that is not the strongest there is. */
static void warn_weak_baseline(const session *s)
{
    for (int64_t i = 0; i < s->extra.count; i++) {
        const vla_record *r = s->extra.rows[i];
        const char *ran_a = vla_record_text(r, "ran_a", ""), *ran_b = vla_record_text(r, "ran_b", "");
        const char *weak = !strncmp(ran_b, "tiled", 5) ? ran_b : !strncmp(ran_a, "tiled", 5) ? ran_a : NULL;
        if (strcmp(vla_record_text(r, "kind", ""), "crossover") || !weak) continue;
        fprintf(stderr,
                "vla-bench: warning: softmax ran as %s: its crossovers are against a weaker baseline than cuDNN; use "
                "--dtype bf16 or f16 where cuDNN is installed\n",
                weak);
        return;
    }
}

/* The last line says how it went, in a form that scripts may rely on; details stand above it. */
static void print_closing(session *s)
{
    const vla_sweep_counts n = vla_sweep_totals(s->sweep);
    const double seconds = vla_progress_start(true).started - s->progress.started;
    if (!s->o->common.quiet) {
        fprintf(stderr, "vla-bench: %.1f s", seconds);
        if (n.resumed) fprintf(stderr, ", %lld rows kept from before", (long long)n.resumed);
        if (n.timeout) fprintf(stderr, ", %lld timeout", (long long)n.timeout);
        if (n.oom) fprintf(stderr, ", %lld oom", (long long)n.oom);
        fprintf(stderr, "%s\n", vla_interrupted() ? ", interrupted: --resume goes on" : "");
    }
    vla_closing_line(n.passed, n.skipped, n.failed);
}

static vla_status relate_to_baseline(session *s, bool *slower, vla_error *error)
{
    vla_comparison summary;
    if (!s->o->baseline) return VLA_OK;
    vla_status status = vla_relate(&s->rows, s->o->baseline, BENCH_SLOWER_THRESHOLD, &s->extra, &summary, error);
    *slower |= summary.slower > 0;
    return status;
}

/* --expect: what differs from the records of FILE, one line each on stderr. */
static vla_status meet_expectations(session *s, bool *differs, bool *slower, vla_error *error)
{
    vla_records compared = {0}, found = {0};
    vla_comparison summary = {0};
    if (!s->o->common.expect) return VLA_OK;
    vla_status status = vla_merge(&found, &s->rows, error);
    if (!status) status = vla_merge(&found, &s->extra, error);
    if (!status) status = vla_compare(&s->expected, &found, BENCH_SLOWER_THRESHOLD, &compared, &summary, error);
    if (!status) {
        *slower |= summary.slower > 0;
        *differs = vla_expect_differs(&s->expected, &found, stderr) > 0;
    }
    vla_records_clear(&compared);
    vla_records_clear(&found);
    return status;
}

static int exit_code(const session *s, bool differs, bool slower)
{
    const vla_sweep_counts n = vla_sweep_totals(s->sweep);
    if (vla_interrupted()) return BENCH_EXIT_INTERRUPTED;
    if (s->write_failed) return 3;
    if (n.failed || differs) return 1;
    if (s->o->common.strict && n.skipped) return 1;
    if (s->o->common.fail_on && slower) return 5;
    return 0;
}

static vla_status finish(session *s, bool *differs, bool *slower, vla_error *error)
{
    vla_status status = relate_to_baseline(s, slower, error);
    if (!status) status = write_extra(s, error);
    vla_progress_clear(&s->progress);
    if (s->table) print_tables(s);
    if (!status) status = vla_stream_flush(stdout, "stdout", error);
    if (!status) status = meet_expectations(s, differs, slower, error);
    if (!status && s->o->common.plot) {
        vla_records all = {0};
        status = vla_merge(&all, &s->rows, error);
        if (!status) status = vla_merge(&all, &s->extra, error);
        if (!status) status = bench_figures(s->o, &all, error);
        vla_records_clear(&all);
    }
    if (!s->o->common.quiet) print_warnings(s);
    if (!s->o->common.quiet) warn_weak_baseline(s);
    return status;
}

static int dry_run(const session *s, vla_error *error)
{
    char label[VLA_LABEL_SIZE];
    int64_t todo = 0;
    for (int64_t i = 0; i < s->cases.count; i++) {
        if (vla_case_among(&s->cases.items[i], seed_of(s->o), s->has_data ? s->digest : NULL, &s->rows)) continue;
        todo++;
        puts(vla_case_label(&s->cases.items[i], label, sizeof label));
    }
    fprintf(stderr, "would run %lld, and new sizes for %d crossover%s\n", (long long)todo, s->pair_count,
            s->pair_count == 1 ? "" : "s");
    return vla_stream_flush(stdout, "stdout", error) ? bench_fail(error) : 0;
}

static int run_session(session *s, vla_error *error)
{
    bool differs = false, slower = false;
    if (open_session(s, error)) return bench_fail(error);
    if (s->o->common.dry_run) return dry_run(s, error);
    if (bench_cudnn_choose(&s->cudnn, s->o, &s->cases, error)) return bench_fail(error);
    if (open_report(s, error)) return bench_fail(error);
    if (s->o->common.cases.count == 0) bench_note_backend(s->o);
    if (!s->o->common.quiet) vla_setting_warn(stderr, "vla-bench");
    bench_cudnn_start(&s->cudnn, s->o->common.quiet);
    vla_status status = measure(s, error);
    /* What was measured is shown and kept, whatever happened. */
    vla_error later = {0};
    int code = status ? bench_fail(error) : 0;
    if (s->sweep) {
        const vla_status shown = finish(s, &differs, &slower, &later);
        if (shown && !code) code = bench_fail(&later);
        print_closing(s);
        if (!code) code = exit_code(s, differs, slower);
    }
    const vla_status closed = vla_report_close(s->report, &later);
    s->report = NULL;
    if (closed && !code) code = bench_fail(&later);
    return code;
}

int bench_run(bench_options *o)
{
    openblas_set_num_threads(1); /* a pass shares its heads out itself; peaks set their own */
    vla_error error = {0};
    session s = {.o = o, .progress = vla_progress_start(o->common.quiet)};
    const int code = run_session(&s, &error);
    vla_sweep_destroy(s.sweep);
    bench_cudnn_end(&s.cudnn);
    vla_inputs_destroy(&s.data);
    vla_cases_free(&s.cases);
    vla_records_clear(&s.rows);
    vla_records_clear(&s.extra);
    vla_records_clear(&s.expected);
    vla_records_clear(&s.said);
    return code;
}
