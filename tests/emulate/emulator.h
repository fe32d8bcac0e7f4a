/* CPU emulation of what the CUDA kernels use: types, intrinsics, PTX of inline asm and the runtime's host calls. */
#ifndef VLA_EMULATE_EMULATOR_H
#define VLA_EMULATE_EMULATOR_H
#include "tests/emulate/host.h" /* each includes the one before: types, runtime, numbers, intrinsics, warp, ptx, host */
#endif
