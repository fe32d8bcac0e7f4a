#include "kernels/cuda/device.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <stdlib.h>

struct vla_exec {
    vla_pool *pool;
    vla_isa isa;
};

struct vla_plan {
    vla_problem problem;
    const vla_kernel *kernel;
    const vla_variant *variant;
    vla_isa isa;
    vla_dtype dtype;
    vla_exec *exec;
    void *work;
    int64_t work_bytes;
    void *stream;
    vla_session session;
};

vla_status vla_exec_create(vla_exec **result, int threads, vla_isa isa, vla_error *error)
{
    *result = NULL;
    if (isa != VLA_ISA_AUTO && ((int)isa < 0 || isa > vla_isa_detect()))
        return vla_fail(error, VLA_ERR_ARGUMENT, "instruction set %s: this processor has up to %s", vla_isa_name(isa),
                        vla_isa_name(vla_isa_detect()));
    vla_exec *exec = calloc(1, sizeof *exec);
    if (!exec) return vla_fail(error, VLA_ERR_MEMORY, "execution context: out of memory");
    exec->isa = isa == VLA_ISA_AUTO ? vla_isa_detect() : isa;
    vla_status status = vla_pool_create(&exec->pool, threads, error);
    if (status != VLA_OK) {
        free(exec);
        return status;
    }
    *result = exec;
    return VLA_OK;
}

void vla_exec_destroy(vla_exec *exec)
{
    if (!exec) return;
    vla_pool_destroy(exec->pool);
    free(exec);
}

int vla_exec_threads(const vla_exec *exec)
{
    return vla_pool_threads(exec->pool);
}
vla_isa vla_exec_isa(const vla_exec *exec)
{
    return exec->isa;
}
vla_pool *vla_exec_pool(vla_exec *exec)
{
    return exec->pool;
}

static vla_status find_kernel(vla_plan *plan, vla_form form, vla_backend backend, vla_error *error)
{
    const vla_problem *p = &plan->problem;
    char reason[160];
    if (backend == VLA_AUTO) backend = VLA_CPU;
    if (form == VLA_BEST) {
        form = vla_best_form(p, backend, plan->dtype, vla_exec_threads(plan->exec));
        if (!vla_kernel_exists(p->op, form, backend, plan->dtype))
            return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s has no %s kernel on %s", vla_op_name(p->op),
                            vla_dtype_name(plan->dtype), vla_backend_name(backend));
    }
    plan->kernel = vla_kernel_find(p->op, form, backend);
    if (!plan->kernel)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s has no %s form on %s", vla_op_name(p->op), vla_form_name(form),
                        vla_backend_name(backend));
    if (!vla_kernel_supports(plan->kernel, p, plan->dtype, reason, sizeof reason))
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s", reason);
    plan->variant = vla_kernel_variant(plan->kernel, plan->dtype, plan->exec->isa, &plan->isa);
    if (!plan->variant)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s/%s has no %s kernel for %s", vla_op_name(p->op),
                        vla_form_name(form), vla_dtype_name(plan->dtype), vla_isa_name(plan->exec->isa));
    return VLA_OK;
}

static vla_status prepare(vla_plan *plan, vla_form form, vla_backend backend, vla_error *error)
{
    vla_status status = vla_problem_check(&plan->problem, error);
    if (status != VLA_OK) return status;
    if (plan->problem.Tk == 0) plan->problem.Tk = plan->problem.T;
    status = find_kernel(plan, form, backend, error);
    if (status != VLA_OK || !plan->variant->workspace) return status;
    status = plan->variant->workspace(&plan->problem, vla_exec_threads(plan->exec), &plan->work_bytes, error);
    if (status != VLA_OK) return status;
    if (plan->kernel->backend == VLA_CUDA) return vla_device_alloc(&plan->work, plan->work_bytes, "workspace", error);
    return vla_alloc(&plan->work, plan->work_bytes, 1, "workspace", error);
}

