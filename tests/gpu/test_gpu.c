/* Device tests: every operator, form and dtype against naive float64. test-gpu [WORD..] runs the cases whose name holds
 * every WORD and none that is written !WORD; test-gpu --time [WORD..] times the shapes of the record instead. The last
 * line says run, passed, skipped and failed; exit 0 when nothing failed, 4 when there is no device. */
#include "kernels/cuda/device.h"
#include "lib/op/registry.h"
#include "tests/gpu/gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct totals {
    int run, passed, skipped, failed;
    char **words; /* up to NULL */
} totals;

static bool wanted(const totals *all, const char *name)
{
    for (char **word = all->words; *word; word++)
        if (**word == '!' ? strstr(name, *word + 1) != NULL : !strstr(name, *word)) return false;
    return true;
}

static void name_of(const gpu_case *c, const char *kind, char *name, size_t size)
{
    const vla_problem *p = &c->problem;
    snprintf(name, size, "%s/%s/%s/B%lld_H%lld_T%lld_K%lld_V%lld/%s", vla_op_name(p->op), vla_form_name(c->form),
             vla_dtype_name(c->dtype), (long long)p->B, (long long)p->H, (long long)p->T, (long long)p->dk,
             (long long)p->dv, kind);
}

static void report(totals *all, const char *name, gpu_verdict verdict, const char *text)
{
    all->run++;
    all->passed += verdict == GPU_PASS, all->skipped += verdict == GPU_SKIP, all->failed += verdict == GPU_FAIL;
    printf("%s %s: %s\n", verdict == GPU_PASS ? "ok  " : verdict == GPU_SKIP ? "skip" : "FAIL", name, text);
    fflush(stdout);
}

static void check(totals *all, const gpu_case *c, const char *kind)
{
    char name[200], text[600];
    name_of(c, kind, name, sizeof name);
    if (!wanted(all, name)) return;
    report(all, name, gpu_run(c, text, sizeof text), text);
}

typedef struct shape {
    int64_t B, H, T, dk, dv;
} shape;

static gpu_case case_of(const vla_kernel *k, vla_dtype dtype, shape s)
{
    gpu_case c = gpu_case_default(k->op, k->form, dtype, s.B, s.H, s.T, s.dk);
    c.problem.dv = s.dv;
    return c;
}

static void check_shapes(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    static const shape shapes[] = {
        {1, 2, 0, 64, 64},      {2, 2, 1, 64, 64},    {1, 2, 2, 64, 64},      {1, 3, 15, 16, 24},
        {1, 2, 16, 32, 32},     {1, 2, 17, 33, 65},   {1, 2, 63, 64, 64},     {1, 2, 64, 64, 64},
        {1, 2, 65, 64, 64},     {1, 2, 1000, 64, 64}, {1, 2, 127, 128, 128},  {1, 2, 300, 80, 96},
        {1, 2, 200, 128, 64},   {1, 2, 200, 64, 128}, {1, 1, 50, 7, 5},       {1, 1, 40, 1, 1},
        {1, 2, 130, 256, 256},  {9, 33, 70, 64, 64},  {1, 40, 100, 128, 128}, {1, 1, 5000, 64, 64},
        {1, 1, 3000, 128, 128}, {70, 3, 33, 32, 16},  {1, 16, 700, 64, 64},   {2, 9, 900, 128, 128},
        {1, 2, 1500, 56, 40},   {1, 3, 600, 96, 128},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        gpu_case c = case_of(k, dtype, shapes[i]);
        if (k->op == VLA_DECAY) c.problem.gate = (vla_gate)(i % 3);
        c.no_u = i % 4 == 1, c.no_b = i % 4 == 1;
        c.repeat = 1;
        check(all, &c, "shape");
    }
}

