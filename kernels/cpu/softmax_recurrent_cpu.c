/* softmax, recurrent: one query at a time over the KV cache, o = sum_j softmax_j(q.k_j / sqrt dk) v_j, j <= Tk - T + i.
 *
 * q [B,H,T,dk], k [B,H,Tk,dk], v [B,H,Tk,dv], o [B,H,T,dv]. This is the decode step (T = 1, long Tk): every key and
 * value is read once, as it lies, so it runs at the speed of memory; 2 (dk + dv) flops for dk + dv elements read. Keys
 * go by blocks with a running maximum; lanes over dk for the scores, over keys for the weights, over dv for the output.
 * Work is shared by (head, queries), and where those are fewer than the threads each row's keys are cut into segments
 * whose sums are joined at the end. For many queries the chunk form is faster: it reads a key once for a block of them.
 *
 * Rows that come out non-finite are done again by softmax_careful_row, which decides them as naive does.
 */
#include "kernels/cpu/features.h"
#include "kernels/cpu/softmax_row.h"
#include "kernels/cpu/sweep.h"
#include "kernels/kernel.h"
#include "lib/base/sizes.h"

/* Queries of an item, keys of a block, fewest keys of a segment; vectors of dv held in registers at a time. */
enum { ITEM_QUERIES = 8, KEY_BLOCK = 128, SEGMENT_KEYS = 512, VALUE_VECS = 8, GROUP = 4 };

/* Sums over some of the keys of a row: o = sum 2^(s - max) v, total = sum 2^(s - max). */
typedef struct partial {
    real *o; /* [wv] */
    real max, total;
} partial;

typedef struct softmax_run {
    const vla_problem *problem;
    const real *q, *k, *v;
    real *o;
    char *work;
    int64_t wk, wv, worker_reals; /* padded widths, reals of a worker */
    int64_t groups, segments;     /* items of a head: groups of queries, or (query, segment) */
} softmax_run;

/* Asks for rows of `width` elements ahead of their use, so that memory never waits for arithmetic: values while the
 * scores are formed, the next keys while the values are summed. */
INLINE void fetch(const real *x, int64_t width)
{
    for (int64_t i = 0; i < width; i += 64 / (int64_t)sizeof(real)) __builtin_prefetch(x + i, 0, 2);
}

/* s[keys] = K q, for GROUP keys or one. */
INLINE void scores(int keys, const real *q, const real *k, int64_t dk, real *s)
{
    vec acc[GROUP];
    UNROLL
    for (int i = 0; i < GROUP; i++) acc[i] = vset(0);
    int64_t p = 0;
    for (; p + LANES <= dk; p += LANES) {
        const vec x = vload(q + p);
        UNROLL
        for (int i = 0; i < keys; i++) acc[i] += x * vload(k + i * dk + p);
    }
    if (p < dk) {
        const vec x = vload(q + p);
        UNROLL
        for (int i = 0; i < keys; i++) acc[i] += x * vload_part(k + i * dk + p, dk - p);
    }
    real sum[GROUP];
    vsums(GROUP, acc, sum);
    UNROLL
    for (int i = 0; i < keys; i++) s[i] = sum[i];
}

/* o[vecs] += sum of w[key] v[key] over n keys; `count` elements of the last vector where it is not whole. */
INLINE void values(int vecs, const real *w, const real *v, int64_t dv, int64_t n, int64_t count, real *o)
{
    vec acc[VALUE_VECS];
    UNROLL
    for (int c = 0; c < vecs; c++) acc[c] = vload(o + c * LANES);
    for (int64_t key = 0; key < n; key++) {
        const vec weight = vset(w[key]);
        UNROLL
        for (int c = 0; c < vecs; c++)
            acc[c] += weight * (count < LANES ? vload_part(v + key * dv, count) : vload(v + key * dv + c * LANES));
    }
    UNROLL
    for (int c = 0; c < vecs; c++) vstore(o + c * LANES, acc[c]);
}

/* ahead: `width` elements to fetch meanwhile. */
INLINE void block_values(const real *w, const real *v, int64_t dv, int64_t n, const real *ahead, int64_t width, real *o)
{
    int64_t j = 0;
    fetch(ahead, width);
    for (; j + VALUE_VECS * LANES <= dv; j += VALUE_VECS * LANES) values(VALUE_VECS, w, v + j, dv, n, LANES, o + j);
    for (; j + 4 * LANES <= dv; j += 4 * LANES) values(4, w, v + j, dv, n, LANES, o + j);
    for (; j + LANES <= dv; j += LANES) values(1, w, v + j, dv, n, LANES, o + j);
    if (j < dv) values(1, w, v + j, dv, n, dv - j, o + j);
}

