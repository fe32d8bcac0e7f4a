#include "lib/task/recall_verdict.h"
#include "lib/base/status.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 64, MEMORIES = 5 };
static const char *const memories[MEMORIES] = {"linear", "delta", "decay", "vla", "rls"};

/* One key source at one width of one setting. */
typedef struct group {
    const vla_records *records;
    const char *keys;
    int64_t d, codebook, trials, seed;
} group;

typedef struct finding {
    const char *claim, *source;
    double value, lo, hi;
    const char *verdict;
    char condition[200];
} finding;

static double number(const vla_record *row, const char *name)
{
    return row ? vla_record_number(row, name, (double)NAN) : (double)NAN;
}

static bool in_group(const vla_record *row, const group *g, const char *kind)
{
    return strcmp(vla_record_text(row, "kind", ""), kind) == 0 &&
           strcmp(vla_record_text(row, "keys", ""), g->keys) == 0 && number(row, "d") == (double)g->d &&
           number(row, "dk") == (double)g->d && number(row, "distractors") == 0 &&
           number(row, "codebook") == (double)g->codebook && number(row, "trials") == (double)g->trials &&
           strcmp(vla_record_text(row, "status", "ok"), "ok") == 0;
}

static bool is_memory(const vla_record *row, const char *op)
{
    const char *setting = vla_record_text(row, "setting", "");
    return strcmp(vla_record_text(row, "op", ""), op) == 0 && (strcmp(op, "vla") != 0 || strcmp(setting, "unit") == 0);
}

static const vla_record *find(const group *g, const char *kind, const char *op, double n)
{
    for (int64_t i = 0; i < g->records->count; i++) {
        const vla_record *row = g->records->rows[i];
        if (in_group(row, g, kind) && is_memory(row, op) && (isnan(n) || number(row, "n") == n)) return row;
    }
    return NULL;
}

/* The measured n of vla in ascending order. */
static int64_t counts(const group *g, double *n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < g->records->count && count < MOST_ROWS; i++) {
        const vla_record *row = g->records->rows[i];
        if (!in_group(row, g, "recall") || !is_memory(row, "vla")) continue;
        int64_t at = count++;
        for (; at > 0 && n[at - 1] > number(row, "n"); at--) n[at] = n[at - 1];
        n[at] = number(row, "n");
    }
    return count;
}

/* " --NAME VALUE" where the record has another value than the program's own. */
static void put_real(FILE *to, const vla_record *row, const char *field, const char *name, double usual)
{
    const double value = number(row, field);
    if (isfinite(value) && value != usual) fprintf(to, " --%s %.17g", name, value);
}

/* The run that finds the same, in fresh memory; NULL: there is none. */
static char *replay_of(const group *g)
{
    double n[MOST_ROWS];
    char *line = NULL;
    size_t size = 0;
    const int64_t count = counts(g, n);
    const vla_record *vla = find(g, "recall", "vla", (double)NAN), *decay = find(g, "recall", "decay", (double)NAN);
    FILE *to = open_memstream(&line, &size);
    if (!to) return NULL;
    fprintf(to,
            "vla-capacity recall --keys %s --d %" PRId64 " --codebook %" PRId64 " --trials %" PRId64 " --seed %" PRId64,
            g->keys, g->d, g->codebook, g->trials, g->seed);
    for (int64_t i = 0; i < count; i++) fprintf(to, "%s%.0f", i ? "," : " --n ", n[i]);
    put_real(to, vla, "lambda0", "lambda0", 0.1);
    put_real(to, vla, "u_scale", "u-scale", 1);
    put_real(to, decay, "decay_gate", "decay", 0.88);
    if (vla && strcmp(vla_record_text(vla, "u", ""), "random") == 0) fputs(" --u random", to);
    if (strcmp(g->keys, "input") == 0) fputs(" --input DIR", to); /* records do not say where they lay */
    if (fclose(to) == 0) return line;
    free(line);
    return NULL;
}

