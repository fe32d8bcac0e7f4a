/* Checked sizes, random streams, the thread pool, and error exits of the registry and of plans. */
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/op/registry.h"
#include "lib/op/residual.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_sizes(void **state)
{
    (void)state;
    int64_t product = -1;
    assert_true(vla_size_mul(3, 5, &product));
    assert_int_equal(product, 15);
    assert_false(vla_size_mul(INT64_MAX / 2, 3, &product));
    assert_false(vla_size_mul(-1, 3, &product));
    assert_true(vla_size_product((const int64_t[]){INT64_MAX, INT64_MAX, 0}, 3, &product));
    assert_int_equal(product, 0);
    assert_false(vla_size_product((const int64_t[]){1 << 30, 1 << 30, 1 << 30}, 3, &product));
}

static void test_alloc(void **state)
{
    (void)state;
    void *memory = NULL;
    vla_error error = {0};
    assert_int_equal(vla_alloc(&memory, 0, 4, "nothing", &error), VLA_OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    vla_free(memory);
    assert_int_equal(vla_alloc(&memory, INT64_MAX / 4, 8, "q", &error), VLA_ERR_MEMORY);
    assert_null(memory);
    assert_int_equal(vla_alloc(&memory, (int64_t)1 << 50, 8, "q", &error), VLA_ERR_MEMORY);
    assert_non_null(strstr(error.message, "needs"));
    assert_non_null(strstr(error.message, "GiB"));
}

static void test_random(void **state)
{
    (void)state;
    vla_rng a = vla_rng_seed(42, 0), b = vla_rng_seed(42, 0), c = vla_rng_seed(42, 1);
    const uint64_t first = vla_rng_next(&a);
    assert_true(first == vla_rng_next(&b));
    assert_true(first != vla_rng_next(&c));
    double sum = 0, squares = 0;
    const int n = 100000;
    for (int i = 0; i < n; i++) {
        const double x = vla_rng_normal(&a), u = vla_rng_uniform(&b);
        sum += x;
        squares += x * x;
        assert_true(u >= 0 && u < 1);
        assert_true(vla_rng_below(&c, 7) < 7);
    }
    assert_true(fabs(sum / n) < 0.02);
    assert_true(fabs(squares / n - 1) < 0.02);
}

typedef struct tally {
    atomic_llong sum;
    atomic_int workers_seen[8];
} tally;

static void add_item(void *context, int64_t item, int worker)
{
    tally *t = context;
    atomic_fetch_add(&t->sum, item);
    atomic_store(&t->workers_seen[worker], 1);
}

static void test_pool(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        vla_pool *pool = NULL;
        assert_int_equal(vla_pool_create(&pool, threads, NULL), VLA_OK);
        assert_int_equal(vla_pool_threads(pool), threads);
        for (int repeat = 0; repeat < 200; repeat++) {
            tally t = {0};
            vla_pool_run(pool, 37, add_item, &t);
            assert_int_equal(atomic_load(&t.sum), 37 * 36 / 2);
        }
        vla_pool_destroy(pool);
    }
    vla_error error = {0};
    vla_pool *pool = NULL;
    assert_int_equal(vla_pool_create(&pool, 1000000, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "1000000"));
    tally t = {0};
    vla_pool_run(NULL, 3, add_item, &t);
    assert_int_equal(atomic_load(&t.sum), 3);
}

static void refuse(vla_problem problem, vla_status status, const char *word)
{
    vla_error error = {0};
    assert_int_equal(vla_problem_check(&problem, &error), status);
    assert_non_null(strstr(error.message, word));
}

static void test_problem_errors(void **state)
{
    (void)state;
    const vla_problem good = vla_problem_default(VLA_VLA, 1, 2, 3, 4);
    assert_int_equal(vla_problem_check(&good, NULL), VLA_OK);
    vla_problem p = good;
    p.B = 0;
    refuse(p, VLA_ERR_ARGUMENT, "B 0");
    p = good, p.T = -1;
    refuse(p, VLA_ERR_ARGUMENT, "T -1");
    p = good, p.dk = 0;
    refuse(p, VLA_ERR_ARGUMENT, "dk 0");
    p = good, p.lambda0 = 0;
    refuse(p, VLA_ERR_ARGUMENT, "lambda0 0");
    p = good, p.lambda0 = (double)NAN;
    refuse(p, VLA_ERR_ARGUMENT, "lambda0");
    p = good, p.Tk = 9;
    refuse(p, VLA_ERR_ARGUMENT, "Tk 9");
    p = good, p.op = (vla_op)77;
    refuse(p, VLA_ERR_ARGUMENT, "op 77");
    p = good, p.features = (vla_features)3;
    refuse(p, VLA_ERR_ARGUMENT, "features 3");
    p = good, p.output = (vla_output)-1;
    refuse(p, VLA_ERR_ARGUMENT, "output -1");
    p = good, p.gate = (vla_gate)3;
    refuse(p, VLA_ERR_ARGUMENT, "gate 3");
    p = good, p.T = INT64_MAX / 8;
    refuse(p, VLA_ERR_MEMORY, "64-bit");
}

