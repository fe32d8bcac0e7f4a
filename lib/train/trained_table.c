/* The paper's numbers beside what was measured, and what that says about its claims. */
#include "lib/base/status.h"
#include "lib/measure/statistics.h"
#include "lib/train/trained.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* One number of the paper or of its authors' log; NaN where there is none. */
typedef struct cell {
    const char *claim, *task, *op;
    int64_t n, T;
    double paper, authors;
} cell;

#define NONE ((double)NAN)

static const cell cells[] = {
    {"C12", "mqar", "softmax", 4, 13, NONE, 0.255},
    {"C12", "mqar", "softmax", 8, 25, NONE, 0.146},
    {"C12", "mqar", "softmax", 12, 37, NONE, 0.109},
    {"C12", "mqar", "softmax", 16, 49, NONE, 0.100},
    {"C12", "mqar", "softmax", 24, 73, 0.26, 0.074},
    {"C12", "mqar", "linear", 4, 13, NONE, 0.260},
    {"C12", "mqar", "linear", 8, 25, NONE, 0.143},
    {"C12", "mqar", "linear", 12, 37, NONE, 0.109},
    {"C12", "mqar", "linear", 16, 49, NONE, 0.097},
    {"C12", "mqar", "linear", 24, 73, 0.074, 0.075},
    {"C12", "mqar", "decay", 4, 13, NONE, 0.989},
    {"C12", "mqar", "decay", 8, 25, NONE, 0.734},
    {"C12", "mqar", "decay", 12, 37, NONE, 0.097},
    {"C12", "mqar", "decay", 16, 49, NONE, 0.038},
    {"C12", "mqar", "decay", 24, 73, 0.010, 0.010},
    {"C12", "mqar", "delta", 4, 13, NONE, NONE},
    {"C12", "mqar", "delta", 8, 25, NONE, NONE},
    {"C12", "mqar", "delta", 12, 37, NONE, NONE},
    {"C12", "mqar", "delta", 16, 49, NONE, NONE},
    {"C12", "mqar", "delta", 24, 73, 0.010, NONE}, /* named DeltaNet in the text; its code has decay */
    {"C12", "mqar", "vla", 4, 13, NONE, 1},
    {"C12", "mqar", "vla", 8, 25, NONE, 1},
    {"C12", "mqar", "vla", 12, 37, NONE, 1},
    {"C12", "mqar", "vla", 16, 49, NONE, 1},
    {"C12", "mqar", "vla", 24, 73, 1, 1},
    {"C12", "mqar", "rls", 4, 13, NONE, NONE},
    {"C12", "mqar", "rls", 8, 25, NONE, NONE},
    {"C12", "mqar", "rls", 12, 37, NONE, NONE},
    {"C12", "mqar", "rls", 16, 49, NONE, NONE},
    {"C12", "mqar", "rls", 24, 73, NONE, NONE},
    {"C13", "mqar", "decay", 8, 49, 0.01, 0.018},
    {"C13", "mqar", "decay", 8, 64, 0.01, 0.019},
    {"C13", "mqar", "decay", 8, 128, 0.01, 0.011},
    {"C13", "mqar", "decay", 8, 256, 0.01, 0.007},
    {"C13", "mqar", "decay", 8, 512, 0.01, 0.006},
    {"C13", "mqar", "softmax", 8, 49, NONE, 0.15},
    {"C13", "mqar", "softmax", 8, 64, NONE, 0.15},
    {"C13", "mqar", "softmax", 8, 128, NONE, 0.15},
    {"C13", "mqar", "softmax", 8, 256, NONE, 0.15},
    {"C13", "mqar", "softmax", 8, 512, NONE, 0.15},
    {"C13", "mqar", "linear", 8, 49, NONE, 0.15},
    {"C13", "mqar", "linear", 8, 64, NONE, 0.15},
    {"C13", "mqar", "linear", 8, 128, NONE, 0.15},
    {"C13", "mqar", "linear", 8, 256, NONE, 0.15},
    {"C13", "mqar", "linear", 8, 512, NONE, 0.15},
    {"C13", "mqar", "delta", 8, 49, NONE, NONE},
    {"C13", "mqar", "delta", 8, 64, NONE, NONE},
    {"C13", "mqar", "delta", 8, 128, NONE, NONE},
    {"C13", "mqar", "delta", 8, 256, NONE, NONE},
    {"C13", "mqar", "delta", 8, 512, 0.01, NONE},
    {"C13", "mqar", "rls", 8, 49, NONE, NONE},
    {"C13", "mqar", "rls", 8, 64, NONE, NONE},
    {"C13", "mqar", "rls", 8, 128, NONE, NONE},
    {"C13", "mqar", "rls", 8, 256, NONE, NONE},
    {"C13", "mqar", "rls", 8, 512, NONE, NONE},
    {"C13", "mqar", "vla", 8, 49, 1, 1},
    {"C13", "mqar", "vla", 8, 64, 1, 1},
    {"C13", "mqar", "vla", 8, 128, 1, 1},
    {"C13", "mqar", "vla", 8, 256, 1, 0.998},
    {"C13", "mqar", "vla", 8, 512, 1, 0.982},
    {"C14", "mqar", "linear", 32, 97, NONE, NONE},
    {"C14", "mqar", "vla", 32, 97, NONE, NONE},
    {"C14", "mqar", "linear", 48, 145, NONE, NONE},
    {"C14", "mqar", "vla", 48, 145, NONE, NONE},
    {"C15", "copy", "softmax", 0, 63, 1, 1},
    {"C15", "copy", "linear", 0, 63, 1, 1},
    {"C15", "copy", "decay", 0, 63, 1, 1},
    {"C15", "copy", "vla", 0, 63, 1, 1},
    {"C15", "copy", "delta", 0, 63, NONE, NONE},
    {"C15", "copy", "rls", 0, 63, NONE, NONE},
    {"C15", "copy-own", "softmax", 0, 63, 1, 1}, /* the other reading of `scored on the second half` */
    {"C15", "copy-own", "linear", 0, 63, 1, 1},
    {"C15", "copy-own", "decay", 0, 63, 1, 1},
    {"C15", "copy-own", "vla", 0, 63, 1, 1},
};

