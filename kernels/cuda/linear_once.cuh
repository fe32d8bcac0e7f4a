/* linear at dk and dv from 65 to 128 in one launch, up to 2,048 tokens: a block has 256 tokens and 64 columns of dv,
 * brings k, v and q once and keeps them. It writes its sum of v kf^T for the blocks of later tokens and marks it, makes
 * what needs no state while it waits for the marks of earlier ones, adds their sums in order, and makes its outputs.
 *   O = (tril(Q K^T) V + Q S^T) / max(tril(Q K^T) 1 + Q n, eps)
 * A block's operands fill a multiprocessor's shared memory, so nothing is loaded while it computes: it is taken where
 * all blocks find a place at once (16 heads: 513 to 1,024 tokens); where they would take two turns, linear_whole.cuh
 * is (linear_chunk_cuda.cu chooses). No block can wait for one that finds no place: blocks are let in in the order of
 * their numbers, and one waits for lower ones and the other half of its own tokens. Roundings, NaN and floors are those
 * of linear_walk.cuh; a mark tells the first row that is not finite. */
#ifndef VLA_CUDA_LINEAR_ONCE_CUH
#define VLA_CUDA_LINEAR_ONCE_CUH
#include "kernels/cuda/linear_rows.cuh"

namespace linear_walk
{
constexpr int ONCE_CH = 4, ONCE = ONCE_CH * C; /* chunks and tokens of a block */

struct once_shared {
    uint4 S[ONCE_CH][1024];  /* before each chunk: 128 dk rows of 64 dv, 64 KB; then outputs */
    rows<128, ONCE_CH> K, Q; /* 64 KB each */
    rows<64, ONCE_CH> V;     /* 32 KB */
    float n[ONCE_CH][128], n_before[128];
    uint8_t down[ONCE]; /* powers of two that queries were divided by */
    unsigned long long first_bad;
    int bad;
};

static __global__ void clear_marks(const __grid_constant__ arguments a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    grid_wait(); /* for the inputs, and for the run before, whose marks these may be */
    grid_release(true);
    if (i < 2 * a.heads * a.segments) a.marks[i] = 0;
}

static __global__ void __launch_bounds__(512, 1) once(const __grid_constant__ arguments a)
{
#if VLA_WGMMA
    using M = bf16_arithmetic;
    constexpr int D = 128, CH = ONCE_CH, TOK = ONCE, NT = 512, NJ = 4, KT = D / 16, MATRIX = NJ * NT;
    extern __shared__ __align__(1024) unsigned char raw[];
    once_shared &s = *(once_shared *)raw;
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = warp_number(), g = lane / 4, t = lane % 4;
    const int chunk = warp / 4, in_group = warp % 4;          /* of the outputs: a warpgroup a chunk */
    const int row_tile = chunk % 2, column0 = chunk / 2 * NJ; /* of the sums: 64 of dk, first group of 8 of dv */
    const int64_t head = blockIdx.x / (2 * a.segments), place = blockIdx.x % (2 * a.segments), segment = place / 2;
    const int part = (int)(place % 2), columns = a.dv - 64 * part;
    const int64_t token = segment * TOK;
    const int left = tokens_left<TOK>(a, token);
    const pieces<128, CH, 16> wide = {a, lane, warp};
    const pieces<64, CH, 16> narrow = {a, lane, warp};
    if (tid == 0) s.bad = TOK, s.first_bad = INT64_MAX;
    wide.load(&s.K, a.k, head * a.T + token, left, a.dk);
    narrow.load(&s.V, (const uint16_t *)a.v + 64 * part, head * a.T + token, left, a.dv, columns);
    copy_commit();
    wide.load(&s.Q, a.q, head * a.T + token, left, a.dk);
    copy_commit();
    __syncthreads();
    copy_wait<1>();
    {
        const int bad_key = wide.keys(&s.K, left), bad_value = narrow.values(&s.V);
        if (bad_key < TOK || bad_value < TOK) atomicMin(&s.bad, bad_key < bad_value ? bad_key : bad_value);
    }
    wgmma::written();
    __syncthreads();

    /* this block's sum, and the state that a run goes on from, to memory */
    const auto sum_products = [&](float(&d)[NJ][4], int c, int add) {
        const uint64_t K = wgmma::tile(shared_address(s.K.tile[c][row_tile])),
                       V = wgmma::tile(shared_address(s.V.tile[c][0])) + (uint64_t)column0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma::product<wgmma::TURNED, wgmma::TURNED>(d, K + k * wgmma::STEP_TURNED, V + k * wgmma::STEP_TURNED,
                                                         add || k > 0);
    };
    const auto each_of_state = [&](int j, auto element) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int r = 64 * row_tile + 16 * in_group + g + e / 2 * 8,
                      c = 64 * part + 8 * (column0 + j) + 2 * t + e % 2;
            if (r < a.dk && c < a.dv) element(e, (head * a.dv + c) * a.dk + r);
        }
    };
    float4 S[NJ];
    float n_before = 0;
