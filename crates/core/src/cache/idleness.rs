//! Which objects of the pool are idle, and whether it is worth it to compress them again: learned
//! from what became of those that were.
//!
//! The same for objects one by one ([`super::recompress`]) and for groups ([`super::group`]).

/// The part of all objects that are young, in sixteenths: at first, and its bounds.
const YOUNG_FIRST: u32 = 8;
const YOUNG_LEAST_PART: u32 = 4;
const YOUNG_MOST_PART: u32 = 15;
/// Objects compressed again after which the part of the young is looked at.
pub const LEARNED_FROM: u32 = 512;
/// The length of a rest of compressing again, which begins where it was for nothing: in objects
/// that come in, at first and at most.
const REST_LEAST: u64 = 8 << 10;
const REST_MOST: u64 = 1 << 20;
/// With fewer objects compressed again than this for each load from the store there is no rest: the
/// memory that they save spares loads from the disk.
const SPILLS: u64 = 8;
/// Objects that may be young in any case.
const YOUNG_LEAST: u32 = 64;
/// The least average saving of an object, or of a page of a group: the time for less is better
/// spent on the program's faults.
const SAVED_LEAST_BYTES: u64 = 256;

/// The age from which an object of the pool is idle.
pub struct Idleness {
    /// The part of the young, in sixteenths.
    young_part: u32,
    /// Objects compressed again after which the part is looked at.
    learned_from: u32,
    /// Since the part was looked at: objects compressed again, and loads of such; and the traffic
    /// at that time.
    packed: u32,
    loaded: u32,
    seen: Traffic,
    /// Bytes saved since then, and the least to be saved.
    saved: u64,
    saved_least: u64,
    /// The number of stores before which nothing is due; and the length of the rest, in stores.
    rests_until: u64,
    rest: u64,
    /// Since the beginning: objects compressed again, bytes saved by that.
    pub packed_ever: u64,
    pub saved_ever: u64,
}

/// Totals of objects that came in, and of loads from the store.
#[derive(Clone, Copy, Default)]
pub struct Traffic {
    pub stores: u64,
    pub store_loads: u64,
}

impl Idleness {
    /// `pages`: the pages in each object that is compressed again.
    pub fn new(learned_from: u32, pages: usize) -> Idleness {
        Idleness {
            young_part: YOUNG_FIRST,
            learned_from,
            packed: 0,
            loaded: 0,
            saved: 0,
            saved_least: u64::from(learned_from) * pages as u64 * SAVED_LEAST_BYTES,
            seen: Traffic::default(),
            rests_until: 0,
            rest: 0,
            packed_ever: 0,
            saved_ever: 0,
        }
    }

    /// An object that was compressed again is loaded.
    pub fn learn_load(&mut self) {
        self.loaded += 1;
    }

    /// An object has been compressed again, and takes `saved` bytes less.
    pub fn learn_packed(&mut self, now: Traffic, saved: usize) {
        self.packed += 1;
        self.saved += saved as u64;
        self.packed_ever += 1;
        self.saved_ever += saved as u64;
        if self.packed < self.learned_from {
            return;
        }
        let spills = (now.store_loads - self.seen.store_loads) * SPILLS > u64::from(self.packed);
        let is_little = self.saved < self.saved_least;
        if spills || self.loaded < self.packed / 3 && !is_little {
            self.rest = 0;
        } else if is_little || self.loaded > self.packed / 3 && self.young_part == YOUNG_MOST_PART {
            self.begin_rest(now);
        }
        self.seen = now;
        if self.loaded > self.packed / 3 {
            self.young_part = (self.young_part + 1).min(YOUNG_MOST_PART);
        } else if self.loaded < self.packed / 6 {
            self.young_part = (self.young_part - 1).max(YOUNG_LEAST_PART);
        }
        (self.packed, self.loaded, self.saved) = (0, 0, 0);
    }

    fn begin_rest(&mut self, now: Traffic) {
        self.rest = (self.rest * 2).clamp(REST_LEAST, REST_MOST);
        self.rests_until = now.stores + self.rest;
    }

    /// Nothing is compressed again just now, because it was for nothing.
    pub fn is_resting(&self, now: Traffic) -> bool {
        now.stores < self.rests_until
    }

