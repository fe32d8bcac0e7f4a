/* --expect of vla-capacity: do results agree with the records of an earlier run? */
#ifndef VLA_TASK_EXPECT_H
#define VLA_TASK_EXPECT_H
#include "lib/report/record.h"
#include <stdio.h>

/* false when no row of them would be compared: such a file expects nothing. */
bool vla_task_expects(const vla_records *expected);
/* Number of expected rows that found does not meet, each with a line on stream. Rows meet by key: recall and train with
 * the same status and overlapping 95 % intervals of accuracy, capacity with overlapping intervals of n95; verdicts by
 * claim and source with the same verdict. Other kinds are not compared. */
int64_t vla_task_expect_differs(const vla_records *expected, const vla_records *found, FILE *stream);

#endif
