#include "cmd/bench.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/measure/compare.h"
#include "lib/measure/curves.h"
#include "lib/measure/figures.h"
#include "lib/measure/verdict.h"
#include "lib/op/registry.h"
#include <stdio.h>
#include <string.h>

vla_status bench_figures(const bench_options *o, const vla_records *rows, vla_error *error)
{
    vla_figures_done done;
    vla_status status = vla_directory_make(o->common.plot, error);
    if (!status) status = vla_bench_figures(o->common.plot, rows, &done, error);
    if (status) return status;
    if (!o->common.quiet)
        fprintf(stderr, "vla-bench: %d figure%s in %s%s%s\n", done.written, done.written == 1 ? "" : "s",
                o->common.plot, done.rendered < done.written ? "; not rendered: " : "",
                done.rendered < done.written ? done.note : "");
    return VLA_OK;
}

vla_status bench_report_all(vla_report *report, const vla_records *rows, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < rows->count; i++) {
        vla_record *copy = vla_record_copy(rows->rows[i]);
        if (!copy) return vla_fail(error, VLA_ERR_MEMORY, "results: out of memory");
        status = vla_report_add(report, copy, error);
    }
    return status;
}

static vla_status read_files(const vla_strings *files, int64_t from, vla_records *rows, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = from; !status && i < files->count; i++) {
        vla_records read = {0};
        status = vla_records_read(&read, files->values[i], error);
        if (!status) status = vla_merge(rows, &read, error);
        vla_records_clear(&read);
    }
    return status;
}

static vla_status read_from(const bench_options *o, vla_records *rows, vla_error *error)
{
    if (o->from.count == 0)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--from FILE is missing: records of an earlier run");
    vla_status status = read_files(&o->from, 0, rows, error);
    if (!status && rows->count == 0) return vla_fail(error, VLA_ERR_FILE, "%s: holds no records", o->from.values[0]);
    return status;
}

/* Writes results to -o and --format, or prints them with show. */
static vla_status deliver(const bench_options *o, const vla_records *results, void (*show)(const vla_records *),
                          vla_error *error)
{
    vla_report *report;
    bool table;
    vla_record *meta = vla_meta(vla_cpu_count());
    if (!meta) return vla_fail(error, VLA_ERR_MEMORY, "report: out of memory");
    vla_status status = vla_common_report(&o->common, meta, &report, &table, error);
    vla_record_destroy(meta);
    if (status) return status;
    status = bench_report_all(report, results, error);
    if (!status && table) {
        show(results);
        status = vla_stream_flush(stdout, "stdout", error);
    }
    const vla_status closed = vla_report_close(report, status ? NULL : error);
    return status ? status : closed;
}

/* What --from holds and what is asked of it. */
typedef struct question {
    const bench_options *o;
    const vla_records *rows;
    vla_settings settings;
    vla_pair pairs[BENCH_MOST_PAIRS];
    int pair_count;
} question;

typedef vla_status (*answer)(const question *q, const vla_setting *setting, vla_records *out, vla_error *error);

static vla_status find_crossovers(const question *q, const vla_setting *setting, vla_records *out, vla_error *error)
{
    for (int i = 0; i < q->pair_count; i++) {
        const vla_pair *pair = &q->pairs[i];
        vla_record *r = vla_crossover_record(q->rows, setting, vla_op_name(pair->a), vla_op_name(pair->b),
                                             (uint64_t)q->o->common.seed, NULL, error);
        if (!r || !vla_records_push(out, r)) {
            vla_record_destroy(r);
            return vla_fail(error, VLA_ERR_MEMORY, "crossover: out of memory");
        }
    }
    return VLA_OK;
}

static vla_status find_fits(const question *q, const vla_setting *setting, vla_records *out, vla_error *error)
{
    const uint64_t seed = (uint64_t)q->o->common.seed;
    vla_status status = VLA_OK;
    for (int op = 0; !status && op < VLA_OPS; op++)
        status = vla_fit_records(q->rows, setting, vla_op_name((vla_op)op), seed, out, error);
    for (int i = 0; !status && i < q->pair_count; i++)
        status = vla_extrapolation_records(q->rows, setting, vla_op_name(q->pairs[i].a), vla_op_name(q->pairs[i].b),
                                           seed, out, error);
    return status;
}

/* Asks every setting among the rows, for the pairs of --crossover or vla and softmax. */
static vla_status ask(const bench_options *o, const vla_records *rows, answer find, vla_records *out, vla_error *error)
{
    static const vla_op usual[] = {VLA_VLA, VLA_SOFTMAX};
    question q = {.o = o, .rows = rows};
    vla_status status = bench_pairs(o, usual, 2, q.pairs, &q.pair_count, error);
    if (!status) status = vla_settings_of(rows, &q.settings, error);
    for (int64_t i = 0; !status && i < q.settings.count; i++) status = find(&q, &q.settings.items[i], out, error);
    vla_settings_free(&q.settings);
    return status;
}

