/* The figures of vla-bench, from records alone. */
#ifndef VLA_MEASURE_FIGURES_H
#define VLA_MEASURE_FIGURES_H
#include "lib/report/record.h"

typedef struct vla_figures_done {
    int written, rendered;
    char note[240]; /* why some were not rendered */
} vla_figures_done;

/* For each setting among the `sample` rows, into DIRECTORY: prefill: latency (log-log, quartile bars, memory floor,
 * crossovers marked), time a token, memory; decode: latency and state memory against context length. Names carry the
 * setting only when there are several. And from the `crossover` rows: crossovers against d, where several share B*H
 * (crossover_width), and against B*H, where several share d (crossover_heads). */
vla_status vla_bench_figures(const char *directory, const vla_records *rows, vla_figures_done *done, vla_error *error);

#endif
