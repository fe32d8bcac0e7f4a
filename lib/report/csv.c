/* CSV, one kind of record a file: the first kind goes to PATH, each further kind to STEM.KIND.csv. On standard output
 * the kinds follow one another as blocks with a header each, separated by an empty line.
 *
 * Columns are the union of the fields of all rows of the kind, in order of first appearance, then the run's metadata,
 * so that every row says where it comes from. A later row with a new field makes the file be rewritten with one more
 * column (on standard output: a new block begins). Raw samples have no place in a table and are in the JSON only.
 * Text that would read back as something else ("12", "true", "") is quoted; missing is empty. */
#include "lib/base/number.h"
#include "lib/base/status.h"
#include "lib/report/sink.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct csv_kind {
    char *kind;
    vla_sink file;      /* of this kind; unused on standard output */
    vla_records before; /* kept from an earlier run */
    char **columns;
    int count;
    int own; /* columns of rows; the others are metadata */
} csv_kind;

typedef struct csv_state {
    csv_kind *kinds;
    int count;
} csv_state;

static bool looks_typed(const char *text)
{
    double real;
    const char *end;
    int64_t integer;
    if (*text == '\0' || strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return true;
    if (vla_integer_parse(text, &end, &integer) != VLA_NUMBER_RUBBISH && *end == '\0') return true;
    return vla_number_parse(text, &real) != VLA_NUMBER_RUBBISH;
}

static void write_text(FILE *stream, const char *text)
{
    bool quote = looks_typed(text) || strpbrk(text, ",\"\r\n") || text[0] == ' ' || text[strlen(text) - 1] == ' ';
    if (!quote) {
        fputs(text, stream);
        return;
    }
    fputc('"', stream);
    for (; *text; text++) {
        if (*text == '"') fputc('"', stream);
        fputc(*text, stream);
    }
    fputc('"', stream);
}

static void write_cell(FILE *stream, const vla_value *value)
{
    char text[VLA_NUMBER_SIZE];
    if (!value) return;
    switch (value->type) {
    case VLA_VALUE_STRING:
        write_text(stream, value->string);
        break;
    case VLA_VALUE_INT:
        fprintf(stream, "%" PRId64, value->integer);
        break;
    case VLA_VALUE_REAL:
        fputs(vla_number_text(value->real, text), stream);
        break;
    case VLA_VALUE_BOOL:
        fputs(value->boolean ? "true" : "false", stream);
        break;
    case VLA_VALUE_NULL:
    case VLA_VALUE_REALS:
        break;
    }
}

static bool in_table(const vla_record *row, int field)
{
    return vla_record_value(row, field)->type != VLA_VALUE_REALS;
}

static int find_column(const csv_kind *k, const char *name)
{
    for (int i = 0; i < k->count; i++)
        if (strcmp(k->columns[i], name) == 0) return i;
    return -1;
}

static bool insert_column(csv_kind *k, int at, const char *name)
{
    char **columns = realloc(k->columns, (size_t)(k->count + 1) * sizeof *columns);
    if (!columns) return false;
    k->columns = columns;
    char *copy = strdup(name);
    if (!copy) return false;
    memmove(columns + at + 1, columns + at, (size_t)(k->count - at) * sizeof *columns);
    columns[at] = copy;
    k->count++;
    return true;
}

/* Adds the row's fields that have no column yet. *grew tells whether there were any. */
static bool add_columns(csv_kind *k, const vla_record *row, bool *grew)
{
    for (int i = 0; i < vla_record_fields(row); i++) {
        const char *name = vla_record_name(row, i);
        if (!in_table(row, i) || find_column(k, name) >= 0) continue;
        if (!insert_column(k, k->own, name)) return false;
        k->own++;
        *grew = true;
    }
    return true;
}

static bool add_meta_columns(csv_kind *k, const vla_record *meta)
{
    for (int i = 0; meta && i < vla_record_fields(meta); i++) {
        const char *name = vla_record_name(meta, i);
        if (strcmp(name, "kind") == 0 || find_column(k, name) >= 0) continue;
        if (!insert_column(k, k->count, name)) return false;
    }
    return true;
}

static void write_header(FILE *stream, const csv_kind *k)
{
    for (int i = 0; i < k->count; i++) {
        if (i) fputc(',', stream);
        write_text(stream, k->columns[i]);
    }
    fputc('\n', stream);
}

static void write_row(FILE *stream, const csv_kind *k, const vla_record *row, const vla_record *meta)
{
    for (int i = 0; i < k->count; i++) {
        const vla_value *value = vla_record_get(row, k->columns[i]);
        if (!value && meta && strcmp(k->columns[i], "kind") != 0) value = vla_record_get(meta, k->columns[i]);
        if (i) fputc(',', stream);
        write_cell(stream, value);
    }
    fputc('\n', stream);
}

static const char *kind_of(const vla_record *row)
{
    return vla_record_text(row, "kind", "row");
}

/* Every row of the kind under the present header. */
static void write_all(FILE *stream, const csv_kind *k, const vla_sink *sink)
{
    write_header(stream, k);
    for (int64_t i = 0; i < k->before.count; i++) write_row(stream, k, k->before.rows[i], NULL);
    for (int64_t i = 0; i < sink->rows->count; i++)
        if (strcmp(kind_of(sink->rows->rows[i]), k->kind) == 0) write_row(stream, k, sink->rows->rows[i], sink->meta);
}

char *vla_csv_kind_path(const char *path, const char *kind)
{
    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".csv") == 0) length -= 4;
    char *made;
    return asprintf(&made, "%.*s.%s.csv", (int)length, path, kind) < 0 ? NULL : made;
}

