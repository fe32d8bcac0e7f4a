/* The trained tasks' data, the network's forward pass against the naive operators, and the training loop: the same
 * curve for any thread count, resuming bit for bit, a loss that is not finite, checkpoints that are not ours. */
#include "lib/base/random.h"
#include "lib/op/registry.h"
#include "lib/task/sequences.h"
#include "lib/train/checkpoint.h"
#include "lib/train/trainer.h"

#include <cblas.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const vla_sequences paper = {VLA_MQAR, 128, 8, 25, 42}, zoology = {VLA_MQAR_ZOOLOGY, 128, 8, 64, 42},
                           copying = {VLA_COPY, 128, 0, 63, 42}, own = {VLA_COPY_OWN, 128, 0, 63, 42};
static const vla_sequences *const kinds[] = {&paper, &zoology, &copying, &own};

enum { MOST = 64 * 64 };

/* What a reader who understands the task answers at position t, from tokens [0, t] alone. */
static int32_t solve(const vla_sequences *s, const int32_t *tokens, int64_t t)
{
    if (s->kind == VLA_COPY_OWN) return tokens[t];
    if (s->kind == VLA_COPY) return tokens[t - (s->T - 1) / 2];
    for (int64_t i = 0; i < s->n; i++)
        if (tokens[2 * i] == tokens[t]) return tokens[2 * i + 1];
    return -2;
}

static void test_sequences(void **state)
{
    (void)state;
    static int32_t tokens[MOST], targets[MOST];
    for (int k = 0; k < 4; k++) {
        const vla_sequences *s = kinds[k];
        int64_t scored = 0, right = 0, constant = 0, fives = 0;
        assert_int_equal(vla_sequences_make(s, VLA_TRAIN, 0, 64, tokens, targets, NULL), VLA_OK);
        for (int64_t b = 0; b < 64; b++)
            for (int64_t t = 0; t < s->T; t++) {
                const int32_t target = targets[b * s->T + t];
                if (target < 0) continue;
                scored++;
                right += solve(s, tokens + b * s->T, t) == target;
                constant += target == 5 || (s->kind == VLA_MQAR_ZOOLOGY && target == 69);
                fives += 1;
            }
        const int64_t asked[4] = {8, 8, 31, 31};
        assert_int_equal(scored, 64 * asked[k]);
        assert_int_equal(right, scored);
        /* a constant answer scores its token's share of the targets: about 1/127, 1/64, 1/127 */
        const double share = (double)constant / (double)fives,
                     chance = s->kind == VLA_MQAR_ZOOLOGY ? 1.0 / 64 : 1.0 / 127;
        assert_true(fabs(share - chance) < 5 * sqrt(chance / (double)fives));
    }
}

static void test_splits(void **state)
{
    (void)state;
    static int32_t tokens[MOST], targets[MOST], again[MOST];
    for (int k = 0; k < 4; k++) {
        const vla_sequences *s = kinds[k];
        for (int split = VLA_TRAIN; split <= VLA_TEST; split++) {
            assert_int_equal(vla_sequences_make(s, (vla_split)split, 96, 32, tokens, targets, NULL), VLA_OK);
            for (int64_t b = 0; b < 32; b++)
                assert_int_equal(vla_split_of(tokens + b * s->T, s->T), split); /* so no sample is in two splits */
            assert_int_equal(vla_sequences_make(s, (vla_split)split, 100, 4, again, targets, NULL), VLA_OK);
            assert_memory_equal(again, tokens + 4 * s->T, (size_t)(4 * s->T) * sizeof *again);
        }
    }
}

static void refuse(vla_sequences s, const char *word)
{
    vla_error error = {0};
    int32_t tokens[1] = {-7}, targets[1] = {-7};
    assert_int_equal(vla_sequences_make(&s, VLA_TRAIN, 0, 1, tokens, targets, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, word));
    assert_true(tokens[0] == -7 && targets[0] == -7);
}

static void test_impossible_sizes(void **state)
{
    (void)state;
    refuse((vla_sequences){VLA_MQAR, 128, 128, 400, 1}, "n 128");
    refuse((vla_sequences){VLA_MQAR, 128, 8, 17, 1}, "T 17");
    refuse((vla_sequences){VLA_MQAR, 128, 0, 17, 1}, "n 0");
    refuse((vla_sequences){VLA_MQAR, 2, 1, 4, 1}, "vocab 2");
    refuse((vla_sequences){VLA_MQAR_ZOOLOGY, 128, 64, 256, 1}, "n 64");
    refuse((vla_sequences){VLA_MQAR_ZOOLOGY, 128, 8, 30, 1}, "T 30");
    refuse((vla_sequences){VLA_MQAR_ZOOLOGY, 128, 8, 33, 1}, "T 33");
    refuse((vla_sequences){VLA_COPY, 128, 0, 64, 1}, "T 64");
    refuse((vla_sequences){VLA_COPY, 128, 0, 1, 1}, "T 1");
}

