/* Markdown, written when the report closes: widths and constant columns are known only then. */
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/report/sink.h"
#include <stdlib.h>

static vla_status md_add(vla_sink *sink, const vla_record *row, vla_error *error)
{
    (void)sink;
    (void)row;
    (void)error;
    return VLA_OK;
}

static vla_status md_finish(vla_sink *sink, vla_error *error)
{
    char *bytes = NULL;
    size_t count = 0;
    if (sink->rows->count == 0) return VLA_OK;
    FILE *stream = open_memstream(&bytes, &count);
    if (!stream) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", sink->path);
    vla_markdown_print(stream, sink->rows, sink->meta);
    vla_status status = VLA_ERR_MEMORY;
    if (fclose(stream) != 0)
        vla_fail(error, status, "%s: out of memory", sink->path);
    else if (sink->seekable && !sink->append)
        status = vla_sink_replace(sink, bytes, count, error);
    else
        status = vla_sink_write(sink, bytes, count, error); /* --resume: after what is there */
    free(bytes);
    return status;
}

const vla_sink_type vla_sink_md = {md_add, md_finish, NULL};
