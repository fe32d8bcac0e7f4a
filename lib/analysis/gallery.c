/* The figures of the stability analysis, drawn from records alone: the same from a run and from a file. */
#include "lib/analysis/jacobian.h"
#include "lib/analysis/spread.h"
#include "lib/analysis/survey.h"
#include "lib/base/status.h"
#include "lib/report/figure.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SERIES = 16, MOST_NAMES = 16 };

typedef struct gallery {
    const vla_records *rows;
    const char *directory;
    void (*note)(void *context, const char *line);
    void *context;
    vla_error *error;
} gallery;

/* A condition on a record: field = text. */
typedef struct match {
    const char *field, *text;
} match;

static bool fits(const vla_record *r, const char *kind, const match *m, int count)
{
    if (strcmp(vla_record_text(r, "kind", ""), kind)) return false;
    for (int i = 0; i < count; i++)
        if (m[i].text && strcmp(vla_record_text(r, m[i].field, ""), m[i].text)) return false;
    return true;
}

/* Different texts of a field among the rows that match, in order of appearance. */
static int names_of(const gallery *g, const char *kind, const match *m, int count, const char *field,
                    const char **names)
{
    int found = 0;
    for (int64_t i = 0; i < g->rows->count; i++) {
        if (!fits(g->rows->rows[i], kind, m, count)) continue;
        const char *text = vla_record_text(g->rows->rows[i], field, "");
        bool known = found == MOST_NAMES;
        for (int n = 0; n < found; n++) known = known || !strcmp(names[n], text);
        if (!known) names[found++] = text;
    }
    return found;
}

/* One series from the rows that match, restricted to the case, head and seed of the first of them (one curve). */
typedef struct points {
    double *x, *y;
    int64_t count;
} points;

static points points_of(const gallery *g, const char *kind, const match *m, int count, const char *x, const char *y)
{
    points p = {0};
    const vla_record *first = NULL;
    p.x = malloc((size_t)(2 * g->rows->count + 2) * sizeof *p.x);
    if (!p.x) return p;
    p.y = p.x + g->rows->count + 1;
    for (int64_t i = 0; i < g->rows->count; i++) {
        const vla_record *r = g->rows->rows[i];
        if (!fits(r, kind, m, count)) continue;
        if (!first) first = r;
        if (strcmp(vla_record_text(r, "case", ""), vla_record_text(first, "case", "")) ||
            vla_record_number(r, "head", 0) != vla_record_number(first, "head", 0) ||
            vla_record_number(r, "dk", 0) != vla_record_number(first, "dk", 0) ||
            vla_record_number(r, "seed", 0) != vla_record_number(first, "seed", 0))
            continue;
        p.x[p.count] = vla_record_number(r, x, NAN);
        p.y[p.count++] = vla_record_number(r, y, NAN);
    }
    return p;
}

static vla_status draw(const gallery *g, const vla_figure *figure)
{
    bool rendered = false;
    char why[240] = "", line[400];
    const vla_status status = vla_figure_write(g->directory, figure, &rendered, why, sizeof why, g->error);
    if (!status && !rendered && g->note) {
        snprintf(line, sizeof line, "figure %s: not rendered: %s", figure->name, why);
        g->note(g->context, line);
    }
    return status;
}

static void free_series(points *p, int count)
{
    for (int i = 0; i < count; i++) free(p[i].x);
}

static void shape_caption(const gallery *g, const char *kind, const match *m, int count, char *text, size_t size)
{
    text[0] = '\0';
    for (int64_t i = 0; i < g->rows->count && !text[0]; i++) {
        const vla_record *r = g->rows->rows[i];
        if (!fits(r, kind, m, count)) continue;
        snprintf(text, size, "d = %.0f, lambda0 = %g, float64, one head", vla_record_number(r, "dk", NAN),
                 vla_record_number(r, "lambda0", NAN));
    }
}

