/* Monotonic time and how short an interval it can be trusted with. */
#ifndef VLA_BASE_CLOCK_H
#define VLA_BASE_CLOCK_H

/* Seconds on CLOCK_MONOTONIC. */
double vla_now(void);
/* Shortest interval, in seconds, worth recording as one sample: 1,000 times what reading the clock costs or its
 * resolution, whichever is larger, and at least 100 microseconds, so that the clock adds less than 0.1 %. */
double vla_clock_floor(void);

#endif
