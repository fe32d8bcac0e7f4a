/* vla, naive (Variational Linear Attention): uh = unit(u)/sqrt dk ; z = A uh ; A -= z z^T/(1 + uh.z) ; a = unit(A kh) ;
 * S += (v - S kh) a^T ; n += kf ; o = S qf / max(n.qf, eps), or S qf with plain output.
 *
 * q, k, u [B,H,T,dk] (u absent: the raw key), v [B,H,T,dv], o [B,H,T,dv], S [B,H,dv,dk], A [B,H,dk,dk], n [B,H,dk],
 * alpha [B,H,T,dk], float64. With no_normalise kh = kf and a = A kh. At steps P, 2P, .. of the sequence A += E I after
 * the rank-1 update. A zero key has a = 0 and writes nothing.
 */
#include "kernels/cpu/naive.h"
#include <math.h>
#include <string.h>

typedef struct buffers {
    double *S, *A, *n, *qf, *kf, *kh, *uh, *z, *a, *r, *y;
} buffers;

static buffers carve(double *scratch, int64_t dk, int64_t dv)
{
    buffers b;
    b.S = scratch;
    b.A = b.S + dv * dk;
    b.n = b.A + dk * dk;
    b.qf = b.n + dk;
    b.kf = b.qf + dk;
    b.kh = b.kf + dk;
    b.uh = b.kh + dk;
    b.z = b.uh + dk;
    b.a = b.z + dk;
    b.r = b.a + dk;
    b.y = b.r + dv;
    return b;
}

static void update_penalty(const vla_problem *p, buffers *b, int64_t step)
{
    const int64_t dk = p->dk;
    vla_naive_matvec(b->z, b->A, b->uh, dk, dk);
    vla_naive_rank1(b->A, -1.0 / (1.0 + vla_naive_dot(b->uh, b->z, dk)), b->z, b->z, dk, dk);
    if (p->refresh_period > 0 && step % p->refresh_period == 0)
        for (int64_t i = 0; i < dk; i++) b->A[i * dk + i] += p->refresh_eps;
}

static void step_features(const vla_problem *p, buffers *b, const double *q, const double *k, const double *u)
{
    const int64_t dk = p->dk;
    const double root = sqrt((double)dk);
    vla_naive_query(b->qf, q, dk, p);
    vla_naive_features(b->kf, k, dk, p->features);
    if (p->no_normalise)
        memcpy(b->kh, b->kf, (size_t)dk * sizeof *b->kh);
    else
        vla_naive_unit_features(b->kh, k, dk, p->features);
    vla_naive_unit(b->uh, u, dk);
    for (int64_t c = 0; c < dk; c++) b->uh[c] /= root;
}

static void one_head(const vla_call *call, int64_t head, double *scratch)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t dk = p->dk, dv = p->dv, first = t->state_in && t->t ? *t->t : 0;
    buffers b = carve(scratch, dk, dv);
    vla_naive_start(call, head, b.S, b.A, b.n);
    for (int64_t i = 0; i < p->T; i++) {
        const int64_t row = head * p->T + i;
        const double *k = (const double *)t->k + row * dk, *v = (const double *)t->v + row * dv;
        double *o = (double *)t->o + row * dv;
        step_features(p, &b, (const double *)t->q + row * dk, k, t->u ? (const double *)t->u + row * dk : k);
        update_penalty(p, &b, first + i + 1);
        vla_naive_matvec(b.a, b.A, b.kh, dk, dk);
        if (!p->no_normalise) vla_naive_unit(b.a, b.a, dk);
        vla_naive_matvec(b.r, b.S, b.kh, dv, dk);
        for (int64_t c = 0; c < dv; c++) b.r[c] = v[c] - b.r[c];
        vla_naive_rank1(b.S, 1.0, b.r, b.a, dv, dk);
        for (int64_t c = 0; c < dk; c++) b.n[c] += b.kf[c];
        vla_naive_matvec(b.y, b.S, b.qf, dv, dk);
        const double den = p->output == VLA_PLAIN ? 1.0 : vla_naive_dot(b.n, b.qf, dk);
        for (int64_t c = 0; c < dv; c++) o[c] = vla_naive_ratio(b.y[c], den);
        if (t->alpha) memcpy((double *)t->alpha + row * dk, b.a, (size_t)dk * sizeof *b.a);
    }
    vla_naive_finish(call, head, b.S, b.A, b.n);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    (void)error;
    return vla_naive_each_head(call, one_head);
}

extern const vla_variant vla_naive_cpu;
const vla_variant vla_naive_cpu = {NULL, vla_naive_workspace, run};
