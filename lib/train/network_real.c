/* The network's forward pass and its memory (see network.h). */
#include "lib/train/network_real.h"
#include "lib/base/random.h"
#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <stdlib.h>

static const attention *const operators[VLA_OPS] = {&KERNEL(attention_softmax), &KERNEL(attention_linear),
                                                    &KERNEL(attention_delta),   &KERNEL(attention_decay),
                                                    &KERNEL(attention_vla),     &KERNEL(attention_rls)};

static int64_t pieces_of(int64_t rows, int64_t size)
{
    return (rows + size - 1) / size;
}

static int64_t piece_rows(int64_t rows, int64_t piece)
{
    return (piece + 1) * ROWS < rows ? ROWS : rows - piece * ROWS;
}

static void embed(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const real *tokens = n->value + n->outside[TOKENS], *positions = n->value + n->outside[POSITIONS];
    const int64_t from = piece * ROWS, rows = piece_rows(n->M, piece);
    for (int64_t r = from; r < from + rows; r++) {
        const real *t = tokens + n->batch.tokens[r] * n->D, *p = positions + r % n->batch.T * n->D;
        real *x = n->blocks[0].x + r * n->D;
        memcpy(x, t, (size_t)n->D * sizeof *x);
        add_to(x, p, n->D);
    }
}

static void penalty_rows(const net *n, const block *b, int64_t from, int64_t rows)
{
    if (b->at[W_U] < 0) return;
    gemm(CblasNoTrans, CblasNoTrans, rows, n->D, n->D, 1, b->joined + from * n->J + n->D, n->J, param(n, b, W_U), n->D,
         0, b->u + from * n->D, n->D);
}

static void project(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t from = piece * ROWS, rows = piece_rows(n->M, piece), D = n->D;
    for (int64_t r = from; r < from + rows; r++)
        norm_row(b->h1 + r * D, b->x + r * D, param(n, b, N1_GAIN), param(n, b, N1_BIAS), D, false, &b->mean1[r],
                 &b->scale1[r]);
    real *out = (n->c.conv ? b->pre : b->joined) + from * n->J;
    fill_rows(out, param(n, b, B_QKV), rows, n->J);
    gemm(CblasNoTrans, CblasNoTrans, rows, n->J, D, 1, b->h1 + from * D, D, param(n, b, W_QKV), n->J, 1, out, n->J);
    if (!n->c.conv) penalty_rows(n, b, from, rows);
}

/* y[t] = sum_j w[j] x[t - taps + 1 + j], a channel at a time; tokens before the sequence are 0. */
static void convolve(void *context, int64_t sequence, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t taps = n->c.conv, T = n->batch.T, J = n->J;
    const real *w = param(n, b, CONV), *x = b->pre + sequence * T * J;
    real *y = b->joined + sequence * T * J;
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < J; c++) {
            real sum = c < 3 * n->D ? 0 : x[t * J + c];
            for (int64_t j = t < taps - 1 ? taps - 1 - t : 0; c < 3 * n->D && j < taps; j++)
                sum += w[c * taps + j] * x[(t - taps + 1 + j) * J + c];
            y[t * J + c] = sum;
        }
}

static void penalise(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    penalty_rows(n, &n->blocks[n->now], piece * ROWS, piece_rows(n->M, piece));
}

/* One head of one sequence as the operator's files see it; with gradients when d is given. */
static attention_rows rows_of(const net *n, const block *b, int64_t item, attention_gradients *d)
{
    const int64_t head = item % n->c.heads, first = item / n->c.heads * n->batch.T, column = head * n->head;
    real *joined = b->joined + first * n->J + column;
    const int64_t gate = n->c.op == VLA_DELTA ? 3 * n->D + head : 3 * n->D + column;
    const bool gated = n->J > 3 * n->D, penalty = b->at[W_U] >= 0;
    attention_rows rows = {.q = joined,
                           .k = joined + n->D,
                           .v = joined + 2 * n->D,
                           .u = n->c.op != VLA_VLA ? NULL
                                : penalty          ? b->u + first * n->D + column
                                                   : joined + n->D,
                           .g = gated ? b->joined + first * n->J + gate : NULL,
                           .stride = n->J,
                           .v_stride = n->J,
                           .u_stride = penalty ? n->D : n->J,
                           .g_stride = n->J,
                           .o = b->o + first * n->D + column,
                           .o_stride = n->D};
    if (d) {
        real *dj = n->djoined + first * n->J + column;
        *d = (attention_gradients){.o = n->dout + first * n->D + column,
                                   .q = dj,
                                   .k = dj + n->D,
                                   .v = dj + 2 * n->D,
                                   .u = n->du + first * n->D + column,
                                   .g = gated ? n->djoined + first * n->J + gate : NULL};
    }
    return rows;
}

