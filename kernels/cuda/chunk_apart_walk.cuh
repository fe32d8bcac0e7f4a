/* The walk as a kernel of its own (chunk.cuh): S' = S - S D + B along the chunks, with O = O_loc + Qeff S^T.
 *
 * Or along pairs of chunks (PAIRS, chunk_apart_pair.cuh): half as many steps, and for the same rows of S two blocks,
 * each with all of the state and with the outputs of one chunk of a pair, so that a step brings a multiprocessor no
 * more than a chunk does.
 *
 * A block holds 8 NV rows of S of one head. NV warps advance the state, eight rows each, and hand the state before
 * every chunk to SETS x CT warps that make the outputs, each set of them every SETS-th chunk, a token tile a warp; one
 * thread brings the maps by bulk copies, several chunks ahead. Barriers in shared memory order them, and one named
 * barrier a stage hands the state over. The chain of a step is what counts: everything that does not need the state is
 * loaded before it.
 *
 * Of float32 inputs (WIDE) maps are float16, and S is kept divided by a power of two that brings it to unit scale, a
 * warp of rows its own: the power that is not below the largest |S| a chunk before, nor below the scales of V since.
 * What a chunk adds beyond that float16 has room for, up to 65,504. */
#ifndef VLA_CUDA_CHUNK_APART_WALK_CUH
#define VLA_CUDA_CHUNK_APART_WALK_CUH
#include "kernels/cuda/chunk_apart_pair.cuh"

namespace chunked::apart
{
template <int DK, int NV, bool WIDE> struct walk_stage { /* the maps of a chunk */
    map_record<DK, WIDE> maps;
    struct {
        frag B[DK / 16][32], O[CT][32];
    } strip[NV / 2];
    uint2 state[NV / 2][DK / 16][32][2]; /* S^T before the chunk as right operands, pairs of column groups together */
};
/* Of a pair's first chunk Qeff and O_loc come before D and B: each in the other's place. */
template <bool PAIRS, typename T> __device__ __forceinline__ const T *placed(const T *usual, const T *other, int half)
{
    return PAIRS && half == 0 ? other : usual;
}

template <int DK, int NV, bool WIDE> struct walk_shape {
    static constexpr int KT = DK / 16, sets = 2, threads = 32 * (NV + sets * CT + 1);
    static constexpr int handover = 32 * (NV + CT); /* threads that meet over a chunk's state: all of NV, one set */
    static constexpr int fit = (int)(220 * 1024 / sizeof(walk_stage<DK, NV, WIDE>)), stages = fit < 8 ? fit : 8;
};

template <int DK, int NV, bool WIDE> struct walk_shared {
    static constexpr int STAGES = walk_shape<DK, NV, WIDE>::stages;
    walk_stage<DK, NV, WIDE> stage[STAGES];
    uint64_t full[STAGES], empty[STAGES]; /* maps are here; all have left */
    int level[STAGES][NV];                /* of float16, the exponent of what a group's S was divided by */
};

/* Places in the ring are advanced by several. */
template <int STAGES> struct ring_place {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void advance(int by)
    {
        stage += by;
        if (stage >= STAGES) stage -= STAGES, parity ^= 1;
    }
};

template <int DK, int NV, bool WIDE, bool PAIRS>
__device__ __forceinline__ void bring_maps(walk_shared<DK, NV, WIDE> &s, const arguments &a, int64_t head, int steps,
                                           int half, int strip, int lane)
{
    constexpr int STAGES = walk_shape<DK, NV, WIDE>::stages;
    constexpr uint32_t MAPS = sizeof s.stage[0].maps, STRIPS = sizeof s.stage[0].strip;
    constexpr int64_t RECORD = PAIRS ? pair_frags<DK> : record_frags<DK, WIDE>,
                      STRIP = PAIRS ? pair_strip_frags<DK> : strip_frags<DK>;
    const int64_t at = head * (PAIRS ? (a.stride + 1) / 2 : a.stride), strips = a.dvp / 16 * STRIP;
    const frag *maps = a.maps + at * RECORD + half * sizes<DK>::square,
               *columns = a.columns + at * strips + strip * STRIP + half * sizes<DK>::strip;
    ring_place<STAGES> place;
    for (int c = 0; c < steps; c++) {
        walk_stage<DK, NV, WIDE> &to = s.stage[place.stage];
        if (c >= STAGES) barrier_wait(shared_address(&s.empty[place.stage]), place.parity ^ 1);
        reads_before_copies();
        const warp_copy copies = {shared_address(&s.full[place.stage]), lane};
        copies.expect(MAPS + STRIPS);
        copies.copy(shared_address(&to.maps), maps, MAPS);
        copies.copy(shared_address(&to.strip), columns, STRIPS);
        copies.done();
        maps += RECORD, columns += strips;
        place.advance(1);
    }
}

/* S of a warp times a power of two. */
template <int KT> __device__ __forceinline__ void scale_state(float (&S)[KT][4], float by)
{
#pragma unroll
    for (int m = 0; m < KT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[m][i] *= by;
}

template <int KT> __device__ __forceinline__ float largest_of(const float (&S)[KT][4])
{
    float top[4] = {}; /* several, as one would be a chain */
#pragma unroll
    for (int m = 0; m < KT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) top[i] = fmaxf(top[i], fabsf(S[m][i]));
    return warp_top(fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3])));
}

