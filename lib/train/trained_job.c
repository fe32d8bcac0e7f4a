#include "lib/train/trained_job.h"
#include "lib/base/names.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/task/recall.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TUNED_STEPS = 12000, TUNED_BATCH = 16 };
static const char *const task_names[] = {"mqar", "mqar-zoology", "copy", "copy-own"};
static const char *const norm_names[] = {"none", "layer", "rms"};

static vla_status make_data(void *context, int split, int64_t first, int64_t B, int32_t *tokens, int32_t *targets,
                            vla_error *error)
{
    return vla_sequences_make(context, (vla_split)split, first, B, tokens, targets, error);
}

static vla_network_config network_of(const vla_job *j)
{
    const vla_trained_settings *s = j->s;
    vla_network_config c = vla_network_paper(j->op);
    c.vocab = s->vocab;
    if (s->tuned) {
        c.out_norm = VLA_NORM_LAYER;
        c.refresh_period = 0;
        c.floor = VLA_RATIO_EPS;
    }
    if (s->published && j->op == VLA_DELTA) {
        c.features = c.key_features = VLA_SILU;
        c.qk_l2 = true, c.conv = 4, c.out_norm = VLA_NORM_RMS;
    }
    if (s->conv) c.conv = s->conv;
    if (s->lambda0 > 0) c.lambda0 = s->lambda0;
    if (c.gate) c.gate_bias = s->gate_bias;
    if (s->features >= 0) c.features = c.key_features = (vla_features)s->features;
    if (s->refresh_period >= 0)
        c.refresh_period = j->op == VLA_VLA ? s->refresh_period : 0, c.refresh_eps = s->refresh_eps;
    if (s->out_norm >= 0) c.out_norm = (vla_out_norm)s->out_norm;
    if (s->quick) c.width = 64, c.heads = 2, c.hidden = 128, c.positions = 64;
    if (c.positions < j->T) c.positions = j->T;
    return c;
}

static void label_job(vla_job *j)
{
    const vla_trained_settings *s = j->s;
    const vla_network_config c = network_of(j);
    const char *protocol = s->quick ? "quick" : s->tuned ? "tuned" : "paper";
    int used = snprintf(j->cell, VLA_JOB_LABEL, "%s/%s%s/%s/", task_names[s->kind], vla_op_name(j->op),
                        s->published && j->op == VLA_DELTA ? "-pub" : "", protocol);
    if (!vla_sequences_is_copy(s->kind))
        used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "n%" PRId64 "_", j->n);
    used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "T%" PRId64, j->T);
    if (s->vocab != 128) used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "_V%" PRId64, s->vocab);
    if (s->conv) used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "_conv%" PRId64, c.conv);
    if (s->out_norm >= 0)
        used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "_%s", norm_names[c.out_norm]);
    if (s->lambda0 > 0) used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "_lambda%g", c.lambda0);
    if (c.gate_bias != 0) used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "_gate%g", c.gate_bias);
    if (s->features >= 0)
        used += snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "_%s", vla_features_name(c.features));
    if (s->refresh_period >= 0)
        snprintf(j->cell + used, (size_t)(VLA_JOB_LABEL - used), "_refresh%" PRId64, c.refresh_period);
    if (s->tuned)
        snprintf(j->label, VLA_JOB_LABEL, "%.110s_%slr%g_s%" PRIu64, j->cell, j->search ? "search_" : "", j->lr,
                 j->seed);
    else
        snprintf(j->label, VLA_JOB_LABEL, "%.120s_s%" PRIu64, j->cell, j->seed);
}

void vla_job_place_checkpoint(vla_job *j)
{
    if (!j->s->checkpoints) return;
    int at = snprintf(j->checkpoint, sizeof j->checkpoint, "%.800s/", j->s->checkpoints);
    for (const char *p = j->label; *p && at + 6 < (int)sizeof j->checkpoint; p++)
        j->checkpoint[at++] = *p == '/' ? '-' : *p;
    snprintf(j->checkpoint + at, sizeof j->checkpoint - (size_t)at, ".ckpt");
    j->train.checkpoint = j->checkpoint;
    j->train.checkpoint_every = 250;
    j->train.resume = j->s->resume;
}

/* Steps, batch and rate: the protocol's, where not given. Sequences lengthened by more questions and copying have the
 * authors' shorter runs. */
