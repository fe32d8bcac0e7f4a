/* The device in a build without CUDA: there is none, and every call says so. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/probe.h"
#include "lib/base/status.h"
#include <string.h>

#ifndef VLA_WITH_CUDA

static vla_status none(vla_error *error)
{
    return vla_fail(error, VLA_ERR_DEVICE, "no CUDA device: this build has no CUDA kernels (nvcc was not found)");
}

vla_status vla_device_query(vla_device_info *info, vla_error *error)
{
    memset(info, 0, sizeof *info);
    return none(error);
}
vla_status vla_device_clock(vla_device_clocks *clocks, vla_error *error)
{
    memset(clocks, 0, sizeof *clocks);
    return none(error);
}
vla_status vla_device_alloc(void **memory, int64_t bytes, const char *what, vla_error *error)
{
    (void)bytes, (void)what;
    *memory = NULL;
    return none(error);
}
void vla_device_free(void *memory)
{
    (void)memory;
}
vla_status vla_device_memory(int64_t *free_bytes, int64_t *total_bytes, vla_error *error)
{
    *free_bytes = *total_bytes = 0;
    return none(error);
}
vla_status vla_device_upload(void *device, const void *host, int64_t bytes, vla_error *error)
{
    (void)device, (void)host, (void)bytes;
    return none(error);
}
vla_status vla_device_download(void *host, const void *device, int64_t bytes, vla_error *error)
{
    (void)host, (void)device, (void)bytes;
    return none(error);
}
vla_status vla_device_fill(void *device, int byte, int64_t bytes, void *stream, vla_error *error)
{
    (void)device, (void)byte, (void)bytes, (void)stream;
    return none(error);
}
vla_status vla_device_copy(void *to, const void *from, int64_t bytes, void *stream, vla_error *error)
{
    (void)to, (void)from, (void)bytes, (void)stream;
    return none(error);
}
vla_status vla_device_stream_create(void **stream, vla_error *error)
{
    *stream = NULL;
    return none(error);
}
void vla_device_stream_destroy(void *stream)
{
    (void)stream;
}
vla_status vla_device_stream_wait(void *stream, vla_error *error)
{
    (void)stream;
    return none(error);
}
vla_status vla_device_event_create(void **event, vla_error *error)
{
    *event = NULL;
    return none(error);
}
void vla_device_event_destroy(void *event)
{
    (void)event;
}
vla_status vla_device_event_record(void *event, void *stream, vla_error *error)
{
    (void)event, (void)stream;
    return none(error);
}
vla_status vla_device_event_seconds(void *from, void *to, double *seconds, vla_error *error)
{
    (void)from, (void)to;
    *seconds = 0;
    return none(error);
}
vla_status vla_device_graph_begin(void *stream, vla_error *error)
{
    (void)stream;
    return none(error);
}
vla_status vla_device_graph_end(void *stream, void **graph, vla_error *error)
{
    (void)stream;
    *graph = NULL;
    return none(error);
}
vla_status vla_device_graph_launch(void *graph, void *stream, vla_error *error)
{
    (void)graph, (void)stream;
    return none(error);
}
void vla_device_graph_destroy(void *graph)
{
    (void)graph;
}
vla_status vla_device_profiler(bool on, vla_error *error)
{
    (void)on;
    return none(error);
}
vla_status vla_cublas_create(vla_cublas **cublas, vla_error *error)
{
    *cublas = NULL;
    return none(error);
}
void vla_cublas_destroy(vla_cublas *cublas)
{
    (void)cublas;
}
const char *vla_cublas_label(const vla_cublas *cublas)
{
    (void)cublas;
    return "";
}
vla_status vla_cublas_rate(vla_cublas *cublas, vla_arith arith, double seconds, double *flops_per_s, vla_error *error)
{
    (void)cublas, (void)arith, (void)seconds;
    *flops_per_s = 0;
    return none(error);
}
vla_status vla_device_copy_rate(double seconds, double *bytes_per_s, vla_error *error)
{
    (void)seconds;
    *bytes_per_s = 0;
    return none(error);
}
void vla_cudnn_installed(char *version, size_t version_size, char *path, size_t path_size)
{
    if (version_size) *version = 0;
    if (path_size) *path = 0;
}

#endif
