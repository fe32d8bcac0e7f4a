#include "lib/analysis/stepper.h"
#include "kernels/cpu/naive.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <cblas.h>
#include <math.h>
#include <string.h>

vla_status vla_stepper_create(vla_stepper *s, const vla_problem *problem, vla_error *error)
{
    memset(s, 0, sizeof *s);
    if (!vla_op_has_S(problem->op))
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s keeps no recurrent state: it has no state Jacobian",
                        vla_op_name(problem->op));
    if (problem->gate == VLA_GATE_ROW)
        return vla_fail(error, VLA_ERR_UNSUPPORTED,
                        "a gate per row of S has one Jacobian a row: give one gate a token");
    const vla_status checked = vla_problem_check(problem, error);
    if (checked) return checked;
    const int64_t dk = problem->dk, dv = problem->dv;
    void *memory = NULL;
    const vla_status status = vla_alloc(&memory, dv * dk + dk * dk + 6 * dk + dv, sizeof(double), "state", error);
    if (status) return status;
    s->problem = *problem;
    s->S = memory;
    s->A = s->S + dv * dk;
    s->n = s->A + dk * dk;
    s->kf = s->n + dk;
    s->kh = s->kf + dk;
    s->uh = s->kh + dk;
    s->z = s->uh + dk;
    s->a = s->z + dk;
    s->r = s->a + dk;
    vla_stepper_reset(s);
    return VLA_OK;
}

void vla_stepper_destroy(vla_stepper *s)
{
    vla_free(s->S);
    memset(s, 0, sizeof *s);
}

void vla_stepper_reset(vla_stepper *s)
{
    const int64_t dk = s->problem.dk, dv = s->problem.dv;
    memset(s->S, 0, (size_t)(dv * dk + dk * dk + 6 * dk + dv) * sizeof *s->S);
    if (vla_op_has_A(s->problem.op))
        for (int64_t i = 0; i < dk; i++) s->A[i * dk + i] = 1 / s->problem.lambda0;
    s->t = 0;
    s->residual = s->log_det = 0;
    s->jacobian = vla_jacobian_of(dk, 1, s->a, s->kh);
}

static void symmetric_matvec(double *y, const double *A, const double *x, int64_t d)
{
    cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)d, (int)d, 1.0, A, (int)d, x, 1, 0.0, y, 1);
}

static void rank1(double *M, double scale, const double *x, const double *y, int64_t rows, int64_t columns)
{
    cblas_dger(CblasRowMajor, (int)rows, (int)columns, scale, x, 1, y, 1, M, (int)columns);
}

/* a = unit(A kh), or A kf without normalisation. */
static void vla_direction(vla_stepper *s, const double *u)
{
    const vla_problem *p = &s->problem;
    const int64_t dk = p->dk;
    vla_naive_unit(s->uh, u, dk);
    cblas_dscal((int)dk, 1 / sqrt((double)dk), s->uh, 1);
    symmetric_matvec(s->z, s->A, s->uh, dk);
    const double uz = cblas_ddot((int)dk, s->uh, 1, s->z, 1);
    rank1(s->A, -1 / (1 + uz), s->z, s->z, dk, dk);
    s->log_det += log1p(uz);
    if (p->refresh_period > 0 && s->t % p->refresh_period == 0)
        for (int64_t i = 0; i < dk; i++) s->A[i * dk + i] += p->refresh_eps;
    symmetric_matvec(s->a, s->A, s->kh, dk);
    if (!p->no_normalise) vla_naive_unit(s->a, s->a, dk);
}

static void rls_gain(vla_stepper *s)
{
    const int64_t dk = s->problem.dk;
    symmetric_matvec(s->z, s->A, s->kh, dk);
    const double kz = cblas_ddot((int)dk, s->kh, 1, s->z, 1);
    for (int64_t i = 0; i < dk; i++) s->a[i] = s->z[i] / (1 + kz);
    rank1(s->A, -1.0, s->a, s->z, dk, dk);
    s->log_det += log1p(kz);
}

/* a, k and g of this token, S_t = g S + (v - S k) a^T; linear writes v kf^T, whose Jacobian is I (a = 0 in it). */
static double write_direction(vla_stepper *s, const double *u, const double *b, const double *g)
{
    const int64_t dk = s->problem.dk;
    switch (s->problem.op) {
    case VLA_VLA:
        vla_direction(s, u);
        return 1;
    case VLA_RLS:
        rls_gain(s);
        return 1;
    case VLA_DECAY:
        memcpy(s->a, s->kh, (size_t)dk * sizeof *s->a);
        return g ? vla_naive_sigmoid(*g) : 1;
    case VLA_DELTA:
        for (int64_t i = 0; i < dk; i++) s->a[i] = (b ? vla_naive_sigmoid(*b) : 1) * s->kh[i];
        return 1;
    default:
        memset(s->a, 0, (size_t)dk * sizeof *s->a);
        return 1;
    }
}

void vla_stepper_step(vla_stepper *s, const double *k, const double *v, const double *u, const double *b,
                      const double *g)
{
    const vla_problem *p = &s->problem;
    const int64_t dk = p->dk, dv = p->dv;
    s->t++;
    vla_naive_features(s->kf, k, dk, p->features);
    if (p->op == VLA_VLA && p->no_normalise)
        memcpy(s->kh, s->kf, (size_t)dk * sizeof *s->kh);
    else
        vla_naive_unit_features(s->kh, k, dk, p->features);
    const double gate = write_direction(s, u ? u : k, b, g);
    s->jacobian = vla_jacobian_of(dk, gate, s->a, s->kh);
    cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)dv, (int)dk, 1.0, s->S, (int)dk, s->kh, 1, 0.0, s->r, 1);
    for (int64_t i = 0; i < dv; i++) s->r[i] = v[i] - s->r[i];
    s->residual = cblas_dnrm2((int)dv, s->r, 1);
    if (p->op == VLA_LINEAR) {
        rank1(s->S, 1.0, v, s->kf, dv, dk);
    } else {
        if (gate != 1) cblas_dscal((int)(dv * dk), gate, s->S, 1);
        rank1(s->S, 1.0, s->r, s->a, dv, dk);
    }
    for (int64_t i = 0; i < dk; i++) s->n[i] += s->kf[i];
}

double vla_frobenius(const double *matrix, int64_t count)
{
    double sum = 0, top = 0;
    for (int64_t i = 0; i < count; i++) sum += matrix[i] * matrix[i];
    if (sum > 1e-280 && sum < 1e280) return sqrt(sum);
    for (int64_t i = 0; i < count; i++) top = fabs(matrix[i]) > top ? fabs(matrix[i]) : top;
    if (!(top > 0) || !isfinite(top)) return sqrt(sum);
    sum = 0;
    for (int64_t i = 0; i < count; i++) sum += matrix[i] / top * (matrix[i] / top);
    return top * sqrt(sum);
}
