#include "lib/analysis/claims.h"
#include "lib/base/status.h"
#include "lib/report/report.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const vla_claim vla_claims[] = {
    {"C2", "linear attention's state norm grows like T", "exponent", vla_claim_state_growth},
    {"C3", "Sherman-Morrison keeps A_t = M_t^-1 exactly",
     "f64 f32 f64-refresh f32-refresh f64-tiny-lambda0 f32-tiny-lambda0", vla_claim_inverse},
    {"C4", "the recursion follows exactly from the variational objective", "vla rls", vla_claim_objective},
    {"C7", "Proposition 1: the state stays bounded, with a plateau as residuals vanish",
     "zero-mean biased given residual plateau adversary polynomial-growth adversary-isotropic sqrt-growth",
     vla_claim_bounded},
    {"C8", "Proposition 2: spectral norm exactly 1, gradients neither explode nor vanish",
     "norm closed-form radius metric-norm product-bound explode vanish contraction-rate norm-bound polynomial-bound",
     vla_claim_unit_norm},
    {"C9", "without normalisation the norm grows like d/lambda0, to 1e32 in 25 steps at d = 96", "norm product",
     vla_claim_unnormalised},
    {"C16", "recently written directions receive smaller updates", "recency gain-by-age orthogonal count",
     vla_claim_routing},
    {"C17", "VLA is kin of recursive least squares", "direction state", vla_claim_least_squares},
    {"C20", "DeltaNet is bounded but not direction-selective", "delta decay vla rls bounded", vla_claim_selective},
    {NULL, NULL, NULL, NULL},
};

static bool is_wanted(const vla_claim *claim, const char *const *names, int64_t count)
{
    bool wanted = count == 0;
    for (int64_t i = 0; i < count; i++) wanted = wanted || !strcmp(names[i], claim->id) || !strcmp(names[i], "all");
    return wanted;
}

static bool is_claim(const char *name)
{
    bool found = !strcmp(name, "all");
    for (const vla_claim *c = vla_claims; c->id; c++) found = found || !strcmp(c->id, name);
    return found;
}

static vla_status check_names(const char *const *names, int64_t count, vla_error *error)
{
    for (int64_t i = 0; i < count; i++)
        if (!is_claim(names[i]))
            return vla_fail(error, VLA_ERR_ARGUMENT,
                            "--verify: unknown claim '%.40s'; accepted: C2 C3 C4 C7 C8 C9 C16 C17 C20, or all",
                            names[i]);
    return VLA_OK;
}

bool vla_claim_has(const vla_claim *claim, const char *part)
{
    const size_t length = strlen(part);
    for (const char *at = claim->parts; length && (at = strstr(at, part)); at++)
        if ((at == claim->parts || at[-1] == ' ') && (at[length] == ' ' || !at[length]) && !strchr(part, ' '))
            return true;
    return false;
}

vla_status vla_claims_check_part(const char *part, const char *const *names, int64_t count, vla_error *error)
{
    char accepted[400] = "";
    const vla_status known = check_names(names, count, error);
    if (known) return known;
    for (const vla_claim *c = vla_claims; c->id; c++) {
        if (!is_wanted(c, names, count)) continue;
        if (vla_claim_has(c, part)) return VLA_OK;
        const size_t used = strlen(accepted);
        snprintf(accepted + used, sizeof accepted - used, "%s%s", used ? " " : "", c->parts);
    }
    return vla_fail(error, VLA_ERR_ARGUMENT, "--part: '%.40s': accepted: %s", part, accepted);
}

vla_status vla_claims_run(const vla_trial *trial, const char *const *names, int64_t count, vla_error *error)
{
    const vla_status known = check_names(names, count, error);
    if (known) return known;
    for (const vla_claim *c = vla_claims; c->id; c++) {
        if (!is_wanted(c, names, count)) continue;
        vla_trial labelled = *trial;
        labelled.label = c->id;
        vla_error inner = {VLA_OK, ""};
        const vla_status status = c->run(&labelled, &inner);
        if (status) return vla_fail(error, status, "%s: %s", c->id, inner.message);
        if (!vla_trial_go_on(&labelled, 1, 1)) break;
    }
    return VLA_OK;
}

static bool same(const vla_record *a, const vla_record *b, const char *field)
{
    return !strcmp(vla_record_text(a, field, ""), vla_record_text(b, field, ""));
}

static const vla_record *matching(const vla_records *rows, const vla_record *expected)
{
    for (int64_t i = 0; i < rows->count; i++) {
        const vla_record *r = rows->rows[i];
        if (!strcmp(vla_record_text(r, "kind", ""), "verdict") && same(r, expected, "claim") &&
            same(r, expected, "part") && same(r, expected, "source"))
            return r;
    }
    return NULL;
}

vla_status vla_claims_compare(const vla_records *rows, const char *path, int64_t *differences,
                              void (*note)(void *context, const char *line), void *context, vla_error *error)
{
    vla_records expected = {0};
    const vla_status status = vla_records_read(&expected, path, error);
    int64_t compared = 0;
    *differences = 0;
    for (int64_t i = 0; i < expected.count && !status; i++) {
        const vla_record *e = expected.rows[i];
        if (strcmp(vla_record_text(e, "kind", ""), "verdict")) continue;
        compared++;
        const vla_record *r = matching(rows, e);
        if (r && same(r, e, "verdict")) continue;
        char line[400];
        snprintf(line, sizeof line, "%s %s %s: expected %s, measured %s", vla_record_text(e, "claim", "?"),
                 vla_record_text(e, "part", "?"), vla_record_text(e, "source", "?"), vla_record_text(e, "verdict", "?"),
                 r ? vla_record_text(r, "verdict", "?") : "no such row");
        note(context, line);
        ++*differences;
    }
    vla_records_clear(&expected);
    if (status) return status;
    if (compared == 0) return vla_fail(error, VLA_ERR_FILE, "%s: holds no verdict rows", path);
    return VLA_OK;
}

static bool has_value(const vla_record *r, const char *field, const char *wanted)
{
    char *end = NULL;
    const double value = strtod(wanted, &end);
    if (end == wanted || *end) return !strcmp(vla_record_text(r, field, ""), wanted);
    return fabs(vla_record_number(r, field, NAN) - value) <= 1e-9 * fmax(1e-3, fabs(value));
}

vla_status vla_claims_want(const vla_records *rows, const char *kind, const char *want, int64_t *differences,
                           void (*note)(void *context, const char *line), void *context, vla_error *error)
{
    char field[80], line[320];
    const char *equals = strchr(want, '=');
    if (!equals || equals == want || equals - want >= (long)sizeof field)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--want: '%.100s': FIELD=X is accepted", want);
    memcpy(field, want, (size_t)(equals - want));
    field[equals - want] = '\0';
    int64_t found = 0;
    *differences = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        const vla_record *r = rows->rows[i];
        if (strcmp(vla_record_text(r, "kind", ""), kind)) continue;
        found++;
        if (has_value(r, field, equals + 1)) continue;
        char number[40];
        snprintf(number, sizeof number, "%.17g", vla_record_number(r, field, NAN));
        const char *text = vla_record_text(r, field, NULL);
        snprintf(line, sizeof line, "wanted %.160s, measured %.80s", want,
                 text                                      ? text
                 : isnan(vla_record_number(r, field, NAN)) ? "nothing of that name"
                                                           : number);
        note(context, line);
        ++*differences;
    }
    if (found > 0) return VLA_OK;
    return vla_fail(error, VLA_ERR_ARGUMENT, "--want %.100s: no %s row was made", want, kind);
}
