//! Compaction: objects move until their class has no more frames than it needs.
//!
//! ```text
//!   before   [# . . #][. # . .]      [# # # .][# # . #]     [# # # #][# # # #]
//!              sparsest: source         fullest: target         full
//!
//!   after    (gone, 2 frames free)   [# # # #][# # # #]     [# # # #][# # # #]
//! ```
//!
//! Two zspages meet from the ends of the fullness scale, as in the kernel. When one is left that is
//! not full, its objects move down to its begin. Only the entries of moved objects change, so
//! handles stay valid.

use super::*;
#[cfg(doc)]
use crate::pool::Pool;

/// Bytes that compaction may move for each frame it is asked for: two full zspages.
const MOVE_BYTES_PER_FRAME: usize = 2 * MAX_CHAIN * PAGE_SIZE;

impl Zsmalloc {
    /// Frees about `max_frames` frames by moving objects; see [`Pool::compact`].
    pub(in crate::pool) fn compact(&mut self, max_frames: usize) -> usize {
        let before = self.frames.used();
        let mut move_bytes = max_frames.saturating_mul(MOVE_BYTES_PER_FRAME);
        let mut idle_classes = 0;
        while idle_classes < CLASS_COUNT
            && move_bytes > 0
            && before < self.frames.used().saturating_add(max_frames)
        {
            match self.drain_sparsest(self.compact_class) {
                Some(moved_bytes) => {
                    move_bytes = move_bytes.saturating_sub(moved_bytes);
                    idle_classes = 0;
                }
                None => {
                    self.compact_class = (self.compact_class + 1) % CLASS_COUNT;
                    idle_classes += 1;
                }
            }
        }
        before.saturating_sub(self.frames.used())
    }

    /// One step: moves the objects of the sparsest zspage into the fullest ones or, if it is the
    /// only one that is not full, down to its begin. Returns the bytes moved; `None` if the class
    /// needs all its frames.
    ///
    /// A target may get a frame before the source gives one, so a step can end with a frame more
    /// than it began with; that ends with the last one, which leaves `least_frames`. At a pinned
    /// object a step stops: then the frame stays until that is let go. For the same reason the
    /// limit on frames does not hold here: a full pool is the one that has to be compacted.
    fn drain_sparsest(&mut self, class: usize) -> Option<usize> {
        let state = &self.classes[class];
        if state.frames <= state.least_frames(&CLASSES[class]) {
            return None;
        }
        let source = *state
            .heads
            .iter()
            .find(|&&z| z != 0)
            .expect("pool: a class of full zspages has idle frames");
        let objects = self.zspage(source).used.count_ones() as usize;
        for moved in 0..objects {
            let from = self.zspage(source).used.ilog2() as usize;
            if self.pins.of(self.owner(source, from)).is_pinned() {
                return (moved > 0).then_some(moved * CLASSES[class].size);
            }
            let target = self.fullest_but(class, source);
            let zspage = self.zspage(target);
            let first_free = zspage.used.trailing_ones() as usize;
            let first_ready = zspage.ready_slots().trailing_zeros() as usize;
            if target == source && first_free > from {
                return (moved > 0).then_some(moved * CLASSES[class].size);
            }
            // In the source itself a ready slot may lie higher than `from`, and objects would move
            // up for ever.
            let to = if zspage.ready == 0 || target == source { first_free } else { first_ready };
            if to != first_ready {
                let frame = self.frames.take().ok()?;
                self.attach(target, frame);
            }
            self.move_object(source, from, target, to);
        }
        Some(objects * CLASSES[class].size)
    }

    /// The fullest zspage of the class that is not full, other than `source` if there is one.
    fn fullest_but(&self, class: usize, source: u32) -> u32 {
        for &head in self.classes[class].heads.iter().rev() {
            if head != 0 && head != source {
                return head;
            }
            if head == source && self.zspage(head).next != source {
                return self.zspage(head).next;
            }
        }
        source
    }

    /// The entry whose object is in a used slot.
    fn owner(&self, z: u32, slot: usize) -> u32 {
        self.owners.get(self.zspage(z).owners as usize + slot).copied().expect("mapped")
    }

    fn move_object(&mut self, source: u32, from: usize, target: u32, to: usize) {
        let zspage = self.zspage(source);
        let class = zspage.class();
        let entry = self.owner(source, from);
        // The whole slot is copied: only the handle knows how much of it the object fills. It is
        // copied in pieces, because the two slots may begin at different places of their frames,
        // and a stack of 4 KiB is not to be had everywhere.
        let mut piece = [0; 256];
        let mut done = 0;
        while done < class.size {
            let source_at = from * class.size + done;
            let target_at = to * class.size + done;
            let len = piece
                .len()
                .min(class.size - done)
                .min(PAGE_SIZE - source_at % PAGE_SIZE)
                .min(PAGE_SIZE - target_at % PAGE_SIZE);
            let frame = self.zspage(source).frames[source_at / PAGE_SIZE];
            let at = source_at % PAGE_SIZE;
            piece[..len].copy_from_slice(self.frames.get(frame, at..at + len));
            let frame = self.zspage(target).frames[target_at / PAGE_SIZE];
            let at = target_at % PAGE_SIZE;
            self.frames.get_mut(frame, at..at + len).copy_from_slice(&piece[..len]);
            done += len;
        }
        self.occupy(target, to, entry);
        self.vacate(source, from);
    }
}
