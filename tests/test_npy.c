/* .npy files: every layout that is accepted reads right, everything else is refused with file and field named. */
#include "lib/base/random.h"
#include "lib/tensor/npy.h"
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

typedef struct bytes {
    unsigned char data[80000];
    size_t count;
} bytes;

static char folder[64], path[96];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/vla-npy-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/t.npy", folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails when anything was left behind, a temporary file above all */
}

static void put(bytes *b, const void *data, size_t count)
{
    assert_true(b->count + count <= sizeof b->data);
    memcpy(b->data + b->count, data, count);
    b->count += count;
}

static void start(bytes *b, int major, const char *header, size_t pad)
{
    size_t length = strlen(header) + pad;
    unsigned char head[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)major, 0};
    for (int i = 0; i < 4; i++) head[8 + i] = (unsigned char)(length >> (8 * i));
    b->count = 0;
    put(b, head, major == 1 ? 10 : 12);
    put(b, header, strlen(header));
    for (size_t i = 0; i < pad; i++) put(b, " ", 1);
}

static void save(const bytes *b)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b->data, 1, b->count, file), b->count);
    assert_int_equal(fclose(file), 0);
}

static vla_status load(const bytes *b, vla_tensor *tensor, vla_error *error)
{
    *error = (vla_error){0};
    save(b);
    return vla_npy_read(tensor, path, VLA_F64, error);
}

/* 2 x 3 of 1..6 in the file's own order. */
static void six(bytes *b, int major, const char *header, size_t pad, char type, int width, bool big)
{
    start(b, major, header, pad);
    for (int i = 1; i <= 6; i++) {
        double f8 = i;
        float f4 = (float)i;
        static const uint16_t f2[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};
        int64_t integer = i;
        unsigned char raw[8];
        const void *from = type != 'f'  ? (const void *)&integer
                           : width == 8 ? (const void *)&f8
                           : width == 4 ? (const void *)&f4
                                        : (const void *)&f2[i];
        memcpy(raw, from, (size_t)width);
        for (int j = 0; big && j < width / 2; j++) {
            unsigned char keep = raw[j];
            raw[j] = raw[width - 1 - j];
            raw[width - 1 - j] = keep;
        }
        put(b, raw, (size_t)width);
    }
}

static void expect_six(const bytes *b, bool fortran)
{
    vla_tensor t;
    vla_error error;
    if (load(b, &t, &error) != VLA_OK) fail_msg("%s", error.message);
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.shape[0], 2);
    assert_int_equal(t.shape[1], 3);
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 3; c++)
            assert_true(vla_load(t.data, VLA_F64, 3 * r + c) == (fortran ? 2 * c + r + 1 : 3 * r + c + 1));
    vla_tensor_destroy(&t);
}

static void accepted_layouts(void **state)
{
    (void)state;
    static const struct {
        char type;
        int width;
    } types[] = {{'f', 2}, {'f', 4}, {'f', 8}, {'i', 1}, {'i', 2}, {'i', 4},
                 {'i', 8}, {'u', 1}, {'u', 2}, {'u', 4}, {'u', 8}};
    static const size_t pads[] = {0, 1, 63, 70000};
    bytes *b = malloc(sizeof *b);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (int way = 0; way < 24; way++) {
            bool big = way & 1, fortran = way & 2;
            int major = 1 + way / 4 % 3;
            size_t pad = pads[way / 4 % 4];
            char header[200];
            if (major == 1 && pad > 60000) pad = 1000;
            snprintf(header, sizeof header, "{'descr': '%c%c%d', 'fortran_order': %s, 'shape': (2, 3), }",
                     big ? '>' : '<', types[t].type, types[t].width, fortran ? "True" : "False");
            six(b, major, header, pad, types[t].type, types[t].width, big);
            expect_six(b, fortran);
        }
    }
    free(b);
}

static void accepted_headers(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{'shape': (2, 3), 'descr': '<f4', 'fortran_order': False}",
        "{\"fortran_order\":False,\"shape\":(2,3),\"descr\":\"<f4\"}\n",
        "  { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , } \n",
        "{'descr': '=f4', 'fortran_order': False, 'shape': (2L, 3L)}",
    };
    bytes *b = malloc(sizeof *b);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        six(b, 1, headers[i], 5, 'f', 4, false);
        expect_six(b, false);
    }
    free(b);
}

