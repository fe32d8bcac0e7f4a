/* Does the Sherman-Morrison recursion keep A_t = M_t^-1? The A of a plan's own kernel, in its dtype, against the
 * inverse by Cholesky of M_t accumulated in float64, over long sequences. Tokens come in runs of at most 1,024, between
 * which A is carried in the plan's dtype, as in a stream. */
#ifndef VLA_ANALYSIS_DRIFT_H
#define VLA_ANALYSIS_DRIFT_H
#include "lib/analysis/source.h"
#include "lib/vla.h"

typedef struct vla_drift {
    int64_t t;
    double drift; /* |A - R|_F/|R|_F, R: what exact arithmetic gives, refreshes included */
    double bias;  /* |A - M^-1|_F/|M^-1|_F, M = lambda0 I + sum u u^T without refreshes; = drift when there are none */
    double asymmetry; /* |A - A^T|_F/|A|_F */
    double least;     /* smallest eigenvalue of (A + A^T)/2 over that of R */
    double condition; /* of R */
    int64_t nonfinite;
} vla_drift;

typedef struct vla_drift_options {
    const vla_problem *problem; /* vla: dk, lambda0, refresh */
    const vla_source *source;   /* one head is used; tokens are rounded to dtype first */
    const int64_t *at;
    int64_t checkpoints;
    vla_exec *exec;
    vla_form form;
    vla_dtype dtype; /* f64 or f32 */
    bool (*advance)(void *context, int64_t done, int64_t total);
    void *context;
} vla_drift_options;

/* drift [checkpoints]; *reached: how many were measured (fewer when advance stopped it). */
vla_status vla_drift_run(const vla_drift_options *options, vla_drift *drift, int64_t *reached, vla_error *error);

#endif
