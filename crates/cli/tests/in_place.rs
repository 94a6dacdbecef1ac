//! `uzswap run --in-place`: the program is the process that was started, and uzswap goes on beside
//! it.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use common::system::kill;
use common::{Scratch, assert_refused, eventually, process_state, stderr, stdout, uzswap};

/// `uzswap run --in-place`, with a place for sockets of its own.
fn in_place(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = uzswap();
    command.env("XDG_RUNTIME_DIR", scratch.directory());
    command.args(["run", "--in-place", "--memory", "64M"]).args(arguments);
    command
}

fn output(scratch: &Scratch, arguments: &[&str]) -> Output {
    in_place(scratch, arguments).output().unwrap()
}

/// The runs of a test: not those of whoever else works on this machine.
fn runs(scratch: &Scratch) -> Vec<serde_json::Value> {
    let ps = uzswap()
        .args(["ps", "--json"])
        .env("XDG_RUNTIME_DIR", scratch.directory())
        .output()
        .unwrap();
    let all: serde_json::Value = serde_json::from_slice(&ps.stdout).unwrap();
    let is_own =
        |run: &&serde_json::Value| scratch.path(&format!("uzswap/{}.sock", run["run"])).exists();
    all["runs"].as_array().unwrap().iter().filter(is_own).cloned().collect()
}

/// The statistics that `--stats` wrote, once they are there.
fn statistics(file: &std::path::Path) -> serde_json::Value {
    let read = || serde_json::from_slice(&fs::read(file).unwrap_or_default()).ok();
    eventually("statistics", || read().is_some());
    read().unwrap()
}

#[test]
fn the_program_is_what_was_started() {
    let scratch = Scratch::new();
    let stats = scratch.path("stats.json");
    let option = format!("--stats={}", stats.display());
    let program = "echo $$ $PPID; echo error >&2; exit 7";
    let mut command = in_place(&scratch, &[&option, "--", "sh", "-c", program]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    // To the end of its output: nothing else holds it open.
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("{pid} {}\n", std::process::id()));
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(7), "error\n"));
    let stats = statistics(&stats);
    assert_eq!(stats["pid"], pid);
    // Our standard library has asked for the exit code at once: older kernels do not say it again.
    assert!(stats["exit_code"] == 7 || stats["exit_code"].is_null(), "{}", stats["exit_code"]);
    assert_eq!(stats["counters"]["processes"], 1);
}

#[test]
fn it_has_no_child_that_it_does_not_know() {
    let scratch = Scratch::new();
    let output = output(&scratch, &["--", "cat", "/proc/thread-self/children"]);
    assert_eq!(
        (stdout(&output).as_str(), output.status.code()),
        ("", Some(0)),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_death_by_signal_is_seen_by_both() {
    let scratch = Scratch::new();
    let stats = scratch.path("stats.json");
    let option = format!("--stats={}", stats.display());
    let mut child = in_place(&scratch, &[&option, "--", "sleep", "1000"]).spawn().unwrap();
    eventually("a run", || runs(&scratch).iter().any(|r| r["run"] == child.id()));
    kill(child.id(), libc::SIGKILL);
    // A zombie tells it on every kernel.
    let seen = statistics(&stats);
    assert_eq!(
        (&seen["signal"], &seen["exit_code"]),
        (&"SIGKILL".into(), &serde_json::Value::Null)
    );
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    eventually("no run", || runs(&scratch).is_empty());
}

#[test]
fn it_is_controlled_by_its_own_number() {
    let scratch = Scratch::new();
    let mut child = in_place(&scratch, &["--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let id = child.id().to_string();
    let mut set = uzswap();
    set.args(["set", &id, "--memory", "32M"]).env("XDG_RUNTIME_DIR", scratch.directory());
    eventually("a run", || !runs(&scratch).is_empty());
    assert_eq!(stdout(&set.output().unwrap()), format!("run {id}: limit 32 MiB, was 64 MiB\n"));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// A program that puts itself into the background ends; the processes that it has left go on, and
/// can still be seen and controlled.
#[test]
fn those_left_behind_stay_managed() {
    let scratch = Scratch::new();
    let stats = scratch.path("stats.json");
    let option = format!("--stats={}", stats.display());
    let program = "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3";
    let output = output(&scratch, &[&option, "--", "sh", "-c", program]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let left: u32 = stdout(&output).trim().parse().unwrap();
    statistics(&stats);
    let managed = || runs(&scratch).iter().any(|r| r["processes"][0]["pid"] == left);
    // While it becomes `sleep` it is nobody's.
    eventually("it is listed", managed);
    kill(left, libc::SIGKILL);
    eventually("it is gone", || matches!(process_state(left), None | Some('Z')));
    eventually("no run", || runs(&scratch).is_empty());
}

#[test]
fn what_cannot_be_executed_is_said_and_leaves_nothing() {
    let scratch = Scratch::new();
    assert_refused(&output(&scratch, &["--", "no-such-program"]), 127, &["no-such-program"]);
    let broken = scratch.file("broken", "#!/no/such/interpreter\n", 0o755);
    assert_refused(&output(&scratch, &["--", broken.to_str().unwrap()]), 127, &["interpreter"]);
    // Found, looked at, and then refused by the kernel: somebody writes to it.
    let busy = scratch.file("busy", fs::read("/bin/true").unwrap(), 0o755);
    let writer = fs::File::options().append(true).open(&busy).unwrap();
    assert_refused(&output(&scratch, &["--", busy.to_str().unwrap()]), 126, &["text file busy"]);
    drop(writer);
    assert!(runs(&scratch).is_empty());
}
