/* forbid LIBRARY COMMAND...: runs the command with LIBRARY preloaded, where no memory may become
   executable that was not. Exits with 77 where the kernel cannot do that. */
#include "check.h"
#include <sys/prctl.h>
#include <unistd.h>
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
int main(int argc, char **argv) {
    CHECK(argc > 2);
    if (prctl(PR_SET_MDWE, 1L, 0L, 0L, 0L)) return 77;
    setenv("LD_PRELOAD", argv[1], 1);
    execvp(argv[2], argv + 2);
    return 1;
}
