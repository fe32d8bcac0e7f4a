/* What is made of measured records: curves, fits, crossovers, verdicts, comparisons, figures. */
#include "lib/measure/compare.h"
#include "lib/measure/curves.h"
#include "lib/measure/expect.h"
#include "lib/measure/figures.h"
#include "lib/measure/fit.h"
#include "lib/measure/search.h"
#include "lib/measure/verdict.h"
#include "lib/op/work.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static vla_record *row(const char *op, const char *form, int64_t T, double median, const char *status)
{
    char label[64], key[96];
    vla_record *r = vla_record_create("sample");
    snprintf(label, sizeof label, "%s/%s/T%lld", op, form, (long long)T);
    snprintf(key, sizeof key, "key-%s", label);
    vla_record_string(r, "case", label);
    vla_record_string(r, "key", key);
    vla_record_string(r, "op", op);
    vla_record_string(r, "form", form);
    vla_record_string(r, "backend", "cpu");
    vla_record_string(r, "dtype", "f32");
    vla_record_string(r, "mode", "prefill");
    vla_record_int(r, "B", 1);
    vla_record_int(r, "H", 1);
    vla_record_int(r, "T", T);
    vla_record_int(r, "dk", 64);
    vla_record_int(r, "dv", 64);
    vla_record_int(r, "threads", 2);
    vla_record_string(r, "status", status);
    vla_record_real(r, "median_s", median);
    vla_record_real(r, "median_lo_s", 0.99 * median);
    vla_record_real(r, "median_hi_s", 1.01 * median);
    return r;
}

static void add(vla_records *rows, vla_record *r)
{
    assert_true(vla_records_push(rows, r));
}

static void test_curves(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_settings settings;
    vla_op_curve c;
    vla_error error = {0};
    add(&rows, row("vla", "chunk", 512, 5, "ok"));
    add(&rows, row("vla", "recurrent", 512, 4, "ok")); /* the faster form counts */
    add(&rows, row("vla", "scan", 512, NAN, "skip"));  /* a skipped form hides nothing */
    add(&rows, row("vla", "chunk", 128, 1, "ok"));     /* unsorted */
    add(&rows, row("vla", "chunk", 128, 2, "ok"));     /* the same key again: the later row */
    add(&rows, row("vla", "chunk", 1024, NAN, "fail"));
    add(&rows, row("vla", "chunk", 0, NAN, "ok")); /* T = 0 is left out */
    add(&rows, row("linear", "chunk", 128, 9, "ok"));
    assert_int_equal(vla_settings_of(&rows, &settings, &error), VLA_OK);
    assert_int_equal(settings.count, 1);
    assert_int_equal(vla_curve_of(&rows, &settings.items[0], "vla", &c, &error), VLA_OK);
    assert_int_equal(c.curve.count, 3);
    assert_int_equal(c.points[0].x, 128);
    assert_true(c.points[0].time.value == 2);
    assert_true(c.points[1].time.value == 4);
    assert_false(c.points[2].known);
    vla_curve_free(&c);
    vla_settings_free(&settings);
    vla_records_clear(&rows);
}

static void test_crossover_record(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_settings settings;
    vla_crossover x;
    vla_error error = {0};
    /* vla at half, softmax at a quarter of a peak of 1e9: equal times at half the model's crossover. */
    for (int64_t T = 64; T <= 1024; T *= 2) {
        vla_problem p = vla_problem_default(VLA_VLA, 1, 1, T, 64);
        add(&rows, row("vla", "chunk", T, vla_work_flops(&p) / 0.5e9, "ok"));
        vla_record_real(rows.rows[rows.count - 1], "share_of_peak", 0.5);
        p.op = VLA_SOFTMAX;
        add(&rows, row("softmax", "chunk", T, vla_work_flops(&p) / 0.25e9, "ok"));
        vla_record_real(rows.rows[rows.count - 1], "share_of_peak", 0.25);
    }
    assert_int_equal(vla_settings_of(&rows, &settings, &error), VLA_OK);
    vla_record *r = vla_crossover_record(&rows, &settings.items[0], "vla", "softmax", 1, &x, &error);
    assert_non_null(r);
    assert_string_equal(vla_record_text(r, "state", ""), "found");
    assert_true(vla_record_number(r, "lo", 0) == 128 && vla_record_number(r, "hi", 0) == 256);
    /* 12 dk^2 <= 2 (T + 1) dk at T = 383. */
    assert_true(vla_record_number(r, "model", 0) == 383);
    assert_true(fabs(vla_record_number(r, "explained", 0) - 191) < 2);
    assert_true(fabs(vla_record_number(r, "gap", 0) + 0.5) < 0.01);
    assert_non_null(strstr(vla_record_text(r, "reason", ""), "0.50"));
    char text[400];
    vla_crossover_sentence(r, text, sizeof text);
    assert_non_null(strstr(text, "between 128 and 256"));
    assert_int_equal(x.next, 181);
    vla_record_destroy(r);
    vla_settings_free(&settings);
    vla_records_clear(&rows);
}

