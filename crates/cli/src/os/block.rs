//! The control block as `uzswap run` makes it: two files in memory, and how the program's processes
//! find them. `uzswap::control` says what the bytes in them mean.
//!
//! # Safety charter
//! That of `os.rs`. The shared file is mapped for the life of the process and sealed against
//! shrinking, so references to it stay valid whatever the managed program does; it consists of
//! atomics.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

use uzswap::control::handles::{COUNTERS_SEALS, Handle, Handles, SETTINGS_SEALS, TEXT_BYTES};
use uzswap::control::trace::{RING_OFFSET, Ring, TRACED_BYTES};
use uzswap::control::{CONTROL_BYTES, Settings, Tree};

use super::check;
use super::files::within_file_size;
use super::own::resource_limit;

/// Memory that the processes of one run share, and what they are told, see `uzswap::control`.
pub struct ControlBlock {
    addr: *mut u8,
    counters: OwnedFd,
    settings: OwnedFd,
    has_ring: bool,
}

impl ControlBlock {
    /// Makes both: the counters, which all may write, and the settings, which nobody can write any
    /// more. Their descriptors survive an exec.
    pub fn create(settings: &Settings) -> io::Result<ControlBlock> {
        let has_ring = settings.trace != 0;
        Self::fits(has_ring)?;
        let sealed = memory_file(c"uzswap-settings")?;
        // SAFETY: plain numbers and bytes without padding between them, read for their length.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(settings).cast::<u8>(),
                size_of::<Settings>(),
            )
        };
        File::from(sealed.try_clone()?).write_all_at(bytes, 0)?;
        add_seals(&sealed, SETTINGS_SEALS)?;

        let shared = memory_file(c"uzswap-control")?;
        let bytes = Self::file_bytes(has_ring);
        // SAFETY: plain calls on our descriptor; the mapping is new, of the size the file was just
        // given.
        let addr = unsafe {
            check(libc::ftruncate(shared.as_raw_fd(), bytes as libc::off_t))?;
            add_seals(&shared, COUNTERS_SEALS)?;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(null_mut(), bytes, prot, libc::MAP_SHARED, shared.as_raw_fd(), 0)
        };
        if addr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (counters, settings) = (above_small_numbers(shared)?, above_small_numbers(sealed)?);
        Ok(ControlBlock { addr: addr.cast(), counters, settings, has_ring })
    }

    /// Whether files, those in memory included, may be as large as the block's.
    pub fn fits(has_ring: bool) -> io::Result<()> {
        within_file_size(Self::file_bytes(has_ring).max(size_of::<Settings>()))
    }

    /// The length of the larger file.
    pub fn file_bytes(has_ring: bool) -> usize {
        if has_ring { TRACED_BYTES } else { CONTROL_BYTES }
    }

    /// The shared counters.
    pub fn tree(&self) -> &'static Tree {
        // SAFETY: mapped until the process ends (there is no Drop), at a page boundary, for
        // CONTROL_BYTES; all fields are atomics, for which any bytes are valid.
        unsafe { &*self.addr.cast::<Tree>() }
    }

    /// Where faults are recorded, if the settings said so.
    pub fn ring(&self) -> Option<&'static Ring> {
        // SAFETY: as above; with a ring the mapping is as long as that needs.
        self.has_ring.then(|| unsafe { &*self.addr.add(RING_OFFSET).cast::<Ring>() })
    }

    /// The descriptor of the counters.
    pub fn fd(&self) -> RawFd {
        self.counters.as_raw_fd()
    }

    /// Variables of the program's environment: the descriptors, and which files they are of.
    pub fn variable(&self) -> String {
        let handle = |fd: &OwnedFd| {
            // The descriptor is open, so this finds an inode. A wrong number would only make the
            // program run unmanaged.
            let inode =
                uzswap::sys::fd::inode_and_bytes(fd.as_raw_fd()).map_or(0, |(inode, _)| inode);
            Handle { fd: fd.as_raw_fd(), inode }
        };
        let (counters, settings) = (handle(&self.counters), handle(&self.settings));
        let all = Handles { counters, settings, ignored: None };
        String::from_utf8_lossy(all.write_to(&mut [0; TEXT_BYTES])).into_owned()
    }
}

