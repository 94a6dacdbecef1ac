//! `ps`, `top`, `set` and `reclaim` as commands: what they print, what they refuse, and that `top`
//! leaves the terminal as it was. The whole-program tests show their effects on programs.

mod common;

use std::process::{Command, Output};

use common::system::{Terminal, kill};
use common::{Scratch, assert_refused, eventually, stdout, uzswap};

/// `uzswap`, with a place for sockets of its own.
fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = uzswap();
    command.args(arguments).env("XDG_RUNTIME_DIR", scratch.directory());
    command
}

fn output(scratch: &Scratch, arguments: &[&str]) -> Output {
    command(scratch, arguments).output().unwrap()
}

fn runs(scratch: &Scratch) -> serde_json::Value {
    serde_json::from_slice(&output(scratch, &["ps", "--json"]).stdout).unwrap()
}

#[test]
fn a_run_is_listed_while_it_runs() {
    let scratch = Scratch::new();
    let mut program = command(&scratch, &["run", "--quiet", "--memory", "64M", "--", "cat"]);
    let mut program = program.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let socket = scratch.directory().join(format!("uzswap/{}.sock", program.id()));
    eventually("a socket", || socket.exists());
    let mine = |r: &serde_json::Value| r["run"] == program.id();
    let all = runs(&scratch);
    let run = all["runs"].as_array().unwrap().iter().find(|r| mine(r)).unwrap();
    assert_eq!(run["command"][0], "cat");
    let id = program.id().to_string();
    let set = output(&scratch, &["set", &id, "--memory", "32M"]);
    assert_eq!(stdout(&set), format!("run {id}: limit 32 MiB, was 64 MiB\n"));
    let words = ["--compressor", "zstd:3", "--pool", "zbud", "--pool-percent", "40"];
    let set =
        output(&scratch, &[&["set", &id][..], &words, &["--accept-threshold", "90"]].concat());
    let lines = [
        "compressor zstd:level=3, was auto",
        "pool zbud, was zsmalloc",
        "pool-percent 40, was auto",
    ];
    assert_eq!(stdout(&set), lines.map(|line| format!("run {id}: {line}\n")).concat());
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn what_is_refused() {
    let scratch = Scratch::new();
    let refused =
        |arguments: &[&str], words: &[&str]| assert_refused(&output(&scratch, arguments), 2, words);
    refused(&["set", "nobody", "--memory", "64M"], &["'nobody'", "uzswap ps"]);
    refused(&["set", "nobody", "--memory", "-1"], &["--memory: '-1' is negative"]);
    refused(&["set", "4194999", "--memory", "64M"], &["there is no process 4194999"]);
    refused(&["set", "nobody"], &["--memory"]);
    refused(&["set", "nobody", "--pool", "z3fold"], &["--pool", "'z3fold'", "zsmalloc or zbud"]);
    refused(&["set", "nobody", "--compressor", "gzip"], &["--compressor", "gzip", "lzo-rle"]);
    refused(&["set", "nobody", "--accept-threshold", "0"], &["'0'", "from 1 to 100"]);
    refused(&["reclaim", "nobody", "much"], &["'much' is no size", "or all"]);
    refused(&["reclaim", "nobody"], &["SIZE|PERCENT|all"]);
    refused(&["top"], &["needs a terminal"]);
    refused(&["top", "--delay", "soon"], &["--delay: 'soon' is no time"]);
    refused(
        &["run", "--idle-after", "0.1s", "--", "true"],
        &["--idle-after: '0.1s' is less than a second"],
    );
}

#[test]
fn top_shows_and_leaves_the_terminal_as_it_was() {
    const LEAVES_SCREEN: &str = "\x1b[?1049l";
    let scratch = Scratch::new();
    for leave in ["q", "\x03", "signal"] {
        let mut terminal = Terminal::start(&mut command(&scratch, &["top", "--delay", "0.1s"]));
        terminal.resize(30, 100);
        terminal.expect("top:");
        assert!(!terminal.is_in_order(), "keys come one by one");
        terminal.resize(5, 40);
        terminal.expect("top:");
        match leave {
            "signal" => kill(terminal.pid(), libc::SIGTERM),
            key => terminal.press(key),
        }
        terminal.expect(LEAVES_SCREEN);
        assert!(terminal.wait().success());
        assert!(terminal.is_in_order(), "after {leave:?}");
    }
}
