/* prepare and prefix of the chunkwise forms (chunk.cuh). */
#ifndef VLA_CUDA_CHUNK_PREPARE_CUH
#define VLA_CUDA_CHUNK_PREPARE_CUH
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/factor.cuh"

namespace chunked
{
template <int DK, bool WITH_U, bool WIDE> struct prepare_shared {
    static constexpr int PITCH = DK + 8, threads = 32 * sizes<DK>::warps, L = sizes<DK>::lanes, step = threads / L,
                         passes = C / step, inputs = WITH_U ? 2 : 1; /* k, u */
    static constexpr int ahead = WIDE ? 1 : 2, quads = stored<WIDE>::quads;
    uint4 raw[ahead][inputs][quads][passes][threads]; /* of the next chunks, each thread's own */
    __half rows[inputs][(WITH_U ? C : 1) * PITCH];
    float sums[sizes<DK>::warps][DK], norm[C];
    int bad;
};

/* Eight elements that are not whole 16 bytes of the input. */
template <bool WIDE>
static __device__ __noinline__ raw_of<WIDE> load_ragged(const void *data, int64_t row, int column, int width, bool in)
{
    raw_of<WIDE> x;
    load_row8<WIDE>(x, data, row, column, width, in);
    return x;
}

/* The rows of a chunk that this thread will make features of, on their way to where it alone reads them. */
template <int DK, bool WITH_U, bool WIDE>
__device__ __forceinline__ void fetch_rows(prepare_shared<DK, WITH_U, WIDE> &s, const arguments &a, int64_t head,
                                           int64_t n, int64_t end)
{
    using form = prepare_shared<DK, WITH_U, WIDE>;
    using element = typename stored<WIDE>::element;
    if (n < end) {
        const int column = 8 * ((int)threadIdx.x % form::L), row = (int)threadIdx.x / form::L;
        const int64_t token = a.first_token + n * C, from = (head * a.T + token + row) * a.dk + column;
        const bool eights = a.dk % 8 == 0, whole = eights && column < a.dk && token + C <= a.T;
#pragma unroll
        for (int which = 0; which < form::inputs; which++) {
            const element *data = (const element *)(which == 0 ? a.k : a.u);
            uint4 *to = &s.raw[n % form::ahead][which][0][0][threadIdx.x],
                  *rest = &s.raw[n % form::ahead][which][form::quads - 1][0][threadIdx.x];
            if (whole)
#pragma unroll
                for (int i = 0; i < form::passes; i++)
                    copy_eight<WIDE>(to + i * form::threads, rest + i * form::threads,
                                     data + from + (int64_t)(i * form::step) * a.dk);
            else if (eights)
#pragma unroll 1
                for (int i = 0; i < form::passes; i++)
                    copy_eight_if<WIDE>(column < a.dk && token + row + i * form::step < a.T, to + i * form::threads,
                                        rest + i * form::threads, data + from + (int64_t)(i * form::step) * a.dk);
            else
#pragma unroll 1
                for (int i = 0; i < form::passes; i++) {
                    const int64_t t = token + row + i * form::step;
                    const raw_of<WIDE> x = load_ragged<WIDE>(data, head * a.T + t, column, a.dk, t < a.T);
                    to[i * form::threads] = x.half[0], rest[i * form::threads] = x.half[form::quads - 1];
                }
        }
    }
    copy_commit();
}

/* Eight elements of 16 bits as float, by selection. */
__device__ __forceinline__ void widen8(float (&x)[8], const raw8<1> &raw, bool bf16)
{
    const uint32_t word[4] = {raw.half[0].x, raw.half[0].y, raw.half[0].z, raw.half[0].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 v = bf16 ? unpack(bf16_arithmetic{}, word[i]) : unpack(f16_arithmetic{}, word[i]);
        x[2 * i] = v.x, x[2 * i + 1] = v.y;
    }
}
__device__ __forceinline__ void widen8(float (&x)[8], const raw8<2> &raw, bool)
{
    convert8(x, raw, VLA_F32);
}

/* Row r of u and k as unit rows, eight elements a lane, and of phi(k) in y; whatever the features, widths and values.
 */
template <int DK, bool WITH_U, bool WIDE>
__device__ __forceinline__ void any_rows(prepare_shared<DK, WITH_U, WIDE> &s, const arguments &a, float (&y)[8],
                                         const raw_of<WIDE> &key, const raw_of<WIDE> &direction, int r, bool inside)
{
    constexpr int L = sizes<DK>::lanes, PITCH = DK + 8;
    const int sub = (int)threadIdx.x % L;
    float x[8];
    if (WITH_U) {
        convert8(x, direction, dtype_of<WIDE>(a));
        const float norm = unit8<false>(x, y, 8 * sub, a.dk, VLA_IDENTITY, L);
        if (!(norm < INFINITY)) { /* not finite: zeros instead, and the row noted */
            if (inside) atomicMin(&s.bad, r);
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = 0;
        }
        put8(s.rows[prepare_shared<DK, WITH_U, WIDE>::inputs - 1] + r * PITCH + 8 * sub, x);
    }
    convert8(x, key, dtype_of<WIDE>(a));
    float norm = unit8<false>(x, y, 8 * sub, a.dk, a.features, L);
    const bool bad = !(norm < INFINITY);
    if (bad && inside) atomicMin(&s.bad, r);
    if (!inside || bad) { /* phi(0) is not 0 */
        norm = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = y[j] = 0;
    }
    if (WITH_U) put8(s.rows[0] + r * PITCH + 8 * sub, x);
    if (sub == 0) s.norm[r] = norm;
}

/* The same where the features are the usual, rows whole and squares within range: false, and nothing done, where a row
 * of the warp has others. A row past the end is zeros, but for y. */
template <int DK, bool WITH_U, bool WIDE>
__device__ __forceinline__ bool usual_rows(prepare_shared<DK, WITH_U, WIDE> &s, bool bf16, float (&y)[8],
                                           const raw_of<WIDE> &key, const raw_of<WIDE> &direction, int r, bool inside)
{
    constexpr int L = sizes<DK>::lanes, PITCH = DK + 8;
    const int sub = (int)threadIdx.x % L;
    float x[8], keys = 0, directions = 1;
    widen8(y, key, bf16);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float e;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(y[j] * 1.44269504f));
        y[j] = y[j] > 0 ? y[j] + 1.0f : e;
        keys = fmaf(y[j], y[j], keys);
    }
    if (WITH_U) {
        directions = 0;
        widen8(x, direction, bf16);
#pragma unroll
        for (int j = 0; j < 8; j++) directions = fmaf(x[j], x[j], directions);
    }
