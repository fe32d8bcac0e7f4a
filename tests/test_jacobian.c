/* Jacobians, their products and their traces: closed forms against LAPACK, and against the code that runs. */
#include "lib/analysis/jacobian.h"
#include "lib/analysis/spectral.h"
#include "lib/analysis/stepper.h"
#include "lib/analysis/trace.h"
#include "lib/op/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void two_by_two(void **state)
{
    (void)state;
    const double k[2] = {1, 0}, a[2] = {0.5, sqrt(3.0) / 2};
    const vla_jacobian j = vla_jacobian_of(2, 1, a, k);
    assert_true(fabs(vla_jacobian_norm(&j) - 1.36602540378443865) <= 1e-15);
    assert_true(vla_jacobian_radius(&j) == 1);
}

/* g I - k k^T at g = 1/2: both singular values of the plane are 1/2, where p^2 + 4 g (g - c) would cancel. */
static void closed_form_does_not_cancel(void **state)
{
    (void)state;
    double k[7], J[49], norm = NAN;
    vla_spectral *s = NULL;
    assert_int_equal(vla_spectral_create(&s, 7, NULL, NULL), VLA_OK);
    for (int i = 0; i < 7; i++) k[i] = (i + 1) / sqrt(140.0);
    for (double off = 0; off < 1e-6; off = 10 * off + 1e-10) {
        const vla_jacobian j = vla_jacobian_of(7, 0.5 + off, k, k);
        vla_jacobian_dense(&j, J);
        assert_int_equal(vla_spectral_norm(s, J, 7, &norm, NULL), VLA_OK);
        assert_true(fabs(norm - vla_jacobian_norm(&j)) <= 1e-14);
    }
    vla_spectral_destroy(s);
}

static void closed_form_of_every_shape(void **state)
{
    (void)state;
    vla_rng rng = vla_rng_seed(5, 0);
    for (int64_t d = 1; d <= 9; d++) {
        vla_spectral *s = NULL;
        assert_int_equal(vla_spectral_create(&s, d, NULL, NULL), VLA_OK);
        for (int trial = 0; trial < 200; trial++) {
            double a[9], k[9], J[81], norm = NAN, radius = NAN;
            for (int64_t i = 0; i < d; i++) {
                k[i] = vla_rng_normal(&rng);
                a[i] = trial % 4 == 0 ? 2 * k[i] : trial % 7 == 0 ? 0 : vla_rng_normal(&rng);
            }
            const vla_jacobian j = vla_jacobian_of(d, trial % 3 == 0 ? 1 : vla_rng_uniform(&rng), a, k);
            vla_jacobian_dense(&j, J);
            assert_int_equal(vla_spectral_norm(s, J, d, &norm, NULL), VLA_OK);
            assert_int_equal(vla_spectral_radius(s, J, d, &radius, NULL), VLA_OK);
            assert_true(fabs(norm - vla_jacobian_norm(&j)) <= 1e-13 * fmax(1, norm));
            assert_true(fabs(radius - vla_jacobian_radius(&j)) <= 1e-9 * fmax(1, radius)); /* may be defective */
        }
        vla_spectral_destroy(s);
    }
}

typedef struct rows {
    int64_t count, last;
    double metric_max, sigma_worst;
} rows;

static void count_row(void *context, const vla_trace_row *row)
{
    rows *r = context;
    r->count++;
    r->last = row->t;
    r->metric_max = fmax(r->metric_max, row->metric_norm);
    r->sigma_worst = fmax(r->sigma_worst, fabs(row->sigma - row->sigma_closed));
}

static vla_trace_summary trace_of(vla_op op, vla_source_kind kind, int64_t T, int64_t d, bool no_normalise, rows *r)
{
    vla_problem p = vla_problem_default(op, 1, 1, T, d);
    p.features = vla_source_features(kind);
    p.no_normalise = no_normalise;
    const vla_source source = {.kind = kind, .heads = 1, .dk = d, .dv = d, .features = p.features, .seed = 3};
    const vla_trace_options o = {
        .problem = &p, .source = &source, .every = 1, .dense = true, .row = count_row, .context = r};
    vla_trace_summary summary;
    vla_error error = {VLA_OK, ""};
    if (vla_trace_run(&o, &summary, &error)) fail_msg("%s", error.message);
    return summary;
}

