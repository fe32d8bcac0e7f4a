/* What the tests of the state operators' forms share: every test here runs on the forms a program names, for every
 * operator, dtype and instruction set that has them. */
#ifndef TESTS_STATE_CHECK_H
#define TESTS_STATE_CHECK_H
#include "tests/kernel_check.h"

static const vla_op ops[] = {VLA_LINEAR, VLA_DELTA, VLA_DECAY, VLA_VLA, VLA_RLS};
static const vla_dtype dtypes[] = {VLA_F64, VLA_F32};
enum { N_OPS = sizeof ops / sizeof *ops };

/* The forms under test, which each test finds in its state. */
typedef struct forms_tested {
    vla_form form[2];
    int count;
    vla_gate gate; /* of decay: the finest that all of them take */
} forms_tested;

/* Those of the forms that the operator has. */
static inline void check_all(const forms_tested *forms, vla_problem p, bool u, bool b, double scale, uint64_t seed)
{
    for (int f = 0; f < forms->count; f++)
        if (vla_kernel_find(p.op, forms->form[f], VLA_CPU)) check_forms(p, forms->form[f], u, b, scale, seed);
}

static inline vla_problem problem(vla_op op, int64_t H, int64_t T, int64_t dk, int64_t dv)
{
    vla_problem p = vla_problem_default(op, 1, H, T, dk);
    p.dv = dv;
    return p;
}

/* Every option of the operators. */
static inline void options(void **state)
{
    const forms_tested *forms = *state;
    for (int i = 0; i < N_OPS; i++)
        for (int features = VLA_ELU1; features <= VLA_IDENTITY; features++)
            for (int l2 = 0; l2 < 2; l2++) {
                vla_problem p = problem(ops[i], 1, 37, 19, 18);
                p.features = (vla_features)features;
                p.qk_l2 = l2 != 0;
                if (p.op == VLA_LINEAR && p.features != VLA_ELU1) continue; /* n.q near 0: ill-conditioned */
                if (p.op == VLA_VLA) p.output = VLA_PLAIN;
                check_all(forms, p, true, true, 1, 23);
            }
    for (int gate = VLA_GATE_NONE; gate <= (int)forms->gate; gate++)
        for (int64_t T = 1; T < 40; T += 19) {
            vla_problem p = problem(VLA_DECAY, 2, T, 16, 13);
            p.gate = (vla_gate)gate;
            check_all(forms, p, false, false, 1, 24);
        }
    static const double lambdas[] = {1e-2, 0.1, 1, 1e3};
    for (int l = 0; l < 4; l++)
        for (int op = VLA_VLA; op <= VLA_RLS; op++) {
            vla_problem p = problem((vla_op)op, 1, 70, 16, 8);
            p.lambda0 = lambdas[l];
            check_all(forms, p, true, false, 1, 25);
        }
}

static inline void refresh_and_unstable_form(void **state)
{
    const forms_tested *forms = *state;
    for (int64_t period = 1; period < 8; period++) {
        vla_problem p = problem(VLA_VLA, 1, 41, 16, 9);
        p.refresh_period = period;
        p.refresh_eps = 0.03;
        check_all(forms, p, true, false, 1, 26);
        p.T = 3;
        check_all(forms, p, true, false, 1, 26);
    }
    vla_problem p = problem(VLA_VLA, 1, 6, 16, 9);
    p.no_normalise = true;
    p.lambda0 = 10;
    check_all(forms, p, true, false, 0.3, 27);
}

static inline void scales(void **state)
{
    const forms_tested *forms = *state;
    static const double sizes[] = {0, 1e-30, 1e-3, 30};
    for (int i = 0; i < N_OPS; i++)
        for (int s = 0; s < 4; s++) {
            vla_problem p = problem(ops[i], 1, 50, 16, 12);
            check_all(forms, p, true, true, sizes[s], 28);
            p.features = VLA_IDENTITY;
            p.output = VLA_PLAIN;
            if (p.op != VLA_LINEAR) check_all(forms, p, true, true, sizes[s], 28);
        }
}

typedef void (*per_variant)(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa);

static inline void each_variant(const forms_tested *forms, per_variant test)
{
    for (int i = 0; i < N_OPS; i++)
        for (int f = 0; f < forms->count; f++)
            for (int d = 0; d < 2; d++)
                for (vla_isa isa = VLA_ISA_BASE; isa < VLA_ISAS; isa++)
                    if (isa_runs(ops[i], forms->form[f], dtypes[d], isa)) test(ops[i], forms->form[f], dtypes[d], isa);
}

