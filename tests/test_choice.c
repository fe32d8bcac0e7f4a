/* The selector of device forms: its table on made-up devices, and against every cell of the record it was made from. */
#include "kernels/cuda/choice.h"
#include "lib/base/names.h"
#include "lib/report/report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GRID "plots/reference/h200/grid.csv"
enum { H200 = 132 };

static vla_problem problem(vla_op op, int64_t heads, int64_t T, int64_t d)
{
    return vla_problem_default(op, 1, heads, T, d);
}

static void test_costs_behave(void **state)
{
    (void)state;
    assert_true(VLA_COSTS > 0);
    for (int i = 0; i < VLA_COSTS; i++) {
        const vla_cost *c = &vla_costs[i];
        assert_true(c->base >= 0 && c->serial > 0 && c->load > 0);
        const vla_problem few = problem(c->op, 1, 4096, c->width), many = problem(c->op, 512, 4096, c->width);
        assert_ptr_equal(vla_cost_of(&few, c->dtype, c->form), c); /* no row stands for another */
        assert_true(vla_cost_us(c, &few, H200) <= vla_cost_us(c, &many, H200));
        /* Heads queue for fewer multiprocessors, and a device large enough leaves the serial time alone. */
        assert_true(vla_cost_us(c, &many, 66) > vla_cost_us(c, &many, H200));
        assert_true(fabs(vla_cost_us(c, &many, 1 << 20) - (c->base + 4096 * c->serial)) < 1e-6);
        assert_true(isfinite(vla_cost_us(c, &many, 0)));
    }
}

static void test_only_what_can_run(void **state)
{
    (void)state;
    const vla_problem p = problem(VLA_VLA, 16, 65536, 64), step = problem(VLA_VLA, 16, 1, 64);
    bool can[VLA_FORMS] = {false};
    assert_int_equal(vla_device_form(&p, VLA_BF16, H200, can), VLA_NAIVE);
    can[VLA_STEPWISE] = true;
    assert_int_equal(vla_device_form(&p, VLA_BF16, H200, can), VLA_STEPWISE);
    can[VLA_RECURRENT] = true;
    assert_int_equal(vla_device_form(&p, VLA_BF16, H200, can), VLA_RECURRENT);
    can[VLA_CHUNK] = true;
    assert_int_equal(vla_device_form(&p, VLA_BF16, H200, can), VLA_CHUNK); /* long and few heads: not token by token */
    assert_int_equal(vla_device_form(&p, VLA_F16, H200, can), VLA_CHUNK);
    assert_int_equal(vla_device_form(&step, VLA_BF16, H200, can), VLA_RECURRENT);
    const vla_problem softmax = problem(VLA_SOFTMAX, 16, 4096, 64); /* never measured against another form */
    assert_int_equal(vla_device_form(&softmax, VLA_BF16, H200, can), VLA_CHUNK);
    const vla_problem wide = problem(VLA_VLA, 16, 65536, 512); /* beyond every row: the widest stands for it */
    assert_int_equal(vla_device_form(&wide, VLA_BF16, H200, can), VLA_CHUNK);
}

/* A form that was not measured at these widths cannot displace one that was. */
static bool known(const vla_record *r, const char *field)
{
    return isfinite(vla_record_number(r, field, NAN));
}

static bool same_cell(const vla_record *a, const vla_record *b)
{
    static const char *const numbers[] = {"B", "H", "T", "dk", "dv"};
    static const char *const texts[] = {"op", "dtype", "mode", "launch", "cache"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (vla_record_number(a, numbers[i], -1) != vla_record_number(b, numbers[i], -1)) return false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(vla_record_text(a, texts[i], ""), vla_record_text(b, texts[i], ""))) return false;
    return true;
}

/* The form chosen at the cell of row `at` takes at most a tenth more than the cell's fastest. */
static void judge_cell(const vla_records *rows, int64_t at, int *cells)
{
    const vla_record *first = rows->rows[at];
    bool can[VLA_FORMS] = {false};
    double time[VLA_FORMS], best = INFINITY;
    vla_op op = VLA_OPS;
    vla_dtype dtype = VLA_BF16;
    for (int64_t i = 0; i < rows->count; i++) {
        const vla_record *r = rows->rows[i];
        vla_form form;
        if (strcmp(vla_record_text(r, "kind", ""), "sample") || strcmp(vla_record_text(r, "status", ""), "ok") ||
            !known(r, "median_s") || !same_cell(r, first) || !vla_form_parse(vla_record_text(r, "form", ""), &form))
            continue;
        if (i < at) return; /* judged before */
        can[form] = true;
        time[form] = vla_record_number(r, "median_s", NAN);
        if (time[form] < best) best = time[form];
    }
    assert_true(vla_op_parse(vla_record_text(first, "op", ""), &op));
    assert_true(vla_dtype_parse(vla_record_text(first, "dtype", ""), &dtype));
    vla_problem p = problem(op, (int64_t)vla_record_number(first, "H", 0), (int64_t)vla_record_number(first, "T", 0),
                            (int64_t)vla_record_number(first, "dk", 0));
    p.B = (int64_t)vla_record_number(first, "B", 0);
    const vla_form chosen = vla_device_form(&p, dtype, H200, can);
    if (time[chosen] > 1.1 * best)
        fail_msg("%s: %s takes %.3g s, the fastest form %.3g s", vla_record_text(first, "case", ""),
                 vla_form_name(chosen), time[chosen], best);
    ++*cells;
}

static void test_within_a_tenth_on_the_grid(void **state)
{
    (void)state;
    vla_records rows = {0};
    vla_error error = {0};
    int cells = 0;
    assert_int_equal(vla_records_read(&rows, GRID, &error), VLA_OK);
    for (int64_t i = 0; i < rows.count; i++)
        if (!strcmp(vla_record_text(rows.rows[i], "status", ""), "ok") && known(rows.rows[i], "median_s"))
            judge_cell(&rows, i, &cells);
    assert_true(cells >= 100);
    vla_records_clear(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs_behave), cmocka_unit_test(test_only_what_can_run),
                                       cmocka_unit_test(test_within_a_tenth_on_the_grid)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
