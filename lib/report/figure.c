/* Figures: a data file of blocks, and the gnuplot script that plots them. The script finds its data by its own path
 * (ARG0), so that it runs from any directory; everything a caller names is in single quotes and not "enhanced", so that
 * gnuplot takes no character of it for a command. */
#include "lib/report/figure.h"
#include "lib/base/file.h"
#include "lib/base/number.h"
#include "lib/base/status.h"
#include "lib/report/plot.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct extent {
    double low, high; /* low > high: nothing yet */
} extent;

static bool plottable(double value, bool logarithmic)
{
    return isfinite(value) && (!logarithmic || value > 0);
}

static bool log_x(const vla_figure *f)
{
    return f->log_x || f->log2_x;
}

static bool is_shown(const vla_figure *f, const vla_series *s, int64_t i)
{
    return plottable(s->x[i], log_x(f)) && plottable(s->y[i], f->log_y);
}

static bool is_empty(const vla_figure *f, const vla_series *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (is_shown(f, s, i)) return false;
    return true;
}

/* A bar's end, or the point itself where the end is missing or cannot be drawn. */
static double bar_end(const vla_figure *f, const double *ends, const vla_series *s, int64_t i)
{
    return ends && plottable(ends[i], f->log_y) ? ends[i] : s->y[i];
}

static void include(extent *e, double value)
{
    if (value < e->low) e->low = value;
    if (value > e->high) e->high = value;
}

static void measure(const vla_figure *f, extent *x, extent *y)
{
    *x = *y = (extent){INFINITY, -INFINITY};
    for (int k = 0; k < f->series_count; k++) {
        const vla_series *s = &f->series[k];
        for (int64_t i = 0; i < s->count; i++) {
            if (!is_shown(f, s, i)) continue;
            include(x, s->x[i]);
            include(y, s->y[i]);
            include(y, bar_end(f, s->low, s, i));
            include(y, bar_end(f, s->high, s, i));
            if (s->mark == VLA_BOXES && !f->log_y) include(y, 0);
        }
    }
    for (int k = 0; k < f->horizontal_count; k++)
        if (plottable(f->horizontals[k], f->log_y)) include(y, f->horizontals[k]);
    for (int k = 0; k < f->vertical_count; k++)
        if (plottable(f->verticals[k].lo, log_x(f))) include(x, f->verticals[k].lo);
}

static void write_number(FILE *out, double value)
{
    char text[VLA_NUMBER_SIZE];
    fputs(vla_number_text(value, text), out);
}

/* Text in gnuplot's single quotes, in which only the quote itself is special. */
static void write_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; text && *text; text++) {
        if (*text == '\'') fputc('\'', out);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, out);
    }
    fputc('\'', out);
}

static void write_data(FILE *out, const vla_figure *f)
{
    int block = 0;
    fputs("# blocks of x y low high, one a series, in the order of the script\n", out);
    for (int k = 0; k < f->series_count; k++) {
        const vla_series *s = &f->series[k];
        if (is_empty(f, s)) continue;
        fputs(block++ ? "\n\n" : "", out);
        for (int64_t i = 0; i < s->count; i++) {
            if (!is_shown(f, s, i)) continue;
            const double row[4] = {s->x[i], s->y[i], bar_end(f, s->low, s, i), bar_end(f, s->high, s, i)};
            for (int c = 0; c < 4; c++) {
                write_number(out, row[c]);
                fputc(c < 3 ? ' ' : '\n', out);
            }
        }
    }
}

static void write_head(FILE *out)
{
    fputs("# Stand-alone: run `gnuplot` on this file from any directory; it reads the .dat file beside it and writes\n"
          "# a .png and a .pdf beside it.\n"
          "prefix = ''\n"
          "do for [i=1:strlen(ARG0)] { if (ARG0[i:i] eq '/') { prefix = ARG0[1:i] } }\n"
          "png = strstrt(GPVAL_TERMINALS, ' pngcairo ') ? 'pngcairo' : strstrt(GPVAL_TERMINALS, ' png ') ? 'png' : ''\n"
          "pdf = strstrt(GPVAL_TERMINALS, ' pdfcairo ') ? 'pdfcairo' : ''\n"
          "if (png eq '') { print 'this gnuplot has no PNG terminal: install gnuplot-nox' }\n"
          "if (pdf eq '') { print 'this gnuplot has no PDF terminal: install gnuplot-nox' }\n"
          "if (png eq '' && pdf eq '') { exit status 3 }\n"
          "set encoding utf8\n"
          "set border 3 linewidth 0.6 linecolor rgb '#404040'\n"
          "set tics nomirror out scale 0.6,0.3 font ',7' textcolor rgb '#202020'\n"
          "set grid xtics ytics linetype 1 linewidth 0.4 linecolor rgb '#e4e4e4'\n"
          "set format '%g'\n"
          "set bars 0.5\n"
          "set boxwidth 0.8 relative\n"
          "set style fill solid 0.55 noborder\n",
          out);
}

