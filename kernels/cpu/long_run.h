/* When a float A has to be summed with its rounding errors.
 *
 * Each update of A rounds, and what is lost grows like T^1.5: relative to A 1e-5 after 65,536 tokens, 3e-5 after
 * 131,072, for d 8 to 128, keys independent or coherent (measured). Up to here it stays below half of the limit of the
 * check.
 */
#ifndef VLA_CPU_LONG_RUN_H
#define VLA_CPU_LONG_RUN_H
#include "kernels/kernel.h"

enum { COMPENSATE_FROM = (1 << 16) + 1 };

static inline bool is_long(const vla_call *call)
{
    const vla_tensors *t = call->tensors;
    const int64_t before = t->state_in && t->t ? *t->t : 0;
    return before >= COMPENSATE_FROM || call->problem->T >= COMPENSATE_FROM - before;
}

#endif
