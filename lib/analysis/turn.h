/* The amplifying turn: how far one row x of the state can be stretched while it is turned from one axis to the next.
 *
 * M = diag(m1, m2) on the plane of axes 1 and 2, x = (1, 0), penalties all on axis 1 (m1 grows by 1/dk a token), keys
 * k = (cos phi, sin phi) with phi in [0, pi/2], so that they stay reachable for positive features. Each key takes x to
 * x - alpha (k.x); in the norm of M this never stretches, but x ends on axis 2, where M is small: the Euclidean norm
 * grows by up to sqrt(m1/m2). */
#ifndef VLA_ANALYSIS_TURN_H
#define VLA_ANALYSIS_TURN_H
#include "lib/vla.h"

/* Angles phi [len] that maximise log |x_2| after len tokens; returns that logarithm (-infinity for len = 0). Starts
 * from sweeps of several lengths and refines by gradient steps with one adaptive step length an angle (Rprop). */
double vla_turn_search(int64_t len, int64_t dk, double lambda0, double *phi, vla_error *error);

#endif
