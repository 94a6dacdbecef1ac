//! Streams: working memory and an output buffer, about one per CPU, taken without sleeping.
//!
//! ```text
//!   cells   [0]   [1]   [2]   [3]        cell = CPU number modulo cells
//!            ^taken      ^
//!   CPU 0 --'  `--> next free one        the holder was preempted, or this is another thread on its CPU
//! ```
//!
//! A stream is taken by one atomic exchange on a word of its own cache line, almost always the one
//! that this CPU used last, and given back by one store. If it is taken, the others are tried in
//! turn; if all are, the taker spins and gives up its time slice: it never queues, so a single
//! writer pays for nothing but the exchange. The number of streams is fixed when the set is made:
//! more threads never mean more memory.
//!
//! A thread that has a stream may be interrupted by handlers that need one, too, but less often
//! than there are streams: the pager has signals blocked.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::Scratch;
use crate::sys::Result;
use crate::sys::contention::{self, Class, Waits};
use crate::sys::cpu;
use crate::sys::mem::Mapping;
use crate::sys::take_cell::{TakeCell, Taken};

/// Memory that one compression or decompression needs besides its input and destination.
pub struct Stream {
    pub scratch: Scratch,
    /// For the compressed form, whose length nobody knows before: as long as the largest input.
    pub out: Mapping,
}

/// With very many CPUs, more streams than this hardly find work, and their memory would add up.
const MAX_CELLS: usize = 32;

/// See the module.
pub struct Streams {
    cells: Vec<TakeCell<Stream>>,
    /// Address space of all scratches, as of the last use of each.
    scratch_bytes: AtomicUsize,
    out_bytes: usize,
}

impl Streams {
    /// One stream per CPU (2 at least, 32 at most). Frames are taken when a stream is first used.
    pub fn new(max_input_bytes: usize) -> Result<Streams> {
        Self::with_cells(cpu::count().clamp(2, MAX_CELLS), max_input_bytes)
    }

    /// That many streams, 1 to 32.
    pub fn with_cells(cells: usize, max_input_bytes: usize) -> Result<Streams> {
        let cells = (0..cells.clamp(1, MAX_CELLS))
            .map(|_| {
                Ok(TakeCell::new(Stream {
                    scratch: Scratch::with_decoders()?,
                    out: Mapping::new(max_input_bytes)?,
                }))
            })
            .collect::<Result<Vec<_>>>()?;
        let out_bytes =
            cells.len() * max_input_bytes.max(1).next_multiple_of(crate::sys::PAGE_SIZE);
        Ok(Streams { cells, scratch_bytes: AtomicUsize::new(0), out_bytes })
    }

    /// How many streams there are.
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// Runs `f` with a stream that nobody else uses.
    pub fn with<R>(&self, f: impl FnOnce(&mut Stream) -> R) -> R {
        let (taken, waits) = self.take(cpu::current() % self.cells.len());
        let meter = contention::hold_begins(Class::Stream, waits);
        let result = taken.with(|stream| {
            let before = stream.scratch.mapped_bytes();
            let result = f(stream);
            let after = stream.scratch.mapped_bytes();
            if before != after {
                // Wraps when a scratch shrinks, which is what the sum wants.
                self.scratch_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
            result
        });
        meter.ends().count();
        result
    }

    /// Whether some codec has working memory.
    pub fn have_scratch(&self) -> bool {
        self.scratch_bytes.load(Ordering::Relaxed) > 0
    }

    /// Gives the memory back of the streams that nobody uses now.
    pub fn give_buffers_back(&self) {
        for taken in self.cells.iter().filter_map(TakeCell::try_take) {
            taken.with(|stream| {
                let before = stream.scratch.mapped_bytes();
                stream.scratch.give_buffers_back();
                stream.out.decommit(0..stream.out.len());
                self.scratch_bytes.fetch_sub(before, Ordering::Relaxed);
            });
        }
    }

    /// Takes every stream, waiting for its holder: for the moment of a fork, so that the child
    /// finds none taken by a thread that it does not have, and none half changed.
    pub fn hold_all(&self) -> HeldStreams<'_> {
        // An array, not a vector: this runs in the program, which owns the allocator.
        let take =
            |index| self.cells.get(index).map(|cell: &TakeCell<_>| wait_for(|| cell.try_take()));
        HeldStreams { _taken: core::array::from_fn(take) }
    }

    /// Address space of all streams, in bytes (an upper bound of what is resident).
    pub fn mapped_bytes(&self) -> usize {
        self.out_bytes + self.scratch_bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn take(&self, first: usize) -> (Taken<'_, Stream>, Waits) {
        if let Some(taken) = self.cells[first].try_take() {
            return (taken, Waits::NONE);
        }
        let waits = Waits::begin();
        let (before, from) = self.cells.split_at(first);
        (wait_for(|| from.iter().chain(before).find_map(TakeCell::try_take)), waits)
    }
}

#[cold]
fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut round = 0;
    loop {
        if let Some(taken) = attempt() {
            return taken;
        }
        #[cfg(shuttle)]
        shuttle::thread::yield_now();
        cpu::relax(round);
        round += 1;
    }
}

/// All streams, until dropped.
pub struct HeldStreams<'a> {
    _taken: [Option<Taken<'a, Stream>>; MAX_CELLS],
}
