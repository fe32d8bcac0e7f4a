/* The .npy format: "\x93NUMPY", version, header length (2 bytes little-endian in version 1, else 4), a Python dict
 * literal {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, then the elements. Source: numpy.lib.format,
 * NEP 1. */
#include "lib/tensor/npy.h"
#include "lib/base/file.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_HEADER (16 << 20)
enum { block = 4096, most_rank = 8 };

typedef struct npy {
    const char *path;
    FILE *file;
    int64_t size; /* bytes of the file */
    int64_t data; /* offset of the elements */
    char descr[32];
    bool fortran;
    bool has_descr, has_order, has_shape;
    int rank;
    int64_t shape[most_rank];
    int64_t count;
    char kind; /* 'f', 'i', 'u' */
    int width; /* bytes an element */
    bool swap;
} npy;

static vla_status bad(const npy *n, const char *field, const char *what, vla_error *error)
{
    return vla_fail(error, VLA_ERR_FILE, "%s: field '%s': %s", n->path, field, what);
}

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* 'text' or "text" without escapes; *text points into the header, length in *length. NULL when it is not that. */
static const char *parse_string(const char *p, const char **text, size_t *length)
{
    char quote = *p;
    if (quote != '\'' && quote != '"') return NULL;
    *text = ++p;
    while (*p && *p != quote && *p != '\\') p++;
    *length = (size_t)(p - *text);
    return *p == quote ? p + 1 : NULL;
}

static const char *parse_bool(const char *p, bool *value)
{
    *value = strncmp(p, "True", 4) == 0;
    if (*value) return p + 4;
    return strncmp(p, "False", 5) == 0 ? p + 5 : NULL;
}

/* A non-negative integer, with the L that Python 2 wrote. Overflow gives -1, which no file size matches. */
static const char *parse_size(const char *p, int64_t *value)
{
    bool overflow = false;
    if (*p < '0' || *p > '9') return NULL;
    for (*value = 0; *p >= '0' && *p <= '9'; p++)
        overflow =
            overflow || __builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *p - '0', value);
    if (overflow) *value = -1;
    return *p == 'L' ? p + 1 : p;
}

static const char *parse_shape(npy *n, const char *p, vla_error *error)
{
    if (*p != '(') {
        bad(n, "shape", "not a tuple", error);
        return NULL;
    }
    p = skip_space(p + 1);
    for (n->rank = 0; *p != ')'; n->rank++) {
        if (n->rank == most_rank) {
            bad(n, "shape", "more than 8 dimensions; accepted: 0 to 8", error);
            return NULL;
        }
        const char *end = parse_size(p, &n->shape[n->rank]);
        if (!end || n->shape[n->rank] < 0) {
            bad(n, "shape",
                *p == '-' ? "a negative dimension"
                : end     ? "a dimension beyond 64 bits"
                          : "not a tuple of sizes",
                error);
            return NULL;
        }
        p = skip_space(end);
        if (*p == ',')
            p = skip_space(p + 1);
        else if (*p != ')' || n->rank == 0) { /* (5) is a number, (5,) a tuple */
            bad(n, "shape", "not a tuple of sizes", error);
            return NULL;
        }
    }
    return p + 1;
}

static const char *parse_descr(npy *n, const char *p, vla_error *error)
{
    const char *text;
    size_t length;
    if (*p == '[') {
        bad(n, "descr", "a structured type; accepted: f2 f4 f8 and integers", error);
        return NULL;
    }
    p = parse_string(p, &text, &length);
    if (!p || length >= sizeof n->descr) {
        bad(n, "descr", "not a type string", error);
        return NULL;
    }
    memcpy(n->descr, text, length);
    n->descr[length] = '\0';
    return p;
}

