#include "lib/train/trained.h"
#include "lib/base/file.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/task/recall.h"
#include "lib/tensor/npy.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL = 160, CURVE = 100, NORM_T = 1000, TUNED_STEPS = 12000, TUNED_BATCH = 16 };
static const char *const task_names[] = {"mqar", "mqar-zoology", "copy", "copy-own"};
static const char *const norm_names[] = {"none", "layer", "rms"};
static const char *const feature_names[] = {"elu1", "silu", "identity"};

typedef struct job { /* one network trained once */
    const vla_trained_settings *s;
    vla_op op;
    int64_t n, T;
    uint64_t seed;
    double lr;
    bool search; /* tries a rate */
    vla_sequences sequences;
    vla_train train;
    char label[LABEL], cell[LABEL], checkpoint[1024], task[96];
} job;

typedef struct runner {
    const vla_trained_settings *s;
    vla_pool *pool;
    const vla_records *known;
    const vla_row_sink *sink;
    const vla_trained_watch *watch;
    const job *now;
    bool stopped;
} runner;

vla_trained_settings vla_trained_settings_default(vla_task_kind kind)
{
    static const int64_t pairs[] = {4, 8, 12, 16, 24}, none[] = {0}, seeds[] = {42};
    vla_trained_settings s = {.kind = kind,
                              .n = vla_sequences_is_copy(kind) ? none : pairs,
                              .n_count = vla_sequences_is_copy(kind) ? 1 : 5,
                              .seeds = seeds,
                              .seed_count = 1,
                              .vocab = 128,
                              .out_norm = -1,
                              .features = -1,
                              .refresh_period = -1,
                              .isa = VLA_ISA_AUTO};
    for (int op = 0; op < VLA_OPS; op++) s.ops[s.op_count++] = (vla_op)op;
    return s;
}

static vla_status make_data(void *context, int split, int64_t first, int64_t B, int32_t *tokens, int32_t *targets,
                            vla_error *error)
{
    return vla_sequences_make(context, (vla_split)split, first, B, tokens, targets, error);
}

static vla_network_config network_of(const job *j)
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
    if (s->features >= 0) c.features = c.key_features = (vla_features)s->features;
    if (s->refresh_period >= 0)
        c.refresh_period = j->op == VLA_VLA ? s->refresh_period : 0, c.refresh_eps = s->refresh_eps;
    if (s->out_norm >= 0) c.out_norm = (vla_out_norm)s->out_norm;
    if (s->quick) c.width = 64, c.heads = 2, c.hidden = 128, c.positions = 64;
    if (c.positions < j->T) c.positions = j->T;
    return c;
}

static void label_job(job *j)
{
    const vla_trained_settings *s = j->s;
    const vla_network_config c = network_of(j);
    const char *protocol = s->quick ? "quick" : s->tuned ? "tuned" : "paper";
    int used = snprintf(j->cell, LABEL, "%s/%s%s/%s/", task_names[s->kind], vla_op_name(j->op),
                        s->published && j->op == VLA_DELTA ? "-pub" : "", protocol);
    if (!vla_sequences_is_copy(s->kind))
        used += snprintf(j->cell + used, (size_t)(LABEL - used), "n%" PRId64 "_", j->n);
    used += snprintf(j->cell + used, (size_t)(LABEL - used), "T%" PRId64, j->T);
    if (s->vocab != 128) used += snprintf(j->cell + used, (size_t)(LABEL - used), "_V%" PRId64, s->vocab);
    if (s->conv) used += snprintf(j->cell + used, (size_t)(LABEL - used), "_conv%" PRId64, c.conv);
    if (s->out_norm >= 0) used += snprintf(j->cell + used, (size_t)(LABEL - used), "_%s", norm_names[c.out_norm]);
    if (s->lambda0 > 0) used += snprintf(j->cell + used, (size_t)(LABEL - used), "_lambda%g", c.lambda0);
    if (s->features >= 0) used += snprintf(j->cell + used, (size_t)(LABEL - used), "_%s", feature_names[c.features]);
    if (s->refresh_period >= 0) snprintf(j->cell + used, (size_t)(LABEL - used), "_refresh%" PRId64, c.refresh_period);
    if (s->tuned)
        snprintf(j->label, LABEL, "%.110s_%slr%g_s%" PRIu64, j->cell, j->search ? "search_" : "", j->lr, j->seed);
    else
        snprintf(j->label, LABEL, "%.120s_s%" PRIu64, j->cell, j->seed);
}

