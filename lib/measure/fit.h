/* Power laws y = c x^p through measured times, and what they extrapolate to. */
#ifndef VLA_MEASURE_FIT_H
#define VLA_MEASURE_FIT_H
#include "lib/measure/crossover.h"

typedef struct vla_power {
    double exponent, coefficient; /* y = coefficient * x^exponent */
    double sigma;                 /* standard deviation of log y about the line; 0 for two points */
} vla_power;

/* Least squares in log-log through the points with positive finite x and y; false with fewer than two distinct x. */
bool vla_power_fit(const double *x, const double *y, int64_t n, vla_power *power);

typedef struct vla_fit {
    vla_power power;
    double exponent_lo, exponent_hi; /* 95 % bootstrap interval; NaN when neither spread nor residuals are known */
    int64_t n;                       /* points used */
    int64_t x_min, x_max;
} vla_fit;

/* Fits the last points of a curve by x (0: all). The interval resamples both each median and, from three points on, the
 * residuals about the line. False when there are fewer than two known points. */
bool vla_fit_curve(const vla_curve *curve, int64_t last, int replicates, vla_rng *rng, vla_fit *fit, vla_error *error);

/* Where two power laws meet and A is at or below B afterwards; NaN when they never do. Outside the fitted range this is
 * an extrapolation and must be labelled so. */
double vla_power_meet(const vla_power *a, const vla_power *b);

#endif
