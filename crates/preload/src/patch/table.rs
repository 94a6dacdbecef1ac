//! The patch table of an object, and its cache on disk.
//!
//! Analysing libc takes tens of milliseconds, which every short process of a build or a shell
//! script would pay. So the result is kept in a file per object, named by the linker's fingerprint
//! (or, where there is none, by the file's identity), in the cache directory (`cache.rs`):
//!
//! ```text
//!  magic  format  sites  unpatchable  sum   then 88 bytes for each site, 8 for each unpatchable address
//! ```
//!
//! The file is trusted only as far as it must be: the sum must fit, and each site carries the bytes
//! that it was made for, which are compared with the text before a byte is changed.
#![forbid(unsafe_code)]

use std::vec;
use std::vec::Vec;

use uzswap::sys::{fd, file};

use super::cache::{CacheDir, Lasting};

/// The longest piece of code that one site replaces.
pub const SITE_BYTES: usize = 40;
/// In place of a number that is not known before the call is made.
pub const NO_NUMBER: u16 = u16::MAX;
/// In place of an offset: no correction.
pub const NO_RIP: u8 = u8::MAX;

/// How the moved code ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// Goes on behind the overwritten bytes.
    Next,
    /// The last moved instruction does not go on (a return).
    None,
    /// Ends with a jump to this address.
    Jump(u64),
    /// Ends with a branch on this condition (the low nibble of its opcode) to this address, else
    /// goes on.
    Branch(u8, u64),
}

/// One system-call instruction and its replacement. Addresses are the object's virtual addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The first overwritten byte.
    pub start: u64,
    /// The bytes that are overwritten.
    pub original: [u8; SITE_BYTES],
    /// How many bytes are overwritten.
    pub len: u8,
    /// Where the instruction is, from `start`. Equal to `len`: it stays in place.
    pub syscall: u8,
    /// How many of the overwritten bytes are copied to the trampoline as they are (all but a branch
    /// at the end).
    pub copied: u8,
    pub number: u16,
    /// Offsets of 32-bit distances in the copied bytes that must be corrected for the move.
    pub rip: [u8; 2],
    pub tail: Tail,
    /// Address of the padding that holds the long jump, or 0.
    pub pad: u64,
}

impl Site {
    /// Whether the instruction is not overwritten.
    pub fn stays_in_place(&self) -> bool {
        self.syscall == self.len
    }

    pub fn syscall_vaddr(&self) -> u64 {
        self.start + self.syscall as u64
    }

    /// Whether a site from a file is at least consistent in itself.
    fn is_sane(&self) -> bool {
        let (len, at, copied) = (self.len as usize, self.syscall as usize, self.copied as usize);
        let room = if self.pad != 0 { 2 } else { 5 };
        len >= room
            && len <= SITE_BYTES
            && copied <= len
            && at <= 16
            && (at == len || (at + 2 <= copied && self.original[at..at + 2] == [0x0f, 0x05]))
            && copied.saturating_sub(at + 2) <= 16
            && self.rip.iter().all(|&r| r == NO_RIP || r as usize + 4 <= copied)
    }
}

/// The result of analysing an object.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Analysis {
    /// Sorted by address; their bytes do not overlap.
    pub sites: Vec<Site>,
    /// Addresses of calls, or of bytes that look like one, for which there is no safe replacement.
    pub unpatchable: Vec<u64>,
}

// ---- as bytes ----------------------------------------------------------------------------------------------