vla_status vla_plan_create(vla_plan **result, vla_exec *exec, const vla_problem *problem, vla_form form,
                           vla_backend backend, vla_dtype dtype, vla_error *error)
{
    *result = NULL;
    vla_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return vla_fail(error, VLA_ERR_MEMORY, "plan: out of memory");
    plan->problem = *problem;
    plan->exec = exec;
    plan->dtype = dtype;
    vla_status status = prepare(plan, form, backend, error);
    if (status != VLA_OK) {
        vla_plan_destroy(plan);
        return status;
    }
    *result = plan;
    return VLA_OK;
}

static vla_status missing(const char *name, vla_op op, vla_error *error)
{
    return vla_fail(error, VLA_ERR_ARGUMENT, "%s is NULL: %s needs it", name, vla_op_name(op));
}

static vla_status check_tensors(const vla_problem *p, const vla_tensors *t, vla_error *error)
{
    const bool any = p->T > 0;
    if (any && !t->q) return missing("q", p->op, error);
    if (any && !t->k) return missing("k", p->op, error);
    if (any && !t->v) return missing("v", p->op, error);
    if (any && !t->o) return missing("o", p->op, error);
    if (any && p->op == VLA_DECAY && p->gate != VLA_GATE_NONE && !t->g) return missing("g", p->op, error);
    if (p->op == VLA_SOFTMAX && p->Tk < p->T)
        return vla_fail(error, VLA_ERR_ARGUMENT, "Tk %lld: accepted are at least T = %lld", (long long)p->Tk,
                        (long long)p->T);
    if (!t->state_in || p->op == VLA_SOFTMAX) return VLA_OK;
    if (!t->S) return missing("S (state in)", p->op, error);
    if (vla_op_has_A(p->op) && !t->A) return missing("A (state in)", p->op, error);
    if (vla_op_has_n(p->op) && !t->n) return missing("n (state in)", p->op, error);
    if (p->refresh_period > 0 && !t->t) return missing("t (state in, with a refresh period)", p->op, error);
    return VLA_OK;
}

vla_status vla_plan_run(vla_plan *plan, const vla_tensors *tensors, vla_error *error)
{
    vla_status status = check_tensors(&plan->problem, tensors, error);
    if (status != VLA_OK) return status;
    const vla_call call = {&plan->problem, tensors, plan->exec->pool, plan->work, plan->stream, &plan->session};
    return plan->variant->run(&call, error);
}

void vla_plan_destroy(vla_plan *plan)
{
    if (!plan) return;
    if (plan->session.close) plan->session.close(plan->session.data);
    if (plan->kernel && plan->kernel->backend == VLA_CUDA)
        vla_device_free(plan->work);
    else
        vla_free(plan->work);
    free(plan);
}

int64_t vla_plan_workspace(const vla_plan *plan)
{
    return plan->work_bytes;
}
vla_isa vla_plan_isa(const vla_plan *plan)
{
    return plan->isa;
}
void vla_plan_set_stream(vla_plan *plan, void *stream)
{
    plan->stream = stream;
}
vla_backend vla_plan_backend(const vla_plan *plan)
{
    return plan->kernel->backend;
}
const char *vla_plan_label(const vla_plan *plan)
{
    return plan->session.label ? plan->session.label : "";
}
void vla_plan_cut(const vla_plan *plan, int64_t *chunk, int64_t *segments)
{
    *chunk = plan->session.chunk;
    *segments = plan->session.segments;
}

vla_status vla_forward_f32(const vla_problem *problem, const vla_tensors *tensors, vla_error *error)
{
    vla_exec *exec = NULL;
    vla_plan *plan = NULL;
    vla_status status = vla_exec_create(&exec, 0, VLA_ISA_AUTO, error);
    if (status == VLA_OK) status = vla_plan_create(&plan, exec, problem, VLA_BEST, VLA_CPU, VLA_F32, error);
    if (status == VLA_OK) status = vla_plan_run(plan, tensors, error);
    vla_plan_destroy(plan);
    vla_exec_destroy(exec);
    return status;
}
