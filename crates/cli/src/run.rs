//! `uzswap run`: starts a program with the preload library in it, waits, reports.
//!
//! ```text
//!  RawOptions ─> RunSettings ─┬─> ControlBlock (two memfds) ──named in UZSWAP_CONTROL_FD──┐
//!  COMMAND ────> Program ─────┴─> fork, exec with LD_PRELOAD ─> the program + runtime <───┘
//!                                 or of the library, which boots it
//!                                        │ supervise: signals to it, stops from it; observe: metrics, samples
//!                                        │ trace: a thread that writes the faults down
//!                                        │ control: a thread beside that answers ps, top, set, reclaim, bring-in
//!                                        v
//!                                 summary, notices, --stats, --report; then we end as it ended
//! ```

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use uzswap::control::{CONTROL_FD_ENV, Mechanism, PROGRAM_ENV};

use crate::Failure;
use crate::console;
use crate::control::{self, Run, Server};
use crate::governor;
use crate::mechanism::{Probe, Refusal, is_filtered};
use crate::observe::clock::TickWatch;
use crate::observe::outcome::Outcome;
use crate::observe::{self, Watched};
use crate::options::RawOptions;
use crate::os::apart::Side;
use crate::os::{self, ControlBlock, End, Witness};
use crate::place;
use crate::program::{Program, Way, reason};
use crate::remote::Keeper;
use crate::remote::valkey::address::PASSWORD;
use crate::report;
use crate::settings::{Backing, RunSettings};
use crate::size::PAGE_BYTES;
use crate::supervise;
use crate::trace::recorder::{self, Recorder};

const LD_PRELOAD: &str = "LD_PRELOAD";
/// The time between two looks for processes that the program has left behind.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Arguments of `uzswap run`.
#[derive(clap::Args, Debug)]
pub struct RunArguments {
    #[command(flatten)]
    options: RawOptions,
    /// The program, found by PATH, and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Runs the program and ends as it ended.
pub fn run(arguments: RunArguments) -> Result<u8, Failure> {
    let ticks = TickWatch::start();
    let given = os::apart::descriptors();
    let env = |name: &str| std::env::var_os(name);
    let mut settings = RunSettings::resolve(&arguments.options, &env)?;
    let program = Program::find(&arguments.command, env("PATH"))?;
    // Probed once: under a filter, as in a container, a probe takes a process of its own.
    let probe = Probe::run();
    if settings.mechanism == Mechanism::Auto && is_filtered() {
        // Otherwise each program of the tree would probe, and a filter may end a process that does.
        settings.mechanism = probe.choose().unwrap_or(Mechanism::Auto);
    }
    let managed = take_over(&program, &probe, &mut settings, &env)?;
    if !settings.quiet {
        settings.remarks.iter().for_each(|remark| console::say(remark));
    }

    let taken_over_by = managed.as_ref().map(|(library, block)| (library.as_path(), block));
    let program = prepare(&program, taken_over_by)?;
    let block = managed.as_ref().map(|(_, block)| block);
    if let Some(block) = block {
        begin(block, &ticks, settings.memory_bytes);
        block.tree().tuning.set(&settings.compression);
        if let Some(Backing::Servers(Some(kept), _)) = &mut settings.store {
            kept.claim().map_err(|why| Failure::environment(format!("--store: {why}")))?;
        }
    }
    let watched = Watched {
        tree: block.map(ControlBlock::tree),
        memory_bytes: settings.memory_bytes,
        started: Instant::now(),
        started_at: SystemTime::now(),
    };
    settings.begin_files(watched.started_at)?;
    if settings.in_place {
        return become_program(
            Company { settings, block, arguments: &arguments, watched },
            program,
            &given,
        );
    }
    let (shown, inherited) = (program.shown, os::take_signals());
    let pid = os::start(&program.executable, &inherited).map_err(|e| refused(&shown, &e))?;
    // Before there are threads, and after the program: it is to be the newest process of the group.
    let witness = Witness::start().ok();
    let company = Company { settings, block, arguments: &arguments, watched };
    let end = company.attend(std::process::id(), false, || {
        let end = supervise::wait(pid, witness.as_ref());
        // The witness ends while the report is made.
        witness.iter().for_each(Witness::dismiss);
        end
    });
    drop(witness);
    Ok(supervise::end_alike(end))
}

/// The library that takes the program over and the block that they share, or nothing where that is
/// not possible and need not be.
fn take_over(
    program: &Program,
    probe: &Probe,
    settings: &mut RunSettings,
    env: place::Env,
) -> Result<Option<(PathBuf, ControlBlock)>, Failure> {
    let way = match possible(program, probe, settings) {
        Ok(way) => way,
        Err(refusal) if settings.if_possible => {
            settings.remarks.push(format!("runs unmanaged: {}", refusal.cause));
            return Ok(None);
        }
        Err(Refusal { cause, remedy }) => {
            return Err(Failure::environment(format!(
                "{cause}: {remedy}, or run it unmanaged with --if-possible"
            )));
        }
    };
    let library = library_for(&way, program, env)?;
    let block = ControlBlock::create(&settings.for_runtime()?)
        .map_err(|e| Failure::environment(format!("cannot make shared memory: {}", reason(&e))))?;
    Ok(Some((library, block)))
}

/// The library that is to take the program over, if it can in that way.
fn library_for(way: &Way, program: &Program, env: place::Env) -> Result<PathBuf, Failure> {
    let library = place::find_preload(env).map_err(Failure::environment)?;
    if let (Way::Boot, Err(e)) = (way, os::may_execute(&library)) {
        let (shown, started) = (library.display(), program.path.display());
        return Err(Failure::environment(format!(
            "{shown} has to start {started}: {}: make it executable (chmod +x {shown})",
            reason(&e)
        )));
    }
    Ok(library)
}

/// `--in-place`: this process is the program from here on, and another one supervises it.
fn become_program(
    company: Company,
    program: Prepared,
    given: &[std::os::fd::RawFd],
) -> Result<u8, Failure> {
    let side = os::apart::split(os::take_signals(), given).map_err(|e| {
        Failure::environment(format!("--in-place: cannot make a process: {}", reason(&e)))
    })?;
    match side {
        Side::Program(becoming) => {
            Err(refused(&program.shown, &becoming.exec(&program.executable)))
        }
        Side::Supervisor(mut other) => {
            if let Some(company) = company.of(other.has_begun()) {
                let _ = company.attend(other.pid(), true, || other.wait());
            }
            Ok(0)
        }
    }
}

/// Threads and files beside a program while it runs.
struct Company<'a> {
    settings: RunSettings,
    /// None: it runs unmanaged.
    block: Option<&'a ControlBlock>,
    arguments: &'a RunArguments,
    watched: Watched<'a>,
}