static vla_status add(const group *g, const finding *f, const vla_row_sink *sink, vla_error *error)
{
    char source[96], *replay = replay_of(g);
    snprintf(source, sizeof source, "recall %s d=%" PRId64 " V=%" PRId64 "%s%s", g->keys, g->d, g->codebook,
             f->source ? ", " : "", f->source ? f->source : "");
    vla_record *row = vla_record_create("verdict");
    const bool ok = row && replay && vla_record_string(row, "claim", f->claim) &&
                    vla_record_string(row, "source", source) && vla_record_real(row, "value", f->value) &&
                    vla_record_real(row, "lo", f->lo) && vla_record_real(row, "hi", f->hi) &&
                    vla_record_string(row, "verdict", f->verdict) &&
                    vla_record_string(row, "condition", f->condition) && vla_record_string(row, "replay", replay);
    free(replay);
    if (ok) return sink->add(sink->context, row, error);
    vla_record_destroy(row);
    return vla_fail(error, VLA_ERR_MEMORY, "verdict: out of memory for a record");
}

static vla_status exact_below_width(const group *g, const double *n, int64_t count, const vla_row_sink *sink,
                                    vla_error *error)
{
    double exact_to = 0, largest = 0, worst = 1;
    bool still = true;
    for (int64_t i = 0; i < count && n[i] < (double)g->d; i++) {
        const double accuracy = number(find(g, "recall", "vla", n[i]), "accuracy");
        largest = n[i];
        worst = fmin(worst, accuracy);
        still = still && accuracy >= 0.999;
        if (still) exact_to = n[i];
    }
    if (largest == 0) return VLA_OK;
    const vla_record *capacity = find(g, "capacity", "vla", (double)NAN);
    const double d = (double)g->d;
    finding f = {.claim = "C10",
                 .value = number(capacity, "n95") / d,
                 .lo = number(capacity, "n95_lo") / d,
                 .hi = number(capacity, "n95_hi") / d};
    f.verdict = exact_to >= largest ? "holds" : exact_to >= d / 4 ? "holds if" : "refuted";
    if (exact_to >= largest)
        snprintf(f.condition, sizeof f.condition, "accuracy at least 0.999 at every measured n < d; value is n95/d");
    else
        snprintf(f.condition, sizeof f.condition, "exact to n = %.0f of d = %.0f, worst below d %.3f; value is n95/d",
                 exact_to, d, worst);
    return add(g, &f, sink, error);
}

/* The measured n above d nearest to 2d, or NaN. */
static double overload(const group *g, const double *n, int64_t count)
{
    double best = (double)NAN;
    const double d = (double)g->d;
    for (int64_t i = 0; i < count; i++)
        if (n[i] > d && !(fabs(n[i] - 2 * d) >= fabs(best - 2 * d))) best = n[i];
    return best;
}

static vla_status gentler_than_linear(const group *g, double n, const vla_row_sink *sink, vla_error *error)
{
    const vla_record *vla = find(g, "recall", "vla", n), *linear = find(g, "recall", "linear", n);
    if (!linear) return VLA_OK;
    const double gap = number(vla, "accuracy") - number(linear, "accuracy");
    finding f = {.claim = "C14a",
                 .value = gap,
                 .lo = number(vla, "accuracy_lo") - number(linear, "accuracy_hi"),
                 .hi = number(vla, "accuracy_hi") - number(linear, "accuracy_lo")};
    f.verdict = f.lo > 0 ? "holds" : f.hi < 0 ? "refuted" : "undecided";
    snprintf(f.condition, sizeof f.condition, "n = %.0f: vla %.3f, linear %.3f; value is the difference", n,
             number(vla, "accuracy"), number(linear, "accuracy"));
    return add(g, &f, sink, error);
}

