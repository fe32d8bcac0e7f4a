/* Row-wise layers of the network, forward and backward. Rows are contiguous, of any width. */
#ifndef VLA_TRAIN_LAYERS_H
#define VLA_TRAIN_LAYERS_H
#include "lib/train/real.h"

#define NORM_EPS ((real)1e-5)

/* y = gain (x - mean)/sqrt(var + eps) + bias, or with rms y = gain x/sqrt(mean of squares + eps). */
INLINE void norm_row(real *y, const real *x, const real *gain, const real *bias, int64_t n, bool rms, real *mean,
                     real *scale)
{
    vec sum = vset(0), squares = vset(0);
    if (!rms)
        for (int64_t i = 0; i < n; i += LANES) sum += get(x + i, n - i);
    const real m = vsum(sum) / (real)n;
    for (int64_t i = 0; i < n; i += LANES) {
        const vec c = get(x + i, n - i) - m;
        squares += n - i >= LANES ? c * c : vkeep(c * c, n - i);
    }
    const real s = 1 / (real)sqrt((double)(vsum(squares) / (real)n + NORM_EPS));
    for (int64_t i = 0; i < n; i += LANES) {
        const vec c = (get(x + i, n - i) - m) * s * get(gain + i, n - i);
        put(y + i, bias ? c + get(bias + i, n - i) : c, n - i);
    }
    *mean = m, *scale = s;
}

/* dx += the row's gradient; dgain and dbias (may be NULL) are added to. h = (x - mean) scale:
 * dx = scale (g dy - mean(g dy) - h mean(g dy h)); rms has no mean(g dy) term. */
INLINE void norm_row_back(real *dx, const real *dy, const real *x, const real *gain, int64_t n, bool rms, real mean,
                          real scale, real *dgain, real *dbias)
{
    vec sum = vset(0), along = vset(0);
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t left = n - i;
        const vec d = get(dy + i, left), h = (get(x + i, left) - mean) * scale, gd = d * get(gain + i, left);
        sum += gd;
        along += gd * h; /* d is 0 in lanes that do not count */
        put(dgain + i, get(dgain + i, left) + d * h, left);
        if (dbias) put(dbias + i, get(dbias + i, left) + d, left);
    }
    const real a = rms ? 0 : vsum(sum) / (real)n, b = vsum(along) / (real)n;
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t left = n - i;
        const vec h = (get(x + i, left) - mean) * scale;
        const vec gd = get(dy + i, left) * get(gain + i, left);
        put(dx + i, get(dx + i, left) + (gd - a - h * b) * scale, left);
    }
}

/* erf to 1 ulp of its type: libm in double; in float the two-piece minimax of N. Juffa, by vectors. */
INLINE vec verf(vec x)
{
#if VLA_REAL_BITS == 64
    real lane[LANES];
    memcpy(lane, &x, sizeof x);
    for (int i = 0; i < LANES; i++) lane[i] = erf(lane[i]);
    return vload(lane);
#else
    const vec t = vabs(x), s = x * x;
    vec r = t * -1.72853470e-5f + 3.83197126e-4f, u = t * -3.88396438e-3f + 2.42546219e-2f;
    r = r * s + u;
    r = r * t - 1.06777877e-1f;
    r = r * t - 6.34846687e-1f;
    r = r * t - 1.28717512e-1f;
    r = 1 - vexp(r * t - t);
    vec p = s * -5.96761703e-4f + 4.99119423e-3f;
    p = p * s - 2.67681349e-2f;
    p = p * s + 1.12819925e-1f;
    p = p * s - 3.76125336e-1f;
    p = p * s + 1.28379166e-1f;
    p = p * x + x;
    return vselect(t > 0.927734375f, vselect(x < 0, -r, r), p);
#endif
}

INLINE vec normal_cdf(vec x)
{
    return (verf(x * (real)0.70710678118654752440) + 1) * (real)0.5;
}

/* y = x cdf(x). */
INLINE void gelu(real *y, const real *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const vec v = get(x + i, n - i);
        put(y + i, v * normal_cdf(v), n - i);
    }
}

/* dy *= cdf(x) + x density(x). */
INLINE void gelu_back(real *dy, const real *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const vec v = get(x + i, n - i);
        const vec density = vexp(v * v * (real)-0.5) * (real)0.39894228040143267794;
        put(dy + i, get(dy + i, n - i) * (normal_cdf(v) + v * density), n - i);
    }
}

/* y += x. */
INLINE void add_to(real *y, const real *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(y + i, vload(y + i) + vload(x + i));
    if (i < n) put(y + i, get(y + i, n - i) + get(x + i, n - i), n - i);
}

/* sum += the rows of x, four at a time. */
INLINE void add_rows(real *sum, const real *x, int64_t rows, int64_t n, int64_t stride)
{
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4)
        for (int64_t i = 0; i < n; i += LANES) {
            const real *at = x + r * stride + i;
            const int64_t left = n - i;
            put(sum + i,
                get(sum + i, left) + ((get(at, left) + get(at + stride, left)) +
                                      (get(at + 2 * stride, left) + get(at + 3 * stride, left))),
                left);
        }
    for (; r < rows; r++) add_to(sum, x + r * stride, n);
}

/* y = x with the bias in every row: what a product is then added to. */
INLINE void fill_rows(real *y, const real *bias, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) memcpy(y + r * n, bias, (size_t)n * sizeof *y);
}

/* Loss of one row of logits [n], which become (softmax - onehot) weight. Returns log sum exp - logit[target]. */
INLINE double cross_entropy_row(real *logits, int64_t n, int32_t target, real weight, int32_t *most_likely)
{
    vec tops = vset(logits[0]);
    int64_t whole = 0;
    for (; whole + LANES <= n; whole += LANES) tops = vmax(tops, vload(logits + whole));
    real lane[LANES], top = logits[0];
    memcpy(lane, &tops, sizeof tops);
    for (int i = 0; i < LANES; i++) top = lane[i] > top ? lane[i] : top;
    for (int64_t i = whole; i < n; i++) top = logits[i] > top ? logits[i] : top;
    int64_t best = 0;
    while (best < n && !(logits[best] == top)) best++;
    *most_likely = best < n ? (int32_t)best : -1; /* none where a NaN is the largest */
    const real wanted = logits[target];
    vec sums = vset(0);
    for (int64_t i = 0; i < n; i += LANES) {
        const vec e = vexp(get(logits + i, n - i) - top);
        sums += n - i >= LANES ? e : vkeep(e, n - i);
        put(logits + i, e, n - i);
    }
    const real sum = vsum(sums), factor = weight / sum;
    for (int64_t i = 0; i < n; i += LANES) put(logits + i, get(logits + i, n - i) * factor, n - i);
    logits[target] -= weight;
    return log((double)sum) + (double)(top - wanted);
}

#endif
