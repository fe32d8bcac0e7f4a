#include "lib/measure/figures.h"
#include "lib/base/status.h"
#include "lib/measure/curves.h"
#include "lib/report/figure.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const ops[] = {"softmax", "linear", "delta", "decay", "vla", "rls"};
enum { OPS = sizeof ops / sizeof *ops, MOST_SERIES = 2 * OPS + 2, MOST_MARKS = 8 };

/* All series of one setting, with the numbers they point to. */
typedef struct page {
    vla_op_curve curves[OPS];
    vla_series series[MOST_SERIES];
    int series_count;
    double *numbers; /* 4 columns a series */
    int64_t length;
    vla_vertical marks[MOST_MARKS];
    char labels[MOST_MARKS][64];
    int mark_count;
    char titles[MOST_SERIES][64];
    char caption[240];
} page;

/* One drawn quantity: y of a record, with low and high where there are any; NULL names leave them out. */
typedef struct quantity {
    const char *y, *low, *high;
    double (*scale)(const vla_record *row); /* multiplies all three; NULL: 1 */
} quantity;

static double per_token(const vla_record *row)
{
    return 1 / (vla_record_number(row, "B", 1) * vla_record_number(row, "T", NAN));
}

static double *column(page *p, int series, int which)
{
    return p->numbers + ((int64_t)series * 4 + which) * p->length;
}

static void add_series(page *p, const vla_op_curve *c, const char *title, vla_mark mark, const quantity *q)
{
    if (p->series_count == MOST_SERIES || c->curve.count == 0) return;
    const int s = p->series_count;
    double *x = column(p, s, 0), *y = column(p, s, 1), *low = column(p, s, 2), *high = column(p, s, 3);
    int64_t n = 0;
    for (int64_t i = 0; i < c->curve.count; i++) {
        const double scale = q->scale ? q->scale(c->records[i]) : 1;
        const double value = scale * vla_record_number(c->records[i], q->y, NAN);
        if (!c->points[i].known || !isfinite(value)) continue;
        x[n] = (double)c->points[i].x;
        y[n] = value;
        low[n] = q->low ? scale * vla_record_number(c->records[i], q->low, NAN) : value;
        high[n] = q->high ? scale * vla_record_number(c->records[i], q->high, NAN) : value;
        if (!isfinite(low[n]) || !isfinite(high[n])) low[n] = high[n] = value;
        n++;
    }
    if (n == 0) return;
    snprintf(p->titles[s], sizeof p->titles[s], "%s", title);
    p->series[s] = (vla_series){.title = p->titles[s],
                                .mark = mark,
                                .count = n,
                                .x = x,
                                .y = y,
                                .low = q->low ? low : NULL,
                                .high = q->high ? high : NULL};
    p->series_count++;
}

static void add_all(page *p, vla_mark mark, const quantity *q, const char *suffix)
{
    for (int i = 0; i < OPS; i++) {
        char title[64];
        snprintf(title, sizeof title, "%s%s", ops[i], suffix);
        add_series(p, &p->curves[i], title, mark, q);
    }
}

/* The curve whose inputs and outputs are the largest: its floor lies above every other's. */
static void add_floor(page *p, const quantity *q, const char *title)
{
    static const int order[] = {4, 0, 1, 2, 3, 5}; /* vla reads u too */
    for (int i = 0; i < OPS; i++) {
        const int before = p->series_count;
        add_series(p, &p->curves[order[i]], title, VLA_DASHED, q);
        if (p->series_count > before) return;
    }
}

static void add_marks(page *p, const vla_records *rows, const vla_setting *setting)
{
    for (int64_t i = 0; i < rows->count && p->mark_count < MOST_MARKS; i++) {
        const vla_record *r = rows->rows[i];
        const double lo = vla_record_number(r, "lo", NAN), hi = vla_record_number(r, "hi", NAN);
        if (strcmp(vla_record_text(r, "kind", ""), "crossover") || !vla_setting_has(r, setting)) continue;
        if (!isfinite(lo) || !isfinite(hi)) continue;
        char *label = p->labels[p->mark_count];
        snprintf(label, sizeof p->labels[0], "%s = %s at %.0f-%.0f", vla_record_text(r, "a", "A"),
                 vla_record_text(r, "b", "B"), lo, hi);
        p->marks[p->mark_count++] = (vla_vertical){lo, hi, label};
    }
}

