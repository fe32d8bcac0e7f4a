#include "lib/measure/verdict.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/measure/curves.h"
#include "lib/measure/fit.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLICATES = 400, TO_T = 4096 };

/* One setting's rows, and where its verdicts go. */
typedef struct court {
    const vla_records *rows;
    const vla_setting *setting;
    uint64_t seed;
    vla_records *out;
    vla_op_curve softmax, linear, vla;
} court;

typedef struct finding {
    const char *claim, *part;
    double value, lo, hi, claimed;
    const char *verdict, *ops, *extra; /* extra: further options of the replay */
    int64_t from, to;                  /* sizes that were measured */
    char condition[320];
} finding;

/* Records of another's table say whose they are. */
static const char *whose(const court *c)
{
    for (int64_t i = 0; i < c->rows->count; i++)
        if (vla_setting_has(c->rows->rows[i], c->setting)) return vla_record_text(c->rows->rows[i], "source", NULL);
    return NULL;
}

static void replay_of(const court *c, const finding *f, char *text, size_t size)
{
    const vla_setting *s = c->setting;
    const bool decode = vla_setting_decode(s), stream = !strcmp(s->launch, "stream"), cold = !strcmp(s->cache, "cold");
    const long long from = (long long)f->from, to = (long long)f->to;
    char sizes[64], threads[32] = "";
    if (from == to)
        snprintf(sizes, sizeof sizes, "%lld", from);
    else
        snprintf(sizes, sizeof sizes, "%lld-%lldx2", from, to);
    if (!*s->launch) snprintf(threads, sizeof threads, " --threads %lld", (long long)s->threads);
    snprintf(text, size,
             "vla-bench --op %s --backend %s --dtype %s --B %lld --H %lld --dk %lld --dv %lld%s %s %s%s%s%s%s%s",
             f->ops, s->backend, s->dtype, (long long)s->B, (long long)s->H, (long long)s->dk, (long long)s->dv,
             decode ? " --mode decode" : "", decode ? "--depth" : "--T", sizes, threads,
             stream ? " --launch stream" : "", cold ? " --cache cold" : "", *f->extra ? " " : "", f->extra);
}

/* The form of all of vla's rows, where they have but one and it was asked for by name; else NULL. */
static const char *form_of_vla(const court *c)
{
    const char *form = NULL;
    for (int64_t i = 0; i < c->vla.curve.count; i++) {
        const vla_record *r = c->vla.records[i];
        const char *own = vla_record_text(r, "form", NULL);
        if (!own || strcmp(vla_record_text(r, "choice", ""), "named") || (form && strcmp(form, own))) return NULL;
        form = own;
    }
    return form;
}

static vla_status add(const court *c, const finding *f, vla_error *error)
{
    const char *form = strstr(f->ops, "vla") && strcmp(f->claim, "C6") ? form_of_vla(c) : NULL;
    char source[200], setting[160], replay[512];
    const char *other = whose(c);
    vla_setting_text(c->setting, setting, sizeof setting);
    snprintf(source, sizeof source, "%s%s%s%s%s%s", other ? other : "", other ? ", " : "", setting,
             vla_setting_decode(c->setting) ? ", decode" : "", form ? ", vla by " : "", form ? form : "");
    replay_of(c, f, replay, sizeof replay);
    const size_t used = strlen(replay);
    if (form && strcmp(form, "chunk"))
        snprintf(replay + used, sizeof replay - used, " --form %s,chunk --filter 'vla/%s/*' --filter '[!v]*/chunk/*'",
                 form, form);
    else if (form)
        snprintf(replay + used, sizeof replay - used, " --form chunk");
    vla_record *r = vla_record_create("verdict");
    const bool ok = r && vla_record_string(r, "claim", f->claim) && vla_record_string(r, "part", f->part) &&
                    vla_record_string(r, "source", source) && vla_record_string(r, "verdict", f->verdict) &&
                    vla_record_real(r, "value", f->value) && vla_record_real(r, "lo", f->lo) &&
                    vla_record_real(r, "hi", f->hi) && vla_record_real(r, "claimed", f->claimed) &&
                    vla_record_string(r, "condition", f->condition) &&
                    vla_record_string(r, "replay", other ? NULL : replay);
    if (ok && vla_records_push(c->out, r)) return VLA_OK;
    vla_record_destroy(r);
    return vla_fail(error, VLA_ERR_MEMORY, "verdict: out of memory");
}

