/* From `sample` records to curves, and from curves to `crossover`, `fit` and `extrapolation` records. */
#ifndef VLA_MEASURE_CURVES_H
#define VLA_MEASURE_CURVES_H
#include "lib/measure/crossover.h"
#include "lib/report/record.h"

/* What two rows must share to lie in one picture. */
typedef struct vla_setting {
    char backend[8], dtype[8], mode[12], pass[8];
    char launch[8], cache[8]; /* on a device; "" elsewhere */
    int64_t B, H, dk, dv, threads;
} vla_setting;

typedef struct vla_settings {
    vla_setting *items;
    int64_t count;
} vla_settings;

/* The distinct settings of all `sample` rows, in order of appearance. */
vla_status vla_settings_of(const vla_records *rows, vla_settings *settings, vla_error *error);
void vla_settings_free(vla_settings *settings);
bool vla_setting_has(const vla_record *row, const vla_setting *setting);
bool vla_setting_decode(const vla_setting *setting);
bool vla_setting_forward(const vla_setting *setting); /* runs are forward passes alone */
/* "cpu f32 B1 H16 dk64 dv64, 2 threads", for captions. */
const char *vla_setting_text(const vla_setting *setting, char *buffer, size_t size);

/* A curve of one operator with its points; samples point into the records. Where several forms ran, each x has the
 * fastest that is ok; an x whose rows all failed or were skipped is there and not known. x ascends. */
typedef struct vla_op_curve {
    vla_curve curve;
    vla_point *points;          /* owned */
    const vla_record **records; /* the row behind each point; owned array */
} vla_op_curve;

vla_status vla_curve_of(const vla_records *rows, const vla_setting *setting, const char *op, vla_op_curve *curve,
                        vla_error *error);
void vla_curve_free(vla_op_curve *curve);
/* T in prefill, context length in decode. */
int64_t vla_record_x(const vla_record *row);

/* Finds a/b in one setting and makes its `crossover` record: with the work model's prediction, the gap, and shares of
 * peak near the crossover that explain it. NULL (and error) only without memory. found may be NULL. */
vla_record *vla_crossover_record(const vla_records *rows, const vla_setting *setting, const char *a, const char *b,
                                 uint64_t seed, vla_crossover *found, vla_error *error);
/* One line in plain words. */
void vla_crossover_sentence(const vla_record *record, char *text, size_t size);

/* `fit` records: exponent of time against x for the operator's last 0 (all), 4, 3 and 2 points; and `extrapolation`
 * records: where the power laws of a and b through those points meet. Pushed on out. */
vla_status vla_fit_records(const vla_records *rows, const vla_setting *setting, const char *op, uint64_t seed,
                           vla_records *out, vla_error *error);
vla_status vla_extrapolation_records(const vla_records *rows, const vla_setting *setting, const char *a, const char *b,
                                     uint64_t seed, vla_records *out, vla_error *error);

#endif
