/* Records back from .json, .jsonl and .csv files. */
#include "lib/base/number.h"
#include "lib/base/status.h"
#include "lib/report/report.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
    const char *path;
    vla_records *records;
    int64_t line;
} source;

static vla_status no_memory(const source *src, vla_error *error)
{
    return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", src->path);
}

static vla_status push(const source *src, vla_record *record, vla_error *error)
{
    if (vla_records_push(src->records, record)) return VLA_OK;
    vla_record_destroy(record);
    return no_memory(src, error);
}

static vla_status set_array(const source *src, vla_record *record, const char *name, const json_t *array,
                            vla_error *error)
{
    size_t count = json_array_size(array);
    double *values = malloc((count ? count : 1) * sizeof *values);
    if (!values) return no_memory(src, error);
    bool numbers = true;
    for (size_t i = 0; i < count && numbers; i++) {
        const json_t *item = json_array_get(array, i);
        numbers = json_is_number(item);
        values[i] = json_number_value(item);
    }
    bool done = numbers && vla_record_reals(record, name, values, (int64_t)count);
    free(values);
    if (done) return VLA_OK;
    return numbers ? no_memory(src, error)
                   : vla_fail(error, VLA_ERR_FILE, "%s:%lld: field '%s' holds a list of other things than numbers",
                              src->path, (long long)src->line, name);
}

static vla_status set_json(const source *src, vla_record *record, const char *name, const json_t *value,
                           vla_error *error)
{
    bool done = false;
    switch (json_typeof(value)) {
    case JSON_STRING:
        done = vla_record_string(record, name, json_string_value(value));
        break;
    case JSON_INTEGER:
        done = vla_record_int(record, name, json_integer_value(value));
        break;
    case JSON_REAL:
        done = vla_record_real(record, name, json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        done = vla_record_bool(record, name, json_is_true(value));
        break;
    case JSON_NULL:
        done = vla_record_null(record, name);
        break;
    case JSON_ARRAY:
        return set_array(src, record, name, value, error);
    case JSON_OBJECT:
        return vla_fail(error, VLA_ERR_FILE,
                        "%s:%lld: field '%s' holds an object; accepted: text, numbers, true, false, null", src->path,
                        (long long)src->line, name);
    }
    return done ? VLA_OK : no_memory(src, error);
}

static vla_status read_object(const source *src, json_t *object, vla_error *error)
{
    if (!json_is_object(object))
        return vla_fail(error, VLA_ERR_FILE, "%s:%lld: a record must be an object {\"kind\":...}", src->path,
                        (long long)src->line);
    const char *kind = json_string_value(json_object_get(object, "kind"));
    if (!kind)
        return vla_fail(error, VLA_ERR_FILE, "%s:%lld: field 'kind' is missing or not text", src->path,
                        (long long)src->line);
    vla_record *record = vla_record_create(kind);
    if (!record) return no_memory(src, error);
    const char *name;
    json_t *value;
    vla_status status = VLA_OK;
    json_object_foreach(object, name, value)
    {
        status = set_json(src, record, name, value, error);
        if (status != VLA_OK) break;
    }
    if (status == VLA_OK) return push(src, record, error);
    vla_record_destroy(record);
    return status;
}

static vla_status read_objects(const source *src, const json_t *array, vla_error *error)
{
    vla_status status = VLA_OK;
    for (size_t i = 0; status == VLA_OK && i < json_array_size(array); i++)
        status = read_object(src, json_array_get(array, i), error);
    return status;
}

/* {"meta":..,"rows":[..]}; a bare array of records is taken as well. */
static vla_status read_json(source *src, FILE *file, vla_error *error)
{
    json_error_t parse;
    json_t *root = json_loadf(file, 0, &parse);
    if (!root) return vla_fail(error, VLA_ERR_FILE, "%s:%d: not JSON: %s", src->path, parse.line, parse.text);
    src->line = 1;
    const json_t *rows = json_is_array(root) ? root : json_object_get(root, "rows");
    json_t *meta = json_object_get(root, "meta");
    vla_status status = VLA_OK;
    if (!json_is_array(rows))
        status = vla_fail(error, VLA_ERR_FILE, "%s: field 'rows' is missing or not a list", src->path);
    if (status == VLA_OK) status = read_objects(src, json_object_get(root, "earlier_meta"), error);
    if (status == VLA_OK && json_is_object(meta)) status = read_object(src, meta, error);
    if (status == VLA_OK) status = read_objects(src, rows, error);
    json_decref(root);
    return status;
}

/* A last line without its end is what a killed run leaves: it is not a row. */
static vla_status read_jsonl(source *src, FILE *file, vla_error *error)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    int64_t before = src->records->count;
    vla_status status = VLA_OK;
    while (status == VLA_OK && (length = getline(&line, &size, file)) > 0) {
        src->line++;
        if (strspn(line, " \t\r\n") == (size_t)length) continue;
        json_error_t parse;
        json_t *object = json_loadb(line, (size_t)length, 0, &parse);
        if (object)
            status = read_object(src, object, error);
        else if (line[length - 1] == '\n')
            status =
                vla_fail(error, VLA_ERR_FILE, "%s:%lld: not JSON: %s", src->path, (long long)src->line, parse.text);
        else if (src->records->count == before)
            status = vla_fail(error, VLA_ERR_FILE, "%s: no JSON lines in this file: %s", src->path, parse.text);
        json_decref(object);
    }
    free(line);
    return status;
}

