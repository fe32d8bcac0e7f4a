/* The option grammar: what is accepted, and one exact line for everything else. */
#include "lib/cli/options.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { most_words = 24 };

typedef struct parsed {
    vla_common common;
    vla_strings words;
    vla_error error;
    vla_status status;
} parsed;

/* Parses a command line given as one string of words separated by single spaces; "" is written as ~. */
static void parse(parsed *p, const char *line)
{
    static char copy[512];
    char *argv[most_words + 2];
    int argc = 0;
    *p = (parsed){0};
    snprintf(copy, sizeof copy, "test %s", line);
    for (char *rest = copy, *word; argc < most_words && (word = strsep(&rest, " "));) {
        if (strcmp(word, "~") == 0) *word = '\0';
        argv[argc++] = word;
    }
    argv[argc] = NULL;
    vla_common_init(&p->common);
    p->status = vla_options_parse(vla_common_groups(&p->common), argc, argv, &p->words, &p->error);
}

static void drop(parsed *p)
{
    vla_strings_free(&p->words);
    vla_common_free(&p->common);
}

static void expect_range(const char *text, const int64_t *values, int64_t count)
{
    vla_range range = {0};
    vla_error error = {0};
    if (vla_range_parse(&range, text, "--T", 0, 1 << 30, &error) != VLA_OK) fail_msg("%s: %s", text, error.message);
    assert_int_equal(range.count, count);
    for (int64_t i = 0; i < count; i++) assert_int_equal(range.values[i], values[i]);
    vla_range_free(&range);
}

#define EXPECT(text, ...) \
    expect_range(text, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void ranges(void **state)
{
    (void)state;
    EXPECT("64", 64);
    EXPECT("64,128", 64, 128);
    EXPECT("64-512x2", 64, 128, 256, 512);
    EXPECT("64-512*2", 64, 128, 256, 512);
    EXPECT("64-500x2", 64, 128, 256);
    EXPECT("64-256+64", 64, 128, 192, 256);
    EXPECT("0-10+5", 0, 5, 10);
    EXPECT("7-7+1", 7);
    EXPECT("7-7x2", 7);
    EXPECT("1k-4kx2", 1024, 2048, 4096);
    EXPECT("1M", 1048576);
    EXPECT("3,1-2+1,3", 3, 1, 2, 3);
    EXPECT("1-1000x10", 1, 10, 100, 1000);
}

static void refused_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "empty item"},
        {",", "empty item"},
        {"1,", "empty item"},
        {"1,,2", "empty item"},
        {"12x", "'x' after the number"},
        {"12kk", "'k' after the number"},
        {"1.5", "'.5' after the number"},
        {"1e3", "'e3' after the number"},
        {"abc", "not a number"},
        {" 1", "not a number"},
        {"+1", "not a number"},
        {"-1", "outside what is accepted: 0 to"},
        {"2000M", "outside what is accepted: 0 to"},
        {"99999999999999999999", "does not fit 64 bits"},
        {"9223372036854775807k", "does not fit 64 bits"},
        {"1-5", "no step"},
        {"1-5y2", "where a step is expected"},
        {"1-5x", "not a number"},
        {"1-5+2z", "after the step"},
        {"1-8x2.5", "after the step"},
        {"5-1+1", "empty range"},
        {"5-1x2", "empty range"},
        {"1-5x1", "does not advance"},
        {"1-5x0", "does not advance"},
        {"1-5x-2", "does not advance"},
        {"1-5+0", "does not advance"},
        {"1-5+-1", "does not advance"},
        {"0-5x2", "does not advance"},
        {"0-1M+1", "more than 65536 values"},
        {"1-1000M+1", "more than 65536 values"},
        {"11111111111111111111111111111111111111111111111111111111111111111111111111", "not a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vla_range range = {0};
        vla_error error = {0};
        assert_int_equal(vla_range_parse(&range, "9", "--T", 0, 1 << 30, &error), VLA_OK);
        if (vla_range_parse(&range, cases[i].text, "--T", 0, 1 << 30, &error) != VLA_ERR_ARGUMENT)
            fail_msg("accepted: '%s'", cases[i].text);
        if (strncmp(error.message, "--T: ", 5) != 0 || !strstr(error.message, cases[i].says) ||
            !strstr(error.message, "accepted"))
            fail_msg("'%s' gave: %s", cases[i].text, error.message);
        assert_int_equal(range.count, 1); /* a refused text adds nothing */
        vla_range_free(&range);
    }
    vla_range range = {0}; /* ends at the largest integer without running over it */
    vla_error error = {0};
    assert_int_equal(vla_range_parse(&range, "9223372036854775806-9223372036854775807+1", "--T", 0, INT64_MAX, &error),
                     VLA_OK);
    assert_int_equal(range.count, 2);
    assert_int_equal(vla_range_parse(&range, "4611686018427387904-9223372036854775807x2", "--T", 0, INT64_MAX, &error),
                     VLA_OK);
    assert_int_equal(range.count, 3);
    vla_range_free(&range);
}

