/* The state a sequence carries from token to token: in memory, and as files S.npy A.npy n.npy t.npy op.txt. */
#ifndef VLA_OP_STATE_H
#define VLA_OP_STATE_H
#include "lib/tensor/tensor.h"
#include "lib/vla.h"

/* S [B,H,dv,dk], A [B,H,dk,dk], n [B,H,dk]; data is NULL for what the operator has not. */
typedef struct vla_state {
    vla_op op;
    vla_tensor S, A, n;
    int64_t t; /* steps taken */
} vla_state;

/* The state before the first token: S = 0, A = I/lambda0, n = 0, t = 0. */
vla_status vla_state_create(vla_state *state, const vla_problem *problem, vla_dtype dtype, vla_error *error);
/* From DIR: what the operator has must be there, [..] or [H,..] or [B,H,..] with B and H of the problem; t.npy, a whole
 * number, is 0 when absent and needed with a refresh period; op.txt, when present, names the operator. */
vla_status vla_state_load(vla_state *state, const vla_problem *problem, vla_dtype dtype, const char *directory,
                          vla_error *error);
/* To DIR, made when missing: f8 for float64, else f4; t.npy as one f8; op.txt the operator's name. */
vla_status vla_state_save(const vla_state *state, const char *directory, vla_error *error);
/* 16 hexadecimal digits and a NUL of every value and t. */
void vla_state_digest(const vla_state *state, char *text);
vla_status vla_state_copy(vla_state *to, const vla_state *from, vla_error *error);
/* One head as a float64 state of B = H = 1. */
vla_status vla_state_head(vla_state *head, const vla_state *state, int64_t index, vla_error *error);
void vla_state_bind(vla_state *state, vla_tensors *tensors, bool state_in);
void vla_state_destroy(vla_state *state);

#endif
