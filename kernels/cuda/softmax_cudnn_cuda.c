/* softmax by cuDNN's fused attention (flash attention in the vendor's library): the baseline a user would pick instead.
 *
 * q [B,H,T,dk], k [B,H,Tk,dk], v [B,H,Tk,dv], o [B,H,T,dv], bf16 or f16, scale 1/sqrt dk, the last query on the last
 * key. Described to cuDNN as a graph of primitive operations, which it matches to its fused kernel: scores = q k^T ;
 * scores *= scale ; scores = row + Tk - T >= column ? scores : -inf ; m = max, e = exp(scores - m), sum = add(e), stats
 * = m + log(sum), o = (e / sum) v The statistics are never used, but without them nothing matches. One plan a shape: a
 * graph of dynamic shape was silently wrong in 9.19. The library is looked for as VLA_CUDNN, then libcudnn.so.9 and
 * libcudnn.so. */
#include "kernels/cuda/softmax_cudnn.h"
#include "kernels/cuda/cudnn_abi.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/probe.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_Q = 1, ID_K, ID_V, ID_O, ID_SCALE, ID_LOW, ID_OFFSET, ID_FIRST_VIRTUAL, MOST = 96 };

struct vla_cudnn {
    cudnn_library lib;
    cudnn_handle handle;
    cudnn_descriptor all[MOST]; /* everything made, for destruction in reverse order */
    int made;
    cudnn_descriptor operations[24];
    int operation_count;
    cudnn_descriptor plan, pack;
    void *workspace;
    int64_t next_id;
    float scale, low;
    int32_t offset;
    const void *packed[4]; /* q, k, v, o of pack */
    char label[32];
    const char *failed; /* what the first failing step was about */
};

static bool open_at(cudnn_library *lib, const char *path)
{
    lib->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib->library) return false;
    *(void **)&lib->create = dlsym(lib->library, "cudnnCreate");
    *(void **)&lib->destroy = dlsym(lib->library, "cudnnDestroy");
    *(void **)&lib->set_stream = dlsym(lib->library, "cudnnSetStream");
    *(void **)&lib->version = dlsym(lib->library, "cudnnGetVersion");
    *(void **)&lib->last_error = dlsym(lib->library, "cudnnGetLastErrorString");
    *(void **)&lib->make = dlsym(lib->library, "cudnnBackendCreateDescriptor");
    *(void **)&lib->unmake = dlsym(lib->library, "cudnnBackendDestroyDescriptor");
    *(void **)&lib->set = dlsym(lib->library, "cudnnBackendSetAttribute");
    *(void **)&lib->get = dlsym(lib->library, "cudnnBackendGetAttribute");
    *(void **)&lib->finalize = dlsym(lib->library, "cudnnBackendFinalize");
    *(void **)&lib->execute = dlsym(lib->library, "cudnnBackendExecute");
    if (lib->create && lib->destroy && lib->set_stream && lib->version && lib->make && lib->unmake && lib->set &&
        lib->get && lib->finalize && lib->execute)
        return true;
    dlclose(lib->library);
    lib->library = NULL;
    return false;
}

static bool open_library(cudnn_library *lib)
{
    const char *chosen = getenv("VLA_CUDNN");
    if (chosen && *chosen) return open_at(lib, chosen);
    return open_at(lib, "libcudnn.so.9") || open_at(lib, "libcudnn.so");
}

static void expect(vla_cudnn *c, int status, const char *what)
{
    if (status != CUDNN_STATUS_SUCCESS && !c->failed) c->failed = what;
}

static cudnn_descriptor make(vla_cudnn *c, int type, const char *what)
{
    cudnn_descriptor d = NULL;
    if (c->failed) return NULL;
    if (c->made == MOST) {
        c->failed = "too many descriptors";
        return NULL;
    }
    expect(c, c->lib.make(type, &d), what);
    if (!c->failed) c->all[c->made++] = d;
    return d;
}

static void set(vla_cudnn *c, cudnn_descriptor d, int name, int type, int64_t count, const void *elements,
                const char *what)
{
    if (!c->failed) expect(c, c->lib.set(d, name, type, count, elements), what);
}

