//! Never wrong bytes: stress-ng's memory stressors, which verify what they read, under a limit of a
//! quarter of their size.

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop, full, suite};

/// A stressor's options, the limit, and whether what it holds is a multiple of the limit, so that
/// paging is certain.
struct Stressor {
    name: &'static str,
    options: &'static str,
    memory_mib: u64,
    is_paged: bool,
    /// In CI; the full run takes two minutes for each.
    seconds: u64,
}

const STRESSORS: &[Stressor] = &[
    Stressor {
        name: "vm",
        options: "--vm 2 --vm-bytes 160m --vm-method all",
        memory_mib: 40,
        is_paged: true,
        seconds: 6,
    },
    Stressor {
        name: "mremap",
        options: "--mremap 2 --mremap-bytes 128m",
        memory_mib: 32,
        is_paged: true,
        seconds: 3,
    },
    Stressor {
        name: "malloc",
        // Two processes of at most 60 pieces, of 2 MiB on average.
        options: "--malloc 2 --malloc-bytes 4m --malloc-max 60 --malloc-touch",
        memory_mib: 32,
        is_paged: true,
        seconds: 3,
    },
    // The others work on many small, shared or file mappings: they show that nothing is confused,
    // in little memory.
    Stressor {
        name: "madvise",
        options: "--madvise 2",
        memory_mib: 16,
        is_paged: false,
        seconds: 3,
    },
    Stressor {
        name: "mmapfork",
        options: "--mmapfork 1",
        memory_mib: 16,
        is_paged: false,
        seconds: 3,
    },
    Stressor {
        name: "stackmmap",
        options: "--stackmmap 2",
        memory_mib: 16,
        is_paged: false,
        seconds: 3,
    },
    Stressor {
        name: "fork",
        options: "--fork 2 --fork-vm",
        memory_mib: 16,
        is_paged: false,
        seconds: 3,
    },
];

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for (user, sandbox) in [(User::Ordinary, Sandbox::Open), (User::Root, Sandbox::NoUserfaultfd)] {
        for (_, stressor) in STRESSORS.iter().enumerate().filter(|(i, _)| sandbox.has_turn(*i)) {
            let w = workshop.clone();
            let name = format!("{}::{}::{}", stressor.name, user.name(), sandbox.mechanism());
            suite.add(name, move || run(&w, stressor, user, sandbox));
        }
    }
    drop(workshop);
    suite.main()
}

fn run(
    workshop: &Workshop,
    stressor: &Stressor,
    user: User,
    sandbox: Sandbox,
) -> Result<Verdict, String> {
    let seconds = if full() { 120 } else { stressor.seconds };
    let mut argv = vec![suite::command("stress-ng")?.into_os_string()];
    argv.extend(stressor.options.split(' ').map(Into::into));
    let options = format!("--verify --timeout {seconds} --metrics-brief --temp-path . --oomable");
    argv.extend(options.split(' ').map(Into::into));
    let memory_bytes = stressor.memory_mib * MIB;
    let run = Job::new(argv)
        .user(user)
        .sandbox(sandbox)
        .managed(Managed { memory_bytes: Some(memory_bytes), ..Managed::default() })
        .run(workshop)?;
    // It says "fail" where verification failed, and exits 2 when a stressor did.
    let output = format!("{}{}", run.stdout, run.stderr);
    let complaint = output
        .lines()
        .find(|l| l.contains("fail:") || l.contains("error:") || l.contains("terminated"));
    let paged = run.stat("evictions").unwrap_or(0) > 0 || !stressor.is_paged;
    let ok = run.succeeded() && complaint.is_none() && output.contains("successful run") && paged;
    Ok(Verdict::check(ok, || run.report()))
}
