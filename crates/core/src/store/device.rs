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
        let bytes = &queue.buffer(slot)[..len];
        Progress::Ended(file::write_all_to_device(self.device.fd, bytes, spot.at))
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

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::os::fd::IntoRawFd;

    use super::super::CLUSTER_BYTES;
    use super::super::extents::{CLAIM_BYTES, EXTENT_LEAST_BYTES, EXTENTS_MOST, set_owner};
    use super::*;
    use crate::sys::file::testing;

    /// A file in the place of a device, with so many extents.
    fn device(extents: usize) -> (DeviceStore, &'static Leases) {
        let temp = std::env::temp_dir();
        let directory = file::open_directory(temp.as_os_str().as_encoded_bytes()).expect("there");
        let fd = file::open_unlinked(directory).expect("a file");
        file::close(directory);
        file::extend(fd, 16 << 20);
        store_on(fd, extents)
    }

    fn store_on(fd: Fd, extents: usize) -> (DeviceStore, &'static Leases) {
        set_owner(1);
        let leases: &'static Leases =
            Box::leak(Box::new([const { AtomicU32::new(0) }; EXTENTS_MOST]));
        let geometry = Geometry::cut(EXTENT_LEAST_BYTES, [extents].into_iter());
        let device: &Device =
            Box::leak(Box::new(Device { fd, extents: Extents::new(geometry, leases) }));
        (DeviceStore { device, space: device.extents.open_space().expect("the first") }, leases)
    }

    fn write(store: DeviceStore, queue: &mut Queue, at: u64, byte: u8) -> Result<()> {
        queue.buffer(0).fill(byte);
        match store.write(queue, 0, at, CLUSTER_BYTES) {
            Progress::Ended(result) => result,
            Progress::Queued => loop {
                queue.reap(true);
                if let Some(result) = queue.take_result(0) {
                    break result;
                }
            },
        }
    }

    #[test]
    fn a_childs_space_has_extents_of_its_own_and_the_claim_is_nobodys() {
        let (parent, leases) = device(2);
        let child = parent.fresh().expect("there is room");
        let mut queue = Queue::new(CLUSTER_BYTES).expect("memory");
        let mut buf = vec![0; CLUSTER_BYTES];
        let mut holds = |store: DeviceStore, at: u64| store.read(at, &mut buf).map(|()| buf[9]);
        assert_eq!(holds(parent, 0), Err(Errno::EIO), "nothing was written");
        let end = EXTENT_LEAST_BYTES - CLUSTER_BYTES as u64;
        for at in [0, end] {
            assert_eq!(write(parent, &mut queue, at, 1), Ok(()));
            assert_eq!(write(child, &mut queue, at, 2), Ok(()));
        }
        assert_eq!([0, end].map(|at| (holds(parent, at), holds(child, at))), [(Ok(1), Ok(2)); 2]);
        let beyond = write(parent, &mut queue, EXTENT_LEAST_BYTES, 3);
        assert_eq!(
            (beyond, holds(parent, EXTENT_LEAST_BYTES)),
            (Err(Errno::ENOSPC), Err(Errno::EIO))
        );
        child.close();
        assert_eq!((holds(child, 0), holds(parent, end)), (Err(Errno::EIO), Ok(1)));
        let mut claim = [0xee; CLAIM_BYTES as usize];
        file::read_exact_at(parent.device.fd, &mut claim, 0).expect("it is there");
        assert!(claim.iter().all(|byte| *byte == 0));
        // The run gives extents to others, once the process is gone.
        assert_eq!(leases.iter().filter(|l| l.load(Ordering::Relaxed) != 0).count(), 2);
        parent.end();
    }

    #[test]
    fn a_limit_on_the_size_of_files_is_none_of_a_device() {
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").expect("there");
        let (store, _) = store_on(null.into_raw_fd(), 1);
        let mut queue = Queue::new(CLUSTER_BYTES).expect("memory");
        let leased = store.device.extents.find_or_lease(store.space, 0, 1, 1, |_| true);
        assert!(leased.is_ok());
        let child = testing::fork(|| {
            testing::limit_file_size(0);
            // No room for the ring of asynchronous I/O: the write is a plain one.
            testing::limit_address_space(0);
            store.write(&mut queue, 0, 0, CLUSTER_BYTES) == Progress::Ended(Ok(()))
        });
        assert_eq!(testing::wait(child), 0);
        store.end();
    }
}
