//! A store on a block device: a disk, a partition, a volume, for the processes of one run.
//!
//! All processes use the one device, in extents that they lease ([`super::extents`]); each has
//! opened it itself. It is read and written around the page cache, by the kernel's asynchronous
//! I/O, as a file is. `uzswap run` holds the device exclusively, so that nobody mounts it
//! meanwhile.

use super::extents::{Extents, Geometry, Leases, Spot, owner};
use super::{DESCRIPTORS, Progress, Queue, ReadQueue, Store};
use crate::sys::file::{self, Fd};
use crate::sys::{Errno, Result};

/// The device, for one process.
pub struct Device {
    fd: Fd,
    extents: Extents,
}

/// One space on the device. See [`Store`].
#[derive(Clone, Copy)]
pub struct DeviceStore {
    device: &'static Device,
    space: u8,
}

impl DeviceStore {
    /// Opens the device. Allocates, so not for use in a fault.
    pub fn open(path: &[u8], geometry: Geometry, leases: &'static Leases) -> Result<DeviceStore> {
        let fd = file::open_device(path)?;
        let device = Box::leak(Box::new(Device { fd, extents: Extents::new(geometry, leases) }));
        Ok(DeviceStore { device, space: device.extents.open_space()? })
    }

    fn spot(self, at: u64) -> Result<Spot> {
        self.device.extents.find(self.space, at)[0].ok_or(Errno::EIO)
    }
}

impl Store for DeviceStore {
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()> {
        file::read_exact_at(self.device.fd, buf, self.spot(at)?.at)
    }

    fn read_ahead(self, queue: &mut ReadQueue, at: u64, len: usize) -> bool {
        self.spot(at).is_ok_and(|spot| queue.submit_read(0, self.device.fd, spot.at, len).is_ok())
    }

    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        let leased = self.device.extents.find_or_lease(self.space, at, owner(), 1, |_| true);
        let spot = match leased.and_then(|spots| spots[0].ok_or(Errno::ENOSPC)) {
            Ok(spot) => spot,
            Err(e) => return Progress::Ended(Err(e)),
        };
        if queue.submit_write(slot, self.device.fd, spot.at, len).is_ok() {
            return Progress::Queued;
        }
        Progress::Ended(file::write_all_at(self.device.fd, &queue.buffer(slot)[..len], spot.at))
    }

    fn discard(self, at: u64, len: u64) {
        if let Ok(spot) = self.spot(at) {
            file::discard_of_device(self.device.fd, spot.at, len);
        }
    }

    fn fresh(self) -> Result<DeviceStore> {
        Ok(DeviceStore { device: self.device, space: self.device.extents.open_space()? })
    }

    fn close(self) {
        self.device.extents.close_space(self.space);
    }

    fn end(self) {
        file::close(self.device.fd);
    }

    fn is_inherited(self) -> bool {
        true
    }

    fn shared_descriptors(self) -> [Fd; DESCRIPTORS] {
        core::array::from_fn(|i| if i == 0 { self.device.fd } else { -1 })
    }
}
