#include "lib/measure/bench.h"
#include "lib/op/registry.h"
#include "lib/op/work.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *vla_row_status_name(vla_row_status status)
{
    static const char *const names[] = {"ok", "fail", "skip", "oom", "timeout"};
    return (int)status >= 0 && status <= VLA_ROW_TIMEOUT ? names[status] : "fail";
}

/* Columns that every sample row has, in this order, whether or not there is a value. */
static const char *const measured[] = {"status",
                                       "reason",
                                       "checked",
                                       "n_samples",
                                       "median_s",
                                       "q1_s",
                                       "q3_s",
                                       "min_s",
                                       "mad_s",
                                       "median_lo_s",
                                       "median_hi_s",
                                       "noise",
                                       "stop_reason",
                                       "iterations",
                                       "flops",
                                       "bytes",
                                       "flops_per_s",
                                       "bytes_per_s",
                                       "tokens_per_s",
                                       "time_per_token_s",
                                       "share_of_peak",
                                       "floor_s",
                                       "state_bytes",
                                       "peak_bytes",
                                       "sm_clock_hz",
                                       "residual",
                                       "max_residual",
                                       "isa",
                                       "choice",
                                       "chosen_chunk",
                                       "chosen_segments",
                                       "libraries",
                                       "warning"};

static bool put_columns(vla_record *r)
{
    bool ok = true;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) ok = ok && vla_record_null(r, measured[i]);
    return ok;
}

static bool has(const vla_inputs *in, vla_input input)
{
    return in && in->tensor[input].data;
}

/* Inputs read, outputs and state written, and workspace; on a device what was taken there. */
static double footprint(const vla_bench *b)
{
    const vla_problem *p = &b->c.problem;
    if (b->mirror) return (double)b->device_bytes;
    double bytes = vla_work_bytes(p, b->c.dtype, has(b->inputs, VLA_IN_U), has(b->inputs, VLA_IN_B));
    bytes += (double)(b->buffers.S_bytes + b->buffers.A_bytes + b->buffers.n_bytes);
    if (b->backward) bytes += (double)b->backward->bytes(b->backward_context);
    return bytes + (b->plan ? (double)vla_plan_workspace(b->plan) : 0);
}

/* A backward pass forms two products where the forward pass forms one (what it makes again is not counted), and its
 * floor of memory is once more that of the forward pass: inputs and the output's gradient read, the inputs' written. */
static bool put_work(vla_record *r, const vla_bench *b)
{
    const vla_problem *p = &b->c.problem;
    const bool u = has(b->inputs, VLA_IN_U), beta = has(b->inputs, VLA_IN_B);
    double bytes = vla_work_bytes(p, b->c.dtype, u, beta);
    /* A decode step of a state operator reads and writes its whole state. */
    if (b->c.mode == VLA_DECODE && p->op != VLA_SOFTMAX) bytes += 2 * vla_state_bytes(p, b->c.dtype);
    const double flops = vla_work_flops(p) * (b->c.backward ? 3 : 1);
    if (b->c.backward) bytes *= 2;
    return vla_record_real(r, "flops", flops) && vla_record_real(r, "bytes", bytes) &&
           vla_record_real(r, "state_bytes", vla_state_bytes(p, b->c.dtype)) &&
           (!b->plan || vla_record_real(r, "peak_bytes", footprint(b)));
}

static bool put_rates(vla_record *r, const vla_bench *b, const vla_summary *s, const vla_bench_facts *facts)
{
    const vla_problem *p = &b->c.problem;
    const double flops = vla_record_number(r, "flops", NAN), bytes = vla_record_number(r, "bytes", NAN);
    const double tokens = (double)p->B * (double)p->T;
    bool ok = vla_record_real(r, "flops_per_s", flops / s->median) &&
              vla_record_real(r, "bytes_per_s", bytes / s->median) &&
              vla_record_real(r, "tokens_per_s", tokens / s->median) &&
              vla_record_real(r, "time_per_token_s", s->median / tokens);
    if (facts->peak_flops > 0) ok = ok && vla_record_real(r, "share_of_peak", flops / s->median / facts->peak_flops);
    if (facts->bandwidth > 0) ok = ok && vla_record_real(r, "floor_s", bytes / facts->bandwidth);
    return ok;
}

/* The system counts in hundredths of a second: less than this share of a short run is chance. */
#define STOLEN 0.02

static void add_warning(char *text, size_t size, const char *warning)
{
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? "; " : "", warning);
}

