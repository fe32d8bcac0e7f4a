#include "lib/analysis/adversary.h"
#include "lib/analysis/jacobian.h"
#include "lib/analysis/stepper.h"
#include "lib/analysis/turn.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[VLA_GOALS] = {"jacobian", "product", "state", "isotropic"};

const char *vla_goal_name(vla_goal goal)
{
    return names[goal];
}

bool vla_goal_parse(const char *name, vla_goal *goal)
{
    for (int i = 0; i < VLA_GOALS; i++)
        if (!strcmp(name, names[i])) {
            *goal = (vla_goal)i;
            return true;
        }
    return false;
}

double vla_goal_value(vla_goal goal, const vla_trace_summary *summary)
{
    return goal == VLA_GOAL_JACOBIAN  ? summary->sigma_max
           : goal == VLA_GOAL_PRODUCT ? summary->log_product
                                      : summary->state_norm;
}

const char *vla_goal_field(vla_goal goal)
{
    return goal == VLA_GOAL_JACOBIAN ? "sigma_max" : goal == VLA_GOAL_PRODUCT ? "log10_product" : "state_norm";
}

double vla_goal_unit(vla_goal goal)
{
    return goal == VLA_GOAL_PRODUCT ? log(10) : 1;
}

/* x with x sigmoid(x) = y >= 0, by Newton from above (the map is convex and increasing there). */
static double silu_inverse(double y)
{
    double x = y + 1;
    for (int i = 0; i < 60 && y > 0; i++) {
        const double s = 1 / (1 + exp(-x)), step = (x * s - y) / (s * (1 + x * (1 - s)));
        x -= step;
        if (fabs(step) <= 1e-16 * fabs(x)) break;
    }
    return y > 0 ? x : 0;
}

void vla_feature_inverse(double *raw, const double *wanted, int64_t n, vla_features features, double bound)
{
    double top = 0;
    for (int64_t i = 0; i < n; i++) top = fmax(top, wanted[i]);
    if (!(top > 0)) {
        for (int64_t i = 0; i < n; i++) raw[i] = features == VLA_ELU1 ? -bound : 0;
        return;
    }
    const double scale = (features == VLA_ELU1 ? 1 + bound : bound * 0.9) / top;
    for (int64_t i = 0; i < n; i++) {
        const double y = scale * wanted[i];
        if (features == VLA_IDENTITY)
            raw[i] = y;
        else if (features == VLA_SILU)
            raw[i] = fmin(bound, silu_inverse(y));
        else
            raw[i] = y > 1 ? fmin(bound, y - 1) : fmax(-bound, log(y));
    }
}

static vla_status allocate(vla_witness *w, const vla_problem *p, vla_error *error)
{
    memset(w, 0, sizeof *w);
    void *memory = NULL;
    int64_t count = 0;
    if (!vla_size_mul(p->T, 3 * p->dk + p->dv, &count))
        return vla_fail(error, VLA_ERR_MEMORY, "witness of %lld tokens is too large", (long long)p->T);
    const vla_status status = vla_alloc(&memory, count, sizeof(double), "witness", error);
    if (status) return status;
    w->T = p->T;
    w->dk = p->dk;
    w->dv = p->dv;
    w->q = memory;
    w->k = w->q + p->T * p->dk;
    w->u = w->k + p->T * p->dk;
    w->v = w->u + p->T * p->dk;
    w->random_value = w->bound_value = NAN;
    memset(memory, 0, (size_t)count * sizeof(double));
    return VLA_OK;
}

void vla_witness_destroy(vla_witness *witness)
{
    vla_free(witness->q);
    memset(witness, 0, sizeof *witness);
}

vla_source vla_witness_source(const vla_witness *w)
{
    return (vla_source){
        .kind = VLA_SOURCE_TENSORS, .heads = 1, .dk = w->dk, .dv = w->dv, .T = w->T, .k = w->k, .v = w->v, .u = w->u};
}

/* k = x on axis i, y on axis i + 1 (before the feature map is inverted), u on axis `penalty` or 0 when negative. */
static void put(vla_witness *w, int64_t t, int64_t axis, double x, double y, int64_t penalty)
{
    double *k = w->k + t * w->dk;
    k[axis] = x;
    if (axis + 1 < w->dk) k[axis + 1] = y;
    if (penalty >= 0) w->u[t * w->dk + penalty] = 1;
}

