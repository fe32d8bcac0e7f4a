/* Attention of one head, forward and backward: what the network's operator files (*_real.c) agree on.
 *
 * Rows are tokens; a row of q, k, v, u, o and their gradients starts `stride` elements after the one before, so heads
 * are column slices of joined activations. Inputs are raw projections, as everywhere. The backward pass runs the
 * forward recursion again and stores what it needs, so nothing is kept between the two passes: a few vectors a token,
 * and state matrices at the end of every SEGMENT tokens. Gradients are overwritten, not added to. */
#ifndef VLA_TRAIN_ATTENTION_H
#define VLA_TRAIN_ATTENTION_H
#include "lib/train/real.h"

enum {
    SEGMENT = 64,      /* tokens between kept states */
    GATED_SEGMENT = 16 /* the same where every state inside a segment is kept for a while */
};

typedef struct attention_shape {
    vla_op op;
    int64_t len, dk, dv;
    vla_features features, key_features;
    bool qk_l2;
    bool one_gate; /* decay: g is one a token, not one a row of S */
    bool ratio;    /* linear, vla: divide by max(n.qf, floor) */
    real floor;    /* of the ratio's denominator */
    real lambda0;  /* vla, rls */
    int64_t refresh_period;
    real refresh_eps; /* vla: A += refresh_eps I at steps P, 2P, .. */
} attention_shape;

typedef struct attention_rows {                   /* one head of one sequence */
    const real *q, *k, *v, *u, *g;                /* u: vla; g: logits, delta one a token, decay one a row of S */
    int64_t stride, v_stride, u_stride, g_stride; /* stride: of q and k */
    real *o;
    int64_t o_stride;
} attention_rows;

typedef struct attention_gradients {
    const real *o;           /* dL/do, o_stride apart */
    real *q, *k, *v, *u, *g; /* strides as the inputs' */
} attention_gradients;

typedef struct attention {
    /* Elements of scratch, 64-byte aligned, that forward and backward need. */
    int64_t (*scratch)(const attention_shape *shape);
    void (*forward)(const attention_shape *shape, const attention_rows *rows, real *scratch);
    void (*backward)(const attention_shape *shape, const attention_rows *rows, const attention_gradients *gradients,
                     real *scratch);
    /* |S_T|_F after the last token; NULL where there is no state. */
    real (*norm)(const attention_shape *shape, const attention_rows *rows, real *scratch);
} attention;

extern const attention KERNEL(attention_softmax), KERNEL(attention_linear), KERNEL(attention_delta),
    KERNEL(attention_decay), KERNEL(attention_vla), KERNEL(attention_rls);

#endif
