// churn_flows.h: control flow over memory that may be paged out: signal handlers and their stacks,
// coroutines, threads on stacks of our own, forks, vforks and execs.
#pragma once
#include "churn_lanes.h"
#include "churn_regions.h"

#include <setjmp.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <ucontext.h>

extern char **environ;

// ---- ticks: each worker is interrupted all the time by three kinds of signals

enum { ON_ALTERNATE, ON_OWN_STACK, NESTING, TICK_KINDS };
#define TICK_PAGES 16
#define ALTERNATE_BYTES (64 * 1024)
// So many handlers of one kind on top of each other: each takes some 7 KiB of a coroutine's stack.
#define NESTED_MAX 3

// Managed pages that only the handlers of this worker touch, one set for each kind.
typedef struct {
    uint64_t *pages[TICK_KINDS];
    uint32_t version[TICK_KINDS][TICK_PAGES];
    volatile size_t filling[TICK_KINDS]; // 1 + the page that a handler is filling, else 0
    char *alternate;
    uint64_t count, left;
    volatile int nested;
    timer_t nesting_timer;
    long nesting_period;
} Ticks;

static Ticks *ticks[MAX_THREADS];

static uint64_t tick_uid(int kind) { return 1000000 + self->id * 10 + kind; }

// The next nesting tick. Each asks for it itself, and the topmost only when it ends: where handlers
// take longer than the ticks are apart, they would pile up until the stack is full.
static void tick_again(Ticks *t) {
    must(timer_settime(t->nesting_timer, 0, &(struct itimerspec){{0, 0}, {0, t->nesting_period}},
                       NULL));
}

static void touch_tick_pages(Ticks *t, int kind) {
    size_t i = t->count++ % TICK_PAGES;
    uint64_t uid = tick_uid(kind);
    page_check(t->pages[kind] + i * WORDS, uid, i, t->version[kind][i]);
    // An escape may jump out of the middle of this: see ticks_leave.
    t->filling[kind] = i + 1;
    atomic_signal_fence(memory_order_seq_cst);
    page_fill(t->pages[kind] + i * WORDS, uid, i, t->version[kind][i] + 1);
    atomic_signal_fence(memory_order_seq_cst);
    t->version[kind][i]++;
    atomic_signal_fence(memory_order_seq_cst);
    t->filling[kind] = 0;
}

// Ends what this thread's handlers were doing, for a handler above them that is about to jump out
// of them all. Every word of a page that was being filled must be the old or the new one. No tick
// interferes: a kind with a page in hand is still blocked here, or kept away by `nested`.
static void ticks_leave(void) {
    Ticks *t = ticks[self->id];
    for (int kind = 0; kind < TICK_KINDS; kind++) {
        if (!t->filling[kind]) continue;
        size_t i = t->filling[kind] - 1;
        uint64_t uid = tick_uid(kind), *page = t->pages[kind] + i * WORDS;
        uint32_t version = t->version[kind][i];
        page_check_filling(page, uid, i, version);
        page_fill(page, uid, i, version + 1);
        t->version[kind][i] = version + 1, t->filling[kind] = 0, t->left++;
    }
    atomic_signal_fence(memory_order_seq_cst);
    t->nested = 0;
    tick_again(t);
}

// Outside of handlers, none is at work.
static void ticks_check(void) {
    Ticks *t = ticks[self->id];
    for (int kind = 0; kind < TICK_KINDS; kind++)
        if (t->filling[kind]) fail("a handler of kind %d never ended", kind);
    if (t->nested) fail("%d nesting handlers never ended", t->nested);
}

static void on_tick(int number, siginfo_t *info, void *context) {
    int saved = errno, kind = number - SIGRTMIN;
    char here[3000]; // a frame of some size
    memset(here, number, sizeof here);
    if (!self || !info || !context) fail("tick without worker");
    Ticks *t = ticks[self->id];
    int depth = kind == NESTING ? ++t->nested : 1;
    if (kind == NESTING && depth < NESTED_MAX) tick_again(t);
    if (kind == ON_ALTERNATE) {
        stack_t now;
        must(sigaltstack(NULL, &now));
        if (here < t->alternate || here >= t->alternate + ALTERNATE_BYTES)
            fail("a handler with SA_ONSTACK does not run on its stack: %p", (void *)here);
        if (now.ss_sp != t->alternate || !(now.ss_flags & SS_ONSTACK))
            fail("sigaltstack in a handler says %p %#x", now.ss_sp, now.ss_flags);
    }
    // A handler that may be interrupted by itself must not share pages with itself.
    if (depth == 1) touch_tick_pages(t, kind);
    for (size_t i = 0; i < sizeof here; i += 500)
        if (here[i] != (char)number) fail("the handler's own stack changed");
    if (kind == NESTING) t->nested--;
    if (depth == NESTED_MAX) tick_again(t);
    errno = saved;
}

