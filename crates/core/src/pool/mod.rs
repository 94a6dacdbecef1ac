//! Pools: where few bytes live in RAM.
//!
//! A pool keeps *objects*, byte strings of 1 to 4096 bytes, in frames of 4 KiB obtained from the
//! kernel, and knows them by opaque *handles*. It knows nothing of pages, codecs or files.
//!
//! ```text
//!   store(bytes) -> Handle        read(Handle) -> bytes        free(Handle)
//!  +----------------------------------------------------------------------+
//!  | Pool: Zsmalloc (dense, compacts)  or  Zbud (two per frame, reclaims)  |
//!  +----------------------------------------------------------------------+
//!  | Frames: used, warm (free, kept), cold (given back)       frames.rs    |
//!  +----------------------------------------------------------------------+
//! ```
//!
//! - [`zsmalloc`]: size classes; chains of up to 8 frames in which objects may span frames; objects
//!   can move, so that sparse zspages become dense ones and free frames.
//! - [`zbud`]: at most two objects in a frame; bounded density, least recently filled frames
//!   reclaimed.
//!
//! A pool has no lock: an owner who shares it wraps it in one. Objects can be filled and read
//! without that lock, while they are pinned ([`pin`]). A pool never calls the Rust allocator, and
//! lack of memory is an error value. A handle that is stale (freed before, or of another pool) is a
//! broken invariant of the caller and stops the process.

mod frames;
#[cfg(any(test, feature = "testing"))]
pub mod model;
pub mod pin;
mod size_class;
#[cfg(test)]
mod tests;
pub mod zbud;
pub mod zsmalloc;

use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys::PAGE_SIZE;
use crate::sys::contention::{self, Slow};
pub use zbud::Zbud;
pub use zsmalloc::Zsmalloc;

/// The largest object a pool takes.
pub const MAX_OBJECT_BYTES: usize = PAGE_SIZE;
/// The most that the frames of a pool hold: 1 TiB, as much as a `Table` has.
pub const MOST_BYTES: usize = 1 << 40;

/// The name of one object of one pool, valid from `store` to `free`.
///
/// ```text
///  63  62 61    58 57        46 45              30 29                     0
/// +------+--------+------------+------------------+------------------------+
/// | kind | pool   | length - 1 | generation       | index                  |
/// +------+--------+------------+------------------+------------------------+
/// ```
///
/// The kind is never 0, so neither is a handle. Generation and index are the pool's: an index is
/// used again with the next generation, by which a stale handle is told from a live one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(NonZeroU64);

const INDEX_BITS: u32 = 30;
const GENERATION_BITS: u32 = 16;
const LEN_BITS: u32 = 12;
/// Kind and number of a pool, as they stand in the upper bits of its handles.
const TAG_SHIFT: u32 = INDEX_BITS + GENERATION_BITS + LEN_BITS;

impl Handle {
    fn new(tag: PoolTag, len: usize, generation: u16, index: u32) -> Handle {
        debug_assert!((1..=MAX_OBJECT_BYTES).contains(&len) && index >> INDEX_BITS == 0);
        let raw = (tag.0 as u64) << TAG_SHIFT
            | (len as u64 - 1) << (INDEX_BITS + GENERATION_BITS)
            | (generation as u64) << INDEX_BITS
            | index as u64;
        Handle(NonZeroU64::new(raw).expect("a tag is not 0"))
    }

    /// The object's length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // no object is empty
    pub fn len(self) -> usize {
        (self.0.get() >> (INDEX_BITS + GENERATION_BITS)) as usize % (1 << LEN_BITS) + 1
    }

    fn tag(self) -> PoolTag {
        PoolTag((self.0.get() >> TAG_SHIFT) as u8)
    }

    fn generation(self) -> u16 {
        (self.0.get() >> INDEX_BITS) as u16
    }

    fn index(self) -> u32 {
        self.0.get() as u32 % (1 << INDEX_BITS)
    }

    /// The handle as a number, never 0.
    pub fn to_raw(self) -> u64 {
        self.0.get()
    }

