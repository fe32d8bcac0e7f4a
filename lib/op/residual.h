/* Is an output right? Relative Frobenius residual against naive on inputs rounded to the kernel's dtype. */
#ifndef VLA_OP_RESIDUAL_H
#define VLA_OP_RESIDUAL_H
#include "lib/vla.h"

typedef struct vla_residual {
    double residual;     /* |out - ref|_F / |ref|_F; |ref| = 0: |out|_F */
    double max_residual; /* max |out - ref| / max |ref|; max |ref| = 0: max |out| */
    int64_t nonfinite;   /* elements of out that are not finite, counted by bit pattern before any norm */
    int64_t compared;
} vla_residual;

/* Accumulates over several blocks (heads): start from a zeroed struct, finish once. */
typedef struct vla_residual_sum {
    double diff2, ref2, out2, max_diff, max_ref, max_out; /* scaled sums would only matter beyond 1e150 */
    int64_t nonfinite, compared;
} vla_residual_sum;

void vla_residual_add(vla_residual_sum *sum, const void *out, vla_dtype dtype, const double *ref, int64_t count);
vla_residual vla_residual_finish(const vla_residual_sum *sum);

/* f64 1e-12, f32 2e-5 (rls 2e-4), bf16 and f16 2e-2. */
double vla_residual_limit(vla_op op, vla_dtype dtype);
/* residual <= limit and nothing non-finite; NaN fails. */
bool vla_residual_pass(const vla_residual *r, double limit);

/* First position where a tensor holds a non-finite value: head (b*H+h), token; false when all is finite. */
bool vla_first_nonfinite(const void *data, vla_dtype dtype, int64_t heads, int64_t T, int64_t width, int64_t *head,
                         int64_t *token);

#endif
