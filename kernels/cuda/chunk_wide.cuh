/* Chunks in one kernel with their walk (chunk.cuh), dk from 65 to 128: the first blocks walk, one for 64 rows of S of a
 * head (chunk_wide_walk.cuh); the others are chunks, in order, a block each.
 *
 * What the walk needs of a chunk beside K and V is E = -N^-T a, and with G = P N^-1 the outputs are O_loc = G V and
 * Qeff = Q - G K: -E^T and G are rows times N^-1, so N is used as a right operand only.
 *
 * Everything is asked of memory at once. Queries are made when they are there; then four warps make the diagonal tiles
 * of N and their inverses, the others the tiles below, and K for the walk. Each warp takes sixteen columns of a to E.
 * While one warp says so to the walk, others make the rows of P and take them to G, others the row sums of Q K^T for
 * the ratio. Then Qeff takes the place of Q, and O_loc stays in registers until the state is there. */
#ifndef VLA_CUDA_CHUNK_WIDE_CUH
#define VLA_CUDA_CHUNK_WIDE_CUH
#include "kernels/cuda/chunk_map.cuh"
#include "kernels/cuda/chunk_wide_walk.cuh"

namespace chunked::wide
{
constexpr int WARPS = DK / 16, THREADS = 32 * WARPS, BLOCKS = 2; /* blocks a multiprocessor */
using chunk_shared = map_shared<DK>;
constexpr int PITCH = chunk_shared::PITCH;
constexpr uint32_t ROWS = 32 * PITCH; /* bytes of sixteen rows */

static inline size_t bytes()
{
    return sizeof(chunk_shared) > sizeof(walk_shared) ? sizeof(chunk_shared) : sizeof(walk_shared);
}

/* 32 tokens of sixteen rows of a left operand to the walk's blocks, neighbours along tokens `tokens` bytes apart, those
 * along rows `rows`. */
__device__ __forceinline__ void put_blocks(unsigned char *to, int tokens, int rows, const frag &x, const frag &y,
                                           int lane)
{
    to += lane % 4 * tokens + lane / 4 * 16;
#pragma unroll
    for (int p = 0; p < 2; p++) *(uint4 *)(to + p * rows) = make_uint4(x.x[p], x.x[2 + p], y.x[p], y.x[2 + p]);
}

/* K for the walk by the last four warps. Eight lanes read two rows, of which every other eight columns: all banks. */
__device__ __forceinline__ void put_walk_keys(unsigned char *to, const chunk_shared &s, int warp, int lane)
{
    const int piece = (warp - 4) / 2 * 8 + warp % 2 + lane % 8 / 2 * 2, row = lane / 8 * 2 + lane % 2;
    const __half *from = s.K + (lane / 8 * 8 + lane % 2) * PITCH + 8 * piece;
    to += piece * (C * 16) + row * 16;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const uint4 x = *(const uint4 *)(from + (n / 4 * 32 + n % 4 * 2) * PITCH);
        const auto turn = [](uint32_t w) {
            const float2 y = unpack(f16_arithmetic{}, w);
            return pack(bf16_arithmetic{}, y.x, y.y);
        };
        *(uint4 *)(to + n * 128) = make_uint4(turn(x.x), turn(x.y), turn(x.z), turn(x.w));
    }
}

/* Sixteen rows times N^-1, a tile of sixteen tokens after the other from the last on: X_j = (X_j - sum_k>j X_k N_kj)
 * N_jj^-1. c: X_j, then the result. */
__device__ __forceinline__ void solve(float (&c)[2][4], frag (&X)[CT], const chunk_shared &s, int j, int lane)
{
    using M = f16_arithmetic;
#pragma unroll
    for (int k = CT - 1; k > 0; k--)
        if (k > j) mma_r<M>(c, X[k], s.N[lower(k, j)][lane]);
    X[j] = pack_tile<M>(c[0], c[1]);
#pragma unroll
    for (int n = 0; n < 8; n++) c[n / 4][n % 4] = 0;
    mma_r<M>(c, X[j], s.N[lower(j, j)][lane]);
    X[j] = pack_tile<M>(c[0], c[1]);
}

/* Tiles of N below the diagonal by the last four warps, as right operands of sixteen tokens after sixteen: -(K_i
 * A_j^T), rows along j. */
