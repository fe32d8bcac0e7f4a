/* Chunks in one kernel with their walk (chunk.cuh), dk from 65 to 128, eight warps a block: of every at_once heads
 * every other of the first blocks walks, one for 64 rows of S of a head (chunk_wide_walk.cuh); the others are chunks,
 * in order, a block each. A chunk's block may so come before its head's walk, by fewer blocks than walk at once: all of
 * these find places, an eighth of the device's at most.
 *
 *   N = I + stril(K a^T) ; P = tril(Q a^T) ; E = -N^-T a ; G = P N^-1
 *   S' = S + (S K^T - V^T) E ; O = f (G V + (Q - G K) S^T)
 * The walk gets K, V^T and E of a chunk. -E^T and G are rows times N^-1, so N is used as a right operand only, and a
 * state is nearly as exact as by D and B. (By N^-1 K and N^-1 V it is not where keys are nearly equal.)
 *
 * Everything is asked of memory at once, and queries are made when they are there. Four warps then have N^T (A K^T
 * above its unit diagonal) by wgmma out of shared memory (m64n64k16; mma on older devices), sixteen rows each, and
 * invert its diagonal tiles; the others have P the same way and bring K to the walk. Each warp takes sixteen columns of
 * a to E, which a flag tells the walk of. Then the first four take the rows of P to G, the others the row sums of Q K^T
 * for the ratio; Qeff takes the place of Q, and O_loc stays in registers until the state is there. */
#ifndef VLA_CUDA_CHUNK_WIDE_CUH
#define VLA_CUDA_CHUNK_WIDE_CUH
#include "kernels/cuda/chunk_map.cuh"
#include "kernels/cuda/chunk_wide_walk.cuh"

namespace chunked::wide
{
constexpr int WARPS = DK / 16, THREADS = 32 * WARPS, BLOCKS = 2; /* blocks a multiprocessor */
static_assert(WARPS == 2 * WALKERS && BLOCKS * 32 * WALKERS * (WALK_REGISTERS + OTHER_REGISTERS) == 64 * 1024,
              "the walk's registers are those of a block");

/* 64 rows of DK halves as tiles of 64 columns, rows of 128 bytes, as wgmma takes them with its 128-byte swizzle: the
 * sixteen bytes `piece` of row r are at piece ^ r % 8. */
constexpr uint32_t TILE = C * 128, ROWS = 16 * 128; /* bytes of a tile, of sixteen rows */
struct __align__(1024) matrix
{
    __half x[C * DK];
    __device__ __forceinline__ __half *at(int row, int column)
    {
        return x + column / 64 * (int)(TILE / 2) + row * 64 + (column / 8 % 8 ^ row % 8) * 8 + column % 8;
    }
};

struct chunk_shared {
    static constexpr int PITCH = 64;
    matrix K, A, Q;    /* unit keys, write directions, unit queries, then Qeff (bfloat16) */
    frag N[LOWER][32]; /* right operands of rows times N^-1: -N below the diagonal, the inverse on it */
    frag G[LOWER][32]; /* -G, left operands */
    float weight[C], query[C], start[C], factor[C]; /* |kf|, what q was divided by, n.q before the chunk, f */
    __device__ __forceinline__ __half *query_at(int row, int column) { return Q.at(row, column); }
};

/* Addresses of sixteen columns from 16 `strip` on, of the first sixteen rows, ROWS bytes from one sixteen to the next:
 * a lane's part of tiles (plain_offset) or of their transposes (turned_offset). */
__device__ __forceinline__ uint32_t strip_address(const matrix &m, int strip, bool turned, int lane)
{
    const int row = turned ? lane % 8 + lane / 16 * 8 : lane % 16, half = turned ? lane / 8 % 2 : lane / 16;
    return shared_address(&m) + (uint32_t)(strip / 4) * TILE + (uint32_t)row * 128 +
           (uint32_t)((strip % 4 * 2 + half) ^ row % 8) * 16;
}

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

/* K for the walk by four warps. Eight lanes read two rows, of which every other piece: all banks. */
__device__ __forceinline__ void put_walk_keys(unsigned char *to, const chunk_shared &s, int warp, int lane)
{
    const int piece = warp % 2 + lane % 8 / 2 * 2, row = lane / 8 * 8 + lane % 2;
    const uint32_t from = shared_address(&s.K) + (uint32_t)(warp / 2) * TILE + (uint32_t)row * 128;
    to += (warp / 2 * 8 + piece) * (C * 16) + (lane / 8 * 2 + lane % 2) * 16;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const frag x =
            load_frag(from + n / 4 * 32 * 128 + n % 4 * 2 * 128 + (uint32_t)(piece ^ (n % 4 * 2 + lane % 2)) * 16);
        const auto turn = [](uint32_t w) {
            const float2 y = unpack(f16_arithmetic{}, w);
            return pack(bf16_arithmetic{}, y.x, y.y);
        };
        *(uint4 *)(to + n * 128) = make_uint4(turn(x.x[0]), turn(x.x[1]), turn(x.x[2]), turn(x.x[3]));
    }
}

