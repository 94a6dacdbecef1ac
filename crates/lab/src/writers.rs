//! The processes that `swap-w-seq` measures: several that write, and one that gives them the start.
//!
//! ```text
//!  writers ─┬─> writer: map, advise ─> ready    go ─> write, write, ... ─> done    look ─> verify ─> right   end
//!           ├─> writer: ...              │       │                          │        │                 │      │
//!           └─> writer: ...              └ all ──┘                          └─ all ──┘                 └ all ─┘
//! ```
//!
//! Each word is a line on a pipe; nobody goes on before all have said theirs. The time is from *go*
//! to the last *done*, so starting the processes, making up content and verifying are not in it,
//! and every writer still holds its memory when the last one ends. Nothing here knows about uzswap
//! or the kernel's swap.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use clap::ValueEnum;
use memmap2::{Advice, MmapMut};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::arms;
use super::process::Running;
use uzswap_cli::Failure;
use uzswap_cli::estimate::worker::{cpu_time, mark};
use uzswap_cli::pages::{PAGE_BYTES, PageBytes, Pages};
use uzswap_cli::program::reason;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The contents that are written, and how the kernel is asked to keep it.
#[derive(clap::Args, Clone, Debug)]
pub struct WriterArguments {
    /// Processes that write
    #[arg(
        long, value_name = "P", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub processes: u32,
    /// Memory that each process writes
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = arms::bytes)]
    pub size: u64,
    /// How often each process writes its memory, from begin to end
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = arms::times())]
    pub rounds_of_writing: u32,
    /// Whether the memory is to be in huge pages (madvise); if not given, as the system does by
    /// itself
    #[arg(long, value_name = "WHEN")]
    pub huge: Option<Huge>,
    /// Contents of a page: one word of eight bytes, or all of it anew, made up like a heap
    #[arg(long, value_name = "WHAT", default_value = "word")]
    pub content: Content,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Huge {
    Always,
    Never,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Word,
    Heap,
}

impl WriterArguments {
    /// The settings as a command line.
    pub fn add_to(&self, command: &mut Command) {
        command.args([
            "--processes",
            &self.processes.to_string(),
            "--size",
            &self.size.to_string(),
        ]);
        command.args(["--rounds-of-writing", &self.rounds_of_writing.to_string()]);
        command.args(["--content", &name(self.content)]);
        if let Some(huge) = self.huge {
            command.args(["--huge", &name(huge)]);
        }
    }
}

/// The name of a value on the command line.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("none is skipped").get_name().to_string()
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> Failure {
    move |e| Failure::environment(format!("{what}: {}", reason(&e)))
}

// ---------------------------------------------------------------- the one that gives the start

/// Starts the writers, and prints one line when all have written and all is verified.
pub fn run_all(arguments: WriterArguments) -> Result<u8, Failure> {
    let mut writers = Vec::new();
    for _ in 0..arguments.processes {
        let mut command = Command::new(arms::own_path()?);
        command.args(["writer"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        arguments.add_to(&mut command);
        writers.push(Conversation::with(&mut command)?);
    }
    all(&mut writers, |writer| writer.hear())?;
    let started = Instant::now();
    all(&mut writers, |writer| writer.say())?;
    let reports = all(&mut writers, |writer| writer.hear())?;
    let wall = started.elapsed();
    all(&mut writers, |writer| writer.say())?;
    all(&mut writers, |writer| writer.hear())?;
    let reports: Vec<Value> = (reports.iter())
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|e| Failure::failed(format!("a writer's answer: {e}")))
        })
        .collect::<Result<_, _>>()?;
    say(&json!({"wall_ns": wall.as_nanos() as u64, "writers": reports}).to_string())?;
    hear()?;
    all(&mut writers, |writer| writer.say())?;
    for writer in writers {
        writer.running.wait().map_err(|why| Failure::failed(format!("a writer {why}")))?;
    }
    Ok(0)
}

fn all<T>(
    writers: &mut [Conversation],
    step: impl FnMut(&mut Conversation) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    writers.iter_mut().map(step).collect()
}

