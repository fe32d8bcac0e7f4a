#include "lib/analysis/jacobian.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <cblas.h>
#include <float.h>
#include <math.h>
#include <string.h>

vla_jacobian vla_jacobian_of(int64_t dk, double g, const double *a, const double *k)
{
    vla_jacobian j = {dk, g, a, k, 0, 0, 0};
    const double kk = cblas_ddot((int)dk, k, 1, k, 1), size = cblas_dnrm2((int)dk, k, 1);
    j.c = cblas_ddot((int)dk, a, 1, k, 1);
    j.p = cblas_dnrm2((int)dk, a, 1) * size;
    double off = 0;
    const double along = kk > 0 ? j.c / kk : 0;
    for (int64_t i = 0; i < dk; i++) off += (a[i] - along * k[i]) * (a[i] - along * k[i]);
    j.s = sqrt(off) * size;
    return j;
}

/* On span(a, k) the two singular values have sum of squares 2 g^2 - 2 g c + p^2 and product |g (g - c)|; everywhere
 * else J is g I, which interlaces between them. The root of p^2 + 4 g (g - c) = (2 g - c)^2 + s^2 is taken in the
 * second form: the first cancels where both are small (g = 1/2, a = k). */
double vla_jacobian_norm(const vla_jacobian *j)
{
    if (j->dk == 1) return fabs(j->g - j->c);
    return 0.5 * (j->p + hypot(2 * j->g - j->c, j->s));
}

double vla_jacobian_radius(const vla_jacobian *j)
{
    const double other = fabs(j->g - j->c);
    return j->dk == 1 ? other : fmax(fabs(j->g), other);
}

void vla_jacobian_dense(const vla_jacobian *j, double *matrix)
{
    const int64_t d = j->dk;
    for (int64_t r = 0; r < d; r++) {
        for (int64_t s = 0; s < d; s++) matrix[r * d + s] = -j->a[r] * j->k[s];
        matrix[r * d + r] += j->g;
    }
}

bool vla_jacobian_singular(const vla_jacobian *j)
{
    return !(fabs(j->g - j->c) > (double)j->dk * DBL_EPSILON * fmax(1.0, j->p)) || !(fabs(j->g) > 0);
}

vla_status vla_product_create(vla_product *product, int64_t dk, bool with_inverse, vla_error *error)
{
    memset(product, 0, sizeof *product);
    void *memory = NULL;
    const vla_status status =
        vla_alloc(&memory, (with_inverse ? 2 : 1) * dk * dk + dk, sizeof(double), "product of Jacobians", error);
    if (status) return status;
    product->dk = dk;
    product->row = memory;
    product->P = product->row + dk;
    product->inverse = with_inverse ? product->P + dk * dk : NULL;
    vla_product_reset(product);
    return VLA_OK;
}

void vla_product_destroy(vla_product *product)
{
    vla_free(product->row);
    memset(product, 0, sizeof *product);
}

static void identity(double *matrix, int64_t d)
{
    memset(matrix, 0, (size_t)(d * d) * sizeof *matrix);
    for (int64_t i = 0; i < d; i++) matrix[i * d + i] = 1;
}

void vla_product_reset(vla_product *product)
{
    product->steps = product->singular_at = 0;
    product->log_scale = product->inverse_log_scale = 0;
    product->zero = false;
    identity(product->P, product->dk);
    if (product->inverse) identity(product->inverse, product->dk);
}

/* Brings M to unit Frobenius norm and returns the logarithm taken out; -infinity for M = 0, NaN for one not finite. */
static double renormalise(double *M, int64_t d)
{
    double top = 0;
    for (int64_t i = 0; i < d * d; i++)
        if (!(fabs(M[i]) <= top)) top = fabs(M[i]); /* a NaN sticks */
    if (top == 0) return -INFINITY;
    if (!isfinite(top)) return (double)NAN;
    double sum = 0;
    for (int64_t i = 0; i < d * d; i++) {
        M[i] /= top;
        sum += M[i] * M[i];
    }
    cblas_dscal((int)(d * d), 1 / sqrt(sum), M, 1);
    return log(top) + 0.5 * log(sum);
}

void vla_product_multiply(vla_product *product, const vla_jacobian *j)
{
    const int d = (int)product->dk;
    product->steps++;
    if (!product->zero) {
        cblas_dgemv(CblasRowMajor, CblasTrans, d, d, 1.0, product->P, d, j->k, 1, 0.0, product->row, 1);
        if (j->g != 1.0) cblas_dscal(d * d, j->g, product->P, 1);
        cblas_dger(CblasRowMajor, d, d, -1.0, j->a, 1, product->row, 1, product->P, d);
        const double taken = renormalise(product->P, product->dk);
        product->zero = taken == -INFINITY;
        product->log_scale += taken;
    }
    if (!product->inverse || product->singular_at) return;
    if (vla_jacobian_singular(j)) {
        product->singular_at = product->steps;
        return;
    }
    cblas_dgemv(CblasRowMajor, CblasNoTrans, d, d, 1.0, product->inverse, d, j->a, 1, 0.0, product->row, 1);
    cblas_dger(CblasRowMajor, d, d, 1 / (j->g - j->c), product->row, 1, j->k, 1, product->inverse, d);
    product->inverse_log_scale += renormalise(product->inverse, product->dk) - log(fabs(j->g));
}

double vla_jacobian_norm_bound(int64_t dk, double lambda0, int64_t t)
{
    if (dk == 1) return 1; /* |1 - c| with 0 < c <= 1 */
    const double kappa = 1 + (double)t / ((double)dk * lambda0);
    const double least = 2 * sqrt(kappa) / (1 + kappa);
    return 0.5 * (1 + sqrt(5 - 4 * least));
}

double vla_product_log_bound(int64_t dk, double lambda0, int64_t t)
{
    if (dk == 1) return 0;
    const double d = (double)dk;
    return 0.5 * (d - 1) * log1p((double)t / (d * (d - 1) * lambda0));
}

/* digamma by recurrence up to 10 and its asymptotic series: about 1e-15 for x >= 1/2. */
static double digamma(double x)
{
    double sum = 0;
    for (; x < 10; x += 1) sum -= 1 / x;
    const double y = 1 / (x * x);
    return sum + log(x) - 0.5 / x -
           y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y * (1.0 / 132 - y * 691.0 / 32760)))));
}

double vla_contraction_rate(int64_t d)
{
    return 0.5 * (digamma(0.5 * (double)(d - 1)) - digamma(0.5 * (double)d));
}
