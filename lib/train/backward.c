#include "lib/train/backward.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/train/head_code.h"
#include <stdlib.h>

struct vla_backward {
    vla_problem problem;
    const head_code *code;
    vla_pool *pool;
    char *scratch; /* [threads, bytes] */
    int64_t bytes;
    const vla_tensors *tensors; /* of the run in progress */
    const vla_gradients *gradients;
};

extern const head_code head_f32_base, head_f64_base;
#if defined(__x86_64__)
extern const head_code head_f32_avx2, head_f64_avx2, head_f32_avx512, head_f64_avx512;
#endif

static const head_code *const codes[] = {
#if defined(__x86_64__)
    &head_f32_avx512, &head_f64_avx512, &head_f32_avx2, &head_f64_avx2,
#endif
    &head_f32_base,   &head_f64_base};

static const head_code *code_for(vla_dtype dtype, vla_isa isa)
{
    const vla_isa most = vla_isa_detect(), wanted = isa == VLA_ISA_AUTO || isa > most ? most : isa;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i]->dtype == dtype && codes[i]->isa <= wanted) return codes[i];
    return NULL;
}

static vla_status check(const vla_problem *p, vla_error *error)
{
    const vla_status status = vla_problem_check(p, error);
    if (status) return status;
    if (p->Tk && p->Tk != p->T)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "backward: Tk %lld other than T %lld", (long long)p->Tk,
                        (long long)p->T);
    if (p->op == VLA_VLA && p->no_normalise)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "backward: vla without normalisation");
    return VLA_OK;
}

vla_status vla_backward_create(vla_backward **backward, const vla_problem *problem, vla_dtype dtype, vla_isa isa,
                               vla_pool *pool, vla_error *error)
{
    *backward = NULL;
    vla_status status = check(problem, error);
    if (status) return status;
    const head_code *code = code_for(dtype, isa);
    if (!code)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "backward: dtype %s; f32 and f64 are built", vla_dtype_name(dtype));
    vla_backward *b = calloc(1, sizeof *b);
    if (!b) return vla_fail(error, VLA_ERR_MEMORY, "backward: out of memory");
    *b = (vla_backward){.problem = *problem, .code = code, .pool = pool};
    int64_t total = 0;
    if (!vla_size_mul(code->scratch(problem), (int64_t)vla_dtype_size(dtype), &b->bytes) ||
        !vla_size_mul(b->bytes = (b->bytes + 63) / 64 * 64, vla_pool_threads(pool), &total))
        status = vla_fail(error, VLA_ERR_MEMORY, "backward: T %lld exceeds 64-bit sizes", (long long)problem->T);
    if (!status) status = vla_alloc((void **)&b->scratch, total, 1, "backward", error);
    if (status)
        free(b);
    else
        *backward = b;
    return status;
}

/* Element `index` of a tensor, NULL where there is none. */
static const char *at(const void *tensor, int64_t index, size_t size)
{
    return tensor ? (const char *)tensor + index * (int64_t)size : NULL;
}

static void *to(void *tensor, int64_t index, size_t size)
{
    return tensor ? (char *)tensor + index * (int64_t)size : NULL;
}

static void one_head(void *context, int64_t head, int worker)
{
    const vla_backward *b = context;
    const vla_problem *p = &b->problem;
    const vla_tensors *t = b->tensors;
    const vla_gradients *d = b->gradients;
    const size_t size = vla_dtype_size(b->code->dtype);
    const int64_t rows = head * p->T, k = rows * p->dk, v = rows * p->dv;
    const bool delta = p->op == VLA_DELTA, gated = p->op == VLA_DECAY && p->gate != VLA_GATE_NONE;
    const int64_t g = p->gate == VLA_GATE_ROW ? v : rows;
    const head_call call = {.q = at(t->q, k, size),
                            .k = at(t->k, k, size),
                            .v = at(t->v, v, size),
                            .u = at(t->u, k, size),
                            .g = delta   ? at(t->b, rows, size)
                                 : gated ? at(t->g, g, size)
                                         : NULL,
                            .grad_o = at(d->o, v, size),
                            .grad_q = to(d->q, k, size),
                            .grad_k = to(d->k, k, size),
                            .grad_v = to(d->v, v, size),
                            .grad_u = to(d->u, k, size),
                            .grad_g = delta ? to(d->b, rows, size) : to(d->g, g, size)};
    b->code->backward(p, &call, b->scratch + worker * b->bytes);
}

vla_status vla_backward_run(vla_backward *b, const vla_tensors *tensors, const vla_gradients *gradients,
                            vla_error *error)
{
    const vla_problem *p = &b->problem;
    const void *needed[] = {tensors->q, tensors->k, tensors->v, gradients->o, gradients->q, gradients->k, gradients->v};
    static const char *const names[] = {
        "q", "k", "v", "gradient of o", "gradient of q", "gradient of k", "gradient of v"};
    for (int i = 0; p->T > 0 && i < 7; i++)
        if (!needed[i]) return vla_fail(error, VLA_ERR_ARGUMENT, "%s is needed", names[i]);
    if (p->op == VLA_VLA && tensors->u && !gradients->u)
        return vla_fail(error, VLA_ERR_ARGUMENT, "gradient of u is needed, as u is given");
    if (p->op == VLA_DELTA && tensors->b && !gradients->b)
        return vla_fail(error, VLA_ERR_ARGUMENT, "gradient of b is needed, as b is given");
    if (p->op == VLA_DECAY && p->gate != VLA_GATE_NONE && (!tensors->g || !gradients->g))
        return vla_fail(error, VLA_ERR_ARGUMENT, "g and its gradient are needed with a gate");
    if (tensors->state_in) return vla_fail(error, VLA_ERR_UNSUPPORTED, "backward: from a given state");
    b->tensors = tensors, b->gradients = gradients;
    if (p->T > 0) vla_pool_run(b->pool, p->B * p->H, one_head, b);
    return VLA_OK;
}

int64_t vla_backward_workspace(const vla_backward *b)
{
    return b->bytes * vla_pool_threads(b->pool);
}

void vla_backward_destroy(vla_backward *b)
{
    if (!b) return;
    vla_free(b->scratch);
    free(b);
}
