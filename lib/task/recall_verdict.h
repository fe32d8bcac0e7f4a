/* What recall records say about the paper's claims, by fixed rules; one verdict per claim, key source and width.
 *
 *   C10  exact recall below d_h: vla's accuracy >= 0.999 at every measured n < d. Partly: up to some n >= d/4.
 *   C14a beyond capacity vla degrades more gently than linear: intervals at n = 2d (or the nearest n above d) apart.
 *   C14b old associations are partly kept: the oldest quarter at that n is above chance by its interval.
 *   C14c a summary of the d most recent: of the newest d at n = 2d at least 95 % are right.
 *   C17  kin of recursive least squares: |S - S_rls|/|S_rls| at n = d is at most 0.1; and n95(rls)/n95(vla).
 *   C21  state growth causes interference: rank correlation of |S|_F and error, between the five recurrent memories at
 *        equal keys and n >= d, and within each memory over n (where both grow with n whatever the cause): mean at
 *        least 0.5 holds, at most 0 is refuted, between them undecided. */
#ifndef VLA_TASK_RECALL_VERDICT_H
#define VLA_TASK_RECALL_VERDICT_H
#include "lib/task/recall_sweep.h"

vla_status vla_recall_verdicts(const vla_records *records, const vla_row_sink *sink, vla_error *error);
/* Spearman's rank correlation, ties sharing their mean rank; NaN for n < 2 or > 64, or when one side is constant. */
double vla_rank_correlation(const double *x, const double *y, int64_t n);

#endif
