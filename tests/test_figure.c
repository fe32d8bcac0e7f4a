/* Figures: data and script that gnuplot plots from anywhere, whatever the names and numbers. */
#include "lib/report/figure.h"
#include "tests/folder.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_gnuplot;

static int start(void **state)
{
    has_gnuplot = system("gnuplot --version >/dev/null 2>&1") == 0;
    return make_folder(state);
}

static const char *file_of(const char *directory, const char *name, const char *extension)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s.%s", directory, name, extension);
    return path;
}

static void expect_pictures(const char *directory, const char *name)
{
    struct stat info;
    if (stat(file_of(directory, name, "png"), &info) != 0 || info.st_size < 2000) fail_msg("no picture of %s", name);
    assert_memory_equal(slurp(file_of(directory, name, "png")), "\x89PNG", 4);
    assert_memory_equal(slurp(file_of(directory, name, "pdf")), "%PDF", 4);
}

static const double tokens[] = {128, 256, 512, 1024}, seconds[] = {1e-3, 2e-3, 4e-3, 8e-3},
                    low[] = {9e-4, 0, NAN, 7e-3}, high[] = {2e-3, 3e-3, INFINITY, 9e-3};

static vla_figure plain(const char *name, const vla_series *series, int count)
{
    return (vla_figure){.name = name,
                        .title = "Latency",
                        .x_label = "tokens T",
                        .y_label = "latency (s)",
                        .log2_x = true,
                        .log_y = true,
                        .series = series,
                        .series_count = count};
}

static void write_figure(const char *directory, const vla_figure *figure)
{
    bool rendered = false;
    char note[300];
    vla_error error = {0};
    if (vla_figure_write(directory, figure, &rendered, note, sizeof note, &error) != VLA_OK)
        fail_msg("%s", error.message);
    if (!has_gnuplot) return;
    if (!rendered) fail_msg("%s", note);
    expect_pictures(directory, figure->name);
}

static void every_mark_plots(void **state)
{
    (void)state;
    vla_series series[7];
    for (int i = 0; i < 7; i++) series[i] = (vla_series){"series", (vla_mark)i, 4, tokens, seconds, low, high};
    const vla_vertical verticals[] = {{300, 400, "crossover"}, {600, 600, NULL}, {-1, 2, "outside a log axis"}};
    const double horizontals[] = {2e-3, -1};
    vla_figure figure = plain("marks", series, 7);
    figure.verticals = verticals;
    figure.vertical_count = 3;
    figure.horizontals = horizontals;
    figure.horizontal_count = 2;
    figure.caption =
        "a caption so long that it has to be broken into several lines, since no column of a paper is wide "
        "enough for what a record has to say about the machine, the compiler and the library it was made with";
    write_figure(folder, &figure);
    for (int i = 0; i < 7; i++) series[i].low = series[i].high = NULL;
    figure.log2_x = figure.log_y = false;
    figure.name = "linear";
    write_figure(folder, &figure);
}

/* A reader can tell values apart on a log axis however narrow it is: at least three marks inside the data's range. */
static void narrow_axes_have_marks(void **state)
{
    (void)state;
    static const double values[][2] = {{3000, 4700}, {1.1, 2.9}, {0.0031, 0.0049}, {2, 90}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const double x[] = {1, 64};
        const vla_series series = {"series", VLA_LINESPOINTS, 2, x, values[i], NULL, NULL};
        const vla_figure figure = plain("narrow", &series, 1);
        write_figure(folder, &figure);
        const char *at = strstr(slurp(file_of(folder, "narrow", "gp")), "set ytics (");
        assert_non_null(at);
        int inside = 0;
        double before = 0;
        for (at = strchr(at, '\''); at && *at != '\n'; at = strpbrk(at + 1, "'\n")) {
            char *end = NULL;
            const double label = strtod(at + 1, &end), value = strtod(end + 1, &end);
            assert_true(fabs(label - value) <= 1e-9 * value); /* the mark says where it is */
            assert_true(value > before);
            before = value;
            inside += value >= values[i][0] / 1.15 && value <= values[i][1] * 1.15;
            at = end;
        }
        if (inside < 3) fail_msg("%g to %g has %d marks", values[i][0], values[i][1], inside);
    }
}

