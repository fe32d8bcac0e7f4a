/* vla-capacity's options: what each task takes, with this program's own defaults. */
#ifndef CMD_CAPACITY_H
#define CMD_CAPACITY_H
#include "lib/cli/options.h"

typedef struct capacity_options {
    vla_common common;
    vla_range n, distractors;
    vla_strings keys, gates;
    int64_t trials, codebook, vocab, steps, batch;
    double decay, u_scale, lr, gate_bias;
    const char *u, *match, *from, *protocol, *mqar_form, *copy_form, *out_norm, *checkpoints, *dump;
    bool quick, short_conv, gradients, norms;
} capacity_options;

/* Choices, NULL-ended: a choice's place in its list is its value. */
extern const char *const capacity_protocol_names[];
extern const char *const capacity_form_names[];
extern const char *const capacity_copy_names[];
extern const char *const capacity_norm_names[];

/* Parses argv; *task is recall, mqar or copy. Refuses a task that does not exist and an option of another task, by
 * name. False: leave main with *exit_code. */
bool capacity_parse(capacity_options *options, int argc, char **argv, const char **task, int *exit_code);
void capacity_free(capacity_options *options);

#endif