static void check_options(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    const shape s = {1, 3, 150, 64, 48};
    gpu_case c = case_of(k, dtype, s);
    c.problem.features = VLA_SILU, c.problem.qk_l2 = true, c.problem.output = VLA_PLAIN;
    if (k->op != VLA_SOFTMAX && k->op != VLA_LINEAR) check(all, &c, "silu_l2"); /* n.qf may vanish */
    c = case_of(k, dtype, s);
    c.problem.features = VLA_IDENTITY, c.problem.output = VLA_PLAIN;
    if (k->op != VLA_SOFTMAX && k->op != VLA_LINEAR) check(all, &c, "identity_plain");
    c = case_of(k, dtype, s);
    c.key_mean = 1.0, c.key_scale = 0.7;
    check(all, &c, "correlated");
    c.key_mean = 20, c.key_scale = 0.2;
    check(all, &c, "nearly_collinear");
    c = case_of(k, dtype, s);
    c.zero_keys = k->op != VLA_SOFTMAX;
    c.problem.output = VLA_PLAIN; /* a tiny n.qf makes outputs beyond f16 */
    check(all, &c, "zero_and_tiny_keys");
    c = case_of(k, dtype, s);
    if (k->op == VLA_VLA || k->op == VLA_RLS) {
        c.problem.lambda0 = 1e-3;
        check(all, &c, "lambda0_1e-3");
        c.problem.lambda0 = 10;
        check(all, &c, "lambda0_10");
    }
    if (k->op == VLA_VLA) {
        c = case_of(k, dtype, s);
        c.problem.refresh_period = 20, c.problem.refresh_eps = 1e-3;
        check(all, &c, "refresh");
        c.split = 33;
        check(all, &c, "refresh_split");
        c = case_of(k, dtype, (shape){1, 2, 3, 8, 8});
        c.problem.no_normalise = true, c.problem.lambda0 = 10;
        check(all, &c, "no_normalise");
    }
    if (k->op == VLA_SOFTMAX) {
        c = case_of(k, dtype, s);
        c.problem.Tk = 333;
        check(all, &c, "kv_cache");
        c = case_of(k, dtype, (shape){2, 3, 1, 64, 64});
        c.problem.Tk = 1000;
        check(all, &c, "decode");
        return;
    }
    c = case_of(k, dtype, s);
    for (c.split = 1; c.split < 150; c.split = c.split * 4 + 1) check(all, &c, "split");
    c = case_of(k, dtype, (shape){1, 2, 300, 128, 128});
    c.split = 100;
    check(all, &c, "split");
}

static void check_nan(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    static const char *const kinds[] = {"", "nan_q", "nan_k", "nan_v", "nan_u"};
    for (int tensor = 1; tensor <= (k->op == VLA_VLA ? 4 : 3); tensor++)
        for (int64_t token = 37; token < 200; token += 60) {
            /* cuDNN multiplies unseen values by zero: a NaN in v reaches earlier rows of its tile */
            if (k->op == VLA_SOFTMAX && dtype != VLA_F32 && tensor == 3) continue;
            gpu_case c = case_of(k, dtype, (shape){1, 3, 200, 64, 64});
            c.nan_tensor = tensor, c.nan_token = token;
            check(all, &c, kinds[tensor]);
        }
}

/* Values and queries near the ends of float32's range, and values of other sizes from chunk to chunk. */
static void check_ranges(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    if ((dtype != VLA_F32 && dtype != VLA_TF32) || (k->op != VLA_VLA && k->op != VLA_DELTA) || k->form < VLA_CHUNK)
        return;
    gpu_case c = case_of(k, dtype, (shape){1, 3, 500, 64, 48});
    for (int i = 0; i < 2; i++, c = case_of(k, dtype, (shape){1, 2, 500, 128, 96})) {
        gpu_case one = c;
        one.value_scale = 1e30;
        check(all, &one, "values_1e30");
        one.split = 70;
        check(all, &one, "values_1e30_split");
        one = c, one.value_scale = 1e-30;
        check(all, &one, "values_1e-30");
        one.split = 70;
        check(all, &one, "values_1e-30_split");
        one = c, one.value_steps = 1e6;
        check(all, &one, "values_by_steps");
        one = c, one.query_scale = 1e30;
        if (k->op == VLA_VLA) check(all, &one, "queries_1e30");
        one = c, one.key_scale = 1e18;
        check(all, &one, "keys_1e18");
    }
}

/* The chunkwise forms of operators that walk along maps, on tensor cores. */
static bool walks_along_maps(const vla_kernel *k, vla_dtype dtype)
{
    return k->form == VLA_CHUNK && (k->op == VLA_VLA || k->op == VLA_DELTA) && (dtype == VLA_BF16 || dtype == VLA_F16);
}

