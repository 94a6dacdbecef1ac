/* A call number that no kernel has: the test hook answers it with 4242, so it shows whether a site is hooked. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#define MAGIC_CALL 499
#define MAGIC_ANSWER 4242
/* Set by the test when the hook is there. */
static inline int hooked(void) { return getenv("EXPECT_HOOK") != NULL; }
#define CHECK(what)                                                                     \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);        \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)
