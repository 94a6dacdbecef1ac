//! The real programs: how each is started, and what it needs.
//!
//! They use their memory differently: CPython and networkx walk many small objects, NumPy streams
//! through large arrays, DuckDB, polars and Arrow have columns and threads, GNU sort and PostgreSQL
//! merge, redis is asked for few keys often and for most seldom, compilers allocate and seldom look
//! back, a linker builds tables, git compares whole files, an encoder has frames, Java and node
//! collect garbage. Each prints (redis: answers) something that depends on all it did, and says the
//! same in every run: no sum of floating-point numbers depends on which thread came first.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;

use super::super::process::find;
use super::super::scratch::Scratch;
use super::{inputs, python, tools};

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

/// All of them: each needs 0.15 to 0.4 GiB and some seconds of processor time.
#[rustfmt::skip]
static PROGRAMS: [Program; 21] = [
    Program { name: "python", start: python::objects },
    Program { name: "numpy", start: python::matrices },
    Program { name: "sort", start: sort },
    Program { name: "redis", start: redis },
    Program { name: "g++", start: tools::gcc },
    Program { name: "duckdb-join", start: |_| python::duckdb("join", "4000") },
    Program { name: "duckdb-sort", start: |_| python::duckdb("sort", "1600") },
    Program { name: "duckdb-group", start: |_| python::duckdb("group", "1100") },
    Program { name: "pandas-object", start: |_| python::pandas("object", "500") },
    Program { name: "pandas-arrow", start: |_| python::pandas("arrow", "600") },
    Program { name: "polars", start: python::polars },
    Program { name: "pyarrow", start: python::arrow },
    Program { name: "sklearn", start: python::forest },
    Program { name: "networkx", start: python::graph },
    Program { name: "java", start: java },
    Program { name: "node", start: node },
    Program { name: "clang++", start: tools::clang },
    Program { name: "lld", start: tools::lld },
    Program { name: "git", start: tools::git },
    Program { name: "postgres", start: tools::postgres },
    Program { name: "ffmpeg", start: tools::ffmpeg },
];

/// The values of `--programs` that mean several.
const SETS: [(&str, Range<usize>); 2] = [("all", 0..PROGRAMS.len()), ("classic", 0..5)];

/// The values of `--programs`: programs, and sets of them.
#[derive(Clone, Debug)]
pub struct Chosen(pub Vec<&'static Program>);

/// Parses a list with names of programs and sets.
pub fn chosen(list: &str) -> Result<Chosen, String> {
    let mut programs: Vec<&'static Program> = Vec::new();
    for name in list.split(',') {
        let set = SETS.iter().find(|(set, _)| *set == name);
        let named = match set {
            Some((_, range)) => PROGRAMS[range.clone()].iter().collect(),
            None => vec![Program::named(name)?],
        };
        for program in named {
            if programs.iter().any(|there| there.name == program.name) {
                return Err(format!("{} is there twice", program.name));
            }
            programs.push(program);
        }
    }
    Ok(Chosen(programs))
}

impl Program {
    fn named(name: &str) -> Result<&'static Program, String> {
        let names = || PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
        let found = PROGRAMS.iter().find(|program| program.name == name);
        found.ok_or_else(|| format!("'{name}' is none of all, classic, {}", names()))
    }

    pub fn line(&self, scratch: &Scratch) -> Result<Line, String> {
        (self.start)(scratch)
    }
}

impl Line {
    pub fn new<const N: usize>(program: PathBuf, arguments: [&dyn AsRef<OsStr>; N]) -> Line {
        let arguments = arguments.iter().map(|word| word.as_ref().to_owned()).collect();
        Line { program, arguments, socket: None }
    }

    /// With one argument more.
    pub fn and(mut self, argument: impl AsRef<OsStr>) -> Line {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub fn and_all<const N: usize>(self, arguments: [&str; N]) -> Line {
        arguments.iter().fold(self, |line, argument| line.and(argument))
    }

    /// With another line as its last arguments.
    pub fn behind_words(self, other: Line) -> Line {
        let line = self.and(other.program);
        other.arguments.iter().fold(line, |line, argument| line.and(argument))
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
pub fn installed(program: &str, package: &str) -> Result<PathBuf, String> {
    find(program).map_err(|why| format!("{why}: install {package}"))
}

fn sort(scratch: &Scratch) -> Result<Line, String> {
    let sort = installed("sort", "coreutils")?;
    // All of the text at once: a smaller buffer would be a sort that needs less.
    let lines = scratch.file("log", inputs::write_log)?;
    Ok(Line::new(sort, [&"-S", &"1G", &"--parallel=1", &lines]))
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

fn java(scratch: &Scratch) -> Result<Line, String> {
    const SOURCE: &[u8] = include_bytes!("../../../tests/programs/Structures.java");
    let (java, compiler) = (installed("java", "a JDK")?, installed("javac", "a JDK")?);
    let source = scratch.file("Structures.java", |out| out.write_all(SOURCE))?;
    let classes = scratch.path().join("classes");
    if !classes.exists() {
        tools::done(Command::new(compiler).arg("-d").arg(&classes).arg(source))?;
    }
    let heap = ["-XX:+UseG1GC", "-Xmx600m", "-XX:ActiveProcessorCount=2"];
    let [collector, largest, processors] = &heap;
    let arguments: [&dyn AsRef<OsStr>; 7] =
        [collector, largest, processors, &"-cp", &classes, &"Structures", &"0.9"];
    Ok(Line::new(java, arguments))
}

fn node(scratch: &Scratch) -> Result<Line, String> {
    const SCRIPT: &[u8] = include_bytes!("scripts/workers.js");
    let node = installed("node", "nodejs")?;
    let script = scratch.file("workers.js", |out| out.write_all(SCRIPT))?;
    Ok(Line::new(node, [&script as &dyn AsRef<OsStr>, &"140"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&'static str> {
        chosen(list).unwrap().0.iter().map(|program| program.name).collect()
    }

    #[test]
    fn programs_have_names_and_are_in_sets() {
        assert_eq!(names("all").len(), PROGRAMS.len());
        assert_eq!(names("classic"), ["python", "numpy", "sort", "redis", "g++"]);
        assert_eq!(names("java,classic")[..2], ["java", "python"]);
        assert_eq!(chosen("sort,classic").unwrap_err(), "sort is there twice");
        let why = chosen("perl").unwrap_err();
        assert!(why.starts_with("'perl' is none of all, classic, python, numpy, sort, "), "{why}");
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
