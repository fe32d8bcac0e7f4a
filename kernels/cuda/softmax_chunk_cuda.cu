/* softmax on the device: cuDNN's fused attention for bf16 and f16 (softmax_cudnn_cuda.c), and where that is missing or
 * refuses the shape, and for float32, the tiled kernel below; the plan's label says which one ran.
 *
 * q [B,H,T,dk], k [B,H,Tk,dk], v [B,H,Tk,dv], o [B,H,T,dv]: o_i = sum_j softmax_j(q_i.k_j/sqrt dk) v_j, j <= Tk - T +
 * i. Tiled: a block takes ROWS queries of a head and walks the keys in tiles of KEYS with running maximum and sum
 * (Milakov and Gimelshein 2018), everything in float32 on the ordinary units: exact, and several times slower than
 * tensor cores. Keys a query may not see are selected away, so that their NaN cannot reach it; cuDNN multiplies them by
 * zero instead. Not supported: dk or dv above 256. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/softmax_cudnn.h"

namespace
{
constexpr int ROWS = 64, KEYS = 32, SIDE = 16, THREADS = SIDE * SIDE, ROWS_EACH = ROWS / SIDE, KEYS_EACH = KEYS / SIDE;

struct arguments {
    const void *q, *k, *v;
    void *o;
    int64_t T, Tk, tiles;
    int dk, dv;
    float scale;
    vla_dtype dtype;
};

__host__ __device__ constexpr int pitch(int width)
{
    return width | 1;
} /* odd: rows start in different banks */

size_t shared_bytes(int dk, int dv)
{
    return sizeof(float) * (size_t)(ROWS * pitch(dk) + KEYS * pitch(dk) + KEYS * pitch(dv) + ROWS * pitch(KEYS));
}

__device__ void load_tile(float *to, const void *from, vla_dtype dtype, int64_t first, int64_t end, int rows, int width)
{
    for (int i = (int)threadIdx.x; i < rows * width; i += THREADS) {
        const int r = i / width, c = i % width;
        to[r * pitch(width) + c] = first + r < end ? load_element(from, dtype, (first + r) * width + c) : 0.0f;
    }
}

/* Sum over the 16 lanes that share a row. */
__device__ __forceinline__ float row_sum(float x)
{
#pragma unroll
    for (int offset = SIDE / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(FULL_WARP, x, offset);
    return x;
}

__device__ __forceinline__ float row_max(float x)
{
#pragma unroll
    for (int offset = SIDE / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, x, offset);
        x = other <= x ? x : other; /* a NaN in either wins */
        if (x == x && other != other) x = other;
    }
    return x;
}

