/* Taking timing samples until a rule says stop, and saying which rule did. */
#ifndef VLA_MEASURE_SAMPLING_H
#define VLA_MEASURE_SAMPLING_H
#include "lib/measure/statistics.h"

typedef enum vla_stop {
    VLA_GO_ON,
    VLA_STOP_NOISE,   /* enough samples and the noise target is met */
    VLA_STOP_SAMPLES, /* the most samples kept */
    VLA_STOP_TIME,    /* the time budget is spent */
    VLA_STOP_INTERRUPT,
    VLA_STOPS
} vla_stop;

const char *vla_stop_name(vla_stop stop); /* "noise", "samples", "time", "interrupt"; "" for VLA_GO_ON */

typedef struct vla_stop_rule {
    int64_t min_samples; /* fewer only when time runs out */
    int64_t max_samples; /* at least min_samples */
    double noise;        /* relative standard error of the median to reach */
    double min_time;     /* seconds of timed work before the noise rule may stop */
    double time_limit;   /* wall seconds for this subject, resets included */
} vla_stop_rule;

/* Pure. timed: seconds inside samples; elapsed: wall seconds spent on this subject; noise NaN: not known. Always ends:
 * every call with elapsed >= time_limit (and one sample) or n >= max_samples stops. */
vla_stop vla_stop_decide(const vla_stop_rule *rule, int64_t n, double noise, double timed, double elapsed);

/* What is sampled. run does the work `iterations` times; reset (may be NULL) puts in-place state back and is called
 * before every run outside the timed region. */
typedef struct vla_subject {
    void *context;
    vla_status (*reset)(void *context, vla_error *error);
    vla_status (*run)(void *context, int64_t iterations, vla_error *error);
    double (*clock)(void);            /* NULL: vla_now; tests bring their own */
    double (*elapsed)(void *context); /* NULL, or seconds of the last run by a clock of its own (a device's) */
} vla_subject;

/* A sampler is stepped, so that several subjects can take turns and share the machine's drift alike. */
typedef struct vla_sampler {
    vla_subject subject;
    vla_stop_rule rule;
    double floor;       /* shortest sample, seconds */
    int64_t iterations; /* per sample; found by doubling */
    double *samples;    /* seconds per iteration; owned */
    int64_t n, capacity;
    double first; /* the warm-up's seconds per iteration */
    double timed; /* seconds inside samples */
    double own;   /* wall seconds spent in this sampler, resets included */
    vla_stop stop;
} vla_sampler;

/* Warms up and doubles the iterations until one sample exceeds floor. */
vla_status vla_sampler_start(vla_sampler *sampler, const vla_subject *subject, const vla_stop_rule *rule, double floor,
                             vla_error *error);
/* One more sample; sets stop. Does nothing once stopped. */
vla_status vla_sampler_step(vla_sampler *sampler, vla_error *error);
void vla_sampler_free(vla_sampler *sampler);

#endif
