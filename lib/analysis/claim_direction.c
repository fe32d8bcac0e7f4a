/* C16, C17 and C20: which directions a write goes to, and what it does to what is stored elsewhere. */
#include "lib/analysis/claims.h"
#include "lib/analysis/stepper.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double rounding = 1e-9;

/* All tokens of one head, in memory: these claims are about short histories. */
typedef struct history {
    int64_t T, dk, dv;
    double *k, *v, *u, *b, *g; /* [T, dk], [T, dv], [T, dk], [T], [T] */
    bool has_g;
} history;

static vla_status read_history(history *h, const vla_source *source, int64_t head, int64_t T, vla_error *error)
{
    vla_stream stream = {0};
    void *memory = NULL;
    *h = (history){.T = T, .dk = source->dk, .dv = source->dv, .has_g = vla_source_has_g(source)};
    vla_status status = vla_alloc(&memory, T * (2 * h->dk + h->dv + 2), sizeof(double), "history", error);
    if (!status) status = vla_stream_create(&stream, source, head, error);
    if (!status) {
        h->k = memory;
        h->u = h->k + T * h->dk;
        h->v = h->u + T * h->dk;
        h->b = h->v + T * h->dv;
        h->g = h->b + T;
        for (int64_t t = 0; t < T; t++)
            vla_stream_next(&stream, h->k + t * h->dk, h->v + t * h->dv, h->u + t * h->dk, h->b + t, h->g + t);
    } else {
        vla_free(memory);
    }
    vla_stream_destroy(&stream);
    return status;
}

static void step(vla_stepper *st, const history *h, int64_t t)
{
    vla_stepper_step(st, h->k + t * h->dk, h->v + t * h->dv, h->u + t * h->dk, NULL, h->has_g ? h->g + t : NULL);
}

static double dot(const double *x, const double *y, int64_t n)
{
    return cblas_ddot((int)n, x, 1, y, 1);
}

static double cosine(const double *x, const double *y, int64_t n)
{
    const double size = sqrt(dot(x, x, n) * dot(y, y, n));
    return size > 0 ? dot(x, y, n) / size : NAN;
}

/* C16 measures of one history. */
typedef struct routing {
    double permutation; /* |A(permuted past) - A|_F/|A|_F */
    double slope;       /* relative growth of the gain x.A x from the newest written direction to the oldest */
    double ratio;       /* mean |cos(alpha_t, k)| to the last dk/2 keys over that to all older ones */
} routing;

static void shuffle(int64_t *order, int64_t n, vla_rng *rng)
{
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = (int64_t)vla_rng_below(rng, (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static double permuted_distance(vla_stepper *st, const history *h, double *A, int64_t *order)
{
    const int64_t square = h->dk * h->dk;
    vla_rng rng = vla_rng_seed(7, (uint64_t)h->T);
    shuffle(order, h->T, &rng);
    memcpy(A, st->A, (size_t)square * sizeof *A);
    vla_stepper_reset(st);
    for (int64_t t = 0; t < h->T; t++) step(st, h, order[t]);
    const double size = vla_frobenius(A, square);
    for (int64_t i = 0; i < square; i++) A[i] -= st->A[i];
    return vla_frobenius(A, square) / size;
}

/* Slope of the gain of each written penalty direction against its age, over the mean gain. */
static double gain_slope(const vla_stepper *st, const history *h, double *y)
{
    double mean = 0, sxy = 0, sxx = 0;
    const double middle = 0.5 * (double)(h->T - 1);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t < h->T; t++) {
            const double *u = h->u + t * h->dk;
            cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)h->dk, (int)h->dk, 1, st->A, (int)h->dk, u, 1, 0, y, 1);
            const double size = dot(u, u, h->dk), gain = size > 0 ? dot(u, y, h->dk) / size : 0;
            const double age = (double)(h->T - 1 - t) - middle;
            if (pass == 0) {
                mean += gain / (double)h->T;
                continue;
            }
            sxy += age * (gain - mean);
            sxx += age * age;
        }
    return mean > 0 && sxx > 0 ? sxy / sxx * (double)h->T / mean : NAN;
}

