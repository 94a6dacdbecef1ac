//! The hook: each system call of the program that is not left to the kernel comes here, and goes to
//! the file that knows it.
//!
//! # Safety charter
//! As for [`super`]: the frame is the trampoline's, live until the hook returns.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::sys::{Errno, nr};

use super::routes::{KEPT, LIMITS, is_newer_than_table};
use super::thread::ThreadBlock;
use super::{
    ACTIVE, Answer, Args, buffers, cancel, descriptors, guests, identity, memory, others, own_exe,
    own_path, own_stack, own_userfaultfd, pins, process, sandbox, signals,
};
use crate::calls::is_kept;
use crate::calls::shapes::{Disposition, disposition, has_pointers};
use crate::patch::{self, ACTION_CLONE_THREAD, ACTION_INLINE, ACTION_RETURN, HookFrame};

pub(super) extern "C" fn hook(frame: *mut HookFrame) -> u64 {
    // SAFETY: the trampoline passes its own live frame.
    let f = unsafe { &mut *frame };
    let number = f.rax as u32 as usize;
    let args: Args = [f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9].map(|r| r as usize);
    // Without memory for a block the kernel decides alone, as it would without us.
    let Some(t) = own_stack::find() else { return ACTION_INLINE };
    t.take_back_holds();
    if f.hook_stack.is_null() {
        t.forget_abandoned_hooks(f.rsp as usize);
        t.holds().drop_abandoned(f.rsp as usize, t.alternate_range());
    } else {
        // Holds of hooks whose frames lie below this one's on the hook stack were abandoned.
        t.holds().drop_abandoned(frame as usize, 0..0);
    }
    // Only this thread has the word, and a handler puts back what it finds.
    let (word, interrupted) = (patch::cancel_word(f), t.cancel_word.load(Ordering::Relaxed));
    t.cancel_word.store(word, Ordering::Relaxed);
    // As that word: a wait that this call interrupts goes on, and one that was left by a jump is
    // not this call's.
    let awaits = t.awaits_sent.load(Ordering::Relaxed);
    if awaits != 0 {
        t.awaits_sent.store(0, Ordering::Relaxed);
    }
    let mut answer = dispatch(t, number, args, f);
    // In its place the call would wait though the thread was cancelled during the hook. close is
    // not made here: musl takes EINTR for its success.
    if word != 0 && number != nr::CLOSE && matches!(answer, Answer::Inline) {
        let args = [f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9].map(|r| r as usize);
        answer = Answer::Result(cancel::call(t, number, args));
    }
    // The word is that of a call which the program's handler has interrupted, or nobody's.
    t.cancel_word.store(interrupted, Ordering::Relaxed);
    if awaits != 0 {
        t.awaits_sent.store(awaits, Ordering::Relaxed);
    }
    match answer {
        Answer::Result(r) => {
            f.rax = r as u64;
            ACTION_RETURN
        }
        Answer::Inline => ACTION_INLINE,
        Answer::CloneThread(block) => {
            f.thread_block = block;
            ACTION_CLONE_THREAD
        }
    }
}

