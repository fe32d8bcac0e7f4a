#include "lib/measure/setting.h"
#include "lib/base/threads.h"
#include "lib/op/registry.h"
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

void vla_setting_warn_blas(FILE *stream, const char *program)
{
    static const char *const old[] = {"Prescott", "Core2", "Nehalem"};
    const char *core = openblas_get_corename(), *better = vla_isa_detect() == VLA_ISA_AVX512 ? "SkylakeX" : "Haswell";
    for (size_t i = 0; core && i < sizeof old / sizeof *old; i++)
        if (strcmp(core, old[i]) == 0 && vla_isa_detect() >= VLA_ISA_AVX2)
            fprintf(stream,
                    "%s: warning: OpenBLAS runs its %s kernels on a processor with %s: set OPENBLAS_CORETYPE=%s\n",
                    program, core, vla_isa_name(vla_isa_detect()), better);
}

void vla_setting_warn(FILE *stream, const char *program)
{
    double load;
#ifdef SANITIZED
    fprintf(stream, "%s: warning: this build has sanitizers: times mean nothing; build without SAN=1\n", program);
#endif
#ifndef __OPTIMIZE__
    fprintf(stream, "%s: warning: this build is not optimised; build with OPT=-O2\n", program);
#endif
    vla_setting_warn_blas(stream, program);
    if (getloadavg(&load, 1) == 1 && load > vla_cpu_count() + 0.5)
        fprintf(stream, "%s: warning: load %.1f on %d processors: close other programs or expect noise\n", program,
                load, vla_cpu_count());
}

double vla_setting_stolen(void)
{
    const double ticks = (double)sysconf(_SC_CLK_TCK);
    long long stolen = 0; /* user, nice, system, idle, iowait, irq, softirq, steal */
    FILE *file = fopen("/proc/stat", "re");
    const int read = file ? fscanf(file, "cpu %*d %*d %*d %*d %*d %*d %*d %lld", &stolen) : 0;
    if (file) fclose(file);
    return read == 1 && ticks > 0 ? (double)stolen / ticks : (double)NAN;
}
