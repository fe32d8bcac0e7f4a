#include "lib/analysis/turn.h"
#include "lib/base/sizes.h"
#include <math.h>
#include <string.h>

static const double half_pi = 1.57079632679489661923;

typedef struct turn {
    int64_t len;
    double lambda0, growth;         /* growth of m1 a token: 1/dk */
    double *path;                   /* x before each token [len, 2] */
    double *gradient, *step, *sign; /* [len] */
} turn;

typedef struct key {
    double k[2], a[2], inverse[2], norm; /* k, alpha, diagonal of A, |A k| */
} key;

static key key_at(const turn *tn, int64_t i, double phi)
{
    key e;
    e.k[0] = cos(phi);
    e.k[1] = sin(phi);
    e.inverse[0] = 1 / (tn->lambda0 + (double)(i + 1) * tn->growth);
    e.inverse[1] = 1 / tn->lambda0;
    const double y0 = e.inverse[0] * e.k[0], y1 = e.inverse[1] * e.k[1];
    e.norm = hypot(y0, y1);
    e.a[0] = y0 / e.norm;
    e.a[1] = y1 / e.norm;
    return e;
}

static double forward(turn *tn, const double *phi)
{
    double x[2] = {1, 0};
    for (int64_t i = 0; i < tn->len; i++) {
        tn->path[2 * i] = x[0];
        tn->path[2 * i + 1] = x[1];
        const key e = key_at(tn, i, phi[i]);
        const double r = e.k[0] * x[0] + e.k[1] * x[1];
        x[0] -= e.a[0] * r;
        x[1] -= e.a[1] * r;
    }
    tn->path[2 * tn->len] = x[0];
    tn->path[2 * tn->len + 1] = x[1];
    return log(fabs(x[1]));
}

/* Gradient of log |x_2| with respect to every angle, by the adjoint of forward(). */
static void backward(turn *tn, const double *phi)
{
    double l[2] = {0, 1 / tn->path[2 * tn->len + 1]};
    for (int64_t i = tn->len - 1; i >= 0; i--) {
        const key e = key_at(tn, i, phi[i]);
        const double *x = tn->path + 2 * i;
        const double r = e.k[0] * x[0] + e.k[1] * x[1], al = e.a[0] * l[0] + e.a[1] * l[1];
        const double da[2] = {-r * l[0], -r * l[1]}, along = e.a[0] * da[0] + e.a[1] * da[1];
        double dk[2];
        for (int c = 0; c < 2; c++) dk[c] = -al * x[c] + e.inverse[c] * (da[c] - e.a[c] * along) / e.norm;
        tn->gradient[i] = -dk[0] * e.k[1] + dk[1] * e.k[0];
        for (int c = 0; c < 2; c++) l[c] -= e.k[c] * al;
    }
}

/* Rprop: a step length an angle, grown while the gradient keeps its sign and halved when it flips; the best seen wins.
 */
static double refine(turn *tn, double *phi, double *best, int rounds)
{
    double top = forward(tn, phi);
    memcpy(best, phi, (size_t)tn->len * sizeof *phi);
    for (int64_t i = 0; i < tn->len; i++) {
        tn->step[i] = 0.01;
        tn->sign[i] = 0;
    }
    for (int round = 0; round < rounds; round++) {
        backward(tn, phi);
        for (int64_t i = 0; i < tn->len; i++) {
            const double sign = tn->gradient[i] > 0 ? 1 : tn->gradient[i] < 0 ? -1 : 0;
            tn->step[i] = sign * tn->sign[i] < 0 ? 0.5 * tn->step[i] : fmin(1.2 * tn->step[i], 0.2);
            tn->sign[i] = sign;
            phi[i] = fmin(half_pi, fmax(0, phi[i] + sign * tn->step[i]));
        }
        const double value = forward(tn, phi);
        if (value > top) {
            top = value;
            memcpy(best, phi, (size_t)tn->len * sizeof *phi);
        }
    }
    return top;
}

/* len - sweep tokens that only gather penalty (k on axis 2, which x does not see), then `sweep` keys that turn x by
 * equal angles in the metric of M: tan theta = sqrt(m1/m2) tan(pi/2 j/sweep), k at right angles to where x should be.
 */
static void sweep_start(const turn *tn, int64_t sweep, double *phi)
{
    const double ratio = sqrt(1 + (double)tn->len * tn->growth / tn->lambda0);
    for (int64_t i = 0; i < tn->len - sweep; i++) phi[i] = half_pi;
    for (int64_t j = 1; j <= sweep; j++)
        phi[tn->len - sweep + j - 1] =
            j == sweep ? 0.0 : half_pi - atan(ratio * tan(half_pi * (double)j / (double)sweep));
}

double vla_turn_search(int64_t len, int64_t dk, double lambda0, double *phi, vla_error *error)
{
    void *memory = NULL;
    if (len < 1 || vla_alloc(&memory, 8 * len + 8, sizeof(double), "adversary", error)) return -INFINITY;
    turn tn = {.len = len, .lambda0 = lambda0, .growth = 1 / (double)dk, .path = memory};
    tn.gradient = tn.path + 2 * len + 2;
    tn.step = tn.gradient + len;
    tn.sign = tn.step + len;
    double *trial = tn.sign + len, *best = trial + len, top = -INFINITY;
    const int rounds = len <= 2000 ? 300 : 60;
    for (int64_t sweep = 2; sweep / 2 < len; sweep *= 2) {
        sweep_start(&tn, sweep < len ? sweep : len, trial);
        const double value = refine(&tn, trial, best, rounds);
        if (!(value > top)) continue;
        top = value;
        memcpy(phi, best, (size_t)len * sizeof *phi);
    }
    vla_free(memory);
    return top;
}