static void place_checkpoint(job *j)
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
static void set_schedule(job *j)
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

static void make_job(job *j, const vla_trained_settings *s, vla_op op, int64_t n, int64_t T, uint64_t seed, double lr,
                     bool search)
{
    *j = (job){.s = s, .op = op, .n = n, .T = T, .seed = seed, .lr = lr, .search = search};
    j->sequences = (vla_sequences){s->kind, s->vocab, n, T, seed};
    snprintf(j->task, sizeof j->task, "%s vocab %" PRId64 " n %" PRId64 " T %" PRId64 " seed %" PRIu64,
             task_names[s->kind], s->vocab, n, T, seed);
    j->train =
        (vla_train){.network = network_of(j), .isa = s->isa, .data = make_data, .task = j->task, .T = T, .seed = seed};
    set_schedule(j);
    label_job(j);
}

/* part: which of several rows of one network, "" for its own. */
static void key_of(const job *j, const char *part, char key[17])
{
    const vla_network_config *c = &j->train.network;
    const vla_train *t = &j->train;
    char text[LABEL + 400];
    snprintf(text, sizeof text,
             "%s|%s|%s|%" PRId64 "|%" PRId64 "|%.17g|%.17g|%d|%" PRId64 "|%d|%.17g|%" PRId64 "|%" PRId64 "|%.17g|%.17g",
             j->label, part, j->task, t->steps, t->batch, t->lr, t->decay, c->out_norm, c->conv, c->qk_l2, c->floor,
             c->width, c->refresh_period, c->refresh_eps, c->lambda0);
    vla_case_key(text, key);
}

static vla_status no_memory(vla_record *row, vla_error *error)
{
    vla_record_destroy(row);
    return vla_fail(error, VLA_ERR_MEMORY, "training: out of memory for a record");
}

/* Nothing of the protocol was changed by an option, short convolutions apart (their column is `conv`): only such runs
 * fill the paper's table. */
static bool is_standard(const vla_trained_settings *s)
{
    return !s->quick && s->steps == 0 && s->batch == 0 && !(s->lr > 0) && s->out_norm < 0 && !(s->lambda0 > 0) &&
           s->features < 0 && s->refresh_period < 0 && s->vocab == 128;
}

static bool describe(vla_record *row, const job *j, const char *part)
{
    const vla_trained_settings *s = j->s;
    const vla_network_config *c = &j->train.network;
    char key[17];
    key_of(j, part, key);
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
           vla_record_string(row, "features", feature_names[c->features]) &&
           vla_record_real(row, "lambda0", c->lambda0) && vla_record_int(row, "refresh_period", c->refresh_period);
}

/* The curve, thinned to means over equal stretches, to four decimals. */
static bool put_curve(vla_record *row, const vla_train_result *r)
{
    double means[CURVE];
    const int64_t count = r->steps < CURVE ? r->steps : CURVE;
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = i * r->steps / count, to = (i + 1) * r->steps / count;
        means[i] = 0;
        for (int64_t k = from; k < to; k++) means[i] += r->curve[k] / (double)(to - from);
        means[i] = round(means[i] * 1e4) / 1e4;
    }
    return vla_record_reals(row, "curve", means, count);
}

static vla_status add_result(const runner *x, const job *j, const vla_train_result *r, int64_t parameters,
                             vla_error *error)
{
    const vla_share share = vla_share_of((const double[]){r->test}, 1, r->test_scored);
    const vla_isa isa = j->s->isa == VLA_ISA_AUTO ? vla_isa_detect() : j->s->isa;
    vla_record *row = vla_record_create("train");
    const bool ok = row && describe(row, j, "") && vla_record_string(row, "status", "ok") &&
                    vla_record_int(row, "parameters", parameters) && vla_record_int(row, "batch", j->train.batch) &&
                    vla_record_int(row, "threads", vla_pool_threads(x->pool)) &&
                    vla_record_string(row, "isa", vla_isa_name(isa < vla_isa_detect() ? isa : vla_isa_detect())) &&
                    vla_record_int(row, "steps", r->steps) &&
                    vla_record_string(row, "stop_reason", vla_train_stop_name(r->stop)) &&
                    vla_record_real(row, "loss", r->loss) && vla_record_real(row, "validation", r->validation) &&
                    vla_record_real(row, "accuracy", r->test) && vla_record_real(row, "accuracy_lo", share.lo) &&
                    vla_record_real(row, "accuracy_hi", share.hi) && vla_record_int(row, "scored", r->test_scored) &&
                    vla_record_real(row, "train_s", r->seconds) &&
                    vla_record_real(row, "tokens_per_s", r->tokens_per_s) && put_curve(row, r);
    return ok ? x->sink->add(x->sink->context, row, error) : no_memory(row, error);
}

