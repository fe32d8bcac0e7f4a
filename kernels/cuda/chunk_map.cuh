/* map of the chunkwise forms (chunk.cuh), dk to 64 with the walk beside it, and what the other forms of the back half
 * share with it. The kernel's first blocks walk, one for 64 rows of S of a head (chunk_walk.cuh); the others are
 * chunks, in order, a block of four warps each: D = Rk^T a and B = Rv^T a, then O.
 *
 * Everything is asked of memory at once; then tiles of N are dealt to warps with the four 16 x 16 inverses; then each
 * warp takes sixteen columns of K and of V through substitution, so that N is read once for both, and to D and B, which
 * the walk waits for. Then tiles of P and Q K^T are dealt, Qeff takes the place of Q, and each warp makes sixteen
 * columns of O, of which O_loc stays in its registers until the state is there. Tiles are added by products with the
 * unit matrix, right operands are loaded in the order that their register pairs need, queries are scaled only where
 * they must be. */
#ifndef VLA_CUDA_CHUNK_MAP_CUH
#define VLA_CUDA_CHUNK_MAP_CUH
#include "kernels/cuda/chunk_tokens.cuh"
#include "kernels/cuda/chunk_walk.cuh"

namespace chunked
{
/* Above the diagonal to zero, by selection. */
__device__ __forceinline__ void keep_lower(float (&c)[2][4], int lane)
{
    const int g = lane / 4, t = lane % 4;
    c[0][0] = 2 * t > g ? 0.0f : c[0][0], c[1][2] = 2 * t > g ? 0.0f : c[1][2];
    c[0][1] = 2 * t + 1 > g ? 0.0f : c[0][1], c[1][3] = 2 * t + 1 > g ? 0.0f : c[1][3];
    c[1][0] = c[1][1] = 0;
}

/* The inverses of the two 8 x 8 diagonal blocks of I + the strict lower (UPPER: upper) part of a tile: elimination side
 * by side, seven pivots in registers, from the first on (UPPER: the last). The rest is zero. */
template <bool UPPER> __device__ __forceinline__ frag invert_diagonal(const float (&c)[2][4], int lane)
{
    using M = f16_arithmetic;
    const int g = lane / 4, t = lane % 4;
    /* 2 on the diagonal: the step of pivot j then leaves -a[r][j] in its column */
    float x[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int column = 2 * t + i;
        const bool kept = UPPER ? column > g : column < g;
        x[0][i] = kept ? c[0][i] : column == g ? 2.0f : 0.0f;
        x[1][i] = kept ? c[1][2 + i] : column == g ? 2.0f : 0.0f;
    }
#pragma unroll
    for (int step = 0; step < 7; step++)
#pragma unroll
        for (int block = 0; block < 2; block++) {
            const int j = UPPER ? 7 - step : step;
            float f = __shfl_sync(FULL_WARP, x[block][j % 2], (lane & ~3) + j / 2);
            f = (UPPER ? g < j : g > j) ? -f : 0.0f;
            const float row0 = __shfl_sync(FULL_WARP, x[block][0], 4 * j + t),
                        row1 = __shfl_sync(FULL_WARP, x[block][1], 4 * j + t);
            x[block][0] = fmaf(f, row0, x[block][0]), x[block][1] = fmaf(f, row1, x[block][1]);
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (2 * t + i == g) x[0][i] = x[1][i] = 1;
    frag inverse;
    inverse.x[0] = pack(M{}, x[0][0], x[0][1]), inverse.x[3] = pack(M{}, x[1][0], x[1][1]);
    inverse.x[1] = inverse.x[2] = 0;
    return inverse;
}

/* The inverse of I + the strict lower part of a tile: X21 = -X22 N21 X11 below the diagonal blocks. */
__device__ __forceinline__ frag invert_unit_lower(const float (&c)[2][4], int lane)
{
    using M = f16_arithmetic;
    frag inverse = invert_diagonal<false>(c, lane);
    const uint32_t below[4] = {0, pack(M{}, -c[0][2], -c[0][3]), 0, 0};
    float y[4] = {}, z[4] = {};
    mma(M{}, y, below, transpose8(inverse.x[0]), 0u);
    mma(M{}, z, inverse.x, 0u, transpose8(pack(M{}, y[2], y[3])));
    inverse.x[1] = pack(M{}, z[2], z[3]);
    return inverse;
}

/* Products of row tiles: N_ij = K_i A_j^T, or P_ij = Q_i A_j^T with the row sums of Q_i K_j^T for the ratio. The
 * addresses: of this lane's parts of left operands K and Q, and of right operands K and A. */
template <int DK> struct map_tiles {
    static constexpr int PITCH = map_shared<DK>::PITCH, ROWS = 32 * PITCH; /* bytes of sixteen rows */
    uint32_t K, Q, right_K, right_A;
    __device__ __forceinline__ map_tiles(const map_shared<DK> &s, int lane)
    {
        K = shared_address(s.K) + plain_offset(PITCH, lane), Q = shared_address(s.Q) + plain_offset(PITCH, lane);
        right_K = shared_address(s.K) + turned_offset(PITCH, lane);
        right_A = shared_address(s.A) + turned_offset(PITCH, lane);
    }
};

template <int DK> __device__ __forceinline__ void product_N(const map_tiles<DK> &at, float (&c)[2][4], int i, int j)
{
    const uint32_t K = at.K + i * at.ROWS, A = at.right_A + j * at.ROWS;
#pragma unroll
    for (int n = 0; n < 8; n++) c[n / 4][n % 4] = 0;
#pragma unroll
    for (int k = 0; k < sizes<DK>::KT; k++) mma_r<f16_arithmetic>(c, load_plain(K + 32 * k), load_plain(A + 32 * k));
}

/* A tile of Q K^T to the weighted sums of its rows. */
template <typename shared>
__device__ __forceinline__ void weigh_rows(shared &s, const float (&d)[2][4], int i, int j, int lane)
{
    const int g = lane / 4, t = lane % 4;
    float upper = 0, below = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float2 w = *(const float2 *)&s.weight[16 * j + 8 * h + 2 * t];
        upper = fmaf(d[h][0], w.x, fmaf(d[h][1], w.y, upper));
        below = fmaf(d[h][2], w.x, fmaf(d[h][3], w.y, below));
    }
    upper = group_sum(upper, 4), below = group_sum(below, 4);
    if (t == 0) s.part[j][16 * i + g] = upper, s.part[j][16 * i + g + 8] = below;
}

template <int DK>
__device__ __forceinline__ void product_P(map_shared<DK> &s, const map_tiles<DK> &at, bool ratio, int i, int j,
                                          int lane)
{
    using M = f16_arithmetic;
    float c[2][4] = {}, d[2][4] = {};
    const uint32_t Q = at.Q + i * at.ROWS, A = at.right_A + j * at.ROWS, K = at.right_K + j * at.ROWS;
#pragma unroll
    for (int k = 0; k < sizes<DK>::KT; k++) {
        const frag q = load_plain(Q + 32 * k);
        mma_r<M>(c, q, load_plain(A + 32 * k));
        if (ratio) mma_r<M>(d, q, load_plain(K + 32 * k));
    }
    if (i == j) keep_lower(c, lane);
    s.P[lower(i, j)][lane] = pack_tile<M>(c[0], c[1]);
    if (!ratio) return;
    if (i == j) keep_lower(d, lane);
    weigh_rows(s, d, i, j, lane);
}

/* What each of four warps does before D and B, beside the diagonal tiles of N, which they take first, and after: bytes
 * 16 (is N) + 4 i + j, 0xff: none. */
__device__ __forceinline__ uint32_t tasks_before(int warp)
{
    return warp == 0 ? 0xffff1814u : warp == 1 ? 0xffff1c19u : warp == 2 ? 0xffffff1du : 0xffffff1eu;
}
__device__ __forceinline__ uint32_t tasks_after(int warp) /* not the first */
{
    return warp == 1 ? 0x0c080400u : warp == 2 ? 0xff0d0905u : 0xff0f0e0au;
}

template <int DK>
__device__ __forceinline__ void make_products(map_shared<DK> &s, const map_tiles<DK> &at, uint32_t tasks, bool ratio,
                                              int lane)
{
#pragma unroll 1
    for (; (tasks & 0xffu) != 0xffu; tasks = tasks >> 8 | 0xff000000u) {
        const int i = (int)(tasks >> 2 & 3), j = (int)(tasks & 3);
        if (tasks & 16) {
            float c[2][4];
            product_N<DK>(at, c, i, j);
            s.N[lower(i, j)][lane] = right_order(negate(pack_tile<f16_arithmetic>(c[0], c[1])));
        } else {
            product_P<DK>(s, at, ratio, i, j, lane);
        }
    }
}

/* One step of block forward substitution on sixteen columns of X, transposed: R_i = N_ii^-1 (X_i - sum_k<i N_ik R_k),
 * as left operands. */
template <int DK>
__device__ __forceinline__ void substitute(frag (&R)[CT], const map_shared<DK> &s, const frag &unit, int i, int lane)
{
    using M = f16_arithmetic;
    float y[2][4] = {};
    if (i > 0) {
        float c[2][4] = {};
        mma_r<M>(c, R[i], unit);
#pragma unroll
        for (int k = 0; k < CT; k++)
            if (k < i) mma_r<M>(c, R[k], s.N[lower(i, k)][lane]);
        R[i] = pack_tile<M>(c[0], c[1]);
    }
    mma_r<M>(y, R[i], s.N[lower(i, i)][lane]);
    R[i] = pack_tile<M>(y[0], y[1]);
}

/* Of a pair of bfloat16, times a power of two. */
__device__ __forceinline__ uint32_t scaled_pair(uint32_t x, uint32_t by)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(by), "r"(0x80008000u));
    return y;
}

