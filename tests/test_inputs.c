/* Input tensors and states: shapes that fit are expanded, others are refused with both tensors named, and synthetic
 * values depend on nothing but what they say they depend on. */
#include "lib/op/inputs.h"
#include "lib/op/state.h"
#include "lib/tensor/npy.h"
#include "tests/folder.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "3,4" -> a file of 1, 2, 3, .. ; NULL removes the file. */
static void save(const char *name, const char *shape)
{
    char path[128];
    static double data[4096];
    int64_t sizes[8];
    int rank = 0;
    vla_error error = {0};
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    if (!shape) {
        unlink(path);
        return;
    }
    for (char *p = (char *)(uintptr_t)shape; *p; p += *p == ',') sizes[rank++] = strtoll(p, &p, 10);
    for (int i = 0; i < 4096; i++) data[i] = i + 1;
    if (vla_npy_write(path, data, VLA_F64, rank, sizes, &error) != VLA_OK) fail_msg("%s", error.message);
}

typedef struct shapes {
    const char *q, *k, *v, *u, *b, *g;
} shapes;

static vla_status load(const shapes *s, vla_inputs *in, vla_error *error)
{
    const char *list[] = {s->q, s->k, s->v, s->u, s->b, s->g};
    for (int i = 0; i < VLA_INPUTS; i++) save(vla_input_name((vla_input)i), list[i]);
    *error = (vla_error){0};
    return vla_inputs_load_directory(in, folder, VLA_F64, error);
}

