#include "cmd/bench.h"
#include "kernels/cuda/device.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/op/inputs.h"
#include "lib/op/registry.h"
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static bool built_for_cuda(void)
{
    const vla_kernel *kernel;
    for (int i = 0; (kernel = vla_kernel_at(i)); i++)
        if (kernel->backend == VLA_CUDA) return true;
    return false;
}

vla_status bench_backends(const bench_options *o, bool use[VLA_BACKENDS], vla_error *error)
{
    const char *name = o->common.backend;
    const bool automatic = !strcmp(name, "auto");
    use[VLA_CPU] = !strncmp(name, "cpu", 3);
    use[VLA_CUDA] = false;
    if (!strcmp(name, "cpu")) return VLA_OK;
    vla_device_info info;
    vla_error why = {0};
    if (vla_device_query(&info, &why) == VLA_OK) {
        use[VLA_CUDA] = true;
        return VLA_OK;
    }
    if (!automatic)
        return vla_fail(error, VLA_ERR_DEVICE, "--backend %s: %.300s; accepted here are cpu and auto", name,
                        why.message);
    use[VLA_CPU] = true;
    return VLA_OK;
}

void bench_note_backend(const bench_options *o)
{
    vla_device_info info;
    vla_error why = {0};
    const bool wants_device = o->launch || o->cache || o->profile;
    if (o->common.quiet || strcmp(o->common.backend, "auto") || vla_device_query(&info, &why) == VLA_OK) return;
    if (wants_device || o->common.verbose || built_for_cuda())
        fprintf(stderr, "vla-bench: note: %s: using the CPU%s\n", why.message,
                wants_device ? ", where --launch, --cache and --profile change nothing" : "");
}

/* Appends the pairs of one --crossover value, "vla,softmax" or "vla,softmax,delta,softmax". */
static vla_status parse_pairs(const char *text, vla_pair *pairs, int *count, vla_error *error)
{
    char copy[256], *rest = copy;
    vla_op found[2];
    int half = 0;
    if (strlen(text) >= sizeof copy) return vla_fail(error, VLA_ERR_ARGUMENT, "--crossover: the value is too long");
    snprintf(copy, sizeof copy, "%s", text);
    for (char *item; (item = strsep(&rest, ","));) {
        if (!vla_op_parse(item, &found[half]))
            return vla_fail(error, VLA_ERR_ARGUMENT,
                            "--crossover %s: unknown operator '%s'; accepted are pairs of softmax, "
                            "linear, delta, decay, vla, rls, or none",
                            text, item);
        if (++half < 2) continue;
        half = 0;
        if (found[0] == found[1])
            return vla_fail(error, VLA_ERR_ARGUMENT, "--crossover %s: an operator does not cross itself", text);
        if (*count == BENCH_MOST_PAIRS)
            return vla_fail(error, VLA_ERR_ARGUMENT, "--crossover: accepted are at most %d pairs", BENCH_MOST_PAIRS);
        pairs[(*count)++] = (vla_pair){found[0], found[1]};
    }
    if (half) return vla_fail(error, VLA_ERR_ARGUMENT, "--crossover %s: accepted are pairs A,B", text);
    return VLA_OK;
}

static bool among(const vla_op *ops, int count, vla_op op)
{
    for (int i = 0; i < count; i++)
        if (ops[i] == op) return true;
    return false;
}

vla_status bench_pairs(const bench_options *o, const vla_op *ops, int op_count, vla_pair *pairs, int *count,
                       vla_error *error)
{
    vla_status status = VLA_OK;
    *count = 0;
    for (int64_t i = 0; !status && i < o->crossovers.count; i++)
        if (!strcmp(o->crossovers.values[i], "none") && o->crossovers.count > 1)
            status = vla_fail(error, VLA_ERR_ARGUMENT, "--crossover none: given beside pairs; accepted: none alone");
        else if (strcmp(o->crossovers.values[i], "none"))
            status = parse_pairs(o->crossovers.values[i], pairs, count, error);
    if (o->crossovers.count == 0 && among(ops, op_count, VLA_VLA) && among(ops, op_count, VLA_SOFTMAX))
        pairs[(*count)++] = (vla_pair){VLA_VLA, VLA_SOFTMAX};
    return status;
}

