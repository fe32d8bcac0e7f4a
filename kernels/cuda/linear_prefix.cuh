/* linear, chunkwise on tensor cores. Its state is a plain sum, S = sum of v kf^T and n = sum of kf, so that nothing is
 * solved or walked and every chunk of G tokens is a block of its own:
 *   sums     a chunk's sum of v kf^T and of kf
 *   prefix   sums -> S and n before each chunk, S as bfloat16 operands; the carried and the end state
 *   outputs  O = (tril(Q K^T) V + Q S^T) / max(tril(Q K^T) 1 + Q n, eps), a token tile a warp
 * k and v are read twice, q once; S costs 10 dk dv bytes a chunk to write and read. Long sequences take stretches, as
 * the workspace is bounded. Products are of bfloat16 (its range is float32's, so nothing is scaled but rows of q beyond
 * 1024), sums float32; n goes into its product as two bfloat16. A state of few elements can be small by cancellation:
 * where dk and dv are at most 32, k and v go in as two bfloat16 each, in neighbouring groups of eight columns, and the
 * parts' results are added ("narrow"). NaN: rows of k or v that hold one are taken as zero and everything from the
 * first one on is NaN; a NaN in q touches its own row. Each sum is added in one fixed order. Not supported: float32, dk
 * or dv above 128. */
#ifndef VLA_CUDA_LINEAR_PREFIX_CUH
#define VLA_CUDA_LINEAR_PREFIX_CUH
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/rows8.cuh"

namespace linear_form
{
constexpr int G = 128, TILES = G / 16; /* tokens a chunk, token tiles */
constexpr int WARPS = TILES;           /* of sums */

struct arguments {
    const void *q, *k, *v;
    void *o;
    const float *S_in, *n_in; /* [heads,dv,dk], [heads,dk]: before this stretch; NULL: zero */
    float *S_out, *n_out;     /* after it; NULL: not wanted. S_out may be S_in */
    /* a chunk (head, chunk): */
    float4 *S_sum;      /* [dv/16][dk/8][32] results of products */
    uint4 *S;           /* [dv/16][dk/16][32] right operands of Q S^T */
    float *n;           /* [dk], the sum, then its prefix */
    int64_t *bad;       /* first token that is not finite, then that of all chunks up to this one */
    int64_t *bad_carry; /* a head: of the stretches before, then with this one */
    int64_t T, heads;
    int64_t first_token; /* of this stretch */
    int chunks;          /* in this stretch */
    int dk, dv;
    vla_dtype dtype;
    vla_features features;
    bool qk_l2, narrow, first, last;
    bool early; /* let the next kernel's blocks in as soon as all of this one's are */
};

template <int DK, int DV> struct shape {
    static constexpr int KT = DK / 16, VT = DV / 16;
    static constexpr int SN = DK / 8 * VT / WARPS; /* groups of eight columns of a warp's part of S in sums */
    static constexpr int PARTS = DV / 64, OUTPUT_WARPS = TILES * PARTS; /* warps a token tile of the outputs */
    static constexpr int64_t matrix = DV * DK / 4;                      /* float4 of S_sum */
    static constexpr int KP = DK + 8, VP = DV + 8;                      /* pitches, halves */
    static constexpr bool can_be_narrow = DK == 64 && DV == 64;
};

template <int DK, int DV> struct rows_shared {
    uint16_t K[G * shape<DK, DV>::KP], V[G * shape<DK, DV>::VP];
};
template <int DK, int DV> struct output_shared {
    rows_shared<DK, DV> in; /* Q passes through V's place (or K's, where K is wider) before they are there */
    uint4 S[DV / 16][DK / 16][32];
    float floor[G]; /* of the denominators */
};

/* Rows of a chunk dealt to NW warps, W/8 lanes a row. */
template <int W, int NW> struct rows_of {
    static constexpr int LANES = W / 8, AT_ONCE = 32 / LANES, A_WARP = G / NW, PASSES = A_WARP / AT_ONCE;
    raw8<1> raw[PASSES];
    bool narrow;

    static __device__ __forceinline__ int row(int pass)
    {
        return (int)threadIdx.x / 32 * A_WARP + pass * AT_ONCE + (int)threadIdx.x % 32 / LANES;
    }
    static __device__ __forceinline__ int column() /* in shared memory */ { return 8 * ((int)threadIdx.x % LANES); }
    __device__ __forceinline__ int source() const /* in the tensor */ { return narrow ? column() / 16 * 8 : column(); }
    __device__ __forceinline__ bool low() const /* this lane has the low parts */ { return narrow && column() / 8 % 2; }
    __device__ __forceinline__ void load(const void *data, int64_t row0, int left, int width)
    {
        const __half *from = (const __half *)data + (row0 + row(0)) * width;
        if (width % 8 == 0) { /* the branch is around all the loads, so that none waits for another */
            from += source();
            const int rows = source() < width ? left : 0, step = AT_ONCE * width;
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                raw[p].half[0] = make_uint4(0, 0, 0, 0);
                if (row(p) < rows) raw[p].half[0] = *(const uint4 *)(from + p * step);
            }
        } else {
            for (int p = 0; p < PASSES; p++) load8(raw[p], from + p * AT_ONCE * width, source(), width, row(p) < left);
        }
    }
};

