//! Dictionaries for zstd, trained on the program's own pages (`zstd:dict=auto`).
//!
//! A page is short: what it shares with other pages (type pointers, field names, headers) comes
//! anew in each compressed form. A dictionary is 16 KiB of such pieces that both directions know
//! beforehand.
//!
//! ```text
//!  compress --every 16th page--> samples --full--> train():  4 of 5 pages --> pieces --> candidate
//!                                                            1 of 5 pages --> does it gain? --> kept, or not
//! ```
//!
//! A candidate is kept if it makes the held-out pages at least 2 % smaller than the dictionary in
//! force does, or than none does if there is none. Programs change, so it is tried again, at ever
//! longer intervals. A dictionary that was kept stays, since entries refer to it: there are 15 at
//! most.
//!
//! The pieces are chosen as zstd's own trainer chooses them (COVER): the segments whose substrings
//! occur in most pages. Its `malloc` is left out, and so are its entropy tables, which cost pages
//! of 4 KiB more bytes than they save (measured on heaps).
//!
//! A call of `train` takes some 20 ms; nothing else here takes longer than copying a page.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::sys::codec_ffi::{ZstdCompressor, ZstdDictionary};
use crate::sys::mem::Mapping;
use crate::sys::once::Once;
use crate::sys::sync::{Mutex, MutexGuard};

/// A dictionary's number has four bits of the codec id, and 0 is none.
pub const MAX_DICTIONARIES: usize = 15;
/// The largest input that a dictionary is used for, in bytes: larger ones find enough in
/// themselves.
pub const MAX_INPUT_BYTES: usize = 8 << 10;

const SAMPLE_BYTES: usize = 4096;
const SAMPLES: usize = 160;
/// One sample in so many is held out.
const HELD_OUT: usize = 5;
const PAGES_PER_SAMPLE: u32 = 16;
const DICTIONARY_BYTES: usize = 16 << 10;
/// A candidate must save one in so many bytes.
const LEAST_GAIN: usize = 50;

/// Length of a piece, and of the substrings that are counted (measured: pieces of 64 bytes gain a
/// third less).
const SEGMENT_BYTES: usize = 512;
const SUBSTRING_BYTES: usize = 8;
const SEGMENTS: usize = DICTIONARY_BYTES / SEGMENT_BYTES;
const TABLE_LOG2: u32 = 18;

/// The outcome of a [`train`](super::Codecs::train).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Training {
    /// Not enough samples yet, or no dictionary is wanted.
    NotDue,
    /// The candidate gained too little, or there was no memory to try.
    Rejected,
    /// The candidate is in force: what the held-out pages take with and without it.
    Kept { bytes_before: usize, bytes_after: usize },
}

/// The samples for the next dictionary.
pub struct Samples {
    memory: Option<Mapping>,
    count: usize,
    /// Pages to let pass before sampling starts, and the next such number.
    pause_pages: u32,
    next_pause_pages: u32,
}

/// See the module.
pub struct Dictionaries {
    trained: [Once<Trained>; MAX_DICTIONARIES],
    /// The number of the newest dictionary.
    newest: AtomicU32,
    /// Tried, and waited for by a fork only.
    samples: Mutex<Samples>,
    passed: AtomicU32,
    /// Whether `samples` is full; written by the thread that has them.
    due: AtomicU32,
    /// Memory of `samples`, to be read by others; written by the thread that has them.
    sample_bytes: AtomicUsize,
}

struct Trained {
    dictionary: ZstdDictionary,
    level: i8,
}

impl Dictionaries {
    pub fn new() -> Self {
        let samples =
            Samples { memory: None, count: 0, pause_pages: 0, next_pause_pages: 16 << 10 };
        Dictionaries {
            trained: [const { Once::new() }; MAX_DICTIONARIES],
            newest: AtomicU32::new(0),
            samples: Mutex::new(samples),
            passed: AtomicU32::new(0),
            due: AtomicU32::new(0),
            sample_bytes: AtomicUsize::new(0),
        }
    }