static void write_text(FILE *out, const char *what, const char *text, const char *rest)
{
    if (!text || !*text) return;
    fprintf(out, "set %s ", what);
    write_quoted(out, text);
    fprintf(out, " noenhanced%s\n", rest);
}

enum { caption_width = 100, caption_lines = 3 };
enum { key_width = 70, key_sample = 8 }; /* characters across the figure; those a sample takes */

/* Lines of the caption, broken at spaces; returns how many. */
static int split_caption(const char *text, char lines[caption_lines][caption_width + 1])
{
    int count = 0;
    if (!text) return 0;
    while (*text && count < caption_lines) {
        size_t length = strlen(text), take = length;
        if (length > caption_width) {
            take = caption_width;
            while (take > 0 && text[take] != ' ') take--;
            if (take == 0) take = caption_width;
        }
        snprintf(lines[count++], caption_width + 1, "%.*s", (int)take, text);
        text += take;
        while (*text == ' ') text++;
    }
    return count;
}

static void write_texts(FILE *out, const vla_figure *f)
{
    char lines[caption_lines][caption_width + 1];
    int count = split_caption(f->caption, lines);
    char number[VLA_NUMBER_SIZE];
    write_text(out, "label 99", f->title, " at screen 0.5, screen 0.965 center");
    write_text(out, "xlabel", f->x_label, " offset 0,0.5 font ',7.5'");
    write_text(out, "ylabel", f->y_label, " offset 1.2,0 font ',7.5'");
    if (count) fprintf(out, "set bmargin %s\n", vla_number_short(3.2 + 0.75 * count, 3, number));
    for (int i = 0; i < count; i++) {
        fprintf(out, "set label %d ", 100 + i);
        write_quoted(out, lines[i]);
        fprintf(out, " at screen 0.5, screen %s center noenhanced font ',5' textcolor rgb '#606060'\n",
                vla_number_short(0.025 + 0.03 * (count - 1 - i), 3, number));
    }
}

/* The key stands between title and frame, in as many columns as its titles leave room for. */
static void write_key(FILE *out, const vla_figure *f)
{
    char number[VLA_NUMBER_SIZE];
    int entries = 0, widest = 0;
    for (int k = 0; k < f->series_count; k++) {
        const vla_series *s = &f->series[k];
        if (!s->title || is_empty(f, s)) continue;
        int width = (int)strlen(s->title);
        if (width > widest) widest = width;
        entries++;
    }
    int columns = entries ? key_width / (widest + key_sample) : 1;
    columns = columns < 1 ? 1 : columns > entries && entries ? entries : columns;
    int rows = (entries + columns - 1) / columns;
    bool titled = f->title && *f->title;
    fprintf(out,
            "set key at screen 0.53, screen %s center top horizontal Left reverse samplen 2.4 spacing 0.9 width %d "
            "maxcols %d noenhanced font ',6.5'\n",
            vla_number_short(titled ? 0.935 : 0.985, 3, number), columns > 1 ? -widest / 8 : 0, columns);
    fprintf(out, "set tmargin %s\n", vla_number_short((titled ? 1.6 : 0.6) + 0.85 * rows, 3, number));
}

/* "128", "1k", "4k", "1M": powers of two as token counts are written. */
static const char *size_label(double value, char *buffer, size_t size)
{
    char number[VLA_NUMBER_SIZE];
    const char *suffix = value >= 1048576 ? "M" : value >= 1024 ? "k" : "";
    double unit = value >= 1048576 ? 1048576 : value >= 1024 ? 1024 : 1;
    snprintf(buffer, size, "%s%s", vla_number_short(value / unit, 4, number), suffix);
    return buffer;
}

static void write_log2_tics(FILE *out, extent x)
{
    char label[48];
    int first = (int)ceil(log2(x.low) - 1e-9), last = (int)floor(log2(x.high) + 1e-9);
    int step = (last - first) / 8 + 1;
    const char *comma = "";
    fputs("set xtics (", out);
    for (int power = first; power <= last; power += step, comma = ", ") {
        fprintf(out, "%s'%s' ", comma, size_label(exp2(power), label, sizeof label));
        write_number(out, exp2(power));
    }
    fputs(")\n", out);
}

