#include "lib/train/trained.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/task/recall.h"
#include "lib/train/trained_job.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CURVE = 100 };

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

typedef struct outcome {
    bool done;               /* there is a row: of this run or an earlier one */
    double validation, loss; /* what a rate is chosen by; NaN where it diverged */
    double error;            /* standard error of validation */
    double reached;          /* steps to the accuracy that ends a run; infinity where it was not reached */
} outcome;

static double reached_after(const vla_record *row)
{
    const bool reached = strcmp(vla_record_text(row, "stop_reason", ""), vla_train_stop_name(VLA_STOP_ENOUGH)) == 0;
    return reached ? vla_record_number(row, "steps", (double)INFINITY) : (double)INFINITY;
}

/* The validation stream asks as often as the test stream, `scored` times. */
static outcome outcome_of(const vla_record *row)
{
    const double v = vla_record_number(row, "validation", (double)NAN), scored = vla_record_number(row, "scored", 1);
    return (outcome){true, v, vla_record_number(row, "loss", (double)NAN), sqrt(v * (1 - v) / scored),
                     reached_after(row)};
}

static vla_status add_result(const vla_job_runner *x, const vla_job *j, const vla_train_result *r, int64_t parameters,
                             outcome *out, vla_error *error)
{
    const vla_share share = vla_share_of((const double[]){r->test}, 1, r->test_scored);
    const vla_isa isa = j->s->isa == VLA_ISA_AUTO ? vla_isa_detect() : j->s->isa;
    vla_record *row = vla_record_create("train");
    const bool ok = row && vla_job_describe(row, j, "") && vla_record_string(row, "status", "ok") &&
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
    if (ok) *out = outcome_of(row);
    return ok ? x->sink->add(x->sink->context, row, error) : vla_job_no_memory(row, error);
}

static vla_status add_failure(const vla_job_runner *x, const vla_job *j, const vla_error *why, vla_error *error)
{
    vla_record *row = vla_record_create("train");
    const bool ok = row && vla_job_describe(row, j, "") &&
                    vla_record_string(row, "status", j->search ? "skip" : "fail") &&
                    vla_record_string(row, "reason", why->message);
    return ok ? x->sink->add(x->sink->context, row, error) : vla_job_no_memory(row, error);
}

static bool tell(void *context, const vla_train_now *now)
{
    vla_job_runner *x = context;
    if (x->watch && x->watch->tell && !x->watch->tell(x->watch->context, x->now->label, now)) x->stopped = true;
    return !x->stopped;
}

static const vla_record *known_row(const vla_job_runner *x, const char *key)
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
static vla_status take_tried(const vla_job_runner *x, const vla_job *j, bool *found, vla_error *error)
{
    vla_job tried;
    char key[17];
    *found = false;
    if (!j->s->tuned || j->s->lr > 0 || j->search || j->seed != (uint64_t)j->s->seeds[0] || j->s->gradients ||
        j->s->dump)
        return VLA_OK;
    vla_job_make(&tried, j->s, j->op, j->n, j->T, j->seed, j->lr, true);
    vla_job_key(&tried, "", key);
    const vla_record *old = known_row(x, key);
    if (!old) return VLA_OK;
    vla_record *row = vla_record_copy(old);
    if (!row || !vla_job_describe(row, j, "")) return vla_job_no_memory(row, error);
    *found = true;
    return x->sink->add(x->sink->context, row, error);
}

/* Trains one network unless it is known or not wanted. */
static vla_status run_job(vla_job_runner *x, vla_job *j, outcome *out, vla_error *error)
{
    char key[17];
    *out = (outcome){false, (double)NAN, (double)NAN, 0, (double)INFINITY};
    vla_job_key(j, "", key);
    const vla_record *old = known_row(x, key);
    if (old) {
        *out = outcome_of(old);
        return VLA_OK;
    }
    if (x->sink->wanted && !x->sink->wanted(x->sink->context, j->label, key)) return VLA_OK;
    bool tried;
    vla_status status = take_tried(x, j, &tried, error);
    if (status || tried) return out->done = tried, status;
    x->now = j;
    j->train.context = &j->sequences;
    j->train.task = j->task;
    vla_job_place_checkpoint(j);
    vla_network *network = NULL;
    vla_train_result result = {.curve = NULL};
    vla_error why = {0};
    const bool gradients = j->s->gradients && !j->search;
    if (gradients) status = vla_job_untrained_gradients(x, j, error);
    if (status) return status;
    status = vla_train_run(&j->train, x->pool, tell, x, &network, &result, &why);
    if (status == VLA_ERR_NUMERIC) return out->done = true, add_failure(x, j, &why, error);
    if (status) return vla_fail(error, why.status, "%s: %s", j->label, why.message);
    if (result.stop != VLA_STOP_ASKED) {
        status = add_result(x, j, &result, vla_network_size(network), out, error);
        if (!status && gradients) status = vla_job_gradients(x, j, network, true, error);
    }
    if (!status && j->s->dump && !j->search) status = vla_job_dump(j, network, error);
    vla_network_destroy(network);
    vla_train_result_free(&result);
    return status;
}

enum { MOST_RATES = 12 };
static const double GRID[] = {1e-3, 3e-4, 3e-3, 1e-4, 1e-2}; /* in the order they are tried */

typedef struct search {
    double lr[MOST_RATES];
    outcome of[MOST_RATES];
    int count;
    bool whole; /* every rate so far has its row */
} search;

/* The rate that reached the accuracy in the fewest steps. Where none did, the lowest loss among those whose validation
 * accuracy is within two standard errors of the highest: on a plateau accuracy is the same at every rate, and loss is
 * not. -1 where all diverged. */