static void raw_inputs(vla_witness *w, const vla_adversary_options *o)
{
    for (int64_t t = 0; t < w->T; t++) {
        double *k = w->k + t * w->dk, *q = w->q + t * w->dk;
        memcpy(q, k, (size_t)w->dk * sizeof *k);
        vla_feature_inverse(k, q, w->dk, o->problem->features, o->bound);
        memcpy(q, k, (size_t)w->dk * sizeof *k);
    }
}

static void worst_jacobian(vla_witness *w, const vla_adversary_options *o)
{
    for (int64_t t = 0; t + 1 < w->T; t++) put(w, t, 0, 0, 1, 0);
    if (w->T < 1) return;
    const double kappa = 1 + (double)w->T / ((double)w->dk * o->problem->lambda0);
    put(w, w->T - 1, 0, sqrt(kappa / (1 + kappa)), sqrt(1 / (1 + kappa)), 0);
}

/* Lays `turns` turns over tokens from .. T-1, the longer ones first. */
static vla_status lay_turns(vla_witness *w, const vla_adversary_options *o, int64_t from, int64_t turns,
                            vla_error *error)
{
    const int64_t tokens = w->T - from;
    void *memory = NULL;
    const vla_status status = vla_alloc(&memory, tokens / turns + 2, sizeof(double), "adversary", error);
    if (status) return status;
    double *phi = memory;
    int64_t t = from, known = -1;
    for (int64_t i = 0; i < turns; i++) {
        const int64_t len = tokens / turns + (i < tokens % turns);
        if (len != known) vla_turn_search(len, w->dk, o->problem->lambda0, phi, NULL);
        known = len;
        for (int64_t j = 0; j < len; j++, t++) put(w, t, i, cos(phi[j]), sin(phi[j]), i);
    }
    vla_free(memory);
    w->turns = turns;
    return VLA_OK;
}

/* How many turns pay: the total logarithm is turns x that of one, tried for every count, or a sample of about 16. */
static int64_t best_turns(const vla_adversary_options *o, int64_t tokens, double *phi)
{
    const int64_t dk = o->problem->dk, most = dk - 1 < tokens ? dk - 1 : tokens;
    const int64_t stride = most > 16 ? most / 16 : 1;
    int64_t best = 1;
    double top = -INFINITY;
    for (int64_t turns = most; turns >= 1; turns -= stride) {
        const double value = (double)turns * vla_turn_search(tokens / turns, dk, o->problem->lambda0, phi, NULL);
        if (value > top) {
            top = value;
            best = turns;
        }
    }
    return best;
}

static vla_status turns_over(vla_witness *w, const vla_adversary_options *o, int64_t from, vla_error *error)
{
    const int64_t tokens = w->T - from;
    if (tokens < 1 || w->dk < 2) return VLA_OK;
    void *memory = NULL;
    const vla_status status = vla_alloc(&memory, tokens, sizeof(double), "adversary", error);
    if (status) return status;
    const int64_t turns = best_turns(o, tokens, memory);
    vla_free(memory);
    return lay_turns(w, o, from, turns, error);
}

/* Signs of v_t that add to |S_T|: the sign of (J_T .. J_{t+1})^T s . a_t for the row s that the last pass left. */
static vla_status aligned_values(vla_witness *w, const vla_adversary_options *o, vla_error *error)
{
    const int64_t dk = w->dk;
    vla_stepper st;
    vla_status status = vla_stepper_create(&st, o->problem, error);
    if (status) return status;
    void *memory = NULL;
    if (!(status = vla_alloc(&memory, (2 * w->T + 1) * dk, sizeof(double), "adversary", error))) {
        double *steps = memory, *l = steps + 2 * w->T * dk;
        for (int pass = 0; pass < 3; pass++) {
            vla_stepper_reset(&st);
            for (int64_t t = 0; t < w->T; t++) {
                vla_stepper_step(&st, w->k + t * dk, w->v + t * w->dv, w->u + t * dk, NULL, NULL);
                memcpy(steps + 2 * t * dk, st.a, (size_t)dk * sizeof *l);
                memcpy(steps + (2 * t + 1) * dk, st.kh, (size_t)dk * sizeof *l);
            }
            const double size = vla_frobenius(st.S, dk);
            for (int64_t i = 0; i < dk; i++) l[i] = st.S[i] / size;
            for (int64_t t = w->T - 1; t >= 0; t--) {
                const double *a = steps + 2 * t * dk, *k = a + dk;
                double al = 0;
                for (int64_t i = 0; i < dk; i++) al += a[i] * l[i];
                w->v[t * w->dv] = al >= 0 ? 1 : -1;
                for (int64_t i = 0; i < dk; i++) l[i] -= k[i] * al;
            }
        }
    }
    vla_free(memory);
    vla_stepper_destroy(&st);
    return status;
}