/* Tokens [from, to) of every head of whole, with the state and step count carried over from before. */
static inline kernel_case part_of(const kernel_case *whole, int64_t from, int64_t to, const kernel_case *before)
{
    vla_problem p = whole->p;
    const int64_t heads = p.B * p.H, len = whole->p.T;
    p.T = p.Tk = to - from;
    kernel_case c = case_new(p, whole->dtype, whole->in[IN_U].base != NULL, whole->in[IN_B].base != NULL, 1, 0);
    for (int i = 0; i < INPUTS; i++) {
        if (!c.in[i].base) continue;
        const int64_t width = whole->in[i].count / heads / len;
        for (int64_t h = 0; h < heads; h++)
            for (int64_t x = 0; x < (to - from) * width; x++)
                buffer_set(&c.in[i], h * (to - from) * width + x,
                           buffer_get(&whole->in[i], (h * len + from) * width + x));
    }
    if (!before) return c;
    c.state_in = true;
    c.t = before->t;
    for (int i = OUT_S; i <= OUT_N; i++)
        for (int64_t x = 0; x < c.out[i].count; x++) buffer_set(&c.out[i], x, buffer_get(&before->out[i], x));
    return c;
}

/* Any split resumes to the outputs and state of one pass. Split points need not align with chunks; of the recurrent
 * form parts of 1 to 4 tokens run in place, others do not. */
static inline void split_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    static const int64_t splits[][4] = {{0, 1, 2, 20}, {0, 4, 8, 20}, {0, 7, 10, 20}, {0, 0, 19, 20}, {0, 17, 18, 20}};
    vla_problem p = problem(op, 2, 20, 16, 11);
    p.gate = form == VLA_RECURRENT ? VLA_GATE_ROW : VLA_GATE_TOKEN;
    p.refresh_period = 5;
    kernel_case whole = case_new(p, dtype, op == VLA_VLA, op == VLA_DELTA, 1, 31);
    kernel_case reference = case_reference(&whole);
    for (int s = 0; s < 5; s++) {
        kernel_case before = {0};
        for (int i = 0; i < 3; i++) {
            kernel_case c = part_of(&whole, splits[s][i], splits[s][i + 1], i ? &before : NULL);
            case_run(&c, form, isa, 2);
            assert_int_equal(c.t, splits[s][i + 1]);
            case_free(&before);
            before = c;
            const int64_t len = splits[s][i + 1] - splits[s][i], dv = p.dv;
            for (int64_t x = 0; x < 2 * len * dv; x++) {
                const int64_t h = x / (len * dv), at = (h * 20 + splits[s][i]) * dv + x % (len * dv);
                assert_true(fabs(buffer_get(&c.out[OUT_O], x) - buffer_get(&reference.out[OUT_O], at)) <=
                            (dtype == VLA_F64 ? 1e-11 : 2e-4) * (1 + fabs(buffer_get(&reference.out[OUT_O], at))));
            }
        }
        buffer_free(&before.out[OUT_O]);
        buffer_free(&before.out[OUT_ALPHA]);
        assert_close(&before, &reference, vla_residual_limit(op, dtype), "split");
        case_free(&before);
    }
    case_free(&reference);
    case_free(&whole);
}

/* One bad element at token t of any input: rows before t keep their bits, and rows from t on tell. */
static inline void not_a_number_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    static const double bad[] = {NAN, INFINITY};
    enum { T = 40 };
    vla_problem p = problem(op, 1, T, 9, 8);
    p.gate = VLA_GATE_TOKEN;
    kernel_case clean = case_new(p, dtype, op == VLA_VLA, op == VLA_DELTA, 1, 33);
    kernel_case finite = case_copy(&clean, dtype);
    case_run(&finite, form, isa, 1);
    for (int input = 0; input < INPUTS; input++)
        for (int b = 0; b < 2; b++)
            for (int64_t t = 0; t < T; t += 13) {
                if (!clean.in[input].base) continue;
                kernel_case c = case_copy(&clean, dtype);
                const int64_t width = c.in[input].count / T;
                buffer_set(&c.in[input], t * width + width / 2, bad[b]);
                case_run(&c, form, isa, 1);
                bool told = false;
                for (int64_t i = 0; i < T * p.dv; i++) {
                    const double x = buffer_get(&c.out[OUT_O], i);
                    if (i / p.dv < t) assert_true(x == buffer_get(&finite.out[OUT_O], i));
                    told = told || !isfinite(x);
                }
                if (b == 0 && input != IN_B) assert_true(told || op == VLA_VLA);
                case_free(&c);
            }
    case_free(&finite);
    case_free(&clean);
}

