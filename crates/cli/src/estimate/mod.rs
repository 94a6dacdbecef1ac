//! `uzswap estimate`: what a program would be like in less memory, from watching it run with all
//! that it wants.
//!
//! ```text
//!  COMMAND, under uzswap ────> within (recency) ──┬─> how many pages would have to come back
//!  or PROGRAM without it ────> curve              │
//!         of both ───────────> watch (look, sample)─> density: how small its pages become
//!                     the engine on these pages ────> cost: what bringing one back takes here
//!                                                           │
//!                                            model: for each limit ──> table, JSON
//! ```
//!
//! A program that is started (`estimate -- COMMAND`) is watched from within, as far as `run` could
//! take it over: of a sample of its pages each use is seen. One that runs already (`estimate PID`)
//! has nothing of uzswap in it. From outside uzswap sees how much memory it touches in a time, not
//! which pages, nor in which order. An estimate is no promise. Faults of several threads at a time
//! are counted as if they came one after the other.

mod cost;
mod curve;
mod density;
pub mod histogram;
mod look;
mod mark;
mod model;
mod recency;
mod sample;
mod table;
mod watch;
mod within;
pub mod worker;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use self::cost::Costs;
use self::table::Estimate;
use self::watch::{Observation, Watch};
use self::within::{Reader, Within};
use crate::os::{End, Witness};
use crate::process::{Interrupt, children_seconds};
use crate::program::{Program, reason};
use crate::progress::Progress;
use crate::size::{Size, human};
use crate::{Failure, console, duration, run, size, supervise};

/// Arguments of `uzswap estimate`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "uzswap estimate [OPTIONS] PID\n       \
                      uzswap estimate [OPTIONS] -- COMMAND...",
    after_help = "Counted are the process and all that it starts; memory that they share by fork \
                  counts in each of them. A COMMAND runs under uzswap with all the memory that it \
                  wants, and one of many of its pages is watched; one that cannot be taken over, \
                  and a PID, is looked at from outside. Looking takes a tenth of a processor and a \
                  fifth of a second at most; the target takes longer meanwhile, which is said."
)]
pub struct EstimateArguments {
    /// A process that runs
    #[arg(value_name = "PID", conflicts_with = "command")]
    pid: Option<String>,
    /// A program to start, and its arguments; it is watched to its end
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
    /// Limits to look at: sizes, or parts of the most memory that it is seen to need
    #[arg(
        long, value_name = "SIZE|PERCENT,...", default_value = "75%,50%,25%", value_delimiter = ',',
        value_parser = size::parse
    )]
    memory: Vec<Size>,
    /// How long to watch a process that runs; Ctrl-C ends it earlier [default: 10s]
    #[arg(
        long = "for", value_name = "TIME", value_parser = duration::parse,
        conflicts_with = "command"
    )]
    duration: Option<Duration>,
    /// Watch COMMAND without uzswap in it, as a process that runs already: less is seen
    #[arg(long, requires = "command")]
    from_outside: bool,
    /// Write the same as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const WATCHED_FOR: Duration = Duration::from_secs(10);
/// The fewest looks, and the smallest need, from which an estimate is made.
const LOOKS_LEAST: u32 = 5;
const NEED_LEAST_BYTES: u64 = 1 << 20;

pub fn run(arguments: EstimateArguments) -> Result<u8, Failure> {
    let mut json = arguments.json.as_ref().map(create).transpose()?;
    if arguments.command.is_empty() {
        let Some(pid) = &arguments.pid else {
            return Err(Failure::usage(
                "what to estimate? a process id, or a program behind --: uzswap estimate -- COMMAND"
                    .to_string(),
            ));
        };
        let (pid, interrupt) = (process(pid)?, Interrupt::install());
        // It may end while it is watched.
        let name = vec![crate::os::name_of(pid)];
        let seen = watch_process(pid, arguments.duration.unwrap_or(WATCHED_FOR), &interrupt)?;
        look::permit_still(pid).map_err(Failure::environment)?;
        // From here on an interrupt means the end.
        let interrupt = Interrupt::install();
        conclude(seen, name, &arguments.memory, &interrupt, json.as_mut())?;
        return Ok(0);
    }
    let program = Program::find(&arguments.command, std::env::var_os("PATH"))?;
    let within = if arguments.from_outside { None } else { Within::prepare(&program) };
    let (end, seen) = watch_command(&program, within.as_ref())?;
    let interrupt = Interrupt::install();
    accept_signals();
    let words = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    // The program has done its work, whatever we know of it.
    let concluded =
        seen.and_then(|seen| conclude(seen, words, &arguments.memory, &interrupt, json.as_mut()));
    if let Err(failure) = concluded {
        console::say(&failure.message);
    }
    Ok(supervise::end_alike(end))
}

fn create(path: &PathBuf) -> Result<(PathBuf, File), Failure> {
    match File::create(path) {
        Ok(file) => Ok((path.clone(), file)),
        Err(e) => Err(Failure::usage(format!("--json: {}: {}", path.display(), reason(&e)))),
    }
}

