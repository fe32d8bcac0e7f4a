/* Crossover and power-law fits on known answers. */
#include "lib/measure/crossover.h"
#include "lib/measure/fit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define GONE (-1.0) /* a row that failed or was skipped */

enum { MOST = 32 };

static vla_point point(double x, double y, double spread)
{
    vla_point p = {.x = (int64_t)x, .known = y != GONE};
    p.time = (vla_median){.value = y, .lo = y * (1 - spread), .hi = y * (1 + spread)};
    return p;
}

static vla_crossover find(const double *x, const double *a, const double *b, int n, double spread)
{
    vla_point pa[MOST], pb[MOST];
    for (int i = 0; i < n; i++) {
        pa[i] = point(x[i], a[i], spread);
        pb[i] = point(x[i], b[i], spread);
    }
    const vla_curve ca = {pa, n}, cb = {pb, n};
    vla_rng rng = vla_rng_seed(7, 0);
    vla_crossover c;
    vla_error error = {0};
    assert_int_equal(vla_crossover_find(&ca, &cb, 0.05, 500, &rng, &c, &error), VLA_OK);
    return c;
}

#define FIND(spread, xs, as, bs)                                                                                   \
    find((const double[])xs, (const double[])as, (const double[])bs, (int)(sizeof((double[])xs) / sizeof(double)), \
         spread)
#define L(...)      \
    {               \
        __VA_ARGS__ \
    }

static void test_none(void **state)
{
    (void)state;
    const vla_crossover c = FIND(0.01, L(128, 256, 512), L(4, 8, 16), L(1, 2, 4));
    assert_int_equal(c.state, VLA_CROSSOVER_NONE);
    assert_true(isnan(c.lo) && isnan(c.hi) && isnan(c.estimate));
    assert_int_equal(c.x_max, 512);
    assert_int_equal(c.next, 0);
    /* A was below first: that is no crossover either. */
    const vla_crossover d = FIND(0.01, L(128, 256, 512), L(1, 2, 16), L(2, 4, 8));
    assert_int_equal(d.state, VLA_CROSSOVER_NONE);
    assert_int_equal(d.changes, 1);
}

static void test_one(void **state)
{
    (void)state;
    /* a = 512, b = x: they meet at 512 exactly; b = x^2/1024 would at 724. */
    const vla_crossover c = FIND(0.001, L(128, 256, 512, 1024), L(600, 600, 600, 600), L(128, 256, 512, 1024));
    assert_int_equal(c.state, VLA_CROSSOVER_FOUND);
    assert_int_equal((int64_t)c.lo, 512);
    assert_int_equal((int64_t)c.hi, 1024);
    assert_true(fabs(c.estimate - 600) < 1);
    assert_true(c.ci_lo > 595 && c.ci_lo < 600 && c.ci_hi > 600 && c.ci_hi < 605);
    assert_true(fabs(c.slope_a) < 1e-9 && fabs(c.slope_b - 1) < 1e-9);
    assert_int_equal(c.changes, 1);
    assert_int_equal(c.next, 724);
    assert_false(c.overlap);
    /* Close enough: nothing more to measure. */
    const vla_crossover d = FIND(0.001, L(128, 590, 610, 1024), L(600, 600, 600, 600), L(128, 590, 610, 1024));
    assert_int_equal(d.state, VLA_CROSSOVER_FOUND);
    assert_int_equal(d.next, 0);
}

static void test_below_range(void **state)
{
    (void)state;
    const vla_crossover c = FIND(0.01, L(128, 256), L(1, 2), L(2, 8));
    assert_int_equal(c.state, VLA_CROSSOVER_BELOW_RANGE);
    assert_true(isnan(c.lo));
    assert_int_equal((int64_t)c.hi, 128);
    assert_int_equal(c.next, 0);
    const vla_crossover one = FIND(0.01, L(128), L(1), L(2));
    assert_int_equal(one.state, VLA_CROSSOVER_BELOW_RANGE);
}

static void test_several(void **state)
{
    (void)state;
    /* loss, win, loss, win: the last change counts. */
    const vla_crossover c = FIND(0.01, L(64, 128, 256, 512), L(2, 1, 2, 1), L(1, 2, 1, 2));
    assert_int_equal(c.state, VLA_CROSSOVER_SEVERAL);
    assert_int_equal(c.changes, 3);
    assert_int_equal((int64_t)c.lo, 256);
    assert_int_equal((int64_t)c.hi, 512);
    /* loss, win, loss: no size from which A stays below. */
    const vla_crossover d = FIND(0.01, L(64, 128, 256), L(2, 1, 2), L(1, 2, 1));
    assert_int_equal(d.state, VLA_CROSSOVER_SEVERAL);
    assert_true(isnan(d.lo) && isnan(d.hi));
}

