/* The worst input of bounded size for one head of vla.
 *
 *   jacobian   |J_T|_2: penalties on one axis, then the key that A turns furthest (its antieigenvector); attained
 *   product    |J_T .. J_1|_2: one amplifying turn after the other, from axis i to axis i + 1 (turn.h)
 *   state      |S_T|_F with |v_t| <= 1: a write on axis 1, the same turns, and values whose sign adds to the result
 *   isotropic  |S_T|_F with u = 0 (A = I/lambda0) and |v_t| <= 1: keys at right angles to what is stored: sqrt(T)
 *
 * All keys wanted are non-negative, so that positive features reach them; raw inputs are found by inverting the feature
 * map within |raw| <= bound, and every value reported is measured on those raw inputs through the operator itself. */
#ifndef VLA_ANALYSIS_ADVERSARY_H
#define VLA_ANALYSIS_ADVERSARY_H
#include "lib/analysis/trace.h"

typedef enum vla_goal { VLA_GOAL_JACOBIAN, VLA_GOAL_PRODUCT, VLA_GOAL_STATE, VLA_GOAL_ISOTROPIC, VLA_GOALS } vla_goal;

const char *vla_goal_name(vla_goal goal);
bool vla_goal_parse(const char *name, vla_goal *goal);

typedef struct vla_adversary_options {
    vla_goal goal;
    const vla_problem *problem; /* vla; T, dk, dv, lambda0, features */
    double bound;               /* of |raw k|, at least 1 */
    int64_t trials;             /* random inputs to compare with; 0: none */
    uint64_t seed;
    vla_pool *pool;
} vla_adversary_options;

typedef struct vla_witness {
    int64_t T, dk, dv, turns;
    double *q, *k, *u, *v; /* [T, dk], [T, dk], [T, dk], [T, dv]: raw inputs; q = k */
    double value;          /* sigma_max (jacobian), log |J_T .. J_1|_2 (product), |S_T|_F (state, isotropic) */
    double random_value;   /* the same for the best of `trials` random inputs, NaN for none */
    double bound_value;    /* what no input can exceed; NaN where none is known */
    vla_trace_summary summary;
} vla_witness;

vla_status vla_adversary_search(const vla_adversary_options *options, vla_witness *witness, vla_error *error);
void vla_witness_destroy(vla_witness *witness);
vla_source vla_witness_source(const vla_witness *witness);
/* q.npy k.npy u.npy v.npy in directory, made if missing. */
vla_status vla_witness_write(const vla_witness *witness, const char *directory, vla_error *error);
/* The summary's number a goal is about. */
double vla_goal_value(vla_goal goal, const vla_trace_summary *summary);
/* The field of a summary record that tells it, and what such a value is divided by there (log 10: in decades). */
const char *vla_goal_field(vla_goal goal);
double vla_goal_unit(vla_goal goal);

/* A raw row whose feature map is proportional to the non-negative row `wanted` [n], within |raw| <= bound; elements
 * too small for the bound become the least the map reaches. */
void vla_feature_inverse(double *raw, const double *wanted, int64_t n, vla_features features, double bound);

#endif