/* Changing the tokens after t leaves the outputs up to t as they were, to the bit. */
static inline void causal_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    enum { T = 30, CUT = 19 };
    vla_problem p = problem(op, 1, T, 9, 20);
    p.gate = VLA_GATE_TOKEN;
    kernel_case a = case_new(p, dtype, op == VLA_VLA, op == VLA_DELTA, 1, 41);
    kernel_case b = case_copy(&a, dtype);
    for (int i = 0; i < INPUTS; i++)
        for (int64_t x = b.in[i].base ? CUT * (b.in[i].count / T) : INT64_MAX; x < b.in[i].count; x++)
            buffer_set(&b.in[i], x, 3 * buffer_get(&a.in[i], x) - 1);
    case_run(&a, form, isa, 2);
    case_run(&b, form, isa, 2);
    for (int64_t i = 0; i < CUT * p.dv; i++) assert_true(buffer_get(&a.out[OUT_O], i) == buffer_get(&b.out[OUT_O], i));
    assert_true(buffer_get(&a.out[OUT_O], CUT * p.dv) != buffer_get(&b.out[OUT_O], CUT * p.dv));
    case_free(&a);
    case_free(&b);
}

/* Zero values give zero; scaling the values by a power of two scales outputs and state to the bit. */
static inline void linear_in_v_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    kernel_case a = case_new(problem(op, 2, 35, 12, 10), dtype, op == VLA_VLA, op == VLA_DELTA, 1, 34);
    kernel_case b = case_copy(&a, dtype);
    for (int64_t i = 0; i < b.in[IN_V].count; i++) buffer_set(&b.in[IN_V], i, -8 * buffer_get(&a.in[IN_V], i));
    case_run(&a, form, isa, 1);
    case_run(&b, form, isa, 2);
    for (int64_t i = 0; i < a.out[OUT_O].count; i++)
        assert_true(buffer_get(&b.out[OUT_O], i) == -8 * buffer_get(&a.out[OUT_O], i));
    for (int64_t i = 0; i < a.out[OUT_S].count; i++)
        assert_true(buffer_get(&b.out[OUT_S], i) == -8 * buffer_get(&a.out[OUT_S], i));
    case_free(&a);
    case_free(&b);
}

/* A head gives the same bits alone as in a batch, on any number of threads. */
static inline void batch_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    vla_problem p = problem(op, 3, 33, 10, 9);
    p.B = 2;
    kernel_case all = case_new(p, dtype, op == VLA_VLA, op == VLA_DELTA, 1, 35);
    case_run(&all, form, isa, 2);
    for (int64_t h = 0; h < 6; h++) {
        p.B = p.H = 1;
        kernel_case one = case_new(p, dtype, op == VLA_VLA, op == VLA_DELTA, 1, 0);
        for (int i = 0; i < INPUTS; i++)
            for (int64_t x = 0; one.in[i].base && x < one.in[i].count; x++)
                buffer_set(&one.in[i], x, buffer_get(&all.in[i], h * one.in[i].count + x));
        case_run(&one, form, isa, 1);
        for (int i = 0; i < OUTPUTS; i++)
            for (int64_t x = 0; one.out[i].base && x < one.out[i].count; x++)
                assert_true(buffer_get(&one.out[i], x) == buffer_get(&all.out[i], h * one.out[i].count + x));
        case_free(&one);
    }
    case_free(&all);
}

/* A zero key writes nothing, and its alpha is zero. */
static inline void zero_key_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    vla_problem p = problem(op, 1, 9, 16, 6);
    p.features = VLA_IDENTITY;
    p.output = VLA_PLAIN;
    kernel_case c = case_new(p, dtype, op == VLA_VLA, false, 1, 37);
    for (int64_t i = 0; i < c.in[IN_K].count; i++) buffer_set(&c.in[IN_K], i, 0);
    case_run(&c, form, isa, 1);
    for (int64_t i = 0; i < c.out[OUT_O].count; i++) assert_true(buffer_get(&c.out[OUT_O], i) == 0);
    for (int64_t i = 0; i < c.out[OUT_S].count; i++) assert_true(buffer_get(&c.out[OUT_S], i) == 0);
    for (int64_t i = 0; c.out[OUT_ALPHA].base && i < c.out[OUT_ALPHA].count; i++)
        assert_true(buffer_get(&c.out[OUT_ALPHA], i) == 0);
    case_free(&c);
}

