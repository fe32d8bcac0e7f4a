/* What every chunkwise kernel shares: a worker's scratch, loading a chunk of tokens, state in and out, the write to S.
 *
 * A worker takes a head at a time. Its scratch is carved from the workspace and does not depend on T. rows holds the
 * chunk's operands one under another, cp rows each ([U] K Q), and panel the same transposed. S is kept transposed,
 * [kp][vp], so that K S^T and Q S^T are one product with dv in lanes.
 *
 * A chunk ends early before a token whose derived rows are not finite: such a token must be the first of its chunk, so
 * that nothing it reaches lies before it.
 */
#ifndef VLA_CPU_CHUNK_H
#define VLA_CPU_CHUNK_H
#include <stdio.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/long_run.h"
#include "kernels/cpu/sigmoid.h"
#include "kernels/kernel.h"
#include "lib/base/sizes.h"

enum { CHUNK_MAX = 256, WIDTH_MAX = 1 << 20 };

typedef struct chunk_space {
    int64_t dk, dv, kp, vp; /* widths and their padding; dv may be a slice of the problem's */
    int64_t from;           /* first value column of the slice */
    int64_t c, cp;          /* tokens of a chunk and their padding */
    real *A;                /* [kp][kp] */
    real *S;                /* [kp][vp] */
    real *carry;            /* what rounding took from S (linear, [kp][vp]) or A (vla, [kp][kp]) */
    bool compensate;        /* vla: whether A is summed with its carry */
    real *n, *n_carry;      /* [kp] running sum of kf, and what rounding took from it */
    real *rows;             /* [U] K Q, each [cp][kp] */
    real *panel;            /* [kp][3 cp or 2 cp]: rows transposed */
    real *kf;               /* [cp][kp] */
    real *product;          /* [2 cp][kp]: U A and K A */
    real *a;                /* [cp][kp] alpha */
    real *r;                /* [cp][vp] values, then residuals */
    real *ks;               /* [2 cp][vp]: K S^T and Q S^T */
    real *gram;             /* [cp][2 cp] */
    real *lower, *inverse;  /* [cp][cp], [cp]: Cholesky factor and inverse of its diagonal */
    real *scalar;           /* [cp]: beta or gate */
} chunk_space;

INLINE bool op_has_penalty(vla_op op)
{
    return op == VLA_VLA;
}
INLINE bool op_has_matrix(vla_op op)
{
    return op == VLA_VLA || op == VLA_RLS;
}
INLINE bool op_has_sum(vla_op op)
{
    return op == VLA_VLA || op == VLA_LINEAR;
}

INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

INLINE void *carve(char *base, int64_t *used, int64_t count, size_t size)
{
    void *at = base ? base + *used : NULL;
    *used += (count * (int64_t)size + 63) / 64 * 64;
    return at;
}

/* Lays the scratch of one worker out from base (NULL: only counts); returns its bytes. Widths are at most WIDTH_MAX, so
 * nothing overflows. */
static __attribute__((unused)) int64_t chunk_carve(const vla_problem *p, int64_t tokens, char *base, chunk_space *s)
{
    int64_t used = 0;
    const bool penalty = op_has_penalty(p->op), matrix = op_has_matrix(p->op), sum = op_has_sum(p->op);
    s->dk = p->dk, s->dv = p->dv, s->kp = PAD(p->dk), s->vp = PAD(p->dv);
    s->c = tokens, s->cp = (tokens + BLOCK - 1) / BLOCK * BLOCK;
    s->from = 0;
    const int64_t kinds = penalty ? 3 : 2;
    s->A = matrix ? carve(base, &used, s->kp * s->kp, sizeof(real)) : NULL;
    s->S = carve(base, &used, s->kp * s->vp, sizeof(real));
    s->carry = sum ? carve(base, &used, s->kp * (penalty ? s->kp : s->vp), sizeof(real)) : NULL;
    s->n = sum ? carve(base, &used, s->kp, sizeof(real)) : NULL;
    s->n_carry = sum ? carve(base, &used, s->kp, sizeof(real)) : NULL;
    s->rows = carve(base, &used, kinds * s->cp * s->kp, sizeof(real));
    s->panel = carve(base, &used, kinds * s->cp * s->kp, sizeof(real));
    s->kf = penalty ? carve(base, &used, s->cp * s->kp, sizeof(real)) : NULL;
    s->product = matrix ? carve(base, &used, 2 * s->cp * s->kp, sizeof(real)) : NULL;
    s->a = penalty ? carve(base, &used, s->cp * s->kp, sizeof(real)) : NULL;
    s->r = carve(base, &used, s->cp * s->vp, sizeof(real));
    s->ks = carve(base, &used, 2 * s->cp * s->vp, sizeof(real));
    s->gram = carve(base, &used, 2 * s->cp * s->cp, sizeof(real));
    s->lower = matrix ? carve(base, &used, s->cp * s->cp, sizeof(real)) : NULL;
    s->inverse = matrix ? carve(base, &used, s->cp, sizeof(real)) : NULL;
    s->scalar = carve(base, &used, s->cp, sizeof(real));
    return used;
}

