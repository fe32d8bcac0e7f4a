#include "lib/device/cudnn.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIBRARY "libcudnn.so.9"
/* Seconds that loading one file may take. */
enum { PATIENCE = 20 };

/* What a child says of the file it loaded. */
typedef struct answer {
    size_t number;
    char path[PATH_MAX];
} answer;

/* Files to ask, in order; a name without a slash is the linker's. */
typedef struct candidates {
    char **names;
    size_t count, capacity;
    bool failed; /* out of memory */
} candidates;

static void add(candidates *c, const char *name)
{
    char real[PATH_MAX];
    if (strchr(name, '/')) {
        if (!realpath(name, real)) return;
        name = real;
    }
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->names[i], name)) return;
    if (c->count == c->capacity) {
        const size_t capacity = c->capacity ? 2 * c->capacity : 16;
        char **names = realloc(c->names, capacity * sizeof *names);
        if (!names) {
            c->failed = true;
            return;
        }
        c->names = names, c->capacity = capacity;
    }
    char *copy = strdup(name);
    if (copy)
        c->names[c->count++] = copy;
    else
        c->failed = true;
}

/* Every file that prefix, taken as it is, and pattern match together. */
static void add_matches(candidates *c, const char *prefix, const char *pattern)
{
    char text[2 * PATH_MAX];
    size_t used = 0;
    glob_t found;
    for (; *prefix && used + 2 < PATH_MAX; prefix++) {
        if (strchr("*?[\\", *prefix)) text[used++] = '\\';
        text[used++] = *prefix;
    }
    snprintf(text + used, sizeof text - used, "%s/" LIBRARY, pattern);
    if (glob(text, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) add(c, found.gl_pathv[i]);
    globfree(&found);
}

/* The package nvidia-cudnn of a Python installation, and a cuDNN that is simply among its libraries (conda). */
static void add_python(candidates *c, const char *prefix)
{
    add_matches(c, prefix, "/lib/python3*/site-packages/nvidia/cudnn/lib");
    add_matches(c, prefix, "/lib/python3*/dist-packages/nvidia/cudnn/lib");
    add_matches(c, prefix, "/lib");
}

/* Calls visit with every folder of a list with colons between; an empty one is the working folder, and left out. */
static void each_folder(const char *list, void (*visit)(candidates *c, const char *folder), candidates *c)
{
    char folder[PATH_MAX];
    while (list && *list) {
        const size_t length = strcspn(list, ":");
        if (length > 0 && length < sizeof folder) {
            memcpy(folder, list, length);
            folder[length] = '\0';
            visit(c, folder);
        }
        list += length + (list[length] == ':');
    }
}

static void add_folder(candidates *c, const char *folder)
{
    add_matches(c, folder, "");
}

/* PREFIX/bin with a python3, or a link to the one of another prefix. */
static void add_python_of(candidates *c, const char *folder)
{
    char name[PATH_MAX + 16], real[PATH_MAX];
    snprintf(name, sizeof name, "%s/python3", folder);
    if (access(name, X_OK) != 0) return;
    snprintf(name, sizeof name, "%s/..", folder);
    add_python(c, name);
    snprintf(name, sizeof name, "%s/python3", folder);
    if (!realpath(name, real)) return;
    for (int i = 0; i < 2; i++) { /* PREFIX of PREFIX/bin/python3.12 */
        char *slash = strrchr(real, '/');
        if (slash) *slash = '\0';
    }
    add_python(c, real);
}

static void collect(candidates *c, const vla_cudnn_places *p)
{
    static const char *const usual[] = {"/usr/lib/x86_64-linux-gnu",
                                        "/usr/lib/aarch64-linux-gnu",
                                        "/usr/lib64",
                                        "/usr/local/lib",
                                        "/usr/local/cuda/lib64",
                                        "/usr/local/cuda/targets/*-linux/lib",
                                        "/usr/local/cuda-*/lib64"};
    char prefix[PATH_MAX];
    if (p->named && *p->named) {
        add(c, p->named);
        return;
    }
    if (p->linker) add(c, LIBRARY);
    each_folder(p->library_path, add_folder, c);
    if (p->root) {
        for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) add_matches(c, p->root, usual[i]);
        snprintf(prefix, sizeof prefix, "%s/usr", p->root);
        add_python(c, prefix);
        snprintf(prefix, sizeof prefix, "%s/usr/local", p->root);
        add_python(c, prefix);
    }
    if (p->virtual_env && *p->virtual_env) add_python(c, p->virtual_env);
    if (p->conda && *p->conda) add_python(c, p->conda);
    if (p->home && *p->home) {
        snprintf(prefix, sizeof prefix, "%s/.local", p->home);
        add_python(c, prefix);
    }
    each_folder(p->path, add_python_of, c);
}

