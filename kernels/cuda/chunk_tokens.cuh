/* What chunks of the back half take in (chunk.cuh): shared memory of map, and tokens of q, k and v on their way there,
 * or to registers, as the operands they will be. */
#ifndef VLA_CUDA_CHUNK_TOKENS_CUH
#define VLA_CUDA_CHUNK_TOKENS_CUH
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/chunk.cuh"

namespace chunked
{
constexpr int LOWER = CT * (CT + 1) / 2;
__host__ __device__ constexpr int lower(int i, int j)
{
    return i * (i + 1) / 2 + j;
}

template <int DK> struct map_shared {
    static constexpr int PITCH = DK + 8, WARPS = DK / 16, THREADS = 32 * WARPS;
    frag N[LOWER][32]; /* right operands: -N below the diagonal, the inverse on it */
    frag P[LOWER][32];
    float part[CT][C];                   /* sums over a column tile of rows of Q K^T, weighted */
    float weight[C], query[C], start[C]; /* |kf|, what q was divided by, n.q before the chunk */
    float n[DK];                         /* sum of kf before the chunk */
    uint32_t top[WARPS];
    __half K[C * PITCH], A[C * PITCH],
        Q[C * PITCH]; /* unit keys, write directions, unit queries, then Qeff (bfloat16) */
    __device__ __forceinline__ __half *query_at(int row, int column) { return Q + row * PITCH + column; }
};
/* V follows, [C][map_pitch] halves; of every sixteen columns, place 8 h + 2 t + i holds column 4 t + 2 h + i */

template <int DK> __host__ __device__ inline int map_pitch(int dvp)
{
    return (dvp > DK ? dvp : DK) + 8;
}
template <int DK> __host__ __device__ inline size_t map_bytes(int dvp)
{
    return sizeof(map_shared<DK>) + (size_t)(C * map_pitch<DK>(dvp)) * sizeof(__half);
}

/* Rows dealt to lanes by eights: row of pass i, column of a thread. */
template <int DK> struct map_rows {
    static constexpr int THREADS = map_shared<DK>::THREADS, L = sizes<DK>::lanes, AT_ONCE = THREADS / L,
                         PASSES = C / AT_ONCE;
    static __device__ __forceinline__ int row(int i) { return (int)threadIdx.x / L + i * AT_ONCE; }
    static __device__ __forceinline__ int column() { return 8 * ((int)threadIdx.x % L); }
};

/* The same by all warps but the first, which sets ready meanwhile. Rows past C are whole warps'. */
template <int DK> struct query_rows {
    static constexpr int THREADS = map_shared<DK>::THREADS - 32, L = sizes<DK>::lanes, AT_ONCE = THREADS / L,
                         PASSES = (C + AT_ONCE - 1) / AT_ONCE;
    static __device__ __forceinline__ int row(int i) { return ((int)threadIdx.x - 32) / L + i * AT_ONCE; }
    static __device__ __forceinline__ int column() { return 8 * ((int)threadIdx.x % L); }
};

/* Eight elements of a row of whole eights, zeros where not `in`. */
template <bool WIDE>
__device__ __forceinline__ void load_whole8(raw_of<WIDE> &raw, const typename stored<WIDE>::element *from, bool in)
{
#pragma unroll
    for (int q = 0; q < stored<WIDE>::quads; q++) {
        raw.half[q] = make_uint4(0, 0, 0, 0);
        if (in) raw.half[q] = ((const uint4 *)from)[q];
    }
}

template <int DK, bool WIDE>
__device__ __forceinline__ void fetch_tokens(raw_of<WIDE> (&raw)[map_rows<DK>::PASSES], const void *data,
                                             const arguments &a, int64_t row0, int left)
{
    using R = map_rows<DK>;
    const auto *from = (const typename stored<WIDE>::element *)data + (row0 + R::row(0)) * a.dk + R::column();
    if (a.dk % 8 == 0) {
#pragma unroll
        for (int i = 0; i < R::PASSES; i++)
            load_whole8<WIDE>(raw[i], from + i * R::AT_ONCE * a.dk, R::row(i) < left && R::column() < a.dk);
    } else {
        for (int i = 0; i < R::PASSES; i++)
            load8(raw[i], from + i * R::AT_ONCE * a.dk - R::column(), R::column(), a.dk, R::row(i) < left);
    }
}

/* Unit keys and the write directions beta K of delta, STEP halves from this thread's row of a pass to the next. */
template <int DK, int STEP>
__device__ __forceinline__ void put_keys(__half *K, __half *A, const raw8<1> (&raw)[map_rows<DK>::PASSES],
                                         const float (&logit)[map_rows<DK>::PASSES], const arguments &a, int64_t head,
                                         int64_t token)
{
    using R = map_rows<DK>;
#pragma unroll
    for (int i = 0; i < R::PASSES; i++) {
        float x[8], y[8];
        const int r = R::row(i);
        const bool in = token + r < a.T;
        convert8(x, raw[i], a.dtype);
        const float norm = unit8<false>(x, y, R::column(), a.dk, a.features, R::L);
        float beta = a.b ? sigmoid(logit[i]) : 1.0f;
        const bool bad = !(norm < INFINITY) || !(beta >= 0); /* zeros instead, and the token noted */
        if (bad && in && R::column() == 0) atomicMin(&a.bad[head], (unsigned long long)(token + r));
        if (!in || bad) /* phi(0) is not 0 */
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = y[j] = 0;
        beta = bad ? 0.0f : beta;
        put8(K + i * STEP, x);
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] *= beta;
        put8(A + i * STEP, x);
    }
}

