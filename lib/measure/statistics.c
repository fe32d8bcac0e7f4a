#include "lib/measure/statistics.h"
#include "lib/base/sizes.h"
#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void vla_sort(double *values, int64_t n)
{
    if (n > 1) qsort(values, (size_t)n, sizeof *values, ascending);
}

double vla_quantile(const double *sorted, int64_t n, double p)
{
    if (n <= 0) return NAN;
    const double at = p * (double)(n - 1);
    const int64_t below = (int64_t)floor(at);
    if (below >= n - 1) return sorted[n - 1];
    const double part = at - (double)below;
    return part == 0 ? sorted[below] : sorted[below] + part * (sorted[below + 1] - sorted[below]);
}

/* Ranks of the order statistics that enclose the median with 95 % confidence: binomial(n, 1/2) by its normal
 * approximation. Below 6 samples no pair of ranks reaches 95 %, so the whole range is given. */
static void median_interval(const double *sorted, int64_t n, double *lo, double *hi)
{
    int64_t first = 0;
    if (n >= 6) {
        const double half = 0.98 * sqrt((double)n);
        first = (int64_t)floor(0.5 * (double)n - half);
        if (first < 0) first = 0;
    }
    *lo = sorted[first];
    *hi = sorted[n - 1 - first];
}

static void summarise_sorted(double *sorted, int64_t n, vla_summary *s)
{
    s->min = sorted[0];
    s->max = sorted[n - 1];
    s->q1 = vla_quantile(sorted, n, 0.25);
    s->median = vla_quantile(sorted, n, 0.5);
    s->q3 = vla_quantile(sorted, n, 0.75);
    median_interval(sorted, n, &s->median_lo, &s->median_hi);
    for (int64_t i = 0; i < n; i++) sorted[i] = fabs(sorted[i] - s->median);
    vla_sort(sorted, n);
    s->mad = vla_quantile(sorted, n, 0.5);
    /* 1.4826 mad estimates a normal's sigma; 1.2533 = sqrt(pi/2) takes the error of a mean to that of a median. */
    if (n >= VLA_MIN_FOR_NOISE && s->median > 0) s->noise = 1.2533 * 1.4826 * s->mad / (sqrt((double)n) * s->median);
}

vla_status vla_summarise(const double *samples, int64_t n, vla_summary *summary, vla_error *error)
{
    *summary = (vla_summary){.min = NAN,
                             .q1 = NAN,
                             .median = NAN,
                             .q3 = NAN,
                             .max = NAN,
                             .mad = NAN,
                             .noise = NAN,
                             .median_lo = NAN,
                             .median_hi = NAN};
    void *memory;
    vla_status status = vla_alloc(&memory, n, sizeof(double), "samples", error);
    if (status) return status;
    double *sorted = memory;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(samples[i]))
            sorted[summary->n++] = samples[i];
        else
            summary->invalid++;
    }
    if (summary->n > 0) {
        vla_sort(sorted, summary->n);
        summarise_sorted(sorted, summary->n, summary);
    }
    vla_free(memory);
    return VLA_OK;
}

int64_t vla_outliers(const double *samples, int64_t n, const vla_summary *summary)
{
    const double reach = 3 * (summary->q3 - summary->q1);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (samples[i] > summary->q3 + reach || samples[i] < summary->q1 - reach) count++;
    return count;
}

/* k-th smallest by quickselect on a private copy. */
static double select_kth(double *v, int64_t n, int64_t k)
{
    int64_t left = 0, right = n - 1;
    while (left < right) {
        const double pivot = v[left + (right - left) / 2];
        int64_t i = left, j = right;
        while (i <= j) {
            while (v[i] < pivot) i++;
            while (v[j] > pivot) j--;
            if (i <= j) {
                const double t = v[i];
                v[i++] = v[j];
                v[j--] = t;
            }
        }
        if (k <= j)
            right = j;
        else if (k >= i)
            left = i;
        else
            break;
    }
    return v[k];
}

double vla_median_resample(const vla_median *median, vla_rng *rng)
{
    enum { MOST = 512 }; /* with more samples than this the resample is slightly too wide: the safe side */
    double drawn[MOST];
    if (median->samples && median->n >= 2) {
        const int64_t n = median->n < MOST ? median->n : MOST;
        for (int64_t i = 0; i < n; i++) drawn[i] = median->samples[vla_rng_below(rng, (uint64_t)median->n)];
        const double upper = select_kth(drawn, n, n / 2);
        return n % 2 ? upper : 0.5 * (upper + select_kth(drawn, n, n / 2 - 1));
    }
    if (!isfinite(median->lo) || !isfinite(median->hi)) return median->value;
    const double sigma = (median->hi - median->lo) / (2 * 1.96);
    const double x = median->value + sigma * vla_rng_normal(rng);
    return x > 0 ? x : 0;
}

bool vla_medians_overlap(const vla_median *a, const vla_median *b)
{
    const double a_lo = isfinite(a->lo) ? a->lo : a->value, a_hi = isfinite(a->hi) ? a->hi : a->value;
    const double b_lo = isfinite(b->lo) ? b->lo : b->value, b_hi = isfinite(b->hi) ? b->hi : b->value;
    return a_lo <= b_hi && b_lo <= a_hi;
}
