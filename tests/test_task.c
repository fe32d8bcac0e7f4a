/* Recall: keys, memories against the naive operators, exactness on orthonormal keys, intervals, capacity. */
#include "lib/task/recall_verdict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static vla_recall recall_of(vla_op op, vla_key_source keys, int64_t d)
{
    const vla_memory_spec memory = {op, d, d, 0.1, 0.88, 16, VLA_WRITE_UNIT};
    return (vla_recall){
        .memory = memory, .keys = keys, .codebook = 128, .trials = 5, .u_scale = 1, .seed = 42, .distractors = 0};
}

static void test_keys(void **state)
{
    (void)state;
    double rows[12 * 8], again[12 * 8];
    for (int s = VLA_KEYS_GAUSS; s <= VLA_KEYS_ORTH; s++) {
        const int count = s == VLA_KEYS_ORTH ? 8 : 12;
        vla_rng a = vla_rng_seed(1, 2), b = vla_rng_seed(1, 2);
        assert_int_equal(vla_keys_make(rows, (vla_key_source)s, NULL, count, 8, &a, NULL), VLA_OK);
        assert_int_equal(vla_keys_make(again, (vla_key_source)s, NULL, count - 3, 8, &b, NULL), VLA_OK);
        assert_memory_equal(rows, again, (size_t)(count - 3) * 8 * sizeof *rows); /* a prefix of the longer draw */
        for (int i = 0; i < count; i++)
            for (int j = 0; j <= i; j++) {
                double dot = 0;
                for (int c = 0; c < 8; c++) dot += rows[i * 8 + c] * rows[j * 8 + c];
                if (i == j) assert_true(fabs(dot - 1) < 1e-14);
                if (i != j && s == VLA_KEYS_ORTH) assert_true(fabs(dot) < 1e-14);
                if (s == VLA_KEYS_ELU1) assert_true(dot > 0);
            }
    }
    vla_rng rng = vla_rng_seed(1, 2);
    vla_error error = {0};
    assert_int_equal(vla_keys_make(rows, VLA_KEYS_ORTH, NULL, 9, 8, &rng, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "dk = 8"));
    assert_int_equal(vla_keys_make(rows, VLA_KEYS_INPUT, NULL, 2, 8, &rng, &error), VLA_ERR_ARGUMENT);
}

static void test_key_bank(void **state)
{
    (void)state;
    const double raw[2 * 3 * 2] = {3, 1, -1, -2, 0, 0, -800, -801, 5, 6, 1e-3, 2};
    vla_key_bank bank;
    assert_int_equal(vla_key_bank_create(&bank, raw, 2, 3, 2, VLA_ELU1, NULL), VLA_OK);
    assert_true(fabs(bank.rows[0] / bank.rows[1] - 2) < 1e-14);        /* phi: 4 and 2 */
    assert_true(fabs(bank.rows[6] / bank.rows[7] - exp(1.0)) < 1e-12); /* phi underflows, its direction does not */
    double rows[4];
    vla_rng rng = vla_rng_seed(3, 4);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(vla_keys_make(rows, VLA_KEYS_INPUT, &bank, 2, 2, &rng, NULL), VLA_OK);
        int found = 0;
        for (int h = 0; h < 2; h++)
            for (int t = 0; t < 2; t++) found += memcmp(rows, bank.rows + (h * 3 + t) * 2, sizeof rows) == 0;
        assert_int_equal(found, 1);
    }
    char reason[160];
    assert_false(vla_keys_possible(VLA_KEYS_INPUT, &bank, 4, 2, reason, sizeof reason));
    assert_non_null(strstr(reason, "3 keys a head"));
    assert_false(vla_keys_possible(VLA_KEYS_INPUT, &bank, 2, 3, reason, sizeof reason));
    vla_key_bank_destroy(&bank);
}

