//! Kinds of memory beside the ordinary one, in a process that pages: the program finds what it
//! wrote, by each mechanism.

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Suite, Verdict, Workshop};

const PROGRAM_MIB: u64 = 80;
const MEMORY_BYTES: u64 = 40 * MIB;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for mechanism in ["userfaultfd", "userfaultfd-copy", "protect"] {
        let w = workshop.clone();
        suite.add(format!("a_userfaultfd_of_the_programs_own::{mechanism}"), move || served(&w, mechanism));
    }
    drop(workshop);
    suite.main()
}

/// Memory under a userfaultfd of the program's own is the program's to serve. It was paged before,
/// and what is left goes on being paged.
fn served(w: &Workshop, mechanism: &str) -> Result<Verdict, String> {
    let argv = [w.program("kinds").into_os_string(), PROGRAM_MIB.to_string().into(), "served".into()];
    let options = vec!["--mechanism".into(), mechanism.into()];
    let managed = Managed { memory_bytes: Some(MEMORY_BYTES), options };
    let run = Job::new(&argv).managed(managed).run(w)?;
    let is_right = run.succeeded() && run.stdout.ends_with("ok\n");
    let is_paged = run.stat("evictions").unwrap_or(0) > PROGRAM_MIB / 2 * MIB / 4096;
    Ok(Verdict::check(is_right && is_paged, || run.report()))
}