/* A stays symmetric to the bit. */
static inline void symmetric_variant(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    if (!vla_op_has_A(op)) return;
    enum { D = 20 };
    kernel_case c = case_new(problem(op, 1, 301, D, 3), dtype, true, false, 1, 38);
    case_run(&c, form, isa, 1);
    for (int64_t i = 0; i < D; i++)
        for (int64_t j = 0; j < i; j++)
            assert_true(buffer_get(&c.out[OUT_A], i * D + j) == buffer_get(&c.out[OUT_A], j * D + i));
    case_free(&c);
}

/* A gate of one is no gate. */
static inline void decay_of_one(void **state)
{
    const forms_tested *forms = *state;
    for (int d = 0; d < 2 * forms->count; d++) {
        const vla_form form = forms->form[d / 2];
        vla_problem p = problem(VLA_DECAY, 1, 30, 8, 7);
        p.gate = forms->gate;
        if (!vla_kernel_find(p.op, form, VLA_CPU)) continue;
        kernel_case gated = case_new(p, dtypes[d % 2], false, false, 1, 36);
        for (int64_t i = 0; i < gated.in[IN_G].count; i++) buffer_set(&gated.in[IN_G], i, 800);
        p.op = VLA_DELTA;
        kernel_case delta = case_new(p, dtypes[d % 2], false, false, 1, 36);
        case_run(&gated, form, VLA_ISA_BASE, 1);
        case_run(&delta, form, VLA_ISA_BASE, 1);
        for (int64_t i = 0; i < delta.out[OUT_O].count; i++)
            assert_true(fabs(buffer_get(&gated.out[OUT_O], i) - buffer_get(&delta.out[OUT_O], i)) < 1e-5);
        case_free(&gated);
        case_free(&delta);
    }
}

/* Scratch does not grow with T. */
static inline void workspace_is_bounded(void **state)
{
    const forms_tested *forms = *state;
    for (int i = 0; i < N_OPS; i++)
        for (int f = 0; f < forms->count; f++) {
            const vla_kernel *kernel = vla_kernel_find(ops[i], forms->form[f], VLA_CPU);
            if (!kernel) continue;
            int64_t first = 0, other = 0;
            vla_problem p = problem(ops[i], 1, 100, 64, 64);
            assert_int_equal(kernel->variants[VLA_F32][VLA_ISA_BASE]->workspace(&p, 2, &first, NULL), VLA_OK);
            p.T = (int64_t)1 << 40;
            for (vla_isa isa = VLA_ISA_BASE; isa < VLA_ISAS; isa++) {
                if (!isa_runs(ops[i], forms->form[f], VLA_F32, isa)) continue; /* its code is for that processor too */
                assert_int_equal(kernel->variants[VLA_F32][isa]->workspace(&p, 2, &other, NULL), VLA_OK);
                assert_true(other == first && other < 1 << 20);
            }
        }
}

#define EACH_VARIANT(name)                    \
    static inline void name(void **state)     \
    {                                         \
        each_variant(*state, name##_variant); \
    }
EACH_VARIANT(split)
EACH_VARIANT(not_a_number)
EACH_VARIANT(causal)
EACH_VARIANT(linear_in_v)
EACH_VARIANT(batch)
EACH_VARIANT(zero_key)
EACH_VARIANT(symmetric)

#define TEST_OF(test, forms) cmocka_unit_test_prestate(test, &(forms))
/* Every test above. */
#define STATE_TESTS(forms)                                                                                             \
    TEST_OF(options, forms), TEST_OF(refresh_and_unstable_form, forms), TEST_OF(scales, forms), TEST_OF(split, forms), \
        TEST_OF(not_a_number, forms), TEST_OF(causal, forms), TEST_OF(linear_in_v, forms), TEST_OF(batch, forms),      \
        TEST_OF(zero_key, forms), TEST_OF(symmetric, forms), TEST_OF(decay_of_one, forms),                             \
        TEST_OF(workspace_is_bounded, forms)

#endif
