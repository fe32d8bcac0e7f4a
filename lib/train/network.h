/* A small transformer trained by hand-written backward passes: `x += attention(norm(x)); x += mlp(norm(x))`, learned
 * positions, a final LayerNorm and a head tied to the embedding.
 *
 * One source serves float32 (training) and float64 (gradient checks). Work is cut into pieces that do not depend on the
 * number of threads and sums are taken in a fixed order, so a seed gives the same numbers for any thread count.
 * BLAS is called from the pool's threads: the caller keeps it single-threaded (openblas_set_num_threads(1)). */
#ifndef VLA_TRAIN_NETWORK_H
#define VLA_TRAIN_NETWORK_H
#include "lib/base/threads.h"
#include "lib/vla.h"

typedef enum vla_out_norm {
    VLA_NORM_NONE,
    VLA_NORM_LAYER, /* LayerNorm over the joined heads, before W_o */
    VLA_NORM_RMS,   /* RMSNorm over each head, one gain for all heads (DeltaNet as published) */
    VLA_OUT_NORMS
} vla_out_norm;

typedef struct vla_network_config {
    vla_op op;
    int64_t vocab, positions, width, heads, blocks, hidden;
    vla_features features, key_features; /* of queries and of keys: the authors' decay takes raw keys */
    bool qk_l2;
    bool penalty; /* vla: u = W_u k over the joined raw keys; otherwise u = k */
    bool gate;    /* delta: beta = sigmoid(W_b x + b), one a head; decay: g = sigmoid(W_g x + b), one a value channel */
    double gate_bias; /* what b starts at */
    double floor;     /* of linear's and vla's denominators */
    double lambda0;
    int64_t refresh_period;
    double refresh_eps;
    vla_out_norm out_norm;
    int64_t conv; /* taps of a causal convolution per channel after the q, k, v projections; 0: none */
} vla_network_config;

typedef struct vla_parameter {
    char name[24];
    int64_t block; /* -1: outside the blocks */
    int64_t offset, rows, columns;
    double scale; /* initial standard deviation, 0: constant */
    double start; /* initial mean */
} vla_parameter;

/* B sequences of T tokens; targets [B,T], -1 where nothing is asked. */
typedef struct vla_batch {
    int64_t B, T;
    const int32_t *tokens, *targets;
} vla_batch;

typedef struct vla_loss {
    double loss; /* mean cross-entropy (nats) over scored positions; 0 when there are none */
    int64_t scored, correct;
} vla_loss;

typedef struct vla_adam {
    double lr, beta1, beta2, eps, decay, clip;
    int64_t step; /* from 1 */
} vla_adam;

typedef struct vla_network vla_network;

/* The paper's backbone for an operator: vocab 128, width 128, 4 heads, 2 blocks, hidden 256, their output norm and
 * refresh.
 */
vla_network_config vla_network_paper(vla_op op);
vla_status vla_network_check(const vla_network_config *config, vla_error *error);

/* Parameters are initialised from seed. dtype VLA_F32 or VLA_F64; batches of at most B x T tokens. The pool is
 * borrowed. */
vla_status vla_network_create(vla_network **network, const vla_network_config *config, vla_dtype dtype, vla_isa isa,
                              int64_t B, int64_t T, uint64_t seed, vla_pool *pool, vla_error *error);
void vla_network_destroy(vla_network *network);

/* Forward pass. VLA_ERR_ARGUMENT when the batch does not fit or a token is out of range. predictions [B,T] (may be
 * NULL) receives the most likely token of scored positions, -1 elsewhere. */
vla_status vla_network_forward(vla_network *network, const vla_batch *batch, vla_loss *loss, int32_t *predictions,
                               vla_error *error);
/* Gradients of the last forward pass's loss; the batch's arrays are still the same. */
void vla_network_backward(vla_network *network);
/* One AdamW step (Loshchilov and Hutter 2019) after clipping the gradients' norm; returns that norm. *finite: whether
 * every parameter still is. */
double vla_network_update(vla_network *network, const vla_adam *adam, bool *finite);

int64_t vla_network_size(const vla_network *network); /* parameters */
int64_t vla_network_tensors(const vla_network *network);
const vla_parameter *vla_network_tensor(const vla_network *network, int64_t i);
vla_dtype vla_network_dtype(const vla_network *network);
const vla_network_config *vla_network_config_of(const vla_network *network);
/* Elements of the arrays below: parameters and the gaps between tensors (always 0). */
int64_t vla_network_stored(const vla_network *network);
/* [stored] each, in dtype, tensors at their offsets: values, their gradients, and AdamW's two moments. */
void *vla_network_values(vla_network *network);
void *vla_network_gradients(vla_network *network);
void *vla_network_moments(vla_network *network, int which);
/* dL/dx of the embedded tokens [B,T,width], after a backward pass; dtype. */
const void *vla_network_input_gradient(const vla_network *network);

/* What a block's attention saw and gave in the last forward pass: raw q, k, v, u and o as [B,H,T,d] in dtype. NULLs are
 * left out; u is filled for vla only. */
typedef struct vla_projections {
    void *q, *k, *v, *u, *o;
} vla_projections;
void vla_network_projections(const vla_network *network, int64_t block, const vla_projections *to);
/* |S_T|_F of every head [B,H] of a block for the last forward pass; false where the operator has no state. */
bool vla_network_state_norms(vla_network *network, int64_t block, double *norms);

#endif