static vla_status add_failure(const runner *x, const job *j, const vla_error *why, vla_error *error)
{
    vla_record *row = vla_record_create("train");
    const bool ok = row && describe(row, j, "") && vla_record_string(row, "status", j->search ? "skip" : "fail") &&
                    vla_record_string(row, "reason", why->message);
    return ok ? x->sink->add(x->sink->context, row, error) : no_memory(row, error);
}

static bool tell(void *context, const vla_train_now *now)
{
    runner *x = context;
    if (x->watch && x->watch->tell && !x->watch->tell(x->watch->context, x->now->label, now)) x->stopped = true;
    return !x->stopped;
}

/* Root mean square over the batch of |dL/dx_t| at lags 0, 1, 2, 4, .. for a loss asked at the last position only. */
static vla_status add_gradients(const runner *x, const job *j, vla_network *network, bool trained, vla_error *error)
{
    const int64_t B = j->train.test_batch, T = j->T, D = j->train.network.width;
    int32_t *tokens = NULL, *targets = NULL;
    vla_loss loss;
    vla_status status = vla_alloc((void **)&tokens, B * T, sizeof *tokens, "gradients", error);
    if (!status) status = vla_alloc((void **)&targets, B * T, sizeof *targets, "gradients", error);
    if (!status) status = vla_sequences_make(&j->sequences, VLA_TEST, 1 << 20, B, tokens, targets, error);
    int64_t last = T - 1; /* copy asks nothing at its last token */
    while (!status && last > 0 && targets[last] < 0) last--;
    for (int64_t i = 0; !status && i < B * T; i++) targets[i] = i % T == last ? targets[i] : -1;
    const vla_batch batch = {B, T, tokens, targets};
    if (!status) status = vla_network_forward(network, &batch, &loss, NULL, error);
    if (!status) vla_network_backward(network);
    const float *dx = vla_network_input_gradient(network);
    for (int64_t lag = 0; !status && lag <= last; lag = lag == 0 ? 1 : lag < last && 2 * lag > last ? last : 2 * lag) {
        double squares = 0;
        for (int64_t b = 0; b < B; b++)
            for (int64_t c = 0; c < D; c++) {
                const double g = (double)dx[(b * T + last - lag) * D + c] * (double)B; /* the loss is a mean over B */
                squares += g * g / (double)B;
            }
        char part[48];
        snprintf(part, sizeof part, "%s lag %" PRId64, trained ? "trained" : "untrained", lag);
        vla_record *row = vla_record_create("gradient");
        const bool ok = row && describe(row, j, part) && vla_record_bool(row, "trained", trained) &&
                        vla_record_int(row, "lag", lag) && vla_record_real(row, "gradient", sqrt(squares));
        status = ok ? x->sink->add(x->sink->context, row, error) : no_memory(row, error);
    }
    vla_free(tokens);
    vla_free(targets);
    return status;
}

static vla_status untrained_gradients(const runner *x, const job *j, vla_error *error)
{
    vla_network *network = NULL;
    vla_status status = vla_network_create(&network, &j->train.network, VLA_F32, j->s->isa, j->train.test_batch, j->T,
                                           j->seed, x->pool, error);
    if (!status) status = add_gradients(x, j, network, false, error);
    vla_network_destroy(network);
    return status;
}

static vla_status write_tensor(const char *directory, const char *name, const float *data, const int64_t *shape,
                               vla_error *error)
{
    char *path = vla_path_join(directory, name);
    if (!path) return vla_fail(error, VLA_ERR_MEMORY, "dump: out of memory");
    const vla_status status = vla_npy_write(path, data, VLA_F32, 4, shape, error);
    free(path);
    return status;
}