static void attend(void *context, int64_t item, int worker)
{
    const net *n = context;
    const attention_rows rows = rows_of(n, &n->blocks[n->now], item, NULL);
    n->attention->forward(&n->shape, &rows, n->scratch + worker * n->scratch_size);
}

/* What W_o takes of the rows: o, normalised where the network does so. */
static void mix(const net *n, const block *b, int64_t from, int64_t rows)
{
    const bool rms = n->c.out_norm == VLA_NORM_RMS;
    const int64_t width = rms ? n->head : n->D, each = n->D / width;
    for (int64_t r = from; b->mixed && r < from + rows; r++) {
        const real *o = b->o + token_of(n, r) * n->D;
        real *to = b->mixed + r * n->D;
        if (n->c.out_norm == VLA_NORM_NONE) {
            memcpy(to, o, (size_t)n->D * sizeof *to);
            continue;
        }
        for (int64_t h = 0; h < each; h++)
            norm_row(to + h * width, o + h * width, param(n, b, NO_GAIN), param(n, b, NO_BIAS), width, rms,
                     &b->mean_o[r * each + h], &b->scale_o[r * each + h]);
    }
}

/* Everything of a block after attention; x_next is the next block's input. */
static void finish(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t from = piece * ROWS, rows = piece_rows(late_rows(n), piece), D = n->D, F = n->F;
    real *x2 = b->x2 + from * D, *m1 = b->m1 + from * F, *m2 = b->m2 + from * F;
    real *x_next = (is_last(n) ? n->x_end : n->blocks[n->now + 1].x) + from * D;
    mix(n, b, from, rows);
    fill_rows(x2, param(n, b, B_O), rows, D);
    gemm(CblasNoTrans, CblasNoTrans, rows, D, D, 1, (b->mixed ? b->mixed : b->o) + from * D, D, param(n, b, W_O), D, 1,
         x2, D);
    for (int64_t r = 0; r < rows; r++) add_to(x2 + r * D, b->x + token_of(n, from + r) * D, D);
    for (int64_t r = from; r < from + rows; r++)
        norm_row(b->h2 + r * D, b->x2 + r * D, param(n, b, N2_GAIN), param(n, b, N2_BIAS), D, false, &b->mean2[r],
                 &b->scale2[r]);
    fill_rows(m1, param(n, b, B_1), rows, F);
    gemm(CblasNoTrans, CblasNoTrans, rows, F, D, 1, b->h2 + from * D, D, param(n, b, W_1), F, 1, m1, F);
    gelu(m2, m1, rows * F);
    fill_rows(x_next, param(n, b, B_2), rows, D);
    gemm(CblasNoTrans, CblasNoTrans, rows, D, F, 1, m2, F, param(n, b, W_2), D, 1, x_next, D);
    add_to(x_next, x2, rows * D);
}

/* Final norm, tied head and loss of the scored rows; logits become their gradient. */
static void score(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const int64_t from = piece * ROWS, rows = piece_rows(n->N, piece), D = n->D, V = n->c.vocab;
    const real *gain = n->value + n->outside[END_GAIN], *bias = n->value + n->outside[END_BIAS];
    for (int64_t i = from; i < from + rows; i++)
        norm_row(n->hf + i * D, n->x_end + i * D, gain, bias, D, false, &n->mean_f[i], &n->scale_f[i]);
    gemm(CblasNoTrans, CblasTrans, rows, V, D, 1, n->hf + from * D, D, n->value + n->outside[TOKENS], D, 0,
         n->logits + from * V, V);
    double loss = 0;
    int64_t correct = 0;
    for (int64_t i = from; i < from + rows; i++) {
        const int32_t target = n->batch.targets[n->scored[i]];
        int32_t most_likely;
        loss += cross_entropy_row(n->logits + i * V, V, target, 1 / (real)n->N, &most_likely);
        correct += most_likely == target;
        if (n->predictions) n->predictions[n->scored[i]] = most_likely;
    }
    n->loss_partial[piece] = loss;
    n->correct_partial[piece] = correct;
}

