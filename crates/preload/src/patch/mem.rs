//! `memcpy` and its kin, for this library alone.
//!
//! Compilers call these six functions for copies, fills and comparisons wherever they like. libc's
//! functions cannot serve: libc's text is not executable for the moment in which it is patched, and
//! they use the widest vectors that the processor has, which a light hook (see `entry.rs`) has not
//! saved. These use xmm0-7 and nothing of libc. They are hidden: the linker binds every call from
//! inside the library to them, codecs in C included, and the program keeps its own.
//!
//! Up to 128 bytes are loaded completely before a byte is stored, which is fast and makes overlap
//! harmless; so `memcpy` is `memmove`. Long copies forward use `rep movsb`, which processors of the
//! last ten years do by cache lines.
//!
//! # Safety charter
//! Assembly with the contracts of the C functions; reads and writes only within the given lengths.
#![allow(unsafe_code)]

use core::arch::global_asm;

global_asm!(
    ".macro uzswap_function name",
    "    .p2align 4",
    "    .globl \\name",
    "    .hidden \\name",
    "    .type \\name,@function",
    "\\name:",
    ".endm",
    ".pushsection .text.uzswap_mem,\"ax\",@progbits",
    "    .cfi_startproc",
    // rax = memcpy(rdi to, rsi from, rdx count)
    "uzswap_function memcpy",
    "uzswap_function memmove",
    "    mov rax, rdi",
    "    cmp rdx, 16",
    "    jb 3f",
    "    cmp rdx, 32",
    "    ja 1f",
    "    movups xmm0, [rsi]",
    "    movups xmm1, [rsi + rdx - 16]",
    "    movups [rdi], xmm0",
    "    movups [rdi + rdx - 16], xmm1",
    "    ret",
    "1:  movups xmm0, [rsi]",
    "    movups xmm1, [rsi + 16]",
    "    movups xmm2, [rsi + rdx - 32]",
    "    movups xmm3, [rsi + rdx - 16]",
    "    cmp rdx, 64",
    "    ja 2f",
    "    movups [rdi], xmm0",
    "    movups [rdi + 16], xmm1",
    "    movups [rdi + rdx - 32], xmm2",
    "    movups [rdi + rdx - 16], xmm3",
    "    ret",
    "2:  movups xmm4, [rsi + 32]",
    "    movups xmm5, [rsi + 48]",
    "    movups xmm6, [rsi + rdx - 64]",
    "    movups xmm7, [rsi + rdx - 48]",
    "    cmp rdx, 128",
    "    ja 7f",
    "    movups [rdi], xmm0",
    "    movups [rdi + 16], xmm1",
    "    movups [rdi + 32], xmm4",
    "    movups [rdi + 48], xmm5",
    "    movups [rdi + rdx - 64], xmm6",
    "    movups [rdi + rdx - 48], xmm7",
    "    movups [rdi + rdx - 32], xmm2",
    "    movups [rdi + rdx - 16], xmm3",
    "    ret",
    // Under 16.
    "3:  cmp edx, 8",
    "    jb 4f",
    "    mov rcx, [rsi]",
    "    mov r8, [rsi + rdx - 8]",
    "    mov [rdi], rcx",
    "    mov [rdi + rdx - 8], r8",
    "    ret",
    "4:  cmp edx, 4",
    "    jb 5f",
    "    mov ecx, [rsi]",
    "    mov r8d, [rsi + rdx - 4]",
    "    mov [rdi], ecx",
    "    mov [rdi + rdx - 4], r8d",
    "    ret",
    "5:  test edx, edx",
    "    jz 6f",
    "    movzx ecx, byte ptr [rsi]",
    "    movzx r8d, byte ptr [rsi + rdx - 1]",
    "    mov r9d, edx",
    "    shr r9d, 1",
    "    movzx r10d, byte ptr [rsi + r9]", // the middle one of three; else one of the others again
    "    mov [rdi], cl",
    "    mov [rdi + r9], r10b",
    "    mov [rdi + rdx - 1], r8b",
    "6:  ret",
    // Over 128: backward if the target begins inside the source.
    "7:  mov rcx, rdi",
    "    sub rcx, rsi",
    "    cmp rcx, rdx",
    "    jb 9f",
    "    cmp rdx, 1024",
    "    jae 8f",
    // Forward by 64; the last 64 bytes are in xmm6, 7, 2, 3 already.
    "    lea r8, [rdi + rdx - 64]",
    "22: movups xmm0, [rsi]",
    "    movups xmm1, [rsi + 16]",
    "    movups xmm4, [rsi + 32]",
    "    movups xmm5, [rsi + 48]",
    "    movups [rdi], xmm0",
    "    movups [rdi + 16], xmm1",
    "    movups [rdi + 32], xmm4",
    "    movups [rdi + 48], xmm5",
    "    add rsi, 64",
    "    add rdi, 64",
    "    cmp rdi, r8",
    "    jb 22b",
    "    movups [r8], xmm6",
    "    movups [r8 + 16], xmm7",
    "    movups [r8 + 32], xmm2",
    "    movups [r8 + 48], xmm3",
    "    ret",
    "8:  mov rcx, rdx",
    "    rep movsb",
    "    ret",
    // Backward by 64; the first 64 bytes are in xmm0, 1, 4, 5 already.
    "9:  lea r8, [rdi + 64]",
    "    add rsi, rdx",
    "    add rdi, rdx",
    "33: movups xmm2, [rsi - 16]",
    "    movups xmm3, [rsi - 32]",
    "    movups xmm6, [rsi - 48]",
    "    movups xmm7, [rsi - 64]",
    "    movups [rdi - 16], xmm2",
    "    movups [rdi - 32], xmm3",
    "    movups [rdi - 48], xmm6",
    "    movups [rdi - 64], xmm7",
    "    sub rsi, 64",
    "    sub rdi, 64",
    "    cmp rdi, r8",
    "    ja 33b",
    "    movups [rax], xmm0",
    "    movups [rax + 16], xmm1",
    "    movups [rax + 32], xmm4",
    "    movups [rax + 48], xmm5",
    "    ret",
    // rax = memset(rdi to, sil value, rdx count)
    "uzswap_function memset",
    "    mov rax, rdi",
    "    movzx esi, sil",
    "    movabs rcx, 0x0101010101010101",
    "    imul rcx, rsi",
    "    cmp rdx, 16",
    "    jb 3f",
    "    cmp rdx, 512",
    "    jae 2f",
    "    movq xmm0, rcx",
    "    punpcklqdq xmm0, xmm0",
    "    lea r8, [rdi + rdx - 16]",
    "1:  movups [rdi], xmm0",
    "    add rdi, 16",
    "    cmp rdi, r8",
    "    jb 1b",
    "    movups [r8], xmm0",
    "    ret",
    "2:  mov r8, rax",
    "    mov eax, esi",
    "    mov rcx, rdx",
    "    rep stosb",
    "    mov rax, r8",
    "    ret",
    "3:  cmp edx, 8",
    "    jb 4f",
    "    mov [rdi], rcx",
    "    mov [rdi + rdx - 8], rcx",
    "    ret",
    "4:  cmp edx, 4",
    "    jb 5f",
    "    mov [rdi], ecx",
    "    mov [rdi + rdx - 4], ecx",
    "    ret",
    "5:  test edx, edx",
    "    jz 6f",
    "    mov [rdi], cl",
    "    mov [rdi + rdx - 1], cl",
    "    shr edx, 1",
    "    mov [rdi + rdx], cl",
    "6:  ret",
    // eax = memcmp(rdi a, rsi b, rdx count)
    "uzswap_function memcmp",
    "uzswap_function bcmp",
    "    xor ecx, ecx",
    "1:  lea r8, [rcx + 16]",
    "    cmp r8, rdx",
    "    ja 3f",
    "    movups xmm0, [rdi + rcx]",
    "    movups xmm1, [rsi + rcx]",
    "    pcmpeqb xmm0, xmm1",
    "    pmovmskb eax, xmm0",
    "    sub eax, 0xffff",
    "    jnz 2f",
    "    mov rcx, r8",
    "    jmp 1b",
    "2:  bsf eax, eax", // equal bytes gave zeros: the lowest one is the first difference
    "    add rcx, rax",
    "    movzx eax, byte ptr [rdi + rcx]",
    "    movzx edx, byte ptr [rsi + rcx]",
    "    sub eax, edx",
    "    ret",
    "3:  cmp rcx, rdx",
    "    jae 4f",
    "    movzx eax, byte ptr [rdi + rcx]",
    "    movzx r8d, byte ptr [rsi + rcx]",
    "    inc rcx",
    "    sub eax, r8d",
    "    jz 3b",
    "    ret",
    "4:  xor eax, eax",
    "    ret",
    // rax = strlen(rdi text)
    "uzswap_function strlen",
    "    mov rax, rdi",
    "    jmp 2f",
    "1:  inc rax",
    "2:  cmp byte ptr [rax], 0",
    "    jne 1b",
    "    sub rax, rdi",
    "    ret",
    "    .cfi_endproc",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use core::ffi::c_void;
    use std::vec::Vec;

    unsafe extern "C" {
        fn memcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
        fn memmove(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
        fn memset(to: *mut c_void, value: i32, count: usize) -> *mut c_void;
        fn memcmp(a: *const c_void, b: *const c_void, count: usize) -> i32;
        fn bcmp(a: *const c_void, b: *const c_void, count: usize) -> i32;
        fn strlen(text: *const i8) -> usize;
    }

    fn lengths() -> impl Iterator<Item = usize> {
        (0..300).chain([500, 511, 512, 513, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 9000])
    }

    /// Bytes that differ from their neighbours.
    fn pattern(len: usize, seed: usize) -> Vec<u8> {
        let mut v = Vec::with_capacity(len);
        for i in 0..len {
            v.push(((i * 31 + seed * 17) ^ (i >> 8)) as u8 | 1);
        }
        v
    }

    fn bytewise_equal(a: &[u8], b: &[u8]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(x, y)| core::hint::black_box(x) == y)
    }

    #[test]
    fn these_are_the_ones_in_use() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line_of = |at: usize| {
            maps.lines().position(|l| {
                let (range, _) = l.split_once(' ').unwrap();
                let (a, b) = range.split_once('-').unwrap();
                (usize::from_str_radix(a, 16).unwrap()..usize::from_str_radix(b, 16).unwrap())
                    .contains(&at)
            })
        };
        let here = line_of(these_are_the_ones_in_use as *const () as usize);
        for f in
            [memcpy as *const (), memmove as _, memset as _, memcmp as _, bcmp as _, strlen as _]
        {
            assert_eq!(line_of(f as usize), here);
        }
    }

    #[test]
    fn copies_of_every_length_distance_and_direction() {
        for len in lengths() {
            for (from, to) in [
                (200, 200 + len + 3),
                (200 + len + 7, 199),
                (100, 101),
                (101, 100),
                (100, 116),
                (180, 100),
                (100, 163),
                (100, 228),
                (5, 5),
            ] {
                let total = 2 * len + 600;
                let mut memory = pattern(total, len);
                let mut expected = memory.clone();
                for i in 0..len {
                    expected[to + i] = core::hint::black_box(memory[from + i]);
                }
                let overlap = to < from + len && from < to + len;
                // SAFETY: both ranges lie in the buffer.
                unsafe {
                    let base = memory.as_mut_ptr();
                    let f = if overlap { memmove } else { memcpy };
                    let at = base.add(to).cast();
                    assert_eq!(f(at, base.add(from).cast(), len), at);
                }
                assert!(bytewise_equal(&memory, &expected), "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn fills_of_every_length() {
        for len in lengths() {
            for start in [16, 17, 31] {
                let mut memory = pattern(len + 64, 3);
                let mut expected = memory.clone();
                for b in &mut expected[start..start + len] {
                    *b = core::hint::black_box(0xa4);
                }
                // SAFETY: the range lies in the buffer. (Only the low byte of the value counts.)
                unsafe { memset(memory.as_mut_ptr().add(start).cast(), 0x7fa4, len) };
                assert!(bytewise_equal(&memory, &expected), "{len} bytes at {start}");
            }
        }
    }

    #[test]
    fn comparisons_find_the_first_difference() {
        for len in lengths() {
            let a = pattern(len, 1);
            // SAFETY: both buffers have that length.
            let compare = |x: &[u8], y: &[u8]| unsafe {
                let (x, y) = (x.as_ptr().cast(), y.as_ptr().cast());
                let result = memcmp(x, y, len);
                assert_eq!(bcmp(x, y, len) == 0, result == 0);
                result
            };
            assert_eq!(compare(&a, &a.clone()), 0);
            for at in (0..len).step_by(1 + len / 40) {
                let mut b = a.clone();
                b[at] = b[at].wrapping_add(100);
                if at + 1 < len {
                    b[at + 1] ^= 0xff; // must not matter
                }
                assert_eq!(compare(&a, &b).signum(), a[at].cmp(&b[at]) as i32, "{len} at {at}");
            }
        }
        // SAFETY: terminated texts.
        unsafe {
            assert_eq!(strlen(c"".as_ptr()), 0);
            assert_eq!(strlen(c"sixteen letters!!".as_ptr()), 17);
        }
    }
}
