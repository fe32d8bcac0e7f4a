#include "lib/analysis/trial.h"
#include "lib/base/names.h"
#include "lib/base/status.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *vla_ruling_name(vla_ruling ruling)
{
    static const char *const name[] = {"holds", "holds if", "refuted", "not measured here"};
    return name[ruling];
}

vla_verdict vla_verdict_of(const char *claim, const char *part, const char *source, const char *stated)
{
    return (vla_verdict){.claim = claim,
                         .part = part,
                         .source = source,
                         .stated = stated,
                         .value = {NAN, NAN, NAN, 0},
                         .worst = NAN,
                         .expected = NAN,
                         .tolerance = NAN};
}

void vla_shell_word(char *to, size_t size, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@%";
    size_t at = 0;
    if (size == 0) return;
    if (*text && strspn(text, plain) == strlen(text)) {
        snprintf(to, size, "%s", text);
        return;
    }
    for (const char *c = text; at + 8 < size; c++) {
        if (c == text) to[at++] = '\'';
        if (!*c) break;
        if (*c == '\'') {
            memcpy(to + at, "'\\''", 4);
            at += 4;
        } else {
            to[at++] = *c;
        }
    }
    to[at++] = '\'';
    to[at] = '\0';
}

/* PROGRAM --verify C --source S | --input DIR [options] --part P --want value=X, in fresh memory; NULL: there is none.
 */
static char *verify_line(const vla_trial *trial, const vla_verdict *v)
{
    char program[1024], input[1024], want[80], *line;
    vla_shell_word(program, sizeof program, trial->program);
    vla_shell_word(input, sizeof input, trial->input ? trial->input : "");
    const bool tensors = !strcmp(v->source, "input");
    if (isfinite(v->value.value) || isfinite(v->worst))
        snprintf(want, sizeof want, "%s=%.17g", isfinite(v->value.value) ? "value" : "worst",
                 isfinite(v->value.value) ? v->value.value : v->worst);
    else
        snprintf(want, sizeof want, "verdict='%s'", vla_ruling_name(v->ruling));
    return asprintf(&line, "%s --verify %s %s %s%s --part %s --want %s", program, v->claim,
                    tensors ? "--input" : "--source", tensors ? input : v->source, trial->options, v->part, want) < 0
               ? NULL
               : line;
}

bool vla_trial_wants(const vla_trial *trial, const char *part)
{
    return !trial->part || !strcmp(trial->part, part);
}

vla_status vla_verdict_emit(const vla_trial *trial, const vla_verdict *v, vla_error *error)
{
    if (!vla_trial_wants(trial, v->part)) return VLA_OK;
    if (!vla_trial_go_on(trial, 1, 1)) return VLA_OK; /* interrupted: what was measured is not all of it */
    vla_record *r = vla_record_create("verdict");
    if (!r) return vla_fail(error, VLA_ERR_MEMORY, "verdict: out of memory");
    char *line = *v->replay ? NULL : verify_line(trial, v);
    const bool ok = vla_record_string(r, "claim", v->claim) && vla_record_string(r, "part", v->part) &&
                    vla_record_string(r, "source", v->source) &&
                    vla_record_string(r, "verdict", vla_ruling_name(v->ruling)) &&
                    vla_record_real(r, "value", v->value.value) && vla_record_real(r, "lo", v->value.lo) &&
                    vla_record_real(r, "hi", v->value.hi) && vla_record_real(r, "worst", v->worst) &&
                    vla_record_real(r, "expected", v->expected) && vla_record_real(r, "tolerance", v->tolerance) &&
                    vla_record_string(r, "condition", *v->condition ? v->condition : NULL) &&
                    vla_record_string(r, "stated", v->stated) && vla_record_bool(r, "corrected", v->corrected) &&
                    vla_record_int(r, "n", v->value.n) && (line || *v->replay) &&
                    vla_record_string(r, "replay", line ? line : v->replay);
    free(line);
    if (!ok) {
        vla_record_destroy(r);
        return vla_fail(error, VLA_ERR_MEMORY, "verdict: out of memory");
    }
    return trial->emit(trial->context, r, error);
}

bool vla_trial_go_on(const vla_trial *trial, double done, double total)
{
    return !trial->progress || trial->progress(trial->context, trial->label, done, total);
}

