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
 * it has done, which is all that stages tell each other; blocks of 16 tokens made that dear, of 32 it is free.
 *
 * A worker keeps to its own stage, so that A or S stays in its cache. Two processors are seldom equally fast, so
 * workers exchange stages when one has waited for longer than that costs: A and S each run half of the time on the
 * faster one, and both end together. A worker takes blocks of another's stage where that one's worker has not come or
 * it has waited for long: the pipeline also moves when a worker comes late or never. Where a processor is taken away in
 * the middle of a block all wait for that block, asleep, so that the system can run its worker on theirs. Slices of S
 * write past the caches, as their columns of o lie side by side.
 *
 * Scratch: the ring and the state of every stage, independent of T.
 */
#ifndef VLA_CPU_SCAN_H
#define VLA_CPU_SCAN_H
#include <stdatomic.h>
#include <time.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/recurrent.h"
#include "lib/base/clock.h"

/* Blocks of the ring; tokens ahead for which rows of the ring, of the tensors and lines of the ring to write are asked;
 * blocks that a slice may lag behind before a faster worker takes it. */
enum { RING = 16, AHEAD = 8, AHEAD_INPUT = 16, LEAD = 8 };
enum { PENALTY = 0 };
/* Tokens of a block unless a chunk is given: with A, where S waits for the first, and for slices alone. */
enum { BLOCK_OF_A = 32, BLOCK_OF_SLICES = 64 };
/* Seconds: that a line of cache takes from another core, when many are asked for; of waiting until blocks of another's
 * stage are taken; and until the worker sleeps between looks, while its own stages wait and once they are done. */
static const double LINE_SECONDS = 10e-9, TAKE_SECONDS = 25e-6, SLEEP_SECONDS = 60e-6, SLEEP_AT_END = 1e-3;

typedef struct scan_stage {
    _Alignas(128) atomic_bool busy;
    atomic_bool kept;                /* its worker has come */
    atomic_bool taken;               /* by a worker that had no more to do */
    atomic_bool changing;            /* of the first stage: two workers' stages are being exchanged */
    atomic_int keeper;               /* the worker whose stage it is */
    _Alignas(128) atomic_llong done; /* blocks */
    _Alignas(128) recurrent r;
    vla_tensors t;    /* what the stage reads and writes, from the head (and slice) on; the rest NULL */
    int64_t unfolded; /* tokens since the last fold */
    int64_t ready;    /* tokens whose feature rows are made */
    bool asked;       /* the first rows of the next block are on their way */
} scan_stage;

/* What a worker knows of its waiting, seconds. */
typedef struct scan_wait {
    double begun;    /* of the present wait; 0: it works */
    double lasted;   /* so far */
    double waited;   /* in its present stage, up to the last look */
    double patience; /* of waited, until it takes the stage that it waits for */
    int64_t given;   /* the stage that it gave for another the last time */
} scan_wait;

