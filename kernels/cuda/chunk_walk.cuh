/* The walk beside the blocks that make the maps, dk to 64: S' = S - S D + B along the chunks (chunk_map.cuh), and what
 * chunk_wide_walk.cuh shares with it.
 *
 * A block walks 64 rows of S of one head: four warps, sixteen rows each, S as the accumulators of its own update,
 * packed as the left operand; D is the right one, by wgmma out of shared memory (mma on older devices). Each state goes
 * to memory, where the chunk's block waits for it. D and B come by bulk copies as they get ready, which the first warp
 * asks for: the block has none to spare. While a chunk's products run, its state is written and the next chunk's B
 * loaded. What is said below of waiting and of states holds for chunk_brief_walk.cuh and chunk_wide_walk.cuh too.
 *
 * Who waits for whom: a chunk's block makes D and B of nothing but its inputs, sets ready, and only then waits for its
 * state; blocks of lower numbers are let in first, a head's walk before its chunks (but chunk_wide.cuh) and chunks in
 * order. So the lowest block that is not done always can go on, if not all places are taken by walks: chunk_host.cuh
 * bounds them.
 *
 * A state in memory needs no flag: its words are UNWRITTEN before (the block of the chunk before writes that, and then
 * sets ready), and no bfloat16 pair that rounding makes is. The walk has acquired that ready before it writes the
 * state, and the asking lane's arrival at the barrier of the chunk's copies passes that on to the other warps.
 *
 * A place of the ring is filled again when the four warps have arrived. D's has been read by wgmma that has ended, of
 * one proxy with the copy that comes. B's has been read by loads, which a fence of proxies keeps before that copy: the
 * asking warp's, which costs less here than the readers'. */
#ifndef VLA_CUDA_CHUNK_WALK_CUH
#define VLA_CUDA_CHUNK_WALK_CUH
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/chunk.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(VLA_WALK_MMA)
#define VLA_WGMMA 1
#else
#define VLA_WGMMA 0
#endif

