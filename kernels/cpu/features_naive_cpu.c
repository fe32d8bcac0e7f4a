#include "kernels/cpu/naive.h"
#include "lib/base/sizes.h"
#include <float.h>
#include <math.h>
#include <string.h>

/* exp(x) is 0 in float64 below this. */
static const double EXP_ZERO = -745.13321910194122;

double vla_naive_sigmoid(double x)
{
    if (x >= 0) return 1.0 / (1.0 + exp(-x));
    const double e = exp(x); /* written for x < 0 so that e does not overflow; NaN passes through */
    return e / (1.0 + e);
}

double vla_naive_ratio(double num, double den)
{
    return num / (den < VLA_RATIO_EPS ? VLA_RATIO_EPS : den);
}

/* phi(x) / exp(shift), for x <= 0 where shift != 0. */
static double feature(double x, double shift, vla_features features)
{
    switch (features) {
    case VLA_ELU1:
        return x > 0 ? x + 1.0 : exp(x - shift);
    case VLA_SILU:
        return x > 0 ? x * vla_naive_sigmoid(x) : x * exp(x - shift) / (1.0 + exp(x));
    default:
        return x;
    }
}

void vla_naive_features(double *out, const double *raw, int64_t n, vla_features features)
{
    for (int64_t i = 0; i < n; i++) out[i] = feature(raw[i], 0.0, features);
}

void vla_naive_unit(double *out, const double *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(x[i]) <= largest)) largest = fabs(x[i]); /* a NaN sticks */
    if (largest == 0) {
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        out[i] = x[i] / largest;
        sum += out[i] * out[i];
    }
    const double norm = sqrt(sum);
    for (int64_t i = 0; i < n; i++) out[i] /= norm;
}

void vla_naive_unit_features(double *out, const double *raw, int64_t n, vla_features features)
{
    double shift = 0;
    if (features != VLA_IDENTITY) {
        double largest = raw[0];
        for (int64_t i = 1; i < n; i++)
            if (!(raw[i] <= largest)) largest = raw[i];
        if (largest < EXP_ZERO) { /* phi is zero in float64 */
            memset(out, 0, (size_t)n * sizeof *out);
            return;
        }
        if (largest < 0) shift = largest;
    }
    for (int64_t i = 0; i < n; i++) out[i] = feature(raw[i], shift, features);
    vla_naive_unit(out, out, n);
}

void vla_naive_query(double *out, const double *raw, int64_t n, const vla_problem *problem)
{
    if (problem->qk_l2)
        vla_naive_unit_features(out, raw, n, problem->features);
    else
        vla_naive_features(out, raw, n, problem->features);
}

double vla_naive_dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* Four rows side by side, each summed in order: the sums wait for their own last addition only. */
void vla_naive_matvec(double *y, const double *M, const double *x, int64_t rows, int64_t columns)
{
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        const double *a = M + i * columns, *b = a + columns, *c = b + columns, *d = c + columns;
        double sum_a = 0, sum_b = 0, sum_c = 0, sum_d = 0;
        for (int64_t j = 0; j < columns; j++) {
            sum_a += a[j] * x[j];
            sum_b += b[j] * x[j];
            sum_c += c[j] * x[j];
            sum_d += d[j] * x[j];
        }
        y[i] = sum_a, y[i + 1] = sum_b, y[i + 2] = sum_c, y[i + 3] = sum_d;
    }
    for (; i < rows; i++) y[i] = vla_naive_dot(M + i * columns, x, columns);
}

void vla_naive_rank1(double *M, double scale, const double *x, const double *y, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        double *restrict row = M + i * columns;
        const double factor = scale * x[i];
        for (int64_t j = 0; j < columns; j++) row[j] += factor * y[j];
    }
}

void vla_naive_start(const vla_call *call, int64_t head, double *S, double *A, double *n)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t dk = p->dk, dv = p->dv;
    if (t->state_in) {
        if (S) memcpy(S, (const double *)t->S + head * dv * dk, (size_t)(dv * dk) * sizeof *S);
        if (A) memcpy(A, (const double *)t->A + head * dk * dk, (size_t)(dk * dk) * sizeof *A);
        if (n) memcpy(n, (const double *)t->n + head * dk, (size_t)dk * sizeof *n);
        return;
    }
    if (S) memset(S, 0, (size_t)(dv * dk) * sizeof *S);
    if (n) memset(n, 0, (size_t)dk * sizeof *n);
    if (A) {
        memset(A, 0, (size_t)(dk * dk) * sizeof *A);
        for (int64_t i = 0; i < dk; i++) A[i * dk + i] = 1.0 / p->lambda0;
    }
}

void vla_naive_finish(const vla_call *call, int64_t head, const double *S, const double *A, const double *n)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t dk = p->dk, dv = p->dv;
    if (S && t->S) memcpy((double *)t->S + head * dv * dk, S, (size_t)(dv * dk) * sizeof *S);
    if (A && t->A) memcpy((double *)t->A + head * dk * dk, A, (size_t)(dk * dk) * sizeof *A);
    if (n && t->n) memcpy((double *)t->n + head * dk, n, (size_t)dk * sizeof *n);
}

int64_t vla_naive_scratch(const vla_problem *p)
{
    return p->dk * p->dk + p->dv * p->dk + 8 * p->dk + 4 * p->dv;
}

vla_status vla_naive_workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    int64_t square = 0, state = 0;
    const int64_t widest = INT64_MAX / 64;
    if (!vla_size_mul(p->dk, p->dk, &square) || !vla_size_mul(p->dv, p->dk, &state) || square > widest ||
        state > widest || !vla_size_mul(vla_naive_scratch(p), (int64_t)sizeof(double) * threads, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "dk %lld, dv %lld: the state is beyond 64-bit sizes", (long long)p->dk,
                        (long long)p->dv);
    return VLA_OK;
}

typedef struct heads {
    const vla_call *call;
    vla_naive_head *one;
    int64_t scratch; /* doubles a worker */
} heads;

static void run_head(void *context, int64_t head, int worker)
{
    const heads *h = context;
    h->one(h->call, head, (double *)h->call->work + worker * h->scratch);
}

vla_status vla_naive_each_head(const vla_call *call, vla_naive_head *one)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    heads h = {call, one, vla_naive_scratch(p)};
    vla_pool_run(call->pool, p->B * p->H, run_head, &h);
    if (t->t) *t->t = (t->state_in ? *t->t : 0) + p->T;
    return VLA_OK;
}
