/* solve of the chunkwise forms (chunk.cuh) where chunks a head are few: N = I + stril(K a^T), Rk = N^-1 K and
 * Rv = N^-1 V, a block a chunk.
 *
 * K and a are frags in shared memory. A warp makes a row of tiles of N: the inverse of the one on the diagonal, and
 * what is left of it times that inverse, so that R_i = N_ii^-1 X_i - sum_k<i (N_ii^-1 N_ik) R_k takes one product after
 * R_(i-1); the warps with few tiles bring a to where state wants it. Then each warp takes sixteen columns of K and of V
 * through that. Everything that needs no a comes before the wait for it, values of sixteen columns with a power of two
 * of their own, so that one barrier is left after a and one after N. */
#ifndef VLA_CUDA_CHUNK_SOLVE_CUH
#define VLA_CUDA_CHUNK_SOLVE_CUH
#include "kernels/cuda/chunk_map.cuh"
#include "kernels/cuda/chunk_state.cuh"
#include "kernels/cuda/chunk_records.cuh"

namespace chunked::back
{
/* vla: so many blocks that those of a multiprocessor find their registers beside penalty's. */
template <vla_op OP, int DK> struct solve_shape {
    static constexpr int KT = DK / 16, warps = KT, threads = 32 * warps,
                         blocks = (DK == 64 ? 8 : 4) / (OP == VLA_DELTA ? 2 : 1);
};
template <vla_op OP, int DK> struct solve_shared {
    static constexpr int PITCH = DK + 8, ROWS = OP == VLA_DELTA ? C * PITCH : 8;
    frag K[CT][DK / 16][32], X[CT][DK / 16][32]; /* unit keys, write directions */
    frag N[LOWER][32];             /* right operands in right order: the inverse on the diagonal, -N_ii^-1 N_ij below it */
    frag V[DK / 16][CT - 1][32];   /* of V^T, until a warp takes them: all but the first sixteen tokens */
    __half rows[2][ROWS]; /* of delta, K and X before they are frags */
    int salt;
};

/* Sixteen columns of V as frags of V^T over a power of two, which is returned; what is not finite becomes zero, and the
 * first such row of this lane's goes to `bad`. */
struct four_values { /* of rows lane / 4 + 8 i of the chunk, columns 4 (lane % 4).. of the strip */
    uint2 raw[2 * CT];
};
/* The same where rows are not whole fours: `in` elements of them, `left` rows from the first on. */
static __device__ __noinline__ four_values fetch_ragged(const __half *from, int step, int in, int left)
{
    four_values v;
#pragma unroll
    for (int i = 0; i < 2 * CT; i++, from += step) {
        const int n = 8 * i < left ? in : 0;
        v.raw[i].x = (n > 0 ? __half_as_ushort(from[0]) : 0u) | (n > 1 ? __half_as_ushort(from[1]) << 16 : 0u);
        v.raw[i].y = (n > 2 ? __half_as_ushort(from[2]) : 0u) | (n > 3 ? __half_as_ushort(from[3]) << 16 : 0u);
    }
    return v;
}

__device__ __forceinline__ void fetch_values(four_values &v, const arguments &a, int64_t row0, int left, int strip,
                                             int lane)
{
    const int g = lane / 4, column = 16 * strip + lane % 4 * 4, step = 8 * a.dv;
    const __half *from = (const __half *)a.v + (row0 + g) * a.dv + column; /* bfloat16 too */
    const bool whole = a.dv % 4 == 0;
#pragma unroll
    for (int i = 0; i < 2 * CT; i++, from += step) {
        v.raw[i] = make_uint2(0, 0);
        if (whole && g + 8 * i < left && column < a.dv) v.raw[i] = *(const uint2 *)from;
    }
    if (!whole) v = fetch_ragged(from - 2 * CT * step, step, a.dv - column, left - g);
}
__device__ __forceinline__ uint32_t largest_half(uint2 x)
{
    return __vmaxu2(x.x & 0x7fff7fffu, x.y & 0x7fff7fffu);
}
__device__ __forceinline__ uint32_t warp_top_half(uint32_t x)
{
    return __reduce_max_sync(FULL_WARP, max(x & 0xffffu, x >> 16));
}
/* What is not finite becomes zero: all four of a row, as later rows are NaN anyway. */
struct finite_values {
    four_values v;
    uint32_t top;
    int bad;
};
static __device__ __noinline__ finite_values drop_infinite(four_values v, uint32_t infinity, int bad, int lane)
{
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 2 * CT; i++) {
        const uint32_t most = largest_half(v.raw[i]);
        if ((most & 0xffffu) < infinity && most >> 16 < infinity) {
            top = __vmaxu2(top, most);
        } else {
            bad = min(bad, lane / 4 + 8 * i);
            v.raw[i] = make_uint2(0, 0);
        }
    }
    return {v, warp_top_half(top), bad};
}
__device__ __forceinline__ float take_values(frag (&R)[CT], four_values &v, const arguments &a, int &bad, int lane)
{
    const bool bf16 = a.dtype == VLA_BF16;
    const uint32_t infinity = bf16 ? 0x7f80u : 0x7c00u;
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 2 * CT; i++) top = __vmaxu2(top, largest_half(v.raw[i]));
    top = warp_top_half(top);
    if (top >= infinity) {
        const finite_values kept = drop_infinite(v, infinity, bad, lane);
        v = kept.v, top = kept.top, bad = kept.bad;
    }
    const float scale =
        power_above(bf16 ? __uint_as_float(top << 16) : __half2float(__ushort_as_half((unsigned short)top)));
    const float by = power_of(254 - (int)(__float_as_uint(scale) >> 23));
    const auto brought = [&](uint32_t x) {
        const float2 y = bf16 ? unpack(bf16_arithmetic{}, x) : unpack(f16_arithmetic{}, x);
        return transpose8(pack(f16_arithmetic{}, y.x * by, y.y * by));
    };
