#include "cmd/jacobian.h"
#include "lib/analysis/claims.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include <string.h>

static const char *const source_names[] = {"paper", "gauss", "tied", "isotropic", "adversary", "all", NULL};
static const char *const goal_names[] = {"jacobian", "product", "state", "isotropic", "all", NULL};

void jacobian_free(jacobian_options *o)
{
    vla_strings *lists[] = {&o->sources, &o->goals, &o->verify, &o->wants, &o->lambda0s};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) vla_strings_free(lists[i]);
    vla_range_free(&o->refresh_periods);
    vla_common_free(&o->common);
}

bool jacobian_everything(const jacobian_options *o)
{
    return o->sources.count == 0 && !o->common.input && (o->verify.count || o->common.plot);
}

bool jacobian_adversary(const jacobian_options *o)
{
    bool wanted = jacobian_everything(o);
    for (int64_t i = 0; i < o->sources.count; i++)
        wanted = wanted || !strcmp(o->sources.values[i], "all") || !strcmp(o->sources.values[i], "adversary");
    return wanted;
}

vla_status jacobian_check(const jacobian_options *o, vla_error *error)
{
    const vla_common *c = &o->common;
    vla_records expected = {0};
    for (int64_t i = 0; i < o->wants.count; i++) {
        const char *equals = strchr(o->wants.values[i], '=');
        if (!equals || equals == o->wants.values[i] || equals[1] == '\0')
            return vla_fail(error, VLA_ERR_ARGUMENT, "--want: '%.100s': FIELD=X is accepted", o->wants.values[i]);
    }
    if (strstr(c->backend, "cuda"))
        return vla_fail(error, VLA_ERR_DEVICE, "--backend cuda: Jacobians are taken on the CPU; accepted: cpu, auto");
    if (c->fail_on && strcmp(c->fail_on, "refuted"))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--fail-on %s: refuted is accepted", c->fail_on);
    static const char once[] = "several values; accepted: one", timing[] = "nothing is timed here; vla-bench's option";
    static const char kernel[] = "not for vla-jacobian; accepted by vla-run and vla-bench";
    static const char survey[] = "not for claims, which have their own; accepted without --verify";
    const bool claims = o->verify.count > 0;
    const vla_rule rules[] = {
        {c->resume && c->outputs.count == 0, "--resume", "no file to go on from; accepted: with -o FILE"},
        {c->threads.count > 1, "--threads", once},
        {c->H.count > 1, "--H", once},
        {claims && c->T.count > 1, "--T", "several values; accepted with --verify: one"},
        {claims && c->T.count == 1 && c->T.values[0] == 0, "--T", "0 tokens; accepted with --verify: 1 or more"},
        {claims && c->d.count > 1, "--d", "several values; accepted with --verify: one"},
        {claims && o->lambda0s.count > 0, "--lambda0s", survey},
        {claims && o->refresh_periods.count > 0, "--refresh-periods", survey},
        {claims && o->goals.count > 0, "--goal", survey},
        {claims && o->every > 0, "--every", survey},
        {o->goals.count > 0 && !jacobian_adversary(o), "--goal",
         "no adversary is asked for; accepted: with --source adversary"},
        {c->lambda0_given && o->lambda0s.count > 0, "--lambda0", "given beside --lambda0s; accepted: one of them"},
        {c->dtypes.count > 1, "--dtype", once},
        {c->refresh_period && o->refresh_periods.count, "--refresh-period",
         "given beside --refresh-periods; accepted: one of them"},
        {o->part && !claims, "--part", "no claims are tried; accepted: with --verify"},
        {c->time_limit > 0, "--time-limit", timing},
        {c->min_samples_given, "--min-samples", timing},
        {c->noise_given, "--noise", timing},
        {c->B.count > 0, "--B", kernel},
        {c->chunk.count > 0, "--chunk", kernel},
        {c->segments.count > 0, "--segments", kernel},
    };
    vla_status status = vla_rules_check(rules, sizeof rules / sizeof *rules, error);
    if (!status && o->part) status = vla_claims_check_part(o->part, o->verify.values, o->verify.count, error);
    if (status) return status;
    status = c->plot && !c->dry_run ? vla_directory_make(c->plot, error) : VLA_OK;
    if (!status && c->expect) status = vla_records_read(&expected, c->expect, error);
    vla_records_clear(&expected);
    return status;
}

