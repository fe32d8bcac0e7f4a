/* One pass of one kernel over given inputs: outputs, end state, its time, and whether naive agrees. */
#ifndef VLA_MEASURE_RUN_H
#define VLA_MEASURE_RUN_H
#include "lib/measure/judge.h"
#include "lib/report/record.h"

typedef struct vla_run {
    vla_problem problem; /* sizes come from the inputs */
    vla_form form;       /* VLA_BEST: replaced by the form that ran */
    vla_backend backend; /* likewise VLA_AUTO */
    vla_dtype dtype;
    bool want_alpha; /* vla: keep alpha too */
    bool want_check;

    vla_tensor o, alpha;
    vla_state state; /* at the end */
    vla_isa isa;
    int threads;
    int64_t workspace;
    double seconds; /* of the one pass; NaN when T = 0 or values are not finite */
    bool checked;
    vla_residual residual[VLA_PARTS]; /* compared = 0: the operator has no such part */
    double limit;
    bool pass;
    char warning[200]; /* the first value that is not finite, in the inputs or else in o; "" when there is none */
} vla_run;

/* Takes sizes from the inputs and settles form and backend; VLA_ERR_FILE when the operator cannot take the shapes. */
vla_status vla_run_prepare(vla_run *run, const vla_inputs *inputs, int threads, vla_error *error);
/* After vla_run_prepare. start: state before the first token, NULL for none. Plans, runs once and, with want_check,
 * compares every output and the end state with naive in float64, fed with the same rounded inputs and start. */
vla_status vla_run_execute(vla_run *run, vla_exec *exec, const vla_inputs *inputs, const vla_state *start,
                           vla_error *error);
void vla_run_destroy(vla_run *run);

/* o.npy, S.npy, A.npy, n.npy, alpha.npy to DIR, made when missing. */
vla_status vla_run_dump(const vla_run *run, const char *directory, vla_error *error);

/* What else a record says. */
typedef struct vla_run_facts {
    const char *input; /* directory or files, NULL for synthetic inputs */
    const char *digest;
    int64_t seed; /* of synthetic inputs */
    bool has_u, has_b;
    const char *state_in; /* digest of the state before the first token, NULL for none */
    vla_isa isa;          /* asked for */
} vla_run_facts;

/* The record of kind "run"; run as it was before or after execution. status is ok, fail, skip or oom. */
vla_record *vla_run_record(const vla_run *run, const vla_run_facts *facts, const char *status, const char *reason);

#endif
