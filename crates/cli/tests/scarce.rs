//! The command where something is not to be had, or is other than it mostly is.
//!
//! Threads are not to be had where their stacks are larger than the address space: the standard
//! library takes the size from RUST_MIN_STACK. A limit on processes would not bind root.

mod common;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use common::system::instead;
use common::{LIBRARY, Scratch, eventually, stderr, stdout, uzswap};

/// 128 TiB, all that a process may have.
const ADDRESS_SPACE_BYTES: u64 = 1 << 47;

/// `uzswap` without threads, with a place for sockets of its own.
fn without_threads(scratch: &Scratch) -> Command {
    let mut command = uzswap();
    command
        .env("XDG_RUNTIME_DIR", scratch.directory())
        .env("RUST_MIN_STACK", ADDRESS_SPACE_BYTES.to_string());
    command
}

#[test]
fn a_program_that_nobody_can_watch_runs_to_its_end() {
    let scratch = Scratch::new();
    for option in [&[][..], &["--from-outside"]] {
        let mut command = without_threads(&scratch);
        command.arg("estimate").args(option).args(["--", "sh", "-c", "echo done; exit 7"]);
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!((stdout(&output).as_str(), output.status.code()), ("done\n", Some(7)), "{said}");
        assert!(said.contains("no estimate: cannot make a thread"), "{said}");
    }
}

#[test]
fn a_process_that_nobody_can_watch_is_left_alone() {
    let scratch = Scratch::new();
    let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let output =
        without_threads(&scratch).args(["estimate", &program.id().to_string()]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no estimate: cannot make a thread"), "{said}");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

#[test]
fn runs_are_listed_without_threads() {
    let scratch = Scratch::new();
    let mut command = uzswap();
    command.env("XDG_RUNTIME_DIR", scratch.directory());
    command.args(["run", "--quiet", "--memory", "64M", "--", "cat"]).stdin(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let socket = scratch.path(&format!("uzswap/{}.sock", program.id()));
    eventually("a socket", || socket.exists());
    let listed = without_threads(&scratch).args(["ps", "--json"]).output().unwrap();
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert!(stdout(&listed).contains(&format!("\"run\": {}", program.id())), "{listed:?}");
}

#[test]
fn words_of_the_environment_that_are_no_variables_reach_the_program() {
    let mut command = uzswap();
    let library = CString::new(format!("UZSWAP_PRELOAD={}", LIBRARY)).unwrap();
    let own = CString::new(command.get_program().as_bytes()).unwrap();
    let words = ["run", "--quiet", "--memory", "64M", "cat", "/proc/self/environ"];
    let words = words.map(|word| CString::new(word).unwrap());
    let entries = [c"WORD", c"", c"=odd", c"PATH=/bin:/usr/bin"].map(CString::from);
    instead(&mut command, [own].into_iter().chain(words), entries.into_iter().chain([library]));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let entries: Vec<&[u8]> = output.stdout.split(|b| *b == 0).collect();
    assert_eq!(entries[..3], [&b"WORD"[..], b"", b"=odd"], "{output:?}");
}

#[test]
fn a_run_with_a_very_long_command_line_is_listed() {
    let scratch = Scratch::new();
    let mut command = uzswap();
    command.env("XDG_RUNTIME_DIR", scratch.directory());
    command.args(["run", "--quiet", "--memory", "64M", "--", "sh", "-c", "cat", "long"]);
    // Each byte takes six in JSON.
    let mut program =
        command.args(vec!["\x01".repeat(100_000); 12]).stdin(Stdio::piped()).spawn().unwrap();
    let socket = scratch.path(&format!("uzswap/{}.sock", program.id()));
    eventually("a socket", || socket.exists());
    let listed =
        uzswap().args(["ps", "--json"]).env("XDG_RUNTIME_DIR", scratch.directory()).output();
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    let listed: serde_json::Value = serde_json::from_slice(&listed.unwrap().stdout).unwrap();
    let runs = listed["runs"].as_array().unwrap();
    let run = runs.iter().find(|run| run["run"] == program.id()).expect("it is silent");
    assert_eq!(run["command"][2], "cat");
    assert_eq!(run["command"].as_array().unwrap().last().unwrap(), "...");
}
