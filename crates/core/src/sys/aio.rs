//! Writes and reads that go on while we do something else: the kernel's asynchronous I/O
//! (`io_submit`).
//!
//! io_uring is not used, for two reasons. It hands a write that needs disk blocks to a worker
//! thread, which belongs to the program: it would show in the task list, forbid calls that only
//! single-threaded programs may make, and make each of our TLB flushes an interrupt. And the
//! default seccomp profile of containers refuses it. `io_submit` of an `O_DIRECT` write allocates
//! the blocks at once, starts the transfer, and has no thread.
//!
//! # Safety charter
//! A buffer that the kernel is reading or filling is owned by its slot and reachable by nobody:
//! `buffer` gives it out only while no transfer of it is in flight, and dropping the queue waits
//! for all of them. The kernel reads a control block in `io_submit` only. It is kept as it is until
//! the result is in, for programs that look at both (valgrind). A fork copies memory that the
//! kernel may be filling, so it must find every queue idle; the child then forgets the parent's
//! context.
#![allow(unsafe_code)]

use super::file::Fd;
use super::mem::Mapping;
use super::{Errno, PAGE_SIZE, Result, nr, place};

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;

/// `struct iocb`.
#[repr(C)]
#[derive(Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    at: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}
const _: () = assert!(size_of::<ControlBlock>() == 64);

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    control_block: u64,
    result: i64,
    result2: i64,
}
const _: () = assert!(size_of::<Event>() == 32);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    InFlight {
        len: usize,
        /// The error if less was transferred.
        short: Errno,
    },
    Done(Result<()>),
    /// Lent to another writer, which gives the buffer back with the result.
    Lent,
    /// Will be done when somebody waits for it (tests).
    #[cfg(any(test, feature = "testing"))]
    Promised,
}

/// The work of a promised transfer, done when it is waited for.
#[cfg(any(test, feature = "testing"))]
type Promise = Box<dyn FnOnce(&mut [u8]) -> Result<()> + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    NotYet,
    Open(usize),
    /// The kernel has no context for us.
    Refused,
}

struct Slot {
    buffer: Mapping,
    state: State,
    block: ControlBlock,
    #[cfg(any(test, feature = "testing"))]
    promise: Option<Promise>,
}

/// A few buffers, each of which can be on its way to a file or from it.
pub struct AioQueue<const N: usize> {
    slots: [Slot; N],
    context: Context,
}

impl<const N: usize> AioQueue<N> {
    /// Buffers of `len` bytes. The kernel is asked for nothing before the first transfer.
    pub fn new(len: usize) -> Result<Self> {
        let mut slots = [const { None }; N];
        for slot in &mut slots {
            *slot = Some(Slot {
                buffer: Mapping::new(len)?,
                state: State::Idle,
                block: ControlBlock::default(),
                #[cfg(any(test, feature = "testing"))]
                promise: None,
            });
        }
        Ok(AioQueue { slots: slots.map(|s| s.expect("filled above")), context: Context::NotYet })
    }

    /// A slot with nothing in flight and no result to take.
    pub fn idle(&self) -> Option<usize> {
        self.slots.iter().position(|s| s.state == State::Idle)
    }

    /// Whether there is nothing in flight and no result to take.
    pub fn is_idle(&self) -> bool {
        self.slots.iter().all(|s| s.state == State::Idle)
    }

    /// Slots that are in flight, or whose results nobody has taken.
    pub fn busy(&self) -> usize {
        self.slots.iter().filter(|s| s.state != State::Idle).count()
    }

