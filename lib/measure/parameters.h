/* The parameters of an operator as fields of a record: one convention for every kind of row. */
#ifndef VLA_MEASURE_PARAMETERS_H
#define VLA_MEASURE_PARAMETERS_H
#include "lib/report/record.h"

/* features qk_norm output no_normalise lambda0 refresh_period refresh_eps gate; null where the operator has none. */
bool vla_parameters_record(const vla_problem *problem, vla_record *record);
/* chunk and segments; null where they are chosen. */
bool vla_cut_record(const vla_problem *problem, vla_record *record);

#endif
