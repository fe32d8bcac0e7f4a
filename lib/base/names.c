#include "lib/base/names.h"
#include <string.h>

static const char *const op_names[] = {"softmax", "linear", "delta", "decay", "vla", "rls"};
static const char *const form_names[] = {"naive", "recurrent", "stepwise", "chunk", "scan"};
static const char *const backend_names[] = {"cpu", "cuda"};
static const char *const dtype_names[] = {"f64", "f32", "bf16", "f16", "tf32"};
static const char *const isa_names[] = {"base", "avx2", "avx512"};
static const char *const features_names[] = {"elu1", "silu", "identity"};
static const char *const status_names[] = {"ok", "argument", "file", "device", "memory", "unsupported", "numeric"};

static const char *name_of(const char *const *names, int count, int value, const char *other)
{
    return value >= 0 && value < count ? names[value] : other;
}

static int find(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

const char *vla_version(void)
{
    return VLA_VERSION;
}
const char *vla_op_name(vla_op op)
{
    return name_of(op_names, VLA_OPS, (int)op, "?");
}
const char *vla_form_name(vla_form form)
{
    return name_of(form_names, VLA_FORMS, (int)form, "best");
}
const char *vla_backend_name(vla_backend backend)
{
    return name_of(backend_names, VLA_BACKENDS, (int)backend, "auto");
}
const char *vla_dtype_name(vla_dtype dtype)
{
    return name_of(dtype_names, VLA_DTYPES, (int)dtype, "?");
}
const char *vla_isa_name(vla_isa isa)
{
    return name_of(isa_names, VLA_ISAS, (int)isa, "auto");
}
const char *vla_features_name(vla_features features)
{
    return name_of(features_names, VLA_IDENTITY + 1, (int)features, "?");
}
const char *vla_status_name(vla_status status)
{
    return name_of(status_names, 7, (int)status, "?");
}

size_t vla_dtype_size(vla_dtype dtype)
{
    switch (dtype) {
    case VLA_F64:
        return 8;
    case VLA_F32:
    case VLA_TF32:
        return 4;
    default:
        return 2;
    }
}

bool vla_op_parse(const char *name, vla_op *op)
{
    const int i = find(op_names, VLA_OPS, name);
    if (i >= 0) *op = (vla_op)i;
    return i >= 0;
}

bool vla_form_parse(const char *name, vla_form *form)
{
    const bool best = strcmp(name, "best") == 0;
    const int i = find(form_names, VLA_FORMS, name);
    if (best || i >= 0) *form = best ? VLA_BEST : (vla_form)i;
    return best || i >= 0;
}

bool vla_backend_parse(const char *name, vla_backend *backend)
{
    const int i = find(backend_names, VLA_BACKENDS, name);
    *backend = i >= 0 ? (vla_backend)i : VLA_AUTO;
    return i >= 0 || strcmp(name, "auto") == 0;
}

bool vla_dtype_parse(const char *name, vla_dtype *dtype)
{
    const int i = find(dtype_names, VLA_DTYPES, name);
    if (i >= 0) *dtype = (vla_dtype)i;
    return i >= 0;
}

bool vla_isa_parse(const char *name, vla_isa *isa)
{
    const int i = find(isa_names, VLA_ISAS, name);
    *isa = i >= 0 ? (vla_isa)i : VLA_ISA_AUTO;
    return i >= 0 || strcmp(name, "auto") == 0;
}

bool vla_features_parse(const char *name, vla_features *features)
{
    const int i = find(features_names, VLA_IDENTITY + 1, name);
    if (i >= 0) *features = (vla_features)i;
    return i >= 0;
}