    /// The dictionary of that number.
    pub fn get(&self, number: u32) -> Option<&ZstdDictionary> {
        let index = (number as usize).checked_sub(1)?;
        self.trained.get(index)?.get().map(|t| &t.dictionary)
    }

    /// The dictionary in force for that level, if there is one.
    pub fn in_force(&self, level: i8) -> Option<&ZstdDictionary> {
        let newest = self.newest.load(Ordering::Acquire);
        let trained = self.trained.get((newest as usize).checked_sub(1)?)?.get()?;
        (trained.level == level).then_some(&trained.dictionary)
    }

    /// Looks at a page on its way through.
    #[inline]
    pub fn see(&self, src: &[u8]) {
        let passed = self.passed.fetch_add(1, Ordering::Relaxed);
        if passed.is_multiple_of(PAGES_PER_SAMPLE)
            && src.len() >= SAMPLE_BYTES
            && self.due.load(Ordering::Relaxed) == 0
        {
            self.sample(src, passed);
        }
    }

    #[cold]
    fn sample(&self, src: &[u8], passed: u32) {
        // Another thread has the samples: this page need not be one of them.
        let Some(mut taken) = self.samples.try_lock() else { return };
        let samples = &mut *taken;
        let full = self.newest.load(Ordering::Relaxed) as usize == MAX_DICTIONARIES;
        if samples.count == SAMPLES || passed < samples.pause_pages || full {
            return;
        }
        if samples.memory.is_none() {
            samples.memory = Mapping::new(SAMPLES * SAMPLE_BYTES).ok();
        }
        let Some(memory) = &mut samples.memory else { return };
        let at = samples.count * SAMPLE_BYTES;
        memory.as_mut_slice()[at..at + SAMPLE_BYTES].copy_from_slice(&src[..SAMPLE_BYTES]);
        samples.count += 1;
        self.sample_bytes.store(samples.count * SAMPLE_BYTES, Ordering::Relaxed);
        if samples.count == SAMPLES {
            self.due.store(1, Ordering::Relaxed);
        }
    }

    /// Takes the samples, and waits for a training that is under way: for the moment of a fork, so
    /// that the child, which has no such thread, does not find them taken for ever.
    pub fn hold(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock()
    }

    /// Whether [`train`](Self::train) has work to do.
    pub fn due(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0
    }

