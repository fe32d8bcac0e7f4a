/* vla-bench: time the operators against sequence length and measure where they cross. */
#include "cmd/bench.h"
#include "lib/base/status.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "vla-bench [run] [OPTION]..\n"
    "       vla-bench list | compare OLD NEW | merge FILE.. | plot | crossover | fit | verdict  [OPTION]..";
static const char summary[] =
    "Checks every case against float64, times it, and measures where one operator overtakes another.\n"
    "Without arguments: vla, softmax, linear, delta at T 128-4k, B 1, H 16, d 64, f32, crossover vla,softmax, 25 s.\n"
    "  run        measure (the default)\n"
    "  list       print every built case, one a line; --case takes such a line\n"
    "  compare    two record files: what became slower (exit 5 with --fail-on slower)\n"
    "  merge      several record files into one; of equal measurements the last file's counts\n"
    "  plot, crossover, fit   figures, crossovers, exponents from the records of --from FILE; measures nothing\n"
    "  verdict    what the records of --from FILE say about the paper's claims on speed and memory\n"
    "Exit: 0 passed, 1 a check failed, 2 usage, 3 files, 4 device, 5 --fail-on met, 130 interrupted.";

static const char *const modes[] = {"prefill", "decode", NULL};
static const char *const passes[] = {"fwd", "fwdbwd", NULL};
static const char *const launches[] = {"graph", "stream", NULL};
static const char *const caches[] = {"hot", "cold", NULL};
static const char *const checks[] = {"sample", "full", NULL};
static const char *const ops[] = {"softmax", "linear", "delta", "decay", "vla", "rls", NULL};

enum { OWN = 13 };

static void own_options(bench_options *o, vla_option *rows)
{
    const vla_option own[OWN] = {
        {.name = "mode",
         .type = VLA_OPT_CHOICE,
         .target = &o->mode,
         .argument = "NAME",
         .choices = modes,
         .help = "prefill, or decode: one token against its context (default: prefill)"},
        {.name = "pass",
         .type = VLA_OPT_CHOICE,
         .target = &o->pass,
         .argument = "NAME",
         .choices = passes,
         .help = "fwd or fwdbwd (default: fwd)"},
        {.name = "crossover",
         .type = VLA_OPT_TEXTS,
         .target = &o->crossovers,
         .argument = "A,B",
         .help = "measure where A overtakes B, repeatable; none (default: vla,softmax)"},
        {.name = "baseline",
         .type = VLA_OPT_CHOICE,
         .target = &o->baseline,
         .argument = "OP",
         .choices = ops,
         .help = "also print every time as a ratio to this operator's (default: none)"},
        {.name = "depth",
         .type = VLA_OPT_RANGE,
         .target = &o->depth,
         .argument = "RANGE",
         .min = 1,
         .max = 1099511627776.0,
         .help = "decode: context lengths (default: 64-16kx4)"},
        {.name = "check",
         .type = VLA_OPT_CHOICE,
         .target = &o->check,
         .argument = "HOW",
         .choices = checks,
         .help = "sample: 4 heads, softmax 66 rows of each; full: everything (default: sample)"},
        {.name = "peak",
         .type = VLA_OPT_FLAG,
         .target = &o->peak,
         .help = "also record the matrix rates and the copy bandwidth (default: off)"},
        {.name = "launch",
         .type = VLA_OPT_CHOICE,
         .target = &o->launch,
         .argument = "HOW",
         .choices = launches,
         .help = "GPU: replay a graph or launch into a stream (default: graph)"},
        {.name = "cache",
         .type = VLA_OPT_CHOICE,
         .target = &o->cache,
         .argument = "HOW",
         .choices = caches,
         .help = "GPU: hot, or cold: tensors evicted from the L2 cache before each run (default: hot)"},
        {.name = "cudnn",
         .type = VLA_OPT_TEXT,
         .target = &o->cudnn,
         .argument = "WHICH",
         .help = "GPU: softmax by the fastest installed cuDNN, row by row; first found; PATH (default: VLA_CUDNN, "
                 "fastest)"},
        {.name = "profile",
         .type = VLA_OPT_FLAG,
         .target = &o->profile,
         .help = "GPU: launch one case once for a profiler and time nothing (default: off)"},
        {.name = "from",
         .type = VLA_OPT_TEXTS,
         .target = &o->from,
         .argument = "FILE",
         .help = "plot, crossover, fit, verdict: records to read, repeatable"},
        {.name = NULL},
    };
    memcpy(rows, own, sizeof own);
}

