//! Common parts of the tests of interception: the example library, their programs, and commands
//! under the library.
#![allow(dead_code)] // each of them uses a part

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

pub const HERE: &str = env!("CARGO_MANIFEST_DIR");

pub fn scratch() -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("patch");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Builds the library as the tests themselves are built, and answers where it is. The whole
/// workspace is built, with its commands: for a part of it cargo chooses other features of the
/// dependencies, which is another build of all of them, and replaces the product under programs
/// that other tests run.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // <target>/<profile>/deps/patch-<hash>
        let test = std::env::current_exe().unwrap();
        let profile_dir = test.parent().unwrap().parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--lib", "--bins"]);
        cargo.args(["--example", "passthrough"]);
        // Cargo's variables about this package go: build scripts that ask for them (ring's) would
        // run again, and once more afterwards, with all that depends on them built anew.
        for (name, _) in std::env::vars_os() {
            let begins = |with: &&str| name.as_encoded_bytes().starts_with(with.as_bytes());
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"].iter().any(begins) {
                cargo.env_remove(name);
            }
        }
        cargo.arg("--target-dir").arg(profile_dir.parent().unwrap()).current_dir(HERE);
        if profile_dir.file_name().unwrap() == "release" {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
        profile_dir.join("examples/libpassthrough.so")
    })
}

/// Compiles a program of `patch_programs`.
pub fn compile(name: &str, output: &str, options: &[&str]) -> PathBuf {
    let out = scratch().join(output);
    let source = Path::new(HERE).join("tests/patch_programs").join(name);
    let compiler = if name.ends_with(".cc") { "c++" } else { "cc" };
    let mut cc = Command::new(compiler);
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-fexceptions", "-pthread", "-Wl,-z,now", "-o"]);
    cc.arg(&out).arg(source).args(options);
    assert!(cc.status().unwrap().success(), "{cc:?}");
    out
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mode {
    Return,
    Inline,
    Light,
}

/// The command, under the library.
pub fn under_hook(
    mode: Mode,
    cache: Option<&Path>,
    log: Option<&Path>,
    command: &[&str],
) -> Command {
    let mut c = Command::new(command[0]);
    c.args(&command[1..])
        .env("LD_PRELOAD", library())
        .env("EXPECT_HOOK", "1")
        .env("UZ_PASSTHROUGH_SCRUB", "1");
    let name = match mode {
        Mode::Return => "return",
        Mode::Inline => "inline",
        Mode::Light => "light",
    };
    c.env("UZ_PASSTHROUGH", name);
    if let Some(dir) = cache {
        c.env("UZ_PASSTHROUGH_CACHE", dir);
    }
    if let Some(file) = log {
        c.env("UZ_PASSTHROUGH_LOG", file);
    }
    c
}

pub fn run(c: &mut Command) -> Output {
    c.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{c:?}: {e}"))
}