static void add_op(vla_op *ops, int *count, vla_op op)
{
    if (!among(ops, *count, op)) ops[(*count)++] = op;
}

/* --op, or the operators the crossovers need, or the default four; a baseline and crossovers are always measured too.
 */
static vla_status choose_ops(const bench_options *o, bool listing, vla_op *ops, int *count, vla_error *error)
{
    vla_pair pairs[BENCH_MOST_PAIRS];
    int pair_count;
    vla_op baseline;
    *count = vla_common_ops(&o->common, ops);
    vla_status status = bench_pairs(o, ops, *count, pairs, &pair_count, error);
    if (status) return status;
    for (int i = 0; i < pair_count; i++) {
        add_op(ops, count, pairs[i].a);
        add_op(ops, count, pairs[i].b);
    }
    if (*count == 0 && listing)
        for (int i = 0; i < VLA_OPS; i++) add_op(ops, count, (vla_op)i);
    if (*count == 0) {
        static const vla_op usual[] = {VLA_VLA, VLA_SOFTMAX, VLA_LINEAR, VLA_DELTA};
        for (int i = 0; i < 4; i++) add_op(ops, count, usual[i]);
    }
    if (o->baseline && vla_op_parse(o->baseline, &baseline)) add_op(ops, count, baseline);
    return VLA_OK;
}

/* One value of each range at a time. */
typedef struct place {
    int64_t B, H, dk, dv, x, chunk, segments, threads;
} place;

typedef struct builder {
    const bench_options *o;
    bool listing, every_form, decode;
    vla_backend backend;
    vla_isa isa;
    vla_gate gate; /* of --input, or one a token */
    vla_op ops[VLA_OPS];
    vla_form forms[VLA_FORMS + 1];
    vla_dtype dtypes[VLA_DTYPES];
    int op_count, form_count, dtype_count;
    vla_cases *cases;
} builder;

static bool wanted(const builder *b, const vla_case *c)
{
    char label[VLA_LABEL_SIZE];
    const vla_strings *filters = &b->o->common.filters;
    vla_case_label(c, label, sizeof label);
    for (int64_t i = 0; i < filters->count; i++)
        if (fnmatch(filters->values[i], label, 0) == 0) return true;
    return filters->count == 0;
}

static vla_status add_case(builder *b, vla_op op, vla_form form, vla_dtype dtype, const place *at, vla_error *error)
{
    vla_case c = {.problem = vla_problem_default(op, at->B, at->H, b->decode ? 1 : at->x, 1),
                  .form = form,
                  .backend = b->backend,
                  .isa = b->isa,
                  .dtype = dtype,
                  .mode = b->decode ? VLA_DECODE : VLA_PREFILL,
                  .depth = b->decode ? at->x : 0,
                  .threads = (int)at->threads,
                  .backward = !strcmp(b->o->pass, "fwdbwd"),
                  .graph = !b->o->launch || strcmp(b->o->launch, "stream") != 0,
                  .cold = b->backend == VLA_CUDA && b->o->cache && !strcmp(b->o->cache, "cold")};
    vla_problem *p = &c.problem;
    p->dk = at->dk, p->dv = at->dv, p->chunk = at->chunk, p->segments = at->segments;
    p->Tk = b->decode && op == VLA_SOFTMAX ? at->x : 0;
    p->gate = op == VLA_DECAY ? b->gate : VLA_GATE_NONE;
    vla_status status = vla_common_problem(&b->o->common, p, error);
    if (!status) status = vla_problem_check(p, error);
    if (status) return status;
    if (form == VLA_BEST) {
        c.best = true;
        c.form = vla_best_form(p, c.backend, c.dtype, c.threads);
    }
    /* "all" means what there is; a form asked for by name that does not exist is a row that says so. */
    if (b->every_form && !vla_common_form_named(&b->o->common, form) &&
        !vla_kernel_exists(op, c.form, c.backend, dtype))
        return VLA_OK;
    return wanted(b, &c) ? vla_cases_push(b->cases, &c, error) : VLA_OK;
}

