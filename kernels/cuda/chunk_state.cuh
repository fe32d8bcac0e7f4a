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
    static constexpr int warps = CT, threads = 32 * (warps + 1), stages = DK == 64 ? 7 : 5;
};
template <int DK> struct state_shared {
    using shape = state_shape<DK>;
    struct {
        solved<DK> record;
        frag Rv[shape::strips][CT][32];
    } stage[shape::stages];
    frag S[shape::strips][DK / 16][32], W[shape::strips][CT][32]; /* left operands */
    uint64_t full[shape::stages], empty[shape::stages];           /* a record is here; all have left */
};

/* By solve, a whole block: of a chunk, for state. */
template <int DK> __device__ __forceinline__ void unwrite(const arguments &a, int64_t at)
{
    const uint4 x = make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN);
    uint4 *S = (uint4 *)state_of<DK>(a, at, 0), *W = (uint4 *)w_of(a, at, 0);
    for (int i = (int)threadIdx.x; i < a.dvp / 16 * (int)sizes<DK>::strip; i += (int)blockDim.x) S[i] = x;
    for (int i = (int)threadIdx.x; i < a.dvp / 16 * (int)RV_FRAGS; i += (int)blockDim.x) W[i] = x;
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

template <int DK>
__device__ __forceinline__ void bring_records(state_shared<DK> &s, const arguments &a, int64_t at, int strip, int lane)
{
    using shape = state_shape<DK>;
    constexpr uint32_t RECORD = sizeof(solved<DK>), STRIP = RV_FRAGS * sizeof(frag);
    const int left = a.dvp / 16 - strip;
    const uint32_t strips = STRIP * (uint32_t)(left < shape::strips ? left : shape::strips);
    ring_place<shape::stages> place;
    for (int c = 0; c < (int)a.chunks; c++) {
        auto &to = s.stage[place.stage];
        if (c >= shape::stages) barrier_wait(shared_address(&s.empty[place.stage]), place.parity ^ 1);
        reads_before_copies();
        const warp_copy copies = {shared_address(&s.full[place.stage]), lane};
        copies.expect(RECORD + strips);
        copies.copy(shared_address(&to.Rv), rv_of(a, at + c, strip), strips);
        copies.copy(shared_address(&to.record), solved_of<DK>(a, at + c), RECORD);
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

template <int DK> __global__ void __launch_bounds__(state_shape<DK>::threads, 1) state(const __grid_constant__ arguments a)
{
    using shape = state_shape<DK>;
    using M = bf16_arithmetic;
    constexpr int KT = DK / 16, OWN = KT / CT, STRIPS = shape::strips, STAGES = shape::stages;
    constexpr bool TWO = STRIPS == 1; /* chains of sums */
    extern __shared__ __align__(16) unsigned char raw[];
    state_shared<DK> &s = *(state_shared<DK> *)raw;
    const int groups = (a.dvp + shape::rows - 1) / shape::rows, lane = (int)threadIdx.x % 32, warp = warp_number(),
              g = lane / 4, t = lane % 4;
    const int64_t head = blockIdx.x / (unsigned)groups;
    const int strip = (int)(blockIdx.x % (unsigned)groups) * STRIPS, chunks = (int)a.chunks;
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), warp_copy::arrivals);
        barrier_init(shared_address(&s.empty[threadIdx.x]), shape::warps);
    }
    barriers_made();
    __syncthreads();
    grid_wait();
    grid_release(true); /* output may read whatever was there before this kernel */
    if (warp == shape::warps) {
        if (lane < warp_copy::lanes) bring_records<DK>(s, a, head * a.stride, strip, lane);
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
    /* what a warp reads of all four's starts behind its own */
    frag R[KT], X[OWN][CT], rv[STRIPS], x[STRIPS][OWN], y[STRIPS], left_S[STRIPS][KT], left_W[STRIPS][CT];
    float w[STRIPS][2][4];
    constexpr uint32_t TILE = 32 * sizeof(frag), STAGE = sizeof s.stage[0];
    const uint32_t lane_bytes = (uint32_t)lane * sizeof(frag), all_S = shared_address(&s.S) + lane_bytes,
                   all_W = shared_address(&s.W) + lane_bytes, all_R = shared_address(&s.stage[0].record.Rk[warp]),
                   all_X = shared_address(&s.stage[0].record.X[OWN * warp]),
                   all_Rv = shared_address(&s.stage[0].Rv[0][warp]);
    uint32_t turn_k[KT], turn_j[CT];
#pragma unroll
    for (int i = 0; i < KT; i++) turn_k[i] = (uint32_t)((OWN * warp + i) % KT) * TILE;
#pragma unroll
    for (int i = 0; i < CT; i++) turn_j[i] = (uint32_t)((warp + i) % CT) * TILE;
    ring_place<STAGES> place;
    uint32_t stage = lane_bytes; /* of the place, with the lane's part of a tile */
    frag *to_S = state_of<DK>(a, head * a.stride, strip) + OWN * warp * 32 + lane,
         *to_W = w_of(a, head * a.stride, strip) + warp * 32 + lane;
    const int64_t next_S = a.dvp / 16 * sizes<DK>::strip, next_W = a.dvp / 16 * RV_FRAGS;
    const bool is[2] = {true, STRIPS > 1 && strip + 1 < a.dvp / 16};
    const auto wait = [&]() { barrier_wait(shared_address(&s.full[place.stage]), place.parity); };
    const auto load_R = [&]() {
#pragma unroll
        for (int i = 0; i < KT; i++) R[i] = load_frag(all_R + stage + turn_k[i]);
#pragma unroll
        for (int m = 0; m < STRIPS; m++) rv[m] = is[m] ? load_frag(all_Rv + stage + m * CT * TILE) : frag{};
    };
    const auto put_S = [&]() {
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++) s.S[m][OWN * warp + q][lane] = x[m][q] = pack_tile<M>(S[m][q][0], S[m][q][1]);
    };
    put_S();
    wait();
    load_R();
    for (int c = 0;; c++) {
        /* W^T = Rv^T - S Rk^T, sixteen tokens. What the chain does not need is done while its products run. */
        float more_w[2][4] = {};
        named_barrier<32 * shape::warps>(1);
#pragma unroll
        for (int i = OWN; i < KT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++) left_S[m][i] = load_frag(all_S + m * KT * TILE + turn_k[i]);
#pragma unroll
        for (int m = 0; m < STRIPS; m++) {
            unpack_tile<M>(w[m], rv[m]);
#pragma unroll
            for (int q = 0; q < OWN; q++) product_here(w[m], x[m][q], R[q]);
        }
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++)
                if (is[m]) publish_tile(to_S + m * sizes<DK>::strip + q * 32, x[m][q]);
        to_S += next_S;