/* Attention as the network computes it in float64 is the naive operator on the network's own projections. */
static void check_attention(vla_network_config c, double *residual)
{
    enum { B = 2, T = 37, H = 2, d = 5 };
    c.width = H * d, c.heads = H, c.hidden = 6, c.vocab = 128, c.positions = T;
    vla_network *n = NULL;
    assert_int_equal(vla_network_create(&n, &c, VLA_F64, VLA_ISA_AUTO, B, T, 3, NULL, NULL), VLA_OK);
    double *value = vla_network_values(n);
    vla_rng rng = vla_rng_seed(4, 4);
    for (int64_t i = 0; i < vla_network_stored(n); i++) value[i] += 0.3 * vla_rng_normal(&rng);
    int32_t tokens[B * T], targets[B * T];
    const vla_sequences s = {VLA_COPY, 128, 0, T, 1};
    assert_int_equal(vla_sequences_make(&s, VLA_TRAIN, 0, B, tokens, targets, NULL), VLA_OK);
    const vla_batch batch = {B, T, tokens, targets};
    vla_loss loss;
    assert_int_equal(vla_network_forward(n, &batch, &loss, NULL, NULL), VLA_OK);
    static double q[B * H * T * d], k[B * H * T * d], v[B * H * T * d], u[B * H * T * d], o[B * H * T * d],
        want[B * H * T * d], S[B * H * d * d], norms[B * H];
    vla_network_projections(n, 1, &(vla_projections){q, k, v, u, o});
    vla_exec *exec = NULL;
    vla_plan *plan = NULL;
    vla_error error = {0};
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    vla_problem p = vla_problem_default(c.op, B, H, T, d);
    p.features = c.features, p.qk_l2 = c.qk_l2, p.refresh_period = c.refresh_period, p.refresh_eps = c.refresh_eps;
    assert_int_equal(vla_plan_create(&plan, exec, &p, VLA_NAIVE, VLA_CPU, VLA_F64, &error), VLA_OK);
    const vla_tensors t = {
        .q = q, .k = k, .v = v, .u = c.op == VLA_VLA ? u : NULL, .o = want, .S = c.op == VLA_SOFTMAX ? NULL : S};
    assert_int_equal(vla_plan_run(plan, &t, &error), VLA_OK);
    double diff = 0, ref = 0;
    for (int i = 0; i < B * H * T * d; i++) diff += (o[i] - want[i]) * (o[i] - want[i]), ref += want[i] * want[i];
    *residual = sqrt(diff / ref);
    if (vla_network_state_norms(n, 1, norms))
        for (int h = 0; h < B * H; h++) {
            double squares = 0;
            for (int i = 0; i < d * d; i++) squares += S[h * d * d + i] * S[h * d * d + i];
            assert_true(fabs(norms[h] - sqrt(squares)) < 1e-11 * (1 + norms[h]));
        }
    vla_plan_destroy(plan);
    vla_exec_destroy(exec);
    vla_network_destroy(n);
}

static void test_attention_is_the_operator(void **state)
{
    (void)state;
    double residual;
    for (int op = 0; op < VLA_OPS; op++) {
        vla_network_config c = vla_network_paper((vla_op)op);
        c.gate = false, c.key_features = VLA_ELU1,
        c.floor = VLA_RATIO_EPS; /* gates: the naive form takes its own tensors */
        if (op == VLA_VLA) c.refresh_period = 5;
        check_attention(c, &residual);
        assert_true(residual < 1e-12);
        c.features = c.key_features = VLA_SILU, c.qk_l2 = op != VLA_SOFTMAX, c.penalty = false, c.conv = 4;
        check_attention(c, &residual);
        assert_true(residual <
                    (op == VLA_LINEAR || op == VLA_VLA ? 1e-9 : 1e-12)); /* SiLU's ratio may divide by little */
    }
}

