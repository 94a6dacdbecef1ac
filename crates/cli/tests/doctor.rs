//! `uzswap doctor` on this machine, and on one made worse.

mod common;

use std::fs;
use std::process::Output;

use common::system::{with_limit, without_userfaultfd};
use common::*;
use serde_json::Value;

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", stdout(output), stderr(output)))
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

#[test]
fn text_and_json_agree_with_the_exit_code() {
    let text = uzswap().arg("doctor").output().unwrap();
    let report = json(&uzswap().args(["doctor", "--json"]).output().unwrap());
    let works = report["works"].as_bool().unwrap();
    assert_eq!(text.status.code(), Some(if works { 0 } else { 1 }));
    let last = if works { "uzswap run works here\n" } else { "uzswap run does not work here\n" };
    assert!(stdout(&text).ends_with(last), "{}", stdout(&text));
    for entry in report["checks"].as_array().unwrap() {
        assert!(stdout(&text).contains(entry["name"].as_str().unwrap()));
        // A check that is not well has a remedy.
        assert!(entry["verdict"] == "ok" || entry["remedy"].is_string(), "{entry}");
    }
    assert_eq!(works, report["checks"].as_array().unwrap().iter().all(|c| c["verdict"] != "fail"));
    for name in
        ["kernel", "userfaultfd", "/proc/self/mem", "mechanism", "memory", "store", "library"]
    {
        check(&report, name);
    }
    assert!(report["default_memory_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn a_library_that_is_not_the_runtime_is_found_out() {
    let output = uzswap()
        .args(["doctor", "--json"])
        .env("UZSWAP_PRELOAD", harmless_library())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = json(&output);
    assert_eq!(check(&report, "library")["verdict"], "ok");
    assert_eq!(check(&report, "trial run")["verdict"], "fail");
    let output =
        uzswap().args(["doctor", "--json"]).env("UZSWAP_PRELOAD", "/no/such.so").output().unwrap();
    assert_eq!(check(&json(&output), "library")["verdict"], "fail");
    // A file that is no library: ld.so complains and goes on, so the runtime does not start.
    let scratch = Scratch::new();
    let noise = scratch.file("noise.so", "noise", 0o755);
    let output = uzswap().args(["doctor", "--json"]).env("UZSWAP_PRELOAD", noise).output().unwrap();
    assert_eq!(check(&json(&output), "trial run")["verdict"], "fail");
}

#[test]
fn a_seccomp_filter_is_named() {
    let mut command = uzswap();
    command.args(["doctor", "--json"]);
    let report = json(&without_userfaultfd(&mut command).output().unwrap());
    let entry = check(&report, "userfaultfd");
    assert_eq!(entry["verdict"], "note");
    assert!(entry["found"].as_str().unwrap().contains("seccomp"), "{entry}");
    assert!(entry["remedy"].as_str().unwrap().contains("seccomp"), "{entry}");
    assert_eq!(report["mechanism"], "protect");
}

#[test]
fn limits_are_seen() {
    let mut command = uzswap();
    command.args(["doctor", "--json"]);
    let report = json(&with_limit(&mut command, libc::RLIMIT_AS, 3 << 30).output().unwrap());
    let entry = check(&report, "address space");
    assert_eq!(entry["verdict"], "note");
    assert!(entry["found"].as_str().unwrap().contains("3.0 GiB"), "{entry}");
}

#[test]
fn the_store_is_tried() {
    let store = |value: &str| {
        let output =
            uzswap().args(["doctor", "--json"]).env("UZSWAP_STORE", value).output().unwrap();
        check(&json(&output), "store").clone()
    };
    let scratch = Scratch::new();
    let entry = store(scratch.directory().to_str().unwrap());
    assert!(entry["found"].as_str().unwrap().contains("free"), "{entry}");
    let entry = store("/no/such/directory");
    assert_eq!(entry["verdict"], "fail");
    assert!(entry["found"].as_str().unwrap().contains("no such directory"), "{entry}");
    assert_eq!(store("none")["verdict"], "ok");
    assert_eq!(
        fs::read_dir(scratch.directory()).unwrap().count(),
        0,
        "the trial leaves nothing behind"
    );
}

#[test]
fn a_program_is_judged() {
    let doctor = |program: &str| uzswap().args(["doctor", "--json", program]).output().unwrap();
    assert_eq!(check(&json(&doctor("sh")), "program")["verdict"], "ok");
    let scratch = Scratch::new();
    let fixed = scratch.file("fixed", static_program(), 0o755);
    assert_eq!(check(&json(&doctor(fixed.to_str().unwrap())), "program")["verdict"], "ok");
    let narrow = scratch.file("narrow", narrow_program(), 0o755);
    let output = doctor(narrow.to_str().unwrap());
    assert_eq!(output.status.code(), Some(1));
    let entry = check(&json(&output), "program").clone();
    assert!(entry["found"].as_str().unwrap().contains("32-bit x86"), "{entry}");
    assert_refused(&doctor("no-such-program-anywhere"), 127, &["no-such-program-anywhere"]);
    assert_refused(&doctor("/etc/passwd"), 126, &["permission denied"]);
}
