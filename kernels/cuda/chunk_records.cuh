/* What solve, state and output hand to each other by memory (chunk.cuh), where chunks a head are few. All are bfloat16
 * and of the values' own scale. Of sixteen columns of V (rows of S), place 8 h + 2 t + i holds column 4 t + 2 h + i, so
 * that a lane's four values of a row are neighbours in memory. */
#ifndef VLA_CUDA_CHUNK_RECORDS_CUH
#define VLA_CUDA_CHUNK_RECORDS_CUH
#include "kernels/cuda/chunk.cuh"

namespace chunked::back
{
/* Of a chunk, at = head * stride + chunk, by solve: right operands in right order, for W^T -= S Rk^T and S += W^T a. */
template <int DK> struct solved {
    frag Rk[CT][DK / 16][32]; /* of -Rk: 16 tokens x 16 of dk, the right operand -Rk^T */
    frag X[DK / 16][CT][32];  /* of a^T: 16 of dk x 16 tokens, the right operand a */
};
template <int DK> __device__ __forceinline__ solved<DK> *solved_of(const arguments &a, int64_t at)
{
    return (solved<DK> *)a.R + at;
}

/* At dk = 64 state is as fast as its shared memory, and the chunk's map takes less of it than what it is made of:
 * S' = S - S D + B with D = Rk^T a, B = Rv^T a. D^T as the right operand -D, 16 x 16 of dk; Rk^T, 16 of dk x 16 tokens, as
 * the right operand -Rk in right order, float16, for output. */
#ifdef VLA_BACK_BY_W
template <int DK> constexpr bool by_map = false;
#else
template <int DK> constexpr bool by_map = DK == 64;
#endif
template <int DK> struct mapped {
    frag D[DK / 16][DK / 16][32], Rk[DK / 16][CT][32];
};
template <int DK> __device__ __forceinline__ mapped<DK> *mapped_of(const arguments &a, int64_t at)
{
    static_assert(sizeof(mapped<DK>) <= sizeof(solved<DK>) || !by_map<DK>, "in the same place");
    return (mapped<DK> *)a.R + at;
}

/* Of a chunk and sixteen columns of V, by solve: frags of Rv^T, 16 columns x 16 tokens, [CT][32]; unpacked, the
 * accumulators that W^T starts from. */
constexpr int64_t RV_FRAGS = CT * 32;
__device__ __forceinline__ frag *rv_of(const arguments &a, int64_t at, int strip)
{
    return a.Rv + (at * (a.dvp / 16) + strip) * RV_FRAGS;
}

/* Of a chunk and sixteen rows of S, by state: S before the chunk, frags of 16 rows x 16 of dk, [DK/16][32]. */
template <int DK> __device__ __forceinline__ frag *state_of(const arguments &a, int64_t at, int strip)
{
    return a.states + (at * (a.dvp / 16) + strip) * sizes<DK>::strip;
}
/* The same, W^T: frags of 16 rows x 16 tokens, [CT][32]. */
__device__ __forceinline__ frag *w_of(const arguments &a, int64_t at, int strip)
{
    return a.W + (at * (a.dvp / 16) + strip) * RV_FRAGS;
}
/* The same: 1 when both are there, 0 from the start of the run on. */
__device__ __forceinline__ int *flag_of(const arguments &a, int64_t at, int strip)
{
    return a.ready + at * (a.dvp / 16) + strip;
}
} /* namespace chunked::back */

#endif
