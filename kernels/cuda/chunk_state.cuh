/* state of the chunkwise forms (chunk.cuh), where chunks a head are few: the recurrence alone, chunk by chunk
 *   W^T = Rv^T - S Rk^T,   S += W^T a,
 * of what solve made of each chunk. S before every chunk and W go to memory, where output waits for them.
 *
 * A block holds 16 rows of S of one head (32 at dk = 128), four warps as the accumulators of S's own update, each a
 * quarter of dk; of W^T each has sixteen tokens. What a warp packs of one product is its share of the left operand of
 * the next, which all four need: it goes through shared memory, in the order of frags. The chain of a chunk is what
 * counts: two products, two exchanges. So a warp starts each product with its own share before the barrier, everything
 * else that it multiplies with is in registers by then, and where a product is short it is two chains of sums. One
 * thread brings the records by bulk copies, several chunks ahead.
 *
 * What is published needs no flag, which would cost a fence a chunk: its words are UNWRITTEN before (solve writes that,
 * and ends before this kernel reads or writes anything), and no bfloat16 pair that rounding makes is. A place of the
 * ring is filled again when the four warps have arrived; what they have read by loads, the asking thread's fence of
 * proxies keeps before the copy. */
#ifndef VLA_CUDA_CHUNK_STATE_CUH
#define VLA_CUDA_CHUNK_STATE_CUH
#include "kernels/cuda/chunk_records.cuh"
#include "kernels/cuda/chunk_walk.cuh"

namespace chunked::back
{
template <int DK> struct state_shape {
    static constexpr int strips = DK == 64 ? 1 : 2, rows = 16 * strips; /* of S a block */
    static constexpr int warps = CT, threads = 32 * (warps + 1), stages = by_map<DK> ? 4 : DK == 64 ? 7 : 3;
};
template <int DK> struct state_stage {
    walked<DK> walk;
    frag start[state_shape<DK>::strips][start_tiles<DK>][32];
};
template <int DK> struct state_shared {
    using shape = state_shape<DK>;
    state_stage<DK> stage[shape::stages];
    frag S[by_map<DK> ? 2 : 1][shape::strips][DK / 16][32]; /* left operands; two where a chunk has one barrier */
    frag W[by_map<DK> ? 1 : shape::strips][by_map<DK> ? 1 : CT][by_map<DK> ? 1 : 32];
    uint64_t full[shape::stages], empty[shape::stages]; /* a record is here; all have left */
};

/* By solve, a whole block: of a chunk, for state. */
template <int DK> __device__ __forceinline__ void unwrite(const arguments &a, int64_t at)
{
    const uint4 x = make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN);
    uint4 *S = (uint4 *)state_of<DK>(a, at, 0);
    for (int i = (int)threadIdx.x; i < a.dvp / 16 * (int)sizes<DK>::strip; i += (int)blockDim.x) S[i] = x;
}

__device__ __forceinline__ void publish_tile(frag *to, const frag &x)
{
    store_relaxed(to, make_uint4(x.x[0], x.x[1], x.x[2], x.x[3]));
}

/* c += a b^T, b in right order, where it stands in the code: between loads that are not waited for. */
__device__ __forceinline__ void product_here(float (&c)[2][4], const frag &a, const frag &b)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[h][0]), "+f"(c[h][1]), "+f"(c[h][2]), "+f"(c[h][3])
            : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[2 * h]), "r"(b.x[2 * h + 1])
            : "memory");
}

template <int DK, bool FLAGS>
__device__ __forceinline__ void bring_records(state_shared<DK> &s, const arguments &a, int64_t at, const int *ready,
                                              int strip, int lane)
{
    using shape = state_shape<DK>;
    constexpr uint32_t RECORD = sizeof s.stage[0].walk, STRIP = sizeof s.stage[0].start[0];
    const int left = a.dvp / 16 - strip;
    const uint32_t strips = STRIP * (uint32_t)(left < shape::strips ? left : shape::strips);
    ring_place<shape::stages> place;
    for (int c = 0; c < (int)a.chunks; c++) {
        auto &to = s.stage[place.stage];
        if (FLAGS) {
            while (load_acquire(ready + c) == 0) __nanosleep(20);
            fence_copies();
        }
        if (c >= shape::stages) barrier_wait(shared_address(&s.empty[place.stage]), place.parity ^ 1);
        reads_before_copies();
        const warp_copy copies = {shared_address(&s.full[place.stage]), lane};
        copies.expect(RECORD + strips);
        copies.copy(shared_address(&to.start), start_of<DK>(a, at + c, strip), strips);
        copies.copy(shared_address(&to.walk), &solved_of<DK>(a, at + c)->walk, RECORD);
        copies.done();
        place.advance();
    }
}