static void finish(vla_cudnn *c, cudnn_descriptor d, const char *what)
{
    if (!c->failed) expect(c, c->lib.finalize(d), what);
}

static cudnn_descriptor tensor(vla_cudnn *c, int64_t id, int type, const int64_t dims[4], const int64_t strides[4],
                               bool is_virtual, bool by_value)
{
    const char *what = "tensor";
    const int64_t alignment = 16;
    cudnn_descriptor d = make(c, DESC_TENSOR, what);
    set(c, d, ATTR_TENSOR_TYPE, TYPE_DATA_TYPE, 1, &type, what);
    set(c, d, ATTR_TENSOR_DIMENSIONS, TYPE_INT64, 4, dims, what);
    set(c, d, ATTR_TENSOR_STRIDES, TYPE_INT64, 4, strides, what);
    set(c, d, ATTR_TENSOR_ID, TYPE_INT64, 1, &id, what);
    set(c, d, ATTR_TENSOR_ALIGNMENT, TYPE_INT64, 1, &alignment, what);
    set(c, d, ATTR_TENSOR_VIRTUAL, TYPE_BOOLEAN, 1, &is_virtual, what);
    set(c, d, ATTR_TENSOR_BY_VALUE, TYPE_BOOLEAN, 1, &by_value, what);
    finish(c, d, what);
    return d;
}

static cudnn_descriptor scalar(vla_cudnn *c, int64_t id, int type)
{
    const int64_t one[4] = {1, 1, 1, 1};
    return tensor(c, id, type, one, one, false, true);
}

/* A row-major intermediate that never reaches memory. */
static cudnn_descriptor between(vla_cudnn *c, int type, const int64_t dims[4])
{
    const int64_t strides[4] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
    return tensor(c, c->next_id++, type, dims, strides, true, false);
}

static void add_operation(vla_cudnn *c, cudnn_descriptor d, const char *what)
{
    finish(c, d, what);
    if (!c->failed) c->operations[c->operation_count++] = d;
}

static void matmul(vla_cudnn *c, cudnn_descriptor a, cudnn_descriptor b, cudnn_descriptor y)
{
    const char *what = "matrix product";
    const int type = CUDNN_FLOAT;
    cudnn_descriptor m = make(c, DESC_MATMUL, what);
    set(c, m, ATTR_MATMUL_TYPE, TYPE_DATA_TYPE, 1, &type, what);
    finish(c, m, what);
    cudnn_descriptor d = make(c, DESC_OP_MATMUL, what);
    set(c, d, ATTR_OP_MATMUL_A, TYPE_DESCRIPTOR, 1, &a, what);
    set(c, d, ATTR_OP_MATMUL_B, TYPE_DESCRIPTOR, 1, &b, what);
    set(c, d, ATTR_OP_MATMUL_C, TYPE_DESCRIPTOR, 1, &y, what);
    set(c, d, ATTR_OP_MATMUL_DESC, TYPE_DESCRIPTOR, 1, &m, what);
    add_operation(c, d, what);
}

/* y = mode(x, b), y = select(t ? x : b); b and t may be NULL; axis < 0: none. */
static void pointwise(vla_cudnn *c, int mode, int math, int64_t axis, cudnn_descriptor x, cudnn_descriptor b,
                      cudnn_descriptor t, cudnn_descriptor y)
{
    const char *what = "pointwise operation";
    cudnn_descriptor p = make(c, DESC_POINTWISE, what);
    set(c, p, ATTR_POINTWISE_MODE, TYPE_POINTWISE_MODE, 1, &mode, what);
    set(c, p, ATTR_POINTWISE_MATH, TYPE_DATA_TYPE, 1, &math, what);
    if (axis >= 0) set(c, p, ATTR_POINTWISE_AXIS, TYPE_INT64, 1, &axis, what);
    finish(c, p, what);
    cudnn_descriptor d = make(c, DESC_OP_POINTWISE, what);
    set(c, d, ATTR_OP_POINTWISE_PW, TYPE_DESCRIPTOR, 1, &p, what);
    set(c, d, ATTR_OP_POINTWISE_X, TYPE_DESCRIPTOR, 1, &x, what);
    if (b) set(c, d, ATTR_OP_POINTWISE_B, TYPE_DESCRIPTOR, 1, &b, what);
    if (t) set(c, d, ATTR_OP_POINTWISE_T, TYPE_DESCRIPTOR, 1, &t, what);
    set(c, d, ATTR_OP_POINTWISE_Y, TYPE_DESCRIPTOR, 1, &y, what);
    add_operation(c, d, what);
}

