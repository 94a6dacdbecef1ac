// churn_calls.h: buffers of system calls in memory that may be paged out.
//
// Every worker has a scratch area whose bytes follow from their offset. A call reads from a random
// place in it or writes to one; then the place, and the bytes before and after it, must be right.
// The area is large against the few places in use, so that most are cold when a call comes. Calls
// that consume what they read (datagrams, eventfd, timerfd, signalfd) lose data for good if the
// buffer is not there, which shows as a blocked or missing answer.
#pragma once
#include "churn.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#define SCRATCH_PAGES 384
#define SCRATCH_BYTES (SCRATCH_PAGES * PAGE)
#define GUARD 96

static unsigned char scratch_byte(size_t offset) {
    return mix(offset / 8 + (uint64_t)self->id * 77777) >> (offset % 8 * 8);
}

static void scratch_restore(size_t at, size_t bytes) {
    for (size_t i = at; i < at + bytes; i++) self->scratch[i] = scratch_byte(i);
}

static void scratch_check(size_t at, size_t bytes) {
    for (size_t i = at; i < at + bytes; i++)
        if (self->scratch[i] != scratch_byte(i))
            fail("scratch byte %zu is %#x, not %#x", i, self->scratch[i], scratch_byte(i));
}

// A place of so many bytes with room for guards, at any alignment or at one of 8.
static size_t place(size_t bytes) { return GUARD + below(SCRATCH_BYTES - bytes - 2 * GUARD); }
static size_t place_aligned(size_t bytes) { return (place(bytes + 8) + 7) & ~7ul; }

// After a call wrote `bytes` at `at`: what surrounds them is untouched; then put the pattern back.
static void settle(size_t at, size_t bytes) {
    scratch_check(at - GUARD, GUARD);
    scratch_check(at + bytes, GUARD);
    scratch_restore(at, bytes);
}

// The bytes sent from `from` must have arrived at `to`, which does not overlap it.
static void expect_copy(size_t to, size_t from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (self->scratch[to + i] != scratch_byte(from + i))
            fail("byte %zu of %zu is %#x, not %#x", i, bytes, self->scratch[to + i],
                 scratch_byte(from + i));
    settle(to, bytes);
}

static int apart(size_t a, size_t a_bytes, size_t b, size_t b_bytes) {
    return a + a_bytes + GUARD <= b || b + b_bytes + GUARD <= a;
}

static void two_places(size_t bytes, size_t *from, size_t *to) {
    do *from = place(bytes), *to = place(bytes);
    while (!apart(*from, bytes, *to, bytes));
}

typedef struct {
    int pipe[2], stream[2], datagram[2], file, event, timer, signals, zero, null, epoll;
} Files;

static void files_open(Files *f) {
    must(pipe(f->pipe));
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, f->stream));
    must(socketpair(AF_UNIX, SOCK_DGRAM, 0, f->datagram));
    f->file = must(open(".", O_TMPFILE | O_RDWR, 0600));
    f->event = must(eventfd(0, EFD_NONBLOCK));
    f->timer = must(timerfd_create(CLOCK_MONOTONIC, 0));
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 9);
    f->signals = must(signalfd(-1, &set, SFD_NONBLOCK));
    f->zero = must(open("/dev/zero", O_RDONLY)), f->null = must(open("/dev/null", O_WRONLY));
    f->epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1234567890abcdef};
    must(epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->event, &event));
}

