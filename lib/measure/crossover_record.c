#include "lib/base/status.h"
#include "lib/measure/curves.h"
#include "lib/measure/fit.h"
#include "lib/op/registry.h"
#include "lib/op/work.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLICATES = 400 };
#define TOLERANCE 0.05
#define WORTH_EXPLAINING 0.15

static double model_flops(vla_op op, const vla_setting *s, double x)
{
    vla_problem p = vla_problem_default(op, 1, 1, 1, 1);
    p.dk = s->dk;
    p.dv = s->dv;
    p.T = vla_setting_decode(s) ? 1 : (int64_t)x;
    p.Tk = vla_setting_decode(s) && op == VLA_SOFTMAX ? (int64_t)x : 0;
    return vla_work_flops(&p);
}

/* Smallest x from which A's flops at rate_a take no longer than B's at rate_b, NaN when that is never or always so. */
static double model_crossover(vla_op a, vla_op b, const vla_setting *s, double rate_a, double rate_b)
{
    int64_t lo = 1, hi = INT64_C(1) << 40;
    if (s->dk < 1 || s->dv < 1 || !(rate_a > 0) || !(rate_b > 0)) return NAN;
    if (model_flops(a, s, (double)lo) / rate_a <= model_flops(b, s, (double)lo) / rate_b) return NAN;
    if (model_flops(a, s, (double)hi) / rate_a > model_flops(b, s, (double)hi) / rate_b) return NAN;
    while (hi - lo > 1) {
        const int64_t middle = lo + (hi - lo) / 2;
        if (model_flops(a, s, (double)middle) / rate_a <= model_flops(b, s, (double)middle) / rate_b)
            hi = middle;
        else
            lo = middle;
    }
    return (double)hi;
}

/* The row of the curve nearest (in log x) to x that has a value of name. */
static double nearest(const vla_op_curve *c, double x, const char *name)
{
    double best = INFINITY, value = NAN;
    for (int64_t i = 0; i < c->curve.count; i++) {
        const double distance = fabs(log((double)c->points[i].x / x));
        const double v = vla_record_number(c->records[i], name, NAN);
        if (c->points[i].known && isfinite(v) && distance < best) {
            best = distance;
            value = v;
        }
    }
    return value;
}

/* What ran there: "cudnn 9.14.0", or an instruction set; NULL when no row says. */
static const char *ran_near(const vla_op_curve *c, double x)
{
    double best = INFINITY;
    const char *text = NULL;
    for (int64_t i = 0; i < c->curve.count; i++) {
        const double distance = fabs(log((double)c->points[i].x / x));
        const char *isa = vla_record_text(c->records[i], "isa", NULL);
        if (!c->points[i].known || !isa || !(distance < best)) continue;
        best = distance;
        text = isa;
    }
    return text;
}

/* Why the measured crossover is not where equal shares of the machine's peak would put it. */
static void explain(const char *a, const char *b, bool decode, double model, double gap, double share_a, double share_b,
                    double explained, char *text, size_t size)
{
    *text = 0;
    if (!(fabs(gap) > WORTH_EXPLAINING)) return;
    if (isfinite(share_a) && isfinite(share_b) && isfinite(explained))
        snprintf(
            text, size,
            "%s runs at %.2f and %s at %.2f of the matrix peak near the crossover; equal shares would put it at %s "
            "%.0f, these put it at %.0f",
            a, share_a, b, share_b, decode ? "L" : "T", model, explained);
    else
        snprintf(text, size, "shares of peak were not measured, so the gap to the work model is not explained");
}