    /// The owner's verdict. A bad one says nothing during a rest: objects made before are still
    /// being loaded.
    pub fn judge(&mut self, is_worth: bool, now: Traffic) {
        match is_worth {
            true => self.rest = 0,
            false if self.is_resting(now) => {}
            false => self.begin_rest(now),
        }
    }

    /// There is time: the rest ends, whatever compressing again was worth so far.
    pub fn end_rest(&mut self) {
        self.rests_until = 0;
    }

    /// Whether the oldest of the young is due.
    pub fn is_due(&self, young: u32, old: u32, now: Traffic) -> bool {
        if self.is_resting(now) {
            return false;
        }
        let part = (u64::from(young) + u64::from(old)) * u64::from(self.young_part) / 16;
        young > YOUNG_LEAST && u64::from(young) > part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_all_the_same_was_not_idle() {
        let mut i = Idleness::new(LEARNED_FROM, 1);
        let mut now = Traffic::default();
        assert!(!i.is_due(64, 0, now) && !i.is_due(499, 501, now) && i.is_due(501, 499, now));
        (0..100 * LEARNED_FROM).for_each(|_| i.learn_packed(now, 300));
        assert!(i.is_due(251, 749, now) && !i.is_due(250, 750, now));
        for _ in 0..100 * LEARNED_FROM {
            now.store_loads += 1;
            i.learn_load();
            i.learn_packed(now, 300);
        }
        assert!(!i.is_due(937, 63, now) && i.is_due(938, 62, now));
    }

    #[test]
    fn where_it_comes_back_however_old_it_is_there_is_a_rest() {
        let mut i = Idleness { young_part: YOUNG_MOST_PART, ..Idleness::new(LEARNED_FROM, 1) };
        let mut now = Traffic { stores: 1000, store_loads: 10 };
        let epoch = |i: &mut Idleness, now: &Traffic| {
            for _ in 0..LEARNED_FROM {
                i.learn_load();
                i.learn_packed(*now, 300);
            }
        };
        epoch(&mut i, &now);
        assert!(!i.is_due(1000, 0, now));
        now.stores += REST_LEAST;
        assert!(i.is_due(1000, 0, now));
        // Once more for nothing: twice as long.
        epoch(&mut i, &now);
        now.stores += REST_LEAST;
        assert!(!i.is_due(1000, 0, now));
        // Nobody asks for anything just now.
        i.end_rest();
        assert!(i.is_due(1000, 0, now));
        // The memory that it saves keeps pages from the disk.
        now.store_loads += u64::from(LEARNED_FROM);
        epoch(&mut i, &now);
        assert!(i.is_due(1000, 0, now));
    }

    #[test]
    fn where_little_is_saved_there_is_a_rest() {
        let mut i = Idleness::new(LEARNED_FROM, 1);
        let mut now = Traffic::default();
        let epoch = |i: &mut Idleness, now: &Traffic, saved: u64| {
            (0..LEARNED_FROM).for_each(|_| i.learn_packed(*now, saved as usize));
        };
        epoch(&mut i, &now, SAVED_LEAST_BYTES);
        assert!(i.is_due(1000, 0, now));
        epoch(&mut i, &now, SAVED_LEAST_BYTES - 1);
        assert!(!i.is_due(1000, 0, now));
        now.stores += REST_LEAST;
        assert!(i.is_due(1000, 0, now));
        // However little: it keeps pages from the disk.
        now.store_loads += u64::from(LEARNED_FROM);
        epoch(&mut i, &now, 1);
        assert!(i.is_due(1000, 0, now));
    }

    #[test]
    fn a_bad_verdict_during_a_rest_makes_it_no_longer() {
        let mut i = Idleness::new(LEARNED_FROM, 1);
        let mut now = Traffic::default();
        i.judge(false, now);
        now.stores = REST_LEAST - 1;
        i.judge(false, now);
        assert!(!i.is_due(1000, 0, now));
        now.stores = REST_LEAST;
        assert!(i.is_due(1000, 0, now));
        // The next one is twice as long, unless a good one came between.
        i.judge(false, now);
        now.stores += 2 * REST_LEAST - 1;
        assert!(!i.is_due(1000, 0, now));
        now.stores += 1;
        i.judge(true, now);
        i.judge(false, now);
        now.stores += REST_LEAST;
        assert!(i.is_due(1000, 0, now));
    }
}