static void scalars_vectors_and_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *shape;
        int rank, count;
    } cases[] = {{"()", 0, 1},
                 {"(1,)", 1, 1},
                 {"(0,)", 1, 0},
                 {"(3, 0, 5)", 3, 0},
                 {"(1,1,1,1,1,1,1,1)", 8, 1},
                 {"(4611686018427387904, 4, 0)", 3, 0}};
    bytes *b = malloc(sizeof *b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[120];
        double value = 2.5;
        vla_tensor t;
        vla_error error;
        snprintf(header, sizeof header, "{'descr': '<f8', 'fortran_order': False, 'shape': %s, }", cases[i].shape);
        start(b, 1, header, 3);
        if (cases[i].count) put(b, &value, sizeof value);
        if (load(b, &t, &error) != VLA_OK) fail_msg("%s", error.message);
        assert_int_equal(t.rank, cases[i].rank);
        assert_int_equal(t.count, cases[i].count);
        if (t.count) assert_true(*(double *)t.data == 2.5);
        vla_tensor_destroy(&t);
    }
    free(b);
}

static void integers_keep_their_sign(void **state)
{
    (void)state;
    bytes *b = malloc(sizeof *b);
    vla_tensor t;
    vla_error error;
    start(b, 1, "{'descr': '|i1', 'fortran_order': False, 'shape': (3,), }", 0);
    put(b, "\x80\xff\x7f", 3);
    assert_int_equal(load(b, &t, &error), VLA_OK);
    assert_true(((double *)t.data)[0] == -128 && ((double *)t.data)[1] == -1 && ((double *)t.data)[2] == 127);
    vla_tensor_destroy(&t);
    start(b, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", 0);
    put(b, "\0\0\0\0\0\0\0\x80", 8);
    assert_int_equal(load(b, &t, &error), VLA_OK);
    assert_true(((double *)t.data)[0] == -0x1p63);
    vla_tensor_destroy(&t);
    free(b);
}

typedef struct hostile {
    const char *header;
    size_t data;
    const char *field, *says;
} hostile;

static void refused_headers(void **state)
{
    (void)state;
    static const hostile cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 23, "shape", "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 25, "shape", "oversized"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 0, "shape", "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3), }", 24, "shape", "negative"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", 0, "shape", "too large"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693952,), }", 0, "shape", "too large"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 0, "shape", "64 bits"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", 24, "shape", "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6), }", 24, "shape", "8 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6), }", 24, "shape", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 6, }", 24, "shape", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3], }", 24, "shape", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2.0, 3), }", 24, "shape", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }", 24, "shape", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (,), }", 24, "shape", "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3", 24, "shape", "tuple"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", 24, "descr", "objects"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", 24, "descr", "accepted: f2 f4 f8"},
        {"{'descr': '<f16', 'fortran_order': False, 'shape': (3,), }", 48, "descr", "not supported"},
        {"{'descr': '<f1', 'fortran_order': False, 'shape': (24,), }", 24, "descr", "not supported"},
        {"{'descr': '<i3', 'fortran_order': False, 'shape': (8,), }", 24, "descr", "not supported"},
        {"{'descr': '|f4', 'fortran_order': False, 'shape': (6,), }", 24, "descr", "not supported"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (24,), }", 24, "descr", "not supported"},
        {"{'descr': '<U6', 'fortran_order': False, 'shape': (1,), }", 24, "descr", "not supported"},
        {"{'descr': '', 'fortran_order': False, 'shape': (6,), }", 24, "descr", "not supported"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", 24, "descr", "structured"},
        {"{'descr': 4, 'fortran_order': False, 'shape': (6,), }", 24, "descr", "type string"},
        {"{'descr': '<f4", 24, "descr", "type string"},
        {"{'descr': '<f4', 'fortran_order': false, 'shape': (6,), }", 24, "fortran_order", "True or False"},
        {"{'descr': '<f4', 'shape': (6,), }", 24, "fortran_order", "missing"},
        {"{'fortran_order': False, 'shape': (6,), }", 24, "descr", "missing"},
        {"{'descr': '<f4', 'fortran_order': False, }", 24, "shape", "missing"},
        {"{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (6,), }", 24, "descr", "twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'x': 1}", 24, "x", "unknown"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} or 1", 24, "header", "rubbish"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (6,)}", 24, "header", "rubbish"},
        {"{", 24, "header", "dict"},
        {"", 24, "header", "dict"},
        {"[]", 24, "header", "dict"},
        {"{'descr'", 24, "header", "dict"},
    };
    static const unsigned char zeros[64];
    bytes *b = malloc(sizeof *b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vla_tensor t;
        vla_error error;
        char field[192];
        start(b, 1, cases[i].header, 0);
        put(b, zeros, cases[i].data);
        if (load(b, &t, &error) != VLA_ERR_FILE) fail_msg("accepted: %s", cases[i].header);
        snprintf(field, sizeof field, "%s: field '%s'", path, cases[i].field);
        if (strncmp(error.message, field, strlen(field)) != 0 || !strstr(error.message, cases[i].says))
            fail_msg("%s\n  gave: %s", cases[i].header, error.message);
        assert_null(t.data);
    }
    free(b);
}

