//! The files that `install.sh` installs are found by pkg-config, by the compiler and by the loader;
//! the header that needs no library, by the compiler alone.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{CRATE, Place, STRICT, built, has, said, skipped};

fn install(prefix: &Path, more: &[&str]) -> String {
    let mut script = Command::new(format!("{CRATE}/install.sh"));
    said(script.arg(prefix).arg("--built").arg(built()).args(more))
}

fn pkg_config(prefix: &Path, libdir: &str, asked: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join(libdir).join("pkgconfig"));
    // Directories of the prefix are never the system's.
    command.env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1").args(asked).arg("uzswap");
    said(&mut command).split_whitespace().map(str::to_string).collect()
}

fn compile(prefix: &Path, flags: &[String]) -> Command {
    let program = prefix.join("kv");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-o"]).arg(&program).arg(format!("{CRATE}/examples/kv.c")).args(flags);
    said(&mut gcc);
    let mut command = Command::new(program);
    command.args(["20000", "4"]).arg(prefix);
    command
}

#[test]
fn a_program_is_built_with_what_is_installed() {
    if !has("pkg-config") {
        return skipped("a_program_is_built_with_what_is_installed", "pkg-config is not installed");
    }
    let place = Place::new("install");
    for libdir in ["lib", "lib/x86_64-linux-gnu"] {
        let prefix = place.path().join("prefix");
        let said_so = install(&prefix, &["--libdir", libdir]);
        let version = &pkg_config(&prefix, libdir, &["--modversion"])[0];
        assert!(said_so.contains(&format!("libuzswap.so.{version}")), "{said_so}");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let lib = prefix.join(libdir);
        let link = |name: &str| fs::read_link(lib.join(name)).unwrap();
        assert_eq!(link("libuzswap.so"), Path::new("libuzswap.so.1"));
        assert_eq!(link("libuzswap.so.1"), Path::new(&format!("libuzswap.so.{version}")));

        let flags = pkg_config(&prefix, libdir, &["--cflags", "--libs"]);
        let mut program = compile(&prefix, &flags);
        let without = program.output().unwrap();
        assert!(!without.status.success(), "the loader finds it without being told where");
        let out = said(program.env("LD_LIBRARY_PATH", &lib));
        assert!(out.starts_with("20000 values"), "{out}");
        fs::remove_dir_all(prefix).unwrap();
    }
}

#[test]
fn a_program_has_the_library_in_it_if_it_is_linked_so() {
    let place = Place::new("static");
    let prefix = place.path().join("prefix");
    install(&prefix, &[]);
    let archive = prefix.join("lib/libuzswap.a").display().to_string();
    let include = format!("-I{}", prefix.join("include").display());
    let text = fs::read_to_string(prefix.join("lib/pkgconfig/uzswap.pc")).unwrap();
    let private = text.lines().find_map(|line| line.strip_prefix("Libs.private: ")).unwrap();
    let flags = [include, archive].into_iter().chain(private.split(' ').map(str::to_string));
    let mut program = compile(&prefix, &flags.collect::<Vec<_>>());
    assert!(said(&mut program).starts_with("20000 values"));
}

/// The block of the document in C that includes `uzswap_self.h`.
fn documented() -> String {
    let document = fs::read_to_string(format!("{CRATE}/../../docs/library.md")).unwrap();
    let blocks = document.split("```c\n").skip(1).filter_map(|from| from.split_once("```\n"));
    let mut blocks = blocks.map(|(block, _)| block).filter(|b| b.contains("<uzswap_self.h>"));
    blocks.next().expect("the document has an example").to_string()
}

#[test]
fn the_documents_program_is_built_with_a_header_and_runs_where_the_library_is_not() {
    let place = Place::new("alone");
    let prefix = place.path().join("prefix");
    install(&prefix, &[]);
    let (file, program) = (prefix.join("program.c"), prefix.join("program"));
    fs::write(&file, documented()).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-O2"]).args(STRICT).arg(&file).arg("-o").arg(&program);
    said(gcc.arg(format!("-I{}", prefix.join("include").display())).arg("-ldl"));
    let out = said(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
    assert_eq!(out, "not managed\n");
}

#[test]
fn without_a_prefix_it_says_how_it_is_called() {
    let output = Command::new(format!("{CRATE}/install.sh")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("install.sh PREFIX"));
}
