/* What about this build and machine makes times untrustworthy, with a remedy. */
#ifndef VLA_MEASURE_SETTING_H
#define VLA_MEASURE_SETTING_H
#include <stdio.h>

/* A line on stream for each: a sanitizer or unoptimised build, a busy machine. */
void vla_setting_warn(FILE *stream, const char *program);

/* The one of these that makes a program slow and not only its times: OpenBLAS takes its oldest kernels on a processor
 * that is newer than itself. */
void vla_setting_warn_blas(FILE *stream, const char *program);

/* Seconds of all processors' time that other machines of the host have taken since the start, while this one had work
 * ("steal"); NaN where the system does not say. */
double vla_setting_stolen(void);

#endif
