/* Matrix products of a warpgroup (four warps, 64 rows) with operands in shared memory, bfloat16, float32 sums: Hopper's
 * wgmma. A result is dealt to lanes as that of mma.cuh, warp w of the group holding rows 16w to 16w+15; so is a left
 * operand in registers.
 *
 * An operand in shared memory is tiles of 64 columns: row r is 128 bytes at 128 r, its 16-byte pieces c stored at place
 * c ^ (r % 8) (the 128-byte swizzle), tiles on a boundary of 1024 bytes. Such a tile serves row by row (`plain`: its
 * rows are rows of a left operand or columns of a right one) or column by column (`turned`: its rows are what is summed
 * over). Sixteen more to sum over: +STEP_PLAIN columns, +STEP_TURNED rows, in the units of a descriptor. */
#ifndef VLA_CUDA_WGMMA_CUH
#define VLA_CUDA_WGMMA_CUH
#include "kernels/cuda/async.cuh"
#include "kernels/cuda/mma.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define VLA_WGMMA 0
#else
#define VLA_WGMMA 1
#endif

namespace wgmma
{
constexpr int PLAIN = 0, TURNED = 1;
constexpr uint64_t STEP_PLAIN = 32 / 16, STEP_TURNED = 16 * 128 / 16;

__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t piece)
{
    return row * 128 + ((piece ^ (row % 8)) << 4);
}

/* Descriptor of a tile; groups of eight rows are 1024 bytes apart. */
__device__ __forceinline__ uint64_t tile(uint32_t address)
{
    return (uint64_t)(address >> 4) | (uint64_t)64 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

#if VLA_WGMMA
__device__ __forceinline__ void begin()
{
    __syncwarp();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Writes of this thread are seen by the products of others after this and a barrier. */
__device__ __forceinline__ void written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define VLA_D4(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])

/* d = left right (+ d where `add`), both in shared memory. */
template <int LEFT, int RIGHT>
__device__ __forceinline__ void product(float (&d)[2][4], uint64_t left, uint64_t right, int add)
{
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, %11, "
        "%12; }"
        : VLA_D4(d, 0), VLA_D4(d, 1)
        : "l"(left), "l"(right), "r"(add), "n"(LEFT), "n"(RIGHT));
}
template <int LEFT, int RIGHT>
__device__ __forceinline__ void product(float (&d)[4][4], uint64_t left, uint64_t right, int add)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,"
                 "%14,%15}, %16, %17, p, 1, 1, %19, %20; }"
                 : VLA_D4(d, 0), VLA_D4(d, 1), VLA_D4(d, 2), VLA_D4(d, 3)
                 : "l"(left), "l"(right), "r"(add), "n"(LEFT), "n"(RIGHT));
}
template <int LEFT, int RIGHT>
__device__ __forceinline__ void product(float (&d)[8][4], uint64_t left, uint64_t right, int add)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,"
                 "%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, %35, "
                 "%36; }"
                 : VLA_D4(d, 0), VLA_D4(d, 1), VLA_D4(d, 2), VLA_D4(d, 3), VLA_D4(d, 4), VLA_D4(d, 5), VLA_D4(d, 6),
                   VLA_D4(d, 7)
                 : "l"(left), "l"(right), "r"(add), "n"(LEFT), "n"(RIGHT));
}
/* The left operand in registers. */
template <int RIGHT>
__device__ __forceinline__ void product(float (&d)[8][4], const frag &left, uint64_t right, int add)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,"
                 "%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, "
                 "1, 1, %38; }"
                 : VLA_D4(d, 0), VLA_D4(d, 1), VLA_D4(d, 2), VLA_D4(d, 3), VLA_D4(d, 4), VLA_D4(d, 5), VLA_D4(d, 6),
                   VLA_D4(d, 7)
                 : "r"(left.x[0]), "r"(left.x[1]), "r"(left.x[2]), "r"(left.x[3]), "l"(right), "r"(add), "n"(RIGHT));
}
#undef VLA_D4
#endif
} /* namespace wgmma */

#endif
