#include "lib/base/status.h"
#include <stdarg.h>
#include <stdio.h>

vla_status vla_fail(vla_error *error, vla_status status, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        error->status = status;
        vsnprintf(error->message, sizeof error->message, format, args);
        va_end(args);
        for (char *c = error->message; *c; c++) /* one line, whatever a file or a user put into it */
            if ((unsigned char)*c < ' ') *c = '?';
    }
    return status;
}
