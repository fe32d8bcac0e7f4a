/* walk of the chunkwise forms (chunk.cuh): S' = S - S D + B along the chunks, with O = O_loc + Qeff S^T.
 *
 * A block holds 8 NV rows of S of one head. NV warps advance the state, eight rows each, and hand the state before
 * every chunk to CT warps a step behind that make the outputs, a token tile each; COPIERS warps bring the maps by
 * asynchronous copies some steps ahead. A lone warp issues an instruction every four cycles or so: what counts is the
 * longest list of instructions a step, which is why the work is dealt to so many. */
#ifndef VLA_CUDA_CHUNK_WALK_CUH
#define VLA_CUDA_CHUNK_WALK_CUH
#include "kernels/cuda/chunk_penalty.cuh"

namespace chunked
{
template <int DK, int NV> struct walk_shape {
    static constexpr int KT = DK / 16, stages = DK == 64 || NV <= 2 ? 4 : 3, ahead = stages - 2, copiers = 4,
                         threads = 32 * (NV + CT + copiers);
};

template <int DK, int NV> struct walk_stage {
    frag D[DK / 16][DK / 16][32], Q[CT][DK / 16][32];
    uint2 B[NV][DK / 16][32], O[NV][CT][32];
};

template <int DK, int NV> struct walk_shared {
    walk_stage<DK, NV> stage[walk_shape<DK, NV>::stages];
    uint2 state[2][NV][DK / 16][32]; /* S^T before a chunk as right operands, by parity */
};

template <int BYTES, int THREADS> __device__ __forceinline__ void copy_block(void *to, const void *from, int thread)
{
#pragma unroll
    for (int i = 0; i < BYTES; i += 16 * THREADS)
        if (BYTES % (16 * THREADS) == 0 || i + 16 * thread < BYTES)
            copy_async((char *)to + i + 16 * thread, (const char *)from + i + 16 * thread);
}

template <vla_op OP, int DK, int NV>
__device__ __forceinline__ void fetch_maps(walk_stage<DK, NV> &s, const arguments &a, int64_t at, int column,
                                           int thread)
{
    constexpr int THREADS = 32 * walk_shape<DK, NV>::copiers;
    const int64_t columns = at * (a.dvp / 8) + column;
    if (OP != VLA_LINEAR) copy_block<sizeof s.D, THREADS>(s.D, a.D + at * sizes<DK>::square, thread);
    copy_block<sizeof s.Q, THREADS>(s.Q, a.Q + at * sizes<DK>::tiles, thread);
    copy_block<sizeof s.B, THREADS>(s.B, a.B + columns * (DK / 16) * 32, thread);
    copy_block<sizeof s.O, THREADS>(s.O, a.O + columns * CT * 32, thread);
}

template <vla_op OP, int DK, int NV>
__device__ __forceinline__ void step_state(float (&S)[DK / 16][4], uint2 (&hand)[DK / 16][32],
                                           const walk_stage<DK, NV> &in, int v, int lane)
{
    using M = bf16_arithmetic;
    constexpr int KT = DK / 16;
    uint2 right[KT];
#pragma unroll
    for (int m = 0; m < KT; m++) {
        right[m] = make_uint2(transpose8(pack(M{}, S[m][0], S[m][1])), transpose8(pack(M{}, S[m][2], S[m][3])));
        hand[m][lane] = right[m];
    }
#pragma unroll
    for (int m = 0; m < KT; m++) {
        const uint2 b = in.B[v][m][lane];
        const float2 upper = unpack(M{}, b.x), lower = unpack(M{}, b.y);
        S[m][0] += upper.x, S[m][1] += upper.y, S[m][2] += lower.x, S[m][3] += lower.y;
    }
    if (OP != VLA_LINEAR)
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int m = 0; m < KT; m++) mma(M{}, S[m], in.D[m][k][lane].x, right[k].x, right[k].y);
}

/* Token tile m of all the block's columns. */
template <int DK, int NV>
__device__ __forceinline__ void step_output(const arguments &a, const uint2 (&hand)[NV][DK / 16][32],
                                            const walk_stage<DK, NV> &in, int64_t head, int64_t token, int64_t bad,
                                            int m, int column, int lane)
{
    using M = bf16_arithmetic;
    const int g = lane / 4, t = lane % 4;
    float o[NV][4];
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const uint2 x = in.O[v][m][lane];
        const float2 upper = unpack(M{}, x.x), lower = unpack(M{}, x.y);
        o[v][0] = upper.x, o[v][1] = upper.y, o[v][2] = lower.x, o[v][3] = lower.y;
    }
