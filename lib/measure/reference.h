/* What naive finds in float64 for single heads of a problem, on the rounded inputs a kernel sees: what its outputs are
 * compared with. All forms of one operator on the same inputs share them. */
#ifndef VLA_MEASURE_REFERENCE_H
#define VLA_MEASURE_REFERENCE_H
#include "lib/op/inputs.h"
#include "lib/op/state.h"

/* Which rows of o: all of them, or for softmax, where a row costs O(T), the first, the last and some random ones. */
typedef struct vla_rows {
    int64_t count; /* 0: all */
    uint64_t seed; /* of the random ones, with the head's number */
} vla_rows;

typedef struct vla_reference {
    vla_problem problem; /* of the whole batch */
    int64_t head;
    vla_rows rows;
    int64_t *row;        /* [rows.count] */
    vla_tensor o, alpha; /* [T or rows.count, dv], [T, dk] */
    vla_state state;     /* at the end */
    double seconds;      /* what it took */
    vla_error error;     /* of vla_references_make */
} vla_reference;

/* start: state before the first token; NULL: from nothing. VLA_ERR_MEMORY when a head's float64 copies do not fit. */
vla_status vla_reference_create(vla_reference *reference, const vla_problem *problem, const vla_inputs *inputs,
                                const vla_state *start, int64_t head, vla_rows rows, bool alpha, vla_error *error);
void vla_reference_destroy(vla_reference *reference);

/* One pass of naive over float64 tensors on exec's threads. */
vla_status vla_naive_run(const vla_problem *problem, vla_exec *exec, const vla_tensors *tensors, vla_error *error);

/* References over the same inputs, from nothing and without alpha. */
typedef struct vla_references {
    vla_reference *items;
    int64_t count, capacity;
} vla_references;

/* Asks for one; the same is not asked for twice. Problems that differ in how they are cut are the same. */
vla_status vla_references_add(vla_references *references, const vla_problem *problem, int64_t head, vla_rows rows,
                              vla_error *error);
/* Bytes that making and keeping them takes on so many threads. */
double vla_references_bytes(const vla_references *references, int threads);
/* Makes all that were asked for, side by side on exec's threads. */
vla_status vla_references_make(vla_references *references, const vla_inputs *inputs, vla_exec *exec, vla_error *error);
/* NULL when it was not made. */
const vla_reference *vla_references_find(const vla_references *references, const vla_problem *problem, int64_t head,
                                         vla_rows rows);
void vla_references_free(vla_references *references);

#endif