/* s = 2^(s - max) for a block padded with -inf to whole vectors; sums and maximum of the row follow. */
INLINE void block_weights(real *s, int64_t n, int64_t wv, partial *sums)
{
    vec top = vset(sums->max), total = vset(0);
    const int64_t width = (n + LANES - 1) / LANES * LANES;
    for (int64_t i = n; i < width; i++) s[i] = -INFINITY;
    for (int64_t i = 0; i < width; i += LANES) top = vmax(vload(s + i), top);
    real lane[LANES], max = sums->max;
    vstore(lane, top);
    for (int i = 0; i < LANES; i++) max = lane[i] > max ? lane[i] : max;
    const real base = max == -INFINITY ? 0 : max; /* only -inf so far: weights of 0, not NaN */
    if (max > sums->max) {
        const vec factor = softmax_exp2(vset(sums->max - base));
        sums->total *= factor[0];
        for (int64_t j = 0; j < wv; j += LANES) vstore(sums->o + j, vload(sums->o + j) * factor);
        sums->max = max;
    }
    for (int64_t i = 0; i < width; i += LANES) {
        const vec w = softmax_exp2(vload(s + i) - base);
        total += w;
        vstore(s + i, w);
    }
    sums->total += vsum(total);
}

/* One query, scaled and padded, over keys [0, n) of k and v. s: a block of scores. */
static void attend(const real *q, const real *k, const real *v, int64_t n, const softmax_run *run, real *s,
                   partial *sums)
{
    const int64_t dk = run->problem->dk, dv = run->problem->dv;
    sums->max = -INFINITY;
    sums->total = 0;
    for (int64_t j = 0; j < run->wv; j += LANES) vstore(sums->o + j, vset(0));
    for (int64_t from = 0; from < n; from += KEY_BLOCK) {
        const int64_t count = n - from < KEY_BLOCK ? n - from : KEY_BLOCK;
        int64_t key = 0;
        for (; key + GROUP <= count; key += GROUP) {
            fetch(v + (from + key) * dv, GROUP * dv);
            scores(GROUP, q, k + (from + key) * dk, dk, s + key);
        }
        for (; key < count; key++) scores(1, q, k + (from + key) * dk, dk, s + key);
        block_weights(s, count, run->wv, sums);
        const int64_t more = n - from - count < count ? n - from - count : count;
        block_values(s, v + from * dv, dv, count, k + (from + count) * dk, more * dk, sums->o);
    }
}

typedef struct scratch {
    real *q, *s, *o;
    double *careful;
} scratch;

static scratch worker_scratch(const softmax_run *run, int worker)
{
    scratch w;
    w.q = (real *)(void *)run->work + worker * run->worker_reals;
    w.s = w.q + run->wk;
    w.o = w.s + KEY_BLOCK;
    w.careful = (double *)(void *)(w.o + run->wv);
    return w;
}

static void load_query(const softmax_run *run, int64_t row, real *q)
{
    const int64_t dk = run->problem->dk;
    const real scale = (real)(SOFTMAX_LOG2E / sqrt((double)dk));
    for (int64_t p = 0; p < run->wk; p++) q[p] = p < dk ? run->q[row * dk + p] * scale : 0;
}

/* o = sums.o / sums.total, again with care where that is not finite. */
static void store_row(const softmax_run *run, int64_t row, int64_t keys, const partial *sums, double *careful)
{
    const vla_problem *p = run->problem;
    const int64_t head = row / p->T;
    real *o = run->o + row * p->dv, zero = 0;
    const real factor = 1 / sums->total;
    for (int64_t j = 0; j < p->dv; j++) {
        o[j] = sums->o[j] * factor;
        zero += o[j] * 0;
    }
    if (zero == 0) return;
    softmax_careful_row(run->q + row * p->dk, run->k + head * p->Tk * p->dk, run->v + head * p->Tk * p->dv, keys, p->dk,
                        p->dv, careful, o);
}

static int64_t visible_keys(const vla_problem *p, int64_t query)
{
    const int64_t keys = p->Tk - p->T + query + 1;
    return keys > 0 ? keys : 0;
}

/* An item of the usual case: a group of queries of a head, the last group, with most keys, first. */
static void one_group(void *context, int64_t item, int worker)
{
    const softmax_run *run = context;
    const vla_problem *p = run->problem;
    const int64_t head = item / run->groups, from = (run->groups - 1 - item % run->groups) * ITEM_QUERIES;
    const real *k = run->k + head * p->Tk * p->dk, *v = run->v + head * p->Tk * p->dv;
    const scratch w = worker_scratch(run, worker);
    for (int64_t i = from; i < p->T && i < from + ITEM_QUERIES; i++) {
        partial sums = {.o = w.o};
        load_query(run, head * p->T + i, w.q);
        attend(w.q, k, v, visible_keys(p, i), run, w.s, &sums);
        store_row(run, head * p->T + i, visible_keys(p, i), &sums, w.careful);
    }
}