static void set_schedule(vla_job *j)
{
    const vla_trained_settings *s = j->s;
    vla_train *t = &j->train;
    const bool copy = vla_sequences_is_copy(s->kind), lengthened = !copy && j->T > vla_sequences_length(s->kind, j->n);
    t->steps = s->quick ? 600 : s->tuned ? TUNED_STEPS : copy ? 1500 : lengthened ? 2000 : 3000;
    t->batch = s->batch ? s->batch : s->quick ? 64 : s->tuned ? TUNED_BATCH : copy ? 32 : 64;
    if (s->steps > 0) t->steps = s->steps;
    t->warmup = t->steps / 10;
    t->lr = j->lr;
    t->decay = 0.01, t->clip = 1;
    t->test_batches = s->quick ? 20 : lengthened ? 15 : 20;
    t->test_batch = s->quick ? 50 : 32;
    if (s->tuned) t->check_every = 500, t->enough = 0.999;
}

void vla_job_make(vla_job *j, const vla_trained_settings *s, vla_op op, int64_t n, int64_t T, uint64_t seed, double lr,
                  bool search)
{
    *j = (vla_job){.s = s, .op = op, .n = n, .T = T, .seed = seed, .lr = lr, .search = search};
    j->sequences = (vla_sequences){s->kind, s->vocab, n, T, seed};
    snprintf(j->task, sizeof j->task, "%s vocab %" PRId64 " n %" PRId64 " T %" PRId64 " seed %" PRIu64,
             task_names[s->kind], s->vocab, n, T, seed);
    j->train =
        (vla_train){.network = network_of(j), .isa = s->isa, .data = make_data, .task = j->task, .T = T, .seed = seed};
    set_schedule(j);
    label_job(j);
}

void vla_job_key(const vla_job *j, const char *part, char key[17])
{
    const vla_network_config *c = &j->train.network;
    const vla_train *t = &j->train;
    char text[VLA_JOB_LABEL + 400];
    snprintf(text, sizeof text,
             "%s|%s|%s|%" PRId64 "|%" PRId64 "|%.17g|%.17g|%d|%" PRId64 "|%d|%.17g|%" PRId64 "|%" PRId64 "|%.17g|%.17g",
             j->label, part, j->task, t->steps, t->batch, t->lr, t->decay, c->out_norm, c->conv, c->qk_l2, c->floor,
             c->width, c->refresh_period, c->refresh_eps, c->lambda0);
    vla_case_key(text, key);
}

vla_status vla_job_no_memory(vla_record *row, vla_error *error)
{
    vla_record_destroy(row);
    return vla_fail(error, VLA_ERR_MEMORY, "training: out of memory for a record");
}

/* Nothing of the protocol was changed by an option, short convolutions apart (their column is `conv`): only such runs
 * fill the paper's table. */
static bool is_standard(const vla_trained_settings *s)
{
    return !s->quick && s->steps == 0 && s->batch == 0 && !(s->lr > 0) && s->out_norm < 0 && !(s->lambda0 > 0) &&
           !(s->gate_bias != 0) && s->features < 0 && s->refresh_period < 0 && s->vocab == 128;
}

bool vla_job_describe(vla_record *row, const vla_job *j, const char *part)
{
    const vla_trained_settings *s = j->s;
    const vla_network_config *c = &j->train.network;
    char key[17];
    vla_job_key(j, part, key);
    return vla_record_string(row, "case", j->label) && vla_record_string(row, "key", key) &&
           vla_record_string(row, "cell", j->cell) && vla_record_string(row, "task", task_names[s->kind]) &&
           vla_record_string(row, "op", vla_op_name(j->op)) &&
           vla_record_string(row, "preset", s->published && j->op == VLA_DELTA ? "delta-pub" : NULL) &&
           vla_record_string(row, "protocol",
                             s->quick   ? "quick"
                             : s->tuned ? "tuned"
                                        : "paper") &&
           (vla_sequences_is_copy(s->kind) ? vla_record_null(row, "n") : vla_record_int(row, "n", j->n)) &&
           vla_record_int(row, "T", j->T) && vla_record_int(row, "vocab", s->vocab) &&
           vla_record_int(row, "seed", (int64_t)j->seed) && vla_record_real(row, "lr", j->lr) &&
           vla_record_string(row, "out_norm", norm_names[c->out_norm]) && vla_record_int(row, "conv", c->conv) &&
           vla_record_bool(row, "standard", is_standard(s)) && vla_record_bool(row, "search", j->search) &&
           vla_record_string(row, "features", vla_features_name(c->features)) &&
           (c->gate_bias == 0 || vla_record_real(row, "gate_bias", c->gate_bias)) &&
           vla_record_real(row, "lambda0", c->lambda0) && vla_record_int(row, "refresh_period", c->refresh_period);
}
