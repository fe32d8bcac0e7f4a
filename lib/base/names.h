/* Names of the public enumerations, to values. vla_op_name and its like in vla.h go the other way, and
 * vla_features_name here. */
#ifndef VLA_BASE_NAMES_H
#define VLA_BASE_NAMES_H
#include "lib/vla.h"

/* false when the name is unknown. */
bool vla_op_parse(const char *name, vla_op *op);
bool vla_form_parse(const char *name, vla_form *form);          /* also "best" */
bool vla_backend_parse(const char *name, vla_backend *backend); /* also "auto" */
bool vla_dtype_parse(const char *name, vla_dtype *dtype);
bool vla_isa_parse(const char *name, vla_isa *isa); /* also "auto" */
bool vla_features_parse(const char *name, vla_features *features);

const char *vla_features_name(vla_features features);

#endif
