/* linear, chunkwise by segments: a head's sequence is cut into as many as keep the device busy, a block each.
 *   sums   a segment's sum of v kf^T and of kf (not of a head's last)
 *   walk   a segment from the sums before it on, added in order, in steps of TOK = 64 CH tokens
 * A step's sums by chunks of 64 tokens make S before each chunk, as bfloat16 operands; a warpgroup makes the outputs of
 * 64 tokens and 64 columns of dv, O = (tril(Q K^T) V + Q S^T) / max(tril(Q K^T) 1 + Q n, eps).
 * k and v are read twice, q once, and a sum is written once a segment. The loads of a step run while the one before is
 * worked on. Products are wgmma's; sums over steps are ordinary ones, as those of the tensor cores cut off. Roundings,
 * NaN and floors are those of linear_prefix.cuh. Of one width class only: dk and dv both to 64 or both to 128,
 * multiples of 8, not narrow. */
#ifndef VLA_CUDA_LINEAR_WALK_CUH
#define VLA_CUDA_LINEAR_WALK_CUH
#include "kernels/cuda/linear_rows.cuh"

namespace linear_walk
{
#if VLA_WGMMA
/* A segment's sums; bad, shared, is the first token that is not finite. Loads take turns in two stages, so many bytes
 * apart. */
template <int D, int CH>
__device__ __forceinline__ void add_up(float4 (&total)[shape<D, CH>::NJ], float (&n_total)[2][2], const arguments &a,
                                       void *keys, int keys_apart, void *values, int values_apart,
                                       unsigned long long &bad, int64_t head, int64_t token, int lane, int warp)
{
    using F = shape<D, CH>;
    constexpr int TOK = F::TOK, NJ = F::NJ;
    const pieces<D, CH> mine = {a, lane, warp};
    const auto load = [&](int which, int64_t at) {
        mine.load((char *)keys + which * keys_apart, a.k, head * a.T + at, TOK, a.dk);
        mine.load((char *)values + which * values_apart, a.v, head * a.T + at, TOK, a.dv);
    };
    load(0, token);
    copy_commit();
#pragma unroll
    for (int j = 0; j < NJ; j++) total[j] = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 4; i++) n_total[i / 2][i % 2] = 0;
    for (int64_t step = 0; step < a.steps; step++, token += TOK) {
        const int which = (int)(step % 2);
        rows<D, CH> &K = *(rows<D, CH> *)((char *)keys + which * keys_apart),
                    &V = *(rows<D, CH> *)((char *)values + which * values_apart);
        copy_wait<0>();
        const int bad_key = mine.keys(&K, TOK), bad_value = mine.values(&V);
        wgmma::written();
        __syncthreads(); /* and all have left the other stage */
        if (bad_key < TOK || bad_value < TOK)
            atomicMin(&bad, (unsigned long long)(token + (bad_key < bad_value ? bad_key : bad_value)));
        if (step + 1 < a.steps) load(1 - which, token + TOK);
        copy_commit();
        float d[NJ][4], n[2][4];
        wgmma::begin();
#pragma unroll
        for (int c = 0; c < CH; c++) sum_products<D, CH>(d, K, V, c, warp / 4, c > 0);
        wgmma::commit();
        sum_keys<D, CH>(n, K, lane, warp);
#pragma unroll
        for (int i = 0; i < 4; i++) n_total[i / 2][i % 2] += n[i / 2][i % 2];
        wgmma::wait<0>();
#pragma unroll
        for (int j = 0; j < NJ; j++) add4(total[j], make_float4(d[j][0], d[j][1], d[j][2], d[j][3]));
    }
}

/* To memory, by way of n[CH][D]. */
template <int D, int CH>
__device__ __forceinline__ void put_sums(const float4 (&total)[shape<D, CH>::NJ], const float (&n_total)[2][2],
                                         const arguments &a, float (&n)[CH][D], const unsigned long long &bad,
                                         int64_t at, int lane, int warp)
{
    using F = shape<D, CH>;
    constexpr int KT = D / 16;
    if (lane < 4)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)&n[warp / KT][16 * (warp % KT) + 8 * h + 2 * lane] = make_float2(n_total[h][0], n_total[h][1]);