#pragma unroll
    for (int offset = L / 2; offset > 0; offset /= 2) {
        keys += __shfl_xor_sync(FULL_WARP, keys, offset);
        if (WITH_U) directions += __shfl_xor_sync(FULL_WARP, directions, offset);
    }
    directions = inside ? directions : 1.0f;
    if (!__all_sync(FULL_WARP, fminf(keys, directions) >= SQUARES_LOW && fmaxf(keys, directions) <= SQUARES_HIGH &&
                                   keys == keys && directions == directions))
        return false;
    float scale = quick_rsqrt(directions);
    if (WITH_U) {
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] *= scale;
        put8(s.rows[prepare_shared<DK, WITH_U, WIDE>::inputs - 1] + r * PITCH + 8 * sub, x);
    }
    scale = inside ? quick_rsqrt(keys) : 0.0f;
    if (WITH_U) {
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = y[j] * scale;
        put8(s.rows[0] + r * PITCH + 8 * sub, x);
    }
    if (sub == 0) s.norm[r] = keys * scale;
    return true;
}

/* A block a segment of a head. The passes over a chunk's rows are a loop that is not unrolled: fetching instructions
 * that run once would be the time. */
template <int DK, bool WITH_U, bool WIDE>
__global__ void __launch_bounds__(32 * sizes<DK>::warps, DK == 64 ? 4 : 2) prepare(const __grid_constant__ arguments a)
{
    constexpr int KT = sizes<DK>::KT, L = sizes<DK>::lanes, WARPS = sizes<DK>::warps, PITCH = DK + 8;
    constexpr int BELOW = KT * (KT + 1) / 2, SLOTS = (BELOW + WARPS - 1) / WARPS;
    using form = prepare_shared<DK, WITH_U, WIDE>;
    extern __shared__ __align__(16) unsigned char raw[];
    form &s = *(form *)raw;
    const int64_t head = blockIdx.x / a.segments, first = blockIdx.x % a.segments * a.per_segment,
                  end = first + a.per_segment < a.chunks ? first + a.per_segment : a.chunks;
    const int lane = (int)threadIdx.x % 32, warp = __shfl_sync(FULL_WARP, (int)threadIdx.x / 32, 0);
    __half *const U = s.rows[form::inputs - 1], *const K = s.rows[0];
    grid_wait();
    grid_release(true);
    int tile_row[SLOTS], tile_column[SLOTS]; /* of M, that this warp sums */
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        const int next = warp + slot * WARPS, e = next < BELOW ? next : BELOW - 1; /* the last ones twice */
        int i = 0;
#pragma unroll
        for (int r = 1; r < KT; r++) i += tile_below(r, 0) <= e;
        tile_row[slot] = 16 * i, tile_column[slot] = 16 * (e - tile_below(i, 0));
    }
    float M[SLOTS][2][4] = {};
    if (threadIdx.x == 0) s.bad = C;
    __syncthreads();