static vla_status make_data(void *context, int split, int64_t first, int64_t B, int32_t *tokens, int32_t *targets,
                            vla_error *error)
{
    return vla_sequences_make(context, (vla_split)split, first, B, tokens, targets, error);
}

static const vla_sequences tiny = {VLA_MQAR, 16, 3, 10, 5};

static vla_train tiny_run(vla_op op, int64_t steps)
{
    vla_network_config c = vla_network_paper(op);
    c.vocab = 16, c.positions = 16, c.width = 16, c.heads = 2, c.hidden = 24;
    return (vla_train){.network = c,
                       .isa = VLA_ISA_AUTO,
                       .data = make_data,
                       .context = (void *)&tiny,
                       .task = "tiny",
                       .T = 10,
                       .batch = 40,
                       .steps = steps,
                       .warmup = steps / 10,
                       .lr = 3e-3,
                       .decay = 0.01,
                       .clip = 1,
                       .seed = 9,
                       .test_batches = 2,
                       .test_batch = 50};
}

static void train(const vla_train *t, int threads, bool (*tell)(void *, const vla_train_now *), void *context,
                  vla_network **network, vla_train_result *result)
{
    vla_pool *pool = NULL;
    vla_error error = {0};
    assert_int_equal(vla_pool_create(&pool, threads, NULL), VLA_OK);
    assert_int_equal(vla_train_run(t, pool, tell, context, network, result, &error), VLA_OK);
    vla_pool_destroy(pool); /* the network is only read from here on */
}

static void test_threads_do_not_matter(void **state)
{
    (void)state;
    for (int op = 0; op < VLA_OPS; op++) {
        vla_train t = tiny_run((vla_op)op, 12);
        t.network.conv = op % 2 ? 4 : 0;
        vla_network *a, *b;
        vla_train_result ra, rb;
        train(&t, 1, NULL, NULL, &a, &ra);
        train(&t, 2, NULL, NULL, &b, &rb);
        assert_memory_equal(ra.curve, rb.curve, 12 * sizeof *ra.curve);
        assert_memory_equal(vla_network_values(a), vla_network_values(b),
                            (size_t)vla_network_stored(a) * sizeof(float));
        assert_true(ra.test == rb.test && ra.curve[11] < ra.curve[0]);
        vla_network_destroy(a);
        vla_network_destroy(b);
        vla_train_result_free(&ra);
        vla_train_result_free(&rb);
    }
}

static bool stop_at_7(void *context, const vla_train_now *now)
{
    (void)context;
    return now->step != 7;
}

static void test_resume_is_bit_for_bit(void **state)
{
    (void)state;
    char path[] = "/tmp/vla_test_checkpoint_XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    unlink(path);
    vla_train t = tiny_run(VLA_VLA, 16);
    t.check_every = 5, t.enough = 2;
    vla_network *whole, *part, *rest;
    vla_train_result rw, rp, rr;
    train(&t, 1, NULL, NULL, &whole, &rw);
    t.checkpoint = path, t.resume = true;
    train(&t, 1, stop_at_7, NULL, &part, &rp);
    assert_true(rp.steps == 7 && rp.stop == VLA_STOP_ASKED && isnan(rp.test));
    train(&t, 2, NULL, NULL, &rest, &rr);
    assert_int_equal(rr.steps, 16);
    assert_memory_equal(rw.curve, rr.curve, 16 * sizeof *rw.curve);
    assert_memory_equal(vla_network_values(whole), vla_network_values(rest),
                        (size_t)vla_network_stored(whole) * sizeof(float));
    assert_true(rw.test == rr.test && rw.validation == rr.validation);
    vla_error error = {0};
    vla_network *other = NULL;
    vla_train_result ro;
    t.lr *= 2; /* another run's checkpoint */
    assert_int_equal(vla_train_run(&t, NULL, NULL, NULL, &other, &ro, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "another run"));
    t.lr /= 2;
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(vla_train_run(&t, NULL, NULL, NULL, &other, &ro, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "cut short"));
    vla_network *networks[] = {whole, part, rest};
    for (int i = 0; i < 3; i++) vla_network_destroy(networks[i]);
    vla_train_result *results[] = {&rw, &rp, &rr};
    for (int i = 0; i < 3; i++) vla_train_result_free(results[i]);
    unlink(path);
}

