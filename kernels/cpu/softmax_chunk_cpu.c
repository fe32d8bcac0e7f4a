/* softmax, chunk: o_i = sum_j softmax_j(q_i.k_j / sqrt dk) v_j over keys j <= Tk - T + i, blocked (flash style).
 *
 * q [B,H,T,dk], k [B,H,Tk,dk], v [B,H,Tk,dv], o [B,H,T,dv]. A work unit is one block of up to VECS vectors of queries
 * of one head; lanes run over queries, so that the scaled block Q^T [dk, QUERIES] is transposed once while keys and
 * values are read as they lie, by broadcast, and the row maximum and sum need no horizontal step: S^T [KEYS, VECS] = K
 * Q^T ; P = 2^(S - m) in place ; O^T [ROWS of dv, VECS] += V^T P Blocks above the diagonal are never touched: the keys
 * of a block fall into runs, by the first of its vectors that may see them, and only the LANES x LANES corner of each
 * run is computed in vain. The running maximum m moves only when a block exceeds it by more than 2^SLACK, so that
 * rescaling is rare while weights stay far from overflow. 2 (dk + dv) flops a pair beside about 16 vector operations of
 * the exponential; scratch does not depend on T.
 *
 * Rows that come out non-finite are done again by softmax_careful_row, which decides them as naive does.
 */
#include "kernels/cpu/softmax_row.h"
#include "kernels/kernel.h"
#include "lib/base/sizes.h"

/* Register tile: KEYS (or rows of dv) x VECS accumulators, VECS vectors of queries and one broadcast. */
#if VLA_VEC_REGISTERS >= 32
enum { KEYS = 8, VECS = 3 };
#elif defined(__FMA__)
enum { KEYS = 4, VECS = 3 };
#else
enum { KEYS = 4, VECS = 2 };
#endif
enum { QUERIES = VECS * LANES, KEY_BLOCK = 64, MAX_QUERIES = 3 * 64 / (int)sizeof(real) };
#define SLACK ((real)8)

typedef struct unit {
    int64_t dk, dv;
    real *qt;            /* [dk, QUERIES], scaled by log2 e / sqrt dk */
    real *pt;            /* [KEY_BLOCK, QUERIES] */
    real *ot;            /* [dv, QUERIES] */
    real max[QUERIES];   /* m */
    real total[QUERIES]; /* sum of weights */
} unit;

typedef struct softmax_run {
    const vla_problem *problem;
    const real *q, *k, *v;
    real *o;
    char *work;
    int64_t work_bytes, vecs, blocks; /* vectors of queries, and blocks of them, in a head */
} softmax_run;

/* s[keys][vecs] = K Q^T for `keys` rows of k. */
INLINE void score_tile(int keys, int vecs, const real *qt, const real *k, int64_t dk, real *s)
{
    vec acc[KEYS][VECS];
    UNROLL
    for (int r = 0; r < keys; r++) UNROLL
    for (int c = 0; c < vecs; c++) acc[r][c] = vset(0);
    for (int64_t p = 0; p < dk; p++) {
        vec q[VECS];
        UNROLL
        for (int c = 0; c < vecs; c++) q[c] = vload(qt + p * QUERIES + c * LANES);
        UNROLL
        for (int r = 0; r < keys; r++) {
            const vec key = vset(k[r * dk + p]);
            UNROLL
            for (int c = 0; c < vecs; c++) acc[r][c] += key * q[c];
        }
    }
    UNROLL
    for (int r = 0; r < keys; r++) UNROLL
    for (int c = 0; c < vecs; c++) vstore(s + r * QUERIES + c * LANES, acc[r][c]);
}

/* ot[rows][vecs] += V^T P for `rows` columns of v and n keys. */
INLINE void value_tile(int rows, int vecs, const real *pt, const real *v, int64_t dv, int64_t n, real *ot)
{
    vec acc[KEYS][VECS];
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int c = 0; c < vecs; c++) acc[r][c] = vload(ot + r * QUERIES + c * LANES);
    for (int64_t key = 0; key < n; key++) {
        vec p[VECS];
        UNROLL
        for (int c = 0; c < vecs; c++) p[c] = vload(pt + key * QUERIES + c * LANES);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const vec value = vset(v[key * dv + r]);
            UNROLL
            for (int c = 0; c < vecs; c++) acc[r][c] += value * p[c];
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int c = 0; c < vecs; c++) vstore(ot + r * QUERIES + c * LANES, acc[r][c]);
}