#pragma unroll
    for (int j = 0; j < NJ; j++) {
        S[j] = make_float4(0, 0, 0, 0);
        if (segment == 0 && a.S_in) each_of_state(j, [&](int e, int64_t at) { ((float *)&S[j])[e] = a.S_in[at]; });
    }
    if (segment == 0 && a.n_in && tid < a.dk) n_before = a.n_in[head * a.dk + tid];
    float4 *own = a.S_sum + (head * a.segments * 2 + place) * MATRIX + tid;
    float *own_n = a.n + (head * a.segments * 2 + place) * D + tid;
    {
        float d[NJ][4], n[2][4];
        wgmma::begin();
#pragma unroll
        for (int c = 0; c < CH; c++) sum_products(d, c, c > 0);
        wgmma::commit();
#pragma unroll
        for (int half = 0; half < 2; half++) { /* sixteen warps have sixteen columns of two chunks each */
            const int w = warp + 16 * half;
            sum_keys<D, CH>(n, s.K, lane, w);
            if (lane < 4)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *(float2 *)&s.n[w / KT][16 * (w % KT) + 8 * h + 2 * lane] = make_float2(n[h][0], n[h][1]);
        }
        wgmma::wait<0>();
        grid_wait(); /* the marks are clear, and the run before has left the workspace */
        grid_release(true);
        if (segment + 1 < a.segments)
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                float4 x = S[j];
                add4(x, make_float4(d[j][0], d[j][1], d[j][2], d[j][3]));
                own[j * NT] = x;
            }
    }
    copy_wait<0>();
    wide.queries(&s.Q, s.down, left);
    wgmma::written();
    __syncthreads();
    float n_own = 0;
    if (tid < D) {
#pragma unroll
        for (int c = 0; c < CH; c++) n_own += s.n[c][tid];
        *own_n = n_before + n_own;
    }
    __syncthreads();
    if (tid == 0) {
        __threadfence();
        add_release(a.marks + head * a.segments * 2 + place, 1 + s.bad);
    }

    /* inside the chunk */
    const uint32_t one = g == 0 ? 0x3f803f80u : 0u;
    float o[8][4], den[4] = {};
    frag P[4];
    {
        float c[8][4];
        wgmma::begin();
#pragma unroll
        for (int k = 0; k < KT; k++)
            wgmma::product<wgmma::PLAIN, wgmma::PLAIN>(
                c, wgmma::tile(shared_address(s.Q.tile[chunk][k / 4])) + k % 4 * wgmma::STEP_PLAIN,
                wgmma::tile(shared_address(s.K.tile[chunk][k / 4])) + k % 4 * wgmma::STEP_PLAIN, k > 0);
        wgmma::commit();
        wgmma::wait<0>();
        const int r = 16 * in_group + g;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * j + 2 * t + e % 2 > r + e / 2 * 8) c[j][e] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) P[i] = pack_tile<M>(c[2 * i], c[2 * i + 1]);
    }
    wgmma::begin();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma::product<wgmma::TURNED>(o, P[i], wgmma::tile(shared_address(s.V.tile[chunk][0])) + i * wgmma::STEP_TURNED,
                                      i > 0);
    wgmma::commit();
#pragma unroll
    for (int i = 0; i < 4; i++) mma(M{}, den, P[i].x, one, one);
    float floors[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        floors[h] = (float)VLA_RATIO_EPS * exp2f(-(float)s.down[64 * chunk + 16 * in_group + g + 8 * h]);
    wgmma::wait<0>();

    /* what the segments before have, in order */
    if (tid < 2 * (segment + 1)) {
        int mark;
        while ((mark = load_acquire(a.marks + head * a.segments * 2 + tid)) == 0) __nanosleep(20);
        if (mark <= TOK) atomicMin(&s.first_bad, (unsigned long long)(tid / 2 * TOK + mark - 1));
    }
    __syncthreads();
    const int64_t bad = (int64_t)s.first_bad;
    {
        constexpr int SOME = 3; /* at once */
        const float4 *from = a.S_sum + (head * a.segments * 2 + part) * MATRIX + tid;
        const float *n = a.n + (head * a.segments * 2 + part) * D + tid;
        for (int64_t i = 0; i < segment; i += SOME) {
            float4 x[SOME][NJ];
            float y[SOME];
#pragma unroll
            for (int e = 0; e < SOME; e++) {
                const bool is = i + e < segment;
#pragma unroll
                for (int j = 0; j < NJ; j++)
                    x[e][j] = is ? __ldcg(from + (i + e) * 2 * MATRIX + j * NT) : make_float4(0, 0, 0, 0);
                y[e] = is && tid < D ? __ldcg(n + (i + e) * 2 * D) : 0.0f;
            }
#pragma unroll
            for (int e = 0; e < SOME; e++) {
#pragma unroll
                for (int j = 0; j < NJ; j++) add4(S[j], x[e][j]);
                n_before += y[e];
            }
        }
    }
    if (tid < D) s.n_before[tid] = n_before;

        /* S before each chunk */
#pragma unroll
    for (int c = 0; c < CH; c++) {
        float d[NJ][4];
        wgmma::begin();
        sum_products(d, c, 0);
        wgmma::commit();
        char *to = (char *)s.S[c] + 4 * t;
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            const uint32_t at = wgmma::swizzled((uint32_t)(64 * row_tile + 16 * in_group + g), (uint32_t)(column0 + j));
            *(uint32_t *)(to + at) = pack(M{}, S[j].x, S[j].y);
            *(uint32_t *)(to + at + 1024) = pack(M{}, S[j].z, S[j].w);
        }
        wgmma::wait<0>();
#pragma unroll
        for (int j = 0; j < NJ; j++) add4(S[j], make_float4(d[j][0], d[j][1], d[j][2], d[j][3]));
    }
    wgmma::written();
    __syncthreads();
    wgmma::begin();
