#include "lib/device/worker_wire.h"
#include "lib/base/clock.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Seconds without an answer after which the process counts as lost: far beyond a start of the device or the longest
 * run. */
enum { SILENCE = 120, PATIENCE = 5 };

struct vla_worker {
    pid_t process;
    int socket;
    bool dead;
    char name[64];
};

struct vla_remote {
    vla_worker *worker;
    int slot;
    int64_t o_bytes, bytes;
    void *o;
    char label[120];
};

bool wire_send(int socket, const void *bytes, int64_t count)
{
    for (const char *at = bytes; count > 0;) {
        const ssize_t sent = send(socket, at, (size_t)count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent, count -= sent;
    }
    return true;
}

bool wire_receive(int socket, void *bytes, int64_t count)
{
    for (char *at = bytes; count > 0;) {
        const ssize_t got = recv(socket, at, (size_t)count, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got, count -= got;
    }
    return true;
}

vla_status wire_sizes(const vla_remote_job *job, int64_t bytes[WIRE_TENSORS], vla_error *error)
{
    const vla_problem *p = &job->problem;
    const int64_t size = (int64_t)vla_dtype_size(job->dtype), Tk = p->Tk > 0 ? p->Tk : p->T;
    const int64_t rows[WIRE_TENSORS] = {p->T, Tk, Tk, p->T}, columns[WIRE_TENSORS] = {p->dk, p->dk, p->dv, p->dv};
    if (vla_op_has_S(p->op))
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s: its state does not go to another process", vla_op_name(p->op));
    for (int i = 0; i < WIRE_TENSORS; i++)
        if (!vla_size_product((const int64_t[]){p->B, p->H, rows[i], columns[i], size}, 5, &bytes[i]) ||
            bytes[i] > INT64_MAX / 2)
            return vla_fail(error, VLA_ERR_MEMORY, "tensors for another process: beyond 64-bit sizes");
    return VLA_OK;
}

/* The environment of this process with two variables set anew; free() frees the list, *made what it holds of its own.
 */
static char **environment(const vla_worker_start_options *o, char *made[2])
{
    const char *old = getenv("LD_LIBRARY_PATH"), *slash = strrchr(o->library, '/');
    const int folder = slash ? (int)(slash - o->library) : 0;
    int count = 0;
    while (environ[count]) count++;
    char **list = calloc((size_t)count + 3, sizeof *list);
    made[0] = made[1] = NULL;
    if (!list || asprintf(&made[0], "%s=%s", o->variable, o->library) < 0 ||
        asprintf(&made[1], "LD_LIBRARY_PATH=%.*s%s%s", folder, o->library, old && *old ? ":" : "", old ? old : "") <
            0) {
        free(made[0]);
        free(list);
        return NULL;
    }
    int kept = 0;
    list[kept++] = made[0];
    if (folder) list[kept++] = made[1];
    for (int i = 0; i < count; i++) {
        const size_t name = strlen(o->variable);
        const bool again = (!strncmp(environ[i], o->variable, name) && environ[i][name] == '=') ||
                           (folder && !strncmp(environ[i], "LD_LIBRARY_PATH=", 16));
        if (!again) list[kept++] = environ[i];
    }
    return list;
}

/* The socket becomes its standard input; what it may print goes to standard error. */
static int spawn(vla_worker *w, const vla_worker_start_options *o, int theirs)
{
    char *made[2], **list = environment(o, made), *program = strdup(o->program), *word = strdup(o->word);
    posix_spawn_file_actions_t actions;
    int code = ENOMEM;
    if (list && program && word && posix_spawn_file_actions_init(&actions) == 0) {
        char *const arguments[] = {program, word, NULL};
        code = posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
        if (!code) code = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
        if (!code) code = posix_spawn(&w->process, o->program, &actions, NULL, arguments, list);
        posix_spawn_file_actions_destroy(&actions);
    }
    if (list) free(made[0]), free(made[1]);
    free(list);
    free(program);
    free(word);
    return code;
}

vla_status vla_worker_start(vla_worker **result, const vla_worker_start_options *o, vla_error *error)
{
    int pair[2];
    const struct timeval silence = {.tv_sec = SILENCE};
    *result = NULL;
    vla_worker *w = calloc(1, sizeof *w);
    if (!w) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", o->name);
    snprintf(w->name, sizeof w->name, "%s", o->name);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        free(w);
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s: no socket: %s", o->name, strerror(errno));
    }
    const int code = spawn(w, o, pair[1]);
    close(pair[1]);
    if (code) {
        close(pair[0]);
        free(w);
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s: %s cannot be started: %s", o->name, o->program,
                        strerror(code));
    }
    w->socket = pair[0];
    setsockopt(w->socket, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
    *result = w;
    return VLA_OK;
}

/* Without its socket the process ends by itself, once its last run is done. */
void vla_worker_stop(vla_worker *w)
{
    const struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
    if (!w) return;
    close(w->socket);
    const double begun = vla_now();
    pid_t ended;
    while ((ended = waitpid(w->process, NULL, WNOHANG)) == 0 && vla_now() - begun < PATIENCE) nanosleep(&nap, NULL);
    if (ended == 0) {
        kill(w->process, SIGKILL);
        waitpid(w->process, NULL, 0);
    }
    free(w);
}

const char *vla_worker_name(const vla_worker *w)
{
    return w->name;
}

bool vla_worker_alive(const vla_worker *w)
{
    return !w->dead;
}

static vla_status lost(vla_worker *w, vla_error *error)
{
    w->dead = true;
    return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s: its process has ended or does not answer", w->name);
}

/* What failed there is no failure of this process: the case is one that the library cannot run. */
static vla_status answer(vla_worker *w, wire_reply *reply, vla_error *error)
{
    if (!wire_receive(w->socket, reply, sizeof *reply)) return lost(w, error);
    const vla_status status = reply->error.status;
    if (status == VLA_OK) return VLA_OK;
    const bool known = status == VLA_ERR_MEMORY || status == VLA_ERR_NUMERIC;
    return vla_fail(error, known ? status : VLA_ERR_UNSUPPORTED, "%s: %.380s", w->name, reply->error.message);
}

static vla_status ask(vla_worker *w, const wire_request *request, wire_reply *reply, vla_error *error)
{
    if (w->dead || !wire_send(w->socket, request, sizeof *request)) return lost(w, error);
    return answer(w, reply, error);
}

vla_status vla_remote_create(vla_remote **result, vla_worker *w, const vla_remote_job *job, const vla_tensors *host,
                             vla_error *error)
{
    int64_t bytes[WIRE_TENSORS];
    wire_request request;
    wire_reply reply;
    *result = NULL;
    vla_status status = wire_sizes(job, bytes, error);
    if (status) return status;
    vla_remote *r = calloc(1, sizeof *r);
    if (!r) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", w->name);
    memset(&request, 0, sizeof request); /* padding too goes over the socket */
    request.command = WIRE_CREATE;
    request.job = *job;
    const bool sent = !w->dead && wire_send(w->socket, &request, sizeof request) &&
                      wire_send(w->socket, host->q, bytes[WIRE_Q]) && wire_send(w->socket, host->k, bytes[WIRE_K]) &&
                      wire_send(w->socket, host->v, bytes[WIRE_V]);
    status = sent ? answer(w, &reply, error) : lost(w, error);
    if (status) {
        free(r);
        return status;
    }
    r->worker = w, r->slot = reply.slot, r->bytes = reply.bytes;
    r->o = host->o, r->o_bytes = bytes[WIRE_O];
    *result = r;
    return VLA_OK;
}

static wire_request request_of(const vla_remote *r, wire_command command, int64_t number)
{
    wire_request request;
    memset(&request, 0, sizeof request);
    request.command = command;
    request.slot = r->slot;
    request.number = number;
    return request;
}

void vla_remote_destroy(vla_remote *r)
{
    wire_reply reply;
    if (!r) return;
    const wire_request request = request_of(r, WIRE_DESTROY, 0);
    (void)ask(r->worker, &request, &reply, NULL);
    free(r);
}

vla_status vla_remote_run(vla_remote *r, int64_t runs, bool graph, double *seconds, vla_error *error)
{
    wire_reply reply;
    wire_request request = request_of(r, WIRE_RUN, runs);
    request.graph = graph;
    const vla_status status = ask(r->worker, &request, &reply, error);
    if (status) return status;
    if (seconds) *seconds = reply.seconds;
    snprintf(r->label, sizeof r->label, "%.*s", (int)sizeof r->label - 1, reply.label);
    r->bytes = reply.bytes;
    return VLA_OK;
}

vla_status vla_remote_fetch(vla_remote *r, int64_t guard_bytes, vla_error *error)
{
    wire_reply reply;
    const wire_request request = request_of(r, WIRE_FETCH, guard_bytes <= WIRE_GUARD ? guard_bytes : 0);
    const vla_status status = ask(r->worker, &request, &reply, error);
    if (status) return status;
    return wire_receive(r->worker->socket, r->o, r->o_bytes + request.number) ? VLA_OK : lost(r->worker, error);
}

vla_status vla_remote_inputs_intact(const vla_remote *r, bool *intact, vla_error *error)
{
    wire_reply reply;
    const wire_request request = request_of(r, WIRE_INTACT, 0);
    const vla_status status = ask(r->worker, &request, &reply, error);
    *intact = status == VLA_OK && reply.intact;
    return status;
}

int64_t vla_remote_bytes(const vla_remote *r)
{
    return r->bytes;
}

const char *vla_remote_label(const vla_remote *r)
{
    return r->label;
}