const MAGIC: [u8; 4] = *b"uzpt";
/// To be raised whenever the analysis or the layout changes.
pub const FORMAT: u32 = 4;
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 88;
const MAX_SITES: usize = 1 << 16;
pub const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// A checksum against torn files, not against forgers. `seed` continues a sum over whole words.
pub fn sum(seed: u64, bytes: &[u8]) -> u64 {
    let mut h = seed;
    let (words, rest) = bytes.as_chunks::<8>();
    for w in words {
        h = (h ^ u64::from_le_bytes(*w)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    rest.iter().fold(h, |h, &b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3))
}

impl Analysis {
    pub fn counts(&self) -> Counts {
        Counts { sites: self.sites.len(), unpatchable: self.unpatchable.len() }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.sites.len() * RECORD_BYTES);
        out.extend(MAGIC);
        out.extend(FORMAT.to_le_bytes());
        out.extend((self.sites.len() as u32).to_le_bytes());
        out.extend((self.unpatchable.len() as u32).to_le_bytes());
        out.extend([0; 8]);
        for s in &self.sites {
            let (tail, target) = match s.tail {
                Tail::Next => (0, 0),
                Tail::None => (1, 0),
                Tail::Jump(to) => (2, to),
                Tail::Branch(condition, to) => (0x10 | condition & 15, to),
            };
            out.extend(s.start.to_le_bytes());
            out.extend(s.pad.to_le_bytes());
            out.extend(target.to_le_bytes());
            out.extend(s.number.to_le_bytes());
            out.extend([s.len, s.syscall, s.copied, tail, s.rip[0], s.rip[1]]);
            out.extend(s.original);
            out.extend([0; RECORD_BYTES - 32 - SITE_BYTES]);
        }
        out.extend(self.unpatchable.iter().flat_map(|a| a.to_le_bytes()));
        let total = sum(SEED, &out[8..]);
        out[16..24].copy_from_slice(&total.to_le_bytes());
        out
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Analysis> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (count, unpatchable) = (u32_at(8)? as usize, u32_at(12)? as usize);
        if bytes.get(..4)? != MAGIC
            || u32_at(4)? != FORMAT
            || count > MAX_SITES
            || unpatchable > MAX_SITES
        {
            return None;
        }
        let records_end = HEADER_BYTES + count * RECORD_BYTES;
        if bytes.len() != records_end + unpatchable * 8 {
            return None;
        }
        let claimed = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
        let mut head = [0; 16];
        head[..8].copy_from_slice(&bytes[8..16]);
        if claimed != sum(sum(SEED, &head), &bytes[HEADER_BYTES..]) {
            return None;
        }
        let mut sites = Vec::with_capacity(count);
        let mut end = 0;
        for r in bytes[HEADER_BYTES..records_end].as_chunks::<RECORD_BYTES>().0 {
            let u64_at =
                |at: usize| u64::from_le_bytes(r[at..at + 8].try_into().unwrap_or_default());
            let target = u64_at(16);
            let site = Site {
                start: u64_at(0),
                pad: u64_at(8),
                number: u16::from_le_bytes([r[24], r[25]]),
                len: r[26],
                syscall: r[27],
                copied: r[28],
                tail: match r[29] {
                    0 => Tail::Next,
                    1 => Tail::None,
                    2 => Tail::Jump(target),
                    t if t & 0xf0 == 0x10 => Tail::Branch(t & 15, target),
                    _ => return None,
                },
                rip: [r[30], r[31]],
                original: r[32..32 + SITE_BYTES].try_into().ok()?,
            };
            if !site.is_sane() || site.start < end {
                return None;
            }
            end = site.start.checked_add(site.len as u64)?;
            sites.push(site);
        }
        let unpatchable =
            bytes[records_end..].as_chunks().0.iter().map(|a| u64::from_le_bytes(*a)).collect();
        Some(Analysis { sites, unpatchable })
    }
}

// ---- in the cache ------------------------------------------------------------------------------------------

/// How many system-call instructions an object has: enough to know when its text is shared.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    pub sites: usize,
    pub unpatchable: usize,
}

/// The table kept under `name`, if there is one that can be trusted.
pub fn load(cache: &CacheDir, name: &[u8]) -> Option<Analysis> {
    let (fd, stat) = cache.open_file(name)?;
    let largest = (HEADER_BYTES + MAX_SITES * (RECORD_BYTES + 8)) as u64;
    let mut bytes = vec![0; stat.bytes.min(largest) as usize];
    let whole = file::read_exact_at(fd, &mut bytes, 0).is_ok();
    fd::close(fd);
    if whole { Analysis::from_bytes(&bytes) } else { None }
}