/* Where these walk beside the maps: chunks enough, ragged widths, splits, NaN. */
static void check_beside(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    if (!walks_along_maps(k, dtype)) return;
    gpu_case c = case_of(k, dtype, (shape){1, 1, 1150, 128, 128});
    check(all, &c, "beside_short");
    /* so many heads that vla walks by lone warps, and not along pairs of chunks */
    c = case_of(k, dtype, (shape){1, 18, 4170, 60, 61});
    c.heads = 2, c.repeat = 12;
    check(all, &c, "beside");
    c = case_of(k, dtype, (shape){1, 16, 4200, 64, 100});
    c.heads = 2, c.no_u = true, c.repeat = 2;
    check(all, &c, "beside");
    c = case_of(k, dtype, (shape){1, 18, 4200, 64, 61});
    c.heads = 2, c.split = 20;
    check(all, &c, "beside_split");
    c.split = 0, c.heads = 3; /* the NaN's among them */
    for (c.nan_tensor = 1; c.nan_tensor <= (k->op == VLA_VLA ? 4 : 3); c.nan_tensor++) {
        c.nan_token = 700 * c.nan_tensor;
        check(all, &c, "beside_nan");
    }
    c = case_of(k, dtype, (shape){1, 2, 2200, 100, 72});
    c.repeat = 12;
    check(all, &c, "beside");
    c.repeat = 0;
    for (c.split = 100; c.split < 2200; c.split += 2000) check(all, &c, "beside_split");
    c.split = 0;
    for (c.nan_tensor = 1; c.nan_tensor <= (k->op == VLA_VLA ? 4 : 3); c.nan_tensor++)
        for (c.nan_token = 700; c.nan_token < 2200; c.nan_token += 1480) check(all, &c, "beside_nan");
}

/* Where two chunks are a step of the walk: an odd number of them, ragged widths, splits, NaN. */
static void check_pairs(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    if (!walks_along_maps(k, dtype)) return;
    gpu_case c = case_of(k, dtype, (shape){1, 1, 2050, 64, 64});
    check(all, &c, "pairs_short");
    c = case_of(k, dtype, (shape){1, 16, 1950, 60, 40});
    c.heads = 2, c.repeat = 12;
    check(all, &c, "pairs");
    c = case_of(k, dtype, (shape){2, 2, 2500, 64, 64});
    c.no_u = true, c.repeat = 12;
    check(all, &c, "pairs");
    c = case_of(k, dtype, (shape){1, 4, 2500, 64, 61});
    for (c.split = 20; c.split < 2500; c.split += 1280) check(all, &c, "pairs_split");
    c.split = 0;
    for (c.nan_tensor = 1; c.nan_tensor <= (k->op == VLA_VLA ? 4 : 3); c.nan_tensor++)
        for (c.nan_token = 700; c.nan_token < 2500; c.nan_token += 930) /* in a first chunk and a second */
            check(all, &c, "pairs_nan");
}

/* Where linear takes wide rows in one launch: ragged widths and lengths, splits, NaN. */
static void check_once(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    if (k->form != VLA_CHUNK || k->op != VLA_LINEAR || (dtype != VLA_BF16 && dtype != VLA_F16)) return;
    gpu_case c = case_of(k, dtype, (shape){1, 16, 2000, 128, 128});
    c.heads = 2, c.repeat = 12;
    check(all, &c, "once");
    c = case_of(k, dtype, (shape){2, 3, 1100, 104, 72});
    c.repeat = 12;
    check(all, &c, "once");
    c.repeat = 0;
    for (c.split = 100; c.split < 1100; c.split += 450) check(all, &c, "once_split");
    c.split = 0;
    for (c.nan_tensor = 1; c.nan_tensor <= 3; c.nan_tensor++)
        for (c.nan_token = 100; c.nan_token < 1100; c.nan_token += 450) check(all, &c, "once_nan");
    /* all of dv in a block: more heads, so that halves would not find a place at once */
    c = case_of(k, dtype, (shape){1, 16, 1300, 104, 72});
    c.heads = 2, c.repeat = 12;
    check(all, &c, "whole");
    c.repeat = 0, c.heads = 3; /* the one that has the NaN too */
    for (c.nan_tensor = 1; c.nan_tensor <= 3; c.nan_tensor++)
        for (c.nan_token = 100; c.nan_token < 1300; c.nan_token += 550) check(all, &c, "whole_nan");
    c = case_of(k, dtype, (shape){1, 16, 2600, 128, 128});
    c.heads = 2, c.split = 700;
    check(all, &c, "whole_split");
}

