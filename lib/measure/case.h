/* A case: everything that defines one measurement, its label and its record fields. */
#ifndef VLA_MEASURE_CASE_H
#define VLA_MEASURE_CASE_H
#include "lib/report/record.h"
#include "lib/vla.h"

typedef enum vla_mode { VLA_PREFILL, VLA_DECODE } vla_mode;

typedef struct vla_case {
    vla_problem problem; /* decode: T = 1 and, for softmax, Tk = depth */
    vla_form form;       /* never VLA_BEST: resolved when the case is made */
    bool best;           /* the form was chosen by --form best */
    vla_backend backend;
    vla_dtype dtype;
    vla_isa isa; /* asked for; VLA_ISA_AUTO when not */
    vla_mode mode;
    int64_t depth; /* decode: tokens of context, the new one included; prefill: 0 */
    int threads;
    bool graph;    /* device: runs are replays of a graph, not launched one by one */
    bool backward; /* a run is a forward and a backward pass */
    bool cold;     /* device: runs find their tensors evicted from the L2 cache */
} vla_case;

enum { VLA_LABEL_SIZE = 160 };

/* "vla/chunk/cpu/f32/B1_H4_T2048_K64_V64"; decode has "T1_L4096" for T. _C chunk, _G segments and _N threads follow
 * when they are not the default. buffer is returned. */
const char *vla_case_label(const vla_case *c, char *buffer, size_t size);
/* Reads a label back over the defaults already in *c (features, lambda0, ...). VLA_ERR_ARGUMENT names what is wrong. */
vla_status vla_case_parse(vla_case *c, const char *label, vla_error *error);

/* T of the curve: tokens in prefill, context length in decode. */
int64_t vla_case_x(const vla_case *c);
const char *vla_mode_name(vla_mode mode);
/* Puts the case's fields, its label and its key into a record; input: the digest of --input data or NULL. */
bool vla_case_record(const vla_case *c, int64_t seed, const char *input, vla_record *record);

/* A `sample` row of the case's key is among the rows; a timeout is no measurement and does not count,
 * nor does a failed check, which must go on failing until it passes. */
bool vla_case_among(const vla_case *c, int64_t seed, const char *input, const vla_records *rows);

typedef struct vla_cases {
    vla_case *items;
    int64_t count, capacity;
} vla_cases;

vla_status vla_cases_push(vla_cases *cases, const vla_case *c, vla_error *error);
/* Drops every case that says again what an earlier one says. */
vla_status vla_cases_unique(vla_cases *cases, vla_error *error);
void vla_cases_free(vla_cases *cases);

#endif
