#include "lib/op/work.h"

/* (query, key) pairs the causal mask allows for one head: the last query sees the last key. */
static double allowed_pairs(const vla_problem *p)
{
    const double T = (double)p->T, Tk = (double)(p->Tk ? p->Tk : p->T);
    return T * (Tk - T) + 0.5 * T * (T + 1);
}

double vla_work_flops(const vla_problem *p)
{
    const double dk = (double)p->dk, dv = (double)p->dv, heads = (double)p->B * (double)p->H;
    const double tokens = heads * (double)p->T;
    switch (p->op) {
    case VLA_SOFTMAX:
        return heads * allowed_pairs(p) * 2 * (dk + dv);
    case VLA_LINEAR:
        return tokens * 4 * dk * dv;
    case VLA_DELTA:
    case VLA_DECAY:
        return tokens * 6 * dk * dv;
    case VLA_VLA:
        return tokens * (6 * dk * dk + 6 * dk * dv);
    case VLA_RLS:
        return tokens * (4 * dk * dk + 6 * dk * dv);
    case VLA_OPS:
        break;
    }
    return 0;
}

double vla_work_bytes(const vla_problem *p, vla_dtype dtype, bool has_u, bool has_b)
{
    const double T = (double)p->T, Tk = p->op == VLA_SOFTMAX && p->Tk ? (double)p->Tk : T;
    const double dk = (double)p->dk, dv = (double)p->dv;
    double values = T * dk + Tk * (dk + dv) + T * dv; /* q, k, v, o */
    if (p->op == VLA_VLA && has_u) values += T * dk;
    if (p->op == VLA_DELTA && has_b) values += T;
    if (p->op == VLA_DECAY && p->gate != VLA_GATE_NONE) values += p->gate == VLA_GATE_ROW ? T * dv : T;
    return (double)p->B * (double)p->H * values * (double)vla_dtype_size(dtype);
}

double vla_state_bytes(const vla_problem *p, vla_dtype dtype)
{
    const double dk = (double)p->dk, dv = (double)p->dv;
    double values = 0;
    switch (p->op) {
    case VLA_SOFTMAX:
        values = (double)(p->Tk ? p->Tk : p->T) * (dk + dv);
        break;
    case VLA_LINEAR:
        values = dv * dk + dk;
        break;
    case VLA_DELTA:
    case VLA_DECAY:
        values = dv * dk;
        break;
    case VLA_VLA:
        values = dv * dk + dk * dk + dk;
        break;
    case VLA_RLS:
        values = dv * dk + dk * dk;
        break;
    case VLA_OPS:
        break;
    }
    return (double)p->B * (double)p->H * values * (double)vla_dtype_size(dtype);
}