/* A few tokens of many sequences, from a state and into one. */
static void check_decode(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    if (k->op == VLA_SOFTMAX) return; /* check_options has it */
    static const shape shapes[] = {{64, 16, 2, 128, 128}, {3, 5, 2, 64, 64},  {2, 3, 2, 33, 65},
                                   {1, 3, 6, 80, 96},     {1, 2, 5, 128, 64}, {1, 2, 5, 64, 128},
                                   {1, 2, 2, 256, 200},   {1, 2, 4, 7, 5},    {1, 1, 3, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        gpu_case c = case_of(k, dtype, shapes[i]);
        if (k->op == VLA_DECAY) c.problem.gate = (vla_gate)(i % 3);
        c.split = shapes[i].T - 1;
        check(all, &c, "decode");
        if (k->op != VLA_VLA || (k->form != VLA_RECURRENT && k->form != VLA_STEPWISE)) continue;
        c.problem.refresh_period = 2, c.problem.refresh_eps = 1e-2;
        check(all, &c, "decode_refresh");
    }
    gpu_case c = case_of(k, dtype, (shape){1, 3, 4, 64, 64});
    c.problem.output = VLA_PLAIN;
    c.zero_keys = true;
    c.repeat = 1;
    check(all, &c, "decode_zero_keys");
    c = case_of(k, dtype, (shape){1, 3, 4, 64, 64});
    for (c.nan_tensor = 1; c.nan_tensor <= 3; c.nan_tensor++) {
        c.nan_token = 2;
        check(all, &c, "decode_nan");
    }
}

static void check_far(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    if (k->op == VLA_SOFTMAX || k->form == VLA_STEPWISE || (dtype != VLA_BF16 && dtype != VLA_F32)) return;
    const bool long_run = k->form != VLA_RECURRENT;
    if (k->form == VLA_CHUNK && dtype == VLA_F32) return; /* as scan, and slower */
    const shape s =
        long_run ? (shape){1, 1, ((int64_t)1 << 25) + 5000, 64, 64} : (shape){1, ((int64_t)1 << 19) + 100, 64, 64, 64};
    gpu_case c = case_of(k, dtype, s);
    char name[200], text[600];
    name_of(&c, "far", name, sizeof name);
    if (!wanted(all, name)) return;
    report(all, name, gpu_far(&c, text, sizeof text), text);
}

/* Long runs have many hand-overs between blocks and copies: a fault that shows in one run of fifteen at T = 16,384 is
 * found. */
static void check_again(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    if (k->form != VLA_CHUNK || dtype != VLA_BF16) return;
    static const shape shapes[] = {{1, 16, 16384, 64, 64},
                                   {1, 16, 65536, 64, 64},
                                   {1, 16, 16384, 128, 128},
                                   {1, 48, 8192, 64, 64},
                                   {1, 16, 2048, 64, 64}};
    static const int runs[] = {120, 24, 60, 60, 120};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const gpu_case c = case_of(k, dtype, shapes[i]);
        char name[200], text[600];
        name_of(&c, "again", name, sizeof name);
        if (!wanted(all, name)) continue;
        report(all, name, gpu_again(&c, runs[i], text, sizeof text), text);
    }
}

static void check_large(totals *all, const vla_kernel *k, vla_dtype dtype)
{
    gpu_case c = case_of(k, dtype, (shape){4096, 17, 3, 16, 16});
    check(all, &c, "many_heads");
    c = case_of(k, dtype, (shape){1, 16, k->form == VLA_RECURRENT || k->op == VLA_SOFTMAX ? 4096 : 16384, 64, 64});
    c.heads = 2, c.repeat = k->form == VLA_CHUNK ? 12 : 1;
    check(all, &c, "long");
    c = case_of(k, dtype, (shape){1, 16, 4096, 128, 128});
    c.heads = 2, c.repeat = k->form == VLA_CHUNK ? 12 : 1;
    check(all, &c, "long");
}

