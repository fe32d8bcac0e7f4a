/* A chunk in one kernel with the walk (chunk.cuh), where chunks a head are few and dk = 64: the first blocks walk, one
 * for sixteen rows of S of a head (chunk_state.cuh); the others are chunks, in order, a block each.
 *
 * What needs no a comes first: keys, values, queries and the row sums of Q K^T. Then N, whose tiles are dealt to warps,
 * with its rows multiplied by the inverses of their diagonal tiles, so that in R_i = N_ii^-1 X_i - sum_k<i (N_ii^-1
 * N_ik) R_k one product follows R_(i-1). Each warp takes sixteen columns of K and of V through that, and to D and B. A
 * fifth warp says by a flag that they are there, and waits for the state's. Then P, Qeff = Q - P Rk and O_loc = P Rv; O
 * when S is there. Who waits for whom and why nobody waits forever: chunk_walk.cuh. */
#ifndef VLA_CUDA_CHUNK_SHORT_CUH
#define VLA_CUDA_CHUNK_SHORT_CUH
#include "kernels/cuda/chunk_output.cuh"
#include "kernels/cuda/chunk_solve.cuh"

namespace chunked::back
{
template <int DK> struct short_shape {
    static constexpr int warps = DK / 16, workers = 32 * warps, threads = workers + 32, blocks = 5; /* a multiprocessor */
};
template <int DK> struct short_shared {
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
};
/* V^T follows, [dvp/16][CT][32], then Rv as right operands */

template <int DK> size_t short_bytes(int dvp)
{
    const size_t chunk = sizeof(short_shared<DK>) + (size_t)(dvp / 16 * CT * 32) * sizeof(frag),
                 walk = sizeof(state_shared<DK>);
    return chunk > walk ? chunk : walk;
}

/* Row sums of Q K^T. */
template <int DK> __device__ __forceinline__ void sum_scores(short_shared<DK> &s, int warp, int lane)
{
    constexpr int KT = DK / 16, PITCH = short_shared<DK>::PITCH;
    const uint32_t all_Q = shared_address(s.Q) + plain_offset(PITCH, lane);
#pragma unroll 1
    for (int e = warp; e < LOWER; e += KT) {
        const int i = (e > 0) + (e > 2) + (e > 5), j = e - lower(i, 0);
        float d[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++)
            mma_t<f16_arithmetic>(d, load_plain(all_Q + (uint32_t)(i * 32 * PITCH + 32 * k)), s.K[j][k][lane]);
        if (i == j) keep_lower(d, lane);
        weigh_rows(s, d, i, j, lane);
    }
}

/* Tiles of P. */
template <int DK> __device__ __forceinline__ void make_P(short_shared<DK> &s, int warp, int lane)
{
    constexpr int KT = DK / 16, PITCH = short_shared<DK>::PITCH;
    const uint32_t all_Q = shared_address(s.Q) + plain_offset(PITCH, lane);
#pragma unroll 1
    for (int e = warp; e < LOWER; e += KT) {
        const int i = (e > 0) + (e > 2) + (e > 5), j = e - lower(i, 0);
        float c[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++)
            mma_t<f16_arithmetic>(c, load_plain(all_Q + (uint32_t)(i * 32 * PITCH + 32 * k)), s.X[j][k][lane]);
        if (i == j) keep_lower(c, lane);
        s.N[e][lane] = pack_tile<f16_arithmetic>(c[0], c[1]);
    }
}

/* N of the chunk. `row`: of this warp. Ends with a barrier. */
template <int DK> __device__ __forceinline__ void make_N(short_shared<DK> &s, int row, int lane)
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
    named_barrier<short_shape<DK>::workers>(1);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y[2][4] = {};
        mma_t<M>(y, negate(right_order(s.N[left[h]][lane])), below[h]);
        s.N[at[h]][lane] = right_order(pack_tile<M>(y[0], y[1]));
    }
    named_barrier<short_shape<DK>::workers>(1);
}

/* R times a: four tiles of D or B. */
template <int DK> __device__ __forceinline__ void product_a(float (&c)[2][4], const short_shared<DK> &s, const frag (&R)[CT],
                                                            int m, int lane)
{
#pragma unroll
    for (int n = 0; n < 8; n++) c[n / 4][n % 4] = 0;
#pragma unroll
    for (int i = 0; i < CT; i++) mma_t<f16_arithmetic>(c, R[i], s.K[i][m][lane]);
}

