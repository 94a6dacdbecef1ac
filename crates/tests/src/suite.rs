//! The cases of one test file, made at run time and run one after the other, or two at a time where
//! each looks only at its own.
//!
//! Some measure the machine's memory, or are short of time, so no other file's cases may run beside
//! them: there is a lock file. Files whose cases are independent share it.

use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Cases that took longer say how long.
const LONG: Duration = Duration::from_secs(5);

/// How a case ended, when it did not fail by panicking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Passed,
    /// It cannot be run here, and why.
    Skipped(String),
    /// It failed, and why.
    Failed(String),
}

impl Verdict {
    /// Passed if `ok`, else failed with what `why` says.
    pub fn check(ok: bool, why: impl FnOnce() -> String) -> Verdict {
        if ok { Verdict::Passed } else { Verdict::Failed(why()) }
    }
}

/// So that `?` in a case skips it: the error says what is missing on this machine.
impl From<Result<Verdict, String>> for Verdict {
    fn from(result: Result<Verdict, String>) -> Verdict {
        result.unwrap_or_else(Verdict::Skipped)
    }
}

pub struct Case {
    name: String,
    run: Box<dyn FnOnce() -> Verdict + Send>,
}

impl Case {
    /// `Err` of the closure is the reason why the case cannot be run on this machine.
    pub fn new(
        name: impl Into<String>,
        run: impl FnOnce() -> Result<Verdict, String> + Send + 'static,
    ) -> Case {
        Case { name: name.into(), run: Box::new(move || run().into()) }
    }
}

/// The cases of a file.
#[derive(Default)]
pub struct Suite {
    cases: Vec<Case>,
    are_independent: bool,
}

impl Suite {
    pub fn new() -> Suite {
        Suite::default()
    }

    pub fn add(
        &mut self,
        name: impl Into<String>,
        run: impl FnOnce() -> Result<Verdict, String> + Send + 'static,
    ) {
        self.cases.push(Case::new(name, run));
    }

    /// No case minds what runs beside it.
    pub fn independent(&mut self) {
        self.are_independent = true;
    }

    /// Runs the cases that the command line names.
    pub fn main(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        let most = if self.are_independent { 2 } else { 1 };
        arguments.test_threads = Some(arguments.test_threads.unwrap_or(most).min(most));
        let _alone = (!arguments.list).then(|| lock(self.are_independent));
        let trials = self.cases.into_iter().map(|case| {
            let name = case.name.clone();
            Trial::ignorable_test(case.name, move || {
                let began = Instant::now();
                let verdict = (case.run)();
                if began.elapsed() >= LONG {
                    println!("{name}: {} s", began.elapsed().as_secs());
                }
                match verdict {
                    Verdict::Passed => Ok(Completion::Completed),
                    Verdict::Failed(why) => Err(Failed::from(why)),
                    Verdict::Skipped(why) => {
                        println!("SKIPPED {name}: {why}");
                        Ok(Completion::ignored_with(why))
                    }
                }
            })
        });
        libtest_mimic::run(&arguments, trials.collect()).exit_code()
    }
}

/// Waits until no other test process of ours measures, or, if it `is_shared`, none that needs the
/// machine for itself.
fn lock(is_shared: bool) -> File {
    let path = std::env::temp_dir().join("uzswap-tests.lock");
    let file = File::options().create(true).append(true).open(&path);
    let file = file.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let locked = if is_shared { file.lock_shared() } else { file.lock() };
    locked.expect("a file can be locked");
    file
}

/// Where a command lies on the PATH, or that it is not installed.
pub fn command(name: &str) -> Result<std::path::PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| format!("{name} is not installed"))
}
