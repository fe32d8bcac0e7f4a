/* map where the walk is a kernel of its own (chunk.cuh): a chunk's D, B, Qeff and O_loc, a block a chunk.
 *
 * Everything is asked of memory at once; then tiles of N, P and Q K^T are dealt to warps, the four 16 x 16 inverses
 * beside them; then each warp takes sixteen columns of K and of V through substitution and the four results, both at a
 * time, so that N is read once for both. Tiles are added by products with the unit matrix, right operands are loaded in
 * the order that their register pairs need, queries are scaled only where they must be.
 *
 * B and O_loc are stored by columns, as walk's right operands: of a tile of sixteen columns of V by sixteen of dk (or
 * tokens), a frag's registers in the order 0, 2, 1, 3, so that eight columns are one half. */
#ifndef VLA_CUDA_CHUNK_APART_MAP_CUH
#define VLA_CUDA_CHUNK_APART_MAP_CUH
#include "kernels/cuda/chunk_map.cuh"

namespace chunked::apart
{

/* Maps are bfloat16, whose range takes the rows' factors and the scale of V; of float32 inputs (WIDE) they are float16,
 * of unit scale, and the factors go beside them. */
template <bool WIDE> struct map_arithmetic {
    using type = bf16_arithmetic;
};
template <> struct map_arithmetic<true> {
    using type = f16_arithmetic;
};

/* Of a chunk: D^T and Qeff; of sixteen columns B [DK/16][32], then O_loc [CT][32], by columns. */
template <int DK, bool WIDE> struct map_record {
    frag D[DK / 16][DK / 16][32], Q[CT][DK / 16][32];
};
template <int DK> struct map_record<DK, true> {
    frag D[DK / 16][DK / 16][32], Q[CT][DK / 16][32];
    float factor[C], scale, unused[31]; /* f a row; of V; records are whole lines of 128 bytes, or copies are slow */
};
constexpr int64_t scales_bytes = (C + 32) * sizeof(float);
template <int DK, bool WIDE> constexpr int64_t record_frags = sizeof(map_record<DK, WIDE>) / sizeof(frag);
template <int DK> constexpr int64_t strip_frags = (int64_t)(DK / 16 + CT) * 32;

template <int DK> struct map_shared {
    static constexpr int PITCH = DK + 8, WARPS = DK / 16, THREADS = 32 * WARPS;
    frag N[LOWER][32];                   /* right operands: -N below the diagonal, the inverse on it */
    frag P[2][LOWER][32];                /* as left and as right operands */
    float part[CT][C];                   /* sums over a column tile of rows of Q K^T, weighted */
    float weight[C], query[C], start[C]; /* |kf|, what q was divided by, n.q before the chunk */
    float factor[C], value_factor[C];    /* f times query, and times the scale of V */
    uint32_t top[WARPS];
    __half K[C * PITCH], A[C * PITCH], Q[C * PITCH]; /* unit keys, write directions, unit queries */
};
/* V follows, [C][map_pitch] halves; of every sixteen columns, place 8 h + 2 t + i holds column 4 t + 2 h + i */

template <int DK> __host__ __device__ inline size_t map_bytes(int dvp)
{
    return sizeof(map_shared<DK>) + (size_t)(C * map_pitch<DK>(dvp)) * sizeof(__half);
}

/* Unit keys and, for delta, the write directions beta K. */
template <int DK, bool WIDE>
__device__ __forceinline__ void put_keys(map_shared<DK> &s, const raw_of<WIDE> (&raw)[map_rows<DK>::PASSES],
                                         const float (&logit)[map_rows<DK>::PASSES], const arguments &a, int64_t head,
                                         int64_t token, int left)
{
    using R = map_rows<DK>;
#pragma unroll
    for (int i = 0; i < R::PASSES; i++) {
        float x[8], y[8];
        const int r = R::row(i);
        const bool in = r < left;
        convert8(x, raw[i], dtype_of<WIDE>(a));
        const float norm = unit8<false>(x, y, R::column(), a.dk, a.features, R::L);
        float beta = a.b ? sigmoid(logit[i]) : 1.0f;
        const bool bad = !(norm < INFINITY) || !(beta >= 0); /* zeros instead, and the token noted */
        if (bad && in && R::column() == 0) atomicMin(&a.bad[head], (unsigned long long)(token + r));
        if (!in || bad) /* phi(0) is not 0 */
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = y[j] = 0;
        beta = bad ? 0.0f : beta;
        put8(s.K + r * map_shared<DK>::PITCH + R::column(), x);
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] *= beta;
        put8(s.A + r * map_shared<DK>::PITCH + R::column(), x);
    }
}