/* q, k, v (and u) of the last block for four test sequences, [4, heads, T, d]. */
static vla_status dump(const job *j, vla_network *network, vla_error *error)
{
    enum { B = 4 };
    const vla_network_config *c = &j->train.network;
    const int64_t count = B * j->T * c->width, shape[4] = {B, c->heads, j->T, c->width / c->heads};
    int32_t *tokens = NULL;
    float *memory = NULL;
    vla_status status = vla_directory_make(j->s->dump, error);
    if (!status) status = vla_alloc((void **)&tokens, 2 * B * j->T, sizeof *tokens, "dump", error);
    if (!status) status = vla_alloc((void **)&memory, 4 * count, sizeof *memory, "dump", error);
    if (!status) status = vla_sequences_make(&j->sequences, VLA_TEST, 0, B, tokens, tokens + B * j->T, error);
    vla_loss loss;
    const vla_batch batch = {B, j->T, tokens, tokens ? tokens + B * j->T : NULL};
    if (!status) status = vla_network_forward(network, &batch, &loss, NULL, error);
    static const char *const names[] = {"q.npy", "k.npy", "v.npy", "u.npy"};
    if (!status) {
        const vla_projections to = {memory, memory + count, memory + 2 * count, memory + 3 * count, NULL};
        vla_network_projections(network, c->blocks - 1, &to);
    }
    for (int i = 0; !status && i < (c->op == VLA_VLA ? 4 : 3); i++)
        status = write_tensor(j->s->dump, names[i], memory + i * count, shape, error);
    vla_free(tokens);
    vla_free(memory);
    return status;
}

static const vla_record *known_row(const runner *x, const char *key)
{
    for (int64_t i = 0; x->known && i < x->known->count; i++) {
        const vla_record *row = x->known->rows[i];
        if (strcmp(vla_record_text(row, "kind", ""), "train") == 0 &&
            strcmp(vla_record_text(row, "status", ""), "fail") != 0 && /* is tried again */
            strcmp(vla_record_text(row, "key", ""), key) == 0)
            return row;
    }
    return NULL;
}

/* The first seed's network at the chosen rate is the one that tried it: its row again, as a result. *found: it is
 * known. */
static vla_status take_tried(const runner *x, const job *j, bool *found, vla_error *error)
{
    job tried;
    char key[17];
    *found = false;
    if (!j->s->tuned || j->s->lr > 0 || j->search || j->seed != (uint64_t)j->s->seeds[0] || j->s->gradients ||
        j->s->dump)
        return VLA_OK;
    make_job(&tried, j->s, j->op, j->n, j->T, j->seed, j->lr, true);
    key_of(&tried, "", key);
    const vla_record *old = known_row(x, key);
    if (!old) return VLA_OK;
    vla_record *row = vla_record_copy(old);
    if (!row || !describe(row, j, "")) return no_memory(row, error);
    *found = true;
    return x->sink->add(x->sink->context, row, error);
}

typedef struct outcome {
    bool done;               /* there is a row: of this run or an earlier one */
    double validation, loss; /* what a rate is chosen by; NaN where it diverged */
    double error;            /* standard error of validation */
} outcome;

/* The validation stream asks as often as the test stream, `scored` times. */
static outcome outcome_of(double validation, double loss, double scored)
{
    return (outcome){true, validation, loss, sqrt(validation * (1 - validation) / scored)};
}