static csv_kind *find_kind(csv_state *state, const char *kind)
{
    for (int i = 0; i < state->count; i++)
        if (strcmp(state->kinds[i].kind, kind) == 0) return &state->kinds[i];
    return NULL;
}

static csv_kind *new_kind(csv_state *state, const char *kind)
{
    csv_kind *kinds = realloc(state->kinds, (size_t)(state->count + 1) * sizeof *kinds);
    if (!kinds) return NULL;
    state->kinds = kinds;
    csv_kind *k = &kinds[state->count];
    *k = (csv_kind){.kind = strdup(kind), .file = {.fd = -1}};
    if (!k->kind) return NULL;
    state->count++;
    return k;
}

/* What an earlier run left; its header keeps its order. */
static vla_status keep_before(csv_kind *k, vla_error *error)
{
    vla_status status = vla_records_read(&k->before, k->file.path, error);
    bool grew = false;
    for (int64_t i = 0; status == VLA_OK && i < k->before.count; i++)
        if (!add_columns(k, k->before.rows[i], &grew))
            status = vla_fail(error, VLA_ERR_MEMORY, "report: out of memory");
    return status;
}

/* The first kind takes over the file opened at parse time, unless an earlier run filled that with another kind. */
static vla_status open_kind(vla_sink *sink, csv_kind *k, bool first, vla_error *error)
{
    if (!sink->seekable) return VLA_OK;
    vla_status status = VLA_OK;
    if (first) {
        k->file = *sink;
        k->file.path = strdup(sink->path);
        k->file.fd = dup(sink->fd);
        k->file.type = NULL;
        k->file.state = NULL;
        if (!k->file.path || k->file.fd < 0) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    } else {
        char *path = vla_csv_kind_path(sink->path, k->kind);
        if (!path) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
        k->file.append = sink->append;
        status = vla_sink_open(&k->file, path, error);
        free(path);
    }
    if (status == VLA_OK && k->file.append && !k->file.created) status = keep_before(k, error);
    return status;
}

