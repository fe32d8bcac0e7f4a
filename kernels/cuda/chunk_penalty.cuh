/* penalty of the chunkwise vla (chunk.cuh): A at the segment's start, then a for its tokens. */
#ifndef VLA_CUDA_CHUNK_PENALTY_CUH
#define VLA_CUDA_CHUNK_PENALTY_CUH
#include "kernels/cuda/chunk.cuh"

namespace chunked
{
/* One segment is held by `warps` warps, each `tiles` row tiles of A as results of products: 128 registers a lane. */
template <int DK> struct penalty_shape {
    static constexpr int KT = DK / 16, warps = DK / 64 * DK / 64, tiles = KT / warps, threads = 128,
                         segments = threads / 32 / warps; /* a block */
};

template <int DK> struct penalty_shared {
    using form = penalty_shape<DK>;
    frag input[2][2][form::KT][32];                       /* two sub-steps of U and K, 16 tokens each */
    frag exchange[2][form::warps > 1 ? form::KT : 1][32]; /* W^T, high and low parts */
    float sums[form::warps > 1 ? form::warps : 1][32][16];
    float squares[form::warps > 1 ? form::warps : 1][16];
    small_matrix pivot, own[form::warps];
};

template <int DK> __device__ __forceinline__ void segment_barrier()
{
    if (penalty_shape<DK>::warps > 1)
        __syncthreads();
    else
        __syncwarp();
}

__device__ __forceinline__ void copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

template <int DK> using matrix_part = float[penalty_shape<DK>::tiles][penalty_shape<DK>::KT][2][4];

/* Largest diagonal element over the warps of the segment; the diagonal tile of row tile `first + m` is column tile the
 * same. */
template <int DK>
__device__ __forceinline__ float largest_diagonal(const matrix_part<DK> &A, penalty_shared<DK> &shared, int first,
                                                  int warp, int lane)
{
    using form = penalty_shape<DK>;
    float top = 0;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < form::tiles; m++)
#pragma unroll
        for (int n = 0; n < form::KT; n++) {
            const float upper = fabsf(g % 2 ? A[m][n][0][1] : A[m][n][0][0]),
                        lower = fabsf(g % 2 ? A[m][n][1][3] : A[m][n][1][2]);
            const float both =
                fmaxf(upper, lower); /* read always: an index that depends on the warp would put A in memory */
            top = fmaxf(top, n == first + m && g / 2 == t ? both : 0.0f);
        }
    top = warp_max(top);
    if (form::warps > 1) {
        if (lane == 0) shared.squares[warp][0] = top;
        __syncthreads();
        for (int w = 0; w < form::warps; w++) top = fmaxf(top, shared.squares[w][0]);
        __syncthreads();
    }
    return top;
}

/* A -= W^T W, M the operands' type; SPLIT: with the low parts. all(part, tile) gives W^T of any row tile. */
template <int DK, typename M, bool SPLIT>
__device__ __forceinline__ void rank16(matrix_part<DK> &A, const frag (&high)[penalty_shape<DK>::tiles],
                                       const frag (&low)[penalty_shape<DK>::tiles], const penalty_shared<DK> &shared,
                                       int lane)
{
    using form = penalty_shape<DK>;
#pragma unroll
    for (int n = 0; n < form::KT; n++) {
        frag right, rest;
        if constexpr (form::warps > 1) {
            right = shared.exchange[0][n][lane];
            if (SPLIT) rest = shared.exchange[1][n][lane];
        } else {
            right = high[n];
            if (SPLIT) rest = low[n];
        }
#pragma unroll
        for (int m = 0; m < form::tiles; m++) {
            mma_t<M>(A[m][n], negate(high[m]), right);
            if (SPLIT) {
                mma_t<M>(A[m][n], negate(high[m]), rest);
                mma_t<M>(A[m][n], negate(low[m]), right);
            }
        }
    }
}

/* The first column tile to the end; with one warp the first row tile too, so that the next pivot is first again. Moves
 * cost less than the instruction fetches of a loop unrolled over pivots that runs once. */
template <int DK> __device__ __forceinline__ void rotate(matrix_part<DK> &A)
{
    using form = penalty_shape<DK>;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float first[form::tiles];
#pragma unroll
        for (int m = 0; m < form::tiles; m++) {
            first[m] = A[m][0][i / 4][i % 4];
#pragma unroll
            for (int n = 0; n + 1 < form::KT; n++) A[m][n][i / 4][i % 4] = A[m][n + 1][i / 4][i % 4];
            A[m][form::KT - 1][i / 4][i % 4] = first[m];
        }
        if (form::warps == 1)
#pragma unroll
            for (int n = 0; n < form::KT; n++) {
                const float top = A[0][n][i / 4][i % 4];
#pragma unroll
                for (int m = 0; m + 1 < form::tiles; m++) A[m][n][i / 4][i % 4] = A[m + 1][n][i / 4][i % 4];
                A[form::tiles - 1][n][i / 4][i % 4] = top;
            }
    }
}

