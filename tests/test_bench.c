/* Cases, checks and sweeps. */
#include "lib/measure/sweep.h"
#include "lib/measure/variant.h"
#include "lib/op/registry.h"
#include "lib/train/bench_backward.h"
#include "lib/op/work.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static vla_case case_of(vla_op op, vla_form form, vla_dtype dtype, int64_t H, int64_t T, int64_t d)
{
    return (vla_case){.problem = vla_problem_default(op, 1, H, T, d),
                      .form = form,
                      .backend = VLA_CPU,
                      .dtype = dtype,
                      .isa = VLA_ISA_AUTO,
                      .threads = 2};
}

static const char *const example = "vla/chunk/cpu/f32/B1_H4_T2048_K64_V32";

static void test_label(void **state)
{
    (void)state;
    vla_case c = case_of(VLA_RLS, VLA_NAIVE, VLA_F64, 9, 9, 9);
    vla_error error = {0};
    char label[VLA_LABEL_SIZE];
    assert_int_equal(vla_case_parse(&c, example, &error), VLA_OK);
    assert_int_equal(c.problem.op, VLA_VLA);
    assert_int_equal(c.problem.T, 2048);
    assert_int_equal(c.problem.dv, 32);
    assert_int_equal(c.mode, VLA_PREFILL);
    c.threads = 0;
    assert_string_equal(vla_case_label(&c, label, sizeof label), example);
    const char *all = "softmax/recurrent/cpu/f64/B2_H3_T1_L4096_K7_V5_C16_G4_N777";
    assert_int_equal(vla_case_parse(&c, all, &error), VLA_OK);
    assert_int_equal(c.mode, VLA_DECODE);
    assert_int_equal(c.depth, 4096);
    assert_int_equal(c.problem.Tk, 4096);
    assert_string_equal(vla_case_label(&c, label, sizeof label), all);
}

static void test_bad_labels(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "vla",
                                      "vla/chunk/cpu/f32",
                                      "vla/chunk/cpu/f32/",
                                      "foo/chunk/cpu/f32/B1_H1_T1_K1_V1",
                                      "vla/foo/cpu/f32/B1_H1_T1_K1_V1",
                                      "vla/chunk/tpu/f32/B1_H1_T1_K1_V1",
                                      "vla/chunk/cpu/f99/B1_H1_T1_K1_V1",
                                      "vla/chunk/cpu/f32/B1_H1_T1_K1",
                                      "vla/chunk/cpu/f32/B1_H1_T1_K1_V1_",
                                      "vla/chunk/cpu/f32/B1_H1_T1_K1_V1_V2",
                                      "vla/chunk/cpu/f32/B1_H1_T-1_K1_V1",
                                      "vla/chunk/cpu/f32/B1_H1_T1x_K1_V1",
                                      "vla/chunk/cpu/f32/B0_H1_T1_K1_V1",
                                      "vla/chunk/cpu/f32/B1_H1_T1_K0_V1",
                                      "vla/chunk/cpu/f32/B1_H1_T99999999999999999999_K1_V1",
                                      "vla/chunk/cpu/f32/B1_H1_T2_L4_K1_V1",
                                      "vla/chunk/cpu/f32/B1_H1_T1_L0_K1_V1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        vla_case c = case_of(VLA_VLA, VLA_CHUNK, VLA_F32, 1, 1, 1);
        vla_error error = {0};
        if (vla_case_parse(&c, bad[i], &error) == VLA_OK) fail_msg("'%s' was accepted", bad[i]);
        assert_true(strlen(error.message) > 10);
    }
}

static void key_of(const vla_case *c, int64_t seed, const char *input, char *key)
{
    vla_record *r = vla_record_create("sample");
    assert_true(vla_case_record(c, seed, input, r));
    snprintf(key, 32, "%s", vla_record_text(r, "key", ""));
    assert_int_equal(strlen(key), 16);
    vla_record_destroy(r);
}