/* Of all trials, `each` questions a trial. */
static int64_t answers(const group *g, double each)
{
    return (int64_t)fmin((double)g->trials * floor(each), 0x1p53);
}

static vla_status old_ones_kept(const group *g, double n, const vla_row_sink *sink, vla_error *error)
{
    const vla_record *vla = find(g, "recall", "vla", n);
    const double chance = 1 / (double)g->codebook;
    const vla_share oldest = vla_share_of((const double[]){number(vla, "age_q1")}, 1, answers(g, n / 4));
    finding f = {.claim = "C14b", .value = oldest.value, .lo = oldest.lo, .hi = oldest.hi};
    f.verdict = oldest.lo > chance ? "holds" : oldest.hi < 2 * chance ? "refuted" : "undecided";
    snprintf(f.condition, sizeof f.condition, "oldest quarter at n = %.0f; chance is %.4f, all ages %.3f", n, chance,
             number(vla, "accuracy"));
    return add(g, &f, sink, error);
}

static vla_status recent_ones_kept(const group *g, double n, const vla_row_sink *sink, vla_error *error)
{
    if (n != 2 * (double)g->d) return VLA_OK; /* the newest d are the newer two quarters only there */
    const vla_record *vla = find(g, "recall", "vla", n);
    const double newest = (number(vla, "age_q3") + number(vla, "age_q4")) / 2;
    const vla_share share = vla_share_of(&newest, 1, answers(g, (double)g->d));
    finding f = {.claim = "C14c", .value = share.value, .lo = share.lo, .hi = share.hi};
    f.verdict = share.value >= 0.95 ? "holds" : "refuted";
    snprintf(f.condition, sizeof f.condition, "accuracy of the d most recent of n = 2d pairs; older half %.3f",
             (number(vla, "age_q1") + number(vla, "age_q2")) / 2);
    return add(g, &f, sink, error);
}

static vla_status kin_of_rls(const group *g, const vla_row_sink *sink, vla_error *error)
{
    const vla_record *vla = find(g, "recall", "vla", (double)g->d);
    const double mine = number(find(g, "capacity", "vla", (double)NAN), "n95");
    const double theirs = number(find(g, "capacity", "rls", (double)NAN), "n95");
    if (!vla) return VLA_OK;
    const double distance = number(vla, "rls_distance");
    finding f = {.claim = "C17", .source = "distance to rls", .value = distance, .lo = (double)NAN, .hi = (double)NAN};
    f.verdict = distance <= 0.1 + 1e-9 ? "holds" : "refuted";
    snprintf(f.condition, sizeof f.condition,
             "|S - S_rls|/|S_rls| at n = d; same keys, lambda0 and state size; n95: rls %.0f, vla %.0f", theirs, mine);
    return add(g, &f, sink, error);
}

static void ranks(const double *x, int64_t n, double *rank)
{
    for (int64_t i = 0; i < n; i++) {
        rank[i] = 0;
        for (int64_t j = 0; j < n; j++) rank[i] += x[j] < x[i] ? 1 : x[j] == x[i] ? 0.5 : 0;
    }
}

