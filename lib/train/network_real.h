/* The network's memory, for one element type. */
#ifndef VLA_TRAIN_NETWORK_REAL_H
#define VLA_TRAIN_NETWORK_REAL_H
#include "lib/train/attention.h"
#include "lib/train/layers.h"
#include "lib/train/network_code.h"

enum {
    ROWS = 256,    /* tokens in a piece of row-wise work */
    COLUMNS = 128, /* columns of a weight's gradient in a piece */
    PART = 4096    /* parameters in a piece of an update */
};

typedef struct block {
    int64_t at[PLACES];            /* offset of each tensor, -1 where there is none */
    int64_t vectors, vector_count; /* biases, gains and convolution taps: one contiguous range of parameters */
    /* activations [M, ..] kept for the backward pass */
    real *x, *h1, *pre, *joined, *u, *o;
    real *mean1, *scale1;
    /* after attention: of every token, in the last block of the scored ones alone, as nothing reads the others */
    real *mixed, *x2, *h2, *m1, *m2;         /* mixed: what W_o takes; NULL: o itself */
    real *mean2, *scale2, *mean_o, *scale_o; /* the last two one a head for rms */
} block;

typedef struct net {
    vla_network_config c;
    vla_pool *pool;
    int64_t outside[OUTSIDES];
    int64_t D, F, J, head, size, most, pieces,
        summed; /* most: tokens; pieces: of ROWS, or sequences where those are more */
    real *value, *grad, *first, *second;
    block *blocks;
    real *x_end, *mean_f, *scale_f, *hf, *logits;          /* [N, D], [N], [N], [N, D], [N, vocab] */
    real *dx2_scored;                                      /* [N, D]: dx2 of the last block's scored tokens */
    real *dx, *dx2, *dout, *djoined, *dpre, *du, *dm, *dh; /* [M, ..] gradients, reused by every block */
    real *partial;      /* [pieces, vectors of a block]: sums before their order is fixed */
    real *head_partial; /* [pieces of N, 2 D] */
    double *loss_partial;
    int64_t *correct_partial;
    real *scratch; /* [threads, scratch_size] */
    int64_t scratch_size;
    int32_t *scored; /* [N] rows of M */
    const attention *attention;
    attention_shape shape;
    /* the last forward pass */
    vla_batch batch;
    int64_t M, N;
    int32_t *predictions;
    int64_t now; /* block that the running pieces belong to */
    const vla_adam *adam;
    real clip_scale;
    double *norm_partial; /* of every part: its gradients' sum of squares, then 0 or NaN by its parameters */
    bool *moving;         /* parts of the parameters whose moments may not be 0 */
    bool shared;          /* the caller may have written moments since the last update */
} net;

/* Rows of a block after its attention, and the token that a row belongs to. */
INLINE bool is_last(const net *n)
{
    return n->now + 1 == n->c.blocks;
}
INLINE int64_t late_rows(const net *n)
{
    return is_last(n) ? n->N : n->M;
}
INLINE int64_t token_of(const net *n, int64_t row)
{
    return is_last(n) ? n->scored[row] : row;
}

INLINE real *param(const net *n, const block *b, enum place p)
{
    return b->at[p] < 0 ? NULL : n->value + b->at[p];
}
INLINE real *gradient(const net *n, const block *b, enum place p)
{
    return b->at[p] < 0 ? NULL : n->grad + b->at[p];
}

void KERNEL(net_attend_back)(net *n);
void KERNEL(net_backward)(void *context);
double KERNEL(net_update)(void *context, const vla_adam *adam, bool *finite);

#endif
