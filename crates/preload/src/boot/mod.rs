//! Programs that the library boots, because no loader of theirs could take it: static ones, and
//! those for musl.
//!
//! The library is an executable file as well. A caller of exec that names such a program executes
//! the library, with the program's arguments and its path in the environment (`UZSWAP_PROGRAM`).
//! The library maps the program, and its loader if it has one, as the kernel would, redirects the
//! system calls of both, and jumps to where the kernel would have begun, with the stack as the
//! kernel would have left it.
//!
//! ```text
//!  execve(library, argv, envp + UZSWAP_PROGRAM)
//!    uzswap_start: relocates the library
//!      script.rs     #! lines, as the kernel reads them
//!      load.rs       program and loader, mapped
//!      takeover      as the constructor does it under glibc
//!      vectors.rs    argc argv envp auxv, as for the program
//!    jump to the entry
//! ```
//!
//! Nothing of libc is there: thread slots are in gs (`patch/thread_slot.rs`), and all hooks run on
//! stacks of our own. The program finds itself under `/proc/self/exe` (`takeover/own_path.rs`).
//! Where any of these steps fails the program is executed as without uzswap.
//!
//! # Safety charter
//! Runs once, on one thread, on the stack that the kernel has made; its vectors are read and
//! rewritten as the ABI lays them out.
#![allow(unsafe_code)]

mod load;
mod script;
mod vectors;

use std::vec::Vec;

use uzswap::control::handles::Handles;
use uzswap::control::{CONTROL_FD_ENV, PROGRAM_ENV};
use uzswap::sys::{check, fd, nr};

use crate::patch;
use crate::takeover::{self, call};
use load::Object;
use script::{HEAD_BYTES, interpreter};
use vectors::Vectors;

/// The last steps when the program is in place: `words` words are copied to its stack, then comes
/// the jump.
#[repr(C)]
struct Departure {
    from: *const usize,
    words: usize,
    stack: usize,
    entry: usize,
}

core::arch::global_asm!(
    ".pushsection .text.uzswap_start,\"ax\",@progbits",
    ".globl uzswap_start",
    ".hidden uzswap_start",
    ".hidden _DYNAMIC",
    ".hidden __ehdr_start",
    ".type uzswap_start,@function",
    "uzswap_start:",
    "    .cfi_startproc",
    "    .cfi_undefined rip",
    "    xor ebp, ebp",
    "    mov rbx, rsp",
    // Relocates the library: DT_RELA (7), DT_RELASZ (8); of these only R_X86_64_RELATIVE (8)
    // matters.
    "    lea rdx, [rip + __ehdr_start]",
    "    lea rsi, [rip + _DYNAMIC]",
    "    xor r8d, r8d",
    "    xor r9d, r9d",
    "2:  mov rax, [rsi]",
    "    mov rcx, [rsi + 8]",
    "    cmp rax, 7",
    "    cmove r8, rcx",
    "    cmp rax, 8",
    "    cmove r9, rcx",
    "    add rsi, 16",
    "    test rax, rax",
    "    jnz 2b",
    "    add r8, rdx",
    "    add r9, r8",
    "3:  cmp r8, r9",
    "    jae 5f",
    "    cmp dword ptr [r8 + 8], 8",
    "    jne 4f",
    "    mov rcx, [r8]",
    "    mov rax, [r8 + 16]",
    "    add rax, rdx",
    "    mov [rdx + rcx], rax",
    "4:  add r8, 24",
    "    jmp 3b",
    "5:  mov rdi, rbx",
    "    and rsp, -16",
    "    call {arrive}",
    // The vectors may lie over our frames.
    "    mov rsi, [rax]",
    "    mov rcx, [rax + 8]",
    "    mov rdi, [rax + 16]",
    "    mov rax, [rax + 24]",
    "    mov rsp, rdi",
    "    cld",
    "    rep movsq",
    "    xor ebx, ebx",
    "    xor edx, edx",
    "    xor esi, esi",
    "    xor edi, edi",
    "    xor r8d, r8d",
    "    xor r9d, r9d",
    "    xor r10d, r10d",
    "    xor r11d, r11d",
    "    xor r12d, r12d",
    "    xor r13d, r13d",
    "    xor r14d, r14d",
    "    xor r15d, r15d",
    "    jmp rax",
    "    .cfi_endproc",
    ".size uzswap_start, . - uzswap_start",
    ".popsection",
    arrive = sym arrive,
);

/// The run and the program for which the library was executed.
struct Order {
    handles: Handles,
    /// The program's path as the caller named it, NUL-terminated.
    path: Vec<u8>,
}

