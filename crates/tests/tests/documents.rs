//! The commands that README and the documents tell people to type work.
//!
//! ```text
//!  document ── blocks fenced as sh ──> one script a block, without the lines of NOT_RUN ──> bash
//!           └─ each `uzswap ...` there, and in backticks ──> uzswap ... --help: does it parse?
//! ```
//!
//! Placeholders get what they stand for: PID a managed program that runs, PROGRAM ARGS... a small
//! one, TRACE a trace. Every document has a directory of its own, in which `target` and `crates`
//! are those of the source tree, and a home.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use uzswap_tests::{Suite, Verdict};

/// Lines that are not run, and why. A line counts by its beginning.
const NOT_RUN: [(&str, &str); 24] = [
    ("uzswap run --store nbd://", "needs servers: tests/remote.rs"),
    ("uzswap run --store valkey://", "needs a server: tests/valkey.rs"),
    ("uzswap run --store redis://", "needs a Cluster: tests/valkey.rs"),
    ("uzswap run --store /dev/", "needs a device: tests/remote.rs"),
    ("uzswap doctor --store ", "needs a server: tests/remote.rs"),
    ("uzswap disk ", "serves until it is ended, or needs a disk: tests/disk.rs"),
    ("nbdcopy ", "needs libnbd: tests/disk.rs"),
    ("uzswap jupyter ", "needs a notebook server: python/tests/test_notebook.py"),
    ("uzswap bench programs ", "swaps for minutes"),
    ("uzswap bench variety", "runs programs for an hour"),
    ("uzswap bench faults ", "swaps for minutes"),
    ("uzswap top", "needs a terminal: the tests of cli/src/control/top.rs"),
    ("curl --unix-socket", "while the program runs: tests/metrics.rs"),
    ("pip install ", "python/test.sh"),
    ("python3 python/build_wheel.py", "python/test.sh"),
    ("python3 python/build_deb.py", "python/tests/test_deb.py"),
    ("python -m uzswap", "python/test.sh"),
    ("crates/clib/install.sh", "builds: crates/clib/tests/install.rs"),
    ("cc ", "needs what is installed: crates/clib/tests/install.rs"),
    ("LD_LIBRARY_PATH=", "needs what is installed: crates/clib/tests/install.rs"),
    ("cargo ", "builds, or runs other tests"),
    ("RUSTFLAGS=", "runs other tests: .github/workflows/scheduled.yml"),
    ("cd fuzz", "needs a nightly compiler: .github/workflows/scheduled.yml"),
    ("uzswap estimate ", "works the processors for tens of seconds: tests/estimate.rs"),
];
/// A guard against waiting for ever, not an assertion of speed.
const PATIENCE: Duration = Duration::from_secs(120);
/// The memory group of README's demonstration, and what its commands print.
const DEMO_GROUP: &str = "/sys/fs/cgroup/memory/uzswap-demo";
const DEMO_SAYS: &str = "exit code 137\n36888890 letters\n";
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn main() -> ExitCode {
    let mut suite = Suite::new();
    for document in documents() {
        suite.add(document.display().to_string(), move || commands_work(&document));
    }
    let all = documents();
    suite.add("every_line_that_is_not_run_is_in_a_document", move || no_stale_lines(&all));
    suite.main()
}

/// The documents, by their paths in the source tree.
fn documents() -> Vec<PathBuf> {
    let mut all = Vec::from(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(PathBuf::from));
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(ROOT).join(&folder)).expect("the source tree is there")
        {
            let path = folder.join(entry.unwrap().file_name());
            match Path::new(ROOT).join(&path).is_dir() {
                true => folders.push(path),
                false => {
                    all.extend(Some(path).filter(|path| path.extension() == Some("md".as_ref())))
                }
            }
        }
    }
    all.retain(|path| Path::new(ROOT).join(path).exists());
    all.sort();
    all
}

fn text_of(document: &Path) -> String {
    fs::read_to_string(Path::new(ROOT).join(document)).unwrap()
}

/// The blocks that are fenced as `sh`, a command in each line: lines that go on, and what a command
/// reads from the script (`<<`), belong to it.
fn blocks(text: &str) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("```sh\n") {
        let (block, after) = after.split_once("```\n").expect("a fenced block ends");
        let mut commands: Vec<String> = Vec::new();
        let mut until: Option<&str> = None;
        let mut goes_on = false;
        for line in block.lines() {
            match commands.last_mut() {
                Some(command) if goes_on || until.is_some() => *command += &format!("\n{line}"),
                _ => commands.push(line.to_string()),
            }
            goes_on = line.ends_with("&&") || line.ends_with('|') || line.ends_with('\\');
            until = match until {
                Some(word) if line == word => None,
                None => line.split_once("<<'").map(|(_, word)| word.trim_end_matches('\'')),
                waiting => waiting,
            };
        }
        blocks.push(commands);
        rest = after;
    }
    blocks
}