static vla_status open_page(page *p, const vla_records *rows, const vla_setting *setting, vla_error *error)
{
    vla_status status = VLA_OK;
    char text[160], cpu[80] = "";
    *p = (page){0};
    for (int i = 0; !status && i < OPS; i++) {
        status = vla_curve_of(rows, setting, ops[i], &p->curves[i], error);
        if (!status && p->curves[i].curve.count > p->length) p->length = p->curves[i].curve.count;
    }
    if (status) return status;
    p->numbers = calloc((size_t)(MOST_SERIES * 4 * (p->length + 1)), sizeof *p->numbers);
    if (!p->numbers) return vla_fail(error, VLA_ERR_MEMORY, "figures: out of memory");
    const char *machine = strcmp(setting->backend, "cuda") ? "cpu" : "gpu";
    for (int64_t i = 0; i < rows->count && !*cpu; i++)
        snprintf(cpu, sizeof cpu, "%s", vla_record_text(rows->rows[i], machine, ""));
    snprintf(p->caption, sizeof p->caption, "%s%s%s", vla_setting_text(setting, text, sizeof text), *cpu ? ", " : "",
             cpu);
    add_marks(p, rows, setting);
    return VLA_OK;
}

static void close_page(page *p)
{
    for (int i = 0; i < OPS; i++) vla_curve_free(&p->curves[i]);
    free(p->numbers);
    *p = (page){0};
}

static void clear_series(page *p)
{
    p->series_count = 0;
}

typedef struct drawing {
    const char *directory, *suffix;
    vla_figures_done *done;
} drawing;

static vla_status draw(const drawing *d, page *p, const char *stem, const char *title, const char *x_label,
                       const char *y_label, bool marked, vla_error *error)
{
    char name[128];
    char caption[280];
    bool rendered = false;
    char note[200] = "";
    snprintf(name, sizeof name, "%s%s", stem, d->suffix);
    snprintf(caption, sizeof caption, "%s%s", p->caption, marked ? "; medians with quartiles" : "");
    const vla_figure figure = {.name = name,
                               .title = title,
                               .x_label = x_label,
                               .y_label = y_label,
                               .log_x = true,
                               .log_y = true,
                               .log2_x = true,
                               .series = p->series,
                               .series_count = p->series_count,
                               .verticals = p->marks,
                               .vertical_count = marked ? p->mark_count : 0,
                               .caption = caption};
    vla_status status = vla_figure_write(d->directory, &figure, &rendered, note, sizeof note, error);
    clear_series(p);
    if (status) return status;
    d->done->written++;
    d->done->rendered += rendered;
    if (!rendered && *note) snprintf(d->done->note, sizeof d->done->note, "%s", note);
    return VLA_OK;
}

static vla_status draw_prefill(const drawing *d, page *p, vla_error *error)
{
    static const quantity time = {"median_s", "q1_s", "q3_s", NULL}, floor_time = {"floor_s", NULL, NULL, NULL};
    static const quantity token = {"median_s", "q1_s", "q3_s", per_token};
    static const quantity floor_token = {"floor_s", NULL, NULL, per_token};
    static const quantity state = {"state_bytes", NULL, NULL, NULL}, peak = {"peak_bytes", NULL, NULL, NULL};
    add_all(p, VLA_QUARTILES, &time, "");
    add_floor(p, &floor_time, "memory floor");
    vla_status status = draw(d, p, "latency", "Latency of a forward pass", "tokens T", "latency (s)", true, error);
    if (status) return status;
    add_all(p, VLA_QUARTILES, &token, "");
    add_floor(p, &floor_token, "memory floor");
    status = draw(d, p, "token_time", "Time a token", "tokens T", "time a token, all heads (s)", true, error);
    if (status) return status;
    add_all(p, VLA_LINESPOINTS, &state, " state");
    add_all(p, VLA_DASHED, &peak, " all buffers");
    return draw(d, p, "memory", "Memory", "tokens T", "bytes", false, error);
}

