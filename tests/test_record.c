/* Records, their files in every format, and numbers as text: nothing lost, nothing broken, whatever fails. */
#include "lib/base/file.h"
#include "lib/base/number.h"
#include "lib/base/random.h"
#include "lib/cli/progress.h"
#include "lib/report/report.h"
#include "tests/folder.h"
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *in_folder(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void numbers_round_trip(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0.0"},
                 {-0.0, "-0.0"},
                 {1, "1.0"},
                 {0.1, "0.1"},
                 {1e22, "1e+22"},
                 {5e-324, "5e-324"},
                 {1.0 / 3, "0.3333333333333333"},
                 {123456789, "123456789.0"},
                 {1e300, "1e+300"},
                 {2.5e-8, "2.5e-08"}};
    char text[VLA_NUMBER_SIZE];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(vla_number_text(cases[i].value, text), cases[i].text);
    assert_string_equal(vla_number_text(NAN, text), "");
    assert_string_equal(vla_number_text(-INFINITY, text), "");
    vla_rng rng = vla_rng_seed(3, 1);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = vla_rng_next(&rng);
        double value, back;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        assert_int_equal(vla_number_parse(vla_number_text(value, text), &back), VLA_NUMBER_OK);
        assert_memory_equal(&value, &back, sizeof value);
    }
}

static void numbers_are_whole_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        vla_number_status status;
    } cases[] = {{"1", VLA_NUMBER_OK},        {"-2.5e3", VLA_NUMBER_OK},    {".5", VLA_NUMBER_OK},
                 {"", VLA_NUMBER_RUBBISH},    {"1x", VLA_NUMBER_RUBBISH},   {" 1", VLA_NUMBER_RUBBISH},
                 {"1 ", VLA_NUMBER_RUBBISH},  {"0x10", VLA_NUMBER_RUBBISH}, {"nan", VLA_NUMBER_RUBBISH},
                 {"inf", VLA_NUMBER_RUBBISH}, {"1,5", VLA_NUMBER_RUBBISH},  {"1e", VLA_NUMBER_RUBBISH},
                 {"--1", VLA_NUMBER_RUBBISH}, {"1e400", VLA_NUMBER_RANGE},  {"-1e999999999", VLA_NUMBER_RANGE},
                 {"1e-400", VLA_NUMBER_RANGE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double value;
        if (vla_number_parse(cases[i].text, &value) != cases[i].status) fail_msg("'%s'", cases[i].text);
    }
    int64_t n;
    const char *end;
    assert_int_equal(vla_integer_parse("-9223372036854775808", &end, &n), VLA_NUMBER_OK);
    assert_true(n == INT64_MIN);
    assert_int_equal(vla_integer_parse("9223372036854775807x", &end, &n), VLA_NUMBER_OK);
    assert_true(n == INT64_MAX && *end == 'x');
    assert_int_equal(vla_integer_parse("9223372036854775808", &end, &n), VLA_NUMBER_RANGE);
    assert_int_equal(vla_integer_parse("-9223372036854775809", &end, &n), VLA_NUMBER_RANGE);
    assert_int_equal(vla_integer_parse("-", &end, &n), VLA_NUMBER_RUBBISH);
}

/* Values that each format has trouble with. */
static vla_record *tricky(int i)
{
    static const double samples[] = {0.1, 1e-300, 3};
    vla_record *r = vla_record_create(i % 3 == 2 ? "other" : "sample");
    assert_true(vla_record_string(r, "text", i % 2 ? "a,\"b\"\r\n c" : "12"));
    assert_true(vla_record_string(r, "empty", ""));
    assert_true(vla_record_string(r, "word", "true"));
    assert_true(vla_record_string(r, "bad_utf8", i % 2 ? "\xc3\xa9" : "plain"));
    assert_true(vla_record_int(r, "big", INT64_MAX - i));
    assert_true(vla_record_real(r, "two", 2.0));
    assert_true(vla_record_real(r, "third", 1.0 / 3 + i));
    assert_true(vla_record_real(r, "nan", NAN));
    assert_true(vla_record_real(r, "inf", INFINITY));
    assert_true(vla_record_bool(r, "yes", i % 2));
    assert_true(vla_record_null(r, "nothing"));
    assert_true(vla_record_reals(r, "samples", samples, 3));
    if (i >= 4) assert_true(vla_record_string(r, "late", "column"));
    return r;
}