static void accepted_shapes(void **state)
{
    (void)state;
    static const struct {
        shapes s;
        int64_t B, H, T, Tk, dk, dv;
        vla_gate gate;
    } cases[] = {
        {{"5,3", "5,3", "5,2", NULL, NULL, NULL}, 1, 1, 5, 5, 3, 2, VLA_GATE_NONE},
        {{"4,5,3", "4,5,3", "4,5,2", "4,5,3", "5", "5"}, 1, 4, 5, 5, 3, 2, VLA_GATE_TOKEN},
        {{"2,4,5,3", "2,4,5,3", "2,4,5,2", NULL, "4,5", "2,4,5"}, 2, 4, 5, 5, 3, 2, VLA_GATE_TOKEN},
        {{"2,4,5,3", "2,4,5,3", "2,4,5,2", NULL, "2,4,5", "2,4,5,2"}, 2, 4, 5, 5, 3, 2, VLA_GATE_ROW},
        {{"1,5,3", "5,3", "1,1,5,2", NULL, NULL, NULL}, 1, 1, 5, 5, 3, 2, VLA_GATE_NONE},
        {{"2,3", "5,3", "5,2", NULL, NULL, NULL}, 1, 1, 2, 5, 3, 2, VLA_GATE_NONE},
        {{"2,0,3", "2,0,3", "2,0,1", NULL, "0", NULL}, 1, 2, 0, 0, 3, 1, VLA_GATE_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vla_inputs in;
        vla_error error;
        if (load(&cases[i].s, &in, &error) != VLA_OK) fail_msg("case %zu: %s", i, error.message);
        assert_true(in.B == cases[i].B && in.H == cases[i].H && in.T == cases[i].T && in.Tk == cases[i].Tk);
        assert_true(in.dk == cases[i].dk && in.dv == cases[i].dv && in.gate == cases[i].gate);
        if (in.tensor[VLA_IN_B].data) assert_int_equal(in.tensor[VLA_IN_B].count, in.B * in.H * in.Tk);
        vla_inputs_destroy(&in);
    }
}

static void logits_repeat_over_missing_dimensions(void **state)
{
    (void)state;
    const shapes s = {"2,2,3,1", "2,2,3,1", "2,2,3,1", NULL, "3", "2,3"};
    vla_inputs in;
    vla_error error;
    assert_int_equal(load(&s, &in, &error), VLA_OK);
    const double *b = in.tensor[VLA_IN_B].data, *g = in.tensor[VLA_IN_G].data;
    for (int i = 0; i < 12; i++) {
        assert_true(b[i] == i % 3 + 1);
        assert_true(g[i] == i % 6 + 1);
    }
    vla_inputs_destroy(&in);
}

static void mismatches_name_both_tensors(void **state)
{
    (void)state;
    static const struct {
        shapes s;
        const char *first, *second;
    } cases[] = {
        {{"5,3", "5,4", "5,2", NULL, NULL, NULL}, "q [1,1,5,3]", "k [1,1,5,4]"},
        {{"5,3", "5,3", "6,2", NULL, NULL, NULL}, "k [1,1,5,3]", "v [1,1,6,2]"},
        {{"6,3", "5,3", "5,2", NULL, NULL, NULL}, "q [1,1,6,3]", "more queries than keys"},
        {{"2,5,3", "5,3", "5,2", NULL, NULL, NULL}, "q [1,2,5,3]", "k [1,1,5,3]"},
        {{"1,2,5,3", "2,1,5,3", "2,1,5,2", NULL, NULL, NULL}, "q [1,2,5,3]", "k [2,1,5,3]"},
        {{"2,5,3", "2,5,3", "3,5,2", NULL, NULL, NULL}, "k [1,2,5,3]", "v [1,3,5,2]"},
        {{"5,3", "5,3", "5,2", "5,2", NULL, NULL}, "u [1,1,5,2]", "k [1,1,5,3]"},
        {{"5,3", "5,3", "5,2", "4,3", NULL, NULL}, "u [1,1,4,3]", "k [1,1,5,3]"},
        {{"2,5,3", "2,5,3", "2,5,2", NULL, "3,5", NULL}, "b [3,5]", "k [1,2,5,3]"},
        {{"2,5,3", "2,5,3", "2,5,2", NULL, "4", NULL}, "b [4]", "k [1,2,5,3]"},
        {{"2,5,3", "2,5,3", "2,5,2", NULL, "1,2,5,2", NULL}, "b [1,2,5,2]", "k [1,2,5,3]"},
        {{"2,5,3", "2,5,3", "2,5,2", NULL, "", NULL}, "b []", "k [1,2,5,3]"},
        {{"2,5,3", "2,5,3", "2,5,2", NULL, NULL, "1,2,5,3"}, "g [1,2,5,3]", "v [1,2,5,2]"},
        {{"5", "5", "5", NULL, NULL, NULL}, "q.npy", "[T,d]"},
        {{"1,1,1,5,3", "5,3", "5,2", NULL, NULL, NULL}, "q.npy", "[T,d]"},
        {{"5,0", "5,0", "5,2", NULL, NULL, NULL}, "q.npy", "at least 1"},
        {{"0,5,3", "0,5,3", "0,5,2", NULL, NULL, NULL}, "q.npy", "at least 1"},
        {{"5,3", NULL, "5,2", NULL, NULL, NULL}, "k.npy", "No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vla_inputs in;
        vla_error error;
        if (load(&cases[i].s, &in, &error) != VLA_ERR_FILE) fail_msg("case %zu is accepted", i);
        if (!strstr(error.message, cases[i].first) || !strstr(error.message, cases[i].second))
            fail_msg("case %zu gave: %s", i, error.message);
    }
}

static void only_softmax_takes_fewer_queries(void **state)
{
    (void)state;
    const shapes s = {"2,3", "5,3", "5,2", NULL, NULL, NULL};
    vla_inputs in;
    vla_error error;
    assert_int_equal(load(&s, &in, &error), VLA_OK);
    vla_problem softmax = vla_problem_default(VLA_SOFTMAX, 1, 1, 1, 1),
                delta = vla_problem_default(VLA_DELTA, 1, 1, 1, 1);
    assert_int_equal(vla_inputs_problem(&in, &softmax, &error), VLA_OK);
    assert_true(softmax.T == 2 && softmax.Tk == 5 && softmax.dk == 3 && softmax.dv == 2);
    assert_int_equal(vla_inputs_problem(&in, &delta, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "softmax"));
    vla_inputs_destroy(&in);
}

static void synthetic_values_depend_on_their_place_alone(void **state)
{
    (void)state;
    static const bool all[VLA_INPUTS] = {true, true, true, true, true, true}, few[VLA_INPUTS] = {true, true, true};
    vla_problem big = vla_problem_default(VLA_VLA, 3, 4, 9, 5), small = vla_problem_default(VLA_VLA, 2, 2, 6, 5);
    vla_inputs a, b, c, f;
    vla_error error = {0};
    big.gate = small.gate = VLA_GATE_TOKEN;
    assert_int_equal(vla_inputs_synthetic(&a, &big, 7, all, VLA_F64, &error), VLA_OK);
    assert_int_equal(vla_inputs_synthetic(&b, &small, 7, few, VLA_F64, &error), VLA_OK);
    assert_int_equal(vla_inputs_synthetic(&c, &small, 8, few, VLA_F64, &error), VLA_OK);
    assert_int_equal(vla_inputs_synthetic(&f, &small, 7, few, VLA_F32, &error), VLA_OK);
    assert_null(b.tensor[VLA_IN_U].data);
    for (int i = 0; i < 3; i++)
        for (int64_t batch = 0; batch < 2; batch++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t x = 0; x < 6 * 5; x++) {
                    int64_t at = (batch * 2 + h) * 30 + x;
                    double mine = vla_load(b.tensor[i].data, VLA_F64, at);
                    assert_true(mine == vla_load(a.tensor[i].data, VLA_F64, (batch * 4 + h) * 45 + x));
                    assert_true(mine != vla_load(c.tensor[i].data, VLA_F64, at));
                    assert_true((float)mine == (float)vla_load(f.tensor[i].data, VLA_F32, at));
                }
    double sum = 0, square = 0;
    const vla_tensor *k = &a.tensor[VLA_IN_K];
    for (int64_t i = 0; i < k->count; i++) {
        double x = vla_load(k->data, VLA_F64, i);
        sum += x;
        square += x * x;
        assert_true(x != vla_load(a.tensor[VLA_IN_Q].data, VLA_F64, i) &&
                    x != vla_load(a.tensor[VLA_IN_U].data, VLA_F64, i));
    }
    assert_true(fabs(sum / (double)k->count) < 0.2 && fabs(square / (double)k->count - 1) < 0.2);
    vla_inputs_destroy(&a);
    vla_inputs_destroy(&b);
    vla_inputs_destroy(&c);
    vla_inputs_destroy(&f);
}

static void the_first_bad_value_is_found(void **state)
{
    (void)state;
    static const bool all[VLA_INPUTS] = {true, true, true, true, true, true};
    vla_problem p = vla_problem_default(VLA_VLA, 1, 3, 8, 4);
    vla_inputs in;
    vla_error error = {0};
    vla_bad_input bad;
    p.gate = VLA_GATE_TOKEN;
    assert_int_equal(vla_inputs_synthetic(&in, &p, 1, all, VLA_F32, &error), VLA_OK);
    assert_false(vla_inputs_first_bad(&in, VLA_VLA, &bad));
    ((float *)in.tensor[VLA_IN_U].data)[(1 * 8 + 3) * 4 + 2] = NAN;
    ((float *)in.tensor[VLA_IN_Q].data)[(2 * 8 + 5) * 4] = INFINITY;
    ((float *)in.tensor[VLA_IN_B].data)[1] = NAN;
    assert_true(vla_inputs_first_bad(&in, VLA_VLA, &bad));
    assert_true(bad.input == VLA_IN_U && bad.head == 1 && bad.token == 3);
    assert_true(vla_inputs_first_bad(&in, VLA_SOFTMAX, &bad));
    assert_true(bad.input == VLA_IN_Q && bad.head == 2 && bad.token == 5);
    assert_true(vla_inputs_first_bad(&in, VLA_DELTA, &bad));
    assert_true(bad.input == VLA_IN_B && bad.head == 0 && bad.token == 1);
    char one[17], two[17];
    vla_inputs_digest(&in, one);
    ((float *)in.tensor[VLA_IN_V].data)[5] += 1;
    vla_inputs_digest(&in, two);
    assert_string_not_equal(one, two);
    vla_inputs_destroy(&in);
}

static void states_read_back_as_written(void **state)
{
    (void)state;
    vla_problem p = vla_problem_default(VLA_VLA, 2, 3, 1, 4);
    p.dv = 5;
    p.lambda0 = 0.25;
    vla_state a, b, head;
    vla_error error = {0};
    char directory[128], path[160];
    snprintf(directory, sizeof directory, "%s/state", folder);
    assert_int_equal(vla_state_create(&a, &p, VLA_F64, &error), VLA_OK);
    assert_true(((double *)a.A.data)[0] == 4 && ((double *)a.A.data)[1] == 0 && ((double *)a.A.data)[5] == 4);
    for (int64_t i = 0; i < a.S.count; i++) ((double *)a.S.data)[i] = (double)i / 7;
    a.t = 123456789;
    assert_int_equal(vla_state_save(&a, directory, &error), VLA_OK);
    assert_int_equal(vla_state_load(&b, &p, VLA_F64, directory, &error), VLA_OK);
    assert_true(b.t == a.t);
    assert_memory_equal(a.S.data, b.S.data, (size_t)a.S.count * sizeof(double));
    assert_memory_equal(a.A.data, b.A.data, (size_t)a.A.count * sizeof(double));
    assert_int_equal(vla_state_head(&head, &b, 4, &error), VLA_OK);
    assert_true(((double *)head.S.data)[3] == (4 * 20 + 3) / 7.0);
    vla_state_destroy(&head);
    char one[17], two[17];
    vla_state_digest(&a, one);
    vla_state_digest(&b, two);
    assert_string_equal(one, two);
    ((double *)b.S.data)[7] += 1;
    vla_state_digest(&b, two);
    assert_string_not_equal(one, two);
    vla_state_destroy(&b);
    p.op = VLA_RLS; /* whose parts are there too */
    assert_int_equal(vla_state_load(&b, &p, VLA_F64, directory, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "op.txt: the state of 'vla'; accepted: of 'rls'"));
    p.op = VLA_VLA;
    p.dv = 4; /* other problems do not take this state */
    assert_int_equal(vla_state_load(&b, &p, VLA_F64, directory, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "S has shape [2,3,5,4]; the inputs need [2,3,4,4]"));
    p.dv = 5;
    snprintf(path, sizeof path, "%s/t.npy", directory);
    const double half = 1.5;
    assert_int_equal(vla_npy_write(path, &half, VLA_F64, 0, NULL, &error), VLA_OK);
    assert_int_equal(vla_state_load(&b, &p, VLA_F64, directory, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "t.npy"));
    unlink(path); /* t is 0 without its file, unless a refresh counts steps */
    assert_int_equal(vla_state_load(&b, &p, VLA_F64, directory, &error), VLA_OK);
    assert_true(b.t == 0);
    vla_state_destroy(&b);
    p.refresh_period = 20;
    assert_int_equal(vla_state_load(&b, &p, VLA_F64, directory, &error), VLA_ERR_FILE);
    snprintf(path, sizeof path, "%s/n.npy", directory);
    unlink(path);
    assert_int_equal(vla_state_load(&b, &p, VLA_F64, directory, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "n.npy"));
    vla_state_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_shapes),
        cmocka_unit_test(logits_repeat_over_missing_dimensions),
        cmocka_unit_test(mismatches_name_both_tensors),
        cmocka_unit_test(only_softmax_takes_fewer_queries),
        cmocka_unit_test(synthetic_values_depend_on_their_place_alone),
        cmocka_unit_test(the_first_bad_value_is_found),
        cmocka_unit_test(states_read_back_as_written),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