static int best_of(const search *found)
{
    int highest = -1, best = -1;
    for (int i = 0; i < found->count; i++) {
        const outcome *a = &found->of[i], *b = &found->of[best < 0 ? i : best];
        if (isfinite(a->reached) &&
            (best < 0 || a->reached < b->reached || (a->reached == b->reached && a->loss < b->loss)))
            best = i;
    }
    if (best >= 0) return best;
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

/* Sooner there, or else more accurate by two standard errors or lower in loss by 1 %. */
static bool is_clearly_better(const outcome *a, const outcome *b)
{
    if (isfinite(a->reached) || isfinite(b->reached)) return a->reached < b->reached;
    return isnan(b->validation) || a->validation > b->validation + 2 * hypot(a->error, b->error) ||
           a->loss < 0.99 * b->loss;
}

/* The rate to try next: three times beyond the best where that is the smallest or largest tried and clearly better than
 * the one beside it; otherwise 0. */
static double beyond_edge(const search *found)
{
    const int best = best_of(found);
    int below = -1, above = -1; /* the rates beside the best */
    for (int i = 0; best >= 0 && i < found->count; i++) {
        if (found->lr[i] < found->lr[best] && (below < 0 || found->lr[i] > found->lr[below])) below = i;
        if (found->lr[i] > found->lr[best] && (above < 0 || found->lr[i] < found->lr[above])) above = i;
    }
    if (best >= 0 && below < 0 && above >= 0 && is_clearly_better(&found->of[best], &found->of[above]))
        return found->lr[best] / 3;
    if (best >= 0 && above < 0 && below >= 0 && is_clearly_better(&found->of[best], &found->of[below]))
        return found->lr[best] * 3;
    return 0;
}

/* The fewest steps in which a known rate of the grid reached the accuracy, 0 where none did: others stop there. */
static int64_t fewest_steps(const vla_job_runner *x, const vla_job *like)
{
    double fewest = (double)INFINITY;
    for (size_t i = 0; i < sizeof GRID / sizeof *GRID; i++) {
        vla_job j;
        char key[17];
        vla_job_make(&j, like->s, like->op, like->n, like->T, like->seed, GRID[i], true);
        vla_job_key(&j, "", key);
        const vla_record *row = known_row(x, key);
        if (row) fewest = fmin(fewest, reached_after(row));
    }
    return isfinite(fewest) ? (int64_t)fewest : 0;
}

static vla_status try_rate(vla_job_runner *x, const vla_job *like, double lr, search *found, vla_error *error)
{
    vla_job j;
    const int i = found->count;
    vla_job_make(&j, like->s, like->op, like->n, like->T, like->seed, lr, true);
    j.train.give_up = fewest_steps(x, like);
    const vla_status status = run_job(x, &j, &found->of[i], error);
    if (status) return status;
    found->lr[i] = lr;
    found->count++;
    found->whole = found->whole && found->of[i].done;
    return VLA_OK;
}

/* The grid with the first seed; while the best rate is the largest or smallest tried, one more beyond it. *lr is NaN
 * while a rate has no row yet (stopped, or left to another machine) or where all diverged. */
static vla_status choose_rate(vla_job_runner *x, const vla_job *like, double *lr, vla_error *error)
{
    search found = {.whole = true};
    vla_status status = VLA_OK;
    *lr = (double)NAN;
    for (size_t i = 0; !status && !x->stopped && i < sizeof GRID / sizeof *GRID; i++)
        status = try_rate(x, like, GRID[i], &found, error);
    while (!status && !x->stopped && found.whole && found.count < MOST_RATES) {
        const double beyond = beyond_edge(&found);
        if (!(beyond > 0)) break;
        status = try_rate(x, like, beyond, &found, error);
    }
    if (!status && !x->stopped && found.whole && best_of(&found) >= 0) *lr = found.lr[best_of(&found)];
    return status;
}

static vla_status run_cell(vla_job_runner *x, vla_op op, int64_t n, int64_t T, vla_error *error)
{
    const vla_trained_settings *s = x->s;
    double lr = s->lr > 0 ? s->lr : s->quick ? 2e-3 : 3e-4;
    vla_job j;
    outcome out;
    vla_job_make(&j, s, op, n, T, (uint64_t)s->seeds[0], lr, false);
    vla_status status = VLA_OK;
    if (s->tuned && !(s->lr > 0)) status = choose_rate(x, &j, &lr, error);
    for (int64_t i = 0; !status && !x->stopped && !isnan(lr) && i < s->seed_count; i++) {
        vla_job_make(&j, s, op, n, T, (uint64_t)s->seeds[i], lr, false);
        status = run_job(x, &j, &out, error);
    }
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
    vla_job_runner x = {.s = s, .pool = pool, .known = known, .sink = sink, .watch = watch};
    const int64_t lengths = s->T ? s->T_count : 1, jobs = s->n_count * lengths * s->op_count * s->seed_count;
    if (s->dump && (jobs != 1 || (s->tuned && !(s->lr > 0))))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--dump takes one case: one operator, n, T, seed and rate");
    vla_status status = check_sizes(s, error);
    if (!status && s->checkpoints) status = vla_directory_make(s->checkpoints, error);
    if (!status && s->dump) status = vla_directory_make(s->dump, error);
    for (int o = 0; !status && s->norms && o < s->op_count; o++) status = vla_job_norm(&x, s->ops[o], error);
    for (int64_t i = 0; i < s->n_count; i++)
        for (int64_t t = 0; t < lengths; t++)
            for (int o = 0; !status && !x.stopped && o < s->op_count; o++) {
                const int64_t T = s->T ? s->T[t] : vla_sequences_length(s->kind, s->n[i]);
                status = run_cell(&x, s->ops[o], s->n[i], T, error);
            }
    *stopped = x.stopped;
    return status;
}