static void assert_same(const vla_record *a, const vla_record *b, bool reals)
{
    for (int i = 0; i < vla_record_fields(a); i++) {
        const vla_value *x = vla_record_value(a, i), *y = vla_record_get(b, vla_record_name(a, i));
        if (x->type == VLA_VALUE_REALS && !reals) continue;
        if (!y) fail_msg("%s is lost", vla_record_name(a, i));
        if (x->type != y->type) fail_msg("%s: type %d became %d", vla_record_name(a, i), x->type, y->type);
        if (x->type == VLA_VALUE_STRING) assert_string_equal(x->string, y->string);
        if (x->type == VLA_VALUE_INT) assert_true(x->integer == y->integer);
        if (x->type == VLA_VALUE_REAL) assert_true(x->real == y->real);
        if (x->type == VLA_VALUE_BOOL) assert_true(x->boolean == y->boolean);
        if (x->type == VLA_VALUE_REALS) {
            assert_int_equal(x->reals.count, y->reals.count);
            assert_memory_equal(x->reals.data, y->reals.data, (size_t)x->reals.count * sizeof(double));
        }
    }
}

static vla_report *open_report(const char *const *names, int count, bool append)
{
    vla_report *report;
    vla_error error = {0};
    vla_record *meta = vla_meta(2);
    assert_int_equal(vla_report_create(&report, meta, &error), VLA_OK);
    vla_record_destroy(meta);
    for (int i = 0; i < count; i++) {
        vla_format format;
        assert_true(vla_format_of_path(names[i], &format));
        if (vla_report_output(report, in_folder(names[i]), format, append, &error) != VLA_OK)
            fail_msg("%s", error.message);
    }
    return report;
}

static void fill(vla_report *report, int from, int to)
{
    vla_error error = {0};
    for (int i = from; i < to; i++)
        if (vla_report_add(report, tricky(i), &error) != VLA_OK) fail_msg("%s", error.message);
}

static void expect_rows(const char *name, const char *kind, int from, int to, bool reals)
{
    vla_records rows = {0};
    vla_error error = {0};
    int64_t at = 0;
    if (vla_records_read(&rows, in_folder(name), &error) != VLA_OK) fail_msg("%s", error.message);
    for (int i = from; i < to; i++) {
        vla_record *expected = tricky(i);
        if (!kind || strcmp(vla_record_text(expected, "kind", ""), kind) == 0) {
            while (at < rows.count && strcmp(vla_record_text(rows.rows[at], "kind", ""), "meta") == 0) at++;
            if (at == rows.count) fail_msg("%s: row %d is missing", name, i);
            assert_same(expected, rows.rows[at++], reals);
        }
        vla_record_destroy(expected);
    }
    while (at < rows.count && strcmp(vla_record_text(rows.rows[at], "kind", ""), "meta") == 0) at++;
    assert_int_equal(at, rows.count);
    vla_records_clear(&rows);
}

static void files_give_back_what_they_got(void **state)
{
    (void)state;
    static const char *const names[] = {"a.csv", "a.json", "a.jsonl", "a.md"};
    vla_error error = {0};
    vla_report *report = open_report(names, 4, false);
    fill(report, 0, 7);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    expect_rows("a.json", NULL, 0, 7, true);
    expect_rows("a.jsonl", NULL, 0, 7, true);
    expect_rows("a.csv", "sample", 0, 7, false);
    expect_rows("a.other.csv", "other", 0, 7, false);
    /* again with --resume: everything is kept, a new column joins */
    report = open_report(names, 4, true);
    fill(report, 7, 9);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    expect_rows("a.json", NULL, 0, 9, true);
    expect_rows("a.jsonl", NULL, 0, 9, true);
    expect_rows("a.csv", "sample", 0, 9, false);
    expect_rows("a.other.csv", "other", 0, 9, false);
    const char *text = slurp(in_folder("a.md"));
    assert_non_null(strstr(text, "## sample"));
    assert_non_null(strstr(text, "## other"));
}

