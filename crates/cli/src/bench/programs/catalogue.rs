//! The real programs: how each is started, and what it needs.
//!
//! They use their memory differently: CPython walks many small objects, NumPy streams through large arrays, GNU sort
//! merges, redis is asked for few keys often and for most seldom, g++ allocates and seldom looks back. Each needs
//! 0.15 to 0.4 GiB, takes seconds, and prints (redis: answers) something that depends on all it did.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

use super::super::pages::Random;
use super::super::process::find;
use super::super::scratch::Scratch;

/// A program that can be measured.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    start: Start,
}

/// The command line for it, or what is not installed.
type Start = fn(&Scratch) -> Result<Line, String>;

/// How a program is started here.
#[derive(Debug)]
pub struct Line {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// For a server: where it listens. Its output is what it answers there.
    pub socket: Option<PathBuf>,
}

static PROGRAMS: [Program; 5] = [
    Program { name: "python", start: python },
    Program { name: "numpy", start: numpy },
    Program { name: "sort", start: sort },
    Program { name: "redis", start: redis },
    Program { name: "g++", start: compiler },
];

/// The value of `--programs` that means all.
pub const ALL: &str = "python,numpy,sort,redis,g++";

impl Program {
    pub fn named(name: &str) -> Result<&'static Program, String> {
        let names = || PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
        let found = PROGRAMS.iter().find(|program| program.name == name);
        found.ok_or_else(|| format!("'{name}' is none of {}", names()))
    }

    pub fn line(&self, scratch: &Scratch) -> Result<Line, String> {
        (self.start)(scratch)
    }
}

impl Line {
    fn new<const N: usize>(program: PathBuf, arguments: [&dyn AsRef<OsStr>; N]) -> Line {
        let arguments = arguments.iter().map(|word| word.as_ref().to_owned()).collect();
        Line { program, arguments, socket: None }
    }

    #[cfg(test)]
    pub fn of_shell(script: &str) -> Line {
        Line::new("/bin/sh".into(), [&"-c", &script])
    }

    /// The command line of the program alone.
    pub fn command(&self) -> Command {
        self.prepared(Command::new(&self.program))
    }

    /// Behind the beginning of another one.
    pub fn behind(&self, mut beginning: Command) -> Command {
        beginning.arg(&self.program);
        self.prepared(beginning)
    }

    fn prepared(&self, mut command: Command) -> Command {
        // One thread of BLAS: sums of several depend on how the work was divided.
        command.args(&self.arguments).env("LC_ALL", "C").env("OPENBLAS_NUM_THREADS", "1");
        command
    }
}

/// `find`, with the remedy.
fn installed(program: &str, package: &str) -> Result<PathBuf, String> {
    find(program).map_err(|why| format!("{why}: install {package}"))
}

fn python(_: &Scratch) -> Result<Line, String> {
    const SCRIPT: &str = include_str!("../../../../tests/programs/sort.py");
    Ok(Line::new(installed("python3", "python3")?, [&"-I", &"-c", &SCRIPT, &"1.3"]))
}

fn numpy(_: &Scratch) -> Result<Line, String> {
    let python = installed("python3", "python3")?;
    let imported = Command::new(&python).args(["-I", "-c", "import numpy"]).output();
    if !imported.is_ok_and(|output| output.status.success()) {
        return Err(format!("NumPy is not installed for {}: install python3-numpy", python.display()));
    }
    Ok(Line::new(python, [&"-I", &"-c", &include_str!("matrices.py"), &"2400"]))
}

fn sort(scratch: &Scratch) -> Result<Line, String> {
    let sort = installed("sort", "coreutils")?;
    // All of the text at once: a smaller buffer would be a sort that needs less.
    let lines = scratch.file("log", write_log)?;
    Ok(Line::new(sort, [&"-S", &"1G", &"--parallel=1", &lines]))
}

/// A log to sort, about 90 MiB: the same few words over and over, between numbers. Lines of random digits, which sorts
/// are often timed with, would hardly compress.
fn write_log(out: &mut dyn Write) -> io::Result<()> {
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
            "{first} {second} {third} worker-{worker:02} {fourth} {fifth} id={number:08x} line {line}"
        )?;
    }
    Ok(())
}

fn redis(scratch: &Scratch) -> Result<Line, String> {
    let server = installed("redis-server", "redis-server")?;
    let socket = scratch.path().join("redis.socket");
    let options: [&dyn AsRef<OsStr>; 10] = [
        &"--port",
        &"0",
        &"--save",
        &"",
        &"--appendonly",
        &"no",
        &"--logfile",
        &"/dev/null",
        &"--unixsocket",
        &socket,
    ];
    Ok(Line { socket: Some(socket.clone()), ..Line::new(server, options) })
}

fn compiler(scratch: &Scratch) -> Result<Line, String> {
    const SOURCE: &[u8] = include_bytes!("../../../../tests/programs/big.cpp");
    let compiler = installed("g++", "g++")?;
    let source = scratch.file("big.cpp", |out| out.write_all(SOURCE))?;
    Ok(Line::new(compiler, [&"-std=c++17", &"-O1", &"-DCOUNT=1", &"-S", &"-o", &"/dev/stdout", &source]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_have_names() {
        let names: Vec<&str> = ALL.split(',').collect();
        assert_eq!(PROGRAMS.each_ref().map(|program| program.name)[..], names);
        for name in names {
            assert_eq!(Program::named(name).unwrap().name, name);
        }
        assert_eq!(Program::named("perl").unwrap_err(), "'perl' is none of python, numpy, sort, redis, g++");
    }

    #[test]
    fn what_is_not_installed_is_said_with_its_remedy() {
        assert_eq!(
            installed("no-such-program", "a-package").unwrap_err(),
            "no-such-program is not installed: install a-package"
        );
    }

    #[test]
    fn a_line_is_the_same_behind_another() {
        let line = Line::new("/bin/echo".into(), [&"a", &"b"]);
        let mut env = Command::new("env");
        env.arg("--");
        let output = line.behind(env).output().unwrap();
        assert_eq!(output.stdout, b"a b\n");
        assert_eq!(line.command().output().unwrap().stdout, output.stdout);
    }
}
