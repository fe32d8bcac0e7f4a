/* Plans run by another process, the choice among versions of a library, and finding those that are installed. The other
 * process is this program again, started with a word. */
#include "lib/device/cudnn.h"
#include "lib/device/worker.h"
#include "lib/measure/rivals.h"
#include "lib/measure/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define WORD "serve"
#define CHECK(call)                                                      \
    do {                                                                 \
        vla_error error_ = {0};                                          \
        vla_error *error = &error_;                                      \
        if ((call) != VLA_OK) fail_msg("%s: %s", #call, error->message); \
    } while (0)

static vla_worker *start(const char *name)
{
    vla_worker *worker = NULL;
    const vla_worker_start_options options = {"/proc/self/exe", WORD, "VLA_TEST_LIBRARY", "/nowhere/lib.so", name};
    CHECK(vla_worker_start(&worker, &options, error));
    return worker;
}

static vla_case softmax_case(int64_t T, int threads)
{
    return (vla_case){.problem = vla_problem_default(VLA_SOFTMAX, 2, 3, T, 8),
                      .form = VLA_CHUNK,
                      .backend = VLA_CPU,
                      .dtype = VLA_F32,
                      .isa = VLA_ISA_AUTO,
                      .threads = threads};
}

/* Outputs of the other process are those of this one, bit for bit, with the guard bytes behind them. */
static void test_outputs(void **state)
{
    (void)state;
    enum { T = 33, COUNT = 2 * 3 * T * 8 };
    static float q[COUNT], k[COUNT], v[COUNT], here[COUNT], there[COUNT + 16];
    for (int i = 0; i < COUNT; i++) q[i] = sinf((float)i), k[i] = cosf(0.7F * (float)i), v[i] = sinf(0.3F * (float)i);
    const vla_case c = softmax_case(T, 1);
    const vla_remote_job job = {c.problem, c.form, c.backend, c.dtype, false};
    const vla_tensors far = {.q = q, .k = k, .v = v, .o = there}, near = {.q = q, .k = k, .v = v, .o = here};
    vla_exec *exec = NULL;
    vla_plan *plan = NULL;
    CHECK(vla_exec_create(&exec, 1, VLA_ISA_AUTO, error));
    CHECK(vla_plan_create(&plan, exec, &c.problem, c.form, c.backend, c.dtype, error));
    CHECK(vla_plan_run(plan, &near, error));
    vla_worker *worker = start("library 1");
    vla_remote *remotes[3];
    double seconds = -1;
    bool intact = false;
    for (int i = 0; i < 3; i++) CHECK(vla_remote_create(&remotes[i], worker, &job, &far, error));
    for (int i = 0; i < 3; i++) {
        memset(there, 0, sizeof there);
        CHECK(vla_remote_run(remotes[i], 2, false, &seconds, error));
        assert_true(seconds > 0);
        CHECK(vla_remote_fetch(remotes[i], 64, error));
        assert_memory_equal(here, there, sizeof here);
        for (int j = 0; j < 64; j++) assert_int_equal(((unsigned char *)(there + COUNT))[j], 0xff);
        CHECK(vla_remote_inputs_intact(remotes[i], &intact, error));
        assert_true(intact);
        vla_remote_destroy(remotes[i]);
    }
    assert_true(vla_worker_alive(worker));
    vla_worker_stop(worker);
    vla_plan_destroy(plan);
    vla_exec_destroy(exec);
}

/* What cannot run there is said, and does not end the other process; what ended does not hang this one. */
static void test_errors(void **state)
{
    (void)state;
    float x[64] = {0};
    vla_error why = {0};
    vla_remote *remote = NULL;
    vla_worker *worker = start("library 2");
    const vla_tensors t = {.q = x, .k = x, .v = x, .o = x};
    vla_remote_job job = {vla_problem_default(VLA_VLA, 1, 1, 4, 4), VLA_CHUNK, VLA_CPU, VLA_F32, false};
    assert_int_equal(vla_remote_create(&remote, worker, &job, &t, &why), VLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.message, "state"));
    job.problem.op = VLA_SOFTMAX;
    job.dtype = VLA_BF16; /* no such kernel on the CPU */
    assert_int_equal(vla_remote_create(&remote, worker, &job, &t, &why), VLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.message, "library 2: "));
    assert_null(remote);
    job.dtype = VLA_F32;
    assert_int_equal(vla_remote_create(&remote, worker, &job, &t, &why), VLA_OK);
    assert_true(vla_worker_alive(worker));
    vla_remote_destroy(remote);
    job.problem.H = INT64_MAX / 2;
    assert_int_equal(vla_remote_create(&remote, worker, &job, &t, &why), VLA_ERR_MEMORY);
    vla_worker_stop(worker);

    const vla_worker_start_options nothing = {"/nonexistent", WORD, "X", "y", "library 3"},
                                   leaves = {"/bin/true", WORD, "X", "y", "library 4"};
    assert_int_equal(vla_worker_start(&worker, &nothing, &why), VLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.message, "library 3"));
    assert_null(worker);
    job.problem.H = 1;
    CHECK(vla_worker_start(&worker, &leaves, error));
    assert_int_equal(vla_remote_create(&remote, worker, &job, &t, &why), VLA_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.message, "library 4"));
    assert_false(vla_worker_alive(worker));
    assert_int_equal(vla_remote_create(&remote, worker, &job, &t, &why), VLA_ERR_UNSUPPORTED);
    vla_worker_stop(worker);
    vla_worker_stop(NULL);
}