#pragma unroll 1
    for (int64_t n = first - form::ahead; n < end; n++) {
        const int64_t at = head * a.stride + n, token = a.first_token + n * C;
        float column[8] = {};
        copy_wait<form::ahead - 1>();
        const bool usual = a.features == VLA_ELU1 && a.dk == DK;
        const int left = (int)(a.T - token < C ? a.T - token : C);
#pragma unroll 1
        for (int i = 0; i < (n < first ? 0 : form::passes); i++) {
            raw_of<WIDE> key, direction;
#pragma unroll
            for (int q = 0; q < form::quads; q++) {
                key.half[q] = s.raw[n % form::ahead][0][q][i][threadIdx.x];
                direction.half[q] = s.raw[n % form::ahead][form::inputs - 1][q][i][threadIdx.x];
            }
            const int r = (int)threadIdx.x / L + i * form::step;
            float y[8];
            const bool inside = r < left;
            if (!(usual && usual_rows(s, a.dtype == VLA_BF16, y, key, direction, r, inside)))
                any_rows(s, a, y, key, direction, r, inside);
            const float counts = inside ? 1.0f : 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) column[j] = fmaf(y[j], counts, column[j]);
        }
        fetch_rows(s, a, head, n + form::ahead, end);
        if (n < first) continue;
            /* sum over the rows of a warp, then over warps, in order */
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int offset = L; offset < 32; offset *= 2) column[j] += __shfl_xor_sync(FULL_WARP, column[j], offset);
        if (lane < L) {
            float4 *to = (float4 *)&s.sums[warp][8 * lane];
            to[0] = make_float4(column[0], column[1], column[2], column[3]);
            to[1] = make_float4(column[4], column[5], column[6], column[7]);
        }
        __syncthreads();
        if (WITH_U) {
#pragma unroll 2
            for (int i = 0; i < CT; i++) {
                const int64_t to = at * sizes<DK>::tiles + (i * KT + warp) * 32 + lane;
                a.U[to] = load_tile(U + i * 16 * PITCH + warp * 16, PITCH, lane);
                a.K[to] = load_tile(K + i * 16 * PITCH + warp * 16, PITCH, lane);
#pragma unroll
                for (int slot = 0; slot < SLOTS; slot++) {
                    const frag x = load_tile_transposed(U + i * 16 * PITCH + tile_row[slot], PITCH, lane),
                               y = load_tile_transposed(U + i * 16 * PITCH + tile_column[slot], PITCH, lane);
                    mma(f16_arithmetic{}, M[slot][0], x.x, y.x[0], y.x[2]);
                    mma(f16_arithmetic{}, M[slot][1], x.x, y.x[1], y.x[3]);
                }
            }
        }
        if (threadIdx.x < DK) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += s.sums[w][threadIdx.x];
            a.n[at * DK + threadIdx.x] = sum;
        }
        if (threadIdx.x < C) a.norm[at * C + threadIdx.x] = s.norm[threadIdx.x];
        if (threadIdx.x == 0) a.bad_row[at] = s.bad, s.bad = C;
        __syncthreads();
    }
    if (WITH_U) {
        float4 *to = a.M + (head * a.segments + blockIdx.x % a.segments) * sizes<DK>::matrix + lane;
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++)
            if (warp + slot * WARPS < BELOW)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    to[(warp + slot * WARPS) * 64 + h * 32] =
                        make_float4(M[slot][h][0], M[slot][h][1], M[slot][h][2], M[slot][h][3]);
    }
}