/// A new file in memory that can be sealed.
fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    const MFD_NOEXEC_SEAL: u32 = 8;
    let make = |flags| {
        // SAFETY: a terminated name.
        check(unsafe { libc::memfd_create(name.as_ptr(), flags) })
    };
    let sealing = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know NOEXEC_SEAL; later ones may insist on it (vm.memfd_noexec).
    let fd = make(sealing | MFD_NOEXEC_SEAL).or_else(|_| make(sealing))?;
    // SAFETY: just opened, ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn add_seals(file: &OwnedFd, seals: u32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals as c_int) }).map(drop)
}

/// Moves a descriptor to where it is in nobody's way, without close-on-exec. Shells use 10 and up
/// for themselves and scripts small numbers; `select` ends at 1024.
fn above_small_numbers(fd: OwnedFd) -> io::Result<OwnedFd> {
    const WANTED: u64 = 700;
    let limit = resource_limit(libc::RLIMIT_NOFILE as c_int).unwrap_or(1024);
    let mut lowest = WANTED.min(limit.saturating_sub(1)) as c_int;
    loop {
        // SAFETY: duplicating our own descriptor.
        match check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, lowest) }) {
            // SAFETY: just made, ours.
            Ok(high) => return Ok(unsafe { OwnedFd::from_raw_fd(high) }),
            // The numbers up there are taken: look further down.
            Err(_) if lowest > 3 => lowest /= 2,
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn the_counters_are_shared_and_the_settings_are_sealed() {
        let settings = Settings { memory_bytes: 77 << 20, ..Settings::new() };
        let block = ControlBlock::create(&settings).unwrap();
        assert!(block.fd() >= 3);
        assert_eq!(block.tree().limit_pages.load(Ordering::Relaxed), 0);
        block.tree().limit_pages.store(5, Ordering::Relaxed);
        // As the preload library sees them.
        let handles = Handles::parse(block.variable().as_bytes()).unwrap();
        assert_eq!(handles.counters.fd, block.fd());
        assert!(handles.counters.is_there(COUNTERS_SEALS, CONTROL_BYTES));
        assert!(!handles.counters.is_there(COUNTERS_SEALS, CONTROL_BYTES + 1));
        assert!(!handles.counters.is_there(SETTINGS_SEALS, CONTROL_BYTES), "they can be written");
        assert!(handles.settings.is_there(SETTINGS_SEALS, size_of::<Settings>()));
        let counters = File::from(block.counters.try_clone().unwrap());
        assert!(
            counters.set_len(4096).is_err(),
            "sealed: a shorter file would kill us with SIGBUS"
        );
        counters.write_all_at(&[0], 0).unwrap();

        let sealed = File::from(block.settings.try_clone().unwrap());
        let read = || {
            let mut bytes = vec![0; size_of::<Settings>()];
            sealed.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let before = read();
        assert_eq!(&before[..8], b"uzswap04");
        assert_eq!(before[8..16], (77u64 << 20).to_le_bytes());
        assert!(
            sealed.write_at(&[1], 0).is_err()
                && sealed.set_len(0).is_err()
                && sealed.set_len(9999).is_err()
        );
        let fd = sealed.as_raw_fd();
        // SAFETY: plain calls on our descriptor; a new mapping, of which nothing comes.
        unsafe {
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            assert_eq!(libc::fallocate(fd, hole, 0, 4096), -1);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(
                libc::mmap(null_mut(), 4096, prot, libc::MAP_SHARED, fd, 0),
                libc::MAP_FAILED
            );
        }
        // By a descriptor of its own, opened anew.
        let path = format!("/proc/self/fd/{fd}");
        let again = std::fs::OpenOptions::new().write(true).open(path);
        assert!(again.is_err() || again.is_ok_and(|f| f.write_at(&[1], 0).is_err()));
        assert_eq!(read(), before);

        assert!(block.ring().is_none());
        let traced = ControlBlock::create(&Settings { trace: 1, ..settings }).unwrap();
        assert_eq!(traced.ring().unwrap().next(), uzswap::control::trace::Next::Empty);
    }
}
