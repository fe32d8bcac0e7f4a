#include "lib/train/trainer.h"
#include "lib/base/clock.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/train/checkpoint.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECENT = 50, IDENTITY = 640 };

typedef struct run {
    const vla_train *t;
    vla_network *network;
    vla_progress_mark mark;
    int32_t *tokens, *targets;
    char identity[IDENTITY];
    double seconds;
    int64_t steps_here; /* of this process, for the rate */
} run;

const char *vla_train_stop_name(vla_train_stop stop)
{
    static const char *const names[] = {"steps", "accuracy reached", "no progress", "another rate was faster",
                                        "interrupted"};
    return (int)stop >= 0 && stop <= VLA_STOP_ASKED ? names[stop] : "?";
}

double vla_train_rate(const vla_train *t, int64_t step)
{
    if (step < t->warmup) return t->lr * (double)step / (double)t->warmup;
    if (step >= t->steps) return 0;
    const double part = (double)(step - t->warmup) / (double)(t->steps - t->warmup);
    return t->lr * 0.5 * (1 + cos(3.14159265358979323846 * part));
}

/* Everything that decides the numbers of a run. */
static void identify(const vla_train *t, char *text)
{
    const vla_network_config *c = &t->network;
    snprintf(
        text, IDENTITY,
        "%s op %d vocab %lld positions %lld width %lld heads %lld blocks %lld hidden %lld features %d %d l2 %d "
        "penalty %d gate %d floor %.17g lambda0 %.17g refresh %lld %.17g norm %d conv %lld T %lld batch %lld steps "
        "%lld warmup %lld lr %.17g decay %.17g clip %.17g seed %llu isa %d",
        t->task, c->op, (long long)c->vocab, (long long)c->positions, (long long)c->width, (long long)c->heads,
        (long long)c->blocks, (long long)c->hidden, c->features, c->key_features, c->qk_l2, c->penalty, c->gate,
        c->floor, c->lambda0, (long long)c->refresh_period, c->refresh_eps, c->out_norm, (long long)c->conv,
        (long long)t->T, (long long)t->batch, (long long)t->steps, (long long)t->warmup, t->lr, t->decay, t->clip,
        (unsigned long long)t->seed, t->isa);
    const size_t used = strlen(text);
    if (c->gate_bias != 0) snprintf(text + used, IDENTITY - used, " gate bias %.17g", c->gate_bias);
}

static vla_status check(const vla_train *t, vla_error *error)
{
    if (t->steps < 0 || t->steps > 1 << 30)
        return vla_fail(error, VLA_ERR_ARGUMENT, "steps %lld: 0 to 1073741824", (long long)t->steps);
    if (t->warmup < 0 || t->warmup > t->steps)
        return vla_fail(error, VLA_ERR_ARGUMENT, "warm-up of %lld steps: 0 to the %lld steps of the run",
                        (long long)t->warmup, (long long)t->steps);
    if (!(t->lr > 0) || !isfinite(t->lr)) return vla_fail(error, VLA_ERR_ARGUMENT, "lr %g: above 0", t->lr);
    if (t->batch < 1 || t->test_batch < 1)
        return vla_fail(error, VLA_ERR_ARGUMENT, "batch %lld: at least 1", (long long)t->batch);
    return VLA_OK;
}

static vla_status open_run(run *r, const vla_train *t, vla_pool *pool, vla_error *error)
{
    *r = (run){.t = t, .mark = {.best = -1}};
    const int64_t most = t->batch > t->test_batch ? t->batch : t->test_batch;
    identify(t, r->identity);
    vla_status status = vla_network_create(&r->network, &t->network, VLA_F32, t->isa, most, t->T, t->seed, pool, error);
    if (!status) status = vla_alloc((void **)&r->tokens, most * t->T, sizeof *r->tokens, "training", error);
    if (!status) status = vla_alloc((void **)&r->targets, most * t->T, sizeof *r->targets, "training", error);
    if (!status) status = vla_alloc((void **)&r->mark.curve, t->steps, sizeof *r->mark.curve, "training", error);
    bool found = false;
    if (!status && t->checkpoint && t->resume)
        status = vla_checkpoint_read(t->checkpoint, r->identity, r->network, t->steps, &r->mark, &found, error);
    return status;
}

