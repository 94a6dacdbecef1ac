//! The operating system, as far as the standard library does not reach. All unsafe code of the
//! command is in `os/`, but for the entry point in `bin/uzswap.rs`.
//!
//! ```text
//!   program  end  witness  waker   the program as our child, and two copies of us that help
//!   apart                          --in-place: this process becomes the program
//!   block                          the control block
//!   signals  own  environment      what is sent to us; what we are, how we are limited, were given
//!   sockets  files  stat           connections; files; any process, by its number
//!   forbidden_page  contention     probes of the kernel, and of our library
//! ```
//!
//! # Safety charter
//! The command is an ordinary process. It forks before it has threads, but for a `Waker`, and every
//! function here is safe to call from its main thread. Other threads have all signals blocked.
//! Pointers given to libc point to live locals or to memory that the file owns. A forked child
//! calls async-signal-safe functions only and allocates nothing, until it execs or ends; the
//! supervisor of `--in-place` alone goes on as an ordinary process, with the one thread that it was
//! forked from.

use std::ffi::{CString, c_int};
use std::io;

pub mod apart;
mod block;
pub mod contention;
mod end;
pub mod environment;
mod files;
mod forbidden_page;
mod own;
mod program;
mod signals;
mod sockets;
mod stat;
mod waker;
mod witness;

pub use block::ControlBlock;
pub use end::{End, How};
pub use files::{FileSystem, has_capabilities, may_execute, within_file_size};
pub use forbidden_page::ForbiddenPage;
pub use own::{
    Identity, address_space_limit, auxiliary, disable_core_dump, fill_standard_descriptors,
    identity, is_session_leader, lock_memory, serve_memory,
};
pub use program::{Change, Executable, Pid, forward, has_news, next_change, send, start};
pub use signals::{
    InheritedSignals, Received, discard, is_asked_to_end_within, is_ignored, signal_name, suffer,
    take_signals, wait_for_signal, without_sigpipe,
};
pub use sockets::{connect_at_once, inherited_socket, is_unix_socket};
pub use stat::{name_of, stat_of};
pub use waker::Waker;
pub use witness::Witness;

fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A C string of a path or argument.
pub fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "contains a zero byte"))
}