static void test_key(void **state)
{
    (void)state;
    vla_case base = case_of(VLA_VLA, VLA_CHUNK, VLA_F32, 4, 64, 8), other;
    char key[32], changed[32];
    key_of(&base, 42, NULL, key);
    key_of(&base, 42, NULL, changed);
    assert_string_equal(key, changed);
#define DIFFERS(assignment) \
    other = base, other.assignment, key_of(&other, 42, NULL, changed), assert_string_not_equal(key, changed)
    DIFFERS(problem.T = 65);
    DIFFERS(problem.dv = 9);
    DIFFERS(problem.lambda0 = 0.2);
    DIFFERS(problem.chunk = 16);
    DIFFERS(problem.segments = 2);
    DIFFERS(problem.output = VLA_PLAIN);
    DIFFERS(problem.features = VLA_SILU);
    DIFFERS(problem.qk_l2 = true);
    DIFFERS(problem.no_normalise = true);
    DIFFERS(problem.refresh_period = 20);
    DIFFERS(threads = 3);
    DIFFERS(isa = VLA_ISA_BASE);
    DIFFERS(form = VLA_RECURRENT);
    DIFFERS(dtype = VLA_F64);
    key_of(&base, 43, NULL, changed);
    assert_string_not_equal(key, changed);
    key_of(&base, 42, "0123456789abcdef", changed);
    assert_string_not_equal(key, changed);
}

static void test_work(void **state)
{
    (void)state;
    vla_problem p = vla_problem_default(VLA_VLA, 2, 3, 5, 7);
    p.dv = 4;
    assert_true(vla_work_flops(&p) == 30.0 * (6 * 49 + 6 * 28));
    p.op = VLA_RLS;
    assert_true(vla_work_flops(&p) == 30.0 * (4 * 49 + 6 * 28));
    p.op = VLA_DELTA;
    assert_true(vla_work_flops(&p) == 30.0 * 6 * 28);
    p.op = VLA_LINEAR;
    assert_true(vla_work_flops(&p) == 30.0 * 4 * 28);
    p.op = VLA_SOFTMAX; /* 15 allowed pairs a head; with 9 keys 5*4 + 15 */
    assert_true(vla_work_flops(&p) == 6.0 * 15 * 2 * 11);
    assert_true(vla_state_bytes(&p, VLA_F32) == 6.0 * 5 * 11 * 4);
    p.Tk = 9;
    assert_true(vla_work_flops(&p) == 6.0 * 35 * 2 * 11);
    p = vla_problem_default(VLA_VLA, 1, 1, 5, 7);
    assert_true(vla_work_bytes(&p, VLA_F32, true, true) == 5.0 * 7 * 5 * 4);
    assert_true(vla_work_bytes(&p, VLA_F64, false, false) == 5.0 * 7 * 4 * 8);
    assert_true(vla_state_bytes(&p, VLA_F64) == (49 + 49 + 7) * 8.0);
}

/* --check must notice every kind of wrong output. */
typedef struct fixture {
    vla_case c;
    vla_exec *exec;
    vla_inputs inputs;
    vla_bench bench;
} fixture;

static void prepare(fixture *f, vla_op op, int64_t H, int64_t T)
{
    static const bool all[VLA_INPUTS] = {true, true, true, true, true, true};
    vla_error error = {0};
    f->c = case_of(op, VLA_NAIVE, VLA_F64, H, T, 4);
    if (op == VLA_DECAY) f->c.problem.gate = VLA_GATE_TOKEN;
    assert_int_equal(vla_exec_create(&f->exec, 2, VLA_ISA_AUTO, &error), VLA_OK);
    assert_int_equal(vla_inputs_synthetic(&f->inputs, &f->c.problem, 1, all, VLA_F64, &error), VLA_OK);
    const vla_bench_check how = {.seed = 5};
    assert_int_equal(vla_bench_prepare(&f->bench, &f->c, f->exec, &f->inputs, NULL, &how, &error), VLA_OK);
}

static void release(fixture *f)
{
    vla_bench_free(&f->bench);
    vla_inputs_destroy(&f->inputs);
    vla_exec_destroy(f->exec);
}

