/* Intervals, growth, drift and the objective on answers known by hand, and the judging of verdicts. */
#include "lib/analysis/claims.h"
#include "lib/analysis/drift.h"
#include "lib/analysis/growth.h"
#include "lib/analysis/objective.h"
#include "lib/analysis/spread.h"
#include "lib/report/report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void medians_and_intervals(void **state)
{
    (void)state;
    const double x[] = {5, NAN, 1, 3, INFINITY, 2, 4}, equal[] = {2, 2, 2};
    vla_interval in = vla_interval_of(x, 7);
    assert_int_equal(in.n, 5);
    assert_true(in.value == 3 && in.lo >= 1 && in.lo < 3 && in.hi > 3 && in.hi <= 5);
    in = vla_interval_of(equal, 3);
    assert_true(in.value == 2 && in.lo == 2 && in.hi == 2);
    in = vla_interval_of(x, 1);
    assert_true(in.value == 5 && isnan(in.lo) && isnan(in.hi));
    in = vla_interval_of(x + 1, 1);
    assert_true(isnan(in.value) && in.n == 0);
    in = vla_interval_of(NULL, 0);
    assert_true(isnan(in.value));
}

static void spreads(void **state)
{
    (void)state;
    const vla_summary_field mean = VLA_SUMMARY_FIELD(sigma_mean), product = VLA_SUMMARY_DECADES(log_product);
    vla_trace_summary s[3] = {{.sigma_mean = 2, .log_product = log(100)},
                              {.sigma_mean = 1, .log_product = NAN},
                              {.sigma_mean = 4, .log_product = log(1e6)}};
    vla_error error = {0};
    vla_spread spread;
    assert_int_equal(vla_spread_of(&spread, s, 3, mean, &error), VLA_OK);
    assert_true(spread.middle.value == 2 && spread.least == 1 && spread.most == 4);
    assert_int_equal(vla_spread_of(&spread, s, 3, product, &error), VLA_OK);
    assert_true(fabs(spread.middle.value - 4) <= 1e-12 && spread.middle.n == 2);
    assert_true(isnan(spread.least) && isnan(spread.most)); /* one head of three is unknown: so is the worst */
    assert_int_equal(vla_spread_of(&spread, s, 0, mean, &error), VLA_OK);
    assert_true(isnan(spread.middle.value) && isnan(spread.least) && isnan(spread.most));
}

static void slopes(void **state)
{
    (void)state;
    const double x[] = {1, 10, 100, 1000}, y[] = {7, 20, 2000, 200000}, bad[] = {1, 0, -1, NAN};
    assert_true(fabs(vla_log_slope(x, y, 4, 10) - 2) <= 1e-12);
    assert_true(isnan(vla_log_slope(x, y, 4, 1000)));
    assert_true(isnan(vla_log_slope(x, bad, 4, 1)));
}

static void checkpoints(void **state)
{
    (void)state;
    int64_t at[8];
    assert_int_equal(vla_checkpoints(10, 1000, 1, at, 8), 3);
    assert_true(at[0] == 10 && at[1] == 100 && at[2] == 1000);
    assert_int_equal(vla_checkpoints(100, 7, 2, at, 8), 1);
    assert_int_equal(at[0], 7);
    assert_int_equal(vla_checkpoints(100, 0, 2, at, 8), 0);
}

