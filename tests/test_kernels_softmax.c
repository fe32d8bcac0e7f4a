/* softmax, chunk and recurrent: against naive on every instruction set, identities, hard shapes, non-finite inputs. */
#include "tests/kernel_check.h"

static const vla_form forms[] = {VLA_CHUNK, VLA_RECURRENT};
enum { FORMS = sizeof forms / sizeof *forms };

static vla_problem softmax(int64_t B, int64_t H, int64_t T, int64_t Tk, int64_t dk, int64_t dv)
{
    vla_problem p = vla_problem_default(VLA_SOFTMAX, B, H, T, dk);
    p.dv = dv;
    p.Tk = Tk;
    return p;
}

static void hard_shapes(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 7, 15, 16, 17, 47, 48, 49, 63, 64, 65, 129};
    static const int64_t widths[][2] = {{1, 1}, {3, 5}, {8, 8}, {16, 9}, {33, 64}, {64, 33}};
    for (int f = 0; f < FORMS; f++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                check_forms(softmax(1, 2, lengths[i], 0, widths[w][0], widths[w][1]), forms[f], false, false, 1, 7);
    for (int f = 0; f < FORMS; f++) check_forms(softmax(1, 1, 1000, 0, 17, 12), forms[f], false, false, 1, 8);
}

static void more_keys_than_queries(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 2}, {1, 65}, {1, 3000}, {2, 300}, {5, 64}, {17, 90}, {49, 130}, {100, 257}};
    for (int f = 0; f < FORMS; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            check_forms(softmax(1, 1, shapes[i][0], shapes[i][1], 24, 20), forms[f], false, false, 1, 9);
            check_forms(softmax(2, 3, shapes[i][0], shapes[i][1], 7, 11), forms[f], false, false, 1, 10);
        }
}

typedef void (*per_variant)(vla_form form, vla_dtype dtype, vla_isa isa);

static void each_variant(per_variant test)
{
    static const vla_dtype dtypes[] = {VLA_F64, VLA_F32};
    for (int f = 0; f < FORMS; f++)
        for (int d = 0; d < 2; d++)
            for (vla_isa isa = VLA_ISA_BASE; isa < VLA_ISAS; isa++)
                if (isa_runs(VLA_SOFTMAX, forms[f], dtypes[d], isa)) test(forms[f], dtypes[d], isa);
}

/* Equal logits, whatever their size: the mean of the values so far. */
static void uniform_variant(vla_form form, vla_dtype dtype, vla_isa isa)
{
    static const double sizes[] = {0, 1, 100, 1e6};
    for (int s = 0; s < 4; s++) {
        kernel_case c = case_new(softmax(1, 1, 70, 0, 4, 3), dtype, false, false, 1, 11);
        for (int64_t i = 0; i < c.in[IN_Q].count; i++) {
            buffer_set(&c.in[IN_Q], i, sizes[s]);
            buffer_set(&c.in[IN_K], i, 2);
        }
        case_run(&c, form, isa, 2);
        double sum = 0;
        for (int64_t t = 0; t < 70; t++) {
            sum += buffer_get(&c.in[IN_V], t * 3 + 1);
            assert_true(fabs(buffer_get(&c.out[OUT_O], t * 3 + 1) - sum / (double)(t + 1)) <
                        (dtype == VLA_F64 ? 1e-13 : 2e-6));
        }
        case_free(&c);
    }
}

/* Logits near the end of the range select one value; adding a constant to every logit changes nothing. */
static void huge_logits_variant(vla_form form, vla_dtype dtype, vla_isa isa)
{
    kernel_case c = case_new(softmax(1, 1, 100, 0, 2, 2), dtype, false, false, 1, 12);
    for (int64_t t = 0; t < 100; t++) {
        buffer_set(&c.in[IN_Q], 2 * t, 1e15);
        buffer_set(&c.in[IN_Q], 2 * t + 1, 0);
        buffer_set(&c.in[IN_K], 2 * t, (double)((t * 37) % 101) * 1e15);
        buffer_set(&c.in[IN_K], 2 * t + 1, 1);
    }
    case_run(&c, form, isa, 1);
    for (int64_t t = 0, best = 0; t < 100; t++) {
        if ((t * 37) % 101 > (best * 37) % 101) best = t;
        for (int64_t j = 0; j < 2; j++)
            assert_true(buffer_get(&c.out[OUT_O], 2 * t + j) == buffer_get(&c.in[IN_V], 2 * best + j));
    }
    case_free(&c);
}

static void linear_in_v_variant(vla_form form, vla_dtype dtype, vla_isa isa)
{
    kernel_case a = case_new(softmax(1, 2, 75, 0, 10, 9), dtype, false, false, 1, 13);
    kernel_case b = case_copy(&a, dtype);
    for (int64_t i = 0; i < b.in[IN_V].count; i++) buffer_set(&b.in[IN_V], i, -4 * buffer_get(&a.in[IN_V], i));
    case_run(&a, form, isa, 2);
    case_run(&b, form, isa, 1);
    for (int64_t i = 0; i < a.out[OUT_O].count; i++)
        assert_true(buffer_get(&b.out[OUT_O], i) == -4 * buffer_get(&a.out[OUT_O], i));
    case_free(&a);
    case_free(&b);
}

