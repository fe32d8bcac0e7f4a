#include "lib/task/sequences.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <math.h>
#include <string.h>

bool vla_sequences_is_copy(vla_task_kind kind)
{
    return kind == VLA_COPY || kind == VLA_COPY_OWN;
}

int64_t vla_sequences_length(vla_task_kind kind, int64_t n)
{
    if (vla_sequences_is_copy(kind)) return 63;
    if (kind == VLA_MQAR) return 3 * n + 1;
    return 4 * n < 64 ? 64 : 4 * n;
}

static vla_status refuse(vla_error *error, const char *what, int64_t value, const char *why, int64_t limit)
{
    return vla_fail(error, VLA_ERR_ARGUMENT, "%s %lld: %s %lld", what, (long long)value, why, (long long)limit);
}

static vla_status check_pairs(const vla_sequences *s, vla_error *error)
{
    const bool paper = s->kind == VLA_MQAR;
    const int64_t keys = paper ? s->vocab - 1 : s->vocab / 2 - 1, shortest = paper ? 2 * s->n + 2 : 4 * s->n;
    if (s->n < 1) return refuse(error, "n", s->n, "pairs are at least", 1);
    if (s->n > keys) return refuse(error, "n", s->n, "pairs need as many distinct keys; the vocabulary has", keys);
    if (s->T < shortest) return refuse(error, "T", s->T, "too short for these pairs, which need at least", shortest);
    if (!paper && s->T % 2) return refuse(error, "T", s->T, "this form takes an even length, such as", s->T + 1);
    return VLA_OK;
}

vla_status vla_sequences_check(const vla_sequences *s, vla_error *error)
{
    if (s->vocab < 3 || s->vocab > 1 << 20)
        return refuse(error, "vocab", s->vocab, "3 tokens and more are accepted, up to", 1 << 20);
    if (s->T > 1 << 20) return refuse(error, "T", s->T, "tokens of a sequence are at most", 1 << 20);
    if (!vla_sequences_is_copy(s->kind)) return check_pairs(s, error);
    if (s->T < 3 || s->T % 2 == 0)
        return refuse(error, "T", s->T, "copy takes m tokens, a separator and m tokens: an odd length of at least", 3);
    return VLA_OK;
}

