#include "lib/report/report.h"
#include "lib/base/status.h"
#include "lib/report/sink.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct vla_report {
    vla_record *meta;
    vla_records rows;
    vla_sink **sinks; /* by pointer: sinks stay where they are */
    int count;
    bool failed;
};

static const char *const format_names[] = {"md", "csv", "json", "jsonl"};

bool vla_format_parse(const char *name, vla_format *format)
{
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, format_names[i]) != 0) continue;
        *format = (vla_format)i;
        return true;
    }
    return false;
}

bool vla_format_of_path(const char *path, vla_format *format)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    return dot && dot != name && vla_format_parse(dot + 1, format);
}

static const vla_sink_type *sink_type(vla_format format)
{
    switch (format) {
    case VLA_FORMAT_MD:
        return &vla_sink_md;
    case VLA_FORMAT_CSV:
        return &vla_sink_csv;
    case VLA_FORMAT_JSON:
        return &vla_sink_json;
    case VLA_FORMAT_JSONL:
        break;
    }
    return &vla_sink_jsonl;
}

vla_status vla_report_create(vla_report **report, const vla_record *meta, vla_error *error)
{
    vla_report *r = calloc(1, sizeof *r);
    if (r && meta) r->meta = vla_record_copy(meta);
    if (!r || (meta && !r->meta)) {
        free(r);
        return vla_fail(error, VLA_ERR_MEMORY, "report: out of memory");
    }
    *report = r;
    return VLA_OK;
}

static bool same_file(const vla_sink *a, const vla_sink *b)
{
    struct stat x, y;
    return fstat(a->fd, &x) == 0 && fstat(b->fd, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static vla_status refuse_twice(const vla_report *report, const vla_sink *sink, vla_error *error)
{
    for (int i = 0; i < report->count; i++)
        if (sink->seekable && same_file(report->sinks[i], sink))
            return vla_fail(error, VLA_ERR_ARGUMENT, "-o: '%s' is given twice; accepted: each file once", sink->path);
    return VLA_OK;
}

vla_status vla_report_output(vla_report *report, const char *path, vla_format format, bool append, vla_error *error)
{
    vla_sink **sinks = realloc(report->sinks, (size_t)(report->count + 1) * sizeof *sinks);
    if (!sinks) return vla_fail(error, VLA_ERR_MEMORY, "-o: out of memory");
    report->sinks = sinks;
    vla_sink *sink = calloc(1, sizeof *sink);
    if (!sink) return vla_fail(error, VLA_ERR_MEMORY, "-o: out of memory");
    sink->meta = report->meta;
    sink->rows = &report->rows;
    vla_status status = vla_sink_open(sink, path, error);
    if (status == VLA_OK) status = refuse_twice(report, sink, error);
    if (status != VLA_OK) {
        if (sink->fd >= 0) sink->created = false; /* the other sink's file */
        vla_sink_close(sink);
        free(sink);
        return status;
    }
    struct stat info;
    sink->append = append && fstat(sink->fd, &info) == 0 && info.st_size > 0; /* an empty file holds nothing to keep */
    sink->type = sink_type(format);
    report->sinks[report->count++] = sink;
    return VLA_OK;
}

vla_status vla_report_add(vla_report *report, vla_record *record, vla_error *error)
{
    if (!vla_records_push(&report->rows, record)) {
        vla_record_destroy(record);
        return vla_fail(error, VLA_ERR_MEMORY, "report: out of memory for a row");
    }
    vla_status first = VLA_OK;
    for (int i = 0; i < report->count; i++) {
        vla_sink *sink = report->sinks[i];
        if (sink->failed) continue;
        vla_status status = sink->type->add(sink, record, first == VLA_OK ? error : NULL);
        sink->failed = status != VLA_OK;
        if (first == VLA_OK) first = status;
    }
    if (first != VLA_OK) report->failed = true;
    return first;
}

vla_status vla_report_keep(vla_report *report, vla_records *kept, vla_record *record, vla_error *error)
{
    if (vla_records_copy(kept, record)) return vla_report_add(report, record, error);
    vla_record_destroy(record);
    return vla_fail(error, VLA_ERR_MEMORY, "report: out of memory for a row");
}

const vla_records *vla_report_rows(const vla_report *report)
{
    return &report->rows;
}

vla_status vla_report_close(vla_report *report, vla_error *error)
{
    if (!report) return VLA_OK;
    vla_status first = VLA_OK;
    char incomplete[320] = "";
    for (int i = 0; i < report->count; i++) {
        vla_sink *sink = report->sinks[i];
        if (sink->failed) {
            size_t used = strlen(incomplete);
            snprintf(incomplete + used, sizeof incomplete - used, "%s%s", used ? ", " : "", sink->path);
        } else {
            vla_status status = sink->type->finish(sink, first == VLA_OK ? error : NULL);
            if (first == VLA_OK) first = status;
        }
        vla_sink_close(sink);
        free(sink);
    }
    if (first == VLA_OK && report->failed)
        first = vla_fail(error, VLA_ERR_FILE, "results are not complete in %s", incomplete);
    vla_records_clear(&report->rows);
    vla_record_destroy(report->meta);
    free(report->sinks);
    free(report);
    return first;
}
