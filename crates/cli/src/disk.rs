//! `uzswap disk`: a compressed disk in memory, and the orders that it takes while it is served.
//!
//! ```text
//!   uzswap disk 4G --name build            serves it: DIRECTORY/disk-build.nbd, .orders
//!   uzswap disk ls                         DIRECTORY/disk-*.orders, each asked
//!   uzswap disk build idle 10m             DIRECTORY/disk-build.orders <── one line
//! ```
//! The disk itself is `uzswap_disk`; this folder is its command line.

mod arguments;
mod client;
mod serve;
mod table;

pub use arguments::DiskArguments;

use crate::Failure;

/// Does what the arguments say.
pub fn run(arguments: DiskArguments) -> Result<u8, Failure> {
    match arguments.meaning()? {
        arguments::Meaning::List { json } => table::list(json),
        arguments::Meaning::Order { name, words } => client::order(&name, &words),
        arguments::Meaning::Serve(settings) => serve::run(settings),
    }
}