#pragma unroll
    for (int k = 0; k < KT; k++)
        wgmma::product<wgmma::PLAIN, wgmma::TURNED>(
            o, wgmma::tile(shared_address(s.Q.tile[chunk][k / 4])) + k % 4 * wgmma::STEP_PLAIN,
            wgmma::tile(shared_address(s.S[chunk])) + k * wgmma::STEP_TURNED, 1);
    wgmma::commit();
    const uint32_t query_rows = wgmma::swizzled((uint32_t)(16 * in_group + lane % 16), (uint32_t)lane / 16);
    const float rest = g == 1 ? -1.0f : 0.0f; /* column 1: what column 0's rounding leaves out */
#pragma unroll
    for (int k = 0; k < KT; k++) {
        /* piece 2 k more: an exclusive or, as the place is one */
        const frag Q = load_plain(shared_address(s.Q.tile[chunk][k / 4]) + (query_rows ^ (uint32_t)(k % 4 * 32)));
        uint32_t right[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int column = 16 * k + 8 * h + 2 * t;
            float2 x = *(const float2 *)&s.n_before[column];
#pragma unroll
            for (int c = 0; c < CH - 1; c++) {
                const float2 y = *(const float2 *)&s.n[c][column];
                if (c < chunk) x.x += y.x, x.y += y.y;
            }
            const float2 high = unpack(M{}, pack(M{}, x.x, x.y));
            right[h] = g < 2 ? pack(M{}, fmaf(rest, high.x, x.x), fmaf(rest, high.y, x.y)) : 0u;
        }
        mma(M{}, den, Q.x, right[0], right[1]);
    }
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = __shfl_sync(FULL_WARP, den[2 * h] + den[2 * h + 1], lane & ~3);
        const int r = 64 * chunk + 16 * in_group + g + 8 * h;
        by[h] = token + r >= bad ? NAN : reciprocal(sum < floors[h] ? floors[h] : sum);
    }
    wgmma::wait<0>();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + chunk) : "memory"); /* S is free: its place takes the outputs */
    char *O = (char *)s.S[chunk];
    const bool bf16 = a.dtype == VLA_BF16;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float x = o[j][2 * h] * by[h], y = o[j][2 * h + 1] * by[h];
            *(uint32_t *)(O + wgmma::swizzled((uint32_t)(16 * in_group + g + 8 * h), (uint32_t)j) + 4 * t) =
                bf16 ? pack(M{}, x, y) : pack(f16_arithmetic{}, x, y);
        }
    __syncwarp();
    uint16_t *to = (uint16_t *)a.o + (head * a.T + token) * a.dv + 64 * part + lane % 8 * 8;
    if (lane % 8 * 8 < columns)
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const int in_chunk = 16 * in_group + 4 * p + lane / 8, r = 64 * chunk + in_chunk;
            if (r < left)
                *(uint4 *)(to + (int64_t)r * a.dv) =
                    *(const uint4 *)(O + wgmma::swizzled((uint32_t)in_chunk, (uint32_t)lane % 8));
        }
    if (segment + 1 < a.segments) return;
    const bool lost = bad < a.T; /* the end state too */
#pragma unroll
    for (int j = 0; j < NJ; j++)
        if (a.S_out) each_of_state(j, [&](int e, int64_t at) { a.S_out[at] = lost ? NAN : ((float *)&S[j])[e]; });
    if (a.n_out && part == 0 && tid < a.dk) a.n_out[head * a.dk + tid] = lost ? NAN : n_before + n_own;
#endif
}
} /* namespace linear_walk */

#endif
