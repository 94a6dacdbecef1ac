//! Texts that processes share: the pages of an object with the jumps in it, and its slots, as a file.
//!
//! To write jumps into a library costs each process a copy of every page that has one, and of the slots: for libc
//! 320 KiB, most of what a small process pays. But the pages are the same in all processes in which text and slots lie
//! at the same distance. So the first process that has an object at a distance writes the result to
//! the cache directory, and it and those that come after it map that over the object:
//!
//! ```text
//!  file                  head  |  slots  |  text, as long as the object's executable mapping
//!                                  |            |
//!                                  v            v
//!  process         ..  links  |  slots  ..     text              both private, read and execute
//!                  (array of slots)  <- distance ->
//! ```
//!
//! The head takes a page, and so do the links, the one page that is the process's own. Where objects lie is random. The slots'
//! place is chosen such that the distance is, in most processes, a multiple of 2 MiB (`Slots::place_for`): a handful of files
//! serves all programs.
//!
//! # When a file is used
//! - Its head names everything that its bytes depend on, the *key*: the distance and the object's file (its place, length,
//!   times, as `stat` and as the mapping says; the name has its build id).
//! - It is as long as the head says and has the time of modification that the head says: whoever changes it changes that.
//! - The text in memory is as it is in its file: who has written into it, a debugger for instance, keeps his bytes.
//!
//! Everything else (a kernel that does not tell, a file system without execution, a limit reached) leads to what
//! `apply.rs` does: private copies. So do objects that the loader maps later: where they lie follows no rule.
//!
//! # Safety charter
//! Maps over an object's text, as `apply` writes into it: while nobody executes it, the same bytes but for the jumps; and over
//! pages of the slots' array that no object has.
#![allow(unsafe_code)]

use std::vec::Vec;

use uzswap::sys::mem::{MAP_FIXED, MAP_PRIVATE, PROT_EXEC, PROT_READ};
use uzswap::sys::{PAGE_SIZE, fd, file, nr};
use uzswap::uz_syscall;

use super::apply::{Patch, Source, Text, is_near, map_again, sites_in};
use super::cache::{CacheDir, Lasting, Stat, now_ns, push_hex, stat_path};
use super::entry::CLASS_COUNT;
use super::maps::{Mapping, Pagemap};
use super::slot::{Links, Slots, pages_for};
use super::table::{self, Analysis, Counts, SEED, sum};

const MAGIC: u64 = u64::from_le_bytes(*b"uzswtext");
/// To be raised whenever slots, jumps or the layout change; the analysis has a number of its own.
const FORMAT: u64 = 1;
/// What the names of such files have in them.
const MARK: &[u8] = b".text";
/// All such files together; beyond it the oldest go.
const LARGEST_BYTES: u64 = 128 << 20;
/// What is younger is not thrown away.
const REST_NS: u64 = 3600 * 1_000_000_000;
/// An object that was changed less long ago could change once more with the same times.
const OBJECT_REST_NS: u64 = 2 * 1_000_000_000;
const READ_EXECUTE: usize = PROT_READ | PROT_EXEC;

/// What the bytes depend on.
type Key = [u64; KEY_WORDS];
const KEY_WORDS: usize = 10;
/// Magic, format, bytes of slots and text, sites, time; the key; the sum.
const HEAD_WORDS: usize = 6 + KEY_WORDS + 1;

/// An object whose text may be shared.
pub struct Shared<'a> {
    cache: &'a CacheDir,
    name: Vec<u8>,
    key: Key,
    object: Stat,
    text: Text,
    /// Where the links will be, and behind them the slots.
    place: usize,
    sites: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mapped {
    Yes,
    /// There is no file that fits.
    Missing,
    /// There is one, but it may not be mapped.
    Refused,
}