INLINE int64_t chunk_tokens(const vla_problem *p, int64_t usual)
{
    return p->chunk > 0 ? p->chunk : usual;
}

/* Refuses what no chunk kernel takes. */
static __attribute__((unused)) bool chunk_supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->chunk > CHUNK_MAX) {
        snprintf(reason, size, "chunk %lld above %d", (long long)p->chunk, (int)CHUNK_MAX);
        return false;
    }
    if (p->dk > WIDTH_MAX || p->dv > WIDTH_MAX) {
        snprintf(reason, size, "%s %lld above %d", p->dk > WIDTH_MAX ? "dk" : "dv",
                 (long long)(p->dk > WIDTH_MAX ? p->dk : p->dv), (int)WIDTH_MAX);
        return false;
    }
    return true;
}

static __attribute__((unused)) vla_status chunk_workspace(const vla_problem *p, int64_t tokens, int threads,
                                                          int64_t *bytes, vla_error *error)
{
    chunk_space space;
    const bool fits = p->dk <= WIDTH_MAX && p->dv <= WIDTH_MAX && tokens <= CHUNK_MAX;
    if (!fits || !vla_size_mul(chunk_carve(p, tokens, NULL, &space), threads, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "dk %lld, dv %lld, threads %d: scratch is beyond 64-bit sizes",
                        (long long)p->dk, (long long)p->dv, threads);
    return VLA_OK;
}

/* Start of a head: the given state, or S = 0, A = I/lambda0, n = 0. */
static __attribute__((unused)) void chunk_begin(const vla_call *call, int64_t head, chunk_space *s)
{
    const vla_tensors *t = call->tensors;
    const real *S = t->state_in ? t->S : NULL, *A = t->state_in ? t->A : NULL, *n = t->state_in ? t->n : NULL;
    state_load(s->S, s->kp, s->vp, S ? S + (head * call->problem->dv + s->from) * s->dk : NULL, s->dk, s->dv);
    if (s->A) matrix_load(s->A, s->kp, A ? A + head * s->dk * s->dk : NULL, s->dk, (real)(1 / call->problem->lambda0));
    s->compensate = is_long(call);
    if (s->carry) memset(s->carry, 0, (size_t)(s->kp * (s->A ? s->kp : s->vp)) * sizeof(real));
    if (!s->n) return;
    memset(s->n, 0, (size_t)s->kp * sizeof(real));
    memset(s->n_carry, 0, (size_t)s->kp * sizeof(real));
    if (n) memcpy(s->n, n + head * s->dk, (size_t)s->dk * sizeof(real));
}

static __attribute__((unused)) void chunk_end(const vla_call *call, int64_t head, const chunk_space *s)
{
    const vla_tensors *t = call->tensors;
    if (t->S) state_store((real *)t->S + (head * call->problem->dv + s->from) * s->dk, s->dk, s->dv, s->S, s->vp);
    if (s->A && t->A) matrix_store((real *)t->A + head * s->dk * s->dk, s->dk, s->A, s->kp);
    if (s->n && t->n && s->from == 0) memcpy((real *)t->n + head * s->dk, s->n, (size_t)s->dk * sizeof(real));
}

/* The step count after the run. */
INLINE void chunk_count(const vla_call *call)
{
    const vla_tensors *t = call->tensors;
    if (t->t) *t->t = (t->state_in ? *t->t : 0) + call->problem->T;
}

/* Where rows of token `at` of a head lie in a tensor of that width. */
INLINE const real *token_row(const void *tensor, const vla_problem *p, int64_t head, int64_t at, int64_t width)
{
    return (const real *)tensor + (head * p->T + at) * width;
}

/* Asks for the rows of the next chunk, a chunk ahead: a stream that is touched once in thousands of cycles is not kept
 * alive by the hardware's prefetchers. */
static __attribute__((noinline, unused)) void prefetch_rows(const void *tensor, const vla_problem *p, int64_t head,
                                                            int64_t at, int64_t tokens, int64_t width)
{
    const int64_t rows = least(tokens, p->T - at);
    if (!tensor || rows <= 0) return;
    const char *from = (const char *)token_row(tensor, p, head, at, width);
    for (int64_t byte = 0; byte < rows * width * (int64_t)sizeof(real); byte += 64)
        __builtin_prefetch(from + byte, 0, 2);
}

static __attribute__((unused)) void prefetch_chunk(const vla_call *call, int64_t head, int64_t at, const chunk_space *s)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    prefetch_rows(t->q, p, head, at, s->c, s->dk);
    prefetch_rows(t->k, p, head, at, s->c, s->dk);
    prefetch_rows(t->v, p, head, at, s->c, p->dv);
    if (op_has_penalty(p->op)) prefetch_rows(t->u, p, head, at, s->c, s->dk);
    prefetch_rows(t->o, p, head, at, s->c, p->dv);
}