static void every_operator_and_source_agrees_with_lapack(void **state)
{
    (void)state;
    const vla_op ops[] = {VLA_LINEAR, VLA_DELTA, VLA_DECAY, VLA_VLA, VLA_RLS};
    for (int i = 0; i < 5; i++)
        for (int kind = 0; kind < VLA_SOURCE_TENSORS; kind++) {
            rows r = {0, 0, 0, 0};
            const vla_trace_summary s = trace_of(ops[i], (vla_source_kind)kind, 150, 12, false, &r);
            assert_int_equal(r.count, 150);
            assert_true(s.closed_gap <= 1e-12);
            assert_true(s.bound_margin >= -1e-9); /* no product above its bound */
            if (vla_op_has_A(ops[i])) assert_true(fabs(s.metric_max - 1) <= 1e-9);
            if (ops[i] == VLA_VLA) assert_true(fabs(s.radius_max - 1) <= 1e-9);
        }
}

static void isotropic_norm_is_one(void **state)
{
    (void)state;
    rows r = {0, 0, 0, 0};
    const vla_trace_summary s = trace_of(VLA_VLA, VLA_SOURCE_ISOTROPIC, 200, 16, false, &r);
    assert_true(fabs(s.sigma_max - 1) <= 1e-12 && fabs(s.sigma_min_norm - 1) <= 1e-12);
    assert_int_equal(s.singular_at, 1); /* a projection */
    const vla_trace_summary paper = trace_of(VLA_VLA, VLA_SOURCE_PAPER, 200, 16, false, &r);
    assert_true(paper.sigma_max > 1.01);
}

static void unnormalised_norm_grows_like_the_key(void **state)
{
    (void)state;
    vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 1, 8);
    p.no_normalise = true;
    p.features = VLA_IDENTITY;
    p.lambda0 = 10;
    vla_stepper st;
    const double k[8] = {3, 0, 4}, v[8] = {0}, u[8] = {0};
    assert_int_equal(vla_stepper_create(&st, &p, NULL), VLA_OK);
    vla_stepper_step(&st, k, v, u, NULL, NULL);
    assert_true(fabs(vla_jacobian_norm(&st.jacobian) - 1.5) <= 1e-14); /* |k|^2/lambda0 - 1 = 25/10 - 1 */
    vla_stepper_destroy(&st);
    rows r = {0, 0, 0, 0};
    const vla_trace_summary s = trace_of(VLA_VLA, VLA_SOURCE_PAPER, 400, 16, true, &r);
    assert_true(s.closed_gap <= 1e-12);
    assert_true(s.log_product > 100 && isfinite(s.log_product)); /* far beyond 1e32 */
}

static void width_one_and_zero_keys(void **state)
{
    (void)state;
    rows r = {0, 0, 0, 0};
    const vla_trace_summary s = trace_of(VLA_VLA, VLA_SOURCE_PAPER, 10, 1, false, &r);
    assert_true(fabs(s.sigma_max) <= 1e-15); /* a = k = 1: |1 - c| = 0 */
    assert_true(s.log_product == -INFINITY);
    const double a[1] = {0.75}, one[1] = {1};
    const vla_jacobian j = vla_jacobian_of(1, 1, a, one);
    assert_true(vla_jacobian_norm(&j) == 0.25);
    vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 1, 3);
    p.features = VLA_IDENTITY;
    vla_stepper st;
    const double zero[3] = {0}, v[3] = {1, 2, 3};
    assert_int_equal(vla_stepper_create(&st, &p, NULL), VLA_OK);
    vla_stepper_step(&st, zero, v, v, NULL, NULL);
    assert_true(vla_jacobian_norm(&st.jacobian) == 1);
    assert_true(vla_frobenius(st.S, 9) == 0);
    vla_stepper_destroy(&st);
}

static void lengths_zero_and_one(void **state)
{
    (void)state;
    rows r = {0, 0, 0, 0};
    vla_trace_summary s = trace_of(VLA_VLA, VLA_SOURCE_PAPER, 0, 4, false, &r);
    assert_int_equal(s.steps, 0);
    assert_int_equal(r.count, 0);
    assert_true(isnan(s.log_product));
    s = trace_of(VLA_VLA, VLA_SOURCE_PAPER, 1, 4, false, &r);
    assert_int_equal(s.steps, 1);
    assert_int_equal(r.count, 1);
    assert_true(fabs(s.log_product - log(s.sigma_max)) <= 1e-12);
}

