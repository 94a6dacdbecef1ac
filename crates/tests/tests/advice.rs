//! A program's advice about its memory is followed: MADV_COLD, MADV_PAGEOUT and MADV_WILLNEED, by
//! `madvise` and by `process_madvise` on itself. The calls return what they return without uzswap,
//! and no byte changes (`programs/advice.c`).

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop};

/// The program holds 64 MiB: twice that is a limit at which nothing goes by itself.
const LIMIT: u64 = 128 * MIB;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    let mechanisms = [
        (Sandbox::Open, "userfaultfd", "never"),
        (Sandbox::Open, "userfaultfd", "always"),
        (Sandbox::Open, "userfaultfd-copy", "never"),
        (Sandbox::NoUserfaultfd, "protect", "never"),
    ];
    for (sandbox, mechanism, huge_pages) in mechanisms {
        let w = workshop.clone();
        let name = format!("advice_is_followed::{mechanism}::huge_pages_{huge_pages}");
        suite.add(name, move || advice_is_followed(&w, sandbox, mechanism, huge_pages));
    }
    drop(workshop);
    suite.main()
}

fn advice_is_followed(
    workshop: &Arc<Workshop>,
    sandbox: Sandbox,
    mechanism: &str,
    huge_pages: &str,
) -> Result<Verdict, String> {
    let program = workshop.program("advice");
    let plain = Job::new([&program]).user(User::Ordinary).sandbox(sandbox).run(workshop)?;
    assert!(plain.status.success(), "{}", plain.report());
    let options = ["--mechanism", mechanism, "--huge-pages", huge_pages, "--store", "none"];
    let managed =
        Managed { memory_bytes: Some(LIMIT), options: options.iter().map(|o| o.into()).collect() };
    let run = Job::new([program.as_os_str(), "managed".as_ref()])
        .user(User::Ordinary)
        .sandbox(sandbox)
        .managed(managed)
        .run(workshop)?;
    assert!(run.status.success(), "{}", run.report());
    assert_eq!(run.stdout, plain.stdout, "{}", run.report());
    Ok(Verdict::Passed)
}
