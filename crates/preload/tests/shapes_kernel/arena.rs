//! Memory for the arguments of one call, whose pages can be taken away, and a process to make the
//! call in.

use std::ptr;

use uzswap::sys::{PAGE_SIZE, nr, syscall};
use uzswap_preload::calls::walk::{Kind, Visit};

pub const ARENA_PAGES: usize = 8192;
/// Seconds after which a child is taken to hang: a case takes milliseconds, and a disk may be busy.
const PATIENCE_SECONDS: usize = 120;

unsafe extern "C" {
    fn fork() -> i32;
}

/// A system call, raw.
pub fn sys(number: usize, given: &[usize]) -> isize {
    let mut args = [0; 6];
    args[..given.len()].copy_from_slice(given);
    // SAFETY: the cases make calls that are harmless in a child that ends right afterwards.
    unsafe { syscall(number, args) }
}

/// Fresh memory; shared with children if asked for.
fn map(pages: usize, shared: bool) -> usize {
    const READ_WRITE: usize = 3;
    const ANONYMOUS: usize = 0x20;
    let flags = ANONYMOUS | if shared { 1 } else { 2 };
    let addr = sys(nr::MMAP, &[0, pages * PAGE_SIZE, READ_WRITE, flags, usize::MAX, 0]);
    assert!(addr > 0, "mmap: {addr}");
    addr as usize
}

/// Runs `body` in a child. `Err`: it did not come to its end.
pub fn in_child(
    body: impl FnOnce(&mut Place) -> Option<[isize; 3]>,
) -> Result<Option<[isize; 3]>, String> {
    let answer = map(1, true) as *mut [isize; 5];
    // SAFETY: the process has one thread, so no lock of the allocator is held.
    let child = unsafe { fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        sys(nr::ALARM, &[PATIENCE_SECONDS]);
        let mut place = Place::new();
        let outcome = body(&mut place);
        let [first, second, third] = outcome.unwrap_or_default();
        // SAFETY: the page is mapped, and the parent reads it only when this process is gone.
        unsafe { ptr::write(answer, [1, outcome.is_some() as isize, first, second, third]) };
        sys(nr::EXIT_GROUP, &[0]);
    }
    let mut status = 0u32;
    let reaped = sys(nr::WAIT4, &[child as usize, &raw mut status as usize, 0, 0]);
    assert_eq!(reaped, child as isize);
    // SAFETY: mapped above; the only other user has ended.
    let [done, some, first, second, third] = unsafe { ptr::read(answer) };
    sys(nr::MUNMAP, &[answer as usize, PAGE_SIZE]);
    match (done, status) {
        (1, 0) => Ok((some != 0).then_some([first, second, third])),
        _ => Err(format!("the child ended with status {status:#x}")),
    }
}

/// Lays out the arguments of a call.
pub struct Place {
    base: usize,
    next_page: usize,
    /// The place of the page boundary in each buffer: one of those that are possible.
    pub variant: usize,
    /// How many places the buffer with the most of them has.
    pub variants: usize,
    pub held: Vec<(usize, usize, Kind)>,
}

impl Place {
    fn new() -> Place {
        Place {
            base: map(ARENA_PAGES, false),
            next_page: 1,
            variant: 0,
            variants: 1,
            held: Vec::new(),
        }
    }

    /// Bytes that the kernel reads (or anything). They lie across a page boundary, which falls
    /// between two multiples of `align`.
    pub fn put_aligned(&mut self, bytes: &[u8], align: usize) -> usize {
        let len = bytes.len();
        let step = align.max(4);
        // Small buffers: everywhere; large ones: near both ends and in the middle.
        let mut cuts: Vec<usize> =
            (step..len).step_by(step).filter(|cut| *cut < 520 || len - cut < 24).collect();
        if align == 1 && len > 1 {
            cuts.extend([1, len - 1]);
        }
        cuts.push(len);
        self.variants = self.variants.max(cuts.len());
        let cut = cuts[self.variant % cuts.len()];
        let pages_before = cut.div_ceil(PAGE_SIZE);
        let boundary = self.base + (self.next_page + pages_before) * PAGE_SIZE;
        self.next_page += pages_before + (len - cut).div_ceil(PAGE_SIZE) + 1;
        assert!(self.next_page < ARENA_PAGES);
        let addr = boundary - cut;
        // SAFETY: inside the arena, which this process has mapped and nothing refers to.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, len) };
        addr
    }

    pub fn put(&mut self, bytes: &[u8]) -> usize {
        self.put_aligned(bytes, 1)
    }

    /// Room for an answer.
    pub fn out(&mut self, len: usize) -> usize {
        self.put(&vec![0; len])
    }

    pub fn str(&mut self, text: &str) -> usize {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.put(&bytes)
    }

    pub fn words(&mut self, words: &[usize]) -> usize {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(&bytes)
    }

    pub fn ints(&mut self, ints: &[u32]) -> usize {
        let bytes: Vec<u8> = ints.iter().flat_map(|int| int.to_le_bytes()).collect();
        self.put(&bytes)
    }

    /// One iovec for each buffer.
    pub fn iovecs(&mut self, buffers: &[(usize, usize)]) -> usize {
        let words: Vec<usize> = buffers.iter().flat_map(|&(base, len)| [base, len]).collect();
        self.words(&words)
    }

    fn protect(&self, addr: usize, len: usize, protection: usize) {
        assert_eq!(sys(nr::MPROTECT, &[addr, len, protection]), 0);
    }

    /// Takes every page of the arena away.
    pub fn close(&self) {
        self.protect(self.base, ARENA_PAGES * PAGE_SIZE, 0);
    }

    /// Gives every page back.
    pub fn open(&self) {
        self.protect(self.base, ARENA_PAGES * PAGE_SIZE, 3);
    }

    /// Takes every page away but those that have been held.
    pub fn close_but_held(&self) {
        self.close();
        let arena = self.base..self.base + ARENA_PAGES * PAGE_SIZE;
        // Ranges that are read come first, so that pages that are also written stay writable.
        for writable in [false, true] {
            for &(addr, len, kind) in &self.held {
                if (kind != Kind::In) != writable || !arena.contains(&addr) {
                    continue;
                }
                let from = addr & !(PAGE_SIZE - 1);
                let to = (addr + len).next_multiple_of(PAGE_SIZE).min(arena.end);
                self.protect(from, to - from, if writable { 3 } else { 1 });
            }
        }
    }
}

impl Visit for Place {
    fn hold(&mut self, addr: usize, len: usize, kind: Kind) {
        self.held.push((addr, len, kind));
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        // The kernel copies, for it can fail.
        let local = [into.as_mut_ptr() as usize, into.len()];
        let remote = [addr, into.len()];
        let pid = sys(nr::GETPID, &[]) as usize;
        let args = [pid, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0];
        sys(nr::PROCESS_VM_READV, &args) == into.len() as isize
    }

    fn is_own(&self, pid: usize) -> bool {
        pid == sys(nr::GETPID, &[]) as usize
    }
}
