/* The network's backward pass. Row-wise work goes by pieces of ROWS tokens, attention by heads, a weight's gradient by
 * pieces of its columns over all tokens; biases, gains and taps are summed per piece and then over pieces in order. */
#include "lib/train/network_real.h"

static int64_t pieces_of(int64_t rows, int64_t size)
{
    return (rows + size - 1) / size;
}

static int64_t piece_rows(int64_t rows, int64_t piece)
{
    return (piece + 1) * ROWS < rows ? ROWS : rows - piece * ROWS;
}

/* Where a piece sums a vector's gradient. */
static real *partial_of(const net *n, const block *b, int64_t piece, enum place p)
{
    return b->at[p] < 0 ? NULL : n->partial + piece * b->vector_count + (b->at[p] - b->vectors);
}

/* A weight's gradient X^T Y: X [M, rows], Y [M, columns]. */
typedef struct weight {
    const real *X, *Y;
    int64_t ldx, ldy, rows, columns, tokens, from; /* from: the first of its pieces */
    real *to;
    real keep; /* 1: add to what is there */
} weight;

typedef struct weights {
    weight all[4];
    int count;
    int64_t pieces;
} weights;

static void add_weight(weights *w, const real *X, int64_t ldx, int64_t rows, const real *Y, int64_t ldy,
                       int64_t columns, int64_t tokens, real *to, real keep)
{
    if (!to) return;
    w->all[w->count++] = (weight){X, Y, ldx, ldy, rows, columns, tokens, w->pieces, to, keep};
    w->pieces += pieces_of(columns, COLUMNS);
}

static void weight_piece(void *context, int64_t piece, int worker)
{
    (void)worker;
    const weights *w = context;
    int i = w->count - 1;
    while (w->all[i].from > piece) i--;
    const weight *g = &w->all[i];
    const int64_t at = (piece - g->from) * COLUMNS, count = at + COLUMNS < g->columns ? COLUMNS : g->columns - at;
    gemm(CblasTrans, CblasNoTrans, g->rows, count, g->tokens, 1, g->X, g->ldx, g->Y + at, g->ldy, g->keep, g->to + at,
         g->columns);
}

static void run_weights(const net *n, weights *w)
{
    vla_pool_run(n->pool, w->pieces, weight_piece, w);
}

/* dL/d(final norm's output) of the scored rows, then dL/dx of the last block's output, dx [N, D]. */
static void head_back(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const int64_t from = piece * ROWS, rows = piece_rows(n->N, piece), D = n->D, V = n->c.vocab;
    real *dgain = n->head_partial + piece * 2 * D, *dhf = n->dh + from * D;
    memset(dgain, 0, (size_t)(2 * D) * sizeof *dgain);
    gemm(CblasNoTrans, CblasNoTrans, rows, D, V, 1, n->logits + from * V, V, n->value + n->outside[TOKENS], D, 0, dhf,
         D);
    for (int64_t i = from; i < from + rows; i++)
        norm_row_back(n->dx + i * D, n->dh + i * D, n->x_end + i * D, n->value + n->outside[END_GAIN], D, false,
                      n->mean_f[i], n->scale_f[i], dgain, dgain + D);
}

static void back_through_head(net *n)
{
    const int64_t D = n->D, V = n->c.vocab, pieces = pieces_of(n->N, ROWS);
    memset(n->dx, 0, (size_t)(n->N * D) * sizeof *n->dx);
    vla_pool_run(n->pool, pieces, head_back, n);
    real *dgain = n->grad + n->outside[END_GAIN], *dbias = n->grad + n->outside[END_BIAS];
    for (int64_t i = 0; i < D; i++) {
        dgain[i] = dbias[i] = 0;
        for (int64_t p = 0; p < pieces; p++) {
            dgain[i] += n->head_partial[p * 2 * D + i];
            dbias[i] += n->head_partial[p * 2 * D + D + i];
        }
    }
    weights w = {.count = 0};
    add_weight(&w, n->logits, V, V, n->hf, D, D, n->N, n->grad + n->outside[TOKENS], 0);
    run_weights(n, &w);
}

