/* Of linear by segments (linear_walk.cuh): how a step's rows come to shared memory and become operands there, and
 * products of them that sums and walk share. */
#ifndef VLA_CUDA_LINEAR_ROWS_CUH
#define VLA_CUDA_LINEAR_ROWS_CUH
#include "kernels/cuda/linear_prefix.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace linear_walk
{
constexpr int C = 64; /* tokens a chunk */

struct arguments : linear_form::arguments {
    /* A segment (head, segment): S_sum as results of products, n and bad as there; the last of a head has no sums, and
     * its place takes the state that the run goes on from, which the end state may overwrite while segments begin. */
    int64_t segments, steps; /* a head; a segment */
    int *marks;              /* of linear_once.cuh */
};

template <int D, int CH> struct shape {
    static constexpr int PANELS = D / 64, TOK = C * CH; /* tiles of 64 columns; tokens of a step */
    static constexpr int GROUPS = CH * PANELS, NT = 128 * GROUPS, NW = 4 * GROUPS;
    static constexpr int NJ = D == 64 ? 8 / GROUPS : 8; /* groups of eight columns of a warpgroup's 64 rows of sums */
    static constexpr int AT_ONCE = D == 64 ? CH : 1;    /* chunks whose sums are in registers */
    static constexpr int BLOCKS = D == 64 && CH == 2 ? 2 : 1; /* a multiprocessor */
    static constexpr int KEYS = D == 64 ? 2 : 1;              /* stages of keys in walk; all else is there twice */
    static constexpr int64_t matrix = NJ * NT;                /* float4 of sums */
    static_assert(D == 64 || GROUPS == 4, "the parts of S are quarters");
};

/* An operand of a step: tiles of 64 rows and columns. */
template <int D, int CH> struct rows {
    uint4 tile[CH][D / 64][512];
};
template <int D, int CH> struct sums_shared {
    rows<D, CH> K[2], V[2];
    float n[CH][D];
    unsigned long long bad; /* first token that is not finite */
};
template <int D, int CH> struct walk_shared {
    uint4 S[CH][D / 64][8 * D]; /* before each chunk: dk rows of 64 dv; then outputs */
    rows<D, CH> K[shape<D, CH>::KEYS], V[2], Q[2];
    float n[CH][D], n_before[D]; /* of kf: the step's chunks; before the step */
    uint8_t down[C * CH];        /* powers of two that queries were divided by */
    int bad[2];                  /* first row of a step that is not finite, TOK if none; of this and the next */
};

#if VLA_WGMMA
__device__ __forceinline__ void copy_piece(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

/* The pieces of 16 bytes a thread brings to shared memory and makes operands of, in place. */
template <int D, int CH, int WARPS = shape<D, CH>::NW> struct pieces {
    struct F {
        static constexpr int TOK = C * CH, PANELS = D / 64, LANES = D / 8, ROWS = 32 / LANES,
                             PASSES = TOK / WARPS / ROWS; /* of a row; a pass; a step */
    };
    const arguments &a;
    int lane, warp;

    __device__ __forceinline__ int row(int p) const
    {
        return warp * (F::ROWS * F::PASSES) + p * F::ROWS + lane / F::LANES;
    }
    __device__ __forceinline__ int column() const { return 8 * (lane % F::LANES); }
    __device__ __forceinline__ uint32_t place(int p) const
    {
        const int r = row(p), c = lane % F::LANES;
        return (uint32_t)((r / 64 * F::PANELS + c / 8) * 8192) + wgmma::swizzled((uint32_t)r % 64, (uint32_t)c % 8);
    }
    __device__ __forceinline__ void load(void *to, const void *data, int64_t row0, int left, int width) const
    {
        load(to, data, row0, left, width, width);
    }
    /* The first `columns` of rows `width` apart. */
    __device__ __forceinline__ void load(void *to, const void *data, int64_t row0, int left, int width,
                                         int columns) const
    {
        const uint16_t *from = (const uint16_t *)data + (row0 + row(0)) * width + column();
        const int rows = column() < columns ? left : 0;
#pragma unroll
        for (int p = 0; p < F::PASSES; p++) {
            const bool there = row(p) < rows;
            copy_piece(shared_address(to) + place(p), there ? from + p * F::ROWS * width : (const uint16_t *)data,
                       there);
        }
    }
    /* To L2. */
    __device__ __forceinline__ void fetch(const void *data, int64_t row0, int left, int width) const
    {
        const uint16_t *from = (const uint16_t *)data + (row0 + row(0)) * width + column();
        if (column() % 64 != 0 || column() >= width) return;
#pragma unroll
        for (int p = 0; p < F::PASSES; p++)
            if (row(p) < left) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + p * F::ROWS * width));
    }
    /* elu(x) + 1 of two bfloat16: max(x + 1, min(e^x, 1)). */
    static __device__ __forceinline__ uint32_t mapped2(uint32_t x)
    {
        const uint32_t one = 0x3f803f80u;
        uint32_t e =
            pack(bf16_arithmetic{}, coarse_exp(__uint_as_float(x << 16)), coarse_exp(__uint_as_float(x & 0xffff0000u)));
        asm("fma.rn.bf16x2 %0, %0, %1, %1;" : "+r"(x) : "r"(one));
        asm("min.NaN.bf16x2 %0, %0, %1;" : "+r"(e) : "r"(one));
        asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(e) : "r"(x));
        return e;
    }
    __device__ __forceinline__ bool usual() const
    {
        return a.dtype == VLA_BF16 && a.features == VLA_ELU1;
    }
    __device__ __forceinline__ uint4 mapped_usual(uint4 x) const
    {
        if (column() >= a.dk) return make_uint4(0, 0, 0, 0);
        return make_uint4(mapped2(x.x), mapped2(x.y), mapped2(x.z), mapped2(x.w));
    }
    __device__ __forceinline__ void mapped(float (&y)[8], uint4 word) const
    {
        float x[8];
        raw8<1> raw;
        raw.half[0] = word;
        convert8(x, raw, a.dtype);
        features8<false>(y, x, a.features);
        if (column() >= a.dk)
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = 0;
    }
    /* Returns the first row that is not finite, TOK if none. */
    __device__ __forceinline__ int keys(void *K, int left) const
    {
        int bad = F::TOK;
#pragma unroll
        for (int p = 0; p < F::PASSES; p++) {
            uint4 *at = (uint4 *)((char *)K + place(p));
            uint4 word;
            if (usual()) {
                word = mapped_usual(*at);
            } else {
                float y[8];
                mapped(y, *at);
                word = linear_form::pack8(y);
            }
            const int r = row(p);
            if (linear_form::not_finite(word) != 0) {
                word = make_uint4(0, 0, 0, 0);
                if (r < bad && r < left) bad = r;
            }
            if (r >= left) word = make_uint4(0, 0, 0, 0); /* phi(0) is not 0 */
            *at = word;
        }
        return bad;
    }
    __device__ __forceinline__ int values(void *V) const
    {
        int bad = F::TOK;
#pragma unroll
        for (int p = 0; p < F::PASSES; p++) {
            uint4 *at = (uint4 *)((char *)V + place(p)), word = *at;
            if (a.dtype == VLA_F16) {
                float x[8];
                raw8<1> raw;
                raw.half[0] = word;
                convert8(x, raw, VLA_F16);
                word = linear_form::pack8(x);
                *at = word;
            }
            if (linear_form::not_finite(word) != 0) {
                *at = make_uint4(0, 0, 0, 0);
                if (row(p) < bad) bad = row(p);
            }
        }
        return bad;
    }
    /* Unit rows, or rows beyond 1024 brought below by a power of two. */
    __device__ __forceinline__ void queries(void *Q, uint8_t *down, int left) const
    {
#pragma unroll
        for (int p = 0; p < F::PASSES; p++) {
            uint4 *at = (uint4 *)((char *)Q + place(p));
            float y[8];
            int by = 0;
            if (usual() && !a.qk_l2) {
                const uint4 word = mapped_usual(*at);
                const uint32_t most = __vmaxu2(__vmaxu2(word.x, word.y), __vmaxu2(word.z, word.w));
                if (__all_sync(FULL_WARP, __vmaxu2(most, 0x44804480u) == 0x44804480u)) { /* to 1024 */
                    if (column() == 0) down[row(p)] = 0;
                    *at = row(p) < left ? word : make_uint4(0, 0, 0, 0);
                    continue;
                }
            }
            if (a.qk_l2) {
                float x[8];
                raw8<1> raw;
                raw.half[0] = *at;
                convert8(x, raw, a.dtype);
                unit8<false>(x, y, column(), a.dk, a.features, F::LANES);
#pragma unroll
                for (int i = 0; i < 8; i++) y[i] = x[i];
            } else {
                mapped(y, *at);
                float largest = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(y[i]));
                if (__any_sync(FULL_WARP, largest > 1024.0f && largest < INFINITY)) {
                    largest = group_max(largest, F::LANES);
                    by = largest > 1024.0f && largest < INFINITY ? ilogbf(largest) : 0;
#pragma unroll
                    for (int i = 0; i < 8; i++) y[i] *= exp2f(-(float)by);
                }
            }
            if (column() == 0) down[row(p)] = (uint8_t)by;
            *at = row(p) < left ? linear_form::pack8(y) : make_uint4(0, 0, 0, 0);
        }
    }
};

