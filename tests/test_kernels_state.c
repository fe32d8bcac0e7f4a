/* The chunk and scan forms of the state operators: against naive on every instruction set and with every chunk size,
 * split and resume, identities, hard shapes and inputs, NaN containment. */
#include "tests/state_check.h"

static forms_tested forms = {{VLA_CHUNK, VLA_SCAN}, 2, VLA_GATE_TOKEN};

static void hard_shapes(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 7, 8, 9, 63, 130};
    static const int64_t widths[][2] = {{1, 1}, {2, 3}, {5, 40}, {33, 17}, {20, 64}};
    for (int i = 0; i < N_OPS; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                check_all(&forms, problem(ops[i], 2, lengths[l], widths[w][0], widths[w][1]), l % 2 == 0, w % 2 == 0, 1,
                          21);
    for (int i = 0; i < N_OPS; i++) check_all(&forms, problem(ops[i], 1, 1000, 24, 36), true, true, 1, 22);
}

/* A and n keep their digits in float over many tokens. */
static void long_runs(void **state)
{
    (void)state;
    check_all(&forms, problem(VLA_VLA, 1, 200000, 8, 3), true, false, 1, 42);
    check_all(&forms, problem(VLA_LINEAR, 1, 200000, 8, 3), true, false, 1, 43);
}

/* Every chunk size gives naive's answer, whole blocks or not. */
static void chunk_sizes(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPS; i++)
        for (int64_t chunk = 1; chunk <= 33; chunk++) {
            vla_problem p = problem(ops[i], 1, 70, 12, 18);
            p.chunk = chunk;
            p.gate = VLA_GATE_TOKEN;
            if (p.op == VLA_VLA && chunk % 3 == 0) p.refresh_period = 5, p.refresh_eps = 0.02;
            check_all(&forms, p, true, true, 1, 39);
        }
    vla_problem p = problem(VLA_VLA, 1, 600, 9, 10);
    p.chunk = 256;
    check_all(&forms, p, true, true, 1, 40);
}

/* What a form does not take is refused with the value and the limit. */
static void refusals(void **state)
{
    (void)state;
    char reason[160];
    for (int i = 0; i < N_OPS; i++)
        for (int f = 0; f < forms.count; f++) {
            const vla_kernel *kernel = vla_kernel_find(ops[i], forms.form[f], VLA_CPU);
            if (!kernel) continue;
            vla_problem p = problem(ops[i], 1, 10, 8, 8);
            assert_true(vla_kernel_supports(kernel, &p, VLA_F32, reason, sizeof reason));
            p.chunk = 257;
            assert_false(vla_kernel_supports(kernel, &p, VLA_F32, reason, sizeof reason));
            assert_non_null(strstr(reason, "257"));
            p.chunk = 256;
            assert_true(vla_kernel_supports(kernel, &p, VLA_F32, reason, sizeof reason));
            p.dk = ((int64_t)1 << 20) + 1;
            assert_false(vla_kernel_supports(kernel, &p, VLA_F32, reason, sizeof reason));
            assert_non_null(strstr(reason, "dk 1048577"));
        }
    vla_problem p = problem(VLA_DECAY, 1, 10, 8, 8);
    p.gate = VLA_GATE_ROW;
    assert_false(
        vla_kernel_supports(vla_kernel_find(VLA_DECAY, VLA_CHUNK, VLA_CPU), &p, VLA_F32, reason, sizeof reason));
    assert_non_null(strstr(reason, "gate"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STATE_TESTS(forms),          cmocka_unit_test(hard_shapes), cmocka_unit_test(chunk_sizes),
        cmocka_unit_test(long_runs), TEST_OF(causal, forms),        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