template <vla_op OP, int DK>
__global__ void __launch_bounds__(short_shape<DK>::threads, short_shape<DK>::blocks)
    run_short(const __grid_constant__ arguments a)
{
    using M = f16_arithmetic;
    using form = short_shape<DK>;
    using rows = map_rows<DK>;
    constexpr int KT = DK / 16, WARPS = form::warps, TILES = CT * KT / WARPS, PITCH = short_shared<DK>::PITCH,
                  ROWS = 32 * PITCH;
    extern __shared__ __align__(16) unsigned char raw[];
    /* of every at_once heads the walks, then the chunks in order */
    const unsigned each = (unsigned)a.at_once * (unsigned)(a.walks + a.chunks), group = blockIdx.x / each,
                   head0 = group * (unsigned)a.at_once, more = (unsigned)a.heads - head0,
                   heads = more < (unsigned)a.at_once ? more : (unsigned)a.at_once, walks = heads * (unsigned)a.walks;
    unsigned place = blockIdx.x - group * each;
    grid_release(a.early);
    if (place < walks) {
        grid_wait();
        walk_state<DK, true>(*(state_shared<DK> *)raw, a, head0 + place / (unsigned)a.walks,
                       (int)(place % (unsigned)a.walks));
        return;
    }
    place -= walks;
    short_shared<DK> &s = *(short_shared<DK> *)raw;
    frag(*const V)[CT][32] = (frag(*)[CT][32])(raw + sizeof(short_shared<DK>));
    const int64_t head = head0 + place % heads, chunk = place / heads, at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C, row0 = head * a.T + token;
    int *const ready = a.ready + head * (a.stride + 1) + chunk;
    const int left = (int)(a.T - token < C ? a.T - token : C), strips = a.dvp / 16;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    if (warp == WARPS) {
        grid_wait();
        meet<form::threads>(2);
        if (lane == 0) {
            fence_copies(), add_release(ready + 1, 1);
            while (load_acquire(ready) < (chunk == 0 ? a.walks : 1)) __nanosleep(64);
        }
        __syncwarp();
        meet_later<form::threads>(3);
        return;
    }
    if (threadIdx.x == 0) { /* the rows of N differ in length: other blocks have other warps for them */
        unsigned slot;
        asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot));
        s.salt = (int)slot / (WARPS + 1);
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) /* of a kernel before the one before */
        copy_async(&s.K[0][0][0] + threadIdx.x + i * form::workers,
                   a.K + at * sizes<DK>::tiles + threadIdx.x + i * form::workers);
    fetch_queries<DK, rows>(s, a, row0, left); /* with its commit */
    int bad = C;
    {
        four_values v = {};
        if (warp < strips) fetch_values(v, a, row0, left, warp, lane);
        if (a.ratio) {
            if (threadIdx.x < DK) s.n[threadIdx.x] = __ldcg(a.n + at * DK + threadIdx.x);
            if (threadIdx.x < C) s.weight[threadIdx.x] = __ldcg(a.norm + at * C + threadIdx.x);
        }
        if (chunk + 1 < a.chunks) { /* see chunk_walk.cuh */
            frag *next = state_of<DK>(a, at + 1, 0);
            for (int i = (int)threadIdx.x; i < strips * (int)sizes<DK>::strip; i += form::workers)
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
    }
    named_barrier<form::workers>(1); /* n is there */
    put_queries<rows>(s, a, left); /* and K's copies are waited for */
    named_barrier<form::workers>(1);
    if (a.ratio) sum_scores<DK>(s, warp, lane);
    grid_wait();
#pragma unroll
    for (int i = 0; i < TILES; i++)
        copy_async(&s.X[0][0][0] + threadIdx.x + i * form::workers,
                   a.X + at * sizes<DK>::tiles + threadIdx.x + i * form::workers);
    copy_commit();
    if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
    copy_wait<0>();
    named_barrier<form::workers>(1);
    make_N<DK>(s, (warp + s.salt) % CT, lane);
    frag RK[CT];
#pragma unroll
    for (int i = 0; i < CT; i++) {
        RK[i] = negate(transpose(s.K[i][warp][lane]));
        s.K[i][warp][lane] = transpose(s.X[i][warp][lane]); /* this warp's own tiles, since N is there */
    }
    if (a.alpha) store_alpha<DK>(a, s.X, row0, left, (int)threadIdx.x, form::workers);
    const uint32_t N = shared_address(&s.N[0][lane]);
    const int64_t first = first_bad(a, head) - token;
    const int finite = first < C ? (first > 0 ? (int)first : 0) : C; /* what is not goes on by the state */
#pragma unroll
    for (int i = 0; i < CT; i++) {
        float y[2][4];
        substitute(y, RK, N, i);
        RK[i] = pack_tile<M>(y[0], y[1]);
    }
    named_barrier<form::workers>(1);
#pragma unroll
    for (int m = 0; m < KT; m++) {
        float c[2][4];
        product_a<DK>(c, s, RK, m, lane);
        solved_of<DK>(a, at)->walk.D[m][warp][lane] = turned_tile(scaled_tile(c, 1));
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
        frag *const start = start_of<DK>(a, at, strip) + lane;
#pragma unroll
        for (int m = 0; m < KT; m++) {
            float c[2][4];
            product_a<DK>(c, s, R, m, lane);
            start[m * 32] = scaled_tile(c, scale);
        }
    }
    meet_later<form::threads>(2);
    named_barrier<form::workers>(1);
    make_P<DK>(s, warp, lane);
    named_barrier<form::workers>(1);
    const uint32_t Q = shared_address(s.Q) + plain_offset(PITCH, lane);
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4];
        unpack_tile<M>(c, load_plain(Q + m * ROWS + 32 * warp));
#pragma unroll
        for (int i = 0; i <= m; i++) mma_t<M>(c, s.N[lower(m, i)][lane], RK[i]);
        store_frag<false>(Q + m * ROWS + 32 * warp, pack_tile<bf16_arithmetic>(c[0], c[1]));
    }
    named_barrier<form::workers>(1);
    bool met = false;
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
        if (!met) meet<form::threads>(3);
        met = true;
        uint4 S[KT];
        await(S, state_of<DK>(a, at, strip) + lane);
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int m = 0; m < CT; m++) {
                const frag q = load_plain(Q + m * ROWS + 32 * k);
                mma(bf16_arithmetic{}, o[m][0], q.x, S[k].x, S[k].z);
                mma(bf16_arithmetic{}, o[m][1], q.x, S[k].y, S[k].w);
            }
        float factor[2 * CT];
        row_factors(factor, s, a.ratio, lane);
#pragma unroll
        for (int m = 0; m < CT; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= factor[2 * m + i % 4 / 2];
        store_columns(o, a, row0, left, finite, strip, lane / 4, lane % 4);
    }
    if (!met) meet<form::threads>(3);
}
} /* namespace chunked::back */

#endif
