/* --expect: do results agree with the records of an earlier run? */
#ifndef VLA_MEASURE_EXPECT_H
#define VLA_MEASURE_EXPECT_H
#include "lib/report/record.h"
#include <stdio.h>

/* false when no row of them would be compared: such a file expects nothing. */
bool vla_expects(const vla_records *expected);
/* Number of expected rows that found do not meet, each with a line on stream: a sample must be there (by key) with the
 * same status; a crossover (by key) must have the same state and, when found, an overlapping [lo, hi], widened by its
 * bootstrap interval. Times are not compared: that is --fail-on slower. */
int64_t vla_expect_differs(const vla_records *expected, const vla_records *found, FILE *stream);

#endif
