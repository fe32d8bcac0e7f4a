/* A record: one row of results, an ordered list of named values. Missing is null, never 0 or NaN. */
#ifndef VLA_RECORD_H
#define VLA_RECORD_H
#include "lib/vla.h"

typedef enum vla_value_type {
    VLA_VALUE_NULL,
    VLA_VALUE_STRING,
    VLA_VALUE_INT,
    VLA_VALUE_REAL,
    VLA_VALUE_BOOL,
    VLA_VALUE_REALS /* JSON only: raw samples */
} vla_value_type;

typedef struct vla_value {
    vla_value_type type;
    union {
        char *string;
        int64_t integer;
        double real;
        bool boolean;
        struct {
            double *data;
            int64_t count;
        } reals;
    };
} vla_value;

typedef struct vla_record vla_record;

/* kind is the first field. Without memory create returns NULL and setters return false; a record that a setter failed
 * on is taken into no list and has no copy, so that a builder may leave their answers unread. */
vla_record *vla_record_create(const char *kind);
vla_record *vla_record_copy(const vla_record *record);
void vla_record_destroy(vla_record *record);
/* Setting an existing name replaces its value in place. Non-finite reals and NULL strings become null. */
bool vla_record_string(vla_record *record, const char *name, const char *value);
bool vla_record_int(vla_record *record, const char *name, int64_t value);
bool vla_record_real(vla_record *record, const char *name, double value);
bool vla_record_bool(vla_record *record, const char *name, bool value);
bool vla_record_null(vla_record *record, const char *name);
bool vla_record_reals(vla_record *record, const char *name, const double *values, int64_t count);
bool vla_record_put(vla_record *record, const char *name, const vla_value *value); /* a copy of any value */

int vla_record_fields(const vla_record *record);
const char *vla_record_name(const vla_record *record, int i);
const vla_value *vla_record_value(const vla_record *record, int i);
const vla_value *vla_record_get(const vla_record *record, const char *name); /* NULL when absent */
/* Convenience: the value as text or number, with a fallback when absent, null or of another type. */
const char *vla_record_text(const vla_record *record, const char *name, const char *fallback);
double vla_record_number(const vla_record *record, const char *name, double fallback);
/* The same as a count: a number from 0 to 2^53, cut to a whole one. */
int64_t vla_record_count(const vla_record *record, const char *name, int64_t fallback);
/* The value is the boolean true. */
bool vla_record_true(const vla_record *record, const char *name);

/* Sets "key": 16 hexadecimal digits, an FNV-1a hash of the named fields (NULL-ended; absent and null ones count alike)
 * and of nothing else, so that rows of the same measurement meet in --resume, merge and compare. */
bool vla_record_key(vla_record *record, const char *const *names);

/* A growing list that owns its records. */
typedef struct vla_records {
    vla_record **rows;
    int64_t count, capacity;
} vla_records;

/* False, and the record stays the caller's: NULL, one a setter failed on, or no memory. */
bool vla_records_push(vla_records *records, vla_record *record);
bool vla_records_copy(vla_records *records, const vla_record *record); /* appends a copy */
void vla_records_clear(vla_records *records);

#endif
