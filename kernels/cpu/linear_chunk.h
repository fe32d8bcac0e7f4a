/* linear: one chunk, for a slice of the rows of S. The algebra is in linear_chunk_cpu.c. */
#ifndef VLA_CPU_LINEAR_CHUNK_H
#define VLA_CPU_LINEAR_CHUNK_H
#include "kernels/cpu/chunk.h"

enum { USUAL_CHUNK = 16 };

static int64_t linear_chunk_step(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const int64_t kp = s->kp, vp = s->vp, cp = s->cp, dk = s->dk, n = load_keys(call, head, at, s);
    const real *key = s->rows;
    real *qs = s->ks + cp * vp, den[CHUNK_MAX];
    panel_product(s->panel + cp, 2 * cp, cp, s->S, vp, dk, vp, qs, vp);
    /* Only the lanes of Q are used; those of K come along where one block of tokens does not fill a vector. */
    const int64_t spare = cp % LANES ? cp : 0;
    panel_gram(key, kp, cp, s->panel + cp - spare, 2 * cp, dk, cp + spare, s->gram, 2 * cp);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + spare, 1, 2 * cp, 1);
    panel_update_carry(s->S, s->carry, vp, BLOCKS(dk), vp, key, kp, s->r, vp, cp);
    chunk_ratio(s, key, key + cp * kp, den);
    chunk_output(call, head, at, n, s, qs, den);
    return n;
}

#endif
