// cancelled: threads that are cancelled while they wait in calls, in memory that is out.
//
// Prints "cancelled" and how many were; hangs where one is not.
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 24 << 8, THREADS = 12 };

static unsigned char *memory;
static int fds[2];

static void *wait_in_call(void *argument) {
    unsigned char *into = memory + (size_t)argument * 7 * PAGE + PAGE - 2;
    (void)!read(fds[0], into, 10);
    return NULL;
}

int main(void) {
    memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    if (memory == MAP_FAILED || pipe(fds)) return 2;
    int cancelled = 0;
    for (size_t i = 0; i < THREADS; i++) {
        for (size_t k = 0; k < PAGES; k++) memory[k * PAGE + PAGE / 2] = k;
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, wait_in_call, (void *)i)) return 2;
        // Some have not got to the call, others wait in it.
        usleep(i % 4 * 5000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    for (size_t k = 0; k < PAGES; k++)
        if (memory[k * PAGE + PAGE / 2] != (unsigned char)k) return 1;
    printf("cancelled %d\n", cancelled);
    return 0;
}
