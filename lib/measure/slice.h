/* Pieces of input tensors: prefixes for a sweep over T, the last token for decoding. */
#ifndef VLA_MEASURE_SLICE_H
#define VLA_MEASURE_SLICE_H
#include "lib/op/inputs.h"

/* Tokens from .. from+count-1 of every head and tensor of whole (T = Tk), rounded to dtype. */
vla_status vla_inputs_slice(vla_inputs *slice, const vla_inputs *whole, vla_dtype dtype, int64_t from, int64_t count,
                            vla_error *error);
/* Hash of bytes, chained through start: to see that outputs repeat and inputs are left alone. */
uint64_t vla_checksum(const void *data, int64_t bytes, uint64_t start);
uint64_t vla_inputs_checksum(const vla_inputs *inputs);

#endif
