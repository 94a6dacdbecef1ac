//! Layouts of a process's memory that else are the loader's luck.
//!
//! The main thread's control block may lie right behind a library's .bss, with which the kernel
//! then shows it as one mapping. The .bss is managed memory; the block must not be: the kernel
//! writes to it (restartable sequences) whenever the thread comes back to a processor, and kills
//! the process if the page is not there.

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop};

/// The limit: the program holds 64 MiB and its library's .bss. With much more memory nothing is
/// paged, and mappings are as the loader left them.
const LIMIT_MIB: u64 = 16;
const AMPLE_MIB: u64 = 1024;
/// A library that is aligned to more than it is large has a hole behind it.
const ALIGNED: &str = "-Wl,-z,max-page-size=0x1000000";
/// The first guess of how large a .bss reaches to the control block, and how many more there are.
const FIRST_PAGES: i64 = 600;
const GUESSES: u32 = 8;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        let w = workshop.clone();
        suite.add(format!("control_block_behind_a_bss::{}", sandbox.mechanism()), move || {
            control_block(&w, sandbox)
        });
    }
    drop(workshop);
    suite.main()
}

fn control_block(workshop: &Workshop, sandbox: Sandbox) -> Result<Verdict, String> {
    let job = |pages: i64, what: &str, memory_mib: u64| {
        let library = workshop.object_of_pages("neighbour", pages, &[ALIGNED]);
        let program = workshop.program_with("neighbour", &library);
        Job::new([program.as_os_str(), what.as_ref()])
            .env("LD_LIBRARY_PATH", library.parent().expect("it is a file"))
            .user(User::Ordinary)
            .sandbox(sandbox)
            .managed(Managed { memory_bytes: Some(memory_mib * MIB), ..Managed::default() })
    };
    let mut pages = FIRST_PAGES;
    for _ in 0..=GUESSES {
        let there = job(pages, "where", AMPLE_MIB).run(workshop)?;
        let mut numbers = there.stdout.split_whitespace().map_while(|n| n.parse::<i64>().ok());
        let (Some(gap), Some(is_one)) = (numbers.next(), numbers.next()) else {
            return Ok(Verdict::Failed(there.report()));
        };
        if is_one == 1 {
            println!("{pages} pages of .bss, then the control block");
            let run = job(pages, "run", LIMIT_MIB).run(workshop)?;
            let is_paged = run.stat("evictions").unwrap_or(0) > 0;
            return Ok(Verdict::check(
                run.succeeded() && run.stdout == "right\n" && is_paged,
                || run.report(),
            ));
        }
        if gap <= 0 {
            break;
        }
        pages += gap;
    }
    Err(format!(
        "this loader puts no control block behind a library's .bss: not behind {pages} pages"
    ))
}
