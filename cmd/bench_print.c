#include "cmd/bench.h"
#include "lib/measure/curves.h"
#include "lib/op/registry.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double number(const vla_record *r, const char *name)
{
    return vla_record_number(r, name, 0);
}

/* By setting, then size, then operator: what is compared stands together. */
static int by_size(const void *p, const void *q)
{
    static const char *const texts[] = {"backend", "dtype", "mode"};
    static const char *const sizes[] = {"threads", "B", "H", "dk", "dv", "depth", "T"};
    const vla_record *a = *(vla_record *const *)p, *b = *(vla_record *const *)q;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const int order = strcmp(vla_record_text(a, texts[i], ""), vla_record_text(b, texts[i], ""));
        if (order) return order;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const double x = number(a, sizes[i]), y = number(b, sizes[i]);
        if (x != y) return x < y ? -1 : 1;
    }
    vla_op op_a = VLA_OPS, op_b = VLA_OPS;
    vla_op_parse(vla_record_text(a, "op", ""), &op_a);
    vla_op_parse(vla_record_text(b, "op", ""), &op_b);
    if (op_a != op_b) return op_a < op_b ? -1 : 1;
    return strcmp(vla_record_text(a, "form", ""), vla_record_text(b, "form", ""));
}

/* Prints the columns in which some row has a value. */
static void print_filled(const vla_records *rows, const char *kind, const vla_column *columns, int count)
{
    enum { MOST = 32 };
    vla_column kept[MOST];
    int n = 0;
    for (int c = 0; c < count && n < MOST; c++) {
        bool filled = false;
        for (int64_t i = 0; !filled && i < rows->count; i++) {
            const vla_value *value = vla_record_get(rows->rows[i], columns[c].field);
            filled =
                !strcmp(vla_record_text(rows->rows[i], "kind", ""), kind) && value && value->type != VLA_VALUE_NULL;
        }
        if (filled) kept[n++] = columns[c];
    }
    vla_table_print(stdout, rows, kind, kept, n);
}

void bench_print_samples(const vla_records *rows, bool verbose)
{
    static const vla_column columns[] = {{"op", "op", NULL, false},
                                         {"form", "form", NULL, true},
                                         {"backend", "backend", NULL, true},
                                         {"dtype", "dtype", NULL, true},
                                         {"mode", "mode", NULL, true},
                                         {"launch", "launch", NULL, true},
                                         {"cache", "cache", NULL, true},
                                         {"isa", "isa", NULL, true},
                                         {"threads", "threads", NULL, true},
                                         {"B", "B", NULL, true},
                                         {"H", "H", NULL, true},
                                         {"dk", "dk", NULL, true},
                                         {"dv", "dv", NULL, true},
                                         {"chunk", "chunk", NULL, true},
                                         {"segments", "segments", NULL, true},
                                         {"depth", "context", NULL, true},
                                         {"T", "T", NULL, true},
                                         {"median_s", "median", "time", false},
                                         {"q1_s", "q1", "time", false},
                                         {"q3_s", "q3", "time", false},
                                         {"noise", "noise", "percent", false},
                                         {"n_samples", "n", NULL, false},
                                         {"time_per_token_s", "a token", "time", false},
                                         {"share_of_peak", "of peak", "percent", false},
                                         {"state_bytes", "state", "bytes", false},
                                         {"residual", "residual", "%.1e", false},
                                         {"status", "status", NULL, true},
                                         {"stop_reason", "stop", NULL, true},
                                         {"checked", "checked", NULL, true},
                                         {"reason", "reason", NULL, true}};
    static const vla_column more[] = {{"case", "case", NULL, false},
                                      {"median_s", "median", "time", false},
                                      {"min_s", "min", "time", false},
                                      {"mad_s", "mad", "time", false},
                                      {"iterations", "iterations", NULL, false},
                                      {"flops_per_s", "flop/s", "count", false},
                                      {"bytes_per_s", "byte/s", "count", false},
                                      {"peak_bytes", "buffers", "bytes", false},
                                      {"max_residual", "max residual", "%.1e", false},
                                      {"libraries", "by version", NULL, false},
                                      {"warning", "warning", NULL, false}};
    vla_records sorted = {0};
    sorted.rows = malloc((size_t)(rows->count + 1) * sizeof *sorted.rows);
    if (!sorted.rows) return;
    for (int64_t i = 0; i < rows->count; i++)
        if (!strcmp(vla_record_text(rows->rows[i], "kind", ""), "sample")) sorted.rows[sorted.count++] = rows->rows[i];
    if (sorted.count > 1) qsort(sorted.rows, (size_t)sorted.count, sizeof *sorted.rows, by_size);
    if (sorted.count) print_filled(&sorted, "sample", columns, (int)(sizeof columns / sizeof *columns));
    if (sorted.count && verbose) {
        putchar('\n');
        print_filled(&sorted, "sample", more, (int)(sizeof more / sizeof *more));
    }
    free(sorted.rows);
}