static void test_fit_records(void **state)
{
    (void)state;
    vla_records rows = {0}, out = {0};
    vla_settings settings;
    vla_error error = {0};
    for (int64_t T = 64; T <= 1024; T *= 2) {
        add(&rows, row("vla", "chunk", T, 4096e-6 * (double)T, "ok"));
        add(&rows, row("softmax", "chunk", T, 1e-6 * (double)(T * T), "ok"));
    }
    assert_int_equal(vla_settings_of(&rows, &settings, &error), VLA_OK);
    assert_int_equal(vla_fit_records(&rows, &settings.items[0], "softmax", 1, &out, &error), VLA_OK);
    assert_int_equal(out.count, 4); /* all points, the last 4, 3 and 2 */
    assert_true(fabs(vla_record_number(out.rows[0], "exponent", 0) - 2) < 1e-9);
    assert_int_equal(vla_extrapolation_records(&rows, &settings.items[0], "vla", "softmax", 1, &out, &error), VLA_OK);
    assert_true(fabs(vla_record_number(out.rows[4], "estimate", 0) - 4096) < 1e-6);
    assert_true(vla_record_get(out.rows[4], "extrapolated")->boolean);
    vla_settings_free(&settings);
    vla_records_clear(&rows);
    vla_records_clear(&out);
}

static vla_record *crossing(int64_t H, int64_t d, double lo, const char *state)
{
    vla_record *r = vla_record_create("crossover");
    vla_record_string(r, "a", "vla");
    vla_record_string(r, "b", "softmax");
    vla_record_string(r, "backend", "cuda");
    vla_record_string(r, "dtype", "bf16");
    vla_record_string(r, "mode", "prefill");
    vla_record_int(r, "B", 1);
    vla_record_int(r, "H", H);
    vla_record_int(r, "dk", d);
    vla_record_int(r, "dv", d);
    vla_record_string(r, "state", state);
    vla_record_real(r, "lo", lo);
    vla_record_real(r, "hi", 1.05 * lo);
    vla_record_real(r, "estimate", 1.02 * lo);
    return r;
}

static int64_t lines_with(const char *directory, const char *name, const char *text)
{
    char path[200], line[512];
    int64_t n = 0;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) n += strstr(line, text) != NULL;
    if (file) fclose(file);
    return n;
}

/* Crossovers against d share their heads, those against heads their d; a series needs two, and only found ones count.
 */
static void test_crossing_figures(void **state)
{
    (void)state;
    char directory[] = "/tmp/vla-test-XXXXXX", command[64];
    vla_records rows = {0};
    vla_figures_done done;
    vla_error error = {0};
    assert_non_null(mkdtemp(directory));
    add(&rows, crossing(16, 64, 2000, "found"));
    add(&rows, crossing(16, 128, 4000, "found"));
    add(&rows, crossing(16, 32, 1000, "none"));
    add(&rows, crossing(64, 64, 3000, "found"));
    assert_int_equal(vla_bench_figures(directory, &rows, &done, &error), VLA_OK);
    assert_int_equal(done.written, 2);
    assert_true(lines_with(directory, "crossover_width.gp", "B x H = 16") > 0);
    assert_int_equal(lines_with(directory, "crossover_width.gp", "B x H = 64"), 0);
    assert_true(lines_with(directory, "crossover_width.dat", "4000") == 1 &&
                lines_with(directory, "crossover_width.dat", "1000") == 0);
    assert_true(lines_with(directory, "crossover_heads.gp", "d = 64") > 0);
    assert_int_equal(lines_with(directory, "crossover_heads.gp", "d = 128"), 0);
    vla_records_clear(&rows);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
}