static void reduce(vla_cudnn *c, int operator, cudnn_descriptor x, cudnn_descriptor y)
{
    const char *what = "reduction";
    const int type = CUDNN_FLOAT;
    cudnn_descriptor r = make(c, DESC_REDUCTION, what);
    set(c, r, ATTR_REDUCTION_OPERATOR, TYPE_REDUCTION_OPERATOR, 1, &operator, what);
    set(c, r, ATTR_REDUCTION_TYPE, TYPE_DATA_TYPE, 1, &type, what);
    finish(c, r, what);
    cudnn_descriptor d = make(c, DESC_OP_REDUCTION, what);
    set(c, d, ATTR_OP_REDUCTION_X, TYPE_DESCRIPTOR, 1, &x, what);
    set(c, d, ATTR_OP_REDUCTION_Y, TYPE_DESCRIPTOR, 1, &y, what);
    set(c, d, ATTR_OP_REDUCTION_DESC, TYPE_DESCRIPTOR, 1, &r, what);
    add_operation(c, d, what);
}

static void describe(vla_cudnn *c, const vla_problem *p, int type)
{
    const int64_t B = p->B, H = p->H, T = p->T, Tk = p->Tk, dk = p->dk, dv = p->dv;
    const int64_t full[4] = {B, H, T, Tk}, row[4] = {B, H, T, 1};
    cudnn_descriptor q =
        tensor(c, ID_Q, type, (int64_t[4]){B, H, T, dk}, (int64_t[4]){H * T * dk, T * dk, dk, 1}, 0, 0);
    cudnn_descriptor kt =
        tensor(c, ID_K, type, (int64_t[4]){B, H, dk, Tk}, (int64_t[4]){H * Tk * dk, Tk * dk, 1, dk}, 0, 0);
    cudnn_descriptor v =
        tensor(c, ID_V, type, (int64_t[4]){B, H, Tk, dv}, (int64_t[4]){H * Tk * dv, Tk * dv, dv, 1}, 0, 0);
    cudnn_descriptor o =
        tensor(c, ID_O, type, (int64_t[4]){B, H, T, dv}, (int64_t[4]){H * T * dv, T * dv, dv, 1}, 0, 0);
    cudnn_descriptor raw = between(c, CUDNN_FLOAT, full), scores = between(c, CUDNN_FLOAT, full);
    matmul(c, q, kt, raw);
    pointwise(c, CUDNN_MUL, CUDNN_FLOAT, -1, raw, scalar(c, ID_SCALE, CUDNN_FLOAT), NULL, scores);
    cudnn_descriptor i = between(c, CUDNN_INT32, full), j = between(c, CUDNN_INT32, full);
    pointwise(c, CUDNN_GEN_INDEX, CUDNN_INT32, 2, scores, NULL, NULL, i);
    if (Tk != T) {
        cudnn_descriptor shifted = between(c, CUDNN_INT32, full);
        pointwise(c, CUDNN_ADD, CUDNN_INT32, -1, i, scalar(c, ID_OFFSET, CUDNN_INT32), NULL, shifted);
        i = shifted;
    }
    pointwise(c, CUDNN_GEN_INDEX, CUDNN_INT32, 3, scores, NULL, NULL, j);
    cudnn_descriptor allowed = between(c, CUDNN_BOOLEAN, full), masked = between(c, CUDNN_FLOAT, full);
    pointwise(c, CUDNN_CMP_GE, CUDNN_INT32, -1, i, j, NULL, allowed);
    pointwise(c, CUDNN_SELECT, CUDNN_FLOAT, -1, scores, scalar(c, ID_LOW, CUDNN_FLOAT), allowed, masked);
    cudnn_descriptor top = between(c, CUDNN_FLOAT, row), below = between(c, CUDNN_FLOAT, full);
    cudnn_descriptor e = between(c, CUDNN_FLOAT, full), sum = between(c, CUDNN_FLOAT, row);
    reduce(c, CUDNN_REDUCE_MAX, masked, top);
    pointwise(c, CUDNN_SUB, CUDNN_FLOAT, -1, masked, top, NULL, below);
    pointwise(c, CUDNN_EXP, CUDNN_FLOAT, -1, below, NULL, NULL, e);
    reduce(c, CUDNN_REDUCE_ADD, e, sum);
    cudnn_descriptor log_sum = between(c, CUDNN_FLOAT, row), stats = between(c, CUDNN_FLOAT, row);
    pointwise(c, CUDNN_LOG, CUDNN_FLOAT, -1, sum, NULL, NULL, log_sum);
    pointwise(c, CUDNN_ADD, CUDNN_FLOAT, -1, top, log_sum, NULL, stats);
    cudnn_descriptor weights = between(c, type, full);
    pointwise(c, CUDNN_DIV, CUDNN_FLOAT, -1, e, sum, NULL, weights);
    matmul(c, weights, v, o);
}