/* Within a factor of five, marks so close that a few of them fall inside; less than two decades: 1-2-5, both with plain
 * numbers; more: powers of ten. */
static void write_log_tics(FILE *out, char axis, extent e)
{
    fprintf(out, "set logscale %c\n", axis);
    if (!(e.low <= e.high) || e.high / e.low > 60) {
        fprintf(out, "set format %c '10^{%%L}'\nset m%ctics 10\n", axis, axis);
        return;
    }
    char number[VLA_NUMBER_SIZE];
    const char *comma = "";
    fprintf(out, "set %ctics (", axis);
    for (int power = (int)floor(log10(e.low)) - 1; power <= (int)ceil(log10(e.high)); power++) {
        static const double near[] = {1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 0}, far[] = {1, 2, 5, 0};
        for (const double *step = e.high / e.low > 5 ? far : near; *step > 0; step++) {
            double value = *step * pow(10, power);
            if (value < e.low / 1.6 || value > e.high * 1.6) continue;
            if (value >= 1 && value < 1e6)
                snprintf(number, sizeof number, "%.*f", value < 10 && value != floor(value) ? 1 : 0, value);
            else
                vla_number_short(value, 3, number);
            fprintf(out, "%s'%s' %s", comma, number, number);
            comma = ", ";
        }
    }
    fputs(")\n", out);
}

static void write_range(FILE *out, char axis, double low, double high)
{
    fprintf(out, "set %crange [", axis);
    write_number(out, low);
    fputc(':', out);
    write_number(out, high);
    fputs("]\n", out);
}

/* Room around the data: a share of its extent, in the axis's own scale. Boxes stand on 0. */
static void write_axis(FILE *out, char axis, extent e, bool logarithmic, double share)
{
    if (!(e.low <= e.high)) { /* nothing to show: an empty frame */
        write_range(out, axis, 1, 10);
        return;
    }
    if (logarithmic) {
        double room = pow(e.high / e.low, share);
        if (room < 1.15) room = 1.15;
        if (isfinite(e.high * room) && e.low / room > 0) write_range(out, axis, e.low / room, e.high * room);
        return;
    }
    double room = (e.high - e.low) * share;
    if (room == 0) room = e.high != 0 ? fabs(e.high) * 0.1 : 1;
    if (isfinite(e.low - room) && isfinite(e.high + room))
        write_range(out, axis, e.low >= 0 && e.low < room ? 0 : e.low - room, e.high + room);
}

static void write_names(FILE *out, const vla_figure *f)
{
    if (f->x_name_count < 1) return;
    fputs("set xtics noenhanced (", out);
    for (int i = 0; i < f->x_name_count; i++) {
        fputs(i ? ", " : "", out);
        write_quoted(out, f->x_names[i]);
        fprintf(out, " %d", i);
    }
    fputs(")\n", out);
}

static void write_axes(FILE *out, const vla_figure *f, extent x, extent y)
{
    bool boxes = false;
    for (int k = 0; k < f->series_count; k++) boxes = boxes || f->series[k].mark == VLA_BOXES;
    if (f->log2_x)
        fputs("set logscale x 2\n", out);
    else if (f->log_x)
        write_log_tics(out, 'x', x);
    if (f->log2_x && x.low <= x.high) write_log2_tics(out, x);
    if (f->log_y) write_log_tics(out, 'y', y);
    if (boxes && !log_x(f) && x.low <= x.high)
        write_range(out, 'x', x.low - 0.6, x.high + 0.6);
    else
        write_axis(out, 'x', x, log_x(f), 0.03);
    write_names(out, f);
    write_axis(out, 'y', y, f->log_y, 0.05);
}

/* Where value lies between the ends of the axis, 0 to 1. */
static double position(double value, extent e, bool logarithmic)
{
    if (!(e.low < e.high)) return 0.5;
    return logarithmic ? log(value / e.low) / log(e.high / e.low) : (value - e.low) / (e.high - e.low);
}

