/* output of the chunkwise forms (chunk.cuh), where chunks a head are few: O = f ((Q - P Rk) S^T + P Rv), P = tril(Q a^T), a
 * block a chunk.
 * It runs beside state and waits for S before the chunk, word by word.
 *
 * Keys and write directions arrive as frags by bulk copies, right operands as they are; queries are made meanwhile. Tiles
 * of P and of Q K^T, whose weighted row sums the ratio takes, are dealt to warps. Then each warp makes sixteen columns of
 * O: S goes from memory straight to registers; what is multiplied with S is left operands in shared memory. */
#ifndef VLA_CUDA_CHUNK_OUTPUT_CUH
#define VLA_CUDA_CHUNK_OUTPUT_CUH
#include "kernels/cuda/chunk_apart_map.cuh"
#include "kernels/cuda/chunk_state.cuh"

namespace chunked::back
{
template <int DK> struct output_shape {
    static constexpr int warps = DK / 16, threads = 32 * warps, blocks = DK == 64 ? 4 : 2; /* a multiprocessor */
};
template <int DK> struct output_shared {
    static constexpr int PITCH = DK + 8;
    frag X[CT][DK / 16][32];
    frag K[CT][DK / 16][32]; /* then Q - P Rk, left operands, bfloat16 */
    frag P[LOWER][32];       /* left operands */
    float part[CT][C];                   /* sums over a column tile of rows of Q K^T, weighted */
    float weight[C], query[C], start[C]; /* |kf|, what q was divided by, n.q before the chunk */
    __half Q[C * PITCH];
    uint64_t full; /* X and K are there */
};
template <vla_op OP, int DK> size_t output_bytes(int)
{
    return sizeof(output_shared<DK>);
}

/* Tiles P_ij = Q_i a_j^T, with the row sums of Q_i K_j^T for the ratio. */
template <int DK>
__device__ __forceinline__ void make_scores(output_shared<DK> &s, bool ratio, int warp, int lane)
{
    using M = f16_arithmetic;
    constexpr int KT = DK / 16, PITCH = output_shared<DK>::PITCH;
    const uint32_t all_Q = shared_address(s.Q) + plain_offset(PITCH, lane), all_X = shared_address(&s.X) + lane * 16,
                   all_K = shared_address(&s.K) + lane * 16;
#pragma unroll 1
    for (int e = warp; e < LOWER; e += output_shape<DK>::warps) {
        const int i = (e > 0) + (e > 2) + (e > 5), j = e - lower(i, 0);
        const uint32_t Q = all_Q + (uint32_t)(i * 32 * PITCH), X = all_X + (uint32_t)(j * KT * 512),
                       K = all_K + (uint32_t)(j * KT * 512);
        float c[2][4] = {}, d[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) {
            const frag q = load_plain(Q + 32 * k);
            mma_t<M>(c, q, load_frag(X + 512 * k));
            if (ratio) mma_t<M>(d, q, load_frag(K + 512 * k));
        }
        if (i == j) keep_lower(c, lane), keep_lower(d, lane);
        s.P[e][lane] = pack_tile<M>(c[0], c[1]);
        if (ratio) weigh_rows(s, d, i, j, lane);
    }
}

/* A state's words, once they are all written. */
template <int N> __device__ __forceinline__ void await(uint4 (&x)[N], const frag *from)
{
#pragma unroll 1
    for (;;) {
        bool all = true;
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = load_relaxed(from + k * 32);
#pragma unroll
        for (int k = 0; k < N; k++) all &= written(x[k]);
        if (__all_sync(FULL_WARP, all)) break;
    }
}

/* Sixteen of dk of Q - P Rk. */
template <int DK>
__device__ __forceinline__ void make_left(output_shared<DK> &s, const uint4 (&Rk)[CT], int key, int lane)
{
    constexpr int PITCH = output_shared<DK>::PITCH;
    const uint32_t Q = shared_address(s.Q) + plain_offset(PITCH, lane) + 32 * key;
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4];
        unpack_tile<f16_arithmetic>(c, load_plain(Q + m * 32 * PITCH));
#pragma unroll
        for (int i = 0; i <= m; i++) {
            const frag p = s.P[lower(m, i)][lane];
            mma(f16_arithmetic{}, c[0], p.x, Rk[i].x, Rk[i].y);
            mma(f16_arithmetic{}, c[1], p.x, Rk[i].z, Rk[i].w);
        }
        s.K[m][key][lane] = pack_tile<bf16_arithmetic>(c[0], c[1]);
    }
}

/* Four tiles of a record. */
__device__ __forceinline__ void load_tiles(uint4 (&x)[CT], const frag *from)
{
#pragma unroll
    for (int i = 0; i < CT; i++) x[i] = __ldcg((const uint4 *)(from + i * 32));
}

