#include "cmd/capacity.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/task/expect.h"
#include <stdlib.h>
#include <string.h>

static const char *const key_names[] = {"gauss", "silu", "elu1", "orth", "input", "all", NULL};
static const char *const gate_names[] = {"unit", "interpolate", "rls", "all", NULL};
static const char *const u_names[] = {"tied", "random", NULL};
static const char *const match_names[] = {"state", "none", NULL};
const char *const capacity_protocol_names[] = {"paper", "tuned", NULL};
const char *const capacity_form_names[] = {"paper", "zoology", NULL};
const char *const capacity_copy_names[] = {"next", "own", NULL};
const char *const capacity_norm_names[] = {"none", "layer", "rms", NULL};

enum { OWN_GROUPS = 3, GROUPS = OWN_GROUPS + VLA_COMMON_GROUPS, MOST_ROWS = 24 };

enum { RECALL = 1, TRAINED = 2, EVERY = 3 }; /* recall; mqar and copy; all three */

typedef struct table { /* the groups as this program takes them */
    vla_option rows[GROUPS][MOST_ROWS];
    bool given[GROUPS][MOST_ROWS];
    vla_option_group groups[GROUPS + 1];
} table;

/* Shared options that one kind of task takes, or none, or that have another default here. */
static const struct {
    const char *name;
    int takers;
    const char *help; /* NULL: as shared */
} shared_here[] = {
    {"op", EVERY, "operators: softmax linear delta decay vla rls, or all (default: all; vla with --quick)"},
    {"form", 0, NULL},
    {"backend", EVERY, "cpu or auto: memories are filled and trained on the CPU (default: auto)"},
    {"isa", TRAINED, "instruction set: auto, base, avx2, avx512; recall has one (default: auto)"},
    {"dtype", 0, NULL},
    {"chunk", 0, NULL},
    {"segments", 0, NULL},
    {"features", EVERY, "elu1, silu or identity (default: recall's --input elu1, else the operator's own)"},
    {"qk-norm", 0, NULL},
    {"output", 0, NULL},
    {"no-normalise", 0, NULL},
    {"refresh-period", TRAINED, "vla: add to A every N steps (default: protocol paper 20, tuned 0, off)"},
    {"refresh-eps", TRAINED, NULL},
    {"preset", TRAINED,
     "delta-pub: DeltaNet as published, also short convolution and RMSNorm of the heads (default: none)"},
    {"B", 0, NULL},
    {"H", 0, NULL},
    {"T", TRAINED, "tokens (default: mqar 3n + 1, its zoology form 4n and at least 64, copy 63)"},
    {"d", RECALL, "key and value width (default: 16,32,64; with --input the tensors')"},
    {"dk", 0, NULL},
    {"dv", 0, NULL},
    {"input", RECALL, "real keys: DIR/k.npy (default: none)"},
    {"seeds", TRAINED, "one network per seed (default: --seed)"},
    {"case", EVERY, "a case as --dry-run prints it, or its first parts: mqar/vla/paper/n24_T73_s42"},
    {"filter", EVERY, "only cases that match, '*/vla/*' (default: all)"},
    {"time-limit", EVERY, "seconds for the whole run (default: none)"},
    {"fail-on", EVERY, "refuted: exit 5 when a claim is (default: none)"},
    {"min-samples", 0, NULL},
    {"noise", 0, NULL}};

void capacity_free(capacity_options *o)
{
    vla_range_free(&o->n);
    vla_range_free(&o->distractors);
    vla_strings_free(&o->keys);
    vla_strings_free(&o->gates);
    vla_common_free(&o->common);
}

static vla_option option(const char *name, vla_option_type type, void *target, const char *argument, const char *help)
{
    return (vla_option){.name = name, .type = type, .target = target, .argument = argument, .help = help};
}

static vla_option bounded(vla_option row, double min, double max)
{
    row.min = min, row.max = max;
    return row;
}

static vla_option among(vla_option row, const char *const *choices)
{
    row.choices = choices;
    return row;
}

enum { MOST_PAIRS = 1 << 24 };

static void own_rows(capacity_options *o, vla_option *rows)
{
    const vla_option made[] = {
        bounded(option("n", VLA_OPT_RANGE, &o->n, "RANGE", "pairs (default: recall 1 to 4d, mqar 4,8,12,16,24)"), 1,
                MOST_PAIRS),
        option("from", VLA_OPT_TEXT, &o->from, "FILE",
               "judge and plot earlier records, measure nothing (default: none)"),
    };
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) rows[i] = made[i];
}

