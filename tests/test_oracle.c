/* Every operator, form, element type and instruction set against float64 vectors made by an independent program. */
#include "lib/base/sizes.h"
#include "lib/op/registry.h"
#include "lib/op/residual.h"
#include "lib/tensor/npy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#define DATA "tests/data/oracle/"
static const char *const cases[] = {"d64", "odd_d", "t1", "tail", "wide_v", "zero_key"};

typedef struct oracle_case {
    vla_problem problem;
    char name[32];
} oracle_case;

static oracle_case read_case(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, DATA "%s/case.json", name);
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    assert_non_null(root);
    oracle_case c = {.problem = vla_problem_default(VLA_VLA, 1, 1, 1, 1)};
    snprintf(c.name, sizeof c.name, "%s", name);
    c.problem.B = json_integer_value(json_object_get(root, "B"));
    c.problem.H = json_integer_value(json_object_get(root, "H"));
    c.problem.T = c.problem.Tk = json_integer_value(json_object_get(root, "T"));
    c.problem.dk = json_integer_value(json_object_get(root, "dk"));
    c.problem.dv = json_integer_value(json_object_get(root, "dv"));
    c.problem.lambda0 = json_real_value(json_object_get(root, "lambda0"));
    json_decref(root);
    return c;
}

/* A vector of the case, or an empty tensor when the operator has none of that name. */
static vla_tensor vector(const char *name, const char *file, vla_dtype dtype)
{
    char path[256];
    vla_error error = {0};
    vla_tensor tensor = {0};
    snprintf(path, sizeof path, DATA "%s/%s.npy", name, file);
    FILE *exists = fopen(path, "rb");
    if (!exists) return tensor;
    fclose(exists);
    const vla_status status = vla_npy_read(&tensor, path, dtype, &error);
    if (status != VLA_OK) print_error("%s\n", error.message);
    assert_int_equal(status, VLA_OK);
    return tensor;
}

static void *poisoned(int64_t count, vla_dtype dtype)
{
    void *memory = NULL;
    assert_int_equal(vla_alloc(&memory, count, vla_dtype_size(dtype), "test", NULL), VLA_OK);
    memset(memory, 0xff, (size_t)count * vla_dtype_size(dtype)); /* every element a NaN */
    return memory;
}

/* Compares one output with OP.NAME; true when the oracle has that vector. */
static bool compare(const char *label, const oracle_case *c, const char *what, const void *out, vla_dtype dtype,
                    double limit)
{
    char file[64];
    snprintf(file, sizeof file, "%s.%s", vla_op_name(c->problem.op), what);
    vla_tensor ref = vector(c->name, file, VLA_F64);
    if (!ref.data) return false;
    vla_residual_sum sum = {0};
    vla_residual_add(&sum, out, dtype, ref.data, ref.count);
    const vla_residual r = vla_residual_finish(&sum);
    if (!vla_residual_pass(&r, limit))
        print_error("%s %s: residual %.3g above %.3g, %lld non-finite\n", label, what, r.residual, limit,
                    (long long)r.nonfinite);
    assert_true(vla_residual_pass(&r, limit));
    vla_tensor_destroy(&ref);
    return true;
}

