/* The training loop: data by callback, AdamW with warm-up and cosine, held-out accuracy, checkpoints. */
#ifndef VLA_TRAIN_TRAINER_H
#define VLA_TRAIN_TRAINER_H
#include "lib/train/network.h"

/* Samples [first, first + B) of a split (0 training, 1 validation, 2 test) as tokens and targets [B, T]. A sample
 * depends on its split and index only. */
typedef vla_status (*vla_data)(void *context, int split, int64_t first, int64_t B, int32_t *tokens, int32_t *targets,
                               vla_error *error);

typedef struct vla_train {
    vla_network_config network;
    vla_isa isa;
    vla_data data;
    void *context;
    const char *task; /* what defines the data, in words: part of a checkpoint's identity */
    int64_t T, batch, steps, warmup;
    double lr, decay, clip;
    uint64_t seed;
    int64_t test_batches, test_batch;
    /* Early stop: every check_every steps (0: never) validation accuracy over test_batches; stops at enough, or after
     * patience checks without a better one (0: never), or after give_up steps (0: never) while it has not reached
     * enough. */
    int64_t check_every, patience, give_up;
    double enough;
    const char *checkpoint; /* file, NULL: none; written every checkpoint_every steps (0: at the end) and on a stop */
    int64_t checkpoint_every;
    bool resume; /* go on from checkpoint where there is one */
} vla_train;

typedef struct vla_train_now { /* told after every step */
    int64_t step, steps;
    double loss, accuracy; /* of the training batch */
    double tokens_per_s, left_s;
} vla_train_now;

typedef enum vla_train_stop {
    VLA_STOP_STEPS,
    VLA_STOP_ENOUGH,
    VLA_STOP_PATIENCE,
    VLA_STOP_GIVE_UP,
    VLA_STOP_ASKED
} vla_train_stop;

typedef struct vla_train_result {
    int64_t steps; /* done, those before a resume included */
    vla_train_stop stop;
    double loss;             /* mean over the last 50 steps */
    double validation, test; /* accuracy over scored positions; NaN when not measured */
    int64_t test_correct, test_scored;
    double seconds, tokens_per_s; /* of this run's training steps */
    double *curve;                /* [steps] training loss, freed by vla_train_result_free */
} vla_train_result;

const char *vla_train_stop_name(vla_train_stop stop);
/* tell (may be NULL) returns false to stop after the step. A non-finite loss is VLA_ERR_NUMERIC with its step. On
 * success *network holds the trained network; the caller destroys it. */
vla_status vla_train_run(const vla_train *train, vla_pool *pool, bool (*tell)(void *context, const vla_train_now *now),
                         void *tell_context, vla_network **network, vla_train_result *result, vla_error *error);
void vla_train_result_free(vla_train_result *result);

/* Rate at a step counted from 0: linear from 0 over warmup, then half a cosine to 0. */
double vla_train_rate(const vla_train *train, int64_t step);
/* Accuracy on `batches` batches of a split. */
vla_status vla_train_score(const vla_train *train, vla_network *network, int split, int64_t batches, int64_t *correct,
                           int64_t *scored, vla_error *error);

#endif