static vla_status measure_routing(const history *h, const vla_problem *problem, routing *out, vla_error *error)
{
    const int64_t dk = h->dk, T = h->T, recent = dk / 2 > 1 ? dk / 2 : 1;
    vla_stepper st = {0};
    void *memory = NULL, *order = NULL;
    vla_status status = vla_stepper_create(&st, problem, error);
    if (!status) status = vla_alloc(&memory, dk * dk + dk + T * dk, sizeof(double), "routing", error);
    if (!status) status = vla_alloc(&order, T, sizeof(int64_t), "routing", error);
    if (!status) {
        double *A = memory, *y = A + dk * dk, *keys = y + dk, near = 0, far = 0, nears = 0, fars = 0;
        for (int64_t t = 0; t < T; t++) {
            step(&st, h, t);
            memcpy(keys + t * dk, st.kh, (size_t)dk * sizeof *keys);
            for (int64_t s = 0; s < t && t >= T / 2; s++) { /* where there are both recent and older keys */
                const double angle = fabs(dot(st.a, keys + s * dk, dk));
                if (t - s <= recent) near += angle, nears += 1;
                if (t - s > recent) far += angle, fars += 1;
            }
        }
        out->ratio = fars > 0 && far > 0 ? near / nears / (far / fars) : NAN;
        out->slope = gain_slope(&st, h, y);
        out->permutation = permuted_distance(&st, h, A, order);
    }
    vla_free(order);
    vla_free(memory);
    vla_stepper_destroy(&st);
    return status;
}

static vla_status rule_routing(const vla_trial *trial, const char *source, const double *x, int64_t count,
                               vla_error *error)
{
    vla_verdict v =
        vla_verdict_of("C16", "recency", source,
                       "A_t knows which direction was written last: change of A_t when its past is permuted");
    v.value = vla_interval_of(x, count);
    v.worst = v.value.value;
    v.tolerance = rounding;
    v.ruling = v.value.value > rounding ? VLA_HOLDS : VLA_REFUTED;
    snprintf(v.condition, sizeof v.condition, "M_t is a sum: any order of the same past gives the same A_t");
    vla_status status = vla_verdict_emit(trial, &v, error);
    if (status) return status;
    v = vla_verdict_of(
        "C16", "gain-by-age", source,
        "at equal count older directions have the larger gain: relative slope of u.A u over the history");
    v.value = vla_interval_of(x + count, count);
    v.worst = v.value.lo;
    v.expected = 0;
    v.tolerance = 0.1;
    v.ruling = v.value.lo > v.tolerance ? VLA_HOLDS : VLA_REFUTED;
    if ((status = vla_verdict_emit(trial, &v, error))) return status;
    v = vla_verdict_of("C16", "orthogonal", source,
                       "writes turn away from recent keys: mean |cos(alpha, k)| to the last d/2 keys over older ones");
    v.value = vla_interval_of(x + 2 * count, count);
    v.worst = v.value.hi;
    v.expected = 1;
    v.tolerance = 0.1;
    v.ruling = v.value.hi < 1 - v.tolerance ? VLA_HOLDS : VLA_REFUTED;
    return vla_verdict_emit(trial, &v, error);
}

/* The part that holds: a direction written n times alone has gain 1/(lambda0 + n/dk). */
static vla_status rule_count(const vla_trial *trial, int64_t d, vla_error *error)
{
    vla_problem p = *trial->base;
    p.op = VLA_VLA;
    p.dk = p.dv = d;
    p.refresh_period = 0;
    vla_stepper st;
    vla_status status = vla_stepper_create(&st, &p, error);
    if (status) return status;
    double *row = calloc((size_t)d, sizeof *row), gap = 0;
    for (int64_t n = 1; row && n <= 100; n++) {
        row[0] = 1;
        vla_stepper_step(&st, row, row, row, NULL, NULL);
        const double wanted = 1 / (p.lambda0 + (double)n / (double)d);
        gap = fmax(gap, fabs(st.A[0] - wanted) / wanted);
    }
    vla_stepper_destroy(&st);
    if (!row) return vla_fail(error, VLA_ERR_MEMORY, "C16: out of memory");
    free(row);
    vla_verdict v = vla_verdict_of("C16", "count", "gauss",
                                   "a direction penalised n times has gain 1/(lambda0 + n/dk), whenever that was: gap");
    v.corrected = true;
    v.value = (vla_interval){gap, NAN, NAN, 1};
    v.worst = gap;
    v.expected = 0;
    v.tolerance = rounding;
    v.ruling = gap <= rounding ? VLA_HOLDS : VLA_REFUTED;
    return vla_verdict_emit(trial, &v, error);
}