static void run_kernel(const oracle_case *c, const vla_kernel *kernel, vla_dtype dtype, vla_exec *exec)
{
    const vla_problem *p = &c->problem;
    const int64_t heads = p->B * p->H;
    char label[128], reason[160];
    snprintf(label, sizeof label, "%s %s/%s/%s/%s", c->name, vla_op_name(p->op), vla_form_name(kernel->form),
             vla_dtype_name(dtype), vla_isa_name(vla_exec_isa(exec)));
    /* The decay vectors carry one gate per row of S, which the chunk form does not have. */
    if (!vla_kernel_supports(kernel, p, dtype, reason, sizeof reason)) {
        assert_true(p->op == VLA_DECAY && kernel->form == VLA_CHUNK && p->gate == VLA_GATE_ROW);
        return;
    }
    vla_tensor q = vector(c->name, "q", dtype), k = vector(c->name, "k", dtype), v = vector(c->name, "v", dtype);
    vla_tensor u = vector(c->name, "u", dtype), b = vector(c->name, "b", dtype), g = vector(c->name, "g", dtype);
    int64_t steps = 0;
    vla_tensors t = {.q = q.data, .k = k.data, .v = v.data, .u = u.data, .b = b.data, .g = g.data, .t = &steps};
    t.o = poisoned(heads * p->T * p->dv, dtype);
    t.S = poisoned(heads * p->dv * p->dk, dtype);
    t.A = poisoned(heads * p->dk * p->dk, dtype);
    t.n = poisoned(heads * p->dk, dtype);
    t.alpha = poisoned(heads * p->T * p->dk, dtype);
    vla_plan *plan = NULL;
    vla_error error = {0};
    assert_int_equal(vla_plan_create(&plan, exec, p, kernel->form, VLA_CPU, dtype, &error), VLA_OK);
    assert_int_equal(vla_plan_run(plan, &t, &error), VLA_OK);
    vla_plan_destroy(plan);

    const double limit = vla_residual_limit(p->op, dtype);
    assert_true(compare(label, c, "o", t.o, dtype, limit));
    assert_true(compare(label, c, "S", t.S, dtype, limit) == vla_op_has_S(p->op));
    assert_true(compare(label, c, "A", t.A, dtype, limit) == vla_op_has_A(p->op));
    assert_true(compare(label, c, "n", t.n, dtype, limit) == vla_op_has_n(p->op));
    assert_true(compare(label, c, "alpha", t.alpha, dtype, limit) == (p->op == VLA_VLA));
    if (p->op != VLA_SOFTMAX) assert_int_equal(steps, p->T);
    void *memory[] = {t.o, t.S, t.A, t.n, t.alpha};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) vla_free(memory[i]);
    vla_tensor *tensors[] = {&q, &k, &v, &u, &b, &g};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) vla_tensor_destroy(tensors[i]);
}

/* The gate's shape follows from the file: [B,H,T] or [B,H,T,dv]. */
static vla_gate gate_shape(const oracle_case *c)
{
    vla_tensor g = vector(c->name, "g", VLA_F64);
    const vla_gate gate = g.count == c->problem.B * c->problem.H * c->problem.T ? VLA_GATE_TOKEN : VLA_GATE_ROW;
    assert_non_null(g.data);
    vla_tensor_destroy(&g);
    return gate;
}

static void run_isa(vla_isa isa)
{
    int kernels = 0;
    vla_exec *exec = NULL;
    assert_int_equal(vla_exec_create(&exec, 2, isa, NULL), VLA_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        oracle_case c = read_case(cases[i]);
        c.problem.gate = gate_shape(&c);
        const vla_kernel *kernel = NULL;
        for (int j = 0; (kernel = vla_kernel_at(j)); j++) {
            if (kernel->backend != VLA_CPU) continue;
            c.problem.op = kernel->op;
            for (int dtype = VLA_F64; dtype <= VLA_F32; dtype++) {
                if (!vla_kernel_variant(kernel, (vla_dtype)dtype, isa, NULL)) continue;
                run_kernel(&c, kernel, (vla_dtype)dtype, exec);
                kernels++;
            }
        }
    }
    vla_exec_destroy(exec);
    assert_true(kernels >= (int)VLA_OPS);
}

static void test_base(void **state)
{
    (void)state;
    run_isa(VLA_ISA_BASE);
}

static void test_avx2(void **state)
{
    (void)state;
    if (vla_isa_detect() < VLA_ISA_AVX2) skip();
    run_isa(VLA_ISA_AVX2);
}

static void test_avx512(void **state)
{
    (void)state;
    if (vla_isa_detect() < VLA_ISA_AVX512) skip();
    run_isa(VLA_ISA_AVX512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_base), cmocka_unit_test(test_avx2),
                                       cmocka_unit_test(test_avx512)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
