//! The life cycle of a page: one word per 4 KiB page, and the only file that changes it.
//!
//! ```text
//!            first touch                     chosen by the sweep
//!  NONE ------------------> RESIDENT ------------------------------> LIMBO (unmapped, frame kept)
//!   ^                        ^    ^                                    |        |
//!   | dropped (munmap,       |    | touched again                      |        | aged out
//!   | DONTNEED, all zero)    |    +------------------------------------+        v
//!   +------ any state        |  load                                          STORED(swap entry)
//!                            +---------------------------------------------------+
//! ```
//!
//! The word says where the authoritative copy of the page is; there is exactly one:
//! - `None`: nowhere; the page reads as zero and has no frame.
//! - `Resident`: in the frame that the program has mapped.
//! - `Limbo(slot)`: in a frame of ours (a staging slot), or in place behind PROT_NONE.
//! - `Stored(entry)`: in the swap cache (same-filled word, pool object or backing store).
//!
//! Beside the authoritative copy there may be a *kept* one: the swap entry that the page was loaded
//! from. Whether it is still the same is found out when the page goes out again, by comparing
//! contents (`cache/kept.rs`), and not before.
//!
//! A resident page may be *guarded*: write-protected for a moment, with its neighbours, while some
//! of them *leave* (`pager/together.rs`). The contents found in such a page do not change for as
//! long as it is guarded. It is not writable in the sense of `is_writable`, and a write has to lift
//! the protection first. A page that leaves goes straight to `Stored`, and its word says when.
//!
//! A stored page that is being loaded without the lock names the slot that it is loaded into: the
//! thread that finishes the load finds the word as it was, or leaves the page alone. Every other
//! transition forgets the slot.
//!
//! A page whose state changes while nobody holds the lock is *claimed* (`pager/claim.rs`): a bit
//! beside the state.
//!
//! Words are atomics because a system call's fast path reads them without the lock (see
//! `pager/hold.rs`); they are written with the pager's lock held, always through the transitions
//! below, each of which asserts its predecessor.

use core::sync::atomic::{AtomicU64, Ordering};

const STATE_MASK: u64 = 0b011;
/// The page is claimed: its state changes while nobody holds the pager's lock (`pager/claim.rs`).
const CLAIMED: u64 = 0b100;
/// The page could not be taken out: the hand passes it by once.
const STUCK: u64 = 1 << 3;
/// The page was taken as the end of a trail: see `enter_limbo`. The bit is that of [`STUCK`], which
/// is for resident pages only.
const FROM_TRAIL: u64 = STUCK;
const SHARED: u64 = 1 << 4;
/// The entry field is that of a copy kept by the cache (resident pages and pages in limbo).
const KEPT: u64 = 1 << 5;
const ENTRY_SHIFT: u32 = 8;
const ENTRY_BITS: u32 = 40;
const COPY_MASK: u64 = KEPT | ((1 << ENTRY_BITS) - 1) << ENTRY_SHIFT;
const SLOT_SHIFT: u32 = ENTRY_SHIFT + ENTRY_BITS;
const SLOT_MASK: u64 = !0 << SLOT_SHIFT;
/// Slots of limbo that a word can name.
pub const SLOTS_MAX: usize = 1 << (u64::BITS - SLOT_SHIFT);
/// Slots that pages are loaded into without the lock. A larger number in the field of a stored page
/// is the time at which it left.
pub const LOAD_SLOTS_MAX: usize = SLOTS_MAX / 2;
/// Times at which pages leave are below this.
pub const STAMPS: u64 = (SLOTS_MAX - LOAD_SLOTS_MAX - 1) as u64;
/// Bit in the field of the slot of a resident page: the page is guarded.
const GUARDED: u64 = 1 << SLOT_SHIFT;
/// Bit of a guarded page: it leaves.
const LEAVING: u64 = 2 << SLOT_SHIFT;
const GUARD_MASK: u64 = GUARDED | LEAVING;
/// Bits above these: the generation in which neither pool nor store took the page
/// (`pager/refusal.rs`), 0 for none.
const REFUSED_SHIFT: u32 = SLOT_SHIFT + 2;
const REFUSED_MASK: u64 = !0 << REFUSED_SHIFT;
/// Generations of refusals: 1 to this.
pub const GENERATIONS: u64 = REFUSED_MASK >> REFUSED_SHIFT;