static void close_run(run *r)
{
    vla_free(r->tokens);
    vla_free(r->targets);
    vla_free(r->mark.curve);
    vla_network_destroy(r->network);
}

static vla_status save(const run *r, vla_error *error)
{
    if (!r->t->checkpoint) return VLA_OK;
    return vla_checkpoint_write(r->t->checkpoint, r->identity, r->network, &r->mark, error);
}

static vla_status one_step(run *r, vla_loss *loss, vla_error *error)
{
    const vla_train *t = r->t;
    const int64_t step = r->mark.step;
    vla_status status = t->data(t->context, 0, step * t->batch, t->batch, r->tokens, r->targets, error);
    const vla_batch batch = {t->batch, t->T, r->tokens, r->targets};
    if (!status) status = vla_network_forward(r->network, &batch, loss, NULL, error);
    if (status) return status;
    if (!isfinite(loss->loss))
        return vla_fail(error, VLA_ERR_NUMERIC, "step %lld: the loss is not finite (rate %g)", (long long)step + 1,
                        vla_train_rate(t, step));
    vla_network_backward(r->network);
    const vla_adam adam = {vla_train_rate(t, step), 0.9, 0.999, 1e-8, t->decay, t->clip, step + 1};
    bool finite;
    const double norm = vla_network_update(r->network, &adam, &finite);
    if (!isfinite(norm))
        return vla_fail(error, VLA_ERR_NUMERIC, "step %lld: the gradient is not finite (loss %g)", (long long)step + 1,
                        loss->loss);
    if (!finite)
        return vla_fail(error, VLA_ERR_NUMERIC, "step %lld: a parameter is not finite (rate %g)", (long long)step + 1,
                        adam.lr);
    r->mark.curve[step] = loss->loss;
    r->mark.step++;
    r->steps_here++;
    return VLA_OK;
}

static vla_status score(run *r, int split, int64_t batches, int64_t *correct, int64_t *scored, vla_error *error)
{
    const vla_train *t = r->t;
    *correct = *scored = 0;
    for (int64_t i = 0; i < batches; i++) {
        vla_loss loss;
        vla_status status = t->data(t->context, split, i * t->test_batch, t->test_batch, r->tokens, r->targets, error);
        const vla_batch batch = {t->test_batch, t->T, r->tokens, r->targets};
        if (!status) status = vla_network_forward(r->network, &batch, &loss, NULL, error);
        if (status) return status;
        *correct += loss.correct, *scored += loss.scored;
    }
    return VLA_OK;
}

vla_status vla_train_score(const vla_train *t, vla_network *network, int split, int64_t batches, int64_t *correct,
                           int64_t *scored, vla_error *error)
{
    run r = {.t = t, .network = network};
    vla_status status = vla_alloc((void **)&r.tokens, t->test_batch * t->T, sizeof *r.tokens, "test", error);
    if (!status) status = vla_alloc((void **)&r.targets, t->test_batch * t->T, sizeof *r.targets, "test", error);
    if (!status) status = score(&r, split, batches, correct, scored, error);
    vla_free(r.tokens);
    vla_free(r.targets);
    return status;
}

/* Is training over by the early stop's rules? Also true of a finished run that is resumed. */
static bool is_over(const run *r, vla_train_stop *stop)
{
    const vla_train *t = r->t;
    if (t->check_every == 0) return false;
    if (t->enough > 0 && r->mark.best >= t->enough) return *stop = VLA_STOP_ENOUGH, true;
    if (t->patience > 0 && r->mark.checks >= t->patience) return *stop = VLA_STOP_PATIENCE, true;
    if (t->give_up > 0 && r->mark.step >= t->give_up) return *stop = VLA_STOP_GIVE_UP, true;
    return false;
}

