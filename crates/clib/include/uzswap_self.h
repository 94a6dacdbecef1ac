/*
 * uzswap for C, where it may be missing: control of the process that is managed, for programs that
 * are not linked with the library. They run with and without libuzswap.so.1, and with and without
 * `uzswap run`.
 *
 *   uzswap_self_* --> dlopen("libuzswap.so.1"), once --> the library's function of this name
 *                 `-> it is not there: UZSWAP_NOT_MANAGED
 *
 * Compile and link:  cc program.c     (with -ldl before glibc 2.34)
 *
 * Names, types and results are those of uzswap.h, which says more of them. This file needs no other
 * of uzswap's, so it may be copied to a program's sources. A program that also has a cache includes
 * uzswap.h and is linked with the library; so is a static one.
 *
 * The library is looked for as the loader does: among what is in the process already (linked,
 * preloaded), then in the program's run path, LD_LIBRARY_PATH and the system's directories. What is
 * found stays; where nothing is found, that is not tried again. Each source file looks for itself.
 *
 * Weak references would not do: without the library the linker may settle them for good, and with
 * it they load nothing. The run's socket could be reached without the library, but what is said
 * there is between parts of uzswap of one version, and a compiled program is of any.
 */
#if !defined UZSWAP_SELF_H && !defined UZSWAP_H
#define UZSWAP_SELF_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum uzswap_result {
    UZSWAP_OK = 0,
    UZSWAP_INVALID = 1,      /* A null pointer, an unknown flag or advice, a size that is none. */
    UZSWAP_NOT_FOUND = 2,    /* There is no page under this key. */
    UZSWAP_FULL = 3,         /* Neither memory nor store has room; the older page is there still. */
    UZSWAP_OUT_OF_RANGE = 4, /* The area or the page number is too large. */
    UZSWAP_CORRUPT = 5,      /* What was read from the store is not what was written. */
    UZSWAP_FORKED = 6,       /* The cache is that of a parent process. */
    UZSWAP_STORE = 7,        /* The store cannot be made or read: errno. */
    UZSWAP_SYSTEM = 8,       /* The kernel refused something else, memory mostly: errno. */
    UZSWAP_COMPRESSOR = 9,   /* There is no such compressor, or not with this parameter. */
    UZSWAP_NOT_MANAGED = 10, /* This process does not run under uzswap. */
    UZSWAP_NO_ANSWER = 11,   /* It does, and its run does not answer. */
    UZSWAP_REFUSED = 12      /* Its run does not do what was asked. */
};

enum uzswap_activity {
    UZSWAP_DORMANT = 0, /* All fits, and nothing is paged yet. */
    UZSWAP_ACTIVE = 1,
    UZSWAP_WAITS = 2    /* Other processes of the run have their turn. */
};

/* The run of this process, and this process in it. */
struct uzswap_self_status {
    /* Before: sizeof. After: the bytes that were filled. */
    size_t size;
    uint64_t run;               /* number of the run: the process id of `uzswap run` */
    uint64_t milliseconds;      /* how long it has run */
    uint64_t processes;         /* how many it has */
    uint64_t limit_bytes;       /* what they may hold together */
    uint64_t used_bytes;        /* what they hold */
    uint64_t own_used_bytes;    /* this process: what counts against the limit */
    uint64_t own_needed_bytes;  /* what it would hold without uzswap */
    uint64_t resident_bytes;    /* its pages as they are, by the kernel's count */
    uint64_t pool_bytes;        /* its compressed pages */
    uint64_t written_bytes;     /* written to the store so far */
    uint64_t faults;            /* faults that were served so far */
    uint64_t activity;          /* enum uzswap_activity */
};

enum uzswap_advice {
    UZSWAP_COLD = 0, /* Goes before other memory. */
    UZSWAP_OUT = 1,  /* Goes at once. */
    UZSWAP_NEED = 2  /* Is needed soon: comes in before this returns. */
};

/* Sets the pointer to a function at `function` to the library's of this name; 0 if there is none.
 * Threads that look for the library at once find the same one, so they need no lock, which a forked
 * child could find taken. */
static inline int uzswap_self_find_(const char *name, void *function) {
    /* Null: not looked for yet. Its own address: not there. */
    static void *library;
    void *found = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
    if (!found) {
        found = dlopen("libuzswap.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!found) found = &library;
        __atomic_store_n(&library, found, __ATOMIC_RELEASE);
    }
    if (found == &library || !(found = dlsym(found, name))) return 0;
    /* ISO C has no cast from a pointer to an object to one to a function. */
    memcpy(function, &found, sizeof found);
    return 1;
}

/* Whether this process runs under uzswap, as far as the library is there to say so: 1 or 0. */
static inline int uzswap_self_is_managed(void) {
    int (*call)(void);
    return uzswap_self_find_("uzswap_self_is_managed", &call) ? call() : 0;
}

/* Fills *status, whose `size` is set before. */
static inline int uzswap_self_status(struct uzswap_self_status *status) {
    int (*call)(struct uzswap_self_status *);
    return uzswap_self_find_("uzswap_self_status", &call) ? call(status) : UZSWAP_NOT_MANAGED;
}

/* Another limit for all processes of the run; *limit_bytes, if it is not null, is what came of
 * it. */
static inline int uzswap_self_set_memory(uint64_t bytes, uint64_t *limit_bytes) {
    int (*call)(uint64_t, uint64_t *);
    return uzswap_self_find_("uzswap_self_set_memory", &call) ? call(bytes, limit_bytes)
                                                              : UZSWAP_NOT_MANAGED;
}

/* Takes all memory of this process that is not used now, and returns when that is done;
 * *freed_bytes, if it is not null, says how much. */
static inline int uzswap_self_reclaim(uint64_t *freed_bytes) {
    int (*call)(uint64_t *);
    return uzswap_self_find_("uzswap_self_reclaim", &call) ? call(freed_bytes)
                                                           : UZSWAP_NOT_MANAGED;
}

/* What is known of the memory from `start` on: an enum uzswap_advice. */
static inline int uzswap_self_advise(const void *start, size_t bytes, int advice) {
    int (*call)(const void *, size_t, int);
    return uzswap_self_find_("uzswap_self_advise", &call) ? call(start, bytes, advice)
                                                          : UZSWAP_NOT_MANAGED;
}

#endif
