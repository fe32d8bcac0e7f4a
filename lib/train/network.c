#include "lib/train/network.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include "lib/op/registry.h"
#include "lib/train/network_code.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCKS = 64, MOST_TENSORS = OUTSIDES + MOST_BLOCKS * PLACES };

struct vla_network {
    vla_network_config config;
    const network_code *code;
    void *net;
    int64_t B, T, tensors, size;
    vla_parameter table[MOST_TENSORS];
};

extern const network_code network_f32_base, network_f64_base;
#if defined(__x86_64__)
extern const network_code network_f32_avx2, network_f64_avx2, network_f32_avx512, network_f64_avx512;
#endif

static const network_code *const codes[] = {
#if defined(__x86_64__)
    &network_f32_avx512, &network_f64_avx512, &network_f32_avx2, &network_f64_avx2,
#endif
    &network_f32_base,   &network_f64_base};

vla_network_config vla_network_paper(vla_op op)
{
    return (vla_network_config){.op = op,
                                .vocab = 128,
                                .positions = 4096,
                                .width = 128,
                                .heads = 4,
                                .blocks = 2,
                                .hidden = 256,
                                .features = VLA_ELU1,
                                .key_features = op == VLA_DECAY ? VLA_IDENTITY : VLA_ELU1,
                                .penalty = op == VLA_VLA,
                                .gate = op == VLA_DELTA || op == VLA_DECAY,
                                .floor = op == VLA_VLA ? 1e-4 : 1e-6,
                                .lambda0 = 0.1,
                                .refresh_period = op == VLA_VLA ? 20 : 0,
                                .refresh_eps = op == VLA_VLA ? 1e-3 : 0,
                                .out_norm = op == VLA_VLA ? VLA_NORM_LAYER : VLA_NORM_NONE};
}

static vla_status need(bool ok, vla_error *error, const char *name, int64_t value, const char *accepted)
{
    return ok ? VLA_OK : vla_fail(error, VLA_ERR_ARGUMENT, "network: %s %lld: %s", name, (long long)value, accepted);
}

vla_status vla_network_check(const vla_network_config *c, vla_error *error)
{
    const int64_t most = 1 << 20;
    vla_status status = need((int)c->op >= 0 && c->op < VLA_OPS, error, "op", c->op, "one of the operators");
    if (!status) status = need(c->vocab >= 2 && c->vocab <= most, error, "vocab", c->vocab, "2 to 1048576");
    if (!status)
        status = need(c->positions >= 1 && c->positions <= most, error, "positions", c->positions, "1 to 1048576");
    if (!status) status = need(c->width >= 1 && c->width <= 65536, error, "width", c->width, "1 to 65536");
    if (!status)
        status = need(c->heads >= 1 && c->width % c->heads == 0, error, "heads", c->heads, "a divisor of width");
    if (!status) status = need(c->blocks >= 1 && c->blocks <= MOST_BLOCKS, error, "blocks", c->blocks, "1 to 64");
    if (!status) status = need(c->hidden >= 1 && c->hidden <= most, error, "hidden", c->hidden, "1 to 1048576");
    if (!status) status = need(c->conv >= 0 && c->conv <= 64, error, "short convolution", c->conv, "0 to 64 taps");
    if (!status) status = need(c->refresh_period >= 0, error, "refresh period", c->refresh_period, "at least 0");
    if (!status && !(c->lambda0 > 0 && isfinite(c->lambda0)))
        status = vla_fail(error, VLA_ERR_ARGUMENT, "network: lambda0 %g: above 0", c->lambda0);
    if (!status && !(c->floor > 0)) status = vla_fail(error, VLA_ERR_ARGUMENT, "network: floor %g: above 0", c->floor);
    return status;
}

int64_t network_joined(const vla_network_config *c)
{
    const int64_t gates = !c->gate ? 0 : c->op == VLA_DELTA ? c->heads : c->op == VLA_DECAY ? c->width : 0;
    return 3 * c->width + gates;
}

static void add(vla_network *n, const char *name, int64_t block, int64_t rows, int64_t columns, double scale,
                double start)
{
    vla_parameter *p = &n->table[n->tensors++];
    *p = (vla_parameter){
        .block = block, .offset = n->size, .rows = rows, .columns = columns, .scale = scale, .start = start};
    snprintf(p->name, sizeof p->name, "%s", name);
    n->size += (rows * columns + 15) / 16 * 16; /* every tensor on a vector boundary; the gaps stay 0 */
}

/* A block has every place in the order of `enum place`; one it does not use has no rows. */
static void add_block(vla_network *n, int64_t l)
{
    const vla_network_config *c = &n->config;
    const int64_t D = c->width, F = c->hidden, J = network_joined(c), none = 0;
    const int64_t normed = c->out_norm == VLA_NORM_NONE ? none : c->out_norm == VLA_NORM_RMS ? D / c->heads : D;
    add(n, "w_qkv", l, D, J, 0.02, 0);
    add(n, "w_u", l, c->op == VLA_VLA && c->penalty ? D : none, D, 0.02, 0);
    add(n, "w_o", l, D, D, 0.02, 0);
    add(n, "w_1", l, D, F, 0.02, 0);
    add(n, "w_2", l, F, D, 0.02, 0);
    add(n, "b_qkv", l, 1, J, 0, 0);
    add(n, "b_o", l, 1, D, 0, 0);
    add(n, "b_1", l, 1, F, 0, 0);
    add(n, "b_2", l, 1, D, 0, 0);
    add(n, "norm1.gain", l, 1, D, 0, 1);
    add(n, "norm1.bias", l, 1, D, 0, 0);
    add(n, "norm2.gain", l, 1, D, 0, 1);
    add(n, "norm2.bias", l, 1, D, 0, 0);
    add(n, "out_norm.gain", l, normed > 0, normed, 0, 1);
    add(n, "out_norm.bias", l, c->out_norm == VLA_NORM_LAYER, normed, 0, 0);
    add(n, "conv", l, c->conv ? 3 * D : none, c->conv, c->conv ? 0.5 / sqrt((double)c->conv) : 0, 0);
}

