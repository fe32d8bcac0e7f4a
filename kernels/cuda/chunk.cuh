/* The chunkwise forms on tensor cores: every chunk of 64 tokens becomes the affine map of the state that it is,
 *   S' = S - S D + B,   O = O_loc + Qeff S^T,
 * all chunks in parallel, and one walk over the maps, beside them. With K unit keys, Q unit queries,
 * V values, a write directions of a chunk's rows (stril strictly lower, tril with the diagonal):
 *   N = I + stril(K a^T) ; Rv = N^-1 V ; Rk = N^-1 K ; P = tril(Q a^T)
 *   O_loc = f P Rv ; Qeff = f (Q - P Rk) ; D = Rk^T a ; B = Rv^T a ;  f = |qf| / max(n.qf, eps) a row
 * or, with the rows of a and of P solved for instead of those of K and V,
 *   E = -N^-T a ; G = P N^-1 ; S' = S + (S K^T - V^T) E ; O_loc = f G V ; Qeff = f (Q - G K)
 * delta: a = beta K, f = |qf|. (linear, which solves nothing, is linear_prefix.cuh.) vla: a_t = unit(A_t k_t) with (u
 * unit rows) A = M^-1, M = d lambda0 I + sum of u^T u before the chunk (A and u here are A/d and u sqrt d of the
 * definition; a does not see the factor) ; Z = U A ; G = I + Z U^T = L L^T ; W = L^-1 Z ; X = K A - tril(K W^T) W ; A
 * -= W^T W, sixteen tokens at a time, so that A (held as -A) stays in registers as the accumulator of its own update.
 *
 * Launches for a stretch of chunks (workspace is bounded, so a long sequence takes several stretches):
 *   prepare  features of u and k as tiles, sums of u^T u a segment and of kf a chunk   (vla)
 *   prefix   sums -> sums before, in order, so that results do not depend on the launch
 *   penalty  a segment by one warp (dk to 64, chunk_penalty_lone.cuh) or four (chunk_penalty_rows.cuh): A = M^-1 by
 *            blocked sweep, then a for each token   (vla)
 * and the back half, in one of these forms (back_of in chunk_host.cuh):
 *   map      dk to 64: a block a chunk, D and B, then Qeff and O_loc, and O when the state is there (chunk_map.cuh);
 *            the kernel's first blocks walk, one for 64 rows of S of a head, a chunk after the other as their maps come
 *            (chunk_walk.cuh)
 *   chunks   dk above 64: the same with E and G, walks and first chunks by turns (chunk_wide.cuh, chunk_wide_walk.cuh)
 *   chunks   vla, dk to 64: as map, but a block walks 16 rows (chunk_brief.cuh, chunk_brief_walk.cuh)
 *   map, walk  two kernels: D, B, Qeff and O_loc, then the walk with the outputs (chunk_apart_map.cuh,
 *            chunk_apart_walk.cuh); dk and dv to 64 by steps of two chunks too (chunk_apart_pair.cuh)
 * Two kernels are taken of float32 inputs; of few chunks (dk above 64: below 17) or heads; and where the walks of all
 * heads are more than an eighth of the places. By steps of two chunks where they are enough and all walks, two blocks a
 * strip, are in at once.
 *
 * Arithmetic: float16 operands of unit scale (A and V brought there by powers of two), bfloat16 for the state and the
 * maps, split in two bfloat16 for the inverse, float32 sums. Of float32 inputs (WIDE, the scan form in tf32) state and
 * maps are float16 too, brought to unit scale by powers of two, and map and walk always apart. NaN: rows that hold one
 * are taken as zero and everything from the first one on is NaN in the output, which is what the recurrence gives. Not
 * supported: dk or dv above 128, refresh and no_normalise (recurrent has them). */
#ifndef VLA_CUDA_CHUNK_CUH
#define VLA_CUDA_CHUNK_CUH
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows8.cuh"
#include "kernels/cuda/scales.cuh"

