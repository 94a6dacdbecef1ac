//! Programs whose loader cannot take the library, started by a managed one: they start and say what
//! they say alone. Where the library can boot them they are managed.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use common::{LIBRARY, Scratch, stderr, stdout, uzswap};

/// `uzswap run --quiet -- COMMAND`: what it says, and its statistics.
fn managed(scratch: &Scratch, command: &[&str]) -> (Output, String) {
    let stats = scratch.path("stats");
    let mut run = uzswap();
    run.env("UZSWAP_PRELOAD", LIBRARY).args(["run", "--quiet", "--memory", "256M", "--stats"]);
    let output = run.arg(&stats).arg("--").args(command).output().unwrap();
    (output, fs::read_to_string(stats).unwrap())
}

/// Compiles `int main` with a compiler that may be missing.
fn compiled(scratch: &Scratch, name: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = scratch.file(
        "main.c",
        "#include <stdio.h>\nint main(void){puts(\"started\");return 7;}\n",
        0o644,
    );
    let program = scratch.path(name);
    let made = Command::new(compiler).args(flags).arg("-o").arg(&program).arg(source).output();
    match made {
        Ok(output) if output.status.success() => Some(program),
        _ => {
            println!("SKIPPED: no {compiler} {}", flags.join(" "));
            None
        }
    }
}

#[test]
fn programs_for_other_loaders_start_as_alone() {
    let scratch = Scratch::new();
    let programs = [
        (compiled(&scratch, "for-musl", "musl-gcc", &[]), 0),
        (compiled(&scratch, "static", "cc", &["-static"]), 0),
        (compiled(&scratch, "narrow", "cc", &["-m32"]), 1),
    ];
    for (program, unmanaged) in programs {
        let Some(program) = program else { continue };
        let command = format!("{}; echo $?", program.display());
        let (output, stats) = managed(&scratch, &["bash", "-c", &command]);
        assert_eq!(
            (stdout(&output).as_str(), stderr(&output).as_str()),
            ("started\n7\n", ""),
            "{command}"
        );
        assert!(stats.contains(&format!("\"unmanaged_execs\": {unmanaged},")), "{stats}");
    }
}

#[test]
fn a_program_for_another_machine_is_refused_as_alone() {
    let scratch = Scratch::new();
    // The kernel says of this file what it says without uzswap: that it cannot be executed.
    let mut elf = vec![0; 120];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    elf[18] = 183;
    let program = scratch.file("foreign", elf, 0o755);
    let command = format!("{}; echo $?", program.display());
    let (output, _) = managed(&scratch, &["bash", "-c", &command]);
    assert_eq!(stdout(&output), "126\n");
}

#[test]
fn a_program_in_a_chroot_without_the_library_starts_as_alone() {
    let scratch = Scratch::new();
    if !common::system::is_root() {
        return println!("SKIPPED: chroot needs root");
    }
    let root = scratch.path("root");
    let list = Command::new("ldd").arg("/bin/echo").output().unwrap();
    for path in stdout(&list).split_whitespace().filter(|w| w.starts_with('/')).chain(["/bin/echo"])
    {
        let to = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        scratch.file(&format!("root{path}"), fs::read(path).unwrap(), 0o755);
    }
    let root = root.to_str().unwrap();
    let (output, _) = managed(&scratch, &["chroot", root, "/bin/echo", "started"]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("started\n", ""));
}
