//! Orders to a disk: a line of words, and an answer in text. The words are zram's where it has
//! some.
//!
//! ```text
//!  mm_stat | io_stat | bd_stat | stats          lines of numbers
//!  idle all | idle SECONDS                      marks what was not used since
//!  writeback idle|huge|huge_idle|incompressible [max_pages=N]
//!  recompress [idle|huge|huge_idle] [threshold=BYTES] [max_pages=N]
//!  compact | reset
//!  set memory=BYTES | compressor=NAME | recompressor=NAME|none | writeback_limit=PAGES|none
//!      | idle_after=SECONDS|0 | read_only=0|1
//! ```
//! Sizes and times are plain numbers here; the command turns `1G` and `10m` into them.

use std::io::{self, BufRead, BufReader, Read, Write};

use uzswap::cache::Which;
use uzswap::codec::CodecSpec;

use crate::disk::{Disk, PAGE_BYTES};
use crate::keeper::Upkeep;
use crate::server::Server;
use crate::stats;

/// The longest line.
pub const LINE_BYTES: u64 = 4096;

type Answer = Result<String, String>;

/// Does what a line says.
pub fn run(line: &str, server: &Server) -> Answer {
    let (disk, upkeep) = (&*server.disk, &*server.upkeep);
    let mut words = line.split_whitespace();
    let order = words.next().unwrap_or_default();
    let rest: Vec<&str> = words.collect();
    let no_more = |answer: String| match rest.first() {
        None => Ok(answer),
        Some(word) => Err(format!("'{order}' takes no '{word}'")),
    };
    match order {
        "mm_stat" => no_more(stats::mm_stat(disk)),
        "io_stat" => no_more(stats::io_stat(disk)),
        "bd_stat" => no_more(stats::bd_stat(disk)),
        "stats" => {
            no_more(stats::all(disk) + &upkeep.stats() + &format!("clients {}\n", server.clients()))
        }
        "idle" => idle(&rest, disk),
        "writeback" => write_back(&rest, disk, upkeep),
        "recompress" => recompress(&rest, disk),
        "compact" => {
            no_more(String::new())?;
            Ok(format!("{} bytes freed\n", disk.compact() * PAGE_BYTES))
        }
        "reset" => {
            no_more(String::new())?;
            if disk.is_read_only() {
                return Err("the disk is read-only".to_string());
            }
            disk.reset();
            Ok("all blocks are zero now\n".to_string())
        }
        "set" => set(&rest, disk, upkeep),
        "" => Err("an order is missing".to_string()),
        _ => Err(format!(
            "there is no order '{order}': mm_stat, io_stat, bd_stat, stats, idle, writeback, \
             recompress, compact, reset or set"
        )),
    }
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name}: '{value}' is no number"))
}

fn idle(words: &[&str], disk: &Disk) -> Answer {
    let now = disk.second();
    let latest = match words {
        ["all"] => now,
        [seconds] => {
            let seconds = number("idle", seconds)?;
            // No page is older than the disk, so none is idle for so long.
            let Some(latest) = u64::from(now).checked_sub(seconds).filter(|at| *at > 0) else {
                return Ok(String::new());
            };
            latest as u32
        }
        _ => return Err("idle takes 'all' or a number of seconds".to_string()),
    };
    disk.cache().mark_idle(latest);
    Ok(String::new())
}

/// The pages and bounds that words name.
struct Scope {
    which: Which,
    max_pages: u64,
}

fn scope(words: &[&str], threshold: bool) -> Result<Scope, String> {
    let mut scope = Scope { which: Which::default(), max_pages: u64::MAX };
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or(("type", word));
        match (name, value) {
            ("type", "idle") => scope.which.idle = true,
            ("type", "huge") => scope.which.huge = true,
            ("type", "huge_idle") => (scope.which.idle, scope.which.huge) = (true, true),
            ("type", "incompressible") if !threshold => scope.which.incompressible = true,
            ("max_pages", value) => scope.max_pages = number(name, value)?,
            ("threshold", value) if threshold => {
                scope.which.least_bytes =
                    usize::try_from(number(name, value)?).unwrap_or(usize::MAX);
            }
            ("type", other) => return Err(format!("there are no pages of type '{other}'")),
            (other, _) => return Err(format!("there is no parameter '{other}'")),
        }
    }
    Ok(scope)
}

fn write_back(words: &[&str], disk: &Disk, upkeep: &Upkeep) -> Answer {
    let scope = scope(words, false)?;
    if scope.which == Which::default() {
        return Err("writeback takes idle, huge, huge_idle or incompressible".to_string());
    }
    if !disk.has_store() {
        return Err("the disk has no store: begin it with --store DIR".to_string());
    }
    let pages = upkeep.write_back(disk, scope.which, scope.max_pages);
    // The last of them may be on their way still, and stay in memory.
    match disk.cache().store_failure() {
        None => Ok(format!("{pages} pages written back\n")),
        Some(errno) => {
            let why = io::Error::from_raw_os_error(errno.0);
            Err(format!("the store has failed after {pages} pages: {why}"))
        }
    }
}

fn recompress(words: &[&str], disk: &Disk) -> Answer {
    let scope = scope(words, true)?;
    let before = disk.cache().counters().recompressed_pages;
    let pages = usize::try_from(scope.max_pages).unwrap_or(usize::MAX);
    let tried = disk.cache().recompress_which(scope.which, pages);
    let smaller = disk.cache().counters().recompressed_pages.saturating_sub(before);
    Ok(format!("{tried} pages tried, {smaller} are smaller now\n"))
}

fn set(words: &[&str], disk: &Disk, upkeep: &Upkeep) -> Answer {
    let [word] = words else { return Err("set takes one NAME=VALUE".to_string()) };
    let Some((name, value)) = word.split_once('=') else {
        return Err(format!("'{word}' is no NAME=VALUE"));
    };
    let codec = |value: &str| CodecSpec::parse(value).map_err(|why| format!("{name}: {why}"));
    match name {
        "memory" => disk.set_memory_bytes(number(name, value)?),
        "compressor" => disk.cache().set_codec(codec(value)?),
        "recompressor" if value == "none" => disk.cache().set_recompressor(None),
        "recompressor" => disk.cache().set_recompressor(Some(codec(value)?)),
        "writeback_limit" if value == "none" => upkeep.set_write_back_limit(None),
        "writeback_limit" => upkeep.set_write_back_limit(Some(number(name, value)?)),
        "idle_after" => upkeep.set_idle_after(number(name, value)?),
        "read_only" => disk.set_read_only(match value {
            "0" => false,
            "1" => true,
            _ => return Err(format!("read_only is 0 or 1, not '{value}'")),
        }),
        _ => return Err(format!("there is no setting '{name}'")),
    }
    Ok(String::new())
}

/// Answers one line of a connection; says when the line is there and its work done.
pub fn serve<S: Read + Write>(
    mut stream: S,
    server: &Server,
    is_done: impl FnOnce(),
) -> io::Result<()> {
    let mut line = Vec::new();
    BufReader::new((&mut stream).take(LINE_BYTES)).read_until(b'\n', &mut line)?;
    let answer = match std::str::from_utf8(&line) {
        Ok(text) if text.ends_with('\n') => run(text, server),
        _ => Err("an order is one line of text".to_string()),
    };
    is_done();
    match answer {
        Ok(text) => stream.write_all(format!("ok\n{text}").as_bytes()),
        Err(why) => stream.write_all(format!("error\n{why}\n").as_bytes()),
    }
}