/* Results over several chains of sums, so that a product does not wait for the one before. */
template <int N> __device__ __forceinline__ void add_results(float (&c)[N][4], const float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[n][i] += d[n][i];
}

/* What both ways of going through the chunks share: a warp's place in what it reads. All that all four warps make starts
 * behind its own. */
template <int DK> struct state_walker {
    using shape = state_shape<DK>;
    static constexpr int KT = DK / 16, OWN = KT / CT, STRIPS = shape::strips, STAGES = shape::stages;
    static constexpr bool TWO = STRIPS == 1; /* chains of sums */
    static constexpr uint32_t TILE = 32 * sizeof(frag), STAGE = sizeof(state_stage<DK>);
    state_shared<DK> &s;
    const int warp, lane;
    ring_place<STAGES> place;
    uint32_t stage, turn_k[KT]; /* bytes of the place, with the lane's part of a tile */
    uint32_t all_S, side = 0; /* bytes from the first of two S */
    frag *own_S;
    frag *to_S;
    int64_t next_S;
    bool second; /* strip is there */
    frag x[STRIPS][OWN], left_S[STRIPS][KT];
    float (&S)[STRIPS][OWN][2][4];

    __device__ __forceinline__ state_walker(state_shared<DK> &s_, float (&S_)[STRIPS][OWN][2][4], const arguments &a,
                                            int64_t at, int strip, int warp_, int lane_)
        : s(s_), warp(warp_), lane(lane_), S(S_)
    {
        stage = (uint32_t)lane * sizeof(frag), all_S = shared_address(&s.S) + stage;
        own_S = &s.S[0][0][OWN * warp][lane];
#pragma unroll
        for (int i = 0; i < KT; i++) turn_k[i] = (uint32_t)((OWN * warp + i) % KT) * TILE;
        to_S = state_of<DK>(a, at, strip) + OWN * warp * 32 + lane, next_S = a.dvp / 16 * sizes<DK>::strip;
        second = STRIPS > 1 && strip + 1 < a.dvp / 16;
    }
    __device__ __forceinline__ bool is(int m) const { return m == 0 || second; }
    __device__ __forceinline__ void wait() const { barrier_wait(shared_address(&s.full[place.stage]), place.parity); }
    __device__ __forceinline__ void meet() const { named_barrier<32 * shape::warps>(1); }
    __device__ __forceinline__ void put_S()
    {
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++)
                own_S[side / sizeof(frag) + (m * KT + q) * 32] = x[m][q] =
                    pack_tile<bf16_arithmetic>(S[m][q][0], S[m][q][1]);
    }
    __device__ __forceinline__ void load_S()
    {
#pragma unroll
        for (int i = OWN; i < KT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++) left_S[m][i] = load_frag(all_S + side + m * KT * TILE + turn_k[i]);
        if (by_map<DK>) side ^= sizeof s.S[0];
    }
    __device__ __forceinline__ void publish_S()
    {
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++)
                if (is(m)) publish_tile(to_S + m * sizes<DK>::strip + q * 32, x[m][q]);
        to_S += next_S;
    }
    __device__ __forceinline__ void next()
    {
        place.advance();
        stage = (uint32_t)place.stage * STAGE + (uint32_t)lane * sizeof(frag);
    }
};

/* S += B - S D, chunk by chunk. What the chain does not need is done while its products run. */
template <int DK> __device__ __forceinline__ void walk_maps(state_walker<DK> &v, int chunks)
{
    using walker = state_walker<DK>;
    constexpr int KT = walker::KT, OWN = walker::OWN, STRIPS = walker::STRIPS;
    constexpr uint32_t TILE = walker::TILE;
    frag D[OWN][KT], start[STRIPS][OWN];
    const uint32_t all_D = shared_address(&v.s.stage[0].walk.D[OWN * v.warp]),
                   all_B = shared_address(&v.s.stage[0].start[0][OWN * v.warp]);
    const auto load = [&]() {
#pragma unroll
        for (int q = 0; q < OWN; q++)
#pragma unroll
            for (int i = 0; i < KT; i++) D[q][i] = load_frag(all_D + v.stage + q * KT * TILE + v.turn_k[i]);
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++)
                start[m][q] = v.is(m) ? load_frag(all_B + v.stage + (m * KT + q) * TILE) : frag{};
    };
    v.put_S();
    v.wait();
    load();
