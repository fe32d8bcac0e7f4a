/* Work model: one per operator, whatever the form, so that shares of peak compare between forms. */
#ifndef VLA_OP_WORK_H
#define VLA_OP_WORK_H
#include "lib/vla.h"

/* Floating-point operations of the whole problem, multiply and add counted apart. A token and head:
 * vla 6 dk^2 + 6 dk dv; rls 4 dk^2 + 6 dk dv; delta, decay 6 dk dv; linear 4 dk dv;
 * softmax 2 (dk + dv) per allowed (query, key) pair, which is T (dk + dv) a token for long causal T. */
double vla_work_flops(const vla_problem *problem);
/* Memory floor: inputs read once, o written once. has_u/has_b: whether those tensors are given. */
double vla_work_bytes(const vla_problem *problem, vla_dtype dtype, bool has_u, bool has_b);
/* State a sequence carries from token to token, all B and H: S, A, n; softmax: its KV cache of Tk tokens. */
double vla_state_bytes(const vla_problem *problem, vla_dtype dtype);

#endif