typedef struct cells {
    char **text;
    bool *quoted;
    int count, capacity;
    bool ended; /* by a line end, not by the end of the file */
    bool cut;   /* inside a quoted cell */
} cells;

static void cells_clear(cells *c)
{
    for (int i = 0; i < c->count; i++) free(c->text[i]);
    c->count = 0;
}

static void cells_free(cells *c)
{
    cells_clear(c);
    free(c->text);
    free(c->quoted);
}

static bool cells_push(cells *c, char *text, bool quoted)
{
    if (c->count == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 32;
        char **texts = realloc(c->text, (size_t)capacity * sizeof *texts);
        if (texts) c->text = texts;
        bool *flags = texts ? realloc(c->quoted, (size_t)capacity * sizeof *flags) : NULL;
        if (flags) c->quoted = flags;
        if (!texts || !flags) return false;
        c->capacity = capacity;
    }
    c->text[c->count] = text;
    c->quoted[c->count++] = quoted;
    return true;
}

enum { CUT = EOF - 1 };

/* One cell; *after is the character behind it: ',', '\n', EOF, or CUT where the file ends inside quotes, as a killed
 * run may leave its last line. */
static char *read_cell(source *src, FILE *file, bool *quoted, int *after, vla_error *error)
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *out = open_memstream(&bytes, &count);
    if (!out) {
        no_memory(src, error);
        return NULL;
    }
    int64_t first = src->line;
    int c = getc(file);
    *quoted = c == '"';
    bool inside = *quoted;
    if (inside) c = getc(file);
    for (; c != EOF; c = getc(file)) {
        if (inside && c == '"') {
            c = getc(file);
            if (c != '"') {
                inside = false;
                if (c == EOF) break;
            }
        }
        if (!inside && (c == ',' || c == '\n')) break;
        if (!inside && c == '\r') continue;
        if (c == '\n') src->line++;
        if (c == 0) c = '?';
        fputc(c, out);
    }
    *after = inside ? CUT : c;
    if (fclose(out) != 0) {
        free(bytes);
        no_memory(src, error);
        return NULL;
    }
    if (inside && strchr(bytes, '\n')) { /* a stray quote would swallow rows */
        vla_fail(error, VLA_ERR_FILE, "%s:%lld: a quoted cell does not end", src->path, (long long)first);
        free(bytes);
        return NULL;
    }
    return bytes;
}

