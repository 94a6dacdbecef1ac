//! `cargo install` brings all that `uzswap run` needs: the command, and the library beside it, in
//! one directory of a root of its own, from where no file of this tree is found. And the library is
//! as those that load it need it.
//!
//! The short form lays out what cargo has built as `cargo install` does: programs of the package,
//! by their names, in `bin`. `UZSWAP_TEST_FULL=1` lets cargo install them, without the workspace's
//! profile, as from a registry.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{LIBRARY, Scratch, stderr, stdout};

/// Fills twice the memory that it is given, reads it back, and names the library that is mapped.
const HOLDS_MORE: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { WORDS = (64 << 20) / 8 };
int main(void) {
    uint64_t *words = malloc(WORDS * 8);
    if (!words) return 2;
    for (uint64_t i = 0; i < WORDS; i++) words[i] = i / 8;
    for (uint64_t i = 0; i < WORDS; i++)
        if (words[i] != i / 8) return 3;
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "preload")) return !!(printf("%s", strchr(line, '/')) < 0);
    return 4;
}
"#;
const MEMORY: &str = "32M";

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

/// `uzswap` of a root, with nothing in its environment that would lead to another library.
fn installed(root: &Path) -> Command {
    let mut command = Command::new(root.join("bin/uzswap"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("UZSWAP_") || name.starts_with("LD_") {
            command.env_remove(&*name);
        }
    }
    command
}

fn assert_ended_well(output: &Output) {
    assert!(output.status.success(), "{}\n{}", output.status, stderr(output));
}

/// Programs hold twice their memory under what is in the root: by the loader, and without one.
fn assert_works(scratch: &Scratch, root: &Path) {
    let library = root.join("bin/libuzswap_preload");
    let source = scratch.file("holds.c", HOLDS_MORE, 0o644);
    for kind in ["-pie", "-static"] {
        let program = scratch.path(&format!("holds{kind}"));
        let compiler = std::env::var_os("CC").unwrap_or("cc".into());
        let mut compile = Command::new(compiler);
        compile.args(["-O1", "-fPIE", kind, "-o"]).args([&program, &source]);
        assert_ended_well(&compile.output().unwrap());
        let mut run = installed(root);
        run.args(["run", "--memory", MEMORY, "--store", "none", "--"]).arg(&program);
        let output = run.output().unwrap();
        assert_ended_well(&output);
        assert_eq!(stdout(&output).trim_end(), library.to_str().unwrap(), "{kind}");
        assert!(stderr(&output).contains(" for 6"), "{kind}: {}", stderr(&output));
    }
    // By hand it does nothing, and says for whom it is.
    let output = Command::new(&library).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("for 'uzswap run' only"), "{}", stderr(&output));
}

#[test]
fn what_cargo_installs_is_all_that_a_run_needs() {
    let scratch = Scratch::new();
    let root = scratch.path("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline"];
    let output = cargo().args(arguments).output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let own = |package: &&serde_json::Value| package["name"] == env!("CARGO_PKG_NAME");
    let package = metadata["packages"].as_array().unwrap().iter().find(own).unwrap();
    let targets = package["targets"].as_array().unwrap().iter();
    let programs = targets.filter(|target| target["kind"][0] == "bin");
    let built = Path::new(env!("CARGO_BIN_EXE_uzswap")).parent().unwrap();
    for name in programs.map(|target| target["name"].as_str().unwrap()) {
        scratch.file(&format!("root/bin/{name}"), fs::read(built.join(name)).unwrap(), 0o755);
    }
    assert_works(&scratch, &root);
}

/// Nothing inside the library answers for a symbol of the program, and its constructor runs first.
#[test]
fn the_library_needs_no_other_exports_nothing_and_comes_first() {
    let Ok(output) = Command::new("readelf").args(["-dsW", "--dyn-syms", LIBRARY]).output() else {
        return println!("SKIPPED: readelf is not installed");
    };
    let said = stdout(&output);
    assert!(said.contains("INITFIRST") && said.contains("NOW"), "{said}");
    assert!(!said.contains("NEEDED"), "{said}");
    let symbols = said.split("'.dynsym'").nth(1).unwrap_or_default();
    let symbols = symbols.split("Symbol table").next().unwrap_or_default();
    let mut shown = symbols.lines().filter(|l| !l.contains(" UND ") && l.contains(" GLOBAL "));
    assert_eq!(shown.next(), None);
}

/// A light hook has xmm0-15 saved and no more: the code that runs there must not use other vectors,
/// and must not call libc's memory functions, which do.
#[test]
fn hooks_use_no_wide_vectors() {
    let Ok(output) = Command::new("objdump").args(["-d", "--no-show-raw-insn", LIBRARY]).output()
    else {
        return println!("SKIPPED: objdump is not installed");
    };
    let imports = Command::new("nm").args(["-D", "--undefined-only", LIBRARY]).output().unwrap();
    for line in stdout(&imports).lines() {
        let name = line.trim().trim_start_matches("U ").split('@').next().unwrap();
        assert!(
            !matches!(name, "memcpy" | "memmove" | "memset" | "memcmp" | "bcmp" | "strlen"),
            "{line}"
        );
    }
    let text = stdout(&output);
    let (mut function, mut seen) = ("", 0);
    for line in text.lines() {
        if line.ends_with(">:") {
            function = line;
            seen += function.contains("uzswap_preload") as u32;
        }
        let wide = ["%ymm", "%zmm", "%k1", "%xmm16"].iter().any(|register| line.contains(register));
        assert!(!(wide && function.contains("uzswap_preload")), "{function} {line}");
    }
    assert!(seen > 50);
}

#[test]
fn cargo_install_brings_the_library() {
    if std::env::var_os("UZSWAP_TEST_FULL").is_none_or(|v| v.is_empty() || v == "0") {
        return println!("SKIPPED: it compiles everything; UZSWAP_TEST_FULL=1 does");
    }
    let scratch = Scratch::new();
    let root = scratch.path("root");
    let mut install = cargo();
    install.args(["install", "--path", ".", "--offline", "--locked", "--debug", "--root"]);
    install.arg(&root).arg("--target-dir").arg(scratch.path("target"));
    // Published packages are without it.
    install.env("CARGO_PROFILE_DEV_PANIC", "unwind");
    assert_ended_well(&install.output().unwrap());
    assert_works(&scratch, &root);
    let mut uninstall = cargo();
    uninstall.args(["uninstall", env!("CARGO_PKG_NAME"), "--root"]).arg(&root);
    assert_ended_well(&uninstall.output().unwrap());
    assert_eq!(fs::read_dir(root.join("bin")).unwrap().count(), 0);
}
