/* What the preload library would else take from libc, libgcc and the loader.
 *
 * The library is loaded into programs of any glibc, and runs on its own where there is none
 * (`src/boot`). So it needs no other library. Rust's standard library names these functions; what
 * runs in a program calls none of them, but a panic on its way to abort: it prints a line. They
 * are hidden: the program keeps its own. Everything is a bare system call; errno is one for all
 * threads.
 */
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))

static long call(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long r;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return r;
}

static int error_number;

static long checked(long r) {
    if (r < 0 && r > -4096) {
        error_number = (int)-r;
        return -1;
    }
    return r;
}

HIDDEN int *__errno_location(void) { return &error_number; }

HIDDEN long syscall(long n, long a, long b, long c, long d, long e, long f) {
    return checked(call(n, a, b, c, d, e, f));
}

HIDDEN long read(int fd, void *to, size_t n) { return checked(call(0, fd, (long)to, n, 0, 0, 0)); }
HIDDEN long write(int fd, const void *from, size_t n) {
    return checked(call(1, fd, (long)from, n, 0, 0, 0));
}
HIDDEN long writev(int fd, const void *v, int n) {
    return checked(call(20, fd, (long)v, n, 0, 0, 0));
}
HIDDEN int close(int fd) { return checked(call(3, fd, 0, 0, 0, 0, 0)); }
HIDDEN int munmap(void *at, size_t n) { return checked(call(11, (long)at, n, 0, 0, 0, 0)); }
HIDDEN int gettid(void) { return call(186, 0, 0, 0, 0, 0, 0); }
HIDDEN void *mmap64(void *at, size_t n, int prot, int flags, int fd, long from) {
    return (void *)checked(call(9, (long)at, n, prot, flags, fd, from));
}

HIDDEN _Noreturn void abort(void) {
    call(234, call(39, 0, 0, 0, 0, 0, 0), gettid(), 6, 0, 0, 0);
    for (;;) call(231, 134, 0, 0, 0, 0, 0);
}

/* A mapping for each block, its length before it. */
enum { HEAD_BYTES = 16 };

HIDDEN void *malloc(size_t n) {
    long r = call(9, 0, n + HEAD_BYTES, 3, 0x22, -1, 0);
    if (r < 0 && r > -4096) return NULL;
    *(size_t *)r = n;
    return (char *)r + HEAD_BYTES;
}

HIDDEN void free(void *block) {
    if (!block) return;
    char *at = (char *)block - HEAD_BYTES;
    call(11, (long)at, *(size_t *)at + HEAD_BYTES, 0, 0, 0, 0);
}

HIDDEN void *calloc(size_t n, size_t each) {
    size_t bytes;
    return __builtin_mul_overflow(n, each, &bytes) ? NULL : malloc(bytes);
}

HIDDEN void *realloc(void *block, size_t n) {
    char *to = malloc(n);
    if (!to || !block) return to;
    size_t old = *(size_t *)((char *)block - HEAD_BYTES);
    for (size_t i = 0; i < old && i < n; i++) to[i] = ((char *)block)[i];
    free(block);
    return to;
}

/* Rust's own thread-local variables, which a panic uses: one set for all threads. */
typedef struct {
    uint32_t kind, flags;
    uint64_t offset, address, load, file_bytes, memory_bytes, align;
} Header;
typedef struct {
    char id[32];
    uint64_t headers;
    char more[16];
    uint16_t head_bytes, header_bytes, count;
} Object;
extern HIDDEN const Object __ehdr_start;
static char thread_locals[4096] __attribute__((aligned(64)));
static int are_set;

HIDDEN void *__tls_get_addr(const size_t *index) {
    const char *base = (const char *)&__ehdr_start;
    const Header *h = (const Header *)(base + __ehdr_start.headers);
    for (unsigned i = 0; !are_set && i < __ehdr_start.count; i++) {
        if (h[i].kind != 7) continue;
        for (size_t k = 0; k < h[i].file_bytes && k < sizeof thread_locals; k++)
            thread_locals[k] = base[h[i].address + k];
    }
    are_set = 1;
    return thread_locals + index[1];
}

HIDDEN int __cxa_thread_atexit_impl(void (*f)(void *), void *object, void *library) { return 0; }
HIDDEN int pthread_key_create(unsigned *key, void (*f)(void *)) { return 11; }
HIDDEN int pthread_key_delete(unsigned key) { return 0; }
HIDDEN int pthread_setspecific(unsigned key, const void *value) { return 12; }

/* No environment and no files: a panic prints where it was and nothing else. */
HIDDEN char *getenv(const char *name) { return NULL; }
HIDDEN char *getcwd(char *to, size_t n) { error_number = 34; return NULL; }
HIDDEN char *realpath(const char *path, char *to) { error_number = 2; return NULL; }
HIDDEN long readlink(const char *path, char *to, size_t n) { error_number = 2; return -1; }
HIDDEN int open64(const char *path, int flags, ...) { error_number = 2; return -1; }
HIDDEN int stat64(const char *path, void *to) { error_number = 2; return -1; }
HIDDEN int fstat64(int fd, void *to) { error_number = 9; return -1; }
HIDDEN int statx(int at, const char *path, int flags, unsigned mask, void *to) {
    error_number = 38;
    return -1;
}
HIDDEN long lseek64(int fd, long to, int how) { error_number = 9; return -1; }
HIDDEN int dl_iterate_phdr(int (*f)(void *, size_t, void *), void *data) { return 0; }

/* Nothing unwinds: a panic aborts. */
HIDDEN int _Unwind_Backtrace(void *f, void *data) { return 5; }
HIDDEN _Noreturn void _Unwind_Resume(void *e) { abort(); }
/* Named where the profile is not this workspace's, as by `cargo install` from a registry: there a
 * panic would unwind. It has printed its line before it comes here. */
HIDDEN int _Unwind_RaiseException(void *e) { abort(); }
HIDDEN void _Unwind_DeleteException(void *e) {}
HIDDEN size_t _Unwind_GetIP(void *c) { abort(); }
HIDDEN size_t _Unwind_GetIPInfo(void *c, int *before) { abort(); }
HIDDEN size_t _Unwind_GetLanguageSpecificData(void *c) { abort(); }
HIDDEN size_t _Unwind_GetRegionStart(void *c) { abort(); }
HIDDEN size_t _Unwind_GetTextRelBase(void *c) { abort(); }
HIDDEN size_t _Unwind_GetDataRelBase(void *c) { abort(); }
HIDDEN void _Unwind_SetGR(void *c, int n, size_t v) { abort(); }
HIDDEN void _Unwind_SetIP(void *c, size_t v) { abort(); }
