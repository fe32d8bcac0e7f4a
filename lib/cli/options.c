#include "lib/cli/options.h"
#include "lib/base/file.h"
#include "lib/base/number.h"
#include "lib/base/status.h"
#include <float.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Long options without a letter get values above every char. */
#define FIRST_VALUE 256

typedef struct parser {
    const vla_option **rows; /* rows[i] has getopt value FIRST_VALUE + i */
    int count;
    struct option *longs;
    char *letters;
} parser;

static bool takes_value(const vla_option *row)
{
    return row->type != VLA_OPT_FLAG;
}

static int count_rows(const vla_option_group *groups)
{
    int count = 0;
    for (; groups->title; groups++)
        for (const vla_option *row = groups->options; row->name; row++) count++;
    return count;
}

static void parser_free(parser *p)
{
    free(p->rows);
    free(p->longs);
    free(p->letters);
}

static bool parser_make(parser *p, const vla_option_group *groups)
{
    int count = count_rows(groups);
    *p = (parser){.rows = calloc((size_t)count + 1, sizeof *p->rows),
                  .longs = calloc((size_t)count + 1, sizeof *p->longs),
                  .letters = calloc(2 * (size_t)count + 3, 1)};
    if (!p->rows || !p->longs || !p->letters) return false;
    char *letters = stpcpy(p->letters, "-:"); /* words in order; ':' for a missing argument */
    for (; groups->title; groups++) {
        for (const vla_option *row = groups->options; row->name; row++) {
            p->longs[p->count] = (struct option){row->name, takes_value(row) ? required_argument : no_argument, NULL,
                                                 FIRST_VALUE + p->count};
            p->rows[p->count++] = row;
            if (row->letter) *letters++ = row->letter;
            if (row->letter && takes_value(row)) *letters++ = ':';
        }
    }
    return true;
}

static const vla_option *row_of_value(const parser *p, int value)
{
    if (value >= FIRST_VALUE && value < FIRST_VALUE + p->count) return p->rows[value - FIRST_VALUE];
    for (int i = 0; i < p->count; i++)
        if (p->rows[i]->letter == value && value) return p->rows[i];
    return NULL;
}

/* getopt_long takes any unambiguous prefix for the option; scripts written so would break when an option is added. */
static vla_status check_long(const parser *p, const char *word, vla_error *error)
{
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0') return VLA_OK;
    size_t length = strcspn(word + 2, "=");
    const char *longer = NULL;
    for (int i = 0; i < p->count; i++) {
        const char *name = p->rows[i]->name;
        if (strncmp(name, word + 2, length) != 0) continue;
        if (name[length] == '\0') return VLA_OK;
        longer = name;
    }
    if (longer && length)
        return vla_fail(error, VLA_ERR_ARGUMENT,
                        "--%.*s: unknown option (abbreviations are refused; --%s?); see --help", (int)length, word + 2,
                        longer);
    return vla_fail(error, VLA_ERR_ARGUMENT, "--%.80s: unknown option; see --help", word + 2);
}

static bool strings_push(vla_strings *list, const char *text, size_t length)
{
    const char **values = realloc(list->values, (size_t)(list->count + 1) * sizeof *values);
    if (!values) return false;
    list->values = values;
    char *copy = strndup(text, length);
    if (!copy) return false;
    values[list->count++] = copy;
    return true;
}

void vla_strings_free(vla_strings *strings)
{
    for (int64_t i = 0; i < strings->count; i++) free((char *)(uintptr_t)strings->values[i]);
    free(strings->values);
    *strings = (vla_strings){0};
}

