/* Where the records of a task go as they are made, and what of it is wanted. */
#ifndef VLA_TASK_SINK_H
#define VLA_TASK_SINK_H
#include "lib/report/record.h"

typedef struct vla_row_sink {
    /* Takes ownership of row. */
    vla_status (*add)(void *context, vla_record *row, vla_error *error);
    /* false when a case is filtered out or its rows are there already (a resumed run); NULL: all are wanted. */
    bool (*wanted)(void *context, const char *label, const char *key);
    /* Told what runs now and how much is done of 1; false stops the task between cases. May be NULL. */
    bool (*step)(void *context, const char *label, double done);
    void *context;
} vla_row_sink;

/* FNV-1a of text, from a start of its own, as 16 hexadecimal digits: the key of a case is that of everything that
 * decides its numbers. */
void vla_case_key(const char *text, char key[17]);

#endif