/* Queries as they are, on their way to where this thread alone reads them. */
template <int DK, typename R, typename shared>
__device__ __forceinline__ void fetch_queries(shared &s, const arguments &a, int64_t row0, int left)
{
    const __half *from = (const __half *)a.q + (row0 + R::row(0)) * a.dk + R::column(); /* bfloat16 too */
    __half *to = s.query_at(R::row(0), R::column());
    if (a.dk == DK && left >= C) {
        from = (const __half *)a.q + (row0 + R::row(0)) * DK + R::column();
        const uint64_t policy = streamed();
#pragma unroll
        for (int i = 0; i < R::PASSES; i++)
            if (i + 1 < R::PASSES || R::row(i) < C)
                copy_async_streamed(to + i * R::AT_ONCE * shared::PITCH, from + i * R::AT_ONCE * DK, policy);
    } else if (a.dk % 8 == 0) {
#pragma unroll
        for (int i = 0; i < R::PASSES; i++) {
            __half *place = to + i * R::AT_ONCE * shared::PITCH;
            if (R::row(i) < left && R::column() < a.dk)
                copy_async_streamed(place, from + i * R::AT_ONCE * a.dk, streamed());
            else if (R::row(i) < C)
                *(uint4 *)place = make_uint4(0, 0, 0, 0);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < R::PASSES && R::row(i) < C; i++) {
            raw8<1> raw;
            load8(raw, from + i * R::AT_ONCE * a.dk - R::column(), R::column(), a.dk, R::row(i) < left);
            *(uint4 *)(to + i * R::AT_ONCE * shared::PITCH) = raw.half[0];
        }
    }
    copy_commit();
}

/* The usual case of put_queries: whole rows of bfloat16, elu + 1, no unit rows wanted, all in float16's good range. All
 * rows of a thread together, so that their chains run side by side: load(i) has those of pass i, which go to `to`, STEP
 * halves apart. False: nothing is done. */