/* From dh, the gradient of what W_o took, to dout, that of attention's output. */
static void back_through_mix(const net *n, const block *b, int64_t piece, const real *dh)
{
    const bool rms = n->c.out_norm == VLA_NORM_RMS;
    const int64_t from = piece * ROWS, rows = piece_rows(late_rows(n), piece), D = n->D;
    const int64_t width = rms ? n->head : D, each = D / width;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t token = token_of(n, from + r), at = (from + r) * each;
        real *to = n->dout + token * D;
        if (n->c.out_norm == VLA_NORM_NONE) {
            memcpy(to, dh + r * D, (size_t)D * sizeof *to);
            continue;
        }
        memset(to, 0, (size_t)D * sizeof *to);
        for (int64_t h = 0; h < each; h++)
            norm_row_back(to + h * width, dh + r * D + h * width, b->o + token * D + h * width, param(n, b, NO_GAIN),
                          width, rms, b->mean_o[at + h], b->scale_o[at + h], partial_of(n, b, piece, NO_GAIN),
                          partial_of(n, b, piece, NO_BIAS));
    }
}

/* dx (gradient of the block's output) to dx2 (of x2), dm (before GELU) and dout (of attention). */
static void finish_back(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t from = piece * ROWS, rows = piece_rows(late_rows(n), piece), D = n->D, F = n->F;
    real *dx = n->dx + from * D, *dm = n->dm + from * F, *dh = n->dh + from * D;
    real *dx2 = (is_last(n) ? n->dx2_scored : n->dx2) + from * D;
    memset(n->partial + piece * b->vector_count, 0, (size_t)b->vector_count * sizeof(real));
    gemm(CblasNoTrans, CblasTrans, rows, F, D, 1, dx, D, param(n, b, W_2), D, 0, dm, F);
    gelu_back(dm, b->m1 + from * F, rows * F);
    gemm(CblasNoTrans, CblasTrans, rows, D, F, 1, dm, F, param(n, b, W_1), F, 0, dh, D);
    memcpy(dx2, dx, (size_t)(rows * D) * sizeof *dx);
    for (int64_t i = 0; i < rows; i++)
        norm_row_back(dx2 + i * D, dh + i * D, b->x2 + (from + i) * D, param(n, b, N2_GAIN), D, false,
                      b->mean2[from + i], b->scale2[from + i], partial_of(n, b, piece, N2_GAIN),
                      partial_of(n, b, piece, N2_BIAS));
    add_rows(partial_of(n, b, piece, B_2), dx, rows, D, D);
    add_rows(partial_of(n, b, piece, B_1), dm, rows, F, F);
    add_rows(partial_of(n, b, piece, B_O), dx2, rows, D, D);
    gemm(CblasNoTrans, CblasTrans, rows, D, D, 1, dx2, D, param(n, b, W_O), D, 0, dh, D);
    back_through_mix(n, b, piece, dh);
    for (int64_t i = 0; is_last(n) && i < rows; i++)
        memcpy(n->dx2 + token_of(n, from + i) * D, dx2 + i * D, (size_t)D * sizeof *dx2);
}

/* The penalty's part of dk: k feeds u. */
static void penalty_back(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t from = piece * ROWS, rows = piece_rows(n->M, piece), D = n->D;
    gemm(CblasNoTrans, CblasTrans, rows, D, D, 1, n->du + from * D, D, param(n, b, W_U), D, 1,
         n->djoined + from * n->J + D, n->J);
}

static void convolve_back(void *context, int64_t sequence, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t taps = n->c.conv, T = n->batch.T, J = n->J;
    const real *w = param(n, b, CONV), *x = b->pre + sequence * T * J, *dy = n->djoined + sequence * T * J;
    real *dx = n->dpre + sequence * T * J, *dw = partial_of(n, b, sequence, CONV);
    memset(dx, 0, (size_t)(T * J) * sizeof *dx);
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < J; c++) {
            if (c >= 3 * n->D) {
                dx[t * J + c] = dy[t * J + c];
                continue;
            }
            for (int64_t j = t < taps - 1 ? taps - 1 - t : 0; j < taps; j++) {
                const int64_t at = (t - taps + 1 + j) * J + c;
                dx[at] += w[c * taps + j] * dy[t * J + c];
                dw[c * taps + j] += x[at] * dy[t * J + c];
            }
        }
}

