#include "lib/train/checkpoint.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char MAGIC[16] = "vla-checkpoint 1";

typedef struct header {
    char magic[16];
    int64_t identity_size, stored, element, step, checks;
    double best;
} header;

static uint64_t sum_of(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

typedef struct stream {
    FILE *file;
    uint64_t sum;
    bool ok;
} stream;

static void put(stream *s, const void *data, size_t size)
{
    s->ok = s->ok && (size == 0 || fwrite(data, size, 1, s->file) == 1);
    s->sum = sum_of(s->sum, data, size);
}

static void take(stream *s, void *data, size_t size)
{
    s->ok = s->ok && (size == 0 || fread(data, size, 1, s->file) == 1);
    if (s->ok) s->sum = sum_of(s->sum, data, size);
}

vla_status vla_checkpoint_write(const char *path, const char *identity, vla_network *network,
                                const vla_progress_mark *mark, vla_error *error)
{
    vla_file file;
    vla_status status = vla_file_begin(&file, path, error);
    if (status) return status;
    const size_t element = vla_dtype_size(vla_network_dtype(network));
    const size_t bytes = (size_t)vla_network_stored(network) * element;
    header h = {.identity_size = (int64_t)strlen(identity),
                .stored = vla_network_stored(network),
                .element = (int64_t)element,
                .step = mark->step,
                .checks = mark->checks,
                .best = mark->best};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    stream s = {file.stream, 1469598103934665603u, true};
    put(&s, &h, sizeof h);
    put(&s, identity, strlen(identity));
    put(&s, vla_network_values(network), bytes);
    put(&s, vla_network_moments(network, 0), bytes);
    put(&s, vla_network_moments(network, 1), bytes);
    put(&s, mark->curve, (size_t)mark->step * sizeof *mark->curve);
    const uint64_t sum = s.sum;
    put(&s, &sum, sizeof sum);
    return vla_file_commit(&file, error); /* finds every failed write */
}

static vla_status bad(vla_error *error, const char *path, const char *why)
{
    return vla_fail(error, VLA_ERR_FILE, "checkpoint %s: %s", path, why);
}

static vla_status check_header(const header *h, const char *path, const char *identity, vla_network *network,
                               int64_t steps, vla_error *error)
{
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0) return bad(error, path, "not a checkpoint of this version");
    if (h->identity_size != (int64_t)strlen(identity) || h->stored != vla_network_stored(network) ||
        h->element != (int64_t)vla_dtype_size(vla_network_dtype(network)))
        return bad(error, path, "belongs to another run");
    if (h->step < 0 || h->step > steps) return bad(error, path, "has done more steps than are asked for");
    return VLA_OK;
}

static vla_status read_body(stream *s, const header *h, const char *path, const char *identity, vla_network *network,
                            vla_progress_mark *mark, vla_error *error)
{
    char *text = calloc(1, (size_t)h->identity_size + 1);
    if (!text) return vla_fail(error, VLA_ERR_MEMORY, "checkpoint: out of memory");
    take(s, text, (size_t)h->identity_size);
    const bool same = s->ok && strcmp(text, identity) == 0;
    free(text);
    if (!s->ok) return bad(error, path, "is cut short");
    if (!same) return bad(error, path, "belongs to another run");
    const size_t bytes = (size_t)(h->stored * h->element);
    take(s, vla_network_values(network), bytes);
    take(s, vla_network_moments(network, 0), bytes);
    take(s, vla_network_moments(network, 1), bytes);
    take(s, mark->curve, (size_t)h->step * sizeof *mark->curve);
    const uint64_t expected = s->sum;
    uint64_t sum = 0;
    take(s, &sum, sizeof sum);
    if (!s->ok) return bad(error, path, "is cut short");
    if (sum != expected) return bad(error, path, "is damaged: its checksum does not agree");
    mark->step = h->step, mark->checks = h->checks, mark->best = h->best;
    return VLA_OK;
}

vla_status vla_checkpoint_read(const char *path, const char *identity, vla_network *network, int64_t steps,
                               vla_progress_mark *mark, bool *found, vla_error *error)
{
    *found = false;
    FILE *file = fopen(path, "rbe");
    if (!file) return errno == ENOENT ? VLA_OK : bad(error, path, strerror(errno));
    stream s = {file, 1469598103934665603u, true};
    header h = {.step = 0};
    take(&s, &h, sizeof h);
    vla_status status =
        s.ok ? check_header(&h, path, identity, network, steps, error) : bad(error, path, "is cut short");
    if (!status) status = read_body(&s, &h, path, identity, network, mark, error);
    fclose(file);
    *found = status == VLA_OK;
    return status;
}
