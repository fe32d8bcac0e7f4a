/* What several threads gain for one head, beside what these processors have to give: in turns with a scan, its fastest
 * one-thread form alone, and one copy of that a thread, side by side. Virtual processors may be halves of a core, or
 * share theirs with other machines, so that two of them give less than twice one; a time alone does not tell. */
#ifndef VLA_MEASURE_GAIN_H
#define VLA_MEASURE_GAIN_H
#include "lib/measure/bench.h"

/* Copies of a one-thread run on the same inputs, each with its own outputs, state and scratch. */
typedef struct vla_abreast vla_abreast;

/* alone: of one thread, shared by the copies; all: as many threads as copies. Both are borrowed, as are the inputs. */
vla_status vla_abreast_create(vla_abreast **abreast, const vla_case *c, vla_exec *alone, vla_exec *all,
                              const vla_inputs *inputs, vla_error *error);
/* Every copy runs again and again for that many seconds, once at least; *a_run: seconds for one run by all together. */
vla_status vla_abreast_run(vla_abreast *abreast, double seconds, double *a_run, vla_error *error);
void vla_abreast_destroy(vla_abreast *abreast);

/* One scan among the benches of a group. */
typedef struct vla_gain {
    int64_t scan, alone; /* indices: the scan, and the one-thread form whose copies run */
    vla_abreast *abreast;
    double *samples; /* seconds a run, one a turn */
    int64_t n, capacity;
    double spent; /* seconds */
} vla_gain;

typedef struct vla_gains {
    vla_gain *items;
    int64_t count;
    double begun, stolen; /* seconds: now, and what others had taken, at the start */
} vla_gains;

/* Finds the scans on several CPU threads for which a one-thread form of the same operator is timed as well, among the
 * first `count` benches. one_thread must outlive the gains. What cannot be set up is left out. */
vla_status vla_gains_start(vla_gains *gains, const vla_bench *benches, int64_t count, vla_exec *one_thread,
                           vla_error *error);
/* After a sample of bench i: the copies' turn, while they have spent less than `limit` seconds. */
vla_status vla_gains_step(vla_gains *gains, const vla_bench *benches, int64_t i, double limit, vla_error *error);
/* Tells every bench which share of the processors' time others took since the start, and adds a `gain` record to out
 * for every scan: quartiles over the turns of gain (one-thread time / scan), ceiling (one-thread time / that of copies
 * side by side) and of_ceiling (their ratio). */
vla_status vla_gains_finish(const vla_gains *gains, vla_bench *benches, int64_t count, const vla_bench_facts *facts,
                            vla_records *out, vla_error *error);
void vla_gains_free(vla_gains *gains);

#endif
