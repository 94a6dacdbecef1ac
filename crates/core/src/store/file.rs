//! The default store: one unlinked sparse file in a directory that the user chooses.
//!
//! The file has no name and no permissions for anybody else, and the kernel frees it when the last
//! process that has it open ends, however it ends. It is read and written with `O_DIRECT` where the
//! file system takes it: the page cache would count against the memory limit that we are trying to
//! keep. Where it does not, each write is pushed out and dropped from the page cache soon
//! afterwards.

use super::{DESCRIPTORS, Progress, Queue, ReadQueue, Store};
use crate::sys::file::{self, Fd};
use crate::sys::mem::Mapping;
use crate::sys::{PAGE_SIZE, Result};

/// How far behind the newest write the page cache is dropped (only without `O_DIRECT`). The kernel
/// has then had the time to write that much, so that the wait is short.
const BUFFERED_LAG_BYTES: u64 = 1 << 20;

/// The file's size from the start, all of it a hole: writes that move the end of a file are written
/// one by one.
const SPARSE_BYTES: u64 = 1 << 40;

/// An unlinked file and the directory to make more of them in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStore {
    file: Fd,
    directory: Fd,
    direct: bool,
}

/// Whether to go around the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// `O_DIRECT` if the file system takes it.
    Avoid,
    /// Always through the page cache, kept small.
    Use,
}

impl FileStore {
    /// Makes the file in `directory`. The error is the kernel's: no such directory, not writable,
    /// no space.
    pub fn open(directory: &[u8]) -> Result<FileStore> {
        Self::open_with(directory, PageCache::Avoid)
    }

    pub fn open_with(directory: &[u8], page_cache: PageCache) -> Result<FileStore> {
        let directory = file::open_directory(directory)?;
        Self::make(directory, page_cache).inspect_err(|_| file::close(directory))
    }

    fn make(directory: Fd, page_cache: PageCache) -> Result<FileStore> {
        let fd = file::open_unlinked(directory)?;
        file::extend(fd, SPARSE_BYTES);
        match probe(fd, page_cache) {
            Ok(direct) => Ok(FileStore { file: fd, directory, direct }),
            Err(e) => {
                file::close(fd);
                Err(e)
            }
        }
    }

    /// Whether the page cache is avoided.
    pub fn is_direct(self) -> bool {
        self.direct
    }

    /// Disk space that the file takes.
    pub fn disk_bytes(self) -> Result<u64> {
        file::disk_bytes(self.file)
    }
}

/// Tries out whether the file takes writes, and whether it takes `O_DIRECT` ones of one block: some
/// file systems accept the flag and refuse the write, or want larger blocks.
fn probe(fd: Fd, page_cache: PageCache) -> Result<bool> {
    let block = Mapping::new(PAGE_SIZE)?;
    if page_cache == PageCache::Avoid && file::set_direct(fd, true).is_ok() {
        // One block past the start, so that an alignment larger than ours shows.
        if file::write_all_at(fd, block.as_slice(), PAGE_SIZE as u64).is_ok() {
            file::punch_hole(fd, 0, 2 * PAGE_SIZE as u64).ok();
            return Ok(true);
        }
        file::set_direct(fd, false)?;
    }
    file::write_all_at(fd, block.as_slice(), PAGE_SIZE as u64)?;
    file::punch_hole(fd, 0, 2 * PAGE_SIZE as u64).ok();
    Ok(false)
}

/// Where as much of the page cache is dropped as was written at `at`. Writes go mostly upwards;
/// after a jump the range holds little, which costs little. Near the start of the file there is no
/// such place: what is there was written just now, and an empty range means all of the file to the
/// kernel.
fn behind(at: u64) -> Option<u64> {
    at.checked_sub(BUFFERED_LAG_BYTES)
}

impl Store for FileStore {
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()> {
        file::read_exact_at(self.file, buf, at)?;
        if !self.direct {
            file::drop_page_cache(self.file, at, buf.len() as u64);
        }
        Ok(())
    }

    fn read_ahead(self, queue: &mut ReadQueue, at: u64, len: usize) -> bool {
        // Through the page cache `io_submit` would wait.
        self.direct && queue.submit_read(0, self.file, at, len).is_ok()
    }

    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        if let Err(e) = file::within_size_limit(at, len) {
            return Progress::Ended(Err(e));
        }
        // Through the page cache `io_submit` would wait, so then there is no point in it.
        if self.direct && queue.submit_write(slot, self.file, at, len).is_ok() {
            return Progress::Queued;
        }
        let written = file::write_all_at(self.file, &queue.buffer(slot)[..len], at);
        if !self.direct && written.is_ok() {
            file::start_writeout(self.file, at, len as u64);
            if let Some(from) = behind(at) {
                file::drop_page_cache(self.file, from, len as u64);
            }
        }
        Progress::Ended(written)
    }

    fn discard(self, at: u64, len: u64) {
        file::punch_hole(self.file, at, len).ok();
    }

    fn fresh(self) -> Result<FileStore> {
        let fd = file::open_unlinked(self.directory)?;
        file::extend(fd, SPARSE_BYTES);
        // The directory is the same, hence the file system: whether it takes direct I/O is known.
        let direct = self.direct && file::set_direct(fd, true).is_ok();
        Ok(FileStore { file: fd, directory: self.directory, direct })
    }

    fn close(self) {
        file::close(self.file);
    }

    fn end(self) {
        file::close(self.directory);
    }

    fn is_inherited(self) -> bool {
        true
    }

    fn descriptor(self) -> Fd {
        self.file
    }

    fn shared_descriptors(self) -> [Fd; DESCRIPTORS] {
        core::array::from_fn(|i| if i == 0 { self.directory } else { -1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CLUSTER_BYTES;

    #[test]
    fn what_is_dropped_lies_as_far_behind_a_write_as_it_says_and_everything_is_once() {
        const STEP: u64 = CLUSTER_BYTES as u64;
        let writes = (0..100).map(|slot| slot * STEP);
        let dropped: Vec<u64> = writes.clone().filter_map(behind).collect();
        assert!(writes.clone().all(|at| behind(at).is_none_or(|from| at - from == 1 << 20)));
        assert_eq!(dropped, writes.take(100 - 16).collect::<Vec<_>>());
        // A write into the first place again, which wastes no time on the others.
        assert_eq!(behind(0), None);
    }
}
