/* The backward half of `vla-bench --pass fwdbwd`, for the CPU. */
#ifndef VLA_TRAIN_BENCH_BACKWARD_H
#define VLA_TRAIN_BENCH_BACKWARD_H
#include "lib/measure/bench.h"

extern const vla_bench_backward vla_backward_pass;

#endif
