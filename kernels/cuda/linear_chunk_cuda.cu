/* linear, chunkwise on the device's tensor cores, bf16 and f16: formulas, launches and limits in linear_prefix.cuh. */
#include "kernels/cuda/linear_prefix.cuh"

namespace linear_form
{
constexpr int64_t BUDGET = (int64_t)1 << 29; /* bytes of workspace a stretch of chunks may take, beyond one a head */

struct layout {
    int64_t heads, chunks, stride, bytes;
    int64_t S_sum, S, n, bad, bad_carry, S_carry, n_carry;
    int dk, dv; /* widths rounded up */
};

layout plan(const vla_problem *p)
{
    layout l = {};
    l.heads = p->B * p->H, l.chunks = (p->T + G - 1) / G;
    l.dk = p->dk <= 64 ? 64 : 128, l.dv = p->dv <= 64 ? 64 : 128;
    const int64_t each = l.dk * l.dv * 6 + l.dk * 4 + 8, fit = BUDGET / (each * (l.heads > 0 ? l.heads : 1));
    l.stride = l.chunks < 1 ? 1 : l.chunks < fit ? l.chunks : fit > 1 ? fit : 1;
    const int64_t stretches = l.chunks > 0 ? (l.chunks + l.stride - 1) / l.stride : 1; /* of one length, or nearly */
    l.stride = l.chunks > 0 ? (l.chunks + stretches - 1) / stretches : 1;
    int64_t at = 0;
    const auto take = [&](int64_t bytes) {
        const int64_t here = at;
        at += (bytes + 255) / 256 * 256;
        return here;
    };
    const int64_t all = l.heads * l.stride;
    l.S_sum = take(all * l.dk * l.dv * 4), l.S = take(all * l.dk * l.dv * 2), l.n = take(all * l.dk * 4);
    l.bad = take(all * 8), l.bad_carry = take(l.heads * 8);
    l.S_carry = take(l.heads * p->dk * p->dv * 4), l.n_carry = take(l.heads * p->dk * 4);
    l.bytes = at;
    return l;
}

vla_status workspace(const vla_problem *p, int, int64_t *bytes, vla_error *error)
{
    int64_t heads = 0, most = 0;
    if (!vla_size_mul(p->B, p->H, &heads) || !vla_size_mul(heads, (int64_t)1 << 20, &most))
        return vla_fail(error, VLA_ERR_MEMORY, "B*H %lld x %lld: the workspace is beyond 64-bit sizes", (long long)p->B,
                        (long long)p->H);
    *bytes = plan(p).bytes;
    return VLA_OK;
}

bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->dk > 128 || p->dv > 128)
        snprintf(reason, size, "dk %lld, dv %lld: accepted are up to 128", (long long)p->dk, (long long)p->dv);
    else if (p->chunk != 0 && p->chunk != G)
        snprintf(reason, size, "chunk %lld: the device form has chunks of %d", (long long)p->chunk, G);
    else
        return true;
    return false;
}

/* A state of no tokens. */
__global__ void fresh_state(float *S, float *n, int dk, int dv)
{
    const int64_t head = blockIdx.x;
    for (int i = (int)threadIdx.x; S && i < dv * dk; i += blockDim.x) S[head * dv * dk + i] = 0;
    for (int i = (int)threadIdx.x; n && i < dk; i += blockDim.x) n[head * dk + i] = 0;
}

template <int DK, int DV> vla_status launch_all(arguments a, const layout &l, cudaStream_t stream, vla_error *error)
{
    for (int64_t first = 0; first < l.chunks; first += l.stride) {
        a.first = first == 0, a.last = first + l.stride >= l.chunks;
        a.first_token = first * G, a.chunks = (int)(a.last ? l.chunks - first : l.stride);
        const int64_t blocks = a.heads * a.chunks, items = a.heads * prefix_items<DK, DV>();
        a.early = blocks <= 4 * (int64_t)vla_cuda_sm_count(); /* let in early, blocks end up unevenly spread */
        vla_status status = launch(sums<DK, DV>, blocks, 32 * WARPS, sizeof(rows_shared<DK, DV>), stream, a, error);
        if (status == VLA_OK) status = launch(prefix<DK, DV>, (items + 127) / 128, 128, 0, stream, a, error);
        if (status == VLA_OK)
            status = launch(outputs<DK, DV>, blocks, 32 * shape<DK, DV>::OUTPUT_WARPS, sizeof(output_shared<DK, DV>),
                            stream, a, error);
        if (status != VLA_OK) return status;
        a.S_in = a.S_out, a.n_in = a.n_out;
    }
    return VLA_OK;
}

vla_status run(const vla_call *call, vla_dtype dtype, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    const layout l = plan(p);
    cudaStream_t stream = (cudaStream_t)call->stream;
    if (l.heads == 0) return VLA_OK;
    if (l.heads * l.stride > 2147483647 || l.heads > 2147483647 / 128)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld: more than 2^31 blocks", (long long)l.heads);
    if (p->T == 0 && !t->state_in) {
        fresh_state<<<(unsigned)l.heads, 128, 0, stream>>>((float *)t->S, (float *)t->n, (int)p->dk, (int)p->dv);
        VLA_CUDA(cudaGetLastError());
    }
    if (call->session) call->session->chunk = G;
    unsigned char *work = (unsigned char *)call->work;
    arguments a = {};
    a.q = t->q, a.k = t->k, a.v = t->v, a.o = t->o;
    a.S_in = t->state_in ? (const float *)t->S : NULL, a.n_in = t->state_in ? (const float *)t->n : NULL;
    const bool carries = l.stride < l.chunks;
    a.S_out = t->S ? (float *)t->S : carries ? (float *)(work + l.S_carry) : NULL;
    a.n_out = t->n ? (float *)t->n : carries ? (float *)(work + l.n_carry) : NULL;
    a.S_sum = (float4 *)(work + l.S_sum), a.S = (uint4 *)(work + l.S), a.n = (float *)(work + l.n);
    a.bad = (int64_t *)(work + l.bad), a.bad_carry = (int64_t *)(work + l.bad_carry);
    a.T = p->T, a.heads = l.heads, a.dk = (int)p->dk, a.dv = (int)p->dv, a.dtype = dtype, a.features = p->features;
    a.qk_l2 = p->qk_l2, a.narrow = p->dk <= 32 && p->dv <= 32;
    vla_status status = VLA_OK;
    if (p->T > 0) {
        if (l.dk == 64)
            status = l.dv == 64 ? launch_all<64, 64>(a, l, stream, error) : launch_all<64, 128>(a, l, stream, error);
        else
            status = l.dv == 64 ? launch_all<128, 64>(a, l, stream, error) : launch_all<128, 128>(a, l, stream, error);
    }
    if (status == VLA_OK && t->t) *t->t = (t->state_in ? *t->t : 0) + p->T;
    return status;
}

vla_status run_bf16(const vla_call *c, vla_error *e)
{
    return run(c, VLA_BF16, e);
}
vla_status run_f16(const vla_call *c, vla_error *e)
{
    return run(c, VLA_F16, e);
}
} /* namespace linear_form */

extern "C" {
extern const vla_variant linear_chunk_cuda_bf16, linear_chunk_cuda_f16;
const vla_variant linear_chunk_cuda_bf16 = {linear_form::supports, linear_form::workspace, linear_form::run_bf16};
const vla_variant linear_chunk_cuda_f16 = {linear_form::supports, linear_form::workspace, linear_form::run_f16};
}
