/*
 * uzswap for C: a cache of compressed pages, and control of the process that is managed.
 *
 *   uzswap_cache_*   pages of 4096 bytes under keys, in as much memory as is allowed; what finds no
 *                    room there is in an encrypted file. Works in any process.
 *   uzswap_self_*    this process, where it runs under `uzswap run`. Elsewhere they answer
 *                    UZSWAP_NOT_MANAGED, so that one program is for both.
 *
 * Compile and link:  cc program.c $(pkg-config --cflags --libs uzswap)
 *
 * Such a program needs libuzswap.so.1 to start. With uzswap_self.h in the place of this header it
 * has uzswap_self_* where the library is, and runs without it, too.
 *
 * Results. A function that can fail returns one of enum uzswap_result, UZSWAP_OK being 0, and
 * changes nothing its caller can see if it fails, unless it says otherwise. Null pointers, where
 * they are not allowed, are UZSWAP_INVALID. With UZSWAP_STORE and UZSWAP_SYSTEM, errno says why;
 * else errno means nothing.
 *
 * Sizes are bytes. Structures begin with `size`, which their user sets to sizeof: a library that is
 * newer than the program knows by it what the program knows.
 *
 * Threads. No thread is started and no signal handled; caches share nothing with each other. All
 * functions may be called by several threads at once, on one cache too, but for
 * uzswap_cache_close, which must be the last. They are not for signal handlers. A page has one
 * content at a time: a load beside a store of the same key finds the older or the newer page.
 *
 * Panics. A broken invariant of the library ends the process (SIGABRT) instead of going on with
 * wrong data; nothing is ever unwound into the caller.
 *
 * Fork. See uzswap_cache_before_fork.
 */
#ifndef UZSWAP_H
#ifdef UZSWAP_SELF_H
#error "uzswap.h has all that uzswap_self.h has: include it alone, or first"
#endif
#define UZSWAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; uzswap_version() is the library's. */
#define UZSWAP_VERSION "0.1.0"
/* Bytes of a page. */
#define UZSWAP_PAGE_BYTES 4096
/* Areas are numbered from 0 and below this. */
#define UZSWAP_AREAS 31
/* Page numbers of an area are below this. */
#define UZSWAP_PAGES 4294967295

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

/* A sentence for a result; also for numbers that are none. Static: not to be freed. */
const char *uzswap_strerror(int result);

/* The library's version, as "0.1.0". Static. */
const char *uzswap_version(void);

/* ------------------------------------------------------------------------------------ the cache */

/* Pages under keys. A key is an area and a page number. */
typedef struct uzswap_cache uzswap_cache;

/* uzswap_config.flags: the store's file is not encrypted. That what is read is what was written is
 * checked in any case. */
#define UZSWAP_UNENCRYPTED 1

/* How a cache is made. Zero but for `size` and `memory_bytes` is a good one:
 *     struct uzswap_config config = {.size = sizeof config, .memory_bytes = 64 << 20}; */
struct uzswap_config {
    size_t size;
    /* Most that all that is stored takes in memory: compressed pages and their tables. One or two
     * MiB of buffers come on top while the cache works. */
    uint64_t memory_bytes;
    /* "words", "lz4", "lz4hc", "lzo", "lzo-rle", "zstd", "deflate", "842", "none"; some with a
     * level, as "zstd:level=3". Null: the one that is fastest on this processor. */
    const char *compressor;
    /* A directory. What finds no room in memory goes to a file without a name there, the least
     * recently used first; the file is gone with the process. Null: there is none. */
    const char *store_directory;
    /* UZSWAP_UNENCRYPTED, or 0. */
    uint64_t flags;
};

/* Makes an empty cache and sets *cache to it; to null if it fails.
 * UZSWAP_COMPRESSOR, UZSWAP_STORE (of the directory), UZSWAP_SYSTEM. */
int uzswap_cache_open(const struct uzswap_config *config, uzswap_cache **cache);

/* Frees a cache with all its pages. Null is allowed, and so is the copy of a forked child, whatever
 * it was forked from. */
void uzswap_cache_close(uzswap_cache *cache);

/* Stores a copy of the UZSWAP_PAGE_BYTES bytes at `page` (of any alignment) under a key, in the
 * place of an older page. Numbers had better be dense: a table has four bytes for each number of
 * an area up to the largest, which count as memory used.
 * UZSWAP_FULL, UZSWAP_OUT_OF_RANGE, UZSWAP_FORKED. */
int uzswap_cache_store(uzswap_cache *cache, uint32_t area, uint64_t number, const void *page);

/* Copies the page of a key to the UZSWAP_PAGE_BYTES bytes at `page`. It stays stored. The bytes may
 * be anything after an error but UZSWAP_NOT_FOUND, which leaves them as they are.
 * UZSWAP_NOT_FOUND, UZSWAP_STORE, UZSWAP_CORRUPT, UZSWAP_OUT_OF_RANGE, UZSWAP_FORKED. */
int uzswap_cache_load(uzswap_cache *cache, uint32_t area, uint64_t number, void *page);

/* Drops the page of a key. UZSWAP_NOT_FOUND if there is none; UZSWAP_OUT_OF_RANGE,
 * UZSWAP_FORKED. */
int uzswap_cache_drop(uzswap_cache *cache, uint32_t area, uint64_t number);

