/* Robust statistics of timing samples, with defined answers for n = 0, 1, 2, ties, zero spread and NaN. */
#ifndef VLA_MEASURE_STATISTICS_H
#define VLA_MEASURE_STATISTICS_H
#include "lib/base/random.h"
#include "lib/vla.h"

/* Fewer samples than this say nothing about their own spread. */
enum { VLA_MIN_FOR_NOISE = 5 };

typedef struct vla_summary {
    int64_t n;                       /* finite samples */
    int64_t invalid;                 /* samples that were NaN or infinite: left out of everything else */
    double min, q1, median, q3, max; /* NaN when n = 0 */
    double mad;                      /* median of |x - median| */
    double noise;     /* relative standard error of the median, 1.2533 * 1.4826 mad / (sqrt(n) median); NaN for n < 5 or
                         a median that is not positive */
    double median_lo; /* distribution-free 95 % interval of the median; with fewer than 6 samples their range */
    double median_hi;
} vla_summary;

vla_status vla_summarise(const double *samples, int64_t n, vla_summary *summary, vla_error *error);

void vla_sort(double *values, int64_t n); /* ascending; no NaN among them */
/* Quantile p in [0, 1] of ascending values, linear between order statistics (Hyndman and Fan's type 7); NaN for n = 0.
 */
double vla_quantile(const double *sorted, int64_t n, double p);
/* Samples beyond 3 interquartile ranges outside the quartiles. */
int64_t vla_outliers(const double *samples, int64_t n, const vla_summary *summary);

/* What is known of one median: raw samples where there are any, else its 95 % interval, else the bare number. */
typedef struct vla_median {
    double value, lo, hi; /* lo, hi: NaN when unknown */
    const double *samples;
    int64_t n;
} vla_median;

/* One bootstrap replicate of the median; never negative. Equal to value when nothing is known of its spread. */
double vla_median_resample(const vla_median *median, vla_rng *rng);
/* The intervals of both medians have a point in common (a missing interval is the bare number). */
bool vla_medians_overlap(const vla_median *a, const vla_median *b);

#endif
