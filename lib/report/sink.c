#include "lib/report/sink.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

vla_status vla_sink_failure(const vla_sink *sink, int code, vla_error *error)
{
    return vla_fail(error, VLA_ERR_FILE, "%s: cannot write: %s", sink->path, strerror(code));
}

vla_status vla_sink_open(vla_sink *sink, const char *path, vla_error *error)
{
    sink->fd = -1;
    sink->path = strdup(path ? path : "stdout");
    if (!sink->path) return vla_fail(error, VLA_ERR_MEMORY, "-o: out of memory");
    if (!path) {
        sink->fd = STDOUT_FILENO;
        return VLA_OK;
    }
    struct stat info;
    sink->created = stat(path, &info) != 0;
    sink->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (sink->fd < 0 || fstat(sink->fd, &info) != 0) return vla_sink_failure(sink, errno, error);
    sink->seekable = S_ISREG(info.st_mode);
    return VLA_OK;
}

static int write_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = write(fd, bytes, count);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        bytes += n;
        count -= (size_t)n;
    }
    return 0;
}

vla_status vla_sink_write(vla_sink *sink, const char *bytes, size_t count, vla_error *error)
{
    off_t end = sink->seekable ? lseek(sink->fd, 0, SEEK_END) : 0;
    if (end < 0) return vla_sink_failure(sink, errno, error);
    int code = write_all(sink->fd, bytes, count);
    sink->started = true;
    if (code == 0) return VLA_OK;
    if (sink->seekable && ftruncate(sink->fd, end) != 0) code = errno;
    return vla_sink_failure(sink, code, error);
}

vla_status vla_sink_replace(vla_sink *sink, const char *bytes, size_t count, vla_error *error)
{
    if (!sink->started && !sink->append) { /* nothing to keep: the directory need not be writable */
        if (ftruncate(sink->fd, 0) != 0) return vla_sink_failure(sink, errno, error);
        return vla_sink_write(sink, bytes, count, error);
    }
    vla_file file;
    vla_status status = vla_file_begin(&file, sink->path, error);
    if (status != VLA_OK) return status;
    fwrite(bytes, 1, count, file.stream);
    status = vla_file_commit(&file, error);
    if (status != VLA_OK) return status;
    close(sink->fd);
    sink->fd = open(sink->path, O_WRONLY | O_CLOEXEC);
    sink->started = true;
    return sink->fd < 0 ? vla_sink_failure(sink, errno, error) : VLA_OK;
}

void vla_sink_close(vla_sink *sink)
{
    if (sink->type && sink->type->release) sink->type->release(sink);
    if (sink->fd >= 0 && sink->fd != STDOUT_FILENO) {
        struct stat info;
        close(sink->fd);
        bool empty = stat(sink->path, &info) == 0 && info.st_size == 0;
        if (sink->created && sink->seekable && empty) unlink(sink->path);
    }
    sink->fd = -1;
    free(sink->path);
    sink->path = NULL;
}