static bool put_model(vla_record *r, const vla_setting *s, const char *a, const char *b, const vla_op_curve *ca,
                      const vla_op_curve *cb, const vla_crossover *x)
{
    vla_op op_a, op_b;
    char text[320] = "";
    const char *ran_a = ran_near(ca, (double)x->x_max), *ran_b = ran_near(cb, (double)x->x_max);
    double model = NAN, explained = NAN, share_a = NAN, share_b = NAN, gap = NAN;
    if (vla_op_parse(a, &op_a) && vla_op_parse(b, &op_b)) {
        model = model_crossover(op_a, op_b, s, 1, 1);
        const double at = isfinite(x->estimate) ? x->estimate : isfinite(x->hi) ? x->hi : NAN;
        if (isfinite(at)) {
            ran_a = ran_near(ca, at);
            ran_b = ran_near(cb, at);
            share_a = nearest(ca, at, "share_of_peak");
            share_b = nearest(cb, at, "share_of_peak");
            explained = model_crossover(op_a, op_b, s, share_a, share_b);
        }
        if (isfinite(x->estimate)) gap = x->estimate / model - 1;
        explain(a, b, vla_setting_decode(s), model, gap, share_a, share_b, explained, text, sizeof text);
    }
    return vla_record_real(r, "model", model) && vla_record_real(r, "gap", gap) &&
           vla_record_real(r, "share_a", share_a) && vla_record_real(r, "share_b", share_b) &&
           vla_record_real(r, "explained", explained) && vla_record_string(r, "reason", *text ? text : NULL) &&
           vla_record_string(r, "ran_a", ran_a) && vla_record_string(r, "ran_b", ran_b);
}

/* A whole x as an integer: [lo, hi] are sizes that were measured. */
static bool put_size(vla_record *r, const char *name, double value)
{
    return isfinite(value) ? vla_record_int(r, name, (int64_t)value) : vla_record_null(r, name);
}

static bool put_result(vla_record *r, const vla_crossover *x)
{
    return put_size(r, "lo", x->lo) && put_size(r, "hi", x->hi) && vla_record_real(r, "ci_lo", x->ci_lo) &&
           vla_record_real(r, "ci_hi", x->ci_hi) && vla_record_string(r, "state", vla_crossover_state_name(x->state)) &&
           vla_record_real(r, "slope_a", x->slope_a) && vla_record_real(r, "slope_b", x->slope_b) &&
           vla_record_real(r, "estimate", x->estimate) && vla_record_bool(r, "overlap", x->overlap) &&
           vla_record_int(r, "changes", x->changes) && vla_record_int(r, "x_min", x->x_min) &&
           vla_record_int(r, "x_max", x->x_max) && vla_record_int(r, "unknown", x->unknown);
}

/* Fields every summary of a setting begins with. */
static bool put_setting(vla_record *r, const vla_setting *s, const char *subject, const char *a, const char *b)
{
    static const char *const key[] = {"kind", "a", "b",  "op", "last",    "backend", "dtype", "mode", "pass",
                                      "B",    "H", "dk", "dv", "threads", "launch",  "cache", NULL};
    char label[160];
    snprintf(label, sizeof label, "%s/%s/%s/%s/B%lld_H%lld_K%lld_V%lld", subject, s->backend, s->dtype, s->mode,
             (long long)s->B, (long long)s->H, (long long)s->dk, (long long)s->dv);
    bool ok = vla_record_string(r, "case", label) && vla_record_null(r, "key");
    ok = ok && (b ? vla_record_string(r, "a", a) && vla_record_string(r, "b", b) : vla_record_string(r, "op", a));
    return ok && vla_record_string(r, "backend", s->backend) && vla_record_string(r, "dtype", s->dtype) &&
           vla_record_string(r, "mode", s->mode) && vla_record_string(r, "pass", s->pass) &&
           vla_record_int(r, "B", s->B) && vla_record_int(r, "H", s->H) && vla_record_int(r, "dk", s->dk) &&
           vla_record_int(r, "dv", s->dv) && vla_record_int(r, "threads", s->threads) &&
           vla_record_string(r, "launch", *s->launch ? s->launch : NULL) &&
           vla_record_string(r, "cache", *s->cache ? s->cache : NULL) && vla_record_key(r, key);
}

