//! A block device as `uzswap run` holds it: opened exclusively, which the kernel refuses where it
//! is mounted, used for swapping, or a part of something else.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use uzswap::store::remote::Server;
use uzswap::sys::mem::Mapping;
use uzswap::sys::{Result as Outcome, file};

use crate::program::reason;

/// The most that is read or written at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// The device, ours alone.
pub struct Device {
    /// As long as this is open nobody else can have the device exclusively, or mount it.
    _hold: File,
    /// Goes around the page cache, as the processes do.
    direct: file::Fd,
    /// Aligned, as `direct` needs.
    buffer: Mutex<Mapping>,
    pub bytes: u64,
}

pub fn is_one(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

impl Device {
    pub fn open(path: &Path) -> Result<Device, String> {
        let shown = path.display();
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC);
        let mut hold = options.open(path).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => {
                format!("{shown} is mounted or otherwise in use: name a device that is free")
            }
            _ => format!("{shown}: {}", reason(&e)),
        })?;
        let bytes = hold.seek(SeekFrom::End(0)).map_err(|e| format!("{shown}: {}", reason(&e)))?;
        let in_words = |e: uzswap::sys::Errno| super::words::in_words(&shown.to_string(), e);
        let buffer = Mutex::new(Mapping::new(BUFFER_BYTES).map_err(in_words)?);
        let direct = file::open_device(path.as_os_str().as_bytes()).map_err(in_words)?;
        Ok(Device { _hold: hold, direct, buffer, bytes })
    }

    /// The device in the form in which the runtime finds it.
    pub fn server(path: &Path) -> Result<Server, String> {
        let bytes = path.as_os_str().as_bytes();
        Server::device(bytes).ok_or_else(|| {
            format!("the path {} has more than {} bytes", path.display(), Server::NAME_BYTES)
        })
    }

    /// Reads whole blocks.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Outcome<()> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let aligned = &mut buffer.as_mut_slice()[..buf.len()];
        file::read_exact_at(self.direct, aligned, at)?;
        buf.copy_from_slice(aligned);
        Ok(())
    }

    pub fn write(&self, at: u64, bytes: &[u8]) -> Outcome<()> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let aligned = &mut buffer.as_mut_slice()[..bytes.len()];
        aligned.copy_from_slice(bytes);
        file::write_all_at(self.direct, aligned, at)
    }

    pub fn discard(&self, at: u64, len: u64) {
        file::discard_of_device(self.direct, at, len);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        file::close(self.direct);
    }
}
