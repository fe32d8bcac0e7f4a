#include "lib/measure/setting.h"
#include "lib/base/threads.h"
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

void vla_setting_warn(FILE *stream, const char *program)
{
    double load;
#ifdef SANITIZED
    fprintf(stream, "%s: warning: this build has sanitizers: times mean nothing; build without SAN=1\n", program);
#endif
#ifndef __OPTIMIZE__
    fprintf(stream, "%s: warning: this build is not optimised; build with OPT=-O2\n", program);
#endif
    if (getloadavg(&load, 1) == 1 && load > vla_cpu_count() + 0.5)
        fprintf(stream, "%s: warning: load %.1f on %d processors: close other programs or expect noise\n", program,
                load, vla_cpu_count());
}
