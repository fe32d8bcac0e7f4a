#include "lib/analysis/objective.h"
#include "lib/analysis/spectral.h"
#include "lib/base/sizes.h"
#include <cblas.h>
#include <string.h>

vla_status vla_objective_create(vla_objective *o, const vla_problem *problem, vla_error *error)
{
    memset(o, 0, sizeof *o);
    const int64_t dk = problem->dk, dv = problem->dv, count = 4 * dk * dk + 2 * dv * dk;
    void *memory = NULL;
    const vla_status status = vla_alloc(&memory, count, sizeof(double), "moments", error);
    if (status) return status;
    memset(memory, 0, (size_t)count * sizeof(double));
    o->dk = dk;
    o->dv = dv;
    o->G = memory;
    o->M = o->G + dk * dk;
    o->C = o->M + dk * dk;
    o->work = o->C + dv * dk;
    for (int64_t i = 0; i < dk; i++) o->M[i * dk + i] = problem->lambda0;
    return VLA_OK;
}

void vla_objective_destroy(vla_objective *o)
{
    vla_free(o->G);
    memset(o, 0, sizeof *o);
}

void vla_objective_add(vla_objective *o, const vla_stepper *s, const double *v)
{
    const int dk = (int)o->dk, dv = (int)o->dv;
    cblas_dger(CblasRowMajor, dk, dk, 1.0, s->kh, 1, s->kh, 1, o->G, dk);
    cblas_dger(CblasRowMajor, dv, dk, 1.0, v, 1, s->kh, 1, o->C, dk);
    if (s->problem.op == VLA_VLA) cblas_dger(CblasRowMajor, dk, dk, 1.0, s->uh, 1, s->uh, 1, o->M, dk);
    o->energy += cblas_ddot(dv, v, 1, v, 1);
}

static double *normal_matrix(vla_objective *o)
{
    for (int64_t i = 0; i < o->dk * o->dk; i++) o->work[i] = o->G[i] + o->M[i];
    return o->work;
}

/* sum |v|^2 - 2 tr(S C^T) + tr(S (G + M) S^T). */
double vla_objective_value(vla_objective *o, const double *S)
{
    const int dk = (int)o->dk, dv = (int)o->dv;
    const double *N = normal_matrix(o);
    double *SN = o->work + 2 * o->dk * o->dk;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dv, dk, dk, 1.0, S, dk, N, dk, 0.0, SN, dk);
    return o->energy - 2 * cblas_ddot(dv * dk, S, 1, o->C, 1) + cblas_ddot(dv * dk, S, 1, SN, 1);
}

vla_status vla_objective_minimiser(vla_objective *o, double *S, vla_error *error)
{
    const int dk = (int)o->dk, dv = (int)o->dv;
    double *inverse = o->work + o->dk * o->dk;
    const vla_status status = vla_spd_inverse(inverse, normal_matrix(o), o->dk, error);
    if (!status)
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dv, dk, dk, 1.0, o->C, dk, inverse, dk, 0.0, S, dk);
    return status;
}
