/* Chunks in one kernel with their walk (chunk.cuh), dk from 65 to 128: the first blocks walk, one for 64 rows of S of a
 * head (chunk_wide_walk.cuh); the others are chunks, in order, a block each.
 *
 * Everything is asked of memory at once. Queries take what they need of the sums before the chunk while the write
 * directions come; four warps make the diagonal tiles of N and their inverses, the others the tiles below and a for
 * the walk. Then each warp takes sixteen columns of K and of V through substitution, to memory for the walk, and keeps
 * them in registers; tiles of P and Q K^T are dealt; Qeff takes the place of Q, and O_loc stays in registers until the
 * state is there. */
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

/* 32 tokens of sixteen rows of R^T to their blocks. */
__device__ __forceinline__ void put_blocks(unsigned char *to, const frag &x, const frag &y, int lane)
{
    to += lane % 4 * 128 + lane / 4 * 16;
#pragma unroll
    for (int p = 0; p < 2; p++) *(uint4 *)(to + p * 1024) = make_uint4(x.x[p], x.x[2 + p], y.x[p], y.x[2 + p]);
}

/* a for the walk by the last four warps. Eight lanes read two rows, of which every other eight columns: all banks. */
__device__ __forceinline__ void put_directions(unsigned char *to, const chunk_shared &s, int warp, int lane)
{
    const int piece = (warp - 4) / 2 * 8 + warp % 2 + lane % 8 / 2 * 2, row = lane / 8 * 2 + lane % 2;
    const __half *from = s.A + (lane / 8 * 8 + lane % 2) * PITCH + 8 * piece;
    to += piece * 128 + row * 16;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint4 x = *(const uint4 *)(from + (k / 4 * 32 + k % 4 * 2) * PITCH);
        const auto turn = [](uint32_t w) {
            const float2 y = unpack(f16_arithmetic{}, w);
            return pack(bf16_arithmetic{}, y.x, y.y);
        };
        *(uint4 *)(to + k * (DK * 16)) = make_uint4(turn(x.x), turn(x.y), turn(x.z), turn(x.w));
    }
}

/* One step of block forward substitution on sixteen columns of X, transposed: y = (N_ii^-1 (X_i - sum_k<i N_ik R_k))^T,
 * and as a left operand in R. */
__device__ __forceinline__ void solve(float (&y)[2][4], frag (&R)[CT], const chunk_shared &s, const frag &unit, int i,
                                      int lane)
{
    using M = f16_arithmetic;
#pragma unroll
    for (int n = 0; n < 8; n++) y[n / 4][n % 4] = 0;
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
    const unsigned each = (unsigned)a.at_once * (unsigned)(a.walks + a.chunks), group = blockIdx.x / each,
                   head0 = group * (unsigned)a.at_once, more = (unsigned)a.heads - head0,
                   heads = more < (unsigned)a.at_once ? more : (unsigned)a.at_once, walks = heads * (unsigned)a.walks;
    unsigned place = blockIdx.x - group * each;
    if (place < walks) {
        walk(*(walk_shared *)raw, a, head0 + place / (unsigned)a.walks, (int)(place % (unsigned)a.walks));
        return;
    }
    place -= walks;
    chunk_shared &s = *(chunk_shared *)raw;
    const int64_t head = head0 + place % heads, chunk = place / heads, at = head * a.stride + chunk;
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
        if (warp < strips) fetch_values(v, a, row0, left, warp, lane);
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
        if (warp < strips) fetch_values(v, a, row0, left, warp, lane);
        mark();
        put_keys<DK>(s, key, logit, a, head, token);
    }
    put_queries<R, true>(s, n, a, left);
    frag RK[CT], RV[CT];
    float scale = take_values(RV, v, a, bad, lane);
    if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
    __syncthreads();
    const unsigned long long first = __ldcg(a.bad + head); /* waited for later */
    const map_tiles<DK> tiles(s, lane);
    unsigned char *const map = map_of(a, at);
    if (warp < CT) {
        float c[2][4];
        product_N<DK>(tiles, c, warp, warp);
        s.N[lower(warp, warp)][lane] = right_order(invert_unit_lower(c, lane));
    } else {
        make_products<DK>(s, tiles, tasks_before<DK>(warp), false, lane);
        put_directions(map + KEYS, s, warp, lane);
    }
    if (OP == VLA_VLA && a.alpha)
        for (int i = (int)threadIdx.x; i < left * a.dk; i += THREADS) {
            const int r = i / a.dk, c = i % a.dk;
            store_element(a.alpha, a.dtype, (row0 + r) * a.dk + c, __half2float(s.A[r * PITCH + c]));
        }
    __syncthreads();
    const int64_t wrong = (int64_t)(first < INT64_MAX ? first : INT64_MAX) - token;
    const int finite = wrong < C ? (wrong > 0 ? (int)wrong : 0) : C; /* what is not goes on by the state */
    const frag unit = right_order(unit_tile<M>(lane));
    {
        const uint32_t K = shared_address(s.K) + turned_offset(PITCH, lane) + 32 * warp;
        unsigned char *const values = map + 2 * KEYS + warp / 4 * VALUES;
        frag key[2];
        if (lane < 8 && warp < 4 * a.walks) ((float *)values)[warp % 4 * 8 + lane] = finite < C ? NAN : scale;
#pragma unroll
        for (int i = 0; i < CT; i++) {
            float y[2][4];
            RK[i] = negate(load_turned(K + i * ROWS));
            solve(y, RK, s, unit, i, lane);
            key[i % 2] = pack_tile<bf16_arithmetic>(y[0], y[1]);
            if (i % 2) put_blocks(map + warp * 2048 + i / 2 * 512, key[0], key[1], lane);
            solve(y, RV, s, unit, i, lane);
            if (i % 2 && warp < strips)
                put_blocks(values + SCALES + warp % 4 * STRIP + i / 2 * 512, RV[i - 1], RV[i], lane);
        }
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
        make_products<DK>(s, tiles, tasks_after<DK>(warp), a.ratio, lane);
    }
    __syncthreads();
    float factor[2 * CT];
    row_factors(factor, s, a.ratio, lane);
#pragma unroll
    for (int i = 0; i < CT; i++) RK[i] = right_order(RK[i]);
    effective_queries<DK>(s, RK, factor, warp, lane);
    const frag *const state = a.states + (at * strips + warp) * sizes<DK>::strip;
    const bool has_values = warp < strips;
    uint4 S[KT];
    float o[CT][2][4] = {};
    if (has_values) {
#pragma unroll
        for (int k = 0; k < KT; k++) S[k] = load_relaxed(state + k * 32 + lane);
#pragma unroll
        for (int i = 0; i < CT; i++) {
            const frag right = right_order(RV[i]);
#pragma unroll
            for (int m = i; m < CT; m++) mma_r<M>(o[m], s.P[lower(m, i)][lane], right);
        }
#pragma unroll
        for (int m = 0; m < CT; m++)
#pragma unroll
            for (int i = 0; i < 8; i++) o[m][i / 4][i % 4] *= factor[2 * m + i % 4 / 2] * scale;
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