static void test_check_sees_wrong_gradients(void **state)
{
    (void)state;
    fixture f;
    prepare(&f, VLA_VLA, 2, 67);
    void *context = NULL;
    vla_case c = f.c;
    c.threads = 2;
    vla_check check = {.limit = 1e-12, .pass = true};
    assert_int_equal(vla_backward_pass.create(&context, &c, &f.inputs, 3, NULL), VLA_OK);
    assert_int_equal(vla_backward_pass.run(context, NULL), VLA_OK);
    assert_int_equal(vla_backward_pass.check(context, &check, NULL), VLA_OK);
    assert_true(check.pass && check.residual.residual < 1e-12);
    ((double *)f.inputs.tensor[VLA_IN_U].data)[5] += 1e-6; /* the gradients are now another problem's */
    assert_int_equal(vla_backward_pass.check(context, &check, NULL), VLA_OK);
    assert_true(!check.pass && strstr(check.reason, "gradient of "));
    vla_backward_pass.destroy(context);
    assert_int_equal(vla_backward_pass.create(&context, &c, &f.inputs, 3, NULL), VLA_OK);
    check = (vla_check){.limit = 1e-12, .pass = true};
    assert_int_equal(vla_backward_pass.check(context, &check, NULL), VLA_OK); /* nothing was written */
    assert_true(!check.pass && check.residual.nonfinite > 0);
    vla_backward_pass.destroy(context);
    release(&f);
}

static vla_check check_again(fixture *f, bool full)
{
    vla_check check;
    vla_error error = {0};
    assert_int_equal(vla_check_run(&f->c, f->exec, &f->inputs, NULL, &f->bench.buffers, NULL, full, 5, &check, &error),
                     VLA_OK);
    return check;
}

static void test_check_finds(void **state)
{
    (void)state;
    fixture f;
    prepare(&f, VLA_VLA, 9, 6);
    assert_int_equal(f.bench.status, VLA_ROW_OK);
    assert_string_equal(f.bench.check.checked, "4 heads");
    double *o = f.bench.buffers.o, *S = f.bench.buffers.S, kept;
    const int64_t last = 9 * 6 * 4 - 1;
    kept = o[last];
    o[last] += 1e-3; /* the last head is always compared */
    assert_false(check_again(&f, false).pass);
    o[last] = NAN;
    vla_check check = check_again(&f, false);
    assert_false(check.pass);
    assert_non_null(strstr(check.reason, "head 8, token 5"));
    o[last] = kept;
    assert_true(check_again(&f, false).pass);
    double *const parts[] = {S, f.bench.buffers.A, f.bench.buffers.n};
    for (int i = 0; i < 3; i++) { /* a wrong final state is wrong, whichever part of it */
        kept = parts[i][0];
        parts[i][0] += 1;
        assert_false(check_again(&f, false).pass);
        parts[i][0] = kept;
    }
    ((unsigned char *)o)[f.bench.buffers.o_bytes] = 0; /* one byte past the end */
    check = check_again(&f, false);
    assert_false(check.pass);
    assert_non_null(strstr(check.reason, "past the end"));
    release(&f);
}

/* References made before give the same verdict to the bit, for every form alike, and are found only for what they are.
 */
static void test_shared_references(void **state)
{
    (void)state;
    static const vla_op ops[] = {VLA_VLA, VLA_DELTA, VLA_SOFTMAX};
    for (int i = 0; i < 3; i++) {
        fixture f;
        vla_references known = {0};
        vla_check check;
        vla_error error = {0};
        prepare(&f, ops[i], 9, 80);
        double *o = f.bench.buffers.o;
        o[0] += 1e-14;
        assert_int_equal(vla_check_needs(&f.c, false, 5, &known, &error), VLA_OK);
        assert_int_equal(vla_check_needs(&f.c, false, 5, &known, &error), VLA_OK);
        f.c.problem.chunk = 16; /* cut otherwise, the same operator */
        assert_int_equal(vla_check_needs(&f.c, false, 5, &known, &error), VLA_OK);
        assert_int_equal(known.count, 4);
        assert_true(vla_references_bytes(&known, 2) > 4 * 8 * 4);
        assert_int_equal(vla_references_make(&known, &f.inputs, f.exec, &error), VLA_OK);
        const vla_residual own = check_again(&f, false).residual;
        assert_int_equal(
            vla_check_run(&f.c, f.exec, &f.inputs, NULL, &f.bench.buffers, &known, false, 5, &check, &error), VLA_OK);
        assert_true(own.residual > 0 && check.residual.residual == own.residual);
        assert_int_equal(check.residual.compared, own.compared);
        /* They are what is compared with: a wrong one fails a right result. */
        for (int64_t k = 0; k < known.items[3].o.count; k++) ((double *)known.items[3].o.data)[k] += 1;
        assert_int_equal(
            vla_check_run(&f.c, f.exec, &f.inputs, NULL, &f.bench.buffers, &known, false, 5, &check, &error), VLA_OK);
        assert_false(check.pass);
        f.c.problem.lambda0 = 0.5;
        assert_null(vla_references_find(&known, &f.c.problem, 0, known.items[0].rows));
        vla_references_free(&known);
        release(&f);
    }
}

