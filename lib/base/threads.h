/* A small fork-join pool. The caller is worker 0; a pool of one thread runs everything in place. */
#ifndef VLA_BASE_THREADS_H
#define VLA_BASE_THREADS_H
#include "lib/vla.h"

typedef struct vla_pool vla_pool;
typedef void (*vla_task)(void *context, int64_t item, int worker);

/* Processors this process may use: affinity mask and cgroup cpu.max, at least 1. */
int vla_cpu_count(void);

vla_status vla_pool_create(vla_pool **pool, int threads, vla_error *error);
void vla_pool_destroy(vla_pool *pool);
int vla_pool_threads(const vla_pool *pool); /* 1 for NULL */

/* Runs task(context, item, worker) for every item in [0, items), workers taking the next item as they finish, and
 * returns when all are done. Not reentrant. NULL pool: in the calling thread. */
void vla_pool_run(vla_pool *pool, int64_t items, vla_task task, void *context);

#endif
