/* Feature maps in plain float64, one row at a time, as DESIGN's table has them: what every naive form shares. */
#ifndef VLA_CPU_NAIVE_H
#define VLA_CPU_NAIVE_H
#include "kernels/kernel.h"

/* phi(x) for a row of n raw values. */
void vla_naive_features(double *out, const double *raw, int64_t n, vla_features features);
/* out = x / |x|, scaled before squaring; a zero row stays zero. */
void vla_naive_unit(double *out, const double *x, int64_t n);
/* unit(phi(raw)): for a row whose values are all negative, exp(max) is factored out first so that a tiny key keeps its
 * direction; a row whose phi is zero in float64 stays zero. */
void vla_naive_unit_features(double *out, const double *raw, int64_t n, vla_features features);
/* qf of a row: phi, then unit with qk_l2. */
void vla_naive_query(double *out, const double *raw, int64_t n, const vla_problem *problem);
double vla_naive_sigmoid(double x);
/* num / max(den, VLA_RATIO_EPS) where a NaN denominator stays visible. */
double vla_naive_ratio(double num, double den);

/* One (batch, head) of a call; scratch: vla_naive_scratch values of this worker's own. */
typedef void vla_naive_head(const vla_call *call, int64_t head, double *scratch);
/* Runs every (batch, head) on the pool and counts the steps. Never fails. */
vla_status vla_naive_each_head(const vla_call *call, vla_naive_head *one);

/* Sets the state of a head at the start of a run: given, or S = 0, A = I/lambda0, n = 0. Any pointer may be NULL. */
void vla_naive_start(const vla_call *call, int64_t head, double *S, double *A, double *n);
/* Copies a head's state out where the caller asked for it. */
void vla_naive_finish(const vla_call *call, int64_t head, const double *S, const double *A, const double *n);
/* y = M x for M [rows, columns]. */
void vla_naive_matvec(double *y, const double *M, const double *x, int64_t rows, int64_t columns);
double vla_naive_dot(const double *x, const double *y, int64_t n);
/* M += scale x y^T for M [rows, columns]. */
void vla_naive_rank1(double *M, double scale, const double *x, const double *y, int64_t rows, int64_t columns);

vla_status vla_naive_workspace(const vla_problem *problem, int threads, int64_t *bytes, vla_error *error);
/* Doubles of scratch a worker has. */
int64_t vla_naive_scratch(const vla_problem *problem);

#endif
