//! The patch table of an object, and its cache on disk.
//!
//! Analysing libc takes tens of milliseconds, which every short process of a build or a shell script would pay.
//! So the result is kept in a file per object, named by the linker's fingerprint (or, where there is none, by
//! the file's identity), in a directory that only the user can write:
//!
//! ```text
//!  magic  format  sites  unpatchable  sum   then 88 bytes for each site, 8 for each unpatchable address
//! ```
//!
//! The file is trusted only as far as it must be: directory and file must belong to the user and be writable by nobody
//! else, the sum must fit, and each site carries the bytes that it was made for, which are
//! compared with the text before a byte is changed. It is written under another name and renamed.
//!
//! # Safety charter
//! Raw system calls on paths and buffers of this file's own.
#![allow(unsafe_code)]

use std::vec;
use std::vec::Vec;

use uzswap::sys::{Errno, Result, fd, file, nr};
use uzswap::uz_syscall;

/// The longest piece of code that one site replaces.
pub const SITE_BYTES: usize = 40;
/// The number is not known before the call is made.
pub const NO_NUMBER: u16 = u16::MAX;
/// No correction.
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
    /// Ends with a branch on this condition (the low nibble of its opcode) to this address, else goes on.
    Branch(u8, u64),
}

/// One system-call instruction and its replacement. Addresses are the object's virtual addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The first overwritten byte.
    pub start: u64,
    /// What was there.
    pub original: [u8; SITE_BYTES],
    /// How many bytes are overwritten.
    pub len: u8,
    /// Where the instruction is, from `start`. Equal to `len`: it stays in place.
    pub syscall: u8,
    /// How many of the overwritten bytes are copied to the slot as they are (all but a branch at the end).
    pub copied: u8,
    pub number: u16,
    /// Offsets of 32-bit distances in the copied bytes that must be corrected for the move.
    pub rip: [u8; 2],
    pub tail: Tail,
    /// Address of the padding that holds the long jump, or 0.
    pub pad: u64,
}

impl Site {
    /// The instruction is not overwritten.
    pub fn stays_in_place(&self) -> bool {
        self.syscall == self.len
    }

    pub fn syscall_vaddr(&self) -> u64 {
        self.start + self.syscall as u64
    }

    /// Whether a file's claim is at least consistent in itself.
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

/// What analysing an object gave.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Analysis {
    /// Sorted by address; their bytes do not overlap.
    pub sites: Vec<Site>,
    /// Where calls are, or seem to be, for which there is no safe replacement.
    pub unpatchable: Vec<u64>,
}

// ---- as bytes ----------------------------------------------------------------------------------------------

