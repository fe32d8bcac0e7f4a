/* Backward passes against central differences in float64: every parameter of every operator, and inputs. */
#include "lib/base/random.h"
#include "lib/op/registry.h"
#include "lib/train/network.h"

#include <cblas.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 3, T = 37, VOCAB = 11 }; /* T: a multiple of nothing, two segments and a part */

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
    c.vocab = VOCAB, c.positions = 40, c.width = 10, c.heads = 2, c.hidden = 7;
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

int main(void)
{
    openblas_set_num_threads(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_operator), cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
