/* The recurrent forms: every token of a sequence in one launch, the state in registers (the paper's fused kernel).
 *
 * q, k, u [B,H,T,dk], v [B,H,T,dv], b [B,H,T], g [B,H,T] or [B,H,T,dv], o [B,H,T,dv] in the plan's dtype;
 * S [B,H,dv,dk], A [B,H,dk,dk], n [B,H,dk] in float32, and so is all arithmetic.
 *
 * A block owns some rows of S of one head; rows of S are independent, A is made again by every block of a head. Its
 * warps take roles, each one tile of TILE tokens behind the one before, and meet at the tiles' ends:
 *   features  raw rows to kh, kf, qf, uh, v, gates in shared memory
 *   penalty   (vla, rls) A in registers, eight tokens a sweep: recurrent_penalty.cuh
 *   ratio     n and 1/max(n.qf, eps); vla: then a = unit(A kh) of the tile before, to dk 64 by a warp of its own
 *   state     S in registers: residual, write, output
 * Meant for decode and short T, and the float32 reference on the device. Not supported: dk above 256, with A above 128
 * (A is in one block's registers).
 */
#ifndef VLA_CUDA_RECURRENT_CUH
#define VLA_CUDA_RECURRENT_CUH
#include "kernels/cuda/decode.cuh"

