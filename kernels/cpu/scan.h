/* One head on several workers, for long T with fewer heads than workers: stages that take blocks of tokens in order.
 *
 *   penalty    A through the block: rows a = unit(A kh)                                      vla only
 *   state      S through the block: residuals, outputs, for a slice of the rows of S         one stage a slice
 *
 * A does not depend on S, and rows of S not on each other. Every stage is run by one worker at a time, with the
 * two-token sweeps of the recurrent form (recurrent.h), so results do not depend on who ran what, nor on the number of
 * workers. Only the rows a go from core to core, through a ring of blocks: a line of cache that another core made costs
 * about as much as the features of as many elements, so that every stage makes the feature rows it needs itself, and a
 * ring of feature rows made once was slower (measured). S asks for rows of the ring ahead of their use, and A asks for
 * their lines back ahead of writing them again; writing them past the caches made A a quarter slower. Stages ask ahead
 * for the rows of tokens too: they touch a stream too seldom for the hardware's prefetchers. A stage counts the blocks
 * it has done, which is all that stages tell each other; blocks of 16 tokens made that dear, of 64 it is free. A worker
 * keeps to its own stage, so that A or S stays in its cache, and takes another's where that one's worker has not come
 * or it has waited for long: the pipeline also moves when a worker comes late or never. Slices of S write past the
 * caches, as their columns of o lie side by side.
 *
 * Scratch: the ring and the state of every stage, independent of T.
 */
#ifndef VLA_CPU_SCAN_H
#define VLA_CPU_SCAN_H
#include <sched.h>
#include <stdatomic.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/recurrent.h"

/* Blocks of the ring, tokens of a block unless a chunk is given; looks for work before another worker's stage is taken,
 * and before the processor is given up; tokens ahead for which rows of the ring, of the tensors and lines of the ring
 * to write are asked. */
enum { RING = 8, SCAN_TOKENS = 64, PATIENCE = 1024, SPINS = 4096, AHEAD = 8, AHEAD_INPUT = 16 };
enum { PENALTY = 0 };

typedef struct scan_stage {
    _Alignas(128) atomic_bool busy;
    atomic_bool kept;  /* the worker whose stage it is has come */
    atomic_llong done; /* blocks */
    _Alignas(128) recurrent r;
    vla_tensors t;    /* what the stage reads and writes, from the head (and slice) on; the rest NULL */
    int64_t unfolded; /* tokens since the last fold */
    int64_t ready;    /* tokens whose feature rows are made */
} scan_stage;

typedef struct scan_job {
    const vla_call *call;
    int64_t block, blocks; /* tokens of a block; blocks of a head */
    int64_t head, done;    /* done: tokens before this run */
    int64_t slices, width; /* slices of S and the columns of v of all but the last */
    int64_t first;         /* the stage of the first slice */
    int workers;
    real *ring;         /* [RING][block][wk] rows a; NULL: a is kh */
    scan_stage *stages; /* [first + slices] */
    char *scratch;      /* of the stages' rows and matrices */
} scan_job;

/* dv in slices of whole vectors: one for every worker that A leaves free, and where S is the larger matrix enough of
 * them for A's worker to take a share. */
INLINE void scan_slices(recurrent_kind kind, const vla_problem *p, int threads, scan_job *job)
{
    const int64_t free = threads - (kind.matrix ? 1 : 0), share = kind.matrix ? least(p->dv / p->dk, 4 * threads) : 1;
    const int64_t wanted = threads == 1 ? 1 : free > share ? free : share;
    const int64_t units = PAD(p->dv) / PAD_LANES, most = units < wanted ? units : wanted;
    job->width = least((units + most - 1) / most * PAD_LANES, p->dv);
    job->slices = (p->dv + job->width - 1) / job->width;
    job->first = kind.matrix ? PENALTY + 1 : 0;
}

/* Only the penalty stage has A, only slices have n and queries. */
INLINE recurrent_kind stage_kind(recurrent_kind kind, bool penalty)
{
    if (penalty)
        kind.sum = 0, kind.unasked = 1;
    else
        kind.matrix = kind.penalty = 0;
    return kind;
}

/* Lays out a stage's rows and matrices from base (NULL: only counts); returns the bytes. */
INLINE int64_t stage_carve(recurrent_kind kind, const vla_problem *p, const scan_job *job, int64_t stage, char *base,
                           recurrent *r)
{
    vla_problem own = *p;
    const int64_t slice = stage - job->first;
    own.dv = slice < 0 ? 1 : least(job->width, p->dv - slice * job->width);
    int64_t used = recurrent_carve(stage_kind(kind, kind.matrix && stage == PENALTY), &own, base, r);
    r->lead = p->dv;
    if (kind.penalty) r->kf = take(base, &used, TOKENS * r->wk);
    return used;
}

