//! Texts that processes share: the pages of an object with the jumps in it, and its trampolines, as
//! a file.
//!
//! To write jumps into a library costs each process a copy of every page that has one, and of the
//! trampolines: for libc 320 KiB, most of what a small process pays. But the pages are the same in
//! all processes in which text and trampolines lie at the same distance. So the first process that
//! has an object at a distance writes the result to the cache directory, and this process and later
//! ones map that file over the object:
//!
//! ```text
//!  file                  head  |  trampolines  |  text, as long as the object's executable mapping
//!                                     |            |
//!                                     v            v
//!  process         ..  links  |  trampolines  ..  text              both private, read and execute
//!                  (array of trampolines)  <- distance ->
//! ```
//!
//! The head takes a page, and so do the links, the one page that is the process's own. Where
//! objects lie is random. The trampolines' place is chosen such that the distance is, in most
//! processes, a multiple of 2 MiB (`Trampolines::place_for`): a handful of files serves all
//! programs.
//!
//! # When a file is used
//! - Its head names everything that its bytes depend on, the *key*: the distance, the object's file
//!   (its place, length, times, as `stat` and as the mapping says; the name has its build id), and
//!   the build of this library.
//! - It has the length and the time of modification that the head says: every change to the file
//!   changes that time.
//! - Its trampolines and its text have the sum that the head says. The first process that maps the
//!   file after a start of the machine checks the sum, and notes that in a file beside it, with the
//!   time of the last change to the file, which nobody can put back.
//! - The text in memory is as it is in its file: bytes that a debugger, for instance, has written
//!   into it stay.
//!
//! # While it is used
//! The kernel keeps a program's file from being written while it runs, but not a file that is only
//! mapped. A writer that cut such a file short, or changed it, would kill all processes that run
//! it. So the files are read-only (0400): `cp` and `rsync --inplace` of an ordinary user fail, or
//! make a new file. For root nothing is read-only; its backups are kept away by a CACHEDIR.TAG.
//!
//! Everything else (a kernel that does not tell, a file system without execution, a limit reached)
//! leads to the private copies of `apply.rs`. So do objects that the loader maps later: where they
//! lie follows no rule.
//!
//! # Safety charter
//! Maps over an object's text, as `apply` writes into it: while nobody executes it, the same bytes
//! but for the jumps; and over pages of the trampolines' array that no object has.
#![allow(unsafe_code)]

use std::vec;
use std::vec::Vec;

use uzswap::sys::mem::{MAP_FIXED, MAP_PRIVATE, PROT_EXEC, PROT_READ};
use uzswap::sys::{PAGE_SIZE, fd, file, nr};
use uzswap::uz_syscall;

use super::apply::{Patch, Source, Text, is_near, map_again, sites_in};
use super::cache::{CacheDir, Lasting, Stat, boot_id, now_ns, push_hex, stat_path};
use super::maps::{Mapping, Pagemap};
use super::routes::ROUTE_COUNT;
use super::table::{self, Analysis, Counts, SEED, sum};
use super::trampoline::{Links, Trampolines, pages_for};

const MAGIC: u64 = u64::from_le_bytes(*b"uzswtext");
/// The build, as far as trampolines, jumps and the layout of the file depend on it (`build.rs`).
const BUILD: u64 = match u64::from_str_radix(env!("UZSWAP_PATCH_SUM"), 16) {
    Ok(sum) => sum,
    Err(_) => panic!("build.rs writes hexadecimal digits"),
};
/// Part of the names of such files.
const MARK: &[u8] = b".text";
/// The end of the name of the note that a file was found to be right.
const SEEN: &[u8] = b".seen";
/// Bytes read at a time: a block of the allocator's.
const PIECE_BYTES: usize = 32 << 10;
/// The most bytes of all such files together, 128 MiB; beyond it the oldest go.
const LARGEST_BYTES: u64 = 128 << 20;
/// Files younger than this, one hour, are not thrown away.
const REST_NS: u64 = 3600 * 1_000_000_000;
/// An object that was changed less than 2 s ago could change once more with the same times.
const OBJECT_REST_NS: u64 = 2 * 1_000_000_000;
const READ_EXECUTE: usize = PROT_READ | PROT_EXEC;

/// Everything on which a file's bytes depend.
type Key = [u64; KEY_WORDS];
const KEY_WORDS: usize = 10;
/// Magic, build, bytes of trampolines and text, sites, time, their sum; the key; the sum of the
/// head.
const HEAD_WORDS: usize = SUM_AT + 1 + KEY_WORDS + 1;
const SUM_AT: usize = 6;
/// The machine's start, the file's inode and last change, the sum.
type Note = [u64; 5];

