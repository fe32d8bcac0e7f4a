#include "lib/report/record.h"
#include "lib/base/number.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct field {
    char *name;
    vla_value value;
} field;

struct vla_record {
    field *fields;
    int count, capacity;
    bool broken; /* a field is missing for want of memory */
};

static void release_value(vla_value *value)
{
    if (value->type == VLA_VALUE_STRING) free(value->string);
    if (value->type == VLA_VALUE_REALS) free(value->reals.data);
    *value = (vla_value){.type = VLA_VALUE_NULL};
}

static int find(const vla_record *record, const char *name)
{
    for (int i = 0; i < record->count; i++)
        if (strcmp(record->fields[i].name, name) == 0) return i;
    return -1;
}

static bool grow(vla_record *record)
{
    if (record->count < record->capacity) return true;
    int capacity = record->capacity ? 2 * record->capacity : 32;
    field *fields = realloc(record->fields, (size_t)capacity * sizeof *fields);
    if (!fields) return false;
    record->fields = fields;
    record->capacity = capacity;
    return true;
}

static bool broken(vla_record *record)
{
    record->broken = true;
    return false;
}

/* Takes ownership of what value points to, also when it fails. */
static bool put(vla_record *record, const char *name, vla_value value)
{
    int i = find(record, name);
    if (i >= 0) {
        release_value(&record->fields[i].value);
        record->fields[i].value = value;
        return true;
    }
    char *copy = strdup(name);
    if (!copy || !grow(record)) {
        free(copy);
        release_value(&value);
        return broken(record);
    }
    record->fields[record->count++] = (field){copy, value};
    return true;
}

vla_record *vla_record_create(const char *kind)
{
    vla_record *record = calloc(1, sizeof *record);
    if (record && !vla_record_string(record, "kind", kind)) {
        vla_record_destroy(record);
        return NULL;
    }
    return record;
}

void vla_record_destroy(vla_record *record)
{
    if (!record) return;
    for (int i = 0; i < record->count; i++) {
        free(record->fields[i].name);
        release_value(&record->fields[i].value);
    }
    free(record->fields);
    free(record);
}

bool vla_record_put(vla_record *record, const char *name, const vla_value *value)
{
    switch (value->type) {
    case VLA_VALUE_STRING:
        return vla_record_string(record, name, value->string);
    case VLA_VALUE_INT:
        return vla_record_int(record, name, value->integer);
    case VLA_VALUE_REAL:
        return vla_record_real(record, name, value->real);
    case VLA_VALUE_BOOL:
        return vla_record_bool(record, name, value->boolean);
    case VLA_VALUE_REALS:
        return vla_record_reals(record, name, value->reals.data, value->reals.count);
    case VLA_VALUE_NULL:
        break;
    }
    return vla_record_null(record, name);
}

vla_record *vla_record_copy(const vla_record *record)
{
    vla_record *copy = record->broken ? NULL : calloc(1, sizeof *copy);
    if (!copy) return NULL;
    for (int i = 0; i < record->count; i++) {
        if (!vla_record_put(copy, record->fields[i].name, &record->fields[i].value)) {
            vla_record_destroy(copy);
            return NULL;
        }
    }
    return copy;
}

bool vla_record_string(vla_record *record, const char *name, const char *text)
{
    if (!text) return vla_record_null(record, name);
    char *copy = strdup(text);
    if (!copy) return broken(record);
    return put(record, name, (vla_value){.type = VLA_VALUE_STRING, .string = copy});
}

bool vla_record_int(vla_record *record, const char *name, int64_t integer)
{
    return put(record, name, (vla_value){.type = VLA_VALUE_INT, .integer = integer});
}

bool vla_record_real(vla_record *record, const char *name, double real)
{
    if (!isfinite(real)) return vla_record_null(record, name);
    return put(record, name, (vla_value){.type = VLA_VALUE_REAL, .real = real});
}

bool vla_record_bool(vla_record *record, const char *name, bool boolean)
{
    return put(record, name, (vla_value){.type = VLA_VALUE_BOOL, .boolean = boolean});
}