/// A writer, as seen from the one that started it.
struct Conversation {
    running: Running,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Conversation {
    fn with(command: &mut Command) -> Result<Conversation, Failure> {
        let mut running = Running::start(command).map_err(Failure::failed)?;
        let (to, from) = running.pipes();
        Ok(Conversation { running, to, from })
    }

    fn say(&mut self) -> Result<(), Failure> {
        self.to.write_all(b"\n").map_err(failed("to a writer"))
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(failed("from a writer"))?;
        match line.ends_with('\n') {
            true => Ok(line),
            false => Err(Failure::failed("a writer ended before its time".to_string())),
        }
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(failed("standard output"))
}

fn hear() -> Result<(), Failure> {
    match io::stdin().lock().read_line(&mut String::new()).map_err(failed("standard input"))? {
        0 => Err(Failure::failed("who started this process has gone".to_string())),
        _ => Ok(()),
    }
}

// ---------------------------------------------------------------- the ones that write

/// Writes when it is told to.
pub fn run_one(arguments: WriterArguments) -> Result<u8, Failure> {
    // A writer that was left alone would hold the memory that the next run wants.
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|e| failed("the end with the parent")(e.into()))?;
    let mut writer = Writer::new(&arguments).map_err(failed("memory for the pages"))?;
    say("ready")?;
    hear()?;
    let (started, cpu_before) = (Instant::now(), cpu_time());
    (1..=arguments.rounds_of_writing).for_each(|round| writer.write(round));
    let (wall, cpu) = (started.elapsed(), cpu_time() - cpu_before);
    let smaps = fs::read_to_string("/proc/self/smaps").map_err(failed("/proc/self/smaps"))?;
    let in_memory = in_memory(&smaps, &writer.addresses());
    say(&json!({
        "wall_ns": wall.as_nanos() as u64,
        "cpu_ns": cpu.as_nanos() as u64,
        "resident_bytes": in_memory.resident_bytes,
        "huge_bytes": in_memory.huge_bytes,
    })
    .to_string())?;
    hear()?;
    writer.verify(arguments.rounds_of_writing)?;
    say("right")?;
    hear()?;
    Ok(0)
}

struct Writer {
    mapping: MmapMut,
    /// The part that is written: it begins where a huge page can.
    range: Range<usize>,
    source: Source,
}

impl Writer {
    fn new(arguments: &WriterArguments) -> io::Result<Writer> {
        let bytes = arguments.size as usize / PAGE_BYTES * PAGE_BYTES;
        let mapping = MmapMut::map_anon(bytes + HUGE_PAGE_BYTES)?;
        let begin = mapping.as_ptr().align_offset(HUGE_PAGE_BYTES);
        match arguments.huge {
            None => {}
            Some(Huge::Always) => mapping.advise_range(Advice::HugePage, begin, bytes)?,
            Some(Huge::Never) => mapping.advise_range(Advice::NoHugePage, begin, bytes)?,
        }
        Ok(Writer { mapping, range: begin..begin + bytes, source: Source::new(arguments.content)? })
    }

    fn addresses(&self) -> Range<usize> {
        let base = self.mapping.as_ptr().addr();
        base + self.range.start..base + self.range.end
    }

    fn write(&mut self, round: u32) {
        let pages = self.mapping[self.range.clone()].chunks_exact_mut(PAGE_BYTES);
        for (page, place) in pages.enumerate() {
            if let Some(pattern) = self.source.pattern(page, round) {
                place.copy_from_slice(pattern);
            }
            place[..8].copy_from_slice(&word(page, round));
        }
    }

    /// Compares every byte.
    fn verify(&self, round: u32) -> Result<(), Failure> {
        const EMPTY: PageBytes = [0; PAGE_BYTES];
        for (page, found) in self.mapping[self.range.clone()].chunks_exact(PAGE_BYTES).enumerate() {
            let mut expected = *self.source.pattern(page, round).unwrap_or(&EMPTY);
            expected[..8].copy_from_slice(&word(page, round));
            if let Some(at) = (0..PAGE_BYTES).find(|at| found[*at] != expected[*at]) {
                return Err(Failure::failed(format!(
                    "page {page} came back with a wrong byte at {at}"
                )));
            }
        }
        Ok(())
    }
}

/// Pages made up beforehand, since making one takes as long as evicting one. None if only a word is
/// written.
struct Source(Vec<PageBytes>);

impl Source {
    fn new(content: Content) -> io::Result<Source> {
        // They stay in the processor's cache, and are no large part of the memory.
        const PATTERNS: usize = 256;
        let mut patterns =
            vec![[0; PAGE_BYTES]; if content == Content::Heap { PATTERNS } else { 0 }];
        for (number, bytes) in patterns.iter_mut().enumerate() {
            Pages::Synthetic.make(number as u64, bytes)?;
        }
        Ok(Source(patterns))
    }

