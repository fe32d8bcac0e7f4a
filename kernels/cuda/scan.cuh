/* The chunk and scan forms in float32 and tf32: matrix products over blocks of sixteen tokens, every operand float32 in
 * memory, products by tf32 tensor cores (tf32.cuh: TERMS 3 for dtype f32, TERMS 1 for dtype tf32). scan in tf32 has
 * faster kernels (scan_chunks.cuh, linear_tf32.cuh) and takes these where a chunk of 16 or a number of segments is
 * asked for.
 *
 * A sequence is cut into segments, one for the chunk form. Of a block of tokens with unit keys K, directions U, queries
 * Q, values V and write directions a (linear: a = kf, K = 0; delta: a = beta K; vla: a_t = unit(A_t k_t)): N = I +
 * stril(K a^T) ;  R = N^-1 (V - K S^T) ;  O = Q S^T + tril(Q a^T) R ;  S += R^T a Launches for a stretch of tokens
 * (workspace is bounded, so a long sequence takes several): features  rows to kh, qf, uh, |kf|, and a where there is no
 * A; what is not finite is found here and taken as zero sums      sums of u^T u and kf a segment (scan) starts    A at
 * each segment's start: the inverse of M = M_0 + sums before it, in float64; n there   (scan) penalty   A along a
 * segment, eight tokens a sweep (recurrent_penalty.cuh): a   (vla) pairs     N^-1 and tril(Q a^T) of each block maps a
 * segment from S = 0 and from S = I with V = 0: S at its end is S P + B     (scan) compose   S at the segments' starts
 *   walk      a segment from its start, with outputs
 * so A and S are made anew at each segment's start from sums and maps; in the chunk form they are carried, and A's
 * products are split in tf32 too, as nothing corrects its end. NaN: rows
 * that hold one are taken as zero, and everything from the first one on is NaN in the output, which is what the
 * recurrence gives. Not supported: dk or dv above 128, refresh and no_normalise (recurrent has them). */
#ifndef VLA_CUDA_SCAN_CUH
#define VLA_CUDA_SCAN_CUH
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/recurrent_penalty.cuh"
#include "kernels/cuda/rows8.cuh"

namespace scanned
{
constexpr int C = 16, WARPS = 4; /* tokens a block; warps of most launches, each with sixteen rows of S or of A */
constexpr int PAIR_TILES = 3;    /* lower 8 x 8 tiles of a 16 x 16 matrix: (0,0), (1,0), (1,1) */

struct arguments {
    const void *q, *k, *v, *u, *b;
    void *o, *alpha;
    int64_t T, heads, first_token; /* of this stretch */
    int64_t blocks, stride;        /* of tokens in this stretch; a head has room for in the workspace */
    int64_t segments, per_segment; /* blocks a segment */
    int dk, dv, row_tiles;         /* of sixteen rows of S */
    vla_features features;
    bool qk_l2, plain, has_ratio;
    float root, initial; /* 1/sqrt dk, 1/lambda0 */
    /* workspace: [heads][stride * C][DK], one row a token */
    float *K, *Q, *U, *X;
    float *norm;             /* [heads][stride * C]: |kf| */
    float2 *N, *P;           /* [heads][stride][PAIR_TILES][32], as right operands */
    float *M_sum;            /* [heads][segments][DK*DK] */
    double *M;               /* [heads][DK*DK]: before the stretch, then after */
    float *A;                /* [heads][segments + 1][DK*DK]: at the starts, and at the end of the last */
    float *n_sum, *n_start;  /* [heads][segments][DK], [heads][segments + 1][DK] */
    float *n;                /* [heads][DK]: carried */
    float *map_B, *map_P;    /* [heads][segments][row_tiles * 16][DK], [..][DK][DK] */
    float *S_start;          /* [heads][segments][row_tiles * 16][DK] */
    float *S;                /* [heads,dv,dk]: carried */
    unsigned long long *bad; /* a head: first token that is not finite */
};

/* First token from which a head's output is NaN. */
__device__ __forceinline__ int64_t first_bad(const arguments &a, int64_t head)
{
    const unsigned long long bad = a.bad[head], none = INT64_MAX;
    return (int64_t)(bad < none ? bad : none);
}

__device__ __forceinline__ int64_t segment_blocks(const arguments &a, int64_t segment)
{
    const int64_t left = a.blocks - segment * a.per_segment;
    return left < a.per_segment ? left : a.per_segment;
}

__device__ __forceinline__ void fetch16(float *to, const float *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void fetch_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void fetch_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Sixteen rows of DK floats into a shared tile of that pitch. */
template <int DK, int PITCH, int THREADS>
__device__ __forceinline__ void fetch_rows(float *to, const float *from, int thread)
{
#pragma unroll
    for (int i = 0; i < C * DK / 4 / THREADS; i++) {
        const int e = thread + i * THREADS, r = e / (DK / 4), c = e % (DK / 4) * 4;
        fetch16(to + r * PITCH + c, from + (int64_t)r * DK + c);
    }
}
} /* namespace scanned */

#endif
