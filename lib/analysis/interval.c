#include "lib/analysis/interval.h"
#include "lib/base/random.h"
#include <math.h>
#include <stdlib.h>

enum { REPLICATES = 1000 };

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void bootstrap(vla_interval *in, const double *x, double *draw, double *medians)
{
    vla_rng rng = vla_rng_seed(0x6d656469616eu, (uint64_t)in->n);
    for (int r = 0; r < REPLICATES; r++) {
        for (int64_t i = 0; i < in->n; i++) draw[i] = x[vla_rng_below(&rng, (uint64_t)in->n)];
        medians[r] = median_of(draw, in->n);
    }
    qsort(medians, REPLICATES, sizeof *medians, ascending);
    in->lo = medians[REPLICATES * 25 / 1000];
    in->hi = medians[REPLICATES * 975 / 1000 - 1];
}

vla_interval vla_interval_of(const double *values, int64_t n)
{
    vla_interval in = {NAN, NAN, NAN, 0};
    double *memory = n > 0 ? malloc((size_t)(2 * n + REPLICATES) * sizeof *memory) : NULL;
    if (!memory) return in;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(values[i])) memory[in.n++] = values[i];
    if (in.n > 0) in.value = median_of(memory, in.n);
    if (in.n > 1) bootstrap(&in, memory, memory + n, memory + 2 * n);
    free(memory);
    return in;
}

double vla_log_slope(const double *x, const double *y, int64_t n, double from)
{
    double count = 0, mx = 0, my = 0, xx = 0, xy = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n; i++) {
            if (!(x[i] >= from && x[i] > 0 && y[i] > 0 && isfinite(x[i]) && isfinite(y[i]))) continue;
            if (pass == 0) {
                count += 1;
                mx += log(x[i]);
                my += log(y[i]);
            } else {
                const double dx = log(x[i]) - mx / count;
                xx += dx * dx;
                xy += dx * (log(y[i]) - my / count);
            }
        }
    }
    return count >= 2 && xx > 0 ? xy / xx : NAN;
}