static bool starts(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* What no input exceeds at the shape of the first rows: |J_t| (single) or log10 of the product. */
static points reach_of(const gallery *g, const points *like, const match *m, int count, bool single)
{
    points p = {malloc((size_t)(2 * like->count + 2) * sizeof *p.x), NULL, 0};
    if (!p.x) return p;
    p.y = p.x + like->count + 1;
    const vla_record *r = NULL;
    for (int64_t i = 0; i < g->rows->count && !r; i++)
        if (fits(g->rows->rows[i], "jacobian", m, count)) r = g->rows->rows[i];
    if (!r || vla_record_number(r, "refresh_period", 0) > 0) return p;
    const int64_t d = vla_record_count(r, "dk", 1);
    const double lambda0 = vla_record_number(r, "lambda0", 0.1);
    for (; p.count < like->count; p.count++) {
        const double x = like->x[p.count];
        const int64_t t = x >= 0 && x <= 0x1p53 ? (int64_t)x : 0; /* of a file: it may be anything */
        p.x[p.count] = x;
        p.y[p.count] =
            single ? vla_jacobian_norm_bound(d, lambda0, t) : vla_decades(vla_product_log_bound(d, lambda0, t));
    }
    return p;
}

/* |J_t| against t for every source: lines in closed form, points by SVD, the line 1, and what no input exceeds. */
static vla_status norms(const gallery *g)
{
    const char *sources[MOST_NAMES];
    const match vla = {"op", "vla"};
    const int count = names_of(g, "jacobian", &vla, 1, "source", sources);
    vla_series series[MOST_SERIES];
    points p[MOST_SERIES], svd = {malloc((size_t)(2 * g->rows->count + 2) * sizeof *svd.x), NULL, 0};
    if (!svd.x) return vla_fail(g->error, VLA_ERR_MEMORY, "figures: out of memory");
    svd.y = svd.x + g->rows->count + 1;
    char caption[160];
    int n = 0;
    for (int i = 0; i < count && n < MOST_SERIES - 2; i++) {
        const match m[] = {vla, {"source", sources[i]}};
        if (starts(sources[i], "adversary")) continue;
        points measured = points_of(g, "jacobian", m, 2, "t", "sigma");
        for (int64_t at = i % 8; at < measured.count; at += 8) {
            svd.x[svd.count] = measured.x[at];
            svd.y[svd.count++] = measured.y[at];
        }
        free(measured.x);
        p[n] = points_of(g, "jacobian", m, 2, "t", "sigma_closed");
        series[n] = (vla_series){sources[i], VLA_LINES, p[n].count, p[n].x, p[n].y, NULL, NULL};
        n++;
    }
    const int lines = n;
    if (lines > 0) {
        series[n] = (vla_series){"by SVD", VLA_POINTS, svd.count, svd.x, svd.y, NULL, NULL};
        p[n++] = svd;
        p[n] = reach_of(g, &p[0], &vla, 1, true);
        series[n] = (vla_series){"no input exceeds", VLA_DASHED, p[n].count, p[n].x, p[n].y, NULL, NULL};
        n++;
    } else {
        free(svd.x);
    }
    const double one = 1;
    shape_caption(g, "jacobian", &vla, 1, caption, sizeof caption);
    const vla_figure f = {.name = "jacobian-norm",
                          .title = "Spectral norm of one VLA step (lines: closed form)",
                          .x_label = "t (tokens)",
                          .y_label = "|J_t| (dimensionless)",
                          .series = series,
                          .series_count = n,
                          .horizontals = &one,
                          .horizontal_count = 1,
                          .caption = caption};
    const vla_status status = lines > 0 ? draw(g, &f) : VLA_OK;
    free_series(p, n);
    return status;
}

/* The gate of decay takes its product hundreds of decades down, where nothing else could be read: points below the
 * frame of the other operators are left out. Returns the last value, to be told in the caption. */
static double cut_below(points *p, double floor)
{
    const double last = p->count > 0 ? p->y[p->count - 1] : NAN;
    for (int64_t i = 0; i < p->count; i++)
        if (p->y[i] < floor) p->y[i] = NAN;
    return last;
}

static double frame_floor(const points *p, const char *const *ops, int ops_count, int count)
{
    double low = 0, high = 0;
    for (int i = 0; i < count; i++)
        for (int64_t n = 0; n < p[i].count; n++) {
            if (i < ops_count && !strcmp(ops[i], "decay")) continue;
            if (isfinite(p[i].y[n])) low = fmin(low, p[i].y[n]);
            if (isfinite(p[i].y[n])) high = fmax(high, p[i].y[n]);
        }
    return low - 0.5 * (high - low) - 1;
}

/* Log-norm of the product against t, one figure a source: every operator and the bounds. */
static vla_status products(const gallery *g, const char *source)
{
    const char *ops[MOST_NAMES];
    const match from = {"source", source};
    const int count = names_of(g, "jacobian", &from, 1, "op", ops);
    vla_series series[MOST_SERIES];
    points p[MOST_SERIES];
    int n = 0, decay = -1;
    bool vla = false;
    for (; n < count && n < MOST_SERIES - 2; n++) {
        const match m[] = {from, {"op", ops[n]}};
        vla = vla || !strcmp(ops[n], "vla");
        if (!strcmp(ops[n], "decay")) decay = n;
        p[n] = points_of(g, "jacobian", m, 2, "t", "log10_product");
    }
    const int lines = n;
    const match m[] = {from, {"op", "vla"}};
    if (vla) {
        p[n++] = points_of(g, "jacobian", m, 2, "t", "log10_bound_sharp");
        p[n++] = reach_of(g, &p[0], m, 2, false);
    }
    char name[80], title[120], caption[200];
    shape_caption(g, "jacobian", &from, 1, caption, sizeof caption);
    const double floor = frame_floor(p, ops, lines, n), last = decay >= 0 ? cut_below(&p[decay], floor) : 0;
    if (last < floor)
        snprintf(caption + strlen(caption), sizeof caption - strlen(caption), "; decay leaves the frame, to %.3g",
                 last);
    for (int i = 0; i < n; i++)
        series[i] = (vla_series){i < lines    ? ops[i]
                                 : i == lines ? "vla: bound of this input"
                                              : "vla: bound of every input",
                                 i < lines ? VLA_LINES : VLA_DASHED,
                                 p[i].count,
                                 p[i].x,
                                 p[i].y,
                                 NULL,
                                 NULL};
    const double zero = 0;
    snprintf(name, sizeof name, "product-%s", source);
    snprintf(title, sizeof title, "Product of state Jacobians, %s", source);
    const vla_figure f = {.name = name,
                          .title = title,
                          .x_label = "t (tokens)",
                          .y_label = "log10 |J_t ... J_1| (decades)",
                          .series = series,
                          .series_count = n,
                          .horizontals = &zero,
                          .horizontal_count = 1,
                          .caption = caption};
    const vla_status status = n > 0 ? draw(g, &f) : VLA_OK;
    free_series(p, n);
    return status;
}

static void power_line(points *p, const points *like, double exponent)
{
    *p = (points){malloc(4 * sizeof *p->x), NULL, 0};
    if (!p->x || like->count < 2) return;
    p->y = p->x + 2;
    p->count = 2;
    p->x[0] = like->x[0];
    p->x[1] = like->x[like->count - 1];
    p->y[0] = like->y[0];
    p->y[1] = like->y[0] * pow(p->x[1] / p->x[0], exponent);
}

/* |S_t|_F on log-log axes: every operator, and lines of slope 1 and 1/2 through the first point of linear. */
static vla_status states(const gallery *g, const char *source, const char *values)
{
    const char *ops[MOST_NAMES];
    const match from[] = {{"source", source}, {"values", values}};
    const int count = names_of(g, "state", from, 2, "op", ops);
    vla_series series[MOST_SERIES];
    points p[MOST_SERIES];
    int n = 0, linear = 0;
    for (int i = 0; i < count && n < MOST_SERIES - 2; i++) {
        const match m[] = {from[0], from[1], {"op", ops[i]}};
        if (!strcmp(ops[i], "linear")) linear = n;
        p[n] = points_of(g, "state", m, 3, "t", "state_norm");
        series[n] = (vla_series){ops[i], VLA_LINES, p[n].count, p[n].x, p[n].y, NULL, NULL};
        n++;
    }
    for (int half = 0; half < 2 && n > 0; half++) {
        power_line(&p[n], &p[linear], half ? 0.5 : 1);
        series[n] = (vla_series){half ? "slope 1/2" : "slope 1", VLA_DASHED, p[n].count, p[n].x, p[n].y, NULL, NULL};
        n++;
    }
    char name[100], title[160], caption[160] = "";
    snprintf(name, sizeof name, "state-%s-%s", source, values);
    snprintf(title, sizeof title, "State norm, %s keys, %s values", source, values);
    for (int64_t i = 0; i < g->rows->count && !caption[0]; i++)
        if (fits(g->rows->rows[i], "state", from, 2))
            snprintf(caption, sizeof caption, "d = %.0f, float64, median of %.0f heads",
                     vla_record_number(g->rows->rows[i], "dk", NAN), vla_record_number(g->rows->rows[i], "heads", NAN));
    const vla_figure f = {.name = name,
                          .title = title,
                          .x_label = "t (tokens)",
                          .y_label = "|S_t|_F",
                          .log_x = true,
                          .log_y = true,
                          .series = series,
                          .series_count = n,
                          .caption = caption};
    const vla_status status = n > 0 ? draw(g, &f) : VLA_OK;
    free_series(p, n);
    return status;
}

/* Histogram of c = alpha.k, one figure a source. */
static vla_status histogram(const gallery *g, const char *source)
{
    const match m = {"source", source};
    points p = points_of(g, "histogram", &m, 1, "c_lo", "count");
    double total = 0;
    for (int64_t i = 0; i < p.count; i++) {
        total += p.y[i];
        p.x[i] += 0.005; /* middle of the bin */
    }
    for (int64_t i = 0; i < p.count && total > 0; i++) p.y[i] /= total;
    char name[80], title[120];
    snprintf(name, sizeof name, "c-%s", source);
    snprintf(title, sizeof title, "Alignment of write and key, %s", source);
    const vla_series series = {NULL, VLA_BOXES, p.count, p.x, p.y, NULL, NULL};
    const vla_figure f = {.name = name,
                          .title = title,
                          .x_label = "c = alpha . k (dimensionless)",
                          .y_label = "fraction of steps",
                          .series = &series,
                          .series_count = 1,
                          .caption = "c = 1: |J_t| = 1; smaller c: larger norm"};
    const vla_status status = p.count > 0 ? draw(g, &f) : VLA_OK;
    free(p.x);
    return status;
}

static vla_status unnormalised(const gallery *g)
{
    static const int widths[] = {32, 64, 96, 128};
    vla_series series[8];
    points p[8];
    char titles[8][64];
    int n = 0;
    for (int w = 0; w < 4; w++)
        for (int kind = 0; kind < 2; kind++) {
            points *q = &p[n];
            *q = (points){malloc((size_t)(2 * g->rows->count + 2) * sizeof *q->x), NULL, 0};
            if (!q->x) continue;
            q->y = q->x + g->rows->count + 1;
            for (int64_t i = 0; i < g->rows->count; i++) {
                const vla_record *r = g->rows->rows[i];
                if (!fits(r, "growth", NULL, 0) || vla_record_number(r, "d", 0) != widths[w]) continue;
                q->x[q->count] = vla_record_number(r, "t", NAN);
                q->y[q->count++] = vla_record_number(r, kind ? "log10_norm_of_product" : "log10_product_of_norms", NAN);
            }
            snprintf(titles[n], sizeof titles[n], "d = %d", widths[w]);
            series[n] = (vla_series){kind     ? titles[n]
                                     : w == 0 ? "product of norms, same order"
                                              : NULL,
                                     kind ? VLA_LINES : VLA_DASHED,
                                     q->count,
                                     q->x,
                                     q->y,
                                     NULL,
                                     NULL};
            n++;
        }
    bool any = false;
    for (int i = 0; i < n; i++) any = any || p[i].count > 0;
    const vla_figure f = {.name = "unnormalised",
                          .title = "Growth without normalisation",
                          .x_label = "t (tokens)",
                          .y_label = "log10 growth (decades)",
                          .series = series,
                          .series_count = n,
                          .caption = "lines: norm of the product; dashes: product of the norms; lambda0 = 10"};
    const vla_status status = any ? draw(g, &f) : VLA_OK;
    free_series(p, n);
    return status;
}

vla_status vla_jacobian_figures(const vla_records *rows, const char *directory,
                                void (*note)(void *context, const char *line), void *context, vla_error *error)
{
    const gallery g = {rows, directory, note, context, error};
    const char *sources[MOST_NAMES], *values[MOST_NAMES];
    vla_status status = norms(&g);
    int count = names_of(&g, "jacobian", NULL, 0, "source", sources);
    for (int i = 0; i < count && !status; i++) status = products(&g, sources[i]);
    count = names_of(&g, "state", NULL, 0, "source", sources);
    for (int i = 0; i < count && !status; i++) {
        const match from = {"source", sources[i]};
        const int kinds = names_of(&g, "state", &from, 1, "values", values);
        for (int k = 0; k < kinds && !status; k++) status = states(&g, sources[i], values[k]);
    }
    count = names_of(&g, "histogram", NULL, 0, "source", sources);
    for (int i = 0; i < count && !status; i++) status = histogram(&g, sources[i]);
    return status ? status : unnormalised(&g);
}
