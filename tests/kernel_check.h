/* What the tests of the fast CPU kernels share: problems with random inputs, runs on fenced and poisoned buffers
 * through every compiled instruction set, and the comparison with naive on the inputs the kernel saw. */
#ifndef TESTS_KERNEL_CHECK_H
#define TESTS_KERNEL_CHECK_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "lib/base/random.h"
#include "lib/op/registry.h"
#include "lib/op/residual.h"

enum { GUARD = 64, IN_Q = 0, IN_K, IN_V, IN_U, IN_B, IN_G, INPUTS, OUT_O = 0, OUT_S, OUT_A, OUT_N, OUT_ALPHA, OUTPUTS };

typedef struct buffer {
    unsigned char *base;
    int64_t count;
    size_t size;
} buffer;

/* `count` NaN elements between two fences. A buffer with base NULL stands for an absent tensor. */
static inline buffer buffer_new(int64_t count, size_t size)
{
    buffer b = {NULL, count, size};
    const size_t bytes = (size_t)count * size, whole = (2 * GUARD + bytes + 63) / 64 * 64;
    b.base = aligned_alloc(64, whole);
    assert_non_null(b.base);
    memset(b.base, 0xA5, whole);
    memset(b.base + GUARD, 0xFF, bytes);
    return b;
}

static inline void *buffer_data(const buffer *b)
{
    return b->base ? b->base + GUARD : NULL;
}

static inline void buffer_check(const buffer *b)
{
    if (!b->base) return;
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(b->base[i], 0xA5);
        assert_int_equal(b->base[GUARD + (size_t)b->count * b->size + i], 0xA5);
    }
}

static inline double buffer_get(const buffer *b, int64_t i)
{
    return b->size == 8 ? ((double *)buffer_data(b))[i] : (double)((float *)buffer_data(b))[i];
}

static inline void buffer_set(const buffer *b, int64_t i, double x)
{
    if (b->size == 8)
        ((double *)buffer_data(b))[i] = x;
    else
        ((float *)buffer_data(b))[i] = (float)x;
}

static inline buffer buffer_copy(const buffer *b, size_t size)
{
    buffer c = {NULL, b->count, size};
    if (!b->base) return c;
    c = buffer_new(b->count, size);
    for (int64_t i = 0; i < b->count; i++) buffer_set(&c, i, buffer_get(b, i));
    return c;
}

static inline void buffer_free(buffer *b)
{
    free(b->base);
    b->base = NULL;
}

/* A problem with its data in one dtype: inputs, and outputs that double as the state at the start. */
typedef struct kernel_case {
    vla_problem p;
    vla_dtype dtype;
    buffer in[INPUTS], out[OUTPUTS];
    int64_t t;
    bool state_in;
} kernel_case;

static inline void fill_normal(buffer *b, uint64_t seed, uint64_t stream, double scale)
{
    vla_rng rng = vla_rng_seed(seed, stream);
    for (int64_t i = 0; i < b->count; i++) buffer_set(b, i, scale * vla_rng_normal(&rng));
}

/* Inputs: standard normal times scale for q and k; u, b and g where wanted. State and outputs are NaN. */
static inline kernel_case case_new(vla_problem p, vla_dtype dtype, bool u, bool b, double scale, uint64_t seed)
{
    const int64_t heads = p.B * p.H;
    if (p.Tk == 0) p.Tk = p.T;
    const int64_t gate = p.op != VLA_DECAY || p.gate == VLA_GATE_NONE ? -1 : p.gate == VLA_GATE_ROW ? p.dv : 1;
    const int64_t counts[INPUTS] = {p.T * p.dk,          p.Tk * p.dk,  p.Tk * p.dv,
                                    u ? p.T * p.dk : -1, b ? p.T : -1, gate < 0 ? -1 : p.T * gate};
    const int64_t outs[OUTPUTS] = {p.T * p.dv, vla_op_has_S(p.op) ? p.dv * p.dk : -1,
                                   vla_op_has_A(p.op) ? p.dk * p.dk : -1, vla_op_has_n(p.op) ? p.dk : -1,
                                   p.op == VLA_VLA ? p.T * p.dk : -1};
    kernel_case c = {.p = p, .dtype = dtype};
    for (int i = 0; i < INPUTS; i++)
        if (counts[i] >= 0) {
            c.in[i] = buffer_new(heads * counts[i], vla_dtype_size(dtype));
            fill_normal(&c.in[i], seed, (uint64_t)i, i <= IN_K || i == IN_U ? scale : 1);
        }
    for (int i = 0; i < OUTPUTS; i++)
        if (outs[i] >= 0) c.out[i] = buffer_new(heads * outs[i], vla_dtype_size(dtype));
    return c;
}

/* The same data in another dtype. */
static inline kernel_case case_copy(const kernel_case *c, vla_dtype dtype)
{
    kernel_case copy = *c;
    copy.dtype = dtype;
    for (int i = 0; i < INPUTS; i++) copy.in[i] = buffer_copy(&c->in[i], vla_dtype_size(dtype));
    for (int i = 0; i < OUTPUTS; i++) copy.out[i] = buffer_copy(&c->out[i], vla_dtype_size(dtype));
    return copy;
}

static inline void case_free(kernel_case *c)
{
    for (int i = 0; i < INPUTS; i++) buffer_free(&c->in[i]);
    for (int i = 0; i < OUTPUTS; i++) buffer_free(&c->out[i]);
}