static bool is_softmax(const vla_case *c)
{
    return c->problem.op == VLA_SOFTMAX;
}

typedef struct notes {
    int count;
    char last[700];
} notes;

static void note(void *context, const char *text)
{
    notes *n = context;
    n->count++;
    snprintf(n->last, sizeof n->last, "%s", text);
}

/* A sweep in which two other processes run softmax too: one row a case, checked, with every time. */
static void sweep_with(vla_worker **workers, int count, vla_records *rows, notes *said)
{
    const vla_case cases[] = {softmax_case(16, 1),
                              softmax_case(48, 1),
                              {.problem = vla_problem_default(VLA_LINEAR, 2, 3, 48, 8),
                               .form = VLA_CHUNK,
                               .dtype = VLA_F32,
                               .isa = VLA_ISA_AUTO,
                               .threads = 1}};
    vla_sweep *sweep = NULL;
    const vla_sweep_config config = {.time_limit = 20,
                                     .min_samples = 3,
                                     .noise = 0.5,
                                     .seed = 42,
                                     .isa = VLA_ISA_AUTO,
                                     .workers = workers,
                                     .worker_count = count,
                                     .here = "here 1",
                                     .in_workers = is_softmax,
                                     .context = said,
                                     .note = note};
    CHECK(vla_sweep_create(&sweep, &config, rows, error));
    CHECK(vla_sweep_run(sweep, cases, 3, 1, error));
    vla_sweep_destroy(sweep);
    assert_int_equal(rows->count, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(vla_record_text(rows->rows[i], "status", ""), "ok");
        assert_true(vla_record_number(rows->rows[i], "median_s", -1) > 0);
    }
    assert_string_equal(vla_record_text(rows->rows[2], "op", ""), "linear");
    assert_null(vla_record_text(rows->rows[2], "libraries", NULL));
}

static void test_sweep(void **state)
{
    (void)state;
    vla_records rows = {0};
    notes said = {0};
    vla_worker *workers[2] = {start("there 2"), start("there 3")};
    sweep_with(workers, 2, &rows, &said);
    for (int i = 0; i < 2; i++) {
        double times[3], least = (double)INFINITY;
        const char *text = vla_record_text(rows.rows[i], "libraries", "");
        if (sscanf(text, "here 1 %lf s; there 2 %lf s; there 3 %lf s", &times[0], &times[1], &times[2]) != 3)
            fail_msg("'%s'", text);
        for (int j = 0; j < 3; j++) least = times[j] < least ? times[j] : least;
        const double median = vla_record_number(rows.rows[i], "median_s", -1);
        assert_true(fabs(median - least) < 1e-3 * least); /* the text has four digits */
    }
    assert_int_equal(said.count, 0);
    for (int i = 0; i < 2; i++) vla_worker_stop(workers[i]);
    vla_records_clear(&rows);
}

/* A version that does not work is left out of every row, and that is said once. */
static void test_sweep_without(void **state)
{
    (void)state;
    vla_records rows = {0};
    notes said = {0};
    vla_worker *worker = NULL;
    const vla_worker_start_options leaves = {"/bin/true", WORD, "X", "y", "there 4"};
    CHECK(vla_worker_start(&worker, &leaves, error));
    sweep_with(&worker, 1, &rows, &said);
    assert_int_equal(said.count, 1);
    assert_non_null(strstr(said.last, "there 4 is left out of softmax/"));
    for (int i = 0; i < 2; i++) {
        const char *text = vla_record_text(rows.rows[i], "libraries", "");
        if (strncmp(text, "here 1 ", 7) || !strstr(text, "; there 4 no time")) fail_msg("'%s'", text);
    }
    vla_worker_stop(worker);
    vla_records_clear(&rows);
}

