#include "lib/analysis/growth.h"
#include "lib/base/sizes.h"
#include "lib/op/registry.h"
#include "lib/tensor/tensor.h"
#include <stdlib.h>
#include <string.h>

struct vla_feed {
    const vla_source *source;
    vla_dtype dtype;
    int64_t count;
    vla_stream *streams;
    double *tokens; /* [heads, 2 dk + dv + 2] */
    char *k, *v, *u, *b, *g;
};

vla_status vla_feed_create(vla_feed **result, const vla_source *source, int64_t block, vla_dtype dtype,
                           vla_error *error)
{
    *result = NULL;
    const int64_t heads = source->heads, dk = source->dk, dv = source->dv, width = 2 * dk + dv + 2;
    void *memory = NULL;
    vla_status status = vla_alloc(&memory, 1, sizeof(vla_feed), "tokens", error);
    if (status) return status;
    vla_feed *feed = memory;
    memset(feed, 0, sizeof *feed);
    feed->source = source;
    feed->dtype = dtype;
    *result = feed;
    if ((status = vla_alloc(&memory, heads, sizeof(vla_stream), "tokens", error))) return status;
    feed->streams = memory;
    memset(memory, 0, (size_t)heads * sizeof(vla_stream));
    if ((status = vla_alloc(&memory, heads * width, sizeof(double), "tokens", error))) return status;
    feed->tokens = memory;
    if ((status = vla_alloc(&memory, heads * width * block, vla_dtype_size(dtype), "tokens", error))) return status;
    const size_t size = vla_dtype_size(dtype) * (size_t)(heads * block);
    feed->k = memory;
    feed->u = feed->k + size * (size_t)dk;
    feed->v = feed->u + size * (size_t)dk;
    feed->b = feed->v + size * (size_t)dv;
    feed->g = feed->b + size;
    for (int64_t h = 0; h < heads && !status; h++) status = vla_stream_create(&feed->streams[h], source, h, error);
    return status;
}

void vla_feed_destroy(vla_feed *feed)
{
    if (!feed) return;
    for (int64_t h = 0; feed->streams && h < feed->source->heads; h++) vla_stream_destroy(&feed->streams[h]);
    vla_free(feed->streams);
    vla_free(feed->tokens);
    vla_free(feed->k);
    vla_free(feed);
}

static void fill_head(void *context, int64_t head, int worker)
{
    (void)worker;
    vla_feed *feed = context;
    const int64_t dk = feed->source->dk, dv = feed->source->dv;
    const size_t size = vla_dtype_size(feed->dtype);
    double *k = feed->tokens + head * (2 * dk + dv + 2), *v = k + dk, *u = v + dv, *b = u + dk, *g = b + 1;
    for (int64_t t = 0; t < feed->count; t++) {
        const size_t row = (size_t)(head * feed->count + t) * size;
        vla_stream_next(&feed->streams[head], k, v, u, b, g);
        vla_convert(feed->k + row * (size_t)dk, feed->dtype, k, VLA_F64, dk);
        vla_convert(feed->u + row * (size_t)dk, feed->dtype, u, VLA_F64, dk);
        vla_convert(feed->v + row * (size_t)dv, feed->dtype, v, VLA_F64, dv);
        vla_convert(feed->b + row, feed->dtype, b, VLA_F64, 1);
        vla_convert(feed->g + row, feed->dtype, g, VLA_F64, 1);
    }
}

void vla_feed_next(vla_feed *feed, int64_t count, vla_exec *exec, vla_tensors *tensors)
{
    feed->count = count;
    vla_pool_run(vla_exec_pool(exec), feed->source->heads, fill_head, feed);
    tensors->q = tensors->k = feed->k;
    tensors->v = feed->v;
    tensors->u = feed->u;
    tensors->b = vla_source_has_b(feed->source) ? feed->b : NULL;
    tensors->g = vla_source_has_g(feed->source) ? feed->g : NULL;
}
