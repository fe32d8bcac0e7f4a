/* linear at dk and dv from 65 to 128 in one launch, as linear_once.cuh has it, with all of dv in a block: 256 tokens of
 * k, v and q fill a multiprocessor's shared memory, so that every token is brought by one block only. S is there before
 * one chunk beside them; that before the next takes the place of the keys of both, once they have given their products.
 * So chunks go by pairs, a warpgroup 64 tokens and 64 columns of dv. */
#ifndef VLA_CUDA_LINEAR_WHOLE_CUH
#define VLA_CUDA_LINEAR_WHOLE_CUH
#include "kernels/cuda/linear_once.cuh"

namespace linear_walk
{
/* The compiler moves nothing across it: it would hold more at once than there are registers. */
__device__ __forceinline__ void seam(const arguments &a)
{
    if (a.T < 0) asm volatile("trap;");
}

struct whole_shared {
    uint4 S[2][1024]; /* before the first chunk of a pair, a panel of 64 of dv: 128 dk rows; then outputs */
    rows<128, 2> K[2], V[2], Q[2]; /* pairs of chunks; of K also S before the second, then outputs */
    float n[ONCE_CH][128];         /* of chunks, then before them as operands */
    float n_before[128];           /* the segment; then after it */
    uint8_t down[ONCE];            /* powers of two that queries were divided by */
    unsigned long long first_bad;
    int bad;
};

static __global__ void __launch_bounds__(512, 1) whole(const __grid_constant__ arguments a)
{
#if VLA_WGMMA
    using M = bf16_arithmetic;
    using F = shape<128, 2>;
    constexpr int D = 128, TOK = ONCE, NJ = F::NJ, KT = D / 16;
    extern __shared__ __align__(1024) unsigned char raw[];
    whole_shared &s = *(whole_shared *)raw;
    const int tid = (int)threadIdx.x;
    int lane = tid % 32, warp = warp_number();
    const int group = warp / 4;
    const int segments = (int)a.segments, segment = (int)blockIdx.x % segments, token = segment * TOK;
    const int64_t head = blockIdx.x / (unsigned)segments;
    const int left = tokens_left<TOK>(a, token);
    const pieces<D, ONCE_CH, 16> mine = {a, lane, warp};
    if (tid == 0) s.bad = TOK, s.first_bad = INT64_MAX;
    mine.load(&s.K, a.k, head * a.T + token, left, a.dk);
    mine.load(&s.V, a.v, head * a.T + token, left, a.dv);
    copy_commit();
    mine.load(&s.Q, a.q, head * a.T + token, left, a.dk);
    copy_commit();
    __syncthreads();
    copy_wait<1>();
    {
        const int bad_key = mine.keys(&s.K, left), bad_value = mine.values(&s.V);
        if (bad_key < TOK || bad_value < TOK) atomicMin(&s.bad, bad_key < bad_value ? bad_key : bad_value);
    }
    wgmma::written();
    __syncthreads();

    /* this block's sum, and the state that a run goes on from, to memory; the state also where the last segment would
     * have its sum, as the end state may take its place */
    const int64_t at = head * segments + segment;
    const bool goes_on = segment == 0 && a.S_in;
    float4 *own = a.S_sum + at * F::matrix + tid, *state = own + (segments - 1) * F::matrix;
    float n_before = segment == 0 && a.n_in && tid < a.dk ? a.n_in[head * a.dk + tid] : 0.0f;
    {
        float d[NJ][4], n[2][4];
        wgmma::begin();
#pragma unroll
        for (int c = 0; c < ONCE_CH; c++) sum_products<D, 2>(d, s.K[c / 2], s.V[c / 2], c % 2, group, c > 0);
        wgmma::commit();
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            sum_keys<D, 2>(n, s.K[pair], lane, warp);
            if (lane < 4)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *(float2 *)&s.n[2 * pair + warp / KT][16 * (warp % KT) + 8 * h + 2 * lane] =
                        make_float2(n[h][0], n[h][1]);
        }
        wgmma::wait<0>();
        grid_wait(); /* the marks are clear, and the run before has left the workspace */
        grid_release(true);
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            float4 x = make_float4(d[j][0], d[j][1], d[j][2], d[j][3]);
            if (goes_on) {
                float4 from = make_float4(0, 0, 0, 0);
                each_element<D, 2>(a, j,
                                   [&](int e, int place) { ((float *)&from)[e] = a.S_in[head * a.dv * a.dk + place]; });
                state[j * F::NT] = from, add4(x, from);
            }
            if (segment + 1 < segments) own[j * F::NT] = x;
        }
    }
    copy_wait<0>();
    mine.queries(&s.Q, s.down, left);
    wgmma::written();
    __syncthreads();
    if (tid < D) {
        float sum = n_before;
#pragma unroll
        for (int c = 0; c < ONCE_CH; c++) sum += s.n[c][tid];
        a.n[at * D + tid] = sum;
    }
    __syncthreads();
    if (tid == 0) {
        __threadfence();
        add_release(a.marks + at, 1 + s.bad);
    }

    /* what the segments before have, in order */
    if (tid <= segment) {
        int mark;
        while ((mark = load_acquire(a.marks + head * segments + tid)) == 0) __nanosleep(20);
        if (mark <= TOK) atomicMin(&s.first_bad, (unsigned long long)(tid * TOK + mark - 1));
    }
    __syncthreads();
    const int bad = s.first_bad < (unsigned long long)a.T ? (int)s.first_bad : INT_MAX;
    float4 S[NJ];