/* A -> -A^-1 by symmetric sweeps of 16 pivots: with W = L^-1 A_p for the pivot rows A_p, A_pp = L L^T, then rows and
 * columns p set to zero and W_p = -L^-1, the sweep is A -= W^T W, as in the recursion. */
template <int DK>
__device__ __forceinline__ void sweep(matrix_part<DK> &A, penalty_shared<DK> &shared, int warp, int lane)
{
    using form = penalty_shape<DK>;
    using M = bf16_arithmetic;
    constexpr int T = form::tiles;
#pragma unroll 1
    for (int p = 0; p < form::KT; p++) {
        /* the pivot is column tile 0, of row tile `mine` of its owner */
        const bool owner = warp == p / T;
        const int mine = form::warps == 1 ? 0 : p % T;
#pragma unroll
        for (int m = 0; m < T; m++)
            if (owner && m == mine) small_store(shared.pivot, A[m][0], lane);
        segment_barrier<DK>();
        float pivot[2][4], inverse[2][4], transposed[2][4];
        small_load(pivot, shared.pivot, lane);
        small_store(shared.own[warp], pivot, lane);
        small_invert<false>(shared.own[warp], lane);
        small_load(inverse, shared.own[warp], lane);
        small_load_transposed(transposed, shared.own[warp], lane);
        const frag Lh = pack_tile<M>(inverse[0], inverse[1]), Ll = pack_rest<M>(inverse[0], inverse[1], Lh);
        frag high[T], low[T];
#pragma unroll
        for (int m = 0; m < T; m++) {
            const bool pivots = owner && m == mine;
            const frag Zh = pack_tile<M>(A[m][0][0], A[m][0][1]), Zl = pack_rest<M>(A[m][0][0], A[m][0][1], Zh);
            float w[2][4] = {};
            mma_t<M>(w, Zh, Lh);
            mma_t<M>(w, Zl, Lh);
            mma_t<M>(w, Zh, Ll);
#pragma unroll
            for (int i = 0; i < 8; i++) w[i / 4][i % 4] = pivots ? -transposed[i / 4][i % 4] : w[i / 4][i % 4];
            high[m] = pack_tile<M>(w[0], w[1]), low[m] = pack_rest<M>(w[0], w[1], high[m]);
            if (form::warps > 1) { /* rows of W by their place now: column tile n is tile p + n of the matrix */
                const int place = (warp * T + m - p + form::KT) % form::KT;
                shared.exchange[0][place][lane] = high[m], shared.exchange[1][place][lane] = low[m];
            }
#pragma unroll
            for (int n = 0; n < form::KT; n++)
#pragma unroll
                for (int i = 0; i < 8; i++) A[m][n][i / 4][i % 4] = n == 0 || pivots ? 0.0f : A[m][n][i / 4][i % 4];
        }
        segment_barrier<DK>();
        rank16<DK, M, true>(A, high, low, shared, lane);
        rotate<DK>(A);
    }
}

/* Sums over the warps of the segment, in order. */
template <int DK>
__device__ __forceinline__ void reduce_pair(float (&x)[2][4], float (&y)[2][4], penalty_shared<DK> &shared, int warp,
                                            int lane)
{
    using form = penalty_shape<DK>;
    if constexpr (form::warps > 1) {
        float4 *mine = (float4 *)shared.sums[warp][lane];
        mine[0] = make_float4(x[0][0], x[0][1], x[0][2], x[0][3]),
        mine[1] = make_float4(x[1][0], x[1][1], x[1][2], x[1][3]);
        mine[2] = make_float4(y[0][0], y[0][1], y[0][2], y[0][3]),
        mine[3] = make_float4(y[1][0], y[1][1], y[1][2], y[1][3]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) x[i / 4][i % 4] = y[i / 4][i % 4] = 0;
        for (int w = 0; w < form::warps; w++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i / 4][i % 4] += shared.sums[w][lane][i], y[i / 4][i % 4] += shared.sums[w][lane][8 + i];
    }
}