    /// The handle of which `to_raw` made `raw`; `None` for 0.
    pub fn from_raw(raw: u64) -> Option<Handle> {
        NonZeroU64::new(raw).map(Handle)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Handle({:#x}:{}, generation {}, {} bytes)",
            self.tag().0,
            self.index(),
            self.generation(),
            self.len()
        )
    }
}

/// The tag in every handle of a pool: its kind, and its number modulo 16 so that pools of one kind
/// are told apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PoolTag(u8);

impl PoolTag {
    fn next(kind: PoolKind) -> PoolTag {
        static POOLS: AtomicU32 = AtomicU32::new(0);
        let number = POOLS.fetch_add(1, Ordering::Relaxed) as u8 % 16;
        PoolTag((kind as u8) << 4 | number)
    }
}

/// The allocator of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolKind {
    Zsmalloc = 1,
    Zbud = 2,
}

impl PoolKind {
    pub const ALL: [PoolKind; 2] = [PoolKind::Zsmalloc, PoolKind::Zbud];

    pub fn name(self) -> &'static str {
        match self {
            PoolKind::Zsmalloc => "zsmalloc",
            PoolKind::Zbud => "zbud",
        }
    }

    pub fn parse(name: &str) -> Option<PoolKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The reason why an object was not stored. The pool is as it was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// The limit of `set_max_frames` is reached.
    Full,
    /// The kernel gave no memory.
    NoMemory,
    /// More than [`MAX_OBJECT_BYTES`].
    TooLarge,
    /// No bytes at all.
    Empty,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolError::Full => "the pool is full",
            PoolError::NoMemory => "no memory for the pool",
            PoolError::TooLarge => "the object is larger than a page",
            PoolError::Empty => "the object is empty",
        })
    }
}

impl core::error::Error for PoolError {}

/// One size class (zsmalloc) or one count of buddies (zbud), in the columns of the kernel's
/// `/sys/kernel/debug/zsmalloc/*/classes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStats {
    pub class: usize,
    pub size_bytes: usize,
    /// Zspages by how many of the slots in their frames are used: up to 10 %, 20 %, ... 90 %, 99 %,
    /// 100 %.
    pub fullness: [usize; FULLNESS_COLUMNS],
    pub obj_allocated: usize,
    pub obj_used: usize,
    pub pages_used: usize,
    pub pages_per_zspage: usize,
    /// Frames that compaction could free.
    pub freeable: usize,
}

/// Columns of [`ClassStats::fullness`].
pub const FULLNESS_COLUMNS: usize = 11;

impl ClassStats {
    pub const HEADER: &'static str = concat!(
        " class  size      10%      20%      30%      40%      50%",
        "      60%      70%      80%      90%      99%     100%",
        " obj_allocated   obj_used pages_used pages_per_zspage freeable"
    );
}

impl fmt::Display for ClassStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {:5} {:5}", self.class, self.size_bytes)?;
        for count in self.fullness {
            write!(f, " {count:8}")?;
        }
        write!(
            f,
            " {:13} {:10} {:10} {:16} {:8}",
            self.obj_allocated,
            self.obj_used,
            self.pages_used,
            self.pages_per_zspage,
            self.freeable
        )
    }
}

/// A pool of either kind.
// Zsmalloc holds its list heads inline: a few KiB, moved once, when the pool is made.
#[allow(clippy::large_enum_variant)]
pub enum Pool {
    Zsmalloc(Zsmalloc),
    Zbud(Zbud),
}

/// Calls a method of the pool, of either kind.
macro_rules! either {
    ($pool:expr, $p:ident => $call:expr) => {
        match $pool {
            Pool::Zsmalloc($p) => $call,
            Pool::Zbud($p) => $call,
        }
    };
}

impl Pool {
    /// An empty pool. It maps nothing before the first `store`.
    pub fn new(kind: PoolKind) -> Pool {
        match kind {
            PoolKind::Zsmalloc => Pool::Zsmalloc(Zsmalloc::new()),
            PoolKind::Zbud => Pool::Zbud(Zbud::new()),
        }
    }

    pub fn kind(&self) -> PoolKind {
        match self {
            Pool::Zsmalloc(_) => PoolKind::Zsmalloc,
            Pool::Zbud(_) => PoolKind::Zbud,
        }
    }

    /// Copies `bytes` into a new object. After an error the pool is as it was.
    #[inline]
    pub fn store(&mut self, bytes: &[u8]) -> Result<Handle, PoolError> {
        contention::note(Slow::Copy);
        check_length(bytes.len())?;
        either!(self, p => p.store(bytes))
    }