/* What a warp goes on with after the maps: R^T of its sixteen columns of K. R of V is left in V's place. */
template <int DK>
__device__ __forceinline__ void columns(frag (&RK)[CT], const map_shared<DK> &s, __half *V, const arguments &a,
                                        int64_t at, int key, int value, bool store_keys, float scale, int lane)
{
    using M = f16_arithmetic;
    using W = bf16_arithmetic;
    constexpr int KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH, ROWS = 32 * PITCH;
    const int pitch = map_pitch<DK>(a.dvp);
    const bool has_values = value < a.dvp / 16;
    const uint32_t turned = turned_offset(PITCH, lane), plain = plain_offset(PITCH, lane),
                   K = shared_address(s.K) + turned + 32 * key, A = shared_address(s.A) + plain,
                   V0 = shared_address(V) + 32 * (has_values ? value : 0);
    const frag unit = right_order(unit_tile<M>(lane));
    frag RV[CT];
#pragma unroll
    for (int i = 0; i < CT; i++) {
        RK[i] = load_turned(K + i * ROWS);
        RV[i] = has_values ? load_turned(V0 + turned_offset(pitch, lane) + i * 32 * pitch) : frag{};
        substitute<DK>(RK, s, unit, i, lane);
        substitute<DK>(RV, s, unit, i, lane);
        if (has_values) store_frag<true>(V0 + turned_offset(pitch, lane) + i * 32 * pitch, RV[i]);
    }
#pragma unroll
    for (int i = 0; i < CT; i++) RK[i] = negate(RK[i]);
    frag *record = a.maps + at * (sizes<DK>::square + a.walks * 4 * sizes<DK>::strip),
         *B = record + sizes<DK>::square + value * sizes<DK>::strip + lane;
    uint32_t *maps = (uint32_t *)record + key * (DK * 8) + lane;
    const uint32_t by = pack(W{}, scale, scale);
#pragma unroll
    for (int m = 0; m < KT; m++) {
        float c[2][4] = {}, d[2][4] = {};
#pragma unroll
        for (int i = 0; i < CT; i++) {
            const frag right = load_turned(A + i * ROWS + 32 * m);
            mma_r<M>(c, RK[i], right);
            mma_r<M>(d, RV[i], right);
        }
        if (store_keys) {
            const frag D = pack_tile<W>(c[0], c[1]);
#pragma unroll
            for (int i = 0; i < 4; i++) maps[(i % 2 * (DK / 8) + 2 * m + i / 2) * 32] = transpose8(D.x[i]);
        }
        if (has_values) {
            const frag x = pack_tile<W>(d[0], d[1]);
            B[m * 32] = {
                {scaled_pair(x.x[0], by), scaled_pair(x.x[1], by), scaled_pair(x.x[2], by), scaled_pair(x.x[3], by)}};
        }
    }
#pragma unroll
    for (int i = 0; i < CT; i++) RK[i] = right_order(RK[i]);
}

