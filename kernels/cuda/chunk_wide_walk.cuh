/* The walk beside the chunks of chunk_wide.cuh: S' = S + (S K^T - V^T) E, chunk by chunk, E = -N^-T a. A step takes as
 * many products as S - S D + B does, 2 x 64 x 128 a row of S, and the chunk need not make D and B.
 *
 * A block walks 64 rows of S of one head: four warps, sixteen rows each, both products by wgmma out of shared memory
 * (m64n64k16 and m64n128k16; mma on older devices), S and S K^T - V^T as the accumulators of their own sums, packed as
 * left operands. Another warp asks for the maps by bulk copies, as chunks say by their flags that they are there: a
 * lane looks at a chunk's flag. K and V^T have three places, E two. Each state goes to memory, where the chunk's block
 * waits for it: while S K^T is made, or before where the next map is not there yet.
 *
 * Who waits for whom, who puts UNWRITTEN into states and what orders each hand-over: chunk_walk.cuh. V's place is read
 * by loads, which the readers' fence of proxies keeps before the next copy; K's and E's by wgmma. */
#ifndef VLA_CUDA_CHUNK_WIDE_WALK_CUH
#define VLA_CUDA_CHUNK_WIDE_WALK_CUH
#include "kernels/cuda/chunk_walk.cuh"

namespace chunked::wide
{
constexpr int DK = 128, KT = DK / 16;

/* Maps of a chunk, as blocks of 8 x 8, bfloat16: K, rows of tokens, [DK/8][C/8], and E^T, rows of dk, [C/8][DK/8]; then
 * for each 64 rows of S the factors of -V^T, one of sixteen rows, eight times, and V^T over them, [rows/8][C/8],
 * float16. Tokens are in an order that lets lanes write sixteen bytes: of 32, place 8 t + j is token 16 (j / 4)
 * + 8 (j / 2 % 2) + 2 t + j % 2. */
constexpr uint32_t KEYS = C * DK * 2, SCALES = 128, STRIP = 16 * C * 2, VALUES = SCALES + 4 * STRIP;
__host__ __device__ constexpr int64_t map_bytes(int walks)
{
    return 2 * KEYS + walks * (int64_t)VALUES;
}
__device__ __forceinline__ unsigned char *map_of(const arguments &a, int64_t at)
{
    return (unsigned char *)a.maps + at * map_bytes(a.walks);
}

struct walk_shared {
    static constexpr int TAKEN = 3, WRITES = 2;
    static constexpr uint32_t BYTES = KEYS + VALUES; /* of a place of taken */
    struct {
        unsigned char keys[KEYS], values[VALUES];
    } taken[TAKEN];                     /* what is taken from S: K, V^T */
    unsigned char writes[WRITES][KEYS]; /* E^T */
    uint64_t full_taken[TAKEN], empty_taken[TAKEN], full_writes[WRITES], empty_writes[WRITES];
};

/* Has that phase ended? */
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, int parity)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return __all_sync(FULL_WARP, done != 0);
}

/* The maps of a head for 64 rows of S, by a whole warp. */
__device__ __forceinline__ void bring_maps(walk_shared &s, const arguments &a, int64_t head, int rows, int lane)
{
    const int *ready = a.ready + head * (a.stride + 1) + 1;
    const int chunks = (int)a.chunks, strips = a.dvp / 16 - 4 * rows;
    const uint32_t bytes = SCALES + (uint32_t)(strips < 4 ? strips : 4) * STRIP;
    const unsigned char *map = map_of(a, head * a.stride);
    int known = 0;
    ring_place<walk_shared::TAKEN> taken;
    ring_place<walk_shared::WRITES> writes;
    for (int c = 0; c < chunks; c++, map += map_bytes(a.walks)) {
        if (known <= c) known = await_maps(ready, c, chunks, lane);
        if (lane < warp_copy::lanes) {
            if (c >= walk_shared::TAKEN) barrier_wait(shared_address(&s.empty_taken[taken.stage]), taken.parity ^ 1);
            const warp_copy first = {shared_address(&s.full_taken[taken.stage]), lane};
            first.expect(KEYS + bytes);
            first.copy(shared_address(s.taken[taken.stage].values), map + 2 * KEYS + (uint32_t)rows * VALUES, bytes);
            first.copy(shared_address(s.taken[taken.stage].keys), map, KEYS);
            first.done();
            if (c >= walk_shared::WRITES)
                barrier_wait(shared_address(&s.empty_writes[writes.stage]), writes.parity ^ 1);
            const warp_copy second = {shared_address(&s.full_writes[writes.stage]), lane};
            second.expect(KEYS);
            second.copy(shared_address(s.writes[writes.stage]), map + KEYS, KEYS);
            second.done();
        }
        __syncwarp();
        taken.advance(), writes.advance();
    }
}

/* Registers of the four walking warps' threads, and of the other four's; together what the block was given, or the
 * first would wait for ever. */
constexpr int WALK_REGISTERS = 184, OTHER_REGISTERS = 72;
__device__ __forceinline__ void take_registers()
{
#if VLA_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(WALK_REGISTERS));
#endif
}
__device__ __forceinline__ void leave_registers()
{
#if VLA_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(OTHER_REGISTERS));
#endif
}