/* With --resume the main file's kind is what it already holds, whatever kind of row comes first now. */
static vla_status adopt_main_kind(vla_sink *sink, csv_state *state, vla_error *error)
{
    if (state->count || !sink->append || !sink->seekable || sink->created) return VLA_OK;
    vla_records rows = {0};
    vla_status status = vla_records_read(&rows, sink->path, error);
    if (status == VLA_OK && rows.count > 0) {
        csv_kind *k = new_kind(state, kind_of(rows.rows[0]));
        status = k ? open_kind(sink, k, true, error) : vla_fail(error, VLA_ERR_MEMORY, "report: out of memory");
    }
    vla_records_clear(&rows);
    return status;
}

typedef struct text {
    FILE *stream;
    char *bytes;
    size_t count;
} text;

static vla_status write_text_out(text *t, vla_sink *sink, bool replace, vla_error *error)
{
    vla_status status = VLA_ERR_MEMORY;
    if (fclose(t->stream) != 0)
        vla_fail(error, status, "%s: out of memory", sink->path);
    else if (replace)
        status = vla_sink_replace(sink, t->bytes, t->count, error);
    else
        status = vla_sink_write(sink, t->bytes, t->count, error);
    free(t->bytes);
    return status;
}

static vla_status add_to_file(vla_sink *sink, csv_kind *k, const vla_record *row, bool fresh, vla_error *error)
{
    text t = {0};
    t.stream = open_memstream(&t.bytes, &t.count);
    if (!t.stream) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    if (fresh)
        write_all(t.stream, k, sink);
    else
        write_row(t.stream, k, row, sink->meta);
    return write_text_out(&t, &k->file, fresh, error);
}

/* Standard output: rows of the first kind as they come, the others at the end. */
static vla_status add_to_stream(vla_sink *sink, csv_kind *k, const vla_record *row, bool fresh, vla_error *error)
{
    text t = {0};
    t.stream = open_memstream(&t.bytes, &t.count);
    if (!t.stream) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    if (fresh && sink->started) fputc('\n', t.stream);
    if (fresh) write_header(t.stream, k);
    write_row(t.stream, k, row, sink->meta);
    return write_text_out(&t, sink, false, error);
}

static vla_status csv_add(vla_sink *sink, const vla_record *row, vla_error *error)
{
    if (!sink->state) sink->state = calloc(1, sizeof(csv_state));
    csv_state *state = sink->state;
    if (!state) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    vla_status status = adopt_main_kind(sink, state, error);
    if (status != VLA_OK) return status;
    csv_kind *k = find_kind(state, kind_of(row));
    if (!k) {
        k = new_kind(state, kind_of(row));
        status = k ? open_kind(sink, k, state->count == 1, error)
                   : vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
        if (status != VLA_OK) return status;
    }
    int columns = k->count;
    bool grew = false;
    if (!add_columns(k, row, &grew) || !add_meta_columns(k, sink->meta))
        return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    bool fresh = k->count != columns || (sink->seekable && !k->file.started);
    if (sink->seekable) return add_to_file(sink, k, row, fresh, error);
    if (k != &state->kinds[0]) return VLA_OK;
    return add_to_stream(sink, k, row, fresh, error);
}

static vla_status csv_finish(vla_sink *sink, vla_error *error)
{
    csv_state *state = sink->state;
    vla_status status = VLA_OK;
    for (int i = 1; state && !sink->seekable && status == VLA_OK && i < state->count; i++) {
        text t = {0};
        t.stream = open_memstream(&t.bytes, &t.count);
        if (!t.stream) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
        fputc('\n', t.stream);
        write_all(t.stream, &state->kinds[i], sink);
        status = write_text_out(&t, sink, false, error);
    }
    return status;
}

static void csv_release(vla_sink *sink)
{
    csv_state *state = sink->state;
    if (!state) return;
    for (int i = 0; i < state->count; i++) {
        csv_kind *k = &state->kinds[i];
        for (int c = 0; c < k->count; c++) free(k->columns[c]);
        free(k->columns);
        free(k->kind);
        vla_records_clear(&k->before);
        if (k->file.path) vla_sink_close(&k->file);
    }
    free(state->kinds);
    free(state);
}

const vla_sink_type vla_sink_csv = {csv_add, csv_finish, csv_release};
