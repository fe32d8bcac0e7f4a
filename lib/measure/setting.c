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

/* The instruction set that a core's kernels are written for, of those that an OpenBLAS falls back to where it does not
 * know a newer processor. */
static vla_isa kernels_of(const char *core)
{
    static const struct {
        const char *core;
        vla_isa isa;
    } known[] = {{"Prescott", VLA_ISA_BASE},
                 {"Core2", VLA_ISA_BASE},
                 {"Nehalem", VLA_ISA_BASE},
                 {"Haswell", VLA_ISA_AVX2},
                 {"Zen", VLA_ISA_AVX2}};
    for (size_t i = 0; core && i < sizeof known / sizeof *known; i++)
        if (strcmp(core, known[i].core) == 0) return known[i].isa;
    return VLA_ISA_AVX512; /* nothing to say of it */
}

void vla_setting_warn_blas(FILE *stream, const char *program)
{
    const vla_isa here = vla_isa_detect();
    const char *core = openblas_get_corename();
    if (here >= VLA_ISA_AVX2 && kernels_of(core) < here)
        fprintf(stream, "%s: warning: OpenBLAS runs its %s kernels on a processor with %s: set OPENBLAS_CORETYPE=%s\n",
                program, core, vla_isa_name(here), here == VLA_ISA_AVX512 ? "SkylakeX" : "Haswell");
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
