#include "lib/base/sizes.h"
#include "lib/base/status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const int64_t HUGE_PAGE = (int64_t)1 << 21;

bool vla_size_mul(int64_t a, int64_t b, int64_t *product)
{
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, product);
}

bool vla_size_product(const int64_t *factors, int n, int64_t *product)
{
    int64_t result = 1;
    bool zero = false;
    for (int i = 0; i < n; i++) {
        if (factors[i] < 0) return false;
        zero = zero || factors[i] == 0;
    }
    /* A zero factor makes the product zero even where the others alone would overflow. */
    for (int i = 0; i < n && !zero; i++)
        if (!vla_size_mul(result, factors[i], &result)) return false;
    *product = zero ? 0 : result;
    return true;
}

/* The first integer of a one-line file such as cgroup's memory.max; -1 when absent or "max". */
static int64_t read_integer(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    long long value = -1;
    if (fscanf(file, "%lld", &value) != 1) value = -1;
    fclose(file);
    return value;
}

static int64_t meminfo_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return INT64_MAX;
    char line[128];
    int64_t bytes = INT64_MAX;
    while (fgets(line, sizeof line, file)) {
        long long kib = 0;
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) {
            bytes = (int64_t)kib * 1024;
            break;
        }
    }
    fclose(file);
    return bytes;
}

int64_t vla_memory_available(void)
{
    int64_t available = meminfo_available();
    const int64_t limit = read_integer("/sys/fs/cgroup/memory.max");
    const int64_t used = read_integer("/sys/fs/cgroup/memory.current");
    if (limit >= 0 && used >= 0) {
        const int64_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    return available;
}

vla_status vla_alloc(void **memory, int64_t count, size_t size, const char *what, vla_error *error)
{
    const double gib = 1024.0 * 1024.0 * 1024.0;
    int64_t bytes = 0;
    *memory = NULL;
    if (count < 0 || size > INT64_MAX || !vla_size_mul(count, (int64_t)size, &bytes) || bytes > INT64_MAX - HUGE_PAGE)
        return vla_fail(error, VLA_ERR_MEMORY, "%s: %lld elements of %zu bytes are beyond 64-bit sizes", what,
                        (long long)count, size);
    bytes = bytes < 64 ? 64 : (bytes + 63) / 64 * 64;
    /* Small requests are left to the allocator: reading the machine's state costs more than they do. */
    if (bytes > (int64_t)1 << 24) {
        const int64_t available = vla_memory_available();
        if (bytes > available)
            return vla_fail(error, VLA_ERR_MEMORY, "%s: needs %.2f GiB, have %.2f GiB", what, (double)bytes / gib,
                            (double)available / gib);
    }
    /* Large tensors are read as streams, one row of each at a time: huge pages spare a walk of the page tables every
     * few tokens. Where the system refuses, small pages do. */
    const bool large = bytes >= HUGE_PAGE;
    *memory = aligned_alloc(large ? (size_t)HUGE_PAGE : 64,
                            (size_t)(large ? (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : bytes));
#if defined(MADV_HUGEPAGE)
    if (large && *memory) (void)madvise(*memory, (size_t)bytes, MADV_HUGEPAGE);
#endif
    if (!*memory)
        return vla_fail(error, VLA_ERR_MEMORY, "%s: the allocation of %.2f GiB failed: %s", what, (double)bytes / gib,
                        strerror(errno));
    return VLA_OK;
}

void vla_free(void *memory)
{
    free(memory);
}