static void test_plan_errors(void **state)
{
    (void)state;
    vla_exec *exec = NULL;
    vla_plan *plan = NULL;
    vla_error error = {0};
    vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 2, 2);
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, &error), VLA_OK);
    assert_int_equal(vla_plan_create(&plan, exec, &p, VLA_NAIVE, VLA_CPU, VLA_F16, &error), VLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "f16"));
    assert_int_equal(vla_plan_create(&plan, exec, &p, VLA_STEPWISE, VLA_CPU, VLA_F64, &error), VLA_ERR_UNSUPPORTED);
    assert_int_equal(vla_plan_create(&plan, exec, &p, VLA_NAIVE, VLA_CPU, VLA_F64, &error), VLA_OK);
    double x[4] = {1, 2, 3, 4}, o[4] = {-7, -7, -7, -7};
    vla_tensors t = {.q = x, .k = x, .v = x, .o = o};
    const void **inputs[] = {&t.q, &t.k, &t.v};
    const char *const names[] = {"q ", "k ", "v "};
    for (int i = 0; i < 3; i++) {
        *inputs[i] = NULL;
        assert_int_equal(vla_plan_run(plan, &t, &error), VLA_ERR_ARGUMENT);
        assert_memory_equal(error.message, names[i], 2);
        *inputs[i] = x;
    }
    t.state_in = true;
    assert_int_equal(vla_plan_run(plan, &t, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "S (state in)"));
    assert_true(o[0] == -7); /* nothing was touched */
    t.state_in = false;
    assert_int_equal(vla_plan_run(plan, &t, &error), VLA_OK);
    assert_true(o[0] != -7);
    vla_plan_destroy(plan);
    vla_exec_destroy(exec);
}

/* One VLA step by hand: dk = 2, dv = 3, k = (0, 3) so that with identity features kh = (0,1), u = (2, 0), lambda0 =
 * 1/4. uh = (1,0)/sqrt 2, z = A uh = (4,0)/sqrt 2, uh.z = 2, A = 4 I - (8/3) e1 e1^T = diag(4/3, 4), a = (0,1), S = v
 * a^T, n = kf = (0, 3), o = S q / (n.q). */
static void test_hand_computed_step(void **state)
{
    (void)state;
    vla_problem p = vla_problem_default(VLA_VLA, 1, 1, 1, 2);
    p.dv = 3, p.lambda0 = 0.25, p.features = VLA_IDENTITY;
    const double q[2] = {5, 2}, k[2] = {0, 3}, u[2] = {2, 0}, v[3] = {6, 12, -18};
    double o[3], S[6], A[4], n[2], alpha[2];
    int64_t steps = 0;
    vla_exec *exec = NULL;
    vla_plan *plan = NULL;
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    assert_int_equal(vla_plan_create(&plan, exec, &p, VLA_NAIVE, VLA_CPU, VLA_F64, NULL), VLA_OK);
    const vla_tensors t = {.q = q, .k = k, .v = v, .u = u, .o = o, .S = S, .A = A, .n = n, .t = &steps, .alpha = alpha};
    assert_int_equal(vla_plan_run(plan, &t, NULL), VLA_OK);
    const double want_S[6] = {0, 6, 0, 12, 0, -18}, want_A[4] = {4.0 / 3, 0, 0, 4}, want_o[3] = {2, 4, -6};
    for (int i = 0; i < 6; i++) assert_true(fabs(S[i] - want_S[i]) < 1e-14);
    for (int i = 0; i < 4; i++) assert_true(fabs(A[i] - want_A[i]) < 1e-14);
    for (int i = 0; i < 3; i++) assert_true(fabs(o[i] - want_o[i]) < 1e-14);
    assert_true(fabs(alpha[0]) < 1e-15 && fabs(alpha[1] - 1) < 1e-15);
    assert_true(n[0] == 0 && n[1] == 3 && steps == 1);
    vla_plan_destroy(plan);
    vla_exec_destroy(exec);
}

