/* Running one case on the device and judging it by naive float64 on the inputs rounded to the case's dtype. */
#ifndef VLA_TEST_GPU_H
#define VLA_TEST_GPU_H
#include "lib/vla.h"

typedef struct gpu_case {
    vla_problem problem;
    vla_form form;
    vla_dtype dtype;
    bool no_u, no_b;                       /* leave the optional tensor out */
    int64_t split;                         /* > 0: stop after this token and resume from the state */
    double key_shift, key_scale, key_mean; /* k = key_scale (normal + key_mean * one common direction) + key_shift */
    double query_scale, value_scale;       /* of q and v */
    double value_steps;                    /* v of every hundred tokens times 1, value_steps, 1/value_steps in turn */
    bool zero_keys;                        /* every fifth token's key is -1000 (phi is 0) and every seventh's tiny */
    int nan_tensor;                        /* 0 none, 1 q, 2 k, 3 v, 4 u: NaN at nan_token of the middle head */
    int64_t nan_token;
    int heads;   /* heads compared; 0: all, at most 4 */
    int repeat;  /* so many runs more must give the same bits */
    bool resume; /* gpu_time: every run but the first starts from the state of the one before */
    uint64_t seed;
} gpu_case;

typedef enum gpu_verdict { GPU_PASS, GPU_FAIL, GPU_SKIP } gpu_verdict;

gpu_case gpu_case_default(vla_op op, vla_form form, vla_dtype dtype, int64_t B, int64_t H, int64_t T, int64_t d);
/* text: one line saying residuals, or why not. */
gpu_verdict gpu_run(const gpu_case *c, char *text, size_t size);
/* Offsets beyond 2^31 elements: with several heads the last one, with one the end of the sequence, against a run that
 * needs no such offsets. Inputs are made on the device; the oracle is not asked. Skipped where the memory is missing.
 */
gpu_verdict gpu_far(const gpu_case *c, char *text, size_t size);
/* Many runs, on a workspace as the last run left it or full of some byte, alone or beside copies of memory: all outputs
 * equal bit for bit, or where they are not. The oracle is not asked. */
gpu_verdict gpu_again(const gpu_case *c, int runs, char *text, size_t size);
/* Median seconds of one run: graph of `runs` launches replayed, by events. < 0 on failure, text says why. */
double gpu_time(const gpu_case *c, int runs, int replays, char *text, size_t size);

#endif
