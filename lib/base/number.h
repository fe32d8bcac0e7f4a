/* Numbers as text, in the C locale whatever locale the process has set. */
#ifndef VLA_BASE_NUMBER_H
#define VLA_BASE_NUMBER_H
#include "lib/vla.h"

#define VLA_NUMBER_SIZE 32 /* bytes that hold any number's text */

typedef enum vla_number_status {
    VLA_NUMBER_OK,
    VLA_NUMBER_RUBBISH, /* not a number, or something after it */
    VLA_NUMBER_RANGE    /* a number too large or too small for the type */
} vla_number_status;

/* Shortest decimal text that reads back as the same double; always with '.', 'e' or both, so that it is not taken for
 * an integer ("2.0"). Non-finite values give "". Returns buffer, of VLA_NUMBER_SIZE bytes. */
const char *vla_number_text(double value, char *buffer);
/* value to `digits` significant digits, as printf's %g. */
const char *vla_number_short(double value, int digits, char *buffer);

/* The whole text as a decimal number: no spaces, hexadecimal, inf or nan. */
vla_number_status vla_number_parse(const char *text, double *value);
/* An optional '-' and digits at text; *end is set after them. */
vla_number_status vla_integer_parse(const char *text, const char **end, int64_t *value);
/* Takes a k or M (1024s) at *end into *value, where there is one; false when that does not fit. */
bool vla_size_suffix(const char **end, int64_t *value);

#endif
