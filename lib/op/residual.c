#include "lib/op/residual.h"
#include "lib/tensor/tensor.h"
#include <math.h>
#include <string.h>

/* An element as float64, and whether its exponent bits are other than all ones (infinity or NaN), which widening keeps.
 */
static double element(const void *data, vla_dtype dtype, int64_t i, bool *finite)
{
    const double value = vla_load(data, dtype, i);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    *finite = (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    return value;
}

void vla_residual_add(vla_residual_sum *sum, const void *out, vla_dtype dtype, const double *ref, int64_t count)
{
    sum->compared += count;
    for (int64_t i = 0; i < count; i++) {
        bool finite = true;
        const double x = element(out, dtype, i, &finite), r = ref[i], diff = fabs(x - r);
        if (!finite) {
            sum->nonfinite++;
            continue;
        }
        sum->diff2 += diff * diff;
        sum->ref2 += r * r;
        sum->out2 += x * x;
        if (!(diff <= sum->max_diff)) sum->max_diff = diff; /* a NaN reference sticks */
        if (!(fabs(r) <= sum->max_ref)) sum->max_ref = fabs(r);
        if (!(fabs(x) <= sum->max_out)) sum->max_out = fabs(x);
    }
}

vla_residual vla_residual_finish(const vla_residual_sum *sum)
{
    vla_residual r = {0, 0, sum->nonfinite, sum->compared};
    r.residual = sum->ref2 == 0 ? sqrt(sum->out2) : sqrt(sum->diff2) / sqrt(sum->ref2);
    r.max_residual = sum->max_ref == 0 ? sum->max_out : sum->max_diff / sum->max_ref;
    if (sum->nonfinite > 0) r.residual = r.max_residual = (double)NAN;
    return r;
}

double vla_residual_limit(vla_op op, vla_dtype dtype)
{
    switch (dtype) {
    case VLA_F64:
        return 1e-12;
    case VLA_F32:
        return op == VLA_RLS ? 2e-4 : 2e-5;
    case VLA_TF32:
        return 5e-3;
    default:
        return 2e-2;
    }
}

bool vla_residual_pass(const vla_residual *r, double limit)
{
    return r->nonfinite == 0 && r->residual <= limit;
}

/* Are all exponents other than all ones? By whole words first, as large outputs are nearly always finite. */
static bool all_finite(const void *data, vla_dtype dtype, int64_t count)
{
    bool finite = true;
    if (dtype == VLA_BF16 || dtype == VLA_F16) {
        const uint16_t exponent = dtype == VLA_BF16 ? 0x7f80 : 0x7c00, *x = data;
        for (int64_t at = 0; finite && at < count; at += 4096) {
            const int64_t end = at + 4096 < count ? at + 4096 : count;
            unsigned bad = 0;
            for (int64_t i = at; i < end; i++) bad |= (x[i] & exponent) == exponent;
            finite = !bad;
        }
        return finite;
    }
    for (int64_t i = 0; finite && i < count; i++) element(data, dtype, i, &finite);
    return finite;
}

bool vla_first_nonfinite(const void *data, vla_dtype dtype, int64_t heads, int64_t T, int64_t width, int64_t *head,
                         int64_t *token)
{
    /* Earliest token first, so that the message names where trouble starts in every head. */
    bool found = false;
    int64_t best_token = T;
    if (all_finite(data, dtype, heads * T * width)) return false;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t t = 0; t < best_token; t++)
            for (int64_t c = 0; c < width; c++) {
                bool finite = true;
                element(data, dtype, (h * T + t) * width + c, &finite);
                if (finite) continue;
                found = true;
                best_token = t;
                *head = h;
                *token = t;
                break;
            }
    return found;
}
