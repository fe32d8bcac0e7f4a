/* Backward passes against central differences in float64: every parameter of every operator, and inputs. */
#include "lib/base/random.h"
#include "lib/op/registry.h"
#include "lib/train/backward.h"
#include "lib/train/network.h"

#include <cblas.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 2, T = 71, VOCAB = 11 }; /* T: a multiple of nothing, longer than a segment of every operator */

static void random_batch(int32_t *tokens, int32_t *targets, uint64_t seed)
{
    vla_rng rng = vla_rng_seed(seed, 0);
    for (int i = 0; i < B * T; i++) {
        tokens[i] = (int32_t)vla_rng_below(&rng, VOCAB);
        targets[i] = vla_rng_below(&rng, 3) ? (int32_t)vla_rng_below(&rng, VOCAB) : -1;
    }
}

static vla_network_config small(vla_op op)
{
    vla_network_config c = vla_network_paper(op);
    c.vocab = VOCAB, c.positions = T + 3, c.width = 10, c.heads = 2, c.hidden = 7;
    if (op == VLA_VLA) c.refresh_period = 7;
    return c;
}

/* Weights of order one, so that every path matters. */
static void shake(vla_network *n, double scale)
{
    double *value = vla_network_values(n);
    vla_rng rng = vla_rng_seed(7, 7);
    for (int64_t i = 0; i < vla_network_tensors(n); i++) {
        const vla_parameter *p = vla_network_tensor(n, i);
        for (int64_t j = 0; j < p->rows * p->columns; j++) value[p->offset + j] += scale * vla_rng_normal(&rng);
    }
}

static double loss_at(vla_network *n, const vla_batch *batch)
{
    vla_loss loss;
    assert_int_equal(vla_network_forward(n, batch, &loss, NULL, NULL), VLA_OK);
    return loss.loss;
}

/* Fourth-order central difference. */
static double slope(vla_network *n, const vla_batch *batch, double *x)
{
    const double kept = *x, h = 1e-5; /* small, as ELU+1 has a kink in its slope */
    double f[4];
    const double at[4] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *x = kept + at[i] * h;
        f[i] = loss_at(n, batch);
    }
    *x = kept;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

/* Every tensor: relative Frobenius error of the gradient, over all its elements or 24 random ones. */
static void check_network(const vla_network_config *config)
{
    int32_t tokens[B * T], targets[B * T];
    random_batch(tokens, targets, 3);
    const vla_batch batch = {B, T, tokens, targets};
    vla_network *n = NULL;
    vla_error error = {0};
    assert_int_equal(vla_network_create(&n, config, VLA_F64, VLA_ISA_AUTO, B, T, 1, NULL, &error), VLA_OK);
    shake(n, 0.3);
    double total = loss_at(n, &batch);
    assert_true(isfinite(total));
    vla_network_backward(n);
    const int64_t stored = vla_network_stored(n);
    double *grad = malloc((size_t)stored * sizeof *grad), *value = vla_network_values(n);
    memcpy(grad, vla_network_gradients(n), (size_t)stored * sizeof *grad);
    vla_rng rng = vla_rng_seed(11, 0);
    double top = 0;
    for (int64_t i = 0; i < stored; i++) top = fmax(top, fabs(grad[i]));
    for (int64_t i = 0; i < vla_network_tensors(n); i++) {
        const vla_parameter *p = vla_network_tensor(n, i);
        const int64_t count = p->rows * p->columns, tried = count < 24 ? count : 24;
        double diff = 0, ref = 0;
        for (int64_t j = 0; j < tried; j++) {
            const int64_t at = p->offset + (tried == count ? j : (int64_t)vla_rng_below(&rng, (uint64_t)count));
            const double d = slope(n, &batch, &value[at]);
            diff += (d - grad[at]) * (d - grad[at]);
            ref += d * d;
        }
        const double bound = 1e-6 * fmax(sqrt(ref), 1e-4 * top);
        if (!(sqrt(diff) <= bound))
            fail_msg("%s %s of block %d: |difference| %.3g, |gradient| %.3g", vla_op_name(config->op), p->name,
                     (int)p->block, sqrt(diff), sqrt(ref));
    }
    free(grad);
    vla_network_destroy(n);
}

