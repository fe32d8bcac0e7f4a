/* What a run was made with and on: facts that a reader of the records needs to repeat or to distrust it. */
#include "lib/report/report.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/probe.h"
#include <cblas.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#ifndef VLA_BUILD_COMMIT
#define VLA_BUILD_COMMIT ""
#endif
#ifndef VLA_BUILD_CFLAGS
#define VLA_BUILD_CFLAGS ""
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

static void trim(char *text)
{
    size_t length = strlen(text);
    while (length && (text[length - 1] == '\n' || text[length - 1] == ' ' || text[length - 1] == '\t'))
        text[--length] = '\0';
}

/* The text after the colon of the first line that begins with key: "model name : Intel(R) ...". */
static bool field_of_file(const char *path, const char *key, char *value, size_t size)
{
    FILE *file = fopen(path, "re");
    char line[512];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon) continue;
        snprintf(value, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        trim(value);
        found = *value != '\0';
    }
    if (file) fclose(file);
    return found;
}

static void cpu_name(char *value, size_t size)
{
    if (field_of_file("/proc/cpuinfo", "model name", value, size)) return;
    struct utsname machine;
    snprintf(value, size, "%s", uname(&machine) == 0 ? machine.machine : "unknown");
}

/* Name of the first GPU the driver shows and how many there are; the driver's own files need no CUDA library. */
static bool gpu_name(char *value, size_t size)
{
    DIR *directory = opendir("/proc/driver/nvidia/gpus");
    char first[128] = "";
    int count = 0;
    for (const struct dirent *entry; directory && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        char path[512];
        snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", entry->d_name);
        if (count++ == 0) field_of_file(path, "Model", first, sizeof first);
    }
    if (directory) closedir(directory);
    if (count > 1)
        snprintf(value, size, "%d x %s", count, first);
    else
        snprintf(value, size, "%s", first);
    return count > 0 && *first;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..." -> 550.54.15 */
static bool driver_version(char *value, size_t size)
{
    char line[256];
    if (!field_of_file("/proc/driver/nvidia/version", "NVRM version", line, sizeof line)) return false;
    char *rest;
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (strspn(word, "0123456789.") != strlen(word) || !strchr(word, '.')) continue;
        snprintf(value, size, "%s", word);
        return true;
    }
    return false;
}

/* What the library says of itself, and the kernels it chose for this processor. */
static void blas_name(char *value, size_t size)
{
    const char *config = openblas_get_config();
    const char *core = openblas_get_corename();
    snprintf(value, size, "%s", config ? config : "OpenBLAS");
    trim(value);
    size_t used = strlen(value);
    if (core && !strstr(value, core)) snprintf(value + used, size - used, " %s", core);
}

static void date_now(char *value, size_t size)
{
    time_t now = time(NULL);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || strftime(value, size, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) *value = '\0';
}

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

/* The device as CUDA names it, and the CUDA runtime built in, "13.0"; false where there is none that works. Asking
 * wakes the driver, so only where there is one. */
static bool device_facts(char *gpu, size_t gpu_size, char *cuda, size_t cuda_size)
{
    vla_device_info info;
    if (vla_device_query(&info, NULL) != VLA_OK) return false;
    snprintf(gpu, gpu_size, "%s, %d multiprocessors", info.name, info.multiprocessors);
    snprintf(cuda, cuda_size, "%d.%d", info.runtime / 1000, info.runtime % 1000 / 10);
    return true;
}

vla_record *vla_meta(int threads)
{
    char cpu[256], gpu[256], driver[64], cuda[32] = "", cudnn[32] = "", cudnn_path[512] = "", blas[256], date[32];
    vla_record *meta = vla_record_create("meta");
    if (!meta) return NULL;
    cpu_name(cpu, sizeof cpu);
    blas_name(blas, sizeof blas);
    date_now(date, sizeof date);
    bool has_gpu = gpu_name(gpu, sizeof gpu);
    bool has_driver = driver_version(driver, sizeof driver);
    if (has_gpu && device_facts(gpu, sizeof gpu, cuda, sizeof cuda))
        vla_cudnn_installed(cudnn, sizeof cudnn, cudnn_path, sizeof cudnn_path);
    bool done = vla_record_string(meta, "version", vla_version()) &&
                vla_record_string(meta, "commit", or_null(VLA_BUILD_COMMIT)) &&
                vla_record_string(meta, "compiler", COMPILER) &&
                vla_record_string(meta, "cflags", or_null(VLA_BUILD_CFLAGS)) && vla_record_string(meta, "cpu", cpu) &&
                vla_record_string(meta, "gpu", has_gpu ? gpu : NULL) &&
                vla_record_string(meta, "driver", has_driver ? driver : NULL) &&
                vla_record_string(meta, "cuda", or_null(cuda)) && vla_record_string(meta, "cudnn", or_null(cudnn)) &&
                vla_record_string(meta, "cudnn_path", or_null(cudnn_path)) && vla_record_string(meta, "blas", blas) &&
                vla_record_int(meta, "threads", threads) && vla_record_string(meta, "date", date);
    if (done) return meta;
    vla_record_destroy(meta);
    return NULL;
}