impl<'a> Company<'a> {
    /// A supervisor's company, if the program has begun. If not, the process that was to be the
    /// program gives back what the run has taken: a store on servers, names of sockets. Two that do
    /// it would talk at a time over the same connections.
    fn of(self, has_begun: bool) -> Option<Company<'a>> {
        if has_begun {
            return Some(self);
        }
        std::mem::forget(self);
        None
    }

    /// Attends to the program while `wait` waits for its end, and reports. From here on there are
    /// threads. `id`: the number by which the run is known. `lingers`: attends to processes that
    /// the program has left behind, too, until the last has gone.
    fn attend(mut self, id: u32, lingers: bool, wait: impl FnOnce() -> End) -> End {
        let command = &self.arguments.command;
        let run = self.block.map(|block| {
            Arc::new(Run {
                id,
                tree: block.tree(),
                control_fd: block.fd(),
                command: control::words(command),
                started: self.watched.started,
            })
        });
        let keeper = run.clone().and_then(|run| match &mut self.settings.store {
            Some(Backing::Servers(kept, _)) => Keeper::start(kept.take()?, run),
            _ => None,
        });
        let mut server = run.clone().and_then(|run| serve(run, &self.settings));
        let listener = self.settings.metrics.take();
        let recorder = record(&mut self.settings, self.block);
        let (end, series) =
            observe::during(self.watched, listener, self.settings.report.is_some(), wait);
        if !lingers {
            server = None;
        }
        if let Some(recorder) = recorder {
            recorder.finish();
        }
        report::finish(&Outcome {
            settings: &self.settings,
            command,
            tree: self.watched.tree,
            end,
            started_at: self.watched.started_at,
            wall_time: self.watched.started.elapsed(),
            pid: end.pid,
            series: series.as_ref(),
        });
        let quiet = self.settings.quiet;
        if let Some(left) = keeper.and_then(|keeper| keeper.finish(quiet)).filter(|_| !quiet) {
            console::say(&left);
        }
        if let Some(run) = run.filter(|_| server.is_some()) {
            run.outlast(|| std::thread::sleep(LOOK_AGAIN));
        }
        end
    }
}