static void ticks_install(void) {
    static const int flags[] = {SA_ONSTACK, 0, SA_NODEFER};
    for (int kind = 0; kind < TICK_KINDS; kind++) {
        struct sigaction action = {.sa_sigaction = on_tick,
                                   .sa_flags = SA_SIGINFO | SA_RESTART | flags[kind]};
        // One of them blocks everything that can be blocked, SIGBUS and SIGSEGV too.
        if (kind == ON_OWN_STACK) sigfillset(&action.sa_mask);
        must(sigaction(SIGRTMIN + kind, &action, NULL));
    }
}

static void ticks_start(void) {
    Ticks *t = ticks[self->id] = map(sizeof *t);
    for (int kind = 0; kind < TICK_KINDS; kind++) t->pages[kind] = map(TICK_PAGES * PAGE);
    t->alternate = map(ALTERNATE_BYTES);
    must(sigaltstack(&(stack_t){.ss_sp = t->alternate, .ss_size = ALTERNATE_BYTES}, NULL));
    for (int kind = 0; kind < TICK_KINDS; kind++) {
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + kind};
        event._sigev_un._tid = syscall(SYS_gettid);
        must(timer_create(CLOCK_MONOTONIC, &event, &timer));
        long period = 3000000 + below(9000000), every = kind == NESTING ? 0 : period;
        if (kind == NESTING) t->nesting_timer = timer, t->nesting_period = period;
        must(timer_settime(timer, 0, &(struct itimerspec){{0, every}, {0, period}}, NULL));
    }
}

// ---- coroutines on stacks in managed memory, interrupted by the ticks

#define COROUTINES 4
#define COROUTINE_BYTES (96 * 1024)

typedef struct {
    ucontext_t context, *back;
    char *stack;
    uint64_t key, turns;
} Coroutine;

static Coroutine *coroutines[MAX_THREADS];

// A frame's contents differ from one turn to the next, so that a page which has lost its last
// changes is told from the right one.
static uint64_t local_word(Coroutine *c, uint64_t turn, int depth, int i) {
    return mix(c->key + (turn * 16 + depth) * 256 + i);
}

// Says what a frame that changed holds instead: words of an earlier turn, zeros, or something else.
__attribute__((noreturn)) static void frame_changed(Coroutine *c, uint64_t turn, int depth,
                                                    const uint64_t *local) {
    int wrong = 0, zeros = 0, first = -1, last = 0;
    uint64_t back = 0;
    for (int i = 0; i < 256; i++) {
        if (local[i] == local_word(c, turn, depth, i)) continue;
        if (first < 0) first = i;
        for (uint64_t n = 1; !back && n <= 100 && n <= turn; n++)
            if (local[i] == local_word(c, turn - n, depth, i)) back = n;
        wrong++, last = i, zeros += !local[i];
    }
    fail("coroutine, turn %llu (now %llu): %d words of depth %d changed, from %d to %d at %p, %d "
         "of them zero, first %#llx, some %llu turns old",
         (unsigned long long)turn, (unsigned long long)c->turns, wrong, depth, first, last,
         (void *)&local[first < 0 ? 0 : first], zeros,
         (unsigned long long)local[first < 0 ? 0 : first], (unsigned long long)back);
}

static void descend(Coroutine *c, uint64_t turn, int depth) {
    uint64_t local[256];
    for (int i = 0; i < 256; i++) local[i] = local_word(c, turn, depth, i);
    if (depth < 12) descend(c, turn, depth + 1);
    else
        must(swapcontext(
            &c->context,
            c->back)); // Where it fails, libc leaves a register wrong: `c` is something else then.
    for (int i = 0; i < 256; i++)
        if (local[i] != local_word(c, turn, depth, i)) frame_changed(c, turn, depth, local);
}

static void coroutine_main(unsigned high, unsigned low) {
    Coroutine *c = (void *)((uintptr_t)high << 32 | low);
    for (;;) descend(c, c->turns, 0), c->turns++;
}

static void coroutines_start(void) {
    Coroutine *c = coroutines[self->id] = map(COROUTINES * sizeof *c);
    for (int i = 0; i < COROUTINES; i++, c++) {
        c->stack = map(COROUTINE_BYTES), c->key = rnd();
        must(getcontext(&c->context));
        c->context.uc_stack.ss_sp = c->stack, c->context.uc_stack.ss_size = COROUTINE_BYTES;
        makecontext(&c->context, (void (*)(void))coroutine_main, 2, (unsigned)((uintptr_t)c >> 32),
                    (unsigned)(uintptr_t)c);
    }
}

static void coroutine_step(void) {
    self->doing = "coroutine";
    Coroutine *c = &coroutines[self->id][below(COROUTINES)];
    ucontext_t here;
    c->back = &here;
    must(swapcontext(&here, &c->context));
}