/* The state a memory reaches is the naive operator's on the same unit keys. */
static void test_memory_is_the_operator(void **state)
{
    (void)state;
    enum { T = 23, dk = 7, dv = 5 };
    double keys[T * dk], u[T * dk], values[T * dv], o[T * dv], S[dv * dk], A[dk * dk];
    vla_rng rng = vla_rng_seed(9, 9);
    assert_int_equal(vla_keys_make(keys, VLA_KEYS_GAUSS, NULL, T, dk, &rng, NULL), VLA_OK);
    for (int i = 0; i < T * dv; i++) values[i] = vla_rng_normal(&rng);
    for (int i = 0; i < T * dk; i++) u[i] = keys[i] / sqrt((double)dk);
    const double logit = log(0.88 / 0.12);
    double gates[T];
    for (int i = 0; i < T; i++) gates[i] = logit;
    vla_exec *exec = NULL;
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    for (int op = VLA_LINEAR; op < VLA_OPS; op++) {
        vla_problem p = vla_problem_default((vla_op)op, 1, 1, T, dk);
        p.dv = dv, p.features = VLA_IDENTITY, p.gate = op == VLA_DECAY ? VLA_GATE_TOKEN : VLA_GATE_NONE;
        vla_plan *plan = NULL;
        assert_int_equal(vla_plan_create(&plan, exec, &p, VLA_NAIVE, VLA_CPU, VLA_F64, NULL), VLA_OK);
        vla_tensors t = {.q = keys, .k = keys, .v = values, .o = o, .S = S, .A = op >= VLA_VLA ? A : NULL};
        if (op == VLA_DECAY) t.g = gates;
        assert_int_equal(vla_plan_run(plan, &t, NULL), VLA_OK);
        vla_memory m;
        const vla_memory_spec spec = {(vla_op)op, dk, dv, 0.1, 0.88, 1, VLA_WRITE_UNIT};
        assert_int_equal(vla_memory_create(&m, &spec, T, NULL), VLA_OK);
        for (int i = 0; i < T; i++) vla_memory_write(&m, keys + i * dk, u + i * dk, values + i * dv);
        for (int i = 0; i < dv * dk; i++) assert_true(fabs(m.S[i] - S[i]) < 1e-12);
        for (int i = 0; m.A && i < dk * dk; i++) assert_true(fabs(m.A[i] - A[i]) < 1e-12);
        vla_memory_destroy(&m);
        vla_plan_destroy(plan);
    }
    vla_exec_destroy(exec);
}

static double newest_error(vla_write_gate write, double u_scale)
{
    enum { d = 6, n = 9 };
    const vla_memory_spec spec = {VLA_VLA, d, d, 0.1, 0, 1, write};
    double keys[n * d], u[n * d], values[n * d], out[d];
    vla_rng rng = vla_rng_seed(5, 5);
    assert_int_equal(vla_keys_make(keys, VLA_KEYS_GAUSS, NULL, n, d, &rng, NULL), VLA_OK);
    for (int i = 0; i < n * d; i++) values[i] = vla_rng_normal(&rng), u[i] = keys[i] * u_scale;
    vla_memory m, rls;
    vla_memory_spec same = spec;
    same.op = VLA_RLS;
    assert_int_equal(vla_memory_create(&m, &spec, n, NULL), VLA_OK);
    assert_int_equal(vla_memory_create(&rls, &same, n, NULL), VLA_OK);
    for (int i = 0; i < n; i++) {
        vla_memory_write(&m, keys + i * d, u + i * d, values + i * d);
        vla_memory_write(&rls, keys + i * d, NULL, values + i * d);
    }
    vla_memory_read(&m, keys + (n - 1) * d, 1, out, NULL);
    double error = 0;
    for (int i = 0; i < d; i++) error = fmax(error, fabs(out[i] - values[(n - 1) * d + i]));
    if (write == VLA_WRITE_RLS)
        for (int i = 0; i < d * d; i++) assert_true(fabs(m.S[i] - rls.S[i]) < 1e-12);
    vla_memory_destroy(&m);
    vla_memory_destroy(&rls);
    return error;
}

static void test_write_gates(void **state)
{
    (void)state;
    assert_true(newest_error(VLA_WRITE_INTERPOLATE, 0.4) < 1e-12); /* the newest pair is exact */
    assert_true(newest_error(VLA_WRITE_UNIT, 0.4) > 1e-3);         /* the price of a unit direction */
    newest_error(VLA_WRITE_RLS, 1);                                /* with u = k it is recursive least squares */
}

