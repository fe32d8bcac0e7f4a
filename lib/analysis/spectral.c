#include "lib/analysis/spectral.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <cblas.h>
#include <math.h>
#include <string.h>

/* Column-major calls on row-major data work on the transpose, which has the same singular values and eigenvalues:
 * LAPACKE then neither copies nor transposes. */

static lapack_int call_potrf(int layout, char uplo, lapack_int n, double *a, lapack_int lda)
{
    return LAPACKE_dpotrf_work(layout, uplo, n, a, lda);
}

const vla_drivers vla_lapacke = {LAPACKE_dgesdd_work, LAPACKE_dgesvd_work, LAPACKE_dgeev_work, LAPACKE_dsyev_work,
                                 call_potrf};

struct vla_spectral {
    const vla_drivers *drivers;
    int64_t n;
    lapack_int lwork;
    double *copy, *sigma, *imaginary, *work;
    lapack_int *iwork;
};

enum { MAX_N = 16384 };

static int64_t rounded_up(double size)
{
    return (int64_t)ceil(size) + 1;
}

/* The largest workspace the drivers ask for at n x n; queries answer in a double. */
static int64_t workspace_size(int64_t n)
{
    const lapack_int m = (lapack_int)n;
    double none = 0, size = 0;
    lapack_int inone = 0;
    int64_t most = 12 * n + 64;
    LAPACKE_dgesdd_work(LAPACK_COL_MAJOR, 'N', m, m, &none, m, &none, &none, 1, &none, 1, &size, -1, &inone);
    most = rounded_up(size) > most ? rounded_up(size) : most;
    LAPACKE_dgesvd_work(LAPACK_COL_MAJOR, 'N', 'N', m, m, &none, m, &none, &none, 1, &none, 1, &size, -1);
    most = rounded_up(size) > most ? rounded_up(size) : most;
    LAPACKE_dgeev_work(LAPACK_COL_MAJOR, 'N', 'N', m, &none, m, &none, &none, &none, 1, &none, 1, &size, -1);
    most = rounded_up(size) > most ? rounded_up(size) : most;
    LAPACKE_dsyev_work(LAPACK_COL_MAJOR, 'N', 'L', m, &none, m, &none, &size, -1);
    return rounded_up(size) > most ? rounded_up(size) : most;
}

vla_status vla_spectral_create(vla_spectral **spectral, int64_t n, const vla_drivers *drivers, vla_error *error)
{
    *spectral = NULL;
    if (n < 1 || n > MAX_N)
        return vla_fail(error, VLA_ERR_ARGUMENT, "matrix order %lld: accepted are 1 to %d", (long long)n, MAX_N);
    void *memory = NULL;
    vla_status status = vla_alloc(&memory, 1, sizeof(vla_spectral), "spectral workspace", error);
    if (status) return status;
    vla_spectral *s = memory;
    memset(s, 0, sizeof *s);
    s->drivers = drivers ? drivers : &vla_lapacke;
    s->n = n;
    const int64_t lwork = workspace_size(n);
    s->lwork = (lapack_int)lwork;
    if ((status = vla_alloc(&memory, n * n + 2 * n + lwork, sizeof(double), "spectral workspace", error))) {
        vla_free(s);
        return status;
    }
    s->copy = memory;
    s->sigma = s->copy + n * n;
    s->imaginary = s->sigma + n;
    s->work = s->imaginary + n;
    if ((status = vla_alloc(&memory, 8 * n, sizeof(lapack_int), "spectral workspace", error))) {
        vla_free(s->copy);
        vla_free(s);
        return status;
    }
    s->iwork = memory;
    *spectral = s;
    return VLA_OK;
}

void vla_spectral_destroy(vla_spectral *spectral)
{
    if (!spectral) return;
    vla_free(spectral->iwork);
    vla_free(spectral->copy);
    vla_free(spectral);
}

static vla_status copy_finite(vla_spectral *s, const double *a, int64_t rows, int64_t columns, vla_error *error)
{
    if (rows < 1 || columns < 1 || rows > s->n || columns > s->n)
        return vla_fail(error, VLA_ERR_ARGUMENT, "matrix of %lld x %lld: this workspace takes 1 to %lld",
                        (long long)rows, (long long)columns, (long long)s->n);
    for (int64_t i = 0; i < rows * columns; i++)
        if (!isfinite(a[i]))
            return vla_fail(error, VLA_ERR_NUMERIC, "matrix element (%lld,%lld) is %s: no factorisation is attempted",
                            (long long)(i / columns), (long long)(i % columns), isnan(a[i]) ? "NaN" : "infinite");
    memcpy(s->copy, a, (size_t)(rows * columns) * sizeof *a);
    return VLA_OK;
}