bool jacobian_parse(jacobian_options *o, int argc, char **argv, int *exit_code)
{
    *o = (jacobian_options){.bound = 8, .witness = "vla-witness"};
    vla_common_init(&o->common);
    const vla_option rows[] = {
        {.name = "source",
         .type = VLA_OPT_LIST,
         .target = &o->sources,
         .argument = "LIST",
         .choices = source_names,
         .help = "paper gauss tied isotropic adversary, or all (default: paper; --verify, --plot: all)"},
        {.name = "verify",
         .type = VLA_OPT_LIST,
         .target = &o->verify,
         .argument = "LIST",
         .help = "try claims: C2 C3 C4 C7 C8 C9 C16 C17 C20, or all (default: measure only)"},
        {.name = "from",
         .type = VLA_OPT_TEXT,
         .target = &o->from,
         .argument = "FILE",
         .help = "print, compare and plot earlier records, measure nothing (default: none)"},
        {.name = "every",
         .type = VLA_OPT_INT,
         .target = &o->every,
         .argument = "N",
         .min = 1,
         .max = 1e12,
         .help = "a row every N steps; SVD and eigenvalues are taken at all (default: about 100 rows)"},
        {.name = "goal",
         .type = VLA_OPT_LIST,
         .target = &o->goals,
         .argument = "LIST",
         .choices = goal_names,
         .help = "what the adversary drives up: jacobian product state isotropic (default: all)"},
        {.name = "witness",
         .type = VLA_OPT_TEXT,
         .target = &o->witness,
         .argument = "DIR",
         .help = "where the adversary's inputs are written (default: vla-witness)"},
        {.name = "bound",
         .type = VLA_OPT_REAL,
         .target = &o->bound,
         .argument = "X",
         .min = 1,
         .max = 700,
         .help = "largest |raw key| the adversary may use (default: 8)"},
        {.name = "lambda0s",
         .type = VLA_OPT_LIST,
         .target = &o->lambda0s,
         .argument = "LIST",
         .help = "several lambda0, one case each (default: --lambda0)"},
        {.name = "refresh-periods",
         .type = VLA_OPT_RANGE,
         .target = &o->refresh_periods,
         .argument = "RANGE",
         .min = 0,
         .max = 1e12,
         .help = "several refresh periods, 0 for none (default: --refresh-period)"},
        {.name = "v-mean",
         .type = VLA_OPT_REAL,
         .target = &o->v_mean,
         .argument = "X",
         .min = -1e6,
         .max = 1e6,
         .help = "mean of synthetic values (default: 0)"},
        {.name = "part",
         .type = VLA_OPT_TEXT,
         .target = &o->part,
         .argument = "NAME",
         .help = "only this part of the claims tried (default: all)"},
        {.name = "want",
         .type = VLA_OPT_TEXTS,
         .target = &o->wants,
         .argument = "FIELD=X",
         .help = "exit 1 unless every summary (or verdict) has this value; replay lines use it (default: none)"},
        {.name = NULL}};
    vla_option_group groups[2 + VLA_COMMON_GROUPS] = {{"vla-jacobian", rows}};
    const vla_option_group *shared = vla_common_groups(&o->common);
    if (!shared) return *exit_code = 2, false;
    static const char *const other[][2] = {
        {"op", "operators: linear delta decay vla rls, or all (default: vla; --plot: all)"},
        {"form", "the code whose derivative is compared: naive recurrent chunk scan (default: naive)"},
        {"dtype", "its numbers: f64 f32 (default: f64)"},
        {"backend", "cpu or auto: Jacobians are taken on the CPU (default: auto)"},
        {"features", "elu1, silu or identity (default: the source's: gauss identity, else elu1)"},
        {"H", "heads (default: 4)"},
        {"T", "tokens (default: 1000, or those of --input; claims: their own)"},
        {"d", "key and value width: sets --dk and --dv (default: 64; claims: their own)"},
        {"chunk", "refused here: vla-run's and vla-bench's"},
        {"segments", "refused here: vla-run's and vla-bench's"},
        {"B", "refused here: vla-run's and vla-bench's"},
        {"time-limit", "refused here: nothing is timed"},
        {"min-samples", "refused here: nothing is timed"},
        {"noise", "refused here: nothing is timed"},
        {"fail-on", "refuted: exit 5 when a claim is (default: none)"},
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) vla_common_explain(&o->common, other[i][0], other[i][1]);
    memcpy(groups + 1, shared, (VLA_COMMON_GROUPS + 1) * sizeof *groups);
    const vla_cli cli = {
        "vla-jacobian", "vla-jacobian [OPTIONS]",
        "Jacobians, their products and the state, step by step, and the paper's propositions on trial.\n"
        "Measured in float64, a source and an operator a case; claims have sizes of their own unless given.",
        groups, &o->common};
    vla_strings words = {0};
    bool go_on = vla_cli_parse(&cli, argc, argv, &words, stdout, stderr, exit_code);
    if (go_on && words.count) {
        fprintf(stderr, "vla-jacobian: '%s': no argument without an option is accepted\n", words.values[0]);
        *exit_code = vla_exit_code(VLA_ERR_ARGUMENT);
        go_on = false;
    }
    vla_strings_free(&words);
    return go_on;
}
