/* Finding the kernel that runs a problem. */
#ifndef VLA_OP_REGISTRY_H
#define VLA_OP_REGISTRY_H
#include "kernels/kernel.h"
#include "lib/base/names.h"

/* i-th kernel over all backends in table order, or NULL past the end. */
const vla_kernel *vla_kernel_at(int i);
const vla_kernel *vla_kernel_find(vla_op op, vla_form form, vla_backend backend);
/* Does the operator have this form there at that dtype, whatever the problem? */
bool vla_kernel_exists(vla_op op, vla_form form, vla_backend backend, vla_dtype dtype);
/* The variant for dtype at isa, or at the next lesser instruction set that is built; NULL when there is none.
 * *used (may be NULL) is the instruction set found. */
const vla_variant *vla_kernel_variant(const vla_kernel *kernel, vla_dtype dtype, vla_isa isa, vla_isa *used);
/* The widest instruction set this processor has. */
vla_isa vla_isa_detect(void);
/* true when the kernel runs the problem at that dtype; otherwise the reason is filled in. */
bool vla_kernel_supports(const vla_kernel *kernel, const vla_problem *problem, vla_dtype dtype, char *reason,
                         size_t reason_size);
/* The form --form best means, from (B, H, T, dk, dv, threads, dtype). Never VLA_NAIVE unless nothing else runs. */
vla_form vla_best_form(const vla_problem *problem, vla_backend backend, vla_dtype dtype, int threads);

/* Checks every field of a problem; names the field, its value and what is accepted. */
vla_status vla_problem_check(const vla_problem *problem, vla_error *error);
bool vla_op_has_S(vla_op op);
bool vla_op_has_A(vla_op op); /* vla, rls */
bool vla_op_has_n(vla_op op); /* linear, vla */

/* Facts of a plan, for records. */
int64_t vla_plan_workspace(const vla_plan *plan);
vla_isa vla_plan_isa(const vla_plan *plan);
vla_pool *vla_exec_pool(vla_exec *exec);
/* Device plans only: the CUDA stream the runs are queued on (default: the null stream). A run returns when it is
 * queued; tensors are device pointers, except t. */
void vla_plan_set_stream(vla_plan *plan, void *stream);
/* After the first run: what it ran, where a form has several ("cudnn 9.14.0"); otherwise "". */
const char *vla_plan_label(const vla_plan *plan);
/* After the first run: tokens a chunk and segments a head that the kernel took, given or chosen; 0 for none. */
void vla_plan_cut(const vla_plan *plan, int64_t *chunk, int64_t *segments);
vla_backend vla_plan_backend(const vla_plan *plan);

#endif
