//! Was a signal sent to us, or to our whole process group? The program is in it, so it has one of
//! the group already.
//!
//! ```text
//!   killpg(group, SIGINT) ──> witness: blocked, it waits    uzswap: "take it" ──> witness ──> yes: the program has it, too
//!                        └──> uzswap, program
//!   kill(uzswap, SIGINT) ───> uzswap: "take it" ──> witness ──> no: send it on
//! ```
//!
//! The kernel does not say for whom a signal was. The witness is a small copy of us in the group
//! that blocks everything. It is the group's newest member when it is made, and the kernel goes
//! from the newest to the oldest: what has reached us has reached it before.
//!
//! `pkill uzswap` and `pkill -f` go by names, and the program has another. So the witness has
//! another name than we, too: what is sent by name is for us alone. (By the file, as `fuser -k` and
//! `pidof` go, it still is one of us.)
//!
//! # Safety charter
//! That of `os.rs`.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::time::{Duration, Instant};

use super::check;
use super::program::Pid;
use super::signals::{Received, set_of};
use super::stat::stat_of;

/// The name of a witness: no part of it is a name of ours.
const NAME: &CStr = c"uz-witness";

/// How long an answer takes on a busy machine, in milliseconds: after that the witness may have
/// been stopped.
const SOON_MS: c_int = 100;
/// How long an answer is waited for. Without one the signal is taken to be for us alone, and the
/// program gets one of its group twice: that is for a witness that hangs, and not for a machine
/// that stands still for seconds. One that is gone is known at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// The witness; gone when dropped.
pub struct Witness {
    pid: c_int,
    /// It was killed by others and reaped: its number may be another process's by now.
    is_gone: Cell<bool>,
    line: OwnedFd,
    /// The number of the last question.
    asked: Cell<u8>,
}

/// The line's word on a question.
enum Heard {
    Answer(bool),
    Nothing,
    /// The witness is gone.
    End,
}

impl Witness {
    /// Starts it, with all signals blocked as ours are.
    pub fn start() -> io::Result<Witness> {
        let (ours, its) = UnixStream::pair()?;
        let words = command_line();
        // SAFETY: the child makes async-signal-safe calls only, and exits.
        let pid = unsafe {
            let parent = libc::getpid();
            let pid = check(libc::fork())?;
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                rename(words);
                if libc::getppid() == parent {
                    libc::close(ours.as_raw_fd());
                    answer(its.as_raw_fd());
                }
                libc::_exit(0);
            }
            pid
        };
        Ok(Witness::of(pid, ours))
    }

    fn of(pid: c_int, line: UnixStream) -> Witness {
        Witness { pid, is_gone: Cell::new(false), line: line.into(), asked: Cell::new(0) }
    }

    /// Whether the signal went to all of our group.
    pub fn has_it_too(&self, received: Received) -> bool {
        // Only these can be sent to a group, and wait once however often they come.
        let is_possible = received.code == libc::SI_USER && (1..32).contains(&received.signal);
        is_possible && self.ask(received.signal as u8, PATIENCE).unwrap_or(false)
    }

    /// A child of ours was reaped: perhaps it was the witness.
    pub fn was_reaped(&self, child: Pid) {
        if child.number() == self.pid {
            self.is_gone.set(true);
        }
    }

    /// Has it end; dropping it waits for that.
    pub fn dismiss(&self) {
        self.send(libc::SIGKILL);
    }

    fn send(&self, signal: c_int) {
        if !self.is_gone.get() {
            // SAFETY: our own child, not reaped yet.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    fn ask(&self, signal: u8, patience: Duration) -> Option<bool> {
        let (fd, number) = (self.line.as_raw_fd(), self.asked.get().wrapping_add(1));
        self.asked.set(number);
        let question = [signal, number];
        // SAFETY: our own descriptor, a live local.
        if unsafe { libc::send(fd, question.as_ptr().cast(), 2, libc::MSG_NOSIGNAL) } != 2 {
            return None;
        }
        let asked = Instant::now();
        loop {
            match self.hear(number, SOON_MS) {
                Heard::Answer(answer) => return Some(answer),
                Heard::Nothing if asked.elapsed() < patience => {}
                Heard::Nothing | Heard::End => return None,
            }
            // A stop that was meant for the group has stopped it, too.
            self.send(libc::SIGCONT);
        }
    }

    /// The answer to the question of that number, not a late one to an earlier question.
    fn hear(&self, number: u8, patience_ms: c_int) -> Heard {
        let fd = self.line.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut reply = [0u8; 2];
        // SAFETY: our own descriptor, live locals.
        unsafe {
            while libc::poll(&mut poll, 1, patience_ms) == 1 {
                if libc::recv(fd, reply.as_mut_ptr().cast(), 2, libc::MSG_WAITALL) != 2 {
                    return Heard::End;
                }
                if reply[0] == number {
                    return Heard::Answer(reply[1] != 0);
                }
            }
        }
        Heard::Nothing
    }
}

