//! Inputs of the real programs: made up, and alike on every machine.

use std::io::{self, Write};

use uzswap_cli::pages::Random;

/// A log to sort, about 90 MiB: a few words over and over, between numbers. Lines of random digits,
/// which sorts are often timed with, would hardly compress.
pub fn write_log(out: &mut dyn Write) -> io::Result<()> {
    const LINES: u32 = 1_500_000;
    const WORDS: [&str; 16] = [
        "request",
        "accepted",
        "from",
        "session",
        "closed",
        "by",
        "timeout",
        "user",
        "retry",
        "of",
        "upstream",
        "connection",
        "cache",
        "miss",
        "for",
        "warning",
    ];
    let mut random = Random(1);
    for line in 0..LINES {
        let dice = random.next();
        let word = |nth: u32| WORDS[(dice >> (4 * nth)) as usize % WORDS.len()];
        let (first, second, third, fourth, fifth) = (word(0), word(1), word(2), word(3), word(4));
        let (worker, number) = (dice >> 20 & 63, dice >> 32);
        writeln!(
            out,
            "{first} {second} {third} worker-{worker:02} {fourth} {fifth} id={number:08x} line \
             {line}"
        )?;
    }
    Ok(())
}

/// Versions of one book, as a stream for `git fast-import`: each version changes some lines of the
/// one before.
pub fn write_history(out: &mut dyn Write) -> io::Result<()> {
    const VERSIONS: u32 = 40;
    const LINES: usize = 40_000;
    const CHANGED_LINES: usize = LINES / 50;
    let line =
        |i: usize| format!("line {i} of the first version, with number {}\n", i * 40503 % 99991);
    let mut text: Vec<String> = (0..LINES).map(line).collect();
    let mut random = Random(3);
    for version in 1..=VERSIONS {
        for _ in 0..CHANGED_LINES {
            let at = random.below(LINES as u64) as usize;
            let word = random.next() >> 40;
            text[at] = format!("line {at} of version {version}, changed to {word}\n");
        }
        let book = text.concat();
        writeln!(out, "blob\nmark :{version}\ndata {}\n{book}", book.len())?;
        writeln!(
            out,
            "commit refs/heads/main\ncommitter A <a@b> {version}00000000 +0000\ndata 1\nv"
        )?;
        writeln!(out, "M 644 :{version} book\n")?;
    }
    Ok(())
}

/// How many modules are linked.
pub const MODULES: u32 = 6;

/// An assembler source of one module: many small functions, each with a section of its own that
/// calls a function of the next module, and strings of which some are in other modules, too.
pub fn write_module(module: u32, out: &mut dyn Write) -> io::Result<()> {
    const FUNCTIONS: u32 = 40_000;
    const STRINGS: u32 = 150_000;
    let name = |module: u32, nth: u32| format!("module_{module}_function_{nth}_of_some_length");
    for nth in 0..FUNCTIONS {
        let own = name(module, nth);
        let other = name((module + 1) % MODULES, (nth * 7919 + module) % FUNCTIONS);
        writeln!(out, "\t.section .text.f{nth},\"ax\",@progbits\n\t.globl {own}")?;
        writeln!(out, "{own}:\n\tcall {other}\n\tret")?;
    }
    writeln!(out, "\t.section .rodata.strings,\"aMS\",@progbits,1")?;
    for nth in 0..STRINGS {
        let (of, number) = (if nth % 3 == 0 { module } else { nth % MODULES }, nth % 99_991);
        let message = u64::from(nth) * 31 % u64::from(STRINGS * 2);
        writeln!(out, "\t.string \"message {message} of module {of}: {number}\"")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_what_git_imports() {
        let mut stream = Vec::new();
        write_history(&mut stream).unwrap();
        let text = String::from_utf8(stream).unwrap();
        assert_eq!(text.matches("\nM 644 :").count(), 40);
        // The length that each book is said to have leads to the end of it.
        let (head, rest) = text.split_once("\ndata ").unwrap();
        assert_eq!(head, "blob\nmark :1");
        let (length, rest) = rest.split_once('\n').unwrap();
        let book = &rest[..length.parse::<usize>().unwrap()];
        assert_eq!(book.lines().count(), 40_000);
        assert!(rest[book.len()..].starts_with("\ncommit refs/heads/main\n"));
    }
}
