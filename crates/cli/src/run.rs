//! `uzswap run`: starts a program with the preload library in it, waits, reports.
//!
//! ```text
//!  RawOptions ─> RunSettings ─┬─> ControlBlock (two memfds) ──named in UZSWAP_CONTROL_FD──┐
//!  COMMAND ────> Program ─────┴─> fork, exec with LD_PRELOAD ─> the program + runtime <───┘
//!                                        │ supervise: signals to it, stops from it; observe: metrics, samples
//!                                        │ trace: a thread that writes the faults down
//!                                        │ control: a thread beside that answers ps, top, set, reclaim
//!                                        v
//!                                 summary, notices, --stats, --report; then we end as it ended
//! ```

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use uzswap::control::{CONTROL_FD_ENV, Mechanism};

use crate::Failure;
use crate::control::{self, Run, Server};
use crate::mechanism::{Probe, Refusal, is_filtered};
use crate::observe::clock::TickWatch;
use crate::observe::{self, Watched};
use crate::options::RawOptions;
use crate::os::{self, ControlBlock};
use crate::place;
use crate::program::{Program, reason};
use crate::report::{self, Outcome, PAGE_BYTES};
use crate::settings::RunSettings;
use crate::supervise;
use crate::trace::Header;
use crate::trace::recorder::{self, Recorder};

const LD_PRELOAD: &str = "LD_PRELOAD";

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
    let env = |name: &str| std::env::var_os(name);
    let mut settings = RunSettings::resolve(&arguments.options, &env)?;
    let program = Program::find(&arguments.command, env("PATH"))?;
    if settings.mechanism == Mechanism::Auto && is_filtered() {
        // Each program of the tree would ask, and a filter may end who does.
        settings.mechanism = Probe::run().choose().unwrap_or(Mechanism::Auto);
    }
    let takeover = possible(&program, settings.mechanism);
    if let Err(refusal) = &takeover
        && !settings.if_possible
    {
        let Refusal { cause, remedy } = refusal;
        return Err(Failure::environment(format!(
            "{cause}: {remedy}, or run it unmanaged with --if-possible"
        )));
    }
    let managed = match &takeover {
        Ok(()) => {
            let library = place::find_preload(&env).map_err(Failure::environment)?;
            let block = ControlBlock::create(&settings.for_runtime()?)
                .map_err(|e| Failure::environment(format!("cannot make shared memory: {}", reason(&e))))?;
            Some((library, block))
        }
        Err(refusal) => {
            settings.remarks.push(format!("runs unmanaged: {}", refusal.cause));
            None
        }
    };
    if !settings.quiet {
        settings.remarks.iter().for_each(|remark| report::say(remark));
    }

    let given = managed.as_ref().map(|(library, block)| (library.as_path(), block));
    let environment = environment(given, program.first_library.as_deref());
    let tree = managed.as_ref().map(|(_, block)| block.tree());
    if let Some((_, block)) = &managed {
        begin(block, &ticks, settings.memory_bytes);
    }
    let listener = settings.metrics.take();
    let watched = Watched {
        tree,
        memory_bytes: settings.memory_bytes,
        started: Instant::now(),
        started_at: SystemTime::now(),
    };
    let run = managed.as_ref().map(|(_, block)| Run {
        tree: block.tree(),
        control_fd: block.fd(),
        command: arguments.command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        started: watched.started,
    });
    let pid = launch(&program, environment)?;
    // From here on there are threads.
    let server = run.and_then(|run| serve(run, &settings));
    let recorder = record(&mut settings, managed.as_ref().map(|(_, block)| block), watched.started_at);
    let (end, series) =
        observe::during(watched, listener, settings.report.is_some(), || supervise::wait(pid));
    drop(server);
    if let Some(recorder) = recorder {
        recorder.finish();
    }
    let outcome = Outcome {
        settings: &settings,
        command: &arguments.command,
        tree,
        end,
        started_at: watched.started_at,
        wall_time: watched.started.elapsed(),
        pid: end.pid,
        series: series.as_ref(),
    };
    report::finish(&outcome);
    Ok(supervise::end_alike(end))
}

