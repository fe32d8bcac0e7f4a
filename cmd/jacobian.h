/* vla-jacobian's options, with this program's own defaults. */
#ifndef CMD_JACOBIAN_H
#define CMD_JACOBIAN_H
#include "lib/cli/options.h"

typedef struct jacobian_options {
    vla_common common;
    vla_strings sources, goals, verify, wants, lambda0s;
    vla_range refresh_periods;
    int64_t every;
    double bound, v_mean;
    const char *witness, *part, *from;
} jacobian_options;

/* Parses argv. False: leave main with *exit_code. */
bool jacobian_parse(jacobian_options *options, int argc, char **argv, int *exit_code);
void jacobian_free(jacobian_options *options);

/* Every source is tried: none is named where claims or figures want them all. */
bool jacobian_everything(const jacobian_options *options);
/* The adversary is among the sources. */
bool jacobian_adversary(const jacobian_options *options);

/* Refuses what would be found wrong, or be ignored, only after everything has been measured; makes --plot's folder. */
vla_status jacobian_check(const jacobian_options *options, vla_error *error);

#endif