static vla_status worst_state(vla_witness *w, const vla_adversary_options *o, vla_error *error)
{
    if (w->T < 1) return VLA_OK;
    put(w, 0, 0, 1, 0, 0);
    w->v[0] = 1;
    const vla_status status = turns_over(w, o, 1, error);
    if (status) return status;
    raw_inputs(w, o);
    return aligned_values(w, o, error);
}

/* In the plane of axes 1 and 2 the stored row stays in the quadrant s_1 > 0 > s_2, so the key at right angles to it is
 * positive; |s|^2 grows by |v|^2 = 1 a token. */
static void worst_isotropic(vla_witness *w, const vla_adversary_options *o)
{
    double s[2] = {0, 0};
    (void)o;
    for (int64_t t = 0; t < w->T; t++) {
        const double size = hypot(s[0], s[1]);
        const double k[2] = {size > 0 ? -s[1] / size : 1, size > 0 ? s[0] / size : 0};
        const double plus = s[1] + k[1];
        const double v = t == 0 || plus < 0 ? 1 : -1;
        put(w, t, 0, k[0], w->dk > 1 ? k[1] : 0, -1);
        w->v[t * w->dv] = v;
        s[0] += v * k[0];
        s[1] += v * k[1];
    }
}

static vla_status measure(const vla_adversary_options *o, const vla_source *source, bool dense, vla_pool *pool,
                          vla_trace_summary *summary, vla_error *error)
{
    const vla_problem *p = o->problem;
    const vla_trace_options trace = {
        .problem = p, .source = source, .every = p->T > 0 ? p->T : 1, .dense = dense, .pool = pool};
    return vla_trace_run(&trace, summary, error);
}

/* The best of `trials` random inputs of the same size: keys and penalties of the gauss source, unit values. */
static vla_status random_best(const vla_adversary_options *o, vla_witness *w, vla_error *error)
{
    vla_source source = {.kind = VLA_SOURCE_GAUSS,
                         .heads = 1,
                         .dk = w->dk,
                         .dv = w->dv,
                         .seed = o->seed,
                         .features = o->problem->features};
    if (o->goal == VLA_GOAL_ISOTROPIC) source.kind = VLA_SOURCE_ISOTROPIC;
    for (int64_t i = 0; i < o->trials; i++) {
        vla_trace_summary summary;
        source.seed = o->seed + (uint64_t)i;
        source.v_scale = 1 / sqrt((double)w->dv);
        const vla_status status = measure(o, &source, o->goal == VLA_GOAL_PRODUCT, o->pool, &summary, error);
        if (status) return status;
        w->random_value = fmax(w->random_value, vla_goal_value(o->goal, &summary));
    }
    return VLA_OK;
}

static vla_status build(const vla_adversary_options *o, vla_witness *w, vla_error *error)
{
    switch (o->goal) {
    case VLA_GOAL_JACOBIAN:
        worst_jacobian(w, o);
        w->bound_value = vla_jacobian_norm_bound(w->dk, o->problem->lambda0, w->T);
        break;
    case VLA_GOAL_PRODUCT: {
        const vla_status status = turns_over(w, o, 0, error);
        if (status) return status;
        w->bound_value = vla_product_log_bound(w->dk, o->problem->lambda0, w->T);
        break;
    }
    case VLA_GOAL_STATE:
        return worst_state(w, o, error);
    default:
        worst_isotropic(w, o);
        w->bound_value = sqrt((double)w->T);
    }
    raw_inputs(w, o);
    return VLA_OK;
}

vla_status vla_adversary_search(const vla_adversary_options *o, vla_witness *w, vla_error *error)
{
    memset(w, 0, sizeof *w);
    const vla_problem *p = o->problem;
    if (p->op != VLA_VLA || p->no_normalise || p->refresh_period > 0)
        return vla_fail(error, VLA_ERR_UNSUPPORTED,
                        "the adversary searches the normalised vla without refresh; its witness runs on any operator");
    if (!(o->bound >= 1 && o->bound <= 700))
        return vla_fail(error, VLA_ERR_ARGUMENT, "bound %g: accepted are 1 to 700", o->bound);
    vla_status status = allocate(w, p, error);
    if (!status) status = build(o, w, error);
    if (!status) {
        const vla_source source = vla_witness_source(w);
        status = measure(o, &source, true, o->pool, &w->summary, error);
        w->value = vla_goal_value(o->goal, &w->summary);
    }
    if (!status) status = random_best(o, w, error);
    if (status) vla_witness_destroy(w);
    return status;
}
