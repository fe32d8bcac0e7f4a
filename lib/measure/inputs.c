#include "lib/measure/inputs.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/op/residual.h"
#include "lib/tensor/tensor.h"
#include <stdio.h>
#include <string.h>

/* One of the six tensors: where it is kept and how wide its rows are. */
typedef struct part {
    const char *name;
    void **data;
    int64_t width;
    bool present;
} part;

enum { PARTS = 6 };

static void list_parts(vla_inputs *in, vla_needs needs, part *parts)
{
    const int64_t gate_width = in->gate == VLA_GATE_ROW ? in->dv : 1;
    const part all[PARTS] = {{"q", &in->q, in->dk, true}, {"k", &in->k, in->dk, true},
                             {"v", &in->v, in->dv, true}, {"u", &in->u, in->dk, needs.u},
                             {"b", &in->b, 1, needs.b},   {"g", &in->g, gate_width, needs.g}};
    memcpy(parts, all, sizeof all);
}

static vla_needs present(const vla_inputs *in)
{
    return (vla_needs){in->u != NULL, in->b != NULL, in->g != NULL};
}

static vla_status allocate(vla_inputs *in, part *parts, vla_error *error)
{
    for (int i = 0; i < PARTS; i++) {
        int64_t count;
        if (!parts[i].present) continue;
        if (!vla_size_product((const int64_t[]){in->B, in->H, in->T, parts[i].width}, 4, &count)) count = INT64_MAX;
        vla_status status = vla_alloc(parts[i].data, count, vla_dtype_size(in->dtype), parts[i].name, error);
        if (status) {
            vla_inputs_free(in);
            return status;
        }
        in->bytes += count * (int64_t)vla_dtype_size(in->dtype);
    }
    return VLA_OK;
}

typedef struct filling {
    const part *parts;
    vla_dtype dtype;
    int64_t heads, T;
    uint64_t seed;
} filling;

static void fill_head(void *context, int64_t item, int worker)
{
    enum { BLOCK = 512 };
    (void)worker;
    const filling *f = context;
    const int64_t tensor = item / f->heads, head = item % f->heads;
    const part *p = &f->parts[tensor];
    if (!p->present) return;
    vla_rng rng = vla_rng_seed(f->seed, ((uint64_t)tensor << 40) + (uint64_t)head);
    const int64_t count = f->T * p->width;
    const size_t size = vla_dtype_size(f->dtype);
    char *out = (char *)*p->data + (size_t)(head * count) * size;
    double block[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t n = count - at < BLOCK ? count - at : BLOCK;
        for (int64_t i = 0; i < n; i++) block[i] = vla_rng_normal(&rng);
        vla_convert(out + (size_t)at * size, f->dtype, block, VLA_F64, n);
    }
}

vla_status vla_inputs_random(vla_inputs *inputs, vla_dtype dtype, int64_t B, int64_t H, int64_t T, int64_t dk,
                             int64_t dv, vla_needs needs, int64_t seed, vla_pool *pool, vla_error *error)
{
    part parts[PARTS];
    *inputs = (vla_inputs){.dtype = dtype, .B = B, .H = H, .T = T, .dk = dk, .dv = dv};
    inputs->gate = needs.g ? VLA_GATE_TOKEN : VLA_GATE_NONE;
    list_parts(inputs, needs, parts);
    vla_status status = allocate(inputs, parts, error);
    if (status) return status;
    filling f = {parts, dtype, B * H, T, (uint64_t)seed};
    vla_pool_run(pool, PARTS * B * H, fill_head, &f);
    return VLA_OK;
}

vla_status vla_inputs_slice(vla_inputs *slice, const vla_inputs *whole, vla_dtype dtype, int64_t from, int64_t count,
                            vla_error *error)
{
    part to[PARTS], source[PARTS];
    vla_inputs view = *whole; /* list_parts wants somewhere to point */
    *slice = (vla_inputs){.dtype = dtype,
                          .B = whole->B,
                          .H = whole->H,
                          .T = count,
                          .dk = whole->dk,
                          .dv = whole->dv,
                          .gate = whole->gate};
    list_parts(slice, present(whole), to);
    list_parts(&view, present(whole), source);
    vla_status status = allocate(slice, to, error);
    if (status) return status;
    const size_t in_size = vla_dtype_size(whole->dtype), out_size = vla_dtype_size(dtype);
    for (int i = 0; i < PARTS; i++)
        for (int64_t head = 0; to[i].present && head < whole->B * whole->H; head++) {
            const char *src =
                (const char *)*source[i].data + (size_t)((head * whole->T + from) * to[i].width) * in_size;
            char *dst = (char *)*to[i].data + (size_t)(head * count * to[i].width) * out_size;
            vla_convert(dst, dtype, src, whole->dtype, count * to[i].width);
        }
    return VLA_OK;
}

void vla_inputs_free(vla_inputs *inputs)
{
    void *all[] = {inputs->q, inputs->k, inputs->v, inputs->u, inputs->b, inputs->g};
    for (int i = 0; i < PARTS; i++) vla_free(all[i]);
    *inputs = (vla_inputs){0};
}

void vla_inputs_bind(const vla_inputs *in, vla_op op, vla_tensors *tensors)
{
    tensors->q = in->q;
    tensors->k = in->k;
    tensors->v = in->v;
    tensors->u = op == VLA_VLA ? in->u : NULL;
    tensors->b = op == VLA_DELTA ? in->b : NULL;
    tensors->g = op == VLA_DECAY ? in->g : NULL;
}

bool vla_inputs_nonfinite(const vla_inputs *inputs, char *reason, size_t size)
{
    part parts[PARTS];
    vla_inputs view = *inputs;
    int64_t head, token;
    list_parts(&view, present(inputs), parts);
    for (int i = 0; i < PARTS; i++)
        if (parts[i].present && vla_first_nonfinite(*parts[i].data, inputs->dtype, inputs->B * inputs->H, inputs->T,
                                                    parts[i].width, &head, &token)) {
            snprintf(reason, size, "%s is not finite at head %lld, token %lld", parts[i].name, (long long)head,
                     (long long)token);
            return true;
        }
    return false;
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
    part parts[PARTS];
    vla_inputs view = *inputs;
    uint64_t hash = 0;
    list_parts(&view, present(inputs), parts);
    for (int i = 0; i < PARTS; i++)
        if (parts[i].present)
            hash = vla_checksum(*parts[i].data,
                                inputs->B * inputs->H * inputs->T * parts[i].width *
                                    (int64_t)vla_dtype_size(inputs->dtype),
                                hash + (uint64_t)i);
    return hash;
}
