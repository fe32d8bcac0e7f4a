#include "lib/task/recall_sweep.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/measure/fit.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_N = 64, LABEL = 160 };
static const double SHARPNESS[] = {1, 4, 16};
enum { SHARPNESSES = 3 };

/* One line of a figure: everything fixed but n. */
typedef struct curve {
    vla_op op;
    vla_key_source keys;
    vla_write_gate gate;
    bool plain_softmax; /* s = sqrt(dk) only */
    int64_t d, distractors;
} curve;

vla_recall_settings vla_recall_settings_default(void)
{
    static const int64_t widths[] = {16, 32, 64}, none[] = {0};
    vla_recall_settings s = {.gates = {VLA_WRITE_UNIT},
                             .gate_count = 1,
                             .d = widths,
                             .d_count = 3,
                             .distractors = none,
                             .distractor_count = 1,
                             .codebook = 128,
                             .trials = 20,
                             .lambda0 = 0.1,
                             .decay = 0.88,
                             .u_scale = 1,
                             .seed = 42};
    for (int op = 0; op < VLA_OPS; op++) s.ops[s.op_count++] = (vla_op)op;
    for (int k = 0; k < VLA_KEYS_INPUT; k++) s.keys[s.key_count++] = (vla_key_source)k;
    return s;
}

static vla_recall recall_of(const vla_recall_settings *s, const curve *c)
{
    vla_recall r = {.keys = c->keys,
                    .bank = s->bank,
                    .distractors = c->distractors,
                    .codebook = s->codebook,
                    .trials = s->trials,
                    .u_random = s->u_random && c->op == VLA_VLA,
                    .u_scale = s->u_scale,
                    .compare_rls = c->op == VLA_VLA,
                    .seed = s->seed};
    r.memory = (vla_memory_spec){c->op, c->d, c->d, s->lambda0, s->decay, 1, c->gate};
    if (s->match_state) r.memory.dk = vla_memory_matched_width(c->op, c->d, c->d);
    return r;
}

static int by_size(const int64_t *n, int64_t count, int64_t value)
{
    for (int64_t i = 0; i < count; i++)
        if (n[i] >= value) return (int)i;
    return (int)count;
}

static int64_t insert(int64_t *n, int64_t count, int64_t value)
{
    const int at = by_size(n, count, value);
    if (value < 1 || count == MOST_N || (at < count && n[at] == value)) return count;
    memmove(n + at + 1, n + at, (size_t)(count - at) * sizeof *n);
    n[at] = value;
    return count + 1;
}

/* Counts of a curve, ascending and distinct. The built-in list ends where orthonormal keys do. */
static int64_t counts_of(const vla_recall_settings *s, const curve *c, int64_t *n)
{
    static const double parts[] = {0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4};
    int64_t count = 0;
    for (int64_t i = 0; s->n && i < s->n_count; i++) count = insert(n, count, s->n[i]);
    for (size_t i = 0; !s->n && i < sizeof parts / sizeof *parts; i++) {
        const int64_t value = i == 0 ? 1 : (int64_t)(parts[i] * (double)c->d);
        if (c->keys != VLA_KEYS_ORTH || value + c->distractors <= c->d) count = insert(n, count, value);
    }
    return count;
}

static const char *setting_of(const curve *c)
{
    if (c->op == VLA_SOFTMAX) return c->plain_softmax ? "s=sqrt(d)" : "best of s=1,4,16 sqrt(d)";
    return c->op == VLA_VLA ? vla_write_gate_name(c->gate) : NULL;
}

static const char *variant_of(const curve *c)
{
    if (c->op == VLA_SOFTMAX) return c->plain_softmax ? "-plain" : "";
    return c->op != VLA_VLA || c->gate == VLA_WRITE_UNIT ? ""
           : c->gate == VLA_WRITE_INTERPOLATE            ? "-interpolate"
                                                         : "-rls";
}

