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
        suite.add(format!("a_userfaultfd_of_the_programs_own::{mechanism}"), move || {
            served(&w, mechanism)
        });
    }
    let w = workshop.clone();
    suite.add("written_pages_of_a_private_file_are_counted", move || private_file(&w));
    let w = workshop.clone();
    suite.add("shared_memory_is_counted_once", move || shared(&w));
    drop(workshop);
    suite.main()
}

/// Pages that a program writes to a private mapping of a file are not paged, but count: ordinary
/// memory makes room for them.
fn private_file(w: &Workshop) -> Result<Verdict, String> {
    let path = w.dir().join("zeros");
    let file = std::fs::File::create(&path).map_err(|e| e.to_string())?;
    file.set_len(PROGRAM_MIB * MIB).map_err(|e| e.to_string())?;
    let argv = [
        w.program("kinds").into_os_string(),
        PROGRAM_MIB.to_string().into(),
        "file".into(),
        path.into(),
    ];
    let memory_bytes = PROGRAM_MIB * MIB * 3 / 2;
    let managed = Managed { memory_bytes: Some(memory_bytes), options: vec![] };
    let run = Job::new(&argv).managed(managed).run(w)?;
    let is_right = run.succeeded() && run.stdout.ends_with("ok\n");
    // Nobody waits for its turn to write to a file, so the peak is a matter of how soon the evictor
    // runs; but at the end it has made room.
    let stat = |name: &str| run.stat(name).unwrap_or(u64::MAX);
    let pages = ["resident_pages", "limbo_pages", "outside_pages"].map(stat);
    let held_bytes = pages
        .into_iter()
        .fold(stat("pool_bytes"), |sum, n| sum.saturating_add(n.saturating_mul(4096)));
    let is_within = held_bytes <= memory_bytes + memory_bytes / 20 + 16 * MIB;
    let makes_room = run.stat("evictions").unwrap_or(0) > PROGRAM_MIB / 3 * MIB / 4096;
    Ok(Verdict::check(is_right && is_within && makes_room, || run.report()))
}

/// Shared memory is not paged, but counts, once for all mappings and processes: ordinary memory
/// makes room for it, which alone would fit. In its memory group both do not fit.
fn shared(w: &Workshop) -> Result<Verdict, String> {
    const SHARED_BYTES: u64 = 48 * MIB;
    let argv =
        [w.program("kinds").into_os_string(), PROGRAM_MIB.to_string().into(), "shared".into()];
    let memory_bytes = PROGRAM_MIB * MIB * 5 / 4;
    let managed = Managed { memory_bytes: Some(memory_bytes), options: vec![] };
    let group_bytes = memory_bytes + memory_bytes / 20 + 16 * MIB;
    let run = Job::new(&argv).managed(managed).limit(group_bytes).run(w)?;
    let is_right = run.succeeded() && run.stdout.ends_with("ok\n");
    let counted = run.stat("peak_shared_bytes").unwrap_or(0);
    let is_once = (SHARED_BYTES..SHARED_BYTES + 8 * MIB).contains(&counted);
    let is_said = run.stderr.contains("of the memory was shared");
    let makes_room = run.stat("evictions").unwrap_or(0) > 0;
    Ok(Verdict::check(is_right && is_once && is_said && makes_room, || run.report()))
}

/// Memory under a userfaultfd of the program's own is the program's to serve. It was paged before,
/// and what is left goes on being paged.
fn served(w: &Workshop, mechanism: &str) -> Result<Verdict, String> {
    let argv =
        [w.program("kinds").into_os_string(), PROGRAM_MIB.to_string().into(), "served".into()];
    let options = vec!["--mechanism".into(), mechanism.into()];
    let managed = Managed { memory_bytes: Some(MEMORY_BYTES), options };
    let run = Job::new(&argv).managed(managed).run(w)?;
    let is_right = run.succeeded() && run.stdout.ends_with("ok\n");
    let is_paged = run.stat("evictions").unwrap_or(0) > PROGRAM_MIB / 2 * MIB / 4096;
    Ok(Verdict::check(is_right && is_paged, || run.report()))
}