INLINE void block_scores(int vecs, const unit *w, const real *qt, real *pt, const real *k, int64_t n)
{
    int64_t key = 0;
    for (; key + KEYS <= n; key += KEYS) score_tile(KEYS, vecs, qt, k + key * w->dk, w->dk, pt + key * QUERIES);
    for (; key + 2 <= n; key += 2) score_tile(2, vecs, qt, k + key * w->dk, w->dk, pt + key * QUERIES);
    if (key < n) score_tile(1, vecs, qt, k + key * w->dk, w->dk, pt + key * QUERIES);
}

INLINE void block_values(int vecs, const unit *w, const real *pt, real *ot, const real *v, int64_t n)
{
    const int64_t dv = w->dv;
    int64_t j = 0;
    for (; j + KEYS <= dv; j += KEYS) value_tile(KEYS, vecs, pt, v + j, dv, n, ot + j * QUERIES);
    for (; j + 2 <= dv; j += 2) value_tile(2, vecs, pt, v + j, dv, n, ot + j * QUERIES);
    if (j < dv) value_tile(1, vecs, pt, v + j, dv, n, ot + j * QUERIES);
}

/* Keys from `first` on (relative to lane 0's last key) are hidden from the lanes before them: key c + 1 from lanes
 * 0..c. */
INLINE void hide_keys(real *pt, int64_t n, int64_t first)
{
    ireal index[LANES];
    for (int i = 0; i < LANES; i++) index[i] = i;
    ivec lane;
    memcpy(&lane, index, sizeof lane);
    for (int64_t key = first > 1 ? 0 : 1 - first; key < n; key++) {
        real *s = pt + key * QUERIES;
        vstore(s, vselect(lane >= (ireal)(first + key), vload(s), vset(-INFINITY)));
    }
}

INLINE int any_lane(ivec mask)
{
    int64_t word[VLA_VEC_BYTES / 8], all = 0;
    memcpy(word, &mask, sizeof mask);
    for (int i = 0; i < VLA_VEC_BYTES / 8; i++) all |= word[i];
    return all != 0;
}

/* A lane's new maximum, and the loss of scale of its sums; a lane that saw only -inf keeps weights of 0, not NaN. */
static __attribute__((noinline)) void rescale(unit *w, const vec *top, int first, int vecs)
{
    for (int c = 0; c < vecs; c++) {
        const int at = first + c * LANES;
        const vec old = vload(w->max + at), new = vmax(top[c], old);
        const vec base = vselect(new == -INFINITY, vset(0), new);
        const vec factor = softmax_exp2(old - base);
        vstore(w->max + at, new);
        vstore(w->total + at, vload(w->total + at) * factor);
        for (int64_t j = 0; j < w->dv; j++) vstore(w->ot + j * QUERIES + at, vload(w->ot + j * QUERIES + at) * factor);
    }
}

/* pt = 2^(pt - m), totals and maxima updated. */
INLINE void block_weights(int vecs, unit *w, int first, real *pt, int64_t n)
{
    vec top[VECS];
    ivec grown = {0};
    UNROLL
    for (int c = 0; c < vecs; c++) top[c] = vset(-INFINITY);
    for (int64_t key = 0; key < n; key++) UNROLL
    for (int c = 0; c < vecs; c++) top[c] = vmax(vload(pt + key * QUERIES + c * LANES), top[c]);
    UNROLL
    for (int c = 0; c < vecs; c++) grown |= top[c] > vload(w->max + first + c * LANES) + SLACK;
    if (any_lane(grown)) rescale(w, top, first, vecs);
    UNROLL
    for (int c = 0; c < vecs; c++) {
        const vec max = vload(w->max + first + c * LANES), base = vselect(max == -INFINITY, vset(0), max);
        vec total = vload(w->total + first + c * LANES);
        for (int64_t key = 0; key < n; key++) {
            const vec p = softmax_exp2(vload(pt + key * QUERIES + c * LANES) - base);
            total += p;
            vstore(pt + key * QUERIES + c * LANES, p);
        }
        vstore(w->total + first + c * LANES, total);
    }
}

/* Keys [begin, end) for the last `vecs` of the block's vectors; `visible` is the last key of their first lane. */
INLINE void key_run(int vecs, unit *w, int first, const real *k, const real *v, int64_t begin, int64_t end,
                    int64_t visible)
{
    real *pt = w->pt + first;
    for (int64_t key = begin; key < end; key += KEY_BLOCK) {
        const int64_t n = end - key < KEY_BLOCK ? end - key : KEY_BLOCK;
        block_scores(vecs, w, w->qt + first, pt, k + key * w->dk, n);
        if (key + n - 1 > visible) hide_keys(pt, n, key - visible);
        block_weights(vecs, w, first, pt, n);
        block_values(vecs, w, pt, w->ot + first, v + key * w->dv, n);
    }
}