/* f of the rows lane / 4 + 8 i, times what the query was divided by. */
template <typename shared>
__device__ __forceinline__ void row_factors(float (&factor)[2 * CT], const shared &s, bool ratio, int lane)
{
    float own[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = lane + 32 * h;
        float f = s.query[r];
        if (ratio) {
            float sum = s.start[r];
#pragma unroll
            for (int j = 0; j < CT; j++) sum += j <= r / 16 ? s.part[j][r] : 0.0f;
            const float den = f * sum, floor = (float)VLA_RATIO_EPS;
            f = f / (den < floor ? floor : den);
        }
        own[h] = f;
    }
#pragma unroll
    for (int i = 0; i < 2 * CT; i++) factor[i] = __shfl_sync(FULL_WARP, own[i / 4], lane / 4 + i % 4 * 8);
}

/* Sixteen columns of Q to Qeff, in its place. */
template <int DK>
__device__ __forceinline__ void effective_queries(map_shared<DK> &s, const frag (&RK)[CT],
                                                  const float (&factor)[2 * CT], int key, int lane)
{
    using M = f16_arithmetic;
    constexpr int PITCH = map_shared<DK>::PITCH, ROWS = 32 * PITCH;
    const uint32_t Q = shared_address(s.Q) + plain_offset(PITCH, lane) + 32 * key;
    const frag unit = right_order(unit_tile<M>(lane));
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4] = {};
        mma_r<M>(c, load_plain(Q + m * ROWS), unit);
