/* Signals while hooked calls run: handlers that make calls themselves, alternate stacks, EINTR,
   restarts. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t ticks;
static int ends[2];

static void on_tick(int sig) {
    (void)sig;
    int saved = errno;
    for (int i = 0; i < 3; i++) CHECK(syscall(MAGIC_CALL) == (hooked() ? MAGIC_ANSWER : -1));
    getppid();
    ticks++;
    errno = saved;
}

static void *feeder(void *arg) {
    (void)arg;
    for (int i = 0; i < 100; i++) {
        struct timespec ts = {0, 1000000};
        nanosleep(&ts, NULL);
        CHECK(write(ends[1], "x", 1) == 1);
    }
    close(ends[1]);
    return NULL;
}

int main(void) {
    CHECK(pipe(ends) == 0);
    static char alternate[64 << 10];
    stack_t ss = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(sigaltstack(&ss, NULL) == 0);
    struct sigaction sa = {.sa_handler = on_tick, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaction(SIGALRM, &sa, NULL);
    struct itimerval every = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, NULL);
    pthread_t t;
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_create(&t, NULL, feeder, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    char c;
    int got = 0;
    ssize_t n;
    while ((n = read(ends[0], &c, 1)) != 0) {
        CHECK(n == 1 && c == 'x'); /* restarted, never EINTR */
        got++;
    }
    CHECK(got == 100);
    pthread_join(t, NULL);
    for (int i = 0; i < 300000; i++) CHECK(getppid() > 0);
    sa.sa_flags = SA_ONSTACK;
    sigaction(SIGALRM, &sa, NULL);
    for (int i = 0; i < 20; i++) CHECK(pause() == -1 && errno == EINTR);
    sigset_t none;
    sigemptyset(&none);
    CHECK(sigsuspend(&none) == -1 && errno == EINTR);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    CHECK(ticks > 100);
    raise(SIGALRM);
    struct timespec ts;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts) == 0 &&
          ts.tv_sec + ts.tv_nsec > 0); /* vDSO falls back */
    puts("signals ok");
}