/* djoined (or dpre) to the gradient of the block's input, which replaces dx. */
static void project_back(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t from = piece * ROWS, rows = piece_rows(n->M, piece), D = n->D, J = n->J;
    const real *dj = (n->c.conv ? n->dpre : n->djoined) + from * J;
    real *dh = n->dh + from * D, *dx = n->dx + from * D;
    gemm(CblasNoTrans, CblasTrans, rows, D, J, 1, dj, J, param(n, b, W_QKV), J, 0, dh, D);
    add_rows(partial_of(n, b, piece, B_QKV), dj, rows, J, J);
    memcpy(dx, n->dx2 + from * D, (size_t)(rows * D) * sizeof *dx);
    for (int64_t i = 0; i < rows; i++)
        norm_row_back(dx + i * D, dh + i * D, b->x + (from + i) * D, param(n, b, N1_GAIN), D, false, b->mean1[from + i],
                      b->scale1[from + i], partial_of(n, b, piece, N1_GAIN), partial_of(n, b, piece, N1_BIAS));
}

/* Sums a part of the block's vectors over pieces, in order. */
static void reduce(void *context, int64_t part, int worker)
{
    (void)worker;
    const net *n = context;
    const block *b = &n->blocks[n->now];
    const int64_t from = part * 256, end = from + 256 < b->vector_count ? from + 256 : b->vector_count;
    real *to = n->grad + b->vectors;
    for (int64_t i = from; i < end; i++) to[i] = 0;
    for (int64_t p = 0; p < n->summed; p++)
        for (int64_t i = from; i < end; i++) to[i] += n->partial[p * b->vector_count + i];
}

static void back_through_block(net *n, int64_t l)
{
    n->now = l;
    const block *b = &n->blocks[l];
    const int64_t M = n->M, D = n->D, F = n->F, J = n->J, pieces = pieces_of(M, ROWS);
    const int64_t late = late_rows(n), cleared = pieces_of(late, ROWS);
    n->summed = n->c.conv && n->batch.B > pieces ? n->batch.B : pieces;
    if (n->summed > cleared) /* pieces that finish_back does not clear */
        memset(n->partial + cleared * b->vector_count, 0,
               (size_t)((n->summed - cleared) * b->vector_count) * sizeof(real));
    if (is_last(n)) { /* tokens that are not scored */
        memset(n->dx2, 0, (size_t)(M * D) * sizeof *n->dx2);
        memset(n->dout, 0, (size_t)(M * D) * sizeof *n->dout);
    }
    vla_pool_run(n->pool, cleared, finish_back, n);
    weights w = {.count = 0};
    add_weight(&w, b->m2, F, F, n->dx, D, D, late, gradient(n, b, W_2), 0);
    add_weight(&w, b->h2, D, D, n->dm, F, F, late, gradient(n, b, W_1), 0);
    add_weight(&w, b->mixed ? b->mixed : b->o, D, D, is_last(n) ? n->dx2_scored : n->dx2, D, D, late,
               gradient(n, b, W_O), 0);
    run_weights(n, &w);
    KERNEL(net_attend_back)(n);
    if (b->at[W_U] >= 0) vla_pool_run(n->pool, pieces, penalty_back, n);
    if (n->c.conv) vla_pool_run(n->pool, n->batch.B, convolve_back, n);
    vla_pool_run(n->pool, pieces, project_back, n);
    w = (weights){.count = 0};
    add_weight(&w, b->joined + D, J, D, n->du, D, D, M, gradient(n, b, W_U), 0);
    add_weight(&w, b->h1, D, D, n->c.conv ? n->dpre : n->djoined, J, J, M, gradient(n, b, W_QKV), 0);
    run_weights(n, &w);
    vla_pool_run(n->pool, pieces_of(b->vector_count, 256), reduce, n);
}

/* Columns [piece COLUMNS, ..) of the embeddings' gradients; tokens' already holds the tied head's part. */
static void embed_back(void *context, int64_t piece, int worker)
{
    (void)worker;
    const net *n = context;
    const int64_t D = n->D, from = piece * COLUMNS, count = from + COLUMNS < D ? COLUMNS : D - from;
    real *dtokens = n->grad + n->outside[TOKENS] + from, *dpositions = n->grad + n->outside[POSITIONS] + from;
    for (int64_t p = 0; p < n->c.positions; p++) memset(dpositions + p * D, 0, (size_t)count * sizeof *dpositions);
    for (int64_t r = 0; r < n->M; r++) {
        const real *dx = n->dx + r * D + from;
        add_rows(dtokens + n->batch.tokens[r] * D, dx, 1, count, D);
        add_rows(dpositions + r % n->batch.T * D, dx, 1, count, D);
    }
}