template <int DK, int NV, bool WIDE, bool PAIRS>
__device__ __forceinline__ void walk_state(float (&S)[DK / 16][4], walk_shared<DK, NV, WIDE> &s, int steps, int half,
                                           int v, int lane)
{
    using M = typename map_arithmetic<WIDE>::type;
    constexpr int KT = DK / 16, EARLY = DK == 64 ? KT : 2; /* columns of D loaded before the state is there */
    constexpr int ONE = 127, SLACK = 4;
    frag unit = unit_tile<M>(lane);
    const uint32_t ones = unit.x[0] != 0 ? (unit.x[0] & 0xffffu ? 0xffffu : 0xffff0000u) : 0;
    int level = ONE, before = 0; /* S is kept divided by power_of(level); the scale of V of the chunk before */
    float top = WIDE ? largest_of<KT>(S) : 0;
    ring_place<walk_shape<DK, NV, WIDE>::stages> place;
    for (int c = 0; c < steps; c++) {
        walk_stage<DK, NV, WIDE> &in = s.stage[place.stage];
        const auto in_D = placed<PAIRS>(in.maps.D, in.maps.Q, half);
        barrier_wait(shared_address(&s.full[place.stage]), place.parity);
        uint2 B[KT], right[KT];
        frag D[EARLY][KT];
#pragma unroll
        for (int m = 0; m < KT; m++)
            B[m] = ((const uint2 *)&placed<PAIRS>(in.strip[v / 2].B, in.strip[v / 2].O, half)[m][lane])[v % 2];
        if constexpr (WIDE) {
            const int scale = exponent_above(in.maps.scale),
                      want = min(max(max(level - ONE + exponent_above(top), max(scale, before)), 1), 254);
            if (want > level || want < level - SLACK) {
                scale_state<KT>(S, power_of(level - want + ONE));
                level = want;
            }
            before = scale;
            const float by = power_of(scale - level + ONE);
            unit.x[0] = unit.x[3] = pack(M{}, by, by) & ones;
            if (lane == 0) s.level[place.stage][v] = level;
        }
#pragma unroll
        for (int k = 0; k < EARLY; k++)
#pragma unroll
            for (int m = 0; m < KT; m++) D[k][m] = in_D[m][k][lane];
#pragma unroll
        for (int m = 0; m < KT; m++)
            right[m] = make_uint2(transpose8(pack(M{}, S[m][0], S[m][1])), transpose8(pack(M{}, S[m][2], S[m][3])));
        if (WIDE) top = largest_of<KT>(S);
#pragma unroll
        for (int m = 0; m < KT; m++) mma(M{}, S[m], unit.x, B[m].x, B[m].y);
#pragma unroll
        for (int m = 0; m < KT; m++) in.state[v / 2][m][lane][v % 2] = right[m];
        meet_later<walk_shape<DK, NV, WIDE>::handover>(1 + place.stage);
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int m = 0; m < KT; m++) {
                if (k < EARLY)
                    mma(M{}, S[m], D[k < EARLY ? k : 0][m].x, right[k].x, right[k].y);
                else
                    mma(M{}, S[m], in_D[m][k][lane].x, right[k].x, right[k].y);
            }
        arrive(shared_address(&s.empty[place.stage]), lane);
        place.advance(1);
    }
    if (WIDE) scale_state<KT>(S, power_of(level));
}