static void test_check_full_and_rows(void **state)
{
    (void)state;
    fixture f;
    prepare(&f, VLA_SOFTMAX, 2, 200);
    assert_string_equal(f.bench.check.checked, "2 heads, 66 rows");
    double *o = f.bench.buffers.o;
    const int64_t places[] = {0, 199 * 4, 200 * 4, 399 * 4 + 3}; /* first and last row of both heads */
    for (size_t i = 0; i < 4; i++) {
        const double kept = o[places[i]];
        o[places[i]] += 0.5;
        assert_false(check_again(&f, false).pass);
        o[places[i]] = kept;
    }
    for (int64_t row = 0; row < 200; row++) { /* --check full leaves no row out */
        const double kept = o[row * 4 + 1];
        o[row * 4 + 1] += 0.5;
        if (row % 40 == 7) assert_false(check_again(&f, true).pass);
        o[row * 4 + 1] = kept;
    }
    assert_string_equal(check_again(&f, true).checked, "all");
    release(&f);
}

static void test_bench_of_odd_cases(void **state)
{
    (void)state;
    fixture f;
    prepare(&f, VLA_DECAY, 1, 0); /* no tokens: ok, and nothing to time */
    assert_int_equal(f.bench.status, VLA_ROW_OK);
    assert_false(vla_bench_can_time(&f.bench));
    const vla_bench_facts facts = {.seed = 1};
    vla_record *r = vla_bench_record(&f.bench, &facts);
    assert_string_equal(vla_record_text(r, "status", ""), "ok");
    assert_true(isnan(vla_record_number(r, "median_s", NAN)));
    vla_record_destroy(r);
    release(&f);

    prepare(&f, VLA_VLA, 1, 8);
    ((double *)f.inputs.tensor[VLA_IN_K].data)[3 * 4] = NAN; /* token 3 of k */
    vla_bench_free(&f.bench);
    vla_error error = {0};
    const vla_bench_check how = {.seed = 5};
    assert_int_equal(vla_bench_prepare(&f.bench, &f.c, f.exec, &f.inputs, NULL, &how, &error), VLA_OK);
    assert_int_equal(f.bench.status, VLA_ROW_FAIL); /* no time for data that is not a number */
    assert_non_null(strstr(f.bench.reason, "k is not finite at head 0, token 3"));
    release(&f);
}

static void test_variants(void **state)
{
    (void)state;
    vla_variants v = {0};
    vla_row_status status;
    char reason[240];
    vla_case c = case_of(VLA_VLA, VLA_CHUNK, VLA_F32, 4, 512, 8), other = c;
    vla_variants_end(&v, &c, VLA_ROW_FAIL, "wrong"); /* a wrong answer at one size says nothing of others */
    assert_false(vla_variants_ended(&v, &c, &status, reason, sizeof reason));
    vla_variants_end(&v, &c, VLA_ROW_OOM, "needs 9 GiB");
    other.problem.T = 511;
    assert_false(vla_variants_ended(&v, &other, &status, reason, sizeof reason));
    other.problem.T = 1024;
    assert_true(vla_variants_ended(&v, &other, &status, reason, sizeof reason));
    assert_int_equal(status, VLA_ROW_OOM);
    assert_non_null(strstr(reason, "512"));
    other.form = VLA_RECURRENT;
    assert_false(vla_variants_ended(&v, &other, &status, reason, sizeof reason));
    vla_variants_free(&v);
}

