//! Says how the preload library is linked, to the package that links it: `cli/build.rs`.
//!
//! `initfirst`: its constructor runs before all others, when there is one thread and no code of the
//! program has run. `now`: all symbols are bound at load, so that neither a hook nor a signal
//! handler ever enters the loader to bind one. Rust's own symbols are hidden unless exported;
//! `exclude-libs` hides those of C archives as well, so that a codec inside never answers for the
//! program's own copy of it.
//!
//! The library is linked with `standalone.c` and needs no other one. Executed by itself it begins
//! at `uzswap_start` (`src/boot`).
//!
//! This script also makes a sum of the sources on which a patched text depends: texts are kept in
//! files between starts, and those that another build has made are not mapped.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the trampolines and of the code to which they jump.
const SOURCES: &str = "src/patch";

/// How the library is linked, beside `standalone.c`.
const OPTIONS: [&str; 4] =
    ["-Wl,-z,initfirst", "-Wl,-z,now", "-Wl,--exclude-libs,ALL", "-Wl,-e,uzswap_start"];

fn sum(mut h: u64, bytes: &[u8]) -> u64 {
    // FNV-1a.
    for b in bytes {
        h = (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    }
    h
}

fn files(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("our own sources") {
        let path = entry.expect("readable").path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

fn sum_of_sources() -> u64 {
    let mut paths = Vec::new();
    files(Path::new(SOURCES), &mut paths);
    paths.sort();
    paths.iter().fold(0xcbf2_9ce4_8422_2325, |h, path| {
        let text = std::fs::read(path).expect("readable");
        sum(sum(h, path.as_os_str().as_encoded_bytes()), &text)
    })
}

/// Compiles the functions that would else come from libc, libgcc and the loader. Returns the object
/// file.
fn standalone() -> PathBuf {
    const FLAGS: [&str; 7] =
        ["-O2", "-fPIC", "-fno-stack-protector", "-fno-builtin", "-ffunction-sections", "-w", "-c"];
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let object = out.join("standalone.o");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made =
        Command::new(&compiler).args(FLAGS).arg("standalone.c").arg("-o").arg(&object).status();
    assert!(made.is_ok_and(|s| s.success()), "{} cannot compile standalone.c", compiler.display());
    println!("cargo:rerun-if-changed=standalone.c");
    println!("cargo:rerun-if-env-changed=CC");
    object
}

fn main() {
    println!("cargo::metadata=object={}", standalone().display());
    println!("cargo::metadata=options={}", OPTIONS.join(" "));
    println!("cargo:rustc-env=UZSWAP_PATCH_SUM={:016x}", sum_of_sources());
    println!("cargo:rerun-if-changed={SOURCES}");
    println!("cargo:rerun-if-changed=build.rs");
}
