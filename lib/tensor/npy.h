/* NumPy .npy files (format versions 1, 2, 3). */
#ifndef VLA_NPY_H
#define VLA_NPY_H
#include "lib/tensor/tensor.h"

/* Reads f2, f4, f8 (either byte order, C or Fortran order) and integers of 1 to 8 bytes (as f64) into a fresh tensor
 * of dtype. VLA_ERR_FILE names the file and the field at fault; nothing large is allocated before the header's shape
 * is known to match the file's size. */
vla_status vla_npy_read(vla_tensor *tensor, const char *path, vla_dtype dtype, vla_error *error);
/* Writes C order, little-endian: f8 for VLA_F64, else f4. The file appears whole or not at all. */
vla_status vla_npy_write(const char *path, const void *data, vla_dtype dtype, int rank, const int64_t *shape,
                         vla_error *error);
vla_status vla_npy_write_tensor(const char *path, const vla_tensor *tensor, vla_error *error);

#endif
