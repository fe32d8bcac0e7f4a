#include "kernels/cuda/common.cuh"
#include <dlfcn.h>
#include <string.h>

static vla_status usable(int *device, vla_error *error)
{
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return vla_fail(error, VLA_ERR_DEVICE, "no CUDA device: %s",
                        code == cudaSuccess ? "the driver lists none" : cudaGetErrorString(code));
    }
    VLA_CUDA(cudaGetDevice(device));
    return VLA_OK;
}

vla_status vla_device_query(vla_device_info *info, vla_error *error)
{
    int device = 0;
    memset(info, 0, sizeof *info);
    const vla_status status = usable(&device, error);
    if (status != VLA_OK) return status;
    cudaDeviceProp properties;
    VLA_CUDA(cudaGetDeviceProperties(&properties, device));
    snprintf(info->name, sizeof info->name, "%.127s", properties.name);
    info->major = properties.major, info->minor = properties.minor;
    info->multiprocessors = properties.multiProcessorCount;
    info->memory_bytes = (int64_t)properties.totalGlobalMem;
    info->l2_bytes = properties.l2CacheSize;
    info->shared_bytes_per_block = (int64_t)properties.sharedMemPerBlockOptin;
    VLA_CUDA(cudaDriverGetVersion(&info->driver));
    VLA_CUDA(cudaRuntimeGetVersion(&info->runtime));
    if (info->major < 8)
        return vla_fail(error, VLA_ERR_DEVICE, "%s is of compute capability %d.%d: accepted are 8.0 and later",
                        info->name, info->major, info->minor);
    return VLA_OK;
}

/* The three calls used of the driver's management library, by its stable C interface (nvml.h). */
typedef struct management {
    void *library;
    int (*init)(void);
    int (*handle)(const char *pci, void **device);
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*max_clock)(void *device, int type, unsigned *mhz);
    int (*reasons)(void *device, unsigned long long *mask);
    int (*shutdown)(void);
} management;

static bool open_management(management *m)
{
    m->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!m->library) return false;
    *(void **)&m->init = dlsym(m->library, "nvmlInit_v2");
    *(void **)&m->handle = dlsym(m->library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&m->clock = dlsym(m->library, "nvmlDeviceGetClockInfo");
    *(void **)&m->max_clock = dlsym(m->library, "nvmlDeviceGetMaxClockInfo");
    *(void **)&m->reasons = dlsym(m->library, "nvmlDeviceGetCurrentClocksThrottleReasons");
    *(void **)&m->shutdown = dlsym(m->library, "nvmlShutdown");
    return m->init && m->handle && m->clock && m->max_clock && m->reasons && m->shutdown;
}

static void throttle_reason(vla_device_clocks *clocks, unsigned long long mask)
{
    static const struct {
        unsigned long long bit;
        const char *name;
    } reasons[] = {{0x4, "software power cap"},
                   {0x8, "hardware slowdown"},
                   {0x20, "software thermal slowdown"},
                   {0x40, "hardware thermal slowdown"},
                   {0x80, "hardware power brake"}};
    for (const auto &r : reasons)
        if (mask & r.bit) {
            clocks->throttled = true;
            snprintf(clocks->reason, sizeof clocks->reason, "%s", r.name);
        }
}

vla_status vla_device_clock(vla_device_clocks *clocks, vla_error *error)
{
    enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 };
    memset(clocks, 0, sizeof *clocks);
    int device = 0;
    const vla_status status = usable(&device, error);
    if (status != VLA_OK) return status;
    char pci[32];
    VLA_CUDA(cudaDeviceGetPCIBusId(pci, sizeof pci, device));
    management m = {};
    void *handle = NULL;
    unsigned sm = 0, top = 0, memory = 0;
    unsigned long long mask = 0;
    bool read = false;
    if (open_management(&m) && m.init() == 0) {
        read = m.handle(pci, &handle) == 0 && m.clock(handle, CLOCK_SM, &sm) == 0 &&
               m.max_clock(handle, CLOCK_SM, &top) == 0 && m.clock(handle, CLOCK_MEMORY, &memory) == 0;
        if (read && m.reasons(handle, &mask) == 0) throttle_reason(clocks, mask);
        m.shutdown();
    }
    if (m.library) dlclose(m.library);
    if (!read) return vla_fail(error, VLA_ERR_UNSUPPORTED, "clocks: the driver's management library does not answer");
    clocks->sm_hz = 1e6 * sm, clocks->sm_max_hz = 1e6 * top, clocks->memory_hz = 1e6 * memory;
    return VLA_OK;
}

