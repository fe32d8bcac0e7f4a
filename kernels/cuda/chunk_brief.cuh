/* Chunks in one kernel with their walk (chunk.cuh), of vla at dk to 64: the first blocks walk, one for sixteen rows of
 * S of a head (chunk_brief_walk.cuh); the others are chunks, in order, a block each.
 *
 * What needs no a comes first: keys, values, queries and the row sums of Q K^T. Then N, whose tiles are dealt to warps,
 * with its rows multiplied by the inverses of their diagonal tiles, so that in R_i = N_ii^-1 Y_i - sum_k<i (N_ii^-1
 * N_ik) R_k, Y being K or V, one product follows R_(i-1). Each warp takes sixteen columns of K and of V through that,
 * and to D and B, which a flag says are there. Then P, Qeff = Q - P Rk and O_loc = P Rv; O when S is there. Tiles in
 * shared memory are frags. Who waits for whom and why nobody waits forever: chunk_walk.cuh. */
#ifndef VLA_CUDA_CHUNK_BRIEF_CUH
#define VLA_CUDA_CHUNK_BRIEF_CUH
#include "kernels/cuda/chunk_brief_walk.cuh"
#include "kernels/cuda/chunk_map.cuh"

namespace chunked::brief
{
template <int DK> struct shape {
    static constexpr int warps = DK / 16, threads = 32 * warps, blocks = 5; /* a multiprocessor */
};
template <int DK> struct chunk_shared {
    static constexpr int PITCH = DK + 8;
    frag K[CT][DK / 16][32];             /* unit keys, then a^T: 16 of dk x 16 tokens in the place of a's */
    frag X[CT][DK / 16][32];             /* a */
    frag N[LOWER][32];                   /* right operands: the inverse on the diagonal, -N_ii^-1 N_ij below; then P */
    float part[CT][C];                   /* sums over a column tile of rows of Q K^T, weighted */
    float weight[C], query[C], start[C]; /* |kf|, what q was divided by, n.q before the chunk */
    float n[DK];                         /* sum of kf before the chunk */
    float scale[8];                      /* of V, sixteen columns */
    __half Q[C * PITCH];                 /* queries, then Qeff, bfloat16 */
    int salt;
    __device__ __forceinline__ __half *query_at(int row, int column) { return Q + row * PITCH + column; }
};
/* V^T follows, [dvp/16][CT][32], then Rv as right operands */

template <int DK> size_t bytes(int dvp)
{
    const size_t chunk = sizeof(chunk_shared<DK>) + (size_t)(dvp / 16 * CT * 32) * sizeof(frag),
                 walk = sizeof(walk_shared<DK>);
    return chunk > walk ? chunk : walk;
}

/* Write directions as they are wanted, by `threads` threads. */
template <int DK>
__device__ __noinline__ void store_alpha(const arguments &a, const frag (&X)[CT][DK / 16][32], int64_t row0, int left,
                                         int thread, int threads)
{
#pragma unroll 1
    for (int i = thread; i < left * a.dk; i += threads) {
        const int r = i / a.dk, c = i % a.dk, owner = r % 8 * 4 + c % 8 / 2, word = r % 16 / 8 + c % 16 / 8 * 2;
        const __half *from = (const __half *)&X[r / 16][c / 16][owner].x[word];
        store_element(a.alpha, a.dtype, (row0 + r) * a.dk + c, __half2float(from[c % 2]));
    }
}

/* R_i of sixteen columns, transposed, as it comes out of the products. N: the address of this lane's part of s.N; by
 * address, as all of it would not fit into registers. */
__device__ __forceinline__ void substitute(float (&y)[2][4], const frag (&R)[CT], uint32_t N, int i)
{
    constexpr uint32_t TILE = 32 * sizeof(frag);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < 4; n++) y[h][n] = 0;
    mma_r<f16_arithmetic>(y, R[i], load_frag(N + lower(i, i) * TILE));
#pragma unroll
    for (int k = 0; k < i; k++) mma_r<f16_arithmetic>(y, R[k], load_frag(N + lower(i, k) * TILE));
}

/* Tiles of tril(Q R^T), R's frags in shared memory: take(tile, i, j), dealt to warps. */
template <int DK, typename F>
__device__ __forceinline__ void query_products(const chunk_shared<DK> &s, const frag (&R)[CT][DK / 16][32], int warp,
                                               int lane, F &&take)
{
    constexpr int KT = DK / 16, PITCH = chunk_shared<DK>::PITCH;
    const uint32_t all_Q = shared_address(s.Q) + plain_offset(PITCH, lane);
#pragma unroll 1
    for (int e = warp; e < LOWER; e += KT) {
        const int i = (e > 0) + (e > 2) + (e > 5), j = e - lower(i, 0);
        float c[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++)
            mma_t<f16_arithmetic>(c, load_plain(all_Q + (uint32_t)(i * 32 * PITCH + 32 * k)), R[j][k][lane]);
        if (i == j) keep_lower(c, lane);
        take(c, i, j);
    }
}