#pragma unroll
        for (int i = 0; i <= m; i++) mma_r<M>(c, s.P[lower(m, i)][lane], RK[i]);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[h][i] *= factor[2 * m + i / 2];
        store_frag<false>(Q + m * ROWS, pack_tile<bf16_arithmetic>(c[0], c[1]));
    }
}

__device__ __forceinline__ bool written(const uint4 &x)
{
    return x.x != UNWRITTEN && x.y != UNWRITTEN && x.z != UNWRITTEN && x.w != UNWRITTEN;
}

/* The last words of sixteen rows of a state: most often the last to be written, so looked at before all others. What is
 * read too soon goes through the cache in vain. */
template <int KT> __device__ __forceinline__ uint4 last_of_state(const frag *state)
{
    return load_relaxed(state + (KT - 1) * 32 + 31);
}

/* Those rows, once all of their words are written; `last` is what was there some time ago. */
template <int KT> __device__ __forceinline__ void await_state(uint4 (&S)[KT], const frag *state, uint4 last, int lane)
{
#pragma unroll 1
    for (;;) {
        while (!written(last)) {
            last = last_of_state<KT>(state);
            if (!written(last)) __nanosleep(64);
        }
        bool all = true;
#pragma unroll
        for (int k = 0; k < KT; k++) S[k] = load_relaxed(state + k * 32 + lane);
#pragma unroll
        for (int k = 0; k < KT; k++) all &= written(S[k]);
        if (__all_sync(FULL_WARP, all)) break;
        __nanosleep(40);
    }
}

/* Sixteen columns of O to memory, of which a lane's four in a row are neighbours. */
__device__ __forceinline__ void store_columns(const float (&o)[CT][2][4], const arguments &a, int64_t row0, int left,
                                              int finite, int value, int g, int t)
{
    const bool bf16 = a.dtype == VLA_BF16;
    uint16_t *to = (uint16_t *)a.o + (row0 + g) * a.dv + 16 * value + 4 * t;
    if (left >= C && finite >= C && a.dv % 4 == 0) { /* narrow stores stay out of the usual path */
        if (16 * value + 4 * t >= a.dv) return;
#pragma unroll
        for (int m = 0; m < CT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float *x = o[m][0] + 2 * h, *y = o[m][1] + 2 * h;
                store_streamed(
                    to + (16 * m + 8 * h) * a.dv,
                    bf16 ? make_uint2(pack(bf16_arithmetic{}, x[0], x[1]), pack(bf16_arithmetic{}, y[0], y[1]))
                         : make_uint2(pack(f16_arithmetic{}, x[0], x[1]), pack(f16_arithmetic{}, y[0], y[1])),
                    streamed());
            }
        return;
    }
#pragma unroll
    for (int m = 0; m < CT; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = 16 * m + g + 8 * (i % 4 / 2), x = 16 * value + 4 * t + 2 * (i / 4) + i % 2;
            if (row < left && x < a.dv)
                store_element(a.o, a.dtype, (row0 + row) * a.dv + x, row >= finite ? NAN : o[m][i / 4][i % 4]);
        }
}