// ---- threads on stacks that we own

typedef struct {
    Worker worker;
    int pipe[2], cancelled;
    uint64_t sum;
} Guest;

static void *guest_main(void *argument) {
    Guest *g = argument;
    self = &g->worker;
    uint64_t local[1500];
    for (int i = 0; i < 1500; i++) local[i] = mix(g->sum + i);
    char *mine = map(8 * PAGE);
    for (int i = 0; i < 8; i++) page_fill((uint64_t *)(mine + i * PAGE), g->sum, i, 1);
    sched_yield();
    char byte;
    // To be cancelled while it waits with its buffer on this stack, or to get its byte.
    if (read(g->pipe[0], &byte, 1) != 1 || byte != 'g') fail("a guest read %#x", byte);
    for (int i = 0; i < 8; i++) page_check((uint64_t *)(mine + i * PAGE), g->sum, i, 1);
    must(munmap(mine, 8 * PAGE));
    for (int i = 0; i < 1500; i++)
        if (local[i] != mix(g->sum + i)) fail("a guest's stack changed");
    return (void *)g->sum;
}

static void guest_step(void) {
    self->doing = "guest thread";
    enum { STACK = 256 * 1024 };
    Guest *g = map(sizeof *g);
    char *stack = map(STACK);
    g->worker = (Worker){.id = self->id, .state = rnd(), .doing = "guest"};
    g->sum = rnd() | 1, g->cancelled = below(4) == 0;
    must(pipe(g->pipe));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (below(2)) pthread_attr_setstack(&attributes, stack, STACK);
    pthread_t thread;
    // Its ticks are not meant for it: SIGRTMIN signals go to the workers' thread ids only.
    int error = pthread_create(&thread, &attributes, guest_main, g);
    if (error) fail("pthread_create: %s", strerror(error));
    if (g->cancelled) {
        if (below(2)) usleep(500);
        pthread_cancel(thread);
    } else if (write(g->pipe[1], "g", 1) != 1) fail("write to a guest");
    void *result;
    pthread_join(thread, &result);
    if (g->cancelled ? result != PTHREAD_CANCELED : result != (void *)g->sum)
        fail("a guest returned %p", result);
    close(g->pipe[0]), close(g->pipe[1]);
    pthread_attr_destroy(&attributes);
    must(munmap(stack, STACK)), must(munmap(g, sizeof *g));
}

// ---- a jump out of a handler, out of a blocked call with a managed buffer

static __thread sigjmp_buf *escape;

static void on_escape(int number) {
    (void)number;
    if (!escape) return;
    ticks_leave(); // this signal interrupts ticks too
    siglongjmp(*escape, 1);
}

static void escape_step(int fd) {
    self->doing = "escape";
    sigjmp_buf *buffer = map(sizeof *buffer);
    char *into = map(4 * PAGE);
    if (sigsetjmp(*buffer, 1) == 0) {
        escape = buffer;
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 5};
        event._sigev_un._tid = syscall(SYS_gettid);
        must(timer_create(CLOCK_MONOTONIC, &event, &timer));
        *(timer_t *)(into + PAGE) = timer;
        must(timer_settime(timer, 0, &(struct itimerspec){{0, 500000}, {0, 300000}}, NULL));
        for (;;)
            if (read(fd, into + PAGE - 100, 3000) >= 0) fail("a read of nothing returned");
    }
    escape = NULL;
    must(timer_delete(*(timer_t *)(into + PAGE)));
    must(munmap(into, 4 * PAGE)), must(munmap(buffer, sizeof *buffer));
}

// ---- the brk heap, used by one thread only (malloc is told to leave it alone)

static struct {
    char *base;
    size_t pages;
    uint32_t version[2048];
} heap;

static void heap_step(void) {
    self->doing = "brk";
    if (!heap.base) {
        must(sbrk(PAGE - must(sbrk(0)) % PAGE));
        heap.base = sbrk(0);
    }
    if (sbrk(0) != heap.base + heap.pages * PAGE) fail("the break moved by itself");
    size_t more = 1 + below(64);
    if (heap.pages + more > 2048 || below(3) == 0) {
        size_t less = heap.pages < more ? heap.pages : more;
        must(sbrk(-(intptr_t)(less * PAGE)));
        heap.pages -= less;
    } else {
        must(sbrk(more * PAGE));
        for (size_t i = heap.pages; i < heap.pages + more; i++) {
            if (!page_is_zero((uint64_t *)(heap.base + i * PAGE)))
                fail("page %zu of a grown heap is not zero", i);
            page_fill((uint64_t *)(heap.base + i * PAGE), 999, i, ++heap.version[i]);
        }
        heap.pages += more;
    }
    for (int n = 0; n < 32 && heap.pages; n++) {
        size_t i = below(heap.pages);
        page_check((uint64_t *)(heap.base + i * PAGE), 999, i, heap.version[i]);
    }
}