/// An object whose text may be shared.
pub struct Shared<'a> {
    cache: &'a CacheDir,
    name: Vec<u8>,
    key: Key,
    object: Stat,
    text: Text,
    /// Where the links will be, and behind them the trampolines.
    place: usize,
    sites: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mapped {
    Yes,
    /// There is no file that fits.
    Missing,
    /// There is a file, but it may not be mapped.
    Refused,
}

impl<'a> Shared<'a> {
    /// The text that is `mapping`, of an object with this table.
    pub fn new(
        cache: &'a CacheDir,
        table_name: &[u8],
        counts: Counts,
        mapping: &Mapping,
        trampolines: &Trampolines,
    ) -> Option<Shared<'a>> {
        let text = Text { start: mapping.start, end: mapping.end, prot: mapping.prot };
        if text.prot != READ_EXECUTE || !is_near(&text) {
            return None;
        }
        let place = trampolines.place_for(&text, 1 + pages_for(counts.sites))?;
        let object = stat_path(&mapping.name).ok()?;
        let key = [
            text.start.wrapping_sub(place) as u64,
            (ROUTE_COUNT as u64) << 32 | table::FORMAT as u64,
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

    /// Gives the process the shared text, made if it has to be, and notes the trampolines as the
    /// object's. False: the process still has its own text.
    ///
    /// # Safety
    /// Nobody may be executing the text or about to, it must be mapped as `new` was told, and
    /// `source` must be the file that is mapped there.
    pub unsafe fn serve<'t>(
        &self,
        trampolines: &mut Trampolines,
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
            match self.map(trampolines, source) {
                Mapped::Missing => {
                    self.make(table(), bias) && self.map(trampolines, source) == Mapped::Yes
                }
                outcome => outcome == Mapped::Yes,
            }
        }
    }

    fn trampolines(&self) -> usize {
        self.place + PAGE_SIZE
    }

    fn trampoline_bytes(&self) -> usize {
        pages_for(self.sites) * PAGE_SIZE
    }

    fn text_bytes(&self) -> usize {
        self.text.end - self.text.start
    }

    fn file_bytes(&self) -> u64 {
        (PAGE_SIZE + self.trampoline_bytes() + self.text_bytes()) as u64
    }

    /// The head of a file made at `ns`, whose trampolines and text have this sum.
    fn head(&self, ns: u64, contents: u64) -> Vec<u8> {
        let mut words = Vec::with_capacity(HEAD_WORDS);
        words.extend([
            MAGIC,
            BUILD,
            self.trampoline_bytes() as u64,
            self.text_bytes() as u64,
            self.sites as u64,
            ns,
            contents,
        ]);
        words.extend(self.key);
        words.push(sum(SEED, &bytes_of(&words)));
        bytes_of(&words)
    }

    /// # Safety
    /// As for `serve`.
    unsafe fn map(&self, trampolines: &mut Trampolines, source: Source) -> Mapped {
        let Some((fd, stat)) = self.cache.open_file(&self.name) else { return Mapped::Missing };
        let mut head = [0; HEAD_WORDS * 8];
        let fits = stat.bytes == self.file_bytes()
            && file::read_exact_at(fd, &mut head, 0).is_ok()
            && head[..] == self.head(stat.modified_ns, word_at(&head, SUM_AT))
            && self.is_right(fd, &stat, word_at(&head, SUM_AT));
        let outcome = match fits {
            // SAFETY: the caller's; the file was made for this.
            true => unsafe { self.map_file(fd, trampolines, source) },
            false => Mapped::Missing,
        };
        fd::close(fd);
        outcome
    }

    /// Whether trampolines and text have the sum that they should have: by a note from after the
    /// machine's start, or by a look at all bytes.
    fn is_right(&self, fd: i32, stat: &Stat, contents: u64) -> bool {
        let mut name = self.name.clone();
        name.extend_from_slice(SEEN);
        let note = note_of(boot_id(), stat, contents);
        let mut noted = [0; size_of::<Note>()];
        if let Some((seen, _)) = self.cache.open_file(&name) {
            let whole = file::read_exact_at(seen, &mut noted, 0).is_ok();
            fd::close(seen);
            if whole && note.is_some_and(|note| noted[..] == bytes_of(&note)) {
                return true;
            }
        }
        let is_right = sum_of_file(fd, PAGE_SIZE as u64, stat.bytes) == Some(contents);
        if let (true, Some(note)) = (is_right, note) {
            let _ = self.cache.save(&name, &[&bytes_of(&note)], Lasting::No);
        }
        is_right
    }

    /// # Safety
    /// As for `serve`; the file must be the text's.
    unsafe fn map_file(&self, fd: i32, trampolines: &mut Trampolines, source: Source) -> Mapped {
        let (text, trampolines_at) = (self.text, self.trampolines());
        // The trampolines are assigned even if something fails: their pages are not as they were.
        trampolines.assign(text, (self.place, 1 + pages_for(self.sites)), (0, 0));
        // SAFETY: pages of the array that are free; text as the caller says.
        let map = |at: usize, len: usize, from: usize| unsafe {
            uz_syscall!(nr::MMAP, at, len, READ_EXECUTE, MAP_PRIVATE | MAP_FIXED, fd, from).is_ok()
        };
        if !map(trampolines_at, self.trampoline_bytes(), PAGE_SIZE) {
            return Mapped::Refused;
        }
        // SAFETY: the first of the pages, which were free, never used and thus writable.
        unsafe { (self.place as *mut Links).write(Links::new()) };
        if !map(text.start, self.text_bytes(), PAGE_SIZE + self.trampoline_bytes()) {
            // The text may have gone in the attempt.
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
        // Whole seconds: file systems that know nothing finer keep them.
        let now = now_ns() / 1_000_000_000 * 1_000_000_000;
        let changed = self.object.modified_ns.max(self.object.changed_ns);
        if changed.saturating_add(OBJECT_REST_NS) > now
            || !self.cache.can_hold_code(self.file_bytes())
        {
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
        let patch = Patch::new(&sites, bias, self.trampolines(), None, self.place);
        patch.write_to(&mut copy, self.text.start);
        let mut head = self.head(now, sum(sum(SEED, &patch.trampolines), &copy));
        head.resize(PAGE_SIZE, 0);
        let pieces: [&[u8]; 3] = [&head, &patch.trampolines, &copy];
        self.cache.make_room(MARK, self.file_bytes(), LARGEST_BYTES, REST_NS)
            && self.cache.save(&self.name, &pieces, Lasting::Dated { ns: now }).is_ok()
    }
}

/// The note that a file was found to be right. `None`: it is not known which start of the machine
/// this is, and a note would be believed after the next one.
fn note_of(boot_id: [u64; 2], file: &Stat, contents: u64) -> Option<Note> {
    let [first, second] = boot_id;
    (boot_id != [0; 2]).then_some([first, second, file.inode, file.changed_ns, contents])
}

/// The sum of a file's bytes; `None`: they cannot be read.
fn sum_of_file(fd: i32, from: u64, end: u64) -> Option<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let (mut at, mut all) = (from, SEED);
    while at < end {
        let len = (end - at).min(PIECE_BYTES as u64) as usize;
        file::read_exact_at(fd, &mut piece[..len], at).ok()?;
        all = sum(all, &piece[..len]);
        at += len as u64;
    }
    Some(all)
}

