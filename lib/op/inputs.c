#include "lib/op/inputs.h"
#include "lib/base/file.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/op/residual.h"
#include "lib/tensor/npy.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[VLA_INPUTS] = {"q", "k", "v", "u", "b", "g"};

const char *vla_input_name(vla_input input)
{
    return names[input];
}

void vla_inputs_destroy(vla_inputs *inputs)
{
    for (int i = 0; i < VLA_INPUTS; i++) vla_tensor_destroy(&inputs->tensor[i]);
    *inputs = (vla_inputs){0};
}

static const char *shape_text(const vla_tensor *t, char *buffer, size_t size)
{
    return vla_shape_text(t->rank, t->shape, buffer, size);
}

static vla_status mismatch(const vla_inputs *in, vla_input a, vla_input b, const char *what, vla_error *error)
{
    char x[200], y[200];
    return vla_fail(error, VLA_ERR_FILE, "%s %s and %s %s do not fit: %s", names[a],
                    shape_text(&in->tensor[a], x, sizeof x), names[b], shape_text(&in->tensor[b], y, sizeof y), what);
}

/* [T,d] and [H,T,d] as [1,H,T,d]. */
static vla_status widen(vla_tensor *t, vla_input input, const char *path, vla_error *error)
{
    char text[200];
    if (t->rank < 2 || t->rank > 4)
        return vla_fail(error, VLA_ERR_FILE, "%s: %s has shape %s; accepted: [T,d], [H,T,d] or [B,H,T,d]", path,
                        names[input], shape_text(t, text, sizeof text));
    int missing = 4 - t->rank;
    memmove(t->shape + missing, t->shape, (size_t)t->rank * sizeof *t->shape);
    for (int i = 0; i < missing; i++) t->shape[i] = 1;
    t->rank = 4;
    for (int i = 0; i < 4; i++)
        if (t->shape[i] < 1 && i != 2)
            return vla_fail(error, VLA_ERR_FILE, "%s: %s has shape %s; accepted: at least 1 in every dimension but T",
                            path, names[input], shape_text(t, text, sizeof text));
    return VLA_OK;
}

static vla_status check_same(const vla_inputs *in, vla_input a, vla_input b, int dimension, const char *what,
                             vla_error *error)
{
    if (in->tensor[a].shape[dimension] == in->tensor[b].shape[dimension]) return VLA_OK;
    return mismatch(in, a, b, what, error);
}

static vla_status check_main(const vla_inputs *in, vla_error *error)
{
    vla_status status = VLA_OK;
    static const char *const what[] = {"they differ in B", "they differ in H", "they differ in T"};
    for (int d = 0; d < 2 && status == VLA_OK; d++) {
        status = check_same(in, VLA_IN_Q, VLA_IN_K, d, what[d], error);
        if (status == VLA_OK) status = check_same(in, VLA_IN_K, VLA_IN_V, d, what[d], error);
    }
    if (status == VLA_OK) status = check_same(in, VLA_IN_K, VLA_IN_V, 2, what[2], error);
    if (status == VLA_OK) status = check_same(in, VLA_IN_Q, VLA_IN_K, 3, "they differ in width", error);
    if (status == VLA_OK && in->tensor[VLA_IN_Q].shape[2] > in->tensor[VLA_IN_K].shape[2])
        status = mismatch(in, VLA_IN_Q, VLA_IN_K, "more queries than keys", error);
    for (int d = 0; d < 4 && status == VLA_OK && in->tensor[VLA_IN_U].data; d++)
        status = check_same(in, VLA_IN_U, VLA_IN_K, d, "u must have the shape of k", error);
    return status;
}

/* b or g as [T], [H,T] or [B,H,T], repeated to [B,H,Tk]; by_row: g may be [B,H,T,dv]. */
static vla_status expand(vla_inputs *in, vla_input input, bool by_row, vla_error *error)
{
    vla_tensor *t = &in->tensor[input];
    const int64_t full[4] = {in->B, in->H, in->Tk, in->dv};
    const char *accepted =
        by_row ? "accepted: [T], [H,T], [B,H,T] or [B,H,T,dv] of k and v" : "accepted: [T], [H,T] or [B,H,T] of k";
    if (t->rank < 1 || t->rank > (by_row ? 4 : 3)) return mismatch(in, input, VLA_IN_K, accepted, error);
    const int64_t *expected = t->rank == 4 ? full : full + 3 - t->rank;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] != expected[i])
            return mismatch(in, input, t->rank == 4 && i == 3 ? VLA_IN_V : VLA_IN_K, accepted, error);
    if (t->rank >= 3) return VLA_OK;
    vla_tensor wide;
    vla_status status = vla_tensor_create(&wide, t->dtype, 3, full, names[input], error);
    if (status != VLA_OK) return status;
    size_t bytes = (size_t)t->count * vla_dtype_size(t->dtype);
    for (int64_t i = 0; t->count && i < wide.count / t->count; i++)
        memcpy((char *)wide.data + (size_t)i * bytes, t->data, bytes);
    vla_tensor_destroy(t);
    *t = wide;
    return VLA_OK;
}