namespace chunked
{
constexpr int C = 64, CT = C / 16; /* tokens a chunk, row tiles */

struct arguments {
    const void *q, *k, *v, *u, *b;
    void *o, *alpha;
    float *S, *start; /* [heads,dv,dk] float32: start and end of the walk; of pairs a copy of the start */
    int64_t T, heads;
    int64_t first_token;              /* of this stretch */
    int64_t chunks, segments, stride; /* in this stretch; chunks a head has room for in the workspace */
    int per_segment;
    int dk, dv, dvp;    /* dvp: dv rounded up to 16 */
    int walks, at_once; /* blocks that walk a head; heads whose blocks are let in together */
    uint32_t inverse;   /* 2^32 / at_once, rounded up: the high half of its product with a block's place is the
                         * quotient; 0: divide, as that would not be exact */
    vla_dtype dtype;
    vla_features features;
    bool qk_l2, ratio;
    /* workspace, a chunk (head, chunk): tiles are frags */
    frag *U, *K, *X;         /* [CT][DK/16][32] */
    frag *maps;              /* -D as blocks of 8 x 8, [k][n][8 n][8 k], then B, sixteen rows of S a tile row:
                              * [walks][4][DK/16][32]; of chunk_wide.cuh K, E^T and V^T (chunk_wide_walk.cuh); of
                              * chunk_brief.cuh -D^T; of a walk apart its records */
    frag *columns;           /* of a walk apart B and O_loc, of chunk_brief.cuh B: by sixteen rows of S */
    frag *states;            /* S before the chunk [dvp/16][DK/16][32], right operands; none of a walk apart */
    int *ready;              /* a head [stride + 1]: state 0 is there (counted by its walks), then a chunk's maps are */
    float *norm;             /* [C]: |kf| */
    float *n;                /* [DK]: sum of kf, then its prefix */
    float4 *M;               /* a segment: tiles on and below the diagonal [tile_below][2][32], then prefix */
    float4 *M_carry;         /* a head: before the stretch, then after */
    float *n_carry;          /* [DK] a head */
    int *bad_row;            /* first row of k or u that is not finite, C: none */
    const float *n_in;       /* [heads,dk] of the state a run goes on from, else NULL */
    float *A_end, *n_end;    /* [heads,dk,dk], [heads,dk]: of the end state; NULL: not wanted of this stretch */
    unsigned long long *bad; /* a head: first token that is not finite */
    float diagonal;          /* of M before the first token */
    bool first, resume;      /* the first stretch; of a run that goes on from a state */
    bool early, lone;        /* kernels (prepare always) let the next in early; penalty's blocks are four lone warps */
    bool one_turn;           /* the maps' blocks find places all at once */
    bool joined;             /* penalty takes a head's second segment with its first, for which it inverts nothing */
};

template <int DK> struct sizes {
    static constexpr int KT = DK / 16;
    static constexpr int64_t tiles = (int64_t)CT * KT * 32;            /* frags of U, K, X, Qeff a chunk */
    static constexpr int64_t square = (int64_t)KT * KT * 32;           /* frags of D a chunk */
    static constexpr int64_t strip = (int64_t)KT * 32;                 /* frags of B or S for sixteen rows of S */
    static constexpr int64_t matrix = (int64_t)KT * (KT + 1) / 2 * 64; /* float4 of M */
    static constexpr int lanes = DK / 8;                               /* that share a row of 8 elements each */
    static constexpr int warps = DK / 16;                              /* of prepare */
};

/* Inputs and outputs in memory: of 16 bits, told apart by a.dtype, or float32 (WIDE). */
template <bool WIDE> struct stored {
    using element = __half;         /* bfloat16 too */
    static constexpr int quads = 1; /* uint4 of eight elements */
};
template <> struct stored<true> {
    using element = float;
    static constexpr int quads = 2;
};
template <bool WIDE> using raw_of = raw8<stored<WIDE>::quads>;
template <bool WIDE> __device__ __forceinline__ vla_dtype dtype_of(const arguments &a)
{
    return WIDE ? VLA_F32 : a.dtype;
}

/* Eight elements of a row of `width`, zeros where not `valid`. */
template <bool WIDE>
__device__ __forceinline__ void load_row8(raw_of<WIDE> &raw, const void *data, int64_t row, int column, int width,
                                          bool valid)
{
    load8(raw, (const typename stored<WIDE>::element *)data + row * width, column, width, valid);
}

/* Four neighbouring elements. */
template <bool WIDE>
__device__ __forceinline__ void store4(typename stored<WIDE>::element *to, bool bf16, float x0, float x1, float x2,
                                       float x3)
{
    if constexpr (WIDE)
        *(float4 *)to = make_float4(x0, x1, x2, x3);
    else
        *(uint2 *)to = bf16 ? make_uint2(pack(bf16_arithmetic{}, x0, x1), pack(bf16_arithmetic{}, x2, x3))
                            : make_uint2(pack(f16_arithmetic{}, x0, x1), pack(f16_arithmetic{}, x2, x3));
}

__device__ __forceinline__ void put8(__half *to, const float (&x)[8])
{
    uint4 raw;
    raw.x = pack(f16_arithmetic{}, x[0], x[1]), raw.y = pack(f16_arithmetic{}, x[2], x[3]);
    raw.z = pack(f16_arithmetic{}, x[4], x[5]), raw.w = pack(f16_arithmetic{}, x[6], x[7]);
    *(uint4 *)to = raw;
}

/* First token from which a head's output is NaN. */
__device__ __forceinline__ int64_t first_bad(const arguments &a, int64_t head)
{
    const unsigned long long bad = __ldcg(a.bad + head), none = INT64_MAX;
    return (int64_t)(bad < none ? bad : none);
}

__host__ __device__ constexpr int tile_below(int i, int j)
{
    return i * (i + 1) / 2 + j;
}

/* Position of element (row, column) of a symmetric matrix kept as tiles of results of products, on or below the
 * diagonal: float index into float4s. */
__host__ __device__ __forceinline__ int result_index(int row, int column)
{
    const int lane = (row % 8) * 4 + (column % 8) / 2;
    return 4 * (tile_below(row / 16, column / 16) * 64 + (column % 16 / 8) * 32 + lane) + (row % 16 / 8) * 2 +
           column % 2;
}

template <bool WIDE> __device__ __forceinline__ void copy_eight(void *to, void *rest, const void *from)
{
    if constexpr (WIDE)
        copy_async_shared(to, from), copy_async_shared(rest, (const char *)from + 16);
    else
        copy_async(to, from);
}
template <bool WIDE> __device__ __forceinline__ void copy_eight_if(bool there, void *to, void *rest, const void *from)
{
    copy_async_if(there, to, from);
    if constexpr (WIDE) copy_async_if(there, rest, (const char *)from + 16);
}
} /* namespace chunked */

#endif