/* One line; count 0 at the end of the file, a single empty cell for an empty line. */
static vla_status read_cells(source *src, FILE *file, cells *line, vla_error *error)
{
    cells_clear(line);
    int c = getc(file);
    if (c == EOF) return VLA_OK;
    ungetc(c, file);
    for (int after = ','; after == ',';) {
        bool quoted;
        char *text = read_cell(src, file, &quoted, &after, error);
        if (!text) return VLA_ERR_FILE;
        if (!cells_push(line, text, quoted)) {
            free(text);
            return no_memory(src, error);
        }
        line->ended = after == '\n';
        line->cut = after == CUT;
    }
    src->line++;
    return VLA_OK;
}

static bool set_cell(vla_record *record, const char *name, const char *text, bool quoted)
{
    const char *end;
    int64_t integer;
    double real;
    if (quoted) return vla_record_string(record, name, text);
    if (*text == '\0') return vla_record_null(record, name);
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return vla_record_bool(record, name, *text == 't');
    if (vla_integer_parse(text, &end, &integer) == VLA_NUMBER_OK && *end == '\0')
        return vla_record_int(record, name, integer);
    if (vla_number_parse(text, &real) == VLA_NUMBER_OK) return vla_record_real(record, name, real);
    return vla_record_string(record, name, text);
}

static vla_status read_row(const source *src, const cells *header, const cells *line, vla_error *error)
{
    if (line->count != header->count)
        return vla_fail(error, VLA_ERR_FILE, "%s:%lld: %d cells under a header of %d", src->path, (long long)src->line,
                        line->count, header->count);
    vla_record *record = vla_record_create("row");
    bool done = record != NULL;
    for (int i = 0; done && i < line->count; i++)
        done = set_cell(record, header->text[i], line->text[i], line->quoted[i]);
    if (done) return push(src, record, error);
    vla_record_destroy(record);
    return no_memory(src, error);
}

static bool is_empty(const cells *line)
{
    return line->count == 1 && !line->quoted[0] && line->text[0][0] == '\0';
}

static vla_status check_header(const source *src, const cells *header, vla_error *error)
{
    for (int i = 0; i < header->count; i++)
        if (strcmp(header->text[i], "kind") == 0) return VLA_OK;
    return vla_fail(error, VLA_ERR_FILE, "%s:%lld: the header has no field 'kind'", src->path, (long long)src->line);
}

/* Blocks of a header and rows, separated by empty lines. A last row cut short by a killed run is left out. */
static vla_status read_csv(source *src, FILE *file, vla_error *error)
{
    cells header = {0}, line = {0};
    vla_status status = VLA_OK;
    if (getc(file) != 0xEF || getc(file) != 0xBB || getc(file) != 0xBF) rewind(file);
    for (bool in_block = false; status == VLA_OK;) {
        status = read_cells(src, file, in_block ? &line : &header, error);
        const cells *now = in_block ? &line : &header;
        if (status != VLA_OK || now->count == 0) break;
        if (is_empty(now))
            in_block = false;
        else if (in_block && now->cut)
            break;
        else if (!in_block) {
            status = check_header(src, &header, error);
            in_block = true;
        } else if (line.ended || line.count == header.count)
            status = read_row(src, &header, &line, error);
    }
    cells_free(&header);
    cells_free(&line);
    return status;
}

vla_status vla_records_read(vla_records *records, const char *path, vla_error *error)
{
    vla_format format;
    if (!vla_format_of_path(path, &format) || format == VLA_FORMAT_MD)
        return vla_fail(error, VLA_ERR_FILE,
                        "%s: cannot read records from this kind of file; accepted: .csv .json .jsonl", path);
    FILE *file = fopen(path, "r");
    if (!file) return vla_fail(error, VLA_ERR_FILE, "%s: cannot read: %s", path, strerror(errno));
    source src = {.path = path, .records = records};
    int64_t before = records->count;
    vla_status status = format == VLA_FORMAT_JSON    ? read_json(&src, file, error)
                        : format == VLA_FORMAT_JSONL ? read_jsonl(&src, file, error)
                                                     : read_csv(&src, file, error);
    if (status == VLA_OK && ferror(file))
        status = vla_fail(error, VLA_ERR_FILE, "%s: cannot read: %s", path, strerror(errno));
    fclose(file);
    if (status != VLA_OK)
        while (records->count > before) vla_record_destroy(records->rows[--records->count]);
    return status;
}
