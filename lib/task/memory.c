#include "lib/task/memory.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <cblas.h>
#include <math.h>
#include <string.h>

static const char *const gate_names[] = {"unit", "interpolate", "rls"};

const char *vla_write_gate_name(vla_write_gate gate)
{
    return (int)gate >= 0 && gate < VLA_WRITE_GATES ? gate_names[gate] : "?";
}

bool vla_write_gate_parse(const char *name, vla_write_gate *gate)
{
    for (int i = 0; i < VLA_WRITE_GATES; i++)
        if (strcmp(gate_names[i], name) == 0) return *gate = (vla_write_gate)i, true;
    return false;
}

static bool keeps_pairs(const vla_memory *m)
{
    return m->spec.op == VLA_SOFTMAX;
}

static vla_status take(double **memory, int64_t rows, int64_t columns, vla_error *error)
{
    int64_t count = 0;
    if (!vla_size_mul(rows, columns, &count))
        return vla_fail(error, VLA_ERR_MEMORY, "memory: %lld x %lld exceeds 64-bit sizes", (long long)rows,
                        (long long)columns);
    return vla_alloc((void **)memory, count, sizeof **memory, "memory", error);
}

vla_status vla_memory_create(vla_memory *memory, const vla_memory_spec *spec, int64_t capacity, vla_error *error)
{
    *memory = (vla_memory){.spec = *spec, .capacity = capacity};
    const int64_t dk = spec->dk, dv = spec->dv;
    vla_status status = take(&memory->z, dk, 1, error);
    if (!status) status = take(&memory->a, dk, 1, error);
    if (!status) status = take(&memory->r, dv, 1, error);
    if (!status && !keeps_pairs(memory)) status = take(&memory->S, dv, dk, error);
    if (!status && keeps_pairs(memory)) status = take(&memory->keys, capacity, dk, error);
    if (!status && keeps_pairs(memory)) status = take(&memory->values, capacity, dv, error);
    if (!status && vla_op_has_A(spec->op)) status = take(&memory->A, dk, dk, error);
    if (status)
        vla_memory_destroy(memory);
    else
        vla_memory_reset(memory);
    return status;
}

void vla_memory_destroy(vla_memory *memory)
{
    double *all[] = {memory->S, memory->A, memory->keys, memory->values, memory->z, memory->a, memory->r};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) vla_free(all[i]);
    *memory = (vla_memory){0};
}

void vla_memory_reset(vla_memory *memory)
{
    const int64_t dk = memory->spec.dk, dv = memory->spec.dv;
    memory->count = 0;
    if (memory->S) memset(memory->S, 0, (size_t)(dv * dk) * sizeof *memory->S);
    if (!memory->A) return;
    memset(memory->A, 0, (size_t)(dk * dk) * sizeof *memory->A);
    for (int64_t i = 0; i < dk; i++) memory->A[i * dk + i] = 1 / memory->spec.lambda0;
}

void vla_memory_copy(vla_memory *to, const vla_memory *from)
{
    const size_t dk = (size_t)from->spec.dk, dv = (size_t)from->spec.dv, count = (size_t)from->count;
    to->count = from->count;
    if (from->S) memcpy(to->S, from->S, dv * dk * sizeof *to->S);
    if (from->A) memcpy(to->A, from->A, dk * dk * sizeof *to->A);
    if (from->keys) memcpy(to->keys, from->keys, count * dk * sizeof *to->keys);
    if (from->values) memcpy(to->values, from->values, count * dv * sizeof *to->values);
}

static void multiply(double *y, const double *M, const double *x, int64_t rows, int64_t columns)
{
    cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)rows, (int)columns, 1, M, (int)columns, x, 1, 0, y, 1);
}

static void add_outer(double *M, double scale, const double *x, const double *y, int64_t rows, int64_t columns)
{
    cblas_dger(CblasRowMajor, (int)rows, (int)columns, scale, x, 1, y, 1, M, (int)columns);
}

static double dot(const double *x, const double *y, int64_t n)
{
    return cblas_ddot((int)n, x, 1, y, 1);
}

/* a /= divisor, or a = 0 where there is no direction to write along. */
static void divide(double *a, double divisor, int64_t n)
{
    for (int64_t i = 0; i < n; i++) a[i] = divisor == 0 ? 0 : a[i] / divisor;
}

