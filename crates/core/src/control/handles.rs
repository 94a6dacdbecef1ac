//! How a process of a run finds the two memfds of the run, and what it checks before it believes
//! them.
//!
//! ```text
//!   UZSWAP_CONTROL_FD=700:4012:701:4013     descriptor and inode of the counters, descriptor and inode of the settings
//!   UZSWAP_CONTROL_FD=700:4012:701:4013:7   and a signal that the program before ignored
//! ```
//!
//! # Why these can be trusted
//! - The variable and the descriptors come from the caller of exec, which also set LD_PRELOAD: a
//!   caller that lies about them could have loaded anything. A process cannot reach into the table
//!   of descriptors or the environment of another one that has more rights. And a program that
//!   gains rights by its exec (setuid, capabilities of its file) does not come here: the loader
//!   ignores LD_PRELOAD then.
//! - A program in between that does not know of uzswap (a static one) may have closed a descriptor,
//!   and its number may be another file's by now. So the inode must be the one that the variable
//!   names.
//! - The settings are sealed against writing, by a seal that only a memfd can have and that nobody
//!   can take off: a process reads what `uzswap run` wrote. The counters are sealed against
//!   becoming shorter: to touch a mapping behind the end of its file would kill.
//!
//! The owner of the memfds is not checked. It says less than the inode does, and a process in a
//! user namespace that has no name for the owner would see a stranger.

use crate::sys::fd::{self, SEAL_GROW, SEAL_SEAL, SEAL_SHRINK, SEAL_WRITE};
use crate::sys::text::put_before;

/// The seals of the counters, and of the settings.
pub const COUNTERS_SEALS: u32 = SEAL_SHRINK | SEAL_GROW | SEAL_SEAL;
pub const SETTINGS_SEALS: u32 = COUNTERS_SEALS | SEAL_WRITE;

/// Bytes of the longest value: four numbers of 20 digits at most, one of 10, four colons.
pub const TEXT_BYTES: usize = 94;

/// A descriptor, and the inode that its file must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    pub fd: i32,
    pub inode: u64,
}

impl Handle {
    /// Whether the descriptor still is this file's, with at least these seals and so many bytes.
    pub fn is_there(&self, seals: u32, bytes: usize) -> bool {
        fd::seals(self.fd).is_ok_and(|has| has & seals == seals)
            && fd::inode_and_bytes(self.fd).is_ok_and(|(i, b)| i == self.inode && b >= bytes as u64)
    }

    /// Closes the file, unless the number is another file's by now.
    pub fn close(&self) {
        if self.is_there(0, 0) {
            fd::close(self.fd);
        }
    }
}

/// The two memfds of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handles {
    pub counters: Handle,
    pub settings: Handle,
    /// The fault signal, if the program before this one ignored it and the kernel does not say so.
    pub ignored: Option<u32>,
}

impl Handles {
    /// Reads the variable's value.
    pub fn parse(text: &[u8]) -> Option<Handles> {
        let mut numbers = text.split(|b| *b == b':').map(number);
        let mut handle = || {
            let fd = i32::try_from(numbers.next()??).ok()?;
            Some(Handle { fd, inode: numbers.next()?? })
        };
        let (counters, settings) = (handle()?, handle()?);
        let ignored = match numbers.next() {
            Some(signal) => Some(u32::try_from(signal?).ok()?),
            None => None,
        };
        numbers.next().is_none().then_some(Handles { counters, settings, ignored })
    }

    /// The variable's value. Allocates nothing: exec writes it.
    pub fn write_to<'a>(&self, text: &'a mut [u8; TEXT_BYTES]) -> &'a [u8] {
        let (c, s) = (self.counters, self.settings);
        let mut at = text.len();
        if let Some(signal) = self.ignored {
            at = put_before(text, at, signal.into()) - 1;
            text[at] = b':';
        }
        for (i, n) in [s.inode, s.fd as u64, c.inode, c.fd as u64].into_iter().enumerate() {
            if i > 0 {
                at -= 1;
                text[at] = b':';
            }
            at = put_before(text, at, n);
        }
        &text[at..]
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let add = |v: u64, d: &u8| v.checked_mul(10)?.checked_add(u64::from(d.wrapping_sub(b'0')));
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    digits.iter().try_fold(0, add).filter(|_| all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_out_of_the_variable_as_they_went_in() {
        for (a, b, ignored) in
            [(0, 0, None), (700, 4012, Some(7)), (i32::MAX, u64::MAX, Some(u32::MAX))]
        {
            let all = Handles {
                counters: Handle { fd: a, inode: b },
                settings: Handle { fd: 3, inode: 10 },
                ignored,
            };
            let mut text = [0; TEXT_BYTES];
            assert_eq!(Handles::parse(all.write_to(&mut text)), Some(all));
        }
        for wrong in [
            "",
            "5",
            "1:2:3",
            "1:2:3:",
            "1:2:3:4:",
            "1:2:3:4:5:6",
            "1:2:3:4:4294967296",
            "-1:2:3:4",
            "4294967296:2:3:4",
            "1:2:3:x",
            "1: 2:3:4",
        ] {
            assert_eq!(Handles::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_number_that_became_another_files_is_noticed() {
        let file = |name: &core::ffi::CStr| fd::open_read(name).unwrap();
        let a = file(c"/proc/self/exe");
        let (inode, bytes) = fd::inode_and_bytes(a).unwrap();
        let handle = Handle { fd: a, inode };
        // No seal can be on such a file.
        assert!(!handle.is_there(SEAL_WRITE, 0));
        assert!(fd::seals(a).is_err() && bytes > 0);
        let other = Handle { fd: a, inode: inode + 1 };
        other.close();
        assert_eq!(fd::inode_and_bytes(a), Ok((inode, bytes)), "not closed");
        fd::close(a);
    }
}
