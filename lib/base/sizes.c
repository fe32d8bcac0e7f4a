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

/* The number after "name " in a file of one field a line; `absent` when there is none. */
static int64_t read_field(const char *path, const char *name, int64_t absent)
{
    FILE *file = fopen(path, "re");
    if (!file) return absent;
    char line[128];
    const size_t length = strlen(name);
    int64_t found = absent;
    while (found == absent && fgets(line, sizeof line, file)) {
        long long value = 0;
        if (strncmp(line, name, length) == 0 && sscanf(line + length, " %lld", &value) == 1) found = value;
    }
    fclose(file);
    return found;
}

static int64_t meminfo_available(void)
{
    const int64_t kib = read_field("/proc/meminfo", "MemAvailable:", INT64_MAX);
    return kib > INT64_MAX / 1024 ? INT64_MAX : kib * 1024;
}

/* What a cgroup counts as used holds files it merely keeps cached, and gives up for the asking. */
static int64_t cgroup_used(void)
{
    const int64_t current = read_integer("/sys/fs/cgroup/memory.current");
    const int64_t cached = read_field("/sys/fs/cgroup/memory.stat", "inactive_file ", 0);
    return current > cached ? current - cached : current < 0 ? current : 0;
}

int64_t vla_memory_available(void)
{
    int64_t available = meminfo_available();
    const int64_t limit = read_integer("/sys/fs/cgroup/memory.max");
    const int64_t used = cgroup_used();
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