/* 0 where all eight are finite. */
__device__ __forceinline__ uint32_t not_finite(uint4 x)
{
    uint32_t sum = 0;
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x.x), "r"(0u));
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x.y), "r"(0u));
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x.z), "r"(0u));
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x.w), "r"(0u));
    return sum;
}

__device__ __forceinline__ uint4 pack8(const float (&y)[8])
{
    const bf16_arithmetic M{};
    return make_uint4(pack(M, y[0], y[1]), pack(M, y[2], y[3]), pack(M, y[4], y[5]), pack(M, y[6], y[7]));
}

/* What rounding to bfloat16 leaves out. */
__device__ __forceinline__ void keep_rest(float (&y)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] -= __bfloat162float(__float2bfloat16_rn(y[i]));
}

template <typename R> __device__ __forceinline__ void mapped(float (&y)[8], const R &rows, const arguments &a, int pass)
{
    float x[8];
    convert8(x, rows.raw[pass], a.dtype);
    features8<false>(y, x, a.features);
    if (rows.source() + 8 > a.dk)
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = rows.source() + i < a.dk ? y[i] : 0.0f;
}

/* Keys and values to shared memory, what is not finite or past the sequence as zero. Returns the first row of this lane
 * that is not finite, G if none. */
template <int DK, int DV, int NW>
__device__ __forceinline__ int put_keys(rows_shared<DK, DV> &s, const rows_of<DK, NW> &keys, const arguments &a,
                                        int left)
{
    int bad = G;
#pragma unroll
    for (int p = 0; p < rows_of<DK, NW>::PASSES; p++) {
        float y[8];
        mapped(y, keys, a, p);
        if (keys.low()) keep_rest(y);
        uint4 word = pack8(y);
        const int r = keys.row(p);
        if (not_finite(word) != 0) {
            word = make_uint4(0, 0, 0, 0);
            if (r < bad && r < left) bad = r;
        }
        if (r >= left) word = make_uint4(0, 0, 0, 0); /* phi(0) is not 0 */
        *(uint4 *)(s.K + r * shape<DK, DV>::KP + keys.column()) = word;
    }
    return bad;
}

template <int DK, int DV, int NW>
__device__ __forceinline__ int put_values(rows_shared<DK, DV> &s, const rows_of<DV, NW> &values, const arguments &a)
{
    int bad = G;
#pragma unroll
    for (int p = 0; p < rows_of<DV, NW>::PASSES; p++) {
        uint4 word = values.raw[p].half[0];
        if (a.dtype == VLA_F16 || values.narrow) {
            float x[8];
            convert8(x, values.raw[p], a.dtype);
            if (values.low()) keep_rest(x);
            word = pack8(x);
        }
        const int r = values.row(p);
        if (not_finite(word) != 0) {
            word = make_uint4(0, 0, 0, 0);
            if (r < bad) bad = r;
        }
        *(uint4 *)(s.V + r * shape<DK, DV>::VP + values.column()) = word;
    }
    return bad;
}