/* Sixteen columns of O: O_loc, then Qeff S^T when the state is there. */
template <int DK>
__device__ __forceinline__ void outputs(const map_shared<DK> &s, const __half *V, const arguments &a, int64_t at,
                                        int64_t row0, int left, int finite, const float (&factor)[2 * CT], int value,
                                        float scale, int lane)
{
    constexpr int KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH, ROWS = 32 * PITCH;
    const int g = lane / 4, t = lane % 4, pitch = map_pitch<DK>(a.dvp);
    const uint32_t R = shared_address(V) + plain_offset(pitch, lane) + 32 * value,
                   Q = shared_address(s.Q) + plain_offset(PITCH, lane);
    const frag *state = a.states + (at * (a.dvp / 16) + value) * sizes<DK>::strip;
    const uint4 last = last_of_state<KT>(state);
    uint4 S[KT];
    float o[CT][2][4] = {};
#pragma unroll
    for (int i = 0; i < CT; i++) {
        const frag right = load_turned(R + i * 32 * pitch);
#pragma unroll
        for (int m = i; m < CT; m++) mma_r<f16_arithmetic>(o[m], s.P[lower(m, i)][lane], right);
    }
#pragma unroll
    for (int m = 0; m < CT; m++)
#pragma unroll
        for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= factor[2 * m + i % 4 / 2] * scale;
    await_state(S, state, last, lane);
#pragma unroll
    for (int k = 0; k < KT; k++)
#pragma unroll
        for (int m = 0; m < CT; m++) {
            const frag q = load_plain(Q + m * ROWS + 32 * k);
            mma(bf16_arithmetic{}, o[m][0], q.x, S[k].x, S[k].y);
            mma(bf16_arithmetic{}, o[m][1], q.x, S[k].z, S[k].w);
        }
    store_columns(o, a, row0, left, finite, value, g, t);
}

/* A chunk's state (`state` bytes), which nobody else reads, and the maps of the chunk before (`maps` bytes), which the
 * walks have read by the time that this state is all there, leave the cache without being written to memory. By
 * `threads` threads. */
__device__ __forceinline__ void forget_maps(const arguments &a, int64_t at, bool before, int state, int maps,
                                            int threads)
{
    for (int i = (int)threadIdx.x * 128; i < state; i += threads * 128) forget((const char *)a.states + at * state + i);
    for (int i = (int)threadIdx.x * 128; before && i < maps; i += threads * 128)
        forget((const char *)a.maps + (at - 1) * maps + i);
}

constexpr int MAP_BLOCKS = 4; /* a multiprocessor */