static bool fill_crossover(vla_record *r, const vla_setting *s, const char *a, const char *b, const vla_op_curve *ca,
                           const vla_op_curve *cb, const vla_crossover *x)
{
    char subject[64];
    snprintf(subject, sizeof subject, "%s,%s", a, b);
    return put_setting(r, s, subject, a, b) && put_result(r, x) && put_model(r, s, a, b, ca, cb, x);
}

vla_record *vla_crossover_record(const vla_records *rows, const vla_setting *setting, const char *a, const char *b,
                                 uint64_t seed, vla_crossover *found, vla_error *error)
{
    vla_op_curve ca = {0}, cb = {0};
    vla_crossover x;
    vla_rng rng = vla_rng_seed(seed, 4242);
    vla_record *r = NULL;
    vla_status status = vla_curve_of(rows, setting, a, &ca, error);
    if (!status) status = vla_curve_of(rows, setting, b, &cb, error);
    if (!status) status = vla_crossover_find(&ca.curve, &cb.curve, TOLERANCE, REPLICATES, &rng, &x, error);
    if (!status) {
        r = vla_record_create("crossover");
        if (!r || !fill_crossover(r, setting, a, b, &ca, &cb, &x)) {
            vla_record_destroy(r);
            r = NULL;
            vla_fail(error, VLA_ERR_MEMORY, "crossover: out of memory");
        }
        if (found) *found = x;
    }
    vla_curve_free(&ca);
    vla_curve_free(&cb);
    return r;
}

void vla_crossover_sentence(const vla_record *r, char *text, size_t size)
{
    vla_crossover_state state = VLA_CROSSOVER_UNKNOWN;
    const char *a = vla_record_text(r, "a", "A"), *b = vla_record_text(r, "b", "B");
    const bool decode = !strcmp(vla_record_text(r, "mode", ""), "decode");
    const char *x = decode ? "context" : "T";
    const double lo = vla_record_number(r, "lo", NAN), hi = vla_record_number(r, "hi", NAN);
    const double ci_lo = vla_record_number(r, "ci_lo", NAN), ci_hi = vla_record_number(r, "ci_hi", NAN);
    const double x_min = vla_record_number(r, "x_min", 0), x_max = vla_record_number(r, "x_max", 0);
    const double model = vla_record_number(r, "model", NAN);
    char where[160] = "", predicted[64] = "";
    vla_crossover_state_parse(vla_record_text(r, "state", ""), &state);
    if (isfinite(ci_lo) && isfinite(ci_hi))
        snprintf(where, sizeof where, " (95 %% interval %.0f to %.0f)", ci_lo, ci_hi);
    if (isfinite(model)) snprintf(predicted, sizeof predicted, "; the work model predicts %.0f", model);
    switch (state) {
    case VLA_CROSSOVER_FOUND:
        snprintf(text, size, "%s is at least as fast as %s from %s between %.0f and %.0f on%s, measured to %.0f%s", a,
                 b, x, lo, hi, where, x_max, predicted);
        break;
    case VLA_CROSSOVER_SEVERAL:
        if (isfinite(hi))
            snprintf(text, size, "%s and %s change places several times; the last time between %s %.0f and %.0f%s", a,
                     b, x, lo, hi, where);
        else
            snprintf(text, size, "%s and %s change places several times, and %s is slower at %s %.0f", a, b, a, x,
                     x_max);
        break;
    case VLA_CROSSOVER_BELOW_RANGE:
        snprintf(text, size, "%s is at least as fast as %s from the smallest %s on: <= %.0f%s", a, b, x, x_min,
                 predicted);
        break;
    case VLA_CROSSOVER_NONE:
        snprintf(text, size, "%s is not yet as fast as %s: no crossover for %s <= %.0f%s", a, b, x, x_max, predicted);
        break;
    default:
        snprintf(text, size, "the crossover of %s and %s is unknown: %s", a, b,
                 x_max > 0 ? "a row in between failed or was skipped" : "no size where both were measured");
        break;
    }
}

static const int64_t last_points[] = {0, 4, 3, 2};