/* a for the vla memory; updates A. */
static void vla_direction(vla_memory *m, const double *k, const double *u)
{
    const int64_t dk = m->spec.dk;
    if (m->spec.write == VLA_WRITE_RLS) {
        multiply(m->a, m->A, k, dk, dk);
        divide(m->a, 1 + dot(k, m->a, dk), dk);
    }
    multiply(m->z, m->A, u, dk, dk);
    add_outer(m->A, -1 / (1 + dot(u, m->z, dk)), m->z, m->z, dk, dk);
    if (m->spec.write == VLA_WRITE_RLS) return;
    multiply(m->a, m->A, k, dk, dk);
    divide(m->a, m->spec.write == VLA_WRITE_UNIT ? cblas_dnrm2((int)dk, m->a, 1) : dot(m->a, k, dk), dk);
}

static void rls_direction(vla_memory *m, const double *k)
{
    const int64_t dk = m->spec.dk;
    multiply(m->z, m->A, k, dk, dk);
    const double s = 1 + dot(k, m->z, dk);
    add_outer(m->A, -1 / s, m->z, m->z, dk, dk);
    memcpy(m->a, m->z, (size_t)dk * sizeof *m->a);
    divide(m->a, s, dk);
}

static void keep(vla_memory *m, const double *k, const double *v)
{
    memcpy(m->keys + m->count * m->spec.dk, k, (size_t)m->spec.dk * sizeof *k);
    memcpy(m->values + m->count * m->spec.dv, v, (size_t)m->spec.dv * sizeof *v);
}

void vla_memory_write(vla_memory *m, const double *k, const double *u, const double *v)
{
    const int64_t dk = m->spec.dk, dv = m->spec.dv;
    if (keeps_pairs(m)) {
        keep(m, k, v);
        m->count++;
        return;
    }
    const double *a = k;
    if (m->spec.op == VLA_VLA) vla_direction(m, k, u);
    if (m->spec.op == VLA_RLS) rls_direction(m, k);
    if (vla_op_has_A(m->spec.op)) a = m->a;
    memcpy(m->r, v, (size_t)dv * sizeof *v);
    if (m->spec.op != VLA_LINEAR)
        cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)dv, (int)dk, -1, m->S, (int)dk, k, 1, 1, m->r, 1);
    if (m->spec.op == VLA_DECAY) cblas_dscal((int)(dv * dk), m->spec.decay, m->S, 1);
    add_outer(m->S, 1, m->r, a, dv, dk);
    m->count++;
}

static void read_softmax(const vla_memory *m, const double *key, double *out, double *scores)
{
    const int64_t dk = m->spec.dk, dv = m->spec.dv, count = m->count;
    if (count == 0) {
        memset(out, 0, (size_t)dv * sizeof *out);
        return;
    }
    multiply(scores, m->keys, key, count, dk);
    double top = scores[0], sum = 0;
    for (int64_t i = 1; i < count; i++) top = scores[i] > top ? scores[i] : top;
    const double s = m->spec.sharpness * sqrt((double)dk);
    for (int64_t i = 0; i < count; i++) sum += scores[i] = exp(s * (scores[i] - top));
    cblas_dgemv(CblasRowMajor, CblasTrans, (int)count, (int)dv, 1 / sum, m->values, (int)dv, scores, 1, 0, out, 1);
}

void vla_memory_read(const vla_memory *m, const double *keys, int64_t n, double *out, double *scores)
{
    const int dk = (int)m->spec.dk, dv = (int)m->spec.dv;
    if (keeps_pairs(m)) {
        for (int64_t i = 0; i < n; i++) read_softmax(m, keys + i * dk, out + i * dv, scores);
        return;
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n, dv, dk, 1, keys, dk, m->S, dk, 0, out, dv);
}

double vla_memory_norm(const vla_memory *m)
{
    const int64_t rows = keeps_pairs(m) ? m->count : m->spec.dk;
    return cblas_dnrm2((int)(rows * m->spec.dv), keeps_pairs(m) ? m->values : m->S, 1);
}

int64_t vla_memory_state_bytes(const vla_memory_spec *spec, int64_t n, int64_t size)
{
    if (spec->op == VLA_SOFTMAX) return n * (spec->dk + spec->dv) * size;
    return (spec->dv + (vla_op_has_A(spec->op) ? spec->dk : 0)) * spec->dk * size;
}

int64_t vla_memory_matched_width(vla_op op, int64_t dk, int64_t dv)
{
    if (op == VLA_SOFTMAX || vla_op_has_A(op)) return dk;
    return (dv * dk + dk * dk + dv / 2) / dv;
}
