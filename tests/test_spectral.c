/* Singular values, eigenvalues and Cholesky on matrices whose answers are known by hand. */
#include "lib/analysis/spectral.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void norm_and_radius_differ(void **state)
{
    (void)state;
    /* I - a k^T, k = (1, 0), a = (1/2, sqrt(3)/2): eigenvalues 1/2 and 1, norm (1 + sqrt 3)/2. */
    const double J[4] = {0.5, 0, -sqrt(3.0) / 2, 1};
    vla_spectral *s = NULL;
    double norm = NAN, radius = NAN;
    assert_int_equal(vla_spectral_create(&s, 2, NULL, NULL), VLA_OK);
    assert_int_equal(vla_spectral_norm(s, J, 2, &norm, NULL), VLA_OK);
    assert_int_equal(vla_spectral_radius(s, J, 2, &radius, NULL), VLA_OK);
    assert_true(fabs(norm - 1.36602540378443865) <= 1e-15);
    assert_true(fabs(radius - 1) <= 1e-15);
    vla_spectral_destroy(s);
}

static void complex_eigenvalues_have_their_modulus(void **state)
{
    (void)state;
    const double turn[4] = {0, -3, 3, 0};
    vla_spectral *s = NULL;
    double radius = NAN;
    assert_int_equal(vla_spectral_create(&s, 4, NULL, NULL), VLA_OK);
    assert_int_equal(vla_spectral_radius(s, turn, 2, &radius, NULL), VLA_OK);
    assert_true(fabs(radius - 3) <= 1e-14);
    vla_spectral_destroy(s);
}

static void singular_values_of_non_square(void **state)
{
    (void)state;
    /* Rows (3, 0, 0) and (0, 0, 4): 4 and 3, read row-major; read with the wrong leading dimension they would not be.
     */
    const double wide[6] = {3, 0, 0, 0, 0, 4}, tall[6] = {3, 0, 0, 0, 0, 4};
    vla_spectral *s = NULL;
    double sigma[2] = {NAN, NAN};
    assert_int_equal(vla_spectral_create(&s, 3, NULL, NULL), VLA_OK);
    assert_int_equal(vla_singular_values(s, wide, 2, 3, sigma, NULL), VLA_OK);
    assert_true(fabs(sigma[0] - 4) <= 1e-15 && fabs(sigma[1] - 3) <= 1e-15);
    assert_int_equal(vla_singular_values(s, tall, 3, 2, sigma, NULL), VLA_OK);
    assert_true(fabs(sigma[0] - 4) <= 1e-15 && fabs(sigma[1] - 3) <= 1e-15);
    vla_spectral_destroy(s);
}

static void non_finite_is_refused_by_name(void **state)
{
    (void)state;
    vla_spectral *s = NULL;
    double out[3];
    vla_error error = {VLA_OK, ""};
    assert_int_equal(vla_spectral_create(&s, 3, NULL, NULL), VLA_OK);
    double a[9] = {1, 0, 0, 0, 1, NAN, 0, 0, 1};
    assert_int_equal(vla_singular_values(s, a, 3, 3, out, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "(1,2) is NaN"));
    a[5] = -INFINITY;
    assert_int_equal(vla_spectral_radius(s, a, 3, out, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "(1,2) is infinite"));
    assert_int_equal(vla_symmetric_eigenvalues(s, a, 3, out, &error), VLA_ERR_NUMERIC);
    assert_int_equal(vla_cholesky(NULL, a, 3, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "(1,2) is infinite"));
    vla_spectral_destroy(s);
}

static void sizes_are_refused(void **state)
{
    (void)state;
    vla_spectral *s = NULL;
    double out[4], a[16] = {0};
    assert_int_equal(vla_spectral_create(&s, 0, NULL, NULL), VLA_ERR_ARGUMENT);
    assert_int_equal(vla_spectral_create(&s, 1 << 20, NULL, NULL), VLA_ERR_ARGUMENT);
    assert_int_equal(vla_spectral_create(&s, 2, NULL, NULL), VLA_OK);
    assert_int_equal(vla_singular_values(s, a, 4, 4, out, NULL), VLA_ERR_ARGUMENT);
    assert_int_equal(vla_singular_values(s, a, 0, 2, out, NULL), VLA_ERR_ARGUMENT);
    vla_spectral_destroy(s);
}

static lapack_int gesdd_fails(int layout, char jobz, lapack_int m, lapack_int n, double *a, lapack_int lda, double *s,
                              double *u, lapack_int ldu, double *vt, lapack_int ldvt, double *work, lapack_int lwork,
                              lapack_int *iwork)
{
    (void)layout, (void)jobz, (void)s, (void)u, (void)ldu, (void)vt, (void)ldvt, (void)work, (void)lwork, (void)iwork;
    for (lapack_int i = 0; i < lda * n; i++) a[i] = 777; /* a driver that gives up leaves rubbish behind */
    return m > 0 ? 1 : 0;
}

