/* What solve, state and output hand to each other by memory (chunk.cuh), where chunks a head are few. Of sixteen columns
 * of V (rows of S), place 8 h + 2 t + i holds column 4 t + 2 h + i, so that a lane's four values of a row are neighbours
 * in memory. Right operands are in right order where it says so. */
#ifndef VLA_CUDA_CHUNK_RECORDS_CUH
#define VLA_CUDA_CHUNK_RECORDS_CUH
#include "kernels/cuda/chunk.cuh"

namespace chunked::back
{
/* State goes by the chunks' maps, S' = S - S D + B with D = Rk^T a and B = Rv^T a, or by what they are made of,
 * W^T = Rv^T - S Rk^T and S += W^T a. At dk = 64 it is as fast as its shared memory, and a map is half of what it is made
 * of, and one product in a row instead of two; at 128 both are of one size, and making maps takes longer. */
#ifdef VLA_BACK_BY_W
template <int DK> constexpr bool by_map = false;
#else
template <int DK> constexpr bool by_map = DK == 64;
#endif

/* Of a chunk, at = head * stride + chunk, by solve: what state multiplies with, bfloat16, and Rk for output. All in right
 * order. */
template <int DK, bool BY_MAP = by_map<DK>> struct walked {
    frag Rk[CT][DK / 16][32]; /* of -Rk: 16 tokens x 16 of dk, the right operand -Rk^T */
    frag X[DK / 16][CT][32];  /* of a^T: 16 of dk x 16 tokens, the right operand a */
};
template <int DK> struct walked<DK, true> {
    frag D[DK / 16][DK / 16][32]; /* of -D^T: 16 x 16 of dk, the right operand -D */
};
template <int DK> struct solved {
    walked<DK> walk;
    frag Rk[DK / 16][CT][32]; /* of -Rk^T, float16: 16 of dk x 16 tokens, the right operand -Rk */
};
template <int DK> __device__ __forceinline__ solved<DK> *solved_of(const arguments &a, int64_t at)
{
    return (solved<DK> *)a.R + at;
}

/* Of a chunk and sixteen columns of V, by solve, for output: frags of Rv^T, 16 columns x 16 tokens, float16, in right order,
 * over a power of two. */
constexpr int64_t RV_FRAGS = CT * 32;
__device__ __forceinline__ frag *rv_of(const arguments &a, int64_t at, int strip)
{
    return a.Rv + (at * (a.dvp / 16) + strip) * RV_FRAGS;
}
__device__ __forceinline__ float *scale_of(const arguments &a, int64_t at, int strip)
{
    return a.scales + at * (a.dvp / 16) + strip;
}
/* The same, for state, bfloat16: B, 16 columns x 16 of dk, or Rv^T as it is: what is added to S, or W^T starts from. */
template <int DK> constexpr int start_tiles = by_map<DK> ? DK / 16 : CT;
template <int DK> __device__ __forceinline__ frag *start_of(const arguments &a, int64_t at, int strip)
{
    return a.start + (at * (a.dvp / 16) + strip) * (start_tiles<DK> * 32);
}

/* Of a chunk and sixteen rows of S, by state: S before the chunk, frags of 16 rows x 16 of dk, [DK/16][32]. A word is
 * UNWRITTEN (chunk_walk.cuh) until it is there; solve sees to that. */
template <int DK> __device__ __forceinline__ frag *state_of(const arguments &a, int64_t at, int strip)
{
    return a.states + (at * (a.dvp / 16) + strip) * sizes<DK>::strip;
}
} /* namespace chunked::back */

#endif
