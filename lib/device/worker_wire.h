/* What the two processes of lib/device/worker.h say to each other. Both are the same program, so structures go as they
 * are. */
#ifndef VLA_DEVICE_WORKER_WIRE_H
#define VLA_DEVICE_WORKER_WIRE_H
#include "lib/device/worker.h"

enum { WIRE_Q, WIRE_K, WIRE_V, WIRE_O, WIRE_TENSORS };
enum { WIRE_GUARD = 256 }; /* most bytes after o that can be fetched */

typedef enum wire_command { WIRE_CREATE, WIRE_RUN, WIRE_FETCH, WIRE_INTACT, WIRE_DESTROY } wire_command;

/* WIRE_CREATE is followed by the bytes of q, k and v; the reply of WIRE_FETCH, where it is VLA_OK, by those of o and
 * `number` more. */
typedef struct wire_request {
    wire_command command;
    int slot;       /* of the reply to WIRE_CREATE */
    int64_t number; /* runs, or guard bytes */
    bool graph;
    vla_remote_job job;
} wire_request;

typedef struct wire_reply {
    vla_error error; /* status VLA_OK: done */
    int slot;
    bool intact;
    double seconds;
    int64_t bytes;
    char label[120];
} wire_reply;

/* Whole messages; false when the other side is gone or, receiving, silent for `seconds`. */
bool wire_send(int socket, const void *bytes, int64_t count);
bool wire_receive(int socket, void *bytes, int64_t count);
/* Bytes of q, k, v and o. VLA_ERR_UNSUPPORTED for operators with a state. */
vla_status wire_sizes(const vla_remote_job *job, int64_t bytes[WIRE_TENSORS], vla_error *error);

#endif
