/* Recall over operators, key sources, widths and counts, as records of the kinds `recall`, `capacity` and `fit`. */
#ifndef VLA_TASK_RECALL_SWEEP_H
#define VLA_TASK_RECALL_SWEEP_H
#include "lib/task/recall.h"
#include "lib/task/sink.h"

typedef struct vla_recall_settings {
    vla_op ops[VLA_OPS];
    int op_count;
    vla_key_source keys[VLA_KEY_SOURCES];
    int key_count;
    vla_write_gate gates[VLA_WRITE_GATES]; /* vla: one curve each */
    int gate_count;
    const int64_t *d, *n, *distractors; /* n NULL: 1, d/4, d/2, 3d/4, d, 5d/4, 3d/2, 2d, 3d, 4d for every d */
    int64_t d_count, n_count, distractor_count;
    int64_t codebook, trials;
    double lambda0, decay, u_scale;
    bool u_random, match_state;
    const vla_key_bank *bank;
    uint64_t seed;
} vla_recall_settings;

/* Every operator and every key source that needs no file: what the ledger asks for. */
vla_recall_settings vla_recall_settings_default(void);

/* Curves this will run, for a dry run and for progress. */
int64_t vla_recall_sweep_curves(const vla_recall_settings *settings);
vla_status vla_recall_sweep(const vla_recall_settings *settings, vla_pool *pool, const vla_row_sink *sink,
                            vla_error *error);
/* n95 = c d^p per operator, key source and setting, from capacity records. */
vla_status vla_recall_fits(const vla_records *records, uint64_t seed, const vla_row_sink *sink, vla_error *error);

#endif