static vla_sweep_config quick(double limit)
{
    return (vla_sweep_config){.time_limit = limit, .min_samples = 3, .noise = 0.5, .seed = 42, .isa = VLA_ISA_AUTO};
}

static void test_sweep_and_resume(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_sweep *sweep;
    vla_error error = {0};
    vla_case cases[4];
    const vla_sweep_config config = quick(60);
    for (int i = 0; i < 2; i++) {
        cases[2 * i] = case_of(VLA_DELTA, VLA_NAIVE, VLA_F64, 2, 8 << i, 4);
        cases[2 * i + 1] = case_of(VLA_SOFTMAX, VLA_NAIVE, VLA_BF16, 2, 8 << i, 4);
    }
    assert_int_equal(vla_sweep_create(&sweep, &config, &rows, &error), VLA_OK);
    assert_int_equal(vla_sweep_run(sweep, cases, 4, 1, &error), VLA_OK);
    vla_sweep_counts n = vla_sweep_totals(sweep);
    assert_true(n.run == 4 && n.passed == 2 && n.skipped == 2 && n.failed == 0);
    assert_int_equal(rows.count, 4);
    assert_true(vla_record_number(rows.rows[0], "median_s", 0) > 0);
    assert_true(vla_record_number(rows.rows[0], "n_samples", 0) >= 3);
    assert_true(isnan(vla_record_number(rows.rows[1], "median_s", NAN)));
    assert_non_null(strstr(vla_record_text(rows.rows[1], "reason", ""), "bf16"));
    vla_sweep_destroy(sweep);
    /* Again with the same rows: nothing is measured. */
    assert_int_equal(vla_sweep_create(&sweep, &config, &rows, &error), VLA_OK);
    assert_int_equal(vla_sweep_run(sweep, cases, 4, 1, &error), VLA_OK);
    n = vla_sweep_totals(sweep);
    assert_true(n.run == 0 && n.resumed == 4);
    assert_int_equal(rows.count, 4);
    vla_sweep_destroy(sweep);
    vla_records_clear(&rows);
}

/* A scan on several threads is set beside its one-thread forms and beside copies of one side by side, of its own
 * operator and settings alone; without such a form, or on one thread, there is nothing to say. */
static void test_gains(void **state)
{
    (void)state;
    vla_records rows = {0}, gains = {0};
    vla_sweep *sweep;
    vla_error error = {0};
    vla_sweep_config config = quick(60);
    vla_case cases[] = {case_of(VLA_VLA, VLA_RECURRENT, VLA_F32, 1, 300, 8),
                        case_of(VLA_VLA, VLA_SCAN, VLA_F32, 1, 300, 8), case_of(VLA_VLA, VLA_SCAN, VLA_F32, 1, 300, 8),
                        case_of(VLA_VLA, VLA_SCAN, VLA_F32, 1, 300, 8),
                        case_of(VLA_DELTA, VLA_SCAN, VLA_F32, 1, 300, 8)};
    cases[0].threads = cases[2].threads = 1;
    cases[3].problem.lambda0 = 1;
    config.gains = &gains;
    assert_int_equal(vla_sweep_create(&sweep, &config, &rows, &error), VLA_OK);
    assert_int_equal(vla_sweep_run(sweep, cases, 5, 1, &error), VLA_OK);
    assert_int_equal(rows.count, 5);
    assert_int_equal(gains.count, 1);
    const vla_record *r = gains.rows[0];
    assert_string_equal(vla_record_text(r, "kind", ""), "gain");
    assert_string_equal(vla_record_text(r, "case", "-"), vla_record_text(rows.rows[1], "case", ""));
    assert_true(vla_record_number(r, "lambda0", 0) == 0.1);
    assert_true(vla_record_number(r, "turns", 0) >= 3);
    const double gain = vla_record_number(r, "gain", 0), ceiling = vla_record_number(r, "ceiling", 0);
    assert_true(gain > 0 && ceiling > 0 && vla_record_number(r, "of_ceiling", 0) > 0);
    assert_true(vla_record_number(r, "gain_q1", 9e9) <= gain && gain <= vla_record_number(r, "gain_q3", 0));
    vla_sweep_destroy(sweep);
    vla_records_clear(&rows);
    vla_records_clear(&gains);
}

