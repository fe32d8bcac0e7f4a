/* vla, scan: one head on several workers, for long T with few heads. A does not depend on S, so A runs ahead: while one
 * worker takes A through a stretch of about 128 tokens and keeps their directions a, the others apply the stretch
 * before it to S, whose rows (columns of v) are split between them.
 *
 *   worker 0:   G = I + U A U^T = L L^T ; W = L^-1 U A ; X = K A - tril(K W^T) W ; a = unit(X) ; A -= W^T W
 *   the others: R = (I + stril(K a^T))^-1 (V - K S^T) ; O = Q S^T + tril(Q a^T) R ; S += R^T a     (a slice of rows of
 * S)
 *
 * q, k, u [B,H,T,dk] (u absent: the raw key), v, o [B,H,T,dv], S [B,H,dv,dk], A [B,H,dk,dk], n [B,H,dk], alpha
 * optional.
 *
 * The two halves cost about the same when dk = dv, and no work is done twice with two workers: near 2 times one thread.
 * Prefix sums of u u^T would let more workers share A, but cost 2 dk^2 a token in double (in float the inverse of the
 * sum loses the condition number of M), which at two workers takes the gain away; results here equal the chunk form's
 * to the last bit, with a refresh period too. Meant to beat: the chunk form when B H is below the number of workers.
 * Unsupported: chunk above 256. More than two workers gain little: A stays with one.
 */
#include "kernels/cpu/slices.h"
#include "kernels/cpu/vla_chunk.h"

enum { STRETCH = 128, CHUNKS_MAX = STRETCH / BLOCK };

/* What A leaves for S of one chunk. */
typedef struct record {
    int64_t at, tokens;
    real *key, *kf, *a; /* [cp][kp] */
} record;

typedef struct stretch {
    int64_t chunks;
    record records[CHUNKS_MAX];
} stretch;

typedef struct scan_job {
    const vla_call *call;
    vla_problem front, part; /* the problem as A's worker and as a slice carve it */
    int64_t head, at, tokens, slices, chunks;
    chunk_space penalty;
    char *slice_work;
    stretch stretches[2];
    int ready; /* the stretch that slices work on; A fills the other */
} scan_job;

static int64_t stretch_chunks(int64_t cp)
{
    return cp < STRETCH ? STRETCH / cp : 1;
}

/* A's worker has no use for S, nor a slice for A. */
static void parts_of(const vla_problem *p, int64_t threads, vla_problem *front, vla_problem *part, int64_t *slices)
{
    *front = *part = *p;
    front->dv = 1;
    part->op = VLA_LINEAR;
    part->dv = slice_width(p->dv, threads - 1, slices);
}

static int64_t carve_stretches(scan_job *job, char *base, int64_t used)
{
    const int64_t rows = job->penalty.cp * job->penalty.kp;
    for (int i = 0; i < 2; i++)
        for (int64_t c = 0; c < job->chunks; c++) {
            record *r = &job->stretches[i].records[c];
            r->key = carve(base, &used, rows, sizeof(real));
            r->kf = carve(base, &used, rows, sizeof(real));
            r->a = carve(base, &used, rows, sizeof(real));
        }
    return used;
}

/* Lays everything out from base (NULL: only counts); returns the bytes of all but the slices. */
static int64_t scan_carve(const vla_problem *p, int64_t threads, char *base, scan_job *job)
{
    job->tokens = chunk_tokens(p, USUAL_CHUNK);
    parts_of(p, threads, &job->front, &job->part, &job->slices);
    const int64_t used = chunk_carve(&job->front, job->tokens, base, &job->penalty);
    job->chunks = stretch_chunks(job->penalty.cp);
    return carve_stretches(job, base, used);
}

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    scan_job job;
    chunk_space space;
    int64_t slices = 0;
    const int64_t front = scan_carve(p, threads, NULL, &job);
    if (!vla_size_mul(chunk_carve(&job.part, job.tokens, NULL, &space), job.slices, &slices) ||
        __builtin_add_overflow(front, slices, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "dk %lld, dv %lld, threads %d: scratch is beyond 64-bit sizes",
                        (long long)p->dk, (long long)p->dv, threads);
    return VLA_OK;
}

/* Loads up to `length` tokens for A, ending before one that is not finite unless that is the first. */
static int64_t load_front(const scan_job *job, int64_t length, chunk_space *s)
{
    const int64_t kp = s->kp, cp = s->cp;
    int64_t n = 0, rows = 0, good = 0;
    for (; n < length && good == rows; n += good) {
        rows = least(length - n, BLOCK);
        good = load_key_penalty(job->call, job->head, job->at, n, rows, s);
    }
    n = n > 0 ? n : 1;
    zero_rows(s->rows, n, cp, kp);
    zero_rows(s->rows + cp * kp, n, cp, kp);
    zero_rows(s->kf, n, cp, kp);
    panel_transpose(s->rows, kp, 2 * cp, kp, s->panel, 3 * cp);
    const vla_problem *p = job->call->problem;
    prefetch_rows(job->call->tensors->k, p, job->head, job->at + n, s->c, s->dk);
    prefetch_rows(job->call->tensors->u, p, job->head, job->at + n, s->c, s->dk);
    return n;
}