static void csv_columns_are_the_union_and_every_row_says_where_from(void **state)
{
    (void)state;
    static const char *const names[] = {"u.csv"};
    vla_error error = {0};
    vla_report *report = open_report(names, 1, false);
    for (int i = 0; i < 3; i++) {
        vla_record *r = vla_record_create("sample");
        vla_record_int(r, i == 1 ? "b" : "a", i);
        if (i == 2) vla_record_string(r, "commit", "own"); /* a row's own field wins over the run's */
        assert_int_equal(vla_report_add(report, r, &error), VLA_OK);
    }
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    const char *text = slurp(in_folder("u.csv"));
    assert_int_equal(strncmp(text, "kind,a,b,version,commit,compiler,", 33), 0);
    assert_non_null(strstr(text, "\nsample,0,,"));
    assert_non_null(strstr(text, "\nsample,,1,"));
    assert_non_null(strstr(text, "\nsample,2,," VLA_VERSION ",own,"));
    assert_null(strstr(text, "nan"));
}

static void json_is_complete_after_every_row(void **state)
{
    (void)state;
    static const char *const names[] = {"k.json", "k.jsonl", "k.csv"};
    vla_error error = {0};
    for (int rows = 1; rows <= 5; rows++) {
        pid_t pid = fork();
        if (pid == 0) { /* dies without closing anything */
            vla_report *report = open_report(names, 3, false);
            for (int i = 0; i < rows; i++) vla_report_add(report, tricky(i), &error);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
        expect_rows("k.json", NULL, 0, rows, true);
        expect_rows("k.jsonl", NULL, 0, rows, true);
        expect_rows("k.csv", "sample", 0, rows, false);
    }
}

static void json_groups_summaries_beside_the_rows(void **state)
{
    (void)state;
    static const char *const names[] = {"s.json"};
    vla_error error = {0};
    vla_report *report = open_report(names, 1, false);
    static const char *const kinds[] = {"sample", "crossover", "sample", "verdict", "crossover"};
    for (int i = 0; i < 5; i++) {
        vla_record *r = vla_record_create(kinds[i]);
        vla_record_int(r, "i", i);
        assert_int_equal(vla_report_add(report, r, &error), VLA_OK);
    }
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    json_error_t parse;
    json_t *root = json_load_file(in_folder("s.json"), JSON_REJECT_DUPLICATES, &parse);
    assert_non_null(root);
    assert_int_equal(json_array_size(json_object_get(root, "rows")), 5);
    assert_int_equal(json_array_size(json_object_get(root, "crossover")), 2);
    assert_int_equal(json_array_size(json_object_get(root, "verdict")), 1);
    assert_non_null(json_object_get(json_object_get(root, "meta"), "compiler"));
    json_decref(root);
}

static void full_disks_keep_what_was_written(void **state)
{
    (void)state;
    static const char *const names[] = {"f.json", "f.jsonl", "f.csv"};
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {6000, 6000};
        vla_error error = {0};
        bool failed = false;
        vla_interrupt_install();
        vla_report *report = open_report(names, 3, false);
        setrlimit(RLIMIT_FSIZE, &limit);
        for (int i = 0; i < 60; i++) failed = vla_report_add(report, tricky(3), &error) != VLA_OK || failed;
        vla_status status = vla_report_close(report, &error);
        _exit(failed && status == VLA_ERR_FILE && strstr(error.message, "f.jsonl") ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    for (int i = 0; i < 3; i++) {
        vla_records rows = {0};
        vla_error error = {0};
        if (vla_records_read(&rows, in_folder(names[i]), &error) != VLA_OK) fail_msg("%s", error.message);
        assert_true(rows.count > 5 && rows.count < 60);
        vla_records_clear(&rows);
    }
}

static void refused_outputs(void **state)
{
    (void)state;
    vla_report *report;
    vla_error error = {0};
    assert_int_equal(vla_report_create(&report, NULL, &error), VLA_OK);
    assert_int_equal(vla_report_output(report, in_folder("no/x.json"), VLA_FORMAT_JSON, false, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "no/x.json"));
    assert_int_equal(vla_report_output(report, folder, VLA_FORMAT_JSON, false, &error), VLA_ERR_FILE);
    assert_int_equal(vla_report_output(report, in_folder("twice.json"), VLA_FORMAT_JSON, false, &error), VLA_OK);
    assert_int_equal(vla_report_output(report, in_folder("twice.json"), VLA_FORMAT_CSV, false, &error),
                     VLA_ERR_ARGUMENT);
    assert_int_equal(vla_report_output(report, "/dev/full", VLA_FORMAT_JSONL, false, &error), VLA_OK);
    assert_int_equal(vla_report_add(report, tricky(0), &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "/dev/full"));
    assert_int_equal(vla_report_add(report, tricky(1), &error), VLA_OK); /* told once, the others go on */
    assert_int_equal(vla_report_close(report, &error), VLA_ERR_FILE);
    expect_rows("twice.json", NULL, 0, 2, true);
}

static void a_run_without_rows_leaves_files_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"n.json", "n.csv", "n.jsonl"};
    vla_error error = {0};
    vla_report *report = open_report(names, 3, false);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    for (int i = 0; i < 3; i++) assert_int_not_equal(access(in_folder(names[i]), F_OK), 0);
    report = open_report(names, 3, false);
    fill(report, 0, 2);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    report = open_report(names, 3, false);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    expect_rows("n.json", NULL, 0, 2, true);
    expect_rows("n.jsonl", NULL, 0, 2, true);
}