void KERNEL(net_backward)(void *context)
{
    net *n = context;
    back_through_head(n);
    for (int64_t l = n->c.blocks - 1; l >= 0; l--) back_through_block(n, l);
    vla_pool_run(n->pool, pieces_of(n->D, COLUMNS), embed_back, n);
}

static int64_t part_size(const net *n, int64_t part)
{
    return (part + 1) * PART < n->size ? PART : n->size - part * PART;
}

static bool is_still(const net *n, int64_t part)
{
    bool still = true;
    for (int64_t i = part * PART; i < part * PART + part_size(n, part); i++)
        still = still && n->first[i] == 0 && n->second[i] == 0;
    return still;
}

static void part_norm(void *context, int64_t part, int worker)
{
    (void)worker;
    const net *n = context;
    const real *g = n->grad + part * PART;
    double sum = 0;
    for (int64_t i = 0; i < part_size(n, part); i += 64) { /* short sums in real, long ones in double */
        const int64_t count = i + 64 < part_size(n, part) ? 64 : part_size(n, part) - i;
        vec squares = vset(0);
        for (int64_t j = i; j < i + count; j += LANES) {
            const vec x = get(g + j, i + count - j);
            squares += x * x;
        }
        sum += (double)vsum(squares);
    }
    n->norm_partial[part] = sum;
    if (!(sum == 0) || (n->shared && !is_still(n, part))) n->moving[part] = true;
}

/* p -= lr decay p ; m, v: running means of g and g^2 ; p -= lr m'/(sqrt(v') + eps), m', v' free of their start at 0. */
static void part_update(void *context, int64_t part, int worker)
{
    (void)worker;
    const net *n = context;
    const vla_adam *a = n->adam;
    const real b1 = (real)a->beta1, b2 = (real)a->beta2, eps = (real)a->eps, clip = n->clip_scale;
    const real shrink = (real)(1 - a->lr * a->decay), rate = (real)(a->lr / (1 - pow(a->beta1, (double)a->step)));
    const real root = (real)(1 / sqrt(1 - pow(a->beta2, (double)a->step)));
    real *restrict p = n->value + part * PART, *restrict m = n->first + part * PART,
                   *restrict v = n->second + part * PART;
    const real *restrict gradients = n->grad + part * PART;
    vec nothing = vset(0);
    if (!n->moving[part]) { /* no gradient so far: positions past the sequences' length */
        for (int64_t i = 0; i < part_size(n, part); i += LANES) vstore(p + i, vload(p + i) * shrink);
        n->norm_partial[part] = 0;
        return;
    }
    for (int64_t i = 0; i < part_size(n, part); i += LANES) { /* tensors start and end at whole vectors */
        const vec g = vload(gradients + i) * clip;
        const vec m1 = vload(m + i) * b1 + g * (1 - b1), v1 = vload(v + i) * b2 + g * g * (1 - b2);
        vstore(m + i, m1);
        vstore(v + i, v1);
        const vec next = vload(p + i) * shrink - m1 * rate / (vsqrt(v1) * root + eps);
        nothing += next * 0;
        vstore(p + i, next);
    }
    n->norm_partial[part] = (double)vsum(nothing);
}

double KERNEL(net_update)(void *context, const vla_adam *adam, bool *finite)
{
    net *n = context;
    const int64_t parts = pieces_of(n->size, PART);
    vla_pool_run(n->pool, parts, part_norm, n);
    double squares = 0;
    for (int64_t i = 0; i < parts; i++) squares += n->norm_partial[i];
    const double norm = sqrt(squares);
    n->adam = adam;
    n->shared = false;
    n->clip_scale = adam->clip > 0 && norm > adam->clip ? (real)(adam->clip / (norm + 1e-6)) : 1;
    vla_pool_run(n->pool, parts, part_update, n);
    *finite = true;
    for (int64_t i = 0; i < parts; i++) *finite = *finite && n->norm_partial[i] == 0;
    return norm;
}