namespace recurrent
{
/* Column of element e of a row shared by LANES lanes. */
template <int LANES> __device__ __forceinline__ int column_of(int e, int part)
{
    return 4 * (part + LANES * (e / 4)) + e % 4;
}

template <vla_op OP, int DK, int ES>
__global__ void __launch_bounds__(shape<OP, DK, ES>::threads, 1) kernel(const __grid_constant__ arguments a)
{
    using form = shape<OP, DK, ES>;
    extern __shared__ __align__(16) float shared[];
    sweep_shared<DK> &swept =
        *(sweep_shared<DK> *)(shared + form::ring * form::tile_floats); /* only where there is an A */
    const int64_t head = blockIdx.x / a.slices;
    const int slice = (int)(blockIdx.x % a.slices), row0 = slice * form::rows;
    const int64_t length = a.end - a.begin, tiles = (length + TILE - 1) / TILE, rounds = tiles + form::behind;
    const auto count_of = [&](int64_t i) { return (int)(length - i * TILE < TILE ? length - i * TILE : TILE); };
    int thread = (int)threadIdx.x;
    const auto role = [&](int threads) { /* the next `threads` threads take a role */
                                         thread -= threads;
                                         return thread < 0;
    };

    if (form::penalty_threads > 0 && role(form::penalty_threads)) {
        const int warp = (thread + form::penalty_threads) / 32, lane = (int)threadIdx.x % 32, g = lane / 4,
                  t = lane % 4;
        /* steps until the next refresh; never reaches 0 without one */
        int64_t until = a.refresh_period > 0 ? a.refresh_period - (a.first + a.begin) % a.refresh_period : INT64_MAX;
        bool poisoned = false;
        if (has_A<OP> && lane + 32 * warp < DK) swept.none[lane + 32 * warp] = 0;
        float A[DK / 8][4];
        const auto row_of = [&](int i) { return 16 * warp + g + 8 * (i / 2); };
        const auto column_of = [&](int n, int i) { return 8 * n + 2 * t + i % 2; };
#pragma unroll
        for (int n = 0; n < DK / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = row_of(i), c = column_of(n, i);
                if (a.A_in && row < a.dk && c < a.dk)
                    A[n][i] = a.A_in[(head * a.dk + row) * a.dk + c];
                else
                    A[n][i] = row == c ? a.initial : 0.0f;
            }
        for (int64_t i = 0; i < rounds; i++) {
            if constexpr (has_A<OP>)
                if (i >= 1 && i - 1 < tiles)
                    role_penalty<OP, DK, ES>(a, tile<OP, DK, ES>(shared, i - 1), A, swept, until, poisoned,
                                             count_of(i - 1), warp, lane);
            meet<form::threads>(BARRIER_TILE);
        }
        if (a.A_out && slice == 0)
#pragma unroll
            for (int n = 0; n < DK / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = row_of(i), c = column_of(n, i);
                    if (row < a.dk && c < a.dk) a.A_out[(head * a.dk + row) * a.dk + c] = poisoned ? NAN : A[n][i];
                }
    } else if (role(STATE_THREADS)) {
        thread += STATE_THREADS;
        constexpr int LANES = form::lanes;
        const int row = thread / LANES, part = thread % LANES;
        const bool mine = row0 + row < a.dv;
        float S[ES];
#pragma unroll
        for (int e = 0; e < ES; e++) {
            const int c = column_of<LANES>(e, part);
            S[e] = a.S_in && mine && c < a.dk ? a.S_in[(head * a.dv + row0 + row) * a.dk + c] : 0.0f;
        }
        for (int64_t i = 0; i < rounds; i++) {
            if (i >= form::behind) {
                const int64_t at = i - form::behind;
                const tile<OP, DK, ES> in(shared, at);
                const int count = count_of(at);
                if (count == TILE)
                    role_state<OP, DK, ES, true>(a, in, S, head, row0, at * TILE, count, thread);
                else
                    role_state<OP, DK, ES, false>(a, in, S, head, row0, at * TILE, count, thread);
            }
            meet<form::threads>(BARRIER_TILE);
        }
        if (a.S_out && mine)
#pragma unroll
            for (int e = 0; e < ES; e++) {
                const int c = column_of<LANES>(e, part);
                if (c < a.dk) a.S_out[(head * a.dv + row0 + row) * a.dk + c] = S[e];
            }
    } else if (form::ratio_threads > 0 && role(form::ratio_threads)) {
        const int lane = (int)threadIdx.x % 32;
        const bool sums = form::ratio_threads == 32 || thread + form::ratio_threads < 32,
                   units = !sums || form::ratio_threads == 32;
        float n[DK / 32];
#pragma unroll
        for (int e = 0; e < DK / 32; e++)
            n[e] = a.n_in && lane + 32 * e < a.dk ? a.n_in[head * a.dk + lane + 32 * e] : 0.0f;
        for (int64_t i = 0; i < rounds; i++) {
            if constexpr (has_n<OP>)
                if (sums && i >= 1 && i - 1 < tiles)
                    role_ratio<OP, DK, ES>(tile<OP, DK, ES>(shared, i - 1), n, count_of(i - 1), lane, a.plain);
            if constexpr (OP == VLA_VLA)
                if (units && i >= 2 && i - 2 < tiles)
                    role_normalise<OP, DK, ES>(a, tile<OP, DK, ES>(shared, i - 2),
                                               head * a.T + a.begin + (i - 2) * TILE, count_of(i - 2), lane,
                                               a.alpha && slice == 0);
            meet<form::threads>(BARRIER_TILE);
        }
        if (a.n_out && slice == 0 && sums)
#pragma unroll
            for (int e = 0; e < DK / 32; e++)
                if (lane + 32 * e < a.dk) a.n_out[head * a.dk + lane + 32 * e] = n[e];
    } else {
        for (int64_t i = 0; i < rounds; i++) {
            if (i < tiles)
                role_features<OP, DK, ES>(a, tile<OP, DK, ES>(shared, i), head, row0, i * TILE, count_of(i), thread);
            meet<form::threads>(BARRIER_TILE);
        }
    }
}

template <vla_op OP, int DK, int ES>
vla_status launch(arguments a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    using form = shape<OP, DK, ES>;
    a.slices = (a.dv + form::rows - 1) / form::rows;
    const int64_t blocks = heads * a.slices;
    if (blocks > 2147483647)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld: accepted are up to %lld heads of dv %d",
                        (long long)heads, (long long)(2147483647 / a.slices), a.dv);
    VLA_CUDA(cudaFuncSetAttribute(kernel<OP, DK, ES>, cudaFuncAttributeMaxDynamicSharedMemorySize, form::shared_bytes));
    kernel<OP, DK, ES><<<(unsigned)blocks, form::threads, form::shared_bytes, stream>>>(a);
    VLA_CUDA(cudaGetLastError());
    return VLA_OK;
}

/* More slices of fewer rows keep more multiprocessors busy, while there are any idle. */
template <vla_op OP, int DK>
vla_status choose_slices(const arguments &a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    constexpr int rows = shape<OP, DK, 8>::rows;
    const int64_t blocks = heads * ((a.dv + rows - 1) / rows), fit = (has_A<OP> ? 1 : 3) * vla_cuda_sm_count();
    if (blocks <= fit) return launch<OP, DK, 8>(a, heads, stream, error);
    return launch<OP, DK, 32>(a, heads, stream, error);
}

template <vla_op OP> vla_status choose_width(const arguments &a, int64_t heads, cudaStream_t stream, vla_error *error)
{
    if constexpr (has_A<OP>)
        if (a.dk <= 32) return choose_slices<OP, 32>(a, heads, stream, error);
    if (a.dk <= 64) return choose_slices<OP, 64>(a, heads, stream, error);
    if (a.dk <= 128) return choose_slices<OP, 128>(a, heads, stream, error);
    if constexpr (!has_A<OP>) return choose_slices<OP, 256>(a, heads, stream, error);
    return vla_fail(error, VLA_ERR_UNSUPPORTED, "dk %d: accepted are up to 128", a.dk);
}

