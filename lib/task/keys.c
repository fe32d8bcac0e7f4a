#include "lib/task/keys.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"gauss", "silu", "elu1", "orth", "input"};

const char *vla_key_source_name(vla_key_source source)
{
    return (int)source >= 0 && source < VLA_KEY_SOURCES ? names[source] : "?";
}

bool vla_key_source_parse(const char *name, vla_key_source *source)
{
    for (int i = 0; i < VLA_KEY_SOURCES; i++)
        if (strcmp(names[i], name) == 0) return *source = (vla_key_source)i, true;
    return false;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* Scaled by the largest element first, so that tiny keys keep their direction; a zero row stays zero. */
static void make_unit(double *x, int64_t n)
{
    double top = 0;
    for (int64_t i = 0; i < n; i++) top = fabs(x[i]) > top ? fabs(x[i]) : top;
    if (!(top > 0)) return;
    for (int64_t i = 0; i < n; i++) x[i] /= top;
    const double norm = sqrt(dot(x, x, n));
    for (int64_t i = 0; i < n; i++) x[i] /= norm;
}

static double feature(vla_features features, double x)
{
    if (features == VLA_ELU1) return x > 0 ? x + 1 : exp(x);
    if (features == VLA_SILU) return x / (1 + exp(-x));
    return x;
}

static void map_row(double *x, int64_t n, vla_features features)
{
    double top = -INFINITY;
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    /* phi of an all-negative row is exp(x): without its largest factor it may underflow as a whole */
    const double shift = features == VLA_ELU1 && top < 0 ? top : 0;
    for (int64_t i = 0; i < n; i++) x[i] = shift < 0 ? exp(x[i] - shift) : feature(features, x[i]);
    make_unit(x, n);
}

vla_status vla_key_bank_create(vla_key_bank *bank, const double *raw, int64_t heads, int64_t len, int64_t width,
                               vla_features features, vla_error *error)
{
    *bank = (vla_key_bank){NULL, heads, len, width};
    int64_t count = 0;
    if (!vla_size_product((const int64_t[]){heads, len, width}, 3, &count))
        return vla_fail(error, VLA_ERR_MEMORY, "key bank: %lld x %lld x %lld exceeds 64-bit sizes", (long long)heads,
                        (long long)len, (long long)width);
    const vla_status status = vla_alloc((void **)&bank->rows, count, sizeof *bank->rows, "key bank", error);
    if (status) return status;
    memcpy(bank->rows, raw, (size_t)count * sizeof *raw);
    for (int64_t i = 0; i < heads * len; i++) map_row(bank->rows + i * width, width, features);
    return VLA_OK;
}

void vla_key_bank_destroy(vla_key_bank *bank)
{
    vla_free(bank->rows);
    bank->rows = NULL;
}

bool vla_keys_possible(vla_key_source source, const vla_key_bank *bank, int64_t count, int64_t dk, char *reason,
                       size_t reason_size)
{
    if (source == VLA_KEYS_ORTH && count > dk) {
        snprintf(reason, reason_size, "orth has at most dk = %lld keys, %lld asked for", (long long)dk,
                 (long long)count);
        return false;
    }
    if (source != VLA_KEYS_INPUT) return true;
    if (!bank || !bank->rows) {
        snprintf(reason, reason_size, "no input keys are given");
        return false;
    }
    if (bank->width != dk) {
        snprintf(reason, reason_size, "input keys have width %lld, not %lld", (long long)bank->width, (long long)dk);
        return false;
    }
    if (bank->len < count) {
        snprintf(reason, reason_size, "input has %lld keys a head, %lld asked for", (long long)bank->len,
                 (long long)count);
        return false;
    }
    return true;
}

/* Gram-Schmidt, twice, which is enough for orthonormality to rounding. */
static void make_orthonormal(double *row, const double *before, int64_t count, int64_t dk)
{
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = 0; j < count; j++) {
            const double c = dot(row, before + j * dk, dk);
            for (int64_t i = 0; i < dk; i++) row[i] -= c * before[j * dk + i];
        }
    make_unit(row, dk);
}

static void copy_window(double *rows, const vla_key_bank *bank, int64_t count, vla_rng *rng)
{
    const int64_t head = (int64_t)vla_rng_below(rng, (uint64_t)bank->heads);
    const int64_t start = (int64_t)vla_rng_below(rng, (uint64_t)(bank->len - count + 1));
    memcpy(rows, bank->rows + (head * bank->len + start) * bank->width, (size_t)(count * bank->width) * sizeof *rows);
}

vla_status vla_keys_make(double *rows, vla_key_source source, const vla_key_bank *bank, int64_t count, int64_t dk,
                         vla_rng *rng, vla_error *error)
{
    char reason[160];
    if (!vla_keys_possible(source, bank, count, dk, reason, sizeof reason))
        return vla_fail(error, VLA_ERR_ARGUMENT, "keys: %s", reason);
    if (source == VLA_KEYS_INPUT) return copy_window(rows, bank, count, rng), VLA_OK;
    for (int64_t i = 0; i < count; i++) {
        double *row = rows + i * dk;
        for (int64_t c = 0; c < dk; c++) row[c] = vla_rng_normal(rng);
        if (source == VLA_KEYS_ORTH)
            make_orthonormal(row, rows, i, dk);
        else
            map_row(row, dk, source == VLA_KEYS_ELU1 ? VLA_ELU1 : source == VLA_KEYS_SILU ? VLA_SILU : VLA_IDENTITY);
    }
    return VLA_OK;
}