/* A block a chunk. */
template <int DK, int DV>
__global__ void __launch_bounds__(32 * WARPS, DK *DV == 64 * 64 ? 3 : 2) sums(const __grid_constant__ arguments a)
{
    using F = shape<DK, DV>;
    using M = bf16_arithmetic;
    extern __shared__ __align__(16) unsigned char raw[];
    rows_shared<DK, DV> &s = *(rows_shared<DK, DV> *)raw;
    __shared__ int bad;
    const int64_t head = blockIdx.x / a.chunks;
    const int chunk = (int)(blockIdx.x % a.chunks), lane = (int)threadIdx.x % 32, warp = warp_number();
    const int64_t token = a.first_token + (int64_t)chunk * G;
    const int left = (int)(a.T - token < G ? a.T - token : G);
    if (a.first) grid_wait(); /* for the inputs */
    grid_release(a.early);
    rows_of<DK, WARPS> keys;
    rows_of<DV, WARPS> values;
    keys.narrow = values.narrow = F::can_be_narrow && a.narrow;
    keys.load(a.k, head * a.T + token, left, a.dk);
    values.load(a.v, head * a.T + token, left, a.dv);
    if (threadIdx.x == 0) bad = G;
    const int bad_key = put_keys(s, keys, a, left), bad_value = put_values(s, values, a);
    __syncthreads();
    if (bad_key < G || bad_value < G) atomicMin(&bad, bad_key < bad_value ? bad_key : bad_value);
    const int row0 = 16 * (warp % F::VT), column0 = warp / F::VT * F::SN * 8;
    const bool has_n = warp < F::KT;
    const uint32_t one = lane / 4 == 0 ? 0x3f803f80u : 0u;
    const uint32_t ones[4] = {one, 0, one, 0};
    const uint32_t V = shared_address(s.V) + turned_offset(F::VP, lane) + 2 * row0,
                   K = shared_address(s.K) + plain_offset(F::KP, lane), part = K + 2 * column0, mine = K + 32 * warp;
    float S[F::SN][4] = {}, n[2][4] = {};
#pragma unroll 4
    for (int i = 0; i < TILES; i++) {
        const frag rows = load_turned(V + i * 32 * F::VP);
#pragma unroll
        for (int k = 0; k < F::SN / 2; k++) {
            const frag keys2 = load_turned(part + i * 32 * F::KP + k * 32); /* as a right operand */
            mma(M{}, S[2 * k], rows.x, keys2.x[0], keys2.x[1]);
            mma(M{}, S[2 * k + 1], rows.x, keys2.x[2], keys2.x[3]);
        }
        if (has_n) {
            const frag keys2 = load_turned(mine + i * 32 * F::KP);
            mma(M{}, n[0], ones, keys2.x[0], keys2.x[1]);
            mma(M{}, n[1], ones, keys2.x[2], keys2.x[3]);
        }
    }
    if (!a.first) grid_wait(); /* the stretch before may still read what is written now */
    const int64_t at = head * a.chunks + chunk;
    float4 *to = a.S_sum + at * F::matrix + (row0 / 16 * (DK / 8) + column0 / 8) * 32 + lane;
#pragma unroll
    for (int i = 0; i < F::SN; i++) to[i * 32] = make_float4(S[i][0], S[i][1], S[i][2], S[i][3]);
    if (has_n && lane < 4)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(a.n + at * DK + 16 * warp + 8 * h + 2 * lane) = make_float2(n[h][0], n[h][1]);
    __syncthreads();
    if (threadIdx.x == 0) a.bad[at] = bad < G ? token + bad : INT64_MAX;
}

/* A thread eight elements of S (two results of neighbouring columns), or four of n, or `bad`, of a head. */
template <int DK, int DV> __host__ __device__ constexpr int prefix_items()
{
    return DK * DV / 8 + DK / 4 + 1;
}

