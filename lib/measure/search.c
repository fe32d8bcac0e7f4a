#include "lib/measure/search.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool in_setting(const vla_case *c, const vla_setting *s)
{
    const vla_problem *p = &c->problem;
    if (c->backend == VLA_CUDA &&
        (strcmp(c->graph ? "graph" : "stream", s->launch) || strcmp(c->cold ? "cold" : "hot", s->cache)))
        return false;
    return !strcmp(vla_backend_name(c->backend), s->backend) && !strcmp(vla_dtype_name(c->dtype), s->dtype) &&
           !strcmp(vla_mode_name(c->mode), s->mode) && c->backward == !vla_setting_forward(s) && p->B == s->B &&
           p->H == s->H && p->dk == s->dk && p->dv == s->dv && c->threads == s->threads;
}

/* Same measurement apart from its size. */
static bool same_but_size(const vla_case *a, const vla_case *b)
{
    return a->problem.op == b->problem.op && (a->form == b->form || (a->best && b->best)) &&
           a->problem.chunk == b->problem.chunk && a->problem.segments == b->problem.segments;
}

static vla_case at_size(const vla_case *c, int64_t x)
{
    vla_case moved = *c;
    if (c->mode == VLA_DECODE) {
        moved.depth = x;
        if (c->problem.op == VLA_SOFTMAX) moved.problem.Tk = x;
    } else
        moved.problem.T = x;
    if (c->best) moved.form = vla_best_form(&moved.problem, moved.backend, moved.dtype, moved.threads);
    return moved;
}

/* Every variant of the pair's operators in the setting, once, at size x. */
static vla_status cases_at(const vla_case *cases, int64_t count, const vla_setting *s, vla_pair pair, int64_t x,
                           vla_cases *out, vla_error *error)
{
    vla_cases seen = {0};
    vla_status status = VLA_OK;
    for (int64_t i = 0; !status && i < count; i++) {
        const vla_case *c = &cases[i];
        if ((c->problem.op != pair.a && c->problem.op != pair.b) || !in_setting(c, s)) continue;
        bool known = false;
        for (int64_t j = 0; j < seen.count; j++) known |= same_but_size(&seen.items[j], c);
        if (known) continue;
        const vla_case moved = at_size(c, x);
        status = vla_cases_push(&seen, c, error);
        if (!status) status = vla_cases_push(out, &moved, error);
    }
    vla_cases_free(&seen);
    return status;
}

static vla_status measure_at(vla_sweep *sweep, const vla_case *cases, int64_t count, const vla_setting *s,
                             vla_pair pair, int64_t x, double until, vla_error *error)
{
    vla_cases there = {0};
    vla_status status = cases_at(cases, count, s, pair, x, &there, error);
    if (!status) status = vla_sweep_run(sweep, there.items, there.count, until, error);
    vla_cases_free(&there);
    return status;
}

static bool has_op(const vla_records *rows, const vla_setting *s, const char *op)
{
    for (int64_t i = 0; i < rows->count; i++)
        if (!strcmp(vla_record_text(rows->rows[i], "kind", ""), "sample") &&
            !strcmp(vla_record_text(rows->rows[i], "op", ""), op) && vla_setting_has(rows->rows[i], s))
            return true;
    return false;
}

/* A bracket of a factor 2 is within 5 % after five measurements; each gets a fifth of what this search may spend. */
static vla_status search_one(vla_sweep *sweep, const vla_records *rows, const vla_case *cases, int64_t count,
                             const vla_setting *s, vla_pair pair, double seconds, double limit, uint64_t seed,
                             vla_records *out, vla_error *error)
{
    enum { MOST_STEPS = 16, USUAL_STEPS = 5 };
    const char *a = vla_op_name(pair.a), *b = vla_op_name(pair.b);
    const double start = vla_sweep_remaining(sweep);
    vla_record *record = NULL;
    for (int step = 0;; step++) {
        vla_crossover x;
        vla_record_destroy(record);
        record = vla_crossover_record(rows, s, a, b, seed, &x, error);
        if (!record) return VLA_ERR_MEMORY;
        const double spent = start - vla_sweep_remaining(sweep);
        if (!x.next || step == MOST_STEPS || spent >= seconds || vla_sweep_interrupted(sweep) ||
            vla_sweep_remaining(sweep) <= 0)
            break;
        const int left = step < USUAL_STEPS ? USUAL_STEPS - step : 1;
        const double share = (seconds - spent) / left, keep = vla_sweep_remaining(sweep) - share;
        const int64_t before = rows->count;
        vla_status status = measure_at(sweep, cases, count, s, pair, x.next, 1 - (keep > 0 ? keep : 0) / limit, error);
        if (status || rows->count == before) {
            if (!status) break; /* nothing new to learn */
            vla_record_destroy(record);
            return status;
        }
    }
    if (vla_sweep_interrupted(sweep)) { /* half a sweep answers nothing; --resume will */
        vla_record_destroy(record);
        return VLA_OK;
    }
    if (vla_records_push(out, record)) return VLA_OK;
    vla_record_destroy(record);
    return vla_fail(error, VLA_ERR_MEMORY, "crossover: out of memory");
}

vla_status vla_search_crossovers(vla_sweep *sweep, const vla_records *rows, const vla_case *cases, int64_t count,
                                 const vla_pair *pairs, int pair_count, uint64_t seed, vla_records *out,
                                 vla_error *error)
{
    vla_settings settings;
    vla_status status = vla_settings_of(rows, &settings, error);
    double searches = 0;
    for (int64_t i = 0; i < settings.count; i++)
        for (int j = 0; j < pair_count; j++)
            searches += has_op(rows, &settings.items[i], vla_op_name(pairs[j].a)) &&
                        has_op(rows, &settings.items[i], vla_op_name(pairs[j].b));
    for (int64_t i = 0; !status && i < settings.count; i++)
        for (int j = 0; !status && j < pair_count; j++) {
            const vla_setting *s = &settings.items[i];
            if (!has_op(rows, s, vla_op_name(pairs[j].a)) || !has_op(rows, s, vla_op_name(pairs[j].b))) continue;
            const double seconds = 0.9 * vla_sweep_remaining(sweep) / searches--;
            status =
                search_one(sweep, rows, cases, count, s, pairs[j], seconds, vla_sweep_limit(sweep), seed, out, error);
        }
    vla_settings_free(&settings);
    return status;
}