template <vla_op OP> bool supports(const vla_problem *p, char *reason, size_t size)
{
    const int most = has_A<OP> ? 128 : 256;
    if (p->dk > most) {
        snprintf(reason, size, "dk %lld above %d: the state of a head is kept in one block's registers",
                 (long long)p->dk, most);
        return false;
    }
    if (p->dv > 1 << 20) {
        snprintf(reason, size, "dv %lld above %d", (long long)p->dv, 1 << 20);
        return false;
    }
    return true;
}

/* Copies of A and n at the start: with several blocks a head one may finish and write them before another has read. */
template <vla_op OP> vla_status workspace(const vla_problem *p, int, int64_t *bytes, vla_error *error)
{
    int64_t heads = 0;
    const int64_t a_head = 4 * ((has_A<OP> ? p->dk * p->dk : 0) + (has_n<OP> ? p->dk : 0));
    if (!vla_size_mul(p->B, p->H, &heads) || !vla_size_mul(heads, a_head, bytes))
        return vla_fail(error, VLA_ERR_MEMORY, "B*H %lld x %lld: the state is beyond 64-bit sizes", (long long)p->B,
                        (long long)p->H);
    return VLA_OK;
}

template <vla_op OP> arguments arguments_of(const vla_call *call, vla_dtype dtype)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    arguments a = {};
    a.q = t->q, a.k = t->k, a.v = t->v, a.u = t->u ? t->u : t->k, a.b = t->b, a.g = t->g, a.o = t->o;
    a.alpha = OP == VLA_VLA ? t->alpha : NULL;
    a.S_out = (float *)t->S, a.A_out = has_A<OP> ? (float *)t->A : NULL, a.n_out = has_n<OP> ? (float *)t->n : NULL;
    a.T = a.end = p->T, a.first = t->state_in && t->t ? *t->t : 0;
    a.dk = (int)p->dk, a.dv = (int)p->dv, a.dtype = dtype, a.features = p->features;
    a.gate = p->gate, a.qk_l2 = p->qk_l2, a.plain = OP == VLA_VLA && p->output == VLA_PLAIN;
    a.normalise = !p->no_normalise;
    a.initial = (float)(1.0 / p->lambda0), a.root = (float)(1.0 / sqrt((double)p->dk));
    a.refresh_period = p->refresh_period, a.refresh_eps = (float)p->refresh_eps;
    return a;
}

/* A and n of a given state, copied to `copy`; S is read in place. */
template <vla_op OP> vla_status take_state(arguments &a, const vla_call *call, float *copy, vla_error *error)
{
    const vla_tensors *t = call->tensors;
    cudaStream_t stream = (cudaStream_t)call->stream;
    const int64_t heads = call->problem->B * call->problem->H, square = heads * a.dk * a.dk;
    a.S_in = (const float *)t->S;
    if (has_A<OP>) {
        VLA_CUDA(cudaMemcpyAsync(copy, t->A, (size_t)square * 4, cudaMemcpyDeviceToDevice, stream));
        a.A_in = copy, copy += square;
    }
    if (has_n<OP>) {
        VLA_CUDA(cudaMemcpyAsync(copy, t->n, (size_t)(heads * a.dk) * 4, cudaMemcpyDeviceToDevice, stream));
        a.n_in = copy;
    }
    return VLA_OK;
}

template <vla_op OP> vla_status run(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    const vla_tensors *t = call->tensors;
    const int64_t heads = call->problem->B * call->problem->H;
    if (heads == 0) return VLA_OK;
    arguments a = arguments_of<OP>(call, dtype);
    cudaStream_t stream = (cudaStream_t)call->stream;
    vla_status status = VLA_OK;
    if (decodes(call->problem)) { /* a head's block reads all of its state before it writes */
        if (t->state_in) a.S_in = (const float *)t->S, a.A_in = (const float *)t->A, a.n_in = (const float *)t->n;
        status = run_decode<OP>(a, heads, stream, error);
    } else {
        if (t->state_in) status = take_state<OP>(a, call, (float *)call->work, error);
        if (status == VLA_OK) status = choose_width<OP>(a, heads, stream, error);
    }
    if (status == VLA_OK && t->t) *t->t = a.first + call->problem->T;
    return status;
}

/* stepwise: a launch a token, the state in memory between them, A and n alternating between two places as several
 * blocks of a head read what one of them writes. Workspace: two of A and n, one of S. */
