#include "lib/measure/case.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/measure/parameters.h"
#include "lib/op/registry.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXAMPLE "vla/chunk/cpu/f32/B1_H4_T2048_K64_V64"

const char *vla_mode_name(vla_mode mode)
{
    return mode == VLA_DECODE ? "decode" : "prefill";
}

int64_t vla_case_x(const vla_case *c)
{
    return c->mode == VLA_DECODE ? c->depth : c->problem.T;
}

const char *vla_case_label(const vla_case *c, char *buffer, size_t size)
{
    const vla_problem *p = &c->problem;
    char depth[32] = "", chunk[32] = "", segments[32] = "", threads[32] = "";
    if (c->mode == VLA_DECODE) snprintf(depth, sizeof depth, "_L%lld", (long long)c->depth);
    if (p->chunk) snprintf(chunk, sizeof chunk, "_C%lld", (long long)p->chunk);
    if (p->segments) snprintf(segments, sizeof segments, "_G%lld", (long long)p->segments);
    if (c->threads && c->threads != vla_cpu_count()) snprintf(threads, sizeof threads, "_N%d", c->threads);
    snprintf(buffer, size, "%s/%s/%s/%s/B%lld_H%lld_T%lld%s_K%lld_V%lld%s%s%s", vla_op_name(p->op),
             vla_form_name(c->form), vla_backend_name(c->backend), vla_dtype_name(c->dtype), (long long)p->B,
             (long long)p->H, (long long)p->T, depth, (long long)p->dk, (long long)p->dv, chunk, segments, threads);
    return buffer;
}

/* One "/"-separated name of the label into word; NULL when it is missing or too long. */
static const char *take_name(const char **at, char *word, size_t size)
{
    const char *end = strchr(*at, '/');
    const size_t length = end ? (size_t)(end - *at) : 0;
    if (!length || length >= size) return NULL;
    memcpy(word, *at, length);
    word[length] = 0;
    *at = end + 1;
    return word;
}

static vla_status parse_names(vla_case *c, const char **at, const char *label, vla_error *error)
{
    char word[32];
    const char *name;
    if (!(name = take_name(at, word, sizeof word)) || !vla_op_parse(name, &c->problem.op))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: unknown operator; accepted is a label like " EXAMPLE,
                        label);
    if (!(name = take_name(at, word, sizeof word)) || !vla_form_parse(name, &c->form))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: unknown form; accepted is a label like " EXAMPLE, label);
    if (!(name = take_name(at, word, sizeof word)) || !vla_backend_parse(name, &c->backend))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: unknown backend; accepted is a label like " EXAMPLE,
                        label);
    if (!(name = take_name(at, word, sizeof word)) || !vla_dtype_parse(name, &c->dtype))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: unknown dtype; accepted is a label like " EXAMPLE, label);
    return VLA_OK;
}

/* One "X123" of the shape part: its letter and value. */
static bool take_size(const char **at, char *letter, int64_t *value)
{
    char *end;
    *letter = **at;
    if (!*letter || (*at)[1] < '0' || (*at)[1] > '9') return false;
    errno = 0;
    const long long v = strtoll(*at + 1, &end, 10);
    if (errno || (*end && *end != '_') || (*end == '_' && !end[1])) return false;
    *value = v;
    *at = *end ? end + 1 : end;
    return true;
}

static vla_status parse_sizes(vla_case *c, const char *at, const char *label, vla_error *error)
{
    static const char letters[] = "BHTKVLCGN";
    int64_t sizes[sizeof letters] = {1, 1, -1, -1, -1, 0, c->problem.chunk, c->problem.segments, c->threads};
    bool seen[sizeof letters] = {false};
    while (*at) {
        char letter;
        int64_t value;
        const char *where = at;
        const bool read = take_size(&at, &letter, &value);
        const char *slot = read ? strchr(letters, letter) : NULL;
        if (!slot || seen[slot - letters])
            return vla_fail(error, VLA_ERR_ARGUMENT,
                            "--case %s: bad size at '%s'; accepted are B H T L K V C G N, each "
                            "once with a number, as in " EXAMPLE,
                            label, where);
        seen[slot - letters] = true;
        sizes[slot - letters] = value;
    }
    for (int i = 0; i < 5; i++)
        if (!seen[i])
            return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: %c is missing; accepted is a label like " EXAMPLE,
                            label, letters[i]);
    vla_problem *p = &c->problem;
    p->B = sizes[0], p->H = sizes[1], p->T = sizes[2], p->dk = sizes[3], p->dv = sizes[4];
    p->chunk = sizes[6], p->segments = sizes[7];
    if (sizes[8] < 0 || sizes[8] > 4096)
        return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: N %lld threads; accepted are 1 to 4096", label,
                        (long long)sizes[8]);
    c->threads = (int)sizes[8];
    c->mode = seen[5] ? VLA_DECODE : VLA_PREFILL;
    c->depth = sizes[5];
    if (seen[5] && (p->T != 1 || c->depth < 1))
        return vla_fail(error, VLA_ERR_ARGUMENT, "--case %s: L is a context length of at least 1 and needs T1", label);
    p->Tk = seen[5] && p->op == VLA_SOFTMAX ? c->depth : 0;
    return vla_problem_check(p, error);
}

vla_status vla_case_parse(vla_case *c, const char *label, vla_error *error)
{
    const char *at = label;
    vla_status status = parse_names(c, &at, label, error);
    return status ? status : parse_sizes(c, at, label, error);
}

/* What must agree for two rows to be the same measurement. */
static const char *const key_fields[] = {
    "kind",   "op",       "form",    "backend", "dtype",        "mode",     "pass",           "B",           "H",
    "T",      "depth",    "dk",      "dv",      "chunk",        "segments", "threads",        "isa",         "cache",
    "launch", "features", "qk_norm", "output",  "no_normalise", "lambda0",  "refresh_period", "refresh_eps", "gate",
    "input",  "seed",     NULL};