static void refused_files(void **state)
{
    (void)state;
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    bytes *b = malloc(sizeof *b);
    vla_tensor t;
    vla_error error;
    six(b, 1, header, 5, 'f', 4, false);
    size_t whole = b->count;
    for (b->count = 0; b->count < whole; b->count++) { /* cut anywhere */
        assert_int_equal(load(b, &t, &error), VLA_ERR_FILE);
        assert_non_null(strstr(error.message, path));
    }
    b->data[6] = 4;
    assert_int_equal(load(b, &t, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "version"));
    b->data[6] = 2; /* now the header's length is 4 bytes: the two more make it enormous */
    assert_int_equal(load(b, &t, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "header length"));
    assert_int_equal(vla_npy_read(&t, "/nonexistent/q.npy", VLA_F32, &error), VLA_ERR_FILE);
    assert_int_equal(vla_npy_read(&t, folder, VLA_F32, &error), VLA_ERR_FILE);
    assert_int_equal(vla_npy_read(&t, "/dev/zero", VLA_F32, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, "not a regular file"));
    free(b);
}

/* Any few bytes changed, cut or added: read or refused by name, and what is read has the file's size. */
static void mutations(void **state)
{
    (void)state;
    static const char *const headers[] = {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }    \n",
                                          "{'descr': '>f8', 'fortran_order': False, 'shape': (3, 1), }\n",
                                          "{'shape': (), 'descr': '|u1', 'fortran_order': False}\n"};
    static const char alphabet[] = "()[]{}',:<>|=fiuO0123456789-LTrueFalse \n\xff\x01";
    vla_rng rng = vla_rng_seed(7, 0);
    bytes *b = malloc(sizeof *b);
    int read = 0, refused = 0;
    for (int round = 0; round < 6000; round++) {
        vla_tensor t;
        vla_error error;
        start(b, 1 + round % 3, headers[round / 3 % 3], (size_t)(round % 7));
        put(b, "0123456789abcdefghijklmn", round / 3 % 3 == 2 ? 1 : 24);
        int changes = 1 + (int)vla_rng_below(&rng, 4);
        for (int i = 0; i < changes; i++) {
            size_t at = (size_t)vla_rng_below(&rng, b->count);
            switch (vla_rng_below(&rng, 6)) {
            case 0:
                b->data[at] = (unsigned char)vla_rng_next(&rng);
                break;
            case 1:
                b->count = at + 1;
                break;
            case 2:
                put(b, "0123456789", 1 + (size_t)vla_rng_below(&rng, 10));
                break;
            default:
                b->data[at] = (unsigned char)alphabet[vla_rng_below(&rng, sizeof alphabet - 1)];
                break;
            }
        }
        vla_status status = load(b, &t, &error);
        if (status == VLA_OK) {
            read++;
            assert_true(t.count <= (int64_t)b->count);
            double *copy = malloc((size_t)t.count * sizeof *copy + 1);
            memcpy(copy, t.data, (size_t)t.count * sizeof *copy); /* every element is there to read */
            free(copy);
            vla_tensor_destroy(&t);
        } else {
            refused++;
            assert_int_equal(status, VLA_ERR_FILE);
            assert_non_null(strstr(error.message, path));
            assert_null(strchr(error.message, '\n'));
        }
    }
    assert_true(read > 100 && refused > 1000);
    free(b);
}

static void written_files_read_back(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{0}, {7}, {0}, {2, 3, 4, 5}, {1, 5000}};
    static const int ranks[] = {0, 1, 1, 4, 2};
    double *data = malloc(5000 * sizeof *data);
    float *narrow = malloc(5000 * sizeof *narrow);
    vla_rng rng = vla_rng_seed(1, 2);
    for (int i = 0; i < 5000; i++) narrow[i] = (float)(data[i] = vla_rng_normal(&rng));
    for (size_t s = 0; s < 5; s++) {
        for (int wide = 0; wide < 2; wide++) {
            vla_tensor t;
            vla_error error = {0};
            const void *from = wide ? (const void *)data : (const void *)narrow;
            vla_dtype dtype = wide ? VLA_F64 : VLA_F32;
            if (vla_npy_write(path, from, dtype, ranks[s], shapes[s], &error) != VLA_OK) fail_msg("%s", error.message);
            if (vla_npy_read(&t, path, dtype, &error) != VLA_OK) fail_msg("%s", error.message);
            assert_int_equal(t.rank, ranks[s]);
            assert_memory_equal(t.shape, shapes[s], (size_t)ranks[s] * sizeof(int64_t));
            if (t.count) assert_memory_equal(t.data, from, (size_t)t.count * vla_dtype_size(dtype));
            vla_tensor_destroy(&t);
            int64_t count = 1;
            for (int i = 0; i < ranks[s]; i++) count *= shapes[s][i];
            struct stat info; /* elements begin at a multiple of 64 bytes */
            assert_int_equal(stat(path, &info), 0);
            assert_int_equal((info.st_size - count * (int64_t)vla_dtype_size(dtype)) % 64, 0);
        }
    }
    free(data);
    free(narrow);
}