static void label_of(const vla_recall_settings *s, const curve *c, int64_t n, char *label)
{
    int used = snprintf(label, LABEL, "recall/%s%s/%s/d%" PRId64, vla_op_name(c->op), variant_of(c),
                        vla_key_source_name(c->keys), c->d);
    if (n > 0) used += snprintf(label + used, (size_t)(LABEL - used), "_n%" PRId64, n);
    if (c->distractors) used += snprintf(label + used, (size_t)(LABEL - used), "_D%" PRId64, c->distractors);
    if (s->match_state) snprintf(label + used, (size_t)(LABEL - used), "_state");
}

static void key_of(const vla_recall_settings *s, const char *label, char *key)
{
    char text[LABEL + 256];
    snprintf(text, sizeof text, "%s|V%" PRId64 "|t%" PRId64 "|%.17g|%.17g|%.17g|%d|%" PRIu64 "|%" PRId64, label,
             s->codebook, s->trials, s->lambda0, s->decay, s->u_scale, s->u_random, s->seed,
             s->bank ? s->bank->len : 0);
    vla_case_key(text, key);
}

static bool describe(vla_record *row, const vla_recall_settings *s, const curve *c, const char *label)
{
    char key[17];
    key_of(s, label, key);
    const vla_recall r = recall_of(s, c);
    bool ok = vla_record_string(row, "case", label) && vla_record_string(row, "key", key) &&
              vla_record_string(row, "op", vla_op_name(c->op)) && vla_record_string(row, "setting", setting_of(c)) &&
              vla_record_string(row, "keys", vla_key_source_name(c->keys)) && vla_record_int(row, "d", c->d) &&
              vla_record_int(row, "dk", r.memory.dk) && vla_record_int(row, "dv", r.memory.dv) &&
              vla_record_int(row, "distractors", c->distractors) && vla_record_int(row, "codebook", s->codebook) &&
              vla_record_int(row, "trials", s->trials) && vla_record_int(row, "seed", (int64_t)s->seed) &&
              vla_record_bool(row, "match_state", s->match_state);
    if (c->op == VLA_VLA || c->op == VLA_RLS) ok = ok && vla_record_real(row, "lambda0", s->lambda0);
    if (c->op == VLA_DECAY) ok = ok && vla_record_real(row, "decay_gate", s->decay);
    if (c->op == VLA_VLA)
        ok = ok && vla_record_string(row, "u", s->u_random ? "random" : "tied") &&
             vla_record_real(row, "u_scale", s->u_scale);
    return ok;
}

static bool put_share(vla_record *row, const char *name, vla_share share)
{
    char lo[40], hi[40];
    snprintf(lo, sizeof lo, "%s_lo", name);
    snprintf(hi, sizeof hi, "%s_hi", name);
    return vla_record_real(row, name, share.value) && vla_record_real(row, lo, share.lo) &&
           vla_record_real(row, hi, share.hi);
}

static vla_status no_memory(vla_record *row, vla_error *error)
{
    vla_record_destroy(row);
    return vla_fail(error, VLA_ERR_MEMORY, "recall: out of memory for a record");
}

static vla_status add_point(const vla_recall_settings *s, const curve *c, const vla_recall_point *p, const char *reason,
                            const vla_row_sink *sink, int64_t n, vla_error *error)
{
    char label[LABEL];
    label_of(s, c, n, label);
    vla_record *row = vla_record_create("recall");
    bool ok = row && describe(row, s, c, label) && vla_record_int(row, "n", n) &&
              vla_record_string(row, "status", p ? "ok" : "skip") && vla_record_string(row, "reason", reason);
    if (ok && p) {
        const vla_recall r = recall_of(s, c);
        ok = put_share(row, "accuracy", p->nearest) && put_share(row, "accuracy_inner", p->inner) &&
             vla_record_real(row, "relative_error", p->relative_error) && vla_record_real(row, "norm", p->norm) &&
             vla_record_int(row, "state_bytes", vla_memory_state_bytes(&r.memory, n + c->distractors, 4));
        for (int a = 0; ok && a < VLA_AGES; a++) {
            char name[16];
            snprintf(name, sizeof name, "age_q%d", a + 1);
            ok = vla_record_real(row, name, p->age[a]);
        }
        ok = ok && vla_record_real(row, "rls_distance", p->rls_distance) &&
             vla_record_real(row, "sharpness", p->sharpness);
    }
    return ok ? sink->add(sink->context, row, error) : no_memory(row, error);
}

