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

#include "kernels/cpu/panel.h"
#include "kernels/kernel.h"
#include "lib/base/sizes.h"

enum { CHUNK_MAX = 256, WIDTH_MAX = 1 << 20 };

typedef struct chunk_space {
    int64_t dk, dv, kp, vp; /* widths and their padding */
    int64_t c, cp;          /* tokens of a chunk and their padding */
    real *A;                /* [kp][kp] */
    real *S, *carry;        /* [kp][vp]; carry: what rounding took from S (linear) */
    double *n;              /* [kp] running sum of kf */
    real *near_n;           /* [kp] n of the current token */
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
    const int64_t kinds = penalty ? 3 : 2;
    s->A = matrix ? carve(base, &used, s->kp * s->kp, sizeof(real)) : NULL;
    s->S = carve(base, &used, s->kp * s->vp, sizeof(real));
    s->carry = p->op == VLA_LINEAR ? carve(base, &used, s->kp * s->vp, sizeof(real)) : NULL;
    s->n = sum ? carve(base, &used, s->kp, sizeof(double)) : NULL;
    s->near_n = sum ? carve(base, &used, s->kp, sizeof(real)) : NULL;
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
    if (!vla_size_mul(chunk_carve(p, tokens, NULL, &space), threads, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "dk %lld, dv %lld, threads %d: scratch is beyond 64-bit sizes",
                        (long long)p->dk, (long long)p->dv, threads);
    return VLA_OK;
}

/* Start of a head: the given state, or S = 0, A = I/lambda0, n = 0. */
static __attribute__((unused)) void chunk_begin(const vla_call *call, int64_t head, chunk_space *s)
{
    const vla_tensors *t = call->tensors;
    const real *S = t->state_in ? t->S : NULL, *A = t->state_in ? t->A : NULL, *n = t->state_in ? t->n : NULL;
    state_load(s->S, s->kp, s->vp, S ? S + head * s->dv * s->dk : NULL, s->dk, s->dv);
    if (s->A) matrix_load(s->A, s->kp, A ? A + head * s->dk * s->dk : NULL, s->dk, (real)(1 / call->problem->lambda0));
    if (s->carry) memset(s->carry, 0, (size_t)(s->kp * s->vp) * sizeof(real));
    for (int64_t i = 0; s->n && i < s->kp; i++) s->n[i] = n && i < s->dk ? (double)n[head * s->dk + i] : 0;
}

static __attribute__((unused)) void chunk_end(const vla_call *call, int64_t head, const chunk_space *s)
{
    const vla_tensors *t = call->tensors;
    if (t->S) state_store((real *)t->S + head * s->dv * s->dk, s->dk, s->dv, s->S, s->vp);
    if (s->A && t->A) matrix_store((real *)t->A + head * s->dk * s->dk, s->dk, s->A, s->kp);
    for (int64_t i = 0; s->n && t->n && i < s->dk; i++) ((real *)t->n)[head * s->dk + i] = (real)s->n[i];
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

INLINE void zero_rows(real *rows, int64_t from, int64_t to, int64_t ld)
{
    if (from < to) memset(rows + from * ld, 0, (size_t)((to - from) * ld) * sizeof(real));
}

/* 1/(1 + exp(-x)) of up to BLOCK logits. */
INLINE real sigmoid(real x)
{
    const double e = exp(-fabs((double)x));
    return (real)((x < 0 ? e : 1) / (1 + e));
}

/* Loads up to a chunk of tokens of an operator without penalty: rows K and Q, values in r, beta or gate in scalar (1 in
 * zero rows). linear keeps phi(k) itself. Ends before a token that is not finite; returns how many. */
static __attribute__((unused)) int64_t load_keys(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t kp = s->kp, cp = s->cp, length = p->T - at < s->c ? p->T - at : s->c;
    const real *logits = p->op == VLA_DELTA ? t->b : p->op == VLA_DECAY && p->gate == VLA_GATE_TOKEN ? t->g : NULL;
    int64_t n = 0;
    for (; n < length; n++) {
        const real *k = token_row(t->k, p, head, at + n, s->dk), *v = token_row(t->v, p, head, at + n, s->dv);
        bool finite = p->op == VLA_LINEAR ? feature_row(p->features, k, s->dk, kp, s->rows + n * kp)
                                          : feature_unit_row(p->features, k, s->dk, kp, 1, s->rows + n * kp);
        finite &= row_load(v, s->dv, s->vp, s->r + n * s->vp);
        if (logits) {
            s->scalar[n] = sigmoid(logits[head * p->T + at + n]);
            finite &= s->scalar[n] == s->scalar[n];
        }
        if (!finite && n > 0) break;
    }
    for (int64_t i = 0; i < n; i++)
        feature_query(p->features, p->qk_l2, token_row(t->q, p, head, at + i, s->dk), s->dk, kp,
                      s->rows + (cp + i) * kp);
    for (int64_t i = n; i < cp; i++) s->scalar[i] = 1;
    zero_rows(s->rows, n, cp, kp);
    zero_rows(s->rows + cp * kp, n, cp, kp);
    zero_rows(s->r, n, cp, s->vp);
    panel_transpose(s->rows, kp, 2 * cp, kp, s->panel, 2 * cp);
    return n;
}

/* o rows of the chunk: y scaled by 1/den where den is given. den: NULL for plain output. */
INLINE void chunk_output(const vla_call *call, int64_t head, int64_t at, int64_t tokens, const chunk_space *s, real *y,
                         const real *den)
{
    real *o = (real *)call->tensors->o + (head * call->problem->T + at) * s->dv;
    for (int64_t i = 0; i < tokens; i++) {
        if (den) row_scale(y + i * s->vp, y + i * s->vp, s->vp, 1 / den[i]);
        row_store(o + i * s->dv, y + i * s->vp, s->dv);
    }
}

/* Adds the chunk's kf to n and fills den[i] = max(n_i . qf_i, eps), n_i being n after token i. Within the chunk the sum
 * runs in real, between chunks in double, so that rounding does not pile up over millions of tokens. */
INLINE void chunk_ratio(chunk_space *s, const real *kf, const real *q, int64_t tokens, real *den)
{
    for (int64_t j = 0; j < s->kp; j++) s->near_n[j] = (real)s->n[j];
    for (int64_t i = 0; i < tokens; i++) {
        vec sum = vset(0);
        for (int64_t j = 0; j < s->kp; j += LANES) {
            const vec n = vload(s->near_n + j) + vload(kf + i * s->kp + j);
            vstore(s->near_n + j, n);
            sum += n * vload(q + i * s->kp + j);
        }
        const real x = vsum(sum);
        den[i] = x < (real)VLA_RATIO_EPS ? (real)VLA_RATIO_EPS : x; /* NaN stays */
    }
    for (int64_t j = 0; j < s->kp; j++) {
        real sum = 0;
        for (int64_t i = 0; i < tokens; i++) sum += kf[i * s->kp + j];
        s->n[j] += (double)sum;
    }
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
    vla_pool_run(call->pool, call->problem->B * call->problem->H, chunk_head, &job);
    chunk_count(call);
    return VLA_OK;
}

#endif