__device__ __forceinline__ void make_below(chunk_shared &s, int warp, int lane)
{
    const uint32_t all_A = shared_address(s.A) + plain_offset(PITCH, lane),
                   all_K = shared_address(s.K) + turned_offset(PITCH, lane);
    /* i, j: a byte each tile */
    uint32_t tasks = warp == 4 ? 0x2010u : warp == 5 ? 0x3021u : warp == 6 ? 0x31u : 0x32u;
#pragma unroll 1
    for (; tasks; tasks >>= 8) {
        const uint32_t i = tasks >> 4 & 15, j = tasks & 15;
        const uint32_t A = all_A + j * ROWS, K = all_K + i * ROWS;
        float c[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) mma_r<f16_arithmetic>(c, load_plain(A + 32 * k), load_plain(K + 32 * k));
        s.N[lower((int)i, (int)j)][lane] = right_order(negate(pack_tile<f16_arithmetic>(c[0], c[1])));
    }
}

/* Rows `m` of P = tril(Q a^T) to -G. */
__device__ __forceinline__ void make_G(chunk_shared &s, int m, int lane)
{
    using M = f16_arithmetic;
    const uint32_t Q = shared_address(s.Q) + plain_offset(PITCH, lane) + (uint32_t)m * ROWS,
                   A = shared_address(s.A) + turned_offset(PITCH, lane);
    frag q[KT], X[CT];
    float c[CT][2][4] = {};
#pragma unroll
    for (int k = 0; k < KT; k++) q[k] = load_plain(Q + 32 * k);
#pragma unroll
    for (int j = 0; j < CT; j++)
        if (j <= m) {
#pragma unroll
            for (int k = 0; k < KT; k++) mma_r<M>(c[j], q[k], load_plain(A + j * ROWS + 32 * k));
            if (j == m) keep_lower(c[j], lane);
        }
#pragma unroll
    for (int j = CT - 1; j >= 0; j--) {
        X[j] = frag{};
        if (j <= m) {
            solve(c[j], X, s, j, lane);
            s.P[lower(m, j)][lane] = negate(X[j]);
        }
    }
}

/* Tiles of Q K^T to the weighted sums of their rows, by the last four warps. */
__device__ __forceinline__ void sum_rows(chunk_shared &s, int warp, int lane)
{
    const uint32_t all_Q = shared_address(s.Q) + plain_offset(PITCH, lane),
                   all_K = shared_address(s.K) + turned_offset(PITCH, lane);
    uint32_t tasks = warp == 4 ? 0x201000u : warp == 5 ? 0x302111u : warp == 6 ? 0x3122u : 0x3332u;
    bool more = true;
#pragma unroll 1
    while (more) {
        const uint32_t i = tasks >> 4 & 15, j = tasks & 15;
        const uint32_t Q = all_Q + i * ROWS, K = all_K + j * ROWS;
        float d[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) mma_r<f16_arithmetic>(d, load_plain(Q + 32 * k), load_plain(K + 32 * k));
        if (i == j) keep_lower(d, lane);
        weigh_rows(s, d, (int)i, (int)j, lane);
        tasks >>= 8, more = tasks != 0;
    }
}

/* Sixteen columns of Q to Qeff = Q - G K, in its place. */
__device__ __forceinline__ void make_effective(chunk_shared &s, const float (&factor)[2 * CT], int warp, int lane)
{
    using M = f16_arithmetic;
    const uint32_t Q = shared_address(s.Q) + plain_offset(PITCH, lane) + 32 * (uint32_t)warp,
                   K = shared_address(s.K) + plain_offset(PITCH, lane) + 32 * (uint32_t)warp;
    const frag unit = right_order(unit_tile<M>(lane));
    frag right[CT];
#pragma unroll
    for (int i = 0; i < CT; i++) right[i] = load_turned(K + i * ROWS);
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4] = {};
        mma_r<M>(c, load_plain(Q + m * ROWS), unit);
#pragma unroll
        for (int i = 0; i <= m; i++) mma_r<M>(c, s.P[lower(m, i)][lane], right[i]);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[h][i] *= factor[2 * m + i / 2];
        store_frag<false>(Q + m * ROWS, pack_tile<bf16_arithmetic>(c[0], c[1]));
    }
}

/* The chunk's state, which nobody else reads, and the maps of the chunk before, which the walks have read by the time
 * that this state is all there, leave the cache without being written to memory. */
__device__ __forceinline__ void forget_maps(const arguments &a, int64_t at, bool before)
{
    const int state = a.dvp / 16 * (int)sizes<DK>::strip * (int)sizeof(frag), maps = (int)map_bytes(a.walks);
    const char *of = (const char *)a.states + at * state, *map = (const char *)a.maps + (at - 1) * maps;
    for (int i = (int)threadIdx.x * 128; i < state; i += THREADS * 128) forget(of + i);
    for (int i = (int)threadIdx.x * 128; before && i < maps; i += THREADS * 128) forget(map + i);
}