vla_status vla_claim_routing(const vla_trial *trial, vla_error *error)
{
    const int64_t T = trial->T ? trial->T : 256, d = trial->d ? trial->d : 32, heads = trial->heads ? trial->heads : 8;
    vla_source source;
    vla_problem problem;
    vla_status status = VLA_OK;
    for (int i = 0; !status && vla_trial_source(trial, i, heads, d, VLA_VLA, T, &source, &problem); i++) {
        if (source.kind == VLA_SOURCE_ISOTROPIC) continue; /* u = 0: no direction is ever penalised */
        problem.no_normalise = false;
        problem.refresh_period = 0;
        const int64_t seeds = vla_trial_seeds(trial, &source), count = seeds * source.heads;
        double *x = malloc((size_t)(3 * count) * sizeof *x);
        if (!x) return vla_fail(error, VLA_ERR_MEMORY, "C16: out of memory");
        for (int64_t n = 0; n < count && !status; n++) {
            vla_source seeded = source;
            seeded.seed = (uint64_t)trial->seeds[n / source.heads];
            history h = {0};
            routing found = {NAN, NAN, NAN};
            status = read_history(&h, &seeded, n % source.heads, problem.T, error);
            if (!status) status = measure_routing(&h, &problem, &found, error);
            vla_free(h.k);
            x[n] = found.permutation;
            x[count + n] = found.slope;
            x[2 * count + n] = found.ratio;
        }
        if (!status) status = rule_routing(trial, vla_trial_source_name(trial, &source), x, count, error);
        if (!status && source.kind == VLA_SOURCE_GAUSS) status = rule_count(trial, d, error);
        free(x);
    }
    return status;
}

/* C17: vla and rls (with lambda0 dk, which tied penalties correspond to) on the same tokens. */
typedef struct kinship {
    double distance, cosine; /* |S_vla - S_rls|_F/|S_rls|_F at T; least cos(alpha_t, gain_t) */
    double length;           /* mean |gain_t| of rls, where vla has 1 */
} kinship;

static vla_status measure_kinship(const history *h, const vla_problem *problem, kinship *out, vla_error *error)
{
    vla_stepper a = {0}, b = {0};
    vla_problem rls = *problem;
    rls.op = VLA_RLS;
    rls.lambda0 = problem->lambda0 * (double)problem->dk;
    vla_status status = vla_stepper_create(&a, problem, error);
    if (!status) status = vla_stepper_create(&b, &rls, error);
    *out = (kinship){NAN, 1, 0};
    for (int64_t t = 0; t < h->T && !status; t++) {
        step(&a, h, t);
        step(&b, h, t);
        const double angle = cosine(a.a, b.a, h->dk);
        if (!(angle >= out->cosine)) out->cosine = angle;
        out->length += vla_frobenius(b.a, h->dk) / (double)h->T;
    }
    if (!status) {
        const int64_t count = h->dk * h->dv;
        const double size = vla_frobenius(b.S, count);
        for (int64_t i = 0; i < count; i++) a.S[i] -= b.S[i];
        out->distance = vla_frobenius(a.S, count) / size;
    }
    vla_stepper_destroy(&a);
    vla_stepper_destroy(&b);
    return status;
}

