#include "lib/measure/curves.h"
#include "lib/base/status.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_sample(const vla_record *row)
{
    return !strcmp(vla_record_text(row, "kind", "sample"), "sample");
}

/* Tables from elsewhere may lack columns: what is missing counts as equal. */
static vla_setting setting_of(const vla_record *row)
{
    vla_setting s = {.B = vla_record_count(row, "B", 0),
                     .H = vla_record_count(row, "H", 0),
                     .dk = vla_record_count(row, "dk", 0),
                     .dv = vla_record_count(row, "dv", 0),
                     .threads = vla_record_count(row, "threads", 0)};
    snprintf(s.backend, sizeof s.backend, "%s", vla_record_text(row, "backend", ""));
    snprintf(s.dtype, sizeof s.dtype, "%s", vla_record_text(row, "dtype", ""));
    snprintf(s.mode, sizeof s.mode, "%s", vla_record_text(row, "mode", "prefill"));
    snprintf(s.pass, sizeof s.pass, "%s", vla_record_text(row, "pass", "fwd"));
    if (!strcmp(s.backend, "cuda")) {
        snprintf(s.launch, sizeof s.launch, "%s", vla_record_text(row, "launch", "graph"));
        snprintf(s.cache, sizeof s.cache, "%s", vla_record_text(row, "cache", "hot"));
    }
    return s;
}

static bool equal(const vla_setting *a, const vla_setting *b)
{
    return !strcmp(a->backend, b->backend) && !strcmp(a->dtype, b->dtype) && !strcmp(a->mode, b->mode) &&
           !strcmp(a->pass, b->pass) && !strcmp(a->launch, b->launch) && !strcmp(a->cache, b->cache) && a->B == b->B &&
           a->H == b->H && a->dk == b->dk && a->dv == b->dv && a->threads == b->threads;
}

bool vla_setting_has(const vla_record *row, const vla_setting *setting)
{
    const vla_setting own = setting_of(row);
    return equal(&own, setting);
}

bool vla_setting_decode(const vla_setting *setting)
{
    return !strcmp(setting->mode, "decode");
}

bool vla_setting_forward(const vla_setting *setting)
{
    return !strcmp(setting->pass, "fwd");
}

const char *vla_setting_text(const vla_setting *s, char *buffer, size_t size)
{
    const int used =
        snprintf(buffer, size, "%s%s%s, B %lld, H %lld, dk %lld, dv %lld", s->backend, *s->dtype ? " " : "", s->dtype,
                 (long long)s->B, (long long)s->H, (long long)s->dk, (long long)s->dv);
    size_t at = used < 0 || (size_t)used > size ? size : (size_t)used;
    if (!vla_setting_forward(s)) at += (size_t)snprintf(buffer + at, size - at, ", forward and backward");
    if (at > size) at = size;
    if (*s->launch)
        snprintf(buffer + at, size - at, ", %s, cache %s", s->launch, s->cache);
    else if (s->threads > 0)
        snprintf(buffer + at, size - at, ", %lld thread%s", (long long)s->threads, s->threads == 1 ? "" : "s");
    return buffer;
}

vla_status vla_settings_of(const vla_records *rows, vla_settings *settings, vla_error *error)
{
    *settings = (vla_settings){0};
    for (int64_t i = 0; i < rows->count; i++) {
        if (!is_sample(rows->rows[i])) continue;
        const vla_setting own = setting_of(rows->rows[i]);
        bool known = false;
        for (int64_t j = 0; j < settings->count; j++) known |= equal(&settings->items[j], &own);
        if (known) continue;
        vla_setting *items = realloc(settings->items, (size_t)(settings->count + 1) * sizeof *items);
        if (!items) {
            vla_settings_free(settings);
            return vla_fail(error, VLA_ERR_MEMORY, "settings: out of memory");
        }
        settings->items = items;
        items[settings->count++] = own;
    }
    return VLA_OK;
}

void vla_settings_free(vla_settings *settings)
{
    free(settings->items);
    *settings = (vla_settings){0};
}

int64_t vla_record_x(const vla_record *row)
{
    const char *mode = vla_record_text(row, "mode", "prefill");
    return vla_record_count(row, !strcmp(mode, "decode") ? "depth" : "T", 0);
}

static vla_point point_of(const vla_record *row)
{
    vla_point p = {.x = vla_record_x(row)};
    const vla_value *samples = vla_record_get(row, "samples_s");
    p.time.value = vla_record_number(row, "median_s", NAN);
    p.time.lo = vla_record_number(row, "median_lo_s", NAN);
    p.time.hi = vla_record_number(row, "median_hi_s", NAN);
    if (samples && samples->type == VLA_VALUE_REALS) {
        p.time.samples = samples->reals.data;
        p.time.n = samples->reals.count;
    }
    p.known = !strcmp(vla_record_text(row, "status", "ok"), "ok") && isfinite(p.time.value) && p.x > 0;
    return p;
}

/* Of two rows at one x: any known row beats an unknown one, of two known ones of different forms the faster, of the
 * same measurement (key) the later. */
static bool replaces(const vla_point *p, const vla_record *row, const vla_point *old, const vla_record *old_row)
{
    if (p->known != old->known) return p->known;
    if (!p->known) return true;
    const char *key = vla_record_text(row, "key", ""), *old_key = vla_record_text(old_row, "key", "");
    if (*key && !strcmp(key, old_key)) return true;
    return p->time.value < old->time.value;
}

static void insert(vla_op_curve *c, const vla_point *p, const vla_record *row)
{
    int64_t at = 0, n = c->curve.count;
    while (at < n && c->points[at].x < p->x) at++;
    if (at < n && c->points[at].x == p->x) {
        if (!replaces(p, row, &c->points[at], c->records[at])) return;
    } else {
        memmove(c->points + at + 1, c->points + at, (size_t)(n - at) * sizeof *c->points);
        memmove(c->records + at + 1, c->records + at, (size_t)(n - at) * sizeof *c->records);
        c->curve.count++;
    }
    c->points[at] = *p;
    c->records[at] = row;
}

vla_status vla_curve_of(const vla_records *rows, const vla_setting *setting, const char *op, vla_op_curve *c,
                        vla_error *error)
{
    *c = (vla_op_curve){0};
    c->points = calloc((size_t)rows->count + 1, sizeof *c->points);
    c->records = calloc((size_t)rows->count + 1, sizeof *c->records);
    if (!c->points || !c->records) {
        vla_curve_free(c);
        return vla_fail(error, VLA_ERR_MEMORY, "curves: out of memory");
    }
    for (int64_t i = 0; i < rows->count; i++) {
        const vla_record *row = rows->rows[i];
        if (!is_sample(row) || strcmp(vla_record_text(row, "op", ""), op) || !vla_setting_has(row, setting)) continue;
        const vla_point p = point_of(row);
        if (p.x > 0) insert(c, &p, row);
    }
    c->curve.points = c->points;
    return VLA_OK;
}

void vla_curve_free(vla_op_curve *c)
{
    free(c->points);
    free(c->records);
    *c = (vla_op_curve){0};
}
