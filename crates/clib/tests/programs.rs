//! Programs in C on the library: alone, under valgrind, with AddressSanitizer, and under uzswap.

mod support;

use std::process::Command;

use support::{Place, built, has, said, skipped};

/// The programs, and what is added to their arguments: alone, and where everything is slower.
const PROGRAMS: [(&str, &[&str], &[&str]); 3] =
    [("calls", &[], &[]), ("threads", &["60000"], &["2000"]), ("forks", &["12"], &["2"])];

fn source(name: &str) -> String {
    format!("tests/programs/{name}.c")
}

#[test]
fn programs_in_c_find_what_the_header_says() {
    let place = Place::new("plain");
    for (name, arguments, _) in PROGRAMS {
        let program = place.compile(&source(name), &["-O2"]);
        assert_eq!(said(place.command(&program).args(arguments)), "done\n", "{name}");
    }
}

#[test]
fn the_example_has_more_values_than_memory_and_finds_them_all() {
    let place = Place::new("kv");
    let program = place.compile("examples/kv.c", &["-O2"]);
    let said = said(Command::new(program).args(["300000", "32"]).arg(place.path()));
    // "N values of M MiB in K MiB of memory; L MiB in the store"
    let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [values, all, memory, store] = numbers[..] else { panic!("{said}") };
    assert!(values == 300_000 && all > 64 && (16..=34).contains(&memory) && store > 0, "{said}");
}

#[test]
fn valgrind_finds_nothing() {
    if !has("valgrind") {
        return skipped("valgrind_finds_nothing", "valgrind is not installed");
    }
    let place = Place::new("valgrind");
    for (name, _, arguments) in PROGRAMS {
        let program = place.compile(&source(name), &[]);
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
        valgrind.args(["--errors-for-leak-kinds=definite,indirect", "--fair-sched=yes"]);
        valgrind.arg(&program).arg(place.path()).args(arguments);
        assert_eq!(said(&mut valgrind), "done\n", "{name}");
    }
}

#[test]
fn address_sanitizer_finds_nothing() {
    let place = Place::new("asan");
    let probe = "-fsanitize=address,undefined";
    for (name, _, arguments) in PROGRAMS {
        let program = place.compile(&source(name), &[probe, "-fno-sanitize-recover=all"]);
        let mut command = place.command(&program);
        command.env("ASAN_OPTIONS", "detect_leaks=1:halt_on_error=1").args(arguments);
        assert_eq!(said(&mut command), "done\n", "{name}");
    }
}

#[test]
fn a_managed_program_sees_and_steers_its_run() {
    let uzswap = built().join("uzswap");
    if !uzswap.exists() || !built().join("libuzswap_preload.so").exists() {
        let why = "uzswap is not built: cargo build --workspace";
        return skipped("a_managed_program_sees_and_steers_its_run", why);
    }
    let place = Place::new("managed");
    let program = place.compile(&source("managed"), &["-O2"]);
    let mut run = Command::new(uzswap);
    run.args(["run", "--memory", "64M", "--quiet", "--"]).arg(&program).arg(place.path());
    run.env_remove("LD_PRELOAD").env("XDG_RUNTIME_DIR", place.path().join("runtime"));
    assert_eq!(said(&mut run), "done\n");
}