/* N of the chunk. `row`: of this warp. Ends with a barrier. */
template <int DK> __device__ __forceinline__ void make_N(chunk_shared<DK> &s, int row, int lane)
{
    using M = f16_arithmetic;
    constexpr int KT = DK / 16;
    /* below the diagonal two tiles a warp: the first two, the next two, one, one */
    const int e[2] = {row < 2 ? 2 * row : 2 + row, row < 2 ? 2 * row + 1 : 2 + row};
    float c[2][4] = {};
    frag below[2];
    int at[2], left[2];
#pragma unroll
    for (int k = 0; k < KT; k++) mma_t<M>(c, s.K[row][k][lane], s.X[row][k][lane]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = 1 + (e[h] > 0) + (e[h] > 2), j = e[h] - i * (i - 1) / 2;
        float n[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) mma_t<M>(n, s.X[j][k][lane], s.K[i][k][lane]); /* N_ij^T */
        below[h] = pack_tile<M>(n[0], n[1]), at[h] = lower(i, j), left[h] = lower(i, i);
    }
    s.N[lower(row, row)][lane] = right_order(invert_unit_lower(c, lane));
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y[2][4] = {};
        mma_t<M>(y, negate(right_order(s.N[left[h]][lane])), below[h]);
        s.N[at[h]][lane] = right_order(pack_tile<M>(y[0], y[1]));
    }
    __syncthreads();
}

__device__ __forceinline__ frag scaled_tile(const float (&y)[2][4], float by)
{
    float x[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = y[i / 4][i % 4] * by;
    return pack_tile<bf16_arithmetic>(x[0], x[1]);
}

template <int DK>
__global__ void __launch_bounds__(shape<DK>::threads, shape<DK>::blocks) chunks(const __grid_constant__ arguments a)
{
    using M = f16_arithmetic;
    using form = shape<DK>;
    using rows = map_rows<DK>;
    constexpr int KT = DK / 16, WARPS = form::warps, TILES = CT * KT / WARPS, PITCH = chunk_shared<DK>::PITCH,
                  ROWS = 32 * PITCH;
    extern __shared__ __align__(16) unsigned char raw[];
    /* of every at_once heads the walks, then the chunks in order */
    const unsigned each = (unsigned)a.at_once * (unsigned)(a.walks + a.chunks), group = blockIdx.x / each,
                   head0 = group * (unsigned)a.at_once, more = (unsigned)a.heads - head0,
                   heads = more < (unsigned)a.at_once ? more : (unsigned)a.at_once, walks = heads * (unsigned)a.walks;
    unsigned place = blockIdx.x - group * each;
    if (place < walks) {
        walk<DK>(*(walk_shared<DK> *)raw, a, head0 + place / (unsigned)a.walks, (int)(place % (unsigned)a.walks));
        return;
    }
    place -= walks;
    chunk_shared<DK> &s = *(chunk_shared<DK> *)raw;
    frag(*const V)[CT][32] = (frag(*)[CT][32])(raw + sizeof(chunk_shared<DK>));
    const int64_t head = head0 + place % heads, chunk = place / heads, at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C, row0 = head * a.T + token;
    int *const ready = a.ready + head * (a.stride + 1) + chunk;
    const int left = (int)(a.T - token < C ? a.T - token : C), strips = a.dvp / 16;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    if (threadIdx.x == 0) { /* one warp has two tiles of N more than another: not the same one in every block */
        unsigned slot;
        asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot));
        s.salt = (int)slot / WARPS;
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) /* of a kernel before the one before, as n and |kf| */
        copy_async(&s.K[0][0][0] + threadIdx.x + i * form::threads,
                   a.K + at * sizes<DK>::tiles + threadIdx.x + i * form::threads);
    if (a.ratio) {
        if (threadIdx.x < DK) s.n[threadIdx.x] = __ldcg(a.n + at * DK + threadIdx.x);
        if (threadIdx.x < C) s.weight[threadIdx.x] = __ldcg(a.norm + at * C + threadIdx.x);
    }
    fetch_queries<DK, rows>(s, a, row0, left); /* with its commit */
    int bad = C;
    four_values v = {};
    if (warp < strips) fetch_values(v, a, row0, left, warp, lane);
    if (chunk + 1 < a.chunks) { /* see chunk_walk.cuh */
        frag *next = state_of<DK>(a, at + 1, 0);
        for (int i = (int)threadIdx.x; i < strips * (int)sizes<DK>::strip; i += form::threads)
            store_relaxed(next + i, make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN));
    }
#pragma unroll 1
    for (int strip = warp; strip < strips; strip += WARPS) {
        frag R[CT];
        if (strip != warp) fetch_values(v, a, row0, left, strip, lane);
        const float scale = take_values(R, v, a, bad, lane);
        if (lane == 0) s.scale[strip] = scale;
#pragma unroll
        for (int i = 0; i < CT; i++) V[strip][i][lane] = R[i];
    }
    __syncthreads(); /* n is there */
    float n[8];
    load_floats8(n, &s.n[rows::column()]);
    put_queries<rows, false>(s, n, a, left); /* and K's copies are waited for */
    __syncthreads();
    if (a.ratio) /* row sums of Q K^T */
        query_products<DK>(s, s.K, warp, lane,
                           [&](const float(&c)[2][4], int i, int j) { weigh_rows(s, c, i, j, lane); });
    grid_wait();
