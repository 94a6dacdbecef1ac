//! The side that asks: finds the runs of the user, picks the one that is meant, and exchanges a
//! line with it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::directory;
use super::protocol::{self, REPLY_BYTES, Request};
use super::state::RunState;
use crate::program::reason;
use crate::{Failure, os};

/// How long a run may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// The runs of the user, and those that are there but do not answer.
pub struct Runs {
    pub states: Vec<RunState>,
    pub silent: Vec<u32>,
    /// Places where another user keeps runs from being seen, and how.
    pub foreign: Vec<String>,
}

/// The target of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    pub run: u32,
    /// One process of the run; none: all.
    pub pid: Option<u32>,
}

fn environment(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

impl Runs {
    /// Asks all runs at once: one that is stopped does not answer, and others need not wait for
    /// that.
    pub fn find() -> Runs {
        let found = directory::connect_all(&environment);
        let connections = found.runs;
        let answers: Vec<_> = thread::scope(|scope| {
            let ask = |stream| {
                exchange::<RunState>(stream, &Request::List, Some(Instant::now() + PATIENCE))
            };
            let begin = |stream| {
                thread::Builder::new().spawn_scoped(scope, move || ask(stream)).map_err(|_| stream)
            };
            let asked: Vec<_> =
                connections.iter().map(|(run, stream)| (*run, begin(stream))).collect();
            // Those for which there is no thread are asked by this one, one after the other.
            let answer = |asked: Result<thread::ScopedJoinHandle<_>, _>| match asked {
                Ok(thread) => thread.join().expect("a panic ends the process"),
                Err(stream) => ask(stream),
            };
            asked.into_iter().map(|(run, asked)| (run, answer(asked))).collect()
        });
        let mut runs = Runs { states: Vec::new(), silent: found.silent, foreign: found.foreign };
        for (run, answer) in answers {
            match answer {
                Ok(state) => runs.states.push(state),
                _ => runs.silent.push(run),
            }
        }
        runs
    }

    /// The run, or the process, that `name` means: a process id, or a name that only one has. The
    /// program's name means its run. `of_process`: a name is that of a process.
    pub fn pick(&self, name: &str, of_process: bool) -> Result<Target, Failure> {
        if let Ok(pid) = name.parse::<u32>() {
            return self.pick_pid(pid);
        }
        let mut found: Vec<Target> = Vec::new();
        for run in &self.states {
            let named: Vec<_> = run.processes.iter().filter(|p| p.name == name).collect();
            let target = |pid| Target { run: run.run, pid };
            if of_process && !named.is_empty() {
                found.extend(named.iter().map(|p| target(Some(p.pid))));
            } else if !named.is_empty() || run.name() == name {
                found.push(target(None));
            }
        }
        match found[..] {
            [one] => Ok(one),
            [] => Err(Failure::usage(format!(
                "'{name}' is neither a process id nor the name of a program that runs under \
                 uzswap: 'uzswap ps' lists them{}",
                self.and_silent()
            ))),
            _ => {
                let pids: Vec<String> =
                    found.iter().map(|t| t.pid.unwrap_or(t.run).to_string()).collect();
                Err(Failure::usage(format!(
                    "'{name}' is the name of {}: say which by its process id: {}",
                    found.len(),
                    pids.join(", ")
                )))
            }
        }
    }

    fn pick_pid(&self, pid: u32) -> Result<Target, Failure> {
        for run in &self.states {
            if run.run == pid {
                return Ok(Target { run: pid, pid: None });
            }
            if run.processes.iter().any(|p| p.pid == pid) {
                return Ok(Target { run: run.run, pid: Some(pid) });
            }
        }
        if self.silent.contains(&pid) {
            return Err(does_not_answer(pid));
        }
        let user = os::identity().user;
        let fault = match fs::metadata(format!("/proc/{pid}")).map(|m| m.uid()) {
            Err(_) => format!("there is no process {pid}"),
            Ok(owner) if owner != user => format!(
                "process {pid} belongs to user {owner}: only they can control it (as that user: \
                 sudo -u '#{owner}')"
            ),
            Ok(_) => format!("process {pid} does not run under uzswap"),
        };
        Err(Failure::usage(format!(
            "{fault}: 'uzswap ps' lists those that do{}",
            self.and_silent()
        )))
    }

    fn and_silent(&self) -> String {
        match self.silent[..] {
            [] => String::new(),
            [run, ..] => format!(" (run {run} does not answer)"),
        }
    }
}

pub fn does_not_answer(run: u32) -> Failure {
    Failure::environment(format!(
        "run {run} does not answer: it is stopped (kill -CONT {run}), or busy with other requests: \
         try again"
    ))
}

/// Sends a request to a run and waits for what it says, however long it works on that.
pub fn ask<T: DeserializeOwned>(run: u32, request: &Request) -> Result<T, Failure> {
    let found = directory::connect_all(&environment);
    let Some((_, stream)) = found.runs.iter().find(|(r, _)| *r == run) else {
        return Err(match found.silent.contains(&run) {
            true => does_not_answer(run),
            false => Failure::usage(format!("run {run} has ended")),
        });
    };
    exchange(stream, request, None)
}

fn exchange<T: DeserializeOwned>(
    stream: &UnixStream,
    request: &Request,
    deadline: Option<Instant>,
) -> Result<T, Failure> {
    let send_by = Instant::now() + PATIENCE;
    let line = protocol::write_line(stream, &request.to_line(), send_by)
        .and_then(|()| protocol::read_line(stream, REPLY_BYTES, deadline))
        .map_err(|e| Failure::environment(format!("no answer from the run: {}", reason(&e))))?;
    protocol::parse_reply(&line).map_err(Failure::usage)
}

#[cfg(test)]
mod tests {
    use super::super::state::ProcessState;
    use super::*;

    fn run(run: u32, program: &str, processes: &[(u32, &str)]) -> RunState {
        let process = |(pid, name): &(u32, &str)| ProcessState {
            pid: *pid,
            name: name.to_string(),
            ..Default::default()
        };
        RunState {
            run,
            command: vec![program.to_string()],
            processes: processes.iter().map(process).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn targets_by_number_and_by_name() {
        let states = vec![
            run(10, "/usr/bin/make", &[(11, "make"), (12, "cc1plus"), (13, "cc1plus")]),
            run(20, "./server", &[(21, "server")]),
            run(30, "python3", &[(31, "python3")]),
            run(40, "python3", &[(41, "python3")]),
        ];
        let runs = Runs { states, silent: vec![50], foreign: Vec::new() };
        let all = |run| Ok::<_, String>(Target { run, pid: None });
        let one = |run, pid| Ok::<_, String>(Target { run, pid: Some(pid) });
        let pick = |name: &str, of_process| runs.pick(name, of_process).map_err(|f| f.message);
        assert_eq!(pick("10", true), all(10));
        assert_eq!(pick("12", true), one(10, 12));
        assert_eq!(pick("server", true), one(20, 21));
        assert_eq!(pick("server", false), all(20));
        assert_eq!(pick("cc1plus", false), all(10), "both are in one run");
        for (name, of_process, words) in [
            ("cc1plus", true, "'cc1plus' is the name of 2: say which by its process id: 12, 13"),
            ("python3", false, "30, 40"),
            ("nobody", false, "'nobody' is neither"),
            ("4194999", true, "there is no process 4194999"),
            ("50", false, "run 50 does not answer"),
            ("", false, "'' is neither"),
        ] {
            let error = pick(name, of_process).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
        let me = std::process::id().to_string();
        assert!(pick(&me, true).unwrap_err().contains("does not run under uzswap"));
    }
}
