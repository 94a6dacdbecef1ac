//! Results of the command, and messages beside them.

use std::io::{self, ErrorKind, Write};

use crate::program::reason;
use crate::{Failure, os};

/// Writes a result to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    print_to(&mut io::stdout(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has gone away (a pager) ends us by SIGPIPE, or is no error.
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {}", reason(&e))))
        }
        _ => Ok(()),
    }
}

/// Writes one line to stderr. An error is ignored: perhaps nobody reads stderr any more.
pub fn say(line: &str) {
    let text = format!("uzswap: {line}\n");
    let _ = os::without_sigpipe(|| io::stderr().write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_result_that_cannot_be_written_is_a_failure() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let failure = print_to(&mut full, "result\n").unwrap_err();
        assert_eq!(failure.message, "standard output: no space left");
        assert_eq!(failure.exit_code, 1);
        // An end without a line's end is not kept back.
        let (mut reader, writer) = io::pipe().unwrap();
        print_to(&mut io::LineWriter::new(writer), "one\ntwo").unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "one\ntwo");
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        assert!(print_to(&mut writer, "nobody reads it").is_ok());
    }
}
