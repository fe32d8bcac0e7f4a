/* Medians over heads and seeds with bootstrap intervals, and growth exponents. */
#ifndef VLA_ANALYSIS_INTERVAL_H
#define VLA_ANALYSIS_INTERVAL_H
#include "lib/vla.h"

typedef struct vla_interval {
    double value, lo, hi; /* median and its 95 % percentile bootstrap interval; NaN bounds for fewer than 2 values */
    int64_t n;            /* finite values */
} vla_interval;

/* Deterministic: the bootstrap's stream is fixed. Values that are not finite are left out; none left: NaN. */
vla_interval vla_interval_of(const double *values, int64_t n);

/* Slope of log y against log x by least squares over the points with x >= from and positive finite x, y; NaN with fewer
 * than two different x. */
double vla_log_slope(const double *x, const double *y, int64_t n, double from);

#endif
