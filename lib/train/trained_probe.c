/* What is read off networks besides their accuracy: gradients against lag, tensors, state norms. */
#include "lib/base/file.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/tensor/npy.h"
#include "lib/train/trained_job.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { NORM_T = 1000 };

/* Root mean square over the batch of |dL/dx_t| at lags 0, 1, 2, 4, .. for a loss asked at the last position only. */
vla_status vla_job_gradients(const vla_job_runner *x, const vla_job *j, vla_network *network, bool trained,
                             vla_error *error)
{
    const int64_t B = j->train.test_batch, T = j->T, D = j->train.network.width;
    int32_t *tokens = NULL, *targets = NULL;
    vla_loss loss;
    vla_status status = vla_alloc((void **)&tokens, B * T, sizeof *tokens, "gradients", error);
    if (!status) status = vla_alloc((void **)&targets, B * T, sizeof *targets, "gradients", error);
    if (!status) status = vla_sequences_make(&j->sequences, VLA_TEST, 1 << 20, B, tokens, targets, error);
    int64_t last = T - 1; /* copy asks nothing at its last token */
    while (!status && last > 0 && targets[last] < 0) last--;
    for (int64_t i = 0; !status && i < B * T; i++) targets[i] = i % T == last ? targets[i] : -1;
    const vla_batch batch = {B, T, tokens, targets};
    if (!status) status = vla_network_forward(network, &batch, &loss, NULL, error);
    if (!status) vla_network_backward(network);
    const float *dx = vla_network_input_gradient(network);
    for (int64_t lag = 0; !status && lag <= last; lag = lag == 0 ? 1 : lag < last && 2 * lag > last ? last : 2 * lag) {
        double squares = 0;
        for (int64_t b = 0; b < B; b++)
            for (int64_t c = 0; c < D; c++) {
                const double g = (double)dx[(b * T + last - lag) * D + c] * (double)B; /* the loss is a mean over B */
                squares += g * g / (double)B;
            }
        char part[48];
        snprintf(part, sizeof part, "%s lag %" PRId64, trained ? "trained" : "untrained", lag);
        vla_record *row = vla_record_create("gradient");
        const bool ok = row && vla_job_describe(row, j, part) && vla_record_bool(row, "trained", trained) &&
                        vla_record_int(row, "lag", lag) && vla_record_real(row, "gradient", sqrt(squares));
        status = ok ? x->sink->add(x->sink->context, row, error) : vla_job_no_memory(row, error);
    }
    vla_free(tokens);
    vla_free(targets);
    return status;
}

vla_status vla_job_untrained_gradients(const vla_job_runner *x, const vla_job *j, vla_error *error)
{
    vla_network *network = NULL;
    vla_status status = vla_network_create(&network, &j->train.network, VLA_F32, j->s->isa, j->train.test_batch, j->T,
                                           j->seed, x->pool, error);
    if (!status) status = vla_job_gradients(x, j, network, false, error);
    vla_network_destroy(network);
    return status;
}

static vla_status write_tensor(const char *directory, const char *name, const float *data, const int64_t *shape,
                               vla_error *error)
{
    char *path = vla_path_join(directory, name);
    if (!path) return vla_fail(error, VLA_ERR_MEMORY, "dump: out of memory");
    const vla_status status = vla_npy_write(path, data, VLA_F32, 4, shape, error);
    free(path);
    return status;
}

/* q, k, v (and u) of the last block for four test sequences, [4, heads, T, d]. */
vla_status vla_job_dump(const vla_job *j, vla_network *network, vla_error *error)
{
    enum { B = 4 };
    const vla_network_config *c = &j->train.network;
    const int64_t count = B * j->T * c->width, shape[4] = {B, c->heads, j->T, c->width / c->heads};
    int32_t *tokens = NULL;
    float *memory = NULL;
    vla_status status = vla_alloc((void **)&tokens, 2 * B * j->T, sizeof *tokens, "dump", error);
    if (!status) status = vla_alloc((void **)&memory, 4 * count, sizeof *memory, "dump", error);
    if (!status) status = vla_sequences_make(&j->sequences, VLA_TEST, 0, B, tokens, tokens + B * j->T, error);
    vla_loss loss;
    const vla_batch batch = {B, j->T, tokens, tokens ? tokens + B * j->T : NULL};
    if (!status) status = vla_network_forward(network, &batch, &loss, NULL, error);
    static const char *const names[] = {"q.npy", "k.npy", "v.npy", "u.npy"};
    if (!status) {
        const vla_projections to = {memory, memory + count, memory + 2 * count, memory + 3 * count, NULL};
        vla_network_projections(network, c->blocks - 1, &to);
    }
    for (int i = 0; !status && i < (c->op == VLA_VLA ? 4 : 3); i++)
        status = write_tensor(j->s->dump, names[i], memory + i * count, shape, error);
    vla_free(tokens);
    vla_free(memory);
    return status;
}

/* |S_T|_F of the untrained backbone's last block on random tokens, mean over heads and four sequences. */
vla_status vla_job_norm(vla_job_runner *x, vla_op op, vla_error *error)
{
    enum { B = 4 };
    const vla_trained_settings *s = x->s;
    vla_job j;
    vla_job_make(&j, s, op, 0, NORM_T, (uint64_t)s->seeds[0], 1, false);
    snprintf(j.label, sizeof j.label, "norm/%s/T%d_s%" PRIu64, vla_op_name(op), NORM_T, j.seed);
    char key[17];
    vla_job_key(&j, "", key);
    if (x->sink->wanted && !x->sink->wanted(x->sink->context, j.label, key)) return VLA_OK;
    vla_network *network = NULL;
    int32_t *tokens = NULL;
    double norms[B * 64], mean = 0;
    vla_loss loss;
    vla_status status =
        vla_network_create(&network, &j.train.network, VLA_F32, s->isa, B, NORM_T, j.seed, x->pool, error);
    if (!status) status = vla_alloc((void **)&tokens, 2 * B * NORM_T, sizeof *tokens, "norms", error);
    vla_rng rng = vla_rng_seed(j.seed, NORM_T);
    for (int64_t i = 0; !status && i < B * NORM_T; i++) {
        tokens[i] = (int32_t)vla_rng_below(&rng, (uint64_t)s->vocab);
        tokens[B * NORM_T + i] = -1;
    }
    const vla_batch batch = {B, NORM_T, tokens, tokens ? tokens + B * NORM_T : NULL};
    if (!status) status = vla_network_forward(network, &batch, &loss, NULL, error);
    const int64_t heads = j.train.network.heads;
    if (!status && vla_network_state_norms(network, j.train.network.blocks - 1, norms)) {
        for (int64_t i = 0; i < B * heads; i++) mean += norms[i] / (double)(B * heads);
        vla_record *row = vla_record_create("state");
        const bool ok = row && vla_job_describe(row, &j, "") && vla_record_bool(row, "trained", false) &&
                        vla_record_real(row, "norm", mean);
        status = ok ? x->sink->add(x->sink->context, row, error) : vla_job_no_memory(row, error);
    }
    vla_free(tokens);
    vla_network_destroy(network);
    return status;
}