/* A warp's sums of kf over a chunk: sixteen columns, in lanes 0 to 3 the pairs 8 h + 2 lane. */
template <int D, int CH>
__device__ __forceinline__ void sum_keys(float (&n)[2][4], const rows<D, CH> &keys, int lane, int warp)
{
    using M = bf16_arithmetic;
    constexpr int KT = D / 16;
    const int c = warp / KT, kt = warp % KT;
    const uint32_t K = shared_address(keys.tile[c][kt / 4]) +
                       wgmma::swizzled((uint32_t)lane % 16, (uint32_t)(2 * (kt % 4) + lane / 16));
    const uint32_t one = lane / 4 == 0 ? 0x3f803f80u : 0u, ones[4] = {one, 0, one, 0};
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++) n[h][i] = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const frag x = load_turned(K + i * 2048);
        mma(M{}, n[0], ones, x.x[0], x.x[1]);
        mma(M{}, n[1], ones, x.x[2], x.x[3]);
    }
}

/* Which part of the sums a warpgroup has: tile of rows of dk, tile of columns of dv, first group of eight columns. */
template <int D, int CH> struct part_of {
    int row, panel, column;
    __device__ __forceinline__ explicit part_of(int group)
        : row(D == 64 ? 0 : group % 2), panel(D == 64 ? 0 : group / 2), column(D == 64 ? group * shape<D, CH>::NJ : 0)
    {
    }
};

