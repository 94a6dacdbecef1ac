//! zbud: at most two objects, the *buddies*, in one frame.
//!
//! ```text
//!   0                                                        4096
//!  +------------------+---------------------+-----------------+
//!  | first buddy      | free chunks         |     last buddy  |   a chunk is 64 bytes
//!  +------------------+---------------------+-----------------+
//! ```
//!
//! The first begins at the frame's begin, the last begins so that its chunks reach the frame's end.
//! Density is bounded by two objects per frame whatever their sizes, and in return everything is
//! simple: no object moves, none spans frames, and to free a frame two objects have to go. A store
//! looks for the frame with one buddy whose free chunks fit best (lists by number of free chunks),
//! else takes a new frame.
//!
//! Frames stand in one LRU list by their last store; [`Zbud::reclaim`] offers the buddies of the
//! oldest to their owner. Metadata is outside the frames, 24 bytes for each, so that even an object
//! of 4096 bytes has room.

use super::frames::Frames;
use super::{
    ClassStats, FULLNESS_COLUMNS, Handle, INDEX_BITS, MOST_BYTES, PoolError, PoolKind, PoolTag,
    stale,
};
use crate::sys::PAGE_SIZE;
use crate::sys::mem::Table;
use crate::zeroable;

const CHUNK_BYTES: usize = 64;
const CHUNKS: usize = PAGE_SIZE / CHUNK_BYTES;
// An index names two objects for each frame.
const _: () = assert!(2 * (MOST_BYTES / PAGE_SIZE) <= 1 << INDEX_BITS);
/// Frames that one `reclaim` tries before it gives up.
const RECLAIM_TRIES: usize = 8;

/// The list of all frames, the most recently filled first. Lists `1..CHUNKS` hold the frames with
/// one buddy and that many free chunks.
const LRU: usize = 0;

zeroable! {
    /// Links of a circular list; a frame is named by its number plus one, 0 is none.
    #[derive(Clone, Copy)]
    struct Links {
        prev: u32,
        next: u32,
    }
}

zeroable! {
    /// The record of one frame.
    struct Buddies {
        /// Lengths in bytes of the first and the last; 0: none.
        len: [u16; 2],
        /// Counts the objects that were first and last here. It survives the frame.
        generation: [u16; 2],
        /// Links in the LRU list, and in that of its free chunks.
        links: [Links; 2],
    }
}

impl Buddies {
    fn free_chunks(&self) -> usize {
        CHUNKS - chunks(self.len[0]) - chunks(self.len[1])
    }

    /// The list, besides the LRU, where the frame belongs.
    fn fit_list(&self) -> Option<usize> {
        let single = (self.len[0] == 0) != (self.len[1] == 0);
        (single && self.free_chunks() > 0).then(|| self.free_chunks())
    }

    /// Where in the frame a buddy begins.
    fn start(&self, which: usize) -> usize {
        if which == 0 { 0 } else { PAGE_SIZE - chunks(self.len[1]) * CHUNK_BYTES }
    }
}

fn chunks(len: u16) -> usize {
    (len as usize).div_ceil(CHUNK_BYTES)
}

/// A zbud pool. See the head of this file.
pub struct Zbud {
    tag: PoolTag,
    pub(super) frames: Frames,
    /// By frame number.
    buddies: Table<Buddies>,
    /// Frame numbers below this were used at some time.
    buddies_end: usize,
    heads: [u32; CHUNKS],
    objects: usize,
    object_bytes: usize,
}

impl Default for Zbud {
    fn default() -> Self {
        Self::new()
    }
}

impl Zbud {
    pub fn new() -> Self {
        Zbud {
            tag: PoolTag::next(PoolKind::Zbud),
            frames: Frames::new(),
            buddies: Table::new(),
            buddies_end: 0,
            heads: [0; CHUNKS],
            objects: 0,
            object_bytes: 0,
        }
    }

    // ---- objects ----