/* A curve's points with x from .. to, powers of two only where asked (sizes of the sweep, not those a search added):
 * into points, which has room for all. */
static vla_curve part_of(const vla_op_curve *curve, int64_t from, int64_t to, bool powers, vla_point *points)
{
    vla_curve part = {points, 0};
    for (int64_t i = 0; i < curve->curve.count; i++) {
        const int64_t x = curve->points[i].x;
        if (x >= from && x <= to && !(powers && (x & (x - 1)))) points[part.count++] = curve->points[i];
    }
    return part;
}

static bool fit_part(const vla_op_curve *curve, int64_t from, int64_t to, bool powers, int64_t last, int replicates,
                     vla_rng *rng, vla_fit *fit)
{
    void *points;
    if (vla_alloc(&points, curve->curve.count, sizeof(vla_point), "curve", NULL)) return false;
    const vla_curve part = part_of(curve, from, to, powers, points);
    const bool ok = vla_fit_curve(&part, last, replicates, rng, fit, NULL);
    vla_free(points);
    return ok;
}

/* C1 */
static vla_status exponent(const court *c, const vla_op_curve *curve, const char *op, double claimed, vla_error *error)
{
    vla_fit last, all;
    vla_rng rng = vla_rng_seed(c->seed, 5001);
    if (!vla_fit_curve(&curve->curve, 0, REPLICATES, &rng, &all, NULL) ||
        !fit_part(curve, all.x_max / 8, INT64_MAX, false, 0, REPLICATES, &rng, &last) || last.n < 3)
        return VLA_OK;
    finding f = {.claim = "C1",
                 .part = op,
                 .value = last.power.exponent,
                 .lo = last.exponent_lo,
                 .hi = last.exponent_hi,
                 .claimed = claimed,
                 .ops = op,
                 .extra = "--crossover none",
                 .from = all.x_min,
                 .to = all.x_max};
    const bool late = fabs(last.power.exponent - claimed) <= 0.1, early = fabs(all.power.exponent - claimed) <= 0.1;
    f.verdict = !late ? "refuted" : early ? "holds" : "holds if";
    snprintf(f.condition, sizeof f.condition,
             "exponent of time from T = %lld to %lld; over all sizes from %lld on %.2f [%.2f, %.2f]",
             (long long)last.x_min, (long long)last.x_max, (long long)all.x_min, all.power.exponent, all.exponent_lo,
             all.exponent_hi);
    return add(c, &f, error);
}

static const vla_point *at(const vla_op_curve *curve, int64_t x)
{
    for (int64_t i = 0; i < curve->curve.count; i++)
        if (curve->points[i].x == x && curve->points[i].known) return &curve->points[i];
    return NULL;
}

static const char *within_a_fifth(double value, double lo, double hi, double claimed)
{
    if (value >= 0.8 * claimed && value <= 1.2 * claimed) return "holds";
    return lo <= claimed && claimed <= hi ? "holds if" : "refuted";
}

/* C5 */
static vla_status care(const court *c, vla_error *error)
{
    void *memory;
    const int64_t most = c->vla.curve.count;
    finding f = {.claim = "C5", .part = "time", .claimed = 5, .ops = "vla,linear", .extra = "--crossover none"};
    double low_at = 0, high_at = 0, operations = NAN;
    int64_t n = 0;
    vla_status status = vla_alloc(&memory, most, sizeof(double), "ratios", error);
    if (status) return status;
    double *ratios = memory;
    f.lo = INFINITY, f.hi = 0;
    for (int64_t i = 0; i < most; i++) {
        const vla_point *a = &c->vla.points[i], *b = at(&c->linear, a->x);
        if (!a->known || !b) continue;
        const double ratio = a->time.value / b->time.value;
        ratios[n++] = ratio;
        if (ratio < f.lo) f.lo = ratio, low_at = (double)a->x;
        if (ratio > f.hi) f.hi = ratio, high_at = (double)a->x;
        if (n == 1) f.from = a->x;
        f.to = a->x;
        for (int64_t j = 0; j < c->linear.curve.count; j++)
            if (c->linear.points[j].x == a->x)
                operations = vla_record_number(c->vla.records[i], "flops", NAN) /
                             vla_record_number(c->linear.records[j], "flops", NAN);
    }
    vla_sort(ratios, n);
    f.value = vla_quantile(ratios, n, 0.5);
    vla_free(memory);
    if (n == 0) return VLA_OK;
    f.verdict = within_a_fifth(f.value, f.lo, f.hi, 5);
    snprintf(f.condition, sizeof f.condition,
             "median of the time ratios at %lld sizes; smallest at T = %.0f, largest at T = %.0f", (long long)n, low_at,
             high_at);
    status = add(c, &f, error);
    if (status || !isfinite(operations)) return status;
    f.part = "operations";
    f.value = f.lo = f.hi = operations;
    f.verdict = within_a_fifth(operations, operations, operations, 5);
    snprintf(f.condition, sizeof f.condition, "work model: vla 6 dk^2 + 6 dk dv a token and head, linear 4 dk dv");
    return add(c, &f, error);
}