static vla_status add_size(builder *b, vla_dtype dtype, place *at, vla_error *error)
{
    const vla_common *c = &b->o->common;
    const int64_t none = 0, all = vla_cpu_count();
    const vla_range zero = {(int64_t *)&none, 1}, whole = {(int64_t *)&all, 1};
    const vla_range *chunks = c->chunk.count ? &c->chunk : &zero, *threads = c->threads.count ? &c->threads : &whole;
    const vla_range *segments = c->segments.count ? &c->segments : &zero;
    vla_status status = VLA_OK;
    for (int64_t t = 0; t < threads->count; t++)
        for (int op = 0; op < b->op_count; op++)
            for (int f = 0; f < b->form_count; f++)
                for (int64_t k = 0; k < chunks->count; k++)
                    for (int64_t s = 0; !status && s < segments->count; s++) {
                        at->threads = threads->values[t], at->chunk = chunks->values[k];
                        at->segments = segments->values[s];
                        status = add_case(b, b->ops[op], b->forms[f], dtype, at, error);
                    }
    return status;
}

static vla_status default_sizes(const builder *b, const vla_inputs *data, vla_range *sizes, vla_error *error)
{
    const char *text = b->decode ? "64-16kx4" : "128-4kx2";
    vla_status status = vla_range_parse(sizes, text, b->decode ? "--depth" : "--T", 0, INT64_C(1) << 40, error);
    if (status || !data) return status;
    int64_t kept = 0;
    for (int64_t i = 0; i < sizes->count; i++)
        if (sizes->values[i] <= data->T) sizes->values[kept++] = sizes->values[i];
    if (kept == 0) sizes->values[kept++] = data->T;
    sizes->count = kept;
    return VLA_OK;
}

/* With --input the tensors decide B, H and the widths; asking for others is an error. */
static vla_status fixed_by_input(const vla_common *c, const vla_inputs *data, vla_error *error)
{
    const struct {
        const char *name;
        const vla_range *range;
        int64_t value;
    } fixed[] = {{"B", &c->B, data->B}, {"H", &c->H, data->H}, {"dk", &c->dk, data->dk}, {"dv", &c->dv, data->dv}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        for (int64_t j = 0; j < fixed[i].range->count; j++)
            if (fixed[i].range->values[j] != fixed[i].value)
                return vla_fail(error, VLA_ERR_ARGUMENT, "--%s %lld: the tensors of --input have %lld", fixed[i].name,
                                (long long)fixed[i].range->values[j], (long long)fixed[i].value);
    for (int64_t j = 0; j < c->d.count; j++)
        if (c->d.values[j] != data->dk || c->d.values[j] != data->dv)
            return vla_fail(error, VLA_ERR_ARGUMENT, "--d %lld: the tensors of --input have dk %lld and dv %lld",
                            (long long)c->d.values[j], (long long)data->dk, (long long)data->dv);
    return VLA_OK;
}

/* The same for the sizes in a label. */
static vla_status label_fits_input(const vla_case *one, const char *label, const vla_inputs *data, vla_error *error)
{
    const vla_problem *p = &one->problem;
    if (p->B == data->B && p->H == data->H && p->dk == data->dk && p->dv == data->dv) return VLA_OK;
    return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: the tensors of --input are B%lld_H%lld_K%lld_V%lld", label,
                    (long long)data->B, (long long)data->H, (long long)data->dk, (long long)data->dv);
}