static vla_status rule_kinship(const vla_trial *trial, const char *source, const kinship *x, int64_t count,
                               vla_error *error)
{
    double *y = malloc((size_t)(3 * count) * sizeof *y);
    if (!y) return vla_fail(error, VLA_ERR_MEMORY, "C17: out of memory");
    vla_verdict v = vla_verdict_of("C17", "direction", source, "vla writes along the gain of rls: least cosine over t");
    v.worst = 1;
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i].cosine;
        y[count + i] = x[i].distance;
        y[2 * count + i] = x[i].length;
        if (!(x[i].cosine >= v.worst)) v.worst = x[i].cosine;
    }
    v.value = vla_interval_of(y, count);
    v.expected = 1;
    v.tolerance = rounding;
    v.ruling = v.worst >= 1 - rounding ? VLA_HOLDS_IF : VLA_REFUTED;
    const vla_interval length = vla_interval_of(y + 2 * count, count);
    if (v.ruling == VLA_HOLDS_IF)
        snprintf(v.condition, sizeof v.condition,
                 "u = the unit key and rls starts from dk lambda0; only the length differs: 1 against %.3g on average",
                 length.value);
    vla_status status = vla_verdict_emit(trial, &v, error);
    if (!status) {
        v = vla_verdict_of("C17", "state", source, "S_t of vla is that of rls: |S_vla - S_rls|_F over |S_rls|_F at T");
        v.value = vla_interval_of(y + count, count);
        v.worst = v.value.value;
        v.expected = 0;
        v.tolerance = 0.01;
        v.ruling = v.value.value <= v.tolerance ? VLA_HOLDS : VLA_REFUTED;
        status = vla_verdict_emit(trial, &v, error);
    }
    free(y);
    return status;
}

vla_status vla_claim_least_squares(const vla_trial *trial, vla_error *error)
{
    const int64_t T = trial->T ? trial->T : 512, d = trial->d ? trial->d : 32, heads = trial->heads ? trial->heads : 8;
    vla_source source;
    vla_problem problem;
    vla_status status = VLA_OK;
    for (int i = 0; !status && vla_trial_source(trial, i, heads, d, VLA_VLA, T, &source, &problem); i++) {
        problem.no_normalise = false;
        problem.refresh_period = 0;
        const int64_t seeds = vla_trial_seeds(trial, &source), count = seeds * source.heads;
        kinship *x = calloc((size_t)count, sizeof *x);
        if (!x) return vla_fail(error, VLA_ERR_MEMORY, "C17: out of memory");
        for (int64_t n = 0; n < count && !status; n++) {
            vla_source seeded = source;
            seeded.seed = (uint64_t)trial->seeds[n / source.heads];
            history h = {0};
            status = read_history(&h, &seeded, n % source.heads, problem.T, error);
            if (!status) status = measure_kinship(&h, &problem, &x[n], error);
            vla_free(h.k);
        }
        if (!status) status = rule_kinship(trial, vla_trial_source_name(trial, &source), x, count, error);
        free(x);
    }
    return status;
}

/* C20: change of what is read at k1 when a pair is written at k2, at right angles to it. */
static vla_status orthogonal_change(const history *h, const vla_problem *problem, double *change, vla_error *error)
{
    const int64_t dk = h->dk, dv = h->dv, last = h->T - 1;
    vla_stepper st;
    vla_status status = vla_stepper_create(&st, problem, error);
    if (status) return status;
    double *before = malloc((size_t)(2 * dv + dk) * sizeof *before);
    if (before) {
        double *after = before + dv, *k1 = after + dv, *k2 = h->k + last * dk;
        for (int64_t t = 0; t < last; t++) step(&st, h, t);
        memcpy(k1, st.kh, (size_t)dk * sizeof *k1); /* the pair just stored */
        cblas_daxpy((int)dk, -dot(k1, k2, dk), k1, 1, k2, 1);
        cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)dv, (int)dk, 1, st.S, (int)dk, k1, 1, 0, before, 1);
        step(&st, h, last);
        cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)dv, (int)dk, 1, st.S, (int)dk, k1, 1, 0, after, 1);
        const double size = vla_frobenius(before, dv);
        cblas_daxpy((int)dv, -1, before, 1, after, 1);
        *change = vla_frobenius(after, dv) / size;
        free(before);
    } else {
        status = vla_fail(error, VLA_ERR_MEMORY, "C20: out of memory");
    }
    vla_stepper_destroy(&st);
    return status;
}

