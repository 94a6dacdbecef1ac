//! Calls after which the kernel, or a device, may write the program's memory without asking the
//! page tables.
//!
//! While such a call lasts its buffers are held like any other's. The calls listed here let the
//! kernel go on afterwards: asynchronous reads past the page cache, memory registered with a
//! network card, a graphics processor or a virtual device. The kernel refuses to move a pinned
//! page, so from then on all pages leave by being moved. Requests of ioctl that every program makes
//! are known not to pin; the others are taken to.

use uzswap::sys::nr;

use super::{Args, PAGER};

/// Calls that pass the hook whether or not paging is on: they may pin memory for later.
pub(super) const PINNING: [usize; 3] = [nr::IO_SETUP, nr::IOCTL, nr::SETSOCKOPT];

/// Types of requests that pin nothing: FIBMAP and its kin, block devices, perf, file systems,
/// terminals and descriptors, freezing, sockets, copying files, userfaultfd, namespaces.
const HARMLESS: [u8; 10] = [0x00, 0x12, b'$', b'f', b'T', b'X', 0x89, 0x94, 0xaa, 0xb7];

/// Notes a call if it may pin memory for longer than it lasts.
pub(super) fn note(number: usize, args: &Args) {
    if may_pin(number, args) {
        PAGER.note_pins();
    }
}

fn may_pin(number: usize, args: &Args) -> bool {
    const SOL_XDP: usize = 283;
    match number {
        nr::IO_SETUP => true,
        nr::IOCTL => !HARMLESS.contains(&((args[1] >> 8) as u8)),
        nr::SETSOCKOPT => args[1] as u32 as usize == SOL_XDP,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_requests_pin_nothing() {
        let ioctl = |request| may_pin(nr::IOCTL, &[3, request, 0x1000, 0, 0, 0]);
        // TCGETS, FIONREAD, FIONBIO, SIOCGIFCONF, BLKGETSIZE64, FICLONE, FS_IOC_GETFLAGS, with
        // rubbish in the upper half.
        for request in
            [0x5401, 0x541b, 0x5421, 0x8912, 0x8008_1272, 0x4004_9409, 0xffff_ffff_8008_6601]
        {
            assert!(!ioctl(request), "{request:#x}");
        }
        // VFIO_IOMMU_MAP_DMA, RDMA_VERBS_IOCTL, VIDIOC_QBUF, UDMABUF_CREATE.
        for request in [0x3b71, 0xc018_1b01, 0xc058_560f, 0x4018_7542] {
            assert!(ioctl(request), "{request:#x}");
        }
        assert!(may_pin(nr::IO_SETUP, &[0; 6]) && may_pin(nr::SETSOCKOPT, &[3, 283, 4, 0, 0, 0]));
        assert!(!may_pin(nr::SETSOCKOPT, &[3, 1, 60, 0, 0, 0]) && !may_pin(nr::READ, &[0; 6]));
    }
}