template <int DK, int DV> __global__ void prefix(const __grid_constant__ arguments a)
{
    using F = shape<DK, DV>;
    using M = bf16_arithmetic;
    constexpr int AHEAD = 8, OF_S = DK * DV / 8;
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, head = i / prefix_items<DK, DV>();
    const int e = (int)(i % prefix_items<DK, DV>());
    grid_release(a.early);
    grid_wait();
    if (head >= a.heads) return;
    const bool narrow = F::can_be_narrow && a.narrow;
    const int64_t at = head * a.chunks, none = INT64_MAX, before = a.first ? none : a.bad_carry[head];
    if (e == OF_S + DK / 4) {
        int64_t bad = before;
        for (int c = 0; c < a.chunks; c += 2 * AHEAD) {
            int64_t x[2 * AHEAD];
#pragma unroll
            for (int j = 0; j < 2 * AHEAD; j++) x[j] = c + j < a.chunks ? a.bad[at + c + j] : none;
#pragma unroll
            for (int j = 0; j < 2 * AHEAD; j++) {
                bad = x[j] < bad ? x[j] : bad;
                if (c + j < a.chunks) a.bad[at + c + j] = bad;
            }
        }
        a.bad_carry[head] = bad;
        return;
    }
    if (e >= OF_S) {
        const auto scan = [&](int quad, float4 sum) {
            float4 *n = (float4 *)(a.n + at * DK) + quad;
            for (int g = 0; g < a.chunks; g += AHEAD) {
                float4 y[AHEAD];
#pragma unroll
                for (int j = 0; j < AHEAD; j++)
                    y[j] = g + j < a.chunks ? n[(int64_t)(g + j) * (DK / 4)] : make_float4(0, 0, 0, 0);
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    if (g + j < a.chunks) n[(int64_t)(g + j) * (DK / 4)] = sum;
                    sum.x += y[j].x, sum.y += y[j].y, sum.z += y[j].z, sum.w += y[j].w;
                }
            }
            return sum;
        };
        const int quad = e - OF_S, c = narrow ? quad / 4 * 8 + quad % 2 * 4 : 4 * quad;
        if (narrow && quad / 2 % 2) return; /* low parts: with their high ones */
        float4 sum = make_float4(0, 0, 0, 0);
        float *x = (float *)&sum;
        for (int j = 0; j < 4; j++)
            if (a.n_in && c + j < a.dk) x[j] = a.n_in[head * a.dk + c + j];
        sum = scan(quad, sum);
        if (narrow) {
            const float4 low = scan(quad + 2, make_float4(0, 0, 0, 0));
            sum.x += low.x, sum.y += low.y, sum.z += low.z, sum.w += low.w;
        }
        for (int j = 0; j < 4; j++)
            if (a.n_out && c + j < a.dk) a.n_out[head * a.dk + c + j] = x[j];
        return;
    }
    const int lane = e % 32, tile = e / 32, vt = tile / F::KT, kt = tile % F::KT, g = lane / 4, t = lane % 4;
    float sum[2][4];
    /* place of element j of half h in [dv,dk], -1: none (narrow: those of high parts only) */
    const auto place = [&](int h, int j) {
        const int r = narrow ? 8 * vt + g : 16 * vt + g + 8 * (j / 2),
                  c = narrow ? 8 * kt + 2 * t + j % 2 : 16 * kt + 8 * h + 2 * t + j % 2;
        return r < a.dv && c < a.dk && !(narrow && (h > 0 || j > 1)) ? r * a.dk + c : -1;
    };
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int p = place(j / 4, j % 4);
        sum[j / 4][j % 4] = a.S_in && p >= 0 ? a.S_in[head * a.dv * a.dk + p] : 0.0f;
    }
    const float4 *from = a.S_sum + at * F::matrix + (vt * (DK / 8) + 2 * kt) * 32 + lane;
    uint4 *to = a.S + at * OF_S + e;
    for (int c = 0; c < a.chunks; c += AHEAD) {
        float4 y[AHEAD][2];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                y[j][h] = c + j < a.chunks ? from[(int64_t)(c + j) * F::matrix + h * 32] : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (c + j < a.chunks)
                to[(int64_t)(c + j) * OF_S] =
                    make_uint4(pack(M{}, sum[0][0], sum[0][1]), pack(M{}, sum[1][0], sum[1][1]),
                               pack(M{}, sum[0][2], sum[0][3]), pack(M{}, sum[1][2], sum[1][3]));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sum[h][0] += y[j][h].x, sum[h][1] += y[j][h].y;
                sum[h][2] += y[j][h].z, sum[h][3] += y[j][h].w;
            }
        }
    }
    if (!a.S_out) return;
    if (narrow)
#pragma unroll
        for (int j = 0; j < 2; j++) sum[0][j] += sum[0][j + 2] + (sum[1][j] + sum[1][j + 2]);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int p = place(j / 4, j % 4);
        if (p >= 0) a.S_out[head * a.dv * a.dk + p] = sum[j / 4][j % 4];
    }
}

