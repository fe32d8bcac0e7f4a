/* What a sweep has learned of each variant (everything of a case but its size): how long it takes, and where it ended.
 */
#ifndef VLA_MEASURE_VARIANT_H
#define VLA_MEASURE_VARIANT_H
#include "lib/measure/bench.h"

typedef struct vla_variant_history {
    vla_case c; /* of the latest size that ran, or the one that ended it */
    double run_seconds, run_flops, check_seconds, check_work;
    bool ran, ended;
    int64_t ended_at; /* sizes from here on are not tried */
    vla_row_status end;
    char reason[200];
} vla_variant_history;

typedef struct vla_variants {
    vla_variant_history *items;
    int count, capacity;
} vla_variants;

void vla_variants_free(vla_variants *variants);
/* Remembers the times of a case that ran. */
void vla_variants_ran(vla_variants *variants, const vla_bench *bench);
/* skip, oom and timeout end larger sizes of the variant and nothing else; other statuses are ignored. */
void vla_variants_end(vla_variants *variants, const vla_case *c, vla_row_status status, const char *reason);
bool vla_variants_ended(const vla_variants *variants, const vla_case *c, vla_row_status *status, char *reason,
                        size_t size);
/* Work of a case's check, in the same unit at every size: pairs of sampled rows for softmax, the operator's own else.
 */
double vla_check_work(const vla_case *c, bool full);
/* Seconds for the check, a warm-up, one sample and the last comparison, judged by the variant's smaller sizes or, for
 * the first, by a rate no kernel here reaches. */
double vla_variants_foresee(const vla_variants *variants, const vla_case *c, bool check_full);

#endif
