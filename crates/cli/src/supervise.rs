//! While the program runs: signals go to it, its stops become ours, and we end as it ended.
//!
//! The program is in our process group, so it has already received the terminal's signals (Ctrl-C,
//! Ctrl-\, Ctrl-Z, a change of its size) when we do; those are not sent twice, nor are signals that
//! a process sends to the whole group. A signal that a process sends to us alone is meant for the
//! program and goes on to it. A shell that started us watches us only, so when the program stops we
//! stop too, by the same signal, and when it dies by a signal so do we.

use crate::os::{self, Change, End, How, Pid, Received, Waker, Witness};

/// Waits until the program has ended. Without a witness each signal of a process is taken for one
/// to us alone.
pub fn wait(program: Pid, witness: Option<&Witness>) -> End {
    loop {
        let received = os::wait_for_signal();
        if received.signal != libc::SIGCHLD {
            let is_for_group = witness.is_some_and(|w| w.has_it_too(received));
            if is_for_program(received) && !is_for_group {
                os::forward(program, received);
            }
            continue;
        }
        // One SIGCHLD may stand for several changes.
        while let Some((pid, change)) = os::next_change() {
            if pid != program {
                if let (Some(witness), Change::Exited(_) | Change::Killed(_)) = (witness, change) {
                    witness.was_reaped(pid);
                }
                continue;
            }
            let how = match change {
                Change::Exited(code) => How::Exited(code as u8),
                Change::Killed(signal) => How::Killed(signal),
                Change::Stopped(signal) => {
                    stop_too(program, signal);
                    continue;
                }
                Change::Continued => continue,
            };
            return End { pid: program.number(), how };
        }
    }
}

/// Whether a signal that we received must be sent on.
fn is_for_program(received: Received) -> bool {
    match received.signal {
        // A hang-up is sent to the session's leader alone. (When that leader has ended, the kernel
        // tells the group.)
        libc::SIGHUP if received.is_from_kernel() => os::is_session_leader(),
        // The terminal sends these to the whole group.
        libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP | libc::SIGWINCH => !received.is_from_kernel(),
        // Raised by the kernel for our own access to the terminal or a broken pipe.
        libc::SIGTTIN | libc::SIGTTOU | libc::SIGPIPE | libc::SIGCONT => !received.is_from_kernel(),
        // Everything else, timers that were set before uzswap was executed (SIGALRM) included.
        _ => true,
    }
}

/// The program has stopped: stop as well, until somebody continues us or it.
fn stop_too(program: Pid, signal: i32) {
    let Ok(waker) = Waker::start(program) else { return };
    os::suffer(signal);
    drop(waker);
    // `fg` continues the whole group; `kill -CONT` only us, and then the program is where it was:
    // it has no news. Only then do we continue it. To send on whatever SIGCONT we get, or to look
    // whether it is stopped, would be wrong: Ctrl-Z may have stopped it anew by now, and it would
    // run while everybody believes it stopped.
    os::discard(libc::SIGCONT);
    if !os::has_news(program) {
        os::send(program, libc::SIGCONT);
    }
}

/// Ends uzswap as the program ended. Returns the exit code, if there is one to return.
pub fn end_alike(end: End) -> u8 {
    match end.how {
        How::Exited(code) => code,
        How::Killed(signal) => {
            os::disable_core_dump();
            os::suffer(signal);
            // Still here: the kernel protects process 1 of a container from its own signals. Shells
            // report a death by signal in this way.
            128u8.wrapping_add(signal as u8)
        }
        How::Unknown => 0,
    }
}
