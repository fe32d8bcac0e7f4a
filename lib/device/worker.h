/* Another process that runs plans for this one, with a library of its own: two versions of one library do not fit into
 * a process when they load their parts by name, as the loader then hands both the parts that came first. The process is
 * a second run of a program that calls vla_worker_serve; requests and tensors go over a socket, times and outputs come
 * back. Timing is by the other process's own events, so nothing of the way there is part of a time. */
#ifndef VLA_DEVICE_WORKER_H
#define VLA_DEVICE_WORKER_H
#include "lib/vla.h"

typedef struct vla_worker vla_worker;

typedef struct vla_worker_start_options {
    const char *program; /* executable, "/proc/self/exe" */
    const char *word;    /* its only argument: what makes it serve */
    const char *variable,
        *library;     /* its environment: variable=library, the library's folder first in LD_LIBRARY_PATH */
    const char *name; /* for messages, "cudnn 9.14.0" */
} vla_worker_start_options;

/* Starts the process and waits for nothing. VLA_ERR_UNSUPPORTED when it cannot be started. */
vla_status vla_worker_start(vla_worker **worker, const vla_worker_start_options *options, vla_error *error);
/* Ends the process. NULL is allowed. */
void vla_worker_stop(vla_worker *worker);
const char *vla_worker_name(const vla_worker *worker);
/* false once it has not answered; it is not asked again. */
bool vla_worker_alive(const vla_worker *worker);

/* In the other process: answers requests until the socket is closed. The exit code of the program: 0, or 2 when the
 * descriptor is no socket. */
int vla_worker_serve(int socket);

/* What is run there. Operators without a state, forward: q, k, v in, o out. */
typedef struct vla_remote_job {
    vla_problem problem;
    vla_form form;
    vla_backend backend;
    vla_dtype dtype;
    bool cold; /* as in vla_mirror_create */
} vla_remote_job;

typedef struct vla_remote vla_remote;

/* What the other process cannot do, or its end, is VLA_ERR_UNSUPPORTED or VLA_ERR_MEMORY with its message; the host
 * tensors stay the caller's and must outlive the remote. */
vla_status vla_remote_create(vla_remote **remote, vla_worker *worker, const vla_remote_job *job,
                             const vla_tensors *host, vla_error *error);
void vla_remote_destroy(vla_remote *remote);
/* As the functions of vla_mirror. */
vla_status vla_remote_run(vla_remote *remote, int64_t runs, bool graph, double *seconds, vla_error *error);
vla_status vla_remote_fetch(vla_remote *remote, int64_t guard_bytes, vla_error *error);
vla_status vla_remote_inputs_intact(const vla_remote *remote, bool *intact, vla_error *error);
int64_t vla_remote_bytes(const vla_remote *remote);
const char *vla_remote_label(const vla_remote *remote); /* after the first run */

#endif