/* Sixteen columns of O. Rv: of these columns. */
template <int DK>
__device__ __forceinline__ void outputs(const output_shared<DK> &s, const uint4 (&Rv)[CT], float scale, const arguments &a,
                                        int64_t at, bool later, int64_t row0, int left, int finite,
                                        const float (&factor)[2 * CT], int strip, int lane)
{
    using M = bf16_arithmetic;
    constexpr int KT = DK / 16;
    const int g = lane / 4, t = lane % 4;
    float o[CT][2][4] = {};
#pragma unroll
    for (int j = 0; j < CT; j++)
#pragma unroll
        for (int m = j; m < CT; m++) {
            const frag p = s.P[lower(m, j)][lane];
            mma(f16_arithmetic{}, o[m][0], p.x, Rv[j].x, Rv[j].y);
            mma(f16_arithmetic{}, o[m][1], p.x, Rv[j].z, Rv[j].w);
        }
#pragma unroll
    for (int m = 0; m < CT; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= scale;
    uint4 S[KT];
    if (later) /* the state before is there first: until then, look at one word now and then */
        while (!written(load_relaxed(state_of<DK>(a, at - 1, strip) + (KT - 1) * 32 + 31))) __nanosleep(100);
    await(S, state_of<DK>(a, at, strip) + lane);
#pragma unroll
    for (int k = 0; k < KT; k++)
#pragma unroll
        for (int m = 0; m < CT; m++) {
            const frag e = s.K[m][k][lane];
            mma(M{}, o[m][0], e.x, S[k].x, S[k].z);
            mma(M{}, o[m][1], e.x, S[k].y, S[k].w);
        }
#pragma unroll
    for (int m = 0; m < CT; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= factor[2 * m + i % 4 / 2];
    store_columns(o, a, row0, left, finite, strip, g, t);
}

template <vla_op OP, int DK>
__global__ void __launch_bounds__(output_shape<DK>::threads, output_shape<DK>::blocks)
    output(const __grid_constant__ arguments a)
{
    using R = map_rows<DK>;
    constexpr uint32_t TILES = sizes<DK>::tiles * sizeof(frag);
    extern __shared__ __align__(16) unsigned char raw[];
    output_shared<DK> &s = *(output_shared<DK> *)raw;
    /* chunks in order, as states come */
    const int64_t head = blockIdx.x % (unsigned)a.heads, chunk = blockIdx.x / (unsigned)a.heads,
                  at = head * a.stride + chunk, token = a.first_token + chunk * C, row0 = head * a.T + token;
    const int left = (int)(a.T - token < C ? a.T - token : C);
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    const bool ratio = OP == VLA_VLA && a.ratio;
    grid_release(a.early);
    if (threadIdx.x == 0) barrier_init(shared_address(&s.full), warp_copy::arrivals);
    barriers_made();
    raw8<1> query[R::PASSES];
    fetch_tokens<DK, false>(query, a.q, a, row0, left);
    __syncthreads();
    if (warp == 0 && lane < warp_copy::lanes) {
        const warp_copy copies = {shared_address(&s.full), lane};
        copies.expect(ratio ? 2 * TILES : TILES);
        copies.copy(shared_address(&s.X), a.X + at * sizes<DK>::tiles, TILES);
        if (ratio) copies.copy(shared_address(&s.K), a.K + at * sizes<DK>::tiles, TILES);
        copies.done();
    }
    float n[8] = {};
    if (ratio) {
        const float4 *from = (const float4 *)(a.n + at * DK + R::column());
        const float4 lo = __ldcg(from), hi = __ldcg(from + 1);
        n[0] = lo.x, n[1] = lo.y, n[2] = lo.z, n[3] = lo.w, n[4] = hi.x, n[5] = hi.y, n[6] = hi.z, n[7] = hi.w;
        if (threadIdx.x < C) s.weight[threadIdx.x] = __ldcg(a.norm + at * C + threadIdx.x);
    }
    const int64_t bad = first_bad(a, head) - token;
    const int finite = bad < C ? (bad > 0 ? (int)bad : 0) : C;
    uint4 Rk[CT], Rv[CT] = {};
    float scale = 1;
    const auto load_values = [&](int strip) {
        load_tiles(Rv, rv_of(a, at, strip) + lane), scale = __ldcg(scale_of(a, at, strip));
    };
    load_tiles(Rk, solved_of<DK>(a, at)->Rk[warp][0] + lane);
    if (warp < a.dvp / 16) load_values(warp);
    apart::put_queries<DK, false>(s, query, n, a, left);
    __syncthreads();
    barrier_wait(shared_address(&s.full), 0);
    make_scores<DK>(s, ratio, warp, lane);
    __syncthreads();
    make_left<DK>(s, Rk, warp, lane);
    float factor[2 * CT];
    row_factors(factor, s, ratio, lane);
    __syncthreads();
#pragma unroll 1
    for (int strip = warp; strip < a.dvp / 16; strip += output_shape<DK>::warps) {
        if (strip != warp) load_values(strip);
        outputs<DK>(s, Rv, scale, a, at, chunk > 0, row0, left, finite, factor, strip, lane);
    }
    grid_wait();
}
} /* namespace chunked::back */

#endif