/// Why a line is not run.
fn reason(line: &str) -> Option<&'static (&'static str, &'static str)> {
    NOT_RUN.iter().find(|(beginning, _)| line.starts_with(beginning))
}

fn no_stale_lines(documents: &[PathBuf]) -> Result<Verdict, String> {
    let lines: Vec<String> =
        documents.iter().flat_map(|path| blocks(&text_of(path))).flatten().collect();
    let stale: Vec<&str> = NOT_RUN
        .iter()
        .filter(|entry| !lines.iter().any(|line| reason(line) == Some(entry)))
        .map(|(beginning, _)| *beginning)
        .collect();
    Ok(Verdict::check(stale.is_empty(), || format!("in no document: {stale:?}")))
}

// ---------------------------------------------------------------- do they parse?

/// The words of each `uzswap` in a line of a script, without those of the program that it starts.
fn invocations(line: &str) -> Vec<Vec<String>> {
    let line = line.split_once(" # ").map_or(line, |(code, _)| code);
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_uzswap = |word: &str| word == "uzswap" || word.ends_with("/uzswap");
    let ends =
        |word: &str| ["--", "|", "&&", "||", "]", "&"].contains(&word) || word.starts_with('>');
    let mut all = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let before = i.checked_sub(1).map_or("", |before| words[before]);
        let is_command =
            ["", "|", "&&", "[", "exec", "sudo"].contains(&before) || before.contains('=');
        if is_uzswap(word.trim_start_matches("\"")) && is_command {
            let own = words[i + 1..].iter().take_while(|word| !ends(word));
            all.push(own.map(|word| word.trim_matches(['"', '\'']).to_string()).collect());
        }
    }
    all
}

/// The texts in backticks that begin with `uzswap `, brackets of syntax taken off.
fn mentions(text: &str) -> Vec<Vec<String>> {
    let code = text.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2));
    let code = code.map(|code| code.replace("\\|", "|").replace(['[', ']'], "").replace('\n', " "));
    code.flat_map(|code| match code.starts_with("uzswap ") {
        true => invocations(&code),
        false => Vec::new(),
    })
    .collect()
}

fn parses(bin: &Path, words: &[String]) -> Result<(), String> {
    // A placeholder for the rest, as in a mention of several commands.
    let words: Vec<&String> = words.iter().filter(|word| !word.ends_with("...")).collect();
    let mut command = Command::new(bin.join("uzswap"));
    match words.first().map(|word| word.as_str()) {
        Some("help") => command.args(&words),
        // `run PROGRAM` without dashes: its words are the program's.
        _ => command.args(&words).arg("--help"),
    };
    if words.first().is_some_and(|word| *word == "run")
        && !words.iter().any(|word| *word == "--help")
    {
        let own: Vec<&String> = own_options(&words);
        command = Command::new(bin.join("uzswap"));
        command.args(own).arg("--help");
    }
    let output = command.output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("uzswap {words:?}: {said}")) }
}

/// `run`, its options and their values; a program that follows is left out.
fn own_options<'a>(words: &[&'a String]) -> Vec<&'a String> {
    const SWITCHES: [&str; 7] = [
        "--quiet",
        "--no-turns",
        "--in-place",
        "--if-possible",
        "--no-encrypt",
        "--debug",
        "--help",
    ];
    let mut own = vec![words[0]];
    let mut i = 1;
    while i < words.len() && words[i].starts_with("--") {
        own.push(words[i]);
        i += 1;
        if !SWITCHES.contains(&own[own.len() - 1].as_str()) && i < words.len() {
            own.push(words[i]);
            i += 1;
        }
    }
    own
}

// ---------------------------------------------------------------- do they run?

fn commands_work(document: &Path) -> Result<Verdict, String> {
    let text = text_of(document);
    let bin = built()?;
    let blocks = blocks(&text);
    let in_blocks = blocks.iter().flatten().flat_map(|line| invocations(line));
    let mut wrong: Vec<String> =
        in_blocks.chain(mentions(&text)).filter_map(|words| parses(&bin, &words).err()).collect();
    let is_command = |line: &str| line.starts_with("$ ") || line.starts_with("    uzswap ");
    if text.lines().any(is_command) || text.contains("\n```console") {
        wrong.push("a command outside of a block that is fenced as sh".to_string());
    }
    let mut place: Option<Place> = None;
    for block in &blocks {
        let run: Vec<&str> =
            block.iter().filter(|line| reason(line).is_none()).map(String::as_str).collect();
        if run.is_empty() {
            continue;
        }
        let script = run.join("\n");
        if script.contains("/sys/fs/cgroup/memory/") && !may_group() {
            println!("SKIPPED a part of {}: no memory groups of version 1", document.display());
            continue;
        }
        let place = place.get_or_insert_with(|| Place::new(&bin));
        match place.runs(&script) {
            Err(why) => wrong.push(why),
            // The demonstration: killed alone, and whole under uzswap. With swap it would live.
            Ok(said) if script.contains(DEMO_GROUP) && said != DEMO_SAYS && !has_swap() => {
                wrong.push(format!("{script}\nsays: {said}"));
            }
            Ok(_) => {}
        }
    }
    Ok(Verdict::check(wrong.is_empty(), || wrong.join("\n")))
}