template <int COLUMNS> /* of o, for each thread */
__global__ void __launch_bounds__(THREADS) tiled(const __grid_constant__ arguments a)
{
    extern __shared__ float shared[];
    float *q = shared, *k = q + ROWS * pitch(a.dk), *v = k + KEYS * pitch(a.dk), *p = v + KEYS * pitch(a.dv);
    const int64_t head = blockIdx.x / a.tiles, first = (int64_t)(blockIdx.x % a.tiles) * ROWS;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
    const int64_t offset = a.Tk - a.T, qbase = head * a.T, kbase = head * a.Tk;
    float top[ROWS_EACH], sum[ROWS_EACH], o[ROWS_EACH][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; r++) {
        top[r] = -INFINITY, sum[r] = 0;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) o[r][c] = 0;
    }
    load_tile(q, a.q, a.dtype, qbase + first, qbase + a.T, ROWS, a.dk);
    const int64_t last_row = first + ROWS - 1 < a.T - 1 ? first + ROWS - 1 : a.T - 1;
    const int64_t keys = last_row + offset + 1;
    for (int64_t start = 0; start < keys; start += KEYS) {
        __syncthreads();
        load_tile(k, a.k, a.dtype, kbase + start, kbase + a.Tk, KEYS, a.dk);
        load_tile(v, a.v, a.dtype, kbase + start, kbase + a.Tk, KEYS, a.dv);
        __syncthreads();
        float s[ROWS_EACH][KEYS_EACH] = {};
        for (int i = 0; i < a.dk; i++) {
            float kk[KEYS_EACH];
#pragma unroll
            for (int j = 0; j < KEYS_EACH; j++) kk[j] = k[(tx + SIDE * j) * pitch(a.dk) + i];
#pragma unroll
            for (int r = 0; r < ROWS_EACH; r++) {
                const float qq = q[(ty * ROWS_EACH + r) * pitch(a.dk) + i];
#pragma unroll
                for (int j = 0; j < KEYS_EACH; j++) s[r][j] = fmaf(qq, kk[j], s[r][j]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS_EACH; r++) {
            const int64_t last = first + ty * ROWS_EACH + r + offset - start; /* last visible key of this tile */
            float largest = -INFINITY;
#pragma unroll
            for (int j = 0; j < KEYS_EACH; j++) {
                s[r][j] = tx + SIDE * j <= last ? s[r][j] * a.scale : -INFINITY;
                largest = s[r][j] <= largest ? largest : s[r][j];
            }
            largest = row_max(largest);
            const float next = largest <= top[r] ? top[r] : largest;
            const float keep = next == -INFINITY ? 1.0f : expf(top[r] - next);
            float part = 0;
#pragma unroll
            for (int j = 0; j < KEYS_EACH; j++) {
                const float weight = s[r][j] == -INFINITY ? 0.0f : expf(s[r][j] - next);
                p[(ty * ROWS_EACH + r) * pitch(KEYS) + tx + SIDE * j] = weight;
                part += weight;
            }
            sum[r] = sum[r] * keep + row_sum(part);
            top[r] = next;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) o[r][c] *= keep;
        }
        __syncwarp();
        const bool whole = first + offset >= start + KEYS - 1;
        for (int i = 0; i < KEYS; i++) {
            float vv[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) vv[c] = tx + SIDE * c < a.dv ? v[i * pitch(a.dv) + tx + SIDE * c] : 0.0f;
#pragma unroll
            for (int r = 0; r < ROWS_EACH; r++) {
                const float weight = p[(ty * ROWS_EACH + r) * pitch(KEYS) + i];
                if (whole || start + i <= first + ty * ROWS_EACH + r + offset)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) o[r][c] = fmaf(weight, vv[c], o[r][c]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS_EACH; r++) {
        const int64_t row = first + ty * ROWS_EACH + r;
        if (row < a.T)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (tx + SIDE * c < a.dv)
                    store_element(a.o, a.dtype, (qbase + row) * a.dv + tx + SIDE * c, o[r][c] / sum[r]);
    }
}

template <int COLUMNS>
vla_status launch_tiled(const arguments &a, int64_t blocks, cudaStream_t stream, vla_error *error)
{
    const size_t bytes = shared_bytes(a.dk, a.dv);
    VLA_CUDA(cudaFuncSetAttribute(tiled<COLUMNS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    tiled<COLUMNS><<<(unsigned)blocks, THREADS, bytes, stream>>>(a);
    VLA_CUDA(cudaGetLastError());
    return VLA_OK;
}

vla_status run_tiled(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const int64_t tiles = (p->T + ROWS - 1) / ROWS, heads = p->B * p->H;
    if (heads > 0 && tiles > 2147483647 / heads)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld x T %lld: more than 2^31 blocks", (long long)heads,
                        (long long)p->T);
    const arguments a = {
        t->q, t->k, t->v, t->o, p->T, p->Tk, tiles, (int)p->dk, (int)p->dv, (float)(1.0 / sqrt((double)p->dk)), dtype};
    cudaStream_t stream = (cudaStream_t)call->stream;
    if (p->dv <= 64) return launch_tiled<4>(a, heads * tiles, stream, error);
    if (p->dv <= 128) return launch_tiled<8>(a, heads * tiles, stream, error);
    return launch_tiled<16>(a, heads * tiles, stream, error);
}

bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->dk <= 256 && p->dv <= 256) return true;
    snprintf(reason, size, "dk %lld, dv %lld: accepted are up to 256", (long long)p->dk, (long long)p->dv);
    return false;
}

/* What a plan keeps: cuDNN's plan, or the reason there is none. */
struct softmax_session {
    vla_cudnn *cudnn;
    char label[120];
};

void close_session(void *data)
{
    softmax_session *s = (softmax_session *)data;
    vla_cudnn_destroy(s->cudnn);
    free(s);
}

vla_status open_session(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    softmax_session *s = (softmax_session *)calloc(1, sizeof *s);
    if (!s) return vla_fail(error, VLA_ERR_MEMORY, "softmax: out of memory");
    vla_error why = {};
    if (dtype == VLA_F32)
        snprintf(s->label, sizeof s->label, "tiled float32");
    else if (vla_cudnn_create(&s->cudnn, call->problem, dtype, &why) == VLA_OK)
        snprintf(s->label, sizeof s->label, "%s", vla_cudnn_label(s->cudnn));
    else
        snprintf(s->label, sizeof s->label, "tiled, weaker than cuDNN: %.80s", why.message);
    call->session->data = s, call->session->close = close_session, call->session->label = s->label;
    return VLA_OK;
}

vla_status run(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    if (call->problem->T == 0 || call->problem->B * call->problem->H == 0) return VLA_OK;
    if (call->session && !call->session->data) {
        const vla_status status = open_session(call, dtype, error);
        if (status != VLA_OK) return status;
    }
    const softmax_session *s = call->session ? (const softmax_session *)call->session->data : NULL;
    if (s && s->cudnn) return vla_cudnn_run(s->cudnn, call->tensors, call->stream, error);
    return run_tiled(call, dtype, error);
}

vla_status run_f32(const vla_call *call, vla_error *error)
{
    return run(call, VLA_F32, error);
}
vla_status run_bf16(const vla_call *call, vla_error *error)
{
    return run(call, VLA_BF16, error);
}
vla_status run_f16(const vla_call *call, vla_error *error)
{
    return run(call, VLA_F16, error);
}
} /* namespace */

extern "C" {
extern const vla_variant softmax_chunk_cuda_f32, softmax_chunk_cuda_bf16, softmax_chunk_cuda_f16;
const vla_variant softmax_chunk_cuda_f32 = {supports, NULL, run_f32};
const vla_variant softmax_chunk_cuda_bf16 = {supports, NULL, run_bf16};
const vla_variant softmax_chunk_cuda_f16 = {supports, NULL, run_f16};
}
