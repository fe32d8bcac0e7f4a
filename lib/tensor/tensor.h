/* Owned dense row-major arrays of up to 8 dimensions, and conversion between dtypes. */
#ifndef VLA_TENSOR_H
#define VLA_TENSOR_H
#include "lib/vla.h"

typedef struct vla_tensor {
    vla_dtype dtype;
    int rank;
    int64_t shape[8];
    int64_t count; /* product of shape */
    void *data;    /* 64-byte aligned, owned */
} vla_tensor;

vla_status vla_tensor_create(vla_tensor *tensor, vla_dtype dtype, int rank, const int64_t *shape, const char *name,
                             vla_error *error);
void vla_tensor_destroy(vla_tensor *tensor);
/* Rounds to nearest even; bf16 and f16 keep NaN and overflow to infinity. dst and src do not overlap. */
void vla_convert(void *dst, vla_dtype dst_dtype, const void *src, vla_dtype src_dtype, int64_t count);
double vla_load(const void *data, vla_dtype dtype, int64_t index);
void vla_store(void *data, vla_dtype dtype, int64_t index, double value);
/* hash with a tag, the shape and the bytes mixed in. */
uint64_t vla_tensor_digest(const vla_tensor *tensor, uint64_t tag, uint64_t hash);
/* "[2,3,64]" into buffer, which is returned. */
const char *vla_shape_text(int rank, const int64_t *shape, char *buffer, size_t size);

#endif
