/* vla.h - public interface of libvla: linear-attention operators on the CPU and the GPU.
 *
 * One problem is a batch of B sequences with H heads. Tensors are row-major and contiguous:
 *   q [B,H,T,dk]  k [B,H,Tk,dk]  v [B,H,Tk,dv]  u [B,H,T,dk]  b [B,H,T]  g [B,H,T] or [B,H,T,dv]
 *   o [B,H,T,dv]  S [B,H,dv,dk]  A [B,H,dk,dk]  n [B,H,dk]  alpha [B,H,T,dk]
 * Inputs are raw projections: feature maps and normalisations are part of the operator.
 * Every function that can fail returns a vla_status and, where an error is passed, a one-line message
 * that names the argument, its value and what is accepted. Nothing here prints, exits or keeps global state.
 */
#ifndef VLA_H
#define VLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define VLA_API __attribute__((visibility("default")))
#define VLA_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define VLA_API
#define VLA_PRINTF(fmt, args)
#endif

#define VLA_VERSION "0.1.0"

typedef enum vla_status {
    VLA_OK = 0,
    VLA_ERR_ARGUMENT,    /* a value outside what is accepted */
    VLA_ERR_FILE,        /* a file that cannot be read, written or understood */
    VLA_ERR_DEVICE,      /* no such device, or the device failed */
    VLA_ERR_MEMORY,      /* the request does not fit, or an allocation failed */
    VLA_ERR_UNSUPPORTED, /* no kernel of this form, width or dtype: the message says why */
    VLA_ERR_NUMERIC      /* a factorisation or solver failed */
} vla_status;

typedef struct vla_error {
    vla_status status;
    char message[480];
} vla_error;

typedef enum vla_op { VLA_SOFTMAX, VLA_LINEAR, VLA_DELTA, VLA_DECAY, VLA_VLA, VLA_RLS, VLA_OPS } vla_op;
typedef enum vla_form {
    VLA_NAIVE,
    VLA_RECURRENT,
    VLA_STEPWISE,
    VLA_CHUNK,
    VLA_SCAN,
    VLA_FORMS,
    VLA_BEST = -1
} vla_form;
typedef enum vla_backend { VLA_CPU, VLA_CUDA, VLA_BACKENDS, VLA_AUTO = -1 } vla_backend;
/* tf32: float32 in memory, products of operands rounded to tf32, or to float16 of unit scale; on the device only. */
typedef enum vla_dtype { VLA_F64, VLA_F32, VLA_BF16, VLA_F16, VLA_TF32, VLA_DTYPES } vla_dtype;
/* Instruction set of a CPU kernel. VLA_ISA_BASE is what every processor of the architecture has (SSE2, NEON). */
typedef enum vla_isa { VLA_ISA_BASE, VLA_ISA_AVX2, VLA_ISA_AVX512, VLA_ISAS, VLA_ISA_AUTO = -1 } vla_isa;
typedef enum vla_features { VLA_ELU1, VLA_SILU, VLA_IDENTITY } vla_features;
typedef enum vla_output { VLA_RATIO, VLA_PLAIN } vla_output;
/* Shape of the decay operator's gate g: absent (g = 1), one per token [B,H,T], or one per row of S [B,H,T,dv]. */
typedef enum vla_gate { VLA_GATE_NONE, VLA_GATE_TOKEN, VLA_GATE_ROW } vla_gate;

/* Floor of a ratio's denominator n.qf. */
#define VLA_RATIO_EPS 1e-6

typedef struct vla_problem {
    vla_op op;
    int64_t B, H, T; /* batch, heads, tokens (queries); T = 0 is allowed */
    int64_t Tk;      /* softmax only: keys, at least T; the last query sees the last key. 0 means T. */
    int64_t dk, dv;  /* key and value width, at least 1 */
    vla_features features;
    bool qk_l2;             /* also qf = unit(qf) */
    vla_output output;      /* vla: divide by n.qf (ratio) or not (plain) */
    bool no_normalise;      /* vla: kh = kf and a = A kh, the unstable form */
    double lambda0;         /* vla, rls: A_0 = P_0 = I/lambda0, > 0 */
    int64_t refresh_period; /* vla: A += refresh_eps I at steps P, 2P, ... counted from the sequence start; 0 is off */
    double refresh_eps;
    vla_gate gate;    /* decay: the shape of g */
    int64_t chunk;    /* tokens per chunk, 0 = chosen */
    int64_t segments; /* segments of a scan, 0 = chosen */
} vla_problem;

/* Pointers of one run, in the plan's dtype (naive: float64). Absent inputs are NULL: u = k, beta = 1, g = 1.
 * S, A, n and *t are read as the state at the start when state_in is set, and receive the state at the end when
 * not NULL (on the device S, A and n are float32 whatever the dtype, as a state in 16 bits would not survive a split,
 * and t is a host pointer). With state_in unset the run starts from S = 0, A = I/lambda0, n = 0, t = 0. alpha (vla
 * only) is optional.
 */
typedef struct vla_tensors {
    const void *q, *k, *v, *u, *b, *g;
    void *o;
    void *S, *A, *n;
    int64_t *t;
    bool state_in;
    void *alpha;
} vla_tensors;

typedef struct vla_exec vla_exec; /* threads, instruction set and device a plan runs on */
typedef struct vla_plan vla_plan; /* one kernel bound to one problem, with its workspace */

/* A problem with every default: ELU+1, ratio output, lambda0 = 0.1, no refresh. dk = dv = d. */
VLA_API vla_problem vla_problem_default(vla_op op, int64_t B, int64_t H, int64_t T, int64_t d);

/* threads <= 0: as many as the process may use (affinity and cgroup quota). */
VLA_API vla_status vla_exec_create(vla_exec **exec, int threads, vla_isa isa, vla_error *error);
VLA_API void vla_exec_destroy(vla_exec *exec);
VLA_API int vla_exec_threads(const vla_exec *exec);
VLA_API vla_isa vla_exec_isa(const vla_exec *exec);

/* form VLA_BEST and backend VLA_AUTO choose. VLA_ERR_UNSUPPORTED carries the reason no kernel fits. */
VLA_API vla_status vla_plan_create(vla_plan **plan, vla_exec *exec, const vla_problem *problem, vla_form form,
                                   vla_backend backend, vla_dtype dtype, vla_error *error);
VLA_API vla_status vla_plan_run(vla_plan *plan, const vla_tensors *tensors, vla_error *error);
VLA_API void vla_plan_destroy(vla_plan *plan);

/* One-shot float32 run of the best CPU form on every allowed thread. */
VLA_API vla_status vla_forward_f32(const vla_problem *problem, const vla_tensors *tensors, vla_error *error);

VLA_API const char *vla_version(void);
VLA_API const char *vla_op_name(vla_op op);
VLA_API const char *vla_form_name(vla_form form);
VLA_API const char *vla_backend_name(vla_backend backend);
VLA_API const char *vla_dtype_name(vla_dtype dtype);
VLA_API const char *vla_isa_name(vla_isa isa);
VLA_API const char *vla_status_name(vla_status status);
VLA_API size_t vla_dtype_size(vla_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
