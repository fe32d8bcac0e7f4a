#include "lib/analysis/source.h"
#include "kernels/cpu/naive.h"
#include "lib/base/sizes.h"
#include <math.h>
#include <string.h>

static const char *const names[VLA_SOURCES] = {"paper", "gauss", "tied", "isotropic", "tensors"};

const char *vla_source_name(vla_source_kind kind)
{
    return names[kind];
}

bool vla_source_parse(const char *name, vla_source_kind *kind)
{
    for (int i = 0; i < VLA_SOURCE_TENSORS; i++)
        if (!strcmp(name, names[i])) {
            *kind = (vla_source_kind)i;
            return true;
        }
    return false;
}

vla_features vla_source_features(vla_source_kind kind)
{
    return kind == VLA_SOURCE_GAUSS ? VLA_IDENTITY : VLA_ELU1;
}

bool vla_source_has_b(const vla_source *source)
{
    return source->kind == VLA_SOURCE_TENSORS && source->b;
}

bool vla_source_has_g(const vla_source *source)
{
    return source->kind != VLA_SOURCE_TENSORS || source->g;
}

static void normals(vla_rng *rng, double *x, int64_t count, double mean)
{
    for (int64_t i = 0; i < count; i++) x[i] = mean + vla_rng_normal(rng);
}

vla_status vla_stream_create(vla_stream *stream, const vla_source *source, int64_t head, vla_error *error)
{
    memset(stream, 0, sizeof *stream);
    stream->source = source;
    stream->head = head;
    const uint64_t base = 8 * (uint64_t)head;
    stream->keys = vla_rng_seed(source->seed, base);
    stream->values = vla_rng_seed(source->seed, base + 1);
    stream->penalties = vla_rng_seed(source->seed, base + 2);
    stream->gates = vla_rng_seed(source->seed, base + 3);
    if (source->kind == VLA_SOURCE_TENSORS) return VLA_OK;
    const int64_t dk = source->dk, dv = source->dv;
    void *memory = NULL;
    const vla_status status = vla_alloc(&memory, dk * dk + dv * dk + dk, sizeof(double), "projections", error);
    if (status) return status;
    stream->W = memory;
    stream->V = stream->W + dk * dk;
    if (source->kind == VLA_SOURCE_PAPER) normals(&stream->penalties, stream->W, dk * dk, 0);
    for (int64_t i = 0; source->kind == VLA_SOURCE_PAPER && i < dk * dk; i++) stream->W[i] /= sqrt((double)dk);
    if (source->teacher) normals(&stream->values, stream->V, dv * dk, 0);
    return VLA_OK;
}

void vla_stream_destroy(vla_stream *stream)
{
    vla_free(stream->W);
    stream->W = stream->V = NULL;
}

static void given_token(vla_stream *s, double *k, double *v, double *u, double *b, double *g)
{
    const vla_source *in = s->source;
    const int64_t row = s->head * in->T + s->t;
    memcpy(k, in->k + row * in->dk, (size_t)in->dk * sizeof *k);
    memcpy(v, in->v + row * in->dv, (size_t)in->dv * sizeof *v);
    memcpy(u, in->u ? in->u + row * in->dk : k, (size_t)in->dk * sizeof *u);
    if (in->b) *b = in->b[row];
    if (in->g) *g = in->g[row];
}

void vla_stream_next(vla_stream *s, double *k, double *v, double *u, double *b, double *g)
{
    const vla_source *in = s->source;
    const int64_t dk = in->dk;
    if (in->kind == VLA_SOURCE_TENSORS) {
        given_token(s, k, v, u, b, g);
        s->t++;
        return;
    }
    normals(&s->keys, k, dk, 0);
    if (in->teacher) {
        double *key = s->V + in->dv * dk;
        vla_naive_unit_features(key, k, dk, in->features);
        vla_naive_matvec(v, s->V, key, in->dv, dk);
    } else {
        normals(&s->values, v, in->dv, in->v_mean);
    }
    for (int64_t i = 0; in->v_scale > 0 && i < in->dv; i++) v[i] *= in->v_scale;
    *g = vla_rng_normal(&s->gates);
    *b = 0;
    if (in->kind == VLA_SOURCE_PAPER)
        vla_naive_matvec(u, s->W, k, dk, dk);
    else if (in->kind == VLA_SOURCE_GAUSS)
        normals(&s->penalties, u, dk, 0);
    else if (in->kind == VLA_SOURCE_TIED)
        vla_naive_unit_features(u, k, dk, in->features);
    else
        memset(u, 0, (size_t)dk * sizeof *u);
    s->t++;
}
