//! Where neither pool nor disk takes a page the program goes on over its limit: with the right
//! bytes, without trying the same pages again for each fault, and with a word about it.

use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, Outcome, Sandbox, Suite, Verdict, Workshop};

/// Evictions that may be refused for each fault: that many are little work beside the fault.
const REFUSED_PER_FAULT: u64 = 100;

/// The causes that keep pages from being taken: a name, a shell command before `uzswap run`, and
/// the store that the run is given.
const CAUSES: [(&str, &str, &str); 3] = [
    ("no_store", "true", "none"),
    ("full_store", "mkdir store && mount -t tmpfs -o size=6M uzswap-refused store", "store"),
    // Some tens of MiB more than the program needs: the pool's part, or less.
    ("address_space", "ulimit -v 190000", "none"),
];

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for (name, before, store) in CAUSES {
            let w = workshop.clone();
            suite.add(format!("{name}::{}", sandbox.mechanism()), move || {
                goes_on(&w, sandbox, before, store)
            });
        }
    }
    drop(workshop);
    suite.main()
}

fn goes_on(
    workshop: &Workshop,
    sandbox: Sandbox,
    before: &str,
    store: &str,
) -> Result<Verdict, String> {
    let argv = [workshop.program("refused").into_os_string(), "96".into(), "3".into()];
    let free = Job::new(&argv).run(workshop)?;
    let script = format!(
        "{before} && exec \"$0\" run --memory 48M --store {store} --stats stats.json -- \"$@\""
    );
    // A mount goes with the namespace.
    let shell = ["unshare", "--mount", "sh", "-c", &script].map(Into::into);
    let job = shell.into_iter().chain([workshop.uzswap().into_os_string()]).chain(argv);
    let run = Job::new(job).sandbox(sandbox).run(workshop)?;
    Ok(Verdict::check(free.succeeded() && is_right(&free, &run, sandbox), || {
        format!("{}{}", free.report(), run.report())
    }))
}

fn is_right(free: &Outcome, run: &Outcome, sandbox: Sandbox) -> bool {
    let stat = |name| run.stat(name).unwrap_or(0);
    let (faults, refused) = (stat("faults"), stat("evictions_refused"));
    println!("{refused} evictions refused in {faults} faults");
    run.succeeded()
        && run.hash == free.hash
        && run.mechanisms() == [sandbox.mechanism()]
        && refused > 0
        && refused < REFUSED_PER_FAULT * faults
        && run.stderr.contains("could not be held, by ")
}
