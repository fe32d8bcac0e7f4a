#include "lib/task/recall.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Everything one trial needs; a worker keeps one and uses it for many trials. */
typedef struct bench {
    vla_memory memory, polluted, rls, rls_polluted;
    double *keys, *directions, *values, *codes; /* [total, dk] [total, dk] [total, dv] [codebook, dv] */
    double *code_norms, *read, *scores, *scratch;
    int64_t *labels;
} bench;

typedef struct outcome { /* one trial at one n */
    double nearest, inner, error, norm, distance;
    double age_right[VLA_AGES], age_asked[VLA_AGES];
} outcome;

typedef struct sweep {
    const vla_recall *recall;
    const int64_t *n;
    int64_t count, total; /* total: pairs of the longest case, distractors included */
    bench *benches;
    outcome *outcomes; /* [trials, count] */
    vla_status *status;
} sweep;

enum stream { STREAM_KEYS = 1, STREAM_VALUES, STREAM_CODES, STREAM_DIRECTIONS, STREAMS };

static vla_rng stream_of(const vla_recall *recall, int64_t trial, enum stream what)
{
    const uint64_t place = ((uint64_t)recall->memory.dk << 8 | (uint64_t)recall->keys) * STREAMS + (uint64_t)what;
    return vla_rng_seed(recall->seed, place << 24 | (uint64_t)trial);
}

static vla_status take(double **memory, int64_t rows, int64_t columns, vla_error *error)
{
    int64_t count = 0;
    if (!vla_size_mul(rows, columns, &count))
        return vla_fail(error, VLA_ERR_MEMORY, "recall: %lld x %lld exceeds 64-bit sizes", (long long)rows,
                        (long long)columns);
    return vla_alloc((void **)memory, count, sizeof **memory, "recall", error);
}

static void bench_destroy(bench *b)
{
    vla_memory *memories[] = {&b->memory, &b->polluted, &b->rls, &b->rls_polluted};
    for (int i = 0; i < 4; i++) vla_memory_destroy(memories[i]);
    double *all[] = {b->keys, b->directions, b->values, b->codes, b->code_norms, b->read, b->scores, b->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) vla_free(all[i]);
    vla_free(b->labels);
    *b = (bench){0};
}

static vla_status bench_create(bench *b, const vla_recall *recall, int64_t total, vla_error *error)
{
    *b = (bench){0};
    const vla_memory_spec *spec = &recall->memory;
    vla_memory_spec rls = *spec;
    rls.op = VLA_RLS;
    vla_status status = vla_memory_create(&b->memory, spec, total, error);
    if (!status && recall->distractors) status = vla_memory_create(&b->polluted, spec, total, error);
    if (!status && recall->compare_rls) status = vla_memory_create(&b->rls, &rls, total, error);
    if (!status && recall->compare_rls) status = vla_memory_create(&b->rls_polluted, &rls, total, error);
    if (!status) status = take(&b->keys, total, spec->dk, error);
    if (!status) status = take(&b->directions, total, spec->dk, error);
    if (!status) status = take(&b->values, total, spec->dv, error);
    if (!status) status = take(&b->codes, recall->codebook, spec->dv, error);
    if (!status) status = take(&b->code_norms, recall->codebook, 1, error);
    if (!status) status = take(&b->read, total, spec->dv, error);
    if (!status) status = take(&b->scores, total, recall->codebook, error);
    if (!status) status = take(&b->scratch, total, 1, error);
    if (!status) status = vla_alloc((void **)&b->labels, total, sizeof *b->labels, "recall", error);
    if (status) bench_destroy(b);
    return status;
}

static void make_values(bench *b, const vla_recall *recall, int64_t total, int64_t trial)
{
    const int64_t dv = recall->memory.dv;
    vla_rng codes = stream_of(recall, trial, STREAM_CODES), labels = stream_of(recall, trial, STREAM_VALUES);
    for (int64_t c = 0; c < recall->codebook; c++) {
        double *row = b->codes + c * dv;
        for (int64_t i = 0; i < dv; i++) row[i] = vla_rng_normal(&codes);
        b->code_norms[c] = cblas_ddot((int)dv, row, 1, row, 1);
    }
    for (int64_t i = 0; i < total; i++) {
        b->labels[i] = (int64_t)vla_rng_below(&labels, (uint64_t)recall->codebook);
        memcpy(b->values + i * dv, b->codes + b->labels[i] * dv, (size_t)dv * sizeof *b->values);
    }
}