// ---- fork: the child sees everything as it was, also what is paged out, and goes on by itself

static void check_held(Region **held, int count) {
    self->doing = "checking what was inherited";
    for (int i = 0; i < count; i++) check_range(held[i], 0, held[i]->pages);
    for (size_t page = below(7); page < arena_pages; page += 7) lane_check_tags(page);
}

__attribute__((noreturn)) static void child_life(Region **held, int count) {
    process_name = "child";
    check_held(held, count);
    for (int n = 0; n < 60; n++) {
        Region *r = held[below(count)];
        size_t first = below(r->pages), pages = 1 + below(64);
        if (pages > r->pages - first) pages = r->pages - first;
        unsigned i = pick_region_op();
        self->doing = region_ops[i].name;
        region_ops[i].run(r, first, pages);
    }
    if (below(2)) {
        pid_t pid = must(fork());
        if (pid == 0) {
            process_name = "grandchild";
            check_held(held, count);
            _exit(0);
        }
        expect_success(pid);
    }
    check_held(held, count);
    _exit(0);
}

static void fork_step(void) {
    self->doing = "fork";
    Region *held[6];
    int count = 0;
    for (int n = 0; n < 40 && count < 4; n++) {
        Region *r = &regions[below(REGIONS)];
        if (pthread_mutex_trylock(&r->lock) == 0) held[count++] = r;
    }
    if (count == 0) return;
    // Memory that must not be inherited, or be inherited empty.
    char *gone = map(4 * PAGE), *wiped = map(4 * PAGE);
    memset(gone, 1, 4 * PAGE), memset(wiped, 2, 4 * PAGE);
    must(madvise(gone, 4 * PAGE, MADV_DONTFORK)), must(madvise(wiped, 4 * PAGE, MADV_WIPEONFORK));
    volatile uint32_t *shared =
        (void *)must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t pid = must(fork());
    if (pid == 0) {
        unsigned char resident[4];
        if (mincore(gone, 4 * PAGE, resident) != -1 || errno != ENOMEM)
            fail("MADV_DONTFORK was inherited");
        for (size_t i = 0; i < 4; i++)
            if (!page_is_zero((uint64_t *)(wiped + i * PAGE)))
                fail("MADV_WIPEONFORK was not wiped");
        *shared = 4711;
        child_life(held, count);
    }
    // The parent changes what the child is reading.
    for (int i = 0; i < count; i++) op_write(held[i], 0, held[i]->pages / 4);
    for (int i = 0; i < count; i++) pthread_mutex_unlock(&held[i]->lock);
    if (gone[PAGE] != 1 || wiped[PAGE] != 2) fail("the parent lost what the child must not have");
    expect_success(pid);
    if (*shared != 4711) fail("shared memory is not shared");
    must(munmap((void *)shared, PAGE)), must(munmap(gone, 4 * PAGE)), must(munmap(wiped, 4 * PAGE));
}

// ---- exec with arguments and environment in managed memory

// The exit code of `churn --words WORD...`: a sum over its arguments and its environment variable.
static unsigned words_sum(char **words, const char *variable) {
    uint64_t sum = 1;
    for (; *words; words++)
        for (const char *c = *words; *c; c++) sum = mix(sum + *c);
    for (; variable && *variable; variable++) sum = mix(sum + *variable);
    return 1 + sum % 200;
}

static void exec_step(void) {
    enum { WORDS_GIVEN = 40, BYTES = 64 * 1024 };
    self->doing = "exec";
    char *memory = map(BYTES * 2), **words = (char **)memory, *text = memory + BYTES / 2;
    char **variables = (char **)(memory + BYTES / 4);
    words[0] = "churn", words[1] = "--words";
    for (int i = 2; i < WORDS_GIVEN; i++) {
        size_t bytes = 1 + below(1200);
        words[i] = text;
        for (size_t k = 0; k < bytes; k++) *text++ = 'a' + rnd() % 26;
        *text++ = 0;
    }
    variables[0] = text;
    text += sprintf(text, "CHURN=%016llx", (unsigned long long)rnd()) + 1;
    int n = 1;
    for (char **e = environ; *e; e++) variables[n++] = *e;
    unsigned expected = words_sum(words + 2, variables[0] + 6);
    pid_t pid = 0;
    unsigned way = below(3);
    if (way == 0) {
        int error = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, words, variables);
        if (error) fail("posix_spawn: %s", strerror(error));
    } else {
        pid = must(way == 1 ? vfork() : fork());
        if (pid == 0) execve("/proc/self/exe", words, variables), _exit(255);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != (int)expected)
        fail("exec (way %u): status %#x, expected exit code %u", way, status, expected);
    must(munmap(memory, BYTES * 2));
}