bool vla_case_record(const vla_case *c, int64_t seed, const char *input, vla_record *r)
{
    static const char *const arithmetic[VLA_DTYPES] = {"f64", "f32", "bf16", "f16", "tf32"};
    /* the device's float32 chunk and scan split every operand in two tf32 numbers */
    const bool split = c->backend == VLA_CUDA && c->dtype == VLA_F32 && c->problem.op != VLA_SOFTMAX &&
                       (c->form == VLA_CHUNK || c->form == VLA_SCAN);
    char label[VLA_LABEL_SIZE];
    const vla_problem *p = &c->problem;
    return vla_record_string(r, "case", vla_case_label(c, label, sizeof label)) && vla_record_null(r, "key") &&
           vla_record_string(r, "op", vla_op_name(p->op)) && vla_record_string(r, "form", vla_form_name(c->form)) &&
           vla_record_string(r, "backend", vla_backend_name(c->backend)) &&
           vla_record_string(r, "dtype", vla_dtype_name(c->dtype)) &&
           vla_record_string(r, "arith", split ? "tf32x3" : arithmetic[c->dtype]) &&
           vla_record_string(r, "mode", vla_mode_name(c->mode)) &&
           vla_record_string(r, "pass", c->backward ? "fwdbwd" : "fwd") && vla_record_int(r, "B", p->B) &&
           vla_record_int(r, "H", p->H) && vla_record_int(r, "T", p->T) &&
           (c->depth ? vla_record_int(r, "depth", c->depth) : vla_record_null(r, "depth")) &&
           vla_record_int(r, "dk", p->dk) && vla_record_int(r, "dv", p->dv) && vla_cut_record(p, r) &&
           vla_record_string(r, "isa", c->isa == VLA_ISA_AUTO ? NULL : vla_isa_name(c->isa)) &&
           vla_record_int(r, "threads", c->threads) && vla_record_string(r, "cache", c->cold ? "cold" : "hot") &&
           vla_record_string(r, "launch",
                             c->backend == VLA_CPU ? "call"
                             : c->graph            ? "graph"
                                                   : "stream") &&
           vla_parameters_record(p, r) && vla_record_string(r, "input", input) &&
           (input ? vla_record_null(r, "seed") : vla_record_int(r, "seed", seed)) && vla_record_key(r, key_fields);
}

bool vla_case_among(const vla_case *c, int64_t seed, const char *input, const vla_records *rows)
{
    vla_record *probe = vla_record_create("sample");
    bool found = false;
    if (probe && vla_case_record(c, seed, input, probe)) {
        const char *key = vla_record_text(probe, "key", "");
        for (int64_t i = 0; !found && i < rows->count; i++) {
            const char *status = vla_record_text(rows->rows[i], "status", "");
            found = !strcmp(vla_record_text(rows->rows[i], "key", "-"), key) &&
                    !strcmp(vla_record_text(rows->rows[i], "kind", ""), "sample") && strcmp(status, "timeout") &&
                    strcmp(status, "fail");
        }
    }
    vla_record_destroy(probe);
    return found;
}

vla_status vla_cases_push(vla_cases *cases, const vla_case *c, vla_error *error)
{
    if (cases->count == cases->capacity) {
        const int64_t capacity = cases->capacity ? 2 * cases->capacity : 64;
        vla_case *items = realloc(cases->items, (size_t)capacity * sizeof *items);
        if (!items) return vla_fail(error, VLA_ERR_MEMORY, "list of cases: out of memory");
        cases->items = items;
        cases->capacity = capacity;
    }
    cases->items[cases->count++] = *c;
    return VLA_OK;
}

typedef struct keyed {
    char key[24];
    int64_t at;
} keyed;

static int by_key(const void *left, const void *right)
{
    const keyed *a = left, *b = right;
    const int order = strcmp(a->key, b->key);
    return order ? order : (a->at > b->at) - (a->at < b->at);
}

static vla_status key_cases(const vla_cases *cases, keyed *keys, vla_error *error)
{
    for (int64_t i = 0; i < cases->count; i++) {
        vla_record *probe = vla_record_create("sample");
        const bool made = probe && vla_case_record(&cases->items[i], 0, NULL, probe);
        if (made) snprintf(keys[i].key, sizeof keys[i].key, "%s", vla_record_text(probe, "key", ""));
        keys[i].at = i;
        vla_record_destroy(probe);
        if (!made) return vla_fail(error, VLA_ERR_MEMORY, "list of cases: out of memory");
    }
    return VLA_OK;
}

vla_status vla_cases_unique(vla_cases *cases, vla_error *error)
{
    keyed *keys = calloc((size_t)cases->count + 1, sizeof *keys);
    bool *again = calloc((size_t)cases->count + 1, sizeof *again);
    vla_status status =
        keys && again ? key_cases(cases, keys, error) : vla_fail(error, VLA_ERR_MEMORY, "list of cases: out of memory");
    if (status == VLA_OK) {
        int64_t kept = 0;
        qsort(keys, (size_t)cases->count, sizeof *keys, by_key);
        for (int64_t i = 1; i < cases->count; i++) again[keys[i].at] = strcmp(keys[i].key, keys[i - 1].key) == 0;
        for (int64_t i = 0; i < cases->count; i++)
            if (!again[i]) cases->items[kept++] = cases->items[i];
        cases->count = kept;
    }
    free(keys);
    free(again);
    return status;
}

void vla_cases_free(vla_cases *cases)
{
    free(cases->items);
    *cases = (vla_cases){0};
}
