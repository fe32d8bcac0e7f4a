/* Which cuDNN is softmax's: the one that VLA_CUDNN or --cudnn names, the first that is found, or row by row the fastest
 * of all that are installed, for which each version but the first gets a process of its own. */
#include "cmd/bench.h"
#include "lib/base/status.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool bench_by_cudnn(const vla_case *c)
{
    return c->problem.op == VLA_SOFTMAX && c->backend == VLA_CUDA && (c->dtype == VLA_BF16 || c->dtype == VLA_F16) &&
           !c->backward;
}

static bool any_by_cudnn(const vla_cases *cases)
{
    for (int64_t i = 0; i < cases->count; i++)
        if (bench_by_cudnn(&cases->items[i])) return true;
    return false;
}

/* What --cudnn says replaces what the environment says. */
static vla_status heed_option(const char *value, vla_error *error)
{
    if (!value) return VLA_OK;
    if (!strcmp(value, "fastest") || !strcmp(value, "first")) {
        unsetenv("VLA_CUDNN");
        return VLA_OK;
    }
    if (!strchr(value, '/'))
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "--cudnn %s: accepted are fastest, first, or the path of a libcudnn.so.9", value);
    if (access(value, R_OK) != 0) return vla_fail(error, VLA_ERR_FILE, "--cudnn %s: cannot be read", value);
    if (setenv("VLA_CUDNN", value, 1) != 0) return vla_fail(error, VLA_ERR_MEMORY, "--cudnn: out of memory");
    return VLA_OK;
}

vla_status bench_cudnn_choose(bench_cudnn *c, const bench_options *o, const vla_cases *cases, vla_error *error)
{
    vla_status status = heed_option(o->cudnn, error);
    if (status || !any_by_cudnn(cases)) return status;
    const vla_cudnn_places places = vla_cudnn_places_here();
    const bool named = places.named && *places.named, first = o->profile || (o->cudnn && !strcmp(o->cudnn, "first"));
    status = vla_cudnn_find(&c->versions, &places, error);
    if (!status && c->versions.count == 0 && o->cudnn && strchr(o->cudnn, '/'))
        return vla_fail(error, VLA_ERR_FILE, "--cudnn %s: no library of cuDNN 9", o->cudnn);
    if (status || c->versions.count == 0) return status;
    /* Not left to the linker, which may know of none of them. */
    if (!named && setenv("VLA_CUDNN", c->versions.items[0].path, 1) != 0)
        return vla_fail(error, VLA_ERR_MEMORY, "cuDNN: out of memory");
    c->used = named || first ? 1 : c->versions.count;
    if (c->used > 1 + BENCH_MOST_WORKERS) c->used = 1 + BENCH_MOST_WORKERS;
    return VLA_OK;
}

static bool set_joined(vla_record *meta, const bench_cudnn *c, const char *name, bool paths)
{
    char text[2048] = "";
    size_t used = 0;
    for (int i = 0; i < c->used && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "",
                                 paths ? c->versions.items[i].path : c->versions.items[i].version);
    return vla_record_string(meta, name, text);
}

bool bench_cudnn_meta(const bench_cudnn *c, vla_record *meta)
{
    return c->used == 0 || (set_joined(meta, c, "cudnn", false) && set_joined(meta, c, "cudnn_path", true));
}

static void say(const bench_cudnn *c)
{
    fprintf(stderr, "vla-bench: note: cuDNN");
    for (int i = 0; i < c->used; i++)
        fprintf(stderr, "%s %s (%s)", i ? " and" : "", c->versions.items[i].version, c->versions.items[i].path);
    fprintf(stderr, ": softmax is timed by each, in turns, and a row is the fastest at its shape; --cudnn chooses\n");
}

void bench_cudnn_start(bench_cudnn *c, bool quiet)
{
    if (c->used < 2) return;
    snprintf(c->here, sizeof c->here, "cudnn %s", c->versions.items[0].version);
    if (!quiet) say(c);
    for (int i = 1; i < c->used; i++) {
        char name[32];
        vla_error why = {0};
        snprintf(name, sizeof name, "cudnn %s", c->versions.items[i].version);
        const vla_worker_start_options options = {"/proc/self/exe", BENCH_WORKER, "VLA_CUDNN",
                                                  c->versions.items[i].path, name};
        if (vla_worker_start(&c->workers[c->worker_count], &options, &why) == VLA_OK)
            c->worker_count++;
        else
            fprintf(stderr, "vla-bench: warning: %s is left out: %s\n", name, why.message);
    }
}

void bench_cudnn_end(bench_cudnn *c)
{
    for (int i = 0; i < c->worker_count; i++) vla_worker_stop(c->workers[i]);
    vla_cudnn_versions_free(&c->versions);
    *c = (bench_cudnn){0};
}
