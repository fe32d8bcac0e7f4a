/* maps, compose and walk of the float32 chunk and scan forms (scan.cuh). */
#ifndef VLA_CUDA_SCAN_WALK_CUH
#define VLA_CUDA_SCAN_WALK_CUH
#include "kernels/cuda/scan.cuh"

namespace scanned
{
template <int DK, bool OUT> struct walk_stage {
    static constexpr int PITCH = DK + 8, XPITCH = DK + 4; /* rows start in different banks for how each is read */
    float K[C * PITCH], Q[OUT ? C * PITCH : 4], X[C * XPITCH];
    float2 N[PAIR_TILES * 32], P[OUT ? PAIR_TILES * 32 : 2];
    float norm[C];
};

template <int DK, bool OUT> struct walk_shared {
    walk_stage<DK, OUT> stage[2];
    float inverse[2][C];
};

template <vla_op OP, int DK, bool OUT>
__device__ __forceinline__ void fetch_stage(walk_stage<DK, OUT> &s, const arguments &a, int64_t block, int thread)
{
    using stage = walk_stage<DK, OUT>;
    constexpr int THREADS = 32 * WARPS;
    if (OP != VLA_LINEAR) fetch_rows<DK, stage::PITCH, THREADS>(s.K, a.K + block * C * DK, thread);
    if (OUT) fetch_rows<DK, stage::PITCH, THREADS>(s.Q, a.Q + block * C * DK, thread);
    fetch_rows<DK, stage::XPITCH, THREADS>(s.X, a.X + block * C * DK, thread);
    constexpr int QUADS = PAIR_TILES * 32 / 2; /* of sixteen bytes */
    if (OP != VLA_LINEAR && thread < QUADS)
        fetch16((float *)s.N + 4 * thread, (const float *)(a.N + block * PAIR_TILES * 32) + 4 * thread);
    if (OUT && thread >= 64 && thread < 64 + QUADS)
        fetch16((float *)s.P + 4 * (thread - 64), (const float *)(a.P + block * PAIR_TILES * 32) + 4 * (thread - 64));
    if (thread >= 124) fetch16(s.norm + 4 * (thread - 124), a.norm + block * C + 4 * (thread - 124));
}

/* A block of tokens: S (16 rows x DK, as results) advanced. v: V^T, then unused; o: O^T without the ratio. */
template <vla_op OP, int DK, int TERMS, bool OUT>
__device__ __forceinline__ void step(float (&S)[DK / 8][4], const walk_stage<DK, OUT> &in, const float (&v)[2][4],
                                     float (&o)[2][4], int lane)
{
    using namespace tf32;
    using stage = walk_stage<DK, OUT>;
    const int g = lane / 4, t = lane % 4;
    const float2 *keys = (const float2 *)(in.K + g * stage::PITCH) + t;
    const float2 *queries = (const float2 *)(in.Q + (OUT ? g * stage::PITCH : 0)) + (OUT ? t : 0);
    sum_t<TERMS> p[2], q[2];
    if (OP != VLA_LINEAR || OUT)
#pragma unroll
        for (int n = 0; n < DK / 8; n++) {
            const left_t<TERMS> s = left<TERMS>(S[n]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (OP != VLA_LINEAR) {
                    const float2 k = keys[4 * n + 4 * j * stage::PITCH];
                    p[j].add(s, right<TERMS>(k.x, k.y));
                }
                if (OUT) {
                    const float2 x = queries[4 * n + 4 * j * stage::PITCH];
                    q[j].add(s, right<TERMS>(x.x, x.y));
                }
            }
        }
    float r[2][4];
    if constexpr (OP != VLA_LINEAR) {
        left_t<TERMS> x[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float c[4];
            p[j].take(c);
#pragma unroll
            for (int i = 0; i < 4; i++) c[i] = v[j][i] - c[i], r[j][i] = 0;
            x[j] = left<TERMS>(c);
        }
        const float2 n00 = in.N[lane], n10 = in.N[32 + lane], n11 = in.N[64 + lane];
        mma<TERMS>(r[0], x[0], right<TERMS>(n00.x, n00.y));
        mma<TERMS>(r[1], x[0], right<TERMS>(n10.x, n10.y));
        mma<TERMS>(r[1], x[1], right<TERMS>(n11.x, n11.y));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) r[i / 4][i % 4] = v[i / 4][i % 4];
    }
    const left_t<TERMS> R[2] = {left<TERMS>(r[0]), left<TERMS>(r[1])};
    if constexpr (OUT) {
        q[0].take(o[0]), q[1].take(o[1]);
        const float2 p00 = in.P[lane], p10 = in.P[32 + lane], p11 = in.P[64 + lane];
        mma<TERMS>(o[0], R[0], right<TERMS>(p00.x, p00.y));
        mma<TERMS>(o[1], R[0], right<TERMS>(p10.x, p10.y));
        mma<TERMS>(o[1], R[1], right<TERMS>(p11.x, p11.y));
    }
    const float *writes = in.X + 2 * t * stage::XPITCH + g;
#pragma unroll
    for (int n = 0; n < DK / 8; n++) {
        float change[4] = {}; /* added by an ordinary sum: that of a product cuts off, which would shrink S with T */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float *x = writes + 8 * j * stage::XPITCH + 8 * n;
            mma<TERMS>(change, R[j], right<TERMS>(x[0], x[stage::XPITCH]));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] += change[i];
    }
}