#pragma unroll
    for (int i = 0; i < TILES; i++)
        copy_async(&s.X[0][0][0] + threadIdx.x + i * form::threads,
                   a.X + at * sizes<DK>::tiles + threadIdx.x + i * form::threads);
    copy_commit();
    if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
    copy_wait<0>();
    __syncthreads();
    make_N<DK>(s, (warp + s.salt) % CT, lane);
    frag RK[CT]; /* -Rk^T of this warp's sixteen columns */
#pragma unroll
    for (int i = 0; i < CT; i++) {
        RK[i] = negate(transpose(s.K[i][warp][lane]));
        s.K[i][warp][lane] = transpose(s.X[i][warp][lane]); /* this warp's own tiles, since N is there */
    }
    if (a.alpha) store_alpha<DK>(a, s.X, row0, left, (int)threadIdx.x, form::threads);
    const int64_t first = first_bad(a, head) - token;
    const int finite = first < C ? (first > 0 ? (int)first : 0) : C; /* what is not goes on by the state */
    const uint32_t N = shared_address(&s.N[0][lane]);
#pragma unroll
    for (int i = 0; i < CT; i++) {
        float y[2][4];
        substitute(y, RK, N, i);
        RK[i] = pack_tile<M>(y[0], y[1]);
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < KT; m++) {
        float c[2][4] = {};
#pragma unroll
        for (int i = 0; i < CT; i++) mma_t<M>(c, s.K[i][m][lane], RK[i]);
        map_of<DK>(a, at)[(m * KT + warp) * 32 + lane] = pack_tile<bf16_arithmetic>(c[0], c[1]);
    }
#pragma unroll 1
    for (int strip = warp; strip < strips; strip += WARPS) {
        frag R[CT];
        const float scale = finite < C ? NAN : s.scale[strip];
#pragma unroll
        for (int i = 0; i < CT; i++) R[i] = V[strip][i][lane];
#pragma unroll
        for (int i = 0; i < CT; i++) {
            float y[2][4];
            substitute(y, R, N, i);
            R[i] = pack_tile<M>(y[0], y[1]);
            V[strip][i][lane] = right_order(R[i]);
        }
        frag *const to = added_of<DK>(a, at, strip) + lane;
#pragma unroll
        for (int m = 0; m < KT; m++) {
            float c[2][4] = {};
#pragma unroll
            for (int i = 0; i < CT; i++) mma_t<M>(c, R[i], s.K[i][m][lane]);
            to[m * 32] = right_order(scaled_tile(c, scale));
        }
    }
    __syncthreads();
    if (threadIdx.x == 32 * (WARPS - 1)) fence_copies(), add_release(ready + 1, 1);
    query_products<DK>(s, s.X, warp, lane, [&](const float(&c)[2][4], int i, int j) {
        s.N[lower(i, j)][lane] = pack_tile<M>(c[0], c[1]); /* P */
    });
    __syncthreads();
    const uint32_t Q = shared_address(s.Q) + plain_offset(PITCH, lane);
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4];
        unpack_tile<M>(c, load_plain(Q + m * ROWS + 32 * warp));
#pragma unroll
        for (int i = 0; i <= m; i++) mma_t<M>(c, s.N[lower(m, i)][lane], RK[i]);
        store_frag<false>(Q + m * ROWS + 32 * warp, pack_tile<bf16_arithmetic>(c[0], c[1]));
    }
    if (threadIdx.x == 0) /* UNWRITTEN is there, or of the first chunk the state */
        while (load_acquire(ready) < (chunk == 0 ? a.walks : 1)) __nanosleep(64);
    __syncthreads();
#pragma unroll 1
    for (int strip = warp; strip < strips; strip += WARPS) {
        float o[CT][2][4] = {};
#pragma unroll
        for (int i = 0; i < CT; i++) {
            const frag right = V[strip][i][lane];
#pragma unroll
            for (int m = i; m < CT; m++) mma_r<M>(o[m], s.N[lower(m, i)][lane], right);
        }
        const float scale = s.scale[strip];
#pragma unroll
        for (int m = 0; m < CT; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= scale;
        uint4 S[KT];
        const frag *const state = state_of<DK>(a, at, strip);
        await_state(S, state, last_of_state<KT>(state), lane);
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int m = 0; m < CT; m++) {
                const frag q = load_plain(Q + m * ROWS + 32 * k);
                mma(bf16_arithmetic{}, o[m][0], q.x, S[k].x, S[k].y);
                mma(bf16_arithmetic{}, o[m][1], q.x, S[k].z, S[k].w);
            }
        float factor[2 * CT];
        row_factors(factor, s, a.ratio, lane);
#pragma unroll
        for (int m = 0; m < CT; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= factor[2 * m + i % 4 / 2];
        store_columns(o, a, row0, left, finite, strip, lane / 4, lane % 4);
    }
}
} /* namespace chunked::brief */

#endif