/* The row of vla in this setting with this form and the largest T up to most. */
static const vla_record *of_form(const court *c, const char *form, double most)
{
    const vla_record *best = NULL;
    for (int64_t i = 0; i < c->rows->count; i++) {
        const vla_record *r = c->rows->rows[i];
        if (strcmp(vla_record_text(r, "kind", ""), "sample") || strcmp(vla_record_text(r, "op", ""), "vla") ||
            strcmp(vla_record_text(r, "form", ""), form) || strcmp(vla_record_text(r, "status", ""), "ok") ||
            !vla_setting_has(r, c->setting) || !isfinite(vla_record_number(r, "median_s", NAN)) ||
            (double)vla_record_x(r) > most)
            continue;
        if (!best || vla_record_x(r) > vla_record_x(best)) best = r;
    }
    return best;
}

/* C6 */
static vla_status fused(const court *c, vla_error *error)
{
    const vla_record *many = of_form(c, "stepwise", INFINITY);
    const vla_record *one = many ? of_form(c, "recurrent", (double)vla_record_x(many)) : NULL;
    if (!one || vla_record_x(one) != vla_record_x(many)) return VLA_OK;
    finding f = {.claim = "C6",
                 .part = "one launch against one a token",
                 .claimed = 14,
                 .ops = "vla",
                 .extra = "--form stepwise,recurrent --crossover none",
                 .from = vla_record_x(one),
                 .to = vla_record_x(one)};
    const double slow = vla_record_number(many, "median_s", NAN), fast = vla_record_number(one, "median_s", NAN);
    f.value = slow / fast;
    f.lo = vla_record_number(many, "median_lo_s", slow) / vla_record_number(one, "median_hi_s", fast);
    f.hi = vla_record_number(many, "median_hi_s", slow) / vla_record_number(one, "median_lo_s", fast);
    f.verdict = f.value >= 14 ? "holds if" : "refuted";
    snprintf(
        f.condition, sizeof f.condition,
        "T = %lld, launched by %s: %.3g ms against %.3g ms; launches from C stand for the sequential baseline, the "
        "authors' in Python is not measured here",
        (long long)f.from, vla_record_text(one, "launch", "call"), 1e3 * slow, 1e3 * fast);
    return add(c, &f, error);
}

static vla_status extrapolated(const court *c, const vla_crossover *truth, vla_error *error)
{
    static const int64_t last_points[] = {4, 3, 2};
    const char *other = whose(c);
    vla_status status = VLA_OK;
    for (int i = 0; !status && i < 3; i++) {
        vla_fit fa, fb;
        vla_rng rng = vla_rng_seed(c->seed, 5100);
        char part[64];
        if (!fit_part(&c->vla, 1, TO_T, true, last_points[i], 0, &rng, &fa) ||
            !fit_part(&c->softmax, 1, TO_T, true, last_points[i], 0, &rng, &fb) || fa.n < last_points[i] ||
            fb.n < last_points[i])
            continue;
        snprintf(part, sizeof part, "extrapolated from the last %lld points to T = 4,096", (long long)last_points[i]);
        finding f = {.claim = "C11",
                     .part = part,
                     .value = vla_power_meet(&fa.power, &fb.power),
                     .lo = NAN,
                     .hi = NAN,
                     .claimed = 43000,
                     .ops = "vla,softmax",
                     .extra = "--crossover vla,softmax",
                     .from = fa.x_min,
                     .to = fa.x_max};
        const double truly = isfinite(truth->estimate) ? truth->estimate : truth->hi;
        if (other) { /* their own numbers: is 43,000 what they say? */
            f.verdict = fabs(f.value / 43000 - 1) <= 0.02 ? "holds" : "refuted";
            snprintf(
                f.condition, sizeof f.condition,
                "exponents vla %.2f, softmax %.2f; an extrapolation by a factor of %.1f, nothing was measured there",
                fa.power.exponent, fb.power.exponent, f.value / (double)fa.x_max);
        } else {
            if (!(truly > TO_T)) continue; /* within what was fitted: nothing is extrapolated */
            f.verdict = fabs(f.value / truly - 1) <= 0.15 ? "holds" : "refuted";
            snprintf(f.condition, sizeof f.condition,
                     "exponents vla %.2f, softmax %.2f; measured in the same record: %.0f", fa.power.exponent,
                     fb.power.exponent, truly);
        }
        status = add(c, &f, error);
    }
    return status;
}

