/* What a worker of the recurrent forms holds, and the rows it makes of each token: features, unit rows, n and scalars.
 *
 * Two tokens together where rows are whole vectors and keys are normalised: one transposed sum over lanes serves every
 * norm and scalar product of the pair. linear, which has one such product a token, gains nothing by it.
 */
#ifndef VLA_CPU_RECURRENT_ROWS_H
#define VLA_CPU_RECURRENT_ROWS_H
#include "kernels/cpu/features.h"
#include "kernels/cpu/sigmoid.h"
#include "kernels/cpu/sweep.h"
#include "kernels/kernel.h"

/* Tokens whose rows are made at a time, between folds of a plain sum and of A in long runs, and of a run done in place.
 */
enum { TOKENS = 16, FOLD_TOKENS = 4096, FOLD_PENALTY = 512, IN_PLACE_TOKENS = 4 };

/* What an operator has; constants, so that each operator compiles to its own loops. */
typedef struct recurrent_kind {
    int matrix;   /* A: vla, rls */
    int penalty;  /* a row u beside the key: vla */
    int sum;      /* n: vla, linear */
    int residual; /* writes v - S kh rather than v: all but linear */
    int beta, gate;
    int unasked; /* scan: A's stage alone, which no query reaches */
} recurrent_kind;

typedef struct recurrent {
    const vla_problem *p;
    const vla_tensors *t;
    int64_t head, dk, dv, wk, wv; /* wk, wv: padded widths */
    int64_t lead;                 /* row length of v and o, of which dv columns may be a slice */
    real *A;                      /* [dk][wk]; in long runs what was added since the last fold */
    real *A_base, *A_lost;        /* [dk][wk] A at the last fold, and what rounding took from it; NULL: not folded */
    real *S;                      /* [dk][wv]; linear: what was written since the last fold */
    real *base, *lost;            /* [dk][wv], linear: S at the last fold, and what rounding took from it */
    real *qf, *kf, *kh, *uh;      /* [TOKENS][wk] */
    real *scale, *beta;           /* [TOKENS]: 1/max(n.qf, eps) or 1 ; sigmoid(b) or 1 */
    real *gate;                   /* [TOKENS][wv] */
    real *w;                      /* [2][wk] pending A -= w w^T */
    real *a[2];                   /* [2][wk] each: pending S += e a^T, and the pair being made */
    real *e;                      /* [2][wv] */
    real *decay;                  /* [wv] pending factor of S */
    real *ap, *sp;                /* [4][wk], [4][wv]: products of the sweeps */
    real *v, *o;                  /* [2][wv]: padded rows of values and outputs */
    real *n, *recent;             /* [wk]: n now; its growth since the last fold into total */
    double *total;                /* [wk]: n at the start of the block, in double for millions of tokens in float */
    int current;                  /* which of a[] is pending */
    bool in_place;                /* A and S are the caller's */
    bool apart;                   /* another core writes the same rows of o, whole cache lines: past the caches */
    bool folded;                  /* base holds a part of S */
} recurrent;

INLINE const real *row_of(const void *tensor, int64_t row, int64_t width)
{
    return (const real *)tensor + row * width;
}

/* The gate of a token in every lane of the rows of S. */
INLINE void prepare_gate(recurrent *r, int64_t token, int64_t slot)
{
    real *gate = r->gate + slot * r->wv;
    const real *g = r->t->g;
    if (r->p->gate == VLA_GATE_ROW)
        for (int64_t j = 0; j < r->dv; j++) gate[j] = sigmoid(g[token * r->dv + j]);
    else
        for (int64_t j = 0; j < r->dv; j++) gate[j] = 0;
    const real all = r->p->gate == VLA_GATE_TOKEN ? sigmoid(g[token]) : 1;
    for (int64_t j = r->p->gate == VLA_GATE_ROW ? r->dv : 0; j < r->wv; j++) gate[j] = all;
}

/* The factor 1/max(n.qf, eps) of a ratio, in which a NaN stays visible. */
INLINE real ratio_scale(const recurrent *r, real den)
{
    if (r->p->op == VLA_VLA && r->p->output == VLA_PLAIN) return 1;
    return 1 / (den < (real)VLA_RATIO_EPS ? (real)VLA_RATIO_EPS : den + (den - den)); /* overflow: NaN, not 0 */
}

/* n += kf ; the factor 1/max(n.qf, eps) of a ratio, in which a NaN stays visible. */
INLINE void prepare_sum(recurrent *r, int64_t slot)
{
    vec dot = vset(0);
    for (int64_t i = 0; i < r->wk; i += LANES) {
        const vec key = vload(r->kf + slot * r->wk + i), n = vload(r->n + i) + key;
        vstore(r->n + i, n);
        vstore(r->recent + i, vload(r->recent + i) + key);
        dot += n * vload(r->qf + slot * r->wk + i);
    }
    r->scale[slot] = ratio_scale(r, vsum(dot));
}

INLINE void fold_sum(recurrent *r)
{
    for (int64_t i = 0; i < r->wk; i++) {
        r->total[i] += (double)r->recent[i];
        r->n[i] = (real)r->total[i];
        r->recent[i] = 0;
    }
}

