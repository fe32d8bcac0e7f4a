#include "lib/measure/compare.h"
#include "lib/base/status.h"
#include "lib/measure/curves.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_kind(const vla_record *row, const char *kind)
{
    return !strcmp(vla_record_text(row, "kind", ""), kind);
}

static bool ok_row(const vla_record *row)
{
    return !strcmp(vla_record_text(row, "status", "ok"), "ok") && vla_record_number(row, "median_s", 0) > 0;
}

/* Index of the last row of that kind and key, -1 when there is none. */
static int64_t find_key(const vla_records *rows, const char *kind, const char *key)
{
    for (int64_t i = rows->count - 1; *key && i >= 0; i--)
        if (!strcmp(vla_record_text(rows->rows[i], "key", ""), key) && is_kind(rows->rows[i], kind)) return i;
    return -1;
}

static double side(const vla_record *row, const char *name)
{
    return vla_record_number(row, name, vla_record_number(row, "median_s", NAN));
}

static const char *verdict_of(double lo, double hi, double threshold, vla_comparison *summary)
{
    if (lo > 1 + threshold) return summary->slower++, "slower";
    if (hi < 1 / (1 + threshold)) return summary->faster++, "faster";
    if (lo >= 1 / (1 + threshold) && hi <= 1 + threshold) return summary->same++, "same";
    return summary->ambiguous++, "ambiguous";
}

static bool put_pair(vla_record *r, const vla_record *old_row, const vla_record *new_row, double threshold,
                     vla_comparison *summary)
{
    const char *old_status = vla_record_text(old_row, "status", "ok"),
               *new_status = vla_record_text(new_row, "status", "ok");
    bool ok = vla_record_string(r, "old_status", old_status) && vla_record_string(r, "new_status", new_status);
    double ratio = NAN, lo = NAN, hi = NAN, before = NAN, after = NAN;
    const char *verdict = NULL;
    if (strcmp(old_status, new_status)) {
        summary->changed++;
        verdict = "changed";
    }
    if (ok_row(old_row) && ok_row(new_row)) {
        before = vla_record_number(old_row, "median_s", NAN);
        after = vla_record_number(new_row, "median_s", NAN);
        ratio = after / before;
        lo = side(new_row, "median_lo_s") / side(old_row, "median_hi_s");
        hi = side(new_row, "median_hi_s") / side(old_row, "median_lo_s");
        verdict = verdict_of(lo, hi, threshold, summary);
    }
    return ok && vla_record_real(r, "old_s", before) && vla_record_real(r, "new_s", after) &&
           vla_record_real(r, "ratio", ratio) && vla_record_real(r, "ratio_lo", lo) &&
           vla_record_real(r, "ratio_hi", hi) && vla_record_string(r, "verdict", verdict);
}

static vla_status push(vla_records *out, vla_record *r, bool filled, vla_error *error)
{
    if (r && filled && vla_records_push(out, r)) return VLA_OK;
    vla_record_destroy(r);
    return vla_fail(error, VLA_ERR_MEMORY, "comparison: out of memory");
}

vla_status vla_compare(const vla_records *old_rows, const vla_records *new_rows, double threshold, vla_records *out,
                       vla_comparison *summary, vla_error *error)
{
    vla_status status = VLA_OK;
    *summary = (vla_comparison){0};
    for (int64_t i = 0; !status && i < new_rows->count; i++) {
        const vla_record *row = new_rows->rows[i];
        const char *key = vla_record_text(row, "key", "");
        if (!is_kind(row, "sample") || find_key(new_rows, "sample", key) != i) continue;
        const int64_t at = find_key(old_rows, "sample", key);
        if (at < 0) {
            summary->only_new++;
            continue;
        }
        summary->joined++;
        vla_record *r = vla_record_create("compare");
        const bool filled = r && vla_record_string(r, "case", vla_record_text(row, "case", NULL)) &&
                            vla_record_string(r, "key", key) &&
                            put_pair(r, old_rows->rows[at], row, threshold, summary);
        status = push(out, r, filled, error);
    }
    for (int64_t i = 0; !status && i < old_rows->count; i++) {
        const char *key = vla_record_text(old_rows->rows[i], "key", "");
        if (is_kind(old_rows->rows[i], "sample") && find_key(old_rows, "sample", key) == i)
            summary->only_old += find_key(new_rows, "sample", key) < 0;
    }
    return status;
}

static vla_status relate_curve(const vla_op_curve *base, const vla_op_curve *c, double threshold, vla_records *out,
                               vla_comparison *summary, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0, j = 0; !status && i < c->curve.count; i++) {
        while (j < base->curve.count && base->points[j].x < c->points[i].x) j++;
        if (j == base->curve.count || base->points[j].x != c->points[i].x) continue;
        summary->joined++;
        vla_record *r = vla_record_create("ratio");
        const bool filled = r && vla_record_string(r, "case", vla_record_text(c->records[i], "case", NULL)) &&
                            vla_record_string(r, "key", vla_record_text(c->records[i], "key", NULL)) &&
                            vla_record_string(r, "op", vla_record_text(c->records[i], "op", NULL)) &&
                            vla_record_string(r, "baseline", vla_record_text(base->records[j], "op", NULL)) &&
                            vla_record_int(r, "x", c->points[i].x) &&
                            put_pair(r, base->records[j], c->records[i], threshold, summary);
        status = push(out, r, filled, error);
    }
    return status;
}

vla_status vla_relate(const vla_records *rows, const char *baseline, double threshold, vla_records *out,
                      vla_comparison *summary, vla_error *error)
{
    static const char *const ops[] = {"softmax", "linear", "delta", "decay", "vla", "rls"};
    vla_settings settings;
    *summary = (vla_comparison){0};
    vla_status status = vla_settings_of(rows, &settings, error);
    for (int64_t i = 0; !status && i < settings.count; i++) {
        vla_op_curve base;
        status = vla_curve_of(rows, &settings.items[i], baseline, &base, error);
        for (size_t o = 0; !status && o < sizeof ops / sizeof *ops; o++) {
            vla_op_curve c;
            if (!strcmp(ops[o], baseline)) continue;
            status = vla_curve_of(rows, &settings.items[i], ops[o], &c, error);
            if (!status) status = relate_curve(&base, &c, threshold, out, summary, error);
            vla_curve_free(&c);
        }
        vla_curve_free(&base);
    }
    vla_settings_free(&settings);
    return status;
}

vla_status vla_merge(vla_records *merged, const vla_records *rows, vla_error *error)
{
    for (int64_t i = 0; i < rows->count; i++) {
        vla_record *copy = vla_record_copy(rows->rows[i]);
        const int64_t at =
            copy ? find_key(merged, vla_record_text(copy, "kind", ""), vla_record_text(copy, "key", "")) : -1;
        if (at >= 0) {
            vla_record_destroy(merged->rows[at]);
            merged->rows[at] = copy;
        } else if (!copy || !vla_records_push(merged, copy)) {
            vla_record_destroy(copy);
            return vla_fail(error, VLA_ERR_MEMORY, "merge: out of memory");
        }
    }
    return VLA_OK;
}