static bool put_warnings(vla_record *r, const vla_bench *b, const vla_summary *s, const vla_bench_facts *facts)
{
    char text[240] = "";
    const vla_stop_rule *rule = &b->sampler.rule;
    const double share = facts->peak_flops > 0 ? vla_record_number(r, "flops_per_s", 0) / facts->peak_flops : 0;
    if (share > 1) add_warning(text, sizeof text, "rate above the machine's measured peak");
    if (b->drifted) add_warning(text, sizeof text, "outputs differ between runs");
    if (s->n < rule->min_samples) add_warning(text, sizeof text, "fewer samples than asked");
    if (b->sampler.stop != VLA_STOP_NOISE && !(s->noise <= rule->noise))
        add_warning(text, sizeof text, "noise target not met");
    if (s->median * (double)b->sampler.iterations < 0.5 * b->sampler.floor)
        add_warning(text, sizeof text, "samples shorter than the clock allows");
    if (b->throttle[0]) {
        char held[96];
        snprintf(held, sizeof held, "clock held down: %.63s", b->throttle);
        add_warning(text, sizeof text, held);
    }
    if (b->sm_clock_hz < 0.9 * b->sm_clock_max_hz) {
        char low[96];
        snprintf(low, sizeof low, "clock held down: at %.0f of %.0f MHz", 1e-6 * b->sm_clock_hz,
                 1e-6 * b->sm_clock_max_hz);
        add_warning(text, sizeof text, low);
    }
    if (b->c.backend == VLA_CPU && b->stolen > STOLEN) {
        char part[64];
        snprintf(part, sizeof part, "%.0f %% of the processors' time stolen", 100 * b->stolen);
        add_warning(text, sizeof text, part);
    }
    if (s->n >= 5 && b->sampler.samples[0] > 1.5 * s->q3) add_warning(text, sizeof text, "slow first sample");
    if (10 * vla_outliers(b->sampler.samples, b->sampler.n, s) > s->n) add_warning(text, sizeof text, "outliers");
    return vla_record_string(r, "warning", text[0] ? text : NULL);
}

static bool put_times(vla_record *r, const vla_bench *b, const vla_bench_facts *facts)
{
    vla_summary s;
    if (vla_summarise(b->sampler.samples, b->sampler.n, &s, NULL)) return false;
    return vla_record_int(r, "n_samples", s.n) && vla_record_real(r, "median_s", s.median) &&
           vla_record_real(r, "q1_s", s.q1) && vla_record_real(r, "q3_s", s.q3) && vla_record_real(r, "min_s", s.min) &&
           vla_record_real(r, "mad_s", s.mad) && vla_record_real(r, "median_lo_s", s.median_lo) &&
           vla_record_real(r, "median_hi_s", s.median_hi) && vla_record_real(r, "noise", s.noise) &&
           vla_record_string(r, "stop_reason", vla_stop_name(b->sampler.stop)) &&
           vla_record_int(r, "iterations", b->sampler.iterations) && put_rates(r, b, &s, facts) &&
           put_warnings(r, b, &s, facts) && vla_record_reals(r, "samples_s", b->sampler.samples, b->sampler.n);
}

static vla_record *begin(const vla_case *c, vla_row_status status, const char *reason, const vla_bench_facts *facts)
{
    vla_record *r = vla_record_create("sample");
    if (r && vla_case_record(c, facts->seed, facts->input, r) && put_columns(r) &&
        vla_record_string(r, "status", vla_row_status_name(status)) &&
        vla_record_string(r, "reason", reason && *reason ? reason : NULL) &&
        vla_record_string(r, "choice", c->best ? "rule" : "named"))
        return r;
    vla_record_destroy(r);
    return NULL;
}

vla_record *vla_bench_empty_record(const vla_case *c, vla_row_status status, const char *reason,
                                   const vla_bench_facts *facts)
{
    const vla_bench b = {.c = *c};
    vla_record *r = begin(c, status, reason, facts);
    if (r && put_work(r, &b)) return r;
    vla_record_destroy(r);
    return NULL;
}

/* Chunk and segments, given or chosen; empty where the form has none. */
static bool put_cut(vla_record *r, const vla_plan *plan)
{
    int64_t chunk = 0, segments = 0;
    vla_plan_cut(plan, &chunk, &segments);
    return (chunk == 0 || vla_record_int(r, "chosen_chunk", chunk)) &&
           (segments == 0 || vla_record_int(r, "chosen_segments", segments));
}

vla_record *vla_bench_record(const vla_bench *b, const vla_bench_facts *facts)
{
    vla_record *r = begin(&b->c, b->status, b->reason, facts);
    bool ok = r && put_work(r, b);
    if (ok && b->check.checked[0])
        ok = vla_record_string(r, "checked", b->check.checked) &&
             vla_record_real(r, "residual", b->check.residual.residual) &&
             vla_record_real(r, "max_residual", b->check.residual.max_residual);
    if (ok && b->plan && b->mirror) {
        const char *label = vla_mirror_label(b->mirror);
        ok = vla_record_string(r, "isa", *label ? label : "cuda");
        if (ok && b->sm_clock_hz > 0) ok = vla_record_real(r, "sm_clock_hz", b->sm_clock_hz);
    } else if (ok && b->plan)
        ok = vla_record_string(r, "isa", vla_isa_name(vla_plan_isa(b->plan)));
    if (ok && b->libraries[0]) ok = vla_record_string(r, "libraries", b->libraries);
    if (ok && b->plan) ok = put_cut(r, b->plan);
    if (ok && b->status == VLA_ROW_OK && b->sampler.n > 0) ok = put_times(r, b, facts);
    if (ok) return r;
    vla_record_destroy(r);
    return NULL;
}