    pub(super) fn store(&mut self, bytes: &[u8]) -> Result<Handle, PoolError> {
        let len = bytes.len() as u16;
        let frame = match self.heads[chunks(len)..].iter().find(|&&link| link != 0) {
            Some(&link) => {
                self.leave_fit_list(link - 1);
                self.unlink(LRU, link - 1);
                link - 1
            }
            None => self.new_frame()?,
        };
        let b = self.buddies_mut(frame);
        let which = if b.len[0] == 0 { 0 } else { 1 };
        b.len[which] = len;
        let (start, generation) = (b.start(which), b.generation[which]);
        self.push_front(LRU, frame);
        self.join_fit_list(frame);
        self.frames.get_mut(frame, start..start + bytes.len()).copy_from_slice(bytes);
        self.objects += 1;
        self.object_bytes += bytes.len();
        Ok(Handle::new(self.tag, bytes.len(), generation, frame << 1 | which as u32))
    }

    /// A frame without buddies, in no list.
    fn new_frame(&mut self) -> Result<u32, PoolError> {
        let frame = self.frames.alloc()?;
        if let Err(e) = self.frames.growth.ensure(&self.buddies, frame as usize) {
            self.frames.free(frame);
            return Err(e);
        }
        self.buddies_end = self.buddies_end.max(frame as usize + 1);
        Ok(frame)
    }

    pub(super) fn read<'a>(&'a self, h: Handle, _scratch: &'a mut [u8]) -> &'a [u8] {
        let Some((frame, which)) = self.find(h) else { stale(h) };
        let start = self.buddies(frame).start(which);
        self.frames.get(frame, start..start + h.len())
    }

    pub(super) fn try_free(&mut self, h: Handle) -> bool {
        let Some((frame, which)) = self.find(h) else { return false };
        self.leave_fit_list(frame);
        let b = self.buddies_mut(frame);
        b.len[which] = 0;
        b.generation[which] = b.generation[which].wrapping_add(1);
        if b.len == [0, 0] {
            self.unlink(LRU, frame);
            self.frames.free(frame);
        } else {
            self.join_fit_list(frame);
        }
        self.objects -= 1;
        self.object_bytes -= h.len();
        true
    }

    pub(super) fn holds(&self, h: Handle) -> bool {
        self.find(h).is_some()
    }

    fn find(&self, h: Handle) -> Option<(u32, usize)> {
        let (frame, which) = (h.index() >> 1, h.index() as usize & 1);
        if h.tag() != self.tag || frame as usize >= self.buddies_end {
            return None;
        }
        let b = self.buddies.get(frame as usize)?;
        if b.len[which] == 0 || b.generation[which] != h.generation() {
            return None;
        }
        assert!(b.len[which] as usize == h.len(), "pool: {h:?} has a wrong length");
        Some((frame, which))
    }
    // ---- reclaim ----

    /// See [`super::Pool::reclaim`].
    pub(super) fn reclaim(&mut self, mut evict: impl FnMut(Handle, &[u8]) -> bool) -> bool {
        for _ in 0..RECLAIM_TRIES.min(self.frames.used()) {
            let frame = self.oldest().expect("a used frame is in the LRU list");
            for which in 0..2 {
                let b = self.buddies(frame);
                let (len, start) = (b.len[which] as usize, b.start(which));
                if len == 0 {
                    continue;
                }
                let h = Handle::new(self.tag, len, b.generation[which], frame << 1 | which as u32);
                if evict(h, self.frames.get(frame, start..start + len)) {
                    self.try_free(h);
                }
            }
            if self.buddies(frame).len == [0, 0] {
                return true;
            }
            // The owner needs an object in this frame: the next try takes another frame.
            self.unlink(LRU, frame);
            self.push_front(LRU, frame);
        }
        false
    }

    fn oldest(&self) -> Option<u32> {
        let head = self.heads[LRU];
        (head != 0).then(|| self.links(LRU, head - 1).prev - 1)
    }

    // ---- lists ----

    fn join_fit_list(&mut self, frame: u32) {
        if let Some(list) = self.buddies(frame).fit_list() {
            self.push_front(list, frame);
        }
    }

    fn leave_fit_list(&mut self, frame: u32) {
        if let Some(list) = self.buddies(frame).fit_list() {
            self.unlink(list, frame);
        }
    }