static vla_status early_stop(run *r, vla_train_stop *stop, bool *over, vla_error *error)
{
    const vla_train *t = r->t;
    *over = false;
    if (t->check_every == 0 || r->mark.step % t->check_every || r->mark.step == t->steps) return VLA_OK;
    int64_t correct, scored;
    const vla_status status = score(r, 1, t->test_batches, &correct, &scored, error);
    if (status) return status;
    const double accuracy = scored ? (double)correct / (double)scored : 0;
    r->mark.checks = accuracy > r->mark.best ? 0 : r->mark.checks + 1;
    r->mark.best = fmax(accuracy, r->mark.best);
    *over = is_over(r, stop);
    return VLA_OK;
}

static vla_train_now news(const run *r, const vla_loss *loss)
{
    const vla_train *t = r->t;
    vla_train_now now = {.step = r->mark.step, .steps = t->steps, .loss = loss->loss};
    now.accuracy = loss->scored ? (double)loss->correct / (double)loss->scored : 0;
    now.tokens_per_s = r->seconds > 0 ? (double)(r->steps_here * t->batch * t->T) / r->seconds : 0;
    now.left_s = r->seconds / (double)r->steps_here * (double)(t->steps - r->mark.step);
    return now;
}

static vla_status loop(run *r, bool (*tell)(void *context, const vla_train_now *now), void *tell_context,
                       vla_train_stop *stop, vla_error *error)
{
    const vla_train *t = r->t;
    *stop = VLA_STOP_STEPS;
    while (r->mark.step < t->steps && !is_over(r, stop)) {
        vla_loss loss;
        const double started = vla_now();
        bool over = false;
        vla_status status = one_step(r, &loss, error);
        r->seconds += vla_now() - started;
        if (!status) status = early_stop(r, stop, &over, error);
        if (!status && t->checkpoint_every && r->mark.step % t->checkpoint_every == 0) status = save(r, error);
        if (status || over) return status;
        const vla_train_now now = news(r, &loss);
        if (tell && !tell(tell_context, &now)) {
            *stop = VLA_STOP_ASKED;
            break;
        }
    }
    return VLA_OK;
}

static double recent_loss(const vla_progress_mark *mark)
{
    const int64_t count = mark->step < RECENT ? mark->step : RECENT;
    double sum = 0;
    for (int64_t i = mark->step - count; i < mark->step; i++) sum += mark->curve[i];
    return count ? sum / (double)count : (double)NAN;
}

static vla_status finish(run *r, vla_train_result *result, vla_error *error)
{
    const vla_train *t = r->t;
    int64_t correct = 0, scored = 0;
    vla_status status = score(r, 1, t->check_every ? t->test_batches : 0, &correct, &scored, error);
    result->validation = scored ? (double)correct / (double)scored : (double)NAN;
    if (!status) status = score(r, 2, t->test_batches, &result->test_correct, &result->test_scored, error);
    result->test = result->test_scored ? (double)result->test_correct / (double)result->test_scored : (double)NAN;
    return status;
}

vla_status vla_train_run(const vla_train *t, vla_pool *pool, bool (*tell)(void *context, const vla_train_now *now),
                         void *tell_context, vla_network **network, vla_train_result *result, vla_error *error)
{
    run r = {.t = t};
    *result = (vla_train_result){.test = (double)NAN, .validation = (double)NAN};
    *network = NULL;
    vla_status status = check(t, error);
    if (!status) status = open_run(&r, t, pool, error);
    if (!status) status = loop(&r, tell, tell_context, &result->stop, error);
    if (!status) status = save(&r, error);
    if (!status && result->stop != VLA_STOP_ASKED) status = finish(&r, result, error);
    if (!status) {
        result->steps = r.mark.step;
        result->loss = recent_loss(&r.mark);
        result->seconds = r.seconds;
        result->tokens_per_s = r.seconds > 0 ? (double)(r.steps_here * t->batch * t->T) / r.seconds : (double)NAN;
        result->curve = r.mark.curve, r.mark.curve = NULL;
        *network = r.network, r.network = NULL;
    }
    close_run(&r);
    return status;
}

void vla_train_result_free(vla_train_result *result)
{
    vla_free(result->curve);
    result->curve = NULL;
}