static void write_vertical(FILE *out, const vla_figure *f, const vla_vertical *v, int i, extent x)
{
    if (!plottable(v->lo, log_x(f))) return;
    bool band = isfinite(v->hi) && v->hi > v->lo;
    const double ends[2] = {v->lo, v->hi};
    if (band) {
        fprintf(out, "set object %d rectangle from first ", i + 1);
        write_number(out, v->lo);
        fputs(", graph 0 to first ", out);
        write_number(out, v->hi);
        fputs(", graph 1 behind fillcolor rgb '#b0b0b0' fillstyle solid 0.35 noborder\n", out);
    }
    for (int e = 0; e < (band ? 2 : 1); e++) {
        fputs("set arrow from first ", out);
        write_number(out, ends[e]);
        fputs(", graph 0 to first ", out);
        write_number(out, ends[e]);
        fputs(", graph 1 nohead linewidth 0.7 dashtype 2 linecolor rgb '#606060'\n", out);
    }
    if (!v->label || !*v->label) return;
    char number[VLA_NUMBER_SIZE];
    bool left_of = position(v->lo, x, log_x(f)) > 0.5;
    fprintf(out, "set label %d ", i + 1);
    write_quoted(out, v->label);
    fputs(" at first ", out);
    write_number(out, band && !left_of ? v->hi : v->lo);
    fprintf(out, ", graph %s %s noenhanced front font ',6.5' textcolor rgb '#404040' offset %s,0\n",
            vla_number_short(0.05 + 0.07 * (i % 10), 3, number), left_of ? "right" : "left", left_of ? "-0.5" : "0.5");
}

static void write_marks(FILE *out, const vla_figure *f, extent x)
{
    for (int i = 0; i < f->vertical_count; i++) write_vertical(out, f, &f->verticals[i], i, x);
    for (int i = 0; i < f->horizontal_count; i++) {
        if (!plottable(f->horizontals[i], f->log_y)) continue;
        fputs("set arrow from graph 0, first ", out);
        write_number(out, f->horizontals[i]);
        fputs(" to graph 1, first ", out);
        write_number(out, f->horizontals[i]);
        fputs(" nohead linewidth 0.7 dashtype 3 linecolor rgb '#606060'\n", out);
    }
}

/* Okabe and Ito's colours, without yellow, which white paper swallows. */
static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"};
enum { colour_count = sizeof colours / sizeof *colours };

static int operator_of(const char *title)
{
    static const char *const ops[] = {"vla", "softmax", "linear", "delta", "decay", "rls"};
    for (int i = 0; title && i < (int)(sizeof ops / sizeof *ops); i++) {
        size_t length = strlen(ops[i]);
        if (strncmp(title, ops[i], length) == 0 && (title[length] == '\0' || strchr(" ,/:(", title[length]))) return i;
    }
    return -1;
}

/* An operator, by which a title begins, has the same colour in every figure; other series take what is left, in order,
 * and reference lines are grey. */
static const char *colour_of(const vla_figure *f, int k)
{
    bool taken[colour_count] = {false};
    int own = operator_of(f->series[k].title), left = 0, rank = 0;
    if (own >= 0) return colours[own];
    if (f->series[k].mark == VLA_DASHED) return "#707070";
    for (int i = 0; i < f->series_count; i++) {
        int op = operator_of(f->series[i].title);
        if (op >= 0)
            taken[op] = true;
        else if (i < k && f->series[i].mark != VLA_DASHED)
            rank++;
    }
    for (int i = 0; i < colour_count; i++) left += !taken[i];
    rank %= left;
    for (int i = 0; i < colour_count; i++)
        if (!taken[i] && rank-- == 0) return colours[i];
    return colours[0];
}

static void write_title(FILE *out, const vla_series *s)
{
    if (!s->title) {
        fputs(" notitle", out);
        return;
    }
    fputs(" title ", out);
    write_quoted(out, s->title);
}

static void write_style(FILE *out, const vla_figure *f, int k)
{
    static const int points[] = {7, 5, 9, 11, 13, 6, 4, 8, 10, 12};
    static const char *const dashes[] = {"1", "(9,3)", "(3,2)", "(9,3,2,3)", "(6,2,2,2,2,2)"};
    const char *colour = colour_of(f, k), *dash = dashes[k % 5];
    int point = points[k % 10];
    switch (f->series[k].mark) {
    case VLA_BAND:
    case VLA_LINES:
        fprintf(out, "with lines dashtype %s linewidth 1.3 linecolor rgb '%s'", dash, colour);
        break;
    case VLA_DASHED:
        fprintf(out, "with lines dashtype (5,4) linewidth 1.0 linecolor rgb '%s'", colour);
        break;
    case VLA_POINTS:
        fprintf(out, "with points pointtype %d pointsize 0.4 linecolor rgb '%s'", point, colour);
        break;
    case VLA_LINESPOINTS:
    case VLA_QUARTILES:
        fprintf(out, "with %s dashtype %s linewidth 1.2 pointtype %d pointsize 0.4 linecolor rgb '%s'",
                f->series[k].mark == VLA_QUARTILES ? "yerrorlines" : "linespoints", dash, point, colour);
        break;
    case VLA_BOXES:
        fprintf(out, "with boxes fillcolor rgb '%s'", colour);
        break;
    }
}

