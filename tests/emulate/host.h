/* Host calls of the CUDA runtime. */
#ifndef VLA_EMULATE_HOST_H
#define VLA_EMULATE_HOST_H
#include "tests/emulate/ptx.h"

typedef int cudaError_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInvalidValue = 1 };
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_exec *cudaGraphExec_t;
#define cudaStreamLegacy ((cudaStream_t)1)
enum { cudaStreamNonBlocking = 1, cudaStreamCaptureModeThreadLocal = 1 };
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor,
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor,
    cudaDevAttrReservedSharedMemoryPerBlock,
    cudaDevAttrMaxThreadsPerMultiProcessor,
    cudaDevAttrL2CacheSize,
    cudaDevAttrClockRate,
    cudaDevAttrMaxBlocksPerMultiprocessor
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaLaunchAttributeID {
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributePriority = 8
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
        int priority;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute *attrs = nullptr;
    unsigned numAttrs = 0;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    int numRegs, maxThreadsPerBlock;
};
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, l2CacheSize;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
};
cudaError_t cudaGetDevice(int *d);
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int d);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d);
cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int d);
cudaError_t cudaDriverGetVersion(int *v);
cudaError_t cudaRuntimeGetVersion(int *v);
cudaError_t cudaMemGetInfo(size_t *l, size_t *t);
cudaError_t cudaMalloc(void **p, size_t n);
template <typename T> inline cudaError_t cudaMalloc(T **p, size_t n)
{
    return cudaMalloc((void **)p, n);
}
cudaError_t cudaFree(void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind k);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *to, int b, size_t n, cudaStream_t s);
cudaError_t cudaMemset(void *to, int b, size_t n);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, int f);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e);
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s);
inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
inline const char *cudaGetErrorString(cudaError_t)
{
    return "emulated error";
}
namespace emu
{
void set_shared(const void *kernel, size_t bytes);
int occupancy(size_t shared, int threads);
} // namespace emu
template <typename K> inline cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute a, int v)
{
    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (v > 227 * 1024) return cudaErrorInvalidValue;
        emu::set_shared((const void *)kernel, (size_t)v);
    }
    return cudaSuccess;
}
template <typename K>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, K *, int threads, size_t shared)
{
    *n = emu::occupancy(shared, threads);
    return cudaSuccess;
}
template <typename... P, typename... A>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A &&...args)
{
    bool early = false;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            early = c->attrs[i].val.programmaticStreamSerializationAllowed;
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension &&
            c->attrs[i].val.clusterDim.x * c->attrs[i].val.clusterDim.y * c->attrs[i].val.clusterDim.z > 1)
            emu::die("clusters are not emulated");
    }
    std::tuple<std::decay_t<P>...> held(args...);
    emu::launch(c->gridDim, c->blockDim, c->dynamicSmemBytes, early, (const void *)kernel,
                [=] { std::apply(kernel, held); });
    return cudaSuccess;
}
namespace emu
{
/* kernel<<<..>>>(args) */
struct config {
    dim3 grid, block;
    size_t shared;
    config(dim3 g, dim3 b, size_t s = 0, cudaStream_t = nullptr) : grid(g), block(b), shared(s) {}
};
template <typename... P, typename... A> inline void launch_plain(const config &c, void (*kernel)(P...), A &&...args)
{
    std::tuple<std::decay_t<P>...> held((std::decay_t<P>)args...);
    launch(c.grid, c.block, c.shared, false, (const void *)kernel, [=] { std::apply(kernel, held); });
}
} /* namespace emu */

#endif
