//! `uzswap bench`: the laboratory is a command of its own, `uzswap-bench`, found as git finds its
//! commands: beside this one, in `../lib/uzswap`, or on the search path.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::Failure;
use crate::place::own_path;
use crate::program::reason;

const NAME: &str = "uzswap-bench";

/// Arguments of `uzswap bench`: the laboratory's.
#[derive(clap::Args, Debug)]
pub struct BenchArguments {
    /// A benchmark and its options (see 'uzswap bench --help')
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes the laboratory; returns only if that is not there.
pub fn run(given: BenchArguments) -> Result<u8, Failure> {
    become_it(given.arguments)
}

/// Has the laboratory explain itself.
pub fn help() -> Result<u8, Failure> {
    become_it(vec!["--help".into()])
}

fn become_it(arguments: Vec<OsString>) -> Result<u8, Failure> {
    let own = own_path()?;
    let mut command = Command::new(find(&own));
    let error = command.args(arguments).exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::not_found(format!(
            "{NAME} is neither beside {} nor on the search path: build it (cargo build --release)",
            own.display()
        )),
        _ => Failure::not_executable(format!("{NAME}: {}", reason(&error))),
    })
}

/// The laboratory's file; its bare name is looked up on the search path.
fn find(own: &std::path::Path) -> PathBuf {
    let places = [own.with_file_name(NAME), own.with_file_name("../lib/uzswap").join(NAME)];
    places.into_iter().find(|path| path.is_file()).unwrap_or(NAME.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_beside_the_command_or_by_name() {
        let directory =
            std::env::temp_dir().join(format!("uzswap-laboratory-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let own = directory.join("uzswap");
        assert_eq!(find(&own), PathBuf::from(NAME));
        std::fs::write(directory.join(NAME), "").unwrap();
        assert_eq!(find(&own), directory.join(NAME));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