static void test_ties_and_touching(void **state)
{
    (void)state;
    /* Equal at 256 is "at or below". */
    const vla_crossover c = FIND(0, L(128, 256, 512), L(2, 2, 2), L(1, 2, 4));
    assert_int_equal(c.state, VLA_CROSSOVER_FOUND);
    assert_int_equal((int64_t)c.lo, 128);
    assert_int_equal((int64_t)c.hi, 256);
    assert_true(fabs(c.estimate - 256) < 1e-9);
    /* Identical curves. */
    const vla_crossover same = FIND(0.01, L(128, 256), L(1, 2), L(1, 2));
    assert_int_equal(same.state, VLA_CROSSOVER_BELOW_RANGE);
    /* A below, touching at 256 within noise, below again: no extra crossing. */
    const vla_crossover touch = FIND(0.05, L(128, 256, 512), L(1, 2.01, 3), L(2, 2, 6));
    assert_int_equal(touch.state, VLA_CROSSOVER_BELOW_RANGE);
    assert_int_equal(touch.changes, 0);
    /* Within noise right after a clear loss: the medians decide, and overlap says how sure that is. */
    const vla_crossover near = FIND(0.05, L(128, 256, 512), L(4, 4.1, 4), L(2, 4, 8));
    assert_int_equal(near.state, VLA_CROSSOVER_FOUND);
    assert_int_equal((int64_t)near.lo, 256);
    assert_int_equal((int64_t)near.hi, 512);
    assert_true(near.overlap);
    assert_true(near.ci_lo < 256 && near.ci_hi > 256);
}

static void test_missing(void **state)
{
    (void)state;
    /* Failed rows are unknown: inside the bracket they only widen it. */
    const vla_crossover c = FIND(0.01, L(128, 256, 512, 1024), L(2, GONE, 2, 2), L(1, 1.5, 3, 4));
    assert_int_equal(c.state, VLA_CROSSOVER_FOUND);
    assert_int_equal((int64_t)c.lo, 128);
    assert_int_equal((int64_t)c.hi, 512);
    assert_int_equal(c.unknown, 1);
    assert_int_equal(c.next, 0); /* sqrt(128 * 512) = 256 is the row that failed */
    /* Above it they break "stays". */
    const vla_crossover d = FIND(0.01, L(128, 256, 512, 1024), L(2, 1, 1, 1), L(1, 2, GONE, 2));
    assert_int_equal(d.state, VLA_CROSSOVER_UNKNOWN);
    assert_int_equal((int64_t)d.lo, 128);
    assert_int_equal((int64_t)d.hi, 1024);
    /* Beyond the last known row they bound the range and are no win. */
    const vla_crossover e = FIND(0.01, L(128, 256, 512), L(2, 4, 5), L(1, 2, GONE));
    assert_int_equal(e.state, VLA_CROSSOVER_NONE);
    assert_int_equal(e.x_max, 256);
    const vla_crossover f = FIND(0.01, L(128, 256), L(GONE, 1), L(1, GONE));
    assert_int_equal(f.state, VLA_CROSSOVER_UNKNOWN);
    assert_int_equal(f.common, 0);
    const vla_crossover nan = FIND(0.01, L(128, 256), L(NAN, 1), L(1, 2));
    assert_int_equal(nan.common, 1);
}

static void test_unsorted_and_unpaired(void **state)
{
    (void)state;
    const vla_point a[] = {point(1024, 3, 0), point(128, 3, 0), point(512, 3, 0), point(512, 9, 0), point(300, 1, 0)};
    const vla_point b[] = {point(512, 6, 0), point(1024, 12, 0), point(128, 1, 0), point(512, GONE, 0)};
    const vla_curve ca = {a, 5}, cb = {b, 4}, none = {NULL, 0};
    vla_crossover c;
    vla_error error = {0};
    assert_int_equal(vla_crossover_find(&ca, &cb, 0.05, 0, NULL, &c, &error), VLA_OK);
    /* The later a at 512 counts (9 > 6), the failed repeat of b does not replace its known row, 300 has no partner. */
    assert_int_equal(c.state, VLA_CROSSOVER_FOUND);
    assert_int_equal((int64_t)c.lo, 512);
    assert_int_equal((int64_t)c.hi, 1024);
    assert_int_equal(c.common, 3);
    assert_int_equal(vla_crossover_find(&none, &none, 0.05, 10, NULL, &c, &error), VLA_OK);
    assert_int_equal(c.state, VLA_CROSSOVER_UNKNOWN);
}