static void join_choices(const char *const *choices, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; choices[i] && used < size; i++) {
        int n = snprintf(buffer + used, size - used, "%s%s", i ? ", " : "", choices[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

static vla_status check_choice(const vla_option *row, const char *name, const char *text, size_t length,
                               vla_error *error)
{
    if (!row->choices) return VLA_OK;
    for (int i = 0; row->choices[i]; i++)
        if (strlen(row->choices[i]) == length && strncmp(row->choices[i], text, length) == 0) return VLA_OK;
    char accepted[256];
    join_choices(row->choices, accepted, sizeof accepted);
    return vla_fail(error, VLA_ERR_ARGUMENT, "%s: unknown value '%.*s'; accepted: %s", name,
                    (int)(length > 80 ? 80 : length), text, accepted);
}

static vla_status set_list(const vla_option *row, const char *name, const char *text, vla_error *error)
{
    for (const char *p = text;; p++) {
        size_t length = strcspn(p, ",");
        if (length == 0)
            return vla_fail(error, VLA_ERR_ARGUMENT,
                            "%s: empty item in '%.80s'; accepted: names separated by single commas", name, text);
        vla_status status = check_choice(row, name, p, length, error);
        if (status != VLA_OK) return status;
        if (!strings_push(row->target, p, length)) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", name);
        p += length;
        if (*p == '\0') return VLA_OK;
    }
}

static bool is_bounded(const vla_option *row)
{
    return row->min != 0 || row->max != 0;
}

/* "a whole number from 1 to 64", "a number above 0". */
static const char *accepted_numbers(const vla_option *row, bool whole, char *buffer, size_t size)
{
    char low[VLA_NUMBER_SIZE], high[VLA_NUMBER_SIZE];
    const char *what = whole ? "a whole number (k and M are 1024s)" : "a number";
    bool open_low = row->min == DBL_MIN;
    vla_number_short(open_low ? 0.0 : row->min, 16, low);
    vla_number_short(row->max, 16, high);
    if (!is_bounded(row))
        snprintf(buffer, size, "%s", what);
    else if (row->max >= 1e300)
        snprintf(buffer, size, "%s %s %s", what, open_low ? "above" : "of at least", low);
    else
        snprintf(buffer, size, open_low ? "%s above %s, up to %s" : "%s from %s to %s", what, low, high);
    return buffer;
}

static vla_status refuse_number(const vla_option *row, const char *name, const char *text, const char *why,
                                vla_error *error)
{
    char accepted[128];
    accepted_numbers(row, row->type == VLA_OPT_INT, accepted, sizeof accepted);
    return vla_fail(error, VLA_ERR_ARGUMENT, "%s: '%.80s' %s; accepted: %s", name, text, why, accepted);
}

static vla_status set_int(const vla_option *row, const char *name, const char *text, vla_error *error)
{
    const char *end;
    int64_t value;
    vla_number_status status = vla_integer_parse(text, &end, &value);
    if (status == VLA_NUMBER_RUBBISH) return refuse_number(row, name, text, "is not a whole number", error);
    if (status == VLA_NUMBER_RANGE || !vla_size_suffix(&end, &value))
        return refuse_number(row, name, text, "does not fit 64 bits", error);
    if (*end) return refuse_number(row, name, text, "has rubbish after the number", error);
    if (is_bounded(row) && ((double)value < row->min || (double)value > row->max))
        return refuse_number(row, name, text, "is out of range", error);
    *(int64_t *)row->target = value;
    return VLA_OK;
}

static vla_status set_real(const vla_option *row, const char *name, const char *text, vla_error *error)
{
    double value;
    vla_number_status status = vla_number_parse(text, &value);
    if (status == VLA_NUMBER_RUBBISH) return refuse_number(row, name, text, "is not a number", error);
    if (status == VLA_NUMBER_RANGE) return refuse_number(row, name, text, "does not fit a double", error);
    if (is_bounded(row) && (value < row->min || value > row->max))
        return refuse_number(row, name, text, "is out of range", error);
    *(double *)row->target = value;
    return VLA_OK;
}

static vla_status set_range(const vla_option *row, const char *name, const char *text, vla_error *error)
{
    int64_t min = is_bounded(row) ? (int64_t)row->min : INT64_MIN;
    int64_t max = is_bounded(row) ? (int64_t)row->max : INT64_MAX;
    return vla_range_parse(row->target, text, name, min, max, error);
}

static vla_status set_value(const vla_option *row, const char *name, const char *text, vla_error *error)
{
    if (row->given) *row->given = true;
    if (row->type == VLA_OPT_FLAG) {
        *(bool *)row->target = true;
        return VLA_OK;
    }
    if (*text == '\0') return vla_fail(error, VLA_ERR_ARGUMENT, "%s: empty value; accepted: %s", name, row->argument);
    switch (row->type) {
    case VLA_OPT_INT:
        return set_int(row, name, text, error);
    case VLA_OPT_REAL:
        return set_real(row, name, text, error);
    case VLA_OPT_RANGE:
        return set_range(row, name, text, error);
    case VLA_OPT_LIST:
        return set_list(row, name, text, error);
    case VLA_OPT_TEXTS:
        return strings_push(row->target, text, strlen(text))
                   ? VLA_OK
                   : vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", name);
    case VLA_OPT_CHOICE: {
        vla_status status = check_choice(row, name, text, strlen(text), error);
        if (status != VLA_OK) return status;
        break;
    }
    default:
        break;
    }
    *(const char **)row->target = text;
    return VLA_OK;
}

/* The option as the user may write it: "--T", or "-o" for a letter. */
static const char *spoken(const vla_option *row, int value, char *buffer, size_t size)
{
    if (value < FIRST_VALUE)
        snprintf(buffer, size, "-%c", value);
    else
        snprintf(buffer, size, "--%s", row->name);
    return buffer;
}

static vla_status refuse(const parser *p, int code, vla_error *error)
{
    char name[64];
    const vla_option *row = row_of_value(p, optopt);
    if (!row) return vla_fail(error, VLA_ERR_ARGUMENT, "-%c: unknown option; see --help", optopt);
    spoken(row, optopt, name, sizeof name);
    if (code == ':')
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: no value given; accepted: %s %s", name, name, row->argument);
    return vla_fail(error, VLA_ERR_ARGUMENT, "%s: takes no value", name);
}

static vla_status parse_all(const parser *p, int argc, char **argv, vla_strings *words, vla_error *error)
{
    optind = 0; /* glibc: start afresh */
    opterr = 0;
    vla_status status = VLA_OK;
    while (status == VLA_OK) {
        int next = optind ? optind : 1;
        if (next < argc) status = check_long(p, argv[next], error);
        if (status != VLA_OK) break;
        int code = getopt_long(argc, argv, p->letters, p->longs, NULL);
        if (code == -1) break;
        char name[64];
        if (code == '?' || code == ':') {
            status = refuse(p, code, error);
        } else if (code == 1) {
            if (!strings_push(words, optarg, strlen(optarg))) status = vla_fail(error, VLA_ERR_MEMORY, "out of memory");
        } else {
            const vla_option *row = row_of_value(p, code);
            status = set_value(row, spoken(row, code, name, sizeof name), optarg, error);
        }
    }
    for (; status == VLA_OK && optind < argc; optind++) /* after "--" */
        if (!strings_push(words, argv[optind], strlen(argv[optind])))
            status = vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    return status;
}

vla_status vla_options_parse(const vla_option_group *groups, int argc, char **argv, vla_strings *words,
                             vla_error *error)
{
    parser p;
    vla_status status = parser_make(&p, groups) ? parse_all(&p, argc, argv, words, error)
                                                : vla_fail(error, VLA_ERR_MEMORY, "out of memory");
    parser_free(&p);
    return status;
}

void vla_options_help(FILE *stream, const char *usage, const char *summary, const vla_option_group *groups)
{
    fprintf(stream, "usage: %s\n%s\n", usage, summary);
    for (; groups->title; groups++) {
        fprintf(stream, "\n%s:\n", groups->title);
        for (const vla_option *row = groups->options; row->name; row++) {
            char left[96];
            char letter[8] = "    ";
            if (row->letter) snprintf(letter, sizeof letter, "-%c, ", row->letter);
            snprintf(left, sizeof left, "%s--%s %s", letter, row->name, row->argument ? row->argument : "");
            fprintf(stream, strlen(left) > 30 ? "  %s\n  %-30s %s\n" : "  %.0s%-30s %s\n",
                    strlen(left) > 30 ? left : "", strlen(left) > 30 ? "" : left, row->help);
        }
    }
}

/* A standard stream that was closed would lend its number to the next file opened, and the table would land in the
 * records. It gets a file that refuses what is asked of it, so that using it stays an error. */
static void occupy_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
}

bool vla_cli_parse(const vla_cli *cli, int argc, char **argv, vla_strings *words, FILE *out, FILE *err, int *exit_code)
{
    vla_error error = {0};
    occupy_standard_streams();
    vla_status status = vla_options_parse(cli->groups, argc, argv, words, &error);
    const bool asked = status == VLA_OK && (cli->common->help || cli->common->version);
    if (asked && cli->common->help)
        vla_options_help(out, cli->usage, cli->summary, cli->groups);
    else if (asked)
        fprintf(out, "%s %s\n", cli->program, vla_version());
    if (asked) status = vla_stream_flush(out, "stdout", &error);
    if (status != VLA_OK) fprintf(err, "%s: %s\n", cli->program, error.message);
    *exit_code = vla_exit_code(status);
    return status == VLA_OK && !asked;
}