static void test_choice(void **state)
{
    (void)state;
    double slow[] = {3, 3.1, 2.9}, fast[] = {2, 9, 1.9}, faster[] = {1, 1, 1};
    vla_bench b[3] = {{.c = softmax_case(8, 1)}, {.c = softmax_case(8, 1)}, {.c = softmax_case(8, 1)}};
    b[0].sampler.samples = slow, b[0].sampler.n = 3;
    b[1].sampler.samples = fast, b[1].sampler.n = 3;
    b[2].sampler.samples = faster, b[2].sampler.n = 3;
    assert_int_equal(vla_rivals_fastest(b, 1), 0);
    assert_int_equal(vla_rivals_fastest(b, 2), 1); /* by the median, not the mean */
    assert_int_equal(vla_rivals_fastest(b, 3), 2);
    b[2].status = VLA_ROW_FAIL; /* a wrong result has no time */
    assert_int_equal(vla_rivals_fastest(b, 3), 1);
    b[0].status = VLA_ROW_FAIL;
    assert_int_equal(vla_rivals_fastest(b, 3), 1);
    b[1].sampler.n = 0;
    assert_int_equal(vla_rivals_fastest(b, 3), 0);
    b[1].sampler.n = 3;
    const char *names[] = {"cudnn 9.1.0", "cudnn 9.2.0", "cudnn 9.3.0"};
    vla_rivals_note(b, 3, names, &b[1]);
    assert_string_equal(b[1].libraries, "cudnn 9.1.0 no time; cudnn 9.2.0 2 s; cudnn 9.3.0 no time");
}

/* Folders and files below a fresh one. */
static char folder[] = "/tmp/vla-worker-XXXXXX";