static void hostile_files_are_refused_with_line_and_field(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"h.json", "", "not JSON"},
        {"h.json", "{\"meta\":null}", "rows"},
        {"h.json", "{\"rows\":[1]}", "object"},
        {"h.json", "{\"rows\":[{\"a\":1}]}", "kind"},
        {"h.json", "{\"rows\":[{\"kind\":\"x\",\"a\":{}}]}", "'a'"},
        {"h.json", "{\"rows\":[{\"kind\":\"x\",\"a\":[\"b\"]}]}", "'a'"},
        {"h.json", "{\"rows\":[{\"kind\":\"x\",\"a\":99999999999999999999}]}", "integer"},
        {"h.jsonl", "{\"kind\":\"x\"}\n{\"kind\":\n", ":2:"},
        {"h.jsonl", "garbage", "no JSON lines"},
        {"h.csv", "a,b\n1,2\n", "kind"},
        {"h.csv", "kind,a\nx,1,2\n", ":2: 3 cells under a header of 2"},
        {"h.csv", "kind,a\nx,\"1\n", "does not end"},
        {"h.txt", "kind,a\n", "accepted: .csv .json .jsonl"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vla_records rows = {0};
        vla_error error = {0};
        const char *path = in_folder(cases[i].name);
        FILE *file = fopen(path, "w");
        fputs(cases[i].text, file);
        fclose(file);
        if (vla_records_read(&rows, path, &error) != VLA_ERR_FILE) fail_msg("accepted: %s", cases[i].text);
        if (!strstr(error.message, cases[i].says) || !strstr(error.message, path))
            fail_msg("%s gave: %s", cases[i].text, error.message);
        assert_int_equal(rows.count, 0);
        vla_records_clear(&rows);
    }
    vla_records rows = {0};
    vla_error error = {0};
    assert_int_equal(vla_records_read(&rows, in_folder("absent.csv"), &error), VLA_ERR_FILE);
}

/* Any few bytes changed: rows or one line that names the file, never a crash. */
static void mutations(void **state)
{
    (void)state;
    static const char *const names[] = {"m.csv", "m.json", "m.jsonl"};
    static const char alphabet[] = ",\"\n\r{}[]:0129-.eEtrue \xef\xbb\xbf\x80";
    vla_rng rng = vla_rng_seed(11, 0);
    vla_error error = {0};
    vla_report *report = open_report(names, 3, false);
    fill(report, 0, 5);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    for (int f = 0; f < 3; f++) {
        char path[160], good[8192], text[8192];
        snprintf(path, sizeof path, "%s", in_folder(names[f]));
        size_t size = strlen(slurp(path));
        assert_true(size < sizeof good);
        memcpy(good, slurp(path), size);
        int read = 0;
        for (int round = 0; round < 700; round++) {
            memcpy(text, good, size);
            for (uint64_t i = 0, n = 1 + vla_rng_below(&rng, 3); i < n; i++)
                text[vla_rng_below(&rng, size)] = alphabet[vla_rng_below(&rng, sizeof alphabet - 1)];
            FILE *file = fopen(path, "wb");
            fwrite(text, 1, round % 5 ? size : (size_t)vla_rng_below(&rng, size), file);
            fclose(file);
            vla_records rows = {0};
            vla_status status = vla_records_read(&rows, path, &error);
            if (status == VLA_OK)
                read++;
            else
                assert_true(status == VLA_ERR_FILE && strstr(error.message, path) && !strchr(error.message, '\n'));
            vla_records_clear(&rows);
        }
        assert_true(read > 50);
    }
}

