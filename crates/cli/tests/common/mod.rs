//! Helpers of the command's tests: the command itself, files that are removed again, patience.
#![allow(dead_code)]

pub mod system;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits for something that is bound to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The C library itself: loading what is loaded anyway changes nothing, so it stands in for the
/// runtime where only the command is tested.
pub fn harmless_library() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path =
        maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("/libc.so"));
    path.expect("this test is linked against glibc").to_string()
}

/// The preload library: a program of this package, so that it is built.
pub const LIBRARY: &str = env!("CARGO_BIN_EXE_libuzswap_preload");

/// `uzswap`, with nothing of uzswap in its environment but the library.
pub fn uzswap() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("UZSWAP_") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD");
    command.env("UZSWAP_PRELOAD", LIBRARY);
    command
}

/// `uzswap run ARGS...` to its end.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    uzswap().arg("run").args(arguments).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The command refused: this exit code, nothing on stdout, and one line on stderr that holds all of
/// `words`.
#[track_caller]
pub fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let line = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert_eq!(output.status.signal(), None);
    assert_eq!(stdout(output), "");
    assert_eq!(line.lines().count(), 1, "not one line: {line}");
    assert!(line.starts_with("uzswap: ") && line.ends_with('\n'), "{line}");
    for word in words {
        assert!(line.contains(word), "no '{word}' in: {line}");
    }
}

/// Waits until something is true.
#[track_caller]
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state letter of a process (`T` stopped, `Z` ended), or nothing when it is gone.
pub fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

/// A directory of this test, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("uzswap-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        // Programs of other users are run from here too.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// A file with `mode`. Another process writes one that is to be executed: of this one's
    /// descriptors the children that other tests start have copies for a moment, and the kernel
    /// executes no file that somebody may write.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        if mode & 0o111 == 0 {
            fs::write(&path, bytes).unwrap();
        } else {
            let mut writer = Command::new("sh");
            writer.args(["-c", "cat >\"$0\""]).arg(&path).stdin(Stdio::piped());
            let mut writer = writer.spawn().unwrap();
            writer.stdin.take().unwrap().write_all(bytes.as_ref()).unwrap();
            assert!(writer.wait().unwrap().success());
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A complete 32-bit x86 program that exits with 42.
pub fn narrow_program() -> Vec<u8> {
    const BASE: u32 = 0x40_0000;
    // mov eax, 1; mov ebx, 42; int 0x80
    const CODE: &[u8] = b"\xb8\x01\0\0\0\xbb\x2a\0\0\0\xcd\x80";
    const HEADERS: u32 = 52 + 32;
    let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |file: &mut Vec<u8>, v: u16| file.extend(v.to_le_bytes());
    let word = |file: &mut Vec<u8>, v: u32| file.extend(v.to_le_bytes());
    half(&mut file, 2); // ET_EXEC
    half(&mut file, 3); // x86
    for v in [1, BASE + HEADERS, 52, 0, 0] {
        word(&mut file, v);
    }
    for v in [52, 32, 1, 40, 0, 0] {
        half(&mut file, v);
    }
    let bytes = HEADERS + CODE.len() as u32;
    for v in [1, 0, BASE, BASE, bytes, bytes, 5, 0x1000] {
        word(&mut file, v); // PT_LOAD, readable and executable
    }
    file.extend(CODE);
    file
}

/// A complete static x86-64 program that exits with 42.
pub fn static_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    // mov eax, 60; mov edi, 42; syscall
    const CODE: &[u8] = b"\xb8\x3c\0\0\0\xbf\x2a\0\0\0\x0f\x05";
    const HEADERS: u64 = 64 + 56;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |file: &mut Vec<u8>, v: u16| file.extend(v.to_le_bytes());
    let word = |file: &mut Vec<u8>, v: u32| file.extend(v.to_le_bytes());
    let long = |file: &mut Vec<u8>, v: u64| file.extend(v.to_le_bytes());
    half(&mut file, 2); // ET_EXEC
    half(&mut file, 62); // x86-64
    word(&mut file, 1);
    long(&mut file, BASE + HEADERS); // entry
    long(&mut file, 64); // program headers
    long(&mut file, 0);
    word(&mut file, 0);
    for v in [64, 56, 1, 64, 0, 0] {
        half(&mut file, v);
    }
    word(&mut file, 1); // PT_LOAD
    word(&mut file, 5); // readable, executable
    let bytes = HEADERS + CODE.len() as u64;
    for v in [0, BASE, BASE, bytes, bytes, 0x1000] {
        long(&mut file, v);
    }
    file.extend(CODE);
    file
}
