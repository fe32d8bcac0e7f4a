/* The adversary: what it reaches, that bounds hold above it, and that its raw inputs replay to the same number. */
#include "lib/analysis/adversary.h"
#include "lib/analysis/jacobian.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static vla_witness search(vla_goal goal, int64_t T, int64_t d, vla_features features, int64_t trials)
{
    vla_problem p = vla_problem_default(VLA_VLA, 1, 1, T, d);
    p.features = features;
    const vla_adversary_options o = {.goal = goal, .problem = &p, .bound = 8, .trials = trials, .seed = 1};
    vla_witness w;
    vla_error error = {VLA_OK, ""};
    if (vla_adversary_search(&o, &w, &error)) fail_msg("%s", error.message);
    for (int64_t i = 0; i < T * d; i++) assert_true(fabs(w.k[i]) <= 8 && fabs(w.u[i]) <= 1);
    for (int64_t i = 0; i < T * d; i++) assert_true(fabs(w.v[i]) <= 1);
    return w;
}

static void one_jacobian_attains_its_bound(void **state)
{
    (void)state;
    for (int features = 0; features < 3; features++) {
        vla_witness w = search(VLA_GOAL_JACOBIAN, 500, 8, (vla_features)features, 5);
        assert_true(w.value <= w.bound_value + 1e-12);
        assert_true(w.value >= w.bound_value - 1e-4);
        assert_true(w.value > w.random_value + 0.2);
        assert_true(fabs(w.summary.radius_max - 1) <= 1e-9);
        vla_witness_destroy(&w);
    }
}

static void product_exceeds_ten_thousand(void **state)
{
    (void)state;
    vla_witness w = search(VLA_GOAL_PRODUCT, 1680, 8, VLA_ELU1, 3);
    assert_true(w.value >= log(1e8));
    assert_true(w.value <= w.bound_value);
    assert_true(w.summary.bound_margin >= 0);
    assert_true(w.value > w.random_value);
    assert_true(w.summary.sigma_max <= 1.62);
    assert_true(fabs(w.summary.metric_max - 1) <= 1e-9);
    vla_witness_destroy(&w);
}

static void state_beats_the_square_root(void **state)
{
    (void)state;
    double log_norm[2];
    for (int i = 0; i < 2; i++) {
        vla_witness w = search(VLA_GOAL_STATE, i ? 1600 : 400, 4, VLA_ELU1, 2);
        assert_true(w.value > 2 * sqrt((double)w.T) && w.value > w.random_value);
        log_norm[i] = log(w.value);
        vla_witness_destroy(&w);
    }
    const double exponent = (log_norm[1] - log_norm[0]) / log(4.0);
    assert_true(exponent > 1.2 && exponent < 1.9); /* (d - 1)/2 = 1.5 as T grows */
}

static void isotropic_state_grows_like_the_square_root(void **state)
{
    (void)state;
    for (int features = 0; features < 3; features++) {
        vla_witness w = search(VLA_GOAL_ISOTROPIC, 2000, 5, (vla_features)features, 0);
        assert_true(w.value <= w.bound_value + 1e-9);
        assert_true(w.value >= 44.6); /* sqrt(2000) = 44.72 */
        assert_true(fabs(w.summary.sigma_max - 1) <= 1e-12);
        vla_witness_destroy(&w);
    }
}

static void witness_replays(void **state)
{
    (void)state;
    vla_witness w = search(VLA_GOAL_PRODUCT, 300, 4, VLA_IDENTITY, 0);
    vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 300, 4);
    p.features = VLA_IDENTITY;
    const vla_source source = vla_witness_source(&w);
    const vla_trace_options o = {.problem = &p, .source = &source, .every = 7, .dense = true};
    vla_trace_summary again;
    assert_int_equal(vla_trace_run(&o, &again, NULL), VLA_OK);
    assert_true(again.log_product == w.value); /* to the last bit */
    vla_witness_destroy(&w);
}

static void degenerate_sizes(void **state)
{
    (void)state;
    for (int goal = 0; goal < VLA_GOALS; goal++)
        for (int64_t d = 1; d <= 3; d++)
            for (int64_t T = 0; T <= 3; T++) {
                vla_witness w = search((vla_goal)goal, T, d, VLA_ELU1, 0);
                assert_int_equal(w.summary.steps, T);
                vla_witness_destroy(&w);
            }
}

static void refusals(void **state)
{
    (void)state;
    vla_problem p = vla_problem_default(VLA_DELTA, 1, 1, 10, 4);
    vla_adversary_options o = {.goal = VLA_GOAL_PRODUCT, .problem = &p, .bound = 8};
    vla_witness w;
    assert_int_equal(vla_adversary_search(&o, &w, NULL), VLA_ERR_UNSUPPORTED);
    p = vla_problem_default(VLA_VLA, 1, 1, 10, 4);
    o.bound = NAN;
    assert_int_equal(vla_adversary_search(&o, &w, NULL), VLA_ERR_ARGUMENT);
}

static void feature_maps_are_inverted(void **state)
{
    (void)state;
    const double wanted[4] = {3, 0.5, 1e-3, 0};
    double raw[4];
    for (int features = 0; features < 3; features++) {
        vla_feature_inverse(raw, wanted, 4, (vla_features)features, 20);
        double y[4];
        for (int i = 0; i < 4; i++)
            y[i] = features == VLA_ELU1   ? raw[i] > 0 ? raw[i] + 1 : exp(raw[i])
                     : features == VLA_SILU ? raw[i] / (1 + exp(-raw[i]))
                                          : raw[i];
        for (int i = 0; i < 4; i++) assert_true(fabs(y[i] / y[0] * 3 - wanted[i]) <= 1e-8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_jacobian_attains_its_bound),
        cmocka_unit_test(product_exceeds_ten_thousand),
        cmocka_unit_test(state_beats_the_square_root),
        cmocka_unit_test(isotropic_state_grows_like_the_square_root),
        cmocka_unit_test(witness_replays),
        cmocka_unit_test(degenerate_sizes),
        cmocka_unit_test(refusals),
        cmocka_unit_test(feature_maps_are_inverted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