#pragma unroll
        for (int i = OWN; i < KT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
                if (TWO && i % 2)
                    product_here(more_w, left_S[m][i], R[i]);
                else
                    product_here(w[m], left_S[m][i], R[i]);
#pragma unroll
        for (int q = 0; q < OWN; q++)
#pragma unroll
            for (int i = 0; i < CT; i++) X[q][i] = load_frag(all_X + stage + q * CT * TILE + turn_j[i]);
        if (TWO) add_results(w[0], more_w);
#pragma unroll
        for (int m = 0; m < STRIPS; m++) s.W[m][warp][lane] = y[m] = pack_tile<M>(w[m][0], w[m][1]);
        /* S += W^T a, a quarter of dk */
        float more_S[2][4] = {};
        named_barrier<32 * shape::warps>(1);
#pragma unroll
        for (int i = 1; i < CT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++) left_W[m][i] = load_frag(all_W + m * CT * TILE + turn_j[i]);
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
#pragma unroll
            for (int q = 0; q < OWN; q++) product_here(S[m][q], y[m], X[q][0]);
#pragma unroll
        for (int m = 0; m < STRIPS; m++)
            if (is[m]) publish_tile(to_W + m * RV_FRAGS, y[m]);
        to_W += next_W;
        const bool more = c + 1 < chunks;
        const uint32_t empty = shared_address(&s.empty[place.stage]);
        place.advance();
        stage = (uint32_t)place.stage * STAGE + lane_bytes;
        if (more) wait();
#pragma unroll
        for (int i = 1; i < CT; i++)
#pragma unroll
            for (int m = 0; m < STRIPS; m++)
#pragma unroll
                for (int q = 0; q < OWN; q++)
                    if (TWO && i % 2)
                        product_here(more_S, left_W[m][i], X[q][i]);
                    else
                        product_here(S[m][q], left_W[m][i], X[q][i]);
        if (more) {
            load_R();
            arrive(empty, lane);
        }
        if (TWO) add_results(S[0][0], more_S);
        if (!more) break;
        put_S();
    }
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
} /* namespace chunked::back */

#endif