fn dispatch(t: &'static ThreadBlock, number: usize, mut args: Args, f: &mut HookFrame) -> Answer {
    if is_newer_than_table(number) {
        return Answer::Result(Errno::ENOSYS.as_return());
    }
    if own_path::is_named(number)
        && let Some(answer) = own_exe::call(t, number, &mut args)
    {
        return answer;
    }
    if descriptors::ASKING.contains(&number) && descriptors::is_hidden(number, &args) {
        return Answer::Result(Errno::EBADF.as_return());
    }
    pins::note(number, &args);
    own_userfaultfd::note(t, number, &args);
    identity::note(number, &args);
    sandbox::note(t, number, &args);
    if number == nr::LSEEK {
        buffers::note_seek(&args);
    }
    if number == nr::PTRACE && guests::stops_us(&args) {
        return Answer::Result(guests::stop_thread(t, args));
    }
    let answer = match disposition(number) {
        _ if number == nr::RT_SIGPENDING => signals::call(t, number, args),
        _ if LIMITS.contains(&number) => descriptors::limit_call(t, number, args),
        Disposition::MemoryMap => memory::call(t, number, args),
        Disposition::Signal if number == nr::SIGALTSTACK => {
            Some(Answer::Result(signals::sigaltstack(t, args, f.rsp as usize)))
        }
        Disposition::Signal => signals::call(t, number, args),
        Disposition::Process => process::call(t, number, args, f),
        Disposition::Descriptor => descriptors::call(number, args),
        Disposition::Special if buffers::moves_memory_of_a_process(number) => {
            others::call(t, number, args).map(Answer::Result)
        }
        Disposition::Special => buffers::special(t, number, args),
        Disposition::Piecewise => buffers::piecewise(t, number, args),
        Disposition::Buffers | Disposition::ConsumesBeforeFault => None,
        Disposition::Plain | Disposition::Unimplemented => return Answer::Inline,
    };
    if KEPT.contains(&number) {
        buffers::keep_named(t, number, &args);
        return Answer::Inline;
    }
    // Requests that are under way when paging begins: a page of theirs must not leave.
    let is_early = number == nr::IO_SUBMIT && !ACTIVE.load(Ordering::Acquire);
    if is_early || number == nr::IOCTL && is_kept(args[1] as u32) {
        buffers::keep_named(t, number, &args);
    }
    match answer {
        Some(a) => a,
        None if ACTIVE.load(Ordering::Acquire) && has_pointers(number) => {
            Answer::Result(buffers::bounded_call(t, number, args))
        }
        None => Answer::Inline,
    }
}

#[cfg(test)]
mod tests {
    use super::super::routes::route_of;
    use super::*;
    use crate::patch::{ROUTE_COUNT, ROUTE_INLINE, ROUTE_LIGHT_HOOK};
    use crate::takeover::PAGER;
    use uzswap::region::RangeFlags;
    use uzswap::sys::PAGE_SIZE;
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};

    #[test]
    fn buffers_of_requests_that_begin_before_paging_stay() {
        let t = ThreadBlock::allocate().expect("a block");
        let buffer = map_anonymous(PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        let end = buffer + PAGE_SIZE;
        PAGER.note_mapped(&mut PAGER.enter(), buffer, end, 3, RangeFlags::NONE);
        // Of iocb: the operation (pread), the buffer, its length.
        let mut request = [0usize; 8];
        (request[3], request[4]) = (buffer, 512);
        let list = [request.as_ptr()];
        // SAFETY: integers and raw pointers, for which zeros are values.
        let mut frame: HookFrame = unsafe { core::mem::zeroed() };
        let answer =
            dispatch(t, nr::IO_SUBMIT, [0, 1, list.as_ptr() as usize, 0, 0, 0], &mut frame);
        assert!(matches!(answer, Answer::Inline));
        assert!(PAGER.holds.is_held(buffer, end));
        PAGER.note_unmapped(&mut PAGER.enter(), buffer, end);
        t.give_back();
    }

    #[test]
    fn calls_newer_than_the_table_and_those_of_io_uring_do_not_exist() {
        let t = ThreadBlock::allocate().expect("a block");
        let newer = nr::COUNT..ROUTE_COUNT;
        let of_io_uring = nr::IO_URING_SETUP..nr::IO_URING_REGISTER + 1;
        for number in newer.chain(of_io_uring) {
            // SAFETY: integers and raw pointers, for which zeros are values.
            let mut frame: HookFrame = unsafe { core::mem::zeroed() };
            let answer = dispatch(t, number, [0; 6], &mut frame);
            let Answer::Result(r) = answer else { panic!("call {number} reaches the kernel") };
            assert_eq!(r, Errno::ENOSYS.as_return(), "call {number}");
            assert_eq!(route_of(number, false), ROUTE_LIGHT_HOOK, "call {number}");
        }
        assert_eq!(route_of(nr::RSEQ_SLICE_YIELD, true), ROUTE_INLINE);
        t.give_back();
    }
}
