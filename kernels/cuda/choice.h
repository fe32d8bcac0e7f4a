/* What --form best runs on a device: one selector from (operator, dtype, B H, T, widths, multiprocessors), measured
 * once. How many segments the chunkwise form then makes follows from the same numbers (chunks_a_segment in
 * chunk_host.cuh).
 *
 * A form's time is taken for base + T max(serial, load B H / multiprocessors): what a token costs when one head runs
 * alone, and what it costs a multiprocessor when heads queue for it. The numbers are microseconds of an H200 (132
 * multiprocessors), fitted by scripts/choice_table.sh to the record plots/reference/h200/grid.csv in least squares of
 * the logarithm; up to 64 tokens they are corrected by the cells of one chunk. The form with the least time is taken.
 * tests/test_choice.c holds it against every cell of that record.
 */
#ifndef VLA_CUDA_CHOICE_H
#define VLA_CUDA_CHOICE_H
#include "lib/vla.h"
#include <math.h>

typedef struct vla_cost {
    vla_op op;
    vla_form form;
    vla_dtype dtype; /* VLA_BF16 also stands for f16 */
    int width;       /* the larger of dk and dv, up to here */
    double base, serial, load;
} vla_cost;

static const vla_cost vla_costs[] = {
#include "kernels/cuda/choice_table.inc"
};

/* Microseconds of one chunk of 64 tokens: there forms are close, and their order changes with the number of heads more
 * than once, which no sum of three numbers follows. By heads, ascending. */
typedef struct vla_short_cost {
    vla_op op;
    vla_form form;
    vla_dtype dtype;
    int width, heads;
    double us;
} vla_short_cost;

static const vla_short_cost vla_short_costs[] = {
#include "kernels/cuda/choice_short.inc"
};

enum {
    VLA_SHORT = 64,
    VLA_SHORT_COSTS = sizeof vla_short_costs / sizeof *vla_short_costs,
    VLA_COSTS = sizeof vla_costs / sizeof *vla_costs,
    VLA_COSTS_OF = 132 /* multiprocessors they were measured on */
};

/* The row of a form at these widths: the narrowest that holds them, else the widest; NULL when none was measured. */
static inline const vla_cost *vla_cost_of(const vla_problem *p, vla_dtype dtype, vla_form form)
{
    const int64_t width = p->dk > p->dv ? p->dk : p->dv;
    const vla_cost *best = NULL;
    const vla_dtype like = dtype == VLA_F16 ? VLA_BF16 : dtype;
    for (int i = 0; i < VLA_COSTS; i++) {
        const vla_cost *c = &vla_costs[i];
        if (c->op != p->op || c->form != form || c->dtype != like) continue;
        const bool holds = c->width >= width, best_holds = best && best->width >= width;
        if (!best || (holds && (!best_holds || c->width < best->width)) ||
            (!holds && !best_holds && c->width > best->width))
            best = c;
    }
    return best;
}

static inline double vla_cost_us(const vla_cost *c, const vla_problem *p, int multiprocessors)
{
    const double heads = (double)p->B * (double)p->H,
                 queue = c->load * heads / (multiprocessors > 0 ? multiprocessors : 1);
    return c->base + (double)p->T * (queue > c->serial ? queue : c->serial);
}

/* The same, for up to a chunk corrected by what a chunk was measured to take with the next fewer and the next more
 * heads, in proportion of the logarithms. */
static inline double vla_expected_us(const vla_cost *c, const vla_problem *p, int multiprocessors)
{
    const vla_short_cost *below = NULL, *above = NULL;
    const double scale = (double)VLA_COSTS_OF / (multiprocessors > 0 ? multiprocessors : 1),
                 heads = (double)p->B * (double)p->H * scale;
    const double plain = vla_cost_us(c, p, multiprocessors);
    if (p->T > VLA_SHORT) return plain;
    for (int i = 0; i < VLA_SHORT_COSTS; i++) {
        const vla_short_cost *s = &vla_short_costs[i];
        if (s->op != c->op || s->form != c->form || s->dtype != c->dtype || s->width != c->width) continue;
        if (s->heads <= heads) below = s;
        if (s->heads >= heads && !above) above = s;
    }
    if (!below && !above) return plain;
    below = below ? below : above, above = above ? above : below;
    const double span = log((double)above->heads / below->heads), t = span > 0 ? log(heads / below->heads) / span : 0;
    vla_problem one = *p;
    double factor = 0;
    const vla_short_cost *const ends[2] = {below, above};
    for (int i = 0; i < 2; i++) {
        one.B = 1, one.H = ends[i]->heads, one.T = VLA_SHORT;
        factor += (i ? t : 1 - t) * log(ends[i]->us / vla_cost_us(c, &one, VLA_COSTS_OF));
    }
    return plain * exp(factor);
}

/* Among the forms that can run; of those that were not measured, the first in the order chunk, scan, recurrent,
 * stepwise, in float32 and tf32 scan before chunk, which is scan in one segment. A single token is a step of the
 * recurrence. VLA_NAIVE when none can. */
static inline vla_form vla_device_form(const vla_problem *p, vla_dtype dtype, int multiprocessors,
                                       const bool can[VLA_FORMS])
{
    const bool wide = dtype == VLA_F32 || dtype == VLA_TF32;
    const vla_form order[] = {wide ? VLA_SCAN : VLA_CHUNK, wide ? VLA_CHUNK : VLA_SCAN, VLA_RECURRENT, VLA_STEPWISE};
    vla_form best = VLA_NAIVE;
    double least = 0;
    if (p->T <= 1 && can[VLA_RECURRENT]) return VLA_RECURRENT;
    for (int i = 0; i < 4; i++) {
        const vla_cost *c = can[order[i]] ? vla_cost_of(p, dtype, order[i]) : NULL;
        const double time = c ? vla_expected_us(c, p, multiprocessors) : 0;
        if (!c || (best != VLA_NAIVE && !(time < least))) continue;
        best = order[i];
        least = time;
    }
    for (int i = 0; best == VLA_NAIVE && i < 4; i++)
        if (can[order[i]]) best = order[i];
    return best;
}

#endif