/* Characters that gnuplot would act on: quotes, backquotes, macros, markup. */
static void hostile_names_are_only_text(void **state)
{
    (void)state;
    static const char *const names[] = {"a b",    "it's", "say \"x\"", "under_score", "-d",
                                        "@macro", "`id`", "$x",        "<ls",         "\xc3\xa9"};
    char directory[128];
    snprintf(directory, sizeof directory, "%s/dir with 'quotes' \"and\" _", folder);
    const vla_series series[] = {
        {"it's a_b^2 {/Bold x} @m `touch bad` \"q\" \\n%", VLA_LINESPOINTS, 4, tokens, seconds, NULL, NULL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        vla_figure figure = plain(names[i], series, 1);
        const vla_vertical vertical = {300, 300, series[0].title};
        figure.title = figure.x_label = figure.y_label = figure.caption = series[0].title;
        figure.verticals = &vertical;
        figure.vertical_count = 1;
        write_figure(directory, &figure);
    }
    assert_int_not_equal(access("bad", F_OK), 0);
}

static void scripts_run_from_anywhere(void **state)
{
    (void)state;
    if (!has_gnuplot) skip();
    const vla_series series[] = {{"vla", VLA_LINES, 4, tokens, seconds, NULL, NULL}};
    vla_figure figure = plain("it's here_now", series, 1);
    write_figure(folder, &figure);
    static const char *const commands[] = {"cd / && gnuplot '%s/it'\\''s here_now.gp'",
                                           "cd '%s' && gnuplot 'it'\\''s here_now.gp'",
                                           "cd '%s/..' && gnuplot \"$(basename '%s')/it's here_now.gp\""};
    for (int i = 0; i < 3; i++) {
        char command[400];
        unlink(file_of(folder, figure.name, "png"));
        unlink(file_of(folder, figure.name, "pdf"));
        const char *part = strstr(commands[i], "%s");
        snprintf(command, sizeof command, "%.*s%s", (int)(part - commands[i]), commands[i], folder);
        const char *rest = part + 2, *again = strstr(rest, "%s");
        size_t used = strlen(command);
        if (again)
            snprintf(command + used, sizeof command - used, "%.*s%s%s", (int)(again - rest), rest, folder, again + 2);
        else
            snprintf(command + used, sizeof command - used, "%s", rest);
        assert_int_equal(system(command), 0);
        expect_pictures(folder, figure.name);
    }
}

static void empty_and_odd_series(void **state)
{
    (void)state;
    static const double zeros[4] = {0}, negative[] = {-1, -2, -3, -4}, bad[] = {NAN, INFINITY, -INFINITY, NAN};
    static const double huge[] = {1e-300, 1e300, 1, 1e10}, one[] = {5};
    const vla_series series[] = {{"nothing", VLA_LINES, 0, NULL, NULL, NULL, NULL},
                                 {"zero", VLA_LINESPOINTS, 4, tokens, zeros, NULL, NULL},
                                 {"negative", VLA_BOXES, 4, tokens, negative, NULL, NULL},
                                 {"bad", VLA_BAND, 4, tokens, bad, bad, bad},
                                 {"good", VLA_QUARTILES, 4, tokens, seconds, bad, bad},
                                 {"huge", VLA_LINES, 4, tokens, huge, NULL, NULL},
                                 {"one", VLA_POINTS, 1, one, one, NULL, NULL}};
    vla_figure figure = plain("odd", series, 7);
    write_figure(folder, &figure);
    figure = plain("only-empty", series, 4); /* on log axes none of them has a point */
    write_figure(folder, &figure);
    assert_non_null(strstr(slurp(file_of(folder, "only-empty", "gp")), "no data"));
    figure = plain("none", NULL, 0);
    write_figure(folder, &figure);
    figure = plain("single", &series[6], 1);
    write_figure(folder, &figure);
    figure.log2_x = figure.log_y = false;
    figure.name = "single-linear";
    write_figure(folder, &figure);
}

static void data_hold_the_points_that_can_be_drawn(void **state)
{
    (void)state;
    static const double y[] = {0.1, 0, NAN, 8e-3};
    const vla_series series[] = {{"a", VLA_QUARTILES, 4, tokens, y, low, high},
                                 {"empty", VLA_LINES, 0, tokens, y, NULL, NULL},
                                 {"b", VLA_LINES, 4, tokens, seconds, NULL, NULL}};
    vla_figure figure = plain("data", series, 3);
    write_figure(folder, &figure);
    const char *text = slurp(file_of(folder, "data", "dat"));
    assert_non_null(strstr(text, "\n128.0 0.1 0.0009 0.002\n1024.0 0.008 0.007 0.009\n\n\n128.0 0.001 0.001 0.001\n"));
    assert_null(strstr(text, "nan"));
    text = slurp(file_of(folder, "data", "gp"));
    assert_non_null(strstr(text, "index 1"));
    assert_null(strstr(text, "index 2"));
    assert_non_null(strstr(text, "'128' 128.0, '256' 256.0"));
    assert_non_null(strstr(text, "'1k' 1024.0"));
    assert_null(strstr(text, folder)); /* relative paths only */
}

static void failures_are_told(void **state)
{
    (void)state;
    const vla_series series[] = {{"vla", VLA_LINES, 4, tokens, seconds, NULL, NULL}};
    bool rendered;
    char note[300], missing[128];
    vla_error error = {0};
    vla_figure figure = plain("a/b", series, 1);
    assert_int_equal(vla_figure_write(folder, &figure, &rendered, note, sizeof note, &error), VLA_ERR_ARGUMENT);
    figure.name = "";
    assert_int_equal(vla_figure_write(folder, &figure, &rendered, note, sizeof note, &error), VLA_ERR_ARGUMENT);
    figure.name = "x";
    snprintf(missing, sizeof missing, "%s/no/such", folder);
    assert_int_equal(vla_figure_write(missing, &figure, &rendered, note, sizeof note, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, missing));
    assert_int_equal(vla_figure_write("/dev/null", &figure, &rendered, note, sizeof note, &error), VLA_ERR_FILE);
}

/* A stand-in for gnuplot on PATH, or none at all. */
static void gnuplots_that_fail(void **state)
{
    (void)state;
    static const struct {
        const char *script, *says;
    } cases[] = {{NULL, "gnuplot is not installed"},
                 {"echo 'this gnuplot has no PNG terminal: install gnuplot-nox' >&2; exit 3", "no PNG terminal"},
                 {"exit 5", "status 5"},
                 {"exit 0", "no picture"},
                 {"kill -9 $$", "signal 9"}};
    const vla_series series[] = {{"vla", VLA_LINES, 4, tokens, seconds, NULL, NULL}};
    vla_figure figure = plain("fails", series, 1);
    char *path = strdup(getenv("PATH")), bin[128];
    write_figure(folder, &figure);
    snprintf(bin, sizeof bin, "%s/bin", folder);
    assert_int_equal(mkdir(bin, 0777), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char program[160], note[300] = "";
        bool rendered = true;
        vla_error error = {0};
        snprintf(program, sizeof program, "%s/gnuplot", bin);
        if (cases[i].script) {
            int fd = open(program, O_WRONLY | O_CREAT | O_TRUNC, 0777);
            dprintf(fd, "#!/bin/sh\n%s\n", cases[i].script);
            close(fd);
        }
        setenv("PATH", bin, 1);
        vla_status status = vla_figure_write(folder, &figure, &rendered, note, sizeof note, &error);
        setenv("PATH", path, 1);
        assert_int_equal(status, VLA_OK); /* data and script are there all the same */
        assert_false(rendered);
        if (!strstr(note, cases[i].says) || !strstr(note, "fails.gp")) fail_msg("'%s' gave: %s", cases[i].script, note);
        assert_int_not_equal(access(file_of(folder, "fails", "png"), F_OK), 0); /* no picture of older data */
    }
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mark_plots),
        cmocka_unit_test(narrow_axes_have_marks),
        cmocka_unit_test(hostile_names_are_only_text),
        cmocka_unit_test(scripts_run_from_anywhere),
        cmocka_unit_test(empty_and_odd_series),
        cmocka_unit_test(data_hold_the_points_that_can_be_drawn),
        cmocka_unit_test(failures_are_told),
        cmocka_unit_test(gnuplots_that_fail),
    };
    return cmocka_run_group_tests(tests, start, drop_folder);
}
