/* Singular values, eigenvalues and Cholesky factors of small dense matrices through LAPACKE.
 *
 * Matrices are row-major, float64. Everything is tested for NaN and infinities before LAPACK sees it (some drivers
 * never return on them); the error names the matrix and the element. A driver that does not converge (info > 0) gives
 * way to its fallback (dgesdd to dgesvd); when that fails too the error carries both numbers. */
#ifndef VLA_ANALYSIS_SPECTRAL_H
#define VLA_ANALYSIS_SPECTRAL_H
#include "lib/vla.h"
#include <lapacke.h>

/* The LAPACKE drivers behind the functions below: replaceable, so that their failures can be tested. */
typedef struct vla_drivers {
    lapack_int (*gesdd)(int layout, char jobz, lapack_int m, lapack_int n, double *a, lapack_int lda, double *s,
                        double *u, lapack_int ldu, double *vt, lapack_int ldvt, double *work, lapack_int lwork,
                        lapack_int *iwork);
    lapack_int (*gesvd)(int layout, char jobu, char jobvt, lapack_int m, lapack_int n, double *a, lapack_int lda,
                        double *s, double *u, lapack_int ldu, double *vt, lapack_int ldvt, double *work,
                        lapack_int lwork);
    lapack_int (*geev)(int layout, char jobvl, char jobvr, lapack_int n, double *a, lapack_int lda, double *wr,
                       double *wi, double *vl, lapack_int ldvl, double *vr, lapack_int ldvr, double *work,
                       lapack_int lwork);
    lapack_int (*syev)(int layout, char jobz, char uplo, lapack_int n, double *a, lapack_int lda, double *w,
                       double *work, lapack_int lwork);
    lapack_int (*potrf)(int layout, char uplo, lapack_int n, double *a, lapack_int lda);
} vla_drivers;

extern const vla_drivers vla_lapacke;

/* Workspace for matrices up to n x n; one a thread. */
typedef struct vla_spectral vla_spectral;

/* drivers NULL: vla_lapacke. */
vla_status vla_spectral_create(vla_spectral **spectral, int64_t n, const vla_drivers *drivers, vla_error *error);
void vla_spectral_destroy(vla_spectral *spectral);

/* Singular values of a [rows, columns], descending, into sigma [min(rows, columns)]. a is not changed. */
vla_status vla_singular_values(vla_spectral *spectral, const double *a, int64_t rows, int64_t columns, double *sigma,
                               vla_error *error);
/* |a|_2, the largest singular value of a [n, n]. */
vla_status vla_spectral_norm(vla_spectral *spectral, const double *a, int64_t n, double *norm, vla_error *error);
/* Spectral radius max |lambda| of a [n, n], from dgeev. Not the norm: the two differ for every non-normal matrix. */
vla_status vla_spectral_radius(vla_spectral *spectral, const double *a, int64_t n, double *radius, vla_error *error);
/* Eigenvalues of a symmetric a [n, n], ascending, into lambda [n]; the upper triangle is read. */
vla_status vla_symmetric_eigenvalues(vla_spectral *spectral, const double *a, int64_t n, double *lambda,
                                     vla_error *error);
/* a = L L^T: the lower triangle of a [n, n] becomes L, the upper is zeroed. VLA_ERR_NUMERIC names the leading minor
 * that is not positive. */
vla_status vla_cholesky(const vla_drivers *drivers, double *a, int64_t n, vla_error *error);
/* inverse = a^-1 for symmetric positive definite a [n, n], by Cholesky. */
vla_status vla_spd_inverse(double *inverse, const double *a, int64_t n, vla_error *error);
/* Norm of a in the metric x^T M x, with A = M^-1 = L L^T given by its factor L: |L^-1 a L|_2 (as |x|_M = |L^-1 x|).
 * scratch [n, n]. */
vla_status vla_metric_norm(vla_spectral *spectral, const double *a, const double *L, int64_t n, double *scratch,
                           double *norm, vla_error *error);

#endif