/* What reads records measures nothing: an option that only a measurement heeds would be lost. */
static vla_status only_reads(const bench_options *o, const char *word, vla_error *error)
{
    const vla_common *c = &o->common;
    const struct {
        const char *name;
        bool given;
    } ignored[] = {{"op", c->ops.count},      {"form", c->forms.count}, {"dtype", c->dtypes.count},
                   {"B", c->B.count},         {"H", c->H.count},        {"T", c->T.count},
                   {"d", c->d.count},         {"dk", c->dk.count},      {"dv", c->dv.count},
                   {"depth", o->depth.count}, {"case", c->cases.count}, {"filter", c->filters.count},
                   {"input", c->input},       {"resume", c->resume},    {"dry-run", c->dry_run},
                   {"expect", c->expect},     {"cudnn", o->cudnn}};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        if (ignored[i].given)
            return vla_fail(error, VLA_ERR_ARGUMENT, "--%s: %s reads records and measures nothing", ignored[i].name,
                            word);
    return VLA_OK;
}

static vla_status check_command(const bench_options *o, const char *word, vla_error *error)
{
    const bool measures = !strcmp(word, "run"), lists = !strcmp(word, "list");
    const bool takes_from =
        !strcmp(word, "plot") || !strcmp(word, "crossover") || !strcmp(word, "fit") || !strcmp(word, "verdict");
    if (o->from.count && !takes_from)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--from: accepted only with plot, crossover, fit and verdict");
    if (o->common.fail_on && !measures && strcmp(word, "compare"))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--fail-on: accepted only with run and compare");
    if (o->common.fail_on && strcmp(o->common.fail_on, "slower"))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--fail-on %s: vla-bench accepts slower", o->common.fail_on);
    return measures || lists ? VLA_OK : only_reads(o, word, error);
}

static int dispatch(bench_options *o, const vla_strings *words)
{
    vla_error error = {0};
    static const struct {
        const char *name;
        int (*plain)(bench_options *);
        int (*with_files)(bench_options *, const vla_strings *);
    } commands[] = {{"run", bench_run, NULL},     {"list", bench_list, NULL},      {"compare", NULL, bench_compare},
                    {"merge", NULL, bench_merge}, {"plot", bench_plot, NULL},      {"crossover", bench_crossover, NULL},
                    {"fit", bench_fit, NULL},     {"verdict", bench_verdict, NULL}};
    const char *word = words->count ? words->values[0] : "run";
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(word, commands[i].name)) continue;
        if (check_command(o, word, &error)) return bench_fail(&error);
        if (commands[i].with_files) return commands[i].with_files(o, words);
        if (words->count <= 1) return commands[i].plain(o);
        fprintf(stderr, "vla-bench: unexpected argument '%s' after %s; accepted are options\n", words->values[1], word);
        return 2;
    }
    fprintf(stderr,
            "vla-bench: unknown command '%s'; accepted are run, list, compare, merge, plot, crossover, fit, verdict\n",
            word);
    return 2;
}

/* Another vla-bench asks over standard input; see lib/device/worker.h. */
static int serve(void)
{
    const int code = vla_worker_serve(STDIN_FILENO);
    if (code) fprintf(stderr, "vla-bench: worker: started by vla-bench itself, for a library of its own\n");
    return code;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], BENCH_WORKER)) return serve();
    bench_options o = {.mode = "prefill", .pass = "fwd", .check = "sample"};
    vla_option own[OWN];
    vla_option_group groups[VLA_COMMON_GROUPS + 2] = {{"vla-bench", own}};
    vla_strings words = {0};
    int code = 2;
    vla_interrupt_install();
    vla_common_init(&o.common);
    own_options(&o, own);
    const vla_option_group *shared = vla_common_groups(&o.common);
    if (shared) {
        memcpy(groups + 1, shared, VLA_COMMON_GROUPS * sizeof *groups);
        const vla_cli cli = {"vla-bench", usage, summary, groups, &o.common};
        if (vla_cli_parse(&cli, argc, argv, &words, stdout, stderr, &code)) code = dispatch(&o, &words);
    }
    vla_strings_free(&words);
    vla_strings_free(&o.crossovers);
    vla_strings_free(&o.from);
    vla_range_free(&o.depth);
    vla_common_free(&o.common);
    return code;
}
