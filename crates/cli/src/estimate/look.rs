//! One look at a process: which of its memory is there, and which it has touched since the last
//! clearing.
//!
//! ```text
//!  /proc/PID/clear_refs <- "1"      every page counts as not touched
//!  ... the program runs; the processor marks the entry of each page that it touches ...
//!  /proc/PID/smaps  ->  for each area: Anonymous:, Referenced:
//! ```
//!
//! An *area* is one mapping of what uzswap would manage: private memory without a file. The kernel
//! tells how much of each was touched, not which pages. A huge page (2 MiB) counts as touched
//! whole: it is one entry.

use std::fs;
use std::io::{self, ErrorKind};

use crate::program::reason;

pub const PAGE_KIB: f64 = 4.0;
const HUGE_KIB: f64 = 2048.0;

/// One mapping of private memory without a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    pub start: u64,
    pub end: u64,
    pub anonymous_kib: u64,
    pub referenced_kib: u64,
    pub huge_kib: u64,
    /// Whether it is under userfaultfd and not limbo.
    pub is_managed: bool,
}

/// The areas of a process that hold something; none if it has ended, or is a thread of the kernel.
pub fn look(pid: u32) -> io::Result<Vec<Area>> {
    // The text may hold names of files, which are any bytes.
    Ok(parse(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/smaps"))?)))
}

/// Makes all pages of a process count as not touched.
pub fn clear(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "1")
}

fn parse(smaps: &str) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    let mut is_ours = false;
    for line in smaps.lines() {
        let Some(letter) = line.bytes().next() else { continue };
        if !letter.is_ascii_uppercase() {
            let header = header(line);
            is_ours = header.is_some();
            areas.extend(header);
        } else if is_ours && let Some(area) = areas.last_mut() {
            let place = match line.split(':').next() {
                Some("Anonymous") => &mut area.anonymous_kib,
                Some("Referenced") => &mut area.referenced_kib,
                Some("AnonHugePages") => &mut area.huge_kib,
                Some("VmFlags") => {
                    let has = |flag| line.split_whitespace().any(|f| f == flag);
                    // Limbo is under userfaultfd, too, but uzswap's own: neither reserved nor
                    // dumped.
                    area.is_managed = has("um") && !(has("nr") && has("dd"));
                    continue;
                }
                _ => continue,
            };
            *place = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        }
    }
    areas.retain(|area| area.anonymous_kib > 0);
    areas
}

/// `55d0c0a00000-55d0c0b21000 rw-p 00000000 00:00 0          [heap]`, if uzswap would manage it.
fn header(line: &str) -> Option<Area> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (rights, inode) = (fields.next()?, fields.nth(2)?);
    let name = fields.next().unwrap_or("");
    let is_managed =
        rights.ends_with('p') && inode == "0" && !matches!(name, "[stack]" | "[vvar]" | "[vdso]");
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    is_managed.then_some(Area { start, end, ..Area::default() })
}

/// Pages that were touched again between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Again {
    pub kib: u64,
    /// Entries that the processor marked for it, one for a whole huge page.
    pub marks: f64,
}

/// Memory that was there before and had not been touched, and is touched now. New memory is
/// touched, too, but nobody would have to bring it back. The sum is by area, so that an area that
/// goes does not hide touches in another.
pub fn touched_again(before: &[Area], now: &[Area]) -> Again {
    let mut sum = Again::default();
    for area in now {
        // The heap grows at its end, what mmap gives at its beginning.
        let same = |old: &&Area| old.start == area.start || old.end == area.end;
        let Some(old) = before.iter().find(same) else { continue };
        let new_kib = area.anonymous_kib.saturating_sub(old.anonymous_kib);
        let kib = area.referenced_kib.saturating_sub(old.referenced_kib + new_kib);
        let huge = (area.huge_kib as f64 / area.anonymous_kib.max(1) as f64).min(1.0);
        sum.kib += kib;
        sum.marks += kib as f64 * ((1.0 - huge) / PAGE_KIB + huge / HUGE_KIB);
    }
    sum
}

/// Whether we may look at a process, before it is tried; if not, why, with the remedy.
pub fn permit(pid: u32) -> Result<(), String> {
    let directory = format!("/proc/{pid}");
    if pid == 0 || fs::metadata(&directory).is_err() {
        return Err(format!("there is no process {pid}: see 'ps -e'"));
    }
    let what = named(pid);
    let refused = |e: &io::Error| match e.kind() {
        ErrorKind::PermissionDenied => {
            match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
                Ok(scope) if scope.trim() != "0" => format!(
                    "{what} may not be looked into (kernel.yama.ptrace_scope is {}): do it as \
                     root, or start the program with 'uzswap estimate -- COMMAND'",
                    scope.trim()
                ),
                _ => {
                    format!("{what} is not ours: do it as the user that it belongs to, or as root")
                }
            }
        }
        ErrorKind::NotFound => format!("there is no process {pid}: it has just ended"),
        // The kernel's answer for its own threads.
        _ if e.raw_os_error() == Some(libc::ESRCH) => no_memory(&what),
        _ => format!("{what}: {}", reason(e)),
    };
    fs::File::open(format!("{directory}/mem")).map_err(|e| refused(&e))?;
    let maps = fs::read(format!("{directory}/maps")).map_err(|e| refused(&e))?;
    let maps = String::from_utf8_lossy(&maps);
    if maps.is_empty() {
        return Err(no_memory(&what));
    }
    refuse_managed(pid, &maps)?;
    clear(pid).map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!(
            "this kernel does not tell which pages are touched ({directory}/clear_refs is \
             missing): use one with CONFIG_PROC_PAGE_MONITOR"
        ),
        _ => refused(&e),
    })
}

