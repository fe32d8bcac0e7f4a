#include "lib/tensor/tensor.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { block = 512 };

vla_status vla_tensor_create(vla_tensor *tensor, vla_dtype dtype, int rank, const int64_t *shape, const char *name,
                             vla_error *error)
{
    *tensor = (vla_tensor){.dtype = dtype, .rank = rank};
    if (rank < 0 || rank > 8)
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: %d dimensions; accepted: 0 to 8", name, rank);
    if (!vla_size_product(shape, rank, &tensor->count)) {
        char text[200];
        return vla_fail(error, VLA_ERR_MEMORY, "%s: shape %s is negative or too large for 64 bits", name,
                        vla_shape_text(rank, shape, text, sizeof text));
    }
    if (rank) memcpy(tensor->shape, shape, (size_t)rank * sizeof *shape);
    return vla_alloc(&tensor->data, tensor->count, vla_dtype_size(dtype), name, error);
}

void vla_tensor_destroy(vla_tensor *tensor)
{
    vla_free(tensor->data);
    *tensor = (vla_tensor){0};
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double load_bf16(uint16_t half)
{
    return (double)float_of_bits((uint32_t)half << 16);
}

static double load_f16(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double magnitude = exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
                       : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                      : ldexp(mantissa, -24);
    return half >> 15 ? -magnitude : magnitude;
}

/* float32 bits of value rounded to odd: what is lost stays visible in the last bit, so that rounding once more to a
 * narrower format gives the same as rounding value itself. */
static uint32_t round_to_odd(double value)
{
    float near = (float)value;
    uint32_t bits = bits_of_float(near);
    if (isnan(value) || (double)near == value) return bits;
    if (fabs((double)near) > fabs(value)) bits--; /* back towards zero; infinity becomes the largest float */
    return bits | 1;
}

static uint16_t store_bf16(double value)
{
    uint32_t bits = round_to_odd(value);
    if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t store_f16(double value)
{
    uint32_t bits = round_to_odd(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (isnan(value)) return (uint16_t)(sign | 0x7e00);
    int exponent = (int)(magnitude >> 23) - 127;
    if (exponent >= 16) return (uint16_t)(sign | 0x7c00);
    if (exponent < -25) return (uint16_t)sign;
    uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    int shift = exponent >= -14 ? 13 : -1 - exponent; /* below 2^-14 in steps of 2^-24 */
    uint32_t kept = mantissa >> shift, lost = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    kept += lost > half || (lost == half && (kept & 1));
    /* A carry out of the mantissa runs into the exponent, up to infinity, as it should. */
    if (exponent >= -14) kept += (uint32_t)(exponent + 14) << 10;
    return (uint16_t)(sign | kept);
}

double vla_load(const void *data, vla_dtype dtype, int64_t index)
{
    switch (dtype) {
    case VLA_F64:
        return ((const double *)data)[index];
    case VLA_F32:
    case VLA_TF32:
        return (double)((const float *)data)[index];
    case VLA_BF16:
        return load_bf16(((const uint16_t *)data)[index]);
    case VLA_F16:
        return load_f16(((const uint16_t *)data)[index]);
    case VLA_DTYPES:
        break;
    }
    return (double)NAN;
}

static void load_block(double *dst, const void *src, vla_dtype dtype, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dst[i] = vla_load(src, dtype, first + i);
}

static void store_block(void *dst, vla_dtype dtype, int64_t first, const double *src, int64_t count)
{
    switch (dtype) {
    case VLA_F64:
        memcpy((double *)dst + first, src, (size_t)count * sizeof *src);
        break;
    case VLA_F32:
    case VLA_TF32:
        for (int64_t i = 0; i < count; i++) ((float *)dst)[first + i] = (float)src[i];
        break;
    case VLA_BF16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)dst)[first + i] = store_bf16(src[i]);
        break;
    case VLA_F16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)dst)[first + i] = store_f16(src[i]);
        break;
    case VLA_DTYPES:
        break;
    }
}

void vla_convert(void *dst, vla_dtype dst_dtype, const void *src, vla_dtype src_dtype, int64_t count)
{
    if (count <= 0) return;
    if (dst_dtype == src_dtype) {
        memcpy(dst, src, (size_t)count * vla_dtype_size(dst_dtype));
        return;
    }
    double values[block];
    for (int64_t first = 0; first < count; first += block) {
        int64_t n = count - first < block ? count - first : block;
        load_block(values, src, src_dtype, first, n);
        store_block(dst, dst_dtype, first, values, n);
    }
}

void vla_store(void *data, vla_dtype dtype, int64_t index, double value)
{
    store_block(data, dtype, index, &value, 1);
}

const char *vla_shape_text(int rank, const int64_t *shape, char *buffer, size_t size)
{
    size_t used = (size_t)snprintf(buffer, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%" PRId64, i ? "," : "", shape[i]);
    if (used < size) snprintf(buffer + used, size - used, "]");
    return buffer;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

uint64_t vla_tensor_digest(const vla_tensor *tensor, uint64_t tag, uint64_t hash)
{
    const unsigned char *bytes = tensor->data;
    const size_t size = (size_t)tensor->count * vla_dtype_size(tensor->dtype);
    size_t at = 0;
    hash = mix(hash, tag);
    for (int d = 0; d < tensor->rank; d++) hash = mix(hash, (uint64_t)tensor->shape[d]);
    for (uint64_t word; at + sizeof word <= size; at += sizeof word) {
        memcpy(&word, bytes + at, sizeof word);
        hash = mix(hash, word);
    }
    for (; at < size; at++) hash = mix(hash, bytes[at]);
    return hash;
}
