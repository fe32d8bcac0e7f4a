#include "lib/base/status.h"
#include "lib/measure/statistics.h"
#include "lib/op/registry.h"
#include "lib/report/figure.h"
#include "lib/task/tables.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SERIES = 24, POINTS = 256, NAME = 96, HEAD = 32 /* width of the trained heads */ };

/* One figure being gathered. Series are told apart by title. */
typedef struct plot {
    vla_figure figure;
    char name[NAME], title[2 * NAME], titles[SERIES][NAME];
    vla_series series[SERIES];
    double x[SERIES][POINTS], y[SERIES][POINTS], low[SERIES][POINTS], high[SERIES][POINTS];
    int64_t count[SERIES];
} plot;

typedef struct shelf {
    const char *directory;
    const vla_records *records;
    int64_t written;
    char *note;
    size_t note_size;
    plot *p;
} shelf;

static double number(const vla_record *row, const char *name)
{
    return vla_record_number(row, name, (double)NAN);
}

static bool text_is(const vla_record *row, const char *name, const char *value)
{
    return strcmp(vla_record_text(row, name, ""), value) == 0;
}

static void start(plot *p, const char *name, const char *title, const char *x, const char *y, bool log2_x, bool log_y)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(p->title, sizeof p->title, "%s", title);
    p->figure =
        (vla_figure){.name = p->name, .title = p->title, .x_label = x, .y_label = y, .log2_x = log2_x, .log_y = log_y};
}

static void put(plot *p, const char *title, vla_mark mark, double x, double y, double low, double high)
{
    int i = 0;
    while (i < p->figure.series_count && strcmp(p->titles[i], title) != 0) i++;
    if (i == SERIES || p->count[i] == POINTS || !isfinite(x) || !isfinite(y)) return;
    if (i == p->figure.series_count) {
        p->figure.series_count++;
        snprintf(p->titles[i], NAME, "%s", title);
        p->series[i].mark = mark;
    }
    int64_t at = p->count[i]++; /* kept in order of x */
    for (; at > 0 && p->x[i][at - 1] > x; at--) {
        p->x[i][at] = p->x[i][at - 1], p->y[i][at] = p->y[i][at - 1];
        p->low[i][at] = p->low[i][at - 1], p->high[i][at] = p->high[i][at - 1];
    }
    p->x[i][at] = x, p->y[i][at] = y, p->low[i][at] = low, p->high[i][at] = high;
}

static vla_status finish(shelf *s, vla_error *error)
{
    plot *p = s->p;
    if (p->figure.series_count == 0) return VLA_OK;
    for (int i = 0; i < p->figure.series_count; i++) {
        vla_series *line = &p->series[i];
        line->title = p->titles[i], line->count = p->count[i];
        line->x = p->x[i], line->y = p->y[i];
        if (line->mark == VLA_QUARTILES) line->low = p->low[i], line->high = p->high[i];
    }
    p->figure.series = p->series;
    bool rendered;
    const vla_status status = vla_figure_write(s->directory, &p->figure, &rendered, s->note, s->note_size, error);
    if (!status) s->written++;
    return status;
}

static const char *memory_name(const vla_record *row, char *name)
{
    const char *setting = vla_record_text(row, "setting", NULL);
    if (setting && strncmp(setting, "best of s", 9) == 0) setting = "best s"; /* which ones, the records say */
    snprintf(name, NAME, "%s%s%.60s", vla_record_text(row, "op", "?"), setting ? ", " : "", setting ? setting : "");
    return name;
}

static bool same_world(const vla_record *row, const char *kind, const char *keys, double d)
{
    return text_is(row, "kind", kind) && text_is(row, "keys", keys) && (isnan(d) || number(row, "d") == d) &&
           number(row, "distractors") == 0;
}

