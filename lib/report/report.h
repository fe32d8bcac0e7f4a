/* Where records go: files opened at parse time and flushed a row at a time, and the readable table. */
#ifndef VLA_REPORT_H
#define VLA_REPORT_H
#include "lib/report/record.h"
#include <stdio.h>

typedef enum vla_format { VLA_FORMAT_MD, VLA_FORMAT_CSV, VLA_FORMAT_JSON, VLA_FORMAT_JSONL } vla_format;
typedef struct vla_report vla_report;

bool vla_format_parse(const char *name, vla_format *format);
/* By extension (.md .csv .json .jsonl); false for others. */
bool vla_format_of_path(const char *path, vla_format *format);

/* meta: run metadata, copied (may be NULL). */
vla_status vla_report_create(vla_report **report, const vla_record *meta, vla_error *error);
/* Adds an output. path NULL: stdout. csv: the first kind goes to PATH, further kinds to PATH's stem.KIND.csv; a row
 * with a field the file has no column for makes it be rewritten with one more column. append: keep what the file
 * already holds (--resume). Fails at once when the file cannot be written, but touches what it holds only with the
 * first row. */
vla_status vla_report_output(vla_report *report, const char *path, vla_format format, bool append, vla_error *error);
/* Writes one record everywhere and flushes; the report takes ownership. JSON files are valid after every row. A write
 * error is reported once per file and the others go on. Markdown tables are printed by vla_report_close. */
vla_status vla_report_add(vla_report *report, vla_record *record, vla_error *error);
/* The same, with a copy for `kept`. */
vla_status vla_report_keep(vla_report *report, vla_records *kept, vla_record *record, vla_error *error);
const vla_records *vla_report_rows(const vla_report *report);
vla_status vla_report_close(vla_report *report, vla_error *error); /* frees it also on error */

/* Reads records back from .csv, .json or .jsonl, run metadata among them as kind "meta". A last line that a killed run
 * left without its end is not a row. Errors name file, line and field. */
vla_status vla_records_read(vla_records *records, const char *path, vla_error *error);

/* Columns of a readable table; fields absent from a record print as "-". format: a printf for doubles, or one of the
 * unit names "time" (s to us/ms/s), "bytes", "count", "percent". NULL: as is. Columns in which every row has the
 * same value are folded into the line above the table when fold is set. */
typedef struct vla_column {
    const char *field, *title, *format;
    bool fold;
} vla_column;
void vla_table_print(FILE *stream, const vla_records *records, const char *kind, const vla_column *columns, int count);

/* version commit compiler cflags cpu gpu driver cuda cudnn cudnn_path blas threads date (ISO 8601 UTC). */
vla_record *vla_meta(int threads);

#endif
