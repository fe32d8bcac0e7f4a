/* Progress on stderr: a bar on a terminal, nothing elsewhere; colour only without NO_COLOR; interruption as a flag. */
#ifndef VLA_CLI_PROGRESS_H
#define VLA_CLI_PROGRESS_H
#include "lib/vla.h"
#include <stdio.h>

/* Whether stream is a terminal that wants colour (NO_COLOR unset or empty, TERM not dumb). */
bool vla_colour(FILE *stream);

typedef struct vla_progress {
    bool bar, quiet;
    double started, shown; /* monotonic seconds */
    char label[96];
} vla_progress;

vla_progress vla_progress_start(bool quiet);
/* done of total (any unit); label is what runs now. Redraws at most ten times a second. */
void vla_progress_update(vla_progress *progress, const char *label, double done, double total);
void vla_progress_clear(vla_progress *progress);
/* A line on stderr that does not tear the bar: "PROGRAM: warning: ..." */
void vla_progress_note(vla_progress *progress, const char *format, ...) VLA_PRINTF(2, 3);

/* The last line of every program, which scripts may rely on: "run N, passed N, skipped N, failed N" on stderr. run is
 * the sum; skipped counts timeouts and what did not fit in memory too. */
void vla_closing_line(int64_t passed, int64_t skipped, int64_t failed);

/* Installs handlers for SIGINT, SIGTERM and (unless ignored, as under nohup) SIGHUP that set a flag; a second signal
 * ends the process as usual. SIGPIPE and
 * SIGXFSZ are ignored so that a closed pipe or a full file is a write error. The flag is the only process-wide
 * variable, for signal safety. */
void vla_interrupt_install(void);
bool vla_interrupted(void);

#endif