static vla_status rule_change(const vla_trial *trial, vla_op op, const double *x, int64_t count, vla_error *error)
{
    const bool paper = op == VLA_DELTA || op == VLA_DECAY; /* what the claim calls DeltaNet */
    vla_verdict v =
        vla_verdict_of("C20", vla_op_name(op), "gauss",
                       paper ? "one write changes a stored pair at right angles to it: relative change"
                             : "one write leaves a stored pair at right angles to it alone: relative change");
    v.value = vla_interval_of(x, count);
    v.worst = 0;
    for (int64_t i = 0; i < count; i++) v.worst = x[i] <= v.worst ? v.worst : x[i];
    v.expected = 0;
    v.tolerance = rounding;
    const bool changed = !(v.worst <= rounding);
    v.ruling = changed == paper ? VLA_HOLDS : VLA_REFUTED;
    if (op == VLA_DELTA)
        snprintf(v.condition, sizeof v.condition,
                 "the delta rule writes along its key only: it is direction-selective");
    if (op == VLA_DECAY)
        snprintf(v.condition, sizeof v.condition, "the scalar gate of what the paper compared with: change 1 - g");
    if (op == VLA_VLA)
        snprintf(v.condition, sizeof v.condition,
                 "alpha = unit(A k) is not the key: vla itself changes the other pair");
    return vla_verdict_emit(trial, &v, error);
}

static vla_status delta_growth(const vla_trial *trial, int64_t d, vla_error *error)
{
    vla_verdict v = vla_verdict_of("C20", "bounded", "adversary",
                                   "|S_t|_F of delta stays bounded for bounded inputs, |v_t| <= 1: exponent 0");
    double at[3], norm[3];
    for (int i = 0; i < 3; i++) {
        vla_witness w;
        if (!vla_trial_go_on(trial, i, 3)) return VLA_OK;
        at[i] = 500 << (2 * i);
        const vla_status status = vla_trial_witness(trial, VLA_GOAL_ISOTROPIC, VLA_DELTA, 500 << (2 * i), d, &w,
                                                    v.replay, sizeof v.replay, error);
        if (status) return status;
        norm[i] = w.value;
        vla_witness_destroy(&w);
    }
    v.worst = vla_log_slope(at, norm, 3, 1);
    v.value = (vla_interval){v.worst, NAN, NAN, 1};
    v.expected = 0;
    v.tolerance = 0.05;
    v.ruling = v.worst <= v.tolerance ? VLA_HOLDS : VLA_REFUTED;
    snprintf(v.condition, sizeof v.condition, "keys at right angles to what is stored: |S_T|_F = %.4g at T = %.0f",
             norm[2], at[2]);
    return vla_verdict_emit(trial, &v, error);
}

vla_status vla_claim_selective(const vla_trial *trial, vla_error *error)
{
    const vla_op ops[] = {VLA_DELTA, VLA_DECAY, VLA_VLA, VLA_RLS};
    const int64_t d = trial->d ? trial->d : 32, T = trial->T ? trial->T : 2 * d,
                  heads = trial->heads ? trial->heads : 16;
    bool gauss = false;
    for (int i = 0; i < trial->kind_count; i++) gauss = gauss || trial->kinds[i] == VLA_SOURCE_GAUSS;
    const int64_t count = heads * trial->seed_count;
    double *x = malloc((size_t)count * sizeof *x);
    vla_status status = x ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "C20: out of memory");
    for (size_t op = 0; gauss && T >= 2 && op < sizeof ops / sizeof *ops && !status; op++) {
        vla_source source = {.kind = VLA_SOURCE_GAUSS, .heads = heads, .dk = d, .dv = d, .features = VLA_IDENTITY};
        vla_problem p = *trial->base;
        p.op = ops[op];
        p.dk = p.dv = d;
        p.features = VLA_IDENTITY;
        p.no_normalise = false;
        p.refresh_period = 0;
        for (int64_t n = 0; n < count && !status; n++) {
            history h = {0};
            source.seed = (uint64_t)trial->seeds[n / heads];
            status = read_history(&h, &source, n % heads, T, error);
            if (!status) status = orthogonal_change(&h, &p, &x[n], error);
            vla_free(h.k);
        }
        if (!status) status = rule_change(trial, ops[op], x, count, error);
    }
    free(x);
    if (status || !trial->adversary) return status;
    return delta_growth(trial, trial->d ? trial->d : 8, error);
}
