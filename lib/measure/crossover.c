#include "lib/measure/crossover.h"
#include "lib/base/sizes.h"
#include "lib/measure/fit.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[VLA_CROSSOVER_STATES] = {"found", "none", "unknown", "several", "below_range"};

const char *vla_crossover_state_name(vla_crossover_state state)
{
    return state >= 0 && state < VLA_CROSSOVER_STATES ? state_names[state] : "unknown";
}

bool vla_crossover_state_parse(const char *name, vla_crossover_state *state)
{
    for (int i = 0; name && i < VLA_CROSSOVER_STATES; i++)
        if (!strcmp(name, state_names[i])) {
            *state = (vla_crossover_state)i;
            return true;
        }
    return false;
}

/* Both curves at one x. */
typedef struct joint {
    int64_t x;
    bool known;
    const vla_median *a, *b;
} joint;

typedef enum order { WIN, LOSS, CLOSE } order; /* CLOSE: within noise */

static bool at_or_below(const joint *j)
{
    return j->a->value <= j->b->value;
}

static order order_of(const joint *j)
{
    if (j->a->value == j->b->value) return WIN;
    if (vla_medians_overlap(j->a, j->b)) return CLOSE;
    return at_or_below(j) ? WIN : LOSS;
}

static int by_x(const void *p, const void *q)
{
    const vla_point *a = *(const vla_point *const *)p, *b = *(const vla_point *const *)q;
    if (a->x != b->x) return a->x < b->x ? -1 : 1;
    if (a->known != b->known) return a->known ? 1 : -1; /* known rows last, so that they count */
    return (a > b) - (a < b);                           /* the same array: later rows last */
}

/* Points in order of x, one an x. */
static int64_t sort_points(const vla_curve *curve, const vla_point **sorted)
{
    for (int64_t i = 0; i < curve->count; i++) sorted[i] = &curve->points[i];
    if (curve->count > 1) qsort(sorted, (size_t)curve->count, sizeof *sorted, by_x);
    int64_t n = 0;
    for (int64_t i = 0; i < curve->count; i++) {
        if (n > 0 && sorted[n - 1]->x == sorted[i]->x) n--;
        sorted[n++] = sorted[i];
    }
    return n;
}

static bool usable(const vla_point *p)
{
    return p->known && isfinite(p->time.value) && p->x > 0;
}

static int64_t join(const vla_point **a, int64_t na, const vla_point **b, int64_t nb, joint *joined)
{
    int64_t n = 0;
    for (int64_t i = 0, j = 0; i < na && j < nb;) {
        if (a[i]->x < b[j]->x)
            i++;
        else if (a[i]->x > b[j]->x)
            j++;
        else {
            joined[n++] = (joint){a[i]->x, usable(a[i]) && usable(b[j]), &a[i]->time, &b[j]->time};
            i++, j++;
        }
    }
    return n;
}

/* Where the order changes for good among known points: index of the last point before A stays at or below B, -1 when it
 * always is, count - 1 when it is above at the end. */
static int64_t last_above(const joint *known, int64_t count)
{
    int64_t last_loss = -1, first_win = count, above;
    for (int64_t i = 0; i < count; i++)
        if (order_of(&known[i]) == LOSS) last_loss = i;
    for (int64_t i = count - 1; i > last_loss; i--)
        if (order_of(&known[i]) == WIN) first_win = i;
    above = last_loss;
    for (int64_t i = last_loss + 1; i < first_win; i++)
        if (!at_or_below(&known[i])) above = i;
    return above;
}

static int count_changes(const joint *known, int64_t count)
{
    int changes = 0;
    order last = CLOSE;
    for (int64_t i = 0; i < count; i++) {
        const order o = order_of(&known[i]);
        if (o == CLOSE) continue;
        if (last != CLOSE && o != last) changes++;
        last = o;
    }
    return changes;
}

/* x where the log-log chords of both curves meet between two points, given their times there. */
static double chord(double x0, double a0, double b0, double x1, double a1, double b1)
{
    if (!(a0 > 0 && b0 > 0 && a1 > 0 && b1 > 0)) return x1;
    const double d0 = log(a0 / b0), d1 = log(a1 / b1);
    if (!(d0 > d1)) return x1;
    double part = d0 / (d0 - d1);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    return exp(log(x0) + part * (log(x1) - log(x0)));
}

/* The estimate of one bootstrap replicate by the sign of its medians, NaN when A ends above B. */
static double replicate_estimate(const joint *known, int64_t count, double *a, double *b, vla_rng *rng)
{
    int64_t above = -1;
    for (int64_t i = 0; i < count; i++) {
        a[i] = vla_median_resample(known[i].a, rng);
        b[i] = vla_median_resample(known[i].b, rng);
        /* Points that are clear either way cannot change sides; close ones are where the replicates differ. */
        if (a[i] > b[i]) above = i;
    }
    if (above == count - 1) return NAN;
    if (above < 0) return (double)known[0].x;
    return chord((double)known[above].x, a[above], b[above], (double)known[above + 1].x, a[above + 1], b[above + 1]);
}

static vla_status bootstrap(const joint *known, int64_t count, int replicates, vla_rng *rng, vla_crossover *x,
                            vla_error *error)
{
    void *memory;
    vla_status status = vla_alloc(&memory, 2 * count + replicates, sizeof(double), "bootstrap", error);
    if (status) return status;
    double *a = memory, *b = a + count, *estimates = b + count;
    int64_t n = 0;
    for (int i = 0; i < replicates; i++) {
        const double e = replicate_estimate(known, count, a, b, rng);
        if (isfinite(e)) estimates[n++] = e;
    }
    if (2 * n > replicates) {
        vla_sort(estimates, n);
        x->ci_lo = vla_quantile(estimates, n, 0.025);
        /* Replicates without a crossover lie above every one that has it. */
        x->ci_hi = n < replicates - replicates / 40 ? NAN : vla_quantile(estimates, n, 0.975);
    }
    vla_free(memory);
    return VLA_OK;
}