/* The one-shot call gives what naive gives, and refuses what a plan refuses. */
static void test_forward(void **state)
{
    (void)state;
    enum { H = 2, T = 19, D = 5, COUNT = H * T * D };
    vla_problem p = vla_problem_default(VLA_VLA, 1, H, T, D);
    double x[3][COUNT], want[COUNT];
    float in[3][COUNT], o[COUNT];
    vla_rng rng = vla_rng_seed(7, 0);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < COUNT; j++) x[i][j] = in[i][j] = (float)vla_rng_normal(&rng);
    const vla_tensors t = {.q = in[0], .k = in[1], .v = in[2], .o = o};
    const vla_tensors naive = {.q = x[0], .k = x[1], .v = x[2], .o = want};
    vla_exec *exec = NULL;
    vla_plan *plan = NULL;
    assert_int_equal(vla_forward_f32(&p, &t, NULL), VLA_OK);
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    assert_int_equal(vla_plan_create(&plan, exec, &p, VLA_NAIVE, VLA_CPU, VLA_F64, NULL), VLA_OK);
    assert_int_equal(vla_plan_run(plan, &naive, NULL), VLA_OK);
    vla_residual_sum sum = {0};
    vla_residual_add(&sum, o, VLA_F32, want, COUNT);
    const vla_residual r = vla_residual_finish(&sum);
    assert_true(vla_residual_pass(&r, vla_residual_limit(VLA_VLA, VLA_F32)));
    vla_error error = {0};
    p.dk = 0;
    assert_int_equal(vla_forward_f32(&p, &t, &error), VLA_ERR_ARGUMENT);
    assert_int_equal(error.status, VLA_ERR_ARGUMENT);
    assert_string_equal(vla_status_name(error.status), "argument");
    vla_plan_destroy(plan);
    vla_exec_destroy(exec);
}

static void test_residual(void **state)
{
    (void)state;
    const double ref[4] = {3, 4, 0, 0};
    double out[4] = {3, 4, 0, 0.5};
    vla_residual_sum sum = {0};
    vla_residual_add(&sum, out, VLA_F64, ref, 4);
    vla_residual r = vla_residual_finish(&sum);
    assert_true(fabs(r.residual - 0.1) < 1e-15 && fabs(r.max_residual - 0.125) < 1e-15);
    assert_false(vla_residual_pass(&r, 1e-2));
    out[3] = (double)NAN;
    sum = (vla_residual_sum){0};
    vla_residual_add(&sum, out, VLA_F64, ref, 4);
    r = vla_residual_finish(&sum);
    assert_int_equal(r.nonfinite, 1);
    assert_false(vla_residual_pass(&r, INFINITY));
    const double zero[2] = {0, 0}, small[2] = {0, 0.25};
    sum = (vla_residual_sum){0};
    vla_residual_add(&sum, small, VLA_F64, zero, 2);
    r = vla_residual_finish(&sum);
    assert_true(r.residual == 0.25 && r.max_residual == 0.25);
    const uint16_t bf16[2] = {0x3f80, 0xc000}, f16[3] = {0x3c00, 0xc000, 0x0001};
    const double bref[2] = {1, -2}, fref[3] = {1, -2, 0x1p-24};
    sum = (vla_residual_sum){0};
    vla_residual_add(&sum, bf16, VLA_BF16, bref, 2);
    vla_residual_add(&sum, f16, VLA_F16, fref, 3);
    r = vla_residual_finish(&sum);
    assert_true(r.residual == 0 && r.nonfinite == 0 && r.compared == 5);
}

static void test_first_nonfinite(void **state)
{
    (void)state;
    float x[2 * 3 * 2] = {0};
    int64_t head = -1, token = -1;
    assert_false(vla_first_nonfinite(x, VLA_F32, 2, 3, 2, &head, &token));
    x[2 * 2 + 1] = NAN;         /* head 0, token 2 */
    x[(3 + 1) * 2] = -INFINITY; /* head 1, token 1: earlier in time */
    assert_true(vla_first_nonfinite(x, VLA_F32, 2, 3, 2, &head, &token));
    assert_int_equal(head, 1);
    assert_int_equal(token, 1);
    /* 16 bits are searched by whole words: the largest finite value is none, infinity and NaN anywhere are. */
    enum { WIDTH = 3, LENGTH = 3000 };
    static uint16_t y[2 * LENGTH * WIDTH];
    const struct {
        vla_dtype dtype;
        uint16_t largest, bad[2];
    } kinds[] = {{VLA_BF16, 0xff7f, {0x7f80, 0xffc1}}, {VLA_F16, 0xfbff, {0xfc00, 0x7e01}}};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < 2 * LENGTH * WIDTH; j++) y[j] = kinds[k].largest;
            assert_false(vla_first_nonfinite(y, kinds[k].dtype, 2, LENGTH, WIDTH, &head, &token));
            y[2 * LENGTH * WIDTH - 1 - i * 5000] = kinds[k].bad[i];
            assert_true(vla_first_nonfinite(y, kinds[k].dtype, 2, LENGTH, WIDTH, &head, &token));
            assert_int_equal(head, 1);
            assert_int_equal(token, LENGTH - 1 - i * 5000 / WIDTH);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_alloc),
                                       cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_pool),
                                       cmocka_unit_test(test_problem_errors),
                                       cmocka_unit_test(test_plan_errors),
                                       cmocka_unit_test(test_hand_computed_step),
                                       cmocka_unit_test(test_forward),
                                       cmocka_unit_test(test_residual),
                                       cmocka_unit_test(test_first_nonfinite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
