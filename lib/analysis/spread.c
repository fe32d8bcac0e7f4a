#include "lib/analysis/spread.h"
#include "lib/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

double vla_decades(double log_value)
{
    return log_value / log(10);
}

static double value_of(const vla_trace_summary *summary, vla_summary_field field)
{
    double value;
    memcpy(&value, (const char *)summary + field.offset, sizeof value);
    return field.decades ? vla_decades(value) : value;
}

vla_status vla_spread_of(vla_spread *spread, const vla_trace_summary *summaries, int64_t count, vla_summary_field field,
                         vla_error *error)
{
    *spread = (vla_spread){.middle = {NAN, NAN, NAN, 0}, .least = NAN, .most = NAN};
    double *values = malloc((size_t)(count > 0 ? count : 1) * sizeof *values);
    if (!values) return vla_fail(error, VLA_ERR_MEMORY, "spread over %lld heads: out of memory", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const double x = values[i] = value_of(&summaries[i], field);
        if (i == 0 || isnan(x) || x < spread->least) spread->least = x; /* nothing is below or above a NaN: it stays */
        if (i == 0 || isnan(x) || x > spread->most) spread->most = x;
    }
    spread->middle = vla_interval_of(values, count);
    free(values);
    return VLA_OK;
}