static void run_block(net *n, int64_t l)
{
    n->now = l;
    const int64_t pieces = pieces_of(n->M, ROWS);
    vla_pool_run(n->pool, pieces, project, n);
    if (n->c.conv) vla_pool_run(n->pool, n->batch.B, convolve, n);
    if (n->c.conv && n->blocks[l].at[W_U] >= 0) vla_pool_run(n->pool, pieces, penalise, n);
    vla_pool_run(n->pool, n->batch.B * n->c.heads, attend, n);
    vla_pool_run(n->pool, pieces_of(late_rows(n), ROWS), finish, n);
}

static void forward(void *context, const vla_batch *batch, vla_loss *loss, int32_t *predictions)
{
    net *n = context;
    n->batch = *batch;
    n->M = batch->B * batch->T, n->N = 0;
    n->shape.len = batch->T;
    n->predictions = predictions;
    for (int64_t r = 0; r < n->M; r++) {
        if (predictions) predictions[r] = -1;
        if (batch->targets[r] >= 0) n->scored[n->N++] = (int32_t)r;
    }
    vla_pool_run(n->pool, pieces_of(n->M, ROWS), embed, n);
    for (int64_t l = 0; l < n->c.blocks; l++) run_block(n, l);
    const int64_t pieces = pieces_of(n->N, ROWS);
    vla_pool_run(n->pool, pieces, score, n);
    *loss = (vla_loss){0, n->N, 0};
    for (int64_t i = 0; i < pieces; i++) loss->loss += n->loss_partial[i], loss->correct += n->correct_partial[i];
    if (n->N) loss->loss /= (double)n->N;
}

static void attend_back(void *context, int64_t item, int worker)
{
    const net *n = context;
    attention_gradients d;
    const attention_rows rows = rows_of(n, &n->blocks[n->now], item, &d);
    const bool shared = n->c.op == VLA_VLA && n->blocks[n->now].at[W_U] < 0; /* u is k: their gradients add */
    real *scratch = n->scratch + worker * n->scratch_size;
    if (shared) d.u = scratch + n->scratch_size - n->J * n->batch.T;
    n->attention->backward(&n->shape, &rows, &d, scratch);
    for (int64_t t = 0; shared && t < n->batch.T; t++)
        for (int64_t c = 0; c < n->head; c++) d.k[t * n->J + c] += d.u[t * n->J + c];
}

void KERNEL(net_attend_back)(net *n)
{
    vla_pool_run(n->pool, n->batch.B * n->c.heads, attend_back, n);
}

static void projections(const void *context, int64_t l, const vla_projections *wanted)
{
    const net *n = context;
    real *to[5] = {wanted->q, wanted->k, wanted->v, wanted->u, wanted->o};
    for (int64_t item = 0; item < n->batch.B * n->c.heads; item++) {
        const attention_rows rows = rows_of(n, &n->blocks[l], item, NULL);
        const real *from[5] = {rows.q, rows.k, rows.v, rows.u, rows.o};
        const int64_t stride[5] = {rows.stride, rows.stride, rows.stride, rows.u_stride, rows.o_stride};
        for (int i = 0; i < 5; i++)
            for (int64_t t = 0; to[i] && from[i] && t < n->batch.T; t++)
                memcpy(to[i] + (item * n->batch.T + t) * n->head, from[i] + t * stride[i],
                       (size_t)n->head * sizeof(real));
    }
}

static bool norms(void *context, int64_t l, double *out)
{
    const net *n = context;
    if (!n->attention->norm) return false;
    for (int64_t item = 0; item < n->batch.B * n->c.heads; item++) {
        const attention_rows rows = rows_of(n, &n->blocks[l], item, NULL);
        out[item] = (double)n->attention->norm(&n->shape, &rows, n->scratch);
    }
    return true;
}

static void *memory(void *context, int which)
{
    net *n = context;
    n->shared = n->shared || which == 2 || which == 3;
    real *const all[] = {n->value, n->grad, n->first, n->second, n->dx};
    return all[which];
}

typedef struct request {
    real **memory;
    int64_t count;
} request;