static vla_status make_trial(bench *b, const vla_recall *recall, int64_t total, int64_t trial, vla_error *error)
{
    const int64_t dk = recall->memory.dk;
    vla_rng keys = stream_of(recall, trial, STREAM_KEYS), directions = stream_of(recall, trial, STREAM_DIRECTIONS);
    vla_status status = vla_keys_make(b->keys, recall->keys, recall->bank, total, dk, &keys, error);
    if (!status && recall->u_random)
        status = vla_keys_make(b->directions, VLA_KEYS_GAUSS, NULL, total, dk, &directions, error);
    if (status) return status;
    if (!recall->u_random) memcpy(b->directions, b->keys, (size_t)(total * dk) * sizeof *b->keys);
    cblas_dscal((int)(total * dk), recall->u_scale / sqrt((double)dk), b->directions, 1);
    make_values(b, recall, total, trial);
    return VLA_OK;
}

/* The code of largest inner product with a read row less half its own square (nearest) or not (inner). */
static int64_t decode(const double *products, const double *norms, int64_t codes, bool nearest)
{
    int64_t best = -1;
    double top = -INFINITY;
    for (int64_t c = 0; c < codes; c++) {
        const double score = products[c] - (nearest ? 0.5 * norms[c] : 0);
        if (score > top) top = score, best = c;
    }
    return best; /* -1 when every score is NaN: never a right answer */
}

static double difference(const double *x, const double *y, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrt(squares);
}

static void ask(bench *b, const vla_recall *recall, const vla_memory *memory, int64_t n, outcome *out)
{
    const int64_t dv = recall->memory.dv, codes = recall->codebook;
    vla_memory_read(memory, b->keys, n, b->read, b->scratch);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n, (int)codes, (int)dv, 1, b->read, (int)dv, b->codes,
                (int)dv, 0, b->scores, (int)codes);
    *out = (outcome){0};
    for (int64_t i = 0; i < n; i++) {
        const double *products = b->scores + i * codes;
        const bool right = decode(products, b->code_norms, codes, true) == b->labels[i];
        const int64_t age = i * VLA_AGES / n;
        out->nearest += right;
        out->inner += decode(products, b->code_norms, codes, false) == b->labels[i];
        out->age_right[age] += right;
        out->age_asked[age] += 1;
    }
    out->nearest /= (double)n;
    out->inner /= (double)n;
    out->error = difference(b->read, b->values, n * dv) / cblas_dnrm2((int)(n * dv), b->values, 1);
    out->norm = vla_memory_norm(memory);
}

static void write_pairs(const bench *b, vla_memory *memory, int64_t from, int64_t to)
{
    const int64_t dk = memory->spec.dk, dv = memory->spec.dv;
    for (int64_t i = from; i < to; i++)
        vla_memory_write(memory, b->keys + i * dk, b->directions + i * dk, b->values + i * dv);
}

/* A copy of memory after the distractors, which are the pairs at the end of the trial. */
static const vla_memory *pollute(const bench *b, const vla_memory *memory, vla_memory *polluted, const sweep *s)
{
    if (s->recall->distractors == 0) return memory;
    vla_memory_copy(polluted, memory);
    write_pairs(b, polluted, s->total - s->recall->distractors, s->total);
    return polluted;
}

static void run_trial(void *context, int64_t trial, int worker)
{
    const sweep *s = context;
    const vla_recall *recall = s->recall;
    bench *b = &s->benches[worker];
    s->status[trial] = make_trial(b, recall, s->total, trial, NULL);
    if (s->status[trial]) return;
    vla_memory_reset(&b->memory);
    if (recall->compare_rls) vla_memory_reset(&b->rls);
    for (int64_t j = 0, done = 0; j < s->count; done = s->n[j++]) {
        outcome *out = &s->outcomes[trial * s->count + j];
        write_pairs(b, &b->memory, done, s->n[j]);
        const vla_memory *asked = pollute(b, &b->memory, &b->polluted, s);
        ask(b, recall, asked, s->n[j], out);
        out->distance = (double)NAN;
        if (!recall->compare_rls) continue;
        write_pairs(b, &b->rls, done, s->n[j]);
        const vla_memory *rls = pollute(b, &b->rls, &b->rls_polluted, s);
        out->distance = difference(asked->S, rls->S, recall->memory.dk * recall->memory.dv) / vla_memory_norm(rls);
    }
}

/* Two-sided 97.5 % quantile of Student's t (Hill 1970's expansion is within 1 % for 3 degrees and more). */
static double student(int64_t degrees)
{
    static const double exact[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
    if (degrees <= 10) return exact[degrees - 1];
    const double z = 1.959964, v = (double)degrees;
    return z + (z * z * z + z) / (4 * v) + (5 * pow(z, 5) + 16 * z * z * z + 3 * z) / (96 * v * v);
}

vla_share vla_share_of(const double *per_trial, int64_t trials, int64_t answers_per_trial)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < trials; i++) mean += per_trial[i] / (double)trials;
    for (int64_t i = 0; i < trials; i++) squares += (per_trial[i] - mean) * (per_trial[i] - mean);
    const double z = 1.959964, answers = (double)(trials * answers_per_trial), w = 1 + z * z / answers;
    const double centre = (mean + z * z / (2 * answers)) / w;
    const double half = z / w * sqrt(mean * (1 - mean) / answers + z * z / (4 * answers * answers));
    double lo = centre - half, hi = centre + half;
    if (trials > 1) {
        const double spread = student(trials - 1) * sqrt(squares / (double)(trials - 1) / (double)trials);
        lo = fmin(lo, mean - spread);
        hi = fmax(hi, mean + spread);
    }
    return (vla_share){mean, fmax(0, fmin(lo, mean)), fmin(1, fmax(hi, mean))};
}

