#include "lib/base/clock.h"
#include <time.h>

double vla_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double vla_clock_floor(void)
{
    enum { READS = 200 };
    struct timespec resolution;
    double floor = 1e-4, tick = 1e-9;
    if (clock_getres(CLOCK_MONOTONIC, &resolution) == 0)
        tick = (double)resolution.tv_sec + 1e-9 * (double)resolution.tv_nsec;
    const double start = vla_now();
    for (int i = 0; i < READS; i++) (void)vla_now();
    const double cost = (vla_now() - start) / READS;
    if (1000 * tick > floor) floor = 1000 * tick;
    if (1000 * cost > floor) floor = 1000 * cost;
    /* A stalled machine must not make the floor absurd. */
    return floor < 0.01 ? floor : 0.01;
}