static void failed_writes_leave_nothing(void **state)
{
    (void)state;
    double value = 1;
    int64_t shape[] = {1};
    vla_error error = {0};
    char missing[128];
    snprintf(missing, sizeof missing, "%s/no/such.npy", folder);
    assert_int_equal(vla_npy_write(missing, &value, VLA_F64, 1, shape, &error), VLA_ERR_FILE);
    assert_non_null(strstr(error.message, missing));
    assert_int_equal(vla_npy_write("/dev/full", &value, VLA_F64, 1, shape, &error), VLA_ERR_FILE);
    assert_int_equal(vla_npy_write(folder, &value, VLA_F64, 1, shape, &error), VLA_ERR_FILE);
    assert_int_equal(vla_npy_write(path, &value, VLA_F64, 9, shape, &error), VLA_ERR_ARGUMENT);
    shape[0] = -1;
    assert_int_equal(vla_npy_write(path, &value, VLA_F64, 1, shape, &error), VLA_ERR_ARGUMENT);
}

/* A new file has the mode the umask leaves, one that is replaced keeps its own, and nothing stays beside them. */
static void written_files_keep_their_mode(void **state)
{
    (void)state;
    const double value = 1;
    const int64_t shape[] = {1};
    char own[128], command[320];
    struct stat info;
    const mode_t before = umask(027);
    snprintf(own, sizeof own, "%s/mode.npy", folder);
    assert_int_equal(vla_npy_write(own, &value, VLA_F64, 1, shape, NULL), VLA_OK);
    umask(before);
    assert_int_equal(stat(own, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0640);
    assert_int_equal(chmod(own, 0600), 0);
    assert_int_equal(vla_npy_write(own, &value, VLA_F64, 1, shape, NULL), VLA_OK);
    assert_int_equal(stat(own, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    snprintf(command, sizeof command, "test \"$(ls -d '%s'/mode.npy*)\" = '%s'", folder, own);
    assert_int_equal(system(command), 0);
    unlink(own);
}

static void halves_convert_exactly(void **state)
{
    (void)state;
    static const vla_dtype halves[] = {VLA_F16, VLA_BF16};
    for (int h = 0; h < 2; h++) {
        for (uint32_t i = 0; i < 65536; i++) {
            uint16_t half = (uint16_t)i, back;
            double value;
            vla_convert(&value, VLA_F64, &half, halves[h], 1);
            vla_convert(&back, halves[h], &value, VLA_F64, 1);
            if (isnan(value)) {
                double again = vla_load(&back, halves[h], 0);
                assert_true(isnan(again));
            } else {
                assert_int_equal(back, half);
            }
            /* Half-way to the next value goes to the even one; a hair further goes up. */
            if (!isfinite(value) || i & 0x8000) continue;
            uint16_t next = (uint16_t)(half + 1);
            double up = vla_load(&next, halves[h], 0);
            if (!isfinite(up)) continue;
            double middle = value + (up - value) / 2, above = nextafter(middle, 1e300);
            vla_convert(&back, halves[h], &middle, VLA_F64, 1);
            assert_int_equal(back, half & 1 ? next : half);
            vla_convert(&back, halves[h], &above, VLA_F64, 1);
            assert_int_equal(back, next);
        }
    }
    double big = 1e300, tiny = 1e-300;
    uint16_t half;
    vla_convert(&half, VLA_F16, &big, VLA_F64, 1);
    assert_int_equal(half, 0x7c00);
    big = 65520; /* half-way beyond the largest */
    vla_convert(&half, VLA_F16, &big, VLA_F64, 1);
    assert_int_equal(half, 0x7c00);
    big = 65519.999;
    vla_convert(&half, VLA_F16, &big, VLA_F64, 1);
    assert_int_equal(half, 0x7bff);
    vla_convert(&half, VLA_F16, &tiny, VLA_F64, 1);
    assert_int_equal(half, 0);
    big = -3.5e38;
    vla_convert(&half, VLA_BF16, &big, VLA_F64, 1);
    assert_int_equal(half, 0xff80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_layouts),
        cmocka_unit_test(accepted_headers),
        cmocka_unit_test(scalars_vectors_and_nothing),
        cmocka_unit_test(integers_keep_their_sign),
        cmocka_unit_test(refused_headers),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(mutations),
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(failed_writes_leave_nothing),
        cmocka_unit_test(written_files_keep_their_mode),
        cmocka_unit_test(halves_convert_exactly),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
