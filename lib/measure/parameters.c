#include "lib/measure/parameters.h"
#include "lib/base/names.h"
#include "lib/op/registry.h"

static bool put_positive(vla_record *r, const char *name, int64_t value)
{
    return value > 0 ? vla_record_int(r, name, value) : vla_record_null(r, name);
}

bool vla_cut_record(const vla_problem *p, vla_record *r)
{
    return put_positive(r, "chunk", p->chunk) && put_positive(r, "segments", p->segments);
}

bool vla_parameters_record(const vla_problem *p, vla_record *r)
{
    static const char *const gates[] = {NULL, "token", "row"};
    const bool has_A = vla_op_has_A(p->op), refresh = p->refresh_period > 0;
    return vla_record_string(r, "features", p->op == VLA_SOFTMAX ? NULL : vla_features_name(p->features)) &&
           vla_record_string(r, "qk_norm", p->qk_l2 ? "l2" : "none") &&
           vla_record_string(r, "output", p->op == VLA_VLA ? (p->output == VLA_PLAIN ? "plain" : "ratio") : NULL) &&
           vla_record_bool(r, "no_normalise", p->no_normalise) &&
           (has_A ? vla_record_real(r, "lambda0", p->lambda0) : vla_record_null(r, "lambda0")) &&
           put_positive(r, "refresh_period", p->refresh_period) &&
           (refresh ? vla_record_real(r, "refresh_eps", p->refresh_eps) : vla_record_null(r, "refresh_eps")) &&
           vla_record_string(r, "gate", p->op == VLA_DECAY ? gates[p->gate] : NULL);
}
