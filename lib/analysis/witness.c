#include "lib/analysis/adversary.h"
#include "lib/base/status.h"
#include "lib/tensor/npy.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static vla_status make_directory(const char *directory, vla_error *error)
{
    char path[1024];
    const size_t length = strlen(directory);
    if (length == 0 || length >= sizeof path)
        return vla_fail(error, VLA_ERR_FILE, "%.100s: not a usable directory name", directory);
    memcpy(path, directory, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        const char kept = path[i];
        path[i] = '\0';
        if (mkdir(path, 0777) && errno != EEXIST) return vla_fail(error, VLA_ERR_FILE, "%s: %s", path, strerror(errno));
        path[i] = kept;
    }
    return VLA_OK;
}

vla_status vla_witness_write(const vla_witness *w, const char *directory, vla_error *error)
{
    const struct {
        const char *name;
        const double *data;
        int64_t width;
    } file[] = {{"q", w->q, w->dk}, {"k", w->k, w->dk}, {"u", w->u, w->dk}, {"v", w->v, w->dv}};
    vla_status status = make_directory(directory, error);
    for (int i = 0; i < 4 && !status; i++) {
        char path[1200];
        snprintf(path, sizeof path, "%s/%s.npy", directory, file[i].name);
        status = vla_npy_write(path, file[i].data, VLA_F64, 2, (const int64_t[]){w->T, file[i].width}, error);
    }
    return status;
}
