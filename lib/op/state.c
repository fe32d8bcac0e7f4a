#include "lib/op/state.h"
#include "lib/base/file.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/tensor/npy.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct part {
    const char *name;
    vla_tensor *tensor;
    bool wanted;
    int rank;
    int64_t shape[4];
} part;

enum { parts = 3 };

static void list_parts(vla_state *s, const vla_problem *p, part list[parts])
{
    list[0] = (part){"S", &s->S, vla_op_has_S(p->op), 4, {p->B, p->H, p->dv, p->dk}};
    list[1] = (part){"A", &s->A, vla_op_has_A(p->op), 4, {p->B, p->H, p->dk, p->dk}};
    list[2] = (part){"n", &s->n, vla_op_has_n(p->op), 3, {p->B, p->H, p->dk}};
}

void vla_state_destroy(vla_state *state)
{
    vla_tensor_destroy(&state->S);
    vla_tensor_destroy(&state->A);
    vla_tensor_destroy(&state->n);
    *state = (vla_state){0};
}

static void start(vla_state *state, const vla_problem *problem)
{
    const vla_tensor *A = &state->A;
    if (state->S.data) memset(state->S.data, 0, (size_t)state->S.count * vla_dtype_size(state->S.dtype));
    if (state->n.data) memset(state->n.data, 0, (size_t)state->n.count * vla_dtype_size(state->n.dtype));
    for (int64_t i = 0; A->data && i < A->count; i++) {
        int64_t inside = i % (problem->dk * problem->dk);
        vla_store(A->data, A->dtype, i, inside / problem->dk == inside % problem->dk ? 1.0 / problem->lambda0 : 0.0);
    }
}

vla_status vla_state_create(vla_state *state, const vla_problem *problem, vla_dtype dtype, vla_error *error)
{
    part list[parts];
    vla_status status = VLA_OK;
    *state = (vla_state){.op = problem->op};
    list_parts(state, problem, list);
    for (int i = 0; i < parts && status == VLA_OK; i++)
        if (list[i].wanted)
            status = vla_tensor_create(list[i].tensor, dtype, list[i].rank, list[i].shape, list[i].name, error);
    if (status == VLA_OK)
        start(state, problem);
    else
        vla_state_destroy(state);
    return status;
}

static vla_status load_part(const part *p, const char *path, vla_dtype dtype, vla_error *error)
{
    char has[200], needs[200];
    vla_status status = vla_npy_read(p->tensor, path, dtype, error);
    if (status != VLA_OK) return status;
    vla_tensor *t = p->tensor;
    int missing = p->rank - t->rank;
    bool fits = missing >= 0 && missing <= 2;
    for (int i = 0; fits && i < p->rank; i++) fits = p->shape[i] == (i < missing ? 1 : t->shape[i - missing]);
    if (!fits)
        return vla_fail(error, VLA_ERR_FILE, "%s: %s has shape %s; the inputs need %s", path, p->name,
                        vla_shape_text(t->rank, t->shape, has, sizeof has),
                        vla_shape_text(p->rank, p->shape, needs, sizeof needs));
    t->rank = p->rank;
    memcpy(t->shape, p->shape, sizeof p->shape);
    return VLA_OK;
}

static vla_status load_steps(vla_state *state, const vla_problem *problem, const char *path, vla_error *error)
{
    vla_tensor t;
    if (access(path, F_OK) != 0 && problem->refresh_period == 0) return VLA_OK;
    vla_status status = vla_npy_read(&t, path, VLA_F64, error);
    if (status != VLA_OK) return status;
    double value = t.count == 1 ? *(double *)t.data : (double)NAN;
    vla_tensor_destroy(&t);
    if (!(value >= 0 && value <= 0x1p53) || value != floor(value))
        return vla_fail(error, VLA_ERR_FILE, "%s: t must be one whole number of at least 0", path);
    state->t = (int64_t)value;
    return VLA_OK;
}

static char *part_path(const char *directory, const char *name)
{
    char file[8];
    snprintf(file, sizeof file, "%s.npy", name);
    return vla_path_join(directory, file);
}

