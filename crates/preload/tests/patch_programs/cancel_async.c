/* Threads that are cancelled at any instruction, also in the midst of a hooked call; and at the
   calls that libc makes cancellable for the time of the call. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static int cleaned, ready;
static void cleanup(void *arg) { (void)arg, __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST); }

static void *busy(void *arg) {
    pthread_cleanup_push(cleanup, NULL);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    for (;;) getppid();
    pthread_cleanup_pop(0);
    return arg;
}

static void *deferred(void *arg) {
    pthread_cleanup_push(cleanup, NULL);
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    for (;;) (void)!read(-1, arg, 0);
    pthread_cleanup_pop(0);
    return arg;
}

int main(void) {
    for (int i = 0; i < 400; i++) {
        pthread_t t;
        void *result;
        CHECK(pthread_create(&t, NULL, i % 2 ? busy : deferred, NULL) == 0);
        while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) <= i) sched_yield();
        for (int spin = 0; spin < i * 10; spin++) __asm__ volatile("pause");
        CHECK(pthread_cancel(t) == 0);
        CHECK(pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED);
        CHECK(__atomic_load_n(&cleaned, __ATOMIC_SEQ_CST) == i + 1);
    }
    puts("cancel ok");
}