/// Where the page's contents are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    None,
    Resident,
    /// The payload is the staging slot.
    Limbo(u64),
    /// The payload is the swap entry, packed in 40 bits.
    Stored(u64),
}

impl PageState {
    /// The page has contents, and they are not in its place.
    #[inline]
    pub fn is_out(self) -> bool {
        matches!(self, PageState::Limbo(_) | PageState::Stored(_))
    }
}

crate::zeroable! {
    /// The word of one page.
    #[repr(transparent)]
    pub struct PageEntry(AtomicU64);
}

impl PageEntry {
    /// The word of a page that was never touched.
    #[cfg(test)]
    pub fn untouched() -> PageEntry {
        PageEntry(AtomicU64::new(0))
    }

    #[inline]
    fn word(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// The state now. Stable only while the pager's lock is held, or the page's claim.
    #[inline]
    pub fn state(&self) -> PageState {
        let w = self.word();
        match w & STATE_MASK {
            0 => PageState::None,
            1 => PageState::Resident,
            2 => PageState::Limbo(w >> SLOT_SHIFT),
            _ => PageState::Stored(entry_of(w)),
        }
    }

    #[inline]
    pub fn is_resident(&self) -> bool {
        self.word() & STATE_MASK == 1
    }

    /// The page is claimed.
    #[inline]
    pub fn is_claimed(&self) -> bool {
        self.word() & CLAIMED != 0
    }

    /// The page is claimed from now on.
    pub fn claim(&self) {
        self.expect(!self.is_claimed(), "claim");
        self.0.store(self.word() | CLAIMED, Ordering::SeqCst);
    }

    /// The claim ends. Transitions leave it as it is.
    pub fn end_claim(&self) {
        self.expect(self.is_claimed(), "end claim");
        self.0.store(self.word() & !CLAIMED, Ordering::SeqCst);
    }

    /// Resident, and free to be written: neither guarded nor shared with relatives since a fork.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.word() & (STATE_MASK | CLAIMED | SHARED | GUARDED) == 1
    }