/* A square of SIDE x SIDE elements, one 16-byte vector a row: the step of both transpositions. */
typedef real quad __attribute__((vector_size(16)));
typedef ireal iquad __attribute__((vector_size(16)));
typedef real quadu __attribute__((vector_size(16), aligned(sizeof(real)), may_alias));
enum { SIDE = 16 / (int)sizeof(real) };
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (iquad){__VA_ARGS__})
#endif

INLINE void transpose_square(const real *from, int64_t from_stride, quad factor, real *to, int64_t to_stride)
{
    quad x[SIDE], y[SIDE];
    for (int i = 0; i < SIDE; i++) x[i] = *(const quadu *)(from + i * from_stride) * factor;
#if VLA_REAL_BITS == 64
    y[0] = SHUFFLE(x[0], x[1], 0, 2);
    y[1] = SHUFFLE(x[0], x[1], 1, 3);
#else
    const quad a = SHUFFLE(x[0], x[1], 0, 4, 1, 5), b = SHUFFLE(x[2], x[3], 0, 4, 1, 5);
    const quad c = SHUFFLE(x[0], x[1], 2, 6, 3, 7), d = SHUFFLE(x[2], x[3], 2, 6, 3, 7);
    y[0] = SHUFFLE(a, b, 0, 1, 4, 5);
    y[1] = SHUFFLE(a, b, 2, 3, 6, 7);
    y[2] = SHUFFLE(c, d, 0, 1, 4, 5);
    y[3] = SHUFFLE(c, d, 2, 3, 6, 7);
#endif
    for (int i = 0; i < SIDE; i++) *(quadu *)(to + i * to_stride) = y[i];
}

/* qt[p][i] = scale q[i][p], zero for lanes past the last row. */
static void load_queries(unit *w, const real *q, int rows)
{
    const real scale = (real)(SOFTMAX_LOG2E / sqrt((double)w->dk));
    const int width = (rows + LANES - 1) / LANES * LANES, whole = rows / SIDE * SIDE;
    const int64_t dk = w->dk, columns = dk / SIDE * SIDE;
    for (int i = 0; i < whole; i += SIDE)
        for (int64_t p = 0; p < columns; p += SIDE)
            transpose_square(q + i * dk + p, dk, (quad){0} + scale, w->qt + p * QUERIES + i, QUERIES);
    for (int i = 0; i < width; i++)
        for (int64_t p = i < whole ? columns : 0; p < dk; p++)
            w->qt[p * QUERIES + i] = i < rows ? q[i * dk + p] * scale : 0;
    for (int i = 0; i < width; i += LANES) {
        vstore(w->max + i, vset(-INFINITY));
        vstore(w->total + i, vset(0));
        for (int64_t j = 0; j < w->dv; j++) vstore(w->ot + j * QUERIES + i, vset(0));
    }
}

/* ot = ot / total in place; bad[i] tells whether row i is not finite. Returns whether any is. */
static int normalise(unit *w, int rows, int *bad)
{
    ivec any = {0};
    for (int i = 0; i < rows; i += LANES) {
        const vec factor = 1 / vload(w->total + i);
        vec zero = vset(0);
        for (int64_t j = 0; j < w->dv; j++) {
            const vec y = vload(w->ot + j * QUERIES + i) * factor;
            zero += y * 0;
            vstore(w->ot + j * QUERIES + i, y);
        }
        const ivec wrong = ~(zero == 0);
        any |= wrong;
        for (int lane = 0; lane < LANES; lane++) bad[i + lane] = wrong[lane] != 0;
    }
    return any_lane(any);
}

/* o[i][j] = ot[j][i] / total[i]; returns whether a row may not be finite. */
static int store_outputs(unit *w, real *o, int rows, int *bad)
{
    const int any = normalise(w, rows, bad), whole = rows / SIDE * SIDE;
    const int64_t dv = w->dv, columns = dv / SIDE * SIDE;
    for (int i = 0; i < whole; i += SIDE)
        for (int64_t j = 0; j < columns; j += SIDE)
            transpose_square(w->ot + j * QUERIES + i, QUERIES, (quad){0} + 1, o + i * dv + j, dv);
    for (int i = 0; i < rows; i++)
        for (int64_t j = i < whole ? columns : 0; j < dv; j++) o[i * dv + j] = w->ot[j * QUERIES + i];
    return any;
}