/// Writes into the block what processes find there from the start.
pub fn begin(block: &ControlBlock, ticks: &TickWatch, memory_bytes: u64) {
    let tree = block.tree();
    tree.tick_ns_q32.store(ticks.tick_ns_q32(), Ordering::Release);
    // The first process would set the limit; a client that asks before that sees it, too.
    tree.limit_pages.store((memory_bytes / PAGE_BYTES) as i64, Ordering::Release);
    if let Some(ring) = block.ring() {
        ring.began_ns.store(uzswap::sys::now_ns(), Ordering::Release);
    }
}

/// Our environment, with what the runtime needs, which it hides from the program again. Its entries
/// are as they were given: some may be no variables.
fn environment(program: &Program, managed: Option<(&Path, &ControlBlock)>) -> Vec<OsString> {
    let is_ours = |entry: &OsString| {
        [CONTROL_FD_ENV, PROGRAM_ENV, PASSWORD].iter().any(|name| value(entry, name).is_some())
    };
    let mut entries = os::environment::entries();
    entries.retain(|entry| !is_ours(entry));
    let Some((library, block)) = managed else { return entries };
    entries.push(variable(CONTROL_FD_ENV, block.variable().as_ref()));
    if program.takeover == Ok(Way::Boot) {
        entries.push(variable(PROGRAM_ENV, program.path.as_os_str()));
        return entries;
    }
    let mut ours = OsString::new();
    // Libraries that have to be loaded before us.
    if let Some(first) = &program.first_library {
        ours.push(first);
        ours.push(":");
    }
    ours.push(library);
    preload(&mut entries, ours);
    entries
}

/// The entry of a variable.
fn variable(name: &str, value: &OsStr) -> OsString {
    let mut entry = OsString::from(name);
    entry.push("=");
    entry.push(value);
    entry
}

/// The value of a variable, if the entry is of that one.
fn value<'a>(entry: &'a OsStr, name: &str) -> Option<&'a OsStr> {
    let rest = entry.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    Some(OsStr::from_bytes(rest))
}

/// Has the loader load `ours` before what it would load.
fn preload(entries: &mut Vec<OsString>, mut ours: OsString) {
    let is_list = |entry: &OsString| value(entry, LD_PRELOAD).is_some();
    // Of several the loader takes the last. The library hides its entry in each, so the others go.
    let mut left = entries.iter().filter(|entry| is_list(entry)).count();
    entries.retain(|entry| {
        left -= usize::from(is_list(entry));
        !is_list(entry) || left == 0
    });
    // The variable keeps its place if it is there: some programs show their environment in order.
    let there = entries.iter_mut().find_map(|entry| {
        let list = value(entry, LD_PRELOAD)?.to_os_string();
        Some((entry, list))
    });
    match there {
        None => entries.push(variable(LD_PRELOAD, &ours)),
        Some((entry, list)) => {
            if !list.is_empty() {
                ours.push(":");
                ours.push(list);
            }
            *entry = variable(LD_PRELOAD, &ours);
        }
    }
}

/// Whether the program can be managed, here.
fn possible(program: &Program, probe: &Probe, settings: &RunSettings) -> Result<Way, Refusal> {
    let way = program.takeover.clone()?;
    probe.check(settings.mechanism)?;
    let has_ring = settings.trace.is_some();
    ControlBlock::fits(has_ring).map_err(|e| Refusal {
        cause: format!("no file in memory can be shared with the program: {}", reason(&e)),
        remedy: format!("allow {} KiB", ControlBlock::file_bytes(has_ring).div_ceil(1024)),
    })?;
    Ok(way)
}

/// Begins to record for `--trace`.
fn record(settings: &mut RunSettings, block: Option<&ControlBlock>) -> Option<Recorder> {
    let file = settings.trace.take()?;
    match block.and_then(|block| Some((block, block.ring()?))) {
        Some((block, ring)) => Recorder::start(file, ring, block.tree()),
        None => {
            recorder::record_nothing(file);
            None
        }
    }
}

/// Makes the run visible to `uzswap ps` and the others, until what this gives is dropped. A run
/// without a place for its socket works as well.
fn serve(run: Arc<Run>, settings: &RunSettings) -> Option<Server> {
    governor::watch(&run, settings);
    match Server::start(run, &|name| std::env::var_os(name)) {
        Ok(server) => Some(server),
        Err(fault) => {
            // Some containers have no place for the socket. A place that somebody else has taken is
            // worth a remark.
            if settings.debug || fault.is_foreign && !settings.quiet {
                console::say(&format!(
                    "ps, top, set and reclaim will not see this run: {}",
                    fault.text
                ));
            }
            None
        }
    }
}