static vla_status add_capacity(const vla_recall_settings *s, const curve *c, const vla_capacity *found,
                               const vla_row_sink *sink, vla_error *error)
{
    char label[LABEL];
    label_of(s, c, 0, label);
    vla_record *row = vla_record_create("capacity");
    const bool ok = row && describe(row, s, c, label) && vla_record_int(row, "n95", found->n95) &&
                    vla_record_int(row, "n95_lo", found->n95_lo) && vla_record_int(row, "n95_hi", found->n95_hi) &&
                    vla_record_bool(row, "censored", found->censored);
    return ok ? sink->add(sink->context, row, error) : no_memory(row, error);
}

static vla_status run_curve(const vla_recall_settings *s, const curve *c, vla_pool *pool, const vla_row_sink *sink,
                            vla_error *error)
{
    int64_t n[MOST_N];
    char reason[160];
    const int64_t all = counts_of(s, c, n);
    const vla_recall recall = recall_of(s, c);
    int64_t count = 0;
    while (count < all && vla_recall_possible(&recall, n[count], reason, sizeof reason)) count++;
    vla_recall_point points[MOST_N];
    const int64_t tried = c->op == VLA_SOFTMAX && !c->plain_softmax ? SHARPNESSES : 0;
    vla_status status = vla_recall_best(&recall, SHARPNESS, tried, pool, n, count, points, error);
    for (int64_t j = 0; !status && j < all; j++)
        status = add_point(s, c, j < count ? &points[j] : NULL, j < count ? NULL : reason, sink, n[j], error);
    if (status || count == 0) return status;
    vla_capacity found;
    status = vla_recall_capacity(&recall, SHARPNESS, tried, pool, points, count, &found, error);
    return status ? status : add_capacity(s, c, &found, sink, error);
}

/* The i-th curve, false past the end. Curves of one width stand together, so that tables group by width. */
static bool curve_at(const vla_recall_settings *s, int64_t i, curve *c)
{
    for (int64_t d = 0; d < s->d_count; d++)
        for (int k = 0; k < s->key_count; k++)
            for (int64_t w = 0; w < s->distractor_count; w++)
                for (int o = 0; o < s->op_count; o++) {
                    const vla_op op = s->ops[o];
                    const int variants = op == VLA_SOFTMAX ? 2 : op == VLA_VLA ? s->gate_count : 1;
                    for (int v = 0; v < variants; v++)
                        if (i-- == 0) {
                            *c = (curve){op,
                                         s->keys[k],
                                         op == VLA_VLA ? s->gates[v] : VLA_WRITE_UNIT,
                                         op == VLA_SOFTMAX && v == 1,
                                         s->d[d],
                                         s->distractors[w]};
                            return true;
                        }
                }
    return false;
}

int64_t vla_recall_sweep_curves(const vla_recall_settings *settings)
{
    curve c;
    int64_t count = 0;
    while (curve_at(settings, count, &c)) count++;
    return count;
}

vla_status vla_recall_sweep(const vla_recall_settings *settings, vla_pool *pool, const vla_row_sink *sink,
                            vla_error *error)
{
    const int64_t curves = vla_recall_sweep_curves(settings);
    curve c;
    for (int64_t i = 0; curve_at(settings, i, &c); i++) {
        char label[LABEL], key[17];
        label_of(settings, &c, 0, label);
        if (sink->step && !sink->step(sink->context, label, (double)i / (double)curves)) return VLA_OK;
        key_of(settings, label, key);
        if (sink->wanted && !sink->wanted(sink->context, label, key)) continue;
        const vla_status status = run_curve(settings, &c, pool, sink, error);
        if (status) return status;
    }
    return VLA_OK;
}