static vla_status accuracy_by_n(shelf *s, const char *keys, double d, vla_error *error)
{
    char name[NAME], title[NAME], who[NAME];
    snprintf(name, sizeof name, "recall_n_%s_d%.0f", keys, d);
    snprintf(title, sizeof title, "Recall of n pairs, %s keys, d = %.0f", keys, d);
    start(s->p, name, title, "pairs n", "accuracy", true, false);
    const vla_vertical line = {d, d, "n = d"};
    s->p->figure.verticals = &line, s->p->figure.vertical_count = 1;
    for (int64_t i = 0; i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        if (same_world(row, "recall", keys, d))
            put(s->p, memory_name(row, who), VLA_QUARTILES, number(row, "n"), number(row, "accuracy"),
                number(row, "accuracy_lo"), number(row, "accuracy_hi"));
    }
    return finish(s, error);
}

static vla_status accuracy_by_age(shelf *s, const char *keys, double d, vla_error *error)
{
    char name[NAME], title[NAME], who[NAME], field[16];
    snprintf(name, sizeof name, "recall_age_%s_d%.0f", keys, d);
    snprintf(title, sizeof title, "Recall by age at n = 2d, %s keys, d = %.0f", keys, d);
    static const char *const quarters[] = {"oldest", "second", "third", "newest"};
    start(s->p, name, title, "quarter of the writing order", "accuracy", false, false);
    s->p->figure.x_names = quarters, s->p->figure.x_name_count = 4;
    for (int64_t i = 0; i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        for (int q = 1; same_world(row, "recall", keys, d) && number(row, "n") == 2 * d && q <= 4; q++) {
            snprintf(field, sizeof field, "age_q%d", q);
            put(s->p, memory_name(row, who), VLA_LINESPOINTS, q - 1, number(row, field), 0, 0);
        }
    }
    return finish(s, error);
}

static vla_status accuracy_by_bytes(shelf *s, const char *keys, vla_error *error)
{
    char name[NAME], title[NAME], who[NAME];
    snprintf(name, sizeof name, "recall_state_%s", keys);
    snprintf(title, sizeof title, "Pairs recalled against state, %s keys", keys);
    start(s->p, name, title, "state (bytes, float32)", "n95", true, true);
    for (int64_t i = 0; i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        if (!same_world(row, "capacity", keys, (double)NAN) || text_is(row, "op", "softmax")) continue;
        const double matrices = text_is(row, "op", "vla") || text_is(row, "op", "rls") ? number(row, "dk") : 0;
        put(s->p, memory_name(row, who), VLA_LINESPOINTS, 4 * number(row, "dk") * (number(row, "dv") + matrices),
            number(row, "n95"), 0, 0);
    }
    return finish(s, error);
}

static vla_status capacity_by_width(shelf *s, const char *keys, vla_error *error)
{
    char name[NAME], title[NAME], who[NAME];
    snprintf(name, sizeof name, "recall_capacity_%s", keys);
    snprintf(title, sizeof title, "Capacity n95, %s keys", keys);
    start(s->p, name, title, "width d", "n95", true, true);
    for (int64_t i = 0; i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        if (!same_world(row, "capacity", keys, (double)NAN)) continue;
        put(s->p, memory_name(row, who), VLA_QUARTILES, number(row, "d"), number(row, "n95"), number(row, "n95_lo"),
            number(row, "n95_hi"));
    }
    for (int64_t i = 0; i < s->records->count; i++) {
        const double d = number(s->records->rows[i], "d");
        if (same_world(s->records->rows[i], "capacity", keys, (double)NAN)) put(s->p, "n = d", VLA_DASHED, d, d, 0, 0);
    }
    return finish(s, error);
}

static bool first_of(const vla_records *records, int64_t i, bool with_width)
{
    const vla_record *row = records->rows[i];
    for (int64_t j = 0; j < i; j++)
        if (text_is(records->rows[j], "kind", "recall") &&
            text_is(records->rows[j], "keys", vla_record_text(row, "keys", "")) &&
            (!with_width || number(records->rows[j], "d") == number(row, "d")))
            return false;
    return true;
}