static void check_all(totals *all)
{
    const vla_kernel *k = NULL;
    for (int i = 0; (k = vla_kernel_at(i)); i++) {
        if (k->backend != VLA_CUDA) continue;
        for (int dtype = VLA_F32; dtype < VLA_DTYPES; dtype++) {
            if (!k->variants[dtype][VLA_ISA_BASE]) continue;
            check_shapes(all, k, (vla_dtype)dtype);
            check_options(all, k, (vla_dtype)dtype);
            check_nan(all, k, (vla_dtype)dtype);
            check_ranges(all, k, (vla_dtype)dtype);
            check_beside(all, k, (vla_dtype)dtype);
            check_pairs(all, k, (vla_dtype)dtype);
            check_once(all, k, (vla_dtype)dtype);
            check_decode(all, k, (vla_dtype)dtype);
            check_large(all, k, (vla_dtype)dtype);
            check_again(all, k, (vla_dtype)dtype);
            check_far(all, k, (vla_dtype)dtype);
        }
    }
}

/* Tk: keys in the cache, of softmax; else 0. */
static void time_one(totals *all, const vla_kernel *k, vla_dtype dtype, shape s, int64_t Tk)
{
    char name[200], text[600];
    gpu_case c = case_of(k, dtype, s);
    char kind[40] = "time";
    if (Tk) snprintf(kind, sizeof kind, "Tk%lld/time", (long long)Tk);
    c.problem.Tk = Tk;
    name_of(&c, kind, name, sizeof name);
    if (!wanted(all, name)) return;
    c.resume = k->op != VLA_SOFTMAX && s.T == 1;
    const double seconds = gpu_time(&c, s.T > 20000 ? 4 : 20, 9, text, sizeof text);
    all->run++;
    all->passed += seconds >= 0, all->skipped += seconds < 0;
    printf("%s %s: %.5f ms %s\n", seconds >= 0 ? "time" : "skip", name, 1e3 * seconds, text);
    fflush(stdout);
}

static void time_all(totals *all)
{
    static const int64_t lengths[] = {512, 1024, 2048, 4096, 8192, 16384, 65536};
    const vla_kernel *k = NULL;
    for (int i = 0; (k = vla_kernel_at(i)); i++) {
        if (k->backend != VLA_CUDA) continue;
        for (int64_t d = 64; d <= 128; d += 64)
            for (size_t t = 0; t < sizeof lengths / sizeof *lengths && k->variants[VLA_BF16][VLA_ISA_BASE]; t++) {
                const bool slow = k->form == VLA_RECURRENT || k->form == VLA_STEPWISE;
                if (slow && lengths[t] > 4096) continue;
                time_one(all, k, VLA_BF16, (shape){1, 16, lengths[t], d, d}, 0);
            }
        for (int dtype = VLA_F32; dtype <= VLA_TF32; dtype += VLA_TF32 - VLA_F32)
            for (size_t t = 0; t < 3 && k->variants[dtype][VLA_ISA_BASE]; t++) {
                const int64_t length = t == 0 ? 4096 : t == 1 ? 16384 : 65536;
                if (t > 0 && (k->form == VLA_RECURRENT || k->form == VLA_STEPWISE || k->op == VLA_SOFTMAX)) continue;
                time_one(all, k, (vla_dtype)dtype, (shape){1, 16, length, 64, 64}, 0);
                time_one(all, k, (vla_dtype)dtype, (shape){1, 16, length, 128, 128}, 0);
            }
        if (k->form == VLA_RECURRENT) time_one(all, k, VLA_BF16, (shape){64, 16, 1, 128, 128}, 0);
        if (k->op == VLA_SOFTMAX)
            for (int64_t Tk = 4096; Tk <= 65536; Tk *= 16) {
                time_one(all, k, VLA_BF16, (shape){1, 16, 1, 64, 64}, Tk);
                time_one(all, k, VLA_BF16, (shape){1, 16, 1, 128, 128}, Tk);
                if (Tk == 4096) time_one(all, k, VLA_BF16, (shape){64, 16, 1, 128, 128}, Tk);
            }
    }
}

int main(int argc, char **argv)
{
    vla_device_info info;
    vla_error error;
    totals all;
    memset(&all, 0, sizeof all);
    const bool timing = argc > 1 && strcmp(argv[1], "--time") == 0;
    all.words = argv + (argc > 0) + timing;
    if (vla_device_query(&info, &error) != VLA_OK) {
        printf("%s\nrun 0, passed 0, skipped 0, failed 0\n", error.message);
        return 4;
    }
    printf("%s, driver %d, runtime %d\n", info.name, info.driver, info.runtime);
    if (timing)
        time_all(&all);
    else
        check_all(&all);
    printf("run %d, passed %d, skipped %d, failed %d\n", all.run, all.passed, all.skipped, all.failed);
    return all.failed > 0;
}
