//! A compressed block device in memory, as zram is one, served over NBD: every tool that speaks
//! that protocol (qemu, libnbd, fio, guestfish, the kernel's client, nbdfuse) is a face of it.
//!
//! ```text
//!   client ── socket ──> channel ──> handshake ──> session ──> disk ──> uzswap::cache
//!             server      bytes       options      requests    pages     compressed pages
//!                                                                ^
//!   uzswap disk NAME ORDER ── control socket ──> orders ─────────┤
//!                                                keeper ─────────┘  age, limits, recompression
//! ```
//!
//! - *Disk* (`disk.rs`): bytes to whoever uses it, pages to the cache. Nothing in it knows of NBD.
//! - *Protocol* (`uzswap::nbd`, which the client has, too): the numbers of NBD and the two forms of
//!   a reply.
//! - *Channel* (`channel.rs`): two buffers of fixed size beside a socket. The lengths that a client
//!   sends cause no allocation.
//! - *Handshake*, *session*: the two halves of a connection.
//! - *Server* (`server.rs`): one thread for each connection, so many at one time and no more.
//! - *Orders* (`orders.rs`): what zram's users write into its files, as lines of text.
//! - *Keeper* (`keeper.rs`): the thread that does what nobody waits for.
//!
//! # What must stay true
//! A block that was acknowledged is there until it is overwritten, trimmed, or the server ends: a
//! write that finds no room fails and leaves the older block. All changes of one page happen under
//! its lock ([`disk`]); reads need none, as the cache gives a page as it was at one moment.

pub mod channel;
pub mod disk;
pub mod handshake;
pub mod keeper;
pub mod orders;
pub mod server;
pub mod session;
pub mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use disk::{Disk, DiskConfig};
pub use handshake::Export;
use uzswap::nbd as protocol;
