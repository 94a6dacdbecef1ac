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
//! The tests run one after the other in the main thread: a child has a copy of every lock, and one
//! that another thread held at the fork stays locked for ever in the child.
//!
//! # Safety charter
//! The tests fork, make arbitrary system calls in the child and change the protection of an arena
//! that only the child uses.
#![allow(unsafe_code)]

mod arena;
mod cases;
mod empirical;
mod list;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    // A name is that of the function.
    macro_rules! trial {
        ($module:ident :: $test:ident) => {
            Trial::test(stringify!($test), || {
                $module::$test();
                Ok(())
            })
        };
    }
    let trials = vec![
        trial!(list::every_call_of_the_running_kernel_has_a_row),
        trial!(list::numbers_and_names_are_those_of_the_kernel_headers),
        trial!(list::what_has_no_row_the_kernel_does_not_know),
        trial!(empirical::what_is_held_is_all_that_the_kernel_touches),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