/* Changing, or poisoning, what comes after row t leaves rows up to t bit-identical. */
static void causal_variant(vla_form form, vla_dtype dtype, vla_isa isa)
{
    static const double poisons[] = {3.0, NAN, INFINITY, -INFINITY};
    static const int64_t cuts[] = {0, 14, 47, 48, 66, 128};
    enum { T = 130, DK = 6, DV = 5 };
    kernel_case clean = case_new(softmax(1, 1, T, 0, DK, DV), dtype, false, false, 1, 14);
    case_run(&clean, form, isa, 1);
    for (int poison = 0; poison < 4; poison++)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            kernel_case c = case_copy(&clean, dtype);
            for (int64_t x = (cuts[i] + 1) * DK; x < T * DK; x++) buffer_set(&c.in[IN_K], x, poisons[poison]);
            for (int64_t x = (cuts[i] + 1) * DV; x < T * DV; x++) buffer_set(&c.in[IN_V], x, poisons[poison]);
            case_run(&c, form, isa, 1);
            const double tolerance = poison == 0 ? 0 : dtype == VLA_F64 ? 1e-13 : 1e-6;
            for (int64_t x = 0; x < (cuts[i] + 1) * DV; x++)
                assert_true(fabs(buffer_get(&c.out[OUT_O], x) - buffer_get(&clean.out[OUT_O], x)) <= tolerance);
            case_free(&c);
        }
    case_free(&clean);
}

/* One bad element anywhere: finite, NaN and infinite outputs exactly where naive has them. */
static void nonfinite_variant(vla_form form, vla_dtype dtype, vla_isa isa)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    enum { T = 100, D = 5 };
    for (int input = IN_Q; input <= IN_V; input++)
        for (int b = 0; b < 3; b++)
            for (int64_t t = 3; t < T; t += 41) {
                kernel_case c = case_new(softmax(1, 1, T, 0, D, D), dtype, false, false, 3, 15);
                buffer_set(&c.in[input], t * D + 2, bad[b]);
                kernel_case reference = case_reference(&c);
                case_run(&c, form, isa, 2);
                for (int64_t i = 0; i < T * D; i++) {
                    const double x = buffer_get(&c.out[OUT_O], i), y = buffer_get(&reference.out[OUT_O], i);
                    assert_true(isnan(y) ? isnan(x) : isinf(y) ? x == y : fabs(x - y) < 2e-5);
                    if (input == IN_Q && i / D != t) assert_true(isfinite(x));
                    if (i / D < t) assert_true(isfinite(x));
                }
                case_free(&reference);
                case_free(&c);
            }
}

/* A head gives the same bits alone, in a batch, in another place of it, and on another number of threads. */
static void batch_variant(vla_form form, vla_dtype dtype, vla_isa isa)
{
    enum { T = 67, D = 8, HEADS = 6 };
    kernel_case all = case_new(softmax(2, 3, T, 0, D, D), dtype, false, false, 1, 16);
    case_run(&all, form, isa, 2);
    for (int64_t h = 0; h < HEADS; h++) {
        kernel_case one = case_new(softmax(1, 1, T, 0, D, D), dtype, false, false, 1, 16);
        for (int input = IN_Q; input <= IN_V; input++)
            for (int64_t i = 0; i < T * D; i++)
                buffer_set(&one.in[input], i, buffer_get(&all.in[input], h * T * D + i));
        case_run(&one, form, isa, 1);
        for (int64_t i = 0; i < T * D; i++)
            assert_true(buffer_get(&one.out[OUT_O], i) == buffer_get(&all.out[OUT_O], h * T * D + i));
        case_free(&one);
    }
    case_free(&all);
}

static void uniform(void **state)
{
    (void)state;
    each_variant(uniform_variant);
}
static void huge_logits(void **state)
{
    (void)state;
    each_variant(huge_logits_variant);
}
static void linear_in_v(void **state)
{
    (void)state;
    each_variant(linear_in_v_variant);
}
static void causal(void **state)
{
    (void)state;
    each_variant(causal_variant);
}
static void nonfinite(void **state)
{
    (void)state;
    each_variant(nonfinite_variant);
}
static void batch(void **state)
{
    (void)state;
    each_variant(batch_variant);
}

/* float32 sums and products beyond its range, and values at its ends: still within the limit of naive. */
static void extreme_scales(void **state)
{
    (void)state;
    static const double scales[] = {0, 1e-30, 1e-3, 3};
    for (int f = 0; f < FORMS; f++)
        for (int s = 0; s < 4; s++) check_forms(softmax(1, 1, 90, 0, 16, 4), forms[f], false, false, scales[s], 17);
}

/* Scratch depends on the widths only. */
static void workspace_is_bounded(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++) {
        const vla_variant *variant = vla_kernel_find(VLA_SOFTMAX, forms[f], VLA_CPU)->variants[VLA_F32][VLA_ISA_BASE];
        int64_t small = 0, large = 0;
        const vla_problem a = softmax(1, 1, 100, 100, 64, 64), b = softmax(1, 1, 1 << 30, 1 << 30, 64, 64);
        assert_int_equal(variant->workspace(&a, 2, &small, NULL), VLA_OK);
        assert_int_equal(variant->workspace(&b, 2, &large, NULL), VLA_OK);
        assert_true(large == small && large < 1 << 20);
        const vla_problem wide = softmax(1, 1, 1, 1, INT64_MAX / 8, INT64_MAX / 8);
        assert_int_equal(variant->workspace(&wide, 2, &large, NULL), VLA_ERR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hard_shapes),    cmocka_unit_test(more_keys_than_queries),
        cmocka_unit_test(uniform),        cmocka_unit_test(huge_logits),
        cmocka_unit_test(linear_in_v),    cmocka_unit_test(causal),
        cmocka_unit_test(nonfinite),      cmocka_unit_test(batch),
        cmocka_unit_test(extreme_scales), cmocka_unit_test(workspace_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