static void bad_input_is_named(void **state)
{
    (void)state;
    double k[12], v[12], u[12];
    for (int i = 0; i < 12; i++) k[i] = v[i] = u[i] = 1 + i;
    v[7] = NAN;
    const vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 4, 3);
    vla_source source = {.kind = VLA_SOURCE_TENSORS, .heads = 1, .dk = 3, .dv = 3, .T = 4, .k = k, .v = v, .u = u};
    const vla_trace_options o = {.problem = &p, .source = &source, .dense = true};
    vla_trace_summary s;
    vla_error error = {VLA_OK, ""};
    assert_int_equal(vla_trace_run(&o, &s, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "v holds NaN at head 0, token 2"));
    v[7] = 1;
    k[2] = INFINITY;
    assert_int_equal(vla_trace_run(&o, &s, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "k holds an infinity at head 0, token 0"));
    k[2] = 1;
    source.T = 3;
    assert_int_equal(vla_trace_run(&o, &s, &error), VLA_ERR_ARGUMENT);
    const vla_problem softmax = vla_problem_default(VLA_SOFTMAX, 1, 1, 3, 3);
    const vla_trace_options refused = {.problem = &softmax, .source = &source, .dense = true};
    assert_int_equal(vla_trace_run(&refused, &s, &error), VLA_ERR_UNSUPPORTED);
}

static void products_keep_their_scale(void **state)
{
    (void)state;
    vla_product product;
    assert_int_equal(vla_product_create(&product, 2, true, NULL), VLA_OK);
    const double a[2] = {0, -1e8}, k[2] = {0, 1}, shrink[2] = {0, 1 - 1e-8}, none[2] = {0};
    const vla_jacobian large = vla_jacobian_of(2, 1, a, k), small = vla_jacobian_of(2, 1, shrink, k);
    const vla_jacobian tiny = vla_jacobian_of(2, 1e-8, none, k);
    for (int i = 0; i < 100; i++) vla_product_multiply(&product, &large); /* diag(1, 1 + 1e8)^100 */
    assert_true(fabs(product.log_scale - 100 * log1p(1e8)) <= 1e-9);
    for (int i = 0; i < 200; i++) vla_product_multiply(&product, &tiny); /* 1e-1600 */
    assert_true(fabs(product.log_scale - 100 * log1p(1e8) + 200 * log(1e8)) <= 1e-8);
    assert_true(fabs(product.inverse_log_scale - 200 * log(1e8)) <= 1e-8); /* smallest: 1e-1600, axis 1 */
    assert_int_equal(product.singular_at, 0);
    vla_product_multiply(&product, &small);
    const double unit[2] = {0, 1};
    const vla_jacobian projection = vla_jacobian_of(2, 1, unit, unit);
    vla_product_multiply(&product, &projection);
    assert_int_equal(product.singular_at, 302);
    vla_product_reset(&product);
    const double bad[2] = {(double)NAN, 0};
    const vla_jacobian broken = vla_jacobian_of(2, 1, bad, k);
    vla_product_multiply(&product, &broken); /* not a number, and not "contracted to nothing" */
    assert_true(isnan(product.log_scale) && !product.zero);
    vla_product_destroy(&product);
}

static void smallest_singular_value_through_inverses(void **state)
{
    (void)state;
    vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 12, 5);
    const vla_source source = {
        .kind = VLA_SOURCE_PAPER, .heads = 1, .dk = 5, .dv = 5, .features = p.features, .seed = 9};
    const vla_trace_options o = {.problem = &p, .source = &source, .every = 12, .dense = true};
    vla_trace_summary summary;
    assert_int_equal(vla_trace_run(&o, &summary, NULL), VLA_OK);
    /* The same product, dense and without scaling. */
    vla_stepper st;
    vla_stream stream;
    double P[25] = {0}, J[25], next[25], k[5], v[5], u[5], b, g, sigma[5];
    for (int i = 0; i < 5; i++) P[6 * i] = 1;
    assert_int_equal(vla_stepper_create(&st, &p, NULL), VLA_OK);
    assert_int_equal(vla_stream_create(&stream, &source, 0, NULL), VLA_OK);
    for (int t = 0; t < 12; t++) {
        vla_stream_next(&stream, k, v, u, &b, &g);
        vla_stepper_step(&st, k, v, u, NULL, NULL);
        vla_jacobian_dense(&st.jacobian, J);
        memset(next, 0, sizeof next);
        for (int i = 0; i < 25; i++)
            for (int m = 0; m < 5; m++) next[i] += J[i / 5 * 5 + m] * P[m * 5 + i % 5];
        memcpy(P, next, sizeof P);
    }
    vla_spectral *s = NULL;
    assert_int_equal(vla_spectral_create(&s, 5, NULL, NULL), VLA_OK);
    assert_int_equal(vla_singular_values(s, P, 5, 5, sigma, NULL), VLA_OK);
    assert_true(fabs(summary.log_product - log(sigma[0])) <= 1e-10);
    if (sigma[4] > 1e-10 * sigma[0]) assert_true(fabs(summary.log_sigma_min - log(sigma[4])) <= 1e-4);
    assert_int_equal(summary.singular_at, 0);
    vla_spectral_destroy(s);
    vla_stream_destroy(&stream);
    vla_stepper_destroy(&st);
}

