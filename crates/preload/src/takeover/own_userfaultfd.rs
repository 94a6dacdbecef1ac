//! Memory that is the program's own to serve, of two kinds. A mapping has one userfaultfd: where
//! the program puts one of its own, it serves the faults. And touches of missing pages by a virtual
//! machine, a device or a graphics processor are served by nobody: KVM_RUN, or the order to the
//! device, fails (EFAULT).
//!
//! Such memory is brought in and taken off the pager before the kernel is asked, and is unmanaged
//! from then on: it counts with the process's other unmanaged memory. Where it cannot be taken off
//! the kernel's answer is what it would be for a mapping that has one already (EBUSY). UFFDIO_MOVE
//! takes pages away without a word, so their place is let go as well. Memory that UFFDIO_COPY reads
//! is held as any buffer is (`calls/ioctl.rs`).

use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::nr;
use uzswap::sys::userfaultfd::{IOCTL_MOVE, IOCTL_REGISTER};

use super::own_stack::runtime;
use super::thread::ThreadBlock;
use super::{Args, PAGER, buffers};

const KVM_SET_USER_MEMORY_REGION: usize = 0x4020_ae46;
const KVM_SET_USER_MEMORY_REGION2: usize = 0x40a0_ae49;
const VFIO_IOMMU_MAP_DMA: usize = 0x3b71;
const IOMMU_IOAS_MAP: usize = 0x3b85;
const AMDGPU_GEM_USERPTR: usize = 0xc018_6451;
const RADEON_GEM_USERPTR: usize = 0xc018_646d;
const I915_GEM_USERPTR: usize = 0xc018_6473;

/// The part of an argument that is looked at: the longest of `range_at` ends with its fourth word.
const WORDS: usize = 4;

/// The words of a request's argument in which the start of the memory and its length stand.
fn range_at(request: usize) -> Option<(usize, usize)> {
    Some(match request {
        // Range first, then mode or flags.
        IOCTL_REGISTER | AMDGPU_GEM_USERPTR | RADEON_GEM_USERPTR | I915_GEM_USERPTR => (0, 1),
        // Destination, source, length.
        IOCTL_MOVE => (1, 2),
        // Slot and flags, address in the guest, length, address here.
        KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2 => (3, 2),
        // Size of the argument and flags, address here, address for the device, length.
        VFIO_IOMMU_MAP_DMA => (1, 3),
        // Size of the argument and flags, whose space, address here, length.
        IOMMU_IOAS_MAP => (2, 3),
        _ => return None,
    })
}

/// Lets memory go that a call is about to put under a userfaultfd, to move away from its place, or
/// to give to a machine or device.
pub(super) fn note(t: &'static ThreadBlock, number: usize, args: &Args) {
    if number != nr::IOCTL {
        return;
    }
    let Some((start_at, len_at)) = range_at(args[1] as u32 as usize) else { return };
    let mut bytes = [0u8; WORDS * 8];
    let words = start_at.max(len_at) + 1;
    if !buffers::copy_in(t, args[2], &mut bytes[..words * 8]) {
        return;
    }
    let word = |n: usize| usize::from_le_bytes(core::array::from_fn(|i| bytes[n * 8 + i]));
    let (start, len) = (word(start_at), word(len_at));
    let Some(end) = start.checked_add(len) else { return };
    // The kernel refuses parts of pages.
    let is_whole = start == page_floor(start) && end == page_ceil(end) && len > 0;
    if is_whole && PAGER.ranges.first_overlap_unlocked(start, end).is_some() {
        runtime(t, move || PAGER.end_paging_of(start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stands_where_the_kernels_structs_have_it() {
        for request in [IOCTL_REGISTER, IOCTL_MOVE, KVM_SET_USER_MEMORY_REGION, VFIO_IOMMU_MAP_DMA]
        {
            let (start_at, len_at) = range_at(request).expect("a request that gives memory away");
            assert!(start_at != len_at && start_at.max(len_at) < WORDS, "{request:#x}");
        }
        // kvm_userspace_memory_region: 64-bit words 2 and 3 are memory_size and userspace_addr.
        assert_eq!(range_at(KVM_SET_USER_MEMORY_REGION), Some((3, 2)));
        assert_eq!(range_at(0x4020_ae47), None);
        // FIONREAD, UFFDIO_COPY.
        assert!(range_at(0x541b).is_none() && range_at(0xc028_aa03).is_none());
    }
}