/* d = K^T V (+ d where add) over a chunk, this warpgroup's part. */
template <int D, int CH, int NJ>
__device__ __forceinline__ void sum_products(float (&d)[NJ][4], const rows<D, CH> &keys, const rows<D, CH> &values,
                                             int c, int group, int add)
{
    const part_of<D, CH> part(group);
    const uint64_t K = wgmma::tile(shared_address(keys.tile[c][part.row])),
                   V = wgmma::tile(shared_address(values.tile[c][part.panel])) + (uint64_t)part.column;
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma::product<wgmma::TURNED, wgmma::TURNED>(d, K + k * wgmma::STEP_TURNED, V + k * wgmma::STEP_TURNED,
                                                     add || k > 0);
}

/* Calls element(i, place in [dv,dk]) for the elements of this thread's float4 j of a head's state. */
template <int D, int CH, typename E> __device__ __forceinline__ void each_element(const arguments &a, int j, E element)
{
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32 % 4;
    const part_of<D, CH> part(thread / 128);
    const int row = part.row * 64 + 16 * warp + lane / 4,
              column = part.panel * 64 + 8 * (part.column + j) + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int r = row + e / 2 * 8, c = column + e % 2;
        if (r < a.dk && c < a.dv) element(e, c * a.dk + r);
    }
}

__device__ __forceinline__ void add4(float4 &x, float4 y)
{
    x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
}

/* Tokens of a step that are there. */
template <int TOK> __device__ __forceinline__ int tokens_left(const arguments &a, int64_t token)
{
    return (int)(a.T - token < 0 ? 0 : a.T - token < TOK ? a.T - token : TOK);
}
#endif
} /* namespace linear_walk */

#endif