static vla_status recall_figures(shelf *s, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        if (!text_is(row, "kind", "recall")) continue;
        const char *keys = vla_record_text(row, "keys", "?");
        if (first_of(s->records, i, true)) {
            status = accuracy_by_n(s, keys, number(row, "d"), error);
            if (!status) status = accuracy_by_age(s, keys, number(row, "d"), error);
        }
        if (!status && first_of(s->records, i, false)) {
            status = capacity_by_width(s, keys, error);
            if (!status) status = accuracy_by_bytes(s, keys, error);
        }
    }
    return status;
}

/* A network trained to the end, not one that only tried a rate. */
static bool is_scored(const vla_record *row)
{
    return text_is(row, "kind", "train") && text_is(row, "status", "ok") && !vla_record_true(row, "search");
}

static bool is_lengthened(const vla_record *row)
{
    return text_is(row, "task", "mqar") && number(row, "T") > 3 * number(row, "n") + 1;
}

/* Accuracy against n or T: the median over seeds, bars from the lowest to the highest. */
static vla_status trained_accuracy(shelf *s, const char *field, vla_error *error)
{
    char name[NAME], who[NAME];
    snprintf(name, sizeof name, "trained_%s", field);
    start(s->p, name, "Trained recall (bars: all seeds)", field[0] == 'n' ? "pairs n" : "sequence length T", "accuracy",
          field[0] == 'T', false);
    const vla_vertical line = {HEAD, HEAD, "n = d"};
    double most = 0;
    for (int64_t i = 0; i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        if (!is_scored(row) || strncmp(vla_record_text(row, "task", ""), "copy", 4) == 0 ||
            is_lengthened(row) != (field[0] == 'T'))
            continue;
        double values[POINTS];
        int64_t seeds = 0;
        bool first = true;
        for (int64_t j = 0; j < s->records->count && seeds < POINTS; j++) {
            const vla_record *other = s->records->rows[j];
            if (!is_scored(other) || !text_is(other, "cell", vla_record_text(row, "cell", "")) ||
                number(other, "lr") != number(row, "lr"))
                continue;
            if (j < i) first = false;
            values[seeds++] = number(other, "accuracy");
        }
        if (!first) continue;
        vla_sort(values, seeds);
        snprintf(who, sizeof who, "%s, %s%s", vla_record_text(row, "op", "?"), vla_record_text(row, "protocol", "?"),
                 vla_record_number(row, "conv", 0) > 0 ? ", short convolution" : "");
        most = fmax(most, number(row, field));
        put(s->p, who, VLA_QUARTILES, number(row, field), vla_quantile(values, seeds, 0.5), values[0],
            values[seeds - 1]);
    }
    if (field[0] == 'n' && most > HEAD) s->p->figure.verticals = &line, s->p->figure.vertical_count = 1;
    return finish(s, error);
}

/* Of one task, size and protocol, short convolutions and gates' bias. */
static bool same_setting(const vla_record *a, const vla_record *b)
{
    return text_is(a, "task", vla_record_text(b, "task", "")) &&
           text_is(a, "protocol", vla_record_text(b, "protocol", "")) && number(a, "T") == number(b, "T") &&
           vla_record_number(a, "n", 0) == vla_record_number(b, "n", 0) &&
           vla_record_number(a, "conv", 0) == vla_record_number(b, "conv", 0) &&
           vla_record_number(a, "gate_bias", 0) == vla_record_number(b, "gate_bias", 0);
}