template <vla_op OP, int DK>
__global__ void __launch_bounds__(map_shared<DK>::THREADS, MAP_BLOCKS) map(const __grid_constant__ arguments a)
{
    using R = map_rows<DK>;
    constexpr int WARPS = map_shared<DK>::WARPS, KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH;
    static_assert(WARPS == CT && WARPS == WALKERS, "tasks are dealt to four warps, and four walk");
    extern __shared__ __align__(16) unsigned char raw[];
    /* of every at_once heads the walks, then the chunks in order */
    const unsigned each = (unsigned)a.at_once * (unsigned)(a.walks + a.chunks), group = blockIdx.x / each,
                   head0 = group * (unsigned)a.at_once, more = (unsigned)a.heads - head0,
                   heads = more < (unsigned)a.at_once ? more : (unsigned)a.at_once, walks = heads * (unsigned)a.walks;
    unsigned place = blockIdx.x - group * each;
    if (place < walks) {
        grid_wait();
        walk<DK>(*(walk_shared<DK> *)raw, a, head0 + place / (unsigned)a.walks, (int)(place % (unsigned)a.walks));
        return;
    }
    place -= walks;
    map_shared<DK> &s = *(map_shared<DK> *)raw;
    __half *V = (__half *)(raw + sizeof(map_shared<DK>));
    const int64_t head = head0 + place % heads, chunk = place / heads, at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C, row0 = head * a.T + token;
    int *ready = a.ready + head * (a.stride + 1) + chunk;
    const int left = (int)(a.T - token < C ? a.T - token : C);
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    map_values<DK, false> values;
    if (warp > 0) fetch_queries<DK, query_rows<DK>>(s, a, row0, left);
    values.fetch(a, row0, left);
    if constexpr (OP == VLA_VLA) {
        constexpr int TILES = CT * KT / WARPS;
        frag k[TILES], x[TILES];
        grid_wait();
        const frag *const keys = a.K + at * sizes<DK>::tiles + threadIdx.x;
        const frag *const directions = a.X + at * sizes<DK>::tiles + threadIdx.x;
        const uint64_t policy = streamed();
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const uint4 key = load_streamed(keys + i * 32 * WARPS, policy),
                        direction = load_streamed(directions + i * 32 * WARPS, policy);
            k[i] = {{key.x, key.y, key.z, key.w}}, x[i] = {{direction.x, direction.y, direction.z, direction.w}};
        }
        if (a.ratio && threadIdx.x < DK) s.n[threadIdx.x] = a.n[at * DK + threadIdx.x];
        if (a.ratio && threadIdx.x < C) s.weight[threadIdx.x] = a.norm[at * C + threadIdx.x];
        s.top[warp] = values.largest(a, head, token);
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
        grid_wait();
        s.top[warp] = values.largest(a, head, token);
        const int place = R::row(0) * PITCH + R::column();
        put_keys<DK, R::AT_ONCE * PITCH>(s.K + place, s.A + place, key, logit, a, head, token);
    }
    if (chunk + 1 < a.chunks) {
        /* UNWRITTEN to the next state: chunk_walk.cuh */
        constexpr int AT_ONCE = 32 * WARPS / (int)sizes<DK>::strip; /* strips */
        frag *next = a.states + (at + 1) * (a.dvp / 16) * sizes<DK>::strip + threadIdx.x;
#pragma unroll
        for (int i = 0; i < 8 / AT_ONCE; i++)
            if (i * AT_ONCE + (int)threadIdx.x / (int)sizes<DK>::strip < a.dvp / 16)
                store_relaxed(next + i * 32 * WARPS, make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN));
    }
    __syncthreads();
    const unsigned long long first = __ldcg(a.bad + head); /* waited for later */
    uint32_t bits = s.top[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) bits = s.top[w] > bits ? s.top[w] : bits;
    const float scale = power_above(values.value_of(a, bits));
    values.put(V, a, 1.0f / scale);
    const map_tiles<DK> tiles(s, lane);
    if (warp < CT) {
        float c[2][4];
        product_N<DK>(tiles, c, warp, warp);
        s.N[lower(warp, warp)][lane] = right_order(invert_unit_lower(c, lane));
    }
    make_products<DK>(s, tiles, tasks_before(warp), a.ratio, lane);
    if (OP == VLA_VLA && a.alpha)
        for (int i = (int)threadIdx.x; i < C * a.dk; i += 32 * WARPS) {
            const int r = i / a.dk, c = i % a.dk;
            if (r < left) store_element(a.alpha, a.dtype, (row0 + r) * a.dk + c, __half2float(s.A[r * PITCH + c]));
        }
    __syncthreads();
    const int64_t bad = (int64_t)(first < INT64_MAX ? first : INT64_MAX) - token;
    const int finite = bad < C ? (bad > 0 ? (int)bad : 0) : C; /* what is not goes on by the state */
    frag RK[CT];
    int slice = warp;
    do {
        columns<DK>(RK, s, V, a, at, warp, slice, slice == warp, finite < C ? NAN : scale, lane);
        slice += WARPS;
    } while (slice < a.dvp / 16);
    __syncthreads();
    if (warp == 0) { /* this takes long */
        if (lane == 0) {
            fence_copies(), add_release(ready + 1, 1);
            /* UNWRITTEN is there, or of the first chunk the state */
            while (load_acquire(ready) < (chunk == 0 ? a.walks : 1)) __nanosleep(64);
        }
    } else {
        float n[8];
        load_floats8(n, &s.n[query_rows<DK>::column()]);
        put_queries<query_rows<DK>, true>(s, n, a, left);
        named_barrier<32 * (WARPS - 1)>(1);
        make_products<DK>(s, tiles, tasks_after(warp), a.ratio, lane);
    }
    __syncthreads();
    float factor[2 * CT];
    row_factors(factor, s, a.ratio, lane);
    effective_queries<DK>(s, RK, factor, warp, lane);
    __syncthreads();
#pragma unroll 1
    for (slice = warp; slice < a.dvp / 16; slice += WARPS)
        outputs<DK>(s, V, a, at, row0, left, finite, factor, slice, scale, lane);
    __syncthreads();
    forget_maps(a, at, chunk > 0, a.dvp / 16 * (int)sizes<DK>::strip * (int)sizeof(frag),
                (int)(sizes<DK>::square + a.walks * 4 * sizes<DK>::strip) * (int)sizeof(frag), 32 * WARPS);
}
} /* namespace chunked */

#endif