INLINE void zero_rows(real *rows, int64_t from, int64_t to, int64_t ld)
{
    if (from < to) memset(rows + from * ld, 0, (size_t)((to - from) * ld) * sizeof(real));
}

/* Features of the queries of the chunk's `tokens` tokens. A bad query reaches its own row only. */
INLINE void load_queries(const vla_call *call, int64_t head, int64_t at, int64_t tokens, const chunk_space *s, real *q)
{
    const vla_problem *p = call->problem;
    for (int64_t b = 0; b < tokens; b += BLOCK) {
        const real *x = token_row(call->tensors->q, p, head, at + b, s->dk);
        const int64_t rows = tokens - b < BLOCK ? tokens - b : BLOCK;
        if (p->qk_l2)
            block_unit(p->features, x, s->dk, rows, s->kp, 1, q + b * s->kp, q + b * s->kp);
        else
            block_rows(p->features, x, s->dk, rows, s->kp, q + b * s->kp);
    }
    zero_rows(q, tokens, s->cp, s->kp);
}

/* Values of tokens b .. b + rows of the chunk, columns of the slice; returns the first row that is not finite, or rows.
 */
static __attribute__((unused)) int64_t load_values(const vla_call *call, int64_t head, int64_t at, int64_t b,
                                                   int64_t rows, const chunk_space *s)
{
    const int64_t dv = call->problem->dv;
    const real *v = token_row(call->tensors->v, call->problem, head, at + b, dv) + s->from;
    real *r = s->r + b * s->vp, squares[BLOCK];
    vec sum[BLOCK];
    UNROLL
    for (int i = 0; i < BLOCK; i++) sum[i] = vset(0);
    for (int64_t i = 0; i < rows; i++) sum[i] = row_phi(VLA_IDENTITY, v + i * dv, s->dv, s->vp, r + i * s->vp);
    block_sums(sum, squares);
    for (int64_t i = 0; i < rows; i++)
        if (!(squares[i] <= SQUARES_HIGH) && !row_load(v + i * dv, s->dv, s->vp, r + i * s->vp)) return i;
    return rows;
}

/* Keys, values and logits of an operator without penalty for tokens b .. b + rows of the chunk; returns the first that
 * is not finite, or rows. */
