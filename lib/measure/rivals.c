#include "lib/measure/rivals.h"
#include "lib/measure/statistics.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Seconds, or infinity where there is no time to compare. */
static double median_of(const vla_bench *b)
{
    vla_summary s;
    if (!vla_bench_can_time(b) || b->sampler.n == 0) return (double)INFINITY;
    return vla_summarise(b->sampler.samples, b->sampler.n, &s, NULL) == VLA_OK ? s.median : (double)INFINITY;
}

int vla_rivals_fastest(const vla_bench *benches, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (median_of(&benches[i]) < median_of(&benches[best])) best = i;
    return best;
}

void vla_rivals_note(const vla_bench *benches, int count, const char *const *names, vla_bench *bench)
{
    size_t used = 0;
    const size_t size = sizeof bench->libraries;
    for (int i = 0; i < count && used < size; i++) {
        const char *label = benches[i].mirror ? vla_mirror_label(benches[i].mirror) : "";
        const double seconds = median_of(&benches[i]);
        char time[32] = "no time";
        if (isfinite(seconds)) snprintf(time, sizeof time, "%.4g s", seconds);
        used += (size_t)snprintf(bench->libraries + used, size - used, "%s%.40s %s", i ? "; " : "",
                                 *label && isfinite(seconds) ? label : names[i], time);
    }
}

void vla_rivals_same(vla_bench *bench, const char *name)
{
    const char *label = bench->mirror ? vla_mirror_label(bench->mirror) : "";
    if (bench->status != VLA_ROW_OK || !*label || !strcmp(label, name)) return;
    bench->status = VLA_ROW_SKIP;
    snprintf(bench->reason, sizeof bench->reason, "it ran %.300s", label);
}
