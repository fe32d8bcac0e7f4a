/* Readable tables: aligned columns for a terminal, or Markdown. */
#include "lib/base/number.h"
#include "lib/report/sink.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { cell_size = 96 };

typedef struct grid {
    const vla_record **rows;
    int64_t count;
    const vla_column *columns;
    int column_count;
    bool *folded; /* per column */
    int *width;
    bool *text;    /* columns that hold text are aligned to the left */
    bool markdown; /* which shows a single row whole instead of folding it */
} grid;

/* value with 3 significant digits, "12.3", "1.20", "999". */
static void three_digits(double value, char *buffer, size_t size)
{
    double magnitude = fabs(value);
    int decimals = magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2;
    /* fixed notation in any locale: integer part and decimals apart */
    double scale = decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
    long long scaled = (long long)llround(magnitude * scale);
    long long unit = (long long)scale;
    const char *sign = value < 0 ? "-" : "";
    if (decimals == 0)
        snprintf(buffer, size, "%s%lld", sign, scaled);
    else
        snprintf(buffer, size, "%s%lld.%0*lld", sign, scaled / unit, decimals, scaled % unit);
}

static void with_prefix(double value, const double *factors, const char *const *units, int count, char *buffer,
                        size_t size)
{
    int i = 0;
    while (i + 1 < count && fabs(value) >= factors[i + 1] * 0.9995) i++;
    double scaled = value / factors[i];
    char digits[64];
    if (fabs(scaled) >= 1e6 || (scaled != 0 && fabs(scaled) < 0.005))
        vla_number_short(scaled, 3, digits);
    else
        three_digits(scaled, digits, sizeof digits);
    snprintf(buffer, size, "%s%s%s", digits, *units[i] ? " " : "", units[i]);
}

static void format_time(double value, char *buffer, size_t size)
{
    static const double factors[] = {1e-9, 1e-6, 1e-3, 1};
    static const char *const units[] = {"ns", "us", "ms", "s"};
    with_prefix(value, factors, units, 4, buffer, size);
}

static void format_bytes(double value, char *buffer, size_t size)
{
    static const double factors[] = {1, 1024.0, 1048576.0, 1073741824.0, 1099511627776.0};
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    with_prefix(value, factors, units, 5, buffer, size);
}

static void format_count(double value, char *buffer, size_t size)
{
    static const double factors[] = {1, 1e3, 1e6, 1e9, 1e12};
    static const char *const units[] = {"", "k", "M", "G", "T"};
    with_prefix(value, factors, units, 5, buffer, size);
}