    /// The object's bytes: where they lie, or assembled in `scratch` (at least `h.len()` bytes) if
    /// the object spans two frames.
    #[inline]
    pub fn read<'a>(&'a self, h: Handle, scratch: &'a mut [u8]) -> &'a [u8] {
        either!(self, p => p.read(h, scratch))
    }

    /// Ends the object. A handle that is stale stops the process.
    #[inline]
    pub fn free(&mut self, h: Handle) {
        if !self.try_free(h) {
            stale(h);
        }
    }

    /// Ends the object; `false` if the handle is stale.
    #[inline]
    pub fn try_free(&mut self, h: Handle) -> bool {
        either!(self, p => p.try_free(h))
    }

    /// Whether the handle names an object of this pool.
    pub fn holds(&self, h: Handle) -> bool {
        either!(self, p => p.holds(h))
    }

    /// Zbud: offers the objects of the least recently filled frames to `evict`, with their bytes,
    /// until a frame has none left. `evict` answers whether the owner gave the object up, in which
    /// case the pool frees it. Returns whether a frame came free. Zsmalloc keeps no such order and
    /// returns `false`, as in the kernel.
    pub fn reclaim(&mut self, evict: impl FnMut(Handle, &[u8]) -> bool) -> bool {
        match self {
            Pool::Zsmalloc(_) => false,
            Pool::Zbud(p) => p.reclaim(evict),
        }
    }

    /// Zsmalloc: moves objects out of sparse frames until about `max_frames` frames came free or no
    /// more can; returns how many did. Handles stay valid. The work of a call is bounded, so a call
    /// for very few frames may return 0 before the end; the frames that are left to free are the
    /// sum of `ClassStats::freeable`. Zbud cannot move objects: 0.
    pub fn compact(&mut self, max_frames: usize) -> usize {
        match self {
            Pool::Zsmalloc(p) => p.compact(max_frames),
            Pool::Zbud(_) => 0,
        }
    }

    /// Gives all free frames but a small reserve back to the kernel; returns how many.
    pub fn release(&mut self) -> usize {
        self.release_some(usize::MAX)
    }

    /// As `release`, at most `max_frames` of them.
    pub fn release_some(&mut self, max_frames: usize) -> usize {
        either!(self, p => p.frames.release(max_frames))
    }

    /// Frames that hold objects.
    pub fn used_frames(&self) -> usize {
        either!(self, p => p.frames.used())
    }

    /// Frames with memory behind them: those used, and those free but not released.
    pub fn resident_frames(&self) -> usize {
        either!(self, p => p.frames.resident())
    }

    /// Objects stored.
    pub fn objects(&self) -> usize {
        either!(self, p => p.objects())
    }

    /// The sum of the objects' lengths.
    pub fn object_bytes(&self) -> usize {
        either!(self, p => p.object_bytes())
    }

    /// Memory taken by the pool's own tables, at their largest so far.
    pub fn metadata_bytes(&self) -> usize {
        either!(self, p => p.metadata_bytes() + p.frames.metadata_bytes())
    }

    /// From now on `store` refuses to use more than `max_frames` frames.
    pub fn set_max_frames(&mut self, max_frames: usize) {
        either!(self, p => p.frames.set_max(max_frames))
    }

    /// Fault injection: lets `n` more mappings succeed and every later one fail. `None` lifts it.
    pub fn fail_growth_after(&mut self, n: Option<u64>) {
        either!(self, p => p.frames.growth.fail_after(n))
    }

    /// Calls `f` with the figures of each class that has objects.
    pub fn for_each_class(&self, f: impl FnMut(ClassStats)) {
        either!(self, p => p.for_each_class(f))
    }

    /// Walks every structure and asserts every equation between them.
    pub fn check(&self) {
        either!(self, p => p.check())
    }
}

/// Whether objects can have this length.
fn check_length(len: usize) -> Result<(), PoolError> {
    match len {
        0 => Err(PoolError::Empty),
        1..=MAX_OBJECT_BYTES => Ok(()),
        _ => Err(PoolError::TooLarge),
    }
}

#[cold]
fn stale(h: Handle) -> ! {
    panic!("pool: {h:?} is freed already, or of another pool")
}
