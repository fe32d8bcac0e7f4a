#include "lib/cli/progress.h"
#include "lib/base/clock.h"
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool dumb_terminal(void)
{
    const char *term = getenv("TERM");
    return !term || strcmp(term, "dumb") == 0;
}

bool vla_colour(FILE *stream)
{
    const char *off = getenv("NO_COLOR");
    return !(off && *off) && !dumb_terminal() && isatty(fileno(stream));
}

vla_progress vla_progress_start(bool quiet)
{
    return (vla_progress){.bar = !quiet && vla_colour(stderr), .quiet = quiet, .started = vla_now()};
}

void vla_progress_clear(vla_progress *progress)
{
    if (!progress->bar || progress->shown == 0) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->shown = 0;
}

static void draw(const vla_progress *progress, double share, double seconds)
{
    enum { width = 24 };
    char bar[width + 1];
    int full = (int)(share * width);
    for (int i = 0; i < width; i++) bar[i] = i < full ? '#' : '.';
    bar[width] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3d %%  %.0f s  %s", bar, (int)(100 * share), seconds, progress->label);
    fflush(stderr);
}

void vla_progress_update(vla_progress *progress, const char *label, double done, double total)
{
    if (!progress->bar) return;
    double now = vla_now();
    if (progress->shown > 0 && now - progress->shown < 0.1 && done < total) return;
    snprintf(progress->label, sizeof progress->label, "%.60s", label ? label : "");
    double share = total > 0 ? done / total : 0;
    draw(progress, share < 0 ? 0 : share > 1 ? 1 : share, now - progress->started);
    progress->shown = now;
}

void vla_closing_line(int64_t passed, int64_t skipped, int64_t failed)
{
    fprintf(stderr, "run %lld, passed %lld, skipped %lld, failed %lld\n", (long long)(passed + skipped + failed),
            (long long)passed, (long long)skipped, (long long)failed);
}

void vla_progress_note(vla_progress *progress, const char *format, ...)
{
    bool bar = progress->bar && progress->shown > 0;
    if (bar) fputs("\r\033[K", stderr);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    progress->shown = 0;
}

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1; /* SA_RESETHAND: a second signal ends the process */
}

void vla_interrupt_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction before; /* under nohup a hang-up stays ignored */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* a file size limit is a write error too */
}

bool vla_interrupted(void)
{
    return interrupted != 0;
}