double vla_rank_correlation(const double *x, const double *y, int64_t n)
{
    double rx[MOST_ROWS], ry[MOST_ROWS], xy = 0, xx = 0, yy = 0;
    if (n < 2 || n > MOST_ROWS) return (double)NAN;
    ranks(x, n, rx);
    ranks(y, n, ry);
    for (int64_t i = 0; i < n; i++) { /* the mean of the ranks is n/2 */
        const double a = rx[i] - (double)n / 2, b = ry[i] - (double)n / 2;
        xy += a * b, xx += a * a, yy += b * b;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : (double)NAN;
}

typedef struct spread {
    double sum, lo, hi;
    int64_t count;
} spread;

static void widen(spread *s, const double *norm, const double *wrong, int64_t found)
{
    const double r = found >= 4 ? vla_rank_correlation(norm, wrong, found) : (double)NAN;
    if (isnan(r)) return;
    s->lo = s->count ? fmin(s->lo, r) : r;
    s->hi = s->count ? fmax(s->hi, r) : r;
    s->sum += r;
    s->count++;
}

static vla_status add_growth(const group *g, const char *source, const char *of, const spread *r,
                             const vla_row_sink *sink, vla_error *error)
{
    if (r->count == 0) return VLA_OK;
    finding f = {.claim = "C21", .source = source, .value = r->sum / (double)r->count, .lo = r->lo, .hi = r->hi};
    f.verdict = f.value >= 0.5 ? "holds" : f.value <= 0 ? "refuted" : "undecided";
    snprintf(f.condition, sizeof f.condition,
             "rank correlation of |S| and error, mean over %" PRId64 " %s; lo, hi: its range", r->count, of);
    return add(g, &f, sink, error);
}

static int64_t norms_at(const group *g, const char *const *ops, const double *n, int64_t count, double *norm,
                        double *wrong)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        const vla_record *row = find(g, "recall", ops[i], n[i]);
        if (row) norm[found] = number(row, "norm"), wrong[found++] = 1 - number(row, "accuracy");
    }
    return found;
}

static vla_status growth_and_interference(const group *g, const double *n, int64_t count, const vla_row_sink *sink,
                                          vla_error *error)
{
    double norm[MOST_ROWS], wrong[MOST_ROWS];
    spread across = {0}, within = {0};
    for (int64_t i = 0; i < count; i++) {
        const double same[MEMORIES] = {n[i], n[i], n[i], n[i], n[i]};
        if (n[i] >= (double)g->d) widen(&across, norm, wrong, norms_at(g, memories, same, MEMORIES, norm, wrong));
    }
    for (int m = 0; m < MEMORIES; m++) {
        const char *ops[MOST_ROWS];
        for (int64_t i = 0; i < count; i++) ops[i] = memories[m];
        widen(&within, norm, wrong, norms_at(g, ops, n, count, norm, wrong));
    }
    const vla_status status = add_growth(g, "between memories", "n >= d", &across, sink, error);
    return status ? status : add_growth(g, "within a memory over n", "memories", &within, sink, error);
}

static vla_status judge(const group *g, const vla_row_sink *sink, vla_error *error)
{
    double n[MOST_ROWS];
    const int64_t count = counts(g, n);
    vla_status status = exact_below_width(g, n, count, sink, error);
    const double beyond = overload(g, n, count);
    if (!status && !isnan(beyond)) status = gentler_than_linear(g, beyond, sink, error);
    if (!status && !isnan(beyond)) status = old_ones_kept(g, beyond, sink, error);
    if (!status && !isnan(beyond)) status = recent_ones_kept(g, beyond, sink, error);
    if (!status) status = kin_of_rls(g, sink, error);
    return status ? status : growth_and_interference(g, n, count, sink, error);
}

static group group_of(const vla_records *records, const vla_record *row)
{
    return (group){records,
                   vla_record_text(row, "keys", "?"),
                   vla_record_count(row, "d", 0),
                   vla_record_count(row, "codebook", 0),
                   vla_record_count(row, "trials", 0),
                   vla_record_count(row, "seed", 0)};
}

vla_status vla_recall_verdicts(const vla_records *records, const vla_row_sink *sink, vla_error *error)
{
    const int64_t end = records->count; /* the sink may append to the same list */
    for (int64_t i = 0; i < end; i++) {
        const group g = group_of(records, records->rows[i]);
        bool first = in_group(records->rows[i], &g, "recall");
        for (int64_t j = 0; first && j < i; j++) {
            const group before = group_of(records, records->rows[j]);
            first = !(in_group(records->rows[j], &before, "recall") && in_group(records->rows[j], &g, "recall"));
        }
        if (!first) continue;
        const vla_status status = judge(&g, sink, error);
        if (status) return status;
    }
    return VLA_OK;
}
