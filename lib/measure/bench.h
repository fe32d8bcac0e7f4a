/* One case from plan to record: prepare and check, then sample, then say what was found. */
#ifndef VLA_MEASURE_BENCH_H
#define VLA_MEASURE_BENCH_H
#include "lib/device/mirror.h"
#include "lib/measure/check.h"
#include "lib/measure/sampling.h"
#include "lib/report/record.h"

/* The backward half of a run, brought by a floor above. context belongs to one case, whose inputs and exec outlive it.
 */
typedef struct vla_bench_backward {
    /* VLA_ERR_UNSUPPORTED with the reason for a case it does not do. */
    vla_status (*create)(void **context, const vla_case *c, const vla_inputs *inputs, uint64_t seed, vla_error *error);
    vla_status (*run)(void *context, vla_error *error);
    /* Compares the gradients of the last run with float64 and makes check no better than what it finds. */
    vla_status (*check)(void *context, vla_check *check, vla_error *error);
    int64_t (*bytes)(const void *context); /* memory it takes, gradients and workspace */
    void (*destroy)(void *context);
} vla_bench_backward;

typedef enum vla_row_status { VLA_ROW_OK, VLA_ROW_FAIL, VLA_ROW_SKIP, VLA_ROW_OOM, VLA_ROW_TIMEOUT } vla_row_status;
const char *vla_row_status_name(vla_row_status status);

typedef struct vla_bench {
    vla_case c;
    vla_row_status status;
    char reason[400];
    vla_exec *exec; /* borrowed, as are inputs and start */
    vla_plan *plan;
    const vla_inputs *inputs;
    const vla_buffers *start; /* decode: the state every repeat begins with; NULL: from nothing */
    vla_buffers buffers;
    vla_tensors tensors;
    const vla_bench_backward *backward; /* pass fwdbwd; NULL otherwise */
    void *backward_context;
    vla_mirror *mirror;                  /* device cases: tensors' copies there, made after the buffers */
    double device_seconds;               /* of the last runs, by events */
    int64_t device_bytes;                /* taken there */
    double sm_clock_hz, sm_clock_max_hz; /* after the last sample; 0: unknown */
    char throttle[64];                   /* why the clock was held down then */
    char libraries[200];                 /* what each version of a library took, where several were timed */
    vla_check check;
    vla_sampler sampler;
    uint64_t checksum, inputs_checksum;
    bool drifted;  /* one more run after the timing gave other outputs than the checked one */
    double stolen; /* share of the processors' time that other machines took while it was sampled */
    double prepare_seconds, run_seconds; /* the checked run alone: a first guess of the time */
} vla_bench;

/* What a case is compared with, and how thoroughly. */
typedef struct vla_bench_check {
    const vla_references *known; /* may be NULL */
    bool full;
    uint64_t seed;
    const vla_bench_backward *backward; /* for cases of pass fwdbwd */
    vla_worker *worker;                 /* the process that runs the case; NULL: this one */
} vla_bench_check;

/* Plans, runs once on poisoned outputs and checks. Skips, failed checks and lack of memory become status and reason;
 * the return value is for errors that end the whole run. T = 0 runs once, is ok and takes no samples. */
vla_status vla_bench_prepare(vla_bench *bench, const vla_case *c, vla_exec *exec, const vla_inputs *inputs,
                             const vla_buffers *start, const vla_bench_check *how, vla_error *error);
bool vla_bench_can_time(const vla_bench *bench);
vla_status vla_bench_start(vla_bench *bench, const vla_stop_rule *rule, double floor, vla_error *error);
vla_status vla_bench_step(vla_bench *bench, vla_error *error);
/* Instead of sampling: one more run, launched by itself, as the only one that a profiler records. */
vla_status vla_bench_profile(vla_bench *bench, vla_error *error);
/* After the last sample: runs once more and compares outputs and inputs with those of the checked run. */
vla_status vla_bench_verify(vla_bench *bench, vla_error *error);
void vla_bench_free(vla_bench *bench);

/* What the record says about the machine and the data. */
typedef struct vla_bench_facts {
    int64_t seed;
    const char *input; /* digest of --input data, or NULL */
    double peak_flops; /* matrix rate at the case's threads and dtype; 0: unknown */
    double bandwidth;  /* copy bandwidth, bytes a second; 0: unknown */
} vla_bench_facts;

/* The `sample` record; NULL when out of memory. */
vla_record *vla_bench_record(const vla_bench *bench, const vla_bench_facts *facts);
/* A row for a case that never ran. */
vla_record *vla_bench_empty_record(const vla_case *c, vla_row_status status, const char *reason,
                                   const vla_bench_facts *facts);

#endif