static void set_sizes(vla_inputs *in)
{
    const int64_t *q = in->tensor[VLA_IN_Q].shape, *v = in->tensor[VLA_IN_V].shape;
    in->B = q[0];
    in->H = q[1];
    in->T = q[2];
    in->dk = q[3];
    in->Tk = v[2];
    in->dv = v[3];
}

static vla_status load(vla_inputs *in, const char *const paths[VLA_INPUTS], vla_error *error)
{
    vla_status status = VLA_OK;
    for (int i = 0; i < VLA_INPUTS && status == VLA_OK; i++) {
        if (!paths[i] && i > VLA_IN_V) continue;
        if (!paths[i]) return vla_fail(error, VLA_ERR_ARGUMENT, "--%s: not given; accepted: a .npy file", names[i]);
        status = vla_npy_read(&in->tensor[i], paths[i], in->dtype, error);
        if (status == VLA_OK && i <= VLA_IN_U) status = widen(&in->tensor[i], (vla_input)i, paths[i], error);
    }
    if (status == VLA_OK) status = check_main(in, error);
    if (status != VLA_OK) return status;
    set_sizes(in);
    if (in->tensor[VLA_IN_B].data) status = expand(in, VLA_IN_B, false, error);
    if (status == VLA_OK && in->tensor[VLA_IN_G].data) status = expand(in, VLA_IN_G, true, error);
    if (status == VLA_OK && in->tensor[VLA_IN_G].data)
        in->gate = in->tensor[VLA_IN_G].rank == 4 ? VLA_GATE_ROW : VLA_GATE_TOKEN;
    return status;
}

vla_status vla_inputs_load(vla_inputs *inputs, const char *const paths[VLA_INPUTS], vla_dtype dtype, vla_error *error)
{
    *inputs = (vla_inputs){.dtype = dtype};
    vla_status status = load(inputs, paths, error);
    if (status != VLA_OK) vla_inputs_destroy(inputs);
    return status;
}

vla_status vla_inputs_load_directory(vla_inputs *inputs, const char *directory, vla_dtype dtype, vla_error *error)
{
    char *paths[VLA_INPUTS] = {0};
    vla_status status = VLA_OK;
    *inputs = (vla_inputs){0};
    for (int i = 0; i < VLA_INPUTS && status == VLA_OK; i++) {
        char name[8];
        snprintf(name, sizeof name, "%s.npy", names[i]);
        paths[i] = vla_path_join(directory, name);
        if (!paths[i])
            status = vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
        else if (i > VLA_IN_V && access(paths[i], F_OK) != 0) {
            free(paths[i]);
            paths[i] = NULL;
        }
    }
    if (status == VLA_OK) status = vla_inputs_load(inputs, (const char *const *)paths, dtype, error);
    for (int i = 0; i < VLA_INPUTS; i++) free(paths[i]);
    return status;
}

static int64_t width_of(const vla_inputs *in, vla_input input)
{
    switch (input) {
    case VLA_IN_Q:
    case VLA_IN_K:
    case VLA_IN_U:
        return in->dk;
    case VLA_IN_V:
        return in->dv;
    case VLA_IN_G:
        return in->gate == VLA_GATE_ROW ? in->dv : 1;
    default:
        return 1;
    }
}

static int64_t length_of(const vla_inputs *in, vla_input input)
{
    return input == VLA_IN_Q ? in->T : in->Tk;
}

/* Rank 4, or 3 for b and a gate per token. */
static vla_status create(vla_inputs *in, vla_input input, vla_error *error)
{
    const int64_t shape[4] = {in->B, in->H, length_of(in, input), width_of(in, input)};
    int rank = input == VLA_IN_B || (input == VLA_IN_G && in->gate != VLA_GATE_ROW) ? 3 : 4;
    return vla_tensor_create(&in->tensor[input], in->dtype, rank, shape, names[input], error);
}

/* Fills one head a task: every head of a tensor has a stream of its own, so the values do not depend on the threads. */
typedef struct filling {
    const vla_inputs *in;
    vla_input input;
    uint64_t seed;
} filling;

static void fill_head(void *context, int64_t head, int worker)
{
    (void)worker;
    const filling *f = context;
    const vla_tensor *t = &f->in->tensor[f->input];
    const int64_t count = length_of(f->in, f->input) * width_of(f->in, f->input);
    const uint64_t b = (uint64_t)(head / f->in->H), h = (uint64_t)(head % f->in->H);
    vla_rng rng = vla_rng_seed(f->seed, (uint64_t)f->input << 56 | b << 28 | h);
    for (int64_t i = 0; i < count; i++) vla_store(t->data, t->dtype, head * count + i, vla_rng_normal(&rng));
}

