// Cancellation unwinds out of a signal handler, through the interrupted system call, back into the
// function that made it. Destructors and cleanup handlers must run, whatever the call was doing at
// that moment.
#include "check.h"
#include <atomic>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static std::atomic<int> destroyed, cleaned;
struct Guard {
    ~Guard() { destroyed++; }
};
static int ends[2];
static std::atomic<int> ready;

static void cleanup(void *) { cleaned++; }

static void *blocked(void *) {
    Guard g;
    pthread_cleanup_push(cleanup, nullptr);
    ready++;
    char c;
    for (;;) (void)!read(ends[0], &c, 1);
    pthread_cleanup_pop(0);
    return nullptr;
}

static void *sleeping(void *) {
    Guard g;
    pthread_cleanup_push(cleanup, nullptr);
    ready++;
    for (;;) sleep(1000);
    pthread_cleanup_pop(0);
    return nullptr;
}

static void *waiting(void *) {
    Guard g;
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t c = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&m);
    pthread_cleanup_push(cleanup, nullptr);
    ready++;
    for (;;) pthread_cond_wait(&c, &m);
    pthread_cleanup_pop(0);
    return nullptr;
}

int main() {
    CHECK(pipe(ends) == 0);
    void *(*kinds[])(void *) = {blocked, sleeping, waiting};
    int total = 0;
    for (int round = 0; round < 40; round++)
        for (auto kind : kinds) {
            pthread_t t;
            int before = ready;
            CHECK(pthread_create(&t, nullptr, kind, nullptr) == 0);
            while (ready == before) sched_yield();
            if (round % 2) { // let it block
                timespec ts = {0, 2000000};
                nanosleep(&ts, nullptr);
            }
            CHECK(pthread_cancel(t) == 0);
            void *result;
            CHECK(pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED);
            total++;
            CHECK(destroyed == total && cleaned == total);
        }
    puts("cancel ok");
}
