//! The work in one arm: the beginning of its command line, and the figures that its limit's holder
//! has at the end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};

use super::Outcome;
use crate::peers::Fence;
use crate::process::{self, Interrupt};
use uzswap_cli::Failure;
use uzswap_cli::place::own_path;

/// The beginning of `uzswap run`.
pub(super) fn own_run() -> Result<Command, Failure> {
    let mut command = Command::new(uzswap()?);
    command.args(["run", "--quiet"]);
    Ok(command)
}

/// The work under `uzswap run`, whose command line has begun. If the counter `sign` is missing or
/// zero, uzswap was not there.
pub(super) fn under_uzswap(
    mut command: Command,
    sign: &str,
    run: &mut Value,
    work: impl FnOnce(Command, &mut dyn FnMut()) -> Outcome,
) -> Outcome {
    let stats = std::env::temp_dir().join(format!("uzswap-bench-{}.json", std::process::id()));
    command.arg("--stats").arg(&stats).arg("--");
    let result = work(command, &mut || ());
    let text = std::fs::read_to_string(&stats).unwrap_or_default();
    let _ = std::fs::remove_file(&stats);
    run["stats"] = serde_json::from_str(&text).unwrap_or(Value::Null);
    let signs = run["stats"]["counters"][sign].as_u64();
    result.map(|result| match signs {
        // A run that was not managed measures nothing, however good its figures.
        Some(0) | None if result.is_ok() => Err("it ran unmanaged".to_string()),
        _ => result,
    })
}

pub(super) fn in_group(
    limit_bytes: u64,
    run: &mut Value,
    work: impl FnOnce(Command, &mut dyn FnMut()) -> Outcome,
) -> Outcome {
    let fence = match Fence::put_up(limit_bytes) {
        Ok(fence) => fence,
        Err(why) => return Ok(Err(why)),
    };
    let mut command = entering(fence.group());
    command.arg(uzswap()?).args(["run", "--quiet"]);
    // It may well fit: then its processes are taken over, and that is all.
    let mut result = under_uzswap(command, "processes", run, work)?;
    run["limit_bytes"] = limit_bytes.into();
    if let (Err(why), 1..) = (&mut result, fence.out_of_memory_kills()) {
        *why = format!("out of memory: {why}");
    }
    match fence.put_back() {
        Ok(()) => Ok(result),
        Err(failures) => Err(Failure::failed(format!("not put back: {failures}"))),
    }
}

/// The product, which lies beside this command.
pub fn uzswap() -> Result<PathBuf, Failure> {
    let own = own_path()?;
    let path = own.with_file_name("uzswap");
    match path.is_file() {
        true => Ok(path),
        false => Err(Failure::environment(format!(
            "there is no uzswap beside {}: build it (cargo build --release), or install both in \
             one folder",
            own.display()
        ))),
    }
}

/// The beginning of a command line that runs in a memory cgroup.
pub fn entering(group: &Path) -> Command {
    let mut command = Command::new("sh");
    // The shell becomes the program: whatever the program allocates is counted from the first page
    // on.
    command.args(["-c", "echo 0 >\"$0\"/cgroup.procs && exec \"$@\""]).arg(group);
    command
}

/// The work of a process that says one line of JSON while it still holds its memory, see
/// [`process::one_line`]. The line becomes `worker`.
pub fn hear_worker(
    command: &mut Command,
    interrupt: &Interrupt,
    look: &mut dyn FnMut(),
) -> Outcome {
    let line = process::one_line(command, interrupt, look)?;
    let parse = |line: String| match serde_json::from_str::<Value>(&line) {
        Ok(worker) => Ok(Map::from_iter([("worker".to_string(), worker)]).into()),
        Err(e) => Err(format!("the worker's answer: {e}")),
    };
    Ok(line.and_then(parse))
}

/// Does the work while the group's statistics are read again and again.
///
/// Reclaim decides by them whether active pages may be taken at all, and brings them up to date
/// every few seconds only. Where all pages of a small group become active in less, it finds nothing
/// to take and kills, with most of the swap free (seen with Linux 6.18, cgroup v1). Reading them is
/// what brings them up to date at once: a courtesy to the peers, without which there is often
/// nothing to compare with.
pub(super) fn with_fresh_statistics<T>(group: &Path, work: impl FnOnce() -> T) -> T {
    const PAUSE: Duration = Duration::from_millis(20);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = std::fs::read(group.join("memory.stat"));
                thread::sleep(PAUSE);
            }
        });
        let result = work();
        over.store(true, Ordering::Relaxed);
        result
    })
}

pub(super) fn vmstat() -> Map<String, Value> {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs
        .filter(|(key, _)| key.starts_with("pswp") || key.starts_with("zswp"))
        .filter_map(|(key, value)| Some((key.to_string(), value.parse::<u64>().ok()?.into())))
        .collect()
}

pub(super) fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Value {
    let of = |map: &Map<String, Value>, key| map.get(key).and_then(Value::as_u64).unwrap_or(0);
    after
        .keys()
        .map(|key| (key.clone(), (of(after, key) - of(before, key)).into()))
        .collect::<Map<_, _>>()
        .into()
}