bool vla_record_null(vla_record *record, const char *name)
{
    return put(record, name, (vla_value){.type = VLA_VALUE_NULL});
}

bool vla_record_reals(vla_record *record, const char *name, const double *values, int64_t count)
{
    double *copy = count < 0 ? NULL : malloc((size_t)(count ? count : 1) * sizeof *copy);
    if (!copy) return broken(record);
    if (count) memcpy(copy, values, (size_t)count * sizeof *copy);
    return put(record, name, (vla_value){.type = VLA_VALUE_REALS, .reals = {copy, count}});
}

int vla_record_fields(const vla_record *record)
{
    return record->count;
}

const char *vla_record_name(const vla_record *record, int i)
{
    return record->fields[i].name;
}

const vla_value *vla_record_value(const vla_record *record, int i)
{
    return &record->fields[i].value;
}

const vla_value *vla_record_get(const vla_record *record, const char *name)
{
    int i = find(record, name);
    return i < 0 ? NULL : &record->fields[i].value;
}

const char *vla_record_text(const vla_record *record, const char *name, const char *fallback)
{
    const vla_value *value = vla_record_get(record, name);
    return value && value->type == VLA_VALUE_STRING ? value->string : fallback;
}

double vla_record_number(const vla_record *record, const char *name, double fallback)
{
    const vla_value *value = vla_record_get(record, name);
    if (value && value->type == VLA_VALUE_INT) return (double)value->integer;
    if (value && value->type == VLA_VALUE_REAL) return value->real;
    return fallback;
}

int64_t vla_record_count(const vla_record *record, const char *name, int64_t fallback)
{
    const double value = vla_record_number(record, name, -1);
    return value >= 0 && value <= 0x1p53 ? (int64_t)value : fallback;
}

bool vla_record_true(const vla_record *record, const char *name)
{
    const vla_value *value = vla_record_get(record, name);
    return value && value->type == VLA_VALUE_BOOL && value->boolean;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Text, with its ending zero, so that neighbouring fields cannot run together. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text) + 1);
}

/* Numbers are hashed as text: 1 and 1.0, and a value read back from a file, give the same key. */
static uint64_t hash_value(uint64_t hash, const vla_value *value)
{
    char text[VLA_NUMBER_SIZE];
    switch (value->type) {
    case VLA_VALUE_STRING:
        return hash_text(hash, value->string);
    case VLA_VALUE_INT:
        snprintf(text, sizeof text, "%" PRId64, value->integer);
        return hash_text(hash, text);
    case VLA_VALUE_REAL:
        return hash_text(hash, vla_number_short(value->real, 17, text));
    case VLA_VALUE_BOOL:
        return hash_text(hash, value->boolean ? "true" : "false");
    case VLA_VALUE_REALS:
        for (int64_t i = 0; i < value->reals.count; i++)
            hash = hash_text(hash, vla_number_short(value->reals.data[i], 17, text));
        return hash;
    case VLA_VALUE_NULL:
        break;
    }
    return hash;
}

bool vla_record_key(vla_record *record, const char *const *names)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *names; names++) {
        const vla_value *value = vla_record_get(record, *names);
        if (!value || value->type == VLA_VALUE_NULL) continue;
        hash = hash_value(hash_text(hash, *names), value);
    }
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return vla_record_string(record, "key", text);
}

bool vla_records_push(vla_records *records, vla_record *record)
{
    if (!record || record->broken) return false;
    if (records->count == records->capacity) {
        int64_t capacity = records->capacity ? 2 * records->capacity : 64;
        vla_record **rows = realloc(records->rows, (size_t)capacity * sizeof *rows);
        if (!rows) return false;
        records->rows = rows;
        records->capacity = capacity;
    }
    records->rows[records->count++] = record;
    return true;
}

bool vla_records_copy(vla_records *records, const vla_record *record)
{
    vla_record *copy = vla_record_copy(record);
    if (vla_records_push(records, copy)) return true;
    vla_record_destroy(copy);
    return false;
}

void vla_records_clear(vla_records *records)
{
    for (int64_t i = 0; i < records->count; i++) vla_record_destroy(records->rows[i]);
    free(records->rows);
    *records = (vla_records){0};
}
