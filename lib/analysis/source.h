/* Where the tokens of an analysis come from: synthetic sources of one seed, or given tensors. */
#ifndef VLA_ANALYSIS_SOURCE_H
#define VLA_ANALYSIS_SOURCE_H
#include "lib/base/random.h"
#include "lib/vla.h"

/*   paper      raw key k ~ N(0, I), u = W k with one fixed W ~ N(0, 1/dk) a head; ELU+1 features unless asked otherwise
 *   gauss      k ~ N(0, I), u ~ N(0, I) of its own; identity features: keys uniform on the sphere
 *   tied       k ~ N(0, I), u = the unit key unit(phi(k)); ELU+1
 *   isotropic  k ~ N(0, I), u = 0: A stays I/lambda0, the case the paper tested; ELU+1
 *   tensors    given arrays (an --input directory, or a witness)
 * v ~ N(mean, 1) per element (times v_scale) in the synthetic ones, gates of `decay` logits ~ N(0, 1), beta absent. */
typedef enum vla_source_kind {
    VLA_SOURCE_PAPER,
    VLA_SOURCE_GAUSS,
    VLA_SOURCE_TIED,
    VLA_SOURCE_ISOTROPIC,
    VLA_SOURCE_TENSORS,
    VLA_SOURCES
} vla_source_kind;

typedef struct vla_source {
    vla_source_kind kind;
    int64_t heads, dk, dv;  /* heads = B H */
    vla_features features;  /* of the problem: tied needs it */
    bool teacher;           /* v = V unit(phi(k)) with one fixed V ~ N(0, 1) a head: values the keys predict exactly */
    double v_mean, v_scale; /* v = v_scale (v_mean + normal); v_scale 0 means 1 */
    uint64_t seed;
    /* VLA_SOURCE_TENSORS: float64, k [heads, T, dk], v [heads, T, dv], u [heads, T, dk] or NULL, b, g [heads, T] or
     * NULL; borrowed. */
    int64_t T;
    const double *k, *v, *u, *b, *g;
} vla_source;

const char *vla_source_name(vla_source_kind kind);
bool vla_source_parse(const char *name, vla_source_kind *kind);
vla_features vla_source_features(vla_source_kind kind);

/* The stream of one head: tokens come in order and do not depend on how they are asked for. */
typedef struct vla_stream {
    const vla_source *source;
    int64_t head, t;
    vla_rng keys, values, penalties, gates;
    double *W; /* [dk, dk]: paper's projection of u */
    double *V; /* [dv, dk] and a key [dk]: the teacher */
} vla_stream;

vla_status vla_stream_create(vla_stream *stream, const vla_source *source, int64_t head, vla_error *error);
void vla_stream_destroy(vla_stream *stream);
/* The next token into k [dk], v [dv], u [dk], *b, *g. *has_b, *has_g: whether the source has them. */
void vla_stream_next(vla_stream *stream, double *k, double *v, double *u, double *b, double *g);
bool vla_source_has_b(const vla_source *source);
bool vla_source_has_g(const vla_source *source);

#endif
