/* Checked 64-bit sizes and aligned allocation. */
#ifndef VLA_BASE_SIZES_H
#define VLA_BASE_SIZES_H
#include "lib/vla.h"

/* *product = a * b, or false on overflow or a negative factor. */
bool vla_size_mul(int64_t a, int64_t b, int64_t *product);
/* *product = the product of n factors, or false. */
bool vla_size_product(const int64_t *factors, int n, int64_t *product);

/* 64-byte aligned memory for count elements of size bytes (at least one byte). VLA_ERR_MEMORY says "needs N GiB,
 * have M GiB" when the machine has less memory available than asked for, before touching the allocator. */
vla_status vla_alloc(void **memory, int64_t count, size_t size, const char *what, vla_error *error);
void vla_free(void *memory);
/* Bytes the process may still take (MemAvailable and the cgroup limit); INT64_MAX when unknown. */
int64_t vla_memory_available(void);

#endif