static void accepted_lines(void **state)
{
    (void)state;
    parsed p;
    parse(&p, "vla --T 64-256x2 -qv --lambda0=0.5 word -o a.csv --out-file=b.json --T 5");
    assert_int_equal(p.status, VLA_OK);
    assert_int_equal(p.words.count, 2);
    assert_string_equal(p.words.values[0], "vla");
    assert_string_equal(p.words.values[1], "word");
    assert_int_equal(p.common.T.count, 4);
    assert_true(p.common.quiet && p.common.verbose && p.common.lambda0_given);
    assert_true(p.common.lambda0 == 0.5);
    assert_int_equal(p.common.outputs.count, 2);
    assert_string_equal(p.common.outputs.values[1], "b.json");
    drop(&p);
    parse(&p, "--op vla,rls --op softmax --seed 2k --form best,naive --features silu -- --T -x");
    assert_int_equal(p.status, VLA_OK);
    assert_int_equal(p.common.seed, 2048);
    assert_int_equal(p.words.count, 2);
    assert_string_equal(p.words.values[0], "--T");
    vla_op ops[VLA_OPS];
    vla_form forms[VLA_FORMS + 1];
    assert_int_equal(vla_common_ops(&p.common, ops), 3);
    assert_int_equal(ops[2], VLA_SOFTMAX);
    assert_int_equal(vla_common_forms(&p.common, forms), 2);
    assert_int_equal(forms[0], VLA_BEST);
    drop(&p);
    parse(&p, "--op all,vla");
    assert_int_equal(vla_common_ops(&p.common, ops), VLA_OPS);
    drop(&p);
    parse(&p, ""); /* one empty word */
    drop(&p);
}

static void refused_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--bogus", "--bogus: unknown option; see --help"},
        {"--thr 2", "--thr: unknown option (abbreviations are refused; --threads?); see --help"},
        {"--thr=2", "--thr: unknown option (abbreviations are refused; --threads?); see --help"},
        {"--see 2", "--see: unknown option (abbreviations are refused; --seeds?); see --help"},
        {"-z", "-z: unknown option; see --help"},
        {"-qz", "-z: unknown option; see --help"},
        {"--quiet=1", "--quiet: takes no value"},
        {"--seed", "--seed: no value given; accepted: --seed N"},
        {"-o", "-o: no value given; accepted: -o FILE"},
        {"--T ~", "--T: empty value; accepted: RANGE"},
        {"--T=", "--T: empty value; accepted: RANGE"},
        {"--seed 1x",
         "--seed: '1x' has rubbish after the number; accepted: a whole number (k and M are 1024s) from 0 to "
         "9007199254740991"},
        {"--seed -1", "--seed: '-1' is out of range; accepted: a whole number (k and M are 1024s) from 0 to "
                      "9007199254740991"},
        {"--seed 1e3",
         "--seed: '1e3' has rubbish after the number; accepted: a whole number (k and M are 1024s) from 0 to "
         "9007199254740991"},
        {"--seed 9223372036854775807M",
         "--seed: '9223372036854775807M' does not fit 64 bits; accepted: a whole number (k "
         "and M are 1024s) from 0 to 9007199254740991"},
        {"--lambda0 0", "--lambda0: '0' is out of range; accepted: a number above 0"},
        {"--lambda0 -1", "--lambda0: '-1' is out of range; accepted: a number above 0"},
        {"--lambda0 1e999", "--lambda0: '1e999' does not fit a double; accepted: a number above 0"},
        {"--lambda0 1e-999", "--lambda0: '1e-999' does not fit a double; accepted: a number above 0"},
        {"--lambda0 nan", "--lambda0: 'nan' is not a number; accepted: a number above 0"},
        {"--lambda0 1,5", "--lambda0: '1,5' is not a number; accepted: a number above 0"},
        {"--noise 11", "--noise: '11' is out of range; accepted: a number above 0, up to 10"},
        {"--features relu", "--features: unknown value 'relu'; accepted: elu1, silu, identity"},
        {"--features elu", "--features: unknown value 'elu'; accepted: elu1, silu, identity"},
        {"--op vla,", "--op: empty item in 'vla,'; accepted: names separated by single commas"},
        {"--op vla,VLA", "--op: unknown value 'VLA'; accepted: softmax, linear, delta, decay, vla, rls, all"},
        {"--dtype f8", "--dtype: unknown value 'f8'; accepted: f64, f32, bf16, f16, tf32"},
        {"--chunk 0", "--chunk: 0 is outside what is accepted: 1 to 65536"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p;
        parse(&p, cases[i].line);
        if (p.status != VLA_ERR_ARGUMENT) fail_msg("accepted: %s", cases[i].line);
        assert_string_equal(p.error.message, cases[i].message);
        drop(&p);
    }
}

