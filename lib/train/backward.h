/* Gradients of an operator's outputs with respect to its inputs, on the CPU: the backward half of a training step. */
#ifndef VLA_TRAIN_BACKWARD_H
#define VLA_TRAIN_BACKWARD_H
#include "lib/base/threads.h"
#include "lib/vla.h"

/* Shapes are those of the inputs. o is dL/do; the rest is overwritten. u: vla, NULL where u is absent (its share is
 * then in k); b: delta; g: decay, as its input. */
typedef struct vla_gradients {
    const void *o;
    void *q, *k, *v, *u, *b, *g;
} vla_gradients;

typedef struct vla_backward vla_backward;

/* dtype f64 or f32, in double or float throughout. VLA_ERR_UNSUPPORTED with the reason for: Tk other than T, vla
 * without normalisation. The pool is borrowed (softmax calls BLAS from its threads: the caller keeps that
 * single-threaded). Workspace grows with T: a few vectors a token and a state every 64. */
vla_status vla_backward_create(vla_backward **backward, const vla_problem *problem, vla_dtype dtype, vla_isa isa,
                               vla_pool *pool, vla_error *error);
/* From S = 0. Reads q, k, v, u, b, g of tensors; the forward pass is made again inside. */
vla_status vla_backward_run(vla_backward *backward, const vla_tensors *tensors, const vla_gradients *gradients,
                            vla_error *error);
int64_t vla_backward_workspace(const vla_backward *backward); /* bytes */
void vla_backward_destroy(vla_backward *backward);

#endif
