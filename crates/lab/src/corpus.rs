//! Page corpora from real heaps: `uzswap bench corpus DIR` runs programs and reads their anonymous
//! memory.
//!
//! ```text
//!  CPython ─┐  "ready"
//!  g++     ─┼───────────> /proc/PID/pagemap: which pages are there
//!  node    ─┤             /proc/PID/mem:     what is in them      ──> DIR/<program>.pages
//!  redis   ─┘
//! ```
//!
//! A corpus is the pages one after the other, nothing else, as swap would see them: private
//! anonymous memory only, in the order of addresses; of a large heap, runs of 16 pages spread over
//! it. The contents of a heap may be private, and differ from machine to machine, so corpora are
//! made where they are used and never shipped.
//!
//! A *mix* has as many pages of each program.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, Value, json};
use uzswap::codec::same_filled;

use super::process::{Interrupt, Running, one_line};
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes, Random};
use uzswap_cli::procfs::kib_of;
use uzswap_cli::program::reason;
use uzswap_cli::size::grouped;

/// Pages that are taken together from a large heap, and put together into a mix.
const RUN_PAGES: usize = 16;
/// The resident size at which the compiler is stopped.
const COMPILER_BYTES: u64 = 160 << 20;

#[derive(clap::Args, Debug)]
pub struct CorpusArguments {
    /// Where to put the corpora
    #[arg(value_name = "DIR", default_value = "bench-corpus")]
    directory: PathBuf,
    /// Pages to keep of each program, at most
    #[arg(
        long, value_name = "N", default_value_t = 16384,
        value_parser = clap::value_parser!(u32).range(64..)
    )]
    pages: u32,
}

pub fn run(arguments: CorpusArguments) -> Result<u8, Failure> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory)
        .map_err(|e| Failure::usage(format!("{}: {}", directory.display(), reason(&e))))?;
    let maker =
        Maker { directory, most: arguments.pages as usize, interrupt: Interrupt::install() };
    let programs: [(&str, Make); 4] = [
        ("cpython", &|| {
            maker.script("cpython", "python3", &["-I", "-c", include_str!("corpus.py")])
        }),
        ("g++", &|| maker.compiler()),
        ("node", &|| maker.script("node", "node", &["-e", include_str!("corpus.js")])),
        ("redis", &|| maker.redis()),
    ];
    let mut made = 0;
    for (name, make) in programs {
        match make()? {
            Ok(pages) => {
                made += 1;
                println!(
                    "{:<32} {:>8} pages, {:>4.1} % same-filled",
                    file_of(directory, name).display().to_string(),
                    grouped(pages.len() as u64),
                    100.0 * same_filled_share(&pages)
                );
            }
            Err(why) => console::say(&format!("{name}: no corpus: {why}")),
        }
    }
    if made == 0 {
        return Err(Failure::failed("none of the programs could be run".to_string()));
    }
    Ok(0)
}

/// The pages, or why this program has none.
type Made = Result<Vec<PageBytes>, String>;
type Make<'a> = &'a dyn Fn() -> Result<Made, Failure>;

struct Maker<'a> {
    directory: &'a Path,
    most: usize,
    interrupt: Interrupt,
}