/* Loss against step, a line for every operator: its first network in the records. */
static vla_status loss_by_step(shelf *s, const vla_record *like, vla_error *error)
{
    char name[NAME], title[2 * NAME], pairs[32] = "", gate[32] = "";
    const double n = vla_record_number(like, "n", 0), bias = vla_record_number(like, "gate_bias", 0);
    if (n > 0) snprintf(pairs, sizeof pairs, "n%.0f_", n);
    if (bias != 0) snprintf(gate, sizeof gate, "_gate%g", bias);
    const bool conv = vla_record_number(like, "conv", 0) > 0;
    snprintf(name, sizeof name, "training_%.20s_%.10s_%sT%.0f%s%s", vla_record_text(like, "task", "?"),
             vla_record_text(like, "protocol", "?"), pairs, number(like, "T"), conv ? "_conv" : "", gate);
    snprintf(title, sizeof title, "Training loss, %.20s, %.0f tokens, protocol %.10s%s%s",
             vla_record_text(like, "task", "?"), number(like, "T"), vla_record_text(like, "protocol", "?"),
             conv ? ", short convolution" : "", bias != 0 ? ", gates' bias set" : "");
    start(s->p, name, title, "step", "cross-entropy (nats)", false, true);
    for (int op = 0; op < VLA_OPS; op++)
        for (int64_t i = 0; i < s->records->count; i++) {
            const vla_record *row = s->records->rows[i];
            const vla_value *curve = vla_record_get(row, "curve");
            if (!is_scored(row) || !same_setting(row, like) || !text_is(row, "op", vla_op_name((vla_op)op)) || !curve ||
                curve->type != VLA_VALUE_REALS)
                continue;
            const double stretch = number(row, "steps") / (double)curve->reals.count;
            for (int64_t k = 0; k < curve->reals.count; k++)
                put(s->p, vla_op_name((vla_op)op), VLA_LINES, ((double)k + 0.5) * stretch, curve->reals.data[k], 0, 0);
            break;
        }
    return finish(s, error);
}

static vla_status training_curves(shelf *s, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        bool first = is_scored(row);
        for (int64_t j = 0; first && j < i; j++)
            first = !(is_scored(s->records->rows[j]) && same_setting(s->records->rows[j], row));
        if (first) status = loss_by_step(s, row, error);
    }
    return status;
}

/* |dL/dx| against lag in one setting: the first network of every operator, untrained and trained. */
static vla_status gradient_by_lag(shelf *s, const vla_record *like, vla_error *error)
{
    char name[NAME], title[2 * NAME], who[NAME];
    const char *of[VLA_OPS] = {NULL}; /* cases */
    snprintf(name, sizeof name, "gradient_%.20s_%.10s_T%.0f", vla_record_text(like, "task", "?"),
             vla_record_text(like, "protocol", "?"), number(like, "T"));
    snprintf(title, sizeof title, "Gradient of the last answer, %.20s, %.0f tokens", vla_record_text(like, "task", "?"),
             number(like, "T"));
    start(s->p, name, title, "lag (tokens)", "|dL/dx|", true, true);
    for (int64_t i = 0; i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        vla_op op;
        if (!text_is(row, "kind", "gradient") || number(row, "lag") < 1 || !same_setting(row, like) ||
            !vla_op_parse(vla_record_text(row, "op", ""), &op))
            continue;
        if (!of[op]) of[op] = vla_record_text(row, "case", "");
        if (!text_is(row, "case", of[op])) continue;
        snprintf(who, sizeof who, "%s, %s", vla_op_name(op), vla_record_true(row, "trained") ? "trained" : "untrained");
        put(s->p, who, vla_record_true(row, "trained") ? VLA_LINESPOINTS : VLA_LINES, number(row, "lag"),
            number(row, "gradient"), 0, 0);
    }
    return finish(s, error);
}

static vla_status gradients(shelf *s, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < s->records->count; i++) {
        const vla_record *row = s->records->rows[i];
        bool first = text_is(row, "kind", "gradient");
        for (int64_t j = 0; first && j < i; j++)
            first = !(text_is(s->records->rows[j], "kind", "gradient") && same_setting(s->records->rows[j], row));
        if (first) status = gradient_by_lag(s, row, error);
    }
    return status;
}

vla_status vla_task_figures(const char *directory, const vla_records *records, int64_t *written, char *note,
                            size_t note_size, vla_error *error)
{
    shelf s = {directory, records, 0, note, note_size, malloc(sizeof(plot))};
    if (!s.p) return vla_fail(error, VLA_ERR_MEMORY, "figures: out of memory");
    if (note_size) note[0] = '\0';
    vla_status status = recall_figures(&s, error);
    if (!status) status = trained_accuracy(&s, "n", error);
    if (!status) status = trained_accuracy(&s, "T", error);
    if (!status) status = training_curves(&s, error);
    if (!status) status = gradients(&s, error);
    free(s.p);
    *written = s.written;
    return status;
}
