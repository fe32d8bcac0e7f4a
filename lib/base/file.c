#include "lib/base/file.h"
#include "lib/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void release(vla_file *file)
{
    free(file->path);
    free(file->target);
    free(file->temp);
    *file = (vla_file){0};
}

static vla_status cannot_write(vla_file *file, int code, vla_error *error)
{
    vla_status status = vla_fail(error, VLA_ERR_FILE, "%s: cannot write: %s", file->path, strerror(code));
    if (file->stream) fclose(file->stream);
    if (file->temp) unlink(file->temp);
    release(file);
    return status;
}

static bool is_special(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

/* Opens a new file beside the target, with the mode any new file would have; its name goes to file->temp. */
static int open_beside(vla_file *file)
{
    enum { MOST_TRIES = 1000 };
    for (int i = 0; i < MOST_TRIES; i++) {
        if (asprintf(&file->temp, "%s.%ld-%d", file->target, (long)getpid(), i) < 0) {
            file->temp = NULL;
            errno = ENOMEM;
            return -1;
        }
        const int fd = open(file->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) return fd;
        const int code = errno;
        free(file->temp);
        file->temp = NULL;
        errno = code;
        if (code != EEXIST) break;
    }
    return -1;
}

vla_status vla_file_begin(vla_file *file, const char *path, vla_error *error)
{
    *file = (vla_file){0};
    file->path = strdup(path);
    if (!file->path) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", path);
    if (is_special(path)) {
        file->stream = fopen(path, "w");
        return file->stream ? VLA_OK : cannot_write(file, errno, error);
    }
    struct stat info;
    const bool exists = stat(path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode)) return cannot_write(file, EISDIR, error);
    if (exists && access(path, W_OK) != 0) return cannot_write(file, errno, error);
    file->target = realpath(path, NULL);
    if (!file->target) file->target = strdup(path);
    if (!file->target) return cannot_write(file, ENOMEM, error);
    int fd = open_beside(file);
    if (fd < 0) return cannot_write(file, errno, error);
    /* A file that is replaced stays as private as it was. */
    if (exists && fchmod(fd, info.st_mode & 07777) != 0) {
        const int code = errno;
        close(fd);
        return cannot_write(file, code, error);
    }
    file->stream = fdopen(fd, "w");
    if (!file->stream) {
        close(fd);
        return cannot_write(file, ENOMEM, error);
    }
    return VLA_OK;
}

/* 0, or what keeps the stream's bytes from the file. The errno of a write that failed long ago is lost: one more byte
 * fails alike. */
static int failure_of(FILE *stream)
{
    errno = 0;
    if (fflush(stream) == 0 && !ferror(stream)) return 0;
    if (errno == 0) {
        clearerr(stream);
        fputc(0, stream);
        fflush(stream);
    }
    return errno ? errno : EIO;
}

vla_status vla_file_commit(vla_file *file, vla_error *error)
{
    const int failure = failure_of(file->stream);
    if (failure) return cannot_write(file, failure, error);
    int closed = fclose(file->stream);
    file->stream = NULL;
    if (closed != 0) return cannot_write(file, errno, error);
    if (file->temp && rename(file->temp, file->target) != 0) return cannot_write(file, errno, error);
    release(file);
    return VLA_OK;
}

vla_status vla_directory_make(const char *directory, vla_error *error)
{
    struct stat info;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return vla_fail(error, VLA_ERR_FILE, "%s: cannot make this directory: %s", directory, strerror(errno));
    if (stat(directory, &info) != 0 || !S_ISDIR(info.st_mode))
        return vla_fail(error, VLA_ERR_FILE, "%s: not a directory", directory);
    if (access(directory, W_OK | X_OK) != 0)
        return vla_fail(error, VLA_ERR_FILE, "%s: cannot write in this directory: %s", directory, strerror(errno));
    return VLA_OK;
}

vla_status vla_directory_make_path(const char *directory, vla_error *error)
{
    char *path = strdup(directory);
    if (!path) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
    vla_status status = VLA_OK;
    for (char *slash = strchr(path + (*path == '/'), '/'); slash && !status; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            status = vla_fail(error, VLA_ERR_FILE, "%s: cannot make this directory: %s", path, strerror(errno));
        *slash = '/';
    }
    free(path);
    return status ? status : vla_directory_make(directory, error);
}

char *vla_path_join(const char *directory, const char *name)
{
    size_t length = strlen(directory);
    const char *slash = length && directory[length - 1] == '/' ? "" : "/";
    char *path;
    return asprintf(&path, "%s%s%s", directory, slash, name) < 0 ? NULL : path;
}

vla_status vla_stream_flush(FILE *stream, const char *name, vla_error *error)
{
    const int failure = failure_of(stream);
    if (!failure) return VLA_OK;
    return vla_fail(error, VLA_ERR_FILE, "%s: cannot write: %s", name, strerror(failure));
}