template <typename R, int STEP, typename shared, typename F>
__device__ __forceinline__ bool put_usual_queries(shared &s, __half *to, const float (&n)[8], bool ratio, F &&load)
{
    constexpr int PASSES = R::PASSES;
    uint4 word[PASSES];
    float dot[PASSES];
    bool usual = true;
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        float x[8], y[8];
        raw8<1> raw;
        raw.half[0] = load(i);
        convert8(x, raw, VLA_BF16);
        features8<false>(y, x, VLA_ELU1);
        float sum = (y[0] + y[1]) + (y[2] + y[3]);
        sum += (y[4] + y[5]) + (y[6] + y[7]);
        usual &= sum < 512.0f && sum > 0.125f;
        dot[i] = 0;
        if (ratio)
#pragma unroll
            for (int j = 0; j < 8; j++) dot[i] = fmaf(n[j], y[j], dot[i]);
        word[i] = make_uint4(pack(f16_arithmetic{}, y[0], y[1]), pack(f16_arithmetic{}, y[2], y[3]),
                             pack(f16_arithmetic{}, y[4], y[5]), pack(f16_arithmetic{}, y[6], y[7]));
    }
    if (!__all_sync(FULL_WARP, usual)) return false;
    if (ratio)
#pragma unroll
        for (int offset = R::L / 2; offset > 0; offset /= 2)
#pragma unroll
            for (int i = 0; i < PASSES; i++) dot[i] += __shfl_xor_sync(FULL_WARP, dot[i], offset);
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int r = R::row(i);
        if (r >= C) continue;
        *(uint4 *)(to + i * STEP) = word[i];
        if (R::column() == 0) s.query[r] = 1, s.start[r] = dot[i];
    }
    return true;
}

__device__ __forceinline__ void load_floats8(float (&x)[8], const float *from)
{
    const float4 lo = *(const float4 *)from, hi = *(const float4 *)(from + 4);
    x[0] = lo.x, x[1] = lo.y, x[2] = lo.z, x[3] = lo.w, x[4] = hi.x, x[5] = hi.y, x[6] = hi.z, x[7] = hi.w;
}

/* Queries, what they were divided by, and their products with n: unit rows, or rows as they are where float16 takes
 * them. A NaN stays: it touches its own row only. */
template <typename R, bool TOGETHER, typename shared>
__device__ __forceinline__ void put_queries(shared &s, const float (&n)[8], const arguments &a, int left)
{
    copy_wait<0>();
    if constexpr (TOGETHER) /* where there are registers for it */
        if (a.dtype == VLA_BF16 && a.features == VLA_ELU1 && !a.qk_l2 && a.dk == 8 * R::L && left >= C) {
            constexpr int STEP = R::AT_ONCE * shared::PITCH;
            __half *const first = s.query_at(R::row(0), R::column());
            if (put_usual_queries<R, STEP>(s, first, n, a.ratio, [&](int i) {
                    return R::row(i) < C ? *(const uint4 *)(first + i * STEP) : make_uint4(0, 0, 0, 0);
                }))
                return;
        }
#pragma unroll 2
    for (int i = 0; i < R::PASSES && R::row(i) < C; i++) {
        const int r = R::row(i);
        const bool in = r < left;
        __half *place = s.query_at(r, R::column());
        raw8<1> raw;
        raw.half[0] = *(const uint4 *)place;
        float x[8], y[8], dot = 0, norm = 1;
        convert8(x, raw, a.dtype);
        features8<false>(y, x, a.features);
        if (R::column() + 8 > a.dk)
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = R::column() + j < a.dk ? y[j] : 0.0f;
        float most = 0, sum = 0, least = 0.015625f; /* the sum is NaN where one is, which fmaxf drops */
#pragma unroll
        for (int j = 0; j < 8; j++) sum += y[j];
        if (a.features == VLA_ELU1) /* never negative */
            most = sum, least = 0.125f;
        else
#pragma unroll
            for (int j = 0; j < 8; j++) most = fmaxf(most, fabsf(y[j]));
        const bool usual = most < 512.0f && most > least && fabsf(sum) < INFINITY;
        if (a.qk_l2 || !__all_sync(FULL_WARP, usual || !in || R::column() >= a.dk)) {
            norm = unit8<false>(x, y, R::column(), a.dk, a.features, R::L);
            const bool wrong = !(fabsf(norm) < INFINITY); /* zeros, and the factor makes its row NaN */
            if (a.qk_l2 && norm > 0) norm = 1;
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = wrong ? 0.0f : x[j];
            norm = wrong ? NAN : norm;
        }
        if (left < C)
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = in ? y[j] : 0.0f;
        if (a.ratio) {
#pragma unroll
            for (int j = 0; j < 8; j++) dot = fmaf(n[j], y[j], dot);
            dot = group_sum(dot, R::L);
        }
        put8(place, y);
        if (R::column() == 0) s.query[r] = in ? norm : 0.0f, s.start[r] = dot;
    }
}