/* The state at checkpoints is that of the stepper, whatever the blocks; the residual that of the tokens after it. */
static void growth_follows_the_stepper(void **state)
{
    (void)state;
    enum { D = 5, T = 2500 };
    const vla_op ops[] = {VLA_VLA, VLA_DELTA};
    const int64_t at[] = {70, 2100, T};
    const vla_problem p = vla_problem_default(VLA_VLA, 1, 1, T, D);
    const vla_source source = {
        .kind = VLA_SOURCE_PAPER, .heads = 2, .dk = D, .dv = D, .features = p.features, .seed = 3};
    double norm[12], residual[12], k[D], v[D], u[D], b, g;
    vla_exec *exec = NULL;
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    const vla_growth_options o = {.ops = ops,
                                  .op_count = 2,
                                  .problem = &p,
                                  .source = &source,
                                  .at = at,
                                  .checkpoints = 3,
                                  .exec = exec,
                                  .form = VLA_BEST,
                                  .dtype = VLA_F64};
    vla_error error = {VLA_OK, ""};
    if (vla_growth_run(&o, norm, residual, &error)) fail_msg("%s", error.message);
    for (int op = 0; op < 2; op++) {
        vla_problem one = p;
        one.op = ops[op];
        vla_stepper st;
        vla_stream stream;
        assert_int_equal(vla_stepper_create(&st, &one, NULL), VLA_OK);
        assert_int_equal(vla_stream_create(&stream, &source, 1, NULL), VLA_OK);
        for (int t = 1; t <= T; t++) {
            vla_stream_next(&stream, k, v, u, &b, &g);
            vla_stepper_step(&st, k, v, u, NULL, NULL);
            for (int c = 0; c < 3; c++)
                if (t == at[c]) {
                    const double wanted = vla_frobenius(st.S, D * D), got = norm[(op * 2 + 1) * 3 + c];
                    assert_true(fabs(got - wanted) <= 1e-9 * wanted);
                    assert_true(residual[(op * 2 + 1) * 3 + c] > 0);
                }
        }
        vla_stream_destroy(&stream);
        vla_stepper_destroy(&st);
    }
    vla_exec_destroy(exec);
}

static void drift_of_a_good_kernel_is_rounding(void **state)
{
    (void)state;
    enum { D = 6 };
    const int64_t at[] = {10, 3000};
    vla_exec *exec = NULL;
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    for (int refresh = 0; refresh < 2; refresh++) {
        vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 3000, D);
        p.dv = 1;
        p.refresh_period = refresh ? 20 : 0;
        p.refresh_eps = 1e-3;
        const vla_source source = {
            .kind = VLA_SOURCE_TIED, .heads = 1, .dk = D, .dv = 1, .features = p.features, .seed = 5};
        vla_drift drift[2];
        int64_t reached = 0;
        const vla_drift_options o = {.problem = &p,
                                     .source = &source,
                                     .at = at,
                                     .checkpoints = 2,
                                     .exec = exec,
                                     .form = VLA_NAIVE,
                                     .dtype = VLA_F64};
        vla_error error = {VLA_OK, ""};
        if (vla_drift_run(&o, drift, &reached, &error)) fail_msg("%s", error.message);
        assert_int_equal(reached, 2);
        assert_true(drift[1].drift <= 1e-11 && drift[1].asymmetry <= 1e-12 && drift[1].nonfinite == 0);
        assert_true(fabs(drift[1].least - 1) <= 1e-9);
        assert_true(refresh ? drift[1].bias > 1e-3 : drift[1].bias == drift[1].drift || drift[1].bias <= 1e-11);
    }
    vla_exec_destroy(exec);
}

static void minimiser_by_hand(void **state)
{
    (void)state;
    /* One key e_1, v = 3, M = 0.5 I: S* = 3/(1 + 0.5) = 2 on axis 1; F = (3 - 2)^2 + 0.5 4 = 3. */
    vla_problem p = vla_problem_default(VLA_RLS, 1, 1, 1, 2);
    p.dv = 1;
    p.features = VLA_IDENTITY;
    p.lambda0 = 0.5;
    const double k[2] = {4, 0}, v[1] = {3};
    double S[2];
    vla_stepper st;
    vla_objective obj;
    assert_int_equal(vla_stepper_create(&st, &p, NULL), VLA_OK);
    assert_int_equal(vla_objective_create(&obj, &p, NULL), VLA_OK);
    vla_stepper_step(&st, k, v, k, NULL, NULL);
    vla_objective_add(&obj, &st, v);
    assert_int_equal(vla_objective_minimiser(&obj, S, NULL), VLA_OK);
    assert_true(fabs(S[0] - 2) <= 1e-14 && fabs(S[1]) <= 1e-14);
    assert_true(fabs(vla_objective_value(&obj, S) - 3) <= 1e-13);
    assert_true(fabs(st.S[0] - 2) <= 1e-14); /* rls is there */
    vla_objective_destroy(&obj);
    vla_stepper_destroy(&st);
}

