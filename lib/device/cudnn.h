/* The versions of cuDNN 9 that are installed, found without Python and without loading any into this process. */
#ifndef VLA_DEVICE_CUDNN_H
#define VLA_DEVICE_CUDNN_H
#include "lib/vla.h"

typedef struct vla_cudnn_version {
    int number;       /* as cuDNN counts: 91400 is 9.14.0 */
    char version[16]; /* "9.14.0" */
    char *path;       /* of libcudnn.so.9, links followed */
} vla_cudnn_version;

typedef struct vla_cudnn_versions {
    vla_cudnn_version *items;
    int count;
} vla_cudnn_versions;

/* Where to look. NULL: not there. */
typedef struct vla_cudnn_places {
    const char *named;        /* VLA_CUDNN: this file alone */
    bool linker;              /* what the dynamic linker finds by name, before the others */
    const char *library_path; /* LD_LIBRARY_PATH: folders, colons between */
    const char *root;         /* "" for the machine's own usual folders and Python prefixes; a folder above, in tests */
    const char *virtual_env, *conda, *home; /* VIRTUAL_ENV, CONDA_PREFIX, HOME */
    const char *path;                       /* PATH: a folder with python3 belongs to a Python prefix */
} vla_cudnn_places;

/* Of this process's environment. */
vla_cudnn_places vla_cudnn_places_here(void);
/* Appends each version once, in the order of the places, where the first place of a version counts. A file that cannot
 * be loaded or is not of cuDNN 9 is none. Every file is loaded by a child process of its own. */
vla_status vla_cudnn_find(vla_cudnn_versions *versions, const vla_cudnn_places *places, vla_error *error);
void vla_cudnn_versions_free(vla_cudnn_versions *versions);

#endif
