/* linear in float32 and tf32 on the device, chunk (one segment) and scan (parallel over segments). Formulas, launches
 * and limits: scan.cuh; of scan in tf32 linear_tf32.cuh, unless a chunk of 16 or a number of segments asks for the
 * kernels of scan.cuh. */
#include "kernels/cuda/linear_tf32.cuh"
#include "kernels/cuda/scan_host.cuh"

namespace linear_tf32
{
/* How a problem is cut, and where everything is in the workspace. */
struct layout {
    int64_t heads, segments, steps, S_sum, n, bad, bytes; /* segments a head, steps a segment */
    int d;
};

static bool by_steps(const vla_problem *p)
{
    return p->chunk != scanned::C && p->segments == 0 && p->T > 0;
}

/* As many segments as the device takes blocks at once, but not so many that adding up what is before them is the time.
 */
static layout plan(const vla_problem *p)
{
    constexpr int64_t MOST = 32;
    layout l = {};
    l.heads = p->B * p->H, l.d = p->dk <= 64 && p->dv <= 64 ? 64 : 128;
    const int64_t blocks = l.d == 64 ? shape<64>::BLOCKS : shape<128>::BLOCKS, all = (p->T + C - 1) / C,
                  fit = vla_cuda_sm_count() * blocks / (l.heads > 0 ? l.heads : 1),
                  wanted = fit < 1      ? 1
                           : fit < MOST ? fit
                                        : MOST;
    l.steps = (all + wanted - 1) / wanted;
    l.segments = l.steps > 0 ? (all + l.steps - 1) / l.steps : 1;
    const int64_t each = l.heads * l.segments;
    const auto rounded_up = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    l.n = rounded_up(each * l.d * l.d * 4), l.bad = l.n + rounded_up(each * l.d * 4);
    l.bytes = l.bad + each * 8;
    return l;
}

static bool supports(const vla_problem *p, char *reason, size_t size)
{
    if (p->chunk != C || p->segments > 0) return scanned::supports<VLA_LINEAR>(p, reason, size);
    vla_problem chosen = *p;
    chosen.chunk = 0;
    return scanned::supports<VLA_LINEAR>(&chosen, reason, size);
}

static vla_status workspace(const vla_problem *p, int threads, int64_t *bytes, vla_error *error)
{
    const vla_status status = scanned::workspace<VLA_LINEAR, true>(p, threads, bytes, error);
    if (status == VLA_OK && by_steps(p)) *bytes = plan(p).bytes;
    return status;
}

template <int D> vla_status launch_width(const arguments &a, cudaStream_t stream, vla_error *error)
{
    if (a.segments > 1) {
        const vla_status status =
            launch(sums<D>, a.heads * (a.segments - 1), shape<D>::NT, sizeof(rows_shared<D>), stream, a, error);
        if (status != VLA_OK) return status;
    }
    return launch(walk<D>, a.heads * a.segments, shape<D>::NT, sizeof(walk_shared<D>), stream, a, error);
}

static vla_status run(const vla_call *call, vla_error *error)
{
    const vla_problem *p = call->problem;
    const vla_tensors *t = call->tensors;
    if (!by_steps(p)) return scanned::run<VLA_LINEAR, 1, true>(call, error);
    const layout l = plan(p);
    if (l.heads == 0) return VLA_OK;
    if (l.heads * l.segments > 2147483647)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "B*H %lld: more than 2^31 blocks", (long long)l.heads);
    if (call->session) call->session->chunk = C, call->session->segments = l.segments;
    unsigned char *work = (unsigned char *)call->work;
    arguments a = {};
    a.q = (const float *)t->q, a.k = (const float *)t->k, a.v = (const float *)t->v, a.o = (float *)t->o;
    a.S_in = t->state_in ? (const float *)t->S : NULL, a.n_in = t->state_in ? (const float *)t->n : NULL;
    a.S_out = (float *)t->S, a.n_out = (float *)t->n;
    a.S_sum = (float4 *)(work + l.S_sum), a.n = (float *)(work + l.n), a.bad = (int64_t *)(work + l.bad);
    a.T = p->T, a.heads = l.heads, a.segments = l.segments, a.steps = l.steps;
    a.dk = (int)p->dk, a.dv = (int)p->dv, a.features = p->features, a.qk_l2 = p->qk_l2;
    cudaStream_t stream = (cudaStream_t)call->stream;
    const vla_status status = l.d == 64 ? launch_width<64>(a, stream, error) : launch_width<128>(a, stream, error);
    if (status == VLA_OK && t->t) *t->t = (t->state_in ? *t->t : 0) + p->T;
    return status;
}
} /* namespace linear_tf32 */

VLA_SCAN_VARIANT(linear_chunk_cuda_f32, VLA_LINEAR, 3, false)
VLA_SCAN_VARIANT(linear_chunk_cuda_tf32, VLA_LINEAR, 1, false)
VLA_SCAN_VARIANT(linear_scan_cuda_f32, VLA_LINEAR, 3, true)
extern "C" {
extern const vla_variant linear_scan_cuda_tf32;
const vla_variant linear_scan_cuda_tf32 = {linear_tf32::supports, linear_tf32::workspace, linear_tf32::run};
}
