/* Statistics, the stopping rule and the sampler on known answers. */
#include "lib/base/clock.h"
#include "lib/measure/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static vla_summary summary_of(const double *x, int64_t n)
{
    vla_summary s;
    vla_error error = {0};
    assert_int_equal(vla_summarise(x, n, &s, &error), VLA_OK);
    return s;
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static void test_small(void **state)
{
    (void)state;
    vla_summary s = summary_of(NULL, 0);
    assert_int_equal(s.n, 0);
    assert_true(isnan(s.median) && isnan(s.min) && isnan(s.noise));
    s = summary_of((const double[]){3}, 1);
    near(s.median, 3);
    near(s.q1, 3);
    near(s.q3, 3);
    near(s.mad, 0);
    near(s.median_lo, 3);
    assert_true(isnan(s.noise));
    s = summary_of((const double[]){4, 2}, 2);
    near(s.median, 3);
    near(s.q1, 2.5);
    near(s.q3, 3.5);
    near(s.mad, 1);
    assert_true(isnan(s.noise));
    s = summary_of((const double[]){1, 2, 3, 4}, 4);
    assert_true(isnan(s.noise));
}

static void test_known(void **state)
{
    (void)state;
    /* The last element is the smallest; type-7 quartiles of 1..9 are 3, 5, 7; MAD is 2. */
    vla_summary s = summary_of((const double[]){5, 9, 2, 8, 7, 4, 3, 6, 1}, 9);
    near(s.min, 1);
    near(s.q1, 3);
    near(s.median, 5);
    near(s.q3, 7);
    near(s.max, 9);
    near(s.mad, 2);
    near(s.noise, 1.2533 * 1.4826 * 2 / (3 * 5.0));
    /* Ranks floor(4.5 - 2.94) = 1 from either end. */
    near(s.median_lo, 2);
    near(s.median_hi, 8);
    s = summary_of((const double[]){2, 2, 2, 2, 2, 2, 2, 50}, 8);
    near(s.median, 2);
    near(s.mad, 0);
    near(s.noise, 0);
    const double with_one_far[] = {2, 2, 2, 2, 2, 2, 2, 50};
    assert_int_equal(vla_outliers(with_one_far, 8, &s), 1);
}

static void test_odd_samples(void **state)
{
    (void)state;
    vla_summary s = summary_of((const double[]){NAN, 1, INFINITY, 2, 3}, 5);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.invalid, 2);
    near(s.median, 2);
    assert_true(isnan(s.noise));
    s = summary_of((const double[]){NAN, NAN}, 2);
    assert_int_equal(s.n, 0);
    assert_true(isnan(s.median));
    s = summary_of((const double[]){0, 0, 0, 0, 0, 0}, 6); /* zero times: noise relative to nothing is unknown */
    near(s.median, 0);
    assert_true(isnan(s.noise));
}

static void test_resample(void **state)
{
    (void)state;
    vla_rng rng = vla_rng_seed(1, 0);
    const double x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const vla_median raw = {.value = 5, .lo = NAN, .hi = NAN, .samples = x, .n = 9};
    const vla_median interval = {.value = 10, .lo = 9, .hi = 11}, bare = {.value = 7, .lo = NAN, .hi = NAN};
    double sum = 0, sum2 = 0, spread = 0;
    enum { N = 4000 };
    for (int i = 0; i < N; i++) {
        const double r = vla_median_resample(&raw, &rng), g = vla_median_resample(&interval, &rng);
        assert_true(r >= 1 && r <= 9);
        sum += r;
        sum2 += g;
        spread += (g - 10) * (g - 10);
        near(vla_median_resample(&bare, &rng), 7);
    }
    assert_true(fabs(sum / N - 5) < 0.15);
    assert_true(fabs(sum2 / N - 10) < 0.05);
    assert_true(fabs(sqrt(spread / N) - 1 / 1.96) < 0.03);
}

static void test_overlap(void **state)
{
    (void)state;
    const vla_median a = {.value = 2, .lo = 1, .hi = 3}, b = {.value = 4, .lo = 3, .hi = 5};
    const vla_median c = {.value = 4, .lo = 3.1, .hi = 5}, d = {.value = 2.5, .lo = NAN, .hi = NAN};
    assert_true(vla_medians_overlap(&a, &b));
    assert_false(vla_medians_overlap(&a, &c));
    assert_true(vla_medians_overlap(&a, &d));
    assert_false(vla_medians_overlap(&d, &b));
}