/// Starts the program, managed by a library and a control block or not. From here on our signals
/// are the program's.
pub fn launch(
    program: &Program,
    managed: Option<(&Path, &ControlBlock)>,
) -> Result<os::Pid, Failure> {
    let program = prepare(program, managed)?;
    let inherited = os::take_signals();
    os::start(&program.executable, &inherited).map_err(|e| refused(&program.shown, &e))
}

/// A program ready to be executed, and how it is called in messages.
struct Prepared {
    executable: os::Executable,
    shown: String,
}

fn prepare(
    program: &Program,
    managed: Option<(&Path, &ControlBlock)>,
) -> Result<Prepared, Failure> {
    let shown = program.path.display().to_string();
    let each = |bytes: &[u8]| os::c_string(bytes).map_err(|e| refused(&shown, &e));
    let file = match managed {
        Some((library, _)) if program.takeover == Ok(Way::Boot) => library,
        _ => &program.path,
    };
    let path = each(file.as_os_str().as_bytes())?;
    let arguments = program
        .arguments
        .iter()
        .map(|a| each(a.as_bytes()))
        .collect::<Result<Vec<CString>, _>>()?;
    let environment = environment(program, managed)
        .into_iter()
        .map(|entry| each(entry.as_bytes()))
        .collect::<Result<Vec<CString>, _>>()?;
    Ok(Prepared { executable: os::Executable::new(path, arguments, environment), shown })
}

/// The program could not be executed.
fn refused(shown: &str, e: &std::io::Error) -> Failure {
    let message = format!("{shown}: {}", reason(e));
    match e.raw_os_error() {
        Some(libc::ENOENT) => Failure::not_found(message),
        Some(libc::E2BIG) => Failure::not_executable(format!("{shown}: too many arguments")),
        _ => Failure::not_executable(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Kept;
    use std::sync::atomic::AtomicBool;

    /// A store that notes that it was given up, as one on servers does when it is dropped.
    #[derive(Debug)]
    struct Noted(Arc<AtomicBool>);

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    impl Kept for Noted {
        fn put(&self, _: &mut uzswap::control::Settings) {}
        fn claim(&mut self) -> Result<(), String> {
            Ok(())
        }
        fn beat(&mut self, _: &Run) {}
        fn give_back(&mut self, _: usize) -> bool {
            true
        }
        fn release(&mut self, _: bool) -> Result<(), String> {
            Ok(())
        }
        fn shown(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn of_two_processes_one_gives_back_the_store_of_a_program_that_could_not_begin() {
        let arguments =
            RunArguments { options: RawOptions::default(), command: vec!["prog".into()] };
        let is_given_up = Arc::new(AtomicBool::new(false));
        let company = || {
            let kept = Box::new(Noted(is_given_up.clone()));
            let store = Some(Backing::Servers(Some(kept), String::new()));
            let settings = RunSettings { store, ..crate::report::tests::settings() };
            let watched = Watched {
                tree: None,
                memory_bytes: 1 << 30,
                started: Instant::now(),
                started_at: SystemTime::now(),
            };
            Company { settings, block: None, arguments: &arguments, watched }
        };
        assert!(company().of(false).is_none());
        assert!(!is_given_up.load(Ordering::Relaxed), "both talk to the servers");
        assert!(company().of(true).is_some());
        assert!(is_given_up.load(Ordering::Relaxed));
    }

    #[test]
    fn the_library_is_in_the_list_that_the_loader_takes() {
        let given =
            |text: &str| -> Vec<OsString> { text.split_whitespace().map(OsString::from).collect() };
        for (before, after) in [
            ("A=1", "A=1 LD_PRELOAD=/our.so"),
            ("A=1 LD_PRELOAD= B=2", "A=1 LD_PRELOAD=/our.so B=2"),
            ("LD_PRELOAD=/a.so:/b.so B=2", "LD_PRELOAD=/our.so:/a.so:/b.so B=2"),
            ("LD_PRELOAD=/a.so A=1 LD_PRELOAD=/b.so B=2", "A=1 LD_PRELOAD=/our.so:/b.so B=2"),
            ("LD_PRELOADS=/a.so", "LD_PRELOADS=/a.so LD_PRELOAD=/our.so"),
            ("LD_PRELOAD =x A=1", "LD_PRELOAD =x A=1 LD_PRELOAD=/our.so"),
        ] {
            let mut entries = given(before);
            preload(&mut entries, "/our.so".into());
            assert_eq!(entries, given(after), "{before}");
        }
    }
}
