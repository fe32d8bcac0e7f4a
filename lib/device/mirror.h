/* A run of host tensors on the device: copies of everything there, launches, and the outputs back. */
#ifndef VLA_DEVICE_MIRROR_H
#define VLA_DEVICE_MIRROR_H
#include "lib/device/worker.h"

typedef struct vla_mirror vla_mirror;

/* Of a device plan's tensors, which are host memory in dtype: inputs and, with state_in, the state are copied now;
 * outputs start as NaN. The tensors stay the caller's and must outlive the mirror. cold: as many copies of everything
 * as make three times the device's L2 cache (at most 64); runs go round among them, so that each finds its tensors
 * evicted. One copy where that is already so large. */
vla_status vla_mirror_create(vla_mirror **mirror, vla_plan *plan, const vla_problem *problem, vla_dtype dtype,
                             const vla_tensors *host, bool cold, vla_error *error);
/* The same in another process, for operators without a state: every call below is passed on. plan: of the same problem
 * here, for its facts. */
vla_status vla_mirror_create_there(vla_mirror **mirror, vla_worker *worker, vla_plan *plan, const vla_remote_job *job,
                                   const vla_tensors *host, vla_error *error);
void vla_mirror_destroy(vla_mirror *mirror);
/* After the first run: what ran, where a form has several ("cudnn 9.14.0"); otherwise "". */
const char *vla_mirror_label(const vla_mirror *mirror);
/* Device memory of all copies. */
int64_t vla_mirror_bytes(const vla_mirror *mirror);
/* The state of the creation again, for runs that update it in place. */
vla_status vla_mirror_reset(vla_mirror *mirror, vla_error *error);
/* Runs `runs` times back to back and waits. graph: as replays of a recorded graph (of 20 runs or more where they are
 * short), otherwise launch by launch. *seconds (may be NULL): for these runs, by events on the device, from before the
 * first to after the last; of short graphs begun while earlier runs keep the device busy, so that reaching it is not
 * part of the time. */
vla_status vla_mirror_run(vla_mirror *mirror, int64_t runs, bool graph, double *seconds, vla_error *error);
/* Outputs and state of the last run to the host tensors, with guard_bytes after o as well (the device's are 0xff unless
 * written). */
vla_status vla_mirror_fetch(vla_mirror *mirror, int64_t guard_bytes, vla_error *error);
/* *intact: the inputs that the last run read are as they were copied; of tensors above 128 MiB eight pieces of 16 MiB,
 * the first and the last among them. */
vla_status vla_mirror_inputs_intact(const vla_mirror *mirror, bool *intact, vla_error *error);

/* One run of host tensors by a plan of any backend. */
vla_status vla_plan_run_host(vla_plan *plan, const vla_problem *problem, vla_dtype dtype, const vla_tensors *host,
                             vla_error *error);
/* CUDA when a device is there and has the form (VLA_BEST: any) for this problem and dtype, else the CPU. */
vla_backend vla_backend_auto(const vla_problem *problem, vla_form form, vla_dtype dtype);

#endif
