/* How the state grows over long sequences: |S_t|_F and prediction residuals at checkpoints, several operators on the
 * same tokens, through plans (the kernels that run), in memory that does not grow with T. */
#ifndef VLA_ANALYSIS_GROWTH_H
#define VLA_ANALYSIS_GROWTH_H
#include "lib/analysis/source.h"
#include "lib/vla.h"

typedef struct vla_growth_options {
    const vla_op *ops;
    int op_count;
    const vla_problem *problem; /* dk, dv, lambda0, features, refresh; op is taken from ops */
    const vla_source *source;   /* heads run side by side */
    const int64_t *at;          /* checkpoints, ascending, at least 1 */
    int64_t checkpoints;
    vla_exec *exec;
    vla_form form;
    vla_dtype dtype;
    bool (*advance)(void *context, int64_t done, int64_t total); /* may be NULL; false stops early */
    void *context;
} vla_growth_options;

/* norm [op_count, heads, checkpoints]: |S_t|_F. residual, the same shape (may be NULL): root mean square of |v - S_t k|
 * over the 64 tokens after t, with S_t held. Both NaN where not reached. */
vla_status vla_growth_run(const vla_growth_options *options, double *norm, double *residual, vla_error *error);

/* Checkpoints from `first` to T, about per_decade a decade, T last. Returns how many were written (at most most). */
int64_t vla_checkpoints(int64_t first, int64_t T, int per_decade, int64_t *at, int64_t most);

/* A block of tokens of every head, made by the pool: the state of the streams of a source. */
typedef struct vla_feed vla_feed;
vla_status vla_feed_create(vla_feed **feed, const vla_source *source, int64_t block, vla_dtype dtype, vla_error *error);
void vla_feed_destroy(vla_feed *feed);
/* The next count <= block tokens into *tensors (k, v, u, b, g [heads, count, ..]; q is k), in the feed's dtype. */
void vla_feed_next(vla_feed *feed, int64_t count, vla_exec *exec, vla_tensors *tensors);

#endif
