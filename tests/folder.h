/* A folder of a test program's own: made before its tests, dropped with all that is in it after them. */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static char folder[64];

static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/vla-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int drop_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

/* A whole file as text, valid until the next call; the test fails where there is none. */
static inline char *slurp(const char *path)
{
    static char text[1 << 17];
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is not there", path);
    const size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

#endif