static vla_status add_shapes(builder *b, const vla_inputs *data, const vla_range *sizes, vla_error *error)
{
    const vla_common *c = &b->o->common;
    const int64_t one = data ? data->B : 1, sixteen = data ? data->H : 16;
    const vla_range B_usual = {(int64_t *)&one, 1}, H_usual = {(int64_t *)&sixteen, 1};
    const vla_range *B = c->B.count ? &c->B : &B_usual, *H = c->H.count ? &c->H : &H_usual;
    vla_status status = VLA_OK;
    for (int d = 0; d < b->dtype_count; d++)
        for (int64_t i = 0; i < B->count; i++)
            for (int64_t j = 0; j < H->count; j++)
                for (int64_t w = 0; !status; w++) {
                    place at = {.B = B->values[i], .H = H->values[j]};
                    if (data) {
                        at.dk = data->dk, at.dv = data->dv;
                        if (w > 0) break;
                    } else if (!vla_common_width(c, w, &at.dk, &at.dv))
                        break;
                    for (int64_t x = 0; !status && x < sizes->count; x++) {
                        at.x = sizes->values[x];
                        status = add_size(b, b->dtypes[d], &at, error);
                    }
                }
    return status;
}

/* A label says all of this itself; what an option says beside it would be lost. */
static vla_status only_labels(const builder *b, vla_error *error)
{
    const vla_common *c = &b->o->common;
    const struct {
        const char *name;
        int64_t count, most;
    } given[] = {{"op", c->ops.count, 0},
                 {"form", c->forms.count, 0},
                 {"dtype", c->dtypes.count, 0},
                 {"B", c->B.count, 0},
                 {"H", c->H.count, 0},
                 {"T", c->T.count, 0},
                 {"d", c->d.count, 0},
                 {"dk", c->dk.count, 0},
                 {"dv", c->dv.count, 0},
                 {"depth", b->o->depth.count, 0},
                 {"chunk", c->chunk.count, 1},
                 {"segments", c->segments.count, 1},
                 {"threads", c->threads.count, 1}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (given[i].count > given[i].most)
            return vla_fail(error, VLA_ERR_ARGUMENT, "--%s: given together with --case %s; accepted: %s", given[i].name,
                            c->cases.values[0], given[i].most ? "one value" : "what the case says");
    return VLA_OK;
}

static vla_status add_labels(builder *b, const vla_inputs *data, vla_error *error)
{
    const vla_common *c = &b->o->common;
    vla_status status = only_labels(b, error);
    for (int64_t i = 0; !status && i < c->cases.count; i++) {
        vla_case one = {.problem = vla_problem_default(VLA_VLA, 1, 1, 1, 1), .threads = vla_cpu_count(), .isa = b->isa};
        if (c->chunk.count) one.problem.chunk = c->chunk.values[0];
        if (c->segments.count) one.problem.segments = c->segments.values[0];
        if (c->threads.count) one.threads = (int)c->threads.values[0];
        status = vla_case_parse(&one, c->cases.values[i], error);
        if (!status && data) status = label_fits_input(&one, c->cases.values[i], data, error);
        if (!status) status = vla_common_problem(c, &one.problem, error);
        if (status) return status;
        vla_device_info info;
        vla_error why = {0};
        if (one.backend == VLA_CUDA && vla_device_query(&info, &why) != VLA_OK)
            return vla_fail(error, VLA_ERR_DEVICE, "--case %s: %.300s", c->cases.values[i], why.message);
        if (one.backend == VLA_AUTO) one.backend = b->backend;
        one.backward = !strcmp(b->o->pass, "fwdbwd");
        one.graph = !b->o->launch || strcmp(b->o->launch, "stream") != 0;
        one.cold = one.backend == VLA_CUDA && b->o->cache && !strcmp(b->o->cache, "cold");
        if (one.problem.op == VLA_DECAY) one.problem.gate = b->gate;
        if (one.form == VLA_BEST) {
            one.best = true;
            one.form = vla_best_form(&one.problem, one.backend, one.dtype, one.threads);
        }
        if (wanted(b, &one)) status = vla_cases_push(b->cases, &one, error);
    }
    return status;
}

static vla_status choose_variants(builder *b, vla_error *error)
{
    const vla_common *c = &b->o->common;
    b->form_count = vla_common_forms(c, b->forms);
    b->dtype_count = vla_common_dtypes(c, b->dtypes);
    for (int64_t i = 0; i < c->forms.count; i++) b->every_form |= !strcmp(c->forms.values[i], "all");
    if (b->form_count == 0 && b->listing) {
        b->every_form = true;
        for (int i = 0; i < VLA_FORMS; i++) b->forms[b->form_count++] = (vla_form)i;
    } else if (b->form_count == 0)
        b->forms[b->form_count++] = VLA_BEST;
    if (b->dtype_count == 0 && b->listing)
        for (int i = 0; i < VLA_DTYPES; i++) b->dtypes[b->dtype_count++] = (vla_dtype)i;
    else if (b->dtype_count == 0)
        b->dtypes[b->dtype_count++] = VLA_F32;
    return choose_ops(b->o, b->listing, b->ops, &b->op_count, error);
}

vla_status bench_cases(const bench_options *o, bool listing, const vla_inputs *data, vla_cases *cases, vla_error *error)
{
    builder b = {.o = o,
                 .listing = listing,
                 .backend = VLA_CPU,
                 .decode = !strcmp(o->mode, "decode"),
                 .cases = cases,
                 .gate = data ? data->gate : VLA_GATE_TOKEN};
    vla_range usual = {0};
    b.isa = VLA_ISA_AUTO;
    vla_isa_parse(o->common.isa, &b.isa);
    bool use[VLA_BACKENDS];
    vla_status status = VLA_OK;
    if (listing) { /* device forms also where no device is */
        use[VLA_CUDA] = built_for_cuda() && strcmp(o->common.backend, "cpu");
        use[VLA_CPU] = strcmp(o->common.backend, "cuda") != 0;
    } else
        status = bench_backends(o, use, error);
    if (!status) b.backend = use[VLA_CPU] ? VLA_CPU : VLA_CUDA;
    if (!status && data) status = fixed_by_input(&o->common, data, error);
    if (!status && !b.decode && o->depth.count)
        status = vla_fail(error, VLA_ERR_ARGUMENT, "--depth: accepted only with --mode decode");
    if (!status && b.decode && o->common.T.count)
        status = vla_fail(error, VLA_ERR_ARGUMENT, "--T: decode times one token; context lengths are --depth RANGE");
    if (!status) status = choose_variants(&b, error);
    if (!status && o->common.cases.count) status = add_labels(&b, data, error);
    if (!status && o->common.cases.count == 0) {
        const vla_range *sizes = b.decode ? &o->depth : &o->common.T;
        if (sizes->count == 0) {
            status = default_sizes(&b, data, &usual, error);
            sizes = &usual;
        }
        for (int backend = 0; backend < VLA_BACKENDS; backend++) {
            b.backend = (vla_backend)backend;
            if (!status && use[backend]) status = add_shapes(&b, data, sizes, error);
        }
    }
    vla_range_free(&usual);
    if (!status) status = vla_cases_unique(cases, error);
    if (!status && cases->count == 0)
        status = vla_fail(error, VLA_ERR_ARGUMENT, "nothing to measure: no case matches%s%s",
                          o->common.filters.count ? " --filter " : " these options",
                          o->common.filters.count ? o->common.filters.values[0] : "");
    return status;
}

int bench_list(bench_options *o)
{
    vla_cases cases = {0};
    vla_error error = {0};
    char label[VLA_LABEL_SIZE];
    vla_status status = bench_cases(o, true, NULL, &cases, &error);
    for (int64_t i = 0; !status && i < cases.count; i++) puts(vla_case_label(&cases.items[i], label, sizeof label));
    vla_cases_free(&cases);
    if (!status) status = vla_stream_flush(stdout, "stdout", &error);
    return status ? bench_fail(&error) : 0;
}
