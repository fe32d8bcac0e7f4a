/* Where does A become, and stay, at least as fast as B? Pure functions on two measured curves. */
#ifndef VLA_MEASURE_CROSSOVER_H
#define VLA_MEASURE_CROSSOVER_H
#include "lib/measure/statistics.h"

/* One size of one operator. x is T in prefill and the context length in decode. A row that failed, was skipped or ran
 * out of memory or time is not known: never a win, never a loss. */
typedef struct vla_point {
    int64_t x;
    bool known;
    vla_median time; /* seconds */
} vla_point;

typedef struct vla_curve {
    const vla_point *points; /* any order; of equal x the last known one counts */
    int64_t count;
} vla_curve;

typedef enum vla_crossover_state {
    VLA_CROSSOVER_FOUND,   /* between lo and hi */
    VLA_CROSSOVER_NONE,    /* A is above B at the largest common x: none <= x_max */
    VLA_CROSSOVER_UNKNOWN, /* nothing to compare, or an unknown row inside what lo..hi would claim */
    VLA_CROSSOVER_SEVERAL, /* the order changes more than once; lo..hi is the last change, absent if that is a loss */
    VLA_CROSSOVER_BELOW_RANGE, /* A is at or below B from the smallest common x on: <= hi */
    VLA_CROSSOVER_STATES
} vla_crossover_state;

typedef struct vla_crossover {
    vla_crossover_state state;
    double lo, hi;           /* A above B at lo, at or below it from hi on; NaN where there is none */
    double estimate;         /* where the log-log chords meet between lo and hi */
    double ci_lo, ci_hi;     /* 95 % bootstrap interval of the estimate; NaN when most replicates have none */
    double slope_a, slope_b; /* local exponents d log time / d log x around the crossover; NaN when unknown */
    int changes;             /* how often the order changes beyond noise */
    bool overlap;            /* the medians' intervals overlap at lo or at hi: closer than noise can tell */
    int64_t x_min, x_max;    /* smallest and largest x where both are known */
    int64_t common, unknown; /* x with both known; x with a row that is not known */
    int64_t next;            /* x to measure next to narrow lo..hi, 0 when done */
} vla_crossover;

const char *vla_crossover_state_name(vla_crossover_state state);
bool vla_crossover_state_parse(const char *name, vla_crossover_state *state);

/* The smallest x from which A stays at or below B. An order within the noise (overlapping intervals of the medians)
 * counts as a change only where nothing clearer follows, so that touching curves do not fake crossings; exact ties are
 * "at or below". tolerance: relative width of lo..hi below which next is 0 (0.05). replicates: bootstrap size, 0 for
 * none; rng may then be NULL. x that only one curve has are no evidence and are left out. */
vla_status vla_crossover_find(const vla_curve *a, const vla_curve *b, double tolerance, int replicates, vla_rng *rng,
                              vla_crossover *crossover, vla_error *error);

#endif
