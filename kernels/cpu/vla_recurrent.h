/* The chain of A of vla, token pairs: shared by the recurrent form and the scan. */
#ifndef VLA_CPU_VLA_RECURRENT_H
#define VLA_CPU_VLA_RECURRENT_H
#include "kernels/cpu/recurrent.h"

/* a = unit(a) given |a|^2 as far as real holds it. */
INLINE void normalise(recurrent *r, real *a, real squares)
{
    if (squares >= SQUARES_LOW && squares <= SQUARES_HIGH) {
        row_scale(a, a, r->wk, 1 / real_sqrt(squares));
        return;
    }
    row_unit_scaled(VLA_IDENTITY, a, r->dk, r->wk, 1, r->ap);
    memcpy(a, r->ap, (size_t)r->wk * sizeof(real));
}

/* With A before the pair, and every product from one sweep:
 *   w0 = A u0/sqrt(1 + u0.A u0)    a0 = A k0 - w0 (w0.k0)
 *   z1 = A u1 - w0 (w0.u1)         w1 = z1/sqrt(1 + u1.z1)     a1 = A k1 - w0 (w0.k1) - w1 (w1.k1)
 * where the scalar products with w follow from those with A u; a refresh adds eps k to the a of the last token. */
static __attribute__((unused)) void vla_chain(int tokens, recurrent *r, int64_t slot, real *a, real refresh)
{
    const int64_t wk = r->wk;
    const real *u = r->uh + slot * wk, *k = r->kh + slot * wk;
    const real *Au0 = r->ap, *Ak0 = r->ap + wk, *Au1 = r->ap + 2 * wk, *Ak1 = r->ap + 3 * wk;
    real *w = r->w, dot[8], norm[4];
    vec sum[8], squares[4] = {vset(0), vset(0), vset(0), vset(0)};
    for (int i = 0; i < 8; i++) sum[i] = vset(0);
    if (tokens == 2)
        sweep_matrix(2, 2, r, u, k);
    else
        sweep_matrix(1, 2, r, u, k);
    for (int64_t i = 0; i < wk; i += LANES) {
        const vec u0 = vload(u + i);
        sum[0] += u0 * vload(Au0 + i);
        sum[1] += u0 * vload(Ak0 + i);
        if (tokens == 2) {
            const vec u1 = vload(u + wk + i), x = vload(Au1 + i), y = vload(Ak1 + i);
            sum[2] += u0 * x;
            sum[3] += u0 * y;
            sum[4] += u1 * x;
            sum[5] += u1 * y;
        }
    }
    vsums(8, sum, dot);
    const real s0 = 1 / real_sqrt(1 + dot[0]);
    const real w0k0 = dot[1] * s0, w0u1 = dot[2] * s0, w0k1 = dot[3] * s0;
    const real s1 = 1 / real_sqrt(1 + dot[4] - w0u1 * w0u1), w1k1 = (dot[5] - w0u1 * w0k1) * s1;
    for (int64_t i = 0; i < wk; i += LANES) {
        const vec w0 = vload(Au0 + i) * s0;
        vec a0 = vload(Ak0 + i) - w0 * w0k0;
        if (tokens == 1) a0 += vload(k + i) * refresh;
        vstore(w + i, w0);
        vstore(a + i, a0);
        squares[0] += a0 * a0;
        if (tokens == 2) {
            const vec w1 = (vload(Au1 + i) - w0 * w0u1) * s1;
            const vec a1 = vload(Ak1 + i) - w0 * w0k1 - w1 * w1k1 + vload(k + wk + i) * refresh;
            vstore(w + wk + i, w1);
            vstore(a + wk + i, a1);
            squares[1] += a1 * a1;
        } else
            vstore(w + wk + i, vset(0));
    }
    if (refresh > 0)
        for (int64_t i = 0; i < r->dk; i++) r->A[i * wk + i] += refresh;
    if (!r->p->no_normalise) {
        vsums(4, squares, norm);
        for (int i = 0; i < tokens; i++) normalise(r, a + i * wk, norm[i]);
    }
}

#endif