static void lay_out(vla_network *n)
{
    const vla_network_config *c = &n->config;
    add(n, "tokens", -1, c->vocab, c->width, 0.02, 0);
    add(n, "positions", -1, c->positions, c->width, 0.02, 0);
    add(n, "norm.gain", -1, 1, c->width, 0, 1);
    add(n, "norm.bias", -1, 1, c->width, 0, 0);
    for (int64_t l = 0; l < c->blocks; l++) add_block(n, l);
}

static const network_code *code_for(vla_dtype dtype, vla_isa isa)
{
    const vla_isa most = vla_isa_detect();
    const vla_isa wanted = isa == VLA_ISA_AUTO || isa > most ? most : isa;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i]->dtype == dtype && codes[i]->isa <= wanted) return codes[i];
    return NULL;
}

vla_status vla_network_create(vla_network **network, const vla_network_config *config, vla_dtype dtype, vla_isa isa,
                              int64_t B, int64_t T, uint64_t seed, vla_pool *pool, vla_error *error)
{
    *network = NULL;
    vla_status status = vla_network_check(config, error);
    if (!status) status = need(B >= 1 && B <= 1 << 24, error, "batch", B, "1 to 16777216");
    if (!status && (T < 1 || T > config->positions))
        status = vla_fail(error, VLA_ERR_ARGUMENT, "network: T %lld: 1 to %lld, the learned positions", (long long)T,
                          (long long)config->positions);
    if (status) return status;
    const network_code *code = code_for(dtype, isa);
    if (!code)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "network: dtype %s: f32 and f64 train", vla_dtype_name(dtype));
    vla_network *n = calloc(1, sizeof *n);
    if (!n) return vla_fail(error, VLA_ERR_MEMORY, "network: out of memory");
    n->config = *config, n->code = code, n->B = B, n->T = T;
    lay_out(n);
    status = code->create(&n->net, &n->config, n->table, n->tensors, n->size, B, T, seed, pool, error);
    if (status)
        free(n);
    else
        *network = n;
    return status;
}

void vla_network_destroy(vla_network *network)
{
    if (!network) return;
    network->code->destroy(network->net);
    free(network);
}

static vla_status check_batch(const vla_network *n, const vla_batch *b, vla_error *error)
{
    if (b->B < 1 || b->T < 1 || b->B > n->B || b->T > n->T)
        return vla_fail(error, VLA_ERR_ARGUMENT, "batch of %lld x %lld tokens: up to %lld x %lld fit", (long long)b->B,
                        (long long)b->T, (long long)n->B, (long long)n->T);
    for (int64_t i = 0; i < b->B * b->T; i++) {
        if (b->tokens[i] < 0 || b->tokens[i] >= n->config.vocab)
            return vla_fail(error, VLA_ERR_ARGUMENT, "token %d at sequence %lld, position %lld: 0 to %lld",
                            b->tokens[i], (long long)(i / b->T), (long long)(i % b->T), (long long)n->config.vocab - 1);
        if (b->targets[i] < -1 || b->targets[i] >= n->config.vocab)
            return vla_fail(error, VLA_ERR_ARGUMENT, "target %d at sequence %lld, position %lld: -1 to %lld",
                            b->targets[i], (long long)(i / b->T), (long long)(i % b->T),
                            (long long)n->config.vocab - 1);
    }
    return VLA_OK;
}

vla_status vla_network_forward(vla_network *n, const vla_batch *batch, vla_loss *loss, int32_t *predictions,
                               vla_error *error)
{
    const vla_status status = check_batch(n, batch, error);
    if (!status) n->code->forward(n->net, batch, loss, predictions);
    return status;
}

void vla_network_backward(vla_network *n)
{
    n->code->backward(n->net);
}
double vla_network_update(vla_network *n, const vla_adam *adam, bool *finite)
{
    return n->code->update(n->net, adam, finite);
}

int64_t vla_network_size(const vla_network *n)
{
    int64_t size = 0;
    for (int64_t i = 0; i < n->tensors; i++) size += n->table[i].rows * n->table[i].columns;
    return size;
}

int64_t vla_network_tensors(const vla_network *n)
{
    return n->tensors;
}
const vla_parameter *vla_network_tensor(const vla_network *n, int64_t i)
{
    return &n->table[i];
}
vla_dtype vla_network_dtype(const vla_network *n)
{
    return n->code->dtype;
}
const vla_network_config *vla_network_config_of(const vla_network *n)
{
    return &n->config;
}
int64_t vla_network_stored(const vla_network *n)
{
    return n->size;
}
void *vla_network_values(vla_network *n)
{
    return n->code->memory(n->net, 0);
}
void *vla_network_gradients(vla_network *n)
{
    return n->code->memory(n->net, 1);
}
void *vla_network_moments(vla_network *n, int which)
{
    return n->code->memory(n->net, 2 + which);
}
const void *vla_network_input_gradient(const vla_network *n)
{
    return n->code->memory(n->net, 4);
}
void vla_network_projections(const vla_network *n, int64_t block, const vla_projections *to)
{
    n->code->projections(n->net, block, to);
}
bool vla_network_state_norms(vla_network *n, int64_t block, double *norms)
{
    return n->code->norms(n->net, block, norms);
}