static void place_unit(unit *w, const softmax_run *run, int worker)
{
    w->dk = run->problem->dk;
    w->dv = run->problem->dv;
    w->qt = (real *)(void *)(run->work + worker * run->work_bytes);
    w->pt = w->qt + w->dk * QUERIES;
    w->ot = w->pt + KEY_BLOCK * QUERIES;
}

/* Fetches a block of rows ahead of use: its short rows are read four at a time, which hides them from the prefetcher.
 */
INLINE void fetch_rows(const real *x, int64_t count, int for_store)
{
    for (int64_t i = 0; i < count; i += 64 / (int64_t)sizeof(real))
        if (for_store)
            __builtin_prefetch(x + i, 1, 2);
        else
            __builtin_prefetch(x + i, 0, 3);
}

static void attend(unit *w, const real *k, const real *v, int64_t keys, int64_t visible, int vecs)
{
    int64_t begin = 0;
    for (int first = 0; first < vecs; first++) {
        const int64_t last = visible + (first + 1) * LANES, end = last < keys ? last : keys;
        switch (vecs - first) {
        case 1:
            key_run(1, w, first * LANES, k, v, begin, end, visible + first * LANES);
            break;
        case 2:
            key_run(2, w, first * LANES, k, v, begin, end, visible + first * LANES);
            break;
        default:
            key_run(VECS, w, first * LANES, k, v, begin, end, visible + first * LANES);
            break;
        }
        if (end > begin) begin = end;
    }
}

/* Items run over heads, and within a head from the block with most keys to the one with fewest. Blocks differ by at
 * most one vector in width: a last block of a few rows would run at the speed of one. */
static void one_unit(void *context, int64_t item, int worker)
{
    const softmax_run *run = context;
    const vla_problem *p = run->problem;
    const int64_t head = item / run->blocks, block = run->blocks - 1 - item % run->blocks;
    const int64_t from = block * run->vecs / run->blocks * LANES, next = (block + 1) * run->vecs / run->blocks * LANES;
    const int rows = (int)((next < p->T ? next : p->T) - from);
    const real *q = run->q + (head * p->T + from) * p->dk;
    const real *k = run->k + head * p->Tk * p->dk, *v = run->v + head * p->Tk * p->dv;
    real *o = run->o + (head * p->T + from) * p->dv;
    const int64_t visible = p->Tk - p->T + from;
    int bad[QUERIES];
    unit w;
    place_unit(&w, run, worker);
    fetch_rows(q, rows * p->dk, 0);
    load_queries(&w, q, rows);
    fetch_rows(o, rows * p->dv, 1);
    attend(&w, k, v, p->Tk, visible, (rows + LANES - 1) / LANES);
    if (!store_outputs(&w, o, rows, bad)) return;
    for (int i = 0; i < rows; i++)
        if (bad[i])
            softmax_careful_row(q + i * p->dk, k, v, visible + i + 1, p->dk, p->dv, (double *)(void *)w.qt,
                                o + i * p->dv);
}

/* Bytes of one worker: Q^T, P and O^T of the widest block; at least dv doubles for the careful row. */
static vla_status worker_bytes(const vla_problem *p, int64_t *bytes, vla_error *error)
{
    const int64_t row = MAX_QUERIES * (int64_t)sizeof(real);
    if (p->dk > INT64_MAX / 4 || p->dv > INT64_MAX / 4 || !vla_size_mul(p->dk + p->dv + KEY_BLOCK, row, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "softmax workspace: dk %lld, dv %lld are beyond 64-bit sizes",
                        (long long)p->dk, (long long)p->dv);
    return VLA_OK;
}

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    const vla_status status = worker_bytes(p, bytes, error);
    if (status != VLA_OK) return status;
    if (!vla_size_mul(*bytes, threads, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "softmax workspace: %d threads are beyond 64-bit sizes", threads);
    return VLA_OK;
}

static vla_status run(const vla_call *call, vla_error *error)
{
    const vla_problem *p = call->problem;
    softmax_run r = {.problem = p,
                     .q = call->tensors->q,
                     .k = call->tensors->k,
                     .v = call->tensors->v,
                     .o = call->tensors->o,
                     .work = call->work,
                     .vecs = (p->T + LANES - 1) / LANES};
    r.blocks = (r.vecs + VECS - 1) / VECS;
    const vla_status status = worker_bytes(p, &r.work_bytes, error);
    if (status != VLA_OK) return status;
    vla_pool_run(call->pool, p->B * p->H * r.blocks, one_unit, &r);
    return VLA_OK;
}

extern const vla_variant KERNEL(softmax_chunk_cpu);
const vla_variant KERNEL(softmax_chunk_cpu) = {NULL, workspace, run};