impl<'a> Shared<'a> {
    /// The text that is `mapping`, of an object with this table.
    pub fn new(
        cache: &'a CacheDir,
        table_name: &[u8],
        counts: Counts,
        mapping: &Mapping,
        slots: &Slots,
    ) -> Option<Shared<'a>> {
        let text = Text { start: mapping.start, end: mapping.end, prot: mapping.prot };
        if text.prot != READ_EXECUTE || !is_near(&text) {
            return None;
        }
        let place = slots.place_for(&text, 1 + pages_for(counts.sites))?;
        let object = stat_path(&mapping.name).ok()?;
        let key = [
            text.start.wrapping_sub(place) as u64,
            (CLASS_COUNT as u64) << 32 | table::FORMAT as u64,
            mapping.offset as u64,
            (mapping.device.0 as u64) << 32 | mapping.device.1 as u64,
            mapping.inode,
            object.device,
            object.inode,
            object.bytes,
            object.modified_ns,
            object.changed_ns,
        ];
        let mut name = Vec::from(table_name);
        name.push(b'-');
        push_hex(&mut name, &sum(SEED, &bytes_of(&key)).to_be_bytes());
        name.extend_from_slice(MARK);
        Some(Shared { cache, name, key, object, text, place, sites: counts.sites })
    }

    /// Gives the process the shared text, made if it has to be, and notes the slots as the object's. False: it has its own still.
    ///
    /// # Safety
    /// Nobody may be executing the text or about to, it must be mapped as `new` was told, and `source` must be what
    /// is mapped there.
    pub unsafe fn serve<'t>(
        &self,
        slots: &mut Slots,
        pagemap: &mut Pagemap,
        source: Source,
        bias: u64,
        table: impl FnOnce() -> &'t Analysis,
    ) -> bool {
        if !pagemap.is_unwritten(self.text.start, self.text.end) {
            return false;
        }
        // SAFETY: the caller's.
        unsafe {
            match self.map(slots, source) {
                Mapped::Missing => self.make(table(), bias) && self.map(slots, source) == Mapped::Yes,
                outcome => outcome == Mapped::Yes,
            }
        }
    }

    fn slots(&self) -> usize {
        self.place + PAGE_SIZE
    }

    fn slot_bytes(&self) -> usize {
        pages_for(self.sites) * PAGE_SIZE
    }

    fn text_bytes(&self) -> usize {
        self.text.end - self.text.start
    }

    fn file_bytes(&self) -> u64 {
        (PAGE_SIZE + self.slot_bytes() + self.text_bytes()) as u64
    }

    /// The head of a file made at `ns`.
    fn head(&self, ns: u64) -> Vec<u8> {
        let mut words = Vec::with_capacity(HEAD_WORDS);
        words.extend([
            MAGIC,
            FORMAT,
            self.slot_bytes() as u64,
            self.text_bytes() as u64,
            self.sites as u64,
            ns,
        ]);
        words.extend(self.key);
        words.push(sum(SEED, &bytes_of(&words)));
        bytes_of(&words)
    }

    /// # Safety
    /// As for `serve`.
    unsafe fn map(&self, slots: &mut Slots, source: Source) -> Mapped {
        let Some((fd, stat)) = self.cache.open_file(&self.name) else { return Mapped::Missing };
        let mut head = [0; HEAD_WORDS * 8];
        let fits = stat.bytes == self.file_bytes()
            && file::read_exact_at(fd, &mut head, 0).is_ok()
            && head[..] == self.head(stat.modified_ns);
        // SAFETY: the caller's; the file was made for this.
        let outcome = if fits { unsafe { self.map_file(fd, slots, source) } } else { Mapped::Missing };
        fd::close(fd);
        outcome
    }

    /// # Safety
    /// As for `serve`; the file must be the text's.
    unsafe fn map_file(&self, fd: i32, slots: &mut Slots, source: Source) -> Mapped {
        let (text, slots_at) = (self.text, self.slots());
        // Also if something fails: the pages are not what they were.
        slots.assign(text, (self.place, 1 + pages_for(self.sites)), (0, 0));
        // SAFETY: pages of the array that are free; text as the caller says.
        let map = |at: usize, len: usize, from: usize| unsafe {
            uz_syscall!(nr::MMAP, at, len, READ_EXECUTE, MAP_PRIVATE | MAP_FIXED, fd, from).is_ok()
        };
        if !map(slots_at, self.slot_bytes(), PAGE_SIZE) {
            return Mapped::Refused;
        }
        // SAFETY: the first of the pages, which were free, never used and thus writable.
        unsafe { (self.place as *mut Links).write(Links::new()) };
        if !map(text.start, self.text_bytes(), PAGE_SIZE + self.slot_bytes()) {
            // It may have gone on the way.
            // SAFETY: the caller's.
            unsafe { map_again(text, source) };
            return Mapped::Refused;
        }
        Mapped::Yes
    }

    /// Makes the file, of the text that is in memory.
    ///
    /// # Safety
    /// As for `serve`.
    unsafe fn make(&self, table: &Analysis, bias: u64) -> bool {
        // Whole seconds: file systems that know no others keep them.
        let now = now_ns() / 1_000_000_000 * 1_000_000_000;
        let changed = self.object.modified_ns.max(self.object.changed_ns);
        if changed.saturating_add(OBJECT_REST_NS) > now || !self.cache.can_hold_code(self.file_bytes()) {
            return false;
        }
        // SAFETY: the caller's: mapped, readable, and nobody writes it.
        let (sites, mut copy) = unsafe {
            let text = core::slice::from_raw_parts(self.text.start as *const u8, self.text_bytes());
            (sites_in(&table.sites, bias, &self.text), Vec::from(text))
        };
        if sites.len() != table.sites.len() || sites.len() != self.sites {
            return false;
        }
        let patch = Patch::new(&sites, bias, self.slots(), None, self.place);
        patch.write_to(&mut copy, self.text.start);
        let mut head = self.head(now);
        head.resize(PAGE_SIZE, 0);
        let pieces: [&[u8]; 3] = [&head, &patch.slots, &copy];
        self.cache.make_room(MARK, self.file_bytes(), LARGEST_BYTES, REST_NS)
            && self.cache.save(&self.name, &pieces, Lasting::Dated { ns: now }).is_ok()
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}