#if VLA_WGMMA
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fffu) | (uint64_t)64 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}
#define VLA_F4(m, h) "+f"(c[m][h][0]), "+f"(c[m][h][1]), "+f"(c[m][h][2]), "+f"(c[m][h][3])
#define VLA_F8(m) VLA_F4(m, 0), VLA_F4(m, 1)
__device__ __forceinline__ void product_async(float (&c)[CT][2][4], uint64_t left, uint64_t right)
{
    asm volatile("{ .reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                 "%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0; }"
                 : VLA_F8(0), VLA_F8(1), VLA_F8(2), VLA_F8(3)
                 : "l"(left), "l"(right));
}
#undef VLA_F8
#undef VLA_F4
#endif

/* c += X Y^T by four warps, of which this has rows 16 `own` on. */
__device__ __forceinline__ void add_rows_product(float (&c)[CT][2][4], const matrix &X, const matrix &Y, int own,
                                                 int lane)
{
#if VLA_WGMMA
    const uint64_t left = tile_descriptor(shared_address(&X)), right = tile_descriptor(shared_address(&Y));
#pragma unroll
    for (int k = 0; k < KT; k++) {
        const uint64_t step = (uint64_t)(k / 4 * (TILE / 16) + k % 4 * 2);
        product_async(c, left + step, right + step);
    }
#else
#pragma unroll
    for (int k = 0; k < KT; k++) {
        const frag x = load_plain(strip_address(X, k, false, lane) + (uint32_t)own * ROWS);
#pragma unroll
        for (int j = 0; j < CT; j++)
            mma_r<f16_arithmetic>(c[j], x, load_plain(strip_address(Y, k, true, lane) + j * ROWS));
    }
#endif
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

/* The inverse of I + the strict upper part of a tile: X12 = -X11 N12 X22 above the diagonal blocks. */
__device__ __forceinline__ frag invert_unit_upper(const float (&c)[2][4], int lane)
{
    using M = f16_arithmetic;
    frag inverse = invert_diagonal<true>(c, lane);
    const uint32_t right[4] = {pack(M{}, -c[1][0], -c[1][1]), 0, 0, 0};
    float y[4] = {}, z[4] = {};
    mma(M{}, y, right, transpose8(inverse.x[3]), 0u); /* -X12 X22^-1 */
    const uint32_t upper[4] = {inverse.x[0], 0, 0, 0};
    mma(M{}, z, upper, transpose8(pack(M{}, y[0], y[1])), 0u);
    inverse.x[2] = pack(M{}, z[0], z[1]);
    return inverse;
}

/* Rows 16 `own` on of N^T, of A K^T above the diagonal, which are columns of N, to right operands, by four warps. */
__device__ __forceinline__ void make_N(chunk_shared &s, int own, int lane)
{
    using M = f16_arithmetic;
    float c[CT][2][4] = {}, d[2][4];
    products_begin();
    add_rows_product(c, s.A, s.K, own, lane);
    products_commit();
    products_wait();
#pragma unroll
    for (int i = 0; i < CT; i++) {
        if (i > own) s.N[lower(i, own)][lane] = right_order(negate(pack_tile<M>(c[i][0], c[i][1])));
        if (i == own)
#pragma unroll
            for (int n = 0; n < 8; n++) d[n / 4][n % 4] = c[i][n / 4][n % 4];
    }
    s.N[lower(own, own)][lane] = right_order(invert_unit_upper(d, lane));
}

/* Rows 16 `own` on of P = tril(Q a^T) as left operands, by four warps. */
__device__ __forceinline__ void make_P(frag (&P)[CT], chunk_shared &s, int own, int lane)
{
    float c[CT][2][4] = {};
    products_begin();
    add_rows_product(c, s.Q, s.A, own, lane);
    products_commit();
    products_wait();
#pragma unroll
    for (int j = 0; j < CT; j++) {
        if (j == own) keep_lower(c[j], lane);
        P[j] = pack_tile<f16_arithmetic>(c[j][0], c[j][1]);
        if (j > own) P[j] = frag{};
    }
}

/* Factors of rows 16 `own` on, by four warps: f times what the query was divided by, with the row sums of tril(Q K^T),
 * weighted by |kf|, for the ratio. */
__device__ __forceinline__ void make_factors(chunk_shared &s, bool ratio, int own, int lane)
{
    const int g = lane / 4, t = lane % 4, row = 16 * own + g;
    float upper = 0, below = 0;
    if (ratio) {
        float c[CT][2][4] = {};
        products_begin();
        add_rows_product(c, s.Q, s.K, own, lane);
        products_commit();
        products_wait();
#pragma unroll
        for (int j = 0; j < CT; j++)
            if (j <= own) {
                if (j == own) keep_lower(c[j], lane);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float2 w = *(const float2 *)&s.weight[16 * j + 8 * h + 2 * t];
                    upper = fmaf(c[j][h][0], w.x, fmaf(c[j][h][1], w.y, upper));
                    below = fmaf(c[j][h][2], w.x, fmaf(c[j][h][3], w.y, below));
                }
            }
        upper = group_sum(upper, 4), below = group_sum(below, 4);
    }
    if (t > 1) return;
    const int r = row + 8 * t;
    float f = s.query[r];
    if (ratio) {
        const float den = f * (s.start[r] + (t ? below : upper)), floor = (float)VLA_RATIO_EPS;
        f = f / (den < floor ? floor : den);
    }
    s.factor[r] = f;
}