const MAGIC: [u8; 4] = *b"uzpt";
/// To be raised whenever the analysis or the layout changes.
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 88;
const MAX_SITES: usize = 1 << 16;
const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// A checksum against torn files, not against forgers. `seed` continues a sum over whole words.
fn sum(seed: u64, bytes: &[u8]) -> u64 {
    let mut h = seed;
    let (words, rest) = bytes.as_chunks::<8>();
    for w in words {
        h = (h ^ u64::from_le_bytes(*w)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    rest.iter().fold(h, |h, &b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3))
}

impl Analysis {
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
        if bytes[..4] != MAGIC || u32_at(4)? != FORMAT || count > MAX_SITES || unpatchable > MAX_SITES {
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
            let u64_at = |at: usize| u64::from_le_bytes(r[at..at + 8].try_into().unwrap_or_default());
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
        let unpatchable = bytes[records_end..].as_chunks().0.iter().map(|a| u64::from_le_bytes(*a)).collect();
        Some(Analysis { sites, unpatchable })
    }
}

// ---- on disk -----------------------------------------------------------------------------------------------

const AT_FDCWD: isize = -100;
const RLIMIT_FSIZE: usize = 1;
const O_WRONLY: usize = 1;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_NONBLOCK: usize = 0o4000;
const O_DIRECTORY: usize = 0o200000;
const O_NOFOLLOW: usize = 0o400000;
const O_CLOEXEC: usize = 0o2000000;
const S_IFMT: u32 = 0o170000;
const S_IFREG: u32 = 0o100000;
const S_IFDIR: u32 = 0o040000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The parts of `struct stat` that matter here.
pub struct Stat {
    pub device: u64,
    pub inode: u64,
    mode: u32,
    uid: u32,
    pub bytes: u64,
    pub modified_ns: u64,
}

fn stat_from(raw: &[u64; 18]) -> Stat {
    Stat {
        device: raw[0],
        inode: raw[1],
        mode: raw[3] as u32,
        uid: (raw[3] >> 32) as u32,
        bytes: raw[6],
        modified_ns: raw[11].wrapping_mul(1_000_000_000).wrapping_add(raw[12]),
    }
}

pub fn stat_fd(fd: i32) -> Result<Stat> {
    let mut raw = [0u64; 18];
    // SAFETY: the buffer has the size of struct stat.
    unsafe { uz_syscall!(nr::FSTAT, fd, raw.as_mut_ptr()) }?;
    Ok(stat_from(&raw))
}

/// Opens a path of bytes for reading.
pub fn open_path(path: &[u8], flags: usize) -> Result<i32> {
    let path = terminated(path)?;
    // SAFETY: a terminated path of our own.
    unsafe { uz_syscall!(nr::OPENAT, AT_FDCWD, path.as_ptr(), flags | O_CLOEXEC) }.map(|fd| fd as i32)
}

fn terminated(path: &[u8]) -> Result<Vec<u8>> {
    if path.is_empty() || path.contains(&0) || path.len() > 4095 {
        return Err(Errno::EINVAL);
    }
    let mut z = Vec::with_capacity(path.len() + 1);
    z.extend_from_slice(path);
    z.push(0);
    Ok(z)
}

/// Reads a whole descriptor from its start.
pub fn read_all(fd: i32, hint: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; hint.max(64)];
    let mut len = 0;
    loop {
        if len == out.len() {
            out.resize(len * 2, 0);
        }
        match fd::read(fd, &mut out[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    out.truncate(len);
    Ok(out)
}

/// An open cache directory that nobody else can write to.
pub struct CacheDir {
    fd: i32,
    uid: u32,
}

impl Drop for CacheDir {
    fn drop(&mut self) {
        fd::close(self.fd);
    }
}

impl CacheDir {
    /// Opens the directory, made (with its missing parents, mode 0700) if need be.
    pub fn open(path: &[u8]) -> Option<CacheDir> {
        let flags = O_DIRECTORY | O_NOFOLLOW;
        let fd = match open_path(path, flags) {
            Err(Errno::ENOENT) => {
                for end in (1..=path.len()).filter(|&i| i == path.len() || path[i] == b'/') {
                    let dir = terminated(&path[..end]).ok()?;
                    // SAFETY: a terminated path of our own. That it exists is no failure.
                    let _ = unsafe { uz_syscall!(nr::MKDIR, dir.as_ptr(), 0o700) };
                }
                open_path(path, flags).ok()?
            }
            other => other.ok()?,
        };
        // SAFETY: no argument.
        let uid = unsafe { uz_syscall!(nr::GETEUID) }.ok()? as u32;
        let dir = CacheDir { fd, uid };
        let stat = stat_fd(fd).ok()?;
        let trusted = stat.mode & S_IFMT == S_IFDIR && stat.uid == uid && stat.mode & WRITABLE_BY_OTHERS == 0;
        trusted.then_some(dir)
    }

    /// The analysis kept under `name`, if there is one that can be trusted.
    pub fn load(&self, name: &[u8]) -> Option<Analysis> {
        let name = terminated(name).ok()?;
        let flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        // SAFETY: a terminated name of our own.
        let fd = unsafe { uz_syscall!(nr::OPENAT, self.fd, name.as_ptr(), flags) }.ok()? as i32;
        let analysis = self.load_from(fd);
        fd::close(fd);
        analysis
    }

    fn load_from(&self, fd: i32) -> Option<Analysis> {
        let stat = stat_fd(fd).ok()?;
        let largest = (HEADER_BYTES + MAX_SITES * (RECORD_BYTES + 8)) as u64;
        let trusted =
            stat.mode & S_IFMT == S_IFREG && stat.uid == self.uid && stat.mode & WRITABLE_BY_OTHERS == 0;
        if !trusted || stat.bytes > largest {
            return None;
        }
        Analysis::from_bytes(&read_all(fd, stat.bytes as usize + 1).ok()?)
    }

    /// Keeps an analysis. A cache that cannot be written costs time, nothing else.
    pub fn save(&self, name: &[u8], analysis: &Analysis) {
        let _ = self.try_save(name, &analysis.to_bytes());
    }

    fn try_save(&self, name: &[u8], bytes: &[u8]) -> Result<()> {
        // Beyond RLIMIT_FSIZE the kernel not only refuses, it kills.
        let mut file_size_limit = [0u64; 2];
        // SAFETY: the kernel writes two words.
        unsafe { uz_syscall!(nr::PRLIMIT64, 0, RLIMIT_FSIZE, 0, file_size_limit.as_mut_ptr()) }?;
        if file_size_limit[0] < bytes.len() as u64 {
            return Err(Errno::ENOSPC);
        }
        let final_name = terminated(name)?;
        let mut random = [0; 8];
        file::fill_random(&mut random)?;
        let mut temporary = Vec::from(name);
        temporary.push(b'.');
        push_hex(&mut temporary, &random);
        temporary.push(0);
        let flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
        // SAFETY: terminated names of our own and a borrowed buffer; all live until the calls return.
        unsafe {
            let fd = uz_syscall!(nr::OPENAT, self.fd, temporary.as_ptr(), flags, 0o600)? as i32;
            let mut left = bytes;
            let mut outcome = Ok(());
            while !left.is_empty() && outcome.is_ok() {
                match uz_syscall!(nr::WRITE, fd, left.as_ptr(), left.len()) {
                    Ok(n) if n > 0 => left = &left[n..],
                    Err(Errno::EINTR) => {}
                    Ok(_) => outcome = Err(Errno::ENOSPC),
                    Err(e) => outcome = Err(e),
                }
            }
            fd::close(fd);
            if outcome.is_ok() {
                outcome =
                    uz_syscall!(nr::RENAMEAT, self.fd, temporary.as_ptr(), self.fd, final_name.as_ptr())
                        .map(drop);
            }
            if outcome.is_err() {
                let _ = uz_syscall!(nr::UNLINKAT, self.fd, temporary.as_ptr(), 0);
            }
            outcome
        }
    }
}

pub fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    for b in bytes {
        out.extend([b"0123456789abcdef"[(b >> 4) as usize], b"0123456789abcdef"[(b & 15) as usize]]);
    }
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
        let mut detour = Site { start: 0x1020, len: 2, syscall: 0, copied: 2, pad: 0x1040, ..before.clone() };
        detour.original[..2].copy_from_slice(&[0x0f, 0x05]);
        let jump = Site { start: 0x1030, tail: Tail::Jump(7), ..over.clone() };
        Analysis { sites: [over, before, detour, jump].into(), unpatchable: [0x5000, 0x6000].into() }
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
}
