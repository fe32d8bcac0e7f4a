/* Recall without training: write n random pairs into a memory, then ask for each by its key.
 *
 * Values are drawn with replacement from a codebook of standard Gaussian vectors and decoded from what the memory
 * returns, both to the nearest codebook vector and to the one of largest inner product. Every memory of one seed, key
 * source and width is given the same keys, values and codebook. The first n pairs of a trial are the same for every n.
 */
#ifndef VLA_TASK_RECALL_H
#define VLA_TASK_RECALL_H
#include "lib/base/threads.h"
#include "lib/task/keys.h"
#include "lib/task/memory.h"

enum { VLA_AGES = 4 };

typedef struct vla_recall {
    vla_memory_spec memory;
    vla_key_source keys;
    const vla_key_bank *bank; /* keys = input */
    int64_t distractors;      /* further random pairs written between storing and asking */
    int64_t codebook, trials;
    bool u_random;    /* vla: u is a random unit direction instead of the key */
    double u_scale;   /* vla: u = u_scale/sqrt(dk) times a unit vector */
    bool compare_rls; /* also the distance of S to the state of rls (u_scale aside) on the same pairs */
    uint64_t seed;
} vla_recall;

typedef struct vla_share { /* a share of right answers with a 95 % interval */
    double value, lo, hi;
} vla_share;

typedef struct vla_recall_point {
    int64_t n;
    vla_share nearest, inner;
    double age[VLA_AGES];  /* accuracy (nearest) by quarter of the writing order, oldest first; NaN where none fell */
    double relative_error; /* mean over trials of |read - stored|_F/|stored|_F */
    double norm;           /* mean |S|_F when asked */
    double rls_distance;   /* mean |S - S_rls|_F/|S_rls|_F; NaN unless compare_rls */
    double sharpness;      /* softmax: the one used */
} vla_recall_point;

/* false with a reason when this many pairs cannot be made. */
bool vla_recall_possible(const vla_recall *recall, int64_t n, char *reason, size_t reason_size);
/* Points for each n (ascending, at least 1) in count. */
vla_status vla_recall_run(const vla_recall *recall, vla_pool *pool, const int64_t *n, int64_t count,
                          vla_recall_point *points, vla_error *error);
/* The same for softmax with the best of several sharpnesses at every n (by accuracy, then by error). */
vla_status vla_recall_best(const vla_recall *recall, const double *sharpness, int64_t sharpness_count, vla_pool *pool,
                           const int64_t *n, int64_t count, vla_recall_point *points, vla_error *error);

typedef struct vla_capacity {
    int64_t n95, n95_lo, n95_hi; /* largest n with accuracy (its lower, its upper limit) at least 0.95, or
                                     without a wrong answer */
    bool censored;               /* the largest n tried still passed: n95 is a lower bound */
} vla_capacity;

/* Finds n95 from measured points, bisecting by measurement between the last point that passes and the next. */
vla_status vla_recall_capacity(const vla_recall *recall, const double *sharpness, int64_t sharpness_count,
                               vla_pool *pool, const vla_recall_point *points, int64_t count, vla_capacity *capacity,
                               vla_error *error);

/* 95 % interval of a share from its per-trial values: the wider of Student's interval over trials and Wilson's over all
 * answers, so that equal trials do not claim certainty. */
vla_share vla_share_of(const double *per_trial, int64_t trials, int64_t answers_per_trial);

#endif