/* Sixteen columns of Q to Qeff = Q - G K, in its place. */
__device__ __forceinline__ void make_effective(chunk_shared &s, const float (&factor)[2 * CT], int warp, int lane)
{
    using M = f16_arithmetic;
    const uint32_t Q = strip_address(s.Q, warp, false, lane), K = strip_address(s.K, warp, false, lane);
    const frag unit = right_order(unit_tile<M>(lane));
    frag right[CT];
#pragma unroll
    for (int i = 0; i < CT; i++) right[i] = load_turned(K + i * ROWS);
#pragma unroll
    for (int m = 0; m < CT; m++) {
        float c[2][4] = {};
        mma_r<M>(c, load_plain(Q + m * ROWS), unit);
#pragma unroll
        for (int i = 0; i <= m; i++) mma_r<M>(c, s.G[lower(m, i)][lane], right[i]);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[h][i] *= factor[2 * m + i / 2];
        store_frag<false>(Q + m * ROWS, pack_tile<bf16_arithmetic>(c[0], c[1]));
    }
}

/* Older devices have shared memory for one block a multiprocessor. */
template <vla_op OP>
__global__ void __launch_bounds__(THREADS, VLA_HOPPER ? BLOCKS : 1) chunks(const __grid_constant__ arguments a)
{
    using M = f16_arithmetic;
    using R = map_rows<DK>;
    extern __shared__ __align__(1024) unsigned char raw[];
    grid_wait();
    /* of every at_once heads walks and first chunks by turns, then the other chunks in order */
    const unsigned each = (unsigned)a.at_once * (unsigned)(a.walks + a.chunks),
                   group = blockIdx.x < each ? 0 : blockIdx.x / each, head0 = group * (unsigned)a.at_once,
                   more = (unsigned)a.heads - head0, heads = more < (unsigned)a.at_once ? more : (unsigned)a.at_once,
                   walks = heads * (unsigned)a.walks;
    const unsigned place = blockIdx.x - group * each;
    const int apart = a.chunks < a.walks ? 0 : 1; /* with fewer chunks than walks these come first */
    const unsigned before = place >> apart;
    if (before < walks && before << apart == place) {
        walk(*(walk_shared *)raw, a, head0 + before / (unsigned)a.walks, (int)(before % (unsigned)a.walks));
        return;
    }
    const unsigned index = before < walks ? place - before - 1 : place - walks;
    const unsigned row = a.inverse && heads == (unsigned)a.at_once ? __umulhi(index, a.inverse) : index / heads;
    chunk_shared &s = *(chunk_shared *)raw;
    const int64_t head = head0 + (index - row * heads), chunk = row, at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C, row0 = head * a.T + token;
    int *const ready = a.ready + head * (a.stride + 1) + chunk;
    const int left = (int)(a.T - token < C ? a.T - token : C), strips = a.dvp / 16;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    int bad = C;
    float n[8] = {};
    four_values v = {};
    /* UNWRITTEN to the next state: chunk_walk.cuh */
    const auto mark = [&]() {
        if (chunk + 1 >= a.chunks || warp >= strips) return;
        frag *const next = a.states + ((at + 1) * strips + warp) * sizes<DK>::strip + lane;
#pragma unroll
        for (int i = 0; i < KT; i++)
            store_relaxed(next + i * 32, make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN));
    };
    if constexpr (OP == VLA_VLA) {
        constexpr int TILES = CT * KT / WARPS;
        frag k[TILES], x[TILES];
        const frag *const keys = a.K + at * sizes<DK>::tiles + threadIdx.x;
        const frag *const directions = a.X + at * sizes<DK>::tiles + threadIdx.x;
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
        for (int i = 0; i < TILES; i++) { /* a warp's tiles have the same columns */
            store_frag<false>(strip_address(s.K, warp, false, lane) + i * ROWS, k[i]);
            store_frag<false>(strip_address(s.A, warp, false, lane) + i * ROWS, x[i]);
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
        put_keys<DK, R::AT_ONCE * chunk_shared::PITCH>(s.K.at(R::row(0), R::column()), s.A.at(R::row(0), R::column()),
                                                       key, logit, a, head, token);
    }
    put_queries<R, true>(s, n, a, left);
    frag values[CT]; /* V^T of this warp's sixteen columns */
    const float scale = take_values(values, v, a, bad, lane);
    if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
#if VLA_WGMMA
    reads_before_copies(); /* writes too: they come before the products of other warps */
#endif
    __syncthreads();
    const unsigned long long first = __ldcg(a.bad + head); /* waited for later */
    unsigned char *const map = map_of(a, at);
    frag P[CT];
    if (warp < CT) {
        make_P(P, s, warp, lane);
        put_walk_keys(map, s, warp, lane);
    } else {
        make_N(s, warp - CT, lane);
    }
    if (OP == VLA_VLA && a.alpha)
        for (int i = (int)threadIdx.x; i < left * a.dk; i += THREADS) {
            const int r = i / a.dk, c = i % a.dk;
            store_element(a.alpha, a.dtype, (row0 + r) * a.dk + c, __half2float(*s.A.at(r, c)));
        }
    __syncthreads();
    const int64_t wrong = (int64_t)(first < INT64_MAX ? first : INT64_MAX) - token;
    const int finite = wrong < C ? (wrong > 0 ? (int)wrong : 0) : C; /* what is not goes on by the state */
    {
        const uint32_t A = strip_address(s.A, warp, true, lane);
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
            if (j % 2 == 0) put_blocks(map + KEYS + warp * 256 + j / 2 * (4 * DK * 16), DK * 16, 128, E[0], E[1], lane);
        }
        if (warp < strips)
#pragma unroll
            for (int h = 0; h < 2; h++)
                put_blocks(of + SCALES + warp % 4 * STRIP + h * 512, 128, 1024, values[2 * h], values[2 * h + 1], lane);
    }
    if (warp != 0) meet_later<THREADS>(1);
    if (warp < CT) { /* P to G */
        const frag unit = right_order(unit_tile<M>(lane));
#pragma unroll
        for (int j = CT - 1; j >= 0; j--)
            if (j <= warp) {
                float c[2][4] = {};
                mma_r<M>(c, P[j], unit);
                solve(c, P, s, j, lane);
                s.G[lower(warp, j)][lane] = negate(P[j]);
            }
    } else {
        make_factors(s, a.ratio, warp - CT, lane);
    }
    if (warp == 0) { /* this takes long */
        meet<THREADS>(1);
        if (lane == 0) {
            fence_copies(), add_release(ready + 1, 1);
            /* UNWRITTEN is there, or of the first chunk the state */
            while (load_acquire(ready) < (chunk == 0 ? a.walks : 1)) __nanosleep(64);
        }
    }
    __syncthreads();
    float factor[2 * CT];