fn word_at(bytes: &[u8], word: usize) -> u64 {
    bytes.as_chunks().0.get(word).map_or(0, |w| u64::from_le_bytes(*w))
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_for_one_start_of_the_machine_and_one_state_of_the_file() {
        let stat = stat_path(b"/proc/self/exe").unwrap();
        let note = note_of([1, 2], &stat, 3).unwrap();
        let mut later = stat;
        later.changed_ns += 1;
        for another in [
            note_of([1, 3], &stat, 3),
            note_of([0, 2], &stat, 3),
            note_of([1, 2], &later, 3),
            note_of([1, 2], &stat, 4),
        ] {
            assert_ne!(another.unwrap(), note);
        }
        assert_eq!(note_of([0; 2], &stat, 3), None, "the start is not known");
    }

    #[test]
    fn the_sum_of_a_file_is_that_of_its_bytes_whatever_the_pieces() {
        let path = std::env::temp_dir().join(std::format!("uzswap-sum-{}", std::process::id()));
        let bytes: Vec<u8> = (0..2 * PIECE_BYTES + 77).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let all = |from: usize| sum_of_file(fd, from as u64, bytes.len() as u64).unwrap();
        let of = |bytes: &[u8]| bytes.chunks(PIECE_BYTES).fold(SEED, sum);
        for from in [0, 8, PIECE_BYTES, bytes.len()] {
            assert_eq!(all(from), of(&bytes[from..]), "from {from}");
        }
        assert_eq!(sum_of_file(fd, 0, bytes.len() as u64 + 1), None, "it is cut");
        let head = bytes_of(&[1, 2]);
        assert_eq!([word_at(&head, 0), word_at(&head, 1), word_at(&head, 2)], [1, 2, 0]);
    }
}