#pragma unroll
    for (int j = 0; j < F::NJ; j++) a.S_sum[at * F::matrix + j * F::NT + threadIdx.x] = total[j];
    __syncthreads();
    if (threadIdx.x < D) {
        float sum = 0;
#pragma unroll
        for (int c = 0; c < CH; c++) sum += n[c][threadIdx.x];
        a.n[at * D + threadIdx.x] = sum;
    }
    if (threadIdx.x == 0) a.bad[at] = (int64_t)bad;
}
#endif

/* A block a segment but the last of a head. */
template <int D, int CH>
__global__ void __launch_bounds__(shape<D, CH>::NT, shape<D, CH>::BLOCKS) sums(const __grid_constant__ arguments a)
{
#if VLA_WGMMA
    using F = shape<D, CH>;
    constexpr int NJ = F::NJ;
    extern __shared__ __align__(1024) unsigned char raw[];
    sums_shared<D, CH> &s = *(sums_shared<D, CH> *)raw;
    const int64_t head = blockIdx.x / (a.segments - 1), segment = blockIdx.x % (a.segments - 1),
                  at = head * a.segments + segment;
    const int lane = (int)threadIdx.x % 32, warp = warp_number();
    if (threadIdx.x == 0) s.bad = INT64_MAX;
    grid_wait(); /* for the inputs */
    grid_release(true);
    float4 total[NJ];
    float n_total[2][2];
    constexpr int APART = sizeof(rows<D, CH>);
    add_up<D, CH>(total, n_total, a, &s.K[0], APART, &s.V[0], APART, s.bad, head, segment * a.steps * F::TOK, lane,
                  warp);
    put_sums<D, CH>(total, n_total, a, s.n, s.bad, at, lane, warp);
    if (segment > 0 || !a.S_in) return;
    const int64_t last = at + a.segments - 1;
#pragma unroll
    for (int j = 0; j < NJ; j++) {
        total[j] = make_float4(0, 0, 0, 0);
        each_element<D, CH>(a, j,
                            [&](int e, int place) { ((float *)&total[j])[e] = a.S_in[head * a.dv * a.dk + place]; });
        a.S_sum[last * F::matrix + j * F::NT + threadIdx.x] = total[j];
    }
    if (threadIdx.x < D)
        a.n[last * D + threadIdx.x] = a.n_in && (int)threadIdx.x < a.dk ? a.n_in[head * a.dk + threadIdx.x] : 0.0f;
#endif
}

