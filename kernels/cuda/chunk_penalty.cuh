/* penalty of the chunkwise vla (chunk.cuh): A at the segment's start, then a for its tokens. */
#ifndef VLA_CUDA_CHUNK_PENALTY_CUH
#define VLA_CUDA_CHUNK_PENALTY_CUH
#include "kernels/cuda/chunk_penalty_lone.cuh"

namespace chunked
{
/* Which of the warps does what, the same for all lanes (__shfl, or branches are compiled for lanes that differ) and
 * such that the blocks of a multiprocessor have their first row tiles with different schedulers. */
template <int DK, int WARPS> __device__ __forceinline__ int warp_of_segment(int *salt)
{
    if (WARPS == 1) return 0;
    if (threadIdx.x == 0) {
        unsigned place;
        asm volatile("mov.u32 %0, %%warpid;" : "=r"(place));
        *salt = (int)(place / 4) * (DK / 64);
    }
    __syncthreads();
    return __shfl_sync(FULL_WARP, ((int)threadIdx.x / 32 + *salt) % WARPS, 0);
}

/* UNITS segments a block: 1, or as many lone warps as there are schedulers. */
template <int DK, int WARPS, int UNITS>
__global__ void __launch_bounds__(penalty_shape<DK, WARPS>::threads *UNITS, penalty_shape<DK, WARPS>::blocks / UNITS)
    penalty(const __grid_constant__ arguments a)
{
    static_assert(UNITS == 1 || WARPS == 1, "segments of several warps meet by barriers of the block");
    using form = penalty_shape<DK, WARPS>;
    constexpr int KT = form::KT, T = form::T;
    extern __shared__ __align__(16) unsigned char raw[];
    const int lane = (int)threadIdx.x % 32, own = UNITS > 1 ? warp_number() : 0;
    penalty_shared<DK, WARPS> &shared = ((penalty_shared<DK, WARPS> *)raw)[own];
    const int warp = warp_of_segment<DK, WARPS>(&shared.salt);
    const int64_t places = a.segments + (a.A_end ? 1 : 0); /* one more, of no tokens, for the end state's A */
    const int64_t unit = (int64_t)blockIdx.x * UNITS + own, head = unit / places, segment = unit % places,
                  chunk0 = segment * a.per_segment;
    if (head >= a.heads) return;
    const int64_t left = a.chunks - chunk0, count = segment == a.segments  ? 0
                                                    : left < a.per_segment ? left
                                                                           : a.per_segment;
    const int64_t at = head * a.stride + chunk0;
    const int steps = (int)count * CT;
    const float4 *M =
        count > 0 ? a.M + (head * a.segments + segment) * sizes<DK>::matrix : a.M_carry + head * sizes<DK>::matrix;
    factor_unit(shared.unit, UNITS > 1 ? lane : (int)threadIdx.x, form::threads);
    grid_wait();
    if (WARPS > 1) grid_release(a.early); /* what map asks for beside a is there */
    float top = 0;
#pragma unroll
    for (int r = 0; r < DK; r += 32)
        top = fmaxf(top, fabsf(__ldcg((const float *)M + result_index(r + lane, r + lane))));
    matrix_rows<DK, WARPS> A;
    load_rows<DK, WARPS>(A, M, shared, warp, lane);
#pragma unroll 1
    for (int step = 0; step + 1 < form::stages; step++) fetch<DK, WARPS>(shared, a, at, step, steps, warp, lane);
    const float root = root_below(warp_top(top));
    if constexpr (WARPS == 1)
        lone_segment<DK>(A, shared, a, at, steps, root, lane);
    else
        sweep<DK, WARPS>(A, shared, root, warp, lane);
    const int g = lane / 4, t = lane % 4;
    if (count == 0) {
        const float back = first_bad(a, head) < a.T ? NAN : -(float)a.dk;
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int n = 0; n < KT; n++)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int r = 16 * (warp * T + m) + g + 8 * (i % 4 / 2), c = 16 * n + 8 * (i / 4) + 2 * t + i % 2;
                    if (r < a.dk && c < a.dk) a.A_end[(head * a.dk + r) * a.dk + c] = A[m][n][i / 4][i % 4] * back;
                }
        return;
    }
    if constexpr (WARPS > 1) {
#pragma unroll 1
        for (int i = 0; i < warp * T; i++) rotate<DK, WARPS>(A);
        float diagonal = 0;
#pragma unroll
        for (int m = 0; m < T; m++) {
            const float upper = g % 2 ? A[m][m][0][1] : A[m][m][0][0], lower = g % 2 ? A[m][m][1][3] : A[m][m][1][2];
            if (g / 2 == t) diagonal = fmaxf(diagonal, fmaxf(fabsf(upper), fabsf(lower)));
        }
        diagonal = warp_top(diagonal);
        if (lane == 0) shared.top[warp] = diagonal;
        copy_wait<form::stages - 2>(); /* the barrier makes the first tokens everyone's too */
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; w++) diagonal = fmaxf(diagonal, shared.top[w]);
        /* A sigma, with sigma a power of four that brings the diagonal to 1 */
        const float sigma = power_of_four(diagonal);
        scale_all<DK, WARPS>(A, -sigma);
        recur<DK, WARPS>(A, shared, a, at, steps, sigma, warp, lane);
    }
}
} /* namespace chunked */

#endif