/* A subcommand that concludes from records; nothing: what an empty answer means, NULL where it is one. */
static int conclude(const bench_options *o, answer find, const char *nothing, void (*show)(const vla_records *))
{
    vla_records rows = {0}, out = {0};
    vla_error error = {0};
    vla_status status = read_from(o, &rows, &error);
    if (!status) status = ask(o, &rows, find, &out, &error);
    if (!status && nothing && out.count == 0)
        status = vla_fail(&error, VLA_ERR_FILE, "%s: %s", o->from.values[0], nothing);
    if (!status) status = deliver(o, &out, show, &error);
    vla_records_clear(&rows);
    vla_records_clear(&out);
    return status ? bench_fail(&error) : 0;
}

int bench_crossover(bench_options *o)
{
    return conclude(o, find_crossovers, NULL, bench_print_crossovers);
}

static void show_fits(const vla_records *rows)
{
    bench_print_kind(rows, "fit");
    bench_print_kind(rows, "extrapolation");
}

int bench_fit(bench_options *o)
{
    return conclude(o, find_fits, "no operator has two sizes with a time", show_fits);
}

static void show_verdicts(const vla_records *rows)
{
    bench_print_kind(rows, "verdict");
}

int bench_verdict(bench_options *o)
{
    vla_records rows = {0}, out = {0};
    vla_error error = {0};
    vla_status status = read_from(o, &rows, &error);
    if (!status) status = vla_bench_verdicts(&rows, (uint64_t)o->common.seed, &out, &error);
    if (!status && out.count == 0)
        status = vla_fail(&error, VLA_ERR_FILE, "%s: no claim can be judged from these records", o->from.values[0]);
    if (!status) status = deliver(o, &out, show_verdicts, &error);
    vla_records_clear(&rows);
    vla_records_clear(&out);
    return status ? bench_fail(&error) : 0;
}

int bench_plot(bench_options *o)
{
    vla_records rows = {0};
    vla_error error = {0};
    vla_status status = o->common.plot ? read_from(o, &rows, &error)
                                       : vla_fail(&error, VLA_ERR_ARGUMENT, "--plot DIR is missing: where figures go");
    if (!status) status = bench_figures(o, &rows, &error);
    vla_records_clear(&rows);
    return status ? bench_fail(&error) : 0;
}

static void show_samples(const vla_records *rows)
{
    bench_print_samples(rows, false);
    bench_print_crossovers(rows);
}

int bench_merge(bench_options *o, const vla_strings *words)
{
    vla_records rows = {0};
    vla_error error = {0};
    vla_status status =
        words->count >= 2 ? VLA_OK : vla_fail(&error, VLA_ERR_ARGUMENT, "merge: accepted are one or more FILEs");
    if (!status) status = read_files(words, 1, &rows, &error);
    /* Metadata belongs to the runs that were merged: CSV rows keep theirs, the merged file has its own. */
    for (int64_t i = rows.count - 1; i >= 0; i--)
        if (!strcmp(vla_record_text(rows.rows[i], "kind", ""), "meta")) {
            vla_record_destroy(rows.rows[i]);
            memmove(rows.rows + i, rows.rows + i + 1, (size_t)(rows.count - i - 1) * sizeof *rows.rows);
            rows.count--;
        }
    if (!status) status = deliver(o, &rows, show_samples, &error);
    vla_records_clear(&rows);
    return status ? bench_fail(&error) : 0;
}

static void show_comparison(const vla_records *rows)
{
    bench_print_kind(rows, "compare");
}

int bench_compare(bench_options *o, const vla_strings *words)
{
    vla_records before = {0}, after = {0}, out = {0};
    vla_comparison n = {0};
    vla_error error = {0};
    vla_status status =
        words->count == 3 ? VLA_OK : vla_fail(&error, VLA_ERR_ARGUMENT, "compare: accepted are two files, OLD NEW");
    if (!status) status = vla_records_read(&before, words->values[1], &error);
    if (!status) status = vla_records_read(&after, words->values[2], &error);
    if (!status) status = vla_compare(&before, &after, BENCH_SLOWER_THRESHOLD, &out, &n, &error);
    if (!status) status = deliver(o, &out, show_comparison, &error);
    if (!status)
        fprintf(
            stderr,
            "compared %lld: slower %lld, faster %lld, same %lld, ambiguous %lld, other status %lld; only in old %lld, "
            "only in new %lld\n",
            (long long)n.joined, (long long)n.slower, (long long)n.faster, (long long)n.same, (long long)n.ambiguous,
            (long long)n.changed, (long long)n.only_old, (long long)n.only_new);
    vla_records_clear(&before);
    vla_records_clear(&after);
    vla_records_clear(&out);
    if (status) return bench_fail(&error);
    if (o->common.strict && n.joined == 0) return 1;
    return o->common.fail_on && n.slower ? 5 : 0;
}
