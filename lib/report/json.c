/* JSON and JSON lines. A .json file is {"meta":{..},"rows":[..],"crossover":[..],..}: rows holds every record in order
 * of measurement, and each kind of summary has an array of its own besides. It is complete after every row: a row is
 * written over the closing brackets together with new ones, in one call. */
#include "lib/base/number.h"
#include "lib/base/status.h"
#include "lib/report/sink.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Kinds that conclude from other rows. */
static const char *const summary_kinds[] = {"crossover", "fit", "compare", "verdict", "memory", "peak"};
enum { summary_count = sizeof summary_kinds / sizeof *summary_kinds };

typedef struct json_state {
    off_t tail;         /* where the closing brackets begin */
    int64_t rows;       /* in the file */
    vla_records before; /* rows and metadata kept from an earlier run */
} json_state;

/* JSON is UTF-8; a path may not be. */
static void write_string(FILE *stream, const char *text)
{
    json_t *string = json_string(text);
    char *ascii = NULL;
    if (!string && (ascii = strdup(text))) {
        for (char *c = ascii; *c; c++)
            if ((unsigned char)*c >= 0x80) *c = '?';
        string = json_string(ascii);
    }
    char *encoded = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    fputs(encoded ? encoded : "null", stream);
    free(encoded);
    free(ascii);
    json_decref(string);
}

static void write_real(FILE *stream, double value)
{
    char text[VLA_NUMBER_SIZE];
    vla_number_text(value, text);
    fputs(*text ? text : "null", stream);
}

static void write_value(FILE *stream, const vla_value *value)
{
    switch (value->type) {
    case VLA_VALUE_NULL:
        fputs("null", stream);
        break;
    case VLA_VALUE_STRING:
        write_string(stream, value->string);
        break;
    case VLA_VALUE_INT:
        fprintf(stream, "%" PRId64, value->integer);
        break;
    case VLA_VALUE_REAL:
        write_real(stream, value->real);
        break;
    case VLA_VALUE_BOOL:
        fputs(value->boolean ? "true" : "false", stream);
        break;
    case VLA_VALUE_REALS:
        fputc('[', stream);
        for (int64_t i = 0; i < value->reals.count; i++) {
            if (i) fputc(',', stream);
            write_real(stream, value->reals.data[i]);
        }
        fputc(']', stream);
        break;
    }
}

void vla_json_record(FILE *stream, const vla_record *record)
{
    fputc('{', stream);
    for (int i = 0; i < vla_record_fields(record); i++) {
        if (i) fputc(',', stream);
        write_string(stream, vla_record_name(record, i));
        fputc(':', stream);
        write_value(stream, vla_record_value(record, i));
    }
    fputc('}', stream);
}

static bool is_kind(const vla_record *row, const char *kind)
{
    return strcmp(vla_record_text(row, "kind", ""), kind) == 0;
}

/* Writes the records of one kind, or of every kind but "meta" for NULL; returns how many. */
static int64_t write_rows(FILE *stream, const vla_records *rows, const char *kind, int64_t already)
{
    int64_t written = already;
    for (int64_t i = 0; i < rows->count; i++) {
        if (kind ? !is_kind(rows->rows[i], kind) : is_kind(rows->rows[i], "meta")) continue;
        fputs(written++ ? ",\n" : "\n", stream);
        vla_json_record(stream, rows->rows[i]);
    }
    return written;
}

static void write_head(FILE *stream, const vla_record *meta, const vla_records *before)
{
    fputs("{\"meta\":", stream);
    if (meta)
        vla_json_record(stream, meta);
    else
        fputs("null", stream);
    bool earlier = false;
    for (int64_t i = 0; i < before->count; i++) earlier = earlier || is_kind(before->rows[i], "meta");
    if (earlier) {
        fputs(",\n\"earlier_meta\":[", stream);
        write_rows(stream, before, "meta", 0);
        fputs("\n]", stream);
    }
    fputs(",\n\"rows\":[", stream);
}

static void write_tail(FILE *stream, const vla_records *before, const vla_records *rows)
{
    fputs("\n]", stream);
    for (int i = 0; i < summary_count; i++) {
        bool any = false;
        for (int64_t r = 0; r < before->count; r++) any = any || is_kind(before->rows[r], summary_kinds[i]);
        for (int64_t r = 0; r < rows->count; r++) any = any || is_kind(rows->rows[r], summary_kinds[i]);
        if (!any) continue;
        fprintf(stream, ",\n\"%s\":[", summary_kinds[i]);
        write_rows(stream, rows, summary_kinds[i], write_rows(stream, before, summary_kinds[i], 0));
        fputs("\n]", stream);
    }
    fputs("}\n", stream);
}

typedef struct text {
    FILE *stream;
    char *bytes;
    size_t count;
} text;

static vla_status text_open(text *t, vla_error *error)
{
    *t = (text){0};
    t->stream = open_memstream(&t->bytes, &t->count);
    return t->stream ? VLA_OK : vla_fail(error, VLA_ERR_MEMORY, "report: out of memory");
}

static vla_status text_write(text *t, vla_sink *sink, vla_status (*put)(vla_sink *, const char *, size_t, vla_error *),
                             vla_error *error)
{
    vla_status status = fclose(t->stream) == 0 ? put(sink, t->bytes, t->count, error)
                                               : vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    free(t->bytes);
    return status;
}

static json_state *state_of(vla_sink *sink, vla_error *error)
{
    if (!sink->state) sink->state = calloc(1, sizeof(json_state));
    if (!sink->state) vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    return sink->state;
}

