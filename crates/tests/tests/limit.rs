//! The limit holds: from start to end, sampled every 10 ms, the anonymous memory of a program that
//! touches memory as fast as it can stays under `--memory` plus 5 % plus 16 MiB. So does what a
//! program and its forked children hold together, where the program alone fits and has never paged.
//! A limit that was taken from a memory group follows the group's room.

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop, full};

const MEMORY_MIB: u64 = 64;
const MEMORY_BYTES: u64 = MEMORY_MIB * MIB;
const ALLOWED_BYTES: u64 = allowed(MEMORY_BYTES);

const fn allowed(memory_bytes: u64) -> u64 {
    memory_bytes + memory_bytes / 20 + 16 * MIB
}

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for threads in [1, 2, 4] {
            let w = workshop.clone();
            suite.add(format!("holds::{}::{threads}_threads", sandbox.mechanism()), move || {
                holds(&w, sandbox, threads, false)
            });
        }
    }
    for threads in [1, 2] {
        let w = workshop.clone();
        suite.add(format!("holds::userfaultfd::{threads}_threads_in_huge_pages"), move || {
            holds(&w, Sandbox::Open, threads, true)
        });
    }
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        // One that needs most of the limit; some of which any one fits; and many of which several
        // do.
        for (i, (mib, children)) in [(150, 1), (50, 8), (20, 16)].into_iter().enumerate() {
            // A large family takes long.
            if children > 1 && !sandbox.has_turn(i) {
                continue;
            }
            let w = workshop.clone();
            suite.add(
                format!("holds_for_{children}_children::{}", sandbox.mechanism()),
                move || holds_for_children(&w, sandbox, mib, children),
            );
        }
    }
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for how in ["noreserve", "mprotect"] {
            let w = workshop.clone();
            suite.add(format!("reserved_is_no_need::{how}::{}", sandbox.mechanism()), move || {
                reserved(&w, sandbox, how, 8, 512 * MIB)
            });
            let w = workshop.clone();
            suite.add(
                format!("reserved_and_touched_holds::{how}::{}", sandbox.mechanism()),
                move || reserved(&w, sandbox, how, 960, 320 * MIB),
            );
        }
    }
    // One that fits, two at a time, one that forks and whose children write to all, and one that
    // pages.
    for (name, script, limit_mib) in [
        ("one", "exec touch 100 1 8", 512),
        ("two", "touch 60 1 60 & touch 60 1 60 & wait", 512),
        ("forks", "exec forks 60 2 2000", 512),
        ("pages", "exec touch 192 1 2", MEMORY_MIB),
    ] {
        let w = workshop.clone();
        suite.add(format!("the_peak_is_the_kernels::{name}"), move || {
            accounts(&w, script, limit_mib * MIB)
        });
    }
    let w = workshop.clone();
    suite.add("follows_the_room_of_its_group", move || follows(&w));
    drop(workshop);
    suite.main()
}

/// A process beside a run that takes 48 MiB once the run has its limit, and tells when it has.
const BESIDE: &str = r#"
import os, time
while not os.path.exists("begun"): time.sleep(0.02)
memory = bytearray(b"x") * (48 << 20)
open("grown", "w")
time.sleep(600)
"#;

/// A limit that was taken from a group goes down when others take of the group; with one that was
/// said, the kernel kills.
fn follows(workshop: &Workshop) -> Result<Verdict, String> {
    const GROUP_BYTES: u64 = 128 * MIB;
    let touch = workshop.program("touch");
    let run = |memory: &str| {
        let script = format!(
            "/usr/bin/python3 -Ic '{BESIDE}' & \"$0\" run {memory} -- sh -c '>begun; \
             until [ -e grown ]; do sleep 0.1; done; sleep 3; exec \"$0\" 120 1 2' \"$1\"; \
             code=$?; kill $!; exit $code"
        );
        let argv = ["sh".into(), "-c".into(), script.into(), workshop.uzswap(), touch.clone()];
        Job::new(argv).limit(GROUP_BYTES).run(workshop)
    };
    let (said, taken) = (run("--memory 100M")?, run("")?);
    let is_lowered = taken.succeeded() && taken.stderr.contains("the limit was lowered to");
    let is_right = said.oom_kills > 0 && taken.oom_kills == 0 && is_lowered;
    Ok(Verdict::check(is_right, || format!("said: {}taken: {}", said.report(), taken.report())))
}

