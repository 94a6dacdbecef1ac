/* Libraries that come later, more of them than there are pages of trampolines, while another thread
   makes calls. */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
static volatile int stop;
static void *busy(void *arg) {
    while (!stop) getppid();
    return arg;
}
int main(int argc, char **argv) {
    CHECK(argc > 1);
    long magic = hooked() ? MAGIC_ANSWER : -38;
    pthread_t t;
    pthread_create(&t, NULL, busy, NULL);
    for (int round = 0; round < 300; round++) {
        for (int i = 1; i < argc; i++) {
            void *lib = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
            if (!lib) fprintf(stderr, "%s\n", dlerror());
            CHECK(lib);
            long (*constructed)(void) = (long (*)(void))dlsym(lib, "constructed");
            long (*late)(void) = (long (*)(void))dlsym(lib, "late");
            CHECK(constructed && late);
            CHECK(constructed() == magic);
            CHECK(late() == magic);
            CHECK(dlclose(lib) == 0);
        }
    }
    stop = 1;
    pthread_join(t, NULL);
    puts("loaded ok");
}
