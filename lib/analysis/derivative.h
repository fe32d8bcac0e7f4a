/* Is the analytic Jacobian the derivative of the code that runs? Differences of a plan's own state update. */
#ifndef VLA_ANALYSIS_DERIVATIVE_H
#define VLA_ANALYSIS_DERIVATIVE_H
#include "lib/analysis/source.h"
#include "lib/vla.h"

/* Takes `steps` tokens of head `head` of the source with the stepper, then lets a plan of the given form and dtype take
 * the next one from that state, and from the state with axis j of every row of S moved by h, for each j (dk + 1 heads
 * in one run). The update is affine in S, so the difference over h is the Jacobian but for rounding. *gap = max
 * |difference - J| / max(1, |J|_2) over all rows and axes. */
vla_status vla_derivative_gap(const vla_problem *problem, const vla_source *source, int64_t head, int64_t steps,
                              vla_exec *exec, vla_form form, vla_dtype dtype, double *gap, vla_error *error);
/* What rounding of dtype explains: 1e-10 for f64, 5e-4 for f32, 0.1 below. */
double vla_derivative_limit(vla_dtype dtype);

#endif