enum { CELLS = sizeof cells / sizeof *cells, MOST_SEEDS = 64 };

typedef struct measured { /* over seeds */
    int64_t seeds;
    double min, median, max;
} measured;

static bool text_is(const vla_record *row, const char *name, const char *value)
{
    return strcmp(vla_record_text(row, name, ""), value) == 0;
}

/* How a cell is measured: a protocol, with short convolutions of 4 taps or without any. */
typedef struct column {
    const char *protocol;
    int64_t conv;
} column;

static const column PAPER = {"paper", 0}, TUNED = {"tuned", 0}, TUNED_CONV = {"tuned", 4};

static bool in_cell(const vla_record *row, const cell *c, column in)
{
    return vla_record_true(row, "standard") && !vla_record_true(row, "search") && text_is(row, "kind", "train") &&
           text_is(row, "task", c->task) && text_is(row, "op", c->op) && text_is(row, "protocol", in.protocol) &&
           vla_record_number(row, "conv", 0) == (double)in.conv && text_is(row, "preset", "") &&
           text_is(row, "status", "ok") && vla_record_number(row, "n", 0) == (double)c->n &&
           vla_record_number(row, "T", 0) == (double)c->T && vla_record_number(row, "vocab", 0) == 128;
}

/* The rate whose first row has the best validation accuracy; paper rows have one rate. */
static double chosen_rate(const vla_records *records, const cell *c, column in)
{
    double best = -1, lr = NONE;
    for (int64_t i = 0; i < records->count; i++) {
        const vla_record *row = records->rows[i];
        if (!in_cell(row, c, in)) continue;
        const double validation = vla_record_number(row, "validation", 0);
        if (validation > best) best = validation, lr = vla_record_number(row, "lr", NONE);
    }
    return lr;
}

static measured measure(const vla_records *records, const cell *c, column in)
{
    double values[MOST_SEEDS];
    measured m = {0, NONE, NONE, NONE};
    const double lr = chosen_rate(records, c, in);
    for (int64_t i = 0; i < records->count && m.seeds < MOST_SEEDS; i++) {
        const vla_record *row = records->rows[i];
        if (in_cell(row, c, in) && vla_record_number(row, "lr", NONE) == lr)
            values[m.seeds++] = vla_record_number(row, "accuracy", 0);
    }
    if (m.seeds == 0) return m;
    vla_sort(values, m.seeds);
    m.min = values[0], m.max = values[m.seeds - 1], m.median = vla_quantile(values, m.seeds, 0.5);
    return m;
}