static bool fill_fit(vla_record *r, const vla_setting *s, const char *op, int64_t last, const vla_fit *fit)
{
    return (last ? vla_record_int(r, "last", last) : vla_record_null(r, "last")) && put_setting(r, s, op, op, NULL) &&
           vla_record_int(r, "points", fit->n) && vla_record_int(r, "x_min", fit->x_min) &&
           vla_record_int(r, "x_max", fit->x_max) && vla_record_real(r, "exponent", fit->power.exponent) &&
           vla_record_real(r, "exponent_lo", fit->exponent_lo) && vla_record_real(r, "exponent_hi", fit->exponent_hi) &&
           vla_record_real(r, "coefficient", fit->power.coefficient) && vla_record_real(r, "sigma", fit->power.sigma);
}

static vla_status push(vla_records *out, vla_record *r, bool filled, vla_error *error)
{
    if (r && filled && vla_records_push(out, r)) return VLA_OK;
    vla_record_destroy(r);
    return vla_fail(error, VLA_ERR_MEMORY, "fit: out of memory");
}

vla_status vla_fit_records(const vla_records *rows, const vla_setting *setting, const char *op, uint64_t seed,
                           vla_records *out, vla_error *error)
{
    vla_op_curve c;
    vla_status status = vla_curve_of(rows, setting, op, &c, error);
    for (size_t i = 0; !status && i < sizeof last_points / sizeof *last_points; i++) {
        vla_fit fit;
        vla_rng rng = vla_rng_seed(seed, 4300 + i);
        if (!vla_fit_curve(&c.curve, last_points[i], REPLICATES, &rng, &fit, error)) continue;
        if (last_points[i] && fit.n < last_points[i]) continue;
        vla_record *r = vla_record_create("fit");
        status = push(out, r, r && fill_fit(r, setting, op, last_points[i], &fit), error);
    }
    vla_curve_free(&c);
    return status;
}

static bool fill_extrapolation(vla_record *r, const vla_setting *s, const char *a, const char *b, int64_t last,
                               const vla_fit *fa, const vla_fit *fb)
{
    char subject[64];
    const double meet = vla_power_meet(&fa->power, &fb->power);
    const int64_t x_max = fa->x_max < fb->x_max ? fa->x_max : fb->x_max;
    snprintf(subject, sizeof subject, "%s,%s", a, b);
    return (last ? vla_record_int(r, "last", last) : vla_record_null(r, "last")) && put_setting(r, s, subject, a, b) &&
           vla_record_real(r, "estimate", meet) && vla_record_int(r, "x_max", x_max) &&
           vla_record_bool(r, "extrapolated", meet > (double)x_max) &&
           vla_record_real(r, "exponent_a", fa->power.exponent) && vla_record_real(r, "exponent_b", fb->power.exponent);
}

vla_status vla_extrapolation_records(const vla_records *rows, const vla_setting *setting, const char *a, const char *b,
                                     uint64_t seed, vla_records *out, vla_error *error)
{
    vla_op_curve ca = {0}, cb = {0};
    vla_status status = vla_curve_of(rows, setting, a, &ca, error);
    if (!status) status = vla_curve_of(rows, setting, b, &cb, error);
    for (size_t i = 0; !status && i < sizeof last_points / sizeof *last_points; i++) {
        vla_fit fa, fb;
        const int64_t last = last_points[i];
        vla_rng rng = vla_rng_seed(seed, 4400 + i);
        if (!vla_fit_curve(&ca.curve, last, 0, &rng, &fa, error) ||
            !vla_fit_curve(&cb.curve, last, 0, &rng, &fb, error))
            continue;
        if (last && (fa.n < last || fb.n < last)) continue;
        vla_record *r = vla_record_create("extrapolation");
        status = push(out, r, r && fill_extrapolation(r, setting, a, b, last, &fa, &fb), error);
    }
    vla_curve_free(&ca);
    vla_curve_free(&cb);
    return status;
}