/// Writes into the block what processes find there from the start.
pub fn begin(block: &ControlBlock, ticks: &TickWatch, memory_bytes: u64) {
    let tree = block.tree();
    tree.tick_ns_q32.store(ticks.tick_ns_q32(), Ordering::Release);
    // The first process would set it; who asks before that sees it, too.
    tree.limit_pages.store((memory_bytes / PAGE_BYTES) as i64, Ordering::Release);
    if let Some(ring) = block.ring() {
        ring.began_ns.store(uzswap::sys::now_ns(), Ordering::Release);
    }
}

/// Our environment, with what the runtime needs (it hides both variables from the program again). `first`: what has to be
/// loaded before it, by its bare name, which it hides as well.
pub fn environment(
    managed: Option<(&Path, &ControlBlock)>,
    first: Option<&str>,
) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| name != CONTROL_FD_ENV).collect();
    let Some((library, block)) = managed else { return variables };
    let mut ours = OsString::new();
    if let Some(first) = first {
        ours.push(first);
        ours.push(":");
    }
    ours.push(library);
    // In its place if it is there: some programs show their environment in order.
    match variables.iter_mut().find(|(name, _)| name == LD_PRELOAD) {
        None => variables.push((LD_PRELOAD.into(), ours)),
        Some((_, list)) => {
            let mut longer = ours;
            if !list.is_empty() {
                longer.push(":");
                longer.push(&*list);
            }
            *list = longer;
        }
    }
    variables.push((CONTROL_FD_ENV.into(), block.variable().into()));
    variables
}

/// Whether the program can be managed, here.
fn possible(program: &Program, mechanism: Mechanism) -> Result<(), Refusal> {
    program.takeover.clone()?;
    Probe::run().check(mechanism)
}

/// Begins to record for `--trace`.
fn record(
    settings: &mut RunSettings,
    block: Option<&ControlBlock>,
    started_at: SystemTime,
) -> Option<Recorder> {
    let file = settings.trace.take()?;
    let began = started_at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let header = Header { limit_pages: settings.memory_bytes / PAGE_BYTES, began };
    match block.and_then(|block| Some((block, block.ring()?))) {
        Some((block, ring)) => Recorder::start(file, ring, block.tree(), header),
        None => {
            recorder::record_nothing(file, header);
            None
        }
    }
}

/// Makes the run visible to `uzswap ps` and the others, until what this gives is dropped. Without a place for its socket
/// a run is none the worse.
fn serve(run: Run, settings: &RunSettings) -> Option<Server> {
    let run = Arc::new(run);
    control::watch(&run, settings.idle_after, settings.takes_turns);
    match Server::start(run, &|name| std::env::var_os(name)) {
        Ok(server) => Some(server),
        Err(fault) => {
            // That there is no place for it is how some containers are; that somebody else has taken it is not.
            if settings.debug || fault.is_foreign && !settings.quiet {
                report::say(&format!("ps, top, set and reclaim will not see this run: {}", fault.text));
            }
            None
        }
    }
}

/// Starts the program. From here on our signals are its.
pub fn launch(program: &Program, environment: Vec<(OsString, OsString)>) -> Result<os::Pid, Failure> {
    let shown = program.path.display();
    let refused = |e: std::io::Error| {
        let message = format!("{shown}: {}", reason(&e));
        match e.raw_os_error() {
            Some(libc::ENOENT) => Failure::not_found(message),
            Some(libc::E2BIG) => Failure::not_executable(format!("{shown}: too many arguments")),
            _ => Failure::not_executable(message),
        }
    };
    let path = os::c_string(program.path.as_os_str().as_bytes()).map_err(refused)?;
    let arguments = program
        .arguments
        .iter()
        .map(|a| os::c_string(a.as_bytes()))
        .collect::<Result<Vec<CString>, _>>()
        .map_err(refused)?;
    let environment = environment
        .into_iter()
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            os::c_string(name.as_bytes())
        })
        .collect::<Result<Vec<CString>, _>>()
        .map_err(refused)?;
    let inherited = os::take_signals();
    os::start(&path, &arguments, &environment, &inherited).map_err(refused)
}