/* Lays everything out from base (NULL: only counts); returns the bytes. */
INLINE int64_t scan_carve(recurrent_kind kind, const vla_problem *p, int threads, char *base, scan_job *job)
{
    int64_t used = 0;
    job->block = p->chunk > 0 ? p->chunk + p->chunk % 2 : SCAN_TOKENS;
    scan_slices(kind, p, threads, job);
    const int64_t stages = job->first + job->slices;
    job->stages = carve(base, &used, stages, sizeof(scan_stage));
    job->ring = kind.matrix ? take(base, &used, RING * job->block * PAD(p->dk)) : NULL;
    job->scratch = base ? base + used : NULL;
    for (int64_t i = 0; i < stages; i++) {
        recurrent r;
        used += stage_carve(kind, p, job, i, NULL, &r);
    }
    return used;
}

INLINE vla_status scan_workspace(recurrent_kind kind, const vla_problem *p, int threads, int64_t *bytes,
                                 vla_error *error)
{
    scan_job job;
    if (p->dk > WIDTH_MAX || p->dv > WIDTH_MAX || p->chunk > CHUNK_MAX)
        return vla_fail(error, VLA_ERR_MEMORY, "dk %lld, dv %lld: scratch is beyond 64-bit sizes", (long long)p->dk,
                        (long long)p->dv);
    *bytes = scan_carve(kind, p, threads, NULL, &job) + 128;
    return VLA_OK;
}

/* What a stage sees of the tensors, so that it starts at its head and its columns of v. */
static __attribute__((unused)) vla_tensors stage_tensors(const scan_job *job, int64_t stage)
{
    const vla_tensors *t = job->call->tensors;
    const vla_problem *p = job->call->problem;
    const int64_t rows = job->head * p->T, head = job->head, from = (stage - job->first) * job->width;
    vla_tensors own = {.state_in = t->state_in, .k = (const real *)t->k + rows * p->dk};
    if (stage >= job->first) {
        own.q = (const real *)t->q + rows * p->dk;
        own.v = (const real *)t->v + rows * p->dv + from;
        own.b = t->b ? (const real *)t->b + rows : NULL;
        own.o = (real *)t->o + rows * p->dv + from;
        own.S = t->S ? (real *)t->S + (head * p->dv + from) * p->dk : NULL;
        own.n = t->n ? (real *)t->n + head * p->dk : NULL;
    } else {
        own.u = t->u ? (const real *)t->u + rows * p->dk : NULL;
        own.A = t->A ? (real *)t->A + head * p->dk * p->dk : NULL;
        own.alpha = t->alpha ? (real *)t->alpha + rows * p->dk : NULL;
    }
    return own;
}

INLINE void scan_begin(recurrent_kind kind, scan_job *job)
{
    const vla_problem *p = job->call->problem;
    char *scratch = job->scratch;
    for (int64_t i = 0; i < job->first + job->slices; i++) {
        scan_stage *stage = &job->stages[i];
        memset(stage, 0, sizeof *stage);
        atomic_init(&stage->busy, false);
        atomic_init(&stage->kept, false);
        atomic_init(&stage->done, 0);
        recurrent *r = &stage->r;
        scratch += stage_carve(kind, p, job, i, scratch, r);
        stage->t = stage_tensors(job, i);
        r->t = &stage->t;
        r->apart = job->slices > 1 && (uintptr_t)job->call->tensors->o % 64 == 0 && p->dv % PAD_LANES == 0;
        r->p = p;
        if (i < job->first)
            recurrent_begin(stage_kind(kind, true), r, is_long(job->call));
        else
            recurrent_begin(stage_kind(kind, false), r, false);
    }
}

INLINE void scan_end(recurrent_kind kind, scan_job *job)
{
    for (int64_t i = 0; i < job->first + job->slices; i++) {
        recurrent *r = &job->stages[i].r;
        if (i > job->first) job->stages[i].t.n = NULL; /* the first slice hands n out */
        if (i < job->first)
            recurrent_end(stage_kind(kind, true), r);
        else
            recurrent_end(stage_kind(kind, false), r);
    }
}

INLINE void fetch(const real *row, int64_t elements)
{
    for (int64_t i = 0; i < elements; i += PAD_LANES) __builtin_prefetch(row + i, 0, 3);
}

/* Before a block is handed over. */
INLINE void stream_done(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* Asks for lines to write. */
INLINE void fetch_to_write(const real *row, int64_t elements)
{
    for (int64_t i = 0; i < elements; i += PAD_LANES) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(row[i]));
#else
        __builtin_prefetch(row + i, 1, 3);
#endif
    }
}

