/* The walk beside the chunks of chunk_brief.cuh: S' = S - S D + B, chunk by chunk.
 *
 * A block has sixteen rows of S of a head, two warps eight rows each, S^T as the accumulators of its own update: D^T is
 * the left operand, and what a warp packs of S^T is turned into the right one in registers, so that warps meet nobody.
 * Another warp asks for the maps by bulk copies, as chunks say by their flags that they are there: one lane looks at
 * one chunk's flag, so that the copies of several follow one look.
 *
 * Each state goes to memory, where its chunk waits for it. Who puts UNWRITTEN there, and what orders each hand-over:
 * chunk_walk.cuh. A place of the ring is filled again when both warps have arrived; what they have read by loads, the
 * asking thread's fence of proxies keeps before the copy. */
#ifndef VLA_CUDA_CHUNK_BRIEF_WALK_CUH
#define VLA_CUDA_CHUNK_BRIEF_WALK_CUH
#include "kernels/cuda/chunk_walk.cuh"

namespace chunked::brief
{
/* Of sixteen columns of V (rows of S), place 8 h + 2 t + i holds column 4 t + 2 h + i. */
constexpr int STRIP_ROWS = 16;

/* Of a chunk: -D^T, left operands, 16 x 16 of dk; of sixteen rows of S, B as right operands in right order, 16 rows x
 * 16 of dk; the state before it, the same. */
template <int DK> __device__ __forceinline__ frag *map_of(const arguments &a, int64_t at)
{
    return a.maps + at * sizes<DK>::square;
}
template <int DK> __device__ __forceinline__ frag *added_of(const arguments &a, int64_t at, int strip)
{
    return a.columns + (at * (a.dvp / 16) + strip) * sizes<DK>::strip;
}
template <int DK> __device__ __forceinline__ frag *state_of(const arguments &a, int64_t at, int strip)
{
    return a.states + (at * (a.dvp / 16) + strip) * sizes<DK>::strip;
}

template <int DK> struct walk_shared {
    static constexpr int STAGES = 4, WARPS = 2;
    struct {
        frag D[DK / 16][DK / 16][32], B[DK / 16][32];
    } stage[STAGES];
    uint64_t full[STAGES], empty[STAGES]; /* maps are here; both have left */
};

template <int DK>
__device__ __forceinline__ void bring_maps(walk_shared<DK> &s, const arguments &a, int64_t head, int strip, int lane)
{
    using shared = walk_shared<DK>;
    constexpr uint32_t D = sizeof s.stage[0].D, B = sizeof s.stage[0].B;
    const int *ready = a.ready + head * (a.stride + 1) + 1;
    const int chunks = (int)a.chunks;
    int known = 0;
    ring_place<shared::STAGES> place;
    for (int c = 0; c < chunks; c++) {
        if (known <= c) known = await_maps(ready, c, chunks, lane);
        if (lane < warp_copy::lanes) {
            if (c >= shared::STAGES) barrier_wait(shared_address(&s.empty[place.stage]), place.parity ^ 1);
            reads_before_copies();
            const warp_copy copies = {shared_address(&s.full[place.stage]), lane};
            copies.expect(D + B);
            copies.copy(shared_address(&s.stage[place.stage].B), added_of<DK>(a, head * a.stride + c, strip), B);
            copies.copy(shared_address(&s.stage[place.stage].D), map_of<DK>(a, head * a.stride + c), D);
            copies.done();
        }
        __syncwarp();
        place.advance();
    }
}

/* A product that stays where it stands in the code, between loads that are not waited for. */
__device__ __forceinline__ void product_here(float (&c)[4], const uint32_t (&a)[4], const uint2 &b)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y)
        : "memory");
}

