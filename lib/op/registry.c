#include "lib/op/registry.h"
#include "kernels/cuda/choice.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/table.h"
#include <math.h>
#include <stdio.h>

static const vla_kernel *const tables[] = {
    vla_cpu_kernels,
#ifdef VLA_WITH_CUDA
    vla_cuda_kernels,
#endif
};

const vla_kernel *vla_kernel_at(int i)
{
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++)
        for (const vla_kernel *kernel = tables[table]; kernel->op != VLA_OPS; kernel++)
            if (i-- == 0) return kernel;
    return NULL;
}

const vla_kernel *vla_kernel_find(vla_op op, vla_form form, vla_backend backend)
{
    const vla_kernel *kernel = NULL;
    for (int i = 0; (kernel = vla_kernel_at(i)); i++)
        if (kernel->op == op && kernel->form == form && kernel->backend == backend) return kernel;
    return NULL;
}

vla_isa vla_isa_detect(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
        return VLA_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return VLA_ISA_AVX2;
#endif
    return VLA_ISA_BASE;
}

const vla_variant *vla_kernel_variant(const vla_kernel *kernel, vla_dtype dtype, vla_isa isa, vla_isa *used)
{
    if ((int)dtype < 0 || dtype >= VLA_DTYPES) return NULL;
    for (int i = isa == VLA_ISA_AUTO ? (int)vla_isa_detect() : (int)isa; i >= 0; i--)
        if (kernel->variants[dtype][i]) {
            if (used) *used = (vla_isa)i;
            return kernel->variants[dtype][i];
        }
    return NULL;
}

bool vla_kernel_exists(vla_op op, vla_form form, vla_backend backend, vla_dtype dtype)
{
    const vla_kernel *kernel = vla_kernel_find(op, form, backend);
    return kernel && vla_kernel_variant(kernel, dtype, VLA_ISA_AUTO, NULL);
}

bool vla_kernel_supports(const vla_kernel *kernel, const vla_problem *problem, vla_dtype dtype, char *reason,
                         size_t reason_size)
{
    const vla_variant *variant = vla_kernel_variant(kernel, dtype, VLA_ISA_AUTO, NULL);
    if (!variant) {
        snprintf(reason, reason_size, "%s/%s/%s has no %s kernel", vla_op_name(kernel->op), vla_form_name(kernel->form),
                 vla_backend_name(kernel->backend), vla_dtype_name(dtype));
        return false;
    }
    /* Every dtype but f64 holds A in float32, which must hold what A starts from. */
    if (vla_op_has_A(problem->op) && dtype != VLA_F64 && !isnormal((float)(1 / problem->lambda0))) {
        snprintf(reason, reason_size, "lambda0 %g: 1/lambda0 is beyond float32, which holds A; accepted: with f64",
                 problem->lambda0);
        return false;
    }
    return !variant->supports || variant->supports(problem, reason, reason_size);
}

static bool runs(const vla_problem *problem, vla_form form, vla_backend backend, vla_dtype dtype)
{
    char reason[160];
    const vla_kernel *kernel = vla_kernel_find(problem->op, form, backend);
    return kernel && vla_kernel_supports(kernel, problem, dtype, reason, sizeof reason);
}

/* None runs: one that can say why. */
static vla_form first_built(vla_op op, const vla_form *order, int count, vla_backend backend, vla_dtype dtype)
{
    for (int i = 0; i < count; i++)
        if (vla_kernel_exists(op, order[i], backend, dtype)) return order[i];
    return VLA_NAIVE;
}

static vla_form best_on_device(const vla_problem *problem, vla_dtype dtype)
{
    static const vla_form order[] = {VLA_CHUNK, VLA_SCAN, VLA_RECURRENT, VLA_STEPWISE};
    bool can[VLA_FORMS] = {false};
    vla_device_info info;
    for (int form = 0; form < VLA_FORMS; form++) can[form] = runs(problem, (vla_form)form, VLA_CUDA, dtype);
    (void)vla_device_query(&info, NULL);
    const int multiprocessors =
        info.multiprocessors > 0 ? info.multiprocessors : VLA_COSTS_OF; /* to list, without one */
    const vla_form best = vla_device_form(problem, dtype, multiprocessors, can);
    return best != VLA_NAIVE ? best : first_built(problem->op, order, 4, VLA_CUDA, dtype);
}

vla_form vla_best_form(const vla_problem *problem, vla_backend backend, vla_dtype dtype, int threads)
{
    if (backend == VLA_CUDA) return best_on_device(problem, dtype);
    const bool short_run = problem->T <= 1;
    /* With fewer heads than threads only the scan keeps every thread busy; it needs length to pay for itself. It
     * takes heads one after another, each up to twice as fast, so that two heads are no slower side by side
     * (measured: d 64, two threads, 1.7 to 1.9 times for vla, 1.2 to 1.4 for delta, 1.0 to 1.3 for linear). */
    const bool one_head =
        problem->B * problem->H == 1 && threads > 1 && problem->T >= (problem->op == VLA_VLA ? 512 : 2048);
    /* The state stays in a cache, and two tokens a sweep beat the chunk's extra products (measured, d 16 to 256). */
    const bool sweeps = problem->op != VLA_SOFTMAX;
    const vla_form order[] = {short_run  ? VLA_RECURRENT
                              : one_head ? VLA_SCAN
                              : sweeps   ? VLA_RECURRENT
                                         : VLA_CHUNK,
                              sweeps ? VLA_RECURRENT : VLA_CHUNK, VLA_CHUNK, VLA_RECURRENT, VLA_STEPWISE};
    enum { ORDER = sizeof order / sizeof *order };
    for (int i = 0; i < ORDER; i++)
        if (runs(problem, order[i], backend, dtype)) return order[i];
    if (runs(problem, VLA_NAIVE, backend, dtype)) return VLA_NAIVE;
    return first_built(problem->op, order, ORDER, backend, dtype);
}
