// churn: a seeded stress that fails on a wrong byte.
//
//     churn SECONDS SEED MIB THREADS [--only STEP,...] [--regions OPERATION,...] [--spoil]
//
// Many threads change mappings, fork, exec, take signals and pass buffers to the kernel, over MIB
// of checked memory. Ends with a line of counts and exit code 0, or with one line that names the
// seed, the thread, the operation and what differed. With --only it does these kinds of steps and
// no others, with --regions these operations on regions: to narrow a failure down. With --spoil it
// changes bytes behind its own back, and must fail: a test of the test. It is an ordinary program
// and knows nothing of paging; run without uzswap it must pass as well.
//
//   churn.h          self-describing pages           churn_calls.h    buffers of system calls
//   churn_regions.h  mappings changed in every way   churn_flows.h    signals, coroutines, threads, forks, execs
//   churn_lanes.h    pages that all threads write
#include "churn_calls.h"
#include "churn_flows.h"
#include <malloc.h>

enum { REGION, LANES, KERNEL_LANE, CALL, COROUTINE, GUEST, ESCAPE, BRK, FORK, EXEC, STEPS };
static const char *const step_names[STEPS] = {"region", "lanes", "kernel", "call", "coroutine",
                                              "guest",  "escape", "brk",        "fork", "exec"};
static unsigned step_weights[STEPS] = {420, 300, 60, 160, 60, 8, 4, 12, 3, 2};
static atomic_ulong steps_done[STEPS];

static void step(Files *files, int kind) {
    switch (kind) {
    case REGION: region_step(); break;
    case LANES: lane_step(); break;
    case KERNEL_LANE: lane_by_kernel(files->zero, files->null); break;
    case CALL: call_step(files); break;
    case COROUTINE: coroutine_step(); break;
    case GUEST: guest_step(); break;
    case ESCAPE: escape_step(files->pipe[0]); break;
    case BRK: if (self->id != 0) return; heap_step(); break;
    case FORK: if (self->id > 2) return; fork_step(); break;
    case EXEC: exec_step(); break;
    }
    steps_done[kind]++;
}

static void *worker_main(void *argument) {
    self = argument;
    Files files;
    files_open(&files), calls_start(), coroutines_start(), ticks_start();
    unsigned total = 0;
    for (int i = 0; i < STEPS; i++) total += step_weights[i];
    while (!stopping) {
        unsigned pick = below(total), kind = 0;
        while (pick >= step_weights[kind]) pick -= step_weights[kind++];
        step(&files, kind);
        self->operations++;
    }
    self->doing = "scratch at the end";
    scratch_check(0, SCRATCH_BYTES);
    ticks_check();
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "--words")) return words_sum(argv + 2, getenv("CHURN"));
    if (argc < 5)
        return fprintf(stderr, "usage: churn SECONDS SEED MIB THREADS "
                               "[--only STEPS] [--regions OPS] [--spoil]\n"), 2;
    double seconds = atof(argv[1]);
    seed = strtoull(argv[2], NULL, 10);
    size_t pages = strtoul(argv[3], NULL, 10) * 256;
    int threads = atoi(argv[4]), spoil = 0;
    if (threads < 1 || threads > MAX_THREADS) return 2;
    for (int i = 5; i < argc; i++) {
        if (!strcmp(argv[i], "--spoil")) spoil = 1;
        if (i + 1 >= argc) continue;
        for (int kind = 0; kind < STEPS && !strcmp(argv[i], "--only"); kind++)
            if (!strstr(argv[i + 1], step_names[kind])) step_weights[kind] = 0;
        for (size_t op = 0; op < REGION_OPS && !strcmp(argv[i], "--regions"); op++)
            if (!strstr(argv[i + 1], region_ops[op].name)) region_ops[op].weight = 0;
    }

    // malloc takes everything by mmap, so that the break is ours alone.
    mallopt(M_MMAP_THRESHOLD, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    sigset_t queued;
    sigemptyset(&queued), sigaddset(&queued, SIGRTMIN + 9);
    must(sigprocmask(SIG_BLOCK, &queued, NULL));
    must(sigaction(SIGRTMIN + 5, &(struct sigaction){.sa_handler = on_escape}, NULL));
    ticks_install();

    Worker *workers = map((MAX_THREADS + 1) * sizeof *workers);
    self = &workers[MAX_THREADS];
    *self = (Worker){.id = MAX_THREADS - 1, .state = mix(seed), .doing = "start"};
    regions_start(pages * 2 / 3), lanes_start(pages / 3, threads);
    pthread_t thread[MAX_THREADS];
    for (int i = 0; i < threads; i++) {
        workers[i] = (Worker){.id = i, .state = mix(seed + 1 + i)};
        if (pthread_create(&thread[i], NULL, worker_main, &workers[i])) fail("pthread_create");
    }
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        // Again and again: whoever rewrites the page before anybody looks at it (a read of
        // /dev/zero, a region made anew) makes one spoiling good.
        if (spoil && seed % 2) arena[(arena_pages - 1) * WORDS + 1] |= 1ull << 50;
        else if (spoil) regions[0].uid++;
        usleep(20000), clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) * 1e-9 < seconds);
    stopping = 1;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);

    self->doing = "checking all at the end";
    regions_check(), lanes_check();
    printf("churn: seed %llu clean:", (unsigned long long)seed);
    for (int i = 0; i < STEPS; i++) printf(" %s %lu,", step_names[i], steps_done[i]);
    unsigned long hits = 0, interrupts = 0, left = 0;
    for (int i = 0; i < REGIONS; i++) hits += regions[i].barrier_hits;
    for (int i = 0; i < threads; i++) interrupts += ticks[i]->count, left += ticks[i]->left;
    printf(" write barrier %lu, ticks %lu, left halfway %lu\n", hits, interrupts, left);
    return 0;
}