/* Queries, what they were divided by, and their products with n: unit rows, or rows as they are where float16 takes
 * them. A NaN stays: it touches its own row only. TOGETHER: the usual case for all rows at once; of vla that is faster
 * where all blocks are in at once and slower in several turns (docs/cuda.md, "Where places stand empty"). */
template <int DK, bool WIDE, bool TOGETHER>
__device__ __forceinline__ void put_queries(map_shared<DK> &s, const raw_of<WIDE> (&raw)[map_rows<DK>::PASSES],
                                            const float (&n)[8], const arguments &a, int left)
{
    using R = map_rows<DK>;
    if constexpr (TOGETHER && !WIDE)
        if (a.dtype == VLA_BF16 && a.features == VLA_ELU1 && !a.qk_l2 && a.dk == DK && left >= C)
            if (put_usual_queries<R, R::AT_ONCE * map_shared<DK>::PITCH>(
                    s, s.Q + R::row(0) * map_shared<DK>::PITCH + R::column(), n, a.ratio,
                    [&](int i) { return raw[i].half[0]; }))
                return;
#pragma unroll
    for (int i = 0; i < R::PASSES; i++) {
        const int r = R::row(i);
        const bool in = r < left;
        float x[8], y[8], dot = 0, norm = 1;
        convert8(x, raw[i], dtype_of<WIDE>(a));
        features8<false>(y, x, a.features);
        if (R::column() + 8 > a.dk)
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = R::column() + j < a.dk ? y[j] : 0.0f;
        float most = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) most = fmaxf(most, fabsf(y[j]));
        float sum = 0; /* NaN, which fmaxf drops */
#pragma unroll
        for (int j = 0; j < 8; j++) sum += y[j];
        /* O_loc of float16 is a sum over 64 tokens of products with them */
        const bool usual = most < (WIDE ? 16.0f : 512.0f) && most > 0.015625f && fabsf(sum) < INFINITY;
        if (a.qk_l2 || !__all_sync(FULL_WARP, usual || !in || R::column() >= a.dk)) {
            norm = unit8<false>(x, y, R::column(), a.dk, a.features, R::L);
            const bool wrong = !(fabsf(norm) < INFINITY); /* zeros, and the factor makes its row NaN */
            if (a.qk_l2 && norm > 0) norm = 1;
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = wrong ? 0.0f : x[j];
            norm = wrong ? NAN : norm;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            y[j] = in ? y[j] : 0.0f;
            dot = fmaf(n[j], y[j], dot);
        }
        if (a.ratio) dot = group_sum(dot, R::L);
        put8(s.Q + r * map_shared<DK>::PITCH + R::column(), y);
        if (R::column() == 0) s.query[r] = in ? norm : 0.0f, s.start[r] = dot;
    }
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

/* BOTH: P is wanted as left operands too. */
template <int DK, bool BOTH>
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
    const frag P = pack_tile<M>(c[0], c[1]);
    if (BOTH) s.P[0][lower(i, j)][lane] = P;
    s.P[1][lower(i, j)][lane] = right_order(P);
    if (!ratio) return;
    if (i == j) keep_lower(d, lane);
    weigh_rows(s, d, i, j, lane);
}

/* The row sums alone, which need no a. */
template <int DK> __device__ __forceinline__ void sum_rows(map_shared<DK> &s, int warp, int lane)
{
    const map_tiles<DK> at(s, lane);
#pragma unroll 1
    for (int e = warp; e < LOWER; e += map_shared<DK>::WARPS) {
        const int i = (e > 0) + (e > 2) + (e > 5), j = e - lower(i, 0);
        const uint32_t Q = at.Q + i * at.ROWS, K = at.right_K + j * at.ROWS;
        float d[2][4] = {};
#pragma unroll
        for (int k = 0; k < sizes<DK>::KT; k++)
            mma_r<f16_arithmetic>(d, load_plain(Q + 32 * k), load_plain(K + 32 * k));
        if (i == j) keep_lower(d, lane);
        weigh_rows(s, d, i, j, lane);
    }
}

