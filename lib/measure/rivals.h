/* One case by several versions of a library, each in a process of its own: all are timed in turns, and the fastest
 * makes the row. */
#ifndef VLA_MEASURE_RIVALS_H
#define VLA_MEASURE_RIVALS_H
#include "lib/measure/bench.h"

/* Of count benches of one case: the one of the least median among those that were checked and timed; 0 when there is
 * none. */
int vla_rivals_fastest(const vla_bench *benches, int count);
/* What each took, in their order, into bench->libraries: "cudnn 9.14.0 9.54e-05 s; cudnn 9.19.0 1.04e-04 s". names: for
 * a bench that does not say what it ran; those that could not be timed are "NAME no time". */
void vla_rivals_note(const vla_bench *benches, int count, const char *const *names, vla_bench *bench);

/* A bench that says it ran anything but NAME has fallen back to another kernel: it becomes a skip. */
void vla_rivals_same(vla_bench *bench, const char *name);

#endif