void bench_print_crossovers(const vla_records *rows)
{
    int64_t count = 0;
    for (int64_t i = 0; i < rows->count; i++) count += !strcmp(vla_record_text(rows->rows[i], "kind", ""), "crossover");
    if (count) putchar('\n');
    for (int64_t i = 0; i < rows->count; i++) {
        const vla_record *r = rows->rows[i];
        char text[400];
        if (strcmp(vla_record_text(r, "kind", ""), "crossover")) continue;
        vla_crossover_sentence(r, text, sizeof text);
        if (count > 1)
            printf("%s, B %.0f, H %.0f, dk %.0f, dv %.0f, %s: ", vla_record_text(r, "dtype", ""), number(r, "B"),
                   number(r, "H"), number(r, "dk"), number(r, "dv"), vla_record_text(r, "mode", ""));
        printf("%s.\n", text);
        const char *reason = vla_record_text(r, "reason", NULL);
        if (reason) printf("  %s.\n", reason);
    }
}

void bench_print_kind(const vla_records *rows, const char *kind)
{
    static const vla_column ratio[] = {{"case", "case", NULL, false},
                                       {"baseline", "baseline", NULL, true},
                                       {"ratio", "time / baseline", "%.3f", false},
                                       {"ratio_lo", "lo", "%.3f", false},
                                       {"ratio_hi", "hi", "%.3f", false},
                                       {"verdict", "verdict", NULL, false}};
    static const vla_column gain[] = {{"case", "case", NULL, false},
                                      {"alone", "one thread", NULL, false},
                                      {"gain", "one thread / scan", "%.2f", false},
                                      {"gain_q1", "q1", "%.2f", false},
                                      {"gain_q3", "q3", "%.2f", false},
                                      {"ceiling", "side by side", "%.2f", false},
                                      {"ceiling_q1", "q1", "%.2f", false},
                                      {"ceiling_q3", "q3", "%.2f", false},
                                      {"of_ceiling", "of that", "percent", false},
                                      {"turns", "turns", NULL, false},
                                      {"stolen", "stolen", "percent", true}};
    static const vla_column compare[] = {{"case", "case", NULL, false},
                                         {"old_s", "old", "time", false},
                                         {"new_s", "new", "time", false},
                                         {"ratio", "new / old", "%.3f", false},
                                         {"ratio_lo", "lo", "%.3f", false},
                                         {"ratio_hi", "hi", "%.3f", false},
                                         {"old_status", "old status", NULL, true},
                                         {"new_status", "new status", NULL, true},
                                         {"verdict", "verdict", NULL, false}};
    static const vla_column peak[] = {{"backend", "backend", NULL, true},
                                      {"dtype", "dtype", NULL, false},
                                      {"threads", "threads", NULL, false},
                                      {"flops_per_s", "matrix flop/s", "count", false},
                                      {"bytes_per_s", "copy byte/s", "count", false},
                                      {"library", "library", NULL, false}};
    static const vla_column fit[] = {{"op", "op", NULL, false},
                                     {"dtype", "dtype", NULL, true},
                                     {"mode", "mode", NULL, true},
                                     {"B", "B", NULL, true},
                                     {"H", "H", NULL, true},
                                     {"dk", "dk", NULL, true},
                                     {"dv", "dv", NULL, true},
                                     {"points", "points", NULL, false},
                                     {"x_min", "from", NULL, false},
                                     {"x_max", "to", NULL, false},
                                     {"exponent", "exponent", "%.3f", false},
                                     {"exponent_lo", "lo", "%.3f", false},
                                     {"exponent_hi", "hi", "%.3f", false}};
    static const vla_column meet[] = {{"a", "a", NULL, false},
                                      {"b", "b", NULL, false},
                                      {"dtype", "dtype", NULL, true},
                                      {"mode", "mode", NULL, true},
                                      {"dk", "dk", NULL, true},
                                      {"dv", "dv", NULL, true},
                                      {"last", "last points", NULL, false},
                                      {"x_max", "measured to", NULL, false},
                                      {"estimate", "power laws meet at", "%.0f", false},
                                      {"extrapolated", "extrapolated", NULL, false}};
    static const vla_column verdict[] = {{"claim", "claim", NULL, false},
                                         {"part", "part", NULL, false},
                                         {"source", "source", NULL, true},
                                         {"verdict", "verdict", NULL, false},
                                         {"value", "value", "%.5g", false},
                                         {"lo", "lo", "%.5g", false},
                                         {"hi", "hi", "%.5g", false},
                                         {"claimed", "claimed", "%.5g", false},
                                         {"condition", "condition", NULL, false}};
    static const struct {
        const char *kind;
        const vla_column *columns;
        int count;
    } tables[] = {{"gain", gain, sizeof gain / sizeof *gain},
                  {"ratio", ratio, sizeof ratio / sizeof *ratio},
                  {"compare", compare, sizeof compare / sizeof *compare},
                  {"peak", peak, sizeof peak / sizeof *peak},
                  {"fit", fit, sizeof fit / sizeof *fit},
                  {"extrapolation", meet, sizeof meet / sizeof *meet},
                  {"verdict", verdict, sizeof verdict / sizeof *verdict}};
    bool any = false;
    for (int64_t i = 0; i < rows->count; i++) any |= !strcmp(vla_record_text(rows->rows[i], "kind", ""), kind);
    for (size_t i = 0; any && i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i].kind, kind)) {
            putchar('\n');
            print_filled(rows, kind, tables[i].columns, tables[i].count);
        }
}