vla_status vla_device_memory(int64_t *free_bytes, int64_t *total_bytes, vla_error *error)
{
    size_t left = 0, total = 0;
    VLA_CUDA(cudaMemGetInfo(&left, &total));
    *free_bytes = (int64_t)left;
    *total_bytes = (int64_t)total;
    return VLA_OK;
}

vla_status vla_device_alloc(void **memory, int64_t bytes, const char *what, vla_error *error)
{
    *memory = NULL;
    int64_t left = 0, total = 0;
    vla_status status = vla_device_memory(&left, &total, error);
    if (status != VLA_OK) return status;
    if (bytes < 0 || bytes > left)
        return vla_fail(error, VLA_ERR_MEMORY, "%s needs %.2f GiB of device memory, have %.2f GiB", what,
                        (double)bytes / 1073741824.0, (double)left / 1073741824.0);
    VLA_CUDA(cudaMalloc(memory, bytes > 0 ? (size_t)bytes : 1));
    return VLA_OK;
}

void vla_device_free(void *memory)
{
    if (memory) (void)cudaFree(memory);
}

vla_status vla_device_upload(void *device, const void *host, int64_t bytes, vla_error *error)
{
    /* From pageable memory the copy returns once the last bytes are staged; our streams do not wait for the default
     * one, so wait here until they have arrived. */
    VLA_CUDA(cudaMemcpy(device, host, (size_t)bytes, cudaMemcpyHostToDevice));
    VLA_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    return VLA_OK;
}

vla_status vla_device_download(void *host, const void *device, int64_t bytes, vla_error *error)
{
    VLA_CUDA(cudaMemcpy(host, device, (size_t)bytes, cudaMemcpyDeviceToHost));
    return VLA_OK;
}

vla_status vla_device_fill(void *device, int byte, int64_t bytes, void *stream, vla_error *error)
{
    VLA_CUDA(cudaMemsetAsync(device, byte, (size_t)bytes, (cudaStream_t)stream));
    return VLA_OK;
}

vla_status vla_device_copy(void *to, const void *from, int64_t bytes, void *stream, vla_error *error)
{
    VLA_CUDA(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)stream));
    return VLA_OK;
}

vla_status vla_device_stream_create(void **stream, vla_error *error)
{
    cudaStream_t created = NULL;
    *stream = NULL;
    VLA_CUDA(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
    *stream = created;
    return VLA_OK;
}

void vla_device_stream_destroy(void *stream)
{
    if (stream) (void)cudaStreamDestroy((cudaStream_t)stream);
}

vla_status vla_device_stream_wait(void *stream, vla_error *error)
{
    VLA_CUDA(cudaStreamSynchronize((cudaStream_t)stream));
    VLA_CUDA(cudaGetLastError());
    return VLA_OK;
}

vla_status vla_device_event_create(void **event, vla_error *error)
{
    cudaEvent_t created = NULL;
    *event = NULL;
    VLA_CUDA(cudaEventCreate(&created));
    *event = created;
    return VLA_OK;
}

void vla_device_event_destroy(void *event)
{
    if (event) (void)cudaEventDestroy((cudaEvent_t)event);
}

vla_status vla_device_event_record(void *event, void *stream, vla_error *error)
{
    VLA_CUDA(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream));
    return VLA_OK;
}

vla_status vla_device_event_seconds(void *from, void *to, double *seconds, vla_error *error)
{
    float milliseconds = 0;
    VLA_CUDA(cudaEventSynchronize((cudaEvent_t)to));
    VLA_CUDA(cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to));
    *seconds = 1e-3 * (double)milliseconds;
    return VLA_OK;
}

vla_status vla_device_graph_begin(void *stream, vla_error *error)
{
    VLA_CUDA(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal));
    return VLA_OK;
}

vla_status vla_device_graph_end(void *stream, void **graph, vla_error *error)
{
    cudaGraph_t captured = NULL;
    cudaGraphExec_t executable = NULL;
    *graph = NULL;
    VLA_CUDA(cudaStreamEndCapture((cudaStream_t)stream, &captured));
    const cudaError_t code = cudaGraphInstantiate(&executable, captured, 0);
    (void)cudaGraphDestroy(captured);
    VLA_CUDA(code);
    *graph = executable;
    return VLA_OK;
}

vla_status vla_device_graph_launch(void *graph, void *stream, vla_error *error)
{
    VLA_CUDA(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream));
    return VLA_OK;
}

void vla_device_graph_destroy(void *graph)
{
    if (graph) (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