static void recall_rows(capacity_options *o, vla_option *rows)
{
    const vla_option made[] = {
        among(option("keys", VLA_OPT_LIST, &o->keys, "LIST",
                     "gauss silu elu1 orth input, or all (default: all, or input with --input)"),
              key_names),
        bounded(option("trials", VLA_OPT_INT, &o->trials, "N", "random repetitions (default: 20)"), 1, 1 << 20),
        bounded(
            option("codebook", VLA_OPT_INT, &o->codebook, "N", "Gaussian vectors values are drawn from (default: 128)"),
            2, 1 << 20),
        bounded(option("distractors", VLA_OPT_RANGE, &o->distractors, "RANGE",
                       "pairs written between storing and asking (default: 0)"),
                0, MOST_PAIRS),
        among(option("gate", VLA_OPT_LIST, &o->gates, "LIST",
                     "vla's write: unit interpolate rls, or all (default: unit)"),
              gate_names),
        among(option("u", VLA_OPT_CHOICE, &o->u, "NAME", "vla's penalty: tied to the key, or random (default: tied)"),
              u_names),
        bounded(option("u-scale", VLA_OPT_REAL, &o->u_scale, "X", "length of u times sqrt(d) (default: 1)"), 0, 1e150),
        bounded(option("decay", VLA_OPT_REAL, &o->decay, "X", "decay's gate g (default: 0.88)"), 0, 1),
        among(option("match", VLA_OPT_CHOICE, &o->match, "NAME",
                     "state: wider keys for memories of one matrix (default: none)"),
              match_names),
    };
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) rows[i] = made[i];
}

static void trained_rows(capacity_options *o, vla_option *rows)
{
    const vla_option made[] = {
        among(option("protocol", VLA_OPT_CHOICE, &o->protocol, "NAME",
                     "paper: the authors' settings; tuned: one grid of rates for all (default: paper)"),
              capacity_protocol_names),
        among(option("mqar-form", VLA_OPT_CHOICE, &o->mqar_form, "NAME",
                     "paper, or zoology: gaps and fillers (default: paper)"),
              capacity_form_names),
        among(option("copy-form", VLA_OPT_CHOICE, &o->copy_form, "NAME",
                     "a token asked one position before it (next), or at its own (default: next)"),
              capacity_copy_names),
        option("quick", VLA_OPT_FLAG, &o->quick, NULL, "a small network on 4 pairs, in seconds (default: off)"),
        bounded(option("steps", VLA_OPT_INT, &o->steps, "N", "training steps (default: the protocol's)"), 1, 1 << 30),
        bounded(option("batch", VLA_OPT_INT, &o->batch, "N", "sequences a step (default: the protocol's)"), 1, 1 << 20),
        bounded(option("lr", VLA_OPT_REAL, &o->lr, "X", "learning rate (default: the protocol's)"), 1e-300, 1e300),
        bounded(option("gate-bias", VLA_OPT_REAL, &o->gate_bias, "X",
                       "delta, decay: what the gates' bias starts at (default: 0, gates of 1/2)"),
                -100, 100),
        bounded(option("vocab", VLA_OPT_INT, &o->vocab, "N", "tokens (default: 128)"), 3, 1 << 20),
        option("short-conv", VLA_OPT_FLAG, &o->short_conv, NULL,
               "a causal convolution of 4 taps on q, k and v (default: off)"),
        among(option("out-norm", VLA_OPT_CHOICE, &o->out_norm, "NAME",
                     "none, layer or rms before W_o, for every operator (default: the protocol's)"),
              capacity_norm_names),
        option("checkpoint", VLA_OPT_TEXT, &o->checkpoints, "DIR",
               "keep training states there; --resume goes on from them (default: none)"),
        option("dump", VLA_OPT_TEXT, &o->dump, "DIR",
               "q, k, v and u of the trained network's last block (default: none)"),
        option("gradients", VLA_OPT_FLAG, &o->gradients, NULL,
               "|dL/dx| against lag, untrained and trained (default: off)"),
        option("norms", VLA_OPT_FLAG, &o->norms, NULL,
               "state norms of the untrained network at 1,000 tokens (default: off)"),
    };
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) rows[i] = made[i];
}

/* A group's rows: those any task takes, each told where to say that it was given. */
static void take_group(table *t, int group, const vla_option_group *from, int takers[MOST_ROWS])
{
    int count = 0;
    for (const vla_option *row = from->options; row->name && count + 1 < MOST_ROWS; row++) {
        vla_option *to = &t->rows[group][count];
        *to = *row;
        takers[count] = group == 1 ? RECALL : group == 2 ? TRAINED : EVERY;
        for (size_t i = 0; group >= OWN_GROUPS && i < sizeof shared_here / sizeof *shared_here; i++) {
            if (strcmp(shared_here[i].name, row->name) != 0) continue;
            takers[count] = shared_here[i].takers;
            if (shared_here[i].help) to->help = shared_here[i].help;
        }
        if (takers[count] == 0) continue;
        if (!to->given) to->given = &t->given[group][count];
        count++;
    }
    t->rows[group][count] = (vla_option){.name = NULL};
    t->groups[group] = (vla_option_group){from->title, t->rows[group]};
}

