//! Programs that give up rights, put themselves under a seccomp filter, run into their own limits,
//! or have others in their memory, live as they do without uzswap, by both mechanisms; and
//! processes that are all number 1 share one limit.

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Outcome, Sandbox, Suite, Verdict, Workshop};

const PROGRAM_MIB: u64 = 80;
const MEMORY_BYTES: u64 = 32 * MIB;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        let mut add = |name: &str, arguments: &[&str], notices: &'static [&'static str]| {
            let (w, arguments) = (workshop.clone(), arguments.join(" "));
            suite.add(format!("{name}::{}", sandbox.mechanism()), move || {
                lives(&w, sandbox, &arguments, notices)
            });
        };
        for what in ["chroot", "setuid", "dumpable"] {
            // Where the store's directory cannot be reached any more, that is said.
            add(
                &format!("a_child_lives_after::{what}"),
                &["drop", what],
                &["store_failed", "over_limit"],
            );
        }
        for how in ["kill", "errno", "strict"] {
            add(&format!("under_a_filter::{how}"), &["jail", how], &["sandboxed"]);
            add(&format!("under_a_filter_idle::{how}"), &["jail", how, "idle"], &["sandboxed"]);
        }
        add("threads_are_refused_with_an_errno", &["threads", "700"], &[]);
        add("a_guest_in_memory_sees_it", &["guest"], &[]);
        let w = workshop.clone();
        suite.add(
            format!("killed_guests_do_not_hang_the_program::{}", sandbox.mechanism()),
            move || killed(&w, sandbox),
        );
        let w = workshop.clone();
        suite.add(format!("pid_namespaces_share_a_limit::{}", sandbox.mechanism()), move || {
            namespaces(&w, sandbox)
        });
    }
    drop(workshop);
    suite.main()
}

fn run(
    w: &Workshop,
    sandbox: Sandbox,
    mib: u64,
    memory_bytes: u64,
    arguments: &str,
) -> Result<Outcome, String> {
    let mut argv = vec![w.program("rights").into_os_string(), mib.to_string().into()];
    argv.extend(arguments.split(' ').map(Into::into));
    // The kernel has no strict mode for a process that is under a filter already, as the sandbox is
    // one.
    let (sandbox, options) = match (sandbox, arguments.contains("strict")) {
        (Sandbox::NoUserfaultfd, true) => {
            (Sandbox::Open, vec!["--mechanism".into(), "protect".into()])
        }
        _ => (sandbox, vec![]),
    };
    let managed = Managed { memory_bytes: Some(memory_bytes), options };
    Job::new(&argv).sandbox(sandbox).managed(managed).run(w)
}

fn notices(run: &Outcome) -> Vec<String> {
    let all = run.stats.as_ref().and_then(|s| s.get("notices")).and_then(|n| n.as_array());
    all.into_iter().flatten().filter_map(|n| n.as_str().map(str::to_string)).collect()
}

/// The program ends as it does alone, and of notices there are only these.
fn lives(
    w: &Workshop,
    sandbox: Sandbox,
    arguments: &str,
    allowed: &[&str],
) -> Result<Verdict, String> {
    let run = run(w, sandbox, PROGRAM_MIB, MEMORY_BYTES, arguments)?;
    let is_right = run.succeeded() && run.stdout.ends_with("ok\n");
    let said = notices(&run);
    let is_expected = said.iter().all(|n| allowed.contains(&n.as_str()));
    let is_said = !arguments.starts_with("jail") || said.iter().any(|n| n == "sandboxed");
    Ok(Verdict::check(is_right && is_expected && is_said, || {
        format!("notices {said:?}\n{}", run.report())
    }))
}

/// It ends: rightly, or with a message where a guest was killed in the middle of a change.
fn killed(w: &Workshop, sandbox: Sandbox) -> Result<Verdict, String> {
    let run = run(w, sandbox, PROGRAM_MIB, MEMORY_BYTES, "killed 20")?;
    let is_right = run.succeeded() && run.stdout.ends_with("ok\n");
    let is_said =
        run.stderr.contains("shared this program's memory") && run.status.code() == Some(134);
    Ok(Verdict::check(run.hung.is_none() && (is_right || is_said), || run.report()))
}

/// Five processes, each number 1 in its own namespace, that need twice the limit together.
fn namespaces(w: &Workshop, sandbox: Sandbox) -> Result<Verdict, String> {
    const LIMIT_BYTES: u64 = 100 * MIB;
    let allowed_bytes = LIMIT_BYTES + LIMIT_BYTES / 20 + 16 * MIB;
    let run = run(w, sandbox, 40, LIMIT_BYTES, "namespaces 5")?;
    let is_right =
        run.succeeded() && run.stdout.ends_with("ok\n") && run.peaks.tree_bytes <= allowed_bytes;
    Ok(Verdict::check(is_right, || {
        format!("allowed {} MiB\n{}", allowed_bytes / MIB, run.report())
    }))
}