static void test_orthonormal_keys_are_exact(void **state)
{
    (void)state;
    const int64_t n[3] = {1, 17, 32};
    vla_recall_point points[3];
    const vla_op ops[] = {VLA_LINEAR, VLA_DELTA, VLA_VLA, VLA_RLS};
    for (int i = 0; i < 4; i++) {
        const vla_recall r = recall_of(ops[i], VLA_KEYS_ORTH, 32);
        assert_int_equal(vla_recall_run(&r, NULL, n, 3, points, NULL), VLA_OK);
        for (int j = 0; j < 3; j++) {
            assert_true(points[j].nearest.value == 1 && points[j].inner.value >= 0.9);
            assert_true(points[j].nearest.lo < 1 && points[j].nearest.hi == 1);
            if (ops[i] != VLA_RLS) assert_true(points[j].relative_error < 1e-12); /* rls shrinks by 1/(1 + lambda0) */
            if (ops[i] == VLA_RLS) assert_true(fabs(points[j].relative_error - 0.1 / 1.1) < 1e-12);
        }
        assert_true(isnan(points[0].age[1]) && points[2].age[0] == 1 && points[2].age[3] == 1);
    }
    vla_error error = {0};
    const int64_t too_many = 33;
    const vla_recall r = recall_of(VLA_VLA, VLA_KEYS_ORTH, 32);
    assert_int_equal(vla_recall_run(&r, NULL, &too_many, 1, points, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "orth"));
}

static void test_recall_does_not_depend_on_threads_or_list(void **state)
{
    (void)state;
    vla_pool *pool = NULL;
    assert_int_equal(vla_pool_create(&pool, 2, NULL), VLA_OK);
    vla_recall r = recall_of(VLA_VLA, VLA_KEYS_GAUSS, 16);
    r.compare_rls = true;
    const int64_t n[3] = {4, 16, 40};
    vla_recall_point one[3], two[3], last;
    assert_int_equal(vla_recall_run(&r, NULL, n, 3, one, NULL), VLA_OK);
    assert_int_equal(vla_recall_run(&r, pool, n, 3, two, NULL), VLA_OK);
    assert_memory_equal(one, two, sizeof one);
    assert_int_equal(vla_recall_run(&r, pool, n + 2, 1, &last, NULL), VLA_OK);
    assert_memory_equal(&one[2], &last, sizeof last);
    assert_true(one[2].nearest.value < 0.9 && one[2].age[0] < one[2].age[3]); /* beyond capacity the old go first */
    assert_true(one[0].rls_distance > 0 && one[0].rls_distance < 1);
    r.distractors = 24;
    vla_recall_point after;
    assert_int_equal(vla_recall_run(&r, pool, n + 1, 1, &after, NULL), VLA_OK);
    assert_true(after.nearest.value < one[1].nearest.value);
    vla_pool_destroy(pool);
}

static void test_share(void **state)
{
    (void)state;
    const double equal[4] = {1, 1, 1, 1}, spread[4] = {0.2, 0.4, 0.6, 0.8};
    vla_share s = vla_share_of(equal, 4, 25);
    assert_true(s.value == 1 && s.hi == 1 && fabs(s.lo - 0.963) < 5e-4); /* Wilson, 100 of 100 */
    s = vla_share_of(spread, 4, 1000);                                   /* t(3) = 3.182, s = 0.2582 */
    assert_true(fabs(s.value - 0.5) < 1e-15 && fabs(s.lo - (0.5 - 3.182 * 0.2581989 / 2)) < 1e-6);
    s = vla_share_of(equal, 1, 1);
    assert_true(s.value == 1 && fabs(s.lo - 0.2065) < 1e-3);
}

static void test_capacity(void **state)
{
    (void)state;
    const vla_recall r = recall_of(VLA_DECAY, VLA_KEYS_GAUSS, 16);
    const int64_t n[3] = {1, 2, 64};
    vla_recall_point points[3], exact;
    vla_capacity c;
    assert_int_equal(vla_recall_run(&r, NULL, n, 3, points, NULL), VLA_OK);
    assert_int_equal(vla_recall_capacity(&r, NULL, 0, NULL, points, 3, &c, NULL), VLA_OK);
    assert_true(c.n95 > 2 && c.n95 < 64 && c.n95_lo <= c.n95 && c.n95 <= c.n95_hi && !c.censored);
    assert_int_equal(vla_recall_run(&r, NULL, &c.n95, 1, &exact, NULL), VLA_OK);
    assert_true(exact.nearest.value >= 0.95);
    assert_int_equal(vla_recall_capacity(&r, NULL, 0, NULL, points, 2, &c, NULL), VLA_OK);
    assert_true(c.censored && c.n95 == 2);
    vla_recall soft = recall_of(VLA_SOFTMAX, VLA_KEYS_GAUSS, 16);
    const double sharpness[3] = {1, 4, 16};
    assert_int_equal(vla_recall_best(&soft, sharpness, 3, NULL, n, 3, points, NULL), VLA_OK);
    assert_true(points[2].nearest.value > 0.95 && points[2].sharpness > 1);
}

