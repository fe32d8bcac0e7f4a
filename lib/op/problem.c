#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <math.h>

vla_problem vla_problem_default(vla_op op, int64_t B, int64_t H, int64_t T, int64_t d)
{
    return (vla_problem){.op = op, .B = B, .H = H, .T = T, .dk = d, .dv = d, .lambda0 = 0.1, .refresh_eps = 1e-3};
}

bool vla_op_has_S(vla_op op)
{
    return op != VLA_SOFTMAX;
}
bool vla_op_has_A(vla_op op)
{
    return op == VLA_VLA || op == VLA_RLS;
}
bool vla_op_has_n(vla_op op)
{
    return op == VLA_LINEAR || op == VLA_VLA;
}

static vla_status check_size(const char *name, int64_t value, int64_t least, vla_error *error)
{
    if (value >= least) return VLA_OK;
    return vla_fail(error, VLA_ERR_ARGUMENT, "%s %lld: accepted are integers of at least %lld", name, (long long)value,
                    (long long)least);
}

static vla_status check_sizes(const vla_problem *p, vla_error *error)
{
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {{"B", p->B, 1},   {"H", p->H, 1},         {"T", p->T, 0},
                 {"dk", p->dk, 1}, {"dv", p->dv, 1},       {"refresh period", p->refresh_period, 0},
                 {"Tk", p->Tk, 0}, {"chunk", p->chunk, 0}, {"segments", p->segments, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        vla_status status = check_size(sizes[i].name, sizes[i].value, sizes[i].least, error);
        if (status != VLA_OK) return status;
    }
    return VLA_OK;
}

static vla_status check_choices(const vla_problem *p, vla_error *error)
{
    const struct {
        const char *name;
        int value, last;
    } choices[] = {{"features", (int)p->features, VLA_IDENTITY},
                   {"output", (int)p->output, VLA_PLAIN},
                   {"gate", (int)p->gate, VLA_GATE_ROW}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].value < 0 || choices[i].value > choices[i].last)
            return vla_fail(error, VLA_ERR_ARGUMENT, "%s %d: accepted are 0 to %d", choices[i].name, choices[i].value,
                            choices[i].last);
    return VLA_OK;
}

static bool fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t product = 0;
    return vla_size_product((const int64_t[]){a, b, c, d, 8}, 5, &product);
}

vla_status vla_problem_check(const vla_problem *p, vla_error *error)
{
    if ((int)p->op < 0 || p->op >= VLA_OPS)
        return vla_fail(error, VLA_ERR_ARGUMENT, "op %d: accepted are 0 to %d", (int)p->op, (int)VLA_OPS - 1);
    vla_status status = check_sizes(p, error);
    if (status == VLA_OK) status = check_choices(p, error);
    if (status != VLA_OK) return status;
    if (p->Tk != 0 && p->op != VLA_SOFTMAX && p->Tk != p->T)
        return vla_fail(error, VLA_ERR_ARGUMENT, "Tk %lld with T %lld: only softmax takes more keys than queries",
                        (long long)p->Tk, (long long)p->T);
    if (!(p->lambda0 > 0) || !isfinite(p->lambda0) || !isfinite(1.0 / p->lambda0))
        return vla_fail(error, VLA_ERR_ARGUMENT, "lambda0 %g: accepted are finite numbers above 0", p->lambda0);
    if (!(p->refresh_eps >= 0) || !isfinite(p->refresh_eps))
        return vla_fail(error, VLA_ERR_ARGUMENT, "refresh eps %g: accepted are finite numbers of at least 0",
                        p->refresh_eps);
    const int64_t len = p->Tk > p->T ? p->Tk : p->T, wide = p->dk > p->dv ? p->dk : p->dv;
    if (!fits(p->B, p->H, len, wide) || !fits(p->B, p->H, wide, p->dk))
        return vla_fail(error, VLA_ERR_MEMORY, "B %lld, H %lld, T %lld, dk %lld, dv %lld: beyond 64-bit sizes",
                        (long long)p->B, (long long)p->H, (long long)len, (long long)p->dk, (long long)p->dv);
    return VLA_OK;
}