template <vla_op OP>
__global__ void __launch_bounds__(THREADS, BLOCKS) chunks(const __grid_constant__ arguments a)
{
    using M = f16_arithmetic;
    using R = map_rows<DK>;
    extern __shared__ __align__(16) unsigned char raw[];
    grid_wait();
    /* of every at_once heads the walks, then the chunks in order */
    const unsigned each = (unsigned)a.at_once * (unsigned)(a.walks + a.chunks),
                   group = blockIdx.x < each ? 0 : blockIdx.x / each, head0 = group * (unsigned)a.at_once,
                   more = (unsigned)a.heads - head0,
                   heads = more < (unsigned)a.at_once ? more : (unsigned)a.at_once, walks = heads * (unsigned)a.walks;
    unsigned place = blockIdx.x - group * each;
    if (place < walks) {
        walk(*(walk_shared *)raw, a, head0 + place / (unsigned)a.walks, (int)(place % (unsigned)a.walks));
        return;
    }
    place -= walks;
    const unsigned row = a.inverse && heads == (unsigned)a.at_once ? __umulhi(place, a.inverse) : place / heads;
    chunk_shared &s = *(chunk_shared *)raw;
    const int64_t head = head0 + (place - row * heads), chunk = row, at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C, row0 = head * a.T + token;
    int *const ready = a.ready + head * (a.stride + 1) + chunk;
    const int left = (int)(a.T - token < C ? a.T - token : C), strips = a.dvp / 16;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    int bad = C;
    float n[8] = {};
    four_values v = {};
    const auto mark = [&]() { /* the next state: see chunk_walk.cuh */
        if (chunk + 1 >= a.chunks || warp >= strips) return;
        frag *const next = a.states + ((at + 1) * strips + warp) * sizes<DK>::strip + lane;
#pragma unroll
        for (int i = 0; i < KT; i++)
            store_relaxed(next + i * 32, make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN));
    };
    if constexpr (OP == VLA_VLA) {
        constexpr int TILES = CT * KT / WARPS;
        frag k[TILES], x[TILES];
        const frag *const keys = a.K + at * sizes<DK>::tiles + threadIdx.x,
                   *const directions = a.X + at * sizes<DK>::tiles + threadIdx.x;
        const uint64_t policy = streamed();
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const uint4 key = load_streamed(keys + i * THREADS, policy),
                        direction = load_streamed(directions + i * THREADS, policy);
            k[i] = {{key.x, key.y, key.z, key.w}}, x[i] = {{direction.x, direction.y, direction.z, direction.w}};
        }
        fetch_queries<DK, R>(s, a, row0, left);
        if (warp < strips) fetch_values<DK>(v, a, row0, left, warp, lane);
        if (a.ratio) {
            load_floats8(n, a.n + at * DK + R::column());
            if (threadIdx.x < C) s.weight[threadIdx.x] = a.norm[at * C + threadIdx.x];
        }
        mark();
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const int tile = warp + i * WARPS, offset = tile / KT * 16 * PITCH + tile % KT * 16;
            store_frag<false>(shared_address(s.K + offset) + plain_offset(PITCH, lane), k[i]);
            store_frag<false>(shared_address(s.A + offset) + plain_offset(PITCH, lane), x[i]);
        }
    } else {
        raw8<1> key[R::PASSES];
        float logit[R::PASSES];
        fetch_tokens<DK, false>(key, a.k, a, row0, left);
#pragma unroll
        for (int i = 0; i < R::PASSES; i++)
            logit[i] = a.b && R::row(i) < left ? load_element(a.b, a.dtype, row0 + R::row(i)) : 0.0f;
        fetch_queries<DK, R>(s, a, row0, left);
        if (warp < strips) fetch_values<DK>(v, a, row0, left, warp, lane);
        mark();
        put_keys<DK>(s, key, logit, a, head, token);
    }
    put_queries<R, true>(s, n, a, left);
    frag values[CT]; /* V^T of this warp's sixteen columns */
    const float scale = take_values(values, v, a, bad, lane);
    if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
    __syncthreads();
    const unsigned long long first = __ldcg(a.bad + head); /* waited for later */
    unsigned char *const map = map_of(a, at);
    if (warp < CT) {
        float c[2][4];
        product_N<DK>(map_tiles<DK>(s, lane), c, warp, warp);
        s.N[lower(warp, warp)][lane] = right_order(transpose(invert_unit_lower(c, lane)));
    } else {
        make_below(s, warp, lane);
        put_walk_keys(map, s, warp, lane);
    }
    if (OP == VLA_VLA && a.alpha)
        for (int i = (int)threadIdx.x; i < left * a.dk; i += THREADS) {
            const int r = i / a.dk, c = i % a.dk;
            store_element(a.alpha, a.dtype, (row0 + r) * a.dk + c, __half2float(s.A[r * PITCH + c]));
        }
    __syncthreads();
    const int64_t wrong = (int64_t)(first < INT64_MAX ? first : INT64_MAX) - token;
    const int finite = wrong < C ? (wrong > 0 ? (int)wrong : 0) : C; /* what is not goes on by the state */
    {
        const uint32_t A = shared_address(s.A) + turned_offset(PITCH, lane) + 32 * warp;
        const frag minus = negate(right_order(unit_tile<M>(lane)));
        unsigned char *const of = map + 2 * KEYS + warp / 4 * VALUES;
        frag X[CT], E[2];
        if (lane < 8 && warp < 4 * a.walks) ((float *)of)[warp % 4 * 8 + lane] = finite < C ? NAN : -scale;
#pragma unroll
        for (int j = 0; j < CT; j++) X[j] = load_turned(A + j * ROWS);
#pragma unroll
        for (int j = CT - 1; j >= 0; j--) {
            float c[2][4] = {};
            mma_r<M>(c, X[j], minus);
            solve(c, X, s, j, lane);
            E[j % 2] = pack_tile<bf16_arithmetic>(c[0], c[1]);
            if (j % 2 == 0)
                put_blocks(map + KEYS + warp * 256 + j / 2 * (4 * DK * 16), DK * 16, 128, E[0], E[1], lane);
        }
        if (warp < strips)
#pragma unroll
            for (int h = 0; h < 2; h++)
                put_blocks(of + SCALES + warp % 4 * STRIP + h * 512, 128, 1024, values[2 * h], values[2 * h + 1], lane);
    }
    if (warp == 0) { /* this takes long */
        meet<THREADS>(1);
        if (lane == 0) {
            fence_copies(), add_release(ready + 1, 1);
            /* UNWRITTEN is there, or of the first chunk the state */
            while (load_acquire(ready) < (chunk == 0 ? a.walks : 1)) __nanosleep(64);
        }
    } else {
        meet_later<THREADS>(1);
        if (warp >= CT) {
            if (a.ratio) sum_rows(s, warp, lane);
        } else {
#pragma unroll 1
            for (int m = warp == 1 ? 0 : warp; m <= warp; m++) make_G(s, m, lane);
        }
    }
    __syncthreads();
    float factor[2 * CT];
    row_factors(factor, s, a.ratio, lane);
    make_effective(s, factor, warp, lane);
    const frag *const state = a.states + (at * strips + warp) * sizes<DK>::strip;
    const bool has_values = warp < strips;
    uint4 S[KT];
    float o[CT][2][4] = {};
    if (has_values) {
#pragma unroll
        for (int k = 0; k < KT; k++) S[k] = load_relaxed(state + k * 32 + lane);
#pragma unroll
        for (int i = 0; i < CT; i++) {
            const frag right = right_order(values[i]);
#pragma unroll
            for (int m = i; m < CT; m++) mma_r<M>(o[m], s.P[lower(m, i)][lane], right);
        }
#pragma unroll
        for (int m = 0; m < CT; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= factor[2 * m + i % 4 / 2] * -scale; /* G was negated */
    }
    __syncthreads();
    if (has_values) {
#pragma unroll 1
        for (;;) {
            bool all = true;
#pragma unroll
            for (int k = 0; k < KT; k++) all &= written(S[k]);
            if (__all_sync(FULL_WARP, all)) break;
            while (!written(load_relaxed(state + (KT - 1) * 32 + 31))) __nanosleep(64);
#pragma unroll
            for (int k = 0; k < KT; k++) S[k] = load_relaxed(state + k * 32 + lane);
        }
        const uint32_t Q = shared_address(s.Q) + plain_offset(PITCH, lane);
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int m = 0; m < CT; m++) {
                const frag q = load_plain(Q + m * ROWS + 32 * k);
                mma(bf16_arithmetic{}, o[m][0], q.x, S[k].x, S[k].y);
                mma(bf16_arithmetic{}, o[m][1], q.x, S[k].z, S[k].w);
            }
        store_columns(o, a, row0, left, finite, warp, lane / 4, lane % 4);
    }
    __syncthreads();
    forget_maps(a, at, chunk > 0);
}
} /* namespace chunked::wide */

#endif