template <int DK> __device__ __forceinline__ void walk(walk_shared<DK> &s, const arguments &a, int64_t head, int strip)
{
    using shared = walk_shared<DK>;
    using M = bf16_arithmetic;
    constexpr int KT = DK / 16, STAGES = shared::STAGES;
    const int lane = (int)threadIdx.x % 32, warp = warp_number(), g = lane / 4, t = lane % 4, chunks = (int)a.chunks;
    if (threadIdx.x < STAGES) {
        barrier_init(shared_address(&s.full[threadIdx.x]), warp_copy::arrivals);
        barrier_init(shared_address(&s.empty[threadIdx.x]), shared::WARPS * ARRIVALS);
    }
    barriers_made();
    __syncthreads();
    grid_wait();
    if (warp == shared::WARPS) bring_maps<DK>(s, a, head, strip, lane);
    if (warp >= shared::WARPS) return;
    const int first = STRIP_ROWS * strip + 4 * t + 2 * warp;
    const auto in_S = [&](int m, int i) { return first + i % 2 < a.dv && 16 * m + g + 8 * (i / 2) < a.dk; };
    float S[KT][4], *from = a.S + (head * a.dv + first) * a.dk + g;
#pragma unroll
    for (int m = 0; m < KT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            S[m][i] = in_S(m, i) && (!a.first || a.resume) ? from[(i % 2) * a.dk + 16 * m + 8 * (i / 2)] : 0.0f;
    uint2 right[KT], *to = (uint2 *)(state_of<DK>(a, head * a.stride, strip) + lane) + warp;
    const int64_t next = a.dvp / 16 * sizes<DK>::strip * 2;
    const auto turn = [&]() {
#pragma unroll
        for (int m = 0; m < KT; m++)
            right[m] = make_uint2(transpose8(pack(M{}, S[m][0], S[m][1])), transpose8(pack(M{}, S[m][2], S[m][3])));
    };
    const auto publish = [&]() {
#pragma unroll
        for (int m = 0; m < KT; m++) store_relaxed(to + m * 64, right[m]);
    };
    turn();
    publish();
    named_barrier<32 * shared::WARPS>(1);
    if (threadIdx.x == 0) add_release(a.ready + head * (a.stride + 1), 1); /* nobody was there to write UNWRITTEN */
    const uint32_t unit = unit_tile<M>(lane).x[0], ones[4] = {unit, 0, 0, unit};
    /* Of D^T the columns 0 and 1 of a chunk are there when its state is, 2 and 3 come while those are multiplied. */
    static_assert(KT == 4, "columns of D^T in three sets of registers");
    const uint32_t base = shared_address(&s.stage[0].D[0][0][lane]);
    constexpr uint32_t STAGE = sizeof s.stage[0], TILE = 32 * sizeof(frag);
    frag D[3][KT];
    uint2 B[KT];
    ring_place<STAGES> place;
    const auto load = [&](int set, int k) {
#pragma unroll
        for (int m = 0; m < KT; m++)
            D[set][m] = load_frag(base + (uint32_t)place.stage * STAGE + (uint32_t)(m * KT + k) * TILE);
    };
    const auto load_B = [&]() {
        const auto &in = s.stage[place.stage];
#pragma unroll
        for (int m = 0; m < KT; m++) B[m] = ((const uint2 *)&in.B[m][lane])[warp];
    };
    const auto multiply = [&](int set, int k) {
#pragma unroll
        for (int m = 0; m < KT; m++) product_here(S[m], D[set][m].x, right[k]);
    };
    barrier_wait(shared_address(&s.full[0]), 0);
    load(0, 0), load(1, 1), load_B();
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        load(2, 2);
#pragma unroll
        for (int m = 0; m < KT; m++) product_here(S[m], ones, B[m]);
        multiply(0, 0);
        load(0, 3);
        multiply(1, 1);
        if (c > 0) publish();
        to += next;
        multiply(2, 2);
        const uint32_t empty = shared_address(&s.empty[place.stage]);
        place.advance();
        if (c + 1 < chunks) {
            barrier_wait(shared_address(&s.full[place.stage]), place.parity);
            load_B(), load(1, 1);
        }
        multiply(0, 3);
        if (c + 1 < chunks) load(0, 0);
        turn();
        arrive(empty, lane);
    }
    const int64_t bad = first_bad(a, head);
#pragma unroll
    for (int m = 0; m < KT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (in_S(m, i)) from[(i % 2) * a.dk + 16 * m + 8 * (i / 2)] = bad < a.T ? NAN : S[m][i];
    if (a.n_end && strip == 0)
        for (int c = (int)threadIdx.x; c < a.dk; c += 32 * shared::WARPS)
            a.n_end[head * a.dk + c] = bad < a.T ? NAN : a.n_carry[head * DK + c];
}
} /* namespace chunked::brief */

#endif