/* In the child: loads the file, its main part first where that lies beside it, so that no other version's is taken. */
static void tell(int to, const char *name)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    answer a = {0};
    char part[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) signal(fatal[i], SIG_DFL); /* the parent's are not ours */
    const char *slash = strrchr(name, '/');
    if (slash) {
        snprintf(part, sizeof part, "%.*s/libcudnn_graph.so.9", (int)(slash - name), name);
        (void)dlopen(part, RTLD_LAZY | RTLD_LOCAL);
    }
    size_t (*version)(void) = NULL;
    Dl_info where;
    void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library) *(void **)&version = dlsym(library, "cudnnGetVersion");
    if (!version) _exit(1);
    a.number = version();
    const bool linked = !slash && dladdr(*(void **)&version, &where) && realpath(where.dli_fname, a.path);
    if (!linked) snprintf(a.path, sizeof a.path, "%s", name);
    _exit(write(to, &a, sizeof a) == (ssize_t)sizeof a ? 0 : 1);
}

/* Whole answers only, within the time. */
static bool hear(int from, answer *a)
{
    size_t got = 0;
    const double begun = vla_now();
    while (got < sizeof *a) {
        struct pollfd ready = {.fd = from, .events = POLLIN};
        const double left = PATIENCE - (vla_now() - begun);
        const int n = left > 0 ? poll(&ready, 1, (int)(1000 * left) + 1) : 0;
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        const ssize_t more = read(from, (char *)a + got, sizeof *a - got);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) return false;
        got += (size_t)more;
    }
    return true;
}

static bool ask(const char *name, answer *a)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        tell(ends[1], name);
    }
    close(ends[1]);
    const bool heard = child > 0 && hear(ends[0], a);
    close(ends[0]);
    if (child > 0) {
        if (!heard) kill(child, SIGKILL);
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    }
    return heard && a->number >= 90000 && a->number < 100000;
}

static bool keep(vla_cudnn_versions *v, const answer *a)
{
    for (int i = 0; i < v->count; i++)
        if (v->items[i].number == (int)a->number) return true;
    vla_cudnn_version *items = realloc(v->items, (size_t)(v->count + 1) * sizeof *items);
    if (!items) return false;
    v->items = items;
    vla_cudnn_version *one = &items[v->count];
    one->number = (int)a->number;
    snprintf(one->version, sizeof one->version, "%d.%d.%d", one->number / 10000, one->number / 100 % 100,
             one->number % 100);
    one->path = strdup(a->path);
    if (!one->path) return false;
    v->count++;
    return true;
}

vla_cudnn_places vla_cudnn_places_here(void)
{
    return (vla_cudnn_places){.named = getenv("VLA_CUDNN"),
                              .linker = true,
                              .library_path = getenv("LD_LIBRARY_PATH"),
                              .root = "",
                              .virtual_env = getenv("VIRTUAL_ENV"),
                              .conda = getenv("CONDA_PREFIX"),
                              .home = getenv("HOME"),
                              .path = getenv("PATH")};
}

vla_status vla_cudnn_find(vla_cudnn_versions *versions, const vla_cudnn_places *places, vla_error *error)
{
    candidates c = {0};
    answer *a = calloc(1, sizeof *a);
    bool kept = a != NULL;
    collect(&c, places);
    for (size_t i = 0; kept && i < c.count; i++) {
        bool known = false;
        for (int j = 0; j < versions->count; j++) known |= !strcmp(versions->items[j].path, c.names[i]);
        if (!known && ask(c.names[i], a)) kept = keep(versions, a);
    }
    const bool failed = c.failed || !kept;
    for (size_t i = 0; i < c.count; i++) free(c.names[i]);
    free(c.names);
    free(a);
    return failed ? vla_fail(error, VLA_ERR_MEMORY, "cuDNN: out of memory") : VLA_OK;
}

void vla_cudnn_versions_free(vla_cudnn_versions *versions)
{
    for (int i = 0; i < versions->count; i++) free(versions->items[i].path);
    free(versions->items);
    *versions = (vla_cudnn_versions){0};
}
