#include "lib/base/number.h"
#include "lib/base/status.h"
#include "lib/cli/options.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* More values than anyone sweeps on purpose. */
#define MOST_VALUES 65536

#define ACCEPTED "accepted: 64 or 64,128 or 64-4096x2 or 64-256+64, sizes may end in k or M (1024s)"

typedef struct item {
    const char *name; /* option, for messages */
    char word[64];    /* this item of the argument */
    int64_t min, max;
} item;

/* Room doubles whenever the count reaches a power of two, so the count alone tells how much there is. */
static bool append(vla_range *range, int64_t value)
{
    if ((range->count & (range->count - 1)) == 0) {
        size_t room = range->count ? 2 * (size_t)range->count : 1;
        int64_t *values = realloc(range->values, room * sizeof *values);
        if (!values) return false;
        range->values = values;
    }
    range->values[range->count++] = value;
    return true;
}

static vla_status add(vla_range *range, const item *it, int64_t value, vla_error *error)
{
    if (value < it->min || value > it->max)
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: %" PRId64 " is outside what is accepted: %" PRId64 " to %" PRId64,
                        it->name, value, it->min, it->max);
    if (range->count >= MOST_VALUES)
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%s' gives more than %d values; accepted: at most %d", it->name,
                        it->word, MOST_VALUES, MOST_VALUES);
    return append(range, value) ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", it->name);
}

/* One integer with its suffix at *text. */
static vla_status integer(const char **text, int64_t *value, const item *it, vla_error *error)
{
    vla_number_status status = vla_integer_parse(*text, text, value);
    if (status == VLA_NUMBER_RUBBISH)
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%s' is not a number or range; " ACCEPTED, it->name, it->word);
    if (status == VLA_NUMBER_RANGE || !vla_size_suffix(text, value))
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%s' does not fit 64 bits; accepted: %" PRId64 " to %" PRId64,
                        it->name, it->word, it->min, it->max);
    return VLA_OK;
}

static vla_status add_sum(vla_range *range, const item *it, int64_t from, int64_t to, int64_t step, vla_error *error)
{
    if (step < 1)
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: step +%" PRId64 " in '%s' does not advance; accepted: +1 or more",
                        it->name, step, it->word);
    vla_status status = VLA_OK;
    for (int64_t value = from; value <= to && status == VLA_OK;) {
        status = add(range, it, value, error);
        if (__builtin_add_overflow(value, step, &value)) break;
    }
    return status;
}

static vla_status add_product(vla_range *range, const item *it, int64_t from, int64_t to, int64_t factor,
                              vla_error *error)
{
    if (factor < 2)
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "%s: factor x%" PRId64 " in '%s' does not advance; accepted: x2 or more", it->name, factor,
                        it->word);
    if (from < 1)
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "%s: '%s' starts at %" PRId64 ", which x%" PRId64
                        " does not advance; accepted: a start of 1 or more",
                        it->name, it->word, from, factor);
    vla_status status = VLA_OK;
    for (int64_t value = from; value <= to && status == VLA_OK;) {
        status = add(range, it, value, error);
        if (__builtin_mul_overflow(value, factor, &value)) break;
    }
    return status;
}

static vla_status add_item(vla_range *range, const item *it, vla_error *error)
{
    const char *text = it->word;
    int64_t from, to, step;
    vla_status status = integer(&text, &from, it, error);
    if (status != VLA_OK) return status;
    if (*text == '\0') return add(range, it, from, error);
    if (*text != '-')
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%s' has '%s' after the number; " ACCEPTED, it->name, it->word,
                        text);
    text++;
    status = integer(&text, &to, it, error);
    if (status != VLA_OK) return status;
    char how = *text;
    if (how == '\0')
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%s' has no step; accepted: %sxN or %s+N", it->name, it->word,
                        it->word, it->word);
    if (how != 'x' && how != '*' && how != '+')
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%s' has '%s' where a step is expected; accepted: xN or +N",
                        it->name, it->word, text);
    text++;
    status = integer(&text, &step, it, error);
    if (status != VLA_OK) return status;
    if (*text)
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%s' has '%s' after the step; " ACCEPTED, it->name, it->word,
                        text);
    if (from > to)
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "%s: '%s' is an empty range (%" PRId64 " is above %" PRId64 "); accepted: ascending ranges",
                        it->name, it->word, from, to);
    return how == '+' ? add_sum(range, it, from, to, step, error) : add_product(range, it, from, to, step, error);
}

vla_status vla_range_parse(vla_range *range, const char *text, const char *name, int64_t min, int64_t max,
                           vla_error *error)
{
    int64_t before = range->count;
    vla_status status = VLA_OK;
    for (const char *p = text; status == VLA_OK;) {
        item it = {.name = name, .min = min, .max = max};
        size_t length = strcspn(p, ",");
        if (length == 0)
            status = vla_fail(error, VLA_ERR_ARGUMENT, "%s: empty item in '%.80s'; " ACCEPTED, name, text);
        else if (length >= sizeof it.word)
            status = vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%.40s...' is not a number or range; " ACCEPTED, name, p);
        if (status != VLA_OK) break;
        memcpy(it.word, p, length);
        status = add_item(range, &it, error);
        p += length;
        if (*p == '\0') break;
        p++;
    }
    if (status != VLA_OK) range->count = before;
    return status;
}

void vla_range_free(vla_range *range)
{
    free(range->values);
    *range = (vla_range){0};
}
