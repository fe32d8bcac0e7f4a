/* The input tensors of a problem: read from .npy files or made from a seed. */
#ifndef VLA_OP_INPUTS_H
#define VLA_OP_INPUTS_H
#include "lib/tensor/tensor.h"
#include "lib/vla.h"

typedef enum vla_input { VLA_IN_Q, VLA_IN_K, VLA_IN_V, VLA_IN_U, VLA_IN_B, VLA_IN_G, VLA_INPUTS } vla_input;

/* q [B,H,T,dk]  k, u [B,H,Tk,dk]  v [B,H,Tk,dv]  b [B,H,Tk]  g [B,H,Tk] or [B,H,Tk,dv]; data is NULL when absent. */
typedef struct vla_inputs {
    int64_t B, H, T, Tk, dk, dv;
    vla_gate gate;
    vla_dtype dtype;
    vla_tensor tensor[VLA_INPUTS];
} vla_inputs;

const char *vla_input_name(vla_input input); /* "q" */

/* paths[i] NULL: absent; q, k and v are needed. Files hold [T,d], [H,T,d] or [B,H,T,d]; b and g [T], [H,T] or [B,H,T],
 * repeated over the missing B and H, g also [B,H,T,dv]. Values are rounded to dtype once. VLA_ERR_FILE names the file
 * or both tensors and shapes that do not fit. T may be below Tk (softmax), never above. */
vla_status vla_inputs_load(vla_inputs *inputs, const char *const paths[VLA_INPUTS], vla_dtype dtype, vla_error *error);
/* DIR/q.npy k.npy v.npy, and u.npy, b.npy, g.npy where they exist. */
vla_status vla_inputs_load_directory(vla_inputs *inputs, const char *directory, vla_dtype dtype, vla_error *error);

/* Standard normal values for the problem's B, H, T, Tk, dk, dv. present[i] says which of u, b and g are made; g has the
 * shape of problem->gate. Every tensor and every (b, h) has its own random stream filled token by token, so that values
 * depend on (seed, tensor, b, h, t, column, width) alone: a longer T, more heads or sequences, or another tensor left
 * out changes none of the others. Values are rounded to dtype from the same float64 numbers. */
vla_status vla_inputs_synthetic(vla_inputs *inputs, const vla_problem *problem, uint64_t seed,
                                const bool present[VLA_INPUTS], vla_dtype dtype, vla_error *error);
void vla_inputs_destroy(vla_inputs *inputs);

/* Sets B, H, T, Tk, dk, dv and, for decay, gate; refuses operators that need as many queries as keys when T < Tk. */
vla_status vla_inputs_problem(const vla_inputs *inputs, vla_problem *problem, vla_error *error);
/* Pointers to what the operator reads; outputs and state stay as they are. */
void vla_inputs_tensors(const vla_inputs *inputs, vla_op op, vla_tensors *tensors);
/* Whether op reads that input. */
bool vla_op_reads(vla_op op, vla_input input);
/* One head, b*H + h, as a problem of B = H = 1 in another dtype (float64 for the oracle). */
vla_status vla_inputs_head(vla_inputs *head, const vla_inputs *inputs, int64_t index, vla_dtype dtype,
                           vla_error *error);

/* The first non-finite value among what op reads, by token, then tensor, then head: false when all are finite. */
typedef struct vla_bad_input {
    vla_input input;
    int64_t head, token; /* head = b*H + h */
} vla_bad_input;
bool vla_inputs_first_bad(const vla_inputs *inputs, vla_op op, vla_bad_input *bad);

/* 16 hexadecimal digits of shapes and values, for a record's key. text holds at least 17 bytes. */
void vla_inputs_digest(const vla_inputs *inputs, char *text);

#endif