/* One "key: value" of the dict; returns what follows it, or NULL with the error filled in. */
static const char *parse_entry(npy *n, const char *p, vla_error *error)
{
    const char *key;
    size_t length;
    p = parse_string(p, &key, &length);
    if (p) p = skip_space(p);
    if (!p || *p != ':') {
        bad(n, "header", "not a dict of 'descr', 'fortran_order' and 'shape'", error);
        return NULL;
    }
    p = skip_space(p + 1);
    bool *seen = length == 5 && memcmp(key, "descr", 5) == 0             ? &n->has_descr
                 : length == 13 && memcmp(key, "fortran_order", 13) == 0 ? &n->has_order
                 : length == 5 && memcmp(key, "shape", 5) == 0           ? &n->has_shape
                                                                         : NULL;
    if (!seen || *seen) {
        vla_fail(error, VLA_ERR_FILE, "%s: field '%.*s': %s", n->path, (int)(length > 40 ? 40 : length), key,
                 seen ? "given twice" : "unknown; accepted: descr, fortran_order, shape");
        return NULL;
    }
    *seen = true;
    if (seen == &n->has_descr) return parse_descr(n, p, error);
    if (seen == &n->has_shape) return parse_shape(n, p, error);
    p = parse_bool(p, &n->fortran);
    if (!p) bad(n, "fortran_order", "not True or False", error);
    return p;
}

static vla_status parse_header(npy *n, const char *text, vla_error *error)
{
    const char *p = skip_space(text);
    if (*p != '{') return bad(n, "header", "not a dict", error);
    p = skip_space(p + 1);
    while (*p != '}') {
        p = parse_entry(n, p, error);
        if (!p) return VLA_ERR_FILE;
        p = skip_space(p);
        if (*p == ',')
            p = skip_space(p + 1);
        else if (*p != '}')
            return bad(n, "header", "rubbish between the entries of the dict", error);
    }
    if (*skip_space(p + 1)) return bad(n, "header", "rubbish after the dict", error);
    if (!n->has_descr) return bad(n, "descr", "missing", error);
    if (!n->has_order) return bad(n, "fortran_order", "missing", error);
    if (!n->has_shape) return bad(n, "shape", "missing", error);
    return VLA_OK;
}