/* Drops all pages of an area; *pages, if it is not null, says how many. Pages that another thread
 * stores in it meanwhile may go or stay. UZSWAP_OUT_OF_RANGE, UZSWAP_FORKED. */
int uzswap_cache_drop_area(uzswap_cache *cache, uint32_t area, uint64_t *pages);

/* Has all that is stored take at most `bytes` of memory, this once, by writing the least recently
 * used pages to the store and packing the others. Memory that is left goes back to the system.
 * *used_bytes, if it is not null, says what is taken afterwards: more where there is no store, and
 * as much as the tables need in any case. UZSWAP_FORKED. */
int uzswap_cache_shrink(uzswap_cache *cache, uint64_t bytes, uint64_t *used_bytes);

/* Another limit from now on, for what config.memory_bytes was; shrinks to it. UZSWAP_FORKED. */
int uzswap_cache_set_memory(uzswap_cache *cache, uint64_t bytes, uint64_t *used_bytes);

/* What a cache holds, and what it has done since it was opened. */
struct uzswap_cache_stats {
    /* Before: sizeof. After: the bytes that were filled. */
    size_t size;
    uint64_t memory_bytes;         /* the limit */
    uint64_t used_bytes;           /* what it bounds: compressed pages and tables */
    uint64_t pages;                /* stored pages */
    uint64_t same_filled_pages;    /* of these, one word repeated, in a table alone */
    uint64_t memory_pages;         /* of these, compressed in memory */
    uint64_t store_pages;          /* of these, in the store or on their way there */
    uint64_t incompressible_pages; /* of these, kept as they are */
    uint64_t compressed_bytes;     /* of the compressed pages in memory */
    uint64_t store_bytes;          /* disk space of the store */
    uint64_t stores;               /* pages that were to be stored, taken or not */
    uint64_t failed_stores;        /* of these, not taken */
    uint64_t loads;                /* pages that were loaded */
    uint64_t store_loads;          /* of these, read from the store */
    uint64_t missing_loads;        /* loads without a page */
    uint64_t read_errors;          /* loads that the store failed */
    uint64_t corrupt_loads;        /* loads of what is not what was written */
    uint64_t drops;                /* pages dropped or replaced */
    uint64_t written_back_pages;   /* pages that went from memory to the store */
    uint64_t written_bytes;        /* written to the store */
    uint64_t read_bytes;           /* read from it */
    int64_t store_error;           /* errno of why writing to it has stopped; 0: it has not */
};

/* Fills *stats, as far as its `size` says. UZSWAP_FORKED. */
int uzswap_cache_stats(uzswap_cache *cache, struct uzswap_cache_stats *stats);

/* Fork. A child has a copy of the cache. What it may do with it is decided before the fork:
 *
 *     uzswap_cache_before_fork(cache);    brings the cache to rest
 *     pid_t pid = fork();
 *     uzswap_cache_after_fork(cache, pid);    on both sides, first of all
 *
 * In between, other threads that call the cache wait, and this one must not call it. Afterwards
 * both sides have all pages and go on by themselves; the child writes to a store file of its own.
 *
 * After a fork without these, every function answers UZSWAP_FORKED in the child, but for
 * uzswap_cache_close: a thread that the child does not have may have been half-way through
 * something. In the parent nothing changes, but for a load from the store that another thread has
 * under way at that moment: it may fail, as open(2) says of O_DIRECT. vfork and posix_spawn need
 * nothing.
 *
 * UZSWAP_FORKED; UZSWAP_SYSTEM for want of memory. */
int uzswap_cache_before_fork(uzswap_cache *cache);

/* `pid` is what fork has returned: 0, the child's id, or -1. UZSWAP_INVALID if there was no
 * uzswap_cache_before_fork. */
int uzswap_cache_after_fork(uzswap_cache *cache, int64_t pid);

/* --------------------------------------------------------------------------------- this process */

/* Whether this process runs under uzswap: 1 or 0. */
int uzswap_self_is_managed(void);

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

/* Fills *status. All uzswap_self functions: UZSWAP_NOT_MANAGED, and those that ask the run:
 * UZSWAP_NO_ANSWER if it is not there or says nothing within five seconds. */
int uzswap_self_status(struct uzswap_self_status *status);

/* Another limit for all processes of the run; *limit_bytes, if it is not null, is what came of it.
 * Who touches a page waits until the run is below a lower one. UZSWAP_REFUSED if it is too low. */
int uzswap_self_set_memory(uint64_t bytes, uint64_t *limit_bytes);

/* Takes all memory of this process that is not used now, and returns when that is done;
 * *freed_bytes, if it is not null, says how much. What was taken comes back as it is touched. */
int uzswap_self_reclaim(uint64_t *freed_bytes);

enum uzswap_advice {
    UZSWAP_COLD = 0, /* Goes before other memory. */
    UZSWAP_OUT = 1,  /* Goes at once. */
    UZSWAP_NEED = 2  /* Is needed soon: comes in before this returns. */
};

/* What is known of the memory from `start` on. Cold and out are about the whole pages in it, need
 * is about all pages that it touches. UZSWAP_SYSTEM: errno is madvise's. */
int uzswap_self_advise(const void *start, size_t bytes, int advice);

#ifdef __cplusplus
}
#endif
#endif
