/* One output of a report. Internal to lib/report. */
#ifndef VLA_REPORT_SINK_H
#define VLA_REPORT_SINK_H
#include "lib/report/report.h"

typedef struct vla_sink vla_sink;

typedef struct vla_sink_type {
    /* row is the newest of sink->rows. */
    vla_status (*add)(vla_sink *sink, const vla_record *row, vla_error *error);
    /* Completes the output; called once, also without rows, but not after an error. */
    vla_status (*finish)(vla_sink *sink, vla_error *error);
    void (*release)(vla_sink *sink); /* frees state; may be NULL */
} vla_sink_type;

struct vla_sink {
    const vla_sink_type *type;
    char *path;              /* "stdout" for standard output */
    int fd;                  /* -1 when closed */
    bool seekable;           /* a regular file, written in place */
    bool created;            /* the file did not exist before */
    bool append;             /* keep what the file holds */
    bool started;            /* something has been written */
    bool failed;             /* an error was reported; the rest is skipped */
    const vla_record *meta;  /* may be NULL */
    const vla_records *rows; /* all rows of this run */
    void *state;             /* of the format */
};

extern const vla_sink_type vla_sink_md, vla_sink_csv, vla_sink_json, vla_sink_jsonl;

/* Opens for writing without truncating, so that a run that never measures leaves earlier results alone. */
vla_status vla_sink_open(vla_sink *sink, const char *path, vla_error *error);
/* Writes all bytes at the end. When that fails, a regular file is cut back to where it was. */
vla_status vla_sink_write(vla_sink *sink, const char *bytes, size_t count, vla_error *error);
/* Replaces a regular file, whole or not at all, and goes on appending to the new one. */
vla_status vla_sink_replace(vla_sink *sink, const char *bytes, size_t count, vla_error *error);
vla_status vla_sink_failure(const vla_sink *sink, int code, vla_error *error);
void vla_sink_close(vla_sink *sink);

/* {"kind":"sample",...}: one object without a line end. Missing is null. */
void vla_json_record(FILE *stream, const vla_record *record);

/* "stem.kind.csv" for a further kind; fresh memory or NULL. */
char *vla_csv_kind_path(const char *path, const char *kind);

/* Tables of every kind among rows, in order of appearance, all fields shown. */
void vla_markdown_print(FILE *stream, const vla_records *rows, const vla_record *meta);

#endif
