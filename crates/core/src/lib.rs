//! Pages of memory, compressed: the engine of uzswap, which runs programs in less memory than they
//! need, as a library of its own.
//!
//! [`Cache`] keeps pages of 4096 bytes under keys, in as much memory as it may have, compressed;
//! the least recently used of them go to an encrypted file if it has a directory for one. It starts
//! no thread, handles no signal, and shares nothing with another cache.
//!
//! ```
//! use uzswap::{Cache, Config, PAGE_BYTES};
//!
//! # fn main() -> Result<(), uzswap::Error> {
//! let cache = Cache::open(&Config::new(4 << 20).store(std::env::temp_dir()))?;
//! let mut page = [0; PAGE_BYTES];
//! for number in 0..20_000u64 {
//!     page.fill(number as u8);
//!     page[..8].copy_from_slice(&number.to_le_bytes());
//!     cache.store(0, number, &page)?;
//! }
//! cache.load(0, 777, &mut page)?;
//! assert_eq!(page[..8], 777u64.to_le_bytes());
//! assert!(page[8..].iter().all(|byte| *byte == 777u64 as u8));
//! # Ok(())
//! # }
//! ```
//!
//! `examples/kv.rs` is a store of values of any size on it. C (`libuzswap`) and Python have this
//! cache, too.
//!
//! # For those who work on uzswap
//!
//! The modules are public for the other crates of uzswap, and are no promise to anybody else. They
//! follow the way of a page, from the fault down to the bytes outside memory:
//!
//! ```text
//!  pager/ -> region/ -> cache/ -> codec/  (bytes <-> fewer bytes)
//!  resolve    address    entry,  > pool/  (where few bytes live in RAM)
//!  evict      -> page,   LRU,    > store/ (where cold pages live outside)
//!             state      limits, writeback
//!      \______________ sys/: the kernel, and all unsafe code ______________/
//! ```
//!
//! `cache/` and below stand alone: a swap cache with keys and pages, no fault and no thread in it.
//! `library/` is its face for other programs. `policy/` has the rules by which pages go, apart from
//! the pager, since `uzswap simulate` asks them, too. `bet.rs` is how all of them learn from
//! trials.

#![deny(missing_docs)]

mod bet;
#[doc(hidden)]
pub mod cache;
#[doc(hidden)]
pub mod codec;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
pub mod latency;
mod library;
#[doc(hidden)]
pub mod nbd;
#[doc(hidden)]
pub mod pager;
#[doc(hidden)]
pub mod policy;
#[doc(hidden)]
pub mod pool;
#[doc(hidden)]
pub mod region;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod sys;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

pub use cache::Page;
pub use library::{AREAS, Cache, Config, Error, Forking, PAGES, Stats};

/// Bytes of a page.
pub const PAGE_BYTES: usize = sys::PAGE_SIZE;
