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
    factor_unit(shared.unit, UNITS > 1 ? lane : (int)threadIdx.x, form::threads);
    const int warp = warp_of_segment<DK, WARPS>(&shared.salt); /* of several warps, a barrier behind that */
    /* Segments come from the last to the first, the end states, segments of no tokens, before or after them all: where
     * places are few the last units take those that others leave, so these are the shortest. They are the end states if
     * a segment has more than two chunks, else the first segments of fresh heads, which have nothing to invert. */
    const uint32_t heads = (uint32_t)a.heads, unit = blockIdx.x * UNITS + (uint32_t)own;
    const int64_t head = unit % heads, row = unit / heads, ends = a.A_end ? 1 : 0, joined = a.joined ? 1 : 0,
                  segments = a.segments - joined;
    if (row >= segments + ends) return;
    const bool ends_last = WARPS > 1 && a.per_segment > 2, end = ends != 0 && row == (ends_last ? segments : 0);
    const int64_t place = end ? segments : segments - 1 - row + (ends_last ? 0 : ends),
                  segment = place > 0 ? place + joined : 0, chunk0 = segment * a.per_segment, left = a.chunks - chunk0,
                  most = a.per_segment * (place > 0 ? 1 : 1 + joined), count = end ? 0 : (left < most ? left : most);
    const int64_t at = head * a.stride + chunk0;
    const int steps = (int)count * CT;
    const float4 *M =
        count > 0 ? a.M + (head * a.segments + segment) * sizes<DK>::matrix : a.M_carry + head * sizes<DK>::matrix;
    grid_wait();
    /* What map asks for beside a is there. Where segments are joined all blocks are in now, and its own would come one
     * by one as these end, unevenly: they are let in later. */
    if (WARPS > 1) grid_release(a.early && !a.joined);
    float top = 0;
#pragma unroll
    for (int r = 0; r < DK; r += 32)
        top = fmaxf(top, fabsf(__ldcg((const float *)M + result_index(r + lane, r + lane))));
    if constexpr (WARPS == 1) {
        const int zero = (int)(a.T >> 63);
        const ring_tokens<DK> tokens = {shared, a, at, steps, lane};
        lower_tiles<DK> N;
        const auto load = [&](int m) {
            const float4 x = __ldcg(M + 64 * m + lane), y = __ldcg(M + 64 * m + 32 + lane);
            float(&c)[2][4] = N[m];
            c[0][0] = x.x, c[0][1] = x.y, c[0][2] = x.z, c[0][3] = x.w;
            c[1][0] = y.x, c[1][1] = y.y, c[1][2] = y.z, c[1][3] = y.w;
        };
        load(0);
        M += __float_as_int(N[0][0][0] + N[0][1][0] + top) & zero; /* the first tile does not wait for the others */
#pragma unroll
        for (int m = 1; m < KT * (KT + 1) / 2; m++) load(m);
        lone_sweeps<DK>(N, shared, root_below(warp_top(top)), zero, lane, [&](int i) {
            if (i > 0 && i <= tokens.ahead) tokens.ask(i - 1);
        });
        if (count > 0) {
            lone_tokens<DK>(N, shared, tokens, a.X + at * sizes<DK>::tiles, steps, zero, lane);
            return;
        }
        grid_release(a.early && UNITS > 1 && a.one_turn); /* as in lone_tokens */
        lone_end<DK>(N, a, head, lane);
    } else {
        const int g = lane / 4, t = lane % 4;
        matrix_rows<DK, WARPS> N;
        const auto ask = [&]() {
#pragma unroll 1
            for (int step = 0; step + 1 < form::stages; step++)
                fetch<DK, WARPS>(shared, a, at, step, steps, warp, lane);
        };
        if (segment == 0 && a.first && !a.resume) {
            ask();
            set_diagonal<DK, WARPS>(N, 1 / a.diagonal, warp, lane);
        } else {
            load_rows<DK, WARPS>(N, M, warp, lane);
            sweep<DK, WARPS>(N, shared, root_below(warp_top(top)), warp, lane, [&]() {
                complete_rows<DK, WARPS>(N, shared, warp, lane);
                ask();
            });
        }
        grid_release(a.early && a.joined);
        if (count == 0) {
            const float back = end_scale(a, head);
            float *const to = a.A_end + (head * a.dk + 16 * warp * T + g) * a.dk + 2 * t;
            /* of two neighbours in a row, so many rows and columns from `to` */
            const auto each = [&](auto &&store) {
#pragma unroll
                for (int m = 0; m < T; m++)
#pragma unroll
                    for (int n = 0; n < KT; n++)
#pragma unroll
                        for (int i = 0; i < 8; i += 2)
                            store(16 * m + 8 * (i % 4 / 2), 16 * n + 8 * (i / 4), N[m][n][i / 4][i % 4] * back,
                                  N[m][n][i / 4][i % 4 + 1] * back);
            };
            if (a.dk == DK && (uintptr_t)a.A_end % 8 == 0)
                each([&](int r, int c, float x, float y) { *(float2 *)(to + r * DK + c) = make_float2(x, y); });
            else
                each([&](int r, int c, float x, float y) {
                    if (16 * warp * T + g + r >= a.dk) return;
                    if (2 * t + c < a.dk) to[r * a.dk + c] = x;
                    if (2 * t + c + 1 < a.dk) to[r * a.dk + c + 1] = y;
                });
            return;
        }
        if (warp & 1) rotate<T>(N);
        if (warp & 2) rotate<2 * T>(N);
        float diagonal = 0;
#pragma unroll
        for (int m = 0; m < T; m++) {
            const float upper = g % 2 ? N[m][m][0][1] : N[m][m][0][0], lower = g % 2 ? N[m][m][1][3] : N[m][m][1][2];
            if (g / 2 == t) diagonal = fmaxf(diagonal, fmaxf(fabsf(upper), fabsf(lower)));
        }
        diagonal = warp_top(diagonal);
        if (lane == 0) shared.top[warp] = diagonal;
        copy_wait<form::stages - 2>(); /* the barrier makes the first tokens everyone's too */
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; w++) diagonal = fmaxf(diagonal, shared.top[w]);
        /* sigma, a power of four that brings the diagonal to 1 */
        const float sigma = power_of_four(diagonal);
        scale_all<DK, WARPS>(N, -sigma);
        recur<DK, WARPS>(N, shared, a, at, steps, sigma, warp, lane);
    }
}
} /* namespace chunked */

#endif