static inline vla_tensors case_tensors(kernel_case *c)
{
    return (vla_tensors){.q = buffer_data(&c->in[IN_Q]),
                         .k = buffer_data(&c->in[IN_K]),
                         .v = buffer_data(&c->in[IN_V]),
                         .u = buffer_data(&c->in[IN_U]),
                         .b = buffer_data(&c->in[IN_B]),
                         .g = buffer_data(&c->in[IN_G]),
                         .o = buffer_data(&c->out[OUT_O]),
                         .S = buffer_data(&c->out[OUT_S]),
                         .A = buffer_data(&c->out[OUT_A]),
                         .n = buffer_data(&c->out[OUT_N]),
                         .alpha = buffer_data(&c->out[OUT_ALPHA]),
                         .t = &c->t,
                         .state_in = c->state_in};
}

/* A pool for each number of threads, kept until the end: to start threads anew for every case takes longer than the
 * cases. */
static inline vla_pool *pool_of(int threads)
{
    static vla_pool *pools[9];
    vla_error error = {0};
    assert_in_range(threads, 1, 8);
    if (!pools[threads]) assert_int_equal(vla_pool_create(&pools[threads], threads, &error), VLA_OK);
    return pools[threads];
}

/* Runs a form on fenced, NaN-filled workspace of exactly the size asked for, and checks fences and inputs. */
static inline void case_run(kernel_case *c, vla_form form, vla_isa isa, int threads)
{
    const vla_kernel *kernel = vla_kernel_find(c->p.op, form, VLA_CPU);
    assert_non_null(kernel);
    const vla_variant *variant = kernel->variants[c->dtype][isa];
    assert_non_null(variant);
    vla_error error = {0};
    vla_pool *pool = pool_of(threads);
    buffer work = {0}, before[INPUTS];
    if (variant->workspace) {
        int64_t bytes = 0;
        assert_int_equal(variant->workspace(&c->p, threads, &bytes, &error), VLA_OK);
        work = buffer_new(bytes, 1);
    }
    for (int i = 0; i < INPUTS; i++) before[i] = buffer_copy(&c->in[i], c->in[i].size);
    const vla_tensors tensors = case_tensors(c);
    const vla_call call = {&c->p, &tensors, pool, buffer_data(&work), NULL, NULL};
    assert_int_equal(variant->run(&call, &error), VLA_OK);
    buffer_check(&work);
    for (int i = 0; i < OUTPUTS; i++) buffer_check(&c->out[i]);
    for (int i = 0; i < INPUTS; i++) {
        buffer_check(&c->in[i]);
        if (c->in[i].base)
            assert_memory_equal(buffer_data(&before[i]), buffer_data(&c->in[i]),
                                (size_t)c->in[i].count * c->in[i].size);
        buffer_free(&before[i]);
    }
    buffer_free(&work);
}

static inline bool isa_runs(vla_op op, vla_form form, vla_dtype dtype, vla_isa isa)
{
    const vla_kernel *kernel = vla_kernel_find(op, form, VLA_CPU);
    return kernel && isa <= vla_isa_detect() && kernel->variants[dtype][isa];
}

/* Every output within `limit` of the reference, in relative Frobenius norm. */
static inline void assert_close(const kernel_case *c, const kernel_case *reference, double limit, const char *label)
{
    static const char *const names[OUTPUTS] = {"o", "S", "A", "n", "alpha"};
    for (int i = 0; i < OUTPUTS; i++) {
        if (!c->out[i].base) continue;
        vla_residual_sum sum = {0};
        vla_residual_add(&sum, buffer_data(&c->out[i]), c->dtype, buffer_data(&reference->out[i]), c->out[i].count);
        const vla_residual r = vla_residual_finish(&sum);
        if (!vla_residual_pass(&r, limit))
            fail_msg("%s %s %s B%d H%d T%d Tk%d dk%d dv%d: residual %g above %g, %d of %d not finite", label,
                     vla_op_name(c->p.op), names[i], (int)c->p.B, (int)c->p.H, (int)c->p.T, (int)c->p.Tk, (int)c->p.dk,
                     (int)c->p.dv, r.residual, limit, (int)r.nonfinite, (int)r.compared);
    }
}

/* naive on the values the kernel sees. */
static inline kernel_case case_reference(const kernel_case *c)
{
    kernel_case reference = case_copy(c, VLA_F64);
    case_run(&reference, VLA_NAIVE, VLA_ISA_BASE, 1);
    return reference;
}

/* Runs every instruction set of a form, in both dtypes, with 1 to 3 threads, and compares with naive. */
static inline void check_forms(vla_problem p, vla_form form, bool u, bool b, double scale, uint64_t seed)
{
    static const vla_dtype dtypes[] = {VLA_F64, VLA_F32};
    for (int d = 0; d < 2; d++) {
        kernel_case start = case_new(p, dtypes[d], u, b, scale, seed);
        kernel_case reference = case_reference(&start);
        for (vla_isa isa = VLA_ISA_BASE; isa < VLA_ISAS; isa++) {
            if (!isa_runs(p.op, form, dtypes[d], isa)) continue;
            kernel_case c = case_copy(&start, dtypes[d]);
            case_run(&c, form, isa, 1 + (int)isa);
            assert_close(&c, &reference, vla_residual_limit(p.op, dtypes[d]), vla_isa_name(isa));
            case_free(&c);
        }
        case_free(&reference);
        case_free(&start);
    }
}

#endif
