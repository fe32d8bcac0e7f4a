/* What records of vla-bench say about the paper's claims on speed and memory, by fixed rules: one verdict per claim,
 * part and setting, each with the numbers it rests on and the command that measures them again. */
#ifndef VLA_MEASURE_VERDICT_H
#define VLA_MEASURE_VERDICT_H
#include "lib/report/record.h"

/* Pushes `verdict` records (claim part source verdict value lo hi claimed condition replay) on out. From prefill rows:
 *   C1  exponents of time in T over the last factor of eight: within 0.1 of what is claimed; "holds if" where the
 *       exponent of all sizes is not
 *   C5  vla's time over linear's at every common T, and their operation counts: within a fifth of 5
 *   C6  vla stepwise (one launch a token) over recurrent (one launch): at least 14
 *   C11 the measured crossover of vla and softmax: 43,000 inside its bracket, widened by a tenth; and where power laws
 *       through points to T = 4,096 meet: the truth within 15 %
 *   C19 softmax beyond 1e5 tokens, and its memory's exponent in T
 * from decode rows:
 *   C18 vla's state: the same at every context; its time a token: within a tenth at the longest and the shortest
 * What the rows do not hold gives no verdict. */
vla_status vla_bench_verdicts(const vla_records *rows, uint64_t seed, vla_records *out, vla_error *error);

#endif
