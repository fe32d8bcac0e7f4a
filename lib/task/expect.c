#include "lib/task/expect.h"
#include <string.h>

static const char *text(const vla_record *row, const char *name)
{
    return vla_record_text(row, name, "");
}

static bool same(const vla_record *a, const vla_record *b, const char *name)
{
    return strcmp(text(a, name), text(b, name)) == 0;
}

static bool overlap(const vla_record *a, const vla_record *b, const char *lo, const char *hi)
{
    return vla_record_number(a, lo, 0) <= vla_record_number(b, hi, 0) &&
           vla_record_number(b, lo, 0) <= vla_record_number(a, hi, 0);
}

static const vla_record *partner(const vla_records *found, const vla_record *row)
{
    const bool verdict = strcmp(text(row, "kind"), "verdict") == 0;
    for (int64_t i = 0; i < found->count; i++) {
        const vla_record *other = found->rows[i];
        if (!same(row, other, "kind")) continue;
        if (verdict ? same(row, other, "claim") && same(row, other, "source") : same(row, other, "key")) return other;
    }
    return NULL;
}

static bool meets(const vla_record *row, const vla_record *other)
{
    if (strcmp(text(row, "kind"), "verdict") == 0) return same(row, other, "verdict");
    if (strcmp(text(row, "kind"), "capacity") == 0) return overlap(row, other, "n95_lo", "n95_hi");
    return same(row, other, "status") && overlap(row, other, "accuracy_lo", "accuracy_hi");
}

static bool is_compared(const vla_record *row)
{
    static const char *const kinds[] = {"recall", "capacity", "train", "verdict"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(text(row, "kind"), kinds[i]) == 0) return true;
    return false;
}

bool vla_task_expects(const vla_records *expected)
{
    for (int64_t i = 0; i < expected->count; i++)
        if (is_compared(expected->rows[i])) return true;
    return false;
}

int64_t vla_task_expect_differs(const vla_records *expected, const vla_records *found, FILE *stream)
{
    int64_t count = 0;
    for (int64_t i = 0; i < expected->count; i++) {
        const vla_record *row = expected->rows[i];
        if (!is_compared(row)) continue;
        const vla_record *other = partner(found, row);
        if (other && meets(row, other)) continue;
        count++;
        fprintf(stream, "expected: %s %s%s%s: %s\n", text(row, "kind"),
                vla_record_text(row, "case", text(row, "claim")), *text(row, "source") ? ", " : "", text(row, "source"),
                other ? "differs" : "is missing");
    }
    return count;
}