/* values[0], values[STEP], ..: summed in order from `sum` on; KEEP: each becomes the sum before it. AHEAD loads are in
 * flight at a time: few where there are few. */
template <bool KEEP, int STEP, int AHEAD> __device__ __forceinline__ float sum_by(float *values, int count, float sum)
{
#pragma unroll 1
    for (; count > 0; count -= AHEAD, values += AHEAD * STEP) {
        float x[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) x[j] = j < count ? __ldcg(values + j * STEP) : 0.0f;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (KEEP && j < count) values[j * STEP] = sum;
            sum += x[j];
        }
    }
    return sum;
}
template <bool KEEP, int STEP, int MOST> __device__ __forceinline__ float sum_along(float *values, int count, float sum)
{
    if (count <= 4) return sum_by<KEEP, STEP, 4>(values, count, sum);
    if (count <= 32) return sum_by<KEEP, STEP, 16>(values, count, sum);
    return sum_by<KEEP, STEP, MOST>(values, count, sum);
}

/* Is that element of M on the diagonal? */
template <int DK> __device__ __forceinline__ bool on_diagonal(int e)
{
    const int lane = e / 4 % 32, row = lane / 4 + e % 4 / 2 * 8, column = e / 128 % 2 * 8 + lane % 4 * 2 + e % 2;
    bool diagonal = false;
#pragma unroll
    for (int i = 0; i < DK / 16; i++) diagonal |= e / 256 == tile_below(i, i);
    return diagonal && row == column;
}

constexpr int PREFIX_THREADS = 512, PREFIX_SLICES = PREFIX_THREADS / 32;
/* Blocks a multiprocessor at least, at dk = 128 so many that those of 16 heads are in at once; loads in flight at most,
 * which have the registers that these leave. */
template <int DK> constexpr int PREFIX_BLOCKS = DK == 64 ? 1 : 3;
template <int DK> constexpr int PREFIX_AHEAD = DK == 64 ? 32 : 20;

/* Blocks a head: a thread an element of M, then 32 columns of n a block. */
template <int DK, bool WITH_M> struct prefix_blocks {
    static constexpr int M = WITH_M ? 4 * (int)sizes<DK>::matrix / PREFIX_THREADS : 0, n = DK / 32;
};

/* 32 columns of n: a warp sums a slice of the chunks, the slices before it are added, and it goes through them again.
 */
template <int DK> __device__ __forceinline__ void prefix_n(const arguments &a, int64_t head, int c)
{
    __shared__ float slices[PREFIX_SLICES][32];
    const int lane = (int)threadIdx.x % 32, slice = (int)threadIdx.x / 32;
    const int64_t each = (a.chunks + PREFIX_SLICES - 1) / PREFIX_SLICES, from = slice * each, left = a.chunks - from,
                  count = left < each ? left : each;
    float *n = a.n + (head * a.stride + from) * DK + c + lane, *carry = a.n_carry + head * DK + c + lane;
    slices[slice][lane] = sum_along<false, DK, PREFIX_AHEAD<DK>>(n, (int)count, 0.0f);
    float sum = 0;
    if (!a.first)
        sum = *carry;
    else if (a.n_in && c + lane < a.dk)
        sum = a.n_in[head * a.dk + c + lane];
    __syncthreads();
    for (int i = 0; i < slice; i++) sum += slices[i][lane];
    sum = sum_along<true, DK, PREFIX_AHEAD<DK>>(n, (int)count, sum);
    if (slice == PREFIX_SLICES - 1) *carry = sum;
}

