#include "lib/report/plot.h"
#include "lib/base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { patience_s = 60 };

static bool hidden(const char *entry)
{
    static const char *const names[] = {"LC_ALL=", "DISPLAY=", "WAYLAND_DISPLAY=", "GNUTERM="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* The environment in the C locale and without a display. Entries are shared with environ. */
static char **plain_environment(char *locale)
{
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **list = calloc(count + 2, sizeof *list);
    for (size_t i = 0; list && i < count; i++)
        if (!hidden(environ[i])) list[kept++] = environ[i];
    if (list) list[kept] = locale;
    return list;
}

static int start(const char *script, int out, pid_t *pid)
{
    char program[] = "gnuplot", defaults[] = "-d", locale[] = "LC_ALL=C.UTF-8";
    char *argv[] = {program, defaults, (char *)(uintptr_t)script, NULL};
    char **environment = plain_environment(locale);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t usual;
    if (!environment) return ENOMEM;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE); /* ignored here, not there */
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    int code = posix_spawnp(pid, program, &actions, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    return code;
}

/* Reads what gnuplot says until it closes its end; false when it takes too long. */
static bool listen_to(int in, char *said, size_t size)
{
    double deadline = vla_now() + patience_s;
    size_t used = 0;
    for (;;) {
        struct pollfd wait = {.fd = in, .events = POLLIN};
        double left = deadline - vla_now();
        if (left <= 0) return false;
        if (poll(&wait, 1, (int)(left * 1000) + 1) <= 0) continue;
        char chunk[512];
        ssize_t n = read(in, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        size_t take = (size_t)n < size - 1 - used ? (size_t)n : size - 1 - used;
        memcpy(said + used, chunk, take);
        used += take;
    }
    said[used] = '\0';
    return true;
}

/* The line that says most: the first with letters that is neither an echo of the script nor a caret below it. */
static void first_line(const char *said, char *line, size_t size)
{
    const char *best = said;
    for (const char *p = said; *p;) {
        size_t length = strcspn(p, "\n");
        if (length > 4 && (strstr(p, "line ") == p || *p == '"' || strncmp(p, "this gnuplot", 12) == 0)) {
            best = p;
            break;
        }
        p += length + (p[length] == '\n');
    }
    snprintf(line, size, "%.*s", (int)strcspn(best, "\n"), best);
}

/* DIR/NAME.gp -> DIR/NAME.png */
static char *picture_path(const char *script, const char *extension)
{
    char *path;
    return asprintf(&path, "%.*s%s", (int)strlen(script) - 2, script, extension) < 0 ? NULL : path;
}

static bool is_there(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && info.st_size > 0;
}

static bool run(const char *script, char *why, size_t size)
{
    int ends[2];
    pid_t pid;
    char said[4096] = "";
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(why, size, "cannot run gnuplot: %s", strerror(errno));
        return false;
    }
    int code = start(script, ends[1], &pid);
    close(ends[1]);
    if (code != 0) {
        close(ends[0]);
        snprintf(why, size,
                 code == ENOENT ? "gnuplot is not installed (package gnuplot-nox)" : "cannot run gnuplot: %s",
                 strerror(code));
        return false;
    }
    bool in_time = listen_to(ends[0], said, sizeof said);
    close(ends[0]);
    if (!in_time) kill(pid, SIGKILL);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (!in_time)
        snprintf(why, size, "gnuplot took more than %d s", patience_s);
    else if (status != 0 || *said)
        first_line(said, why, size);
    if (in_time && status != 0 && !*why) {
        bool signalled = WIFSIGNALED(status);
        snprintf(why, size, "gnuplot %s %d", signalled ? "was ended by signal" : "failed with status",
                 signalled ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    return in_time && status == 0;
}

bool vla_plot_render(const char *script, char *note, size_t note_size)
{
    char why[256] = "", *picture = picture_path(script, "png"), *paper = picture_path(script, "pdf"), *dashed = NULL;
    bool done = false;
    if (picture && paper) {
        unlink(picture);
        unlink(paper);
        /* a name that begins with '-' would be taken for an option */
        bool option = *script == '-' && asprintf(&dashed, "./%s", script) >= 0;
        done = run(option ? dashed : script, why, sizeof why);
        if (done && !(is_there(picture) && is_there(paper))) {
            done = false;
            if (!*why) snprintf(why, sizeof why, "gnuplot wrote no picture");
        }
    }
    if (!done && note && note_size) snprintf(note, note_size, "%s: not rendered: %s", script, why);
    free(picture);
    free(paper);
    free(dashed);
    return done;
}