/* The first n of [0, count) in random order, into order [count] (Fisher and Yates). */
static void shuffle(int32_t *order, int64_t count, int64_t n, vla_rng *rng)
{
    for (int64_t i = 0; i < count; i++) order[i] = (int32_t)i;
    for (int64_t i = 0; i < n; i++) {
        const int64_t j = i + (int64_t)vla_rng_below(rng, (uint64_t)(count - i));
        const int32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void make_paper(const vla_sequences *s, vla_rng *rng, int32_t *tokens, int32_t *targets, int32_t *scratch)
{
    const int64_t n = s->n;
    shuffle(scratch, s->vocab - 1, n, rng);
    for (int64_t i = 0; i < n; i++) {
        tokens[2 * i] = scratch[i];
        tokens[2 * i + 1] = (int32_t)vla_rng_below(rng, (uint64_t)(s->vocab - 1));
    }
    tokens[2 * n] = (int32_t)(s->vocab - 1);
    for (int64_t t = 2 * n + 1; t < s->T; t++) {
        const int64_t i = (int64_t)vla_rng_below(rng, (uint64_t)n);
        tokens[t] = tokens[2 * i];
        targets[t] = tokens[2 * i + 1];
    }
}

/* n distinct gaps of [0, space) with weights (gap + 1)^(a - 1), a = 0.01, one after the other without replacement: the
 * smallest of exponential arrival times (Efraimidis and Spirakis 2006). */
static void draw_gaps(int32_t *gaps, int64_t n, int64_t space, vla_rng *rng, double *arrival)
{
    for (int64_t i = 0; i < space; i++) arrival[i] = -log(1 - vla_rng_uniform(rng)) * pow((double)(i + 1), 1 - 0.01);
    for (int64_t i = 0; i < n; i++) {
        int64_t first = 0;
        for (int64_t j = 1; j < space; j++)
            if (arrival[j] < arrival[first]) first = j;
        gaps[i] = (int32_t)first;
        arrival[first] = INFINITY;
    }
}

static void make_zoology(const vla_sequences *s, vla_rng *rng, int32_t *tokens, int32_t *targets, int32_t *scratch,
                         double *arrival)
{
    const int64_t n = s->n, half = s->vocab / 2, space = (s->T - 2 * n) / 2;
    for (int64_t t = 0; t < s->T; t++) tokens[t] = (int32_t)vla_rng_below(rng, (uint64_t)s->vocab);
    shuffle(scratch, half - 1, n, rng);
    for (int64_t i = 0; i < n; i++) tokens[2 * i] = scratch[i] + 1;
    shuffle(scratch, s->vocab - half, n, rng);
    for (int64_t i = 0; i < n; i++) tokens[2 * i + 1] = scratch[i] + (int32_t)half;
    draw_gaps(scratch, n, space, rng, arrival);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = 2 * n + 2 * scratch[i];
        tokens[at] = tokens[2 * i];
        targets[at] = tokens[2 * i + 1];
    }
}

static void make_copy(const vla_sequences *s, vla_rng *rng, int32_t *tokens, int32_t *targets)
{
    const int64_t m = (s->T - 1) / 2, asked = s->kind == VLA_COPY_OWN ? m + 1 : m;
    for (int64_t i = 0; i < m; i++)
        tokens[i] = tokens[m + 1 + i] = (int32_t)vla_rng_below(rng, (uint64_t)(s->vocab - 1));
    tokens[m] = (int32_t)(s->vocab - 1);
    for (int64_t i = 0; i < m; i++) targets[asked + i] = tokens[i];
}

vla_split vla_split_of(const int32_t *tokens, int64_t T)
{
    uint64_t hash = 1469598103934665603u;
    for (int64_t t = 0; t < T; t++) hash = (hash ^ (uint64_t)tokens[t]) * 1099511628211u;
    hash ^= hash >> 29;
    return hash % 8 == 0 ? VLA_TEST : hash % 8 == 1 ? VLA_VALIDATE : VLA_TRAIN;
}

static bool make_one(const vla_sequences *s, vla_split split, int64_t index, int32_t *tokens, int32_t *targets,
                     int32_t *scratch, double *arrival)
{
    vla_rng rng = vla_rng_seed(s->seed, (uint64_t)(split + 1) << 56 | (uint64_t)index);
    for (int tries = 0; tries < 4096; tries++) { /* one in eight at worst: 4096 only fail where a split is empty */
        for (int64_t t = 0; t < s->T; t++) targets[t] = -1;
        if (s->kind == VLA_MQAR) make_paper(s, &rng, tokens, targets, scratch);
        if (s->kind == VLA_MQAR_ZOOLOGY) make_zoology(s, &rng, tokens, targets, scratch, arrival);
        if (vla_sequences_is_copy(s->kind)) make_copy(s, &rng, tokens, targets);
        if (vla_split_of(tokens, s->T) == split) return true;
    }
    return false;
}

vla_status vla_sequences_make(const vla_sequences *s, vla_split split, int64_t first, int64_t B, int32_t *tokens,
                              int32_t *targets, vla_error *error)
{
    vla_status status = vla_sequences_check(s, error);
    int32_t *scratch = NULL;
    double *arrival = NULL;
    const int64_t most = s->vocab > s->T ? s->vocab : s->T;
    if (!status) status = vla_alloc((void **)&scratch, most, sizeof *scratch, "sequences", error);
    if (!status) status = vla_alloc((void **)&arrival, most, sizeof *arrival, "sequences", error);
    for (int64_t b = 0; !status && b < B; b++)
        if (!make_one(s, split, first + b, tokens + b * s->T, targets + b * s->T, scratch, arrival))
            status = vla_fail(error, VLA_ERR_ARGUMENT,
                              "vocab %lld, n %lld, T %lld: too few different sequences to keep training and test apart",
                              (long long)s->vocab, (long long)s->n, (long long)s->T);
    vla_free(scratch);
    vla_free(arrival);
    return status;
}