/// Refuses a process that has come under uzswap since it was permitted: one that was between two
/// programs, as the shells that start others are, has no library for a moment.
pub fn permit_still(pid: u32) -> Result<(), String> {
    // One that has ended stays permitted.
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    refuse_managed(pid, &String::from_utf8_lossy(&maps))
}

fn refuse_managed(pid: u32, maps: &str) -> Result<(), String> {
    if !maps.contains("libuzswap_preload") {
        return Ok(());
    }
    Err(format!("{} is under uzswap already: 'uzswap ps' shows what it holds", named(pid)))
}

fn named(pid: u32) -> String {
    format!("process {pid} ({})", crate::os::name_of(pid))
}

fn no_memory(what: &str) -> String {
    format!("{what} has no memory of its own: it is a thread of the kernel, or has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0a00000-55d0c0b21000 rw-p 00000000 00:00 0                          [heap]
Size:               1156 kB
Rss:                1100 kB
Referenced:          300 kB
Anonymous:          1100 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Referenced:         2048 kB
Anonymous:          2048 kB
AnonHugePages:      2048 kB
7f1000000000-7f1000001000 r--p 00000000 08:01 1234                       /usr/lib/libc.so.6
Referenced:            4 kB
Anonymous:             4 kB
7f1000002000-7f1000003000 rw-s 00000000 00:01 77                         /memfd:x (deleted)
Anonymous:             4 kB
7f2000000000-7f2000001000 rw-p 00000000 00:00 0
Referenced:            0 kB
Anonymous:             0 kB
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
Anonymous:            40 kB
";

    #[test]
    fn what_uzswap_would_manage_is_found() {
        let heap = Area {
            start: 0x55d0_c0a0_0000,
            end: 0x55d0_c0b2_1000,
            anonymous_kib: 1100,
            referenced_kib: 300,
            ..Area::default()
        };
        let huge = Area {
            start: 0x7f00_0000_0000,
            end: 0x7f00_0020_0000,
            anonymous_kib: 2048,
            referenced_kib: 2048,
            huge_kib: 2048,
            ..Area::default()
        };
        assert_eq!(parse(SMAPS), [heap, huge]);
        assert_eq!(parse(""), []);
        // Under userfaultfd, and limbo, which is uzswap's own.
        let flagged = |flags| parse(&SMAPS.replace("rd wr mr mw me ac", flags))[0].is_managed;
        assert_eq!(
            ["rd wr um uw ac", "rd wr um nr dd", "rd wr nr dd"].map(flagged),
            [true, false, false]
        );
    }

    #[test]
    fn new_memory_is_not_touched_again() {
        let area = |start, end, anonymous_kib, referenced_kib| Area {
            start,
            end,
            anonymous_kib,
            referenced_kib,
            ..Area::default()
        };
        let before = [area(10, 20, 100, 40), area(50, 60, 80, 0)];
        let kib = |now: &[Area]| touched_again(&before, now).kib;
        assert_eq!(kib(&[area(10, 20, 100, 70), area(50, 60, 80, 0)]), 30);
        // One grows upwards by 50, of which it touches all, and 10 more; one downwards; a third is
        // new.
        let now = [area(10, 30, 150, 100), area(40, 60, 120, 45), area(90, 99, 10, 10)];
        assert_eq!(kib(&now), 10 + 5);
        // One has gone.
        assert_eq!(kib(&[area(50, 60, 80, 8)]), 8);
    }

    #[test]
    fn a_huge_page_is_one_mark() {
        let area = |referenced_kib, huge_kib| Area {
            start: 10,
            end: 20,
            anonymous_kib: 8192,
            referenced_kib,
            huge_kib,
            ..Area::default()
        };
        let marks = |huge_kib| touched_again(&[area(0, huge_kib)], &[area(4096, huge_kib)]).marks;
        assert_eq!((marks(0), marks(8192)), (1024.0, 2.0));
    }

    #[test]
    fn this_process_may_be_looked_into() {
        let own = std::process::id();
        permit(own).unwrap();
        assert!(look(own).unwrap().iter().any(|area| area.referenced_kib > 0));
        let error = permit(u32::MAX >> 1).unwrap_err();
        assert!(error.contains("there is no process 2147483647"), "{error}");
    }
}