/* V^T of a block of tokens for sixteen value rows, what is not finite as zero. */
__device__ __forceinline__ void load_values(float (&v)[2][4], const arguments &a, int64_t head, int64_t token0,
                                            int row0, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t token = token0 + 8 * (i / 4) + 2 * t + i % 2;
        const int row = row0 + g + 8 * (i % 4 / 2);
        const float x = token < a.T && row < a.dv ? ((const float *)a.v)[(head * a.T + token) * a.dv + row] : 0.0f;
        v[i / 4][i % 4] = fabsf(x) < INFINITY ? x : 0.0f;
    }
}

/* Maps of all segments but the last: a warp has sixteen rows, first of S from 0, then of S from I with no values. */
template <vla_op OP, int DK, int TERMS>
__global__ void __launch_bounds__(32 * WARPS) maps(const __grid_constant__ arguments a, int groups)
{
    extern __shared__ __align__(16) unsigned char raw[];
    walk_shared<DK, false> &s = *(walk_shared<DK, false> *)raw;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int64_t place = blockIdx.x / groups, head = place / (a.segments - 1), segment = place % (a.segments - 1);
    const int tile = (int)(blockIdx.x % groups) * WARPS + warp, identity = tile - a.row_tiles;
    const bool used = tile < a.row_tiles + (OP == VLA_LINEAR ? 0 : DK / 16);
    const int64_t first = segment * a.per_segment, block0 = head * a.stride + first, count = segment_blocks(a, segment);
    float S[DK / 8][4], v[2][4] = {}, next[2][4] = {}, o[2][4];
#pragma unroll
    for (int n = 0; n < DK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = 16 * identity + g + 8 * (i / 2) == 8 * n + 2 * t + i % 2 ? 1.0f : 0.0f;
    fetch_stage<OP, DK, false>(s.stage[0], a, block0, (int)threadIdx.x);
    fetch_commit();
    if (identity < 0) load_values(next, a, head, a.first_token + first * C, 16 * tile, lane);
    for (int64_t i = 0; i < count; i++) {
        if (i + 1 < count) fetch_stage<OP, DK, false>(s.stage[(i + 1) & 1], a, block0 + i + 1, (int)threadIdx.x);
        fetch_commit();
        fetch_wait<1>();
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 8; e++) v[e / 4][e % 4] = next[e / 4][e % 4];
        if (identity < 0) load_values(next, a, head, a.first_token + (first + i + 1) * C, 16 * tile, lane);
        if (used) step<OP, DK, TERMS, false>(S, s.stage[i & 1], v, o, lane);
        __syncthreads();
    }
    if (!used) return;
    const int64_t at = head * a.segments + segment;
    float *to =
        identity < 0 ? a.map_B + (at * a.row_tiles + tile) * 16 * DK : a.map_P + (at * (DK / 16) + identity) * 16 * DK;
#pragma unroll
    for (int n = 0; n < DK / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(to + (g + 8 * h) * DK + 8 * n + 2 * t) = make_float2(S[n][2 * h], S[n][2 * h + 1]);
}

constexpr int COMPOSE_ROWS = 8;

/* S at every segment's start from S at the stretch's: S P + B, segment by segment; eight rows a block, a column a
 * thread. */
template <vla_op OP, int DK> __global__ void __launch_bounds__(DK) compose(const __grid_constant__ arguments a)
{
    __shared__ __align__(16) float S[DK][COMPOSE_ROWS]; /* transposed: a row of it is what one element of P meets */
    const int slices = a.row_tiles * 16 / COMPOSE_ROWS, c = (int)threadIdx.x;
    const int64_t head = blockIdx.x / slices, rows = a.row_tiles * 16;
    const int row0 = (int)(blockIdx.x % slices) * COMPOSE_ROWS;
    float s[COMPOSE_ROWS];
#pragma unroll
    for (int r = 0; r < COMPOSE_ROWS; r++)
        s[r] = row0 + r < a.dv && c < a.dk ? a.S[(head * a.dv + row0 + r) * a.dk + c] : 0.0f;
    for (int64_t segment = 0; segment < a.segments; segment++) {
        const int64_t at = head * a.segments + segment;
        float next[COMPOSE_ROWS];
#pragma unroll
        for (int r = 0; r < COMPOSE_ROWS; r++) {
            const int64_t to = (at * rows + row0 + r) * DK + c;
            a.S_start[to] = s[r];
            S[c][r] = s[r];
            next[r] = segment + 1 < a.segments ? a.map_B[to] : 0.0f;
        }
        if (segment + 1 == a.segments) break;
        if (OP == VLA_LINEAR) {
#pragma unroll
            for (int r = 0; r < COMPOSE_ROWS; r++) s[r] += next[r];
            continue;
        }
        __syncthreads();
        const float *P = a.map_P + at * DK * DK + c;
#pragma unroll 16
        for (int j = 0; j < DK; j++) {
            const float p = P[j * DK];
            const float4 x = ((const float4 *)S[j])[0], y = ((const float4 *)S[j])[1];
            next[0] = fmaf(x.x, p, next[0]), next[1] = fmaf(x.y, p, next[1]), next[2] = fmaf(x.z, p, next[2]);
            next[3] = fmaf(x.w, p, next[3]), next[4] = fmaf(y.x, p, next[4]), next[5] = fmaf(y.y, p, next[5]);
            next[6] = fmaf(y.z, p, next[6]), next[7] = fmaf(y.w, p, next[7]);
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < COMPOSE_ROWS; r++) s[r] = next[r];
    }
}

/* n along a block of tokens, and 1/max(n.qf, eps) of each: lane l has columns l, l + 32, .. */
template <vla_op OP, int DK>
__device__ __forceinline__ void step_ratio(float (&n)[DK / 32], const walk_stage<DK, true> &in, float *inverse,
                                           bool plain, int lane)
{
    using stage = walk_stage<DK, true>;
    const float floor = (float)VLA_RATIO_EPS;
    float mine = 0;
#pragma unroll 4
    for (int t = 0; t < C; t++) {
        float dot = 0;
#pragma unroll
        for (int e = 0; e < DK / 32; e++) {
            const int c = lane + 32 * e;
            n[e] += OP == VLA_LINEAR ? in.X[t * stage::XPITCH + c] : in.norm[t] * in.K[t * stage::PITCH + c];
            dot = fmaf(n[e], in.Q[t * stage::PITCH + c], dot);
        }
        dot = warp_sum(dot);
        mine = lane == t ? dot : mine;
    }
    if (lane < C) inverse[lane] = plain ? 1.0f : 1.0f / (mine < floor ? floor : mine);
}

enum { BARRIER_WALK = 1 };

/* A segment with outputs; WARPS warps of S and one of the ratio, which is stored a block of tokens later. scan: the
 * start is S_start; otherwise S itself. */
template <vla_op OP, int DK, int TERMS>
__global__ void __launch_bounds__(32 * (WARPS + 1), DK == 64 ? 3 : 2)
    walk(const __grid_constant__ arguments a, int groups, bool scan)
{
    extern __shared__ __align__(16) unsigned char raw[];
    walk_shared<DK, true> &s = *(walk_shared<DK, true> *)raw;
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
    const int64_t place = blockIdx.x / groups, head = place / a.segments, segment = place % a.segments;
    const int group = (int)(blockIdx.x % groups), tile = group * WARPS + warp;
    const int64_t first = segment * a.per_segment, block0 = head * a.stride + first, count = segment_blocks(a, segment);
    const int64_t token0 = a.first_token + first * C, bad = first_bad(a, head);
    const bool ratio = warp == WARPS, last = segment + 1 == a.segments;
    if (!ratio) fetch_stage<OP, DK, true>(s.stage[0], a, block0, thread);
    fetch_commit();
    if (ratio) {
        float n[DK / 32];
        const float *from = scan ? a.n_start + (head * (a.segments + 1) + segment) * DK : a.n + head * DK;
#pragma unroll
        for (int e = 0; e < DK / 32; e++) n[e] = from[lane + 32 * e];
        for (int64_t i = 0; i <= count; i++) {
            meet<32 * (WARPS + 1)>(BARRIER_WALK);
            if (i < count && a.has_ratio) step_ratio<OP, DK>(n, s.stage[i & 1], s.inverse[i & 1], a.plain, lane);
            meet<32 * (WARPS + 1)>(BARRIER_WALK);
        }
        if (!scan && group == 0) /* not in place: another group may not have read it yet */
#pragma unroll
            for (int e = 0; e < DK / 32; e++) a.n_start[(head * 2 + 1) * DK + lane + 32 * e] = n[e];
        return;
    }
    const bool used = tile < a.row_tiles;
    float S[DK / 8][4], v[2][4], next[2][4], o[2][4] = {};
    const int row0 = 16 * tile + g;
#pragma unroll
    for (int n = 0; n < DK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = row0 + 8 * (i / 2), c = 8 * n + 2 * t + i % 2;
            S[n][i] = 0;
            if (used && r < a.dv && c < a.dk)
                S[n][i] = scan ? a.S_start[((head * a.segments + segment) * a.row_tiles * 16 + r) * DK + c]
                               : a.S[(head * a.dv + r) * a.dk + c];
        }
    if (used) load_values(next, a, head, token0, 16 * tile, lane);
    for (int64_t i = 0; i <= count; i++) {
        if (i + 1 < count) fetch_stage<OP, DK, true>(s.stage[(i + 1) & 1], a, block0 + i + 1, thread);
        fetch_commit();
        fetch_wait<1>();
        meet<32 * (WARPS + 1)>(BARRIER_WALK);
        if (used && i > 0)
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int at = 8 * (e / 4) + 2 * t + e % 2, r = row0 + 8 * (e % 4 / 2);
                const int64_t token = token0 + (i - 1) * C + at;
                const float x = a.has_ratio ? o[e / 4][e % 4] * s.inverse[(i - 1) & 1][at] : o[e / 4][e % 4];
                if (token < a.T && r < a.dv) ((float *)a.o)[(head * a.T + token) * a.dv + r] = token < bad ? x : NAN;
            }
        if (used && i < count) {
#pragma unroll
            for (int e = 0; e < 8; e++) v[e / 4][e % 4] = next[e / 4][e % 4];
            load_values(next, a, head, token0 + (i + 1) * C, 16 * tile, lane);
            step<OP, DK, TERMS, true>(S, s.stage[i & 1], v, o, lane);
        }
        meet<32 * (WARPS + 1)>(BARRIER_WALK);
    }
    if (last && used)
#pragma unroll
        for (int n = 0; n < DK / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = row0 + 8 * (i / 2), c = 8 * n + 2 * t + i % 2;
                if (r < a.dv && c < a.dk) a.S[(head * a.dv + r) * a.dk + c] = S[n][i];
            }
}
} /* namespace scanned */

#endif