/* Threads for large tensors only: starting them costs as much as some thousand values. */
static void fill_normal(const vla_inputs *in, vla_input input, uint64_t seed)
{
    filling f = {.in = in, .input = input, .seed = seed};
    vla_pool *pool = NULL;
    if (in->tensor[input].count >= 1 << 18 && vla_pool_create(&pool, 0, NULL) != VLA_OK) pool = NULL;
    vla_pool_run(pool, in->B * in->H, fill_head, &f);
    vla_pool_destroy(pool);
}

vla_status vla_inputs_synthetic(vla_inputs *inputs, const vla_problem *problem, uint64_t seed,
                                const bool present[VLA_INPUTS], vla_dtype dtype, vla_error *error)
{
    *inputs = (vla_inputs){.B = problem->B,
                           .H = problem->H,
                           .T = problem->T,
                           .Tk = problem->Tk ? problem->Tk : problem->T,
                           .dk = problem->dk,
                           .dv = problem->dv,
                           .gate = present[VLA_IN_G] ? problem->gate : VLA_GATE_NONE,
                           .dtype = dtype};
    vla_status status = VLA_OK;
    for (int i = 0; i < VLA_INPUTS && status == VLA_OK; i++) {
        bool wanted = i <= VLA_IN_V || (present[i] && !(i == VLA_IN_G && inputs->gate == VLA_GATE_NONE));
        if (wanted) status = create(inputs, (vla_input)i, error);
        if (wanted && status == VLA_OK) fill_normal(inputs, (vla_input)i, seed);
    }
    if (status != VLA_OK) vla_inputs_destroy(inputs);
    return status;
}

bool vla_op_reads(vla_op op, vla_input input)
{
    switch (input) {
    case VLA_IN_U:
        return op == VLA_VLA;
    case VLA_IN_B:
        return op == VLA_DELTA;
    case VLA_IN_G:
        return op == VLA_DECAY;
    default:
        return true;
    }
}

vla_status vla_inputs_problem(const vla_inputs *inputs, vla_problem *problem, vla_error *error)
{
    if (problem->op != VLA_SOFTMAX && inputs->T != inputs->Tk)
        return mismatch(inputs, VLA_IN_Q, VLA_IN_K, "only softmax takes fewer queries than keys", error);
    problem->B = inputs->B;
    problem->H = inputs->H;
    problem->T = inputs->T;
    problem->Tk = inputs->Tk;
    problem->dk = inputs->dk;
    problem->dv = inputs->dv;
    problem->gate = problem->op == VLA_DECAY ? inputs->gate : VLA_GATE_NONE;
    return VLA_OK;
}

void vla_inputs_tensors(const vla_inputs *inputs, vla_op op, vla_tensors *tensors)
{
    const void *data[VLA_INPUTS];
    for (int i = 0; i < VLA_INPUTS; i++) data[i] = vla_op_reads(op, (vla_input)i) ? inputs->tensor[i].data : NULL;
    tensors->q = data[VLA_IN_Q];
    tensors->k = data[VLA_IN_K];
    tensors->v = data[VLA_IN_V];
    tensors->u = data[VLA_IN_U];
    tensors->b = data[VLA_IN_B];
    tensors->g = data[VLA_IN_G];
}

vla_status vla_inputs_head(vla_inputs *head, const vla_inputs *inputs, int64_t index, vla_dtype dtype, vla_error *error)
{
    *head = *inputs;
    memset(head->tensor, 0, sizeof head->tensor);
    head->B = head->H = 1;
    head->dtype = dtype;
    vla_status status = VLA_OK;
    for (int i = 0; i < VLA_INPUTS && status == VLA_OK; i++) {
        const vla_tensor *from = &inputs->tensor[i];
        if (!from->data) continue;
        status = create(head, (vla_input)i, error);
        if (status != VLA_OK) break;
        int64_t count = head->tensor[i].count;
        const char *at = (const char *)from->data + (size_t)(index * count) * vla_dtype_size(from->dtype);
        vla_convert(head->tensor[i].data, dtype, at, from->dtype, count);
    }
    if (status != VLA_OK) vla_inputs_destroy(head);
    return status;
}

bool vla_inputs_first_bad(const vla_inputs *inputs, vla_op op, vla_bad_input *bad)
{
    bool any = false;
    for (int i = 0; i < VLA_INPUTS; i++) {
        vla_bad_input found = {.input = (vla_input)i};
        const vla_tensor *t = &inputs->tensor[i];
        if (!t->data || !vla_op_reads(op, found.input)) continue;
        if (!vla_first_nonfinite(t->data, t->dtype, inputs->B * inputs->H, length_of(inputs, found.input),
                                 width_of(inputs, found.input), &found.head, &found.token))
            continue;
        if (!any || found.token < bad->token) *bad = found;
        any = true;
    }
    return any;
}

void vla_inputs_digest(const vla_inputs *inputs, char *text)
{
    uint64_t hash = 1;
    for (int i = 0; i < VLA_INPUTS; i++)
        if (inputs->tensor[i].data) hash = vla_tensor_digest(&inputs->tensor[i], (uint64_t)i + 1, hash);
    snprintf(text, 17, "%016" PRIx64, hash);
}
