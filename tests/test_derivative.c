/* The analytic Jacobian against differences of the code that runs. */
#include "lib/analysis/derivative.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void jacobian_is_the_derivative_of_the_naive_form(void **state)
{
    (void)state;
    const vla_op ops[] = {VLA_LINEAR, VLA_DELTA, VLA_DECAY, VLA_VLA, VLA_VLA, VLA_RLS};
    vla_exec *exec = NULL;
    assert_int_equal(vla_exec_create(&exec, 1, VLA_ISA_AUTO, NULL), VLA_OK);
    for (int i = 0; i < 6; i++)
        for (int64_t steps = 0; steps < 60; steps += 29) {
            vla_problem p = vla_problem_default(ops[i], 1, 1, 1, 5);
            p.dv = 3;
            p.no_normalise = i == 4;
            p.refresh_period = ops[i] == VLA_VLA ? 30 : 0;
            p.refresh_eps = 1e-2;
            const vla_source source = {
                .kind = VLA_SOURCE_PAPER, .heads = 1, .dk = 5, .dv = 3, .features = p.features, .seed = 8};
            double gap = NAN;
            vla_error error = {VLA_OK, ""};
            if (vla_derivative_gap(&p, &source, 0, steps, exec, VLA_NAIVE, VLA_F64, &gap, &error))
                fail_msg("%s", error.message);
            assert_true(gap <= vla_derivative_limit(VLA_F64));
        }
    vla_exec_destroy(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jacobian_is_the_derivative_of_the_naive_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