fn process(text: &str) -> Result<u32, Failure> {
    let pid = text.parse().map_err(|_| {
        Failure::usage(format!(
            "'{text}' is no process id: give one ('ps -e' shows them), or a program behind --: \
             uzswap estimate -- {text}"
        ))
    })?;
    look::permit(pid).map_err(Failure::environment)?;
    Ok(pid)
}

/// Nobody can watch: there is no thread for it.
fn unwatched(e: io::Error) -> Failure {
    let why = reason(&e);
    Failure::environment(format!(
        "no estimate: cannot make a thread: {why}: allow more (ulimit -u)"
    ))
}

fn watch_process(
    pid: u32,
    longest: Duration,
    interrupt: &Interrupt,
) -> Result<Observation, Failure> {
    let (end, stop) = mpsc::channel::<()>();
    let mut line = Progress::new();
    thread::scope(|scope| {
        let line = &mut line;
        let watch = move || {
            Watch::new(pid, None).run(&stop, |elapsed, bytes| {
                let (done, all) = (elapsed.as_secs_f64(), longest.as_secs_f64());
                line.show(&format!(
                    "watching: {done:.1} of {all:.1} s, {} now; Ctrl-C ends it here",
                    human(bytes)
                ));
            })
        };
        let watching = thread::Builder::new().spawn_scoped(scope, watch).map_err(unwatched)?;
        let started = Instant::now();
        while started.elapsed() < longest && interrupt.check().is_ok() && !watching.is_finished() {
            thread::sleep(Duration::from_millis(20));
        }
        drop(end);
        Ok(watching.join().expect("a panic ends the process"))
    })
}

/// Runs the program to its end, also where nobody can watch it. Its terminal is its own: no
/// progress is shown.
fn watch_command(
    program: &Program,
    within: Option<&Within>,
) -> Result<(End, Result<Observation, Failure>), Failure> {
    let pid = run::launch(program, within.map(Within::managed))?;
    let witness = Witness::start().ok();
    // From here on there are threads, if they can be had: the program runs already.
    let reader = within.map(Within::listen).transpose();
    let tree = within.map(Within::tree);
    let (end, stop) = mpsc::channel::<()>();
    Ok(thread::scope(|scope| {
        let watch = move || Watch::new(pid.number() as u32, tree).run(&stop, |_, _| ());
        // A reader that is dropped stops listening.
        let threads = reader.and_then(|reader| {
            thread::Builder::new().spawn_scoped(scope, watch).map(|watching| (reader, watching))
        });
        let started = Instant::now();
        let how = supervise::wait(pid, witness.as_ref());
        drop(end);
        let seen = threads.map_err(unwatched).map(|(reader, watching)| {
            let mut seen = watching.join().expect("a panic ends the process");
            seen.processors = children_seconds() / started.elapsed().as_secs_f64().max(1e-9);
            seen.touches = reader.map(Reader::finish);
            seen
        });
        (how, seen)
    }))
}

/// While the program ran, signals were its. Now they are ours again.
fn accept_signals() {
    let none = nix::sys::signal::SigSet::empty();
    // The call cannot fail: the mask is a valid one.
    let _ = none.thread_set_mask();
}

fn conclude(
    mut seen: Observation,
    command: Vec<String>,
    limits: &[Size],
    interrupt: &Interrupt,
    json: Option<&mut (PathBuf, File)>,
) -> Result<(), Failure> {
    if seen.looks < LOOKS_LEAST || seen.peak_bytes < NEED_LEAST_BYTES || seen.pages.is_empty() {
        return Err(Failure::failed(format!(
            "no estimate: {} looks in {:.2} s saw {} of memory: it must run longer, or needs no \
             less",
            seen.looks,
            seen.seconds,
            human(seen.peak_bytes)
        )));
    }
    let mut line = Progress::new();
    let pages = std::mem::take(&mut seen.pages);
    line.show("compressing the sampled pages");
    let densities = density::densities(&pages).map_err(Failure::failed)?;
    line.show("measuring what a fault costs here");
    let costs = Costs::measure(&pages, &densities[0], interrupt)?;
    line.show("measuring what watching cost it");
    let seen = match seen.touches {
        None => seen.without_marks(mark::mark_ns()),
        Some(_) => seen.without_faults(&costs),
    };
    drop(line);
    let forecast =
        |limit: &Size| model::forecast(&seen, &densities, &costs, limit.of(seen.peak_bytes));
    let forecasts = limits.iter().map(forecast).collect();
    let estimate = Estimate { command, seen, densities, costs, forecasts };
    console::say(estimate.text().trim_end());
    if let Some((path, file)) = json {
        let written = file.write_all(format!("{:#}\n", estimate.to_json()).as_bytes());
        written
            .map_err(|e| Failure::failed(format!("--json: {}: {}", path.display(), reason(&e))))?;
    }
    Ok(())
}