static __attribute__((unused)) int64_t load_key_block(const vla_call *call, int64_t head, int64_t at, int64_t b,
                                                      int64_t rows, const chunk_space *s)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const real *k = token_row(t->k, p, head, at + b, s->dk);
    const real *logits = p->op == VLA_DELTA ? t->b : p->op == VLA_DECAY && p->gate == VLA_GATE_TOKEN ? t->g : NULL;
    real *key = s->rows + b * s->kp;
    int64_t good = p->op == VLA_LINEAR ? block_rows(p->features, k, s->dk, rows, s->kp, key)
                                       : block_unit(p->features, k, s->dk, rows, s->kp, 1, key, key);
    good = least(good, load_values(call, head, at, b, rows, s));
    for (int64_t i = 0; logits && i < rows; i++) {
        s->scalar[b + i] = sigmoid(logits[head * p->T + at + b + i]);
        if (s->scalar[b + i] != s->scalar[b + i]) good = least(good, i);
    }
    return good;
}

/* Loads up to a chunk of tokens of an operator without penalty: rows K and Q, values in r, beta or gate in scalar (1 in
 * zero rows). linear keeps phi(k) itself. Ends before a token that is not finite, unless that is the first; returns how
 * many. */
static __attribute__((unused)) int64_t load_keys(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const int64_t length = least(call->problem->T - at, s->c);
    int64_t n = 0, rows = 0, good = 0;
    for (; n < length && good == rows; n += good) {
        rows = least(length - n, BLOCK);
        good = load_key_block(call, head, at, n, rows, s);
    }
    n = n > 0 ? n : 1;
    load_queries(call, head, at, n, s, s->rows + s->cp * s->kp);
    for (int64_t i = n; i < s->cp; i++) s->scalar[i] = 1;
    zero_rows(s->rows, n, s->cp, s->kp);
    zero_rows(s->r, n, s->cp, s->vp);
    panel_transpose(s->rows, s->kp, 2 * s->cp, s->kp, s->panel, 2 * s->cp);
    prefetch_chunk(call, head, at + n, s);
    return n;
}

/* o rows of the chunk: y, divided by den where it is given (NULL: plain output). */
static __attribute__((unused)) void chunk_output(const vla_call *call, int64_t head, int64_t at, int64_t tokens,
                                                 const chunk_space *s, const real *y, const real *den)
{
    real *o = (real *)call->tensors->o + (head * call->problem->T + at) * call->problem->dv + s->from;
    for (int64_t i = 0; i < tokens; i++, o += call->problem->dv, y += s->vp) {
        const real factor = den ? 1 / den[i] : 1;
        int64_t j = 0;
        for (; j + LANES <= s->dv; j += LANES) vstore(o + j, vload(y + j) * factor);
        for (; j < s->dv; j++) o[j] = y[j] * factor;
    }
}

/* Adds the chunk's kf to n and fills den[i] = max(n_i . qf_i, eps). */
INLINE void chunk_ratio(const chunk_space *s, const real *kf, const real *q, real *den)
{
    for (int64_t b = 0; b < s->cp; b += BLOCK)
        block_ratio(s->n, s->n_carry, kf + b * s->kp, q + b * s->kp, s->kp, den + b);
}

/* A kernel's head task: advances over the head's tokens with `step`, which does as many as it can from `at` and returns
 * how many. */
typedef int64_t (*chunk_step)(const vla_call *call, int64_t head, int64_t at, chunk_space *space);

typedef struct chunk_job {
    const vla_call *call;
    int64_t tokens;
    chunk_step step;
} chunk_job;

static __attribute__((unused)) void chunk_head(void *context, int64_t head, int worker)
{
    const chunk_job *job = context;
    const vla_problem *p = job->call->problem;
    chunk_space space;
    const int64_t bytes = chunk_carve(p, job->tokens, NULL, &space);
    chunk_carve(p, job->tokens, (char *)job->call->work + worker * bytes, &space);
    chunk_begin(job->call, head, &space);
    for (int64_t at = 0; at < p->T;) at += job->step(job->call, head, at, &space);
    chunk_end(job->call, head, &space);
}

INLINE vla_status chunk_run(const vla_call *call, int64_t tokens, chunk_step step)
{
    chunk_job job = {call, tokens, step};
    if (call->session) call->session->chunk = tokens;
    vla_pool_run(call->pool, call->problem->B * call->problem->H, chunk_head, &job);
    chunk_count(call);
    return VLA_OK;
}

#endif
