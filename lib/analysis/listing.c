/* Readable tables of the stability records. */
#include "lib/analysis/survey.h"
#include "lib/report/report.h"
#include <string.h>

static bool any_failed(const vla_records *rows)
{
    for (int64_t i = 0; i < rows->count; i++)
        if (!strcmp(vla_record_text(rows->rows[i], "status", ""), "fail")) return true;
    return false;
}

void vla_jacobian_tables(FILE *stream, const vla_records *rows, bool verbose)
{
    static const vla_column summary[] = {{"op", "operator", NULL, false},
                                         {"source", "source", NULL, true},
                                         {"T", "T", NULL, true},
                                         {"dk", "dk", NULL, true},
                                         {"lambda0", "lambda0", "%g", true},
                                         {"refresh_period", "refresh", NULL, true},
                                         {"n", "heads x seeds", NULL, true},
                                         {"sigma_max", "max |J|", "%.6f", false},
                                         {"closed_gap", "SVD - closed", "%.1e", false},
                                         {"radius_max", "radius", "%.6f", false},
                                         {"metric_max", "M-norm", "%.6f", false},
                                         {"log10_product", "log10 |prod|", "%.3g", false},
                                         {"log10_bound_sharp", "bound", "%.3g", false},
                                         {"growth_rate", "rate/token", "%.3g", false},
                                         {"log10_sigma_min", "log10 least", "%.3g", false},
                                         {"c_min", "min c", "%.3f", false},
                                         {"state_norm", "|S_T|", "%.4g", false},
                                         {"residual_mean", "residual", "%.4g", false}};
    static const vla_column witness[] = {{"goal", "adversary", NULL, false},
                                         {"dk", "d", NULL, false},
                                         {"T", "T", NULL, false},
                                         {"quantity", "quantity", NULL, false},
                                         {"value", "reached", "%.6g", false},
                                         {"random_value", "random", "%.4g", false},
                                         {"bound_value", "bound", "%.6g", false},
                                         {"replay", "replay", NULL, false}};
    static const vla_column derivative[] = {{"op", "operator", NULL, false},   {"source", "source", NULL, true},
                                            {"form", "form", NULL, true},      {"dtype", "dtype", NULL, true},
                                            {"t", "t", NULL, false},           {"gap", "difference - J", "%.1e", false},
                                            {"status", "status", NULL, false}, {"reason", "reason", NULL, true}};
    static const vla_column verdict[] = {{"claim", "claim", NULL, false},
                                         {"part", "part", NULL, false},
                                         {"source", "source", NULL, false},
                                         {"verdict", "verdict", NULL, false},
                                         {"value", "value", "%.5g", false},
                                         {"lo", "lo", "%.4g", false},
                                         {"hi", "hi", "%.4g", false},
                                         {"worst", "worst", "%.5g", false},
                                         {"expected", "claimed", "%.4g", false},
                                         {"tolerance", "within", "%.1e", false},
                                         {"corrected", "corrected", NULL, false},
                                         {"condition", "condition", NULL, false},
                                         {"stated", "stated", NULL, false},
                                         {"replay", "replay", NULL, false}};
    vla_table_print(stream, rows, "summary", summary, sizeof summary / sizeof *summary);
    vla_table_print(stream, rows, "witness", witness, sizeof witness / sizeof *witness);
    if (verbose || any_failed(rows)) vla_table_print(stream, rows, "derivative", derivative, 8);
    vla_table_print(stream, rows, "verdict", verdict, verbose ? 14 : 13);
}
