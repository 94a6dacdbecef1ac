//! `uzswap disk` as a command: what it refuses, what it leaves behind, and how it ends. The
//! whole-program tests show that it serves right bytes.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};

use common::system::{kill, with_ignored};
use common::{Scratch, assert_refused, eventually, stdout, uzswap};

fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = uzswap();
    command.arg("disk").args(arguments).env("XDG_RUNTIME_DIR", scratch.directory());
    command
}

fn output(scratch: &Scratch, arguments: &[&str]) -> Output {
    command(scratch, arguments).output().unwrap()
}

fn served(scratch: &Scratch, arguments: &[&str]) -> Child {
    command(scratch, arguments).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn what_is_refused() {
    let scratch = Scratch::new();
    let refused =
        |arguments: &[&str], words: &[&str]| assert_refused(&output(&scratch, arguments), 2, words);
    refused(&["0"], &["'0'", "no bytes"]);
    refused(&["50%"], &["'50%'", "512M"]);
    refused(&["17T"], &["'17T'", "16 TiB"]);
    refused(&["build"], &["'build' is no size", "an order to a disk follows its name"]);
    refused(&["1M", "--name", "a/b"], &["--name: 'a/b'"]);
    refused(&["1M", "--memory", "much"], &["--memory: 'much'"]);
    refused(&["1M", "--compressor", "gzip"], &["--compressor", "gzip"]);
    refused(&["1M", "--store", "/no/such"], &["--store: /no/such", "no such directory"]);
    refused(&["1M", "--listen", "nowhere"], &["--listen: 'nowhere'"]);
    refused(&["1M", "--listen", "0.0.0.0:0"], &["--listen: 0.0.0.0:", "--no-tls"]);
    refused(&["1M", "--idle-after", "soon"], &["--idle-after: 'soon'"]);
    refused(&["1M", "--writeback-limit", "5%"], &["--writeback-limit: '5%'"]);
    refused(&["nobody", "mm_stat"], &["no disk 'nobody'", "disk ls"]);
    refused(&["x", "idle", "soon"], &["idle: 'soon' is no time"]);
}

#[test]
fn a_disk_is_listed_and_goes_with_its_sockets() {
    let scratch = Scratch::new();
    let mut disk = served(&scratch, &["64M", "--name", "one"]);
    let files = scratch.directory().join("uzswap");
    let (clients, orders) = (files.join("disk-one.nbd"), files.join("disk-one.orders"));
    let lists = |name: &str, size: &str| {
        let text = stdout(&output(&scratch, &["ls"]));
        text.lines().any(|line| line.starts_with(&format!("{name} ")) && line.contains(size))
    };
    eventually("it is listed", || lists("one", " 64 MiB "));
    for socket in [&clients, &orders] {
        assert_eq!(std::fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // The name is taken; without one another is found.
    assert_refused(&output(&scratch, &["1M", "--name", "one"]), 2, &["--name", "'one'"]);
    let mut other = served(&scratch, &["1M"]);
    eventually("so is the other", || lists("0", " 1.0 MiB "));
    assert_eq!(stdout(&output(&scratch, &["one", "io_stat"])).split_whitespace().count(), 4);
    let failed = output(&scratch, &["one", "writeback", "idle"]);
    assert_refused(&failed, 1, &["disk one", "--store"]);
    kill(disk.id(), libc::SIGTERM);
    assert!(disk.wait().unwrap().success());
    assert!(!clients.exists() && !orders.exists());
    // A command that looks forgets a disk that was killed.
    kill(other.id(), libc::SIGKILL);
    other.wait().unwrap();
    assert!(files.join("disk-0.orders").exists());
    assert_eq!(stdout(&output(&scratch, &["ls"])), "");
    assert_eq!(std::fs::read_dir(files).unwrap().count(), 0);
}

#[test]
fn a_command_has_the_disk_and_its_end_is_the_disks() {
    let scratch = Scratch::new();
    let run = |script: &str| output(&scratch, &["1M", "--name", "two", "--", "sh", "-c", script]);
    let said =
        run("echo $NBD_URI; echo $UZSWAP_DISK; test -S ${NBD_URI#*socket=}; exit $((7 + $?))");
    assert_eq!(said.status.code(), Some(7));
    let text = stdout(&said);
    assert!(
        text.starts_with("nbd+unix:///two?socket=/") && text.ends_with("/disk-two.nbd\ntwo\n"),
        "{text}"
    );
    assert_eq!(run("kill -KILL $$").status.code(), Some(137));
    let missing = output(&scratch, &["1M", "--", "/no/such/command"]);
    assert_refused(&missing, 127, &["/no/such/command"]);
    assert_eq!(std::fs::read_dir(scratch.directory().join("uzswap")).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_the_command_and_its_code_is_the_disks() {
    let scratch = Scratch::new();
    let ready = scratch.directory().join("ready");
    let started = |script: &str| {
        let script = format!("{script}; : >'{}'; exec sleep 60", ready.display());
        let disk = served(&scratch, &["1M", "--", "sh", "-c", &script]);
        eventually("the command runs", || ready.exists());
        std::fs::remove_file(&ready).unwrap();
        disk
    };
    let mut disk = started("true");
    kill(disk.id(), libc::SIGTERM);
    assert_eq!(disk.wait().unwrap().code(), Some(143));
    // This command does not end when it is asked to. A second signal, a moment later, ends both.
    let mut disk = started("trap '' TERM");
    let mut status = None;
    eventually("it ends at once", || {
        kill(disk.id(), libc::SIGTERM);
        status = disk.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(143));
}

#[test]
fn signals_that_were_ignored_stay_ignored() {
    let scratch = Scratch::new();
    let mut command = command(&scratch, &["1M"]);
    let mut disk = with_ignored(&mut command, &[libc::SIGHUP, libc::SIGINT]).spawn().unwrap();
    let orders = scratch.directory().join("uzswap/disk-0.orders");
    // Signals are seen to before there is a socket.
    eventually("it is there", || orders.exists());
    let status = std::fs::read_to_string(format!("/proc/{}/status", disk.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let ignored = u64::from_str_radix(mask, 16).unwrap();
    let bits = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM].map(|s| ignored >> (s - 1) & 1);
    assert_eq!(bits, [1, 1, 0]);
    kill(disk.id(), libc::SIGTERM);
    assert!(disk.wait().unwrap().success());
}