static const char *tell(const measured *m, char *text, size_t size)
{
    if (m->seeds == 0)
        snprintf(text, size, "not measured here");
    else if (m->seeds == 1)
        snprintf(text, size, "%.3f (1 seed)", m->median);
    else
        snprintf(text, size, "%.3f (%.3f to %.3f, %" PRId64 " seeds)", m->median, m->min, m->max, m->seeds);
    return text;
}

static vla_status no_memory(vla_record *row, vla_error *error)
{
    vla_record_destroy(row);
    return vla_fail(error, VLA_ERR_MEMORY, "table: out of memory for a record");
}

static vla_status add_cell(const cell *c, const measured m[3], const vla_row_sink *sink, vla_error *error)
{
    char text[3][80];
    vla_record *row = vla_record_create("cell");
    const bool ok = row && vla_record_string(row, "claim", c->claim) && vla_record_string(row, "task", c->task) &&
                    vla_record_string(row, "op", c->op) &&
                    (c->n ? vla_record_int(row, "n", c->n) : vla_record_null(row, "n")) &&
                    vla_record_int(row, "T", c->T) && vla_record_real(row, "paper", c->paper) &&
                    vla_record_real(row, "authors_log", c->authors) &&
                    vla_record_string(row, "measured_paper", tell(&m[0], text[0], sizeof text[0])) &&
                    vla_record_string(row, "measured_tuned", tell(&m[1], text[1], sizeof text[1])) &&
                    vla_record_string(row, "measured_conv", m[2].seeds ? tell(&m[2], text[2], sizeof text[2]) : NULL);
    return ok ? sink->add(sink->context, row, error) : no_memory(row, error);
}

typedef struct ruling {
    const char *claim, *verdict;
    double value, lo, hi;
    char source[96], condition[160], replay[160];
} ruling;

static vla_status add_verdict(const ruling *r, const vla_row_sink *sink, vla_error *error)
{
    vla_record *row = vla_record_create("verdict");
    const bool ok = row && vla_record_string(row, "claim", r->claim) && vla_record_string(row, "source", r->source) &&
                    vla_record_real(row, "value", r->value) && vla_record_real(row, "lo", r->lo) &&
                    vla_record_real(row, "hi", r->hi) && vla_record_string(row, "verdict", r->verdict) &&
                    vla_record_string(row, "condition", r->condition) && vla_record_string(row, "replay", r->replay);
    return ok ? sink->add(sink->context, row, error) : no_memory(row, error);
}

/* What the program is told to run a task. */
static const char *command_of(const char *task)
{
    return strcmp(task, "copy-own") == 0 ? "copy --copy-form own" : task;
}

static ruling ruling_of(const cell *c, const char *protocol, const measured *m)
{
    ruling r = {.claim = c->claim, .value = m->median, .lo = m->min, .hi = m->max};
    char size[48] = "";
    if (c->n) snprintf(size, sizeof size, "n=%" PRId64 " ", c->n);
    snprintf(r.source, sizeof r.source, "%s %s %sT=%" PRId64 ", %s", c->task, c->op, size, c->T, protocol);
    char pairs[32] = "";
    if (c->n) snprintf(pairs, sizeof pairs, " --n %" PRId64, c->n);
    char length[32] = "";
    if (strcmp(c->claim, "C13") == 0) snprintf(length, sizeof length, " --T %" PRId64, c->T);
    snprintf(r.replay, sizeof r.replay, "vla-capacity %s --op %s%s%s --protocol %s", command_of(c->task), c->op, pairs,
             length, protocol);
    return r;
}

/* C12, C13, C15: the paper's number for this cell is met within 0.05 by the median over seeds. */
static vla_status judge_number(const cell *c, const char *protocol, const measured *m, const vla_row_sink *sink,
                               vla_error *error)
{
    ruling r = ruling_of(c, protocol, m);
    if (m->seeds == 0) {
        r.verdict = "not measured here";
        snprintf(r.condition, sizeof r.condition, "the paper has %.3f", c->paper);
    } else {
        r.verdict = fabs(m->median - c->paper) <= 0.05 ? "holds" : "refuted";
        snprintf(r.condition, sizeof r.condition,
                 "the paper has %.3f; within 0.05 of the median over %" PRId64 " seeds", c->paper, m->seeds);
    }
    return add_verdict(&r, sink, error);
}