static void test_stop(void **state)
{
    (void)state;
    const vla_stop_rule rule = {
        .min_samples = 10, .max_samples = 100, .noise = 0.02, .min_time = 0.05, .time_limit = 1};
    assert_int_equal(vla_stop_decide(&rule, 0, NAN, 0, 100), VLA_GO_ON); /* never without a sample */
    assert_int_equal(vla_stop_decide(&rule, 9, 0, 0.5, 0.5), VLA_GO_ON);
    assert_int_equal(vla_stop_decide(&rule, 10, 0.02, 0.5, 0.5), VLA_STOP_NOISE);
    assert_int_equal(vla_stop_decide(&rule, 10, 0.02, 0.01, 0.5), VLA_GO_ON); /* too little timed yet */
    assert_int_equal(vla_stop_decide(&rule, 10, 0.03, 0.5, 0.5), VLA_GO_ON);
    assert_int_equal(vla_stop_decide(&rule, 10, NAN, 0.5, 0.5), VLA_GO_ON);
    assert_int_equal(vla_stop_decide(&rule, 100, NAN, 0.5, 0.5), VLA_STOP_SAMPLES);
    assert_int_equal(vla_stop_decide(&rule, 3, NAN, 1, 1), VLA_STOP_TIME);
    assert_int_equal(vla_stop_decide(&rule, 3, NAN, 1, NAN), VLA_STOP_TIME); /* a broken clock ends too */
    assert_string_equal(vla_stop_name(VLA_STOP_NOISE), "noise");
}

/* A subject on a clock of its own: each iteration takes `cost` seconds, plus a jitter that grows every call. */
static double fake_time;
static double fake_clock(void)
{
    return fake_time;
}

typedef struct fake {
    double cost, jitter;
    int64_t iterations, resets, runs;
} fake;

static vla_status fake_reset(void *context, vla_error *error)
{
    (void)error;
    fake *f = context;
    f->resets++;
    fake_time += 5; /* must not be timed */
    return VLA_OK;
}

static vla_status fake_run(void *context, int64_t iterations, vla_error *error)
{
    (void)error;
    fake *f = context;
    f->runs++;
    f->iterations += iterations;
    const double sign = f->runs % 3 == 0 ? 1 : f->runs % 3 == 1 ? -1 : 0;
    fake_time += (double)iterations * f->cost * (1 + f->jitter * sign);
    return VLA_OK;
}

static vla_stop sample_all(fake *f, const vla_stop_rule *rule, vla_sampler *sampler)
{
    const vla_subject subject = {f, fake_reset, fake_run, fake_clock, NULL};
    vla_error error = {0};
    assert_int_equal(vla_sampler_start(sampler, &subject, rule, 1e-3, &error), VLA_OK);
    for (int i = 0; sampler->stop == VLA_GO_ON && i < 100000; i++)
        assert_int_equal(vla_sampler_step(sampler, &error), VLA_OK);
    return sampler->stop;
}

static void test_sampler(void **state)
{
    (void)state;
    vla_stop_rule rule = {.min_samples = 10, .max_samples = 50, .noise = 0.02, .min_time = 0, .time_limit = 1e9};
    vla_sampler sampler;
    fake fast = {.cost = 1e-6};
    assert_int_equal(sample_all(&fast, &rule, &sampler), VLA_STOP_NOISE);
    assert_int_equal(sampler.n, 10);
    assert_int_equal(sampler.iterations, 1024); /* the first power of two past the floor of 1 ms */
    for (int i = 0; i < 10; i++) near(sampler.samples[i] * 1e6, 1);
    assert_int_equal(fast.resets, fast.runs);
    vla_sampler_free(&sampler);

    fake noisy = {.cost = 1, .jitter = 0.5};
    assert_int_equal(sample_all(&noisy, &rule, &sampler), VLA_STOP_SAMPLES);
    assert_int_equal(sampler.n, 50);
    assert_int_equal(sampler.iterations, 1);
    vla_sampler_free(&sampler);

    rule.time_limit = 12; /* a second a run and five a reset: two samples */
    fake slow = {.cost = 1};
    assert_int_equal(sample_all(&slow, &rule, &sampler), VLA_STOP_TIME);
    assert_int_equal(sampler.n, 2);
    vla_sampler_free(&sampler);

    fake frozen = {.cost = 0}; /* a clock that stands still */
    rule.time_limit = 0;
    assert_int_equal(sample_all(&frozen, &rule, &sampler), VLA_STOP_TIME);
    vla_sampler_free(&sampler);
}

static void test_clock(void **state)
{
    (void)state;
    const double a = vla_now(), b = vla_now();
    assert_true(b >= a);
    assert_true(vla_clock_floor() >= 1e-4 && vla_clock_floor() <= 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),    cmocka_unit_test(test_known),   cmocka_unit_test(test_odd_samples),
        cmocka_unit_test(test_resample), cmocka_unit_test(test_overlap), cmocka_unit_test(test_stop),
        cmocka_unit_test(test_sampler),  cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
