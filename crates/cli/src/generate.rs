//! `uzswap generate`: man pages, and completions for shells, from the definitions that `--help` is
//! made from.
//!
//! ```text
//!  Arguments (clap) ─> man DIR      uzswap.1, and uzswap-run.1 and so on for each command
//!                   ─> bash | zsh | fish      on standard output
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

use crate::program::reason;
use crate::{Failure, console};

/// The thing to make.
#[derive(clap::Subcommand, Debug)]
pub enum GenerateCommand {
    /// Man pages: one of the command, and one of each subcommand
    Man {
        /// The directory that they are written to, for instance ~/.local/share/man/man1
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Completions for bash, on standard output
    Bash,
    /// Completions for zsh, on standard output
    Zsh,
    /// Completions for fish, on standard output
    Fish,
}

/// `uzswap generate`, of this command line.
pub fn run(what: GenerateCommand, command: Command) -> Result<u8, Failure> {
    let shell = match what {
        GenerateCommand::Man { directory } => return man(&directory, command),
        GenerateCommand::Bash => Shell::Bash,
        GenerateCommand::Zsh => Shell::Zsh,
        GenerateCommand::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut without_hidden(&command), "uzswap", &mut text);
    console::print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// The command without those that `--help` leaves out: completions would offer them all the same.
fn without_hidden(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    Command::new("uzswap")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .args(command.get_arguments().cloned())
        .subcommands(shown.cloned())
}

fn man(directory: &Path, command: Command) -> Result<u8, Failure> {
    let failed = |e: io::Error| Failure::failed(format!("{}: {}", directory.display(), reason(&e)));
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(command, directory).map_err(failed)?;
    Ok(0)
}