/* Trains one network unless it is known or not wanted. */
static vla_status run_job(runner *x, job *j, outcome *out, vla_error *error)
{
    char key[17];
    *out = (outcome){false, (double)NAN, (double)NAN, 0};
    key_of(j, "", key);
    const vla_record *old = known_row(x, key);
    if (old) {
        *out = outcome_of(vla_record_number(old, "validation", (double)NAN),
                          vla_record_number(old, "loss", (double)NAN), vla_record_number(old, "scored", 1));
        return VLA_OK;
    }
    if (x->sink->wanted && !x->sink->wanted(x->sink->context, j->label, key)) return VLA_OK;
    bool tried;
    vla_status status = take_tried(x, j, &tried, error);
    if (status || tried) return out->done = tried, status;
    x->now = j;
    j->train.context = &j->sequences;
    j->train.task = j->task;
    place_checkpoint(j);
    vla_network *network = NULL;
    vla_train_result result = {.curve = NULL};
    vla_error why = {0};
    const bool gradients = j->s->gradients && !j->search;
    if (gradients) status = untrained_gradients(x, j, error);
    if (status) return status;
    status = vla_train_run(&j->train, x->pool, tell, x, &network, &result, &why);
    if (status == VLA_ERR_NUMERIC) return out->done = true, add_failure(x, j, &why, error);
    if (status) return vla_fail(error, why.status, "%s: %s", j->label, why.message);
    if (result.stop != VLA_STOP_ASKED) {
        *out = outcome_of(result.validation, result.loss, (double)result.test_scored);
        status = add_result(x, j, &result, vla_network_size(network), error);
        if (!status && gradients) status = add_gradients(x, j, network, true, error);
    }
    if (!status && j->s->dump && !j->search) status = dump(j, network, error);
    vla_network_destroy(network);
    vla_train_result_free(&result);
    return status;
}

enum { MOST_RATES = 12 };
static const double GRID[] = {1e-4, 3e-4, 1e-3, 3e-3, 1e-2};

typedef struct search {
    double lr[MOST_RATES];
    outcome of[MOST_RATES];
    int count;
    bool whole; /* every rate so far has its row */
} search;

/* The lowest loss among the rates whose validation accuracy is within two standard errors of the highest: on a plateau
 * accuracy is the same at every rate, and loss is not. -1 where all diverged. */
static int best_of(const search *found)
{
    int highest = -1, best = -1;
    for (int i = 0; i < found->count; i++)
        if (!isnan(found->of[i].validation) && (highest < 0 || found->of[i].validation > found->of[highest].validation))
            highest = i;
    for (int i = 0; highest >= 0 && i < found->count; i++) {
        const outcome *a = &found->of[i], *top = &found->of[highest];
        const double apart = 2 * hypot(a->error, top->error);
        if (a->validation >= top->validation - apart && (best < 0 || a->loss < found->of[best].loss)) best = i;
    }
    return best;
}

static vla_status try_rate(runner *x, const job *like, double lr, search *found, vla_error *error)
{
    job j;
    const int i = found->count;
    make_job(&j, like->s, like->op, like->n, like->T, like->seed, lr, true);
    const vla_status status = run_job(x, &j, &found->of[i], error);
    if (status) return status;
    found->lr[i] = lr;
    found->count++;
    found->whole = found->whole && found->of[i].done;
    return VLA_OK;
}

/* The grid with the first seed; while the best rate is the largest or smallest tried, one more beyond it. *lr is NaN
 * while a rate has no row yet (stopped, or left to another machine) or where all diverged. */
static vla_status choose_rate(runner *x, const job *like, double *lr, vla_error *error)
{
    search found = {.whole = true};
    vla_status status = VLA_OK;
    *lr = (double)NAN;
    for (size_t i = 0; !status && !x->stopped && i < sizeof GRID / sizeof *GRID; i++)
        status = try_rate(x, like, GRID[i], &found, error);
    double lowest = GRID[0], highest = GRID[sizeof GRID / sizeof *GRID - 1];
    while (!status && !x->stopped && found.whole && best_of(&found) >= 0 && found.count < MOST_RATES) {
        const double best = found.lr[best_of(&found)];
        if (best <= lowest)
            status = try_rate(x, like, lowest /= 3, &found, error);
        else if (best >= highest)
            status = try_rate(x, like, highest *= 3, &found, error);
        else
            break;
    }
    if (!status && !x->stopped && found.whole && best_of(&found) >= 0) *lr = found.lr[best_of(&found)];
    return status;
}

static vla_status run_cell(runner *x, vla_op op, int64_t n, int64_t T, vla_error *error)
{
    const vla_trained_settings *s = x->s;
    double lr = s->lr > 0 ? s->lr : s->quick ? 2e-3 : 3e-4;
    job j;
    outcome out;
    make_job(&j, s, op, n, T, (uint64_t)s->seeds[0], lr, false);
    vla_status status = VLA_OK;
    if (s->tuned && !(s->lr > 0)) status = choose_rate(x, &j, &lr, error);
    for (int64_t i = 0; !status && !x->stopped && !isnan(lr) && i < s->seed_count; i++) {
        make_job(&j, s, op, n, T, (uint64_t)s->seeds[i], lr, false);
        status = run_job(x, &j, &out, error);
    }
    return status;
}

