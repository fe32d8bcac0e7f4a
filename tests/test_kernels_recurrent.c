/* The recurrent forms of the state operators: against naive on every instruction set, split and resume, the in-place
 * step, identities, hard shapes and inputs, NaN containment. */
#include "tests/state_check.h"

static forms_tested recurrent = {{VLA_RECURRENT}, 1, VLA_GATE_ROW};

static void hard_shapes(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 3, 15, 16, 17, 63, 65};
    static const int64_t widths[][2] = {{1, 1}, {2, 3}, {5, 1}, {16, 16}, {16, 7}, {33, 17}, {20, 64}};
    for (int i = 0; i < N_OPS; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                check_forms(problem(ops[i], 2, lengths[l], widths[w][0], widths[w][1]), VLA_RECURRENT, l % 2 == 0,
                            w % 2 == 0, 1, 21);
    for (int i = 0; i < N_OPS; i++) check_forms(problem(ops[i], 1, 1000, 24, 10), VLA_RECURRENT, true, true, 1, 22);
}

/* Decoding token by token in place for a long while equals naive. */
static void decode_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    enum { T = 60 };
    vla_problem p = problem(op, 1, T, 32, 30);
    p.gate = VLA_GATE_TOKEN;
    kernel_case whole = case_new(p, dtype, op == VLA_VLA, op == VLA_DELTA, 1, 32);
    kernel_case reference = case_reference(&whole), before = {0};
    for (int64_t t = 0; t < T; t++) {
        kernel_case c = part_of(&whole, t, t + 1, t ? &before : NULL);
        case_run(&c, form, isa, 1);
        case_free(&before);
        before = c;
    }
    buffer_free(&before.out[OUT_O]);
    buffer_free(&before.out[OUT_ALPHA]);
    assert_close(&before, &reference, vla_residual_limit(op, dtype), "decode");
    case_free(&before);
    case_free(&reference);
    case_free(&whole);
}
EACH_VARIANT(decode)

/* Long sums: across folds of S, and a running n that float32 alone would lose (its steps are 1/16 at 1e6). */
static void long_sums(void **state)
{
    (void)state;
    check_forms(problem(VLA_LINEAR, 1, 9001, 6, 5), VLA_RECURRENT, false, false, 1, 39);
    enum { T = 1000000 };
    kernel_case c = case_new(problem(VLA_LINEAR, 1, T, 1, 1), VLA_F32, false, false, 1, 40);
    kernel_case reference = case_reference(&c);
    case_run(&c, VLA_RECURRENT, VLA_ISA_BASE, 1);
    assert_true(fabs(buffer_get(&c.out[OUT_N], 0) / buffer_get(&reference.out[OUT_N], 0) - 1) < 2e-7);
    assert_close(&c, &reference, 2e-6, "a million tokens");
    case_free(&reference);
    case_free(&c);
    check_forms(problem(VLA_VLA, 1, 200000, 8, 3), VLA_RECURRENT, true, false, 1, 42); /* A keeps its digits */
}

/* Any width is taken, as far as its scratch has a size. */
static void widths_beyond_64_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPS; i++) {
        const vla_kernel *kernel = vla_kernel_find(ops[i], VLA_RECURRENT, VLA_CPU);
        const vla_problem p = problem(ops[i], 1, 100, INT64_MAX / 16, INT64_MAX / 16);
        int64_t bytes = 0;
        assert_int_equal(kernel->variants[VLA_F32][VLA_ISA_BASE]->workspace(&p, 2, &bytes, NULL), VLA_ERR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STATE_TESTS(recurrent),      cmocka_unit_test(hard_shapes),           TEST_OF(decode, recurrent),
        cmocka_unit_test(long_sums), cmocka_unit_test(widths_beyond_64_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
