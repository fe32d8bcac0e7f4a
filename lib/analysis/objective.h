/* Is the recursion the minimiser it is derived from?
 *
 *   F_t(S) = sum_{s<=t} |v_s - S k_s|^2 + tr(S M_t S^T)
 *
 * with minimiser S* = V^T K (K^T K + M_t)^-1 (rows of K, V are tokens). Both are kept as moments: memory does not grow
 * with t. For vla M_t = lambda0 I + sum u u^T; for rls M = lambda0 I. */
#ifndef VLA_ANALYSIS_OBJECTIVE_H
#define VLA_ANALYSIS_OBJECTIVE_H
#include "lib/analysis/stepper.h"

typedef struct vla_objective {
    int64_t dk, dv;
    double *G, *C, *M; /* sum k k^T, sum v k^T [dv, dk], penalty [dk, dk] */
    double *work;      /* [2 dk dk + dv dk] */
    double energy;     /* sum |v|^2 */
} vla_objective;

vla_status vla_objective_create(vla_objective *objective, const vla_problem *problem, vla_error *error);
void vla_objective_destroy(vla_objective *objective);
/* Takes the token the stepper has just taken: its unit key, uh and value. */
void vla_objective_add(vla_objective *objective, const vla_stepper *stepper, const double *v);
double vla_objective_value(vla_objective *objective, const double *S);
/* S* [dv, dk]. */
vla_status vla_objective_minimiser(vla_objective *objective, double *S, vla_error *error);

#endif