/* The whole file at its first row: also drops or keeps what an earlier run left. */
static vla_status start(vla_sink *sink, json_state *state, const vla_records *rows, vla_error *error)
{
    text t;
    vla_status status = VLA_OK;
    if (sink->append && sink->seekable && !sink->created) status = vla_records_read(&state->before, sink->path, error);
    if (status == VLA_OK) status = text_open(&t, error);
    if (status != VLA_OK) return status;
    write_head(t.stream, sink->meta, &state->before);
    state->rows = write_rows(t.stream, &state->before, NULL, 0);
    state->rows = write_rows(t.stream, rows, NULL, state->rows);
    fflush(t.stream);
    state->tail = (off_t)t.count;
    if (sink->seekable) write_tail(t.stream, &state->before, rows);
    return text_write(&t, sink, sink->seekable ? vla_sink_replace : vla_sink_write, error);
}

/* Puts the brackets back after a write over them failed: their bytes are on disk already. */
static vla_status restore(vla_sink *sink, const json_state *state, const vla_record *row, int code, vla_error *error)
{
    vla_records rows = *sink->rows;
    if (rows.count > 0 && rows.rows[rows.count - 1] == row) rows.count--;
    text t;
    if (text_open(&t, error) == VLA_OK) {
        write_tail(t.stream, &state->before, &rows);
        if (fclose(t.stream) == 0 && pwrite(sink->fd, t.bytes, t.count, state->tail) == (ssize_t)t.count &&
            ftruncate(sink->fd, state->tail + (off_t)t.count) == 0)
            sink->started = true;
        free(t.bytes);
    }
    return vla_sink_failure(sink, code, error);
}

static vla_status overwrite_tail(vla_sink *sink, json_state *state, const vla_record *row, vla_error *error)
{
    text t;
    vla_status status = text_open(&t, error);
    if (status != VLA_OK) return status;
    fputs(state->rows ? ",\n" : "\n", t.stream);
    vla_json_record(t.stream, row);
    fflush(t.stream);
    size_t row_bytes = t.count;
    write_tail(t.stream, &state->before, sink->rows);
    if (fclose(t.stream) != 0) {
        free(t.bytes);
        return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    }
    errno = 0;
    ssize_t n = pwrite(sink->fd, t.bytes, t.count, state->tail);
    bool whole = n == (ssize_t)t.count;
    free(t.bytes);
    if (!whole) return restore(sink, state, row, errno ? errno : ENOSPC, error);
    state->tail += (off_t)row_bytes;
    state->rows++;
    return VLA_OK;
}

static vla_status json_add(vla_sink *sink, const vla_record *row, vla_error *error)
{
    json_state *state = state_of(sink, error);
    if (!state) return VLA_ERR_MEMORY;
    if (!sink->started) return start(sink, state, sink->rows, error);
    if (sink->seekable) return overwrite_tail(sink, state, row, error);
    text t;
    vla_status status = text_open(&t, error);
    if (status != VLA_OK) return status;
    fputs(state->rows++ ? ",\n" : "\n", t.stream);
    vla_json_record(t.stream, row);
    return text_write(&t, sink, vla_sink_write, error);
}

static vla_status json_finish(vla_sink *sink, vla_error *error)
{
    if (sink->seekable) return VLA_OK; /* complete after every row */
    json_state *state = state_of(sink, error);
    if (!state) return VLA_ERR_MEMORY;
    text t;
    vla_status status = sink->started ? VLA_OK : start(sink, state, sink->rows, error);
    if (status == VLA_OK) status = text_open(&t, error);
    if (status != VLA_OK) return status;
    write_tail(t.stream, &state->before, sink->rows);
    return text_write(&t, sink, vla_sink_write, error);
}

static void json_release(vla_sink *sink)
{
    json_state *state = sink->state;
    if (!state) return;
    vla_records_clear(&state->before);
    free(state);
}

const vla_sink_type vla_sink_json = {json_add, json_finish, json_release};

/* A run that was killed in the middle of a line leaves the line without its end: it goes. */
static vla_status cut_partial_line(vla_sink *sink, vla_error *error)
{
    FILE *file = fopen(sink->path, "r");
    if (!file) return vla_sink_failure(sink, errno, error);
    long end = 0, at = 0;
    for (int c; (c = getc(file)) != EOF;) {
        at++;
        if (c == '\n') end = at;
    }
    fclose(file);
    return end == at || ftruncate(sink->fd, end) == 0 ? VLA_OK : vla_sink_failure(sink, errno, error);
}

static vla_status jsonl_start(vla_sink *sink, FILE *stream, vla_error *error)
{
    if (sink->seekable && sink->append) {
        vla_status status = cut_partial_line(sink, error);
        if (status != VLA_OK) return status;
    } else if (sink->seekable && ftruncate(sink->fd, 0) != 0) {
        return vla_sink_failure(sink, errno, error);
    }
    if (sink->meta) {
        vla_json_record(stream, sink->meta);
        fputc('\n', stream);
    }
    return VLA_OK;
}

static vla_status jsonl_add(vla_sink *sink, const vla_record *row, vla_error *error)
{
    text t;
    vla_status status = text_open(&t, error);
    if (status != VLA_OK) return status;
    if (!sink->started) status = jsonl_start(sink, t.stream, error);
    if (status != VLA_OK) {
        fclose(t.stream);
        free(t.bytes);
        return status;
    }
    vla_json_record(t.stream, row);
    fputc('\n', t.stream);
    return text_write(&t, sink, vla_sink_write, error);
}

static vla_status jsonl_finish(vla_sink *sink, vla_error *error)
{
    (void)sink;
    (void)error;
    return VLA_OK;
}

const vla_sink_type vla_sink_jsonl = {jsonl_add, jsonl_finish, NULL};