typedef struct scan_job {
    const vla_call *call;
    int64_t block, blocks; /* tokens of a block; blocks of a head */
    int64_t head, done;    /* done: tokens before this run */
    int64_t slices, width; /* slices of S and the columns of v of all but the last */
    int64_t first;         /* the stage of the first slice */
    int workers;
    double patience;    /* seconds of waiting that are worth an exchange of stages between workers */
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
    job->block = p->chunk > 0 ? p->chunk + p->chunk % 2 : kind.matrix ? BLOCK_OF_A : BLOCK_OF_SLICES;
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

/* Worker 0 keeps A first, where there is one; slices go round the others. */
INLINE int first_keeper(recurrent_kind kind, const scan_job *job, int64_t stage)
{
    if (kind.matrix && stage == PENALTY) return 0;
    const int hands = job->workers - (kind.matrix && job->workers > 1 ? 1 : 0);
    return job->workers - 1 - (int)((stage - job->first) % hands);
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
        atomic_init(&stage->taken, false);
        atomic_init(&stage->changing, false);
        atomic_init(&stage->keeper, first_keeper(kind, job, i));
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
INLINE void penalty_block(recurrent_kind kind, scan_stage *stage, real *rows, const real *next, recurrent_chain chain,
                          int64_t done, int64_t from, int64_t count)
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
        if (i + AHEAD < count)
            fetch_to_write(a + AHEAD * wk, tokens * wk);
        else if (next)
            fetch_to_write(next + (i + AHEAD - count) * wk, tokens * wk);
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
INLINE void state_block(recurrent_kind kind, scan_stage *stage, real *rows, const real *next, int64_t from,
                        int64_t count)
{
    recurrent *r = &stage->r;
    const int64_t wk = r->wk, last = (count - 1) / 2 * 2;
    real *const kept = r->a[1], *a = NULL;
    if (!kind.residual && stage->unfolded >= FOLD_TOKENS) {
        fold_state(r);
        stage->unfolded = 0;
    }
    stage->unfolded += count;
    for (int64_t i = 0; rows && !stage->asked && i + 2 <= count && i < AHEAD; i += 2) fetch(rows + i * wk, 2 * wk);
    stage->asked = next != NULL;
    for (int64_t i = 0; i < count; i += 2) {
        const int64_t slot = (from + i) % TOKENS;
        prepare_until(kind, stage, from + i + 2);
        a = rows ? rows + i * wk : r->kh + slot * wk;
        if (rows && i + AHEAD + 2 <= count)
            fetch(a + AHEAD * wk, 2 * wk);
        else if (next && i + AHEAD >= count)
            fetch(next + (i + AHEAD - count) * wk, 2 * wk);
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

/* until: blocks that the stage may do so far. */
INLINE void run_block(recurrent_kind kind, const scan_job *job, int64_t stage, int64_t block, int64_t until,
                      recurrent_chain chain)
{
    const int64_t from = block * job->block, count = least(job->block, job->call->problem->T - from);
    scan_stage *at = &job->stages[stage];
    real *rows = kind.matrix ? job->ring + block % RING * job->block * at->r.wk : NULL;
    const bool ahead = kind.matrix && block + 1 < until && job->block >= 2 * AHEAD;
    const real *next = ahead ? job->ring + (block + 1) % RING * job->block * at->r.wk : NULL;
    if (stage >= job->first)
        state_block(stage_kind(kind, false), at, rows, next, from, count);
    else if (kind.matrix)
        penalty_block(stage_kind(kind, true), at, rows, next, chain, job->done, from, count);
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

INLINE bool own_stage(const scan_job *job, int64_t worker, int64_t stage)
{
    return atomic_load_explicit(&job->stages[stage].keeper, memory_order_relaxed) == (int)worker;
}

/* Does a stage's next blocks if they may be done and nobody is at it: all that may be done by the keeper, else one.
 * `busy` hands the stage's state from worker to worker; `done` hands the blocks' rows from stage to stage. */
INLINE bool try_stage(recurrent_kind kind, const scan_job *job, int64_t worker, int64_t stage, recurrent_chain chain)
{
    scan_stage *at = &job->stages[stage];
    if (atomic_load_explicit(&at->done, memory_order_relaxed) >= blocks_allowed(kind, job, stage) ||
        atomic_exchange_explicit(&at->busy, true, memory_order_acquire))
        return false;
    const int64_t first = atomic_load_explicit(&at->done, memory_order_relaxed);
    const int64_t until = blocks_allowed(kind, job, stage);
    int64_t block = first;
    const int64_t most = kind.matrix ? until : least(until, first + LEAD);
    for (bool more = block < most; more; more = block < most && own_stage(job, worker, stage)) {
        run_block(kind, job, stage, block, until, chain);
        atomic_store_explicit(&at->done, ++block, memory_order_release);
    }
    atomic_store_explicit(&at->busy, false, memory_order_release);
    return block > first;
}

/* The stage that holds this one up: for A the slice that still needs the rows of the whole ring, for a slice A where it
 * has no more rows, for a finished stage a slice that lags far behind and was not taken for this before, and without A
 * for any slice such a one; -1: none does. */
INLINE int64_t holder_of(recurrent_kind kind, const scan_job *job, int64_t stage)
{
    int64_t slowest = job->first, least_done = INT64_MAX;
    const int64_t done = atomic_load_explicit(&job->stages[stage].done, memory_order_relaxed);
    for (int64_t i = job->first; i < job->first + job->slices; i++) {
        const int64_t blocks = atomic_load_explicit(&job->stages[i].done, memory_order_relaxed);
        if (blocks < least_done) slowest = i, least_done = blocks;
    }
    const int64_t lead = done - least_done;
    if (done == job->blocks)
        return lead >= LEAD && !atomic_load_explicit(&job->stages[slowest].taken, memory_order_relaxed) ? slowest : -1;
    if (!kind.matrix) return lead >= LEAD ? slowest : -1;
    if (stage == PENALTY) return lead >= RING ? slowest : -1;
    return done == atomic_load_explicit(&job->stages[PENALTY].done, memory_order_relaxed) ? PENALTY : -1;
}

/* Gives a worker another's stage for its own; returns whether it did. */
INLINE bool exchange_stages(const scan_job *job, int64_t worker, int64_t own, int64_t other)
{
    scan_stage *mine = &job->stages[own], *theirs = &job->stages[other];
    atomic_bool *changing = &job->stages[0].changing;
    if (atomic_exchange_explicit(changing, true, memory_order_acquire)) return false;
    const bool may = own_stage(job, worker, own) && !own_stage(job, worker, other);
    if (may) {
        atomic_store_explicit(&mine->keeper, atomic_load_explicit(&theirs->keeper, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store_explicit(&theirs->keeper, (int)worker, memory_order_relaxed);
        if (atomic_load_explicit(&mine->done, memory_order_relaxed) == job->blocks)
            atomic_store_explicit(&theirs->taken, true, memory_order_relaxed);
    }
    atomic_store_explicit(changing, false, memory_order_release);
    return may;
}

/* Processors are seldom equally fast: most share a core with another thread, of other programs or of other machines.
 * So a worker that has waited for longer than an exchange costs takes the stage that holds it up and leaves its own to
 * the slower worker, which will hold it up in turn: both stages get the same share of either processor. Where an
 * exchange changes nothing, as that stage is simply the longer one, the next waits for twice as long. Slices without A
 * never wait: a lead is what they exchange for. */
INLINE void balance(recurrent_kind kind, const scan_job *job, int64_t worker, scan_wait *wait)
{
    const int64_t stages = job->first + job->slices;
    for (int64_t i = 0; i < stages; i++) {
        if (!own_stage(job, worker, i)) continue;
        const int64_t holder = holder_of(kind, job, i);
        if (holder < 0 || !atomic_load_explicit(&job->stages[holder].kept, memory_order_relaxed)) continue;
        if (!exchange_stages(job, worker, i, holder)) continue;
        wait->patience = wait->given == i ? 2 * wait->patience : job->patience;
        wait->given = i;
        wait->waited = 0;
        return;
    }
}

/* It has a stage that is not done. */
INLINE bool is_waited_for(const scan_job *job, int64_t worker)
{
    bool waited = false;
    for (int64_t i = 0; i < job->first + job->slices; i++)
        waited = waited || (own_stage(job, worker, i) &&
                            atomic_load_explicit(&job->stages[i].done, memory_order_relaxed) < job->blocks);
    return waited;
}

/* After a look that found no work. A worker that waits for long waits for one whose processor was taken away: sleeping,
 * it leaves that one its own. */
INLINE void rest(recurrent_kind kind, const scan_job *job, int64_t worker, scan_wait *wait)
{
    const double now = vla_now();
    if (wait->begun == 0) wait->begun = now, wait->lasted = 0;
    wait->waited += now - wait->begun - wait->lasted;
    wait->lasted = now - wait->begun;
    if (wait->waited >= wait->patience) balance(kind, job, worker, wait);
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (wait->lasted > (is_waited_for(job, worker) ? SLEEP_SECONDS : SLEEP_AT_END))
        nanosleep(&(struct timespec){0, 1000}, NULL);
}

INLINE void scan_worker(recurrent_kind kind, const scan_job *job, int64_t worker, recurrent_chain chain)
{
    const int64_t stages = job->first + job->slices;
    const double take_after = job->workers > 1 ? TAKE_SECONDS : 0;
    scan_wait wait = {.patience = job->patience, .given = -1};
    for (int64_t i = 0; i < stages; i++)
        if (own_stage(job, worker, i)) atomic_store_explicit(&job->stages[i].kept, true, memory_order_relaxed);
    while (blocks_finished(job) < job->blocks) {
        bool worked = false;
        for (int64_t i = 0; i < stages; i++)
            if (own_stage(job, worker, i)) worked = try_stage(kind, job, worker, i, chain) || worked;
        for (int64_t i = stages - 1; i >= 0 && !worked; i--)
            if (wait.lasted >= take_after || !atomic_load_explicit(&job->stages[i].kept, memory_order_relaxed))
                worked = try_stage(kind, job, worker, i, chain);
        if (!worked) {
            rest(kind, job, worker, &wait);
            continue;
        }
        wait.begun = wait.lasted = 0;
        if (!kind.matrix) balance(kind, job, worker, &wait);
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
    job.patience = 2 * LINE_SECONDS / 64 * (double)sizeof(real) * (double)(p->dk * (PAD(p->dk) + job.width));
    for (job.head = 0; job.head < p->B * p->H; job.head++) {
        scan_begin(kind, &job);
        vla_pool_run(call->pool, job.workers, task, &job);
        scan_end(kind, &job);
    }
    chunk_count(call);
    return VLA_OK;
}

#endif
