/* The measurement itself, without a claim: traces of operators on sources as records.
 *
 *   jacobian    one row a recorded step, head and seed
 *   summary     one row a case (operator, source, shape, parameters): over heads and seeds medians with their
 *               bootstrap intervals, and the worst where one value speaks
 *   histogram   c = alpha.k of vla, one row a bin
 *   derivative  the analytic Jacobian against differences of a form that runs
 *   growth      without normalisation, step by step, at several widths */
#ifndef VLA_ANALYSIS_SURVEY_H
#define VLA_ANALYSIS_SURVEY_H
#include "lib/analysis/trial.h"
#include <stdio.h>

typedef struct vla_survey {
    const vla_trial *trial;
    const vla_op *ops;
    int op_count;
    const int64_t *T, *dk, *dv; /* [T_count], [d_count]: dk and dv go together */
    int64_t T_count, d_count;
    const double *lambda0;
    int64_t lambda0_count;
    const int64_t *refresh; /* periods, 0 for none */
    int64_t refresh_count;
    int64_t every;
    bool rows;             /* jacobian rows too */
    const vla_form *forms; /* subjects of the finite differences */
    int form_count;
    vla_dtype dtype;
    double v_mean;
    /* false: leave this case out (filtered, or measured before); may be NULL. */
    bool (*wanted)(void *context, const char *label, const char *key);
} vla_survey;

/* *failed: cases whose finite differences disagree. */
vla_status vla_survey_run(const vla_survey *survey, int64_t *failed, vla_error *error);

/* One witness: searched, written below trial->witness, traced, with its replay line in the summary. */
vla_status vla_survey_adversary(const vla_survey *survey, vla_goal goal, vla_error *error);

/* What the figures need beyond that: growth rows at d = 32, 64, 96, 128, and state rows of every operator to T. */
vla_status vla_survey_unnormalised(const vla_trial *trial, vla_error *error);
vla_status vla_survey_states(const vla_trial *trial, const vla_op *ops, int op_count, int64_t T, vla_error *error);

/* Summaries, witnesses and verdicts as tables; derivatives when one failed or with verbose. */
void vla_jacobian_tables(FILE *stream, const vla_records *rows, bool verbose);

/* Draws every figure the records allow into directory. note(context, line) hears of what was not rendered. */
vla_status vla_jacobian_figures(const vla_records *rows, const char *directory,
                                void (*note)(void *context, const char *line), void *context, vla_error *error);

#endif
