/* Claims on trial: settings, verdict records, and the command line that replays each of them.
 *
 * A verdict comes from what was measured in this run by the rule its runner states, never from a table:
 *   holds             within the tolerance everywhere it was tried
 *   holds if          within it only under `condition`, which was measured
 *   refuted           outside it; `replay` is a command line that shows the same number again
 *   not measured here the run could not settle it; `condition` says why */
#ifndef VLA_ANALYSIS_TRIAL_H
#define VLA_ANALYSIS_TRIAL_H
#include "lib/analysis/adversary.h"
#include "lib/analysis/interval.h"
#include "lib/analysis/trace.h"
#include "lib/report/record.h"

typedef struct vla_trial {
    const char *program;     /* how this program was called, for replay lines */
    const char *options;     /* options that every replay line must repeat (" --lambda0 1"), "" for none */
    const vla_problem *base; /* lambda0, refresh, features (where features_given) */
    bool features_given, lambda0_given;
    int64_t T, d, heads; /* 0: the claim's own */
    const int64_t *seeds;
    int64_t seed_count;
    const vla_source_kind *kinds;
    int kind_count;
    const vla_source *tensors; /* an --input directory as a further source, or NULL */
    const char *input;         /* its path */
    const char *part;          /* only verdicts of this part, NULL: all; runners skip what they can */
    bool adversary;
    double bound;        /* of the adversary's raw inputs */
    const char *witness; /* directory that witnesses go to */
    vla_pool *pool;
    vla_exec *exec;
    bool (*progress)(void *context, const char *label, double done, double total); /* false: stop */
    vla_status (*emit)(void *context, vla_record *record, vla_error *error);       /* takes the record */
    void *context;
    const char *label; /* of the running claim; set by vla_claims_run */
} vla_trial;

typedef enum vla_ruling { VLA_HOLDS, VLA_HOLDS_IF, VLA_REFUTED, VLA_NOT_MEASURED } vla_ruling;

typedef struct vla_verdict {
    const char *claim, *part, *source;
    const char *stated; /* what is tried, in one line */
    bool corrected;     /* a corrected proposition, printed beside the claim it replaces */
    vla_interval value;
    double worst;               /* over heads and seeds, in the direction that speaks against the claim */
    double expected, tolerance; /* what the claim says, and what still counts as that */
    vla_ruling ruling;
    char condition[240];
    char replay[1100]; /* "": the verify line with this trial's options */
} vla_verdict;

vla_verdict vla_verdict_of(const char *claim, const char *part, const char *source, const char *stated);
/* The part is wanted. */
bool vla_trial_wants(const vla_trial *trial, const char *part);
vla_status vla_verdict_emit(const vla_trial *trial, const vla_verdict *verdict, vla_error *error);
const char *vla_ruling_name(vla_ruling ruling);

/* i-th source to try, false past the last and once the run is interrupted. Fills the source (dk = dv = d for synthetic
 * ones) and a problem of op with the features that belong to it; its T is T, cut to what the tensors hold. */
bool vla_trial_source(const vla_trial *trial, int i, int64_t heads, int64_t d, vla_op op, int64_t T, vla_source *source,
                      vla_problem *problem);
const char *vla_trial_source_name(const vla_trial *trial, const vla_source *source);
int64_t vla_trial_seeds(const vla_trial *trial, const vla_source *source); /* 1 for tensors */

bool vla_trial_go_on(const vla_trial *trial, double done, double total);

/* Traces every seed of a source into summaries [seeds x heads], heads fastest. */
vla_status vla_trial_trace(const vla_trial *trial, const vla_source *source, const vla_problem *problem, bool dense,
                           vla_trace_summary *summaries, vla_error *error);

/* Searches a witness for `goal`, writes it below trial->witness, and fills `replay` with the line that runs it on op.
 */
vla_status vla_trial_witness(const vla_trial *trial, vla_goal goal, vla_op op, int64_t T, int64_t d,
                             vla_witness *witness, char *replay, size_t replay_size, vla_error *error);

/* text as one word for a POSIX shell. */
void vla_shell_word(char *to, size_t size, const char *text);

#endif