/* Token tile m of all the block's columns. Of sixteen columns, a lane's four results in a row are neighbours. */
template <int DK, int NV, bool WIDE, bool PAIRS>
__device__ __forceinline__ void walk_outputs(walk_shared<DK, NV, WIDE> &s, const arguments &a, int64_t head,
                                             int64_t bad, int steps, int half, int set, int m, int column, int lane)
{
    using M = typename map_arithmetic<WIDE>::type;
    constexpr int KT = DK / 16, SETS = walk_shape<DK, NV, WIDE>::sets, STEP = PAIRS ? 2 * C : C;
    const int g = lane / 4, t = lane % 4;
    const frag unit = unit_tile<M>(lane);
    const bool bf16 = a.dtype == VLA_BF16;
    const int64_t here = a.first_token + a.chunks * C, rows = PAIRS && here < a.T ? here : a.T,
                  end = bad < rows ? bad : rows;
    int64_t row0 = a.first_token + set * STEP + half * C + 16 * m;
    auto *to = (typename stored<WIDE>::element *)a.o + (head * a.T + row0 + g) * a.dv + 8 * column + 4 * t;
    ring_place<walk_shape<DK, NV, WIDE>::stages> place;
    place.advance(set);
    for (int c = set; c < steps; c += SETS, row0 += SETS * STEP, to += SETS * STEP * a.dv) {
        walk_stage<DK, NV, WIDE> &in = s.stage[place.stage];
        float o[NV][4] = {};
        frag Q[KT];
        barrier_wait(shared_address(&s.full[place.stage]), place.parity);
#pragma unroll
        for (int p = 0; p < NV / 2; p++) {
            const frag x = placed<PAIRS>(in.strip[p].O, in.strip[p].B, half)[m][lane];
            mma(M{}, o[2 * p], unit.x, x.x[0], x.x[1]);
            mma(M{}, o[2 * p + 1], unit.x, x.x[2], x.x[3]);
        }
#pragma unroll
        for (int k = 0; k < KT; k++) Q[k] = placed<PAIRS>(in.maps.Q, in.maps.D, half)[m][k][lane];
        float factor[2], scale = 0;
        if constexpr (WIDE) {
            factor[0] = in.maps.factor[16 * m + g], factor[1] = in.maps.factor[16 * m + g + 8];
            scale = in.maps.scale;
        }
        meet<walk_shape<DK, NV, WIDE>::handover>(1 + place.stage);
        float back[NV][2]; /* from the state's units, and the rows' factors */
        if constexpr (WIDE) {
#pragma unroll
            for (int v = 0; v < NV; v++) {
                const int level = s.level[place.stage][v];
                const float by = power_of(exponent_above(scale) - level + 127);
                back[v][0] = factor[0] * power_of(level), back[v][1] = factor[1] * power_of(level);
#pragma unroll
                for (int i = 0; i < 4; i++) o[v][i] *= by;
            }
        }
#pragma unroll
        for (int k = 0; k < KT; k++)
#pragma unroll
            for (int p = 0; p < NV / 2; p++) {
                const uint4 x = *(const uint4 *)in.state[p][k][lane];
                mma(M{}, o[2 * p], Q[k].x, x.x, x.y);
                mma(M{}, o[2 * p + 1], Q[k].x, x.z, x.w);
            }
        arrive(shared_address(&s.empty[place.stage]), lane);
        place.advance(SETS);
        if constexpr (WIDE) {
#pragma unroll
            for (int v = 0; v < NV; v++)
#pragma unroll
                for (int i = 0; i < 4; i++) o[v][i] *= back[v][i / 2];
        }
        if (a.dv % 4 == 0) { /* 64-bit tests and narrow stores stay out of the usual path */
            const auto store = [&](int p, int h, bool is_finite) {
                const float *x = o[2 * p] + 2 * h, *y = o[2 * p + 1] + 2 * h;
                store4<WIDE>(to + 16 * p + 8 * h * a.dv, bf16, is_finite ? x[0] : NAN, is_finite ? x[1] : NAN,
                             is_finite ? y[0] : NAN, is_finite ? y[1] : NAN);
            };
            const bool whole = end - row0 >= 16;
#pragma unroll
            for (int p = 0; p < NV / 2; p++) {
                if (8 * column + 16 * p + 4 * t >= a.dv) continue;
                if (whole) {
                    store(p, 0, true), store(p, 1, true);
                } else {
                    if (row0 + g < rows) store(p, 0, row0 + g < bad);
                    if (row0 + g + 8 < rows) store(p, 1, row0 + g + 8 < bad);
                }
            }
        } else {
#pragma unroll
            for (int v = 0; v < NV; v++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int64_t row = row0 + g + 8 * (i / 2);
                    const int x = 8 * column + 16 * (v / 2) + 4 * t + 2 * (v % 2) + i % 2;
                    if (row < rows && x < a.dv)
                        store_element(a.o, dtype_of<WIDE>(a), (head * a.T + row) * a.dv + x,
                                      row >= bad ? NAN : o[v][i]);
                }
        }
    }
}