#pragma unroll
    for (int k = 0; k < DK / 16; k++) {
        const frag q = in.Q[m][k][lane];
#pragma unroll
        for (int v = 0; v < NV; v++) {
            const uint2 s = hand[v][k][lane];
            mma(M{}, o[v], q.x, s.x, s.y);
        }
    }
    const int64_t row0 = token + 16 * m, left = (bad < a.T ? bad : a.T) - row0;
    const bool whole = left >= 16 && a.dv % 8 == 0; /* 64-bit tests and narrow stores stay out of the usual path */
    char *to = (char *)a.o + ((head * a.T + row0 + g) * a.dv + 8 * column + 2 * t) * 2;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        if (whole && 8 * (column + v) < a.dv) {
            const bool bf16 = a.dtype == VLA_BF16;
            *(uint32_t *)(to + 16 * v) = bf16 ? pack(M{}, o[v][0], o[v][1]) : pack(f16_arithmetic{}, o[v][0], o[v][1]);
            *(uint32_t *)(to + 16 * v + 16 * a.dv) =
                bf16 ? pack(M{}, o[v][2], o[v][3]) : pack(f16_arithmetic{}, o[v][2], o[v][3]);
        } else if (!whole) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t row = row0 + g + 8 * (i / 2);
                const int c = 8 * (column + v) + 2 * t + i % 2;
                if (row < a.T && c < a.dv)
                    store_element(a.o, a.dtype, (head * a.T + row) * a.dv + c, row >= bad ? NAN : o[v][i]);
            }
        }
    }
}

template <vla_op OP, int DK, int NV>
__global__ void __launch_bounds__(walk_shape<DK, NV>::threads) walk(const __grid_constant__ arguments a)
{
    using form = walk_shape<DK, NV>;
    constexpr int KT = form::KT, STAGES = form::stages, AHEAD = form::ahead;
    extern __shared__ __align__(16) unsigned char raw[];
    walk_shared<DK, NV> &s = *(walk_shared<DK, NV> *)raw;
    grid_release(a.early);
    grid_wait();
    const int groups = a.dvp / (8 * NV), lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t head = blockIdx.x / groups, at = head * a.stride, bad = first_bad(a, head);
    const int column = (int)(blockIdx.x % groups) * NV, v = warp < NV ? warp : 0, g = lane / 4, t = lane % 4;
    const bool walks = warp < NV, copies = warp >= NV + CT;
    const int copier = (int)threadIdx.x - 32 * (NV + CT);
    float S[KT][4];
    const int64_t from = (head * a.dv + 8 * (column + v) + 2 * t) * a.dk;
    const auto in_S = [&](int m, int i) {
        return 8 * (column + v) + 2 * t + i % 2 < a.dv && 16 * m + g + 8 * (i / 2) < a.dk;
    };
    if (walks)
#pragma unroll
        for (int m = 0; m < KT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                S[m][i] =
                    in_S(m, i) && (!a.first || a.resume) ? a.S[from + (i % 2) * a.dk + 16 * m + g + 8 * (i / 2)] : 0.0f;
    if (copies)
#pragma unroll
        for (int c = 0; c < AHEAD; c++) {
            if (c < a.chunks) fetch_maps<OP, DK, NV>(s.stage[c], a, at + c, column, copier);
            copy_commit();
        }
    if (a.n_end && column == 0)
        for (int c = (int)threadIdx.x; c < a.dk; c += form::threads)
            a.n_end[head * a.dk + c] = bad < a.T ? NAN : a.n_carry[head * DK + c];
    const int chunks = (int)a.chunks;
    for (int c = 0; c <= chunks; c++) {
        if (copies) copy_wait<AHEAD - 1>();
        __syncthreads();
        if (copies) {
            if (c + AHEAD < chunks)
                fetch_maps<OP, DK, NV>(s.stage[(c + AHEAD) % STAGES], a, at + c + AHEAD, column, copier);
            copy_commit();
        } else if (walks) {
            if (c < chunks) step_state<OP, DK, NV>(S, s.state[c & 1][v], s.stage[c % STAGES], v, lane);
        } else if (c > 0) {
            step_output<DK, NV>(a, s.state[(c - 1) & 1], s.stage[(c - 1) % STAGES], head,
                                a.first_token + (int64_t)(c - 1) * C, bad, warp - NV, column, lane);
        }
    }
    if (walks)
#pragma unroll
        for (int m = 0; m < KT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (in_S(m, i)) a.S[from + (i % 2) * a.dk + 16 * m + g + 8 * (i / 2)] = bad < a.T ? NAN : S[m][i];
}
} /* namespace chunked */

#endif
