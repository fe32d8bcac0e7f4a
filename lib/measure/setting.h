/* What about this build and machine makes times untrustworthy, with a remedy. */
#ifndef VLA_MEASURE_SETTING_H
#define VLA_MEASURE_SETTING_H
#include <stdio.h>

/* A line on stream for each: a sanitizer or unoptimised build, a busy machine. */
void vla_setting_warn(FILE *stream, const char *program);

#endif
