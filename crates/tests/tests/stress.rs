//! Never wrong bytes: the seeded stress (`programs/churn.c`), and corner cases one by one
//! (`programs/edge.c`), under a limit of a third and of half of their memory.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop, full, seed};

/// Memory that `churn` checks; what its threads need beside comes on top.
const CHURN_MIB: u64 = 96;
const CHURN_LIMIT_MIB: u64 = 32;
/// The number of a case that runs by userfaultfd in the short form.
const BY_USERFAULTFD: usize = 1;
/// Cases of `edge` that take a quarter of a minute and more by protection faults.
const SLOW_BY_PROTECTION: [&str; 4] =
    ["resize_in_place", "fork_tree", "fork_with_threads", "other_memory"];
/// `edge` holds 40 MiB.
const EDGE_LIMIT_MIB: u64 = 20;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();

    let w = workshop.clone();
    suite.add("churn::passes_unmanaged", move || {
        let run = churn(&w, CHURN_MIB, "3", seed(), &[]).run(&w)?;
        Ok(Verdict::check(run.succeeded() && run.stdout.contains("clean"), || run.report()))
    });
    for spoiled in [1, 2] {
        let w = workshop.clone();
        suite.add(format!("churn::finds_a_spoiled_byte::{spoiled}"), move || {
            let run = churn(&w, CHURN_MIB, "20", spoiled, &["--spoil"]).run(&w)?;
            let found =
                run.status.code() == Some(3) && run.stderr.contains(&format!("seed {spoiled}:"));
            Ok(Verdict::check(found, || run.report()))
        });
    }
    for (user, sandbox) in [(User::Ordinary, Sandbox::Open), (User::Root, Sandbox::NoUserfaultfd)] {
        // All steps; and signals on coroutines' stacks while others fork, which is where a stack's
        // pages come and go most.
        for (name, steps) in [("churn", &[][..]), ("churn_stacks", &["--only", "coroutine,fork"])] {
            let w = workshop.clone();
            suite.add(format!("{name}::{}::{}", user.name(), sandbox.mechanism()), move || {
                let seconds = if full() { 600 } else { 6 };
                let run = churn(&w, CHURN_MIB, &seconds.to_string(), seed(), steps)
                    .user(user)
                    .sandbox(sandbox)
                    .managed(managed(CHURN_LIMIT_MIB))
                    .hangs_after(Duration::from_secs(seconds + 240))
                    .run(&w)?;
                print!("{}", run.stdout);
                let paged = run.stat("evictions").unwrap_or(0) > 0;
                let ok = run.succeeded() && run.stdout.contains("clean") && paged;
                Ok(Verdict::check(ok, || run.report()))
            });
        }
    }
    let w = workshop.clone();
    suite.add("churn_huge::user::userfaultfd", move || {
        let seconds = if full() { 600 } else { 6 };
        // Regions of some huge pages each, under a limit that has room for some.
        let managed = Managed {
            memory_bytes: Some(2 * CHURN_LIMIT_MIB * MIB),
            options: vec!["--huge-pages".into(), "always".into()],
        };
        let run = churn(&w, 2 * CHURN_MIB, &seconds.to_string(), seed(), &[])
            .user(User::Ordinary)
            .managed(managed)
            .hangs_after(Duration::from_secs(seconds + 240))
            .run(&w)?;
        print!("{}", run.stdout);
        let huge =
            run.stat("huge_faults").unwrap_or(0) > 0 && run.stat("huge_evictions").unwrap_or(0) > 0;
        Ok(Verdict::check(run.succeeded() && run.stdout.contains("clean") && huge, || run.report()))
    });
    for (user, sandbox) in [(User::Ordinary, Sandbox::Open), (User::Root, Sandbox::NoUserfaultfd)] {
        for (i, case) in edge_cases(&workshop).into_iter().enumerate() {
            let is_slow = SLOW_BY_PROTECTION.contains(&case.as_str());
            if !sandbox.has_turn(if is_slow { BY_USERFAULTFD } else { i }) {
                continue;
            }
            let w = workshop.clone();
            suite.add(format!("edge::{case}::{}", sandbox.mechanism()), move || {
                edge(&w, "edge", &case, user, sandbox)
            });
        }
        let w = workshop.clone();
        suite.add(format!("late_call::{}", sandbox.mechanism()), move || {
            edge(&w, "late", "64", user, sandbox)
        });
    }
    drop(workshop);
    suite.independent();
    suite.main()
}

fn managed(memory_mib: u64) -> Managed {
    Managed { memory_bytes: Some(memory_mib * MIB), ..Managed::default() }
}

fn churn(workshop: &Workshop, mib: u64, seconds: &str, seed: u64, more: &[&str]) -> Job {
    let mut argv = vec![workshop.program("churn").into_os_string(), seconds.into()];
    argv.extend([seed.to_string().into(), mib.to_string().into(), "6".into()]);
    argv.extend(more.iter().map(Into::into));
    Job::new(argv)
}

fn edge_cases(workshop: &Workshop) -> Vec<String> {
    let list = Command::new(workshop.program("edge")).arg("--list").output().expect("edge starts");
    let cases: Vec<_> = String::from_utf8_lossy(&list.stdout).lines().map(str::to_owned).collect();
    assert!(!cases.is_empty(), "edge has no cases");
    cases
}

/// One case prints the same with and without paging.
fn edge(
    workshop: &Workshop,
    program: &str,
    case: &str,
    user: User,
    sandbox: Sandbox,
) -> Result<Verdict, String> {
    let job = Job::new([workshop.program(program).as_os_str(), case.as_ref()])
        .user(user)
        .sandbox(sandbox)
        .hangs_after(Duration::from_secs(300));
    let free = job.clone().run(workshop)?;
    // Huge pages need some room, and so do copies.
    let limit_mib =
        if matches!(case, "huge" | "only_read") { 2 * EDGE_LIMIT_MIB } else { EDGE_LIMIT_MIB };
    let run = job.managed(managed(limit_mib)).run(workshop)?;
    // The events that the case is about must happen, where they can.
    let subject = match case {
        "huge" => "huge_faults",
        "only_read" => "clean_evictions",
        _ => "evictions",
    };
    let paged = (sandbox != Sandbox::Open || run.stat(subject).unwrap_or(0) > 0)
        && run.stat("evictions").unwrap_or(0) > 0;
    let ok = run.status == free.status && run.hung.is_none() && run.stdout == free.stdout && paged;
    Ok(Verdict::check(ok, || format!("{}expected:\n{}", run.report(), free.report())))
}
