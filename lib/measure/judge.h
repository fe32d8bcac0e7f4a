/* The judge: what a run wrote against naive in float64, head by head, on the rounded inputs the run saw. */
#ifndef VLA_MEASURE_JUDGE_H
#define VLA_MEASURE_JUDGE_H
#include "lib/measure/reference.h"
#include "lib/op/residual.h"

typedef enum vla_part { VLA_PART_O, VLA_PART_S, VLA_PART_A, VLA_PART_N, VLA_PART_ALPHA, VLA_PARTS } vla_part;

/* One run of a kernel. Parts that are NULL are not compared. */
typedef struct vla_judged {
    const vla_problem *problem;
    const vla_inputs *inputs;
    vla_dtype dtype;        /* of o and alpha */
    const vla_state *start; /* before the first token; NULL: from nothing */
    const vla_state *end;
    const void *o;               /* [B,H,T,dv] */
    const void *alpha;           /* [B,H,T,dk] */
    vla_rows rows;               /* of o that are compared */
    const vla_references *known; /* used where they have the head; NULL: none are known */
} vla_judged;

/* Sets sum[part] to the differences over `count` heads: head[i], or head i where head is NULL. Heads are shared among
 * exec's threads and added in order, so that the sums do not depend on the threads. VLA_ERR_MEMORY when a head's
 * float64 copies do not fit. *seconds (may be NULL): what the slowest head's reference took. */
vla_status vla_judge_heads(const vla_judged *run, vla_exec *exec, const int64_t *head, int64_t count,
                           vla_residual_sum sum[VLA_PARTS], double *seconds, vla_error *error);

#endif