static void test_every_operator(void **state)
{
    (void)state;
    for (int op = 0; op < VLA_OPS; op++) {
        const vla_network_config c = small((vla_op)op);
        check_network(&c);
    }
}

static void test_options(void **state)
{
    (void)state;
    vla_network_config c = small(VLA_VLA);
    c.penalty = false, c.out_norm = VLA_NORM_NONE, c.refresh_period = 0;
    check_network(&c);
    c = small(VLA_VLA);
    c.conv = 4, c.features = VLA_SILU, c.key_features = VLA_SILU;
    check_network(&c);
    c = small(VLA_DELTA); /* as published */
    c.conv = 4, c.out_norm = VLA_NORM_RMS, c.features = c.key_features = VLA_SILU, c.qk_l2 = true;
    check_network(&c);
    c = small(VLA_RLS);
    c.out_norm = VLA_NORM_LAYER, c.features = c.key_features = VLA_IDENTITY;
    check_network(&c);
    c = small(VLA_SOFTMAX);
    c.conv = 3, c.out_norm = VLA_NORM_LAYER;
    check_network(&c);
    c = small(VLA_DECAY);
    c.gate = false;
    check_network(&c);
}

/* Gradients of the operators alone against central differences of the naive forward pass: dk != dv, two heads, a random
 * upstream gradient. */
enum { H = 2, LEN = 67, DK = 5, DV = 3, TENSORS = 6 };

typedef struct trial {
    double x[TENSORS][H * LEN * DK], d[TENSORS][H * LEN * DK], o[H * LEN * DV], upstream[H * LEN * DV];
    int64_t count[TENSORS]; /* 0: absent */
    vla_plan *plan;
} trial;

static vla_tensors tensors_of(trial *t)
{
    const void *x[TENSORS];
    for (int i = 0; i < TENSORS; i++) x[i] = t->count[i] ? t->x[i] : NULL;
    return (vla_tensors){.q = x[0], .k = x[1], .v = x[2], .u = x[3], .b = x[4], .g = x[5], .o = t->o};
}

static double objective(trial *t)
{
    const vla_tensors tensors = tensors_of(t);
    double sum = 0;
    assert_int_equal(vla_plan_run(t->plan, &tensors, NULL), VLA_OK);
    for (int i = 0; i < H * LEN * DV; i++) sum += t->o[i] * t->upstream[i];
    return sum;
}

