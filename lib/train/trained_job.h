/* Inside the trained tables: one network trained once, its names, key and record fields, and what is read off networks
 * besides their accuracy. */
#ifndef VLA_TRAIN_TRAINED_JOB_H
#define VLA_TRAIN_TRAINED_JOB_H
#include "lib/train/trained.h"

enum { VLA_JOB_LABEL = 160 };

typedef struct vla_job { /* one network trained once */
    const vla_trained_settings *s;
    vla_op op;
    int64_t n, T;
    uint64_t seed;
    double lr;
    bool search; /* tries a rate */
    vla_sequences sequences;
    vla_train train;
    char label[VLA_JOB_LABEL], cell[VLA_JOB_LABEL], checkpoint[1024], task[96];
} vla_job;

typedef struct vla_job_runner {
    const vla_trained_settings *s;
    vla_pool *pool;
    const vla_records *known;
    const vla_row_sink *sink;
    const vla_trained_watch *watch;
    const vla_job *now;
    bool stopped;
} vla_job_runner;

void vla_job_make(vla_job *job, const vla_trained_settings *settings, vla_op op, int64_t n, int64_t T, uint64_t seed,
                  double lr, bool search);
void vla_job_place_checkpoint(vla_job *job);
/* part: which of several rows of one network, "" for its own. */
void vla_job_key(const vla_job *job, const char *part, char key[17]);
/* Sets the fields that say which network a row is about; false without memory. */
bool vla_job_describe(vla_record *row, const vla_job *job, const char *part);
vla_status vla_job_no_memory(vla_record *row, vla_error *error);

/* Records of |dL/dx_t| at lags 0, 1, 2, 4, .. for a loss asked at the last position only. */
vla_status vla_job_gradients(const vla_job_runner *x, const vla_job *job, vla_network *network, bool trained,
                             vla_error *error);
vla_status vla_job_untrained_gradients(const vla_job_runner *x, const vla_job *job, vla_error *error);
/* q, k, v (and u) of the last block for four test sequences, [4, heads, T, d], into the settings' directory. */
vla_status vla_job_dump(const vla_job *job, vla_network *network, vla_error *error);
/* A record of |S_T|_F of the untrained backbone's last block on 1,000 random tokens, mean over heads and sequences. */
vla_status vla_job_norm(vla_job_runner *x, vla_op op, vla_error *error);

#endif
