/* Two sets of records side by side, and several made one. */
#ifndef VLA_MEASURE_COMPARE_H
#define VLA_MEASURE_COMPARE_H
#include "lib/report/record.h"

typedef struct vla_comparison {
    int64_t joined, slower, faster, same, ambiguous, changed; /* changed: the status differs */
    int64_t only_old, only_new;
} vla_comparison;

/* One `compare` record for each `sample` key in both: old_s, new_s, ratio = new/old with an interval from the medians'
 * intervals, and verdict: slower or faster (the whole interval beyond 1 +- threshold), same (the whole interval
 * within), ambiguous (neither), or the statuses when either is not ok. */
vla_status vla_compare(const vla_records *old_rows, const vla_records *new_rows, double threshold, vla_records *out,
                       vla_comparison *summary, vla_error *error);
/* Time of each sample row relative to the operator baseline at the same setting and size: ratio, ratio_lo, ratio_hi. */
vla_status vla_relate(const vla_records *rows, const char *baseline, double threshold, vla_records *out,
                      vla_comparison *summary, vla_error *error);
/* Copies rows on merged; a row whose kind and key are there already replaces the earlier one in its place. */
vla_status vla_merge(vla_records *merged, const vla_records *rows, vla_error *error);

#endif
