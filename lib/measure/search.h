/* Crossovers by measuring: the sweep brackets, then new sizes are timed until the bracket is narrow. */
#ifndef VLA_MEASURE_SEARCH_H
#define VLA_MEASURE_SEARCH_H
#include "lib/measure/curves.h"
#include "lib/measure/sweep.h"

typedef struct vla_pair {
    vla_op a, b;
} vla_pair;

/* For every setting among the rows that holds both operators of a pair: bisects with cases made from `cases` (those of
 * the two operators in that setting, at a new size), within the sweep's time limit, and pushes one `crossover` record
 * an answer on out. */
vla_status vla_search_crossovers(vla_sweep *sweep, const vla_records *rows, const vla_case *cases, int64_t count,
                                 const vla_pair *pairs, int pair_count, uint64_t seed, vla_records *out,
                                 vla_error *error);

#endif
