/* xoshiro256** (Blackman and Vigna 2018) seeded by splitmix64: the same stream on every machine. */
#ifndef VLA_BASE_RANDOM_H
#define VLA_BASE_RANDOM_H
#include <stdint.h>

typedef struct vla_rng {
    uint64_t s[4];
    double spare; /* second normal of a Box-Muller pair */
    int has_spare;
} vla_rng;

/* Streams of one seed are independent: give each tensor, head or trial its own. */
vla_rng vla_rng_seed(uint64_t seed, uint64_t stream);
uint64_t vla_rng_next(vla_rng *rng);
double vla_rng_uniform(vla_rng *rng);                 /* [0, 1), 53 bits */
double vla_rng_normal(vla_rng *rng);                  /* standard normal */
uint64_t vla_rng_below(vla_rng *rng, uint64_t bound); /* [0, bound), unbiased; bound >= 1 */

#endif