static lapack_int gesvd_fails(int layout, char jobu, char jobvt, lapack_int m, lapack_int n, double *a, lapack_int lda,
                              double *s, double *u, lapack_int ldu, double *vt, lapack_int ldvt, double *work,
                              lapack_int lwork)
{
    (void)layout, (void)jobu, (void)jobvt, (void)m, (void)n, (void)a, (void)lda, (void)s, (void)u, (void)ldu;
    (void)vt, (void)ldvt, (void)work, (void)lwork;
    return 5;
}

static lapack_int geev_fails(int layout, char jobvl, char jobvr, lapack_int n, double *a, lapack_int lda, double *wr,
                             double *wi, double *vl, lapack_int ldvl, double *vr, lapack_int ldvr, double *work,
                             lapack_int lwork)
{
    (void)layout, (void)jobvl, (void)jobvr, (void)n, (void)a, (void)lda, (void)wr, (void)wi, (void)vl, (void)ldvl;
    (void)vr, (void)ldvr, (void)work, (void)lwork;
    return 2;
}

static lapack_int syev_fails(int layout, char jobz, char uplo, lapack_int n, double *a, lapack_int lda, double *w,
                             double *work, lapack_int lwork)
{
    (void)layout, (void)jobz, (void)uplo, (void)n, (void)a, (void)lda, (void)w, (void)work, (void)lwork;
    return 3;
}

static void failing_drivers(void **state)
{
    (void)state;
    vla_drivers drivers = vla_lapacke;
    drivers.gesdd = gesdd_fails;
    drivers.geev = geev_fails;
    drivers.syev = syev_fails;
    const double a[4] = {3, 0, 0, 4};
    vla_spectral *s = NULL;
    double norm = NAN, pair[2];
    vla_error error = {VLA_OK, ""};
    assert_int_equal(vla_spectral_create(&s, 2, &drivers, NULL), VLA_OK);
    assert_int_equal(vla_spectral_norm(s, a, 2, &norm, &error), VLA_OK); /* dgesvd takes over */
    assert_true(fabs(norm - 4) <= 1e-15);
    assert_int_equal(vla_spectral_radius(s, a, 2, &norm, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "dgeev info 2"));
    assert_int_equal(vla_symmetric_eigenvalues(s, a, 2, pair, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "dsyev info 3"));
    drivers.gesvd = gesvd_fails;
    assert_int_equal(vla_spectral_norm(s, a, 2, &norm, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "dgesdd info 1, dgesvd info 5"));
    vla_spectral_destroy(s);
}

static void cholesky_and_inverse(void **state)
{
    (void)state;
    double a[9] = {4, 2, 0, 2, 5, 3, 0, 3, 6}, inverse[9];
    const double given[9] = {4, 2, 0, 2, 5, 3, 0, 3, 6}, L[9] = {2, 0, 0, 1, 2, 0, 0, 1.5, sqrt(3.75)};
    assert_int_equal(vla_spd_inverse(inverse, a, 3, NULL), VLA_OK);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            double sum = 0;
            for (int m = 0; m < 3; m++) sum += given[i * 3 + m] * inverse[m * 3 + j];
            assert_true(fabs(sum - (i == j)) <= 1e-14);
        }
    assert_int_equal(vla_cholesky(NULL, a, 3, NULL), VLA_OK);
    for (int i = 0; i < 9; i++) assert_true(fabs(a[i] - L[i]) <= 1e-15);
    double indefinite[4] = {1, 2, 2, 1};
    vla_error error = {VLA_OK, ""};
    assert_int_equal(vla_cholesky(NULL, indefinite, 2, &error), VLA_ERR_NUMERIC);
    assert_non_null(strstr(error.message, "info 2"));
}

static void metric_norm_by_hand(void **state)
{
    (void)state;
    /* M = diag(4, 1), A = diag(1/4, 1), L = diag(1/2, 1): a = e_1 e_2^T takes e_2 (|e_2|_M = 1) to e_1 (|e_1|_M = 2).
     */
    const double a[4] = {0, 1, 0, 0}, L[4] = {0.5, 0, 0, 1};
    double scratch[4], norm = NAN;
    vla_spectral *s = NULL;
    assert_int_equal(vla_spectral_create(&s, 2, NULL, NULL), VLA_OK);
    assert_int_equal(vla_metric_norm(s, a, L, 2, scratch, &norm, NULL), VLA_OK);
    assert_true(fabs(norm - 2) <= 1e-15);
    const double back[4] = {0, 0, 1, 0};
    assert_int_equal(vla_metric_norm(s, back, L, 2, scratch, &norm, NULL), VLA_OK);
    assert_true(fabs(norm - 0.5) <= 1e-15);
    vla_spectral_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_and_radius_differ),
        cmocka_unit_test(complex_eigenvalues_have_their_modulus),
        cmocka_unit_test(singular_values_of_non_square),
        cmocka_unit_test(non_finite_is_refused_by_name),
        cmocka_unit_test(sizes_are_refused),
        cmocka_unit_test(failing_drivers),
        cmocka_unit_test(cholesky_and_inverse),
        cmocka_unit_test(metric_norm_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
