/* The trace of an operator on a source: per step and head the Jacobian, the product of Jacobians and the state.
 *
 * Every step has its SVD and its eigenvalues; rows (every `every` steps, and the last) add the M_t-norm, the norm of
 * the product and its smallest singular value. Heads advance in blocks of steps, then the dense work of all heads and
 * steps of the block is spread over the pool: memory is heads x block, whatever T is. Results do not depend on the
 * threads. */
#ifndef VLA_ANALYSIS_TRACE_H
#define VLA_ANALYSIS_TRACE_H
#include "lib/analysis/source.h"
#include "lib/base/threads.h"
#include "lib/vla.h"

enum { VLA_C_BINS = 100 };

/* Logarithms are natural. NaN: does not apply, or was not measured. */
typedef struct vla_trace_row {
    int64_t head, t;                     /* t counts from 1 */
    double sigma, sigma_closed;          /* |J_t| by SVD and in closed form */
    double radius, metric_norm;          /* spectral radius by dgeev; |J_t| in the norm of M_t */
    double c, gate;                      /* alpha.k, g */
    double state_norm, A_norm, residual; /* |S_t|_F, |A_t|_F, |v - S_{t-1} k| */
    double log_product, growth_rate;     /* log |J_t .. J_1|_2, the same a token */
    double log_bound, log_bound_sharp;   /* determinant bound; the same with |A_t|_2 in place of 1/lambda0 */
    double log_sigma_min;                /* smallest singular value of the product */
    int64_t singular_at;                 /* first step with a singular Jacobian, 0 for none */
} vla_trace_row;

/* One head over all its steps. */
typedef struct vla_trace_summary {
    int64_t head, steps, sigma_max_at, singular_at;
    double sigma_max, sigma_min_norm, sigma_mean; /* largest, smallest, mean |J_t| */
    double closed_gap;                            /* max |SVD - closed| / max(1, SVD) */
    double radius_max, radius_gap;                /* the gap: |dgeev - closed| likewise */
    double metric_max;                            /* over rows */
    double log_norms;                             /* sum of log |J_t| */
    double log_product, log_product_max, growth_rate, log_bound, log_bound_sharp, log_sigma_min;
    double bound_margin; /* min over rows of log_bound - log_product */
    double c_min, c_mean;
    double state_norm, state_max, A_norm, residual, residual_mean;
    int64_t c_bins[VLA_C_BINS + 2]; /* c in [0, 1], below, above or NaN */
} vla_trace_summary;

typedef struct vla_trace_options {
    const vla_problem *problem; /* op, dk, dv, parameters; T is the number of steps */
    const vla_source *source;
    int64_t every; /* a row every so many steps; 0: about 100 rows */
    bool dense;    /* false: closed forms and state only, no LAPACK (long runs) */
    vla_pool *pool;
    void (*row)(void *context, const vla_trace_row *row);        /* may be NULL; heads in order within a block */
    bool (*advance)(void *context, int64_t done, int64_t total); /* may be NULL; false stops early */
    void *context;
} vla_trace_options;

int64_t vla_trace_stride(int64_t T, int64_t every);
/* summaries [source->heads]. */
vla_status vla_trace_run(const vla_trace_options *options, vla_trace_summary *summaries, vla_error *error);

#endif