/* 64 rows of S from row 64 `rows` on: of sixteen, place 8 h + 2 t + i is row 4 t + 2 h + i, as the columns of V. */
__device__ __forceinline__ void walk(walk_shared &s, const arguments &a, int64_t head, int rows)
{
    using M = bf16_arithmetic;
    const int lane = (int)threadIdx.x % 32, warp = warp_number(), g = lane / 4, t = lane % 4;
    if (threadIdx.x < walk_shared::TAKEN) {
        barrier_init(shared_address(&s.full_taken[threadIdx.x]), warp_copy::arrivals);
        barrier_init(shared_address(&s.empty_taken[threadIdx.x]), WALKERS * ARRIVALS);
    }
    if (threadIdx.x < walk_shared::WRITES) {
        barrier_init(shared_address(&s.full_writes[threadIdx.x]), warp_copy::arrivals);
        barrier_init(shared_address(&s.empty_writes[threadIdx.x]), WALKERS * ARRIVALS);
    }
    barriers_made();
    __syncthreads();
    if (warp >= WALKERS) {
        leave_registers();
        if (warp == WALKERS) bring_maps(s, a, head, rows, lane);
        return;
    }
    take_registers();
    const int chunks = (int)a.chunks, first = 64 * rows + 16 * warp + 4 * (g / 2) + g % 2;
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
    frag X[KT], *state = a.states + (head * a.stride * (a.dvp / 16) + 4 * rows + warp) * sizes<DK>::strip + lane;
    const int64_t next = a.dvp / 16 * sizes<DK>::strip;
#pragma unroll
    for (int m = 0; m < KT; m++) X[m] = pack_tile<M>(S[m][0], S[m][1]);
    if (any) publish<DK>(state, X);
    named_barrier<32 * WALKERS>(1);
    if (threadIdx.x == 0) add_release(a.ready + head * (a.stride + 1), 1); /* nobody was there to write UNWRITTEN */
    const uint32_t taken0 = shared_address(s.taken), writes0 = shared_address(s.writes),
                   full_taken = shared_address(s.full_taken), empty_taken = shared_address(s.empty_taken),
                   full_writes = shared_address(s.full_writes), empty_writes = shared_address(s.empty_writes);
    ring_place<walk_shared::TAKEN> taken;
    ring_place<walk_shared::WRITES> writes;
    float c[CT][2][4] = {};
    /* c = -V^T */
    const auto load_values = [&]() {
        if (!any) return;
        const uint32_t at = taken0 + (uint32_t)taken.stage * walk_shared::BYTES + KEYS;
        float scale;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(at + 32 * (uint32_t)warp) : "memory");
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const frag v =
                    load_plain(at + SCALES + (uint32_t)warp * STRIP + (uint32_t)(p * 8 + 4 * h) * 128 + lane * 16);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const float2 x = unpack(f16_arithmetic{}, v.x[n]);
                    c[2 * h + n / 2][n % 2][2 * p] = x.x * scale, c[2 * h + n / 2][n % 2][2 * p + 1] = x.y * scale;
                }
            }
    };
    barrier_wait(full_taken, 0);
    load_values();
    bool published = true;
#pragma unroll 1
    for (int n = 0; n < chunks; n++) { /* W = S K^T - V^T, S += W E */
        products_begin();
        add_products<C>(c, X, taken0 + (uint32_t)taken.stage * walk_shared::BYTES, lane);
        products_commit();
        if (any && !published) publish<DK>(state, X);
        products_wait();
        frag W[CT];
#pragma unroll
        for (int m = 0; m < CT; m++) W[m] = pack_tile<M>(c[m][0], c[m][1]);
        barrier_wait(full_writes + 8 * (uint32_t)writes.stage, writes.parity);
        products_begin();
        add_products<DK>(S, W, writes0 + (uint32_t)writes.stage * KEYS, lane);
        products_commit();
        arrive<true>(empty_taken + 8 * (uint32_t)taken.stage, lane);
        taken.advance();
        const bool last = n + 1 == chunks,
                   there = !last && barrier_passed(full_taken + 8 * (uint32_t)taken.stage, taken.parity);
        if (there) load_values();
        products_wait();
        arrive<!VLA_WGMMA>(empty_writes + 8 * (uint32_t)writes.stage, lane);
        writes.advance();
        if (last) break;
#pragma unroll
        for (int m = 0; m < KT; m++) X[m] = pack_tile<M>(S[m][0], S[m][1]);
        state += next;
        published = !there;
        if (!there) {
            if (any) publish<DK>(state, X);
            barrier_wait(full_taken + 8 * (uint32_t)taken.stage, taken.parity);
            load_values();
        }
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
        for (int c0 = (int)threadIdx.x; c0 < a.dk; c0 += 32 * WALKERS)
            a.n_end[head * a.dk + c0] = bad < a.T ? NAN : a.n_carry[head * DK + c0];
}
} /* namespace chunked::wide */

#endif
