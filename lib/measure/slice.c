#include "lib/measure/slice.h"
#include <string.h>

static vla_status slice_tensor(vla_tensor *to, const vla_tensor *whole, const vla_inputs *in, vla_dtype dtype,
                               int64_t from, int64_t count, const char *name, vla_error *error)
{
    int64_t shape[4] = {in->B, in->H, count, whole->rank == 4 ? whole->shape[3] : 1};
    vla_status status = vla_tensor_create(to, dtype, whole->rank, shape, name, error);
    const int64_t heads = in->B * in->H, width = shape[3];
    const size_t in_size = vla_dtype_size(whole->dtype), out_size = vla_dtype_size(dtype);
    for (int64_t head = 0; !status && head < heads; head++)
        vla_convert((char *)to->data + (size_t)(head * count * width) * out_size, dtype,
                    (const char *)whole->data + (size_t)((head * in->Tk + from) * width) * in_size, whole->dtype,
                    count * width);
    return status;
}

vla_status vla_inputs_slice(vla_inputs *slice, const vla_inputs *whole, vla_dtype dtype, int64_t from, int64_t count,
                            vla_error *error)
{
    vla_status status = VLA_OK;
    *slice = *whole;
    memset(slice->tensor, 0, sizeof slice->tensor);
    slice->T = slice->Tk = count;
    slice->dtype = dtype;
    for (int i = 0; !status && i < VLA_INPUTS; i++)
        if (whole->tensor[i].data)
            status = slice_tensor(&slice->tensor[i], &whole->tensor[i], whole, dtype, from, count,
                                  vla_input_name((vla_input)i), error);
    if (status) vla_inputs_destroy(slice);
    return status;
}

uint64_t vla_checksum(const void *data, int64_t bytes, uint64_t start)
{
    const unsigned char *at = data;
    uint64_t hash = start ^ UINT64_C(0xcbf29ce484222325), word;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        memcpy(&word, at, 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    for (; bytes > 0; bytes--, at++) hash = (hash ^ *at) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t vla_inputs_checksum(const vla_inputs *inputs)
{
    uint64_t hash = 0;
    for (int i = 0; i < VLA_INPUTS; i++) {
        const vla_tensor *t = &inputs->tensor[i];
        if (t->data) hash = vla_checksum(t->data, t->count * (int64_t)vla_dtype_size(t->dtype), hash + (uint64_t)i);
    }
    return hash;
}