    /// Resident, and write-protected while it or a neighbour leaves.
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.word() & (STATE_MASK | GUARDED) == 1 | GUARDED
    }

    /// A resident page is about to be guarded, with its neighbours.
    pub fn guard(&self) {
        if self.is_resident() && !self.is_guarded() {
            self.0.store(self.word() | GUARDED, Ordering::SeqCst);
        }
    }

    /// A resident page that is to leave is guarded meanwhile. It has no copy any more.
    pub fn begin_to_leave(&self) {
        self.expect(self.is_writable() && self.copy().is_none(), "begin to leave");
        self.0.store(self.word() | GUARDED | LEAVING, Ordering::SeqCst);
    }

    /// The page still leaves, so nobody has written it.
    pub fn is_leaving(&self) -> bool {
        self.word() & (STATE_MASK | GUARDED | LEAVING) == 1 | GUARDED | LEAVING
    }

    /// The page that leaves was stored. `stamp`: when. `from_trail`: see `enter_limbo`.
    pub fn leave_to(&self, entry: u64, stamp: u64, from_trail: bool) {
        self.expect(self.is_leaving(), "leave");
        debug_assert!(entry >> ENTRY_BITS == 0);
        let from_trail = if from_trail { FROM_TRAIL } else { 0 };
        self.set(3, from_trail, slot_of_time(stamp), entry << ENTRY_SHIFT);
    }

    /// The page that leaves is nowhere any more: all of it is zero.
    pub fn leave_nothing(&self) {
        self.expect(self.is_leaving(), "leave");
        self.drop_contents();
    }

    /// Nobody has a place for the page that was to leave: it stays guarded, and is not asked again
    /// in this round.
    pub fn refuse_to_leave(&self) {
        self.expect(self.is_leaving(), "refuse to leave");
        self.0.store(self.word() & !LEAVING | STUCK, Ordering::SeqCst);
    }

    /// The page has not gone after all. It is resident and writable.
    pub fn stay(&self) {
        self.expect(self.dropped_at().is_some() || self.state() == PageState::None, "stay");
        self.set(1, STUCK, 0, 0);
    }

    /// The page can be written from now on. Says whether it was guarded.
    pub fn unguard(&self) -> bool {
        let guarded = self.is_guarded();
        if guarded {
            self.0.store(self.word() & !GUARD_MASK, Ordering::SeqCst);
        }
        guarded
    }

    /// When a page that is stored left the program, if it had no limbo and nobody has begun to load
    /// it.
    pub fn dropped_at(&self) -> Option<u64> {
        let w = self.word();
        let is_dropped = w & STATE_MASK == 3 && w >> SLOT_SHIFT > LOAD_SLOTS_MAX as u64;
        is_dropped.then(|| (w >> SLOT_SHIFT) - LOAD_SLOTS_MAX as u64 - 1)
    }

    /// Resident, in a frame that relatives by fork may have mapped as well.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.word() & (STATE_MASK | SHARED) == 1 | SHARED
    }

    /// Marks a resident page as shared by fork.
    pub fn share(&self) {
        let w = self.word();
        debug_assert!(w & STATE_MASK == 1);
        // The page stays protected, but from now on the mark says why: a write makes the page this
        // process's own (`own`), and does not unguard it.
        self.0.store((w | SHARED) & !GUARD_MASK, Ordering::Relaxed);
    }

    /// The page counts as this process's own from now on. Says whether it was shared.
    pub fn own(&self) -> bool {
        let shared = self.is_shared();
        if shared {
            self.0.store(self.word() & !SHARED, Ordering::SeqCst);
        }
        shared
    }

    /// The entry of the kept copy, if there is one.
    pub fn copy(&self) -> Option<u64> {
        let w = self.word();
        (w & KEPT != 0).then_some(entry_of(w))
    }

    /// Takes the kept copy away from the page; the entry is the caller's to free.
    #[must_use]
    pub fn take_copy(&self) -> Option<u64> {
        let copy = self.copy();
        if copy.is_some() {
            self.0.store(self.word() & !COPY_MASK, Ordering::SeqCst);
        }
        copy
    }

    #[inline]
    fn set(&self, state: u64, flags: u64, slot: u64, copy: u64) {
        debug_assert!(slot < SLOTS_MAX as u64);
        let claimed = self.word() & CLAIMED;
        self.0.store(state | claimed | flags | slot << SLOT_SHIFT | copy, Ordering::SeqCst);
    }

    /// The part of a resident page's word, or of one in limbo, that says which copy is kept: 0
    /// without one.
    fn copy_bits(&self) -> u64 {
        self.word() & COPY_MASK
    }

    #[inline]
    fn expect(&self, ok: bool, transition: &str) {
        assert!(ok, "page transition {transition} from {:?}", self.state());
    }

    /// First touch: a zero frame was mapped. Or the page was found mapped when its range came under
    /// management.
    pub fn touch_first(&self) {
        self.expect(self.state() == PageState::None, "first touch");
        self.set(1, 0, 0, 0);
    }

    /// The sweep takes the page out into a staging slot. `from_trail`: as the end of a trail, which
    /// the word goes on to say.
    pub fn enter_limbo(&self, slot: u64, from_trail: bool) {
        self.expect(self.is_resident() && !self.is_guarded(), "enter limbo");
        self.set(2, if from_trail { FROM_TRAIL } else { 0 }, slot, self.copy_bits());
    }

    /// The page was to enter limbo but could not be taken out: it stays where it was. `stuck`: do
    /// not try again in this round.
    pub fn refuse_limbo(&self, stuck: bool) {
        self.expect(matches!(self.state(), PageState::Limbo(_)), "refuse limbo");
        self.set(1, if stuck { STUCK } else { 0 }, 0, self.copy_bits());
    }

    /// Neither pool nor store takes the resident page in this generation.
    pub fn refuse_storing(&self, generation: u64) {
        self.expect(self.is_resident(), "refuse storing");
        debug_assert!((1..=GENERATIONS).contains(&generation));
        let word = self.word() & !REFUSED_MASK | generation << REFUSED_SHIFT;
        self.0.store(word, Ordering::SeqCst);
    }

    /// Resident, and refused in this generation: not to be tried.
    #[inline]
    pub fn is_refused(&self, generation: u64) -> bool {
        self.word() & (STATE_MASK | REFUSED_MASK) == 1 | generation << REFUSED_SHIFT
    }

    /// The page was touched while in limbo and is mapped again.
    pub fn leave_limbo(&self) {
        self.expect(matches!(self.state(), PageState::Limbo(_)), "leave limbo");
        self.set(1, 0, 0, self.copy_bits());
    }

    /// The page in limbo was stored.
    pub fn store(&self, entry: u64) {
        self.expect(matches!(self.state(), PageState::Limbo(_)) && self.copy().is_none(), "store");
        debug_assert!(entry >> ENTRY_BITS == 0);
        self.set(3, self.word() & FROM_TRAIL, 0, entry << ENTRY_SHIFT);
    }

    /// The stored page was loaded and mapped.
    pub fn load(&self) {
        self.expect(matches!(self.state(), PageState::Stored(_)), "load");
        self.set(1, 0, 0, 0);
    }

    /// The stored page was loaded and mapped, and its entry kept.
    pub fn load_keeping(&self) {
        self.expect(matches!(self.state(), PageState::Stored(_)), "load");
        self.set(1, 0, 0, KEPT | self.word() & COPY_MASK);
    }

    /// The stored page is being loaded into a slot, which the caller has for itself until the load
    /// has ended.
    pub fn begin_load(&self, slot: u64) {
        self.expect(matches!(self.state(), PageState::Stored(_)), "begin load");
        debug_assert!(slot < LOAD_SLOTS_MAX as u64);
        self.0.store(self.word() & !SLOT_MASK | (slot + 1) << SLOT_SHIFT, Ordering::SeqCst);
    }

    /// Nothing has happened to the page since its load into `slot` began: it is stored under the
    /// same entry.
    pub fn is_loading(&self, slot: u64) -> bool {
        matches!(self.state(), PageState::Stored(_)) && self.word() >> SLOT_SHIFT == slot + 1
    }

    /// The load into `slot` came to nothing.
    pub fn end_load(&self, slot: u64) {
        if self.is_loading(slot) {
            self.0.store(self.word() & !SLOT_MASK, Ordering::SeqCst);
        }
    }

    /// The contents are worthless (unmapped, discarded) or all zero.
    pub fn drop_contents(&self) {
        debug_assert!(self.copy().is_none(), "somebody frees the kept copy");
        self.set(0, 0, 0, 0);
    }

    /// Takes over another page's word (mremap): `self` must have no contents, `from` has none
    /// afterwards.
    pub fn take_over(&self, from: &PageEntry) {
        self.expect(self.state() == PageState::None, "take over");
        let kept = match from.state() {
            // A load that is under way is one to the old address.
            PageState::Stored(_) => !SLOT_MASK,
            // Moving loses the protection.
            PageState::Resident => !GUARD_MASK,
            PageState::None | PageState::Limbo(_) => !0,
        };
        self.0.store(from.0.swap(0, Ordering::SeqCst) & kept, Ordering::SeqCst);
    }

    /// The hand comes to a resident page. True: it may be evicted now. One that is stuck is not,
    /// the first time.
    #[inline]
    pub fn pass(&self) -> bool {
        let is_stuck = self.is_stuck();
        if is_stuck {
            self.unstick();
        }
        !is_stuck
    }

    /// The resident page could not be taken out in this round of the hand.
    #[inline]
    pub fn is_stuck(&self) -> bool {
        let w = self.word();
        debug_assert!(w & STATE_MASK == 1);
        w & STUCK != 0
    }

    /// The resident page is tried again before the hand has passed it.
    pub fn unstick(&self) {
        let w = self.word();
        if w & STATE_MASK == 1 {
            self.0.store(w & !STUCK, Ordering::SeqCst);
        }
    }

    /// Whether a page in limbo or stored was taken as the end of a trail, not by the hand.
    pub fn was_from_trail(&self) -> bool {
        self.word() & FROM_TRAIL != 0
    }
}