/* rls: J_t .. J_1 = lambda0 P_t. */
static void rls_product_telescopes(void **state)
{
    (void)state;
    vla_problem p = vla_problem_default(VLA_RLS, 1, 1, 1, 6);
    const vla_source source = {
        .kind = VLA_SOURCE_PAPER, .heads = 1, .dk = 6, .dv = 6, .features = p.features, .seed = 2};
    vla_stepper st;
    vla_stream stream;
    vla_product product;
    double k[6], v[6], u[6], b, g;
    assert_int_equal(vla_stepper_create(&st, &p, NULL), VLA_OK);
    assert_int_equal(vla_stream_create(&stream, &source, 0, NULL), VLA_OK);
    assert_int_equal(vla_product_create(&product, 6, false, NULL), VLA_OK);
    for (int t = 0; t < 50; t++) {
        vla_stream_next(&stream, k, v, u, &b, &g);
        vla_stepper_step(&st, k, v, u, NULL, NULL);
        vla_product_multiply(&product, &st.jacobian);
    }
    for (int i = 0; i < 36; i++)
        assert_true(fabs(exp(product.log_scale) * product.P[i] - p.lambda0 * st.A[i]) <= 1e-12);
    vla_product_destroy(&product);
    vla_stream_destroy(&stream);
    vla_stepper_destroy(&st);
}

static void threads_do_not_change_results(void **state)
{
    (void)state;
    const vla_problem p = vla_problem_default(VLA_VLA, 1, 3, 130, 8);
    const vla_source source = {
        .kind = VLA_SOURCE_PAPER, .heads = 3, .dk = 8, .dv = 8, .features = p.features, .seed = 4};
    vla_pool *pool = NULL;
    vla_trace_summary one[3], two[3];
    memset(one, 0, sizeof one), memset(two, 0, sizeof two);
    vla_trace_options o = {.problem = &p, .source = &source, .dense = true};
    assert_int_equal(vla_trace_run(&o, one, NULL), VLA_OK);
    assert_int_equal(vla_pool_create(&pool, 2, NULL), VLA_OK);
    o.pool = pool;
    assert_int_equal(vla_trace_run(&o, two, NULL), VLA_OK);
    assert_memory_equal(one, two, sizeof one);
    vla_pool_destroy(pool);
}

static void bounds_and_rates(void **state)
{
    (void)state;
    assert_true(fabs(vla_contraction_rate(2) + log(2.0)) <= 1e-14);       /* (psi(1/2) - psi(1))/2 = -log 2 */
    assert_true(fabs(vla_contraction_rate(3) - (log(2.0) - 1)) <= 1e-14); /* (psi(1) - psi(3/2))/2 */
    assert_true(fabs(vla_contraction_rate(64) * 128 + 1) <= 0.03);        /* about -1/(2d) */
    assert_true(vla_jacobian_norm_bound(8, 0.1, 0) == 1);
    assert_true(vla_jacobian_norm_bound(8, 0.1, 1000000000) < 0.5 * (1 + sqrt(5.0)));
    assert_true(vla_product_log_bound(1, 0.1, 1000) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_by_two),
        cmocka_unit_test(closed_form_of_every_shape),
        cmocka_unit_test(closed_form_does_not_cancel),
        cmocka_unit_test(every_operator_and_source_agrees_with_lapack),
        cmocka_unit_test(isotropic_norm_is_one),
        cmocka_unit_test(unnormalised_norm_grows_like_the_key),
        cmocka_unit_test(width_one_and_zero_keys),
        cmocka_unit_test(lengths_zero_and_one),
        cmocka_unit_test(bad_input_is_named),
        cmocka_unit_test(products_keep_their_scale),
        cmocka_unit_test(smallest_singular_value_through_inverses),
        cmocka_unit_test(rls_product_telescopes),
        cmocka_unit_test(threads_do_not_change_results),
        cmocka_unit_test(bounds_and_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