/* Partial sums of (row, segment) lie behind the workers' scratch: o [wv], max, total. */
static partial segment_sums(const softmax_run *run, int threads, int64_t item)
{
    return (partial){.o = (real *)(void *)run->work + threads * run->worker_reals + item * (run->wv + PAD_LANES)};
}

typedef struct segment_run {
    softmax_run run;
    int threads;
} segment_run;

static void one_segment(void *context, int64_t item, int worker)
{
    const segment_run *s = context;
    const softmax_run *run = &s->run;
    const vla_problem *p = run->problem;
    const int64_t row = item / run->segments, segment = item % run->segments, head = row / p->T;
    const int64_t keys = visible_keys(p, row % p->T);
    const int64_t from = keys / run->segments * segment + keys % run->segments * segment / run->segments;
    const int64_t to = keys / run->segments * (segment + 1) + keys % run->segments * (segment + 1) / run->segments;
    const scratch w = worker_scratch(run, worker);
    partial sums = segment_sums(run, s->threads, item);
    load_query(run, row, w.q);
    attend(w.q, run->k + (head * p->Tk + from) * p->dk, run->v + (head * p->Tk + from) * p->dv, to - from, run, w.s,
           &sums);
    sums.o[run->wv] = sums.max;
    sums.o[run->wv + 1] = sums.total;
}

/* Joins a row's segments: each scaled to the largest maximum. */
static void join_segments(const segment_run *s, int64_t row)
{
    const softmax_run *run = &s->run;
    const int64_t wv = run->wv, first = row * run->segments;
    partial sums = segment_sums(run, s->threads, first);
    real max = -INFINITY, total = 0;
    for (int64_t i = 0; i < run->segments; i++) {
        const real top = segment_sums(run, s->threads, first + i).o[wv];
        max = top > max ? top : max;
    }
    const real base = max == -INFINITY ? 0 : max;
    for (int64_t i = 0; i < run->segments; i++) {
        const partial part = segment_sums(run, s->threads, first + i);
        const vec factor = softmax_exp2(vset(part.o[wv] - base));
        total += part.o[wv + 1] * factor[0];
        for (int64_t j = 0; j < wv; j += LANES)
            vstore(sums.o + j, vload(part.o + j) * factor + (i ? vload(sums.o + j) : vset(0)));
    }
    sums.total = total;
    store_row(run, row, visible_keys(run->problem, row % run->problem->T), &sums, worker_scratch(run, 0).careful);
}

/* Reals of a worker: q, a block of scores, o, and dv doubles for a careful row. */
static int64_t worker_reals(const vla_problem *p)
{
    return PAD(p->dk) + KEY_BLOCK + PAD(p->dv) * (1 + (int64_t)(sizeof(double) / sizeof(real)));
}

/* Rows cut into segments are fewer than threads, so that segments are fewer than twice the threads. */
static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    const int64_t widest = INT64_MAX / 1024;
    if (p->dk > widest || p->dv > widest ||
        !vla_size_mul((worker_reals(p) + 2 * (PAD(p->dv) + PAD_LANES)) * (int64_t)sizeof(real), threads, bytes))
        return vla_fail(error, VLA_ERR_MEMORY,
                        "softmax workspace: dk %lld, dv %lld, %d threads are beyond 64-bit sizes", (long long)p->dk,
                        (long long)p->dv, threads);
    return VLA_OK;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    const vla_problem *p = call->problem;
    const int64_t threads = vla_pool_threads(call->pool), rows = p->B * p->H * p->T;
    segment_run s = {.threads = (int)threads,
                     .run = {.problem = p,
                             .q = call->tensors->q,
                             .k = call->tensors->k,
                             .v = call->tensors->v,
                             .o = call->tensors->o,
                             .work = call->work,
                             .wk = PAD(p->dk),
                             .wv = PAD(p->dv),
                             .worker_reals = worker_reals(p),
                             .groups = (p->T + ITEM_QUERIES - 1) / ITEM_QUERIES}};
    const int64_t wanted = rows > 0 ? (threads + rows - 1) / rows : 1, most = p->Tk / SEGMENT_KEYS;
    s.run.segments = wanted < most ? wanted : most;
    if (s.run.segments < 2) {
        vla_pool_run(call->pool, p->B * p->H * s.run.groups, one_group, &s.run);
        return VLA_OK;
    }
    vla_pool_run(call->pool, rows * s.run.segments, one_segment, &s);
    for (int64_t row = 0; row < rows; row++) join_segments(&s, row);
    return VLA_OK;
}

extern const vla_variant KERNEL(softmax_recurrent_cpu);
const vla_variant KERNEL(softmax_recurrent_cpu) = {NULL, workspace, run};