/* A token's rows, to the second cache: what is read once must not drive A or S out of the first. */
INLINE void fetch_token(recurrent_kind kind, const recurrent *r, int64_t token)
{
    const vla_tensors *t = r->t;
    if (token >= r->p->T) return;
    const real *q = kind.unasked ? NULL : row_of(t->q, token, r->dk), *k = row_of(t->k, token, r->dk);
    const real *u = kind.penalty && t->u ? row_of(t->u, token, r->dk) : NULL;
    for (int64_t i = 0; i < r->dk; i += PAD_LANES) {
        __builtin_prefetch(k + i, 0, 2);
        if (q) __builtin_prefetch(q + i, 0, 2);
        if (u) __builtin_prefetch(u + i, 0, 2);
    }
    if (kind.unasked) return;
    for (int64_t i = 0; i < r->dv; i += PAD_LANES) __builtin_prefetch(row_of(t->v, token, r->lead) + i, 0, 2);
    if (!r->apart) fetch_to_write(row_of(t->o, token, r->lead), r->dv);
}

/* Makes the feature rows of tokens in order, a pair at a time, up to `until` of them, in TOKENS slots that go round. */
INLINE void prepare_until(recurrent_kind kind, scan_stage *stage, int64_t until)
{
    recurrent *r = &stage->r;
    const int64_t len = r->p->T;
    for (; stage->ready < until && stage->ready < len; stage->ready += 2) {
        const int64_t from = stage->ready, slot = from % TOKENS;
        fetch_token(kind, r, from + AHEAD_INPUT);
        fetch_token(kind, r, from + AHEAD_INPUT + 1);
        prepare_slots(kind, r, slot, from, least(2, len - from));
        if (kind.sum && (slot + 2 == TOKENS || from + 2 >= len)) fold_sum(r);
    }
}

/* Rows a of a block. Pairs as in the recurrent form: a token that refreshes A must be the last of its step. */
INLINE void penalty_block(recurrent_kind kind, scan_stage *stage, real *rows, recurrent_chain chain, int64_t done,
                          int64_t from, int64_t count)
{
    recurrent *r = &stage->r;
    const int64_t wk = r->wk;
    for (int64_t i = 0; i < count;) {
        const int64_t slot = (from + i) % TOKENS, step = done + from + i + 1;
        const int tokens = i + 1 < count && slot + 1 < TOKENS && !refreshes(r, step) ? 2 : 1;
        const real eps = refreshes(r, step + tokens - 1) ? (real)r->p->refresh_eps : 0;
        real *a = rows + i * wk;
        prepare_until(kind, stage, from + i + tokens);
        if (tokens == 2)
            chain(2, r, slot, a, eps);
        else
            chain(1, r, slot, a, eps);
        if (i + AHEAD < count) fetch_to_write(a + AHEAD * wk, tokens * wk);
        alpha_out(kind, tokens, r, from + i, a);
        i += tokens;
    }
    stage->unfolded += count;
    if (r->A_base && stage->unfolded >= FOLD_PENALTY) {
        fold_penalty(r);
        stage->unfolded = 0;
    }
}

INLINE void state_tokens(recurrent_kind kind, int tokens, recurrent *r, real *a, int64_t token, int64_t slot)
{
    sweep_state(kind, tokens, r, slot);
    write_tokens(kind, tokens, r, a, token, slot);
}

/* rows NULL: a is kh. The writes of the last pair stay pending; their rows a are kept, as those in the ring may be made
 * anew meanwhile. */
INLINE void state_block(recurrent_kind kind, scan_stage *stage, real *rows, int64_t from, int64_t count)
{
    recurrent *r = &stage->r;
    const int64_t wk = r->wk, last = (count - 1) / 2 * 2;
    real *const kept = r->a[1], *a = NULL;
    if (!kind.residual && stage->unfolded >= FOLD_TOKENS) {
        fold_state(r);
        stage->unfolded = 0;
    }
    stage->unfolded += count;
    for (int64_t i = 0; rows && i + 2 <= count && i < AHEAD; i += 2) fetch(rows + i * wk, 2 * wk);
    for (int64_t i = 0; i < count; i += 2) {
        const int64_t slot = (from + i) % TOKENS;
        prepare_until(kind, stage, from + i + 2);
        a = rows ? rows + i * wk : r->kh + slot * wk;
        if (rows && i + AHEAD + 2 <= count) fetch(a + AHEAD * wk, 2 * wk);
        if (i + 1 < count)
            state_tokens(kind, 2, r, a, from + i, slot);
        else
            state_tokens(kind, 1, r, a, from + i, slot);
        r->a[0] = a;
    }
    memset(kept, 0, (size_t)(2 * wk) * sizeof(real));
    memcpy(kept, a, (size_t)((count - last) * wk) * sizeof(real));
    r->a[0] = kept;
    if (r->apart) stream_done();
}

