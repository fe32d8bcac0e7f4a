/* The network's code for one element type and instruction set, behind network.c. */
#ifndef VLA_TRAIN_NETWORK_CODE_H
#define VLA_TRAIN_NETWORK_CODE_H
#include "lib/train/network.h"

typedef struct network_code {
    vla_dtype dtype;
    vla_isa isa;
    vla_status (*create)(void **net, const vla_network_config *config, const vla_parameter *table, int64_t tensors,
                         int64_t size, int64_t B, int64_t T, uint64_t seed, vla_pool *pool, vla_error *error);
    void (*destroy)(void *net);
    void (*forward)(void *net, const vla_batch *batch, vla_loss *loss, int32_t *predictions);
    void (*backward)(void *net);
    double (*update)(void *net, const vla_adam *adam, bool *finite);
    void *(*memory)(void *net, int which); /* 0 values, 1 gradients, 2 and 3 moments, 4 input gradient */
    void (*projections)(const void *net, int64_t block, const vla_projections *to);
    bool (*norms)(void *net, int64_t block, double *norms);
} network_code;

/* Tensors outside the blocks, first in the parameter table. */
enum outside { TOKENS, POSITIONS, END_GAIN, END_BIAS, OUTSIDES };

/* Names of a block's tensors by place, in the order of the parameter table: matrices, then vectors. A place a network
 * does not have is -1 in its index. */
enum place {
    W_QKV, /* [width, joined] q | k | v | gate */
    W_U,   /* [width, width] */
    W_O,
    W_1,
    W_2,
    B_QKV,
    B_O,
    B_1,
    B_2,
    N1_GAIN,
    N1_BIAS,
    N2_GAIN,
    N2_BIAS,
    NO_GAIN,
    NO_BIAS,
    CONV, /* [3 width, conv] */
    PLACES
};

/* Columns of the joined projection: q, k, v and the gate's logits. */
int64_t network_joined(const vla_network_config *config);

#endif