static void format_percent(double value, char *buffer, size_t size)
{
    char digits[64];
    three_digits(100 * value, digits, sizeof digits);
    snprintf(buffer, size, "%s %%", digits);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
/* A caller's own printf format for one double; its decimal point may be the locale's. */
static void format_custom(double value, const char *format, char *buffer, size_t size)
{
    snprintf(buffer, size, format, value);
    char *comma = strchr(buffer, ',');
    if (comma && !strchr(format, ',')) *comma = '.';
}
#pragma GCC diagnostic pop

static void format_number(double value, const char *format, char *buffer, size_t size)
{
    if (!format)
        vla_number_short(value, 6, buffer);
    else if (strcmp(format, "time") == 0)
        format_time(value, buffer, size);
    else if (strcmp(format, "bytes") == 0)
        format_bytes(value, buffer, size);
    else if (strcmp(format, "count") == 0)
        format_count(value, buffer, size);
    else if (strcmp(format, "percent") == 0)
        format_percent(value, buffer, size);
    else
        format_custom(value, format, buffer, size);
}

static void format_cell(const vla_record *row, const vla_column *column, char *buffer, size_t size)
{
    const vla_value *value = vla_record_get(row, column->field);
    snprintf(buffer, size, "-");
    if (!value) return;
    switch (value->type) {
    case VLA_VALUE_STRING:
        snprintf(buffer, size, "%s", *value->string ? value->string : "-");
        break;
    case VLA_VALUE_BOOL:
        snprintf(buffer, size, "%s", value->boolean ? "yes" : "no");
        break;
    case VLA_VALUE_REAL:
        format_number(value->real, column->format, buffer, size);
        break;
    case VLA_VALUE_INT:
        if (column->format)
            format_number((double)value->integer, column->format, buffer, size);
        else
            snprintf(buffer, size, "%" PRId64, value->integer);
        break;
    case VLA_VALUE_REALS:
        snprintf(buffer, size, "%" PRId64 " values", value->reals.count);
        break;
    case VLA_VALUE_NULL:
        break;
    }
    for (char *c = buffer; *c; c++) /* a table row is one line */
        if ((unsigned char)*c < ' ') *c = ' ';
}

/* The same in every row. */
static bool is_constant(const grid *g, int column)
{
    char first[cell_size], other[cell_size];
    if (g->count < (g->markdown ? 2 : 1)) return false;
    format_cell(g->rows[0], &g->columns[column], first, sizeof first);
    for (int64_t i = 1; i < g->count; i++) {
        format_cell(g->rows[i], &g->columns[column], other, sizeof other);
        if (strcmp(first, other) != 0) return false;
    }
    return true;
}

static bool holds_text(const grid *g, int column)
{
    for (int64_t i = 0; i < g->count; i++) {
        const vla_value *value = vla_record_get(g->rows[i], g->columns[column].field);
        if (value && value->type == VLA_VALUE_STRING) return true;
    }
    return false;
}

static void measure(grid *g)
{
    char cell[cell_size];
    for (int c = 0; c < g->column_count; c++) {
        g->folded[c] = g->columns[c].fold && is_constant(g, c);
        g->text[c] = holds_text(g, c);
        g->width[c] = (int)strlen(g->columns[c].title);
        for (int64_t i = 0; i < g->count; i++) {
            format_cell(g->rows[i], &g->columns[c], cell, sizeof cell);
            int width = (int)strlen(cell);
            if (width > g->width[c]) g->width[c] = width;
        }
    }
}

static void print_folded(FILE *stream, const grid *g)
{
    char cell[cell_size];
    bool any = false;
    for (int c = 0; c < g->column_count; c++) {
        if (!g->folded[c]) continue;
        format_cell(g->rows[0], &g->columns[c], cell, sizeof cell);
        if (strcmp(cell, "-") == 0) continue;
        fprintf(stream, "%s%s %s", any ? ", " : "", g->columns[c].title, cell);
        any = true;
    }
    if (any) fputs(g->markdown ? "\n\n" : "\n", stream);
}

static void print_cell(FILE *stream, const grid *g, int column, char *cell, bool last)
{
    for (char *c = cell; g->markdown && *c; c++)
        if (*c == '|') *c = '/'; /* the column mark */
    if (g->markdown) fputs("| ", stream);
    if (g->text[column] && last && !g->markdown)
        fputs(cell, stream);
    else
        fprintf(stream, g->text[column] ? "%-*s" : "%*s", g->width[column], cell);
    if (g->markdown)
        fputs(last ? " |" : " ", stream);
    else if (!last)
        fputs("  ", stream);
}

static int last_column(const grid *g)
{
    for (int c = g->column_count - 1; c >= 0; c--)
        if (!g->folded[c]) return c;
    return -1;
}

static void print_line(FILE *stream, const grid *g, const vla_record *row)
{
    char cell[cell_size];
    int last = last_column(g);
    for (int c = 0; c <= last; c++) {
        if (g->folded[c]) continue;
        if (row)
            format_cell(row, &g->columns[c], cell, sizeof cell);
        else
            snprintf(cell, sizeof cell, "%s", g->columns[c].title);
        print_cell(stream, g, c, cell, c == last);
    }
    fputc('\n', stream);
}

static void print_rule(FILE *stream, const grid *g)
{
    int last = last_column(g);
    for (int c = 0; c <= last; c++) {
        if (g->folded[c]) continue;
        if (g->markdown) fputs(g->text[c] ? "|:" : "|-", stream);
        for (int i = 0; i < g->width[c]; i++) fputc('-', stream);
        if (g->markdown)
            fputs(g->text[c] ? "-" : ":", stream);
        else if (c != last)
            fputs("  ", stream);
    }
    fputs(g->markdown ? "|\n" : "\n", stream);
}

static void print_grid(FILE *stream, grid *g)
{
    size_t columns = (size_t)(g->column_count ? g->column_count : 1);
    g->folded = calloc(columns, sizeof *g->folded);
    g->width = calloc(columns, sizeof *g->width);
    g->text = calloc(columns, sizeof *g->text);
    if (g->folded && g->width && g->text) {
        measure(g);
        print_folded(stream, g);
        if (last_column(g) >= 0) {
            print_line(stream, g, NULL);
            print_rule(stream, g);
            for (int64_t i = 0; i < g->count; i++) print_line(stream, g, g->rows[i]);
        }
    }
    free(g->folded);
    free(g->width);
    free(g->text);
}

static const vla_record **select_kind(const vla_records *records, const char *kind, int64_t *count)
{
    const vla_record **rows = calloc((size_t)(records->count ? records->count : 1), sizeof *rows);
    *count = 0;
    for (int64_t i = 0; rows && i < records->count; i++)
        if (strcmp(vla_record_text(records->rows[i], "kind", ""), kind) == 0) rows[(*count)++] = records->rows[i];
    return rows;
}

void vla_table_print(FILE *stream, const vla_records *records, const char *kind, const vla_column *columns, int count)
{
    grid g = {.columns = columns, .column_count = count};
    g.rows = select_kind(records, kind, &g.count);
    if (g.rows && g.count > 0) print_grid(stream, &g);
    free(g.rows);
}

/* Columns for every field of the rows. */
static vla_column *all_columns(const vla_record **rows, int64_t row_count, int *count)
{
    vla_column *columns = NULL;
    *count = 0;
    for (int64_t i = 0; i < row_count; i++) {
        for (int f = 0; f < vla_record_fields(rows[i]); f++) {
            const char *name = vla_record_name(rows[i], f);
            bool known = vla_record_value(rows[i], f)->type == VLA_VALUE_REALS;
            for (int c = 0; c < *count && !known; c++) known = strcmp(columns[c].field, name) == 0;
            if (known) continue;
            vla_column *grown = realloc(columns, (size_t)(*count + 1) * sizeof *grown);
            if (!grown) return columns;
            columns = grown;
            columns[(*count)++] = (vla_column){name, name, NULL, true};
        }
    }
    return columns;
}

static void print_markdown_kind(FILE *stream, const vla_records *rows, const char *kind)
{
    grid g = {.markdown = true};
    g.rows = select_kind(rows, kind, &g.count);
    vla_column *columns = all_columns(g.rows, g.rows ? g.count : 0, &g.column_count);
    g.columns = columns;
    fprintf(stream, "## %s\n\n", kind);
    if (columns) print_grid(stream, &g);
    fputc('\n', stream);
    free(columns);
    free(g.rows);
}

static bool seen_before(const vla_records *rows, int64_t i)
{
    const char *kind = vla_record_text(rows->rows[i], "kind", "");
    for (int64_t j = 0; j < i; j++)
        if (strcmp(vla_record_text(rows->rows[j], "kind", ""), kind) == 0) return true;
    return false;
}

void vla_markdown_print(FILE *stream, const vla_records *rows, const vla_record *meta)
{
    for (int64_t i = 0; i < rows->count; i++)
        if (!seen_before(rows, i)) print_markdown_kind(stream, rows, vla_record_text(rows->rows[i], "kind", ""));
    if (!meta) return;
    fputs("Run: ", stream);
    bool any = false;
    for (int f = 0; f < vla_record_fields(meta); f++) {
        const char *name = vla_record_name(meta, f);
        char cell[256];
        if (strcmp(name, "kind") == 0) continue;
        format_cell(meta, &(vla_column){name, name, NULL, false}, cell, sizeof cell);
        if (strcmp(cell, "-") == 0) continue;
        fprintf(stream, "%s%s %s", any ? "; " : "", name, cell);
        any = true;
    }
    fputs(".\n", stream);
}
