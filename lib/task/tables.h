/* The readable tables and the figures of vla-capacity, from its records. */
#ifndef VLA_TASK_TABLES_H
#define VLA_TASK_TABLES_H
#include "lib/report/record.h"
#include "lib/vla.h"
#include <stdio.h>

/* every: also one line for each n (recall), each network (trained). */
void vla_recall_tables(FILE *stream, const vla_records *records, bool every);
void vla_trained_tables(FILE *stream, const vla_records *records);
void vla_verdict_table(FILE *stream, const vla_records *records);

/* accuracy_n_KEYS_dD, age_KEYS_dD, capacity_KEYS (n95 against d) and state_KEYS (accuracy at n = 2d against bytes) from
 * recall; mqar_n, mqar_T (accuracy with seeds as bars), curves and gradient from training. Figures without any point
 * are not written. *notes counts figures that could not be rendered, the last reason in note. */
vla_status vla_task_figures(const char *directory, const vla_records *records, int64_t *written, char *note,
                            size_t note_size, vla_error *error);

#endif