#pragma unroll
    for (int i = 0; i < CT; i++)
        R[i] = {{brought(v.raw[2 * i].x), brought(v.raw[2 * i].y), brought(v.raw[2 * i + 1].x),
                 brought(v.raw[2 * i + 1].y)}};
    return scale;
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

/* Row tile i of N. */
template <vla_op OP, int DK> __device__ __forceinline__ void solve_row(solve_shared<OP, DK> &s, int i, int lane)
{
    using M = f16_arithmetic;
    constexpr int KT = DK / 16;
    float c[2][4] = {};
#pragma unroll
    for (int k = 0; k < KT; k++) mma_t<M>(c, s.K[i][k][lane], s.X[i][k][lane]);
    const frag inverse = invert_unit_lower(c, lane), left = negate(inverse);
    s.N[lower(i, i)][lane] = right_order(inverse);
#pragma unroll 1
    for (int j = 0; j < i; j++) {
        float n[2][4] = {}, y[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) mma_t<M>(n, s.X[j][k][lane], s.K[i][k][lane]);
        mma_t<M>(y, left, pack_tile<M>(n[0], n[1]));
        s.N[lower(i, j)][lane] = right_order(pack_tile<M>(y[0], y[1]));
    }
}

/* A tile of a as the right operand that state wants. */
__device__ __forceinline__ frag turned_direction(const frag &x)
{
    frag y;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 v = unpack(f16_arithmetic{}, x.x[i]);
        y.x[i] = transpose8(pack(bf16_arithmetic{}, v.x, v.y));
    }
    return y;
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

