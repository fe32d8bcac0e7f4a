/* What a kernel is: one form of one operator on one backend. A kernel knows shapes and pointers only. */
#ifndef VLA_KERNEL_H
#define VLA_KERNEL_H
#include "lib/base/status.h"
#include "lib/base/threads.h"
#include "lib/vla.h"

/* What a kernel keeps between the runs of one plan (a library's handle and plans): made by the first run, ended by
 * close when the plan is destroyed. */
typedef struct vla_session {
    void *data;
    void (*close)(void *data);
    const char *label;       /* what runs, for records ("cudnn 9.14.0"), or NULL */
    int64_t chunk, segments; /* tokens a chunk, segments a head of the last run, for records; 0: not cut so */
} vla_session;

typedef struct vla_call {
    const vla_problem *problem; /* Tk filled in; chunk and segments 0 where the kernel chooses */
    const vla_tensors *tensors;
    vla_pool *pool;
    void *work;   /* workspace() bytes, 64-byte aligned, contents undefined */
    void *stream; /* CUDA stream; NULL on the CPU */
    vla_session *session;
} vla_call;

/* A kernel compiled for one element type and instruction set: what each kernel file exports, as a const object named
 * by the file's stem (and KERNEL() suffix where compiled several times). */
typedef struct vla_variant {
    /* false with a reason ("dk 300 above 256") when this problem cannot run; NULL: everything runs. */
    bool (*supports)(const vla_problem *problem, char *reason, size_t reason_size);
    /* Bytes of scratch beyond inputs, outputs and state. NULL: none. VLA_ERR_MEMORY on overflow. For state operators it
     * must not grow with T. */
    vla_status (*workspace)(const vla_problem *problem, int threads, int64_t *bytes, vla_error *error);
    vla_status (*run)(const vla_call *call, vla_error *error);
} vla_variant;

typedef struct vla_kernel {
    vla_op op;
    vla_form form;
    vla_backend backend;
    /* NULL where not built. Kernels without instruction-set variants fill VLA_ISA_BASE only. */
    const vla_variant *variants[VLA_DTYPES][VLA_ISAS];
} vla_kernel;

/* The table of a backend, ended by an entry with op == VLA_OPS. */
extern const vla_kernel vla_cpu_kernels[];

#endif