static const vla_record *verdict_of(const vla_records *out, const char *claim, const char *part)
{
    for (int64_t i = 0; i < out->count; i++)
        if (!strcmp(vla_record_text(out->rows[i], "claim", ""), claim) &&
            !strncmp(vla_record_text(out->rows[i], "part", ""), part, strlen(part)))
            return out->rows[i];
    fail_msg("no verdict for %s %s", claim, part);
    return NULL;
}

static void expect_verdict(const vla_records *out, const char *claim, const char *part, const char *verdict,
                           double value)
{
    const vla_record *r = verdict_of(out, claim, part);
    assert_string_equal(vla_record_text(r, "verdict", ""), verdict);
    assert_true(fabs(vla_record_number(r, "value", NAN) / value - 1) < 1e-3);
    assert_non_null(strstr(vla_record_text(r, "replay", ""), "vla-bench --op "));
    assert_true(strlen(vla_record_text(r, "condition", "")) > 10);
}

/* Times of known shape, and what they must be taken for. */
static void test_verdicts(void **state)
{
    (void)state;
    vla_records rows = {0}, out = {0};
    vla_error error = {0};
    for (int64_t T = 1024; T <= 131072; T *= 2) {
        const double t = (double)T;
        add(&rows, row("softmax", "chunk", T, 1e-9 * t * t, "ok")); /* meets vla at 10,000 */
        vla_record_real(rows.rows[rows.count - 1], "peak_bytes", 512 * t);
        add(&rows, row("linear", "chunk", T, 2e-6 * t, "ok"));
        vla_record_real(rows.rows[rows.count - 1], "flops", 4 * t);
        add(&rows, row("vla", "chunk", T, 1e-5 * t, "ok"));
        vla_record_real(rows.rows[rows.count - 1], "flops", 12 * t);
    }
    add(&rows, row("vla", "stepwise", 1024, 0.4, "ok"));
    add(&rows, row("vla", "recurrent", 1024, 0.02, "ok"));
    assert_int_equal(vla_bench_verdicts(&rows, 1, &out, &error), VLA_OK);
    expect_verdict(&out, "C1", "softmax", "holds", 2);
    expect_verdict(&out, "C1", "vla", "holds", 1);
    expect_verdict(&out, "C5", "time", "holds", 5);
    expect_verdict(&out, "C5", "operations", "refuted", 3);
    expect_verdict(&out, "C6", "one launch", "holds if", 20);
    expect_verdict(&out, "C11", "measured", "refuted", 10000);
    expect_verdict(&out, "C11", "extrapolated from the last 2", "holds", 10000);
    expect_verdict(&out, "C19", "length", "refuted", 131072);
    expect_verdict(&out, "C19", "memory", "holds", 1);
    assert_non_null(strstr(vla_record_text(verdict_of(&out, "C11", "measured"), "replay", ""), "--T 1024-131072x2"));
    vla_records_clear(&out);
    for (int64_t i = 0; i < rows.count; i++) /* now as decode: T is the context */
        if (vla_record_number(rows.rows[i], "T", 0) > 0) {
            const double T = vla_record_number(rows.rows[i], "T", 0);
            vla_record_string(rows.rows[i], "mode", "decode");
            vla_record_int(rows.rows[i], "depth", (int64_t)T);
            vla_record_real(rows.rows[i], "state_bytes",
                            strcmp(vla_record_text(rows.rows[i], "op", ""), "softmax") ? 8192 : 256 * T);
        }
    assert_int_equal(vla_bench_verdicts(&rows, 1, &out, &error), VLA_OK);
    expect_verdict(&out, "C18", "state", "holds", 1);
    expect_verdict(&out, "C18", "time", "refuted", 128);
    assert_int_equal(out.count, 2);
    vla_records_clear(&out);
    /* Another's table: judged by its own number, and nothing here replays it. */
    for (int64_t i = 0; i < rows.count; i++) {
        vla_record_string(rows.rows[i], "mode", "prefill");
        vla_record_string(rows.rows[i], "source", "theirs");
    }
    assert_int_equal(vla_bench_verdicts(&rows, 1, &out, &error), VLA_OK);
    const vla_record *r = verdict_of(&out, "C11", "extrapolated from the last 3");
    assert_string_equal(vla_record_text(r, "verdict", ""), "refuted");
    assert_null(vla_record_text(r, "replay", NULL));
    assert_non_null(strstr(vla_record_text(r, "source", ""), "theirs, "));
    vla_records_clear(&out);
    vla_records_clear(&rows);
}

