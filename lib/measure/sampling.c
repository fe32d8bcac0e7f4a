#include "lib/measure/sampling.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/base/clock.h"
#include <math.h>

const char *vla_stop_name(vla_stop stop)
{
    static const char *const names[VLA_STOPS] = {"", "noise", "samples", "time", "interrupt"};
    return stop >= 0 && stop < VLA_STOPS ? names[stop] : "";
}

vla_stop vla_stop_decide(const vla_stop_rule *rule, int64_t n, double noise, double timed, double elapsed)
{
    if (n < 1) return VLA_GO_ON;
    /* An unknown noise (NaN) compares false: it never stops by the noise rule. */
    if (n >= rule->min_samples && timed >= rule->min_time && noise <= rule->noise) return VLA_STOP_NOISE;
    if (n >= rule->max_samples && n >= rule->min_samples) return VLA_STOP_SAMPLES;
    if (!(elapsed < rule->time_limit)) return VLA_STOP_TIME;
    return VLA_GO_ON;
}

/* Seconds below which a run feels what ran before it. */
#define SHORT 0.02

static double now(const vla_sampler *sampler)
{
    return sampler->subject.clock ? sampler->subject.clock() : vla_now();
}

/* Seconds for one repeat of the subject, state reset outside the timed region. */
static vla_status time_once(vla_sampler *sampler, int64_t iterations, double *seconds, vla_error *error)
{
    const vla_subject *subject = &sampler->subject;
    if (subject->reset) {
        vla_status status = subject->reset(subject->context, error);
        if (status) return status;
    }
    const double start = now(sampler);
    vla_status status = subject->run(subject->context, iterations, error);
    *seconds = subject->elapsed ? subject->elapsed(subject->context) : now(sampler) - start;
    return status;
}

vla_status vla_sampler_start(vla_sampler *sampler, const vla_subject *subject, const vla_stop_rule *rule, double floor,
                             vla_error *error)
{
    enum { MOST_DOUBLINGS = 30, COLD = 20 }; /* a clock that stands still must not hang the tool */
    *sampler = (vla_sampler){.subject = *subject, .rule = *rule, .floor = floor, .iterations = 1};
    double seconds = 0;
    vla_status status = time_once(sampler, 1, &seconds, error);
    sampler->first = seconds;
    /* A first run is cold: unless it was long, time it again warm before believing it. */
    for (int i = 0; !status && i < MOST_DOUBLINGS && seconds < (i == 0 ? COLD * floor : floor); i++) {
        if (i > 0) sampler->iterations *= 2;
        status = time_once(sampler, sampler->iterations, &seconds, error);
    }
    if (status) return status;
    sampler->capacity = rule->max_samples > rule->min_samples ? rule->max_samples : rule->min_samples;
    if (sampler->capacity < 1) sampler->capacity = 1;
    void *memory;
    status = vla_alloc(&memory, sampler->capacity, sizeof(double), "samples", error);
    if (status) return status;
    sampler->samples = memory;
    return VLA_OK;
}

vla_status vla_sampler_step(vla_sampler *sampler, vla_error *error)
{
    if (sampler->stop != VLA_GO_ON) return VLA_OK;
    const double entered = now(sampler);
    double seconds;
    /* Others had their turn since: one untimed run brings threads and caches back. Long runs do not notice. */
    vla_status status = sampler->first < SHORT ? time_once(sampler, 1, &seconds, error) : VLA_OK;
    if (!status) status = time_once(sampler, sampler->iterations, &seconds, error);
    if (status) return status;
    sampler->samples[sampler->n++] = seconds / (double)sampler->iterations;
    sampler->timed += seconds;
    vla_summary summary;
    status = vla_summarise(sampler->samples, sampler->n, &summary, error);
    if (status) return status;
    sampler->own += now(sampler) - entered;
    sampler->stop = vla_stop_decide(&sampler->rule, sampler->n, summary.noise, sampler->timed, sampler->own);
    /* The buffer holds capacity samples, whatever the rule says. */
    if (sampler->stop == VLA_GO_ON && sampler->n >= sampler->capacity) sampler->stop = VLA_STOP_SAMPLES;
    return VLA_OK;
}

void vla_sampler_free(vla_sampler *sampler)
{
    vla_free(sampler->samples);
    sampler->samples = NULL;
    sampler->n = sampler->capacity = 0;
}
