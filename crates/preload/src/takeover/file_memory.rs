//! Private mappings of files that the program may write: each page that it writes is its own from
//! then on, memory as any other.
//!
//! Such pages are not managed. While paging is on they count by the kernel's count, with the
//! process's other unmanaged memory. A dormant process counts the mappings whole, as it counts
//! ordinary memory, and large ones as reservations (`reserved.rs`): otherwise it would pass the
//! limit and not notice. Small ones are the data of libraries, which is in the kernel's count
//! before the program begins. A mapping that becomes writable later (mprotect) is not seen.

use uzswap::pager::Locked;
use uzswap::region::{Range, RangeFlags, Ranges};
use uzswap::sys::PAGE_SIZE;
use uzswap::sys::mem::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_TYPE, PROT_EXEC, PROT_READ, PROT_WRITE};

use super::Args;

/// The smallest mapping that counts, 8 MiB: larger than the data of most libraries, and smaller
/// than a file whose copied pages would matter to a limit.
const LEAST_BYTES: usize = 8 << 20;

/// The mappings that count; changed with the pager's lock held.
static MAPPINGS: Ranges = Ranges::new();

/// Whether a call of mmap maps such memory.
pub fn is_mapping(a: &Args) -> bool {
    let [_, len, prot, flags, ..] = *a;
    let is_private_file = flags & (MAP_TYPE | MAP_ANONYMOUS) == MAP_PRIVATE;
    is_private_file && prot & (PROT_WRITE | PROT_EXEC) == PROT_WRITE && len >= LEAST_BYTES
}

pub fn overlaps(start: usize, len: usize) -> bool {
    first(start, start.saturating_add(len)).is_some()
}

/// The first such memory that touches `[start, end)`.
pub fn first(start: usize, end: usize) -> Option<Range> {
    MAPPINGS.first_overlap_unlocked(start, end)
}

/// Notes that `[start, end)` is such memory now. `is_large`: it counts as a reservation. Without
/// memory for the list it is not counted.
pub fn note(_lock: &Locked<'_>, start: usize, end: usize, is_large: bool) {
    let flags = RangeFlags::NONE.with(RangeFlags::RESERVED, is_large);
    let _ = MAPPINGS.add(Range { start, end, prot: (PROT_READ | PROT_WRITE) as u32, flags });
}

/// Notes that `[start, end)` is other memory now.
pub fn forget(_lock: &Locked<'_>, start: usize, end: usize) {
    let _ = MAPPINGS.remove(start, end);
}

/// Pages of all mappings that may be written.
pub fn pages() -> i64 {
    (MAPPINGS.accessible_bytes() / PAGE_SIZE) as i64
}

/// Bytes of the large mappings, which count as reservations.
pub fn reserved_bytes() -> usize {
    MAPPINGS.reserved_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_mappings_of_files_that_may_be_written() {
        let mapping = |len, prot, flags| is_mapping(&[0, len, prot, flags, 3, 0]);
        let (shared, size) = (1, LEAST_BYTES);
        assert!(mapping(size, PROT_READ | PROT_WRITE, MAP_PRIVATE));
        assert!(!mapping(size - 1, PROT_READ | PROT_WRITE, MAP_PRIVATE));
        assert!(!mapping(size, PROT_READ, MAP_PRIVATE));
        assert!(!mapping(size, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS));
        assert!(!mapping(size, PROT_WRITE, shared));
    }
}