/* C11 */
static vla_status crossover(const court *c, vla_error *error)
{
    vla_crossover x;
    vla_record *r = vla_crossover_record(c->rows, c->setting, "vla", "softmax", c->seed, &x, error);
    if (!r) return VLA_ERR_MEMORY;
    finding f = {.claim = "C11",
                 .part = "measured",
                 .value = isfinite(x.estimate) ? x.estimate : x.hi,
                 .lo = isfinite(x.ci_lo) ? x.ci_lo : x.lo,
                 .hi = isfinite(x.ci_hi) ? x.ci_hi : x.hi,
                 .claimed = 43000,
                 .ops = "vla,softmax",
                 .extra = "--crossover vla,softmax",
                 .from = x.x_min,
                 .to = x.x_max};
    vla_crossover_sentence(r, f.condition, sizeof f.condition);
    vla_record_destroy(r);
    if (x.common < 2 || x.state == VLA_CROSSOVER_UNKNOWN) return VLA_OK;
    if (x.state == VLA_CROSSOVER_NONE) {
        f.value = NAN;
        f.verdict = x.x_max >= 43000 ? "refuted" : "undecided";
    } else
        f.verdict = x.lo * 0.9 <= 43000 && 43000 <= x.hi * 1.1 ? "holds" : "refuted";
    vla_status status = add(c, &f, error);
    return status ? status : extrapolated(c, &x, error);
}

static const vla_record *longest(const court *c, const char *op, bool shortest)
{
    const vla_record *best = NULL;
    for (int64_t i = 0; i < c->rows->count; i++) {
        const vla_record *r = c->rows->rows[i];
        if (strcmp(vla_record_text(r, "kind", ""), "sample") || strcmp(vla_record_text(r, "op", ""), op) ||
            !vla_setting_has(r, c->setting) || strcmp(vla_record_text(r, "status", ""), "ok") ||
            !isfinite(vla_record_number(r, "median_s", NAN)))
            continue;
        if (!best || (shortest ? vla_record_x(r) < vla_record_x(best) : vla_record_x(r) > vla_record_x(best))) best = r;
    }
    return best;
}

static double of(const vla_record *r, const char *name)
{
    return r ? vla_record_number(r, name, NAN) : NAN;
}

/* C19 */
static vla_status far(const court *c, vla_error *error)
{
    const vla_record *last = longest(c, "softmax", false), *first = longest(c, "softmax", true);
    const vla_record *vla = longest(c, "vla", false);
    const vla_record *oom = NULL;
    for (int64_t i = 0; i < c->rows->count; i++) {
        const vla_record *r = c->rows->rows[i];
        if (!strcmp(vla_record_text(r, "op", ""), "softmax") && vla_setting_has(r, c->setting) &&
            !strcmp(vla_record_text(r, "status", ""), "oom") && (!oom || vla_record_x(r) < vla_record_x(oom)))
            oom = r;
    }
    const int64_t reached = last ? vla_record_x(last) : 0;
    if (!last || (reached < 100000 && !oom)) return VLA_OK;
    finding f = {.claim = "C19",
                 .part = "length",
                 .value = (double)reached,
                 .lo = (double)reached,
                 .hi = oom ? (double)vla_record_x(oom) : NAN,
                 .claimed = 1e5,
                 .verdict = reached > 100000 ? "refuted" : "holds",
                 .ops = "softmax",
                 .extra = "--crossover none",
                 .from = reached,
                 .to = reached};
    snprintf(f.condition, sizeof f.condition,
             "softmax ran T = %lld in %.3g s with %.3g GB (%s)%s; vla T = %lld in %.3g s with %.3g GB",
             (long long)reached, of(last, "median_s"), 1e-9 * of(last, "peak_bytes"), vla_record_text(last, "isa", ""),
             oom ? ", out of memory beyond" : "", vla ? (long long)vla_record_x(vla) : 0LL, of(vla, "median_s"),
             1e-9 * of(vla, "peak_bytes"));
    vla_status status = add(c, &f, error);
    if (status || vla_record_x(first) == reached) return status;
    f.part = "memory";
    f.claimed = 1;
    f.value =
        log(of(last, "peak_bytes") / of(first, "peak_bytes")) / log((double)reached / (double)vla_record_x(first));
    f.lo = f.hi = NAN;
    f.from = vla_record_x(first);
    if (!isfinite(f.value)) return VLA_OK;
    f.verdict = fabs(f.value - 1) <= 0.05 ? "holds" : "refuted";
    snprintf(f.condition, sizeof f.condition,
             "exponent of peak bytes in T from %lld to %lld: %.3g bytes a token, head and width", (long long)f.from,
             (long long)reached,
             of(last, "peak_bytes") / ((double)reached * (double)(c->setting->B * c->setting->H * c->setting->dk)));
    return add(c, &f, error);
}