template <int DK, bool WITH_M>
__global__ void __launch_bounds__(PREFIX_THREADS, PREFIX_BLOCKS<DK>) prefix(const __grid_constant__ arguments a)
{
    constexpr int M = prefix_blocks<DK, WITH_M>::M, EACH = M + prefix_blocks<DK, WITH_M>::n;
    const int64_t head = blockIdx.x / EACH;
    const int block = (int)(blockIdx.x % EACH);
    grid_release(a.early && a.lone);
    grid_wait();
    if (block < M) {
        const int e = block * PREFIX_THREADS + (int)threadIdx.x;
        float *carry = (float *)(a.M_carry + head * sizes<DK>::matrix) + e;
        const float before = !a.first || a.resume ? *carry : on_diagonal<DK>(e) ? a.diagonal : 0.0f;
        *carry = sum_along<true, 4 * (int)sizes<DK>::matrix, PREFIX_AHEAD<DK>>(
            (float *)(a.M + head * a.segments * sizes<DK>::matrix) + e, (int)a.segments, before);
        return;
    }
    prefix_n<DK>(a, head, 32 * (block - M));
    if (block > M || threadIdx.x >= 32) return;
    int64_t bad = a.first ? INT64_MAX : first_bad(a, head);
    for (int64_t c = threadIdx.x; c < a.chunks; c += 32) {
        const int row = a.bad_row[head * a.stride + c];
        const int64_t token = a.first_token + c * C + row;
        bad = row < C && token < bad ? token : bad;
        a.ready[head * (a.stride + 1) + c + 1] = 0;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const int64_t other = __shfl_xor_sync(FULL_WARP, bad, offset);
        bad = other < bad ? other : bad;
    }
    if (threadIdx.x == 0) a.bad[head] = (unsigned long long)bad, a.ready[head * (a.stride + 1)] = 0;
}

/* No token is bad yet, no chunk ready: where there is no prefix to say so. */
static __global__ void clear_flags(const __grid_constant__ arguments a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    grid_wait();
    if (i < a.heads * (a.stride + 1)) a.ready[i] = 0;
    if (i < a.heads && a.first) a.bad[i] = INT64_MAX;
}

constexpr int INVERT_THREADS = 1024;

/* M = (A/d)^-1 of the state at A_end, by elimination in shared memory in float32, a block a head: resuming only. Widths
 * past dk get the identity. */
template <int DK> __global__ void __launch_bounds__(INVERT_THREADS) invert_state(const __grid_constant__ arguments a)
{
    extern __shared__ float m[]; /* [DK][DK + 1] */
    __shared__ float column[DK], row[DK];
    const int64_t head = blockIdx.x;
    float *M = (float *)(a.M_carry + head * sizes<DK>::matrix);
    grid_wait();
    for (int i = (int)threadIdx.x; i < DK * DK; i += blockDim.x) {
        const int r = i / DK, c = i % DK;
        m[r * (DK + 1) + c] = r < a.dk && c < a.dk ? a.A_end[(head * a.dk + r) * a.dk + c] / (float)a.dk
                              : r == c             ? 1.0f
                                                   : 0.0f;
    }
    for (unsigned j = 0; j < DK; j++) { /* Gauss-Jordan in place: no pivoting, the matrix is positive definite */
        __syncthreads();
        const float pivot = 1.0f / m[j * (DK + 1) + j];
        if (threadIdx.x < DK) column[threadIdx.x] = m[threadIdx.x * (DK + 1) + j];
        if (threadIdx.x < DK) row[threadIdx.x] = threadIdx.x == j ? pivot : m[j * (DK + 1) + threadIdx.x] * pivot;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < DK * DK / INVERT_THREADS; i++) {
            const unsigned e = (unsigned)i * INVERT_THREADS + threadIdx.x, r = e / DK, c = e % DK;
            float &x = m[r * (DK + 1) + c];
            x = r == j ? row[c] : fmaf(-column[r], row[c], c == j ? 0.0f : x);
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DK * DK; i += blockDim.x) {
        const int r = i / DK, c = i % DK;
        if (c / 16 <= r / 16) M[result_index(r, c)] = 0.5f * (m[r * (DK + 1) + c] + m[c * (DK + 1) + r]);
    }
}
} /* namespace chunked */

#endif