static void test_state_bytes(void **state)
{
    (void)state;
    const vla_memory_spec vla = {.op = VLA_VLA, .dk = 32, .dv = 64}, soft = {.op = VLA_SOFTMAX, .dk = 32, .dv = 64};
    assert_int_equal(vla_memory_state_bytes(&vla, 5, 4), (64 * 32 + 32 * 32) * 4);
    assert_int_equal(vla_memory_state_bytes(&soft, 5, 4), 5 * 96 * 4);
    const vla_memory_spec linear = {.op = VLA_LINEAR, .dk = vla_memory_matched_width(VLA_LINEAR, 32, 64), .dv = 64};
    assert_int_equal(vla_memory_state_bytes(&linear, 5, 4), vla_memory_state_bytes(&vla, 5, 4));
    assert_int_equal(vla_memory_matched_width(VLA_RLS, 32, 64), 32);
}

static vla_status collect(void *context, vla_record *row, vla_error *error)
{
    (void)error;
    assert_true(vla_records_push(context, row));
    return VLA_OK;
}

static const vla_record *verdict_on(const vla_records *rows, const char *claim, const char *keys)
{
    for (int64_t i = 0; i < rows->count; i++)
        if (strcmp(vla_record_text(rows->rows[i], "claim", ""), claim) == 0 &&
            strstr(vla_record_text(rows->rows[i], "source", ""), keys))
            return rows->rows[i];
    return NULL;
}

static void test_sweep_and_verdicts(void **state)
{
    (void)state;
    static const int64_t d[2] = {8, 16};
    vla_recall_settings s = vla_recall_settings_default();
    s.d = d, s.d_count = 2, s.trials = 10;
    s.keys[0] = VLA_KEYS_ORTH, s.keys[1] = VLA_KEYS_ELU1, s.key_count = 2;
    vla_records rows = {0};
    const vla_row_sink sink = {collect, NULL, NULL, &rows};
    assert_int_equal(vla_recall_sweep_curves(&s), 2 * 2 * 7); /* softmax twice */
    assert_int_equal(vla_recall_sweep(&s, NULL, &sink, NULL), VLA_OK);
    assert_int_equal(vla_recall_fits(&rows, 1, &sink, NULL), VLA_OK);
    assert_int_equal(vla_recall_verdicts(&rows, &sink, NULL), VLA_OK);
    assert_string_equal(vla_record_text(verdict_on(&rows, "C10", "orth d=16"), "verdict", ""), "holds");
    assert_string_equal(vla_record_text(verdict_on(&rows, "C10", "elu1 d=16"), "verdict", ""), "refuted");
    assert_non_null(verdict_on(&rows, "C14a", "elu1 d=16"));
    assert_null(verdict_on(&rows, "C14a", "orth")); /* no orthonormal keys beyond d */
    assert_non_null(verdict_on(&rows, "C21", "elu1 d=8"));
    int64_t keys = 0;
    for (int64_t i = 0; i < rows.count; i++) /* a key names one row */
        for (int64_t j = 0; j < i; j++)
            keys += strcmp(vla_record_text(rows.rows[i], "key", "a"), vla_record_text(rows.rows[j], "key", "b")) == 0;
    assert_int_equal(keys, 0);
    vla_records_clear(&rows);
}

static void test_rank_correlation(void **state)
{
    (void)state;
    const double x[4] = {1, 2, 3, 4}, up[4] = {1, 10, 100, 1000}, down[4] = {3, 2, 1, 0}, tied[4] = {1, 1, 2, 2};
    assert_true(fabs(vla_rank_correlation(x, up, 4) - 1) < 1e-15);
    assert_true(fabs(vla_rank_correlation(x, down, 4) + 1) < 1e-15);
    assert_true(fabs(vla_rank_correlation(x, tied, 4) - 2 / sqrt(5)) < 1e-12);
    const double constant[4] = {5, 5, 5, 5};
    assert_true(isnan(vla_rank_correlation(x, constant, 4)) && isnan(vla_rank_correlation(x, up, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys),
                                       cmocka_unit_test(test_key_bank),
                                       cmocka_unit_test(test_memory_is_the_operator),
                                       cmocka_unit_test(test_write_gates),
                                       cmocka_unit_test(test_orthonormal_keys_are_exact),
                                       cmocka_unit_test(test_recall_does_not_depend_on_threads_or_list),
                                       cmocka_unit_test(test_share),
                                       cmocka_unit_test(test_capacity),
                                       cmocka_unit_test(test_state_bytes),
                                       cmocka_unit_test(test_sweep_and_verdicts),
                                       cmocka_unit_test(test_rank_correlation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