__device__ __forceinline__ frag scaled(frag f, __half2 by)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half2 h = __hmul2(*(const __half2 *)&f.x[i], by);
        f.x[i] = *(const uint32_t *)&h;
    }
    return f;
}

/* Sixteen tokens: their unit write directions to `out` (frags of this warp's columns), A advanced past them. */
template <int DK>
__device__ __forceinline__ void advance(matrix_part<DK> &A, const frag (&U)[penalty_shape<DK>::KT][32],
                                        const frag (&K)[penalty_shape<DK>::KT][32], frag *out,
                                        penalty_shared<DK> &shared, __half2 by, int warp, int lane)
{
    using form = penalty_shape<DK>;
    using M = f16_arithmetic;
    constexpr int T = form::tiles;
    const int first = warp * T, g = lane / 4, t = lane % 4;
    frag Z[T], W[T];
    {
        float z[T][2][4] = {};
#pragma unroll
        for (int k = 0; k < form::KT; k++) {
            const frag u = scaled(U[k][lane], by);
#pragma unroll
            for (int m = 0; m < T; m++) mma_t<M>(z[m], u, pack_tile<M>(A[m][k][0], A[m][k][1]));
        }
#pragma unroll
        for (int m = 0; m < T; m++) Z[m] = pack_tile<M>(z[m][0], z[m][1]);
    }
    float G[2][4] = {}, P[2][4] = {};
#pragma unroll
    for (int m = 0; m < T; m++) {
        mma_t<M>(G, Z[m], scaled(U[first + m][lane], by));
        mma_t<M>(P, K[first + m][lane], Z[m]);
    }
    reduce_pair<DK>(G, P, shared, warp, lane);
    if (g / 2 == t) {
        if (g % 2)
            G[0][1] += 1, G[1][3] += 1;
        else
            G[0][0] += 1, G[1][2] += 1;
    }
    float *own = shared.own[warp];
    small_store(own, G, lane);
    small_invert<false>(own, lane);
    small_load(G, own, lane);
    const frag L = pack_tile<M>(G[0], G[1]);
#pragma unroll
    for (int m = 0; m < T; m++) {
        float w[2][4] = {};
        mma_t<M>(w, transpose(Z[m]), L);
        W[m] = pack_tile<M>(w[0], w[1]);
        if (form::warps > 1) shared.exchange[0][first + m][lane] = W[m];
    }
    float KW[2][4] = {};
    mma_t<M>(KW, pack_tile<M>(P[0], P[1]), L);
    if (2 * t > g) KW[0][0] = KW[1][2] = 0; /* a later direction than the key's own token */
    if (2 * t + 1 > g) KW[0][1] = KW[1][3] = 0;
    KW[1][0] = KW[1][1] = 0;
    const frag left = negate(pack_tile<M>(KW[0], KW[1]));
    float x[T][2][4] = {}, upper = 0, lower = 0;
#pragma unroll
    for (int k = 0; k < form::KT; k++) {
        const frag key = K[k][lane];
#pragma unroll
        for (int m = 0; m < T; m++) mma_t<M>(x[m], key, pack_tile<M>(A[m][k][0], A[m][k][1]));
    }
#pragma unroll
    for (int m = 0; m < T; m++) {
        mma_t<M>(x[m], left, W[m]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            upper = fmaf(x[m][h][0], x[m][h][0], fmaf(x[m][h][1], x[m][h][1], upper));
            lower = fmaf(x[m][h][2], x[m][h][2], fmaf(x[m][h][3], x[m][h][3], lower));
        }
    }
    upper = group_sum(upper, 4), lower = group_sum(lower, 4);
    if constexpr (form::warps > 1) {
        if (t == 0) shared.squares[warp][g] = upper, shared.squares[warp][g + 8] = lower;
        __syncthreads();
        upper = lower = 0;
        for (int w = 0; w < form::warps; w++) upper += shared.squares[w][g], lower += shared.squares[w][g + 8];
    }
    upper = upper == 0 ? 0.0f : rsqrtf(upper), lower = lower == 0 ? 0.0f : rsqrtf(lower);
#pragma unroll
    for (int m = 0; m < T; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) x[m][h][0] *= upper, x[m][h][1] *= upper, x[m][h][2] *= lower, x[m][h][3] *= lower;
        out[(first + m) * 32 + lane] = pack_tile<M>(x[m][0], x[m][1]);
    }
    rank16<DK, M, false>(A, W, W, shared, lane);
}