static void test_giving_up(void **state)
{
    (void)state;
    vla_train t = tiny_run(VLA_RLS, 16);
    t.check_every = 5, t.enough = 2, t.give_up = 7; /* an accuracy never reached */
    vla_network *n;
    vla_train_result r;
    train(&t, 1, NULL, NULL, &n, &r);
    assert_true(r.steps == 7 && r.stop == VLA_STOP_GIVE_UP && r.validation >= 0);
    vla_network_destroy(n);
    vla_train_result_free(&r);
    t.enough = 0, t.patience = 1, t.give_up = 16; /* patience alone, as long as it lasts */
    train(&t, 1, NULL, NULL, &n, &r);
    assert_true(r.steps == 16 || (r.stop == VLA_STOP_PATIENCE && r.steps % 5 == 0));
    vla_network_destroy(n);
    vla_train_result_free(&r);
}

static void test_errors(void **state)
{
    (void)state;
    vla_error error = {0};
    vla_network *n = NULL;
    vla_train_result result;
    vla_train t = tiny_run(VLA_LINEAR, 12);
    t.lr = 1e30, t.warmup = 1; /* step 1 has rate 0, step 2 ruins the weights, step 3 sees it */
    assert_int_equal(vla_train_run(&t, NULL, NULL, NULL, &n, &result, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "step 3"));
    assert_null(n);
    t = tiny_run(VLA_LINEAR, 1); /* no later step would see it */
    t.lr = 1e300;
    assert_int_equal(vla_train_run(&t, NULL, NULL, NULL, &n, &result, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "step 1: a parameter"));
    assert_null(n);
    t = tiny_run(VLA_LINEAR, 12);
    t.T = 17;
    assert_int_equal(vla_train_run(&t, NULL, NULL, NULL, &n, &result, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "T 17"));
    t = tiny_run(VLA_LINEAR, 12);
    t.network.heads = 3;
    assert_int_equal(vla_train_run(&t, NULL, NULL, NULL, &n, &result, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "heads 3"));
    t = tiny_run(VLA_LINEAR, 12);
    t.warmup = 13;
    assert_int_equal(vla_train_run(&t, NULL, NULL, NULL, &n, &result, &error), VLA_ERR_ARGUMENT);
    assert_int_equal(vla_network_create(&n, &t.network, VLA_BF16, VLA_ISA_AUTO, 1, 1, 1, NULL, &error),
                     VLA_ERR_UNSUPPORTED);
}

static void test_nothing_asked(void **state)
{
    (void)state;
    vla_network *n = NULL;
    const vla_train t = tiny_run(VLA_VLA, 1);
    assert_int_equal(vla_network_create(&n, &t.network, VLA_F32, VLA_ISA_AUTO, 2, 4, 1, NULL, NULL), VLA_OK);
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t targets[8] = {-1, -1, -1, -1, -1, -1, -1, -1}, predictions[8];
    const vla_batch batch = {2, 4, tokens, targets};
    vla_loss loss;
    assert_int_equal(vla_network_forward(n, &batch, &loss, predictions, NULL), VLA_OK);
    assert_true(loss.loss == 0 && loss.scored == 0 && predictions[7] == -1);
    vla_network_backward(n);
    const float *grad = vla_network_gradients(n);
    for (int64_t i = 0; i < vla_network_stored(n); i++) assert_true(grad[i] == 0);
    targets[7] = 16;
    vla_error error = {0};
    assert_int_equal(vla_network_forward(n, &batch, &loss, NULL, &error), VLA_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "target 16 at sequence 1, position 3"));
    vla_network_destroy(n);
}

static void test_schedule(void **state)
{
    (void)state;
    const vla_train t = {.steps = 3000, .warmup = 300, .lr = 3e-4};
    assert_true(vla_train_rate(&t, 0) == 0 && fabs(vla_train_rate(&t, 150) - 1.5e-4) < 1e-18);
    assert_true(fabs(vla_train_rate(&t, 300) - 3e-4) < 1e-18 && fabs(vla_train_rate(&t, 1650) - 1.5e-4) < 1e-15);
    assert_true(vla_train_rate(&t, 3000) == 0 && vla_train_rate(&t, 2999) < 1e-9);
}

int main(void)
{
    openblas_set_num_threads(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sequences),
                                       cmocka_unit_test(test_splits),
                                       cmocka_unit_test(test_impossible_sizes),
                                       cmocka_unit_test(test_attention_is_the_operator),
                                       cmocka_unit_test(test_threads_do_not_matter),
                                       cmocka_unit_test(test_resume_is_bit_for_bit),
                                       cmocka_unit_test(test_giving_up),
                                       cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_nothing_asked),
                                       cmocka_unit_test(test_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