static void words_for_a_shell(void **state)
{
    (void)state;
    char word[64];
    vla_shell_word(word, sizeof word, "plain/path-1.npy");
    assert_string_equal(word, "plain/path-1.npy");
    vla_shell_word(word, sizeof word, "two words; rm 'x'");
    assert_string_equal(word, "'two words; rm '\\''x'\\'''");
    vla_shell_word(word, sizeof word, "");
    assert_string_equal(word, "''");
    vla_shell_word(word, 12, "a b c d e f g h i j k l m n o p");
    assert_true(strlen(word) < 12);
}

static void ignore(void *context, const char *line)
{
    (void)line;
    ++*(int *)context;
}

static void wanted_values(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_record *r = vla_record_create("summary");
    int64_t off = 0;
    int heard = 0;
    vla_record_real(r, "x", 2);
    vla_record_string(r, "name", "word");
    assert_true(vla_records_push(&rows, r));
    assert_int_equal(vla_claims_want(&rows, "summary", "x=2.0000000000001", &off, ignore, &heard, NULL), VLA_OK);
    assert_int_equal(off, 0);
    assert_int_equal(vla_claims_want(&rows, "summary", "x=2.1", &off, ignore, &heard, NULL), VLA_OK);
    assert_int_equal(off, 1);
    assert_int_equal(vla_claims_want(&rows, "summary", "y=2", &off, ignore, &heard, NULL), VLA_OK);
    assert_int_equal(off, 1); /* an absent value is not the wanted one */
    assert_int_equal(vla_claims_want(&rows, "summary", "name=word", &off, ignore, &heard, NULL), VLA_OK);
    assert_int_equal(off, 0);
    assert_int_equal(heard, 2);
    assert_int_equal(vla_claims_want(&rows, "verdict", "x=2", &off, ignore, &heard, NULL), VLA_ERR_ARGUMENT);
    assert_int_equal(vla_claims_want(&rows, "summary", "x", &off, ignore, &heard, NULL), VLA_ERR_ARGUMENT);
    vla_records_clear(&rows);
}

/* Every part that the default run gives verdicts on is one that --part accepts, and no half of a name is. */
static void parts_are_listed(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_error error = {0};
    assert_int_equal(vla_records_read(&rows, "plots/expected_verdicts.jsonl", &error), VLA_OK);
    assert_true(rows.count > 50);
    for (int64_t i = 0; i < rows.count; i++) {
        if (strcmp(vla_record_text(rows.rows[i], "kind", ""), "verdict") != 0) continue;
        const char *claim = vla_record_text(rows.rows[i], "claim", ""),
                   *part = vla_record_text(rows.rows[i], "part", "");
        const vla_claim *c = vla_claims;
        while (c->id && strcmp(c->id, claim) != 0) c++;
        assert_non_null(c->id);
        assert_true(vla_claim_has(c, part));
        assert_int_equal(vla_claims_check_part(part, &claim, 1, &error), VLA_OK);
    }
    static const char *const wrong[] = {"", " ", "nor", "orm", "norm closed-form", "bound"}, *const c8 = "C8";
    for (int i = 0; i < 6; i++) assert_int_equal(vla_claims_check_part(wrong[i], &c8, 1, &error), VLA_ERR_ARGUMENT);
    vla_records_clear(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_and_intervals),
        cmocka_unit_test(spreads),
        cmocka_unit_test(slopes),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(growth_follows_the_stepper),
        cmocka_unit_test(drift_of_a_good_kernel_is_rounding),
        cmocka_unit_test(minimiser_by_hand),
        cmocka_unit_test(words_for_a_shell),
        cmocka_unit_test(wanted_values),
        cmocka_unit_test(parts_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