/* Bisection by measuring: a = x^1, b = x^2/c crosses at c; every step must narrow and it must end. */
static void test_bisection(void **state)
{
    (void)state;
    const double truth = 777;
    double x[MOST] = {64, 4096}, a[MOST], b[MOST];
    int n = 2, steps = 0;
    vla_crossover c;
    for (;;) {
        for (int i = 0; i < n; i++) a[i] = x[i], b[i] = x[i] * x[i] / truth;
        c = find(x, a, b, n, 0);
        if (!c.next) break;
        x[n++] = (double)c.next;
        assert_true(++steps < 12);
    }
    assert_int_equal(c.state, VLA_CROSSOVER_FOUND);
    assert_true(c.lo < truth && truth <= c.hi && c.hi / c.lo <= 1.05);
    assert_true(fabs(c.estimate - truth) < 1);
    assert_true(fabs(c.slope_a - 1) < 1e-6 && fabs(c.slope_b - 2) < 1e-6);
}

static void test_fit(void **state)
{
    (void)state;
    vla_point p[8];
    for (int i = 0; i < 8; i++) {
        const double x = 64 * pow(2, i);
        p[i] = point(x, 3e-6 * pow(x, 1.5) * (1 + 0.01 * (i % 2 ? 1 : -1)), 0.01);
    }
    const vla_curve curve = {p, 8};
    vla_rng rng = vla_rng_seed(3, 0);
    vla_fit fit;
    assert_true(vla_fit_curve(&curve, 0, 500, &rng, &fit, NULL));
    assert_int_equal(fit.n, 8);
    assert_true(fabs(fit.power.exponent - 1.5) < 0.01);
    assert_true(fit.exponent_lo < 1.5 && fit.exponent_hi > 1.5 && fit.exponent_hi - fit.exponent_lo < 0.05);
    const vla_curve one = {p, 1};
    assert_false(vla_fit_curve(&one, 0, 0, NULL, &fit, NULL));
    vla_power power;
    assert_false(vla_power_fit((const double[]){5, 5}, (const double[]){1, 2}, 2, &power));
    assert_true(isnan(vla_power_meet(&(vla_power){2, 1, 0}, &(vla_power){1, 1, 0})));
}

/* The latency table the 43,000 of the literature was extrapolated from, by its last 4, 3 and 2 points. */
static void test_published_table(void **state)
{
    (void)state;
    const double x[] = {64, 128, 256, 512, 1024, 2048, 4096};
    const double softmax[] = {0.4, 0.4, 0.4, 0.4, 1.2, 4.3, 16.6}, vla[] = {4.7, 5.0, 9.0, 15.3, 28.2, 55.6, 113.9};
    const double expected[] = {43401, 36073, 33675};
    vla_point a[7], b[7];
    for (int i = 0; i < 7; i++) {
        a[i] = (vla_point){.x = (int64_t)x[i], .known = true, .time = {.value = vla[i], .lo = NAN, .hi = NAN}};
        b[i] = (vla_point){.x = (int64_t)x[i], .known = true, .time = {.value = softmax[i], .lo = NAN, .hi = NAN}};
    }
    const vla_curve ca = {a, 7}, cb = {b, 7};
    for (int last = 4; last >= 2; last--) {
        vla_fit fa, fb;
        vla_rng rng = vla_rng_seed(1, 0);
        assert_true(vla_fit_curve(&ca, last, 100, &rng, &fa, NULL));
        assert_true(vla_fit_curve(&cb, last, 100, &rng, &fb, NULL));
        assert_int_equal(llround(vla_power_meet(&fa.power, &fb.power)), (long long)expected[4 - last]);
        if (last == 2) assert_true(isnan(fa.exponent_lo)); /* two bare points say nothing of their spread */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),      cmocka_unit_test(test_one),
        cmocka_unit_test(test_several),   cmocka_unit_test(test_below_range),
        cmocka_unit_test(test_missing),   cmocka_unit_test(test_ties_and_touching),
        cmocka_unit_test(test_bisection), cmocka_unit_test(test_unsorted_and_unpaired),
        cmocka_unit_test(test_fit),       cmocka_unit_test(test_published_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