fn may_group() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists()
}

fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

/// The directory of the commands that are tested.
fn built() -> Result<PathBuf, String> {
    let bin = match std::env::var_os("UZSWAP_TEST_BIN") {
        Some(given) => PathBuf::from(given),
        None => std::env::current_exe().unwrap().ancestors().nth(2).expect("target/PROFILE").into(),
    };
    match ["uzswap", "uzswap-bench", "libuzswap_preload"]
        .iter()
        .find(|name| !bin.join(name).exists())
    {
        Some(name) => Err(format!("{} is not built", bin.join(name).display())),
        None => Ok(bin),
    }
}

/// A directory in which the blocks of a document are run, one after the other, and a program that
/// runs meanwhile.
struct Place {
    directory: PathBuf,
    bin: PathBuf,
    /// `uzswap run` with a program that holds 64 MiB.
    program: Child,
}

impl Place {
    fn new(bin: &Path) -> Place {
        let name = format!("uzswap-documents-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        for folder in ["home", "runtime", "target"] {
            fs::create_dir_all(directory.join(folder)).unwrap();
        }
        symlink(bin, directory.join("target/release")).unwrap();
        symlink(Path::new(ROOT).join("crates"), directory.join("crates")).unwrap();
        let hold = "import time; data = bytearray(b'x' * (64 << 20)); print('ready', flush=True); \
                    time.sleep(600)";
        let mut run = Self::command(&directory, bin, "uzswap");
        run.args(["run", "--quiet", "--memory", "256M", "--", "python3", "-c", hold]);
        let mut program = run.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let output = program.stdout.as_mut().expect("it is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        assert_eq!(line, "ready\n");
        Place { directory, bin: bin.to_path_buf(), program }
    }

    fn command(directory: &Path, bin: &Path, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UZSWAP_"))
        {
            command.env_remove(name);
        }
        command
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", directory.join("home"))
            // Toolchains are found by the home of the tests' user.
            .env("RUSTUP_HOME", std::env::var("RUSTUP_HOME").unwrap_or(in_home(".rustup")))
            .env("CARGO_HOME", std::env::var("CARGO_HOME").unwrap_or(in_home(".cargo")))
            .env("XDG_RUNTIME_DIR", directory.join("runtime"))
            .current_dir(directory);
        command
    }

    /// The managed program, which is a child of `uzswap run`.
    fn program_pid(&self) -> String {
        let run = self.program.id();
        let children = fs::read_to_string(format!("/proc/{run}/task/{run}/children")).unwrap();
        children.split_whitespace().next().expect("the program runs").to_string()
    }

    /// Runs a block, placeholders replaced, and returns what it says, or what went wrong.
    fn runs(&self, script: &str) -> Result<String, String> {
        let mut script = script
            .replace("cargo build --release &&", "")
            .replace("PROGRAM ARGS...", "python3 -I crates/tests/programs/sort.py 0.2")
            .replace("sort.py 1.3", "sort.py 0.5")
            .replace(" PID", &format!(" {}", self.program_pid()));
        if script.contains(" TRACE") {
            let record = "uzswap run --memory 48M --quiet --trace a.trace -- \
                          python3 -I crates/tests/programs/sort.py 0.5";
            script = format!("{record}\n{}", script.replace(" TRACE", " a.trace"));
        }
        let mut bash = Self::command(&self.directory, &self.bin, "bash");
        let output = ended(bash.args(["-euo", "pipefail", "-c", &script]))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!(
                "{script}\n{}: {}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.program.id().to_string()).status();
        let _ = self.program.wait();
        let _ = fs::remove_dir_all(&self.directory);
        // Where a block failed half-way.
        let _ = fs::remove_dir(DEMO_GROUP);
    }
}

fn in_home(folder: &str) -> String {
    format!("{}/{folder}", std::env::var("HOME").unwrap_or_default())
}

/// The output of a command that has to end.
fn ended(command: &mut Command) -> Result<Output, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| e.to_string())?;
    let id = child.id();
    let waiting = std::thread::spawn(move || child.wait_with_output());
    let started = Instant::now();
    while !waiting.is_finished() {
        if started.elapsed() > PATIENCE {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
            return Err(format!("it does not end: {command:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    waiting.join().expect("no panic").map_err(|e| e.to_string())
}
