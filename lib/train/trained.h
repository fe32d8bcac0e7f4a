/* Trained associative recall (mqar) and copying, as records of the kinds `train`, `gradient` and `state`.
 *
 * Protocol paper: the authors' settings, one rate, their norm and refresh. Protocol tuned: the same output norm for
 * every operator, no refresh, one grid of rates for all, each tried by the first seed's run at full length (rows with
 * `search`), widened while the best is at an edge. A run ends early at 99.9 % on the validation stream, or where
 * another rate was there already, but on no plateau. Chosen is the rate that was there in the fewest steps; where none
 * was, the lowest loss among those whose validation accuracy is within two standard errors of the highest. Its network
 * counts as the first seed's (the same row again), the other seeds are trained at that rate, and all are scored on a
 * test stream. A rate whose run diverges is skipped. */
#ifndef VLA_TRAIN_TRAINED_H
#define VLA_TRAIN_TRAINED_H
#include "lib/task/sequences.h"
#include "lib/task/sink.h"
#include "lib/train/trainer.h"

typedef struct vla_trained_settings {
    vla_task_kind kind;
    bool tuned, quick;
    bool published; /* delta as published: SiLU, unit q and k, short convolution, RMSNorm of each head */
    vla_op ops[VLA_OPS];
    int op_count;
    const int64_t *n, *T, *seeds; /* T NULL: the task's own length for n */
    int64_t n_count, T_count, seed_count;
    int64_t vocab, steps, batch; /* 0: the protocol's */
    double lr;                   /* 0: the protocol's, a grid for tuned */
    int64_t conv;
    int out_norm;           /* a vla_out_norm, or -1: the protocol's */
    double lambda0;         /* 0: 0.1 */
    double gate_bias;       /* delta, decay: what the gates' bias starts at */
    int features;           /* a vla_features for queries and keys, or -1: the operator's */
    int64_t refresh_period; /* vla; -1: the protocol's */
    double refresh_eps;
    vla_isa isa;
    const char *checkpoints; /* directory, or NULL */
    bool resume;
    const char *dump; /* directory for q, k, v, u of the last block, or NULL: one case only */
    bool gradients;   /* also |dL/dx_t| against lag, untrained and trained */
    bool norms;       /* also the untrained backbone's state norms at 1,000 tokens */
} vla_trained_settings;

vla_trained_settings vla_trained_settings_default(vla_task_kind kind);
/* Told after every step: what runs, its news; false stops and saves a checkpoint. */
typedef struct vla_trained_watch {
    bool (*tell)(void *context, const char *label, const vla_train_now *now);
    void *context;
} vla_trained_watch;

/* Runs every case. known: rows of an earlier run, whose cases are taken from there (may be NULL). *stopped: the watch
 * or the sink ended it early. */
vla_status vla_trained_run(const vla_trained_settings *settings, vla_pool *pool, const vla_records *known,
                           const vla_row_sink *sink, const vla_trained_watch *watch, bool *stopped, vla_error *error);

/* The paper's table: its number, the authors' log, what is measured under both protocols or `not measured here`, as
 * records of kind `cell`, and verdicts on C8, C12, C13, C14 and C15. */
vla_status vla_trained_table(const vla_records *records, vla_task_kind kind, const vla_row_sink *sink,
                             vla_error *error);

#endif
