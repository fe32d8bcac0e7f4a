/* Figures as data plus a stand-alone gnuplot script: DIR/NAME.gp, DIR/NAME.dat, rendered to NAME.png and NAME.pdf. */
#ifndef VLA_FIGURE_H
#define VLA_FIGURE_H
#include "lib/vla.h"

typedef enum vla_mark {
    VLA_LINES,
    VLA_POINTS,
    VLA_LINESPOINTS,
    VLA_QUARTILES /* line with low/high bars */,
    VLA_BAND /* filled between low and high */,
    VLA_BOXES /* histogram */,
    VLA_DASHED
} vla_mark;

typedef struct vla_series {
    const char *title; /* plain text: escaped for gnuplot by the writer; NULL: not in the key */
    vla_mark mark;
    int64_t count;
    const double *x, *y;      /* non-finite points, and non-positive ones on log axes, are left out */
    const double *low, *high; /* VLA_QUARTILES, VLA_BAND; may be NULL otherwise */
} vla_series;

typedef struct vla_vertical { /* a labelled vertical line or, with hi > lo, a band: a crossover */
    double lo, hi;
    const char *label;
} vla_vertical;

typedef struct vla_figure {
    const char *name, *title, *x_label, *y_label; /* labels carry units: "latency (s)" */
    bool log_x, log_y, log2_x;                    /* log2_x: base-2 tics for token counts */
    const vla_series *series;
    int series_count;
    const vla_vertical *verticals;
    int vertical_count;
    const double *horizontals; /* thin reference lines */
    int horizontal_count;
    const char *caption;        /* small line below: machine, shape, dtype */
    const char *const *x_names; /* instead of numbers at x = 0, 1, ..: the names of boxes; may be NULL */
    int x_name_count;
} vla_figure;

/* Writes data and script (C locale), then renders where gnuplot is on PATH. *rendered tells; note (may be NULL) gets
 * one line saying why not. Empty series and all-empty figures are written and render to an empty frame. */
vla_status vla_figure_write(const char *directory, const vla_figure *figure, bool *rendered, char *note,
                            size_t note_size, vla_error *error);

#endif