namespace chunked
{
constexpr uint32_t UNWRITTEN = 0xffffffffu;

constexpr int WALKERS = 4; /* warps */

/* Rings: places of D, and of B, which is read before and leaves early. full counts a chunk; B's empty are the last. */
template <int DK> struct walk_shared {
    static constexpr int STAGES = 4, EARLY = 2;
    static constexpr uint32_t BYTES = DK * 128;
    unsigned char stage[STAGES + EARLY][BYTES];
    uint64_t full[STAGES], empty[STAGES + EARLY];
    static constexpr uint32_t FULL = (STAGES + EARLY) * BYTES, EMPTY = FULL + 8 * STAGES; /* where they are */
};

/* Where a role is in the ring. */
template <int STAGES> struct ring_place {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

/* Arrivals of a warp at a barrier: its first lane's after all have met. Of every lane for racecheck (tests/run-gpu.sh),
 * which does not take a warp's meeting for an order. */
#ifdef VLA_EVERY_LANE
constexpr int ARRIVALS = 32;
#else
constexpr int ARRIVALS = 1;
#endif
/* This warp is done with it. FENCE: what it read by loads, before copies; otherwise the one who asks for them fences.
 */
template <bool FENCE = false> __device__ __forceinline__ void arrive(uint32_t barrier, int lane)
{
    if (FENCE) reads_before_copies();
    __syncwarp();
    if (ARRIVALS > 1 || lane == 0) barrier_arrive(barrier);
}

/* What has been asked for of a head's maps: the next chunk, and how many are known to be ready. By a whole warp. */
template <int DK> struct bringer {
    using shared = walk_shared<DK>;
    int asked = 0, chunk = 0, known = 0, chunks, lane; /* asked: places filled, as many as chunks */
    ring_place<shared::STAGES> place;
    uint32_t base, rows_bytes;
    int64_t record;             /* bytes of a chunk */
    const unsigned char *D, *B; /* of the chunk */
    const int *ready;

    __device__ __forceinline__ bringer(const arguments &a, uint32_t to, int64_t head, int rows, int lane_)
    {
        lane = lane_, base = to, chunks = (int)a.chunks;
        rows_bytes = (uint32_t)(a.dvp - 64 * rows < 64 ? a.dvp - 64 * rows : 64) * (DK * 2);
        record = (sizes<DK>::square + a.walks * 4 * sizes<DK>::strip) * (int64_t)sizeof(frag);
        D = (const unsigned char *)a.maps + head * a.stride * record;
        B = D + sizes<DK>::square * (int64_t)sizeof(frag) + rows * (64 * DK * 2);
        ready = a.ready + head * (a.stride + 1) + 1 + lane;
    }

    /* Up to chunk `limit`, as far as is ready; waits until `must` is. */
    __device__ __forceinline__ void bring(int limit, int must)
    {
        while (asked <= limit && chunk < chunks) {
            if (chunk >= known) {
                const bool is = known + lane < chunks && load_acquire(ready + known) != 0;
                const unsigned mask = __ballot_sync(FULL_WARP, is);
                __syncwarp(); /* each lane's acquire before the copies of the first: a vote orders nothing */
                known += mask == FULL_WARP ? 32 : __ffs((int)~mask) - 1;
                if (chunk >= known) {
                    if (asked > must) return;
                    __nanosleep(20);
                    continue;
                }
                fence_copies();
            }
            const uint32_t stage = (uint32_t)place.stage, to = base + stage * shared::BYTES,
                           early = (uint32_t)asked % 2;
            if (asked >= shared::STAGES) barrier_wait(base + shared::EMPTY + 8 * stage, place.parity ^ 1);
            if (asked >= 2) barrier_wait(base + shared::EMPTY + 8 * (shared::STAGES + early), asked / 2 % 2 ^ 1);
            reads_before_copies();
            if (lane < warp_copy::lanes) {
                const warp_copy copies = {base + shared::FULL + 8 * stage, lane};
                copies.expect(shared::BYTES + rows_bytes);
                copies.copy(base + (shared::STAGES + early) * shared::BYTES, B, rows_bytes);
                copies.copy(to, D, shared::BYTES);
                copies.done();
            }
            __syncwarp();
            place.advance();
            asked++, chunk++, D += record, B += record;
        }
    }
};

#if VLA_WGMMA
__device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
/* Blocks of 8 x 8 without swizzle, rows along n, so that wgmma need not turn them: neighbours along k are N/8 blocks
 * apart, along n one. */
template <int N> __device__ __forceinline__ uint64_t block_descriptor(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fffu) | (uint64_t)(N) << 16 | (uint64_t)8 << 32;
}
#define VLA_F4(m, h) "+f"(S[m][h][0]), "+f"(S[m][h][1]), "+f"(S[m][h][2]), "+f"(S[m][h][3])
#define VLA_F8(m) VLA_F4(m, 0), VLA_F4(m, 1)
__device__ __forceinline__ void product_async(float (&S)[4][2][4], const frag &x, uint64_t D)
{
    asm volatile("{ .reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                 "%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0; }"
                 : VLA_F8(0), VLA_F8(1), VLA_F8(2), VLA_F8(3)
                 : "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3]), "l"(D));
}
__device__ __forceinline__ void product_async(float (&S)[8][2][4], const frag &x, uint64_t D)
{
    asm volatile("{ .reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"
                 "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"
                 "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 0; }"
                 : VLA_F8(0), VLA_F8(1), VLA_F8(2), VLA_F8(3), VLA_F8(4), VLA_F8(5), VLA_F8(6), VLA_F8(7)
                 : "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3]), "l"(D));
}
#undef VLA_F8
#undef VLA_F4
#else
__device__ __forceinline__ void products_begin()
{
}
__device__ __forceinline__ void products_commit()
{
}
__device__ __forceinline__ void products_wait()
{
}
#endif

/* c += X Y for 16 K of k, Y's blocks at `address`, rows along n. */
template <int N, int K>
__device__ __forceinline__ void add_products(float (&c)[N / 16][2][4], const frag (&X)[K], uint32_t address, int lane)
{
#if VLA_WGMMA
#pragma unroll
    for (int k = 0; k < K; k++) product_async(c, X[k], block_descriptor<N>(address + k * (N * 32)));
#else
    const uint32_t own = address + (uint32_t)(lane / 8 % 2 * (N * 16) + lane / 16 * 128 + lane % 8 * 16);
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int m = 0; m < N / 16; m++) mma_r<bf16_arithmetic>(c[m], X[k], load_plain(own + k * (N * 32) + m * 256));
#endif
}

/* Waits until chunk c has its maps, by a whole warp, a lane a chunk; returns the first not known to have them. */
__device__ __forceinline__ int await_maps(const int *ready, int c, int chunks, int lane)
{
    int known;
    for (;;) {
        const bool there = c + lane < chunks && load_acquire(ready + c + lane) != 0;
        const unsigned mask = __ballot_sync(FULL_WARP, there);
        __syncwarp(); /* each lane's acquire before the copies of the first: a vote orders nothing */
        known = c + (mask == FULL_WARP ? 32 : __ffs((int)~mask) - 1);
        if (known > c) break;
        __nanosleep(20);
    }
    fence_copies();
    return known;
}

/* Sixteen rows of S by this warp, to where map expects them. */
template <int DK> __device__ __forceinline__ void publish(frag *state, const frag (&X)[DK / 16])
{
#pragma unroll
    for (int m = 0; m < DK / 16; m++)
        store_relaxed(state + m * 32, make_uint4(X[m].x[0], X[m].x[2], X[m].x[1], X[m].x[3]));
}

/* 64 rows of S from row 64 `rows` on: of sixteen, place 8 h + 2 t + i is row 4 t + 2 h + i, as map has the columns of
 * V. */
template <int DK> __device__ __forceinline__ void walk(walk_shared<DK> &s, const arguments &a, int64_t head, int rows)
{
    using shared = walk_shared<DK>;
    using M = bf16_arithmetic;
    constexpr int KT = DK / 16, STAGES = shared::STAGES;
    const int lane = (int)threadIdx.x % 32, warp = warp_number(), g = lane / 4, t = lane % 4;
    const uint32_t base = shared_address(&s);
    if (threadIdx.x < STAGES) barrier_init(base + shared::FULL + 8 * threadIdx.x, warp_copy::arrivals);
    if (threadIdx.x < STAGES + shared::EARLY) barrier_init(base + shared::EMPTY + 8 * threadIdx.x, WALKERS * ARRIVALS);
    barriers_made();
    __syncthreads();
    const int chunks = (int)a.chunks;
    bringer<DK> maps(a, base, head, rows, lane);
    if (warp >= WALKERS) return;
    const int first = 64 * rows + 16 * warp + 4 * (g / 2) + g % 2;
    const bool any = 64 * rows + 16 * warp < a.dvp;
    const auto in_S = [&](int m, int h, int i) {
        return first + i / 2 * 2 < a.dv && 16 * m + 8 * h + 2 * t + i % 2 < a.dk;
    };
    float S[KT][2][4], *from = a.S + (head * a.dv + first) * a.dk + 2 * t;
#pragma unroll
    for (int m = 0; m < KT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                S[m][h][i] =
                    in_S(m, h, i) && (!a.first || a.resume) ? from[i / 2 * 2 * a.dk + 16 * m + 8 * h + i % 2] : 0.0f;
    frag X[KT], B[KT], *state = a.states + (head * a.stride * (a.dvp / 16) + 4 * rows + warp) * sizes<DK>::strip + lane;
    const int64_t next = a.dvp / 16 * sizes<DK>::strip;
    const uint32_t unit = unit_tile<M>(lane).x[0];
#pragma unroll
    for (int m = 0; m < KT; m++) X[m] = pack_tile<M>(S[m][0], S[m][1]);
    if (any) publish<DK>(state, X);
    named_barrier<32 * WALKERS>(1);
    if (threadIdx.x == 0) add_release(a.ready + head * (a.stride + 1), 1); /* nobody was there to write UNWRITTEN */
    ring_place<STAGES> place;
    const uint32_t own = base + (uint32_t)((warp * (int)sizes<DK>::strip + lane) * (int)sizeof(frag));
    /* B of chunk c, the place's */
    const auto prepare = [&](int c) {
        const uint32_t early = (uint32_t)(STAGES + c % 2);
        barrier_wait(base + shared::FULL + 8 * (uint32_t)place.stage, place.parity);
#pragma unroll
        for (int m = 0; m < KT; m++) B[m] = load_frag(own + early * shared::BYTES + m * 512);
        arrive(base + shared::EMPTY + 8 * early, lane);
    };
    if (warp == 0) maps.bring(0, 0);
    prepare(0);
    if (warp == 0) maps.bring(2, -1);
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        if (any)
#pragma unroll
            for (int m = 0; m < KT; m++) add_tile(M{}, S[m], B[m], unit);
        products_begin();
        add_products<DK>(S, X, base + (uint32_t)place.stage * shared::BYTES, lane);
        const uint32_t done = base + shared::EMPTY + 8 * (uint32_t)place.stage;
        place.advance();
        products_commit();
        if (c > 0 && any) publish<DK>(state, X);
        state += next;
        if (c + 1 < chunks) {
            if (warp == 0) maps.bring(c + 1, c + 1);
            prepare(c + 1);
            if (warp == 0) maps.bring(c + 3, -1);
        }
        products_wait();
        arrive(done, lane);
#pragma unroll
        for (int m = 0; m < KT; m++) X[m] = pack_tile<M>(S[m][0], S[m][1]);
    }
    const int64_t bad = first_bad(a, head);
#pragma unroll
    for (int m = 0; m < KT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (in_S(m, h, i)) from[i / 2 * 2 * a.dk + 16 * m + 8 * h + i % 2] = bad < a.T ? NAN : S[m][h][i];
    if (a.n_end && rows == 0)
        for (int c = (int)threadIdx.x; c < a.dk; c += 32 * WALKERS)
            a.n_end[head * a.dk + c] = bad < a.T ? NAN : a.n_carry[head * DK + c];
}
} /* namespace chunked */

#endif