static double mean_of(const sweep *s, int64_t j, size_t field)
{
    double sum = 0;
    for (int64_t t = 0; t < s->recall->trials; t++)
        sum += *(const double *)((const char *)&s->outcomes[t * s->count + j] + field);
    return sum / (double)s->recall->trials;
}

static vla_share share_at(const sweep *s, int64_t j, size_t field, double *scratch)
{
    for (int64_t t = 0; t < s->recall->trials; t++)
        scratch[t] = *(const double *)((const char *)&s->outcomes[t * s->count + j] + field);
    return vla_share_of(scratch, s->recall->trials, s->n[j]);
}

static void summarise(const sweep *s, vla_recall_point *points, double *scratch)
{
    for (int64_t j = 0; j < s->count; j++) {
        vla_recall_point *p = &points[j];
        p->n = s->n[j];
        p->nearest = share_at(s, j, offsetof(outcome, nearest), scratch);
        p->inner = share_at(s, j, offsetof(outcome, inner), scratch);
        p->relative_error = mean_of(s, j, offsetof(outcome, error));
        p->norm = mean_of(s, j, offsetof(outcome, norm));
        p->rls_distance = mean_of(s, j, offsetof(outcome, distance));
        p->sharpness = s->recall->memory.op == VLA_SOFTMAX ? s->recall->memory.sharpness : (double)NAN;
        for (size_t a = 0; a < VLA_AGES; a++) {
            const double asked = mean_of(s, j, offsetof(outcome, age_asked) + a * sizeof(double));
            const double right = mean_of(s, j, offsetof(outcome, age_right) + a * sizeof(double));
            p->age[a] = asked > 0 ? right / asked : (double)NAN;
        }
    }
}

bool vla_recall_possible(const vla_recall *recall, int64_t n, char *reason, size_t reason_size)
{
    return vla_keys_possible(recall->keys, recall->bank, n + recall->distractors, recall->memory.dk, reason,
                             reason_size);
}

/* BLAS counts in int. */
static bool fits_blas(int64_t rows, int64_t columns)
{
    int64_t count = 0;
    return vla_size_mul(rows, columns, &count) && count <= INT_MAX;
}

static vla_status check(const vla_recall *recall, const int64_t *n, int64_t count, vla_error *error)
{
    if (recall->trials < 1 || recall->trials > 1 << 20)
        return vla_fail(error, VLA_ERR_ARGUMENT, "trials %lld: 1 to 1048576 are accepted", (long long)recall->trials);
    if (recall->codebook < 2)
        return vla_fail(error, VLA_ERR_ARGUMENT, "codebook %lld: at least 2 values are needed",
                        (long long)recall->codebook);
    if (recall->distractors < 0)
        return vla_fail(error, VLA_ERR_ARGUMENT, "distractors %lld: at least 0", (long long)recall->distractors);
    for (int64_t j = 0; j < count; j++)
        if (n[j] < 1 || (j > 0 && n[j] <= n[j - 1]))
            return vla_fail(error, VLA_ERR_ARGUMENT, "n %lld: ascending counts of at least 1 are accepted",
                            (long long)n[j]);
    const vla_memory_spec *m = &recall->memory;
    const int64_t total = count > 0 ? n[count - 1] + recall->distractors : 0, wide = m->dk > m->dv ? m->dk : m->dv;
    if (!fits_blas(total, wide) || !fits_blas(wide, wide) || !fits_blas(total, recall->codebook))
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "%lld pairs of width %lld and %lld values: an array of 2^31 elements or more; accepted: fewer",
                        (long long)total, (long long)wide, (long long)recall->codebook);
    char reason[160];
    if (count > 0 && !vla_recall_possible(recall, n[count - 1], reason, sizeof reason))
        return vla_fail(error, VLA_ERR_ARGUMENT, "n %lld: %s", (long long)n[count - 1], reason);
    return VLA_OK;
}

static void sweep_destroy(sweep *s, int workers)
{
    for (int i = 0; s->benches && i < workers; i++) bench_destroy(&s->benches[i]);
    vla_free(s->benches);
    vla_free(s->outcomes);
    vla_free(s->status);
}

