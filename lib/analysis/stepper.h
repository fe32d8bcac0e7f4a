/* One head of an operator, step by step in float64, with every quantity of a step open to inspection.
 *
 * The arithmetic is that of the naive form (tests hold the two together); what a step adds is its Jacobian, its
 * residual and the growth of det M. */
#ifndef VLA_ANALYSIS_STEPPER_H
#define VLA_ANALYSIS_STEPPER_H
#include "lib/analysis/jacobian.h"

typedef struct vla_stepper {
    vla_problem problem; /* op, dk, dv and parameters; B, H, T are not used */
    int64_t t;           /* steps taken */
    double *S;           /* [dv, dk] */
    double *A;           /* [dk, dk]; vla and rls, else NULL */
    double *n;           /* [dk] */
    /* Of the last step: */
    vla_jacobian jacobian; /* points into kh and a */
    double residual;       /* |v - S_{t-1} k| */
    double log_det; /* sum over steps of log(1 + uh.A_{t-1} uh): log det M_t/lambda0^dk where there is no refresh */
    double *kf, *kh, *uh, *z, *a, *r;
} vla_stepper;

/* Operators with a state only (softmax has none). */
vla_status vla_stepper_create(vla_stepper *stepper, const vla_problem *problem, vla_error *error);
void vla_stepper_destroy(vla_stepper *stepper);
/* S = 0, A = I/lambda0, n = 0, t = 0. */
void vla_stepper_reset(vla_stepper *stepper);
/* One token: k [dk], v [dv]; u [dk], b, g may be NULL (u = k, beta = 1, gate = 1). g is the token's one gate. */
void vla_stepper_step(vla_stepper *stepper, const double *k, const double *v, const double *u, const double *b,
                      const double *g);

double vla_frobenius(const double *matrix, int64_t count);

#endif