static bool host_is_little(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

static vla_status check_type(npy *n, vla_error *error)
{
    const char *d = n->descr;
    bool order = *d == '<' || *d == '>' || *d == '=' || *d == '|';
    char where = order ? *d++ : '=';
    n->kind = *d;
    n->width = 0;
    if (d[0] && d[1] >= '1' && d[1] <= '8' && d[2] == '\0') n->width = d[1] - '0';
    bool power = n->width == 1 || n->width == 2 || n->width == 4 || n->width == 8;
    bool known = power && ((n->kind == 'f' && n->width > 1) || n->kind == 'i' || n->kind == 'u');
    if (!known || (where == '|' && n->width > 1))
        return vla_fail(error, VLA_ERR_FILE,
                        "%s: field 'descr': type '%s'%s; accepted: f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8", n->path, n->descr,
                        strchr(n->descr, 'O') ? " (objects)" : " is not supported");
    n->swap = host_is_little() ? where == '>' : where == '<';
    return VLA_OK;
}

static vla_status check_size(npy *n, vla_error *error)
{
    char text[200];
    int64_t bytes;
    vla_shape_text(n->rank, n->shape, text, sizeof text);
    if (!vla_size_product(n->shape, n->rank, &n->count) || !vla_size_mul(n->count, n->width, &bytes))
        return vla_fail(error, VLA_ERR_FILE, "%s: field 'shape': %s is too large for 64 bits", n->path, text);
    int64_t held = n->size - n->data;
    if (bytes != held)
        return vla_fail(error, VLA_ERR_FILE,
                        "%s: field 'shape': %s of '%s' needs %" PRId64 " bytes, the file holds %" PRId64 " (%s)",
                        n->path, text, n->descr, bytes, held, held < bytes ? "truncated" : "oversized");
    return VLA_OK;
}

static vla_status read_header(npy *n, vla_error *error)
{
    unsigned char start[12];
    if (fread(start, 1, 8, n->file) != 8) return bad(n, "magic", "file shorter than its first 8 bytes", error);
    if (memcmp(start, "\x93NUMPY", 6) != 0) return bad(n, "magic", "not a .npy file", error);
    int major = start[6];
    if (major < 1 || major > 3)
        return vla_fail(error, VLA_ERR_FILE, "%s: field 'version': %d; accepted: 1, 2, 3", n->path, major);
    size_t digits = major == 1 ? 2 : 4;
    if (fread(start + 8, 1, digits, n->file) != digits) return bad(n, "header length", "truncated", error);
    int64_t length = 0;
    for (size_t i = digits; i-- > 0;) length = length << 8 | start[8 + i];
    n->data = (int64_t)(8 + digits) + length;
    if (n->data > n->size || length > MOST_HEADER)
        return vla_fail(error, VLA_ERR_FILE, "%s: field 'header length': %" PRId64 " bytes; accepted: at most %" PRId64,
                        n->path, length, n->data > n->size ? n->size - (int64_t)(8 + digits) : (int64_t)MOST_HEADER);
    char *text = malloc((size_t)length + 1);
    if (!text) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory for the header", n->path);
    vla_status status = VLA_OK;
    if (fread(text, 1, (size_t)length, n->file) != (size_t)length) status = bad(n, "header", "truncated", error);
    text[length] = '\0';
    if (status == VLA_OK && strlen(text) != (size_t)length) status = bad(n, "header", "holds a zero byte", error);
    if (status == VLA_OK) status = parse_header(n, text, error);
    free(text);
    if (status == VLA_OK) status = check_type(n, error);
    if (status == VLA_OK) status = check_size(n, error);
    return status;
}

static void swap_bytes(unsigned char *raw, int width, int64_t count)
{
    for (int64_t i = 0; i < count; i++, raw += width) {
        for (int b = 0; b < width / 2; b++) {
            unsigned char keep = raw[b];
            raw[b] = raw[width - 1 - b];
            raw[width - 1 - b] = keep;
        }
    }
}

static double decode_int(const npy *n, const unsigned char *raw)
{
    uint64_t bits = 0;
    for (int b = 0; b < n->width; b++) bits |= (uint64_t)raw[host_is_little() ? b : n->width - 1 - b] << (8 * b);
    if (n->kind == 'u') return (double)bits;
    int unused = 64 - 8 * n->width;
    int64_t value = (int64_t)(bits << unused); /* the sign bit to the top, then back: width 8 shifts by 0 */
    return (double)(value / ((int64_t)1 << unused));
}

static void decode(const npy *n, unsigned char *raw, int64_t count, double *values)
{
    if (n->swap) swap_bytes(raw, n->width, count);
    if (n->kind != 'f') {
        for (int64_t i = 0; i < count; i++) values[i] = decode_int(n, raw + i * n->width);
        return;
    }
    vla_convert(values, VLA_F64, raw, n->width == 8 ? VLA_F64 : n->width == 4 ? VLA_F32 : VLA_F16, count);
}

/* Where element i of a Fortran-ordered file (first index fastest) lies in C order; index counts along with i. */
static int64_t c_position(const npy *n, const int64_t *index)
{
    int64_t position = 0;
    for (int d = 0; d < n->rank; d++) position = position * n->shape[d] + index[d];
    return position;
}

static void next_fortran(const npy *n, int64_t *index)
{
    for (int d = 0; d < n->rank && ++index[d] == n->shape[d]; d++) index[d] = 0;
}

static void store(const npy *n, vla_tensor *tensor, int64_t first, const double *values, int64_t count, int64_t *index)
{
    if (!n->fortran) {
        void *at = (char *)tensor->data + (size_t)first * vla_dtype_size(tensor->dtype);
        vla_convert(at, tensor->dtype, values, VLA_F64, count);
        return;
    }
    for (int64_t i = 0; i < count; i++, next_fortran(n, index))
        vla_store(tensor->data, tensor->dtype, c_position(n, index), values[i]);
}

static vla_status read_elements(const npy *n, vla_tensor *tensor, vla_error *error)
{
    _Alignas(8) unsigned char raw[8 * block];
    double values[block];
    int64_t index[most_rank] = {0};
    for (int64_t first = 0; first < n->count; first += block) {
        int64_t count = n->count - first < block ? n->count - first : block;
        if (fread(raw, (size_t)n->width, (size_t)count, n->file) != (size_t)count)
            return vla_fail(error, VLA_ERR_FILE, "%s: cannot read: %s", n->path,
                            ferror(n->file) ? strerror(errno) : "the file became shorter");
        decode(n, raw, count, values);
        store(n, tensor, first, values, count, index);
    }
    return VLA_OK;
}

static vla_status open_file(npy *n, vla_error *error)
{
    struct stat info;
    n->file = fopen(n->path, "re");
    if (!n->file || fstat(fileno(n->file), &info) != 0)
        return vla_fail(error, VLA_ERR_FILE, "%s: cannot read: %s", n->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return vla_fail(error, VLA_ERR_FILE, "%s: not a regular file", n->path);
    n->size = info.st_size;
    return VLA_OK;
}

vla_status vla_npy_read(vla_tensor *tensor, const char *path, vla_dtype dtype, vla_error *error)
{
    npy n = {.path = path};
    *tensor = (vla_tensor){0};
    vla_status status = open_file(&n, error);
    if (status == VLA_OK) status = read_header(&n, error);
    if (status == VLA_OK) status = vla_tensor_create(tensor, dtype, n.rank, n.shape, path, error);
    if (status == VLA_OK) status = read_elements(&n, tensor, error);
    if (n.file) fclose(n.file);
    if (status != VLA_OK) vla_tensor_destroy(tensor);
    return status;
}

/* Version 1 header, padded so that the elements begin at a multiple of 64 bytes. */
static void write_header(FILE *stream, bool wide, int rank, const int64_t *shape)
{
    char text[320];
    int used = snprintf(text, sizeof text, "{'descr': '<f%d', 'fortran_order': False, 'shape': (", wide ? 8 : 4);
    for (int i = 0; i < rank; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%" PRId64, i ? ", " : "", shape[i]);
    used += snprintf(text + used, sizeof text - (size_t)used, rank == 1 ? ",), }" : "), }");
    int total = (10 + used + 1 + 63) / 64 * 64, length = total - 10;
    fwrite("\x93NUMPY\x01\x00", 1, 8, stream);
    fputc(length & 255, stream);
    fputc(length >> 8, stream);
    fprintf(stream, "%s%*s\n", text, length - used - 1, "");
}

static void write_elements(FILE *stream, bool wide, const void *data, vla_dtype dtype, int64_t count)
{
    double raw[block]; /* room for either width */
    int width = wide ? 8 : 4;
    for (int64_t first = 0; first < count && !ferror(stream); first += block) {
        int64_t n = count - first < block ? count - first : block;
        const void *from = (const char *)data + (size_t)first * vla_dtype_size(dtype);
        vla_convert(raw, wide ? VLA_F64 : VLA_F32, from, dtype, n);
        if (!host_is_little()) swap_bytes((unsigned char *)raw, width, n);
        fwrite(raw, (size_t)width, (size_t)n, stream);
    }
}

vla_status vla_npy_write(const char *path, const void *data, vla_dtype dtype, int rank, const int64_t *shape,
                         vla_error *error)
{
    int64_t count;
    if (rank < 0 || rank > most_rank || !vla_size_product(shape, rank, &count))
        return vla_fail(error, VLA_ERR_ARGUMENT, "%s: shape with %d dimensions is not valid; accepted: 0 to 8", path,
                        rank);
    vla_file file;
    vla_status status = vla_file_begin(&file, path, error);
    if (status != VLA_OK) return status;
    write_header(file.stream, dtype == VLA_F64, rank, shape);
    write_elements(file.stream, dtype == VLA_F64, data, dtype, count);
    return vla_file_commit(&file, error);
}

vla_status vla_npy_write_tensor(const char *path, const vla_tensor *tensor, vla_error *error)
{
    return vla_npy_write(path, tensor->data, tensor->dtype, tensor->rank, tensor->shape, error);
}