static void a_cut_line_is_not_a_row(void **state)
{
    (void)state;
    static const char *const names[] = {"c.jsonl"};
    vla_error error = {0};
    FILE *file = fopen(in_folder("c.jsonl"), "w");
    fputs("{\"kind\":\"x\",\"i\":1}\n{\"kind\":\"x\",\"i", file);
    fclose(file);
    vla_report *report = open_report(names, 1, true);
    fill(report, 0, 1);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    vla_records rows = {0};
    assert_int_equal(vla_records_read(&rows, in_folder("c.jsonl"), &error), VLA_OK);
    assert_int_equal(rows.count, 3); /* the first line, the new run's metadata, its row */
    vla_records_clear(&rows);
    file = fopen(in_folder("c.csv"), "w"); /* inside quotes, of the last column too */
    fputs("kind,i,s\nx,1,\"a, b\"\nx,2,\"a, ", file);
    fclose(file);
    assert_int_equal(vla_records_read(&rows, in_folder("c.csv"), &error), VLA_OK);
    assert_int_equal(rows.count, 1);
    assert_string_equal(vla_record_text(rows.rows[0], "s", ""), "a, b");
    vla_records_clear(&rows);
}

static void keys_depend_on_the_named_fields_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"op", "T", "x", NULL};
    vla_record *a = vla_record_create("sample"), *b = vla_record_create("sample");
    vla_record_string(a, "op", "vla");
    vla_record_int(a, "T", 128);
    vla_record_real(b, "T", 128.0);
    vla_record_null(b, "x");
    vla_record_string(b, "op", "vla");
    vla_record_real(b, "median_s", 1e-3);
    assert_true(vla_record_key(a, names) && vla_record_key(b, names));
    assert_string_equal(vla_record_text(a, "key", "a"), vla_record_text(b, "key", "b"));
    assert_int_equal(strlen(vla_record_text(a, "key", "")), 16);
    vla_record_int(b, "T", 129);
    vla_record_key(b, names);
    assert_string_not_equal(vla_record_text(a, "key", "a"), vla_record_text(b, "key", "b"));
    vla_record_destroy(a);
    vla_record_destroy(b);
}

static void records_replace_in_place(void **state)
{
    (void)state;
    vla_record *r = vla_record_create("x");
    vla_record_int(r, "a", 1);
    vla_record_int(r, "b", 2);
    vla_record_string(r, "a", "text");
    assert_int_equal(vla_record_fields(r), 3);
    assert_string_equal(vla_record_name(r, 1), "a");
    assert_string_equal(vla_record_text(r, "a", ""), "text");
    assert_true(vla_record_number(r, "a", -1) == -1);
    assert_true(vla_record_number(r, "b", -1) == 2);
    assert_true(vla_record_number(r, "c", -1) == -1);
    vla_record_real(r, "b", NAN);
    assert_int_equal(vla_record_get(r, "b")->type, VLA_VALUE_NULL);
    vla_record *copy = vla_record_copy(r);
    assert_same(r, copy, true);
    vla_record_destroy(r);
    vla_record_destroy(copy);
}

static void a_record_that_lacks_a_field_is_taken_nowhere(void **state)
{
    (void)state;
    static const double samples[] = {1, 2};
    vla_records rows = {0};
    vla_record *r = vla_record_create("sample");
    assert_true(vla_records_push(&rows, vla_record_copy(r)));
    assert_false(vla_record_reals(r, "samples", samples, -1));
    assert_null(vla_record_copy(r));
    assert_false(vla_records_push(&rows, r));
    assert_int_equal(rows.count, 1);
    vla_record_destroy(r);
    vla_records_clear(&rows);
}

static void counts_and_truths_of_any_value(void **state)
{
    (void)state;
    static const double values[] = {7.9, -1, 0x1p60, 1e308};
    vla_record *r = vla_record_create("sample");
    assert_true(vla_record_count(r, "x", 5) == 5 && !vla_record_true(r, "x"));
    for (int i = 0; i < 4 && vla_record_real(r, "x", values[i]); i++)
        assert_true(vla_record_count(r, "x", 5) == (i ? 5 : 7) && !vla_record_true(r, "x"));
    assert_true(vla_record_bool(r, "x", true) && vla_record_true(r, "x") && vla_record_count(r, "x", 5) == 5);
    vla_record_destroy(r);
}

