//! uzswap's engine: compressed swap for one program.
//!
//! The modules follow the way of a page, from the fault down to the bytes outside memory:
//!
//! ```text
//!  fault/ -> region/ -> cache/ -> codec/  (bytes <-> fewer bytes)
//!  resolve    address    entry,  > pool/  (where few bytes live in RAM)
//!  evict      -> page,   LRU,    > store/ (where cold pages live outside)
//!             state      limits, writeback
//!      \______________ sys/: the kernel, and all unsafe code ______________/
//! ```
//!
//! `cache/` and below stand alone: a swap cache with keys and pages, no fault and no thread in it.
//! `policy/` has the rules by which pages go, apart from the pager, since `uzswap simulate` asks
//! them, too.

pub mod cache;
pub mod codec;
pub mod control;
pub mod fault;
pub mod latency;
pub mod nbd;
pub mod policy;
pub mod pool;
pub mod region;
pub mod store;
pub mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
