/* Hopper's means of overlap: barriers in shared memory that count bytes, bulk copies that complete on them, and kernels
 * that start before the one ahead of them in the stream has ended. On older devices the copies are plain asynchronous
 * ones by a whole warp, and kernels run in order. */
#ifndef VLA_CUDA_ASYNC_CUH
#define VLA_CUDA_ASYNC_CUH
#include "kernels/cuda/common.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define VLA_HOPPER 0
#else
#define VLA_HOPPER 1
#endif

/* Programmatic dependent launch: a kernel starts while the one before still runs and waits here for its results. Every
 * kernel of a run waits, so that each is after all before it. The first kernel of a run lets the next in only after its
 * own wait, so that the inputs are there for every kernel from its start on. */
__device__ __forceinline__ void grid_wait()
{
#if VLA_HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void grid_release(bool now)
{
#if VLA_HOPPER
    if (now) asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* The number of this thread's warp, known to be one for the warp: branches on it are compiled once. */
__device__ __forceinline__ int warp_number(void)
{
    return __shfl_sync(FULL_WARP, (int)threadIdx.x / 32, 0);
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Barriers in shared memory, by address. */
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(barrier) : "memory");
}

/* Until the phase of that parity is complete. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity)
{
    uint32_t done;
    do {
#if VLA_HOPPER
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

/* Barriers made by one thread are seen by the others (and by the copies) after this and a barrier of the block. */
__device__ __forceinline__ void barriers_made(void)
{
#if VLA_HOPPER
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
#endif
}

/* Flags in global memory between blocks: what was written before a release is seen after an acquire that reads it, by
 * copies too with the fence. */
__device__ __forceinline__ int load_acquire(const int *p)
{
    int x;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
__device__ __forceinline__ void add_release(int *p, int x)
{
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
__device__ __forceinline__ void fence_copies(void)
{
#if VLA_HOPPER
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
/* Loads of shared memory before this, by this thread or by those whose arrivals it has waited for, come before bulk
 * copies into the same place that follow it. A barrier in shared memory alone does not order them: loads are of the
 * generic proxy, bulk copies of the asynchronous one, and nothing waits for a load's registers before its warp arrives.
 * On an H200 copies did land before loads of warps that had arrived (docs/cuda.md). */
__device__ __forceinline__ void reads_before_copies(void)
{
#if VLA_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ uint4 load_relaxed(const void *p)
{
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p)
                 : "memory");
    return x;
}
__device__ __forceinline__ void store_relaxed(void *p, const uint4 &x)
{
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
__device__ __forceinline__ void store_relaxed(void *p, const uint2 &x)
{
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1,%2};" ::"l"(p), "r"(x.x), "r"(x.y) : "memory");
}

/* Read or written once: the cache lets go of it first. */
__device__ __forceinline__ uint64_t streamed(void)
{
    uint64_t policy = 0;
#if VLA_HOPPER
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
__device__ __forceinline__ uint4 load_streamed(const void *p, uint64_t policy)
{
    uint4 x;
#if VLA_HOPPER
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p), "l"(policy)
                 : "memory");
#else
    x = *(const uint4 *)p;
#endif
    return x;
}
__device__ __forceinline__ void store_streamed(void *p, const uint2 &x, uint64_t policy)
{
#if VLA_HOPPER
    asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1,%2}, %3;" ::"l"(p), "r"(x.x), "r"(x.y), "l"(policy)
                 : "memory");
#else
    *(uint2 *)p = x;
#endif
}
/* Asynchronous copies of 16 bytes to shared memory by a thread, and waiting for its groups of them. */
__device__ __forceinline__ void copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
/* The same by way of the first-level cache: for sectors that two copies share. */
__device__ __forceinline__ void copy_async_shared(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
/* Zeros instead, and nothing read, where not. */
__device__ __forceinline__ void copy_async_if(bool there, void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_async_shared_if(bool there, void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void copy_async_streamed(void *to, const void *from, uint64_t policy)
{
#if VLA_HOPPER
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "l"(policy)
        : "memory");
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#endif
}

/* What is at these 128 bytes is not needed any more: they need not reach memory. */
__device__ __forceinline__ void forget(const void *p)
{
#if VLA_HOPPER
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(p) : "memory");
#endif
}

/* Copies to shared memory that complete on a barrier, by the first `lanes` lanes of a warp: expect(all bytes of the
 * phase), the copies, done(). The barrier takes `arrivals` a phase. */
struct warp_copy {
    uint32_t barrier;
    int lane;
#if VLA_HOPPER
    static constexpr int lanes = 1, arrivals = 1;
#else
    static constexpr int lanes = 32, arrivals = 32;
#endif
    __device__ __forceinline__ void expect(uint32_t bytes) const
    {
#if VLA_HOPPER
        asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(bytes)
                     : "memory");
#endif
    }
    __device__ __forceinline__ void copy(uint32_t to, const void *from, uint32_t bytes) const
    {
#if VLA_HOPPER
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
            "l"(from), "r"(bytes), "r"(barrier)
            : "memory");
#else
        for (uint32_t i = 16 * (uint32_t)lane; i < bytes; i += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"((const char *)from + i)
                         : "memory");
#endif
    }
    __device__ __forceinline__ void done(void) const
    {
#if !VLA_HOPPER
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
    }
};

/* Dynamic shared memory of a block beyond the usual 48 KB, where the device has as much. */
template <typename A> static vla_status allow_shared(void (*kernel)(const A), size_t shared, vla_error *error)
{
    if (shared <= 48 * 1024) return VLA_OK;
    int device = 0, most = 0;
    VLA_CUDA(cudaGetDevice(&device));
    VLA_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (shared > (size_t)most)
        return vla_fail(error, VLA_ERR_UNSUPPORTED, "chunk needs %zu bytes of shared memory a block, the device has %d",
                        shared, most);
    VLA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    return VLA_OK;
}

/* Launches a kernel of one argument that may start before the kernel ahead of it has ended (grid_wait). */
template <typename A>
static vla_status launch(void (*kernel)(const A), int64_t blocks, dim3 threads, size_t shared, cudaStream_t stream,
                         const A &a, vla_error *error)
{
    int device = 0, major = 0;
    const vla_status status = allow_shared(kernel, shared, error);
    if (status != VLA_OK) return status;
    VLA_CUDA(cudaGetDevice(&device));
    VLA_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    cudaLaunchAttribute dependent = {};
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks), config.blockDim = threads;
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &dependent, config.numAttrs = major >= 9 ? 1 : 0;
    VLA_CUDA(cudaLaunchKernelEx(&config, kernel, a));
    return VLA_OK;
}

#endif