static void test_compare(void **state)
{
    (void)state;
    vla_records before = {0}, after = {0}, out = {0};
    vla_comparison n;
    vla_error error = {0};
    const double times[][2] = {{1, 2}, {2, 1}, {1, 1.01}, {1, 1.06}};
    const char *const verdicts[] = {"slower", "faster", "same", "ambiguous", "changed"};
    for (int i = 0; i < 4; i++) {
        add(&before, row("vla", "chunk", 100 + i, times[i][0], "ok"));
        add(&after, row("vla", "chunk", 100 + i, times[i][1], "ok"));
    }
    add(&before, row("vla", "chunk", 104, 1, "ok"));
    add(&after, row("vla", "chunk", 104, NAN, "fail"));
    add(&before, row("vla", "chunk", 7, 1, "ok"));
    add(&after, row("vla", "chunk", 8, 1, "ok"));
    add(&after, row("vla", "chunk", 9, 1, "ok"));
    assert_int_equal(vla_compare(&before, &after, 0.05, &out, &n, &error), VLA_OK);
    assert_int_equal(out.count, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(vla_record_text(out.rows[i], "verdict", ""), verdicts[i]);
    assert_true(n.slower == 1 && n.faster == 1 && n.same == 1 && n.ambiguous == 1 && n.changed == 1);
    assert_true(n.joined == 5 && n.only_old == 1 && n.only_new == 2);
    vla_records_clear(&before);
    vla_records_clear(&after);
    vla_records_clear(&out);
}

static void test_merge_and_relate(void **state)
{
    (void)state;
    vla_records a = {0}, b = {0}, merged = {0}, out = {0};
    vla_comparison n;
    vla_error error = {0};
    add(&a, row("vla", "chunk", 64, 1, "ok"));
    add(&a, row("softmax", "chunk", 64, 2, "ok"));
    add(&b, row("vla", "chunk", 64, 3, "ok"));
    add(&b, row("linear", "chunk", 64, 1, "ok"));
    assert_int_equal(vla_merge(&merged, &a, &error), VLA_OK);
    assert_int_equal(vla_merge(&merged, &b, &error), VLA_OK);
    assert_int_equal(merged.count, 3);
    assert_true(vla_record_number(merged.rows[0], "median_s", 0) == 3); /* the later file, in its old place */
    assert_int_equal(vla_relate(&merged, "softmax", 0.05, &out, &n, &error), VLA_OK);
    assert_int_equal(out.count, 2);
    assert_true(n.slower == 1 && n.faster == 1);
    vla_records_clear(&a);
    vla_records_clear(&b);
    vla_records_clear(&merged);
    vla_records_clear(&out);
}

static void test_expect(void **state)
{
    (void)state;
    vla_records want = {0}, have = {0};
    FILE *sink = fopen("/dev/null", "w");
    add(&want, row("vla", "chunk", 64, 1, "ok"));
    add(&have, row("vla", "chunk", 64, 99, "ok")); /* times are another question */
    assert_int_equal(vla_expect_differs(&want, &have, sink), 0);
    add(&want, row("vla", "chunk", 128, 1, "ok"));
    add(&have, row("vla", "chunk", 128, NAN, "skip"));
    add(&want, row("vla", "chunk", 256, 1, "ok"));
    assert_int_equal(vla_expect_differs(&want, &have, sink), 2);
    fclose(sink);
    vla_records_clear(&want);
    vla_records_clear(&have);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curves),           cmocka_unit_test(test_crossover_record),
        cmocka_unit_test(test_fit_records),      cmocka_unit_test(test_crossing_figures),
        cmocka_unit_test(test_verdicts),         cmocka_unit_test(test_compare),
        cmocka_unit_test(test_merge_and_relate), cmocka_unit_test(test_expect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