static void test_sweep_out_of_time(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_sweep *sweep;
    vla_error error = {0};
    const vla_case cases[] = {case_of(VLA_DELTA, VLA_NAIVE, VLA_F64, 1, 4, 4),
                              case_of(VLA_SOFTMAX, VLA_NAIVE, VLA_F64, 64, 1 << 20, 64), /* hours */
                              case_of(VLA_DELTA, VLA_NAIVE, VLA_F64, 1, 8, 4)};
    const vla_sweep_config config = quick(60);
    assert_int_equal(vla_sweep_create(&sweep, &config, &rows, &error), VLA_OK);
    assert_int_equal(vla_sweep_run(sweep, cases, 3, 1, &error), VLA_OK);
    assert_int_equal(rows.count, 3);
    assert_string_equal(vla_record_text(rows.rows[0], "status", ""), "ok");
    const char *status = vla_record_text(rows.rows[1], "status", "");
    assert_true(!strcmp(status, "timeout") || !strcmp(status, "oom"));
    assert_string_equal(vla_record_text(rows.rows[2], "status", ""), "ok");
    /* A timeout is no measurement, and a failed check stays one: resuming tries again and replaces the row. */
    vla_record_string(rows.rows[2], "status", "timeout");
    assert_false(vla_case_among(&cases[2], 42, NULL, &rows));
    vla_record_string(rows.rows[2], "status", "fail");
    assert_false(vla_case_among(&cases[2], 42, NULL, &rows));
    assert_true(vla_case_among(&cases[0], 42, NULL, &rows));
    assert_int_equal(vla_sweep_run(sweep, &cases[2], 1, 1, &error), VLA_OK);
    assert_int_equal(rows.count, 3);
    assert_string_equal(vla_record_text(rows.rows[2], "status", ""), "ok");
    vla_sweep_destroy(sweep);
    vla_records_clear(&rows);
}

/* Decode: state operators begin every repeat from the same state, softmax reads its whole cache. */
static void test_decode(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_sweep *sweep;
    vla_error error = {0};
    vla_case cases[VLA_OPS];
    const vla_sweep_config config = quick(60);
    for (int op = 0; op < VLA_OPS; op++) {
        vla_case *c = &cases[op];
        *c = case_of((vla_op)op, VLA_NAIVE, VLA_F64, 5, 1, 4);
        c->mode = VLA_DECODE;
        c->depth = 33;
        if (op == VLA_SOFTMAX) c->problem.Tk = 33;
        if (op == VLA_DECAY) c->problem.gate = VLA_GATE_TOKEN;
    }
    assert_int_equal(vla_sweep_create(&sweep, &config, &rows, &error), VLA_OK);
    assert_int_equal(vla_sweep_run(sweep, cases, VLA_OPS, 1, &error), VLA_OK);
    assert_int_equal(vla_sweep_totals(sweep).passed, VLA_OPS);
    for (int op = 0; op < VLA_OPS; op++) {
        /* After any number of repeats one more from the reset state gives the checked outputs, bit for bit. */
        assert_null(strstr(vla_record_text(rows.rows[op], "warning", ""), "differ"));
        assert_true(vla_record_number(rows.rows[op], "time_per_token_s", 0) > 0);
    }
    assert_true(vla_record_number(rows.rows[0], "state_bytes", 0) == 5.0 * 33 * 8 * 8);
    vla_sweep_destroy(sweep);
    vla_records_clear(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_sees_wrong_gradients),
        cmocka_unit_test(test_label),
        cmocka_unit_test(test_bad_labels),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_work),
        cmocka_unit_test(test_check_finds),
        cmocka_unit_test(test_shared_references),
        cmocka_unit_test(test_check_full_and_rows),
        cmocka_unit_test(test_bench_of_odd_cases),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_sweep_and_resume),
        cmocka_unit_test(test_gains),
        cmocka_unit_test(test_sweep_out_of_time),
        cmocka_unit_test(test_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