static void write_series(FILE *out, const vla_figure *f, const char *data, int k, int block)
{
    const vla_series *s = &f->series[k];
    if (s->mark == VLA_BAND) {
        fputs("prefix.", out);
        write_quoted(out, data);
        fprintf(
            out,
            " index %d using 1:3:4 with filledcurves fillstyle transparent solid 0.2 fillcolor rgb '%s' notitle, \\\n"
            "     ",
            block, colour_of(f, k));
    }
    fputs("prefix.", out);
    write_quoted(out, data);
    fprintf(out, " index %d using %s ", block, s->mark == VLA_QUARTILES ? "1:2:3:4" : "1:2");
    write_style(out, f, k);
    write_title(out, s);
}

static void write_plot(FILE *out, const vla_figure *f)
{
    char *data;
    int block = 0;
    if (asprintf(&data, "%s.dat", f->name) < 0) return;
    for (int k = 0; k < f->series_count; k++) {
        if (is_empty(f, &f->series[k])) continue;
        fputs(block ? ", \\\n     " : "plot ", out);
        write_series(out, f, data, k, block++);
    }
    if (!block)
        fputs("set label 98 'no data' at graph 0.5, graph 0.5 center textcolor rgb '#909090'\nplot NaN notitle", out);
    fputc('\n', out);
    free(data);
}

static void write_output(FILE *out, const char *terminal, const char *name, const char *extension)
{
    char *file;
    if (asprintf(&file, "%s.%s", name, extension) < 0) return;
    fprintf(out, "%s\nset output prefix.", terminal);
    write_quoted(out, file);
    fputc('\n', out);
    free(file);
}

static void write_script(FILE *out, const vla_figure *f)
{
    extent x, y;
    measure(f, &x, &y);
    write_head(out);
    write_texts(out, f);
    write_key(out, f);
    write_axes(out, f, x, y);
    write_marks(out, f, x);
    fputs("if (png ne '') {\n", out);
    write_output(
        out,
        "if (png eq 'pngcairo') { set terminal pngcairo size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3.6 "
        "pointscale 3.6 enhanced } else { set terminal png size 1400,1080 font 'sans,8' fontscale 3.6 linewidth 3 "
        "enhanced }",
        f->name, "png");
    write_plot(out, f);
    fputs("unset output\n}\nif (pdf ne '') {\n", out);
    write_output(out,
                 "set terminal pdfcairo size 5in,3.86in font 'sans,8' fontscale 1 linewidth 1 pointscale 1 enhanced",
                 f->name, "pdf");
    write_plot(out, f);
    fputs("unset output\n}\n", out);
}

static vla_status write_one(const char *directory, const vla_figure *f, const char *extension,
                            void (*write)(FILE *, const vla_figure *), char **path, vla_error *error)
{
    char *name;
    *path = NULL;
    if (asprintf(&name, "%s.%s", f->name, extension) < 0) return vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    *path = vla_path_join(directory, name);
    free(name);
    if (!*path) return vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    vla_file file;
    vla_status status = vla_file_begin(&file, *path, error);
    if (status != VLA_OK) return status;
    write(file.stream, f);
    return vla_file_commit(&file, error);
}

vla_status vla_figure_write(const char *directory, const vla_figure *figure, bool *rendered, char *note,
                            size_t note_size, vla_error *error)
{
    char *data = NULL, *script = NULL;
    if (rendered) *rendered = false;
    if (note && note_size) *note = '\0';
    if (!figure->name || !*figure->name || *figure->name == '.' || strchr(figure->name, '/'))
        return vla_fail(error, VLA_ERR_ARGUMENT, "figure name '%s': accepted: a file name without directory",
                        figure->name ? figure->name : "");
    vla_status status = vla_directory_make(directory, error);
    if (status == VLA_OK) status = write_one(directory, figure, "dat", write_data, &data, error);
    if (status == VLA_OK) status = write_one(directory, figure, "gp", write_script, &script, error);
    if (status == VLA_OK) {
        bool done = vla_plot_render(script, note, note_size);
        if (rendered) *rendered = done;
    }
    free(data);
    free(script);
    return status;
}
