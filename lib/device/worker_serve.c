/* The other process of lib/device/worker.h: makes plans, runs them and answers. */
#include "lib/base/clock.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/device/mirror.h"
#include "lib/device/worker_wire.h"
#include "lib/op/registry.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { SLOTS = 64 };

/* One case: on the device through a mirror, else run where its tensors are. */
typedef struct slot {
    vla_plan *plan;
    vla_mirror *mirror;
    void *memory[WIRE_TENSORS];
    int64_t bytes[WIRE_TENSORS];
    vla_tensors tensors;
} slot;

typedef struct server {
    int socket;
    vla_exec *exec;
    slot slots[SLOTS];
} server;

static void empty(slot *s)
{
    vla_mirror_destroy(s->mirror);
    vla_plan_destroy(s->plan);
    for (int i = 0; i < WIRE_TENSORS; i++) vla_free(s->memory[i]);
    *s = (slot){0};
}

/* false: the conversation is over, as bytes of q, k or v could not be taken from the socket. */
static bool take_tensors(server *v, slot *s, const vla_remote_job *job, vla_error *error)
{
    if (wire_sizes(job, s->bytes, error)) return false;
    for (int i = 0; i < WIRE_TENSORS; i++)
        if (vla_alloc(&s->memory[i], s->bytes[i] + WIRE_GUARD, 1, "tensors of another process", error)) return false;
    for (int i = WIRE_Q; i < WIRE_O; i++)
        if (!wire_receive(v->socket, s->memory[i], s->bytes[i])) return false;
    memset(s->memory[WIRE_O], 0xff, (size_t)(s->bytes[WIRE_O] + WIRE_GUARD));
    s->tensors =
        (vla_tensors){.q = s->memory[WIRE_Q], .k = s->memory[WIRE_K], .v = s->memory[WIRE_V], .o = s->memory[WIRE_O]};
    return true;
}

static vla_status make(server *v, slot *s, const vla_remote_job *job, vla_error *error)
{
    vla_status status = v->exec ? VLA_OK : vla_exec_create(&v->exec, 1, VLA_ISA_AUTO, error);
    if (!status) status = vla_plan_create(&s->plan, v->exec, &job->problem, job->form, job->backend, job->dtype, error);
    if (!status && vla_plan_backend(s->plan) == VLA_CUDA)
        status = vla_mirror_create(&s->mirror, s->plan, &job->problem, job->dtype, &s->tensors, job->cold, error);
    return status;
}

static vla_status run(slot *s, const wire_request *request, double *seconds, vla_error *error)
{
    if (s->mirror) return vla_mirror_run(s->mirror, request->number, request->graph, seconds, error);
    vla_status status = VLA_OK;
    const double begun = vla_now();
    for (int64_t i = 0; !status && i < request->number; i++) status = vla_plan_run(s->plan, &s->tensors, error);
    *seconds = vla_now() - begun;
    return status;
}

static bool create(server *v, const wire_request *request, wire_reply *reply)
{
    int at = 0;
    while (at < SLOTS && v->slots[at].plan) at++;
    if (at == SLOTS) return false;
    slot *s = &v->slots[at];
    const bool taken = take_tensors(v, s, &request->job, &reply->error);
    if (taken) reply->error.status = make(v, s, &request->job, &reply->error);
    reply->slot = at;
    if (taken && s->mirror) reply->bytes = vla_mirror_bytes(s->mirror);
    if (!taken || reply->error.status) empty(s);
    return taken;
}

/* false: nothing more can be said. */
static bool respond(server *v, const wire_request *request)
{
    wire_reply reply;
    memset(&reply, 0, sizeof reply);
    bool go_on = true;
    if (request->command == WIRE_CREATE)
        go_on = create(v, request, &reply);
    else if (request->slot < 0 || request->slot >= SLOTS || !v->slots[request->slot].plan)
        return false;
    slot *s = request->command == WIRE_CREATE ? NULL : &v->slots[request->slot];
    if (request->command == WIRE_RUN) {
        reply.error.status = run(s, request, &reply.seconds, &reply.error);
        snprintf(reply.label, sizeof reply.label, "%.*s", (int)sizeof reply.label - 1, vla_plan_label(s->plan));
        if (s->mirror) reply.bytes = vla_mirror_bytes(s->mirror);
    } else if (request->command == WIRE_FETCH) {
        if (request->number < 0 || request->number > WIRE_GUARD) return false;
        if (s->mirror) reply.error.status = vla_mirror_fetch(s->mirror, request->number, &reply.error);
    } else if (request->command == WIRE_INTACT) {
        reply.intact = true;
        if (s->mirror) reply.error.status = vla_mirror_inputs_intact(s->mirror, &reply.intact, &reply.error);
    } else if (request->command == WIRE_DESTROY)
        empty(s);
    if (!wire_send(v->socket, &reply, sizeof reply)) return false;
    if (request->command == WIRE_FETCH && reply.error.status == VLA_OK)
        return wire_send(v->socket, s->memory[WIRE_O], s->bytes[WIRE_O] + request->number);
    return go_on;
}

int vla_worker_serve(int socket)
{
    struct stat about;
    if (fstat(socket, &about) != 0 || !S_ISSOCK(about.st_mode)) return 2;
    server *v = calloc(1, sizeof *v);
    if (!v) return 2;
    v->socket = socket;
    signal(SIGINT, SIG_IGN); /* the process that asks decides when to end */
    wire_request request;
    while (wire_receive(socket, &request, sizeof request) && respond(v, &request)) continue;
    for (int i = 0; i < SLOTS; i++) empty(&v->slots[i]);
    vla_exec_destroy(v->exec);
    free(v);
    return 0;
}