/* What each warp does beside the diagonal tiles of N, which the first CT warps take: bytes 16 (is N) + 4 i + j. */
template <int DK> __device__ __forceinline__ uint32_t tasks_of(int warp)
{
    if (DK == 64) return warp == 0 ? 0x140d0c00u : warp == 1 ? 0x180e0504u : warp == 2 ? 0x1c190f08u : 0x1e1d0a09u;
    return warp < 4    ? 0xffffff00u | (warp == 0   ? 0x14u
                                        : warp == 1 ? 0x18u
                                        : warp == 2 ? 0x19u
                                                    : 0x1cu)
           : warp == 4 ? 0xff0d0c00u
           : warp == 5 ? 0xff0e0504u
           : warp == 6 ? 0xff1d0f08u
                       : 0xff1e0a09u;
}

template <int DK, bool BOTH>
__device__ __forceinline__ void make_products(map_shared<DK> &s, bool ratio, int warp, int lane)
{
    float c[2][4];
    const map_tiles<DK> at(s, lane);
    if (warp < CT) {
        product_N<DK>(at, c, warp, warp);
        s.N[lower(warp, warp)][lane] = right_order(invert_unit_lower(c, lane));
    }
    uint32_t tasks = tasks_of<DK>(warp);
#pragma unroll 1
    for (; (tasks & 0xffu) != 0xffu; tasks = tasks >> 8 | 0xff000000u) {
        const int i = (int)(tasks >> 2 & 3), j = (int)(tasks & 3);
        if (tasks & 16) {
            product_N<DK>(at, c, i, j);
            s.N[lower(i, j)][lane] = right_order(negate(pack_tile<f16_arithmetic>(c[0], c[1])));
        } else {
            product_P<DK, BOTH>(s, at, ratio, i, j, lane);
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

/* Sixteen columns of K to D and Qeff, and sixteen of V to B and O_loc. `first`: of this warp; the factors are made when
 * all warps have come so far. */
template <int DK, bool WIDE>
__device__ __forceinline__ void columns(const map_shared<DK> &s, const __half *V, const arguments &a, int64_t at,
                                        int keys, int values, float scale, bool first, int lane)
{
    using M = f16_arithmetic;
    using W = typename map_arithmetic<WIDE>::type;
    constexpr int KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH, ROWS = 32 * PITCH;
    const int g = lane / 4, t = lane % 4, pitch = map_pitch<DK>(a.dvp);
    const bool has_keys = keys < KT, has_values = values < a.dvp / 16;
    const int key = has_keys ? keys : 0, value = has_values ? values : 0;
    const uint32_t turned = turned_offset(PITCH, lane), plain = plain_offset(PITCH, lane),
                   K = shared_address(s.K) + turned + 32 * key, left_A = shared_address(s.A) + turned,
                   right_A = shared_address(s.A) + plain, Q = shared_address(s.Q) + plain + 32 * key,
                   V0 = shared_address(V) + turned_offset(pitch, lane) + 32 * value;
    const frag unit = right_order(unit_tile<M>(lane));
    frag RK[CT], RV[CT];
#pragma unroll
    for (int i = 0; i < CT; i++) {
        RK[i] = load_turned(K + i * ROWS);
        RV[i] = load_turned(V0 + i * 32 * pitch);
        substitute<DK>(RK, s, unit, i, lane);
        substitute<DK>(RV, s, unit, i, lane);
    }
#pragma unroll
    for (int i = 0; i < CT; i++) RK[i] = right_order(negate(RK[i]));
    frag *maps = a.maps + at * record_frags<DK, WIDE> + key * 32 + lane,
         *strip = a.columns + (at * (a.dvp / 16) + value) * strip_frags<DK> + lane;
    const uint32_t by = pack(bf16_arithmetic{}, scale, scale);
    const auto scaled = [&](float x, float y) { return WIDE ? pack(W{}, x, y) : scaled_pair(pack(W{}, x, y), by); };
#pragma unroll
    for (int m = 0; m < KT; m++) {
        float c[2][4] = {}, d[2][4] = {};
#pragma unroll
        for (int i = 0; i < CT; i++) {
            mma_r<M>(c, load_turned(left_A + i * ROWS + 32 * m), RK[i]);
            mma_r<M>(d, RV[i], load_turned(right_A + i * ROWS + 32 * m));
        }
        if (has_keys) maps[m * KT * 32] = pack_tile<W>(c[0], c[1]);
        if (has_values)
            strip[m * 32] = {{scaled(d[0][0], d[0][1]), scaled(d[1][0], d[1][1]), scaled(d[0][2], d[0][3]),
                              scaled(d[1][2], d[1][3])}};
    }
    if (!WIDE && first) __syncthreads();
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4] = {}, d[2][4] = {};
        mma_r<M>(c, load_plain(Q + m * ROWS), unit);
#pragma unroll
        for (int i = 0; i <= m; i++) {
            mma_r<M>(c, s.P[0][lower(m, i)][lane], RK[i]);
            mma_r<M>(d, RV[i], s.P[1][lower(m, i)][lane]);
        }
        if constexpr (WIDE) { /* the walk takes care of factors */
            if (has_keys) maps[sizes<DK>::square + m * KT * 32] = pack_tile<W>(c[0], c[1]);
            if (has_values)
                strip[(KT + m) * 32] = {{pack(W{}, d[0][0], d[0][1]), pack(W{}, d[1][0], d[1][1]),
                                         pack(W{}, d[0][2], d[0][3]), pack(W{}, d[1][2], d[1][3])}};
            continue;
        }
        const float f0 = s.factor[16 * m + g], f1 = s.factor[16 * m + g + 8];
        const float2 e0 = *(const float2 *)&s.value_factor[16 * m + 2 * t],
                     e1 = *(const float2 *)&s.value_factor[16 * m + 8 + 2 * t];
#pragma unroll
        for (int h = 0; h < 2; h++) c[h][0] *= f0, c[h][1] *= f0, c[h][2] *= f1, c[h][3] *= f1;
        if (has_keys) maps[sizes<DK>::square + m * KT * 32] = pack_tile<W>(c[0], c[1]);
        if (has_values)
            strip[(KT + m) * 32] = {
                {pack(W{}, d[0][0] * e0.x, d[0][1] * e0.y), pack(W{}, d[1][0] * e1.x, d[1][1] * e1.y),
                 pack(W{}, d[0][2] * e0.x, d[0][3] * e0.y), pack(W{}, d[1][2] * e1.x, d[1][3] * e1.y)}};
    }
}

__device__ __forceinline__ frag load_l2(const frag *from)
{
    const uint4 x = __ldcg((const uint4 *)from);
    return {{x.x, x.y, x.z, x.w}};
}

/* What precedes the maps: N and P of a chunk and its rows' factors, by the warps that `meet_all` brings together, which
 * is to be called once more before the factors are read. Returns V's scale. EARLY: penalty lets this kernel in once all
 * before it is there, and only a is waited for. PAIRS: a chunk without tokens may not be in the workspace, and P is not
 * wanted as left operands. */
template <vla_op OP, int DK, bool WIDE, bool EARLY, bool TOGETHER, bool PAIRS, typename F>
__device__ __forceinline__ float solve_chunk(map_shared<DK> &s, __half *V, const arguments &a, int64_t head,
                                             int64_t chunk, int left, int warp, int lane, F &&meet_all)
{
    using R = map_rows<DK>;
    constexpr int WARPS = map_shared<DK>::WARPS, KT = sizes<DK>::KT, PITCH = map_shared<DK>::PITCH;
    const int64_t at = head * a.stride + chunk, token = a.first_token + chunk * C, row0 = head * a.T + token;
    const bool there = !PAIRS || left > 0;
    raw_of<WIDE> query[R::PASSES];
    map_values<DK, WIDE> values;
    int bad = C;
    grid_release(a.early);
    fetch_tokens<DK, WIDE>(query, a.q, a, row0, left);
    values.fetch(a, row0, left);
    constexpr int TILES = CT * KT / WARPS;
    frag x[TILES];
    const auto load_there = [&](const frag *from) { return there ? load_l2(from) : frag{{0, 0, 0, 0}}; };
    const auto load_directions = [&]() {
#pragma unroll
        for (int i = 0; i < TILES; i++) x[i] = load_there(a.X + at * sizes<DK>::tiles + (warp + i * WARPS) * 32 + lane);
    };
    const auto put_directions = [&]() {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const int tile = warp + i * WARPS;
            store_tile(s.A + tile / KT * 16 * PITCH + tile % KT * 16, PITCH, lane, x[i]);
        }
    };
    if constexpr (OP == VLA_VLA) {
        frag k[TILES];
        float n[8] = {};
        if (!EARLY) grid_wait();
#pragma unroll
        for (int i = 0; i < TILES; i++) k[i] = load_there(a.K + at * sizes<DK>::tiles + (warp + i * WARPS) * 32 + lane);
        if (!EARLY) load_directions();
        if (a.ratio && there) {
            const float4 *from = (const float4 *)(a.n + at * DK + R::column());
            const float4 lo = __ldcg(from), hi = __ldcg(from + 1);
            n[0] = lo.x, n[1] = lo.y, n[2] = lo.z, n[3] = lo.w, n[4] = hi.x, n[5] = hi.y, n[6] = hi.z, n[7] = hi.w;
            if (threadIdx.x < C) s.weight[threadIdx.x] = __ldcg(a.norm + at * C + threadIdx.x);
        } else if (PAIRS && threadIdx.x < C) {
            s.weight[threadIdx.x] = 0;
        }
        s.top[warp] = values.largest(a, bad);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const int tile = warp + i * WARPS;
            store_tile(s.K + tile / KT * 16 * PITCH + tile % KT * 16, PITCH, lane, k[i]);
        }
        if (!EARLY) put_directions();
        put_queries<DK, WIDE, TOGETHER>(s, query, n, a, left);
    } else {
        raw_of<WIDE> key[R::PASSES];
        float logit[R::PASSES];
        const float none[8] = {};
        fetch_tokens<DK, WIDE>(key, a.k, a, row0, left);
#pragma unroll
        for (int i = 0; i < R::PASSES; i++)
            logit[i] = a.b && R::row(i) < left ? load_element(a.b, dtype_of<WIDE>(a), row0 + R::row(i)) : 0.0f;
        grid_wait();
        s.top[warp] = values.largest(a, bad);
        put_queries<DK, WIDE, TOGETHER>(s, query, none, a, left);
        put_keys<DK, WIDE>(s, key, logit, a, head, token, left);
    }
    meet_all();
    uint32_t bits = s.top[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) bits = s.top[w] > bits ? s.top[w] : bits;
    const float scale = power_above(values.value_of(a, bits));
    values.put(V, a, 1.0f / scale);
    if constexpr (EARLY) {
        if (a.ratio) sum_rows<DK>(s, warp, lane);
        grid_wait();
        load_directions();
        put_directions();
        meet_all();
    }
    if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
    make_products<DK, !PAIRS>(s, !EARLY && a.ratio, warp, lane);
    if (OP == VLA_VLA && a.alpha)
        for (int i = (int)threadIdx.x; i < C * a.dk; i += 32 * WARPS) {
            const int r = i / a.dk, c = i % a.dk;
            if (r < left) store_element(a.alpha, a.dtype, (row0 + r) * a.dk + c, __half2float(s.A[r * PITCH + c]));
        }
    meet_all();
    if (threadIdx.x < C) {
        const int r = (int)threadIdx.x;
        float f = s.query[r];
        if (a.ratio) {
            float sum = s.start[r];
#pragma unroll
            for (int j = 0; j < CT; j++) sum += j <= r / 16 ? s.part[j][r] : 0.0f;
            const float den = f * sum, floor = (float)VLA_RATIO_EPS;
            f = f / (den < floor ? floor : den);
        }
        if constexpr (WIDE) {
            map_record<DK, WIDE> &record = ((map_record<DK, WIDE> *)a.maps)[at];
            record.factor[r] = f;
            if (r == 0) record.scale = scale;
        } else { /* of a NaN query O_loc is 0, not to reach other rows of its product in walk */
            s.factor[r] = f, s.value_factor[r] = f == f ? f * scale : 0.0f;
        }
    }
    return scale;
}

template <vla_op OP, int DK, bool WIDE, bool EARLY, bool TOGETHER>
__global__ void __launch_bounds__(map_shared<DK>::THREADS, DK == 64 ? 4 : 2) map(const __grid_constant__ arguments a)
{
    constexpr int WARPS = map_shared<DK>::WARPS, KT = sizes<DK>::KT;
    extern __shared__ __align__(16) unsigned char raw[];
    map_shared<DK> &s = *(map_shared<DK> *)raw;
    __half *V = (__half *)(raw + sizeof(map_shared<DK>));
    const int64_t head = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks, at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C;
    const int left = (int)(a.T - token < C ? a.T - token : C), lane = (int)threadIdx.x % 32, warp = warp_number();
    const float scale = solve_chunk<OP, DK, WIDE, EARLY, TOGETHER, false>(s, V, a, head, chunk, left, warp, lane,
                                                                          []() { __syncthreads(); });
    for (int slice = warp; slice < KT || slice < a.dvp / 16; slice += WARPS)
        columns<DK, WIDE>(s, V, a, at, slice, slice, scale, slice == warp, lane);
}
} /* namespace chunked::apart */

#endif
