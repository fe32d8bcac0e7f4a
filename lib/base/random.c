#include "lib/base/random.h"
#include <math.h>

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotate(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

vla_rng vla_rng_seed(uint64_t seed, uint64_t stream)
{
    vla_rng rng = {{0}, 0, 0};
    uint64_t a = seed, b = stream ^ 0xd1b54a32d192ed03u;
    for (int i = 0; i < 4; i++) rng.s[i] = splitmix(&a) ^ rotate(splitmix(&b), 17);
    if ((rng.s[0] | rng.s[1] | rng.s[2] | rng.s[3]) == 0) rng.s[0] = 1; /* the one state xoshiro cannot leave */
    return rng;
}

uint64_t vla_rng_next(vla_rng *rng)
{
    uint64_t *s = rng->s;
    const uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double vla_rng_uniform(vla_rng *rng)
{
    return (double)(vla_rng_next(rng) >> 11) * 0x1p-53;
}

double vla_rng_normal(vla_rng *rng)
{
    if (rng->has_spare) {
        rng->has_spare = 0;
        return rng->spare;
    }
    const double radius = sqrt(-2.0 * log(1.0 - vla_rng_uniform(rng)));
    const double angle = 6.283185307179586477 * vla_rng_uniform(rng);
    rng->spare = radius * sin(angle);
    rng->has_spare = 1;
    return radius * cos(angle);
}

uint64_t vla_rng_below(vla_rng *rng, uint64_t bound)
{
    const uint64_t reject = (0 - bound) % bound; /* 2^64 mod bound: below it the remainder would be biased */
    uint64_t x = 0;
    do x = vla_rng_next(rng);
    while (x < reject);
    return x % bound;
}