/* The first engine configuration, in the order of the heuristics, whose plan finalizes. */
static void choose_plan(vla_cudnn *c)
{
    enum { CONFIGS = 8 };
    const char *what = "operation graph";
    cudnn_descriptor graph = make(c, DESC_GRAPH, what);
    set(c, graph, ATTR_GRAPH_HANDLE, TYPE_HANDLE, 1, &c->handle,
        what); /* marked deprecated, but nothing is found without */
    set(c, graph, ATTR_GRAPH_OPS, TYPE_DESCRIPTOR, c->operation_count, c->operations, what);
    finish(c, graph, what);
    what = "engine heuristics";
    const int mode = CUDNN_HEUR_MODE_A;
    cudnn_descriptor heuristics = make(c, DESC_ENGINEHEUR, what);
    set(c, heuristics, ATTR_HEUR_GRAPH, TYPE_DESCRIPTOR, 1, &graph, what);
    set(c, heuristics, ATTR_HEUR_MODE, TYPE_HEUR_MODE, 1, &mode, what);
    finish(c, heuristics, what);
    int64_t count = 0;
    cudnn_descriptor configs[CONFIGS];
    for (int i = 0; i < CONFIGS; i++) configs[i] = make(c, DESC_ENGINECFG, what);
    if (!c->failed)
        expect(c, c->lib.get(heuristics, ATTR_HEUR_RESULTS, TYPE_DESCRIPTOR, CONFIGS, &count, configs), what);
    if (!c->failed && count == 0) c->failed = "no engine for this shape";
    for (int64_t i = 0; i < count && i < CONFIGS && !c->failed; i++) {
        cudnn_descriptor plan = make(c, DESC_PLAN, "execution plan");
        set(c, plan, ATTR_PLAN_CONFIG, TYPE_DESCRIPTOR, 1, &configs[i], "execution plan");
        set(c, plan, ATTR_PLAN_HANDLE, TYPE_HANDLE, 1, &c->handle, "execution plan");
        if (!c->failed && c->lib.finalize(plan) == CUDNN_STATUS_SUCCESS) {
            c->plan = plan;
            return;
        }
    }
    if (!c->failed) c->failed = "no execution plan finalizes";
}

static vla_status fail(vla_cudnn *c, vla_error *error)
{
    char detail[200] = "";
    if (c->lib.last_error) c->lib.last_error(detail, sizeof detail);
    return vla_fail(error, VLA_ERR_UNSUPPORTED, "%s: %s (%.180s)", c->label, c->failed, detail);
}

void vla_cudnn_installed(char *version, size_t version_size, char *path, size_t path_size)
{
    cudnn_library lib = {0};
    Dl_info where;
    if (version_size) *version = 0;
    if (path_size) *path = 0;
    if (!open_library(&lib)) return;
    const size_t number = lib.version();
    snprintf(version, version_size, "%zu.%zu.%zu", number / 10000, number / 100 % 100, number % 100);
    if (dladdr(*(void **)&lib.version, &where) && where.dli_fname) snprintf(path, path_size, "%s", where.dli_fname);
    dlclose(lib.library);
}

