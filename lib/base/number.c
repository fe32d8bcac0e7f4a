#include "lib/base/number.h"
#include <errno.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In glibc the "C" locale is a static object: newlocale and freelocale cost nothing. */
static int print_c(char *buffer, int precision, double value)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t old = uselocale(c);
    int length = snprintf(buffer, VLA_NUMBER_SIZE, "%.*g", precision, value);
    uselocale(old);
    freelocale(c);
    return length;
}

static double read_c(const char *text, char **end)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double value = strtod_l(text, end, c);
    freelocale(c);
    return value;
}

const char *vla_number_text(double value, char *buffer)
{
    buffer[0] = '\0';
    if (!isfinite(value)) return buffer;
    /* 15 digits always survive a double, except below DBL_MIN, where fewer are held. */
    int first = fabs(value) < DBL_MIN ? 1 : 15;
    for (int precision = first; precision <= 17; precision++) {
        print_c(buffer, precision, value);
        if (read_c(buffer, NULL) == value) break;
    }
    if (!strpbrk(buffer, ".e")) strcat(buffer, ".0");
    return buffer;
}

const char *vla_number_short(double value, int digits, char *buffer)
{
    print_c(buffer, digits < 1 ? 1 : digits > 17 ? 17 : digits, value);
    return buffer;
}

vla_number_status vla_number_parse(const char *text, double *value)
{
    size_t length = strlen(text);
    if (length == 0 || strspn(text, "0123456789+-.eE") != length) return VLA_NUMBER_RUBBISH;
    char *end;
    errno = 0;
    double parsed = read_c(text, &end);
    if (*end || end == text) return VLA_NUMBER_RUBBISH;
    if (errno == ERANGE && (isinf(parsed) || parsed == 0.0)) return VLA_NUMBER_RANGE;
    *value = parsed;
    return VLA_NUMBER_OK;
}

vla_number_status vla_integer_parse(const char *text, const char **end, int64_t *value)
{
    const char *p = text;
    bool negative = *p == '-';
    if (negative) p++;
    *end = text;
    if (*p < '0' || *p > '9') return VLA_NUMBER_RUBBISH;
    int64_t sum = 0; /* kept negative: INT64_MIN has no positive counterpart */
    bool fits = true;
    for (; *p >= '0' && *p <= '9'; p++)
        fits = fits && !__builtin_mul_overflow(sum, 10, &sum) && !__builtin_sub_overflow(sum, *p - '0', &sum);
    *end = p;
    if (!fits || (!negative && sum == INT64_MIN)) return VLA_NUMBER_RANGE;
    *value = negative ? sum : -sum;
    return VLA_NUMBER_OK;
}

bool vla_size_suffix(const char **end, int64_t *value)
{
    int64_t factor = **end == 'k' ? 1024 : **end == 'M' ? 1024 * 1024 : 1;
    if (factor == 1) return true;
    ++*end;
    return !__builtin_mul_overflow(*value, factor, value);
}