static void check_operator(vla_problem p, bool with_u, bool with_b)
{
    trial t = {.plan = NULL};
    const int64_t count[TENSORS] = {
        H * LEN * DK,         H * LEN * DK,
        H * LEN * DV,         with_u ? H * LEN * DK : 0,
        with_b ? H * LEN : 0, p.gate == VLA_GATE_ROW ? H * LEN * DV : p.gate == VLA_GATE_TOKEN ? H * LEN : 0};
    vla_rng rng = vla_rng_seed(21, (uint64_t)p.op);
    for (int i = 0; i < TENSORS; i++) {
        t.count[i] = count[i];
        for (int64_t j = 0; j < count[i]; j++) t.x[i][j] = vla_rng_normal(&rng), t.d[i][j] = (double)NAN;
    }
    for (int i = 0; i < H * LEN * DV; i++) t.upstream[i] = vla_rng_normal(&rng);
    vla_exec *exec = NULL;
    vla_backward *back = NULL;
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    assert_int_equal(vla_plan_create(&t.plan, exec, &p, VLA_NAIVE, VLA_CPU, VLA_F64, NULL), VLA_OK);
    assert_int_equal(vla_backward_create(&back, &p, VLA_F64, VLA_ISA_AUTO, NULL, NULL), VLA_OK);
    assert_true(vla_backward_workspace(back) > 0);
    const vla_tensors tensors = tensors_of(&t);
    const vla_gradients gradients = {t.upstream, t.d[0], t.d[1], t.d[2], with_u ? t.d[3] : NULL, t.d[4], t.d[5]};
    assert_int_equal(vla_backward_run(back, &tensors, &gradients, NULL), VLA_OK);
    for (int i = 0; i < TENSORS; i++) {
        double diff = 0, ref = 0;
        for (int64_t j = 0; j < t.count[i]; j++) {
            const double kept = t.x[i][j], h = 1e-5;
            double f[4];
            for (int k = 0; k < 4; k++) {
                t.x[i][j] = kept + h * (k < 2 ? k - 2 : k - 1);
                f[k] = objective(&t);
            }
            t.x[i][j] = kept;
            const double slope_here = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
            diff += (slope_here - t.d[i][j]) * (slope_here - t.d[i][j]);
            ref += slope_here * slope_here;
        }
        if (!(sqrt(diff) <= 1e-6 * sqrt(ref)))
            fail_msg("%s tensor %d: |difference| %.3g, |gradient| %.3g", vla_op_name(p.op), i, sqrt(diff), sqrt(ref));
    }
    vla_backward_destroy(back);
    vla_plan_destroy(t.plan);
    vla_exec_destroy(exec);
}

static void test_operators_alone(void **state)
{
    (void)state;
    for (int op = 0; op < VLA_OPS; op++) {
        vla_problem p = vla_problem_default((vla_op)op, 1, H, LEN, DK);
        p.dv = DV;
        if (op == VLA_DECAY) p.gate = VLA_GATE_ROW;
        check_operator(p, op == VLA_VLA, op == VLA_DELTA);
        if (op == VLA_DECAY) p.gate = VLA_GATE_TOKEN, check_operator(p, false, false);
        p.gate = VLA_GATE_NONE;
        if (op == VLA_VLA) p.refresh_period = 4, p.refresh_eps = 0.01, p.output = VLA_PLAIN;
        if (op == VLA_DELTA || op == VLA_RLS) p.features = VLA_SILU, p.qk_l2 = true;
        check_operator(p, false, false);
    }
}

static void test_backward_errors(void **state)
{
    (void)state;
    vla_error error = {0};
    vla_backward *back = NULL;
    vla_problem p = vla_problem_default(VLA_SOFTMAX, 1, 1, 3, 2);
    p.Tk = 5;
    assert_int_equal(vla_backward_create(&back, &p, VLA_F64, VLA_ISA_AUTO, NULL, &error), VLA_ERR_UNSUPPORTED);
    p = vla_problem_default(VLA_VLA, 1, 1, 3, 2);
    p.no_normalise = true;
    assert_int_equal(vla_backward_create(&back, &p, VLA_F64, VLA_ISA_AUTO, NULL, &error), VLA_ERR_UNSUPPORTED);
    p.no_normalise = false;
    assert_int_equal(vla_backward_create(&back, &p, VLA_BF16, VLA_ISA_AUTO, NULL, &error), VLA_ERR_UNSUPPORTED);
    assert_int_equal(vla_backward_create(&back, &p, VLA_F64, VLA_ISA_AUTO, NULL, &error), VLA_OK);
    double x[6] = {1, 2, 3, 4, 5, 6}, d[6];
    const vla_tensors tensors = {.q = x, .k = x, .v = x};
    vla_gradients gradients = {x, d, d, NULL, NULL, NULL, NULL};
    assert_int_equal(vla_backward_run(back, &tensors, &gradients, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "gradient of v"));
    vla_backward_destroy(back);
}

int main(void)
{
    openblas_set_num_threads(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_operator), cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_operators_alone), cmocka_unit_test(test_backward_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