INLINE void run_block(recurrent_kind kind, const scan_job *job, int64_t stage, int64_t block, recurrent_chain chain)
{
    const int64_t from = block * job->block, count = least(job->block, job->call->problem->T - from);
    scan_stage *at = &job->stages[stage];
    real *rows = kind.matrix ? job->ring + block % RING * job->block * at->r.wk : NULL;
    if (stage >= job->first)
        state_block(stage_kind(kind, false), at, rows, from, count);
    else if (kind.matrix)
        penalty_block(stage_kind(kind, true), at, rows, chain, job->done, from, count);
}

/* Blocks that every slice of S has done. */
INLINE int64_t blocks_finished(const scan_job *job)
{
    int64_t done = INT64_MAX;
    for (int64_t i = 0; i < job->slices; i++)
        done = least(done, atomic_load_explicit(&job->stages[job->first + i].done, memory_order_acquire));
    return done;
}

/* Blocks that a stage may do so far: A must leave the ring's rows to S, and S waits for A where there is one. */
INLINE int64_t blocks_allowed(recurrent_kind kind, const scan_job *job, int64_t stage)
{
    if (!kind.matrix) return job->blocks;
    if (stage == PENALTY) return least(job->blocks, blocks_finished(job) + RING);
    return atomic_load_explicit(&job->stages[PENALTY].done, memory_order_acquire);
}

/* Does a stage's next block if it may be done and nobody is at it. `busy` hands the stage's state from worker to
 * worker; `done` hands the block's rows from stage to stage. */
INLINE bool try_stage(recurrent_kind kind, const scan_job *job, int64_t stage, recurrent_chain chain)
{
    scan_stage *at = &job->stages[stage];
    if (atomic_load_explicit(&at->done, memory_order_relaxed) >= blocks_allowed(kind, job, stage) ||
        atomic_exchange_explicit(&at->busy, true, memory_order_acquire))
        return false;
    const int64_t block = atomic_load_explicit(&at->done, memory_order_relaxed);
    const bool may = block < blocks_allowed(kind, job, stage);
    if (may) {
        run_block(kind, job, stage, block, chain);
        atomic_store_explicit(&at->done, block + 1, memory_order_release);
    }
    atomic_store_explicit(&at->busy, false, memory_order_release);
    return may;
}

/* Worker 0 keeps A, where there is one; slices go round the others. */
INLINE bool own_stage(recurrent_kind kind, const scan_job *job, int64_t worker, int64_t stage)
{
    if (kind.matrix && stage == PENALTY) return worker == 0;
    const int64_t hands = job->workers - (kind.matrix && job->workers > 1 ? 1 : 0);
    return stage >= job->first && worker == job->workers - 1 - (stage - job->first) % hands;
}

INLINE void rest(int64_t idle)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (idle >= SPINS) sched_yield();
}

INLINE void scan_worker(recurrent_kind kind, const scan_job *job, int64_t worker, recurrent_chain chain)
{
    const int64_t stages = job->first + job->slices, patience = job->workers > 1 ? PATIENCE : 0;
    int64_t idle = 0;
    for (int64_t i = 0; i < stages; i++)
        if (own_stage(kind, job, worker, i)) atomic_store_explicit(&job->stages[i].kept, true, memory_order_relaxed);
    while (blocks_finished(job) < job->blocks) {
        bool worked = false;
        for (int64_t i = 0; i < stages; i++)
            if (own_stage(kind, job, worker, i)) worked = try_stage(kind, job, i, chain) || worked;
        for (int64_t i = stages - 1; i >= 0 && !worked; i--)
            if (idle >= patience || !atomic_load_explicit(&job->stages[i].kept, memory_order_relaxed))
                worked = try_stage(kind, job, i, chain);
        idle = worked ? 0 : idle + 1;
        if (!worked) rest(idle);
    }
}

/* task: calls scan_worker with the operator's constants. */
INLINE vla_status scan_run(recurrent_kind kind, const vla_call *call, vla_task task)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    scan_job job = {.call = call, .done = t->state_in && t->t ? *t->t : 0};
    job.workers = vla_pool_threads(call->pool);
    char *base = (char *)call->work + (128 - (uintptr_t)call->work % 128) % 128;
    scan_carve(kind, p, job.workers, base, &job);
    job.blocks = (p->T + job.block - 1) / job.block;
    for (job.head = 0; job.head < p->B * p->H; job.head++) {
        scan_begin(kind, &job);
        vla_pool_run(call->pool, job.workers, task, &job);
        scan_end(kind, &job);
    }
    chunk_count(call);
    return VLA_OK;
}

#endif