    /// Makes a candidate of the samples, and puts it in force if it gains. The samples are given
    /// back.
    pub fn train(&self, level: i8) -> Training {
        let Some(mut samples) = self.samples.try_lock() else { return Training::NotDue };
        if samples.count < SAMPLES {
            return Training::NotDue;
        }
        let Some(memory) = samples.memory.take() else { return Training::NotDue };
        samples.count = 0;
        // The next pause is twice as long.
        samples.pause_pages = samples.next_pause_pages;
        samples.next_pause_pages = samples.next_pause_pages.saturating_mul(2);
        self.passed.store(1, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
        let training = self.try_candidate(memory, level).unwrap_or(Training::Rejected);
        self.sample_bytes.store(0, Ordering::Relaxed);
        training
    }

    /// Makes a candidate, and puts it in force. `None`: it is not worth it, or could not be tried.
    fn try_candidate(&self, mut samples: Mapping, level: i8) -> Option<Training> {
        let (pages, _) = samples.as_mut_slice().as_chunks_mut::<SAMPLE_BYTES>();
        // Every fifth page is moved to the end and held out, so that both kinds come from the whole
        // time.
        let held_out = SAMPLES / HELD_OUT;
        for i in 0..held_out {
            pages.swap(i * HELD_OUT, SAMPLES - 1 - i);
        }
        let (train, test) = pages.split_at(SAMPLES - held_out);
        let mut content = Mapping::new(DICTIONARY_BYTES).ok()?;
        let content_bytes = choose(train.as_flattened(), content.as_mut_slice())?;
        let content = &content.as_slice()[DICTIONARY_BYTES - content_bytes..];

        let number = self.newest.load(Ordering::Relaxed) + 1;
        let cell = self.trained.get(number as usize - 1)?;
        let candidate = ZstdDictionary::new(number, content, level, SAMPLE_BYTES).ok()?;
        let mut context = ZstdCompressor::new(level, SAMPLE_BYTES).ok()?;
        let mut out = Mapping::new(2 * SAMPLE_BYTES).ok()?;
        let mut total = |dictionary| {
            test.iter().try_fold(0, |sum, page| {
                Some(sum + context.compress(dictionary, page, out.as_mut_slice()).ok()?)
            })
        };
        let (bytes_before, bytes_after) = (total(self.in_force(level))?, total(Some(&candidate))?);
        if bytes_after > bytes_before - bytes_before / LEAST_GAIN {
            return None;
        }
        cell.set(Trained { dictionary: candidate, level }).ok()?;
        self.newest.store(number, Ordering::Release);
        Some(Training::Kept { bytes_before, bytes_after })
    }

    /// Memory of the samples for the next dictionary, in bytes.
    pub fn sample_bytes(&self) -> usize {
        self.sample_bytes.load(Ordering::Relaxed)
    }

    /// Address space of the dictionaries, in bytes.
    pub fn mapped_bytes(&self) -> usize {
        self.trained.iter().filter_map(Once::get).map(|t| t.dictionary.mapped_bytes()).sum()
    }
}

/// One slot of the table that counts substrings by their hash.
#[derive(Clone, Copy)]
struct Count {
    /// Pages that have it, less one: a substring of a single page is worth nothing.
    pages: u8,
    /// The low byte of the last page that was counted.
    last_page: u8,
    /// How often the substring is in the window that is being looked at: up to 505 times, where one
    /// byte is repeated.
    in_window: u16,
}

/// A bit of a slot's last byte that no count in a window reaches: some substring was counted here.
const SEEN: u8 = 1 << 7;
const _: () = assert!(SEGMENT_BYTES < (SEEN as usize) << 8);

/// The table, in mapped bytes: it is larger than a stack, and the allocator is not ours.
struct Counts(Mapping);

impl Counts {
    #[inline(always)]
    fn slot(&mut self, bytes: &[u8], at: usize) -> &mut [u8; 4] {
        let word =
            bytes[at..at + SUBSTRING_BYTES].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let hash = word.wrapping_mul(0x9fb2_1c65_1e98_df25) >> (64 - TABLE_LOG2);
        &mut self.0.as_mut_slice().as_chunks_mut::<4>().0[hash as usize]
    }

    #[inline(always)]
    fn update<R>(&mut self, bytes: &[u8], at: usize, f: impl FnOnce(&mut Count) -> R) -> R {
        let slot = self.slot(bytes, at);
        let [pages, last_page, low, high] = *slot;
        let mut count =
            Count { pages, last_page, in_window: u16::from_le_bytes([low, high & !SEEN]) };
        let result = f(&mut count);
        let [low, high] = count.in_window.to_le_bytes();
        *slot = [count.pages, count.last_page, low, high | SEEN];
        result
    }

