/* vla-bench: what its subcommands share. */
#ifndef VLA_CMD_BENCH_H
#define VLA_CMD_BENCH_H
#include "lib/cli/options.h"
#include "lib/cli/progress.h"
#include "lib/device/cudnn.h"
#include "lib/device/worker.h"
#include "lib/measure/case.h"
#include "lib/op/inputs.h"
#include "lib/measure/search.h"

typedef struct bench_options {
    vla_common common;
    const char *mode, *pass, *baseline, *launch, *cache, *check, *cudnn;
    vla_strings crossovers, from;
    vla_range depth;
    bool peak, profile;
} bench_options;

/* A median is slower or faster when its whole interval lies beyond this share of the other. */
#define BENCH_SLOWER_THRESHOLD 0.05

enum { BENCH_MOST_PAIRS = 32, BENCH_MOST_WORKERS = 8, BENCH_EXIT_INTERRUPTED = 130 };

/* The word that makes vla-bench the other process of lib/device/worker.h. */
#define BENCH_WORKER "worker"

/* Prints "vla-bench: MESSAGE" on stderr and returns the exit code of the error. */
int bench_fail(const vla_error *error);

/* Pairs of --crossover, or the default pair when both of its operators are among ops; *count may be 0. */
vla_status bench_pairs(const bench_options *o, const vla_op *ops, int op_count, vla_pair *pairs, int *count,
                       vla_error *error);
/* What the options ask for, size by size. listing: every form and dtype that is built unless told otherwise. */
vla_status bench_cases(const bench_options *o, bool listing, const vla_inputs *data, vla_cases *cases,
                       vla_error *error);
/* use[backend] of --backend. VLA_ERR_DEVICE when a device is asked for by name in vain. */
vla_status bench_backends(const bench_options *o, bool use[VLA_BACKENDS], vla_error *error);
/* Says on stderr why auto takes the CPU: where the build or an option would make one expect the device. */
void bench_note_backend(const bench_options *o);

/* The versions of cuDNN of a run: the first `used` of those found; this process has the first, a worker each of the
 * others. */
typedef struct bench_cudnn {
    vla_cudnn_versions versions;
    int used;
    vla_worker *workers[BENCH_MOST_WORKERS];
    int worker_count;
    char here[32];
} bench_cudnn;

/* The cases that cuDNN runs. */
bool bench_by_cudnn(const vla_case *c);
/* Finds them where a case needs one, by --cudnn and VLA_CUDNN, and sets VLA_CUDNN to that of this process. */
vla_status bench_cudnn_choose(bench_cudnn *c, const bench_options *o, const vla_cases *cases, vla_error *error);
/* Their versions and paths into the run's metadata; false when out of memory. */
bool bench_cudnn_meta(const bench_cudnn *c, vla_record *meta);
/* Starts the other processes and says so on stderr. */
void bench_cudnn_start(bench_cudnn *c, bool quiet);
void bench_cudnn_end(bench_cudnn *c);

int bench_run(bench_options *o);
int bench_list(bench_options *o);
int bench_compare(bench_options *o, const vla_strings *words);
int bench_merge(bench_options *o, const vla_strings *words);
int bench_plot(bench_options *o);
int bench_crossover(bench_options *o);
int bench_fit(bench_options *o);
int bench_verdict(bench_options *o);

/* Readable tables and sentences on stdout. */
void bench_print_samples(const vla_records *rows, bool verbose);
void bench_print_crossovers(const vla_records *rows);
void bench_print_kind(const vla_records *rows, const char *kind);
/* Figures for --plot, with a line on stderr. */
vla_status bench_figures(const bench_options *o, const vla_records *rows, vla_error *error);
/* Copies every row to the report. */
vla_status bench_report_all(vla_report *report, const vla_records *rows, vla_error *error);

#endif