/* C14a, trained: vla above linear beyond capacity, by the ranges over seeds. */
static vla_status judge_overload(const cell *linear, const cell *vla, const vla_records *records, column in,
                                 const vla_row_sink *sink, vla_error *error)
{
    const measured l = measure(records, linear, in), v = measure(records, vla, in);
    ruling r = ruling_of(vla, in.protocol, &v);
    r.claim = "C14a";
    if (l.seeds == 0 || v.seeds == 0) {
        r.verdict = "not measured here", r.value = r.lo = r.hi = NONE;
        snprintf(r.condition, sizeof r.condition, "vla above linear at n = %" PRId64, vla->n);
    } else {
        r.verdict = v.min > l.max ? "holds" : v.max < l.min ? "refuted" : "undecided";
        snprintf(r.condition, sizeof r.condition, "vla %.3f, linear %.3f", v.median, l.median);
    }
    return add_verdict(&r, sink, error);
}

static vla_status judge_cell(const vla_records *records, int i, const vla_row_sink *sink, vla_error *error)
{
    const cell *c = &cells[i];
    const column columns[] = {PAPER, TUNED, TUNED_CONV};
    const measured m[3] = {measure(records, c, PAPER), measure(records, c, TUNED), measure(records, c, TUNED_CONV)};
    vla_status status = add_cell(c, m, sink, error);
    for (int p = 0; !status && p < 2; p++) {
        if (strcmp(c->claim, "C14") == 0) {
            if (strcmp(c->op, "vla") == 0) status = judge_overload(c - 1, c, records, columns[p], sink, error);
        } else if (!isnan(c->paper)) {
            status = judge_number(c, columns[p].protocol, &m[p], sink, error);
        }
    }
    return status;
}

/* C8: neither explodes nor vanishes: |dL/dx| at the largest lag within a factor of 10 of that at lag 1. */
static vla_status judge_gradients(const vla_records *records, int64_t first, const vla_row_sink *sink, vla_error *error)
{
    const vla_record *one = records->rows[first];
    const bool trained = vla_record_true(one, "trained");
    double last_lag = 1, last = NONE;
    for (int64_t i = 0; i < records->count; i++) {
        const vla_record *row = records->rows[i];
        if (!text_is(row, "kind", "gradient") || !text_is(row, "case", vla_record_text(one, "case", "?")) ||
            vla_record_true(row, "trained") != trained || !(vla_record_number(row, "lag", 0) > last_lag))
            continue;
        last_lag = vla_record_number(row, "lag", 0);
        last = vla_record_number(row, "gradient", NONE);
    }
    const double ratio = last / vla_record_number(one, "gradient", NONE);
    if (isnan(ratio)) return VLA_OK;
    ruling r = {.claim = "C8", .value = ratio, .lo = NONE, .hi = NONE};
    r.verdict = ratio >= 0.1 && ratio <= 10 ? "holds" : "refuted";
    snprintf(r.source, sizeof r.source, "%.60s, %s", vla_record_text(one, "case", "?"),
             trained ? "trained" : "untrained");
    snprintf(r.condition, sizeof r.condition, "|dL/dx| at lag %.0f over lag 1, within a factor of 10", last_lag);
    snprintf(r.replay, sizeof r.replay, "vla-capacity %s --gradients --case %.80s",
             command_of(vla_record_text(one, "task", "mqar")), vla_record_text(one, "case", "?"));
    return add_verdict(&r, sink, error);
}

vla_status vla_trained_table(const vla_records *records, vla_task_kind kind, const vla_row_sink *sink, vla_error *error)
{
    const int64_t end = records->count; /* the sink may append to the same list */
    vla_status status = VLA_OK;
    for (int i = 0; !status && i < CELLS; i++)
        if ((strncmp(cells[i].task, "copy", 4) == 0) == vla_sequences_is_copy(kind) && kind != VLA_MQAR_ZOOLOGY)
            status = judge_cell(records, i, sink, error);
    for (int64_t i = 0; !status && i < end; i++)
        if (text_is(records->rows[i], "kind", "gradient") && vla_record_number(records->rows[i], "lag", 0) == 1 &&
            (strncmp(vla_record_text(records->rows[i], "task", ""), "copy", 4) == 0) == vla_sequences_is_copy(kind))
            status = judge_gradients(records, i, sink, error);
    return status;
}