bool vla_trial_source(const vla_trial *trial, int i, int64_t heads, int64_t d, vla_op op, int64_t T, vla_source *source,
                      vla_problem *problem)
{
    if (!vla_trial_go_on(trial, 0, 1)) return false;
    if (i < trial->kind_count) {
        *source =
            (vla_source){.kind = trial->kinds[i], .heads = heads, .dk = d, .dv = d, .seed = (uint64_t)trial->seeds[0]};
        source->features = trial->features_given ? trial->base->features : vla_source_features(source->kind);
    } else if (i == trial->kind_count && trial->tensors) {
        *source = *trial->tensors;
        source->features = trial->base->features;
        if (T > source->T) T = source->T;
    } else {
        return false;
    }
    *problem = *trial->base;
    problem->op = op;
    problem->B = 1;
    problem->H = source->heads;
    problem->T = T;
    problem->dk = source->dk;
    problem->dv = source->dv;
    problem->features = source->features;
    problem->gate = VLA_GATE_NONE;
    return true;
}

const char *vla_trial_source_name(const vla_trial *trial, const vla_source *source)
{
    (void)trial;
    return source->kind == VLA_SOURCE_TENSORS ? "input" : vla_source_name(source->kind);
}

int64_t vla_trial_seeds(const vla_trial *trial, const vla_source *source)
{
    return source->kind == VLA_SOURCE_TENSORS ? 1 : trial->seed_count;
}

static bool trace_advance(void *context, int64_t done, int64_t total)
{
    return vla_trial_go_on(context, (double)done, (double)total);
}

vla_status vla_trial_trace(const vla_trial *trial, const vla_source *source, const vla_problem *problem, bool dense,
                           vla_trace_summary *summaries, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t s = 0; s < vla_trial_seeds(trial, source) && !status; s++) {
        vla_source seeded = *source;
        seeded.seed = (uint64_t)trial->seeds[s];
        union {
            const vla_trial *in;
            void *out;
        } context = {trial};
        const vla_trace_options options = {.problem = problem,
                                           .source = &seeded,
                                           .dense = dense,
                                           .pool = trial->pool,
                                           .advance = trace_advance,
                                           .context = context.out};
        status = vla_trace_run(&options, summaries + s * source->heads, error);
    }
    return status;
}

vla_status vla_trial_witness(const vla_trial *trial, vla_goal goal, vla_op op, int64_t T, int64_t d,
                             vla_witness *witness, char *replay, size_t replay_size, vla_error *error)
{
    vla_problem problem = *trial->base;
    problem.op = VLA_VLA;
    problem.B = problem.H = 1;
    problem.T = T;
    problem.dk = problem.dv = d;
    problem.no_normalise = false;
    problem.refresh_period = 0;
    const vla_adversary_options options = {.goal = goal,
                                           .problem = &problem,
                                           .bound = trial->bound,
                                           .trials = 4,
                                           .seed = (uint64_t)trial->seeds[0],
                                           .pool = trial->pool};
    vla_status status = vla_adversary_search(&options, witness, error);
    if (status) return status;
    char directory[600], program[400], word[700];
    snprintf(directory, sizeof directory, "%s/%s_d%lld_T%lld_%s", trial->witness, vla_goal_name(goal), (long long)d,
             (long long)T, vla_features_name(problem.features));
    if ((status = vla_witness_write(witness, directory, error))) {
        vla_witness_destroy(witness);
        return status;
    }
    double value = witness->value;
    if (op != VLA_VLA) {
        problem.op = op;
        const vla_source source = vla_witness_source(witness);
        const vla_trace_options trace = {
            .problem = &problem, .source = &source, .every = T > 0 ? T : 1, .dense = true, .pool = trial->pool};
        if ((status = vla_trace_run(&trace, &witness->summary, error))) {
            vla_witness_destroy(witness);
            return status;
        }
        value = witness->value = vla_goal_value(goal, &witness->summary);
    }
    vla_shell_word(program, sizeof program, trial->program);
    vla_shell_word(word, sizeof word, directory);
    snprintf(replay, replay_size, "%s --input %s --op %s --features %s --lambda0 %.17g --every %lld --want %s=%.17g",
             program, word, vla_op_name(op), vla_features_name(problem.features), problem.lambda0,
             (long long)(T > 0 ? T : 1), vla_goal_field(goal), value / vla_goal_unit(goal));
    return VLA_OK;
}