#pragma unroll 1
    for (int c = 0;; c++) {
        const bool more = c + 1 < chunks;
        const uint32_t empty = shared_address(&v.s.empty[v.place.stage]);
        float sum[STRIPS][OWN][2][4];
        v.meet();
        v.load_S();
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++) {
                unpack_tile<bf16_arithmetic>(sum[m][q], start[m][q]);
#pragma unroll
                for (int i = 0; i < OWN; i++) product_here(v.S[m][q], v.x[m][i], D[q][i]);
            }
        v.publish_S();
        v.next();
        if (more) v.wait();
#pragma unroll
        for (int i = OWN; i < KT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int q = 0; q < OWN; q++) product_here(i % 2 ? sum[m][q] : v.S[m][q], v.left_S[m][i], D[q][i]);
        if (more) {
            load();
            arrive(empty, v.lane);
        }
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++) add_results(v.S[m][q], sum[m][q]);
        if (!more) break;
        v.put_S();
    }
}

/* W^T = Rv^T - S Rk^T, then S += W^T a, chunk by chunk. */
template <int DK> __device__ __forceinline__ void walk_solved(state_walker<DK> &v, int chunks)
{
    using walker = state_walker<DK>;
    constexpr int KT = walker::KT, OWN = walker::OWN, STRIPS = walker::STRIPS;
    constexpr bool TWO = walker::TWO;
    constexpr uint32_t TILE = walker::TILE;
    frag R[KT], X[OWN][CT], start[STRIPS], y[STRIPS], left_W[STRIPS][CT];
    const uint32_t all_W = shared_address(&v.s.W) + (uint32_t)v.lane * sizeof(frag),
                   all_R = shared_address(&v.s.stage[0].walk.Rk[v.warp]),
                   all_X = shared_address(&v.s.stage[0].walk.X[OWN * v.warp]),
                   all_Rv = shared_address(&v.s.stage[0].start[0][v.warp]);
    uint32_t turn_j[CT];
#pragma unroll
    for (int i = 0; i < CT; i++) turn_j[i] = (uint32_t)((v.warp + i) % CT) * TILE;
    const auto load_R = [&]() {
#pragma unroll
        for (int i = 0; i < KT; i++) R[i] = load_frag(all_R + v.stage + v.turn_k[i]);
#pragma unroll
        for (int m = 0; m < STRIPS; m++) start[m] = v.is(m) ? load_frag(all_Rv + v.stage + m * CT * TILE) : frag{};
    };
    v.put_S();
    v.wait();
    load_R();
#pragma unroll 1
    for (int c = 0;; c++) {
        const bool more = c + 1 < chunks;
        const uint32_t empty = shared_address(&v.s.empty[v.place.stage]);
        float w[STRIPS][2][4], more_w[2][4] = {};
        v.meet();
        v.load_S();
#pragma unroll
        for (int m = 0; m < STRIPS; m++) {
            unpack_tile<bf16_arithmetic>(w[m], start[m]);
#pragma unroll
            for (int q = 0; q < OWN; q++) product_here(w[m], v.x[m][q], R[q]);
        }
        v.publish_S();
#pragma unroll
        for (int i = OWN; i < KT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++) product_here(TWO && i % 2 ? more_w : w[m], v.left_S[m][i], R[i]);
#pragma unroll
        for (int q = 0; q < OWN; q++)
#pragma unroll
            for (int i = 0; i < CT; i++) X[q][i] = load_frag(all_X + v.stage + q * CT * TILE + turn_j[i]);
        if (TWO) add_results(w[0], more_w);
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
            v.s.W[m][v.warp][v.lane] = y[m] = pack_tile<bf16_arithmetic>(w[m][0], w[m][1]);
        float more_S[2][4] = {};
        v.meet();
#pragma unroll
        for (int i = 1; i < CT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++) left_W[m][i] = load_frag(all_W + m * CT * TILE + turn_j[i]);
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++) product_here(v.S[m][q], y[m], X[q][0]);
        v.next();
        if (more) v.wait();
#pragma unroll
        for (int i = 1; i < CT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int q = 0; q < OWN; q++)
                    product_here(TWO && i % 2 ? more_S : v.S[m][q], left_W[m][i], X[q][i]);
        if (more) {
            load_R();
            arrive(empty, v.lane);
        }
        if (TWO) add_results(v.S[0][0], more_S);
        if (!more) break;
        v.put_S();
    }
}