/* |S_T|_F of the untrained backbone's last block on random tokens, mean over heads and four sequences. */
static vla_status add_norm(runner *x, vla_op op, vla_error *error)
{
    enum { B = 4 };
    const vla_trained_settings *s = x->s;
    job j;
    make_job(&j, s, op, 0, NORM_T, (uint64_t)s->seeds[0], 1, false);
    snprintf(j.label, sizeof j.label, "norm/%s/T%d_s%" PRIu64, vla_op_name(op), NORM_T, j.seed);
    char key[17];
    key_of(&j, "", key);
    if (x->sink->wanted && !x->sink->wanted(x->sink->context, j.label, key)) return VLA_OK;
    vla_network *network = NULL;
    int32_t *tokens = NULL;
    double norms[B * 64], mean = 0;
    vla_loss loss;
    vla_status status =
        vla_network_create(&network, &j.train.network, VLA_F32, s->isa, B, NORM_T, j.seed, x->pool, error);
    if (!status) status = vla_alloc((void **)&tokens, 2 * B * NORM_T, sizeof *tokens, "norms", error);
    vla_rng rng = vla_rng_seed(j.seed, NORM_T);
    for (int64_t i = 0; !status && i < B * NORM_T; i++) {
        tokens[i] = (int32_t)vla_rng_below(&rng, (uint64_t)s->vocab);
        tokens[B * NORM_T + i] = -1;
    }
    const vla_batch batch = {B, NORM_T, tokens, tokens ? tokens + B * NORM_T : NULL};
    if (!status) status = vla_network_forward(network, &batch, &loss, NULL, error);
    const int64_t heads = j.train.network.heads;
    if (!status && vla_network_state_norms(network, j.train.network.blocks - 1, norms)) {
        for (int64_t i = 0; i < B * heads; i++) mean += norms[i] / (double)(B * heads);
        vla_record *row = vla_record_create("state");
        const bool ok = row && describe(row, &j, "") && vla_record_bool(row, "trained", false) &&
                        vla_record_real(row, "norm", mean);
        status = ok ? x->sink->add(x->sink->context, row, error) : no_memory(row, error);
    }
    vla_free(tokens);
    vla_network_destroy(network);
    return status;
}

/* Refuses an impossible size before anything is trained. */
static vla_status check_sizes(const vla_trained_settings *s, vla_error *error)
{
    vla_status status = VLA_OK;
    for (int64_t i = 0; i < s->n_count; i++)
        for (int64_t t = 0; !status && t < (s->T ? s->T_count : 1); t++) {
            const int64_t T = s->T ? s->T[t] : vla_sequences_length(s->kind, s->n[i]);
            const vla_sequences sequences = {s->kind, s->vocab, s->n[i], T, 0};
            status = vla_sequences_check(&sequences, error);
        }
    return status;
}

vla_status vla_trained_run(const vla_trained_settings *s, vla_pool *pool, const vla_records *known,
                           const vla_row_sink *sink, const vla_trained_watch *watch, bool *stopped, vla_error *error)
{
    runner x = {.s = s, .pool = pool, .known = known, .sink = sink, .watch = watch};
    const int64_t lengths = s->T ? s->T_count : 1, jobs = s->n_count * lengths * s->op_count * s->seed_count;
    if (s->dump && (jobs != 1 || (s->tuned && !(s->lr > 0))))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--dump takes one case: one operator, n, T, seed and rate");
    vla_status status = check_sizes(s, error);
    if (!status && s->checkpoints) status = vla_directory_make(s->checkpoints, error);
    for (int o = 0; !status && s->norms && o < s->op_count; o++) status = add_norm(&x, s->ops[o], error);
    for (int64_t i = 0; i < s->n_count; i++)
        for (int64_t t = 0; t < lengths; t++)
            for (int o = 0; !status && !x.stopped && o < s->op_count; o++) {
                const int64_t T = s->T ? s->T[t] : vla_sequences_length(s->kind, s->n[i]);
                status = run_cell(&x, s->ops[o], s->n[i], T, error);
            }
    *stopped = x.stopped;
    return status;
}