    fn push_front(&mut self, list: usize, frame: u32) {
        let this = frame + 1;
        let head = core::mem::replace(&mut self.heads[list], this);
        if head == 0 {
            *self.links_mut(list, frame) = Links { prev: this, next: this };
            return;
        }
        let tail = core::mem::replace(&mut self.links_mut(list, head - 1).prev, this);
        self.links_mut(list, tail - 1).next = this;
        *self.links_mut(list, frame) = Links { prev: tail, next: head };
    }

    fn unlink(&mut self, list: usize, frame: u32) {
        let Links { prev, next } = *self.links(list, frame);
        if next == frame + 1 {
            assert!(self.heads[list] == next, "pool: frame {frame} is not in its list");
            self.heads[list] = 0;
            return;
        }
        self.links_mut(list, prev - 1).next = next;
        self.links_mut(list, next - 1).prev = prev;
        if self.heads[list] == frame + 1 {
            self.heads[list] = next;
        }
    }

    fn links(&self, list: usize, frame: u32) -> &Links {
        &self.buddies(frame).links[(list != LRU) as usize]
    }

    fn links_mut(&mut self, list: usize, frame: u32) -> &mut Links {
        &mut self.buddies_mut(frame).links[(list != LRU) as usize]
    }

    fn buddies(&self, frame: u32) -> &Buddies {
        self.buddies.get(frame as usize).expect("pool: no such frame")
    }

    fn buddies_mut(&mut self, frame: u32) -> &mut Buddies {
        self.buddies.get_mut(frame as usize).expect("pool: no such frame")
    }

    // ---- figures ----

    pub(super) fn objects(&self) -> usize {
        self.objects
    }

    pub(super) fn object_bytes(&self) -> usize {
        self.object_bytes
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of::<Self>() + self.buddies_end * size_of::<Buddies>()
    }

    /// Class 1: frames with one object; class 2: frames with two.
    pub(super) fn for_each_class(&self, mut f: impl FnMut(ClassStats)) {
        let frames = self.frames.used();
        for (class, count) in [(1, 2 * frames - self.objects), (2, self.objects - frames)] {
            let mut fullness = [0; FULLNESS_COLUMNS];
            fullness[if class == 1 { 4 } else { FULLNESS_COLUMNS - 1 }] = count;
            f(ClassStats {
                class,
                size_bytes: PAGE_SIZE / class,
                fullness,
                obj_allocated: 2 * count,
                obj_used: class * count,
                pages_used: count,
                pages_per_zspage: 1,
                freeable: 0,
            });
        }
    }

    /// Walks every structure and asserts every equation between them.
    pub(super) fn check(&self) {
        self.frames.check();
        let (mut frames, mut objects, mut object_bytes) = (0, 0, 0);
        let mut in_list = [0; CHUNKS];
        for frame in 0..self.buddies_end as u32 {
            let b = self.buddies(frame);
            if b.len == [0, 0] {
                continue;
            }
            self.frames.check_used(frame);
            assert!(
                chunks(b.len[0]) + chunks(b.len[1]) <= CHUNKS,
                "pool: buddies of {frame} overlap"
            );
            frames += 1;
            objects += b.len.iter().filter(|&&len| len != 0).count();
            object_bytes += b.len.iter().map(|&len| len as usize).sum::<usize>();
            in_list[LRU] += 1;
            if let Some(list) = b.fit_list() {
                in_list[list] += 1;
            }
        }
        assert_eq!(frames, self.frames.used(), "pool: frames with buddies = used frames");
        assert_eq!(
            (objects, object_bytes),
            (self.objects, self.object_bytes),
            "pool: objects and bytes"
        );
        for (list, &count) in in_list.iter().enumerate() {
            let mut walked = 0;
            let mut link = self.heads[list];
            while link != 0 {
                let frame = link - 1;
                let b = self.buddies(frame);
                assert!(b.len != [0, 0], "pool: empty frame {frame} is in list {list}");
                assert!(
                    list == LRU || b.fit_list() == Some(list),
                    "pool: frame {frame} is in list {list}"
                );
                let next = self.links(list, frame).next;
                assert_eq!(self.links(list, next - 1).prev, link, "pool: links of frame {frame}");
                walked += 1;
                assert!(walked <= count, "pool: list {list} is longer than its frames");
                link = if next == self.heads[list] { 0 } else { next };
            }
            assert_eq!(walked, count, "pool: list {list} is shorter than its frames");
        }
    }
}