static vla_status draw_decode(const drawing *d, page *p, vla_error *error)
{
    static const quantity time = {"median_s", "q1_s", "q3_s", NULL}, floor_time = {"floor_s", NULL, NULL, NULL};
    static const quantity state = {"state_bytes", NULL, NULL, NULL};
    add_all(p, VLA_QUARTILES, &time, "");
    add_series(p, &p->curves[0], "memory floor, softmax", VLA_DASHED, &floor_time);
    add_series(p, &p->curves[4], "memory floor, vla", VLA_DASHED, &floor_time);
    vla_status status =
        draw(d, p, "decode_latency", "Decoding one token", "context length (tokens)", "time a token (s)", true, error);
    if (status) return status;
    add_all(p, VLA_LINESPOINTS, &state, "");
    return draw(d, p, "decode_memory", "State carried from token to token", "context length (tokens)", "bytes", false,
                error);
}

/* Crossovers against the width (by heads) or against the heads (by width): a series is what shares all else. */
enum { MOST_FOUND = 256 };

typedef struct found {
    const vla_record *row;
    double x, other; /* d and B*H, or the other way */
    char kind[96];   /* a, b, backend, dtype, mode, launch, cache */
} found;

static int by_series(const void *p, const void *q)
{
    const found *a = p, *b = q;
    const int order = strcmp(a->kind, b->kind);
    if (order) return order;
    if (a->other < b->other || a->other > b->other) return a->other < b->other ? -1 : 1;
    return (a->x > b->x) - (a->x < b->x);
}

static int gather(const vla_records *rows, bool against_heads, found *all)
{
    int n = 0;
    for (int64_t i = 0; i < rows->count && n < MOST_FOUND; i++) {
        const vla_record *r = rows->rows[i];
        const double heads = vla_record_number(r, "B", NAN) * vla_record_number(r, "H", NAN);
        const double dk = vla_record_number(r, "dk", NAN), dv = vla_record_number(r, "dv", NAN);
        if (strcmp(vla_record_text(r, "kind", ""), "crossover") || strcmp(vla_record_text(r, "state", ""), "found") ||
            !(heads > 0) || !(dk > 0) || !(dk <= dv && dk >= dv))
            continue;
        found *f = &all[n++];
        *f = (found){.row = r, .x = against_heads ? heads : dk, .other = against_heads ? dk : heads};
        snprintf(f->kind, sizeof f->kind, "%.16s and %.16s, %.8s %.8s %.8s%s%.8s%s%.8s", vla_record_text(r, "a", ""),
                 vla_record_text(r, "b", ""), vla_record_text(r, "backend", ""), vla_record_text(r, "dtype", ""),
                 vla_record_text(r, "mode", ""), vla_record_text(r, "launch", NULL) ? " " : "",
                 vla_record_text(r, "launch", ""), vla_record_text(r, "cache", NULL) ? " " : "",
                 vla_record_text(r, "cache", ""));
    }
    qsort(all, (size_t)n, sizeof *all, by_series);
    return n;
}

static bool same_series(const found *a, const found *b)
{
    return !strcmp(a->kind, b->kind) && a->other <= b->other && a->other >= b->other;
}

