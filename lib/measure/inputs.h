/* The tensors a case reads: synthetic ones, or prefixes of tensors from files. */
#ifndef VLA_MEASURE_INPUTS_H
#define VLA_MEASURE_INPUTS_H
#include "lib/base/threads.h"
#include "lib/vla.h"

/* q, k [B,H,T,dk], v [B,H,T,dv], u [B,H,T,dk], b [B,H,T], g [B,H,T] or [B,H,T,dv], in one dtype. Owned. */
typedef struct vla_inputs {
    vla_dtype dtype;
    int64_t B, H, T, dk, dv;
    vla_gate gate;
    void *q, *k, *v, *u, *b, *g; /* u, b, g: NULL when absent */
    int64_t bytes;
} vla_inputs;

/* Which optional tensors somebody will read. */
typedef struct vla_needs {
    bool u, b, g;
} vla_needs;

/* Independent standard normal numbers. A token's values depend on seed, tensor, head and position only, so that a
 * shorter T is a prefix of a longer one. */
vla_status vla_inputs_random(vla_inputs *inputs, vla_dtype dtype, int64_t B, int64_t H, int64_t T, int64_t dk,
                             int64_t dv, vla_needs needs, int64_t seed, vla_pool *pool, vla_error *error);
/* DIR/q.npy k.npy v.npy and, where they exist, u.npy b.npy g.npy, as float64; [T,d], [H,T,d] or [B,H,T,d], b and g with
 * one dimension less (g also with a last dimension dv). digest: 16 hexadecimal digits and an end, of all values. */
vla_status vla_inputs_load(vla_inputs *inputs, const char *directory, char *digest, vla_error *error);
/* Tokens from .. from+count-1 of every head, rounded to dtype. */
vla_status vla_inputs_slice(vla_inputs *slice, const vla_inputs *whole, vla_dtype dtype, int64_t from, int64_t count,
                            vla_error *error);
void vla_inputs_free(vla_inputs *inputs);
/* Pointers for a plan of one operator: only what that operator reads. */
void vla_inputs_bind(const vla_inputs *inputs, vla_op op, vla_tensors *tensors);
/* Names the first non-finite value: "k is not finite at head 0, token 17"; false when all is finite. */
bool vla_inputs_nonfinite(const vla_inputs *inputs, char *reason, size_t size);
/* A checksum of every value, to see that a kernel left its inputs alone. */
uint64_t vla_inputs_checksum(const vla_inputs *inputs);
uint64_t vla_checksum(const void *data, int64_t bytes, uint64_t start);

#endif
