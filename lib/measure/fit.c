#include "lib/measure/fit.h"
#include "lib/base/sizes.h"
#include <math.h>
#include <stdlib.h>

bool vla_power_fit(const double *x, const double *y, int64_t n, vla_power *power)
{
    double mx = 0, my = 0, sxx = 0, sxy = 0, ss = 0;
    int64_t used = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > 0 && y[i] > 0 && isfinite(x[i]) && isfinite(y[i])) {
            mx += log(x[i]);
            my += log(y[i]);
            used++;
        }
    if (used < 2) return false;
    mx /= (double)used;
    my /= (double)used;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > 0 && y[i] > 0 && isfinite(x[i]) && isfinite(y[i])) {
            sxx += (log(x[i]) - mx) * (log(x[i]) - mx);
            sxy += (log(x[i]) - mx) * (log(y[i]) - my);
        }
    if (!(sxx > 0)) return false;
    const double p = sxy / sxx;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > 0 && y[i] > 0 && isfinite(x[i]) && isfinite(y[i])) {
            const double r = log(y[i]) - my - p * (log(x[i]) - mx);
            ss += r * r;
        }
    *power = (vla_power){p, exp(my - p * mx), used > 2 ? sqrt(ss / (double)(used - 2)) : 0};
    return true;
}

static int by_x(const void *p, const void *q)
{
    const vla_point *a = p, *b = q;
    return (a->x > b->x) - (a->x < b->x);
}

/* Draws each median and, about the line, each residual anew, and refits. */
static int64_t bootstrap(const vla_point *points, int64_t n, const vla_power *power, int replicates, vla_rng *rng,
                         double *x, double *y, double *exponents)
{
    int64_t kept = 0;
    const double widen = n > 2 ? sqrt((double)n / (double)(n - 2)) : 0;
    for (int r = 0; r < replicates; r++) {
        for (int64_t i = 0; i < n; i++) {
            const double line = log(power->coefficient) + power->exponent * log(x[i]);
            const vla_point *other = &points[vla_rng_below(rng, (uint64_t)n)];
            const double residual =
                log(other->time.value) - log(power->coefficient) - power->exponent * log((double)other->x);
            const double noise = vla_median_resample(&points[i].time, rng) / points[i].time.value;
            y[i] = exp(n > 2 ? line + widen * residual : log(points[i].time.value)) * noise;
        }
        vla_power again;
        if (vla_power_fit(x, y, n, &again)) exponents[kept++] = again.exponent;
    }
    return kept;
}

static bool spread_known(const vla_point *points, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (points[i].time.n > 1 || isfinite(points[i].time.lo)) return true;
    return n > 2;
}

static bool fit_points(const vla_point *points, int64_t n, int replicates, vla_rng *rng, double *scratch, vla_fit *fit)
{
    double *x = scratch, *y = x + n, *exponents = y + n;
    for (int64_t i = 0; i < n; i++) {
        x[i] = (double)points[i].x;
        y[i] = points[i].time.value;
    }
    if (!vla_power_fit(x, y, n, &fit->power)) return false;
    fit->n = n;
    fit->x_min = points[0].x;
    fit->x_max = points[n - 1].x;
    if (replicates > 0 && spread_known(points, n)) {
        const int64_t kept = bootstrap(points, n, &fit->power, replicates, rng, x, y, exponents);
        vla_sort(exponents, kept);
        fit->exponent_lo = vla_quantile(exponents, kept, 0.025);
        fit->exponent_hi = vla_quantile(exponents, kept, 0.975);
    }
    return true;
}

bool vla_fit_curve(const vla_curve *curve, int64_t last, int replicates, vla_rng *rng, vla_fit *fit, vla_error *error)
{
    *fit = (vla_fit){.exponent_lo = NAN, .exponent_hi = NAN};
    void *memory, *scratch;
    if (vla_alloc(&memory, curve->count, sizeof(vla_point), "fit", error)) return false;
    vla_point *points = memory;
    int64_t n = 0;
    for (int64_t i = 0; i < curve->count; i++)
        if (curve->points[i].known && curve->points[i].x > 0 && curve->points[i].time.value > 0 &&
            isfinite(curve->points[i].time.value))
            points[n++] = curve->points[i];
    if (n > 1) qsort(points, (size_t)n, sizeof *points, by_x);
    const int64_t skip = last > 0 && last < n ? n - last : 0;
    bool ok = false;
    if (n >= 2 && !vla_alloc(&scratch, 2 * n + replicates, sizeof(double), "fit", error)) {
        ok = fit_points(points + skip, n - skip, replicates, rng, scratch, fit);
        vla_free(scratch);
    }
    vla_free(memory);
    return ok;
}

double vla_power_meet(const vla_power *a, const vla_power *b)
{
    /* c_a x^p_a <= c_b x^p_b for large x needs p_a < p_b. */
    if (!(a->exponent < b->exponent)) return NAN;
    return exp((log(a->coefficient) - log(b->coefficient)) / (b->exponent - a->exponent));
}
