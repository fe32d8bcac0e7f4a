/* One head on several workers: rows of S, which are columns of v, split into slices of whole vectors.
 *
 * Rows of S are independent: each is read and written alone, so slices never wait for each other. The state goes in for
 * all slices before any goes out, as n is read by every slice and written by one.
 */
#ifndef VLA_CPU_SLICES_H
#define VLA_CPU_SLICES_H
#include "kernels/cpu/chunk.h"

/* dv in at most `wanted` slices: the width of all but the last; *slices says how many. */
INLINE int64_t slice_width(int64_t dv, int64_t wanted, int64_t *slices)
{
    const int64_t units = PAD(dv) / PAD_LANES, most = units < wanted ? units : wanted < 1 ? 1 : wanted;
    const int64_t width = (units + most - 1) / most * PAD_LANES;
    *slices = (dv + width - 1) / width;
    return least(width, dv);
}

/* Scratch of a slice in the workspace at base; part is the problem with dv of the widest slice. */
INLINE void slice_carve(const vla_problem *p, const vla_problem *part, int64_t tokens, int64_t slice, char *base,
                        chunk_space *s)
{
    const int64_t bytes = chunk_carve(part, tokens, NULL, s);
    vla_problem own = *part;
    own.dv = least(part->dv, p->dv - slice * part->dv);
    chunk_carve(&own, tokens, base + slice * bytes, s);
    s->from = slice * part->dv;
}

typedef struct slices_job {
    const vla_call *call;
    vla_problem part;
    int64_t head, tokens, slices;
    chunk_step step;
} slices_job;

static __attribute__((unused)) void slice_item(void *context, int64_t slice, int worker)
{
    const slices_job *job = context;
    const vla_problem *p = job->call->problem;
    chunk_space space;
    (void)worker;
    slice_carve(p, &job->part, job->tokens, slice, job->call->work, &space);
    chunk_begin(job->call, job->head, &space);
    for (int64_t at = 0; at < p->T;) at += job->step(job->call, job->head, at, &space);
}

static __attribute__((unused)) vla_status slices_workspace(const vla_problem *p, int64_t tokens, int threads,
                                                           int64_t *bytes, vla_error *error)
{
    vla_problem part = *p;
    int64_t slices = 0;
    part.dv = slice_width(p->dv, threads, &slices);
    return chunk_workspace(&part, tokens, (int)slices, bytes, error);
}

INLINE vla_status slices_run(const vla_call *call, int64_t tokens, chunk_step step)
{
    slices_job job = {call, *call->problem, 0, tokens, 1, step};
    job.part.dv = slice_width(call->problem->dv, vla_pool_threads(call->pool), &job.slices);
    for (job.head = 0; job.head < call->problem->B * call->problem->H; job.head++) {
        vla_pool_run(call->pool, job.slices, slice_item, &job);
        for (int64_t slice = 0; slice < job.slices; slice++) {
            chunk_space space;
            slice_carve(call->problem, &job.part, tokens, slice, call->work, &space);
            chunk_end(call, job.head, &space);
        }
    }
    chunk_count(call);
    return VLA_OK;
}

#endif
