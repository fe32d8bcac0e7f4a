#include "lib/task/sink.h"
#include <inttypes.h>
#include <stdio.h>

void vla_case_key(const char *text, char key[17])
{
    uint64_t hash = 1469598103934665603u;
    for (const char *p = text; *p; p++) hash = (hash ^ (uint64_t)(unsigned char)*p) * 1099511628211u;
    snprintf(key, 17, "%016" PRIx64, hash);
}
