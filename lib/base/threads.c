#include "lib/base/threads.h"
#include "lib/base/status.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A worker spins this long for new work before it sleeps: a sleep and wake-up costs tens of microseconds, which would
 * dominate short kernels run back to back. */
static const long SPIN_NS = 50000;

struct vla_pool {
    int threads;
    pthread_t *handles; /* threads - 1 of them */
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    atomic_uint generation; /* one more for every run: what sleeping workers wait for */
    atomic_bool stop;
    atomic_ullong ticket; /* number of the run above bit 40, next item below: an item of a past run cannot be taken */
    atomic_llong items, finished;
    _Atomic(vla_task) task;
    _Atomic(void *) context;
};

typedef struct worker_start {
    vla_pool *pool;
    int worker;
} worker_start;

static double quota_of(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    long long quota = 0, period = 0;
    const int read = fscanf(file, "%lld %lld", &quota, &period);
    fclose(file);
    return read == 2 && period > 0 ? (double)quota / (double)period : 0;
}

int vla_cpu_count(void)
{
    int count = 1;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
    const double quota = quota_of("/sys/fs/cgroup/cpu.max");
    if (quota > 0 && quota < count) count = quota < 1 ? 1 : (int)quota;
    return count < 1 ? 1 : count;
}

enum { ITEM_BITS = 40 };
#define ITEM_MASK ((1ULL << ITEM_BITS) - 1)

/* Takes items until none is left. What is read between the load of the ticket and its exchange belongs to the ticket's
 * run when the exchange succeeds, because a new run first moves the ticket on and only then changes the rest. So a
 * worker that wakes late finds nothing to do, and nobody has to wait for it. */
static void take_items(vla_pool *pool, int worker)
{
    for (;;) {
        unsigned long long ticket = atomic_load(&pool->ticket);
        const long long items = atomic_load(&pool->items), item = (long long)(ticket & ITEM_MASK);
        const vla_task task = atomic_load(&pool->task);
        void *context = atomic_load(&pool->context);
        if (item >= items) {
            if (atomic_load(&pool->ticket) == ticket) return;
            continue; /* another run began meanwhile */
        }
        if (!atomic_compare_exchange_strong(&pool->ticket, &ticket, ticket + 1)) continue;
        task(context, item, worker);
        if (atomic_fetch_add(&pool->finished, 1) + 1 == items) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static long elapsed_ns(const struct timespec *since)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)(now.tv_sec - since->tv_sec) * 1000000000L + (now.tv_nsec - since->tv_nsec);
}

/* true when the value changed within the spin time. */
static bool spin_until_changed(atomic_uint *value, unsigned seen)
{
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        for (int i = 0; i < 256; i++)
            if (atomic_load_explicit(value, memory_order_acquire) != seen) return true;
        sched_yield();
    } while (elapsed_ns(&start) < SPIN_NS);
    return false;
}

static void *worker_main(void *argument)
{
    const worker_start start = *(worker_start *)argument;
    free(argument);
    vla_pool *pool = start.pool;
    unsigned seen = 0;
    for (;;) {
        if (!spin_until_changed(&pool->generation, seen)) {
            pthread_mutex_lock(&pool->mutex);
            while (atomic_load(&pool->generation) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
            pthread_mutex_unlock(&pool->mutex);
        }
        seen = atomic_load(&pool->generation);
        if (atomic_load(&pool->stop)) return NULL;
        take_items(pool, start.worker);
    }
}

static void next_generation(vla_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void wait_for_items(vla_pool *pool, int64_t items)
{
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (elapsed_ns(&start) < SPIN_NS)
        for (int i = 0; i < 256; i++)
            if (atomic_load_explicit(&pool->finished, memory_order_acquire) == items) return;
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->finished) < items) pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

vla_status vla_pool_create(vla_pool **result, int threads, vla_error *error)
{
    *result = NULL;
    if (threads <= 0) threads = vla_cpu_count();
    if (threads > 4096) return vla_fail(error, VLA_ERR_ARGUMENT, "threads %d: accepted are 1 to 4096", threads);
    vla_pool *pool = calloc(1, sizeof *pool);
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    if (!pool || !handles) {
        free(pool);
        free(handles);
        return vla_fail(error, VLA_ERR_MEMORY, "thread pool: out of memory");
    }
    pool->threads = 1;
    pool->handles = handles;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int i = 1; i < threads; i++) {
        worker_start *start = malloc(sizeof *start);
        int failed = 1;
        if (start) {
            *start = (worker_start){pool, i};
            failed = pthread_create(&handles[i - 1], NULL, worker_main, start);
        }
        if (failed) {
            free(start);
            vla_pool_destroy(pool);
            return vla_fail(error, VLA_ERR_MEMORY, "threads %d: the system allows only %d", threads, i);
        }
        pool->threads++;
    }
    *result = pool;
    return VLA_OK;
}

void vla_pool_destroy(vla_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, true);
    next_generation(pool);
    for (int i = 0; i < pool->threads - 1; i++) pthread_join(pool->handles[i], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    free(pool->handles);
    free(pool);
}

int vla_pool_threads(const vla_pool *pool)
{
    return pool ? pool->threads : 1;
}

void vla_pool_run(vla_pool *pool, int64_t items, vla_task task, void *context)
{
    if (!pool || pool->threads == 1 || items <= 1) {
        for (int64_t i = 0; i < items; i++) task(context, i, 0);
        return;
    }
    const unsigned long long run = (atomic_load(&pool->ticket) >> ITEM_BITS) + 1;
    atomic_store(&pool->ticket, run << ITEM_BITS | ITEM_MASK); /* closed: no item has this number */
    atomic_store(&pool->items, items);
    atomic_store(&pool->task, task);
    atomic_store(&pool->context, context);
    atomic_store(&pool->finished, 0);
    atomic_store(&pool->ticket, run << ITEM_BITS);
    next_generation(pool);
    take_items(pool, 0);
    wait_for_items(pool, items);
}