/* A block a chunk, a warp sixteen tokens and 64 columns of dv. */
template <int DK, int DV>
__global__ void __launch_bounds__(32 * shape<DK, DV>::OUTPUT_WARPS, DK *DV == 64 * 64 ? 3 : 1)
    outputs(const __grid_constant__ arguments a)
{
    using F = shape<DK, DV>;
    using M = bf16_arithmetic;
    constexpr int KT = F::KT, OT = 4, NW = F::OUTPUT_WARPS;
    extern __shared__ __align__(16) unsigned char raw[];
    output_shared<DK, DV> &s = *(output_shared<DK, DV> *)raw;
    const int64_t head = blockIdx.x / a.chunks;
    const int chunk = (int)(blockIdx.x % a.chunks), lane = (int)threadIdx.x % 32, warp = warp_number();
    const int tile = warp % TILES, part = warp / TILES, g = lane / 4, t = lane % 4;
    const int64_t token = a.first_token + (int64_t)chunk * G, at = head * a.chunks + chunk;
    const int left = (int)(a.T - token < G ? a.T - token : G);
    const bool narrow = F::can_be_narrow && a.narrow;
    grid_release(a.early);
    rows_of<DK, NW> queries, keys;
    rows_of<DV, NW> values;
    queries.narrow = keys.narrow = values.narrow = narrow;
    queries.load(a.q, head * a.T + token, left, a.dk);
    keys.load(a.k, head * a.T + token, left, a.dk);
    values.load(a.v, head * a.T + token, left, a.dv);

    /* queries pass through shared memory to fragments: unit rows, or rows beyond 1024 brought below by a power of two
     */
    constexpr int QP = DK > DV ? F::KP : F::VP;
    uint16_t *through = DK > DV ? s.in.K : s.in.V;
#pragma unroll
    for (int p = 0; p < rows_of<DK, NW>::PASSES; p++) {
        float y[8], floor = (float)VLA_RATIO_EPS;
        if (a.qk_l2) {
            float x[8];
            convert8(x, queries.raw[p], a.dtype);
            unit8<false>(x, y, queries.source(), a.dk, a.features, rows_of<DK, NW>::LANES);
            const float twice = narrow ? 1.4142135f : 1.0f; /* a narrow row is there twice */
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = x[i] * twice;
        } else {
            mapped(y, queries, a, p);
            float largest = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(y[i]));
            if (__any_sync(FULL_WARP, largest > 1024.0f && largest < INFINITY)) {
                largest = group_max(largest, rows_of<DK, NW>::LANES);
                const float by = largest > 1024.0f && largest < INFINITY ? exp2f(-(float)ilogbf(largest)) : 1.0f;
                floor *= by;
#pragma unroll
                for (int i = 0; i < 8; i++) y[i] *= by;
            }
        }
        if (queries.column() == 0) s.floor[queries.row(p)] = floor;
        *(uint4 *)(through + queries.row(p) * QP + queries.column()) =
            queries.row(p) < left ? pack8(y) : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    frag Q[KT];
    const uint32_t query_rows = shared_address(through) + plain_offset(QP, lane) + tile * 32 * QP;
#pragma unroll
    for (int k = 0; k < KT; k++) Q[k] = load_plain(query_rows + k * 32);
    __syncthreads();
    put_keys(s.in, keys, a, left);
    put_values(s.in, values, a);

    grid_wait();
    const uint4 *S = a.S + at * (DK * DV / 8);
#pragma unroll
    for (int i = 0; i < DK * DV / 8; i += 32 * NW) (&s.S[0][0][0])[i + threadIdx.x] = __ldcg(S + i + threadIdx.x);
    float den[4] = {};
    const float *n = a.n + at * DK + 2 * t;
#pragma unroll
    for (int k = 0; k < KT; k++) {
        uint32_t right[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 x = __ldcg((const float2 *)(n + 16 * k + 8 * h));
            const uint32_t high = pack(M{}, x.x, x.y);
            const float2 got = unpack(M{}, high);
            right[h] = g == 0 ? high : g == 1 ? pack(M{}, x.x - got.x, x.y - got.y) : 0u;
        }
        mma(M{}, den, Q[k].x, right[0], right[1]);
    }
    const int64_t bad = __ldcg(a.bad + at);
    __syncthreads();
    float o[OT][2][4] = {};
#pragma unroll
    for (int k = 0; k < KT; k++)
#pragma unroll
        for (int v = 0; v < OT; v++) {
            const uint4 x = s.S[part * OT + v][k][lane];
            mma(M{}, o[v][0], Q[k].x, x.x, x.y);
            mma(M{}, o[v][1], Q[k].x, x.z, x.w);
        }
    const uint32_t one = g == 0 ? 0x3f803f80u : 0u;
    const uint32_t key_rows = shared_address(s.in.K) + turned_offset(F::KP, lane),
                   value_rows = shared_address(s.in.V) + plain_offset(F::VP, lane) + part * 128;
#pragma unroll 1
    for (int j = 0; j <= tile; j++) {
        float c[2][4] = {};
#pragma unroll
        for (int k = 0; k < KT; k++) {
            const frag x = load_plain(key_rows + j * 32 * F::KP + k * 32); /* as right operands, here and below */
            mma(M{}, c[0], Q[k].x, x.x[0], x.x[1]);
            mma(M{}, c[1], Q[k].x, x.x[2], x.x[3]);
        }
        if (j == tile) {
            c[0][0] = 2 * t > g ? 0.0f : c[0][0], c[1][2] = 2 * t > g ? 0.0f : c[1][2];
            c[0][1] = 2 * t + 1 > g ? 0.0f : c[0][1], c[1][3] = 2 * t + 1 > g ? 0.0f : c[1][3];
            c[1][0] = c[1][1] = 0;
        }
        const frag P = pack_tile<M>(c[0], c[1]);
        mma(M{}, den, P.x, one, one);
#pragma unroll
        for (int v = 0; v < OT; v++) {
            const frag x = load_turned(value_rows + j * 32 * F::VP + v * 32);
            mma(M{}, o[v][0], P.x, x.x[0], x.x[1]);
            mma(M{}, o[v][1], P.x, x.x[2], x.x[3]);
        }
    }
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = 16 * tile + g + 8 * h;
        const float sum = __shfl_sync(FULL_WARP, den[2 * h] + den[2 * h + 1], lane & ~3), floor = s.floor[r];
        by[h] = token + r >= bad ? NAN : reciprocal(sum < floor ? floor : sum);
    }
    __syncthreads(); /* all have left V: its rows take the outputs */
    const bool bf16 = a.dtype == VLA_BF16;
    uint16_t *O = s.in.V + (16 * tile + g) * F::VP + part * 64 + 2 * t;