/* A result times a power of two in bfloat16, and the transpose of that in right order. */
__device__ __forceinline__ frag scaled_tile(const float (&y)[2][4], float by)
{
    float x[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = y[i / 4][i % 4] * by;
    return pack_tile<bf16_arithmetic>(x[0], x[1]);
}
__device__ __forceinline__ frag turned_tile(const frag &x)
{
    return {{transpose8(x.x[0]), transpose8(x.x[1]), transpose8(x.x[2]), transpose8(x.x[3])}};
}

template <vla_op OP, int DK>
__global__ void __launch_bounds__(solve_shape<OP, DK>::threads, solve_shape<OP, DK>::blocks)
    solve(const __grid_constant__ arguments a)
{
    using M = f16_arithmetic;
    using form = solve_shape<OP, DK>;
    using rows = map_rows<DK>;
    constexpr int KT = form::KT, WARPS = form::warps, TILES = CT * KT / WARPS;
    extern __shared__ __align__(16) unsigned char raw[];
    solve_shared<OP, DK> &s = *(solve_shared<OP, DK> *)raw;
    const unsigned head = blockIdx.x / (unsigned)a.chunks, chunk = blockIdx.x - head * (unsigned)a.chunks;
    const int64_t at = head * a.stride + chunk;
    const int64_t token = a.first_token + chunk * C, row0 = head * a.T + token;
    const int left = (int)(a.T - token < C ? a.T - token : C), strips = a.dvp / 16;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    frag *const X = a.X + at * sizes<DK>::tiles;
    int bad = C;
    four_values v = {};
    grid_release(a.early);
    if (threadIdx.x == 0) { /* the rows of N differ in length: other blocks have other warps for them */
        unsigned place;
        asm volatile("mov.u32 %0, %%warpid;" : "=r"(place));
        s.salt = (int)place / WARPS;
    }
    if constexpr (OP == VLA_VLA) { /* of a kernel before the one before */
#pragma unroll
        for (int i = 0; i < TILES; i++)
            copy_async(&s.K[0][0][0] + threadIdx.x + i * form::threads,
                       a.K + at * sizes<DK>::tiles + threadIdx.x + i * form::threads);
        copy_commit();
    }
    if (warp < strips) fetch_values(v, a, row0, left, warp, lane);
    unwrite<DK>(a, at);
    if constexpr (OP == VLA_DELTA) {
        raw8<1> key[rows::PASSES];
        float logit[rows::PASSES];
        fetch_tokens<DK, false>(key, a.k, a, row0, left);
#pragma unroll
        for (int i = 0; i < rows::PASSES; i++)
            logit[i] = a.b && rows::row(i) < left ? load_element(a.b, a.dtype, row0 + rows::row(i)) : 0.0f;
        grid_wait();
        put_keys<DK, false>(s.rows[0], s.rows[1], key, logit, a, head, token);
    }
    frag first, R[CT]; /* the one that finds no place in s.V, where four blocks are to fit beside one of penalty */
    float scale = take_values(R, v, a, bad, lane);
    first = R[0];
#pragma unroll
    for (int i = 1; i < CT; i++) s.V[warp][i - 1][lane] = R[i];
    if constexpr (OP == VLA_VLA) {
        grid_wait();
#pragma unroll
        for (int i = 0; i < TILES; i++)
            copy_async(&s.X[0][0][0] + threadIdx.x + i * form::threads, X + threadIdx.x + i * form::threads);
        copy_commit();
        copy_wait<0>();
    } else {
        constexpr int PITCH = solve_shared<OP, DK>::PITCH;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < CT; i++) {
            const int tile = i * 16 * PITCH + warp * 16;
            s.K[i][warp][lane] = load_tile(s.rows[0] + tile, PITCH, lane);
            const frag x = load_tile(s.rows[1] + tile, PITCH, lane);
            s.X[i][warp][lane] = x;
            X[(i * KT + warp) * 32 + lane] = x;
        }
    }
    __syncthreads();
    solved<DK> &out = *solved_of<DK>(a, at);
    const int row = (warp + s.salt) % CT;
    {
        /* tiles of a: of 64 columns those with short rows take more, of 128 the warps that have none */
        int tile = DK == 64 ? row * (8 - row) : (warp - CT) * 8, end = DK == 64 ? (row + 1) * (7 - row) : tile + 8;
        if (DK == 128 && warp < CT) tile = end;
        if (DK == 64 || warp < CT) solve_row(s, row, lane);
#pragma unroll 1
        for (; !by_map<DK> && tile < end; tile++)
            if constexpr (!by_map<DK>)
                out.walk.X[tile % KT][tile / KT][lane] = turned_direction(s.X[tile / KT][tile % KT][lane]);
    }
    if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
    if (OP == VLA_VLA && a.alpha) store_alpha<DK>(a, s.X, row0, left, (int)threadIdx.x, form::threads);
#pragma unroll
    for (int i = 0; i < CT; i++) R[i] = negate(transpose(s.K[i][warp][lane]));
    __syncthreads();
    if constexpr (by_map<DK>)
#pragma unroll
        for (int i = 0; i < CT; i++) s.X[i][warp][lane] = transpose(s.X[i][warp][lane]);
    const uint32_t N = shared_address(&s.N[0][lane]);
    /* sixteen columns of K, then of V: one copy of the code, and of V more where dv is beyond what the warps take */
#pragma unroll 1
    for (int strip = warp - WARPS;;) {
        const bool keys = strip < 0;
        const float by = keys ? 1.0f : scale;
        frag *const to = keys ? out.Rk[warp][0] + lane : rv_of(a, at, strip) + lane,
                    *const start = start_of<DK>(a, at, keys ? 0 : strip) + lane;
#pragma unroll
        for (int i = 0; i < CT; i++) {
            float y[2][4];
            substitute(y, R, N, i);
            R[i] = pack_tile<M>(y[0], y[1]);
            to[i * 32] = right_order(R[i]);
            if constexpr (!by_map<DK>) {
                const frag x = scaled_tile(y, by);
                if (keys)
                    out.walk.Rk[i][warp][lane] = turned_tile(x);
                else
                    start[i * 32] = x;
            }
        }
        if (!keys && lane == 0) *scale_of(a, at, strip) = scale;
        if constexpr (by_map<DK>) {
            if (keys) __syncthreads(); /* everyone's part of a has been transposed */
#pragma unroll
            for (int m = 0; m < KT; m++) {
                float c[2][4] = {};
#pragma unroll
                for (int i = 0; i < CT; i++) mma_t<M>(c, R[i], s.X[i][m][lane]);
                const frag x = scaled_tile(c, by);
                if (keys)
                    out.walk.D[m][warp][lane] = turned_tile(x);
                else
                    start[m * 32] = x;
            }
        }
        strip += WARPS;
        if (strip >= strips) break;
        if (strip < WARPS) {
            R[0] = first;
#pragma unroll
            for (int i = 1; i < CT; i++) R[i] = s.V[warp][i - 1][lane];
        } else {
            fetch_values(v, a, row0, left, strip, lane);
            scale = take_values(R, v, a, bad, lane);
            if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
        }
    }
}
} /* namespace chunked::back */

#endif