template <int DK, int NV, bool WIDE, bool PAIRS>
__global__ void __launch_bounds__(walk_shape<DK, NV, WIDE>::threads, 1) walk(const __grid_constant__ arguments a)
{
    constexpr int KT = DK / 16, STAGES = walk_shape<DK, NV, WIDE>::stages;
    extern __shared__ __align__(16) unsigned char raw[];
    walk_shared<DK, NV, WIDE> &s = *(walk_shared<DK, NV, WIDE> *)raw;
    static_assert(!PAIRS || (NV == 2 && DK == 16 * CT && !WIDE), "halves of a pair lie behind each other");
    const int groups = a.dvp / (8 * NV), lane = (int)threadIdx.x % 32, warp = warp_number();
    const int part = (int)(blockIdx.x % (PAIRS ? 2 * groups : groups)), half = PAIRS ? part % 2 : 0,
              column = (PAIRS ? part / 2 : part) * NV, /* in eights */
        steps = PAIRS ? (int)((a.chunks + 1) / 2) : (int)a.chunks;
    const int64_t head = blockIdx.x / (PAIRS ? 2 * groups : groups);
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), warp_copy::arrivals);
        barrier_init(shared_address(&s.empty[threadIdx.x]), (NV + CT) * ARRIVALS);
    }
    barriers_made();
    __syncthreads();
    grid_release(a.early);
    grid_wait();
    if (warp < NV) {
        const int64_t bad = first_bad(a, head);
        const int v = warp, g = lane / 4, t = lane % 4, first = 8 * column + 16 * (v / 2) + 4 * t + 2 * (v % 2);
        const int64_t own = (head * a.dv + first) * a.dk + g;
        const float *from = (PAIRS ? a.start : a.S) + own;
        float S[KT][4], *to = a.S + own;
        const auto in_S = [&](int m, int i) { return first + i % 2 < a.dv && 16 * m + g + 8 * (i / 2) < a.dk; };
#pragma unroll
        for (int m = 0; m < KT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                S[m][i] = in_S(m, i) && (!a.first || a.resume) ? from[(i % 2) * a.dk + 16 * m + 8 * (i / 2)] : 0.0f;
        if (a.n_end && part == 0)
            for (int c = (int)threadIdx.x; c < a.dk; c += 32 * NV)
                a.n_end[head * a.dk + c] = bad < a.T ? NAN : a.n_carry[head * DK + c];
        walk_state<DK, NV, WIDE, PAIRS>(S, s, steps, half, v, lane);
        if (half != 0) return;
#pragma unroll
        for (int m = 0; m < KT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (in_S(m, i)) to[(i % 2) * a.dk + 16 * m + 8 * (i / 2)] = bad < a.T ? NAN : S[m][i];
    } else if (warp < walk_shape<DK, NV, WIDE>::threads / 32 - 1) {
        walk_outputs<DK, NV, WIDE, PAIRS>(s, a, head, first_bad(a, head), steps, half, (warp - NV) / CT,
                                          (warp - NV) % CT, column, lane);
    } else if (lane < warp_copy::lanes) {
        bring_maps<DK, NV, WIDE, PAIRS>(s, a, head, steps, half, column / 2, lane);
    }
}
} /* namespace chunked::apart */

#endif
