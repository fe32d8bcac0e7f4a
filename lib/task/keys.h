/* Unit keys for recall: what an associative memory is addressed with. */
#ifndef VLA_TASK_KEYS_H
#define VLA_TASK_KEYS_H
#include "lib/base/random.h"
#include "lib/vla.h"

/* gauss: unit Gaussian rows; silu, elu1: unit of the feature map of a Gaussian row; orth: rows of a random orthonormal
 * frame (at most dk of them); input: consecutive rows of a bank of real keys, at a random place. */
typedef enum vla_key_source {
    VLA_KEYS_GAUSS,
    VLA_KEYS_SILU,
    VLA_KEYS_ELU1,
    VLA_KEYS_ORTH,
    VLA_KEYS_INPUT,
    VLA_KEY_SOURCES
} vla_key_source;

/* Real keys, already mapped and of unit length: [heads, len, width]. */
typedef struct vla_key_bank {
    double *rows;
    int64_t heads, len, width;
} vla_key_bank;

const char *vla_key_source_name(vla_key_source source);
bool vla_key_source_parse(const char *name, vla_key_source *source);

/* unit(features(raw)) of every row of raw [heads, len, width], as the operators see their keys. */
vla_status vla_key_bank_create(vla_key_bank *bank, const double *raw, int64_t heads, int64_t len, int64_t width,
                               vla_features features, vla_error *error);
void vla_key_bank_destroy(vla_key_bank *bank);

/* false with a reason when count keys of width dk do not exist ("orth has at most dk = 32 keys, 48 asked for"). */
bool vla_keys_possible(vla_key_source source, const vla_key_bank *bank, int64_t count, int64_t dk, char *reason,
                       size_t reason_size);
/* rows [count, dk]. The first keys do not depend on count, except for input, whose window does. */
vla_status vla_keys_make(double *rows, vla_key_source source, const vla_key_bank *bank, int64_t count, int64_t dk,
                         vla_rng *rng, vla_error *error);

#endif
