/* The claims this program tries: a table of runners. */
#ifndef VLA_ANALYSIS_CLAIMS_H
#define VLA_ANALYSIS_CLAIMS_H
#include "lib/analysis/trial.h"

typedef struct vla_claim {
    const char *id, *stated;
    const char *parts; /* what verdicts it may give, separated by spaces */
    vla_status (*run)(const vla_trial *trial, vla_error *error);
} vla_claim;

/* Ended by id == NULL. */
extern const vla_claim vla_claims[];

vla_status vla_claim_state_growth(const vla_trial *trial, vla_error *error);  /* C2 */
vla_status vla_claim_inverse(const vla_trial *trial, vla_error *error);       /* C3 */
vla_status vla_claim_objective(const vla_trial *trial, vla_error *error);     /* C4 */
vla_status vla_claim_bounded(const vla_trial *trial, vla_error *error);       /* C7 */
vla_status vla_claim_unit_norm(const vla_trial *trial, vla_error *error);     /* C8 */
vla_status vla_claim_unnormalised(const vla_trial *trial, vla_error *error);  /* C9 */
vla_status vla_claim_routing(const vla_trial *trial, vla_error *error);       /* C16 */
vla_status vla_claim_least_squares(const vla_trial *trial, vla_error *error); /* C17 */
vla_status vla_claim_selective(const vla_trial *trial, vla_error *error);     /* C20 */

/* Runs the claims named (all when count is 0), in the table's order. An unknown name is VLA_ERR_ARGUMENT with the list.
 */
vla_status vla_claims_run(const vla_trial *trial, const char *const *names, int64_t count, vla_error *error);

/* Whether a claim has this part. */
bool vla_claim_has(const vla_claim *claim, const char *part);
/* VLA_ERR_ARGUMENT with the list unless one of the claims named has this part. */
vla_status vla_claims_check_part(const char *part, const char *const *names, int64_t count, vla_error *error);

/* Compares verdict rows with expected ones on claim, part and source. Each expected row must be there with the same
 * verdict. *differences counts; note(context, line) hears each. */
vla_status vla_claims_compare(const vla_records *rows, const char *path, int64_t *differences,
                              void (*note)(void *context, const char *line), void *context, vla_error *error);

/* want: FIELD=X. Every row of a kind must have that value: a number within 1e-9 relative, or the same text.
 * *differences counts those that have not; no such row at all is VLA_ERR_ARGUMENT. */
vla_status vla_claims_want(const vla_records *rows, const char *kind, const char *want, int64_t *differences,
                           void (*note)(void *context, const char *line), void *context, vla_error *error);

#endif