/* A block a segment. */
template <int D, int CH>
__global__ void __launch_bounds__(shape<D, CH>::NT, shape<D, CH>::BLOCKS) walk(const __grid_constant__ arguments a)
{
#if VLA_WGMMA
    using F = shape<D, CH>;
    using M = bf16_arithmetic;
    constexpr int TOK = F::TOK, NJ = F::NJ, KT = D / 16, AT_ONCE = F::AT_ONCE, KEYS = F::KEYS;
    extern __shared__ __align__(1024) unsigned char raw[];
    walk_shared<D, CH> &s = *(walk_shared<D, CH> *)raw;
    const int tid = (int)threadIdx.x;
    const int64_t head = blockIdx.x / a.segments, segment = blockIdx.x % a.segments;
    int lane = tid % 32, warp = warp_number();
    if (tid == 0) s.bad[0] = s.bad[1] = TOK;
    if (a.first) grid_wait(); /* for the inputs, where there are no sums */
    grid_release(true);
    const auto load_keys = [&](const pieces<D, CH> &mine, int64_t step, int64_t at) {
        mine.load(&s.K[step % KEYS], a.k, head * a.T + at, tokens_left<TOK>(a, at), a.dk);
    };
    const auto load_others = [&](const pieces<D, CH> &mine, int64_t step, int64_t at) {
        const int left = tokens_left<TOK>(a, at);
        mine.load(&s.V[step % 2], a.v, head * a.T + at, left, a.dv);
        mine.load(&s.Q[step % 2], a.q, head * a.T + at, left, a.dk);
    };
    int64_t token = segment * a.steps * TOK;
    const int64_t all = (a.T - token + TOK - 1) / TOK, steps = all < a.steps ? all : a.steps;
    load_keys({a, lane, warp}, 0, token);
    load_others({a, lane, warp}, 0, token);
    copy_commit();

    /* the state that a run goes on from, where no other block reads it */
    float4 S[NJ];
    float n_before = 0;
    int64_t bad = INT64_MAX;
#pragma unroll
    for (int j = 0; j < NJ; j++) {
        S[j] = make_float4(0, 0, 0, 0);
        if (a.first && a.S_in)
            each_element<D, CH>(a, j, [&](int e, int at) { ((float *)&S[j])[e] = a.S_in[head * a.dv * a.dk + at]; });
    }
    if (a.first && a.n_in && tid < a.dk) n_before = a.n_in[head * a.dk + tid];
    __syncthreads();

    for (int64_t step = 0; step < steps; step++, token += TOK) {
        asm volatile("" : "+r"(lane), "+r"(warp)); /* places are computed in each step rather than kept */
        const int group = warp / 4, in_group = warp % 4, g = lane / 4, t = lane % 4;
        const int chunk = group / F::PANELS, part = group % F::PANELS; /* of the outputs */
        const uint32_t one = g == 0 ? 0x3f803f80u : 0u;
        const pieces<D, CH> mine = {a, lane, warp};
        const int left = tokens_left<TOK>(a, token);
        rows<D, CH> &keys = s.K[step % KEYS], &values = s.V[step % 2], &queries = s.Q[step % 2];
        copy_wait<0>();
        {
            const int bad_key = mine.keys(&keys, left), bad_value = mine.values(&values);
            if (bad_key < TOK || bad_value < TOK)
                atomicMin(&s.bad[step % 2], bad_key < bad_value ? bad_key : bad_value);
        }
        mine.queries(&queries, s.down, left);
        wgmma::written();
        __syncthreads(); /* and all have left S, n and the other stage */
        if (step + 1 < steps) {
            if (KEYS == 2)
                load_keys(mine, step + 1, token + TOK);
            else
                mine.fetch(a.k, head * a.T + token + TOK, tokens_left<TOK>(a, token + TOK), a.dk);
            load_others(mine, step + 1, token + TOK);
        }
        copy_commit();
        if (step == 0) { /* what the segments before have, in order */
            if (!a.first) grid_wait();
            constexpr int SOME = 16 / NJ; /* at once */
            const float4 *from = a.S_sum + head * a.segments * F::matrix + tid;
            const float *n = a.n + head * a.segments * D + tid;
            if (!a.first && a.S_in) {
#pragma unroll
                for (int j = 0; j < NJ; j++) S[j] = __ldcg(from + (a.segments - 1) * F::matrix + j * F::NT);
                if (tid < D) n_before = __ldcg(n + (a.segments - 1) * D);
            }
            for (int64_t i = 0; i < segment; i += SOME) {
                float4 x[SOME][NJ];
                float y[SOME];
                int64_t first[SOME];
#pragma unroll
                for (int e = 0; e < SOME; e++) {
                    const bool is = i + e < segment;
#pragma unroll
                    for (int j = 0; j < NJ; j++)
                        x[e][j] = is ? __ldcg(from + (i + e) * F::matrix + j * F::NT) : make_float4(0, 0, 0, 0);
                    y[e] = is && tid < D ? __ldcg(n + (i + e) * D) : 0.0f;
                    first[e] = is ? __ldcg(a.bad + head * a.segments + i + e) : INT64_MAX;
                }
#pragma unroll
                for (int e = 0; e < SOME; e++) {
#pragma unroll
                    for (int j = 0; j < NJ; j++) add4(S[j], x[e][j]);
                    n_before += y[e];
                    bad = first[e] < bad ? first[e] : bad;
                }
            }
        }
        if (s.bad[step % 2] < TOK && token + s.bad[step % 2] < bad) bad = token + s.bad[step % 2];
        if (tid == 0) s.bad[1 - step % 2] = TOK;
        if (tid < D) s.n_before[tid] = n_before;

        /* sums by chunks, and S before each */
        const part_of<D, CH> mine_of_S(group);
#pragma unroll
        for (int c0 = 0; c0 < CH; c0 += AT_ONCE) {
            float d[AT_ONCE][NJ][4];
            wgmma::begin();
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) sum_products<D, CH>(d[c], keys, values, c0 + c, group, 0);
            wgmma::commit();
            if (c0 == 0) {
                float n[2][4];
                sum_keys<D, CH>(n, keys, lane, warp);
                if (lane < 4)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        *(float2 *)&s.n[warp / KT][16 * (warp % KT) + 8 * h + 2 * lane] = make_float2(n[h][0], n[h][1]);
            }
            wgmma::wait<0>();
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) {
                char *to = (char *)s.S[c0 + c][mine_of_S.panel] + 4 * t;
#pragma unroll
                for (int j = 0; j < NJ; j++) {
                    const uint32_t at = wgmma::swizzled((uint32_t)(64 * mine_of_S.row + 16 * in_group + g),
                                                        (uint32_t)(mine_of_S.column + j));
                    *(uint32_t *)(to + at) = pack(M{}, S[j].x, S[j].y);
                    *(uint32_t *)(to + at + 1024) = pack(M{}, S[j].z, S[j].w);
                    add4(S[j], make_float4(d[c][j][0], d[c][j][1], d[c][j][2], d[c][j][3]));
                }
            }
        }

        /* inside the chunk */
        float o[8][4], den[4] = {};
        frag P[4];
        {
            float c[8][4];
            wgmma::begin();
#pragma unroll
            for (int k = 0; k < KT; k++)
                wgmma::product<wgmma::PLAIN, wgmma::PLAIN>(
                    c, wgmma::tile(shared_address(queries.tile[chunk][k / 4])) + k % 4 * wgmma::STEP_PLAIN,
                    wgmma::tile(shared_address(keys.tile[chunk][k / 4])) + k % 4 * wgmma::STEP_PLAIN, k > 0);
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
            wgmma::product<wgmma::TURNED>(
                o, P[i], wgmma::tile(shared_address(values.tile[chunk][part])) + i * wgmma::STEP_TURNED, i > 0);
        wgmma::commit();
#pragma unroll
        for (int i = 0; i < 4; i++) mma(M{}, den, P[i].x, one, one);
        float floors[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            floors[h] = (float)VLA_RATIO_EPS * exp2f(-(float)s.down[64 * chunk + 16 * in_group + g + 8 * h]);
        wgmma::written();
        __syncthreads(); /* S and n are there, all have left the keys */
        if (KEYS == 1 && step + 1 < steps) load_keys(mine, step + 1, token + TOK);
        if (KEYS == 1) copy_commit();
        wgmma::begin();
#pragma unroll
        for (int k = 0; k < KT; k++)
            wgmma::product<wgmma::PLAIN, wgmma::TURNED>(
                o, wgmma::tile(shared_address(queries.tile[chunk][k / 4])) + k % 4 * wgmma::STEP_PLAIN,
                wgmma::tile(shared_address(s.S[chunk][part])) + k * wgmma::STEP_TURNED, 1);
        wgmma::commit();
        const uint32_t query_rows = wgmma::swizzled((uint32_t)(16 * in_group + lane % 16), (uint32_t)lane / 16);
        const float rest = g == 1 ? -1.0f : 0.0f; /* column 1: what column 0's rounding leaves out */
#pragma unroll
        for (int k = 0; k < KT; k++) {
            /* piece 2 k more: an exclusive or, as the place is one */
            const frag Q =
                load_plain(shared_address(queries.tile[chunk][k / 4]) + (query_rows ^ (uint32_t)(k % 4 * 32)));
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
        if (tid < D)
#pragma unroll
            for (int c = 0; c < CH; c++) n_before += s.n[c][tid];
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = __shfl_sync(FULL_WARP, den[2 * h] + den[2 * h + 1], lane & ~3);
            const int r = 64 * chunk + 16 * in_group + g + 8 * h;
            by[h] = token + r >= bad ? NAN : reciprocal(sum < floors[h] ? floors[h] : sum);
        }
        wgmma::wait<0>();
        asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); /* S is free: its place takes the outputs */
        char *O = (char *)s.S[chunk][part];
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
    if (segment + 1 < a.segments) return;
    const bool lost = bad < a.T; /* the end state too */
#pragma unroll
    for (int j = 0; j < NJ; j++)
        if (a.S_out)
            each_element<D, CH>(
                a, j, [&](int e, int at) { a.S_out[head * a.dv * a.dk + at] = lost ? NAN : ((float *)&S[j])[e]; });
    if (a.n_out && tid < a.dk) a.n_out[head * a.dk + tid] = lost ? NAN : n_before;
#endif
}
} /* namespace linear_walk */

#endif