static bool same_text(const vla_record *a, const vla_record *b, const char *name)
{
    return strcmp(vla_record_text(a, name, ""), vla_record_text(b, name, "")) == 0;
}

static bool same_curve_but_width(const vla_record *a, const vla_record *b)
{
    return strcmp(vla_record_text(a, "kind", ""), "capacity") == 0 &&
           strcmp(vla_record_text(b, "kind", ""), "capacity") == 0 && same_text(a, b, "op") &&
           same_text(a, b, "setting") && same_text(a, b, "keys") &&
           vla_record_number(a, "distractors", 0) == vla_record_number(b, "distractors", 0) &&
           vla_record_number(a, "codebook", 0) == vla_record_number(b, "codebook", 0) &&
           vla_record_number(a, "dk", 0) * vla_record_number(b, "d", 1) ==
               vla_record_number(b, "dk", 0) * vla_record_number(a, "d", 1);
}

static vla_status add_fit(const vla_record *like, const vla_fit *fit, bool censored, const vla_row_sink *sink,
                          vla_error *error)
{
    char label[LABEL];
    snprintf(label, sizeof label, "n95/%s%s%s/%s", vla_record_text(like, "op", "?"),
             vla_record_text(like, "setting", NULL) ? "/" : "", vla_record_text(like, "setting", ""),
             vla_record_text(like, "keys", "?"));
    vla_record *row = vla_record_create("fit");
    const bool ok = row && vla_record_string(row, "case", label) &&
                    vla_record_string(row, "op", vla_record_text(like, "op", NULL)) &&
                    vla_record_string(row, "setting", vla_record_text(like, "setting", NULL)) &&
                    vla_record_string(row, "keys", vla_record_text(like, "keys", NULL)) &&
                    vla_record_string(row, "model", "n95 = coefficient * d^exponent") &&
                    vla_record_real(row, "exponent", fit->power.exponent) &&
                    vla_record_real(row, "exponent_lo", fit->exponent_lo) &&
                    vla_record_real(row, "exponent_hi", fit->exponent_hi) &&
                    vla_record_real(row, "coefficient", fit->power.coefficient) &&
                    vla_record_int(row, "points", fit->n) && vla_record_int(row, "d_min", fit->x_min) &&
                    vla_record_int(row, "d_max", fit->x_max) && vla_record_bool(row, "censored", censored);
    return ok ? sink->add(sink->context, row, error) : no_memory(row, error);
}

/* Gathers the widths of the curve that starts at record i; nothing when an earlier record started it. */
static int64_t gather(const vla_records *records, int64_t i, vla_point *points, bool *censored)
{
    const vla_record *first = records->rows[i];
    int64_t count = 0;
    *censored = false;
    for (int64_t j = 0; j < i; j++)
        if (same_curve_but_width(records->rows[j], first)) return 0;
    for (int64_t j = i; j < records->count && count < MOST_N; j++) {
        const vla_record *row = records->rows[j];
        if (!same_curve_but_width(row, first)) continue;
        const double n95 = vla_record_number(row, "n95", 0);
        *censored |= vla_record_true(row, "censored");
        points[count++] = (vla_point){
            vla_record_count(row, "d", 0),
            n95 > 0,
            {n95, fmax(0.5, vla_record_number(row, "n95_lo", n95)), vla_record_number(row, "n95_hi", n95), NULL, 0}};
    }
    return count;
}

vla_status vla_recall_fits(const vla_records *records, uint64_t seed, const vla_row_sink *sink, vla_error *error)
{
    for (int64_t i = 0; i < records->count; i++) {
        vla_point points[MOST_N];
        bool censored;
        const int64_t count = gather(records, i, points, &censored);
        if (count < 2) continue;
        const vla_curve measured = {points, count};
        vla_rng rng = vla_rng_seed(seed, 95);
        vla_fit fit;
        if (!vla_fit_curve(&measured, 0, 400, &rng, &fit, error)) continue;
        const vla_status status = add_fit(records->rows[i], &fit, censored, sink, error);
        if (status) return status;
    }
    return VLA_OK;
}