INLINE void prepare_rows(recurrent_kind kind, vla_features features, recurrent *r, int64_t slot, int64_t from,
                         int64_t count)
{
    const vla_problem *p = r->p;
    const vla_tensors *t = r->t;
    const int64_t dk = r->dk, wk = r->wk;
    for (int64_t i = 0; i < count; i++) {
        const real *k = row_of(t->k, from + i, dk);
        real *kf = r->kf + (slot + i) * wk, *kh = r->kh + (slot + i) * wk;
        if (!kind.unasked)
            feature_query(features, p->qk_l2, row_of(t->q, from + i, dk), dk, wk, r->qf + (slot + i) * wk);
        if (!kind.residual)
            feature_row(features, k, dk, wk, kf);
        else if (!kind.penalty && !kind.sum)
            feature_unit_row(features, k, dk, wk, 1, kh);
        else if (p->no_normalise) {
            feature_row(features, k, dk, wk, kf);
            memcpy(kh, kf, (size_t)wk * sizeof(real));
        } else
            feature_key(features, k, dk, wk, kf, kh);
        if (kind.penalty) feature_penalty(t->u ? row_of(t->u, from + i, dk) : k, dk, wk, r->uh + (slot + i) * wk);
    }
}

/* scale unit(phi(raw)), given phi(raw) in `mapped` and its squares as far as real holds their sum. */
INLINE void pair_unit(vla_features features, const real *raw, const real *mapped, int64_t width, real squares,
                      real scale, real *out)
{
    if (squares >= SQUARES_LOW && squares <= SQUARES_HIGH)
        row_scale(out, mapped, width, scale / real_sqrt(squares));
    else
        row_unit_scaled(features, raw, width, width, scale, out);
}

/* The rows of two tokens together, of whole vectors: one pass. All but linear. */
INLINE void prepare_pair(recurrent_kind kind, vla_features features, recurrent *r, int64_t slot, int64_t from)
{
    const vla_tensors *t = r->t;
    const int64_t wk = r->wk;
    const bool unit = !r->p->no_normalise;
    const real *q = kind.unasked ? NULL : row_of(t->q, from, wk), *k = row_of(t->k, from, wk);
    const real *u = !kind.penalty ? NULL : row_of(t->u ? t->u : t->k, from, wk);
    real *qf = r->qf + slot * wk, *kh = r->kh + slot * wk, *uh = kind.penalty ? r->uh + slot * wk : NULL;
    enum { SUMS = 8 }; /* squares of both keys, n.q of both, squares of both penalties */
    const int penalty = kind.sum ? 4 : 2;
    vec sum[SUMS];
    real sums[SUMS];
    for (int i = 0; i < SUMS; i++) sum[i] = vset(0);
    for (int64_t i = 0; i < wk; i += LANES) {
        const vec k0 = phi(features, vload(k + i)), k1 = phi(features, vload(k + wk + i));
        vstore(kh + i, k0);
        vstore(kh + wk + i, k1);
        sum[0] += k0 * k0;
        sum[1] += k1 * k1;
        if (!kind.unasked) {
            const vec q0 = phi(features, vload(q + i)), q1 = phi(features, vload(q + wk + i));
            vstore(qf + i, q0);
            vstore(qf + wk + i, q1);
            if (kind.sum) {
                const vec n0 = vload(r->n + i) + k0, n1 = n0 + k1;
                vstore(r->n + i, n1);
                vstore(r->recent + i, vload(r->recent + i) + k0 + k1);
                sum[2] += n0 * q0;
                sum[3] += n1 * q1;
            }
        }
        if (kind.penalty) {
            const vec u0 = vload(u + i), u1 = vload(u + wk + i);
            sum[penalty] += u0 * u0;
            sum[penalty + 1] += u1 * u1;
        }
    }
    vsums(kind.penalty && kind.sum ? 8 : 4, sum, sums);
    if (kind.sum) {
        r->scale[slot] = ratio_scale(r, sums[2]);
        r->scale[slot + 1] = ratio_scale(r, sums[3]);
    }
    for (int i = 0; unit && i < 2; i++) pair_unit(features, k + i * wk, kh + i * wk, wk, sums[i], 1, kh + i * wk);
    for (int i = 0; kind.penalty && i < 2; i++)
        pair_unit(VLA_IDENTITY, u + i * wk, u + i * wk, wk, sums[penalty + i], penalty_scale(wk), uh + i * wk);
}

/* Feature rows and scalars of `count` tokens from row `from` of the tensors, in slots from `slot` on. */
INLINE void prepare_tokens(recurrent_kind kind, vla_features features, recurrent *r, int64_t slot, int64_t from,
                           int64_t count)
{
    if (!kind.residual || r->dk != r->wk || (r->p->qk_l2 && !kind.unasked)) {
        prepare_rows(kind, features, r, slot, from, count);
        for (int64_t i = 0; kind.sum && i < count; i++) prepare_sum(r, slot + i);
        return;
    }
    int64_t i = 0;
    for (; i + 2 <= count; i += 2) prepare_pair(kind, features, r, slot + i, from + i);
    if (i < count) {
        prepare_rows(kind, features, r, slot + i, from + i, 1);
        if (kind.sum) prepare_sum(r, slot + i);
    }
}

INLINE void prepare_slots(recurrent_kind kind, recurrent *r, int64_t slot, int64_t from, int64_t count)
{
    const real *b = kind.beta ? r->t->b : NULL;
    switch (r->p->features) {
    case VLA_ELU1:
        prepare_tokens(kind, VLA_ELU1, r, slot, from, count);
        break;
    case VLA_SILU:
        prepare_tokens(kind, VLA_SILU, r, slot, from, count);
        break;
    default:
        prepare_tokens(kind, VLA_IDENTITY, r, slot, from, count);
        break;
    }
    for (int64_t i = 0; i < count; i++) {
        if (kind.beta) r->beta[slot + i] = b ? sigmoid(b[from + i]) : 1;
        if (kind.gate) prepare_gate(r, from + i, slot + i);
    }
}

INLINE void prepare(recurrent_kind kind, recurrent *r, int64_t from, int64_t count)
{
    prepare_slots(kind, r, 0, from, count);
    if (kind.sum) fold_sum(r);
}

#endif