/* From strip `strip` on, of a head, by a block. FLAGS: beside the chunks, whose flags are waited for. */
template <int DK, bool FLAGS>
__device__ __forceinline__ void walk_state(state_shared<DK> &s, const arguments &a, int64_t head, int strip)
{
    using shape = state_shape<DK>;
    constexpr int OWN = DK / 16 / CT, STRIPS = shape::strips, STAGES = shape::stages;
    const int lane = (int)threadIdx.x % 32, warp = warp_number(), g = lane / 4, t = lane % 4, chunks = (int)a.chunks;
    int *const ready = a.ready + head * (a.stride + 1);
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), warp_copy::arrivals);
        barrier_init(shared_address(&s.empty[threadIdx.x]), shape::warps);
    }
    barriers_made();
    __syncthreads();
    grid_wait();
    if (!FLAGS) grid_release(true); /* output may read whatever was there before this kernel */
    if (warp == shape::warps) {
        if (lane < warp_copy::lanes) bring_records<DK, FLAGS>(s, a, head * a.stride, ready + 1, strip, lane);
        return;
    }
    const int first = 16 * strip + 4 * (g / 2) + g % 2, own = 16 * OWN * warp; /* of rows, of dk */
    const auto in_S = [&](int m, int q, int h, int i) {
        return first + 16 * m + i / 2 * 2 < a.dv && own + 16 * q + 8 * h + 2 * t + i % 2 < a.dk;
    };
    float S[STRIPS][OWN][2][4], *from = a.S + (head * a.dv + first) * a.dk + own + 2 * t;
#pragma unroll
    for (int m = 0; m < STRIPS; m++)
#pragma unroll
        for (int e = 0; e < OWN * 8; e++) {
            const int q = e / 8, h = e / 4 % 2, i = e % 4;
            S[m][q][h][i] = in_S(m, q, h, i) && (!a.first || a.resume)
                                ? from[(16 * m + i / 2 * 2) * a.dk + 16 * q + 8 * h + i % 2]
                                : 0.0f;
        }
    state_walker<DK> walker(s, S, a, head * a.stride, strip, warp, lane);
    if (FLAGS) { /* nobody was there to write UNWRITTEN before the first chunk's */
        walker.put_S();
        walker.publish_S();
        walker.to_S -= walker.next_S;
        walker.meet();
        if (threadIdx.x == 0) add_release(ready, 1);
    }
    if constexpr (by_map<DK>)
        walk_maps<DK>(walker, chunks);
    else
        walk_solved<DK>(walker, chunks);
    const int64_t bad = first_bad(a, head);
#pragma unroll
    for (int m = 0; m < STRIPS; m++)
#pragma unroll
        for (int e = 0; e < OWN * 8; e++) {
            const int q = e / 8, h = e / 4 % 2, i = e % 4;
            if (in_S(m, q, h, i))
                from[(16 * m + i / 2 * 2) * a.dk + 16 * q + 8 * h + i % 2] = bad < a.T ? NAN : S[m][q][h][i];
        }
    if (a.n_end && strip == 0)
        for (int c = (int)threadIdx.x; c < a.dk; c += 32 * shape::warps)
            a.n_end[head * a.dk + c] = bad < a.T ? NAN : a.n_carry[head * DK + c];
}

template <int DK> __global__ void __launch_bounds__(state_shape<DK>::threads, 1) state(const __grid_constant__ arguments a)
{
    extern __shared__ __align__(16) unsigned char raw[];
    const unsigned groups = (unsigned)(a.dvp + state_shape<DK>::rows - 1) / state_shape<DK>::rows;
    walk_state<DK, false>(*(state_shared<DK> *)raw, a, blockIdx.x / groups,
                          (int)(blockIdx.x % groups) * state_shape<DK>::strips);
}
} /* namespace chunked::back */

#endif