/// The addresses of the words of our command line; empty if the kernel does not say.
fn command_line() -> Range<usize> {
    /// `arg_start` is the 48th field, the state the third.
    const ARG_START: usize = 48 - 3;
    let fields = stat_of(std::process::id()).unwrap_or_default();
    let field = |i: usize| fields.get(ARG_START + i).and_then(|f| f.parse().ok()).unwrap_or(0);
    field(0)..field(1)
}

/// Gives this process the witness's name, also in place of its command line.
///
/// # Safety
/// Between fork and exit: no call but async-signal-safe ones. Nobody reads the words any more.
unsafe fn rename(words: Range<usize>) {
    // SAFETY: a string that ends. The kernel has put the words on the stack, writable and in one
    // piece; this process has a copy of them to itself, and the name is cut to what they take.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        if !words.is_empty() {
            let to = with_exposed_provenance_mut::<u8>(words.start);
            to.write_bytes(0, words.len());
            // The last byte stays zero, or the kernel shows what is behind it, too.
            let len = NAME.count_bytes().min(words.len() - 1);
            to.copy_from_nonoverlapping(NAME.as_ptr().cast(), len);
        }
    }
}

/// The witness's life: for each signal that is asked for, whether one waits, which it takes.
///
/// # Safety
/// Between fork and exit: nothing but async-signal-safe calls.
unsafe fn answer(line: c_int) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut question = [0u8; 2];
    // SAFETY: live locals.
    unsafe {
        while libc::recv(line, question.as_mut_ptr().cast(), 2, libc::MSG_WAITALL) == 2 {
            let [signal, number] = question;
            let only = set_of([signal.into()]);
            let waits = libc::sigtimedwait(&only, null_mut(), &now) == c_int::from(signal);
            let reply = [number, waits as u8];
            if libc::send(line, reply.as_ptr().cast(), 2, libc::MSG_NOSIGNAL) != 2 {
                break;
            }
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.dismiss();
        if !self.is_gone.get() {
            // SAFETY: our own child, not reaped yet.
            unsafe { libc::waitpid(self.pid, null_mut(), 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_witness_that_is_gone_leaves_its_number_alone() {
        // As where the number of a witness that was reaped is another child's now.
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (line, _its) = UnixStream::pair().unwrap();
        let pid = other.id() as c_int;
        let witness = Witness::of(pid, line);
        witness.was_reaped(Pid(pid + 1));
        assert!(!witness.is_gone.get());
        witness.was_reaped(Pid(pid));
        witness.dismiss();
        drop(witness);
        // It reads to the end, and nobody else has waited for it.
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
    }

    #[test]
    fn an_answer_that_comes_late_is_that_to_its_own_question() {
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (line, its) = UnixStream::pair().unwrap();
        let witness = Witness::of(other.id() as c_int, line);
        let term = libc::SIGTERM as u8;
        assert_eq!(witness.ask(term, Duration::ZERO), None, "it stands still");
        let mut question = [0u8; 2];
        (&its).read_exact(&mut question).unwrap();
        // The machine goes on, and stands still again before the second answer.
        let late = std::thread::spawn(move || {
            (&its).write_all(&[question[1], 1]).unwrap();
            (&its).read_exact(&mut question).unwrap();
            std::thread::sleep(Duration::from_millis(3 * SOON_MS as u64));
            (&its).write_all(&[question[1], 0]).unwrap();
        });
        assert_eq!(witness.ask(term, PATIENCE), Some(false));
        late.join().unwrap();
        assert_eq!(witness.ask(term, PATIENCE), None, "it is gone, and nobody waits for it");
        other.kill().unwrap();
        other.wait().unwrap();
        witness.is_gone.set(true);
    }
}
