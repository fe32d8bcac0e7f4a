#include "lib/analysis/adversary.h"
#include "lib/base/file.h"
#include "lib/tensor/npy.h"
#include <stdio.h>

vla_status vla_witness_write(const vla_witness *w, const char *directory, vla_error *error)
{
    const struct {
        const char *name;
        const double *data;
        int64_t width;
    } file[] = {{"q", w->q, w->dk}, {"k", w->k, w->dk}, {"u", w->u, w->dk}, {"v", w->v, w->dv}};
    vla_status status = vla_directory_make_path(directory, error);
    for (int i = 0; i < 4 && !status; i++) {
        char path[1200];
        snprintf(path, sizeof path, "%s/%s.npy", directory, file[i].name);
        status = vla_npy_write(path, file[i].data, VLA_F64, 2, (const int64_t[]){w->T, file[i].width}, error);
    }
    return status;
}