#pragma unroll
    for (int j = 0; j < NJ; j++) S[j] = goes_on ? state[j * F::NT] : make_float4(0, 0, 0, 0);
    {
        constexpr int SOME = 2; /* at once */
        const float4 *from = a.S_sum + head * segments * F::matrix + tid;
        const float *n = a.n + head * segments * D + tid;
#pragma unroll 1
        for (int i = 0; i < segment; i += SOME) {
            float4 x[SOME][NJ];
            float y[SOME];
#pragma unroll
            for (int e = 0; e < SOME; e++) {
                const bool is = i + e < segment;
#pragma unroll
                for (int j = 0; j < NJ; j++)
                    x[e][j] = is ? __ldcg(from + (i + e) * (int)F::matrix + j * F::NT) : make_float4(0, 0, 0, 0);
                y[e] = is && tid < D ? __ldcg(n + (i + e) * D) : 0.0f;
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
    __syncthreads();
    if (tid < D / 2) { /* n before each chunk, as right operands: rounded, and what that leaves out */
        float2 x = *(const float2 *)&s.n_before[2 * tid];
#pragma unroll
        for (int c = 0; c < ONCE_CH; c++) {
            float2 *place = (float2 *)&s.n[c][2 * tid];
            const float2 y = *place;
            const uint32_t high = pack(M{}, x.x, x.y);
            const float2 h = unpack(M{}, high);
            *(uint2 *)place = make_uint2(high, pack(M{}, x.x - h.x, x.y - h.y));
            x.x += y.x, x.y += y.y;
        }
        *(float2 *)&s.n_before[2 * tid] = x; /* of the end state */
    }

#pragma unroll 1
    for (int pair = 0; pair < 2; pair++) {
        asm volatile("" : "+r"(lane), "+r"(warp)); /* places are computed in each turn rather than kept */
        const int g = lane / 4, t = lane % 4, group = warp / 4, in_group = warp % 4, part = group % 2;
        int second = group / 2;
        const part_of<D, 2> of_S(group);
        rows<D, 2> &K = s.K[pair], &V = s.V[pair], &Q = s.Q[pair];
        frag P[4];
        { /* inside the chunk */
            float c[8][4];
            wgmma::begin();
#pragma unroll
            for (int k = 0; k < KT; k++)
                wgmma::product<wgmma::PLAIN, wgmma::PLAIN>(
                    c, wgmma::tile(shared_address(Q.tile[second][k / 4])) + k % 4 * wgmma::STEP_PLAIN,
                    wgmma::tile(shared_address(K.tile[second][k / 4])) + k % 4 * wgmma::STEP_PLAIN, k > 0);
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
        seam(a);
        if (pair > 0) __syncthreads(); /* all have left S */
        const auto put_S = [&](uint4 *panels) {
            char *to = (char *)(panels + of_S.panel * 1024) + 4 * t;
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                const uint32_t place = wgmma::swizzled((uint32_t)(64 * of_S.row + 16 * in_group + g), (uint32_t)j);
                *(uint32_t *)(to + place) = pack(M{}, S[j].x, S[j].y);
                *(uint32_t *)(to + place + 1024) = pack(M{}, S[j].z, S[j].w);
            }
        };
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float d[NJ][4];
            wgmma::begin();
            sum_products<D, 2>(d, K, V, c, group, 0);
            wgmma::commit();
            if (c == 0) put_S(s.S[0]);
            wgmma::wait<0>();
            if (c > 0) {
                __syncthreads(); /* all have left the keys */
                put_S(K.tile[0][0]);
            }
#pragma unroll
            for (int j = 0; j < NJ; j++) add4(S[j], make_float4(d[j][0], d[j][1], d[j][2], d[j][3]));
        }
        wgmma::written();
        __syncthreads();
        asm volatile("" : "+r"(second)); /* so are descriptors */
        const uint32_t one = g == 0 ? 0x3f803f80u : 0u;
        float o[8][4], den[4] = {};
        uint4 *const own_S = (second ? K.tile[0][0] : s.S[0]) + part * 1024;
        wgmma::begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma::product<wgmma::TURNED>(
                o, P[i], wgmma::tile(shared_address(V.tile[second][part])) + i * wgmma::STEP_TURNED, i > 0);
#pragma unroll
        for (int k = 0; k < KT; k++)
            wgmma::product<wgmma::PLAIN, wgmma::TURNED>(
                o, wgmma::tile(shared_address(Q.tile[second][k / 4])) + k % 4 * wgmma::STEP_PLAIN,
                wgmma::tile(shared_address(own_S)) + k * wgmma::STEP_TURNED, 1);
        wgmma::commit();
#pragma unroll
        for (int i = 0; i < 4; i++) mma(M{}, den, P[i].x, one, one);
        const int chunk = 2 * pair + second;
        const uint32_t query_rows = wgmma::swizzled((uint32_t)(16 * in_group + lane % 16), (uint32_t)lane / 16);
        const uint32_t *n = (const uint32_t *)s.n[chunk] + 2 * t + g; /* columns 0 and 1 */
#pragma unroll 4
        for (int k = 0; k < KT; k++) {
            /* piece 2 k more: an exclusive or, as the place is one */
            const frag q = load_plain(shared_address(Q.tile[second][k / 4]) + (query_rows ^ (uint32_t)(k % 4 * 32)));
            mma(M{}, den, q.x, g < 2 ? n[16 * k] : 0u, g < 2 ? n[16 * k + 8] : 0u);
        }
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = 64 * chunk + 16 * in_group + g + 8 * h;
            const float sum = __shfl_sync(FULL_WARP, den[2 * h] + den[2 * h + 1], lane & ~3),
                        floor = (float)VLA_RATIO_EPS * exp2f(-(float)s.down[r]);
            by[h] = token + r >= bad ? NAN : reciprocal(sum < floor ? floor : sum);
        }
        wgmma::wait<0>();
        asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); /* S is free: its place takes the outputs */
        char *O = (char *)own_S;
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
        const int column = 64 * part + lane % 8 * 8;
        uint16_t *to = (uint16_t *)a.o + (head * a.T + token) * a.dv + column;
        if (column < a.dv)
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const int in_chunk = 16 * in_group + 4 * p + lane / 8, r = 64 * chunk + in_chunk;
                if (r < left)
                    *(uint4 *)(to + (int64_t)r * a.dv) =
                        *(const uint4 *)(O + wgmma::swizzled((uint32_t)in_chunk, (uint32_t)lane % 8));
            }
    }
    if (segment + 1 < segments) return;
    const bool lost = bad < a.T; /* the end state too */
#pragma unroll
    for (int j = 0; j < NJ; j++)
        if (a.S_out)
            each_element<D, 2>(a, j, [&](int e, int place) {
                a.S_out[head * a.dv * a.dk + place] = lost ? NAN : ((float *)&S[j])[e];
            });
    if (a.n_out && tid < a.dk) a.n_out[head * a.dk + tid] = lost ? NAN : s.n_before[tid];
#endif
}
} /* namespace linear_walk */

#endif