#pragma unroll
    for (int i = 0; i < 2 * CT; i++) factor[i] = s.factor[lane / 4 + 8 * i];
    make_effective(s, factor, warp, lane);
    const frag *const state = a.states + (at * strips + warp) * sizes<DK>::strip;
    const bool has_values = warp < strips;
    uint4 S[KT], last;
    float o[CT][2][4] = {};
    if (has_values) {
        last = last_of_state<KT>(state);
#pragma unroll
        for (int i = 0; i < CT; i++) {
            const frag right = right_order(values[i]);
#pragma unroll
            for (int m = i; m < CT; m++) mma_r<M>(o[m], s.G[lower(m, i)][lane], right);
        }
#pragma unroll
        for (int m = 0; m < CT; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= factor[2 * m + i % 4 / 2] * -scale; /* G was negated */
    }
    __syncthreads();
    if (has_values) {
        await_state(S, state, last, lane);
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int m = 0; m < CT; m++) {
                const frag q = load_plain(strip_address(s.Q, k, false, lane) + m * ROWS);
                mma(bf16_arithmetic{}, o[m][0], q.x, S[k].x, S[k].y);
                mma(bf16_arithmetic{}, o[m][1], q.x, S[k].z, S[k].w);
            }
        store_columns(o, a, row0, left, finite, warp, lane / 4, lane % 4);
    }
    __syncthreads();
    forget_maps(a, at, chunk > 0, a.dvp / 16 * (int)sizes<DK>::strip * (int)sizeof(frag), (int)map_bytes(a.walks),
                THREADS);
}
} /* namespace chunked::wide */

#endif