vla_status vla_cudnn_create(vla_cudnn **result, const vla_problem *problem, vla_dtype dtype, vla_error *error)
{
    *result = NULL;
    vla_cudnn *c = calloc(1, sizeof *c);
    if (!c) return vla_fail(error, VLA_ERR_MEMORY, "cuDNN: out of memory");
    if (!open_library(&c->lib)) {
        free(c);
        return vla_fail(error, VLA_ERR_UNSUPPORTED,
                        "cuDNN 9 is not installed (libcudnn.so.9 is not found; VLA_CUDNN names it)");
    }
    const size_t version = c->lib.version();
    snprintf(c->label, sizeof c->label, "cudnn %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    c->next_id = ID_FIRST_VIRTUAL;
    c->scale = (float)(1.0 / sqrt((double)problem->dk)), c->low = -INFINITY;
    c->offset = (int32_t)(problem->Tk - problem->T);
    expect(c, c->lib.create(&c->handle), "handle");
    if (!c->failed) describe(c, problem, dtype == VLA_F16 ? CUDNN_HALF : CUDNN_BFLOAT16);
    if (!c->failed) choose_plan(c);
    int64_t bytes = 0, count = 0;
    if (!c->failed) expect(c, c->lib.get(c->plan, ATTR_PLAN_WORKSPACE, TYPE_INT64, 1, &count, &bytes), "workspace");
    vla_status status = c->failed ? fail(c, error) : VLA_OK;
    if (status == VLA_OK && bytes > 0) status = vla_device_alloc(&c->workspace, bytes, "cuDNN workspace", error);
    if (status != VLA_OK) {
        vla_cudnn_destroy(c);
        return status;
    }
    *result = c;
    return VLA_OK;
}

static void pack(vla_cudnn *c, const vla_tensors *t)
{
    const char *what = "variant pack";
    const int64_t ids[] = {ID_Q, ID_K, ID_V, ID_O, ID_SCALE, ID_LOW, ID_OFFSET};
    const void *pointers[] = {t->q, t->k, t->v, t->o, &c->scale, &c->low, &c->offset};
    const int64_t count = c->offset == 0 ? 6 : 7;
    if (c->pack) c->lib.unmake(c->pack);
    c->pack = NULL;
    if (c->lib.make(DESC_VARIANT_PACK, &c->pack) != CUDNN_STATUS_SUCCESS) c->failed = what;
    set(c, c->pack, ATTR_PACK_IDS, TYPE_INT64, count, ids, what);
    set(c, c->pack, ATTR_PACK_POINTERS, TYPE_VOID_PTR, count, pointers, what);
    set(c, c->pack, ATTR_PACK_WORKSPACE, TYPE_VOID_PTR, 1, &c->workspace, what);
    finish(c, c->pack, what);
    c->packed[0] = t->q, c->packed[1] = t->k, c->packed[2] = t->v, c->packed[3] = t->o;
}

vla_status vla_cudnn_run(vla_cudnn *c, const vla_tensors *t, void *stream, vla_error *error)
{
    const bool same =
        c->pack && c->packed[0] == t->q && c->packed[1] == t->k && c->packed[2] == t->v && c->packed[3] == t->o;
    if (!same) pack(c, t);
    if (!c->failed) expect(c, c->lib.set_stream(c->handle, stream), "stream");
    if (!c->failed) expect(c, c->lib.execute(c->handle, c->plan, c->pack), "execution");
    return c->failed ? fail(c, error) : VLA_OK;
}

void vla_cudnn_destroy(vla_cudnn *c)
{
    if (!c) return;
    if (c->pack) c->lib.unmake(c->pack);
    while (c->made > 0) c->lib.unmake(c->all[--c->made]);
    if (c->handle) c->lib.destroy(c->handle);
    vla_device_free(c->workspace);
    dlclose(c->lib.library);
    free(c);
}

const char *vla_cudnn_label(const vla_cudnn *c)
{
    return c->label;
}