static vla_status take_all(const request *requests, int64_t count, vla_error *error)
{
    for (int64_t i = 0; i < count; i++) {
        if (requests[i].count == 0) continue;
        const vla_status status =
            vla_alloc((void **)requests[i].memory, requests[i].count, sizeof(real), "network", error);
        if (status) return status;
    }
    return VLA_OK;
}

static vla_status create_block(net *n, block *b, vla_error *error)
{
    const int64_t M = n->most, D = n->D, per_norm = n->c.out_norm == VLA_NORM_NONE ? 0 : 1;
    const bool mixed = per_norm || b == &n->blocks[n->c.blocks - 1];
    const request requests[] = {{&b->x, M * D},
                                {&b->h1, M * D},
                                {&b->joined, M * n->J},
                                {&b->pre, n->c.conv ? M * n->J : 0},
                                {&b->u, b->at[W_U] >= 0 ? M * D : 0},
                                {&b->o, M * D},
                                {&b->mixed, mixed ? M * D : 0},
                                {&b->mean_o, per_norm * M * n->c.heads},
                                {&b->scale_o, per_norm * M * n->c.heads},
                                {&b->x2, M * D},
                                {&b->h2, M * D},
                                {&b->m1, M * n->F},
                                {&b->m2, M * n->F},
                                {&b->mean1, M},
                                {&b->scale1, M},
                                {&b->mean2, M},
                                {&b->scale2, M}};
    return take_all(requests, sizeof requests / sizeof *requests, error);
}

static void place_block(block *b, const vla_parameter *table)
{
    for (int p = 0; p < PLACES; p++) b->at[p] = table[p].rows > 0 && table[p].columns > 0 ? table[p].offset : -1;
    const vla_parameter *last = &table[PLACES - 1];
    b->vectors = table[B_QKV].offset;
    b->vector_count = last->offset + last->rows * last->columns - b->vectors;
}

static vla_status take_network(net *n, vla_error *error)
{
    const int64_t M = n->most, D = n->D, threads = vla_pool_threads(n->pool);
    const request requests[] = {{&n->value, n->size},
                                {&n->grad, n->size},
                                {&n->first, n->size},
                                {&n->second, n->size},
                                {&n->x_end, M * D},
                                {&n->mean_f, M},
                                {&n->scale_f, M},
                                {&n->hf, M * D},
                                {&n->logits, M * n->c.vocab},
                                {&n->dx, M * D},
                                {&n->dx2, M * D},
                                {&n->dx2_scored, M * D},
                                {&n->dout, M * D},
                                {&n->djoined, M * n->J},
                                {&n->dpre, n->c.conv ? M * n->J : 0},
                                {&n->du, M * D},
                                {&n->dm, M * n->F},
                                {&n->dh, M * D},
                                {&n->partial, n->pieces * n->blocks[0].vector_count},
                                {&n->head_partial, n->pieces * 2 * D},
                                {&n->scratch, threads * n->scratch_size}};
    vla_status status = take_all(requests, sizeof requests / sizeof *requests, error);
    const int64_t parts = pieces_of(n->size, PART);
    if (!status) status = vla_alloc((void **)&n->loss_partial, n->pieces, sizeof(double), "network", error);
    if (!status) status = vla_alloc((void **)&n->correct_partial, n->pieces, sizeof(int64_t), "network", error);
    if (!status) status = vla_alloc((void **)&n->norm_partial, parts, sizeof(double), "network", error);
    if (!status) status = vla_alloc((void **)&n->moving, parts, sizeof(bool), "network", error);
    if (!status) status = vla_alloc((void **)&n->scored, M, sizeof(int32_t), "network", error);
    return status;
}

static void initialise(net *n, const vla_parameter *table, int64_t tensors, uint64_t seed)
{
    real *all[] = {n->value, n->grad, n->first, n->second};
    for (int i = 0; i < 4; i++) memset(all[i], 0, (size_t)n->size * sizeof(real));
    memset(n->moving, false, (size_t)pieces_of(n->size, PART) * sizeof *n->moving);
    for (int64_t i = 0; i < tensors; i++) {
        vla_rng rng = vla_rng_seed(seed, 1000 + (uint64_t)i);
        for (int64_t j = 0; j < table[i].rows * table[i].columns; j++)
            n->value[table[i].offset + j] =
                (real)(table[i].start + (table[i].scale > 0 ? table[i].scale * vla_rng_normal(&rng) : 0));
    }
    for (int64_t l = 0; l < n->c.blocks; l++)
        for (int64_t j = 3 * n->D; j < n->J; j++) n->value[n->blocks[l].at[B_QKV] + j] = (real)n->c.gate_bias;
}