static vla_status sweep_create(sweep *s, int workers, vla_error *error)
{
    const int64_t trials = s->recall->trials;
    vla_status status = vla_alloc((void **)&s->benches, workers, sizeof *s->benches, "recall", error);
    if (status) return status;
    memset(s->benches, 0, (size_t)workers * sizeof *s->benches);
    for (int i = 0; !status && i < workers; i++) status = bench_create(&s->benches[i], s->recall, s->total, error);
    if (!status) status = vla_alloc((void **)&s->outcomes, trials * s->count, sizeof *s->outcomes, "recall", error);
    if (!status) status = vla_alloc((void **)&s->status, trials, sizeof *s->status, "recall", error);
    return status;
}

vla_status vla_recall_run(const vla_recall *recall, vla_pool *pool, const int64_t *n, int64_t count,
                          vla_recall_point *points, vla_error *error)
{
    vla_status status = check(recall, n, count, error);
    if (status || count == 0) return status;
    sweep s = {recall, n, count, n[count - 1] + recall->distractors, NULL, NULL, NULL};
    const int workers = vla_pool_threads(pool);
    double *scratch = NULL;
    status = sweep_create(&s, workers, error);
    if (!status) status = take(&scratch, recall->trials, 1, error);
    if (!status) {
        vla_pool_run(pool, recall->trials, run_trial, &s);
        for (int64_t t = 0; !status && t < recall->trials; t++)
            if (s.status[t]) status = vla_fail(error, s.status[t], "recall: trial %lld failed", (long long)t);
    }
    if (!status) summarise(&s, points, scratch);
    vla_free(scratch);
    sweep_destroy(&s, workers);
    return status;
}

vla_status vla_recall_best(const vla_recall *recall, const double *sharpness, int64_t sharpness_count, vla_pool *pool,
                           const int64_t *n, int64_t count, vla_recall_point *points, vla_error *error)
{
    if (recall->memory.op != VLA_SOFTMAX || sharpness_count == 0)
        return vla_recall_run(recall, pool, n, count, points, error);
    vla_recall_point *tried = NULL;
    vla_status status = vla_alloc((void **)&tried, count, sizeof *tried, "recall", error);
    for (int64_t i = 0; !status && i < sharpness_count; i++) {
        vla_recall one = *recall;
        one.memory.sharpness = sharpness[i];
        status = vla_recall_run(&one, pool, n, count, tried, error);
        for (int64_t j = 0; !status && j < count; j++) {
            const double gain = i == 0 ? 1 : tried[j].nearest.value - points[j].nearest.value;
            if (gain > 0 || (gain == 0 && tried[j].relative_error < points[j].relative_error)) points[j] = tried[j];
        }
    }
    vla_free(tried);
    return status;
}

static const double ENOUGH = 0.95;

typedef enum limit { LIMIT_VALUE, LIMIT_LO, LIMIT_HI } limit;

/* A point without a wrong answer passes by its lower limit too: at small n the interval is wide only for want of
 * answers. */
static double limit_of(const vla_recall_point *p, limit which)
{
    if (which == LIMIT_VALUE || p->nearest.value == 1) return p->nearest.value;
    return which == LIMIT_LO ? p->nearest.lo : p->nearest.hi;
}

/* Index of the last point that passes, or -1. */
static int64_t last_passing(const vla_recall_point *points, int64_t count, limit which)
{
    int64_t last = -1;
    for (int64_t j = 0; j < count; j++)
        if (limit_of(&points[j], which) >= ENOUGH) last = j;
    return last;
}

vla_status vla_recall_capacity(const vla_recall *recall, const double *sharpness, int64_t sharpness_count,
                               vla_pool *pool, const vla_recall_point *points, int64_t count, vla_capacity *capacity,
                               vla_error *error)
{
    int64_t found[3] = {0, 0, 0};
    bool open = false;
    for (int which = LIMIT_VALUE; which <= LIMIT_HI; which++) {
        const int64_t last = last_passing(points, count, (limit)which);
        int64_t good = last < 0 ? 0 : points[last].n, bad = last + 1 < count ? points[last + 1].n : good + 1;
        if (which == LIMIT_VALUE && last + 1 >= count) open = true;
        while (bad - good > 1) {
            const int64_t middle = good + (bad - good) / 2;
            vla_recall_point p;
            const vla_status status = vla_recall_best(recall, sharpness, sharpness_count, pool, &middle, 1, &p, error);
            if (status) return status;
            if (limit_of(&p, (limit)which) >= ENOUGH)
                good = middle;
            else
                bad = middle;
        }
        found[which] = good;
    }
    *capacity = (vla_capacity){found[LIMIT_VALUE], found[LIMIT_LO], found[LIMIT_HI], open};
    return VLA_OK;
}