template <int DK>
__device__ __forceinline__ void fetch(penalty_shared<DK> &shared, const arguments &a, int64_t at, int step, int warp,
                                      int lane)
{
    using form = penalty_shape<DK>;
    const int64_t from = at * sizes<DK>::tiles + (int64_t)(step % CT) * form::KT * 32 + lane;
#pragma unroll
    for (int k = 0; k < form::tiles; k++) {
        const int tile = warp * form::tiles + k;
        copy_async(&shared.input[step & 1][0][tile][lane], a.U + from + tile * 32);
        copy_async(&shared.input[step & 1][1][tile][lane], a.K + from + tile * 32);
    }
    copy_commit();
}

template <int DK>
__global__ void __launch_bounds__(penalty_shape<DK>::threads, 2) penalty(const __grid_constant__ arguments a)
{
    using form = penalty_shape<DK>;
    extern __shared__ __align__(16) unsigned char raw[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % form::warps;
    const int place = (int)threadIdx.x / 32 / form::warps, first = warp * form::tiles;
    const int64_t index = (int64_t)blockIdx.x * form::segments + place;
    const int64_t places = a.segments + (a.A_end ? 1 : 0); /* one more, of no tokens, for the end state's A */
    if (index >= a.heads * places) return;                 /* whole segments only: no barrier is missed */
    const int64_t head = index / places, segment = index % places, chunk0 = segment * a.per_segment;
    const int64_t left = a.chunks - chunk0, count = segment == a.segments  ? 0
                                                    : left < a.per_segment ? left
                                                                           : a.per_segment;
    penalty_shared<DK> &shared = ((penalty_shared<DK> *)raw)[place];
    const int64_t at = head * a.stride + chunk0;
    if (count > 0) fetch<DK>(shared, a, at, 0, warp, lane);
    matrix_part<DK> A;
    const float4 *M =
        (count > 0 ? a.M + (head * a.segments + segment) * sizes<DK>::matrix : a.M_carry + head * sizes<DK>::matrix) +
        lane;
#pragma unroll
    for (int m = 0; m < form::tiles; m++)
#pragma unroll
        for (int n = 0; n < DK / 8; n++) {
            const float4 x = M[((first + m) * (DK / 8) + n) * 32];
            float(&c)[4] = A[m][n / 2][n % 2];
            c[0] = x.x, c[1] = x.y, c[2] = x.z, c[3] = x.w;
        }
    const float mu = power_above(largest_diagonal<DK>(A, shared, first, warp, lane));
    const auto scale_all = [&](float by) {
#pragma unroll
        for (int m = 0; m < form::tiles; m++)
#pragma unroll
            for (int n = 0; n < form::KT; n++)
#pragma unroll
                for (int i = 0; i < 8; i++) A[m][n][i / 4][i % 4] *= by;
    };
    scale_all(1.0f / mu);
    sweep<DK>(A, shared, warp, lane);
    if (count == 0) {
        const int g = lane / 4, t = lane % 4;
        const float back = first_bad(a, head) < a.T ? NAN : -(float)a.dk / mu;
#pragma unroll
        for (int m = 0; m < form::tiles; m++)
#pragma unroll
            for (int n = 0; n < form::KT; n++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int r = 16 * (first + m) + g + 8 * (i % 4 / 2), c = 16 * n + 8 * (i / 4) + 2 * t + i % 2;
                    if (r < a.dk && c < a.dk) a.A_end[(head * a.dk + r) * a.dk + c] = A[m][n][i / 4][i % 4] * back;
                }
        return;
    }
    /* A sigma, with sigma a power of four that brings the diagonal to 1, and u / sqrt(sigma) */
    const float top = largest_diagonal<DK>(A, shared, first, warp, lane) / mu;
    int exponent = top > 0 ? ilogbf(top) + 1 : 0;
    exponent += exponent & 1;
    exponent = exponent < -40 ? -40 : exponent > 30 ? 30 : exponent;
    const float sigma = exp2f((float)-exponent);
    scale_all(-sigma / mu);
    const __half2 by = __float2half2_rn(exp2f(0.5f * (float)exponent));
    const int steps = (int)count * CT;
    for (int step = 0; step < steps; step++) {
        const int64_t here = at + step / CT;
        copy_wait<0>();
        segment_barrier<DK>();
        if (step + 1 < steps) fetch<DK>(shared, a, at + (step + 1) / CT, step + 1, warp, lane);
        frag *out = a.X + here * sizes<DK>::tiles + (int64_t)(step % CT) * form::KT * 32;
        advance<DK>(A, shared.input[step & 1][0], shared.input[step & 1][1], out, shared, by, warp, lane);
    }
}
} /* namespace chunked */

#endif