static void destroy(void *context)
{
    net *n = context;
    for (int64_t l = 0; n->blocks && l < n->c.blocks; l++) {
        block *b = &n->blocks[l];
        real *all[] = {b->x,  b->h1, b->pre,   b->joined, b->u,     b->o,      b->mixed,  b->x2,     b->h2,
                       b->m1, b->m2, b->mean1, b->scale1, b->mean2, b->scale2, b->mean_o, b->scale_o};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) vla_free(all[i]);
    }
    real *all[] = {n->value, n->grad,   n->first, n->second,  n->x_end,        n->mean_f,  n->scale_f,
                   n->hf,    n->logits, n->dx,    n->dx2,     n->dout,         n->djoined, n->dpre,
                   n->du,    n->dm,     n->dh,    n->partial, n->head_partial, n->scratch, n->dx2_scored};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) vla_free(all[i]);
    vla_free(n->loss_partial);
    vla_free(n->correct_partial);
    vla_free(n->norm_partial);
    vla_free(n->moving);
    vla_free(n->scored);
    free(n->blocks);
    free(n);
}

static void set_shape(net *n, int64_t T)
{
    const vla_network_config *c = &n->c;
    n->shape = (attention_shape){.op = c->op,
                                 .len = T,
                                 .dk = n->head,
                                 .dv = n->head,
                                 .features = c->features,
                                 .key_features = c->key_features,
                                 .qk_l2 = c->qk_l2,
                                 .ratio = c->op == VLA_LINEAR || c->op == VLA_VLA,
                                 .floor = (real)c->floor,
                                 .lambda0 = (real)c->lambda0,
                                 .refresh_period = c->refresh_period,
                                 .refresh_eps = (real)c->refresh_eps};
    n->attention = operators[c->op];
    n->scratch_size = PAD(n->attention->scratch(&n->shape)) + PAD(n->J * T);
}

static vla_status create(void **out, const vla_network_config *config, const vla_parameter *table, int64_t tensors,
                         int64_t size, int64_t B, int64_t T, uint64_t seed, vla_pool *pool, vla_error *error)
{
    net *n = calloc(1, sizeof *n);
    if (n) n->blocks = calloc((size_t)config->blocks, sizeof *n->blocks);
    if (!n || !n->blocks) return free(n), vla_fail(error, VLA_ERR_MEMORY, "network: out of memory");
    n->c = *config, n->pool = pool, n->size = size;
    n->D = config->width, n->F = config->hidden, n->J = network_joined(config), n->head = n->D / config->heads;
    n->most = B * T;
    n->pieces = pieces_of(n->most, ROWS) > B ? pieces_of(n->most, ROWS) : B;
    for (int i = 0; i < OUTSIDES; i++) n->outside[i] = table[i].offset;
    set_shape(n, T);
    vla_status status = VLA_OK;
    for (int64_t l = 0; !status && l < config->blocks; l++) {
        place_block(&n->blocks[l], table + (tensors - (config->blocks - l) * PLACES));
        status = create_block(n, &n->blocks[l], error);
    }
    if (!status) status = take_network(n, error);
    if (status)
        destroy(n);
    else
        initialise(n, table, tensors, seed), *out = n;
    return status;
}

#define NETWORK_ISA (VLA_VEC_BYTES == 64 ? VLA_ISA_AVX512 : VLA_VEC_BYTES == 32 ? VLA_ISA_AVX2 : VLA_ISA_BASE)

extern const network_code KERNEL(network);
const network_code KERNEL(network) = {.dtype = VLA_REAL_BITS == 64 ? VLA_F64 : VLA_F32,
                                      .isa = NETWORK_ISA,
                                      .create = create,
                                      .destroy = destroy,
                                      .forward = forward,
                                      .backward = KERNEL(net_backward),
                                      .update = KERNEL(net_update),
                                      .memory = memory,
                                      .projections = projections,
                                      .norms = norms};
