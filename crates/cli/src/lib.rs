//! `uzswap`: any program in less memory. The command as a library: `bin/uzswap.rs` is its program,
//! and the laboratory (`crates/lab`) uses parts of it. No interface for others.
//!
//! A command goes through three steps: raw arguments (clap, `options`), resolved settings
//! (`settings`), a command that acts (`run`, `control`, `doctor`). This file maps the result to an
//! exit code and does nothing else.
//!
//! ```text
//!  main ─> run ─> settings ─> options, size, budget, place
//!           │ ─> program, mechanism     (can it be taken over, here?)
//!           │ ─> supervise ─> report
//!           │ ─> observe               (metrics, samples, the page of --report)
//!           │ ─> trace                 (--trace writes it, simulate reads it)
//!           │ ─> control           (ps, top, set, reclaim, bring-in talk to it)
//!           │ ─> governor          (which processes run, which give memory)
//!       disk ─> uzswap_disk        (a compressed disk, and orders to it)
//!        jupyter               (a kernel of notebooks that is started by run)
//!       estimate ─> run            (starts a program, and watches it)
//!           └──> os                     (all unsafe code)
//! ```
#![allow(
    clippy::len_without_is_empty,
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "the library is for the command and the laboratory, and no face for others"
)]

mod budget;
mod columns;
pub mod console;
pub mod control;
mod disk;
mod doctor;
mod duration;
pub mod estimate;
mod failure;
mod generate;
mod governor;
mod jupyter;
mod laboratory;
pub mod machine;
mod mechanism;
mod observe;
mod options;
pub mod os;
pub mod pages;
pub mod place;
pub mod plot;
mod private;
pub mod process;
pub mod procfs;
pub mod program;
mod progress;
mod remote;
mod report;
mod run;
mod settings;
pub mod simulate;
pub mod size;
pub mod statistics;
mod supervise;
#[cfg(test)]
mod tables;
mod trace;
pub mod whole_file;
mod written;

pub use failure::Failure;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Any program in less memory: cold pages are compressed in RAM, the coldest go to disk. No root,
/// no change to the program.
#[derive(Parser, Debug)]
#[command(name = "uzswap", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a program in less memory than it needs
    Run(run::RunArguments),
    /// Watch a program as it is, and say what it would be like in less memory
    Estimate(estimate::EstimateArguments),
    /// Say how many pages other policies of replacement would bring back, by a trace of
    /// 'run --trace'
    Simulate(simulate::SimulateArguments),
    /// Show the programs that run under uzswap, and what they hold
    Ps(control::PsArguments),
    /// Show them on a screen that is kept up to date
    Top(control::TopArguments),
    /// Change the limit of a run, or how it compresses
    Set(control::SetArguments),
    /// Take memory from a process that does not need it now; it comes back as it is touched
    Reclaim(control::ReclaimArguments),
    /// Bring all memory of a process in, for a debugger that is to see it
    BringIn(control::BringInArguments),
    /// Serve a compressed disk in memory over NBD, or give an order to one
    Disk(disk::DiskArguments),
    /// Notebooks whose kernels run under uzswap
    Jupyter {
        #[command(subcommand)]
        command: jupyter::JupyterCommand,
    },
    /// Say what this machine allows, and how to fix what it does not
    Doctor(doctor::DoctorArguments),
    /// Measure uzswap on this machine (by 'uzswap-bench')
    #[command(disable_help_flag = true)]
    Bench(laboratory::BenchArguments),
    /// The process that measures what a fault costs, for 'estimate' and the laboratory
    #[command(hide = true)]
    Worker(estimate::worker::WorkerArguments),
    /// Make man pages, or completions for a shell
    #[command(hide = true)]
    Generate {
        #[command(subcommand)]
        what: generate::GenerateCommand,
    },
    /// Explain a command, the statistics ('help stats') or the compressors ('help compressors')
    Help {
        /// run, estimate, simulate, ps, top, set, reclaim, bring-in, disk, jupyter, doctor, bench,
        /// stats or compressors
        topic: Option<String>,
    },
}

/// Does what the command line says and returns the exit code. Called by the entry point.
pub fn main_of_command() -> i32 {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(e) if !e.use_stderr() => return print(&e.to_string()),
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return fail(Failure::usage(
                "what to do? run, estimate, simulate, ps, top, set, reclaim, bring-in, disk, \
                 jupyter, doctor, bench or help (see 'uzswap --help')"
                    .to_string(),
            ));
        }
        Err(e) => return fail(Failure::usage(one_line(&e, "uzswap --help"))),
    };
    let result = match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Estimate(arguments) => estimate::run(arguments),
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::Ps(arguments) => control::ps(arguments),
        Command::Top(arguments) => control::top(arguments),
        Command::Set(arguments) => control::set(arguments),
        Command::Reclaim(arguments) => control::reclaim(arguments),
        Command::BringIn(arguments) => control::bring_in(arguments),
        Command::Disk(arguments) => disk::run(arguments),
        Command::Jupyter { command } => jupyter::run(command),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Bench(arguments) => laboratory::run(arguments),
        Command::Worker(arguments) => estimate::worker::run(arguments),
        Command::Generate { what } => generate::run(what, Arguments::command()),
        Command::Help { topic } => return help(topic.as_deref()),
    };
    result.map_or_else(fail, i32::from)
}

/// Says why, and returns the exit code.
pub fn fail(failure: Failure) -> i32 {
    console::say(&failure.message);
    failure.exit_code.into()
}

/// Prints text that was asked for, and returns the exit code.
pub fn print(text: &str) -> i32 {
    console::print(text).map_or_else(fail, |()| 0)
}

/// clap's error without its colours, hints and usage: they belong to --help.
pub fn one_line(error: &clap::Error, remedy: &str) -> String {
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = paragraph.trim_start_matches("error: ").split_whitespace().collect();
    format!("{} (see '{remedy}')", words.join(" "))
}

fn help(topic: Option<&str>) -> i32 {
    let mut command = Arguments::command();
    command.build();
    match topic {
        None => print(&command.render_long_help().to_string()),
        Some("stats") => print(&report::stats_help()),
        Some("compressors") => print(&compressors_help()),
        Some("bench") => laboratory::help().map_or_else(fail, i32::from),
        Some(topic) => match command.find_subcommand_mut(topic) {
            Some(command) => print(&command.render_long_help().to_string()),
            None => {
                fail(Failure::usage(format!("there is no help on '{topic}' (see 'uzswap --help')")))
            }
        },
    }
}

fn compressors_help() -> String {
    let mut text = String::from(
        "--compressor takes one of these, with parameters after a colon (zstd:level=3):\n\n",
    );
    for codec in uzswap::codec::list() {
        let usage = match codec.parameters {
            "" => codec.name.to_string(),
            parameters => format!("{}:{parameters}", codec.name),
        };
        text += &format!("  {usage:<36} {}\n", codec.summary);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
