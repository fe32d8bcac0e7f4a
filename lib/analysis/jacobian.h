/* The Jacobian of one state update and its closed forms.
 *
 * Every operator here updates S by S_t = g S_{t-1} + (v - S_{t-1} k) a^T, so each row s of S (as a column) goes through
 * the same affine map s -> J s + v_i a with J = dS_t/dS_{t-1} = g I - a k^T:
 *
 *   vla     g = 1, a = unit(A k), k = unit(phi(key))      delta   g = 1, a = beta k       linear  g = 1, a = 0
 *   vla --no-normalise   a = A k, k = phi(key)            decay   g = gate, a = k         rls     g = 1, a = P_t k
 *
 * Closed forms, with c = a.k and p = |a||k| (derivations: docs/propositions.md):
 *   |J|_2 = (p + sqrt(p^2 + 4 g (g - c)))/2 for dk >= 2, |g - c| for dk = 1
 *   radius = max(|g|, |g - c|) for dk >= 2, |g - c| for dk = 1 */
#ifndef VLA_ANALYSIS_JACOBIAN_H
#define VLA_ANALYSIS_JACOBIAN_H
#include "lib/vla.h"

typedef struct vla_jacobian {
    int64_t dk;
    double g;
    const double *a, *k; /* [dk] */
    double c;            /* a.k */
    double p;            /* |a| |k| */
    double s;            /* sqrt(p^2 - c^2), from the part of a at right angles to k: no cancellation */
} vla_jacobian;

/* Fills c, p and s. */
vla_jacobian vla_jacobian_of(int64_t dk, double g, const double *a, const double *k);
double vla_jacobian_norm(const vla_jacobian *j);
double vla_jacobian_radius(const vla_jacobian *j);
void vla_jacobian_dense(const vla_jacobian *j, double *matrix /* [dk, dk] */);
/* J has no usable inverse: |g - c| <= dk eps max(1, p), or g = 0. */
bool vla_jacobian_singular(const vla_jacobian *j);

/* A product of Jacobians J_t .. J_1 = exp(log_scale) P, with P kept at unit Frobenius norm, so that neither 1e-300 nor
 * 1e32 (nor 1e-100000) breaks it. inverse is J_1^-1 .. J_t^-1 kept alike, by (g I - a k^T)^-1 = (I + a k^T/(g - c))/g;
 * it stops at the first singular factor. */
typedef struct vla_product {
    int64_t dk, steps, singular_at; /* singular_at: step of the first singular factor, 0 for none */
    double log_scale, inverse_log_scale;
    double *P, *inverse, *row; /* [dk, dk], [dk, dk] or NULL, [dk] */
    bool zero;                 /* the product is exactly 0: log-norm -infinity */
} vla_product;

vla_status vla_product_create(vla_product *product, int64_t dk, bool with_inverse, vla_error *error);
void vla_product_destroy(vla_product *product);
void vla_product_reset(vla_product *product);
void vla_product_multiply(vla_product *product, const vla_jacobian *j);

/* The largest |J_t| of vla any input reaches (attained): over all k and all A of condition kappa = 1 + t/(dk lambda0),
 * c >= 2 sqrt(kappa)/(1 + kappa) (Kantorovich), so |J_t| <= (1 + sqrt(5 - 4 c_min))/2 < (1 + sqrt 5)/2. */
double vla_jacobian_norm_bound(int64_t dk, double lambda0, int64_t t);
/* Logarithm of the bound on |J_t .. J_1| over all inputs: ((dk-1)/2) log(1 + t/(dk (dk-1) lambda0)), 0 for dk = 1. */
double vla_product_log_bound(int64_t dk, double lambda0, int64_t t);
/* The expected growth rate a token of a product of projections I - k k^T, k uniform on the sphere of R^d, d >= 2:
 * E log |J x|/|x| = (digamma((d-1)/2) - digamma(d/2))/2, about -1/(2d). */
double vla_contraction_rate(int64_t d);

#endif