static vla_status check_task(const table *t, int takers[GROUPS][MOST_ROWS], const vla_strings *words, const char **task,
                             vla_error *error)
{
    static const char *const tasks[] = {"recall", "mqar", "copy"};
    *task = NULL;
    for (int i = 0; i < 3; i++)
        if (words->count == 1 && strcmp(words->values[0], tasks[i]) == 0) *task = tasks[i];
    if (!*task)
        return words->count == 1
                   ? vla_fail(error, VLA_ERR_ARGUMENT, "'%s': recall, mqar or copy is accepted", words->values[0])
                   : vla_fail(error, VLA_ERR_ARGUMENT, "%s: one of recall, mqar and copy is accepted",
                              words->count ? "several tasks" : "no task");
    const bool recall = strcmp(*task, "recall") == 0, copy = strcmp(*task, "copy") == 0;
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; t->rows[g][i].name; i++) {
            const char *name = t->rows[g][i].name;
            if (!*t->rows[g][i].given) continue;
            if (!(takers[g][i] & (recall ? RECALL : TRAINED)))
                return vla_fail(error, VLA_ERR_ARGUMENT, "--%s: an option of %s, not of %s", name,
                                recall ? "mqar and copy" : "recall", *task);
            if (copy && (strcmp(name, "n") == 0 || strcmp(name, "mqar-form") == 0))
                return vla_fail(error, VLA_ERR_ARGUMENT, "--%s: copy has no pairs; --T sets its length", name);
            if (!copy && strcmp(name, "copy-form") == 0)
                return vla_fail(error, VLA_ERR_ARGUMENT, "--copy-form: an option of copy, not of %s", *task);
        }
    return VLA_OK;
}

/* What would be found wrong, or be ignored, only after everything has been measured. */
static vla_status check_options(const capacity_options *o, const char *task, vla_error *error)
{
    const vla_common *c = &o->common;
    const bool recall = strcmp(task, "recall") == 0;
    if (strstr(c->backend, "cuda"))
        return vla_fail(error, VLA_ERR_DEVICE,
                        "--backend %s: memories are filled and trained on the CPU; accepted: cpu, auto", c->backend);
    if (c->fail_on && strcmp(c->fail_on, "refuted") != 0)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--fail-on %s: refuted is accepted", c->fail_on);
    const bool nowhere = c->resume && c->outputs.count == 0 && !o->checkpoints;
    const vla_rule rules[] = {
        {c->threads.count > 1, "--threads", "several values; accepted: one"},
        {nowhere && recall, "--resume", "no file to go on from; accepted: with -o FILE"},
        {nowhere && !recall, "--resume", "no file to go on from; accepted: with -o FILE or --checkpoint DIR"},
    };
    vla_status status = vla_rules_check(rules, sizeof rules / sizeof *rules, error);
    if (!status && c->plot && !c->dry_run) status = vla_directory_make(c->plot, error);
    vla_records expected = {0};
    if (!status && c->expect) status = vla_records_read(&expected, c->expect, error);
    if (!status && c->expect && !vla_task_expects(&expected))
        status = vla_fail(error, VLA_ERR_FILE, "%s: holds no records of vla-capacity to expect", c->expect);
    vla_records_clear(&expected);
    return status;
}

bool capacity_parse(capacity_options *o, int argc, char **argv, const char **task, int *exit_code)
{
    *o = (capacity_options){.trials = 20, .codebook = 128, .decay = 0.88, .u_scale = 1};
    vla_common_init(&o->common);
    vla_option own[3][MOST_ROWS] = {0};
    own_rows(o, own[0]);
    recall_rows(o, own[1]);
    trained_rows(o, own[2]);
    static const char *const titles[OWN_GROUPS] = {"vla-capacity", "recall", "mqar and copy"};
    const vla_option_group *shared = vla_common_groups(&o->common);
    table *t = calloc(1, sizeof *t);
    int takers[GROUPS][MOST_ROWS];
    if (!shared || !t) return free(t), *exit_code = 2, false;
    for (int g = 0; g < OWN_GROUPS; g++) take_group(t, g, &(vla_option_group){titles[g], own[g]}, takers[g]);
    for (int g = OWN_GROUPS; g < GROUPS; g++) take_group(t, g, &shared[g - OWN_GROUPS], takers[g]);
    const vla_cli cli = {
        "vla-capacity", "vla-capacity recall | mqar | copy [OPTIONS]",
        "How many associations a memory holds: recall writes random pairs and asks for each; mqar and copy train a\n"
        "two-layer transformer on the paper's tasks.",
        t->groups, &o->common};
    vla_strings words = {0};
    bool go_on = vla_cli_parse(&cli, argc, argv, &words, stdout, stderr, exit_code);
    vla_error error = {0};
    vla_status status = go_on ? check_task(t, takers, &words, task, &error) : VLA_OK;
    if (go_on && status == VLA_OK) status = check_options(o, *task, &error);
    if (status) {
        fprintf(stderr, "vla-capacity: %s\n", error.message);
        *exit_code = vla_exit_code(status);
        go_on = false;
    }
    vla_strings_free(&words);
    free(t);
    return go_on;
}
