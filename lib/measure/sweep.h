/* Many cases under one time limit: cases of one size share inputs and take turns, so that the machine's drift, the
 * order and the cache treat them alike. */
#ifndef VLA_MEASURE_SWEEP_H
#define VLA_MEASURE_SWEEP_H
#include "lib/measure/bench.h"
#include "lib/measure/peak.h"

typedef struct vla_sweep_config {
    double time_limit; /* seconds for everything, from vla_sweep_create on */
    int64_t min_samples;
    double noise;
    bool check_full;
    bool profile; /* launch each case once for a profiler and time nothing */
    int64_t seed;
    vla_isa isa;
    const vla_bench_backward *backward; /* for cases of pass fwdbwd */
    vla_worker *const *workers;         /* other processes that run some cases too; the fastest makes the row */
    int worker_count;
    const char *here;                      /* the library that this process has in a worker's place, "cudnn 9.14.0" */
    bool (*in_workers)(const vla_case *c); /* those cases: no state, forward */
    const vla_inputs *data;                /* --input tensors in float64; NULL: synthetic */
    const char *digest;                    /* of data */
    void *context;                         /* for the callbacks; any of them may be NULL */
    vla_records *gains; /* receives what scans gain from their threads (gain.h); NULL: not measured */
    vla_status (*row)(void *context, const vla_record *record, vla_error *error); /* an error ends the sweep */
    void (*progress)(void *context, const char *label, double done, double total);
    void (*note)(void *context, const char *text);
    bool (*interrupted)(void);
} vla_sweep_config;

typedef struct vla_sweep_counts {
    int64_t run, passed, skipped, failed; /* skipped: skip, oom and timeout rows */
    int64_t resumed;                      /* rows found in earlier records: not measured again */
    int64_t oom, timeout;
} vla_sweep_counts;

typedef struct vla_sweep vla_sweep;

/* rows: earlier rows (--resume) on entry; every new row is added. Borrowed, as is what config points to. */
vla_status vla_sweep_create(vla_sweep **sweep, const vla_sweep_config *config, vla_records *rows, vla_error *error);
void vla_sweep_destroy(vla_sweep *sweep);

/* Measures cases in order, neighbours of equal size together. Cases whose key is among the rows are not measured again.
 * until: the share of the time limit that may be spent when this returns (1: all of it). */
vla_status vla_sweep_run(vla_sweep *sweep, const vla_case *cases, int64_t count, double until, vla_error *error);
vla_sweep_counts vla_sweep_totals(const vla_sweep *sweep);
const vla_peaks *vla_sweep_peaks(const vla_sweep *sweep);
/* Seconds of the time limit that are left, never negative. */
double vla_sweep_remaining(const vla_sweep *sweep);
double vla_sweep_limit(const vla_sweep *sweep);
bool vla_sweep_interrupted(const vla_sweep *sweep);

#endif
