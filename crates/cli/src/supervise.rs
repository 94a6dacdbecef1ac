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
    // it has no news. Only then do we continue it. We must not send on each SIGCONT that we get,
    // nor look whether the program is stopped: Ctrl-Z may have stopped it anew by now, and it would
    // run while its shell believes it stopped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_processes_go_on_and_those_of_the_terminal_do_not() {
        let goes_on = |signal, code| is_for_program(Received::of(signal, code));
        for signal in (1..32).chain([34, 40, 64]) {
            assert!(goes_on(signal, libc::SI_USER), "{signal} of a process");
            assert!(goes_on(signal, libc::SI_QUEUE), "{signal} of a process, with a value");
        }
        // The group has them from the kernel, too, or they are about our own access.
        for signal in [
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGTSTP,
            libc::SIGWINCH,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGCONT,
        ] {
            assert!(!goes_on(signal, libc::SI_KERNEL), "{signal} of the kernel");
        }
        // A timer from before us, a limit on processor time.
        for signal in [libc::SIGALRM, libc::SIGVTALRM, libc::SIGXCPU, libc::SIGTERM] {
            assert!(goes_on(signal, libc::SI_KERNEL), "{signal} of the kernel");
        }
        assert_eq!(goes_on(libc::SIGHUP, libc::SI_KERNEL), os::is_session_leader());
    }

    #[test]
    fn an_exit_code_is_passed_on() {
        for code in [0, 1, 125, 255] {
            assert_eq!(end_alike(End { pid: 1, how: How::Exited(code) }), code);
        }
        assert_eq!(end_alike(End { pid: 1, how: How::Unknown }), 0);
    }
}
