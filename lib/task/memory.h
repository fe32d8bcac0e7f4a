/* One associative memory in float64, written a pair at a time with keys that are already of unit length.
 *
 *   linear   S += v k^T                                   delta  S += (v - S k) k^T
 *   decay    S = g S + (v - S k) k^T                      softmax keeps the pairs, reads sum_i softmax(s k.k_i) v_i
 *   vla      z = A u ; A -= z z^T/(1 + u.z) ; a = gate(A, k) ; S += (v - S k) a^T
 *   rls      p = P k ; a = p/(1 + k.p) ; S += (v - S k) a^T ; P -= a p^T
 *   gates    unit: A k/|A k| (the paper's); interpolate: A k/(k.A k), which makes S k = v exact; rls: the gain
 *            A' k/(1 + k.A' k) of the A before this step's update
 * S [dv, dk]; A_0 = P_0 = I/lambda0. A zero direction writes nothing.
 */
#ifndef VLA_TASK_MEMORY_H
#define VLA_TASK_MEMORY_H
#include "lib/vla.h"

typedef enum vla_write_gate { VLA_WRITE_UNIT, VLA_WRITE_INTERPOLATE, VLA_WRITE_RLS, VLA_WRITE_GATES } vla_write_gate;

const char *vla_write_gate_name(vla_write_gate gate);
bool vla_write_gate_parse(const char *name, vla_write_gate *gate);

typedef struct vla_memory_spec {
    vla_op op;
    int64_t dk, dv;
    double lambda0;       /* vla, rls */
    double decay;         /* decay: g */
    double sharpness;     /* softmax: s is this times sqrt(dk) */
    vla_write_gate write; /* vla */
} vla_memory_spec;

typedef struct vla_memory {
    vla_memory_spec spec;
    int64_t count, capacity; /* pairs written; softmax: the most it can keep */
    double *S, *A;
    double *keys, *values; /* softmax: [capacity, dk], [capacity, dv] */
    double *z, *a, *r;
} vla_memory;

/* capacity matters to softmax only. */
vla_status vla_memory_create(vla_memory *memory, const vla_memory_spec *spec, int64_t capacity, vla_error *error);
void vla_memory_destroy(vla_memory *memory);
void vla_memory_reset(vla_memory *memory);
/* Same spec and capacity on both sides. */
void vla_memory_copy(vla_memory *to, const vla_memory *from);
/* k [dk] of unit length, u [dk] as the penalty takes it (scaled; vla only), v [dv]. */
void vla_memory_write(vla_memory *memory, const double *k, const double *u, const double *v);
/* out [n, dv] for keys [n, dk]; scores: scratch of at least count doubles for softmax, else unused. */
void vla_memory_read(const vla_memory *memory, const double *keys, int64_t n, double *out, double *scores);
/* |S|_F; softmax: |V|_F of what it keeps. */
double vla_memory_norm(const vla_memory *memory);
/* Bytes of state at `size` bytes an element after n pairs: S, A, or a cache of n pairs. */
int64_t vla_memory_state_bytes(const vla_memory_spec *spec, int64_t n, int64_t size);
/* The key width at which the memory's state has as many elements as VLA's at (dk, dv): linear, delta and decay get
 * (dv dk + dk^2)/dv, rounded to the nearest width; vla and rls keep dk, and so does softmax, whose state grows. */
int64_t vla_memory_matched_width(vla_op op, int64_t dk, int64_t dv);

#endif
