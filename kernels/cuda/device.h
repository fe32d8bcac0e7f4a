/* The device as the host sees it: query, memory, streams, events, graphs. Plain C, so that lib/ can call it; in a build
 * without CUDA every function is still there and says so. */
#ifndef VLA_CUDA_DEVICE_H
#define VLA_CUDA_DEVICE_H
#include "lib/vla.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vla_device_info {
    char name[128];
    int major, minor, multiprocessors;
    int64_t memory_bytes, l2_bytes, shared_bytes_per_block;
    int driver, runtime; /* as CUDA counts: 13000 is 13.0 */
} vla_device_info;

typedef struct vla_device_clocks {
    double sm_hz, sm_max_hz, memory_hz;
    bool throttled; /* a thermal or power limit holds the clock down now */
    char reason[64];
} vla_device_clocks;

/* VLA_ERR_DEVICE with the reason when there is no usable device: not built in, no driver, too old, wrong architecture.
 */
vla_status vla_device_query(vla_device_info *info, vla_error *error);
/* Current clocks by the driver's management library; VLA_ERR_UNSUPPORTED where it is not installed. */
vla_status vla_device_clock(vla_device_clocks *clocks, vla_error *error);

/* Device memory. "needs N GiB, have M GiB" before touching the allocator. free(NULL) is allowed. */
vla_status vla_device_alloc(void **memory, int64_t bytes, const char *what, vla_error *error);
void vla_device_free(void *memory);
vla_status vla_device_memory(int64_t *free_bytes, int64_t *total_bytes, vla_error *error);
vla_status vla_device_upload(void *device, const void *host, int64_t bytes, vla_error *error);
vla_status vla_device_download(void *host, const void *device, int64_t bytes, vla_error *error);
vla_status vla_device_fill(void *device, int byte, int64_t bytes, void *stream, vla_error *error);
vla_status vla_device_copy(void *to, const void *from, int64_t bytes, void *stream, vla_error *error);

vla_status vla_device_stream_create(void **stream, vla_error *error);
void vla_device_stream_destroy(void *stream);
vla_status vla_device_stream_wait(void *stream,
                                  vla_error *error); /* until everything queued is done; reports its failures */

vla_status vla_device_event_create(void **event, vla_error *error);
void vla_device_event_destroy(void *event);
vla_status vla_device_event_record(void *event, void *stream, vla_error *error);
/* Seconds between two recorded events; waits for the second. */
vla_status vla_device_event_seconds(void *from, void *to, double *seconds, vla_error *error);

/* A graph of everything launched on the stream between begin and end. */
vla_status vla_device_graph_begin(void *stream, vla_error *error);
vla_status vla_device_graph_end(void *stream, void **graph, vla_error *error);
vla_status vla_device_graph_launch(void *graph, void *stream, vla_error *error);
void vla_device_graph_destroy(void *graph);

#ifdef __cplusplus
}
#endif
#endif
