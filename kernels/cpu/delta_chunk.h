/* delta: one chunk, for a slice of the rows of S. The algebra is in delta_chunk_cpu.c. */
#ifndef VLA_CPU_DELTA_CHUNK_H
#define VLA_CPU_DELTA_CHUNK_H
#include "kernels/cpu/chunk.h"

enum { USUAL_CHUNK = 8 };

static int64_t delta_chunk_step(const vla_call *call, int64_t head, int64_t at, chunk_space *s)
{
    const int64_t kp = s->kp, vp = s->vp, cp = s->cp, dk = s->dk, n = load_keys(call, head, at, s);
    const real *key = s->rows;
    real *qs = s->ks + cp * vp;
    panel_product(s->panel, 2 * cp, 2 * cp, s->S, vp, dk, vp, s->ks, vp);
    panel_gram(key, kp, cp, s->panel, 2 * cp, dk, 2 * cp, s->gram, 2 * cp);
    subtract_rows(s->r, s->ks, cp * vp);
    solve_lower(s->r, vp, cp, vp, s->gram, 1, 2 * cp, call->tensors->b ? s->scalar : NULL);
    apply_lower(qs, vp, s->r, vp, cp, vp, s->gram + cp, 1, 2 * cp, 1);
    panel_update(s->S, vp, BLOCKS(dk), vp, key, kp, s->r, vp, cp);
    chunk_output(call, head, at, n, s, qs, NULL);
    return n;
}

#endif
