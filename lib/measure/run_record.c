#include "lib/measure/parameters.h"
#include "lib/measure/run.h"
#include "lib/op/registry.h"
#include "lib/op/work.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* What defines a run: the fields its key is made of. */
static const char *const key_fields[] = {"kind",
                                         "op",
                                         "form",
                                         "backend",
                                         "dtype",
                                         "B",
                                         "H",
                                         "T",
                                         "Tk",
                                         "dk",
                                         "dv",
                                         "chunk",
                                         "segments",
                                         "threads",
                                         "features",
                                         "qk_norm",
                                         "output",
                                         "gate",
                                         "lambda0",
                                         "no_normalise",
                                         "refresh_period",
                                         "refresh_eps",
                                         "u",
                                         "b",
                                         "digest",
                                         "seed",
                                         "state_in",
                                         "isa",
                                         NULL};

static bool put_case(vla_record *r, const vla_run *run)
{
    const vla_problem *p = &run->problem;
    char label[192], keys[32] = "";
    if (p->Tk && p->Tk != p->T) snprintf(keys, sizeof keys, "_L%" PRId64, p->Tk);
    snprintf(label, sizeof label, "%s/%s/%s/%s/B%" PRId64 "_H%" PRId64 "_T%" PRId64 "%s_K%" PRId64 "_V%" PRId64,
             vla_op_name(p->op), run->form == VLA_BEST ? "best" : vla_form_name(run->form),
             run->backend == VLA_AUTO ? "auto" : vla_backend_name(run->backend), vla_dtype_name(run->dtype), p->B, p->H,
             p->T, keys, p->dk, p->dv);
    return vla_record_string(r, "case", label) && vla_record_null(r, "key");
}

static bool put_isa(vla_record *r, vla_isa isa)
{
    return vla_record_string(r, "isa", isa == VLA_ISA_AUTO ? NULL : vla_isa_name(isa));
}

static bool put_kernel(vla_record *r, const vla_run *run, const vla_run_facts *f)
{
    const vla_problem *p = &run->problem;
    return vla_record_string(r, "op", vla_op_name(p->op)) &&
           vla_record_string(r, "form", run->form == VLA_BEST ? "best" : vla_form_name(run->form)) &&
           vla_record_string(r, "backend", run->backend == VLA_AUTO ? "auto" : vla_backend_name(run->backend)) &&
           vla_record_string(r, "dtype", vla_dtype_name(run->dtype)) && put_isa(r, f->isa) && /* as the key has it */
           vla_record_int(r, "B", p->B) && vla_record_int(r, "H", p->H) && vla_record_int(r, "T", p->T) &&
           vla_record_int(r, "Tk", p->Tk ? p->Tk : p->T) && vla_record_int(r, "dk", p->dk) &&
           vla_record_int(r, "dv", p->dv) && vla_record_int(r, "threads", run->threads);
}

static bool put_facts(vla_record *r, const vla_run *run, const vla_run_facts *f)
{
    vla_op op = run->problem.op;
    return vla_record_bool(r, "u", f->has_u && vla_op_reads(op, VLA_IN_U)) &&
           vla_record_bool(r, "b", f->has_b && vla_op_reads(op, VLA_IN_B)) && vla_record_string(r, "input", f->input) &&
           vla_record_string(r, "digest", f->digest) &&
           (f->input ? vla_record_null(r, "seed") : vla_record_int(r, "seed", f->seed)) &&
           vla_record_string(r, "state_in", f->state_in);
}

static double norm(const vla_tensor *t)
{
    double sum = 0;
    if (!t->data) return (double)NAN;
    for (int64_t i = 0; i < t->count; i++) {
        double value = vla_load(t->data, t->dtype, i);
        sum += value * value;
    }
    return sqrt(sum);
}

static bool put_results(vla_record *r, const vla_run *run, const vla_run_facts *f)
{
    const vla_problem *p = &run->problem;
    bool ran = run->o.data != NULL;
    double flops = vla_work_flops(p), tokens = (double)p->B * (double)p->T;
    return vla_record_real(r, "time_s", run->seconds) && vla_record_real(r, "tokens_per_s", tokens / run->seconds) &&
           vla_record_real(r, "flops", flops) && vla_record_real(r, "flops_per_s", flops / run->seconds) &&
           vla_record_real(r, "bytes", vla_work_bytes(p, run->dtype, f->has_u, f->has_b)) &&
           vla_record_real(r, "state_bytes", vla_state_bytes(p, run->dtype)) &&
           (ran ? vla_record_int(r, "workspace_bytes", run->workspace) : vla_record_null(r, "workspace_bytes")) &&
           vla_record_real(r, "o_norm", norm(&run->o)) && vla_record_real(r, "S_norm", norm(&run->state.S)) &&
           vla_record_real(r, "A_norm", norm(&run->state.A)) && vla_record_real(r, "n_norm", norm(&run->state.n)) &&
           (ran && run->state.S.data ? vla_record_int(r, "t", run->state.t) : vla_record_null(r, "t")) &&
           vla_record_string(r, "warning", *run->warning ? run->warning : NULL);
}

static bool put_check(vla_record *r, const vla_run *run)
{
    static const char *const names[VLA_PARTS] = {"residual", "residual_S", "residual_A", "residual_n",
                                                 "residual_alpha"};
    bool ok = vla_record_string(r, "checked", run->checked ? "all" : NULL);
    for (int part = 0; part < VLA_PARTS && ok; part++) {
        const vla_residual *res = &run->residual[part];
        bool known = run->checked && res->compared;
        ok = vla_record_real(r, names[part], known ? res->residual : (double)NAN);
        if (part == VLA_PART_O) ok = ok && vla_record_real(r, "max_residual", known ? res->max_residual : (double)NAN);
    }
    return ok && vla_record_real(r, "limit", run->checked ? run->limit : (double)NAN) &&
           vla_record_string(r, "verdict",
                             !run->checked ? NULL
                             : run->pass   ? "ok"
                                           : "FAIL");
}

vla_record *vla_run_record(const vla_run *run, const vla_run_facts *facts, const char *status, const char *reason)
{
    vla_record *r = vla_record_create("run");
    if (!r) return NULL;
    if (put_case(r, run) && put_kernel(r, run, facts) && vla_cut_record(&run->problem, r) &&
        vla_parameters_record(&run->problem, r) && put_facts(r, run, facts) && vla_record_string(r, "status", status) &&
        vla_record_string(r, "reason", reason) && put_results(r, run, facts) && put_check(r, run) &&
        vla_record_key(r, key_fields) && put_isa(r, run->isa))
        return r;
    vla_record_destroy(r);
    return NULL;
}