/* C18 */
static vla_status streaming(const court *c, vla_error *error)
{
    const vla_record *a = longest(c, "vla", true), *b = longest(c, "vla", false);
    const vla_record *kv = longest(c, "softmax", false), *kv_first = longest(c, "softmax", true);
    if (!a || vla_record_x(a) == vla_record_x(b)) return VLA_OK;
    const char *ops = kv ? "vla,softmax" : "vla";
    finding f = {.claim = "C18",
                 .part = "state",
                 .value = of(b, "state_bytes") / of(a, "state_bytes"),
                 .claimed = 1,
                 .ops = ops,
                 .extra = "",
                 .from = vla_record_x(a),
                 .to = vla_record_x(b)};
    f.lo = f.hi = f.value;
    f.verdict = fabs(f.value - 1) <= 1e-9 ? "holds" : "refuted";
    snprintf(f.condition, sizeof f.condition,
             "%.4g bytes from context %lld to %lld; softmax's cache %.4g to %.4g bytes", of(b, "state_bytes"),
             (long long)f.from, (long long)f.to, of(kv_first, "state_bytes"), of(kv, "state_bytes"));
    vla_status status = add(c, &f, error);
    if (status) return status;
    f.part = "time";
    f.value = of(b, "median_s") / of(a, "median_s");
    f.lo = of(b, "median_lo_s") / of(a, "median_hi_s");
    f.hi = of(b, "median_hi_s") / of(a, "median_lo_s");
    f.verdict = fabs(f.value - 1) <= 0.1 ? "holds" : "refuted";
    snprintf(f.condition, sizeof f.condition,
             "time a step at context %lld over that at %lld: %.3g us and %.3g us; softmax %.3g us and %.3g us",
             (long long)f.to, (long long)f.from, 1e6 * of(b, "median_s"), 1e6 * of(a, "median_s"),
             1e6 * of(kv, "median_s"), 1e6 * of(kv_first, "median_s"));
    return add(c, &f, error);
}

static vla_status judge(const court *c, vla_error *error)
{
    if (vla_setting_decode(c->setting)) return streaming(c, error);
    vla_status status = exponent(c, &c->softmax, "softmax", 2, error);
    if (!status) status = exponent(c, &c->linear, "linear", 1, error);
    if (!status) status = exponent(c, &c->vla, "vla", 1, error);
    if (!status) status = care(c, error);
    if (!status) status = fused(c, error);
    if (!status) status = crossover(c, error);
    return status ? status : far(c, error);
}

vla_status vla_bench_verdicts(const vla_records *rows, uint64_t seed, vla_records *out, vla_error *error)
{
    vla_settings settings;
    vla_status status = vla_settings_of(rows, &settings, error);
    for (int64_t i = 0; !status && i < settings.count; i++) {
        court c = {.rows = rows, .setting = &settings.items[i], .seed = seed, .out = out};
        status = vla_curve_of(rows, c.setting, "softmax", &c.softmax, error);
        if (!status) status = vla_curve_of(rows, c.setting, "linear", &c.linear, error);
        if (!status) status = vla_curve_of(rows, c.setting, "vla", &c.vla, error);
        if (!status) status = judge(&c, error);
        vla_curve_free(&c.softmax);
        vla_curve_free(&c.linear);
        vla_curve_free(&c.vla);
    }
    vla_settings_free(&settings);
    return status;
}
