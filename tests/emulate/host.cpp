/* Host calls of the emulator (host.h): memory that ends before a page that traps, one device, calls that wait. */
#include "tests/emulate/emulator.h"
#include <map>
#include <sys/mman.h>
#include <time.h>

using namespace emu;
cudaError_t cudaGetDevice(int *d)
{
    *d = 0;
    return 0;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return 0;
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int)
{
    switch (a) {
    case cudaDevAttrMultiProcessorCount:
        *v = sms();
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *v = (int)env("EMU_CC", EMU_ARCH) / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *v = 0;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *v = 227 * 1024;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *v = 228 * 1024;
        break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *v = 1024;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *v = 2048;
        break;
    case cudaDevAttrL2CacheSize:
        *v = 50 << 20;
        break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        *v = 32;
        break;
    default:
        *v = 0;
    }
    return 0;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "emulated");
    p->major = (int)env("EMU_CC", EMU_ARCH) / 10, p->multiProcessorCount = sms(), p->l2CacheSize = 50 << 20;
    p->totalGlobalMem = (size_t)8 << 30, p->sharedMemPerBlockOptin = 227 * 1024;
    return 0;
}
cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int)
{
    snprintf(s, (size_t)n, "0");
    return 0;
}
cudaError_t cudaDriverGetVersion(int *v)
{
    *v = 13000;
    return 0;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = 13000;
    return 0;
}
cudaError_t cudaMemGetInfo(size_t *l, size_t *t)
{
    *l = (size_t)6 << 30, *t = (size_t)8 << 30;
    return 0;
}
static std::map<void *, std::pair<void *, size_t>> blocks_of_memory;
cudaError_t cudaMalloc(void **p, size_t n)
{
    const size_t room = (n + 255) / 256 * 256, pages = (room + 4095) / 4096 * 4096;
    char *m = (char *)mmap(nullptr, pages + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) return cudaErrorMemoryAllocation;
    mprotect(m + 4096, pages, PROT_READ | PROT_WRITE);
    *p = m + 4096 + pages - room; /* the end lies before a page that traps */
    const int64_t fill = env("EMU_FILL", 0xff);
    if (room < ((size_t)1 << 28)) memset(*p, (int)fill, room);
    blocks_of_memory[*p] = {m, pages + 8192};
    return 0;
}
cudaError_t cudaFree(void *p)
{
    finish();
    auto i = blocks_of_memory.find(p);
    if (i == blocks_of_memory.end()) return p ? cudaErrorInvalidValue : 0;
    munmap(i->second.first, i->second.second);
    blocks_of_memory.erase(i);
    return 0;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind)
{
    finish();
    memcpy(to, from, n);
    return 0;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t)
{
    finish();
    memcpy(to, from, n);
    return 0;
}
cudaError_t cudaMemsetAsync(void *to, int b, size_t n, cudaStream_t)
{
    finish();
    memset(to, b, n);
    return 0;
}
cudaError_t cudaMemset(void *to, int b, size_t n)
{
    finish();
    memset(to, b, n);
    return 0;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = (cudaStream_t)2;
    return 0;
}
cudaError_t cudaStreamDestroy(cudaStream_t)
{
    finish();
    return 0;
}
cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    finish();
    return 0;
}
cudaError_t cudaDeviceSynchronize()
{
    finish();
    return 0;
}
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = (cudaEvent_t)malloc(sizeof(double));
    return 0;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    return 0;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t)
{
    finish();
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *(double *)e = 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
    return 0;
}
cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return 0;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    *ms = (float)(*(double *)b - *(double *)a);
    return 0;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, int)
{
    return cudaErrorInvalidValue;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *)
{
    return cudaErrorInvalidValue;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, int)
{
    return cudaErrorInvalidValue;
}
cudaError_t cudaGraphDestroy(cudaGraph_t)
{
    return 0;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t)
{
    return 0;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t)
{
    return cudaErrorInvalidValue;
}
