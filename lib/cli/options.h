/* The option grammar of all four programs: long and short names, any order, whole values, one-line errors. */
#ifndef VLA_CLI_OPTIONS_H
#define VLA_CLI_OPTIONS_H
#include "lib/report/report.h"
#include "lib/vla.h"
#include <stdio.h>

/* A list of integers from a RANGE: `64`, `64,128`, `64-4096x2` (or *), `64-256+64`, repeated options append; sizes
 * may end in k or M (1024s). */
typedef struct vla_range {
    int64_t *values;
    int64_t count;
} vla_range;

/* A list of names or paths. */
typedef struct vla_strings {
    const char **values;
    int64_t count;
} vla_strings;

typedef enum vla_option_type {
    VLA_OPT_FLAG,   /* bool *            no argument */
    VLA_OPT_INT,    /* int64_t *         k and M suffixes, min..max */
    VLA_OPT_REAL,   /* double *          min..max; nan and inf refused */
    VLA_OPT_TEXT,   /* const char **     */
    VLA_OPT_TEXTS,  /* vla_strings *     repeatable, one value a time */
    VLA_OPT_LIST,   /* vla_strings *     comma-separated, repeatable, items among choices when given */
    VLA_OPT_CHOICE, /* const char **     one of choices */
    VLA_OPT_RANGE   /* vla_range *       items min..max */
} vla_option_type;

typedef struct vla_option {
    const char *name; /* long name without dashes */
    char letter;      /* 0: none */
    vla_option_type type;
    void *target;
    const char *argument;       /* "RANGE", "X" in --help; NULL for flags */
    const char *help;           /* one line, with the default */
    const char *const *choices; /* NULL-ended */
    double min, max;            /* inclusive, for INT, REAL, RANGE; both 0: any value */
    bool *given;                /* set when the option was used; may be NULL */
} vla_option;

typedef struct vla_option_group {
    const char *title;
    const vla_option *options; /* ended by name == NULL */
} vla_option_group;

/* Parses argv with getopt_long. Abbreviated long options are refused. Positional arguments go to *words (may be
 * anywhere). Errors: VLA_ERR_ARGUMENT naming the option, the value and what is accepted. groups end with title NULL.
 * Scalars given twice keep the last value; lists and ranges append. Not thread-safe (getopt is not). */
vla_status vla_options_parse(const vla_option_group *groups, int argc, char **argv, vla_strings *words,
                             vla_error *error);
void vla_options_help(FILE *stream, const char *usage, const char *summary, const vla_option_group *groups);

/* One range in text; appends to range. name is for messages ("--T"). */
vla_status vla_range_parse(vla_range *range, const char *text, const char *name, int64_t min, int64_t max,
                           vla_error *error);
void vla_range_free(vla_range *range);
void vla_strings_free(vla_strings *strings);

/* The shared options of DESIGN section 4, one meaning in every program. Fields keep raw lists; empty means the
 * program's default. */
typedef struct vla_common {
    vla_strings ops, forms, dtypes;
    const char *backend; /* cpu cuda auto, or cpu,cuda */
    const char *isa;     /* auto base avx2 avx512 */
    vla_range B, H, T, d, dk, dv, chunk, segments, threads, seeds;
    double lambda0; /* 0.1 */
    const char *features, *qk_norm, *output, *preset;
    bool no_normalise;
    int64_t refresh_period;
    double refresh_eps;
    int64_t seed; /* 42 */
    vla_strings cases, filters;
    double time_limit;   /* seconds; 0: the program's default */
    int64_t min_samples; /* 10 */
    double noise;        /* 0.02 */
    bool resume, dry_run, strict;
    const char *expect, *fail_on;
    const char *input;   /* DIR with q.npy k.npy v.npy [u b g] */
    vla_strings outputs; /* -o */
    const char *format;  /* NULL: readable table */
    const char *plot;    /* DIR */
    bool quiet, verbose, help, version;
    bool lambda0_given, min_samples_given, noise_given;
    void *tables; /* the option rows */
} vla_common;

void vla_common_init(vla_common *common);
void vla_common_free(vla_common *common);
#define VLA_COMMON_GROUPS 3
/* Option rows that fill common: VLA_COMMON_GROUPS groups (and an end) to put after the program's own. Valid while
 * common lives and stays where it is; NULL when out of memory. */
const vla_option_group *vla_common_groups(vla_common *common);

/* Replaces the help of one shared option, for a program whose default is another; after vla_common_groups. */
void vla_common_explain(vla_common *common, const char *option, const char *help);

/* What a program cannot use, as a list: the first broken rule is VLA_ERR_ARGUMENT, "OPTION: WHY". */
typedef struct vla_rule {
    bool broken;
    const char *option, *why;
} vla_rule;
vla_status vla_rules_check(const vla_rule *rules, size_t count, vla_error *error);

/* Appends value to a list of `count` unless it is there; the new count. */
int vla_add_once(int *values, int count, int value);
/* --op, --dtype and --form as values, "all" expanded, repetitions dropped. Return the count, 0 when not given.
 * forms may hold VLA_BEST; room for VLA_OPS, VLA_DTYPES, VLA_FORMS + 1. */
int vla_common_ops(const vla_common *common, vla_op *ops);
int vla_common_dtypes(const vla_common *common, vla_dtype *dtypes);
int vla_common_forms(const vla_common *common, vla_form *forms);
/* Was the form asked for by its own name? One that only "all" brings is left out where there is no such kernel. */
bool vla_common_form_named(const vla_common *common, vla_form form);
/* i-th pair of widths, false past the end: --d gives pairs (d, d), default 64; with --dk or --dv every dk (default: the
 * values of --d) is combined with every dv (default: the values of --d). */
bool vla_common_width(const vla_common *common, int64_t i, int64_t *dk, int64_t *dv);

/* Everything a program's first lines need: parse argv, answer --help and --version on out, errors on err. True: go on.
 * False: leave main with *exit_code (also when out did not take the answer). Closed standard streams are made to fail
 * rather than be mistaken for the next file opened. */
typedef struct vla_cli {
    const char *program, *usage, *summary;
    const vla_option_group *groups; /* the program's own and the shared ones, ended by title NULL */
    const vla_common *common;
} vla_cli;
bool vla_cli_parse(const vla_cli *cli, int argc, char **argv, vla_strings *words, FILE *out, FILE *err, int *exit_code);

/* Applies features, qk-norm, output, lambda0, refresh, no-normalise and preset to a problem; refuses unknown values. */
vla_status vla_common_problem(const vla_common *common, vla_problem *problem, vla_error *error);
/* --resume: appends what the -o files hold to *rows; nothing without --resume. Files that are missing, empty or .md
 * hold none; others must be readable records (VLA_ERR_FILE). */
vla_status vla_common_earlier(const vla_common *common, vla_records *rows, vla_error *error);
/* Opens -o files and --format on stdout; with --resume a new file first gets the rows of the first that has some.
 * *table: whether the readable table belongs on stdout. */
vla_status vla_common_report(const vla_common *common, const vla_record *meta, vla_report **report, bool *table,
                             vla_error *error);
/* Exit status of a vla_status: 0, 2 usage (argument, unsupported, memory), 3 files, 4 device, 1 numeric. */
int vla_exit_code(vla_status status);

#endif