/* Values: eight or sixteen lanes a row; eight only of float32 at dk = 64, which chunk_host.cuh sees to. */
template <int DK, bool WIDE> struct map_values {
    static constexpr bool NARROW = WIDE && DK == 64;
    static constexpr int THREADS = map_shared<DK>::THREADS, MOST = C * (NARROW ? 8 : 16) / THREADS;
    raw_of<WIDE> raw[MOST];
    int shift; /* of the lanes a row */

    __device__ __forceinline__ int row(int i) const { return (int)(threadIdx.x + i * THREADS) >> shift; }
    __device__ __forceinline__ int column() const { return 8 * ((int)threadIdx.x & ((1 << shift) - 1)); }
    __device__ __forceinline__ void fetch(const arguments &a, int64_t row0, int left)
    {
        shift = NARROW || a.dvp <= 64 ? 3 : 4;
        const auto *from = (const typename stored<WIDE>::element *)a.v + (row0 + row(0)) * a.dv + column();
        const int step = (THREADS >> shift) * a.dv;
        if (!WIDE && a.dv == DK && left >= C) { /* whole rows: from one address on */
            constexpr int ROWS = THREADS / (DK / 8);
            const __half *all = (const __half *)a.v + (row0 + (int)threadIdx.x / (DK / 8)) * DK + column();
            const uint64_t policy = streamed();
#pragma unroll
            for (int i = 0; i < MOST; i++) {
                raw[i].half[0] = make_uint4(0, 0, 0, 0);
                if (used(i)) raw[i].half[0] = load_streamed(all + i * ROWS * DK, policy);
            }
        } else if (a.dv % 8 == 0) {
#pragma unroll
            for (int i = 0; i < MOST; i++) {
                const bool in = used(i) && row(i) < left && column() < a.dv;
                if constexpr (WIDE) {
                    load_whole8<WIDE>(raw[i], from + i * step, in);
                } else {
                    raw[i].half[0] = make_uint4(0, 0, 0, 0);
                    if (in) raw[i].half[0] = load_streamed(from + i * step, streamed());
                }
            }
        } else {
            for (int i = 0; i < MOST; i++)
                if (used(i)) load8(raw[i], from + i * step - column(), column(), a.dv, row(i) < left);
        }
    }
    __device__ __forceinline__ bool used(int i) const
    {
        return NARROW || i < MOST / 2 || shift == 4;
    }
    /* The warp's largest |v| as bits of the type; what is not finite becomes zero and its token is noted. */
    __device__ __forceinline__ uint32_t largest(const arguments &a, int64_t head, int64_t token)
    {
        int bad = C;
        const uint32_t top = largest(a, bad);
        if (bad < C) atomicMin(&a.bad[head], (unsigned long long)(token + bad));
        return top;
    }
    /* The same, with the first such row of this thread's in `bad`. */
    __device__ __forceinline__ uint32_t largest(const arguments &a, int &bad)
    {
        uint32_t top = 0;
        const uint32_t limit = a.dtype == VLA_BF16 ? 0x7f807f80u : 0x7c007c00u; /* infinity */
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (!used(i)) continue;
            uint32_t most = 0;
            bool finite;
            if constexpr (WIDE) {
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    const uint4 w = raw[i].half[q];
                    most = max(most, max(max(w.x & 0x7fffffffu, w.y & 0x7fffffffu),
                                         max(w.z & 0x7fffffffu, w.w & 0x7fffffffu)));
                }
                finite = most < 0x7f800000u;
                if (finite) top = max(top, most);
            } else {
                const uint4 w = raw[i].half[0];
                most = __vmaxu2(__vmaxu2(w.x & 0x7fff7fffu, w.y & 0x7fff7fffu),
                                __vmaxu2(w.z & 0x7fff7fffu, w.w & 0x7fff7fffu));
                finite = __vmaxu2(most, limit - 0x10001u) == limit - 0x10001u;
                if (finite) top = __vmaxu2(top, most);
            }
            if (!finite) { /* the whole eight: later rows are NaN anyway */
                bad = row(i) < bad ? row(i) : bad;
#pragma unroll
                for (int q = 0; q < stored<WIDE>::quads; q++) raw[i].half[q] = make_uint4(0, 0, 0, 0);
            }
        }
        if (!WIDE) top = (top & 0xffffu) > top >> 16 ? top & 0xffffu : top >> 16;