impl Maker<'_> {
    /// A program that says a line when its heap is as it is wanted.
    fn script(&self, name: &str, program: &str, arguments: &[&str]) -> Result<Made, Failure> {
        let mut command = Command::new(program);
        command.args(arguments).env("PYTHONDONTWRITEBYTECODE", "1").stderr(Stdio::null());
        let mut kept = Err("it said nothing".to_string());
        let end = one_line(&mut command, &self.interrupt, || {
            kept = child(std::process::id(), None).and_then(|pid| self.keep(name, pid))
        })?;
        Ok(end.and(kept))
    }

    /// g++, stopped in the middle of a translation unit that makes it large.
    fn compiler(&self) -> Result<Made, Failure> {
        let source = self.directory.join("g++.cc");
        fs::write(&source, translation_unit())
            .map_err(|e| Failure::failed(format!("{}: {}", source.display(), reason(&e))))?;
        let mut command = Command::new("g++");
        command.args(["-std=c++17", "-O2", "-g", "-S", "-o", "/dev/null"]).arg(&source);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let made = Running::start(&mut command).and_then(|mut driver| {
            let started = Instant::now();
            while driver.is_alive() && started.elapsed() < Duration::from_secs(120) {
                thread::sleep(Duration::from_millis(5));
                let Ok(compiler) = child(driver.pid(), Some("cc1plus")) else { continue };
                if kib_of(&format!("/proc/{compiler}/status"), "VmRSS:") * 1024 < COMPILER_BYTES {
                    continue;
                }
                let signal = |signal| kill(Pid::from_raw(compiler as i32), signal).is_ok();
                signal(Signal::SIGSTOP);
                let kept = self.keep("g++", compiler);
                // The compiler proper first: without it its driver ends.
                signal(Signal::SIGKILL);
                return kept;
            }
            Err("it did not grow as large as expected".to_string())
        });
        let _ = fs::remove_file(&source);
        self.interrupt.check()?;
        Ok(made)
    }

    /// redis-server with some of each of its types, values out of the system's header files.
    fn redis(&self) -> Result<Made, Failure> {
        let socket = std::env::temp_dir().join(format!("uzswap-corpus-{}", std::process::id()));
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let made = Running::start(&mut command).and_then(|mut server| {
            let started = Instant::now();
            let stream = loop {
                match UnixStream::connect(&socket) {
                    Ok(stream) => break stream,
                    Err(_) if server.is_alive() && started.elapsed() < Duration::from_secs(20) => {
                        thread::sleep(Duration::from_millis(10));
                    }
                    Err(e) => return Err(reason(&e)),
                }
            };
            fill_redis(stream).map_err(|e| reason(&e))?;
            self.keep("redis", server.pid())
        });
        let _ = fs::remove_file(&socket);
        self.interrupt.check()?;
        Ok(made)
    }

    /// Reads the memory of a process and writes the corpus.
    fn keep(&self, name: &str, pid: u32) -> Made {
        let pages = anonymous_pages(pid, self.most).map_err(|e| reason(&e))?;
        if pages.is_empty() {
            return Err("it has no anonymous memory".to_string());
        }
        let path = file_of(self.directory, name);
        let written = File::create(&path).and_then(|mut file| file.write_all(pages.as_flattened()));
        written.map_err(|e| format!("{}: {}", path.display(), reason(&e)))?;
        Ok(pages)
    }
}

fn file_of(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.pages"))
}

fn same_filled_share(pages: &[PageBytes]) -> f64 {
    pages.iter().filter(|page| same_filled(page).is_some()).count() as f64 / pages.len() as f64
}

/// Templates and standard headers enough for a few hundred MiB of syntax trees and intermediate
/// code.
fn translation_unit() -> String {
    let mut text = String::from(
        "#include <algorithm>\n#include <functional>\n#include <map>\n#include <regex>\n\
         #include <string>\n\
         #include <unordered_map>\n#include <vector>\n\
         template <int N> struct Key { int part[N]; \
         bool operator<(const Key& o) const { return part[0] < o.part[0]; } };\n\
         template <int N> int work(const std::string& text) {\n\
           std::map<Key<N>, std::vector<std::string>> tree; \
           std::unordered_map<int, Key<N>> table;\n\
           std::function<int(int)> next = [&](int x) { tree[Key<N>{{x}}].push_back(text); \
           return int(tree.size()) + N; };\n\
           for (auto& [k, v] : tree) { std::sort(v.begin(), v.end()); table[k.part[0]] = k; }\n\
           std::regex pattern(\"a+\" + std::to_string(N)); std::smatch found;\n\
           return std::regex_search(text, found, pattern) ? next(N) : int(table.size());\n}\n",
    );
    for n in 1..=120 {
        text += &format!("template int work<{n}>(const std::string&);\n");
    }
    text
}

