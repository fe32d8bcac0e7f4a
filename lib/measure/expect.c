#include "lib/measure/expect.h"
#include <math.h>
#include <string.h>

static const vla_record *partner(const vla_records *rows, const vla_record *wanted)
{
    const char *key = vla_record_text(wanted, "key", ""), *kind = vla_record_text(wanted, "kind", "");
    for (int64_t i = rows->count - 1; i >= 0; i--)
        if (!strcmp(vla_record_text(rows->rows[i], "key", "-"), key) &&
            !strcmp(vla_record_text(rows->rows[i], "kind", ""), kind))
            return rows->rows[i];
    return NULL;
}

static double lowest(const vla_record *r)
{
    return fmin(vla_record_number(r, "lo", INFINITY), vla_record_number(r, "ci_lo", INFINITY));
}

static double highest(const vla_record *r)
{
    return fmax(vla_record_number(r, "hi", -INFINITY), vla_record_number(r, "ci_hi", -INFINITY));
}

static bool differs(const vla_record *want, const vla_record *have, FILE *stream)
{
    const bool sample = !strcmp(vla_record_text(want, "kind", ""), "sample");
    const char *label = vla_record_text(want, "case", "?"), *field = sample ? "status" : "state";
    if (!have) {
        fprintf(stream, "expected %s: not among the results\n", label);
        return true;
    }
    const char *wanted = vla_record_text(want, field, ""), *got = vla_record_text(have, field, "");
    if (strcmp(wanted, got)) {
        fprintf(stream, "expected %s: %s %s, got %s\n", label, field, wanted, got);
        return true;
    }
    if (sample || strcmp(wanted, "found")) return false;
    if (lowest(want) <= highest(have) && lowest(have) <= highest(want)) return false;
    fprintf(stream, "expected %s: between %.0f and %.0f, got %.0f to %.0f\n", label, lowest(want), highest(want),
            lowest(have), highest(have));
    return true;
}

static bool is_compared(const vla_record *row)
{
    const char *kind = vla_record_text(row, "kind", "");
    return !strcmp(kind, "sample") || !strcmp(kind, "crossover");
}

bool vla_expects(const vla_records *expected)
{
    for (int64_t i = 0; i < expected->count; i++)
        if (is_compared(expected->rows[i])) return true;
    return false;
}

int64_t vla_expect_differs(const vla_records *expected, const vla_records *found, FILE *stream)
{
    int64_t count = 0;
    for (int64_t i = 0; i < expected->count; i++)
        if (is_compared(expected->rows[i]))
            count += differs(expected->rows[i], partner(found, expected->rows[i]), stream);
    return count;
}