/// In a group with the same limit and what is allowed beyond it: there the program dies without
/// uzswap.
fn holds_for_children(
    workshop: &Workshop,
    sandbox: Sandbox,
    mib: u64,
    children: u32,
) -> Result<Verdict, String> {
    const FAMILY_BYTES: u64 = 200 * MIB;
    let argv = [
        workshop.program("forks").into_os_string(),
        mib.to_string().into(),
        children.to_string().into(),
    ];
    let job = Job::new(&argv).user(User::Ordinary).limit(allowed(FAMILY_BYTES));
    let free = job.clone().run(workshop)?;
    let run = job
        .sandbox(sandbox)
        .managed(Managed { memory_bytes: Some(FAMILY_BYTES), options: vec![] })
        .run(workshop)?;
    let is_killed = free.oom_kills > 0 && !free.succeeded();
    let is_right = run.succeeded() && run.oom_kills == 0;
    Ok(Verdict::check(is_killed && is_right, || format!("{}{}", free.report(), run.report())))
}

/// The peak of `--stats` agrees with the kernel's count, which counts memory shared by fork once.
fn accounts(workshop: &Workshop, script: &str, limit_bytes: u64) -> Result<Verdict, String> {
    // The kernel counts `uzswap run` as well, and both look now and then.
    const ALLOWED: u64 = 6 * MIB;
    let bin = workshop.program("touch").parent().expect("in a directory").to_path_buf();
    workshop.program("forks");
    let script = format!("PATH={}:$PATH; {script}", bin.display());
    let run = Job::new(["sh", "-c", &script])
        .managed(Managed { memory_bytes: Some(limit_bytes), options: vec![] })
        .run(workshop)?;
    let (said, counted) = (run.stat("peak_used_bytes").unwrap_or(0), run.peaks.group_bytes);
    println!("said {} MiB, counted {} MiB", said / MIB, counted / MIB);
    let is_right = run.succeeded() && said.abs_diff(counted) <= counted / 20 + ALLOWED;
    Ok(Verdict::check(is_right, || format!("said {said}, counted {counted}\n{}", run.report())))
}

/// A program that reserves 16 GiB and touches a little of it is not paged; one that touches more
/// than its limit holds it.
fn reserved(
    workshop: &Workshop,
    sandbox: Sandbox,
    how: &str,
    touched_mib: u64,
    limit_bytes: u64,
) -> Result<Verdict, String> {
    let argv =
        [workshop.program("reserve").into_os_string(), how.into(), touched_mib.to_string().into()];
    let free = Job::new(&argv).run(workshop)?;
    let run = Job::new(&argv)
        .user(User::Ordinary)
        .sandbox(sandbox)
        .limit(allowed(limit_bytes))
        .managed(Managed { memory_bytes: Some(limit_bytes), options: vec![] })
        .run(workshop)?;
    let is_paged = run.stat("activations") == Some(1);
    let is_right =
        run.succeeded() && run.hash == free.hash && is_paged == (touched_mib * MIB > limit_bytes);
    Ok(Verdict::check(is_right, || format!("{}{}", free.report(), run.report())))
}

fn holds(
    workshop: &Workshop,
    sandbox: Sandbox,
    threads: u32,
    huge: bool,
) -> Result<Verdict, String> {
    let rounds = if full() { "6" } else { "2" };
    let (size, threads) = ((3 * MEMORY_MIB).to_string(), threads.to_string());
    let argv =
        [workshop.program("touch").into_os_string(), size.into(), threads.into(), rounds.into()];
    let free = Job::new(&argv).run(workshop)?;
    let run = Job::new(&argv)
        .user(User::Ordinary)
        .sandbox(sandbox)
        .managed(Managed {
            memory_bytes: Some(MEMORY_BYTES),
            options: if huge { vec!["--huge-pages".into(), "always".into()] } else { vec![] },
        })
        .run(workshop)?;
    println!(
        "limit {} MiB, allowed {} MiB, highest {} MiB (all processes {} MiB) in {} samples",
        MEMORY_MIB,
        ALLOWED_BYTES / MIB,
        run.peaks.process_bytes / MIB,
        run.peaks.tree_bytes / MIB,
        run.peaks.samples,
    );
    let wrong = if !run.succeeded() || !free.succeeded() {
        "it did not finish"
    } else if run.hash != free.hash {
        "its output differs"
    } else if free.peaks.process_bytes < 3 * MEMORY_BYTES {
        "the program is smaller than it should be"
    } else if run.peaks.samples < 10 {
        "too few samples to say anything"
    } else if huge && run.stat("huge_evictions").unwrap_or(0) == 0 {
        "no huge page went out"
    } else if run.peaks.tree_bytes > ALLOWED_BYTES {
        "the limit does not hold"
    } else {
        return Ok(Verdict::Passed);
    };
    Ok(Verdict::Failed(format!("{wrong}, allowed {} MiB\n{}", ALLOWED_BYTES / MIB, run.report())))
}