// Transfers in full; short counts of pipes and sockets are allowed to everybody.
static void send_all(int fd, size_t at, size_t bytes) {
    while (bytes) {
        ssize_t n = write(fd, self->scratch + at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("write: %s", strerror(errno));
        at += n, bytes -= n;
    }
}

static void receive_all(int fd, size_t at, size_t bytes) {
    while (bytes) {
        ssize_t n = read(fd, self->scratch + at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("read: %zd %s", n, strerror(errno));
        at += n, bytes -= n;
    }
}

static void call_pipe(Files *f) {
    size_t bytes = 1 + below(40000), from, to;
    two_places(bytes, &from, &to);
    send_all(f->pipe[1], from, bytes), receive_all(f->pipe[0], to, bytes);
    expect_copy(to, from, bytes);
}

static void call_stream(Files *f) {
    size_t bytes = 1 + below(20000), from, to;
    two_places(bytes, &from, &to);
    send_all(f->stream[0], from, bytes), receive_all(f->stream[1], to, bytes);
    expect_copy(to, from, bytes);
}

// Several datagrams at once; each must arrive whole, in order, and once.
static void call_datagram(Files *f) {
    size_t bytes = 1 + below(9000), from, to;
    for (int i = 0; i < 3; i++) {
        two_places(bytes, &from, &to);
        if (must(send(f->datagram[0], self->scratch + from, bytes, 0)) != (ssize_t)bytes)
            fail("a short datagram sent");
        ssize_t n = recv(f->datagram[1], self->scratch + to, bytes, MSG_DONTWAIT);
        if (n != (ssize_t)bytes)
            fail("a datagram was lost: %zd of %zu, %s", n, bytes, strerror(errno));
        expect_copy(to, from, bytes);
    }
}

// msghdr, iovec, name and control data all lie in the scratch area.
static void call_message(Files *f) {
    size_t bytes = 2 + below(6000), from, to, header = place_aligned(512);
    do two_places(bytes, &from, &to);
    while (!apart(header, 512, to, bytes) || !apart(header, 512, from, bytes));
    struct msghdr *m = (void *)(self->scratch + header);
    struct iovec *v = (void *)(m + 1);
    for (int receive = 0; receive < 2; receive++) {
        size_t at = receive ? to : from, cut = bytes / 2;
        memset(m, 0, sizeof *m);
        m->msg_iov = v, m->msg_iovlen = 2;
        v[0] = (struct iovec){self->scratch + at, cut},
        v[1] = (struct iovec){self->scratch + at + cut, bytes - cut};
        ssize_t n =
            receive ? recvmsg(f->datagram[1], m, MSG_DONTWAIT) : sendmsg(f->datagram[0], m, 0);
        if (n != (ssize_t)bytes)
            fail("message %d: %zd of %zu, %s", receive, n, bytes, strerror(errno));
    }
    settle(header, 512);
    expect_copy(to, from, bytes);
}

static void call_file(Files *f) {
    size_t bytes = 1 + below(60000), from, to;
    two_places(bytes, &from, &to);
    off_t offset = below(1 << 16);
    if (must(pwrite(f->file, self->scratch + from, bytes, offset)) != (ssize_t)bytes)
        fail("a short write to a file");
    if (must(pread(f->file, self->scratch + to, bytes, offset)) != (ssize_t)bytes)
        fail("a short read from a file");
    expect_copy(to, from, bytes);
}

static void call_vectors(Files *f) {
    enum { N = 7 };
    size_t at[N], bytes = 700 + below(1500), total = 0,
                  list = place_aligned(N * sizeof(struct iovec));
    struct iovec *v = (void *)(self->scratch + list);
    off_t offset = 1 << 20;
    // Written from seven places; read back into one, then scattered again.
    for (int i = 0; i < N; i++) {
        do at[i] = place(bytes);
        while (!apart(at[i], bytes, list, N * sizeof *v));
        v[i] = (struct iovec){self->scratch + at[i], bytes}, total += bytes;
    }
    if (must(pwritev(f->file, v, N, offset)) != (ssize_t)total) fail("a short pwritev");
    if (must(preadv(f->file, v, N, offset)) != (ssize_t)total) fail("a short preadv");
    settle(list, N * sizeof *v);
    for (int i = 0; i < N; i++) scratch_check(at[i], bytes);
}

static void call_counters(Files *f) {
    size_t at = place_aligned(8), list;
    uint64_t *word = (void *)(self->scratch + at), add = 1 + below(1000);
    *word = add;
    if (must(write(f->event, word, 8)) != 8) fail("eventfd");
    settle(at, 8);
    at = place_aligned(8), word = (void *)(self->scratch + at);
    do list = place_aligned(sizeof(struct epoll_event));
    while (!apart(at, 8, list, sizeof(struct epoll_event)));
    struct epoll_event *e = (void *)(self->scratch + list);
    int ready;
    while ((ready = epoll_wait(f->epoll, e, 1, 1000)) < 0 && errno == EINTR) continue;
    if (ready != 1 || e->data.u64 != 0x1234567890abcdef) fail("epoll_wait: %d", ready);
    settle(list, sizeof *e);
    if (read(f->event, word, 8) != 8 || *word != add)
        fail("eventfd lost its count: %s", strerror(errno));
    settle(at, 8);

    at = place_aligned(sizeof(struct itimerspec));
    struct itimerspec *spec = (void *)(self->scratch + at);
    *spec = (struct itimerspec){.it_value.tv_nsec = 100000};
    must(timerfd_settime(f->timer, 0, spec, NULL));
    settle(at, sizeof *spec);
    at = place_aligned(8), word = (void *)(self->scratch + at);
    ssize_t n;
    while ((n = read(f->timer, word, 8)) < 0 && errno == EINTR) continue;
    if (n != 8 || *word < 1) fail("timerfd: %zd", n);
    settle(at, 8);
}

static void call_signalfd(Files *f) {
    size_t at = place_aligned(sizeof(struct signalfd_siginfo));
    struct signalfd_siginfo *info = (void *)(self->scratch + at);
    union sigval value = {.sival_int = 4711};
    must(pthread_sigqueue(pthread_self(), SIGRTMIN + 9, value) ? -1 : 0);
    ssize_t n = read(f->signals, info, sizeof *info);
    if (n != sizeof *info || info->ssi_int != 4711)
        fail("signalfd: %zd %s", n, n < 0 ? strerror(errno) : "");
    settle(at, sizeof *info);
}

static void call_random(Files *f) {
    size_t bytes = 32 + below(6000), at = place(bytes);
    memset(self->scratch + at, 0, bytes);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = getrandom(self->scratch + at + done, bytes - done, 0);
        if (n <= 0 && errno != EINTR) fail("getrandom: %s", strerror(errno));
        if (n > 0) done += n;
    }
    size_t zeros = 0;
    for (size_t i = 0; i < bytes; i++) zeros += self->scratch[at + i] == 0;
    if (zeros > 8 + bytes / 32) fail("getrandom left %zu of %zu bytes zero", zeros, bytes);
    settle(at, bytes);
    at = place(bytes);
    receive_all(f->zero, at, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (self->scratch[at + i]) fail("/dev/zero gave %#x", self->scratch[at + i]);
    settle(at, bytes);
}

static void call_wait(Files *f) {
    size_t at = place_aligned(2 * sizeof(struct pollfd));
    struct pollfd *p = (void *)(self->scratch + at);
    p[0] = (struct pollfd){f->pipe[1], POLLOUT, 0x55},
    p[1] = (struct pollfd){f->pipe[0], POLLIN, 0x55};
    int n;
    while ((n = poll(p, 2, 0)) < 0 && errno == EINTR) continue;
    if (n != 1 || p[0].revents != POLLOUT || p[1].revents)
        fail("poll: %d %x %x", n, p[0].revents, p[1].revents);
    settle(at, 2 * sizeof *p);

    at = place_aligned(sizeof(fd_set) + 64);
    fd_set *set = (void *)(self->scratch + at);
    struct timeval *t = (void *)(self->scratch + at + sizeof *set);
    do {
        FD_ZERO(set);
        FD_SET(f->pipe[1], set);
        *t = (struct timeval){0, 1000};
    } while ((n = select(f->pipe[1] + 1, NULL, set, NULL, t)) < 0 && errno == EINTR);
    if (n != 1 || !FD_ISSET(f->pipe[1], set)) fail("select: %d", n);
    settle(at, sizeof *set + 64);

    at = place_aligned(64);
    struct timespec *pause = (void *)(self->scratch + at);
    *pause = (struct timespec){0, 1000};
    if (nanosleep(pause, pause + 1) && errno != EINTR) fail("nanosleep: %s", strerror(errno));
    *pause = (struct timespec){0, 1000};
    // A futex whose word, timeout and neighbours may all be out.
    int *word = (int *)(pause + 2);
    *word = 5;
    long r = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 6, pause, NULL, 0);
    if (r != -1 || errno != EAGAIN) fail("futex with another value: %ld %s", r, strerror(errno));
    r = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 5, pause, NULL, 0);
    if (r != -1 || (errno != ETIMEDOUT && errno != EINTR))
        fail("futex: %ld %s", r, strerror(errno));
    settle(at, 64);
}

