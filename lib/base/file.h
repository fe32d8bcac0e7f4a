/* Files that appear whole or not at all: written beside their target and renamed when complete. */
#ifndef VLA_BASE_FILE_H
#define VLA_BASE_FILE_H
#include "lib/vla.h"
#include <stdio.h>

typedef struct vla_file {
    FILE *stream; /* write here */
    char *path;   /* what the user named */
    char *target; /* where it goes: path with symbolic links followed */
    char *temp;   /* NULL for a device or pipe, which is written in place */
} vla_file;

/* VLA_ERR_FILE when the directory is missing or not writable. A file that is replaced keeps its mode. */
vla_status vla_file_begin(vla_file *file, const char *path, vla_error *error);
/* Flushes, checks every earlier write and renames. On an error the target is as it was. */
vla_status vla_file_commit(vla_file *file, vla_error *error);

/* Makes DIR itself when it does not exist; its parent must. */
vla_status vla_directory_make(const char *directory, vla_error *error);
/* Makes DIR and every parent that does not exist. */
vla_status vla_directory_make_path(const char *directory, vla_error *error);
/* "DIRECTORY/NAME" in fresh memory, or NULL. */
char *vla_path_join(const char *directory, const char *name);
/* Flushes stream and reports what failed to reach it (a closed pipe, a full disk); name is for the message. */
vla_status vla_stream_flush(FILE *stream, const char *name, vla_error *error);

#endif
