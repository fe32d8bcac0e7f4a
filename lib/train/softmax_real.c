/* Causal softmax attention of one head by blocks of BLOCK queries over all keys they may see, through BLAS.
 *
 *   P = softmax(q k^T/sqrt(dk)), o = P v
 *   backward: dv += P^T do, dP = do v^T, dS = P (dP - rowsum(dP P)), dq = dS k/sqrt(dk), dk += dS^T q/sqrt(dk)
 * P is made again in the backward pass; memory is BLOCK x len, not len^2. */
#include "lib/train/attention.h"

enum { BLOCK = 64 };

static int64_t scratch_size(const attention_shape *s)
{
    return 2 * BLOCK * PAD(s->len);
}

/* Rows of scores [rows, width] to probabilities; row i may see first + i + 1 keys, the rest become 0. */
static void softmax_rows(real *scores, int64_t rows, int64_t first, int64_t width)
{
    for (int64_t i = 0; i < rows; i++) {
        real *row = scores + i * width, top = row[0];
        const int64_t seen = first + i + 1, whole = (seen + LANES - 1) / LANES * LANES;
        for (int64_t j = 1; j < seen; j++) top = row[j] > top ? row[j] : top;
        for (int64_t j = seen; j < width; j++) row[j] = -INFINITY;
        vec sums = vset(0);
        for (int64_t j = 0; j < whole; j += LANES) {
            const vec e = vexp(vload(row + j) - top);
            sums += e;
            vstore(row + j, e);
        }
        const real inverse = 1 / vsum(sums);
        for (int64_t j = 0; j < whole; j += LANES) vstore(row + j, vload(row + j) * inverse);
        for (int64_t j = whole; j < width; j++) row[j] = 0;
    }
}

/* P of queries [first, first + count), [count, PAD(len)]; keys past the block are not looked at. */
static void probabilities(const attention_shape *s, const attention_rows *x, int64_t first, int64_t count, real *P)
{
    const int64_t width = PAD(s->len), keys = first + count;
    const real scale = (real)(1 / sqrt((double)s->dk));
    gemm(CblasNoTrans, CblasTrans, count, keys, s->dk, scale, x->q + first * x->stride, x->stride, x->k, x->stride, 0,
         P, width);
    softmax_rows(P, count, first, width);
}

static void forward(const attention_shape *s, const attention_rows *x, real *P)
{
    for (int64_t first = 0; first < s->len; first += BLOCK) {
        const int64_t count = first + BLOCK < s->len ? BLOCK : s->len - first;
        probabilities(s, x, first, count, P);
        gemm(CblasNoTrans, CblasNoTrans, count, s->dv, first + count, 1, P, PAD(s->len), x->v, x->v_stride, 0,
             x->o + first * x->o_stride, x->o_stride);
    }
}

/* dP becomes dS. */
static void softmax_back(const real *P, real *dP, int64_t rows, int64_t keys, int64_t width)
{
    for (int64_t i = 0; i < rows; i++) {
        const real *p = P + i * width;
        real *d = dP + i * width;
        const int64_t whole = keys / LANES * LANES;
        vec sums = vset(0);
        for (int64_t j = 0; j < whole; j += LANES) sums += vload(p + j) * vload(d + j);
        real sum = vsum(sums);
        for (int64_t j = whole; j < keys; j++) sum += p[j] * d[j];
        for (int64_t j = 0; j < keys; j++) d[j] = p[j] * (d[j] - sum);
    }
}

static void clear_rows(real *x, int64_t rows, int64_t width, int64_t stride)
{
    for (int64_t i = 0; i < rows; i++) memset(x + i * stride, 0, (size_t)width * sizeof *x);
}

static void backward(const attention_shape *s, const attention_rows *x, const attention_gradients *d, real *P)
{
    const int64_t width = PAD(s->len);
    real *dP = P + BLOCK * width;
    const real scale = (real)(1 / sqrt((double)s->dk));
    clear_rows(d->k, s->len, s->dk, x->stride);
    clear_rows(d->v, s->len, s->dv, x->v_stride);
    for (int64_t first = 0; first < s->len; first += BLOCK) {
        const int64_t count = first + BLOCK < s->len ? BLOCK : s->len - first, keys = first + count;
        const real *out = d->o + first * x->o_stride, *q = x->q + first * x->stride;
        probabilities(s, x, first, count, P);
        gemm(CblasTrans, CblasNoTrans, keys, s->dv, count, 1, P, width, out, x->o_stride, 1, d->v, x->v_stride);
        gemm(CblasNoTrans, CblasTrans, count, keys, s->dv, 1, out, x->o_stride, x->v, x->v_stride, 0, dP, width);
        softmax_back(P, dP, count, keys, width);
        gemm(CblasNoTrans, CblasNoTrans, count, s->dk, keys, scale, dP, width, x->k, x->stride, 0,
             d->q + first * x->stride, x->stride);
        gemm(CblasTrans, CblasNoTrans, keys, s->dk, count, scale, dP, width, q, x->stride, 1, d->k, x->stride);
    }
}

const attention KERNEL(attention_softmax) = {scratch_size, forward, backward, NULL};