/// The field of the slot in the word of a stored page: the time when the page left.
fn slot_of_time(stamp: u64) -> u64 {
    debug_assert!(stamp < STAMPS);
    LOAD_SLOTS_MAX as u64 + 1 + stamp
}

fn entry_of(word: u64) -> u64 {
    word >> ENTRY_SHIFT & ((1 << ENTRY_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> PageEntry {
        PageEntry::untouched()
    }

    #[test]
    fn what_is_out_is_in_limbo_or_in_the_cache() {
        let e = PageEntry::untouched();
        assert!(!e.state().is_out());
        e.touch_first();
        assert!(!e.state().is_out());
        e.enter_limbo(3, false);
        assert!(e.state().is_out());
    }

    #[test]
    fn a_page_lives_its_life() {
        let p = new();
        p.touch_first();
        assert!(p.pass());
        p.enter_limbo(77, false);
        assert_eq!(p.state(), PageState::Limbo(77));
        p.leave_limbo();
        assert!(p.pass());
        p.enter_limbo(3, false);
        p.store(0xff_ffff_fffe);
        assert_eq!(p.state(), PageState::Stored(0xff_ffff_fffe));
        let q = new();
        q.take_over(&p);
        assert_eq!(p.state(), PageState::None);
        q.load();
        assert!(q.is_resident());
        q.drop_contents();
        assert_eq!(q.state(), PageState::None);
    }

    #[test]
    fn who_took_a_page_is_known_until_it_is_back() {
        let p = new();
        p.touch_first();
        p.enter_limbo(5, true);
        assert!(p.was_from_trail());
        p.store(9);
        assert!(p.was_from_trail());
        p.begin_load(7);
        assert!(p.was_from_trail() && p.is_loading(7));
        p.load();
        assert!(!p.is_stuck(), "a page that is back may go");
        p.enter_limbo(6, true);
        p.refuse_limbo(true);
        assert!(p.is_stuck() && !p.pass() && p.pass(), "stuck, for a round");
        p.enter_limbo(5, false);
        assert!(!p.was_from_trail());
    }

    #[test]
    fn a_kept_copy_goes_with_its_page() {
        let p = new();
        p.touch_first();
        assert_eq!(p.copy(), None);
        p.enter_limbo(SLOTS_MAX as u64 - 1, false);
        p.store(0xff_ffff_fffe);
        assert_eq!(p.copy(), None);
        p.load_keeping();
        assert!(p.is_resident() && p.copy() == Some(0xff_ffff_fffe));
        p.share();
        assert!(p.own() && p.pass());
        p.enter_limbo(7, false);
        assert_eq!((p.state(), p.copy()), (PageState::Limbo(7), Some(0xff_ffff_fffe)));
        p.refuse_limbo(true);
        assert!(!p.pass() && p.pass());
        p.enter_limbo(SLOTS_MAX as u64 - 1, false);
        p.leave_limbo();
        let q = new();
        q.take_over(&p);
        assert_eq!((p.copy(), q.take_copy(), q.copy()), (None, Some(0xff_ffff_fffe), None));
        assert!(q.is_resident());
        q.drop_contents();
    }

    #[test]
    fn a_page_that_left_without_limbo_says_when() {
        let p = new();
        p.touch_first();
        p.enter_limbo(1, false);
        p.store(5);
        assert_eq!(p.dropped_at(), None);
        p.begin_load(LOAD_SLOTS_MAX as u64 - 1);
        assert_eq!(p.dropped_at(), None, "the slot is no time");
        p.load();
        for stamp in [0, STAMPS - 1] {
            p.begin_to_leave();
            p.leave_to(5, stamp, false);
            assert_eq!((p.state(), p.dropped_at()), (PageState::Stored(5), Some(stamp)));
            assert!((0..LOAD_SLOTS_MAX as u64).all(|slot| !p.is_loading(slot)));
            p.load();
            assert!(p.is_writable() && p.dropped_at().is_none());
        }
        p.begin_to_leave();
        p.leave_to(5, 7, false);
        p.begin_load(3);
        assert_eq!(p.dropped_at(), None);
        p.end_load(3);
        p.load_keeping();
        assert!(p.is_writable());
        let p = new();
        p.touch_first();
        p.begin_to_leave();
        p.leave_to(5, 1, false);
        let q = new();
        q.take_over(&p);
        assert_eq!((q.state(), q.dropped_at()), (PageState::Stored(5), None));
    }

    #[test]
    fn a_page_leaves_only_if_nobody_wrote_it() {
        let resident = || {
            let p = new();
            p.touch_first();
            p
        };
        let p = resident();
        p.begin_to_leave();
        assert!(p.is_leaving() && p.is_guarded() && !p.is_writable());
        p.guard();
        assert!(p.is_leaving());
        p.leave_to(9, 3, true);
        assert_eq!((p.state(), p.dropped_at()), (PageState::Stored(9), Some(3)));
        assert!(p.was_from_trail());
        p.stay();
        assert!(p.is_writable() && !p.pass() && p.pass(), "not asked again in this round");
        p.begin_to_leave();
        p.leave_nothing();
        assert_eq!(p.state(), PageState::None);
        p.stay();
        // Written, refused, shared or moved: it does not leave any more.
        p.begin_to_leave();
        assert!(p.unguard() && !p.is_leaving() && p.is_writable());
        p.begin_to_leave();
        p.refuse_to_leave();
        assert!(!p.is_leaving() && p.is_guarded() && p.unguard() && !p.pass());
        let q = resident();
        q.begin_to_leave();
        q.share();
        assert!(q.is_shared() && !q.is_leaving() && q.own() && q.is_writable());
        q.begin_to_leave();
        let r = new();
        r.take_over(&q);
        assert!(r.is_writable() && !r.is_leaving());
        // Its neighbour keeps what copy it has.
        let p = resident();
        p.enter_limbo(1, false);
        p.store(5);
        p.load_keeping();
        p.guard();
        assert!(p.is_guarded() && !p.is_leaving() && p.copy() == Some(5));
        assert!(p.unguard() && p.is_writable() && !p.unguard() && p.copy() == Some(5));
    }

    #[test]
    fn a_refusal_is_remembered_where_the_page_is() {
        let p = new();
        p.touch_first();
        p.enter_limbo(SLOTS_MAX as u64 - 1, false);
        p.refuse_limbo(true);
        assert!(!p.is_refused(1));
        p.refuse_storing(GENERATIONS);
        assert!(p.is_refused(GENERATIONS) && !p.is_refused(1) && p.is_writable());
        // Its neighbours leave, it is shared, moved and written.
        p.guard();
        assert!(p.is_guarded() && !p.is_leaving() && p.is_refused(GENERATIONS));
        assert!(p.unguard() && p.is_writable() && p.is_refused(GENERATIONS));
        p.share();
        let q = new();
        q.take_over(&p);
        assert!(
            q.is_shared() && q.own() && q.is_refused(GENERATIONS) && !p.is_refused(GENERATIONS)
        );
        q.refuse_storing(2);
        assert!(q.is_refused(2) && !q.is_refused(GENERATIONS));
        q.unstick();
        assert!(q.is_refused(2) && q.pass());
        q.begin_to_leave();
        q.refuse_to_leave();
        assert!(q.is_guarded() && q.unguard() && q.is_refused(2));
        q.enter_limbo(7, false);
        q.leave_limbo();
        assert!(!q.is_refused(2), "it left");
    }

    #[test]
    #[should_panic(expected = "page transition enter limbo")]
    fn a_guarded_page_is_not_moved() {
        let p = new();
        p.touch_first();
        p.guard();
        p.enter_limbo(1, false);
    }

    #[test]
    fn a_load_ends_only_if_nothing_happened_meanwhile() {
        let stored = |entry: u64| {
            let p = new();
            p.touch_first();
            p.enter_limbo(9, false);
            p.store(entry);
            p
        };
        let p = stored(5);
        assert!(!p.is_loading(0) && !p.is_loading(9));
        p.begin_load(0);
        assert!(p.is_loading(0) && !p.is_loading(1) && p.state() == PageState::Stored(5));
        // Another one is at it now, and gives up.
        p.begin_load(LOAD_SLOTS_MAX as u64 - 1);
        assert!(!p.is_loading(0));
        p.end_load(0);
        assert!(p.is_loading(LOAD_SLOTS_MAX as u64 - 1));
        p.end_load(LOAD_SLOTS_MAX as u64 - 1);
        assert!(!p.is_loading(LOAD_SLOTS_MAX as u64 - 1) && p.state() == PageState::Stored(5));
        // It came back and went out again, under the same entry's number.
        p.begin_load(3);
        p.load();
        p.enter_limbo(1, false);
        p.store(5);
        assert!(!p.is_loading(3));
        // Its word went to another address, and back.
        p.begin_load(3);
        let q = new();
        q.take_over(&p);
        assert!(!p.is_loading(3) && !q.is_loading(3) && q.state() == PageState::Stored(5));
        p.take_over(&q);
        assert!(!p.is_loading(3));
        // It is loaded by a thread that was faster, and its copy kept.
        p.begin_load(3);
        p.load_keeping();
        assert!(!p.is_loading(3) && p.copy() == Some(5));
        let _ = p.take_copy();
        // A page in limbo moves with its slot.
        p.enter_limbo(77, false);
        q.take_over(&p);
        assert_eq!(q.state(), PageState::Limbo(77));
    }

    #[test]
    fn a_claim_lasts_through_transitions_and_is_of_one() {
        let p = new();
        p.claim();
        assert!(p.is_claimed() && p.state() == PageState::None);
        p.touch_first();
        assert!(p.is_claimed() && p.is_resident() && !p.is_writable());
        p.end_claim();
        assert!(!p.is_claimed() && p.is_writable());
        p.enter_limbo(7, false);
        p.claim();
        p.refuse_limbo(true);
        assert!(p.is_claimed());
        p.end_claim();
        p.enter_limbo(7, false);
        p.store(9);
        p.claim();
        p.load_keeping();
        assert!(p.is_claimed() && p.take_copy() == Some(9));
        p.end_claim();
    }

    #[test]
    #[should_panic(expected = "page transition claim")]
    fn a_page_is_not_claimed_twice() {
        let p = new();
        p.claim();
        p.claim();
    }

    #[test]
    #[should_panic(expected = "page transition load")]
    fn a_page_cannot_be_loaded_twice() {
        let p = new();
        p.touch_first();
        p.load();
    }

    #[test]
    fn a_stuck_page_survives_one_sweep() {
        let p = new();
        p.touch_first();
        p.enter_limbo(0, false);
        p.refuse_limbo(true);
        assert!(!p.pass());
        assert!(p.pass());
    }
}