static void directories_are_made_with_their_parents(void **state)
{
    (void)state;
    vla_error error = {0};
    struct stat info;
    char path[200];
    snprintf(path, sizeof path, "%s//one/two/", folder);
    for (int again = 0; again < 2; again++) assert_int_equal(vla_directory_make_path(path, &error), VLA_OK);
    assert_true(stat(path, &info) == 0 && S_ISDIR(info.st_mode));
    fclose(fopen(in_folder("file"), "w"));
    snprintf(path, sizeof path, "%s/file/below/here", folder);
    assert_int_equal(vla_directory_make_path(path, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "/file/below"));
    assert_int_equal(vla_directory_make_path("", &error), VLA_ERR_FILE);
}

static void tables_read_well(void **state)
{
    (void)state;
    vla_records rows = {0};
    static const double times[] = {1.5e-9, 0.9996e-6, 0.01234, 12.5};
    for (int i = 0; i < 4; i++) {
        vla_record *r = vla_record_create("sample");
        vla_record_string(r, "op", i % 2 ? "vla" : "softmax");
        vla_record_int(r, "H", 16);
        vla_record_real(r, "t", times[i]);
        vla_record_real(r, "share", 0.615);
        if (i) vla_record_int(r, "bytes", 1536 << i);
        vla_records_push(&rows, r);
    }
    const vla_column columns[] = {{"op", "op", NULL, true},          {"H", "H", NULL, true},
                                  {"t", "time", "time", true},       {"share", "peak", "percent", true},
                                  {"bytes", "size", "bytes", false}, {"none", "none", NULL, true}};
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    vla_table_print(stream, &rows, "sample", columns, 6);
    vla_table_print(stream, &rows, "absent", columns, 6);
    fclose(stream);
    assert_string_equal(text, "H 16, peak 61.5 %\n"
                              "op          time      size\n"
                              "-------  -------  --------\n"
                              "softmax  1.50 ns         -\n"
                              "vla      1.00 us  3.00 KiB\n"
                              "softmax  12.3 ms  6.00 KiB\n"
                              "vla       12.5 s  12.0 KiB\n");
    free(text);
    vla_records_clear(&rows);
}

/* A German locale, made for the test, writes 0,5: nothing of ours may. */
static void numbers_do_not_follow_the_locale(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", folder);
    bool made = system(command) == 0;
    setenv("LOCPATH", folder, 1);
    if (!made || !setlocale(LC_ALL, "de_DE.UTF-8")) {
        print_message("no German locale can be made here: not tested\n");
        skip();
    }
    char text[32];
    double value;
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5"); /* the locale is in force */
    assert_string_equal(vla_number_text(0.5, text), "0.5");
    assert_int_equal(vla_number_parse("0.5", &value), VLA_NUMBER_OK);
    assert_true(value == 0.5);
    static const char *const names[] = {"l.csv", "l.json", "l.jsonl", "l.md"};
    vla_error error = {0};
    vla_report *report = open_report(names, 4, false);
    fill(report, 0, 3);
    assert_int_equal(vla_report_close(report, &error), VLA_OK);
    expect_rows("l.json", NULL, 0, 3, true);
    expect_rows("l.jsonl", NULL, 0, 3, true);
    expect_rows("l.csv", "sample", 0, 3, false);
    assert_null(strstr(slurp(in_folder("l.md")), "0,33"));
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_round_trip),
        cmocka_unit_test(numbers_are_whole_texts),
        cmocka_unit_test(files_give_back_what_they_got),
        cmocka_unit_test(csv_columns_are_the_union_and_every_row_says_where_from),
        cmocka_unit_test(json_is_complete_after_every_row),
        cmocka_unit_test(json_groups_summaries_beside_the_rows),
        cmocka_unit_test(full_disks_keep_what_was_written),
        cmocka_unit_test(refused_outputs),
        cmocka_unit_test(a_run_without_rows_leaves_files_alone),
        cmocka_unit_test(hostile_files_are_refused_with_line_and_field),
        cmocka_unit_test(mutations),
        cmocka_unit_test(a_cut_line_is_not_a_row),
        cmocka_unit_test(keys_depend_on_the_named_fields_alone),
        cmocka_unit_test(records_replace_in_place),
        cmocka_unit_test(a_record_that_lacks_a_field_is_taken_nowhere),
        cmocka_unit_test(counts_and_truths_of_any_value),
        cmocka_unit_test(directories_are_made_with_their_parents),
        cmocka_unit_test(tables_read_well),
        cmocka_unit_test(numbers_do_not_follow_the_locale),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