static void widths(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int count;
        int64_t pairs[8];
    } cases[] = {
        {"x", 1, {64, 64}},
        {"--d 32", 1, {32, 32}},
        {"--d 32,64", 2, {32, 32, 64, 64}},
        {"--dk 32,128", 2, {32, 64, 128, 64}},
        {"--dv 32 --d 16", 1, {16, 32}},
        {"--dk 8,16 --dv 4,2", 4, {8, 4, 8, 2, 16, 4, 16, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p;
        int64_t dk, dv;
        parse(&p, cases[i].line);
        assert_int_equal(p.status, VLA_OK);
        for (int w = 0; w < cases[i].count; w++) {
            assert_true(vla_common_width(&p.common, w, &dk, &dv));
            assert_int_equal(dk, cases[i].pairs[2 * w]);
            assert_int_equal(dv, cases[i].pairs[2 * w + 1]);
        }
        assert_false(vla_common_width(&p.common, cases[i].count, &dk, &dv));
        drop(&p);
    }
}

static void problems(void **state)
{
    (void)state;
    parsed p;
    parse(&p, "--preset delta-pub --lambda0 2 --no-normalise --refresh-period 20 --output plain");
    assert_int_equal(p.status, VLA_OK);
    vla_problem delta = vla_problem_default(VLA_DELTA, 1, 1, 1, 4), vla = vla_problem_default(VLA_VLA, 1, 1, 1, 4);
    assert_int_equal(vla_common_problem(&p.common, &delta, &p.error), VLA_OK);
    assert_int_equal(vla_common_problem(&p.common, &vla, &p.error), VLA_OK);
    assert_true(delta.features == VLA_SILU && delta.qk_l2);
    assert_true(vla.features == VLA_ELU1 && !vla.qk_l2 && vla.output == VLA_PLAIN && vla.no_normalise);
    assert_true(vla.lambda0 == 2 && vla.refresh_period == 20 && vla.refresh_eps == 1e-3);
    drop(&p);
    parse(&p, "--preset delta-pub --features identity --qk-norm none"); /* what is said outright wins */
    assert_int_equal(vla_common_problem(&p.common, &delta, &p.error), VLA_OK);
    assert_true(delta.features == VLA_IDENTITY && !delta.qk_l2);
    drop(&p);
}

static void help_names_every_option_and_default(void **state)
{
    (void)state;
    vla_common common;
    vla_common_init(&common);
    const vla_option_group *groups = vla_common_groups(&common);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    char program[] = "test", help[] = "--help", *argv[] = {program, help, NULL};
    const vla_cli cli = {"test", "test [options]", "Tests.", groups, &common};
    vla_strings words = {0};
    int code = 9;
    assert_false(vla_cli_parse(&cli, 2, argv, &words, out, out, &code));
    fclose(out);
    assert_int_equal(code, 0);
    for (const vla_option_group *g = groups; g->title; g++)
        for (const vla_option *row = g->options; row->name; row++) {
            char name[64];
            snprintf(name, sizeof name, "--%s", row->name);
            if (!strstr(text, name)) fail_msg("%s is not in the help", name);
            bool plain = strcmp(row->name, "help") == 0 || strcmp(row->name, "version") == 0 ||
                         strcmp(row->name, "case") == 0 || strcmp(row->name, "op") == 0 || strcmp(row->name, "T") == 0;
            if (!plain && !strstr(row->help, "(default: ")) fail_msg("%s has no default in the help", name);
        }
    for (char *line = text, *rest; (rest = strchr(line, '\n')); line = rest + 1) assert_true(rest - line <= 130);
    free(text);
    vla_strings_free(&words);
    vla_common_free(&common);
}

static void exit_codes(void **state)
{
    (void)state;
    assert_int_equal(vla_exit_code(VLA_OK), 0);
    assert_int_equal(vla_exit_code(VLA_ERR_NUMERIC), 1);
    assert_int_equal(vla_exit_code(VLA_ERR_ARGUMENT), 2);
    assert_int_equal(vla_exit_code(VLA_ERR_UNSUPPORTED), 2);
    assert_int_equal(vla_exit_code(VLA_ERR_MEMORY), 2);
    assert_int_equal(vla_exit_code(VLA_ERR_FILE), 3);
    assert_int_equal(vla_exit_code(VLA_ERR_DEVICE), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges),
        cmocka_unit_test(refused_ranges),
        cmocka_unit_test(accepted_lines),
        cmocka_unit_test(refused_lines),
        cmocka_unit_test(widths),
        cmocka_unit_test(problems),
        cmocka_unit_test(help_names_every_option_and_default),
        cmocka_unit_test(exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