#if __CUDA_ARCH__ >= 800
        return __reduce_max_sync(FULL_WARP, top);
#else
        return top;
#endif
    }
    /* What bits mean; of float32 normal, as zeros must not raise the state's scale. */
    static __device__ __forceinline__ float value_of(const arguments &a, uint32_t bits)
    {
        if (WIDE) return __uint_as_float(max(bits, 0x800000u));
        return a.dtype == VLA_BF16 ? __uint_as_float(bits << 16) : __half2float(__ushort_as_half((unsigned short)bits));
    }
    /* Times `by` as halves. */
    __device__ __forceinline__ void put(__half *V, const arguments &a, float by) const
    {
        const int pitch = map_pitch<DK>(a.dvp), q = column() / 8 % 2;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (!used(i)) continue;
            float x[8];
            convert8(x, raw[i], dtype_of<WIDE>(a));
            uint32_t word[4];
#pragma unroll
            for (int j = 0; j < 4; j++) word[j] = pack(f16_arithmetic{}, x[2 * j] * by, x[2 * j + 1] * by);
            if (column() >= a.dvp) continue;
            __half *to = V + row(i) * pitch + column() / 16 * 16 + 4 * q;
            *(uint2 *)to = make_uint2(word[0], word[2]);
            *(uint2 *)(to + 8) = make_uint2(word[1], word[3]);
        }
    }
};

/* Of sixteen columns of V, a lane's: rows lane / 4 + 8 i of the chunk, columns 4 (lane % 4).. of the strip. */
struct four_values {
    uint2 raw[2 * CT];
};

/* Where rows are not whole fours: `in` elements of them, `left` rows from the first on. */
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

/* WIDTH: a dv whose whole chunks are read by fixed offsets; 0: none. */
template <int WIDTH = 0>
__device__ __forceinline__ void fetch_values(four_values &v, const arguments &a, int64_t row0, int left, int strip,
                                             int lane)
{
    const int g = lane / 4, column = 16 * strip + lane % 4 * 4, step = 8 * a.dv;
    const __half *from = (const __half *)a.v + (row0 + g) * a.dv + column; /* bfloat16 too */
    const bool whole = a.dv % 4 == 0;
    if (WIDTH && left >= C && a.dv == WIDTH) { /* from one address on */
#pragma unroll
        for (int i = 0; i < 2 * CT; i++) v.raw[i] = *(const uint2 *)(from + i * 8 * WIDTH);
        return;
    }
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

/* What is not finite becomes zero, all four of a row, as later rows are NaN anyway; its row goes to `bad`. */
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

/* Frags of V^T over a power of two, which is returned. */
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

} /* namespace chunked */

#endif
