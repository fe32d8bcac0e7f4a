/* One head, forward and backward, for one element type and instruction set: what backward.c chooses among. */
#ifndef VLA_TRAIN_HEAD_CODE_H
#define VLA_TRAIN_HEAD_CODE_H
#include "lib/vla.h"

typedef struct head_call {                  /* rows of one (b, h), contiguous, in the code's element type */
    const void *q, *k, *v, *u, *g, *grad_o; /* g: beta's or the gate's logits, NULL where absent */
    void *grad_q, *grad_k, *grad_v, *grad_u, *grad_g;
} head_call;

typedef struct head_code {
    vla_dtype dtype;
    vla_isa isa;
    int64_t (*scratch)(const vla_problem *problem); /* elements */
    void (*backward)(const vla_problem *problem, const head_call *call, void *scratch);
} head_code;

#endif