/* Parts of several operators look alike: delta's S is decay's, and rls has all that vla needs but n. */
static vla_status check_op(vla_op op, const char *directory, vla_error *error)
{
    char name[16] = "";
    char *path = vla_path_join(directory, "op.txt");
    if (!path) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
    FILE *file = fopen(path, "re");
    vla_status status = VLA_OK;
    if (file && (!fgets(name, sizeof name, file) || strcspn(name, "\n") == 0)) name[0] = '\0';
    name[strcspn(name, "\n")] = '\0';
    for (char *c = name; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
    if (file && strcmp(name, vla_op_name(op)) != 0)
        status = vla_fail(error, VLA_ERR_FILE, "%s: the state of '%s'; accepted: of '%s'", path, name, vla_op_name(op));
    else if (!file && errno != ENOENT && errno != ENOTDIR)
        status = vla_fail(error, VLA_ERR_FILE, "%s: cannot read: %s", path, strerror(errno));
    if (file) fclose(file);
    free(path);
    return status;
}

vla_status vla_state_load(vla_state *state, const vla_problem *problem, vla_dtype dtype, const char *directory,
                          vla_error *error)
{
    part list[parts];
    vla_status status = check_op(problem->op, directory, error);
    *state = (vla_state){.op = problem->op};
    list_parts(state, problem, list);
    for (int i = 0; i <= parts && status == VLA_OK; i++) {
        char *path = part_path(directory, i < parts ? list[i].name : "t");
        if (!path)
            status = vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
        else if (i == parts)
            status = load_steps(state, problem, path, error);
        else if (list[i].wanted)
            status = load_part(&list[i], path, dtype, error);
        free(path);
    }
    if (status != VLA_OK) vla_state_destroy(state);
    return status;
}

static vla_status save_part(const char *directory, const char *name, const void *data, vla_dtype dtype, int rank,
                            const int64_t *shape, vla_error *error)
{
    char *path = part_path(directory, name);
    if (!path) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
    vla_status status = vla_npy_write(path, data, dtype, rank, shape, error);
    free(path);
    return status;
}

static vla_status save_op(const char *directory, vla_op op, vla_error *error)
{
    char *path = vla_path_join(directory, "op.txt");
    if (!path) return vla_fail(error, VLA_ERR_MEMORY, "%s: out of memory", directory);
    vla_file file;
    vla_status status = vla_file_begin(&file, path, error);
    if (status == VLA_OK) {
        fprintf(file.stream, "%s\n", vla_op_name(op));
        status = vla_file_commit(&file, error);
    }
    free(path);
    return status;
}

vla_status vla_state_save(const vla_state *state, const char *directory, vla_error *error)
{
    const vla_tensor *tensors[] = {&state->S, &state->A, &state->n};
    static const char *const names[] = {"S", "A", "n"};
    const double steps = (double)state->t;
    vla_status status = vla_directory_make(directory, error);
    for (int i = 0; i < parts && status == VLA_OK; i++)
        if (tensors[i]->data)
            status = save_part(directory, names[i], tensors[i]->data, tensors[i]->dtype, tensors[i]->rank,
                               tensors[i]->shape, error);
    if (status == VLA_OK) status = save_part(directory, "t", &steps, VLA_F64, 0, NULL, error);
    return status == VLA_OK ? save_op(directory, state->op, error) : status;
}

void vla_state_digest(const vla_state *state, char *text)
{
    const vla_tensor *tensors[] = {&state->S, &state->A, &state->n};
    uint64_t hash = (uint64_t)state->t + 1;
    for (int i = 0; i < parts; i++)
        if (tensors[i]->data) hash = vla_tensor_digest(tensors[i], (uint64_t)i + 1, hash);
    snprintf(text, 17, "%016" PRIx64, hash);
}

static vla_status copy_part(vla_tensor *to, const vla_tensor *from, vla_error *error)
{
    if (!from->data) return VLA_OK;
    vla_status status = vla_tensor_create(to, from->dtype, from->rank, from->shape, "state", error);
    if (status == VLA_OK) vla_convert(to->data, to->dtype, from->data, from->dtype, from->count);
    return status;
}

vla_status vla_state_copy(vla_state *to, const vla_state *from, vla_error *error)
{
    *to = (vla_state){.op = from->op, .t = from->t};
    vla_status status = copy_part(&to->S, &from->S, error);
    if (status == VLA_OK) status = copy_part(&to->A, &from->A, error);
    if (status == VLA_OK) status = copy_part(&to->n, &from->n, error);
    if (status != VLA_OK) vla_state_destroy(to);
    return status;
}

static vla_status head_part(vla_tensor *to, const vla_tensor *from, int64_t index, vla_error *error)
{
    if (!from->data) return VLA_OK;
    int64_t shape[4] = {1, 1, from->shape[2], from->shape[3]};
    vla_status status = vla_tensor_create(to, VLA_F64, from->rank, shape, "state", error);
    if (status != VLA_OK) return status;
    const char *at = (const char *)from->data + (size_t)(index * to->count) * vla_dtype_size(from->dtype);
    vla_convert(to->data, VLA_F64, at, from->dtype, to->count);
    return VLA_OK;
}

vla_status vla_state_head(vla_state *head, const vla_state *state, int64_t index, vla_error *error)
{
    *head = (vla_state){.op = state->op, .t = state->t};
    vla_status status = head_part(&head->S, &state->S, index, error);
    if (status == VLA_OK) status = head_part(&head->A, &state->A, index, error);
    if (status == VLA_OK) status = head_part(&head->n, &state->n, index, error);
    if (status != VLA_OK) vla_state_destroy(head);
    return status;
}

void vla_state_bind(vla_state *state, vla_tensors *tensors, bool state_in)
{
    tensors->S = state->S.data;
    tensors->A = state->A.data;
    tensors->n = state->n.data;
    tensors->t = state->S.data ? &state->t : NULL;
    tensors->state_in = state_in && state->S.data;
}
