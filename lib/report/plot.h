/* Running gnuplot on a script. Internal to lib/report. */
#ifndef VLA_REPORT_PLOT_H
#define VLA_REPORT_PLOT_H
#include "lib/vla.h"

/* Runs gnuplot (found on PATH, no shell) on DIR/NAME.gp, which writes NAME.png and NAME.pdf beside itself. True when
 * both are there afterwards; else note (may be NULL) gets one line saying why not. Earlier pictures are removed first,
 * so that none survives its data. */
bool vla_plot_render(const char *script, char *note, size_t note_size);

#endif
