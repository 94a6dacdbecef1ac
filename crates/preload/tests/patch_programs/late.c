/* The library that loaded.c opens: its calls must be hooked as soon as it is there, its
   constructor's too. */
#include "check.h"
static long in_constructor;
static __attribute__((noinline)) long call(long n) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n) : "rcx", "r11", "memory");
    return r;
}
__attribute__((constructor)) static void construct(void) { in_constructor = call(MAGIC_CALL); }
long constructed(void) { return in_constructor; }
long late(void) { return call(MAGIC_CALL); }