/* Takes A through the next stretch. */
static void fill_stretch(scan_job *job, stretch *next)
{
    const vla_problem *p = job->call->problem;
    chunk_space s = job->penalty;
    next->chunks = 0;
    while (next->chunks < job->chunks && job->at < p->T) {
        record *r = &next->records[next->chunks++];
        bool refresh;
        s.kf = r->kf;
        s.a = r->a;
        const int64_t length = chunk_length(job->call, job->at, s.c, &refresh), n = load_front(job, length, &s);
        advance_penalty(p, n, refresh && n == length, &s);
        memcpy(r->key, s.rows + s.cp * s.kp, (size_t)(s.cp * s.kp) * sizeof(real));
        store_alpha(job->call, job->head, job->at, n, &s);
        r->at = job->at;
        r->tokens = n;
        job->at += n;
    }
}

/* One chunk of a slice: panel [kp][2 cp] holds K and Q transposed. */
static void apply_record(const scan_job *job, const record *r, chunk_space *s)
{
    const vla_call *call = job->call;
    const int64_t kp = s->kp, cp = s->cp;
    real *q = s->rows, den[CHUNK_MAX];
    load_queries(call, job->head, r->at, r->tokens, s, q);
    for (int64_t b = 0; b < r->tokens; b += BLOCK)
        load_values(call, job->head, r->at, b, least(r->tokens - b, BLOCK), s);
    zero_rows(s->r, r->tokens, cp, s->vp);
    panel_transpose(r->key, kp, cp, kp, s->panel, 2 * cp);
    panel_transpose(q, kp, cp, kp, s->panel + cp, 2 * cp);
    prefetch_chunk(call, job->head, r->at + r->tokens, s);
    advance_state(s->panel, 2 * cp, r->a, s);
    chunk_ratio(s, r->kf, q, den);
    chunk_output(call, job->head, r->at, r->tokens, s, s->ks + cp * s->vp,
                 call->problem->output == VLA_PLAIN ? NULL : den);
}

static void apply_stretch(const scan_job *job, int64_t slice)
{
    const stretch *now = &job->stretches[job->ready];
    chunk_space s;
    slice_carve(job->call->problem, &job->part, job->tokens, slice, job->slice_work, &s);
    for (int64_t c = 0; c < now->chunks; c++) apply_record(job, &now->records[c], &s);
}

static void scan_item(void *context, int64_t item, int worker)
{
    scan_job *job = context;
    (void)worker;
    if (item == 0)
        fill_stretch(job, &job->stretches[1 - job->ready]);
    else
        apply_stretch(job, item - 1);
}

static void scan_head(scan_job *job)
{
    const vla_call *call = job->call;
    const vla_tensors *t = call->tensors;
    const int64_t dk = job->penalty.dk, kp = job->penalty.kp;
    real *A = t->A ? (real *)t->A + job->head * dk * dk : NULL;
    chunk_space s;
    matrix_load(job->penalty.A, kp, t->state_in ? A : NULL, dk, (real)(1 / call->problem->lambda0));
    for (int64_t slice = 0; slice < job->slices; slice++) {
        slice_carve(call->problem, &job->part, job->tokens, slice, job->slice_work, &s);
        chunk_begin(call, job->head, &s);
    }
    job->penalty.compensate = is_long(call);
    memset(job->penalty.carry, 0, (size_t)(kp * kp) * sizeof(real));
    job->at = 0;
    fill_stretch(job, &job->stretches[job->ready]);
    for (; job->stretches[job->ready].chunks > 0; job->ready = 1 - job->ready)
        vla_pool_run(call->pool, 1 + job->slices, scan_item, job);
    for (int64_t slice = 0; slice < job->slices; slice++) {
        slice_carve(call->problem, &job->part, job->tokens, slice, job->slice_work, &s);
        chunk_end(call, job->head, &s);
    }
    if (A) matrix_store(A, dk, job->penalty.A, kp);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    const vla_problem *p = call->problem;
    scan_job job = {.call = call};
    job.slice_work = (char *)call->work + scan_carve(p, vla_pool_threads(call->pool), call->work, &job);
    for (job.head = 0; job.head < p->B * p->H; job.head++) scan_head(&job);
    chunk_count(call);
    return VLA_OK;
}

extern const vla_variant KERNEL(vla_scan_cpu);
const vla_variant KERNEL(vla_scan_cpu) = {chunk_supports, workspace, run};
