/* A training run on disk: one file that appears whole or not at all, and says which run it belongs to. */
#ifndef VLA_TRAIN_CHECKPOINT_H
#define VLA_TRAIN_CHECKPOINT_H
#include "lib/train/network.h"

typedef struct vla_progress_mark {
    int64_t step;   /* done */
    int64_t checks; /* validation checks without a better one */
    double best;    /* best validation accuracy so far */
    double *curve;  /* [step] */
} vla_progress_mark;

/* identity: text that defines the run; a file with another one is refused by name. */
vla_status vla_checkpoint_write(const char *path, const char *identity, vla_network *network,
                                const vla_progress_mark *mark, vla_error *error);
/* *found false when there is no such file. mark->curve has room for `steps`; a file that has done more is refused. */
vla_status vla_checkpoint_read(const char *path, const char *identity, vla_network *network, int64_t steps,
                               vla_progress_mark *mark, bool *found, vla_error *error);

#endif