    fn is_new(&mut self, bytes: &[u8], at: usize) -> bool {
        self.slot(bytes, at)[3] & SEEN == 0
    }
}

/// Fills the end of `content` with the segments of `pages` whose substrings are in most of them,
/// the best ones last, where the distances are shortest; the number of bytes filled.
fn choose(pages: &[u8], content: &mut [u8]) -> Option<usize> {
    let mut counts = Counts(Mapping::new(4 << TABLE_LOG2).ok()?);
    for (index, page) in pages.chunks_exact(SAMPLE_BYTES).enumerate() {
        for at in 0..=SAMPLE_BYTES - SUBSTRING_BYTES {
            let new = counts.is_new(page, at);
            counts.update(page, at, |count| {
                if !new && count.last_page != index as u8 {
                    count.pages = count.pages.saturating_add(1);
                }
                count.last_page = index as u8;
            });
        }
    }

    // One segment of each stretch, so that all parts of the samples are heard.
    let mut best = [(0u32, 0usize); SEGMENTS];
    let stretch_bytes = pages.len() / SEGMENTS;
    for (index, best) in best.iter_mut().enumerate() {
        let stretch = &pages[index * stretch_bytes..][..stretch_bytes];
        let (score, at) = best_segment(&mut counts, stretch);
        *best = (score, index * stretch_bytes + at);
        // A piece that the dictionary has once is not needed again.
        for at in at..=at + SEGMENT_BYTES - SUBSTRING_BYTES {
            counts.update(stretch, at, |count| count.pages = 0);
        }
    }
    best.sort_unstable();
    let mut to = content.len();
    for &(score, at) in best.iter().rev().filter(|(score, _)| *score > 0) {
        debug_assert!(score > 0);
        content[to - SEGMENT_BYTES..to].copy_from_slice(&pages[at..at + SEGMENT_BYTES]);
        to -= SEGMENT_BYTES;
    }
    let filled = content.len() - to;
    (filled > 0).then_some(filled)
}

/// The segment of `stretch` with the highest sum over its different substrings, and that sum.
fn best_segment(counts: &mut Counts, stretch: &[u8]) -> (u32, usize) {
    const SUBSTRINGS: usize = SEGMENT_BYTES - SUBSTRING_BYTES + 1;
    let last = stretch.len() - SUBSTRING_BYTES;
    let (mut score, mut best) = (0u32, (0u32, 0usize));
    for at in 0..=last {
        score += counts.update(stretch, at, |count| {
            count.in_window += 1;
            if count.in_window == 1 { count.pages.into() } else { 0 }
        });
        if at + 1 < SUBSTRINGS {
            continue;
        }
        let start = at + 1 - SUBSTRINGS;
        if score > best.0 {
            best = (score, start);
        }
        score -= counts.update(stretch, start, |count| {
            count.in_window -= 1;
            if count.in_window == 0 { count.pages.into() } else { 0 }
        });
    }
    for at in last + 2 - SUBSTRINGS..=last {
        counts.update(stretch, at, |count| count.in_window = 0);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_take_memory_until_they_were_learned_from() {
        let dictionaries = Dictionaries::new();
        for samples in 1..=SAMPLES {
            (0..PAGES_PER_SAMPLE).for_each(|_| dictionaries.see(&[7; SAMPLE_BYTES]));
            assert_eq!(dictionaries.sample_bytes(), samples * SAMPLE_BYTES);
        }
        assert!(dictionaries.due() && dictionaries.train(1) != Training::NotDue);
        assert_eq!(dictionaries.sample_bytes(), 0);
    }

    #[test]
    fn a_substring_counts_once_in_a_window_however_often_it_is_there() {
        let mut counts = Counts(Mapping::new(4 << TABLE_LOG2).unwrap());
        let zeros = [0; 2 * SEGMENT_BYTES];
        counts.update(&zeros, 0, |count| count.pages = 100);
        assert!(!counts.is_new(&zeros, 0));
        // For both ends of a stretch, and again: the last look has left nothing in the table.
        for _ in 0..2 {
            assert_eq!(best_segment(&mut counts, &zeros), (100, 0));
        }
        counts.update(&zeros, 0, |count| assert_eq!((count.pages, count.in_window), (100, 0)));
    }

    #[test]
    fn pages_of_one_byte_and_little_else_are_learned_from() {
        let mut pages = vec![0; (SAMPLES - SAMPLES / HELD_OUT) * SAMPLE_BYTES];
        let piece: [u8; 64] = core::array::from_fn(|i| 1 + 3 * i as u8);
        pages.chunks_exact_mut(SAMPLE_BYTES).for_each(|p| p[1000..1064].copy_from_slice(&piece));
        let mut content = [0; DICTIONARY_BYTES];
        let filled = choose(&pages, &mut content).expect("all pages have the piece");
        let found = content[DICTIONARY_BYTES - filled..].windows(64).any(|bytes| bytes == piece);
        assert!(found, "the piece is in the dictionary");
    }
}