#pragma unroll
    for (int v = 0; v < OT; v++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (narrow) o[v][0][2 * i] += o[v][1][2 * i], o[v][0][2 * i + 1] += o[v][1][2 * i + 1];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float x = o[v][h][2 * i] * by[i], y = o[v][h][2 * i + 1] * by[i];
                *(uint32_t *)(O + 8 * i * F::VP + v * 16 + 8 * h) =
                    bf16 ? pack(M{}, x, y) : pack(f16_arithmetic{}, x, y);
            }
        }
    __syncwarp();
    const int from_column = part * 64 + lane % 8 * 8, column = narrow ? from_column / 2 : from_column,
              r0 = 16 * tile + lane / 8;
    const uint16_t *from = s.in.V + r0 * F::VP + from_column;
    uint16_t *to = (uint16_t *)a.o + (head * a.T + token + r0) * a.dv + column;
    if (column < a.dv && !(narrow && lane % 2)) /* narrow: the sums are with the high parts */
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if (r0 + p * 4 >= left) break;
            if (a.dv % 8 == 0)
                *(uint4 *)(to + p * 4 * a.dv) = *(const uint4 *)(from + p * 4 * F::VP);
            else
                for (int i = 0; i < 8; i++)
                    if (column + i < a.dv) to[p * 4 * a.dv + i] = from[p * 4 * F::VP + i];
        }
    if (a.last && chunk + 1 == a.chunks && bad < a.T) { /* the end state too */
        for (int i = (int)threadIdx.x; a.S_out && i < a.dv * a.dk; i += 32 * NW) a.S_out[head * a.dv * a.dk + i] = NAN;
        for (int i = (int)threadIdx.x; a.n_out && i < a.dk; i += 32 * NW) a.n_out[head * a.dk + i] = NAN;
    }
}
} /* namespace linear_form */

#endif