/* Exponent over the known points within a factor of 2 of the crossover (at least its two neighbours). */
static double local_slope(const joint *known, int64_t count, int64_t above, bool of_a)
{
    enum { MOST = 64 };
    double x[MOST], y[MOST];
    int n = 0;
    const int64_t left = above < 0 ? 0 : above, right = above + 1 < count ? above + 1 : count - 1;
    const double from = 0.499 * (double)known[left].x, to = 2.001 * (double)known[right].x;
    for (int64_t i = 0; i < count && n < MOST; i++)
        if ((double)known[i].x >= from && (double)known[i].x <= to) {
            x[n] = (double)known[i].x;
            y[n++] = of_a ? known[i].a->value : known[i].b->value;
        }
    vla_power power;
    return vla_power_fit(x, y, n, &power) ? power.exponent : NAN;
}

/* Geometric middle of lo..hi when that is wider than tolerance and not a row already known to be unknown. */
static int64_t next_to_measure(const joint *joined, int64_t count, const vla_crossover *x, double tolerance)
{
    if (!(x->hi - x->lo > 1) || !(x->hi / x->lo > 1 + tolerance)) return 0;
    const int64_t lo = (int64_t)x->lo, hi = (int64_t)x->hi;
    int64_t middle = (int64_t)llround(sqrt(x->lo * x->hi));
    if (middle <= lo) middle = lo + 1;
    if (middle >= hi) middle = hi - 1;
    for (int64_t i = 0; i < count; i++)
        if (joined[i].x == middle) return 0;
    return middle;
}

/* Rows that are not known between lo and the largest known x weaken what may be claimed. */
static void weigh_unknown(const joint *joined, int64_t count, vla_crossover *x)
{
    for (int64_t i = 0; i < count; i++) {
        if (joined[i].known) continue;
        x->unknown++;
        if (joined[i].x < (int64_t)x->hi || joined[i].x > x->x_max || !isfinite(x->hi)) continue;
        /* "Stays at or below" is not shown here: only from the next known x on. */
        for (int64_t j = i + 1; j < count; j++)
            if (joined[j].known) {
                x->hi = (double)joined[j].x;
                x->state = VLA_CROSSOVER_UNKNOWN;
                break;
            }
    }
}

static void classify(const joint *known, int64_t n, int64_t above, vla_crossover *x)
{
    x->changes = count_changes(known, n);
    if (above < 0) {
        x->state = VLA_CROSSOVER_BELOW_RANGE;
        x->hi = (double)known[0].x;
    } else if (above == n - 1) {
        x->state = x->changes > 1 ? VLA_CROSSOVER_SEVERAL : VLA_CROSSOVER_NONE;
    } else {
        const joint *l = &known[above], *h = &known[above + 1];
        x->state = x->changes > 1 ? VLA_CROSSOVER_SEVERAL : VLA_CROSSOVER_FOUND;
        x->lo = (double)l->x;
        x->hi = (double)h->x;
        x->overlap = order_of(l) == CLOSE || order_of(h) == CLOSE;
        x->estimate = chord(x->lo, l->a->value, l->b->value, x->hi, h->a->value, h->b->value);
    }
}

static vla_status find_among(const joint *joined, int64_t count, joint *known, double tolerance, int replicates,
                             vla_rng *rng, vla_crossover *x, vla_error *error)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (joined[i].known) known[n++] = joined[i];
    x->common = n;
    if (n == 0) {
        x->unknown = count;
        return VLA_OK;
    }
    x->x_min = known[0].x;
    x->x_max = known[n - 1].x;
    const int64_t above = last_above(known, n);
    classify(known, n, above, x);
    x->slope_a = local_slope(known, n, above, true);
    x->slope_b = local_slope(known, n, above, false);
    vla_status status = VLA_OK;
    if (isfinite(x->lo) && replicates > 0) status = bootstrap(known, n, replicates, rng, x, error);
    weigh_unknown(joined, count, x);
    if (isfinite(x->lo) && isfinite(x->hi)) x->next = next_to_measure(joined, count, x, tolerance);
    return status;
}

vla_status vla_crossover_find(const vla_curve *a, const vla_curve *b, double tolerance, int replicates, vla_rng *rng,
                              vla_crossover *crossover, vla_error *error)
{
    *crossover = (vla_crossover){.state = VLA_CROSSOVER_UNKNOWN,
                                 .lo = NAN,
                                 .hi = NAN,
                                 .estimate = NAN,
                                 .ci_lo = NAN,
                                 .ci_hi = NAN,
                                 .slope_a = NAN,
                                 .slope_b = NAN};
    const int64_t fewer = a->count < b->count ? a->count : b->count;
    void *points, *joints;
    vla_status status = vla_alloc(&points, a->count + b->count, sizeof(vla_point *), "curves", error);
    if (status) return status;
    status = vla_alloc(&joints, 2 * fewer, sizeof(joint), "curves", error);
    if (!status) {
        const vla_point **pa = points, **pb = pa + a->count;
        joint *joined = joints;
        const int64_t na = sort_points(a, pa), nb = sort_points(b, pb), n = join(pa, na, pb, nb, joined);
        status = find_among(joined, n, joined + fewer, tolerance, replicates, rng, crossover, error);
        vla_free(joints);
    }
    vla_free(points);
    return status;
}