static void call_names(Files *f) {
    size_t at = place_aligned(sizeof(struct stat));
    struct stat *s = (void *)(self->scratch + at), direct;
    must(fstat(f->file, &direct)), must(fstat(f->file, s));
    if (s->st_ino != direct.st_ino || s->st_mode != direct.st_mode) fail("fstat differs");
    settle(at, sizeof *s);

    at = place(4096);
    char *path = (char *)self->scratch + at;
    strcpy(path, "/dev/null");
    int fd = must(open(path, O_RDONLY));
    must(close(fd));
    settle(at, 4096), at = place(4096), path = (char *)self->scratch + at;
    char here[4096];
    if (!getcwd(here, sizeof here) || !getcwd(path, 4096) || strcmp(here, path))
        fail("getcwd gave %s, not %s", path, here);
    settle(at, 4096), at = place(4096), path = (char *)self->scratch + at;
    ssize_t n = must(readlink("/proc/self/exe", path, 4096));
    if (n < 1 || path[0] != '/') fail("readlink");
    settle(at, 4096);

    at = place_aligned(sizeof(struct utsname));
    struct utsname *u = (void *)(self->scratch + at);
    must(uname(u));
    if (strcmp(u->sysname, "Linux")) fail("uname gave %s", u->sysname);
    settle(at, sizeof *u), at = place_aligned(32768);
    int dir = must(open("/", O_RDONLY | O_DIRECTORY));
    int proc = 0;
    // A signal may cut the list, so ask until it ends.
    for (long got; (got = must(syscall(SYS_getdents64, dir, self->scratch + at, 32768)));)
        for (long i = 0; i < got;) {
            struct dirent64 *d = (void *)(self->scratch + at + i);
            proc |= !strcmp(d->d_name, "proc");
            i += d->d_reclen;
        }
    must(close(dir));
    if (!proc) fail("getdents64 of / has no proc");
    settle(at, 32768), at = place_aligned(32);
    struct timespec *t = (void *)(self->scratch + at);
    // This clock is no vDSO clock: it falls back to a system call inside the vDSO.
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, t) || clock_gettime(CLOCK_THREAD_CPUTIME_ID, t + 1))
        fail("clock_gettime");
    if (t[1].tv_nsec < 0 || t[1].tv_nsec > 999999999)
        fail("clock_gettime gave %ld ns", t[1].tv_nsec);
    settle(at, 32);
}

static void calls_start(void) {
    self->scratch = map(SCRATCH_BYTES);
    scratch_restore(0, SCRATCH_BYTES);
}

static const struct {
    const char *name;
    void (*run)(Files *);
} calls[] = {
    {"pipe", call_pipe},         {"stream", call_stream},     {"datagram", call_datagram},
    {"message", call_message},   {"file", call_file},         {"vectors", call_vectors},
    {"counters", call_counters}, {"signalfd", call_signalfd}, {"random", call_random},
    {"wait", call_wait},         {"names", call_names},
};

static void call_step(Files *f) {
    unsigned i = below(sizeof calls / sizeof *calls);
    self->doing = calls[i].name;
    calls[i].run(f);
}