/* Series of at least two points, each point once (the last record of it counts). */
static void fill_crossings(page *p, const found *all, int n, bool against_heads)
{
    for (int from = 0, to; from < n && p->series_count < MOST_SERIES; from = to) {
        const int s = p->series_count;
        int64_t points = 0;
        double *x = column(p, s, 0), *y = column(p, s, 1), *low = column(p, s, 2), *high = column(p, s, 3);
        for (to = from; to < n && same_series(&all[from], &all[to]); to++) {
            if (points > 0 && x[points - 1] >= all[to].x) points--;
            x[points] = all[to].x;
            low[points] = vla_record_number(all[to].row, "lo", NAN);
            high[points] = vla_record_number(all[to].row, "hi", NAN);
            y[points] = vla_record_number(all[to].row, "estimate", sqrt(low[points] * high[points]));
            points++;
        }
        if (points < 2) continue;
        const vla_record *r = all[from].row;
        snprintf(p->titles[s], sizeof p->titles[s],
                 against_heads ? "%.12s and %.12s, d = %.0f" : "%.12s and %.12s, B x H = %.0f",
                 vla_record_text(r, "a", ""), vla_record_text(r, "b", ""), all[from].other);
        p->series[s] = (vla_series){p->titles[s], VLA_QUARTILES, points, x, y, low, high};
        if (p->series_count++ == 0)
            snprintf(p->caption, sizeof p->caption, "%.16s %.16s, %.16s, %.100s", vla_record_text(r, "backend", ""),
                     vla_record_text(r, "dtype", ""), vla_record_text(r, "mode", ""),
                     vla_record_text(r, strcmp(vla_record_text(r, "backend", ""), "cuda") ? "cpu" : "gpu", ""));
    }
}

static vla_status draw_crossings(const char *directory, const vla_records *rows, bool against_heads,
                                 vla_figures_done *done, vla_error *error)
{
    const drawing d = {directory, "", done};
    page p = {.length = MOST_FOUND};
    found *all = calloc(MOST_FOUND, sizeof *all);
    p.numbers = calloc((size_t)(MOST_SERIES * 4 * (p.length + 1)), sizeof *p.numbers);
    vla_status status = all && p.numbers ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "figures: out of memory");
    if (!status) fill_crossings(&p, all, gather(rows, against_heads, all), against_heads);
    if (!status && p.series_count > 0)
        status = draw(&d, &p, against_heads ? "crossover_heads" : "crossover_width", "Measured crossover",
                      against_heads ? "heads B x H" : "width d", "tokens T, bars: the bracket", false, error);
    free(all);
    free(p.numbers);
    return status;
}

static void setting_suffix(const vla_setting *s, char *text, size_t size)
{
    const int used = snprintf(text, size, "_%s_%s_B%lld_H%lld_K%lld_V%lld", s->backend, s->dtype, (long long)s->B,
                              (long long)s->H, (long long)s->dk, (long long)s->dv);
    const size_t at = used < 0 || (size_t)used > size ? size : (size_t)used;
    if (*s->launch)
        snprintf(text + at, size - at, "_%s_%s", s->launch, s->cache);
    else
        snprintf(text + at, size - at, "_N%lld", (long long)s->threads);
}

vla_status vla_bench_figures(const char *directory, const vla_records *rows, vla_figures_done *done, vla_error *error)
{
    vla_settings settings;
    *done = (vla_figures_done){0};
    vla_status status = vla_settings_of(rows, &settings, error);
    int64_t of_mode[2] = {0, 0};
    for (int64_t i = 0; i < settings.count; i++) of_mode[vla_setting_decode(&settings.items[i])]++;
    for (int64_t i = 0; !status && i < settings.count; i++) {
        const vla_setting *s = &settings.items[i];
        const bool decode = vla_setting_decode(s);
        char suffix[96] = "";
        if (of_mode[decode] > 1) setting_suffix(s, suffix, sizeof suffix);
        const drawing d = {directory, suffix, done};
        page p;
        status = open_page(&p, rows, s, error);
        if (!status) status = decode ? draw_decode(&d, &p, error) : draw_prefill(&d, &p, error);
        close_page(&p);
    }
    vla_settings_free(&settings);
    if (!status) status = draw_crossings(directory, rows, false, done, error);
    return status ? status : draw_crossings(directory, rows, true, done, error);
}