vla_status vla_singular_values(vla_spectral *s, const double *a, int64_t rows, int64_t columns, double *sigma,
                               vla_error *error)
{
    vla_status status = copy_finite(s, a, rows, columns, error);
    if (status) return status;
    const lapack_int m = (lapack_int)columns, n = (lapack_int)rows;
    const lapack_int first = s->drivers->gesdd(LAPACK_COL_MAJOR, 'N', m, n, s->copy, m, sigma, NULL, 1, NULL, 1,
                                               s->work, s->lwork, s->iwork);
    if (first == 0) return VLA_OK;
    memcpy(s->copy, a, (size_t)(rows * columns) * sizeof *a);
    const lapack_int second =
        s->drivers->gesvd(LAPACK_COL_MAJOR, 'N', 'N', m, n, s->copy, m, sigma, NULL, 1, NULL, 1, s->work, s->lwork);
    if (second == 0) return VLA_OK;
    return vla_fail(error, VLA_ERR_NUMERIC, "singular values of %lld x %lld: dgesdd info %d, dgesvd info %d",
                    (long long)rows, (long long)columns, (int)first, (int)second);
}

vla_status vla_spectral_norm(vla_spectral *s, const double *a, int64_t n, double *norm, vla_error *error)
{
    const vla_status status = vla_singular_values(s, a, n, n, s->sigma, error);
    if (!status) *norm = s->sigma[0];
    return status;
}

vla_status vla_spectral_radius(vla_spectral *s, const double *a, int64_t n, double *radius, vla_error *error)
{
    const vla_status status = copy_finite(s, a, n, n, error);
    if (status) return status;
    const lapack_int m = (lapack_int)n;
    const lapack_int info = s->drivers->geev(LAPACK_COL_MAJOR, 'N', 'N', m, s->copy, m, s->sigma, s->imaginary, NULL, 1,
                                             NULL, 1, s->work, s->lwork);
    if (info)
        return vla_fail(error, VLA_ERR_NUMERIC, "eigenvalues of order %lld: dgeev info %d", (long long)n, (int)info);
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, hypot(s->sigma[i], s->imaginary[i]));
    *radius = most;
    return VLA_OK;
}

vla_status vla_symmetric_eigenvalues(vla_spectral *s, const double *a, int64_t n, double *lambda, vla_error *error)
{
    const vla_status status = copy_finite(s, a, n, n, error);
    if (status) return status;
    const lapack_int m = (lapack_int)n;
    const lapack_int info = s->drivers->syev(LAPACK_COL_MAJOR, 'N', 'L', m, s->copy, m, lambda, s->work, s->lwork);
    if (info)
        return vla_fail(error, VLA_ERR_NUMERIC, "symmetric eigenvalues of order %lld: dsyev info %d", (long long)n,
                        (int)info);
    return VLA_OK;
}

vla_status vla_cholesky(const vla_drivers *drivers, double *a, int64_t n, vla_error *error)
{
    for (int64_t i = 0; i < n * n; i++)
        if (!isfinite(a[i]))
            return vla_fail(error, VLA_ERR_NUMERIC, "matrix element (%lld,%lld) is %s: no factorisation is attempted",
                            (long long)(i / n), (long long)(i % n), isnan(a[i]) ? "NaN" : "infinite");
    /* Column-major upper is row-major lower. */
    const lapack_int info =
        (drivers ? drivers : &vla_lapacke)->potrf(LAPACK_COL_MAJOR, 'U', (lapack_int)n, a, (lapack_int)n);
    if (info)
        return vla_fail(error, VLA_ERR_NUMERIC, "Cholesky of order %lld: dpotrf info %d (%s)", (long long)n, (int)info,
                        info > 0 ? "that leading minor is not positive definite" : "bad argument");
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++) a[i * n + j] = 0;
    return VLA_OK;
}

vla_status vla_spd_inverse(double *inverse, const double *a, int64_t n, vla_error *error)
{
    memcpy(inverse, a, (size_t)(n * n) * sizeof *a);
    const vla_status status = vla_cholesky(NULL, inverse, n, error);
    if (status) return status;
    const lapack_int info = LAPACKE_dpotri_work(LAPACK_COL_MAJOR, 'U', (lapack_int)n, inverse, (lapack_int)n);
    if (info) return vla_fail(error, VLA_ERR_NUMERIC, "inverse of order %lld: dpotri info %d", (long long)n, (int)info);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++) inverse[i * n + j] = inverse[j * n + i];
    return VLA_OK;
}

vla_status vla_metric_norm(vla_spectral *s, const double *a, const double *L, int64_t n, double *scratch, double *norm,
                           vla_error *error)
{
    const int m = (int)n;
    memcpy(scratch, a, (size_t)(n * n) * sizeof *a);
    cblas_dtrmm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, m, m, 1.0, L, m, scratch, m);
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, m, m, 1.0, L, m, scratch, m);
    return vla_spectral_norm(s, scratch, n, norm, error);
}
