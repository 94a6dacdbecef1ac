//! Programs in C on the library: alone, under valgrind, with AddressSanitizer and under uzswap; and
//! one that may be without it.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Place, built, has, said, shown, skipped};

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
    let valgrind = || {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
        valgrind.args(["--errors-for-leak-kinds=definite,indirect", "--fair-sched=yes"]);
        valgrind
    };
    for (name, _, arguments) in PROGRAMS {
        let program = place.compile(&source(name), &[]);
        let mut valgrind = valgrind();
        valgrind.arg(&program).arg(place.path()).args(arguments);
        assert_eq!(said(&mut valgrind), "done\n", "{name}");
    }
    // So many that each of its tables grows, and that the store has some.
    let program = place.compile("examples/kv.c", &[]);
    let mut valgrind = valgrind();
    let output = valgrind.arg(program).args(["20000", "1"]).arg(place.path()).output().unwrap();
    let said = shown(&output);
    assert!(output.status.success() && output.stderr.is_empty(), "{said}");
    assert!(output.stdout.starts_with(b"20000 values of 4 MiB in "), "{said}");
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

/// A program under `uzswap run`, in 64 MiB; says of `test` that it is skipped if there is none.
fn managed(test: &str, place: &Place, program: &Path) -> Option<Command> {
    let uzswap = built().join("uzswap");
    if !uzswap.exists() || !built().join("libuzswap_preload").exists() {
        skipped(test, "uzswap is not built: cargo build --workspace");
        return None;
    }
    let mut run = Command::new(uzswap);
    run.args(["run", "--memory", "64M", "--quiet", "--"]).arg(program);
    run.env_remove("LD_PRELOAD").env("XDG_RUNTIME_DIR", place.path().join("runtime"));
    Some(run)
}

#[test]
fn a_managed_program_sees_and_steers_its_run() {
    let place = Place::new("managed");
    let program = place.compile(&source("managed"), &["-O2"]);
    let run = managed("a_managed_program_sees_and_steers_its_run", &place, &program);
    let Some(mut run) = run else { return };
    assert_eq!(said(run.arg(place.path())), "done\n");
}

#[test]
fn a_program_that_is_not_linked_runs_with_and_without_library_and_run() {
    const TEST: &str = "a_program_that_is_not_linked_runs_with_and_without_library_and_run";
    let place = Place::new("self");
    for (compiler, year) in [("gcc", "c99"), ("g++", "c++11")] {
        if !has(compiler) {
            skipped(TEST, "g++ is not installed");
            continue;
        }
        let program = place.compile_alone(&source("self"), compiler, year);
        let loaded = said(Command::new("readelf").arg("-d").arg(&program));
        assert!(!loaded.contains("uzswap"), "it is linked: {loaded}");
        // By name, as the loader finds it; and under another name, already there.
        let file = place.path().join("preloaded.so");
        fs::copy(built().join("libuzswap.so"), &file).unwrap();
        let ways = [("LD_LIBRARY_PATH", place.path()), ("LD_PRELOAD", &file)];
        let alone = said(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
        // Installed for all, it is always there.
        let is_installed = alone == "library, not managed\n";
        assert!(is_installed || alone == "no library, not managed\n", "{year}: {alone}");
        for (name, value) in ways {
            let out = said(Command::new(&program).env(name, value));
            assert_eq!(out, "library, not managed\n", "{year}, {name}");
        }
        let Some(mut run) = managed(TEST, &place, &program) else { continue };
        if is_installed {
            skipped(TEST, "managed without the library: libuzswap.so.1 is installed here");
        } else {
            let out = said(run.env_remove("LD_LIBRARY_PATH"));
            assert_eq!(out, "no library, not managed\n", "{year}");
        }
        for (name, value) in ways {
            let mut run = managed(TEST, &place, &program).expect("it was there");
            assert_eq!(said(run.env(name, value)), "library, managed\n", "{year}, {name}");
        }
    }
}
