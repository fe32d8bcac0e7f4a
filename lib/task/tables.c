#include "lib/task/tables.h"
#include "lib/report/report.h"

#define PRINT(stream, records, kind, columns) \
    vla_table_print(stream, records, kind, columns, (int)(sizeof(columns) / sizeof *(columns)))

void vla_recall_tables(FILE *stream, const vla_records *records, bool every)
{
    static const vla_column points[] = {{"d", "d", NULL, true},
                                        {"keys", "keys", NULL, true},
                                        {"op", "operator", NULL, false},
                                        {"setting", "setting", NULL, false},
                                        {"dk", "dk", NULL, true},
                                        {"distractors", "distractors", NULL, true},
                                        {"n", "n", NULL, false},
                                        {"accuracy", "accuracy", "%.3f", false},
                                        {"accuracy_lo", "95 % lo", "%.3f", false},
                                        {"accuracy_hi", "hi", "%.3f", false},
                                        {"accuracy_inner", "inner", "%.3f", false},
                                        {"relative_error", "error", "%.3f", false},
                                        {"norm", "|S|", "%.3g", false},
                                        {"age_q1", "oldest", "%.2f", false},
                                        {"age_q2", "2nd", "%.2f", false},
                                        {"age_q3", "3rd", "%.2f", false},
                                        {"age_q4", "newest", "%.2f", false},
                                        {"state_bytes", "state", "bytes", false},
                                        {"reason", "reason", NULL, true}};
    static const vla_column capacity[] = {{"op", "operator", NULL, false}, {"setting", "setting", NULL, false},
                                          {"keys", "keys", NULL, true},    {"d", "d", NULL, false},
                                          {"dk", "dk", NULL, true},        {"distractors", "distractors", NULL, true},
                                          {"n95", "n95", NULL, false},     {"n95_lo", "lo", NULL, false},
                                          {"n95_hi", "hi", NULL, false},   {"censored", "at least", NULL, false}};
    static const vla_column fits[] = {{"case", "n95 = c d^p", NULL, false},   {"coefficient", "c", "%.3f", false},
                                      {"exponent", "p", "%.2f", false},       {"exponent_lo", "lo", "%.2f", false},
                                      {"exponent_hi", "hi", "%.2f", false},   {"points", "points", NULL, true},
                                      {"censored", "lower bound", NULL, true}};
    if (every) PRINT(stream, records, "recall", points);
    PRINT(stream, records, "capacity", capacity);
    PRINT(stream, records, "fit", fits);
}

void vla_trained_tables(FILE *stream, const vla_records *records)
{
    static const vla_column runs[] = {{"case", "case", NULL, false},
                                      {"status", "status", NULL, true},
                                      {"parameters", "parameters", NULL, false},
                                      {"steps", "steps", NULL, false},
                                      {"lr", "rate", "%.2g", true},
                                      {"loss", "loss", "%.4f", false},
                                      {"validation", "validation", "%.4f", true},
                                      {"accuracy", "accuracy", "%.4f", false},
                                      {"accuracy_lo", "95 % lo", "%.4f", false},
                                      {"accuracy_hi", "hi", "%.4f", false},
                                      {"train_s", "time", "time", false},
                                      {"tokens_per_s", "tokens/s", "%.3g", false},
                                      {"reason", "reason", NULL, true}};
    static const vla_column cells[] = {{"claim", "claim", NULL, false},
                                       {"task", "task", NULL, true},
                                       {"op", "operator", NULL, false},
                                       {"n", "n", NULL, false},
                                       {"T", "T", NULL, false},
                                       {"paper", "paper", "%.3f", false},
                                       {"authors_log", "authors' log", "%.3f", false},
                                       {"measured_paper", "measured, their protocol", NULL, false},
                                       {"measured_tuned", "measured, tuned", NULL, false},
                                       {"measured_conv", "tuned, short convolution", NULL, true}};
    static const vla_column states[] = {
        {"op", "operator", NULL, false}, {"T", "T", NULL, true}, {"norm", "|S|, untrained", "%.4g", false}};
    static const vla_column gradients[] = {{"case", "case", NULL, true},
                                           {"trained", "trained", NULL, false},
                                           {"lag", "lag", NULL, false},
                                           {"gradient", "|dL/dx|", "%.3e", false}};
    PRINT(stream, records, "train", runs);
    PRINT(stream, records, "state", states);
    PRINT(stream, records, "gradient", gradients);
    PRINT(stream, records, "cell", cells);
}

void vla_verdict_table(FILE *stream, const vla_records *records)
{
    static const vla_column columns[] = {
        {"claim", "claim", NULL, false},        {"source", "source", NULL, false}, {"verdict", "verdict", NULL, false},
        {"value", "value", "%.3f", false},      {"lo", "lo", "%.3f", false},       {"hi", "hi", "%.3f", false},
        {"condition", "condition", NULL, false}};
    PRINT(stream, records, "verdict", columns);
}