/// The counts in the head of the table kept under `name`; the rest is not read. They are a hint,
/// but that there is nothing at all in an object is certain.
pub fn counts(cache: &CacheDir, name: &[u8]) -> Option<Counts> {
    let (fd, stat) = cache.open_file(name)?;
    let mut head = [0; HEADER_BYTES];
    let whole = file::read_exact_at(fd, &mut head, 0).is_ok();
    fd::close(fd);
    let word = |at: usize| {
        u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize
    };
    let counts = Counts { sites: word(8), unpatchable: word(12) };
    let known = head[..4] == MAGIC
        && word(4) == FORMAT as usize
        && counts.sites.max(counts.unpatchable) <= MAX_SITES;
    let bytes = HEADER_BYTES + counts.sites * RECORD_BYTES + counts.unpatchable * 8;
    let sound = counts != Counts::default() || Analysis::from_bytes(&head).is_some();
    (whole && known && bytes as u64 == stat.bytes && sound).then_some(counts)
}

/// Keeps a table. A cache that cannot be written costs time, nothing else.
pub fn save(cache: &CacheDir, name: &[u8], analysis: &Analysis) {
    let _ = cache.save(name, &[&analysis.to_bytes()], Lasting::No);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Analysis {
        let mut original = [0x90; SITE_BYTES];
        original[5..7].copy_from_slice(&[0x0f, 0x05]);
        let over = Site {
            start: 0x1000,
            original,
            len: 10,
            syscall: 5,
            copied: 8,
            number: 3,
            rip: [1, NO_RIP],
            tail: Tail::Branch(4, 0x2000),
            pad: 0,
        };
        let before = Site {
            start: 0x1010,
            len: 5,
            syscall: 5,
            copied: 5,
            tail: Tail::Next,
            rip: [NO_RIP; 2],
            ..over.clone()
        };
        let mut detour =
            Site { start: 0x1020, len: 2, syscall: 0, copied: 2, pad: 0x1040, ..before.clone() };
        detour.original[..2].copy_from_slice(&[0x0f, 0x05]);
        let jump = Site { start: 0x1030, tail: Tail::Jump(7), ..over.clone() };
        Analysis {
            sites: [over, before, detour, jump].into(),
            unpatchable: [0x5000, 0x6000].into(),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for a in [example(), Analysis::default()] {
            assert_eq!(Analysis::from_bytes(&a.to_bytes()), Some(a));
        }
    }

    #[test]
    fn every_damaged_bit_and_every_cut_is_noticed() {
        let good = example().to_bytes();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Analysis::from_bytes(&bad), None, "bit {bit}");
        }
        for cut in 0..good.len() {
            assert_eq!(Analysis::from_bytes(&good[..cut]), None);
        }
    }

    #[test]
    fn sites_that_contradict_themselves_are_refused() {
        let contradictions: [fn(&mut Site); 7] = [
            |s| s.len = 4,
            |s| s.len = SITE_BYTES as u8 + 1,
            |s| s.copied = 11,
            |s| s.syscall = 6,
            |s| s.original[5] = 0x90,
            |s| s.rip[0] = 5,
            |s| s.start = 0x1011,
        ];
        for break_it in contradictions {
            let mut a = example();
            break_it(&mut a.sites[0]);
            assert_eq!(Analysis::from_bytes(&a.to_bytes()), None);
        }
    }

    #[test]
    fn the_head_tells_how_many_sites_there_are() {
        let path = std::env::temp_dir().join(std::format!("uzswap-counts-{}", std::process::id()));
        let cache = CacheDir::open(path.as_os_str().as_encoded_bytes()).unwrap();
        for a in [example(), Analysis::default()] {
            save(&cache, b"table", &a);
            assert_eq!(
                (counts(&cache, b"table"), load(&cache, b"table")),
                (Some(a.counts()), Some(a.clone()))
            );
            // A table that says that there is nothing must be true; all other errors are found out.
            let good = a.to_bytes();
            for bit in 0..HEADER_BYTES * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                std::fs::write(path.join("table"), &bad).unwrap();
                assert_ne!(
                    (counts(&cache, b"table"), bad.len()),
                    (Some(Counts::default()), HEADER_BYTES)
                );
            }
            std::fs::write(path.join("table"), &good[..good.len() - 1]).unwrap();
            assert_eq!(counts(&cache, b"table"), None);
        }
        std::fs::remove_dir_all(path).unwrap();
    }
}