/// The library has been executed. Returns how to go on.
extern "C" fn arrive(stack: *mut usize) -> *const Departure {
    // SAFETY: the kernel's vectors.
    let mut vectors = unsafe { Vectors::read(stack) };
    let Some(order) = take_order(&mut vectors) else {
        end("the library starts programs for 'uzswap run' only")
    };
    if let Some(departure) = prepare(&mut vectors, &order) {
        return std::boxed::Box::leak(std::boxed::Box::new(departure));
    }
    run_alone(&vectors, &order)
}

fn take_order(vectors: &mut Vectors) -> Option<Order> {
    let path = vectors.take_variable(PROGRAM_ENV.as_bytes())?;
    let mut handles = None;
    while let Some(text) = vectors.take_variable(CONTROL_FD_ENV.as_bytes()) {
        // Two: a managed `uzswap run` has started us. The outer run came first and ends here.
        if let Some(outer) = handles.take() {
            let outer: Handles = outer;
            outer.counters.close();
            outer.settings.close();
        }
        handles = Handles::parse(text.strip_suffix(b"\0")?);
    }
    Some(Order { handles: handles?, path })
}

/// Maps the program, takes it over, and lays out its vectors. `None`: it cannot be booted, and the
/// takeover was not begun.
fn prepare(vectors: &mut Vectors, order: &Order) -> Option<Departure> {
    if !vectors.may_use_gs() {
        return None;
    }
    let (file, path) = follow_scripts(vectors, &order.path)?;
    let program = Object::map(file);
    crate::takeover::own_path::note(file);
    fd::close(file);
    let program = program?;
    let loader = match &program.loader {
        None => None,
        Some(loader) => {
            let file = open(loader)?;
            let object = Object::map(file);
            fd::close(file);
            Some(object?)
        }
    };
    if program.wants_executable_stack {
        load::make_stack_executable(vectors.end());
    }
    let name = order.path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    const PR_SET_NAME: usize = 15;
    let _ = call!(nr::PRCTL, PR_SET_NAME, order.path[name..].as_ptr());
    vectors.describe(&program, loader.as_ref(), &order.path);
    drop(path);
    // Valgrind's launcher has this for the tool that it executes, which is this program.
    if vectors.has_variable(b"VALGRIND_LAUNCHER") {
        takeover::leave_later_texts();
    }
    patch::keep_slots_in_gs();
    takeover::take_over(&order.handles, |own_file| takeover::set_preload(own_file.into()));
    let (words, stack) = vectors.lay_out();
    let entry = loader.as_ref().unwrap_or(&program).entry;
    Some(Departure { from: words.as_ptr(), words: words.len(), stack, entry })
}

/// The longest chain of scripts that name scripts, as the kernel follows them.
const DEEPEST: u32 = 5;

/// Opens the program at `path`; of a script, its interpreter, to whose arguments the script's path
/// is added. NUL-terminated paths.
fn follow_scripts(vectors: &mut Vectors, path: &[u8]) -> Option<(i32, Vec<u8>)> {
    let mut path = Vec::from(path);
    for _ in 0..DEEPEST {
        let file = open(&path)?;
        let mut head = [0u8; HEAD_BYTES];
        let _ = call!(nr::PREAD64, file, head.as_mut_ptr(), head.len(), 0);
        if !head.starts_with(b"#!") {
            return Some((file, path));
        }
        fd::close(file);
        let (name, argument) = interpreter(&head)?;
        let terminated = |bytes: &[u8]| [bytes, b"\0"].concat();
        let name = terminated(name);
        vectors.interpret(&name, argument.map(terminated), &path);
        path = name;
    }
    None
}

fn open(path: &[u8]) -> Option<i32> {
    use uzswap::sys::open::{AT_FDCWD, O_CLOEXEC};
    check(call!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_CLOEXEC)).ok().map(|fd| fd as i32)
}

/// Executes the program as without uzswap.
fn run_alone(vectors: &Vectors, order: &Order) -> ! {
    let (argv, envp) = vectors.original();
    takeover::leave_unmanaged(&order.handles);
    order.handles.counters.close();
    order.handles.settings.close();
    let _ = call!(nr::EXECVE, order.path.as_ptr(), argv.as_ptr(), envp.as_ptr());
    end("the program cannot be executed")
}

fn end(why: &str) -> ! {
    for part in ["uzswap: ", why, "\n"] {
        let _ = call!(nr::WRITE, 2, part.as_ptr(), part.len());
    }
    loop {
        let _ = call!(nr::EXIT_GROUP, 127);
    }
}