template <vla_op OP> vla_status stepwise_workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    int64_t state = 0, S = 0;
    const vla_status status = workspace<OP>(p, threads, &state, error);
    if (status != VLA_OK) return status;
    if (!vla_size_mul(p->B * p->H, 4 * p->dk * p->dv, &S) || state > INT64_MAX / 4 || S > INT64_MAX / 4)
        return vla_fail(error, VLA_ERR_MEMORY, "B*H %lld: the state is beyond 64-bit sizes", (long long)(p->B * p->H));
    *bytes = 2 * state + S;
    return VLA_OK;
}

template <vla_op OP> vla_status run_stepwise(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    const vla_tensors *t = call->tensors;
    const int64_t heads = call->problem->B * call->problem->H, T = call->problem->T;
    if (heads == 0) return VLA_OK;
    if (T == 0) return run<OP>(call, dtype, error);
    arguments a = arguments_of<OP>(call, dtype);
    float *const A_end = a.A_out, *const n_end = a.n_out;
    const int64_t square = has_A<OP> ? heads * a.dk * a.dk : 0, vector = has_n<OP> ? heads * a.dk : 0;
    float *const place[2] = {(float *)call->work, (float *)call->work + square + vector};
    if (!a.S_out) a.S_out = place[1] + square + vector;
    vla_status status = t->state_in ? take_state<OP>(a, call, place[1], error) : VLA_OK;
    for (int64_t i = 0; i < T && status == VLA_OK; i++) {
        float *const next = place[i % 2];
        a.begin = i, a.end = i + 1;
        a.A_out = has_A<OP> ? i + 1 == T && A_end ? A_end : next : NULL;
        a.n_out = has_n<OP> ? i + 1 == T && n_end ? n_end : next + square : NULL;
        status = choose_width<OP>(a, heads, (cudaStream_t)call->stream, error);
        a.S_in = a.S_out, a.A_in = a.A_out, a.n_in = a.n_out;
    }
    if (status == VLA_OK && t->t) *t->t = a.first + T;
    return status;
}
} /* namespace recurrent */

/* The three variants of an operator, named by the file's stem. */
#define VLA_RECURRENT_VARIANTS(stem, OP)                                                           \
    static vla_status run_f32(const vla_call *c, vla_error *e)                                     \
    {                                                                                              \
        return recurrent::run<OP>(c, VLA_F32, e);                                                  \
    }                                                                                              \
    static vla_status run_bf16(const vla_call *c, vla_error *e)                                    \
    {                                                                                              \
        return recurrent::run<OP>(c, VLA_BF16, e);                                                 \
    }                                                                                              \
    static vla_status run_f16(const vla_call *c, vla_error *e)                                     \
    {                                                                                              \
        return recurrent::run<OP>(c, VLA_F16, e);                                                  \
    }                                                                                              \
    extern "C" {                                                                                   \
    extern const vla_variant stem##_f32, stem##_bf16, stem##_f16;                                  \
    const vla_variant stem##_f32 = {recurrent::supports<OP>, recurrent::workspace<OP>, run_f32};   \
    const vla_variant stem##_bf16 = {recurrent::supports<OP>, recurrent::workspace<OP>, run_bf16}; \
    const vla_variant stem##_f16 = {recurrent::supports<OP>, recurrent::workspace<OP>, run_f16};   \
    }

#define VLA_STEPWISE_VARIANTS(stem, OP)                                                                     \
    static vla_status run_f32(const vla_call *c, vla_error *e)                                              \
    {                                                                                                       \
        return recurrent::run_stepwise<OP>(c, VLA_F32, e);                                                  \
    }                                                                                                       \
    static vla_status run_bf16(const vla_call *c, vla_error *e)                                             \
    {                                                                                                       \
        return recurrent::run_stepwise<OP>(c, VLA_BF16, e);                                                 \
    }                                                                                                       \
    static vla_status run_f16(const vla_call *c, vla_error *e)                                              \
    {                                                                                                       \
        return recurrent::run_stepwise<OP>(c, VLA_F16, e);                                                  \
    }                                                                                                       \
    extern "C" {                                                                                            \
    extern const vla_variant stem##_f32, stem##_bf16, stem##_f16;                                           \
    const vla_variant stem##_f32 = {recurrent::supports<OP>, recurrent::stepwise_workspace<OP>, run_f32};   \
    const vla_variant stem##_bf16 = {recurrent::supports<OP>, recurrent::stepwise_workspace<OP>, run_bf16}; \
    const vla_variant stem##_f16 = {recurrent::supports<OP>, recurrent::stepwise_workspace<OP>, run_f16};   \
    }

#endif
