//! The table of shapes held against the running kernel.
//!
//! Two questions. Is there a row for every call (`list`)? And is the row large enough
//! (`empirical`): a call is made three times, each time in a process of its own, with its arguments
//! in an arena of memory:
//!
//! ```text
//!  open     all of the arena is accessible                the result to expect
//!  held     only what the walker names is: In readable,   must be the same
//!           Out and Keep writable, the rest PROT_NONE
//!  closed   nothing is                                    must differ, or the case proves nothing
//! ```
//!
//! Each buffer lies across a page boundary, and the calls are repeated with the boundary at every
//! fourth byte of it, so that a shape that is too short by one field meets a page that it did not
//! name.
//!
//! # Safety charter
//! The tests fork, make arbitrary system calls in the child and change the protection of an arena
//! that only the child uses.
#![allow(unsafe_code)]

mod arena;
mod cases;
mod empirical;
mod list;