fn fill_redis(mut stream: UnixStream) -> io::Result<()> {
    const COMMANDS: usize = 150_000;
    let mut lines = Vec::new();
    for entry in fs::read_dir("/usr/include").into_iter().flatten() {
        if let Ok(text) = fs::read_to_string(entry?.path()) {
            lines.extend(text.lines().filter(|line| line.len() > 8).map(str::to_string));
        }
        if lines.len() > 100_000 {
            break;
        }
    }
    if lines.is_empty() {
        lines.extend((0..1000).map(|i| format!("value {i} of a machine without headers")));
    }
    let mut random = Random(1);
    let mut line = || lines[(random.next() % lines.len() as u64) as usize].clone();
    // The answers are read while the commands are written: neither side waits for the other for
    // ever.
    let mut answers = stream.try_clone()?;
    let reader = thread::spawn(move || -> io::Result<()> {
        let (mut seen, mut buffer) = (0, [0; 1 << 16]);
        while seen < COMMANDS {
            match answers.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                // Every answer here is one line.
                n => seen += buffer[..n].iter().filter(|&&byte| byte == b'\n').count(),
            }
        }
        Ok(())
    });
    let mut batch = Vec::new();
    for i in 0..COMMANDS {
        let words: Vec<String> = match i % 5 {
            0 => vec!["SET".into(), format!("page:{i}"), line() + &line()],
            1 => {
                vec!["HSET".into(), format!("user:{}", i / 20), format!("field{}", i % 20), line()]
            }
            2 => vec!["RPUSH".into(), format!("list:{}", i / 500), line()],
            3 => vec![
                "ZADD".into(),
                format!("rank:{}", i / 2000),
                (i * 7919 % 10007).to_string(),
                line(),
            ],
            _ => vec!["SADD".into(), format!("set:{}", i / 300), line()],
        };
        write!(batch, "*{}\r\n", words.len())?;
        for word in words {
            write!(batch, "${}\r\n{word}\r\n", word.len())?;
        }
        if batch.len() > 1 << 16 || i + 1 == COMMANDS {
            stream.write_all(&batch)?;
            batch.clear();
        }
    }
    reader.join().map_err(|_| io::Error::other("the reader of the answers failed"))?
}

/// The youngest child of a process, of all or of those with that program name (at most 15 bytes).
fn child(parent: u32, program: Option<&str>) -> Result<u32, String> {
    let text =
        fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let children = text.split_whitespace().filter_map(|pid| pid.parse().ok());
    let mut wanted =
        children.filter(|&pid| program.is_none_or(|program| name(pid).trim() == program));
    wanted.next_back().ok_or("there is no such process".to_string())
}

/// The pages of private anonymous memory that a process has, at most `most` of them.
fn anonymous_pages(pid: u32, most: usize) -> io::Result<Vec<PageBytes>> {
    let of_process = |name: &str| format!("/proc/{pid}/{name}");
    let maps = fs::read_to_string(of_process("maps"))?;
    let (pagemap, memory) = (File::open(of_process("pagemap"))?, File::open(of_process("mem"))?);
    let mut present = Vec::new();
    for (from, to) in maps.lines().filter_map(anonymous_range) {
        let mut words = vec![0; (to - from) / PAGE_BYTES * 8];
        if pagemap.read_exact_at(&mut words, (from / PAGE_BYTES * 8) as u64).is_ok() {
            let flags = words.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
            let pages = (from..to).step_by(PAGE_BYTES).zip(flags);
            present.extend(pages.filter(|(_, flags)| flags >> 63 == 1).map(|(at, _)| at));
        }
    }
    let mut pages = Vec::new();
    let mut page = [0; PAGE_BYTES];
    for place in spread(present.len(), most) {
        // A page may have gone in between.
        if memory.read_exact_at(&mut page, present[place] as u64).is_ok() {
            pages.push(page);
        }
    }
    Ok(pages)
}

/// The address range of a line of `maps`, if it is private, writable and without a file.
fn anonymous_range(line: &str) -> Option<(usize, usize)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let is_file = fields.get(4).is_none_or(|inode| *inode != "0");
    if is_file || !fields[1].starts_with("rw") || !fields[1].ends_with('p') {
        return None;
    }
    let (from, to) = fields[0].split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

/// At most `most` of the numbers below `all`, in runs that are spread evenly.
fn spread(all: usize, most: usize) -> impl Iterator<Item = usize> {
    let runs = all.div_ceil(RUN_PAGES);
    let wanted = (most / RUN_PAGES).max(1).min(runs);
    let run = move |i: usize| i * runs / wanted * RUN_PAGES;
    (0..wanted).flat_map(move |i| run(i)..(run(i) + RUN_PAGES).min(all))
}

/// The corpora of a directory.
pub struct Corpora(Vec<(String, Vec<PageBytes>)>);