    /// The buffer of an idle slot.
    pub fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.slots[slot].state == State::Idle, "the kernel has the buffer");
        self.slots[slot].buffer.as_mut_slice()
    }

    /// Gives the memory of idle slots' buffers back; their contents are gone.
    pub fn give_buffers_back(&mut self) {
        for slot in self.slots.iter_mut().filter(|s| s.state == State::Idle) {
            slot.buffer.decommit(0..slot.buffer.len());
        }
    }

    /// Starts writing the first `len` bytes of an idle slot's buffer. An error means that nothing
    /// was started.
    pub fn submit_write(&mut self, slot: usize, fd: Fd, at: u64, len: usize) -> Result<()> {
        // A write that is cut short is how a file system runs full in the middle.
        self.submit(IOCB_CMD_PWRITE, slot, fd, at, State::InFlight { len, short: Errno::ENOSPC })
    }

    /// Starts reading into the first `len` bytes of an idle slot's buffer. An error means that
    /// nothing was started.
    pub fn submit_read(&mut self, slot: usize, fd: Fd, at: u64, len: usize) -> Result<()> {
        self.submit(IOCB_CMD_PREAD, slot, fd, at, State::InFlight { len, short: Errno::EIO })
    }

    fn submit(&mut self, opcode: u16, slot: usize, fd: Fd, at: u64, next: State) -> Result<()> {
        let State::InFlight { len, .. } = next else {
            unreachable!("what is submitted is in flight")
        };
        assert!(self.slots[slot].state == State::Idle && len <= self.slots[slot].buffer.len());
        let context = self.context()?;
        let s = &mut self.slots[slot];
        s.block = ControlBlock {
            data: slot as u64,
            opcode,
            fd: fd as u32,
            buf: s.buffer.addr() as u64,
            len: len as u64,
            at: at as i64,
            ..ControlBlock::default()
        };
        let blocks = [&raw const s.block];
        // SAFETY: the control block is copied by the call; the buffer is `len` bytes at least, and
        // stays untouched until the result is in (see the charter).
        match unsafe { uz_syscall!(nr::IO_SUBMIT, context, 1, blocks.as_ptr()) } {
            Ok(1) => {
                s.state = next;
                Ok(())
            }
            Ok(_) => Err(Errno::EAGAIN),
            Err(e) => Err(e),
        }
    }

    /// Collects the results that have come in; with `wait`, at least one if anything is in flight.
    pub fn reap(&mut self, wait: bool) {
        #[cfg(any(test, feature = "testing"))]
        for s in &mut self.slots {
            if s.state == State::Promised && wait {
                let keep = s.promise.take().expect("made with the state");
                s.state = State::Done(keep(s.buffer.as_mut_slice()));
                return;
            }
        }
        let Context::Open(context) = self.context else { return };
        let in_flight =
            self.slots.iter().filter(|s| matches!(s.state, State::InFlight { .. })).count();
        if in_flight == 0 {
            return;
        }
        let mut events = [Event::default(); N];
        let zero = [0u64; 2];
        let timeout = if wait { 0 } else { zero.as_ptr().addr() };
        // SAFETY: the kernel writes at most N events into the array, and reads the timespec.
        let got = unsafe {
            uz_syscall!(
                nr::IO_GETEVENTS,
                context,
                usize::from(wait),
                N,
                events.as_mut_ptr(),
                timeout
            )
        };
        // Interrupted: the caller looks again.
        for e in &events[..got.unwrap_or(0)] {
            let slot = &mut self.slots[e.data as usize];
            let State::InFlight { len, short } = slot.state else {
                unreachable!("a result for nothing")
            };
            slot.state = State::Done(match e.result {
                n if n == len as i64 => Ok(()),
                n if n >= 0 => Err(short),
                n => Err(Errno(-n as i32)),
            });
        }
    }

    /// The result of a slot's transfer, once; the slot is idle then.
    pub fn take_result(&mut self, slot: usize) -> Option<Result<()>> {
        let State::Done(result) = self.slots[slot].state else { return None };
        self.slots[slot].state = State::Idle;
        Some(result)
    }

    /// Lends the idle slot's buffer, to be written by other means, until it is given back with the
    /// result.
    pub fn lend(&mut self, slot: usize) {
        assert!(self.slots[slot].state == State::Idle);
        self.slots[slot].state = State::Lent;
    }

    /// The bytes in a slot that is lent.
    pub fn lent(&self, slot: usize) -> &[u8] {
        assert!(self.slots[slot].state == State::Lent, "it was lent");
        self.slots[slot].buffer.as_slice()
    }

    /// Ends what `lend` began.
    pub fn give_back(&mut self, slot: usize, result: Result<()>) {
        assert!(self.slots[slot].state == State::Lent, "it was lent");
        self.slots[slot].state = State::Done(result);
    }

    /// In the child after fork: the kernel's side belongs to the parent, and only its ring is here,
    /// too. Nothing may be in flight.
    pub fn forget(&mut self) {
        assert!(self.is_idle());
        if let Context::Open(ring) = self.context {
            // SAFETY: a mapping that is ours, and without its context of no use.
            let _ = unsafe { uz_syscall!(nr::MUNMAP, ring, ring_bytes(ring)) };
        }
        self.context = Context::NotYet;
    }

    /// In a child that was forked at any moment, of a queue that is only dropped from now on:
    /// transfers in flight are the parent's.
    pub fn abandon(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.state = State::Idle);
        self.forget();
    }

    fn context(&mut self) -> Result<usize> {
        if self.context == Context::NotYet {
            let mut context = 0usize;
            // SAFETY: the kernel writes one word.
            let made = unsafe { uz_syscall!(nr::IO_SETUP, N, &raw mut context) };
            self.context = match made {
                // The kernel has mapped its ring where the program's memory is. The ring can be
                // moved: the kernel goes by its present address.
                Ok(_) => Context::Open(place::take_in(context, ring_bytes(context))),
                Err(_) => Context::Refused,
            };
        }
        match self.context {
            Context::Open(context) => Ok(context),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Pretends a transfer that happens, and whose result comes, when somebody waits for it.
    #[cfg(any(test, feature = "testing"))]
    pub fn promise(
        &mut self,
        slot: usize,
        keep: impl FnOnce(&mut [u8]) -> Result<()> + Send + 'static,
    ) {
        assert!(self.slots[slot].state == State::Idle);
        self.slots[slot].state = State::Promised;
        self.slots[slot].promise = Some(Box::new(keep));
    }
}

/// Size of the kernel's ring of results at `ring`.
fn ring_bytes(ring: usize) -> usize {
    const HEADER_BYTES: usize = 32;
    // SAFETY: the kernel's header: the ring's number, and how many events fit.
    let events = unsafe { (ring as *const u32).add(1).read_volatile() };
    (HEADER_BYTES + events as usize * size_of::<Event>()).next_multiple_of(PAGE_SIZE)
}

impl<const N: usize> Drop for AioQueue<N> {
    fn drop(&mut self) {
        while self.slots.iter().any(|s| matches!(s.state, State::InFlight { .. })) {
            self.reap(true);
        }
        if let Context::Open(context) = self.context {
            // SAFETY: the context is ours, and idle.
            let _ = unsafe { uz_syscall!(nr::IO_DESTROY, context) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    #[test]
    fn writes_land_and_results_come_once() {
        let dir =
            file::open_directory(std::env::temp_dir().as_os_str().as_encoded_bytes()).unwrap();
        let fd = file::open_unlinked(dir).unwrap();
        file::set_direct(fd, true).unwrap();
        let mut q = AioQueue::<2>::new(8192).unwrap();
        for round in 0..20u8 {
            let slot = loop {
                match q.idle() {
                    Some(slot) => break slot,
                    None => {
                        q.reap(true);
                        assert!((0..2).filter_map(|s| q.take_result(s)).all(|r| r.is_ok()));
                    }
                }
            };
            q.buffer(slot).fill(round);
            q.submit_write(slot, fd, u64::from(round) * 8192, 8192).unwrap();
            assert_ne!(q.idle(), Some(slot));
        }
        while !q.is_idle() {
            q.reap(true);
            assert!((0..2).filter_map(|s| q.take_result(s)).all(|r| r.is_ok()));
        }
        assert!(matches!(q.context, Context::Open(ring) if place::is_here(ring)));
        let mut back = Mapping::new(8192).unwrap();
        for round in 0..20u8 {
            file::read_exact_at(fd, back.as_mut_slice(), u64::from(round) * 8192).unwrap();
            assert!(back.as_slice().iter().all(|&b| b == round));
        }
        // A bad descriptor is an error at once, a bad alignment at once or as a result: both leave
        // an idle slot.
        assert_eq!(q.submit_write(0, -1, 0, 8192), Err(Errno::EBADF));
        let late = q.submit_write(0, fd, 1, 8192).is_ok();
        while !q.is_idle() {
            q.reap(true);
            if let Some(r) = q.take_result(0) {
                assert!(late && r == Err(Errno::EINVAL));
            }
        }
        q.buffer(0).fill(9);
        q.submit_write(0, fd, 0, 4096).unwrap();
        drop(q);
        file::read_exact_at(fd, &mut back.as_mut_slice()[..4096], 0).unwrap();
        assert!(back.as_slice()[..4096].iter().all(|&b| b == 9), "dropping waits");
        file::close(fd);
        file::close(dir);
    }

    #[test]
    fn reads_arrive_and_short_ones_are_errors() {
        let dir =
            file::open_directory(std::env::temp_dir().as_os_str().as_encoded_bytes()).unwrap();
        let fd = file::open_unlinked(dir).unwrap();
        file::set_direct(fd, true).unwrap();
        let mut from = Mapping::new(4 * 4096).unwrap();
        from.as_mut_slice()
            .iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = (i / 4096 * 7 + i % 251) as u8);
        file::write_all_at(fd, from.as_slice(), 0).unwrap();
        let mut q = AioQueue::<1>::new(8192).unwrap();
        let result = |q: &mut AioQueue<1>| loop {
            q.reap(true);
            if let Some(result) = q.take_result(0) {
                break result;
            }
        };
        for block in [0, 2, 1] {
            q.buffer(0).fill(0xee);
            q.submit_read(0, fd, block * 4096, 8192).unwrap();
            assert_eq!((q.busy(), q.idle()), (1, None));
            assert_eq!(result(&mut q), Ok(()));
            assert!(q.is_idle());
            let at = block as usize * 4096;
            assert!(q.buffer(0) == &from.as_slice()[at..at + 8192], "block {block}");
        }
        q.submit_read(0, fd, 3 * 4096, 8192).unwrap();
        assert_eq!(result(&mut q), Err(Errno::EIO), "half of it is behind the end of the file");
        q.submit_read(0, fd, 0, 4096).unwrap();
        drop(q);
        file::close(fd);
        file::close(dir);
    }
}
