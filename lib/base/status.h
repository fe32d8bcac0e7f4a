/* Errors as values: a status code and one line that names the argument, its value and what is accepted. */
#ifndef VLA_BASE_STATUS_H
#define VLA_BASE_STATUS_H
#include "lib/vla.h"

/* Fills error (NULL is allowed) and returns status, so that a failure is one return statement. */
vla_status vla_fail(vla_error *error, vla_status status, const char *format, ...) VLA_PRINTF(3, 4);

#endif