    /// The page's contents in that round, another one in each.
    fn pattern(&self, page: usize, round: u32) -> Option<&PageBytes> {
        const STEP: usize = 31;
        match self.0.len() {
            0 => None,
            count => Some(&self.0[(page + round as usize * STEP) % count]),
        }
    }
}

/// The word at the beginning of each page: no two pages are alike, and none as it was in another
/// round.
fn word(page: usize, round: u32) -> [u8; 8] {
    mark(page as u32, round.into()).to_ne_bytes()
}

/// How a range is in memory.
#[derive(Debug, PartialEq, Eq)]
struct InMemory {
    resident_bytes: u64,
    huge_bytes: u64,
}

/// Sums the mappings of /proc/PID/smaps that overlap the range: uzswap may have cut it in many.
fn in_memory(smaps: &str, range: &Range<usize>) -> InMemory {
    let mut sums = InMemory { resident_bytes: 0, huge_bytes: 0 };
    let mut inside = false;
    for line in smaps.lines() {
        let Some((first, rest)) = line.split_once(' ') else { continue };
        let kib = || rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        match first {
            "Rss:" if inside => sums.resident_bytes += kib() * 1024,
            "AnonHugePages:" if inside => sums.huge_bytes += kib() * 1024,
            _ => {
                let hex = |text: &str| usize::from_str_radix(text, 16).ok();
                let ends =
                    first.split_once('-').and_then(|(from, to)| Some((hex(from)?, hex(to)?)));
                if let Some((from, to)) = ends {
                    inside = from < range.end && range.start < to;
                }
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(content: Content) -> WriterArguments {
        WriterArguments {
            processes: 1,
            size: 5000 * 1024,
            rounds_of_writing: 3,
            huge: Some(Huge::Never),
            content,
        }
    }

    #[test]
    fn what_is_written_is_verified() {
        for content in [Content::Word, Content::Heap] {
            let mut writer = Writer::new(&arguments(content)).unwrap();
            assert_eq!(writer.range.len(), 1250 * PAGE_BYTES);
            assert!(writer.addresses().start.is_multiple_of(HUGE_PAGE_BYTES));
            assert!(writer.verify(0).is_err());
            (1..=3).for_each(|round| writer.write(round));
            writer.verify(3).unwrap();
            assert!(writer.verify(2).is_err(), "a page of an older round is no right page");
            let at = writer.range.start + 7 * PAGE_BYTES + 4000;
            writer.mapping[at] ^= 1;
            let failure = writer.verify(3).unwrap_err();
            assert_eq!(failure.message, "page 7 came back with a wrong byte at 4000");
        }
    }

    #[test]
    fn resident_and_huge_memory_of_a_range() {
        let smaps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize: 2048 kB\n\
                     Rss:    2048 kB\n\
                     AnonHugePages:      2048 kB\nVmFlags: rd wr\n\
                     7f0000200000-7f0000300000 rw-p 00000000 00:00 0 \nRss: 512 kB\n\
                     AnonHugePages: 0 kB\n\
                     7f0000300000-7f0000400000 rw-p 00000000 00:00 0  [heap]\nRss: 4 kB\n\
                     AnonHugePages: 0 kB\n";
        let of = |from: usize, to: usize| {
            in_memory(smaps, &(0x7f00_0000_0000 + from..0x7f00_0000_0000 + to))
        };
        assert_eq!(of(0, 0x30_0000), InMemory { resident_bytes: 2560 << 10, huge_bytes: 2 << 20 });
        assert_eq!(of(0x20_0000, 0x20_1000), InMemory { resident_bytes: 512 << 10, huge_bytes: 0 });
        assert_eq!(of(0x40_0000, 0x50_0000), InMemory { resident_bytes: 0, huge_bytes: 0 });
    }

    #[test]
    fn our_own_memory_is_seen() {
        let mut writer = Writer::new(&arguments(Content::Word)).unwrap();
        writer.write(1);
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let found = in_memory(&smaps, &writer.addresses());
        assert!(found.resident_bytes >= 1250 * PAGE_BYTES as u64, "{found:?}");
        assert_eq!(found.huge_bytes, 0);
    }
}