impl Corpora {
    pub fn load(directory: &Path) -> Result<Corpora, Failure> {
        let make = format!("make corpora with 'uzswap bench corpus {}'", directory.display());
        let failed = |e: io::Error| {
            Failure::usage(format!("--corpus: {}: {}; {make}", directory.display(), reason(&e)))
        };
        let mut all = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "pages") {
                continue;
            }
            let bytes = fs::read(&path).map_err(failed)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.push((name, bytes.as_chunks::<PAGE_BYTES>().0.to_vec()));
        }
        all.retain(|(_, pages)| !pages.is_empty());
        all.sort_by(|a, b| a.0.cmp(&b.0));
        match all.is_empty() {
            true => {
                Err(Failure::usage(format!("--corpus: {} has none; {make}", directory.display())))
            }
            false => Ok(Corpora(all)),
        }
    }

    /// Each corpus with its program's name.
    pub fn each(&self) -> impl Iterator<Item = (&str, &[PageBytes])> {
        self.0.iter().map(|(name, pages)| (name.as_str(), pages.as_slice()))
    }

    /// About `pages` pages, as many of each program.
    pub fn mix(&self, pages: usize) -> Vec<PageBytes> {
        let share = pages / self.0.len();
        let mut runs: Vec<(usize, &[PageBytes])> = Vec::new();
        for (_, all) in self.each() {
            let places = spread(all.len(), share).step_by(RUN_PAGES);
            runs.extend(places.map(|at| &all[at..(at + RUN_PAGES).min(all.len())]).enumerate());
        }
        // A run of each in turn.
        runs.sort_by_key(|(turn, _)| *turn);
        runs.into_iter().flat_map(|(_, run)| run).copied().collect()
    }

    /// A record's words on the corpora.
    pub fn describe(&self) -> Value {
        let of = |(name, pages): (&str, &[PageBytes])| {
            (
                name.to_string(),
                json!({"pages": pages.len(), "same_filled": same_filled_share(pages)}),
            )
        };
        self.each().map(of).collect::<Map<_, _>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let heap =
            "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(anonymous_range(heap), Some((0x55d0c0000000, 0x55d0c0021000)));
        for line in [
            "7f00-7f10 r--p 00000000 00:00 0",
            "7f00-7f10 rw-s 00000000 00:00 0",
            "7f00-7f10 rw-p 00000000 fe:00 1234 /usr/lib/libc.so.6",
            "",
        ] {
            assert_eq!(anonymous_range(line), None, "{line}");
        }
    }

    #[test]
    fn a_spread_is_even_and_in_bounds() {
        for (all, most) in [(0, 64), (5, 64), (100, 64), (1000, 64), (1000, 100_000), (1000, 1)] {
            let places: Vec<usize> = spread(all, most).collect();
            assert!(places.len() <= most.max(RUN_PAGES) && places.is_sorted_by(|a, b| a < b));
            assert!(places.iter().all(|&at| at < all));
            if most >= all + RUN_PAGES {
                assert_eq!(places.len(), all);
            }
        }
        assert!(spread(10_000, 160).last().unwrap() > 8_000);
    }

    #[test]
    fn the_memory_of_a_process_is_found_in_it() {
        // Values that are computed, so that no other page has them.
        let marker: Vec<u64> =
            (0..65536u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555).collect();
        let pages = anonymous_pages(std::process::id(), usize::MAX).unwrap();
        let wanted = marker[30_000].to_ne_bytes();
        assert!(
            pages.iter().any(|page| page.as_chunks::<8>().0.contains(&wanted)),
            "{} pages",
            pages.len()
        );
        assert!(anonymous_pages(std::process::id(), 64).unwrap().len() <= 64);
    }

    #[test]
    fn a_mix_has_the_same_share_of_each() {
        let corpus = |tag: u8, pages: usize| (tag.to_string(), vec![[tag; PAGE_BYTES]; pages]);
        let corpora = Corpora(vec![corpus(1, 1000), corpus(2, 5000)]);
        let mix = corpora.mix(640);
        assert_eq!(mix.len(), 640);
        assert_eq!(mix.iter().filter(|page| page[0] == 1).count(), 320);
        assert_eq!((mix[0][0], mix[RUN_PAGES][0]), (1, 2));
        assert_eq!(corpora.describe()["2"]["same_filled"], 1.0);
    }
}
