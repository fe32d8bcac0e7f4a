/* Is what will be timed right? One run on poisoned outputs, compared with naive before any timing. */
#ifndef VLA_MEASURE_CHECK_H
#define VLA_MEASURE_CHECK_H
#include "lib/measure/case.h"
#include "lib/measure/slice.h"
#include "lib/measure/reference.h"
#include "lib/op/residual.h"

enum { VLA_BUFFER_GUARD = 64 }; /* bytes behind every buffer that nothing may write */

/* Everything one case writes; S, A and n also hold the starting state in decode. */
typedef struct vla_buffers {
    void *o, *S, *A, *n; /* NULL where the operator has none */
    int64_t t;
    int64_t o_bytes, S_bytes, A_bytes, n_bytes;
} vla_buffers;

vla_status vla_buffers_create(vla_buffers *buffers, const vla_case *c, vla_error *error);
void vla_buffers_free(vla_buffers *buffers);
/* Every byte 0xff, which is a NaN in every dtype; so are the guard words behind each output. */
void vla_buffers_poison(vla_buffers *buffers);
/* The guard words are as they were set. */
bool vla_buffers_intact(const vla_buffers *buffers);
void vla_buffers_bind(vla_buffers *buffers, vla_tensors *tensors);
uint64_t vla_buffers_checksum(const vla_buffers *buffers);

typedef struct vla_check {
    vla_residual residual; /* worst over o, S, A and n */
    double limit;
    bool pass;
    char checked[48]; /* what was compared: "4 heads", "4 heads, 66 rows", "all" */
    char reason[200]; /* why it failed */
    double seconds;   /* spent in the comparison */
} vla_check;

/* Compares buffers (after one run of the case on inputs) with naive on the same rounded inputs: for the first, last and
 * two random (b,h), softmax on its first, last and 64 random rows; full: everything. start (may be NULL): the state the
 * run began with. known (may be NULL): references that were made before. Errors are failures of the check itself (no
 * memory); a wrong result is pass = false. */
vla_status vla_check_run(const vla_case *c, vla_exec *exec, const vla_inputs *inputs, const vla_buffers *start,
                         const vla_buffers *buffers, const vla_references *known, bool full, uint64_t seed,
                         vla_check *check, vla_error *error);
/* Asks for the references that the check of a case without a start will look for. */
vla_status vla_check_needs(const vla_case *c, bool full, uint64_t seed, vla_references *references, vla_error *error);

#endif