static const char *below(const char *path)
{
    static char text[4][512];
    static int next;
    char *made = text[next++ % 4];
    snprintf(made, sizeof text[0], "%s%s", folder, path);
    for (char *slash = strchr(made + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(made, 0755);
        *slash = '/';
    }
    return made;
}

/* A library that only knows its version; false where there is no compiler. */
static bool compile(const char *file, const char *version)
{
    char command[1600];
    snprintf(command, sizeof command,
             "printf '#include <stddef.h>\\nsize_t cudnnGetVersion(void) { %s; }\\n' | ${CC:-cc} -shared -fPIC "
             "-Wl,-soname,libcudnn.so.9 -x c -o %s - 2>/dev/null",
             version, below(file));
    return system(command) == 0;
}

static void expect_versions(const vla_cudnn_places *places, const char *expected)
{
    vla_cudnn_versions v = {0};
    char text[2048] = "";
    size_t used = 0;
    CHECK(vla_cudnn_find(&v, places, error));
    for (int i = 0; i < v.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", i ? ", " : "", v.items[i].version,
                                 v.items[i].path + strlen(folder));
    assert_string_equal(text, expected);
    vla_cudnn_versions_free(&v);
    assert_int_equal(v.count, 0);
}

static void test_find(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    if (!compile("/usr/lib/x86_64-linux-gnu/libcudnn.so.9.14.0", "return 91400")) skip();
    const char *wheel = "/usr/local/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9";
    assert_int_equal(symlink("libcudnn.so.9.14.0", below("/usr/lib/x86_64-linux-gnu/libcudnn.so.9")), 0);
    assert_true(compile(wheel, "return 91900"));
    assert_true(compile("/usr/lib/python3.11/dist-packages/nvidia/cudnn/lib/libcudnn.so.9", "return 91400"));
    assert_true(compile("/usr/local/cuda/lib64/libcudnn.so.9", "return 8907")); /* cuDNN 8 */
    assert_true(compile("/usr/local/cuda/targets/x86_64-linux/lib/libcudnn.so.9", "*(volatile int *)0 = 1; return 1"));
    FILE *text = fopen(below("/usr/lib64/libcudnn.so.9"), "w");
    assert_non_null(text);
    fputs("no library\n", text);
    fclose(text);
    assert_true(compile("/env[1]/lib/python3.13/site-packages/nvidia/cudnn/lib/libcudnn.so.9", "return 92001"));
    assert_true(compile("/conda/lib/libcudnn.so.9", "return 90800"));
    assert_true(compile("/home/.local/lib/python3.9/site-packages/nvidia/cudnn/lib/libcudnn.so.9", "return 90501"));
    assert_true(compile("/other/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9", "return 91002"));
    assert_true(compile("/own/libcudnn.so.9", "return 91301"));
    text = fopen(below("/other/bin/python3.12"), "w");
    assert_non_null(text);
    fclose(text);
    assert_int_equal(chmod(below("/other/bin/python3.12"), 0755), 0);
    assert_int_equal(symlink("../../other/bin/python3.12", below("/links/bin/python3")), 0);

    char root[64], env[128], conda[128], home[128], own[256], path[512];
    snprintf(root, sizeof root, "%s", folder);
    snprintf(env, sizeof env, "%s", below("/env[1]"));
    snprintf(conda, sizeof conda, "%s", below("/conda"));
    snprintf(home, sizeof home, "%s", below("/home"));
    snprintf(own, sizeof own, ":/nonexistent:%s/own/:%s/own", folder, folder);
    snprintf(path, sizeof path, "/nonexistent:%s/links/bin", folder);
    const char *usual = "9.14.0 /usr/lib/x86_64-linux-gnu/libcudnn.so.9.14.0, "
                        "9.19.0 /usr/local/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9";
    expect_versions(&(vla_cudnn_places){.root = root}, usual);
    expect_versions(&(vla_cudnn_places){0}, "");
    expect_versions(&(vla_cudnn_places){.library_path = own}, "9.13.1 /own/libcudnn.so.9");
    expect_versions(&(vla_cudnn_places){.virtual_env = env, .conda = conda, .home = home, .path = path},
                    "9.20.1 /env[1]/lib/python3.13/site-packages/nvidia/cudnn/lib/libcudnn.so.9, "
                    "9.8.0 /conda/lib/libcudnn.so.9, "
                    "9.5.1 /home/.local/lib/python3.9/site-packages/nvidia/cudnn/lib/libcudnn.so.9, "
                    "9.10.2 /other/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
    /* named: that file alone, and none when it is none */
    expect_versions(&(vla_cudnn_places){.named = below(wheel), .root = root, .library_path = own},
                    "9.19.0 /usr/local/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
    expect_versions(&(vla_cudnn_places){.named = "/nonexistent", .root = root}, "");
    expect_versions(&(vla_cudnn_places){.named = "", .root = root}, usual);
    /* the linker's own, which comes first and is no second one of the same file: by a child started with its folder */
    char command[900];
    snprintf(command, sizeof command, "LD_LIBRARY_PATH=%s/own /proc/%d/exe find %s >%s", folder, (int)getpid(), root,
             below("/found"));
    assert_int_equal(system(command), 0);
    char line[600] = "", expected[600];
    text = fopen(below("/found"), "r");
    assert_non_null(text);
    const size_t got = fread(line, 1, sizeof line - 1, text);
    fclose(text);
    snprintf(expected, sizeof expected, "9.13.1 %s/own/libcudnn.so.9\n9.14.0 ", folder);
    assert_true(got > strlen(expected));
    line[strlen(expected)] = '\0';
    assert_string_equal(line, expected);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* "find ROOT": prints what is found there, the linker's first. */
static int print_found(const char *root)
{
    vla_cudnn_versions v = {0};
    const vla_cudnn_places places = {.linker = true, .library_path = getenv("LD_LIBRARY_PATH"), .root = root};
    const vla_status status = vla_cudnn_find(&v, &places, NULL);
    for (int i = 0; i < v.count; i++) printf("%s %s\n", v.items[i].version, v.items[i].path);
    vla_cudnn_versions_free(&v);
    return (int)status;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], WORD)) {
        const char *library = getenv("VLA_TEST_LIBRARY"), *folders = getenv("LD_LIBRARY_PATH");
        const bool told = library && !strcmp(library, "/nowhere/lib.so") && folders && !strncmp(folders, "/nowhere", 8);
        return told ? vla_worker_serve(STDIN_FILENO) : 3;
    }
    if (argc == 3 && !strcmp(argv[1], "find")) return print_found(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_outputs), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_sweep),   cmocka_unit_test(test_sweep_without),
                                       cmocka_unit_test(test_choice),  cmocka_unit_test(test_find)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
