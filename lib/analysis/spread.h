/* One number of every trace summary, over heads and seeds: its median with an interval, and its extremes. */
#ifndef VLA_ANALYSIS_SPREAD_H
#define VLA_ANALYSIS_SPREAD_H
#include "lib/analysis/interval.h"
#include "lib/analysis/trace.h"
#include <stddef.h>

typedef struct vla_summary_field {
    size_t offset; /* of a double in vla_trace_summary */
    bool decades;  /* that is a natural logarithm, told to base 10 */
} vla_summary_field;

#define VLA_SUMMARY_FIELD(name)                  \
    {                                            \
        offsetof(vla_trace_summary, name), false \
    }
#define VLA_SUMMARY_DECADES(name)               \
    {                                           \
        offsetof(vla_trace_summary, name), true \
    }

typedef struct vla_spread {
    vla_interval middle; /* of the finite values */
    double least, most;  /* NaN where any value is, or where there is none */
} vla_spread;

/* summaries [count]. */
vla_status vla_spread_of(vla_spread *spread, const vla_trace_summary *summaries, int64_t count, vla_summary_field field,
                         vla_error *error);

/* A natural logarithm to base 10. */
double vla_decades(double log_value);

#endif
