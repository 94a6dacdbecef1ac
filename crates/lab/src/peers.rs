//! The peers in the kernel: switched on for one run, and put back however that run ends.
//!
//! ```text
//!  Peer::switch_on ─> knobs (page-cluster, zswap) ─> device or file ─> swapon ─> memory cgroup
//!        drop ──────> the same steps undone, last first
//! ```
//!
//! Every step that changes the machine pushes its undoing on a list before the next step is tried,
//! so a failure half-way, an error of the run, a panic-free return and Ctrl-C (see
//! `process::Interrupt`) all end in the same list being worked off. Only SIGKILL of the benchmark
//! leaves something behind. These settings are the whole machine's: a
//! [`Lock`] keeps two benchmarks from restoring each other's values.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use uzswap_cli::console;
use uzswap_cli::procfs::{kib_of, value_of};
use uzswap_cli::program::reason;

/// A compressed or plain swap of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// zswap with lzo, in front of a swap file on disk.
    Zswap,
    /// A zram swap device with lz4.
    Zram,
    /// The swap file alone.
    Swap,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Zswap, Kind::Zram, Kind::Swap];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Zswap => "zswap",
            Kind::Zram => "zram",
            Kind::Swap => "swap",
        }
    }
}

/// The settings that a peer is switched on with.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    pub kind: Kind,
    /// Read-ahead: 2^n pages at a time.
    pub page_cluster: u32,
    /// Limit of the memory cgroup.
    pub limit_bytes: u64,
    /// Size of the swap device or file.
    pub swap_bytes: u64,
    /// Where the swap file goes.
    pub directory: &'a Path,
}

const ZSWAP: &str = "/sys/module/zswap/parameters";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const CGROUP_V1: &str = "/sys/fs/cgroup/memory";
const CGROUP_V2: &str = "/sys/fs/cgroup";

/// Whether we may change swap and cgroups at all; if not, why.
pub fn privileged() -> Result<(), String> {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = (status.lines())
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    match effective >> CAP_SYS_ADMIN & 1 {
        1 => Ok(()),
        _ => Err("switching swap on needs root (CAP_SYS_ADMIN)".to_string()),
    }
}

/// The right to change the machine's swap settings.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

impl Lock {
    pub fn take() -> Result<Lock, String> {
        let path = "/run/uzswap-bench.lock";
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
        let file = file.map_err(|e| format!("{path}: {}", reason(&e)))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(_) => Err("another benchmark has changed the machine's swap settings".to_string()),
        }
    }
}

/// A peer that is switched on.
pub struct Peer {
    undo: UndoList,
    group: PathBuf,
    pool: Pool,
}

/// Where to read how much memory the compressed pages take.
enum Pool {
    Zram(PathBuf),
    Zswap,
    None,
}

impl Peer {
    pub fn switch_on(_lock: &Lock, plan: Plan) -> Result<Peer, String> {
        let mut undo = UndoList::default();
        undo.set(PAGE_CLUSTER, &plan.page_cluster.to_string())?;
        let zswap_enabled = format!("{ZSWAP}/enabled");
        match plan.kind {
            Kind::Zswap => {
                undo.set(&format!("{ZSWAP}/compressor"), "lzo")?;
                undo.set(&zswap_enabled, "Y")?;
            }
            // Where zswap is on by default it would stand in front of the others.
            _ if Path::new(&zswap_enabled).exists() => undo.set(&zswap_enabled, "N")?,
            _ => {}
        }
        let pool = match plan.kind {
            Kind::Zram => {
                let (block, device) = zram(&mut undo, plan.swap_bytes)?;
                swap_on(&mut undo, &device)?;
                Pool::Zram(block)
            }
            Kind::Zswap | Kind::Swap => {
                swap_file(&mut undo, plan.directory, plan.swap_bytes)?;
                if plan.kind == Kind::Zswap { Pool::Zswap } else { Pool::None }
            }
        };
        let group = group(&mut undo, plan.limit_bytes)?;
        Ok(Peer { undo, group, pool })
    }

    /// The memory cgroup for the process to measure.
    pub fn group(&self) -> &Path {
        &self.group
    }

    /// Memory that compressed pages take now.
    pub fn pool_bytes(&self) -> u64 {
        match &self.pool {
            Pool::None => 0,
            Pool::Zram(block) => zram_used_bytes(block),
            Pool::Zswap => kib_of("/proc/meminfo", "Zswap:") * 1024,
        }
    }

    /// How many processes of the group the kernel has killed because they found no memory.
    pub fn out_of_memory_kills(&self) -> u64 {
        out_of_memory_kills(&self.group)
    }

    /// Puts everything back. The error names what could not be put back.
    pub fn put_back(mut self) -> Result<(), String> {
        self.undo.put_back()
    }
}

/// A memory cgroup that may not swap: for a program that does its own paging.
pub struct Fence {
    undo: UndoList,
    group: PathBuf,
}

impl Fence {
    pub fn put_up(limit_bytes: u64) -> Result<Fence, String> {
        let mut undo = UndoList::default();
        let group = group(&mut undo, limit_bytes)?;
        // The first is of cgroup v1, the second of v2, where the kernel counts swap.
        let file = ["memory.swappiness", "memory.swap.max"].map(|name| group.join(name));
        match file.iter().find(|file| file.exists()) {
            Some(file) => {
                fs::write(file, "0").map_err(|e| format!("{}: {}", file.display(), reason(&e)))?
            }
            None => return Err(format!("{} cannot be kept from swapping", group.display())),
        }
        Ok(Fence { undo, group })
    }

    pub fn group(&self) -> &Path {
        &self.group
    }

    /// How many processes of the group the kernel has killed because they found no memory.
    pub fn out_of_memory_kills(&self) -> u64 {
        out_of_memory_kills(&self.group)
    }

    /// Removes the group; an error says what could not be undone.
    pub fn put_back(mut self) -> Result<(), String> {
        self.undo.put_back()
    }
}

fn out_of_memory_kills(group: &Path) -> u64 {
    // The first is of cgroup v1, the second of v2.
    let files = ["memory.oom_control", "memory.events"];
    let texts = files.iter().filter_map(|file| fs::read_to_string(group.join(file)).ok());
    texts.map(|text| value_of(&text, "oom_kill ")).sum()
}

/// Whether the kernel counts zswap's pool against the memory cgroup (cgroup v2 does, v1 does not;
/// zram's never is).
pub fn pool_is_charged(kind: Kind) -> bool {
    kind == Kind::Zswap && !Path::new(CGROUP_V1).join("memory.limit_in_bytes").exists()
}

type Step = Box<dyn FnMut() -> io::Result<()>>;

/// The steps to have the machine as it was.
#[derive(Default)]
struct UndoList(Vec<(String, Step)>);

impl UndoList {
    fn push(&mut self, what: impl Into<String>, step: impl FnMut() -> io::Result<()> + 'static) {
        self.0.push((what.into(), Box::new(step)));
    }

    /// Works the list off; an error says what could not be undone.
    fn put_back(&mut self) -> Result<(), String> {
        match self.run() {
            failures if failures.is_empty() => Ok(()),
            failures => Err(failures.join("; ")),
        }
    }

    /// Works the list off, last first; returns what failed.
    fn run(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        while let Some((what, mut step)) = self.0.pop() {
            if let Err(e) = step() {
                failures.push(format!("{what}: {}", reason(&e)));
            }
        }
        failures
    }

    /// Writes a setting; undone by writing the value it had.
    fn set(&mut self, path: &str, value: &str) -> Result<(), String> {
        let named = |e: io::Error| format!("{path}: {}", reason(&e));
        let before = fs::read_to_string(path).map_err(named)?.trim().to_string();
        if before != value {
            fs::write(path, value).map_err(named)?;
            let path = path.to_string();
            self.push(format!("setting {path} back to {before}"), move || {
                fs::write(&path, &before)
            });
        }
        Ok(())
    }
}

impl Drop for UndoList {
    fn drop(&mut self) {
        for failure in self.run() {
            console::say(&format!("not put back: {failure}"));
        }
    }
}

/// A zram device that nobody swaps to.
pub struct ZramDisk {
    undo: UndoList,
    block: PathBuf,
    device: PathBuf,
}

impl ZramDisk {
    pub fn make(_lock: &Lock, bytes: u64) -> Result<ZramDisk, String> {
        let mut undo = UndoList::default();
        let (block, device) = zram(&mut undo, bytes)?;
        Ok(ZramDisk { undo, block, device })
    }

    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Memory that its contents take.
    pub fn used_bytes(&self) -> u64 {
        zram_used_bytes(&self.block)
    }

    /// Removes the device; an error says what could not be undone.
    pub fn put_back(mut self) -> Result<(), String> {
        self.undo.put_back()
    }
}

/// `mem_used_total`, the third column of `mm_stat`.
fn zram_used_bytes(block: &Path) -> u64 {
    let stat = fs::read_to_string(block.join("mm_stat")).unwrap_or_default();
    stat.split_whitespace().nth(2).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Makes a zram device with lz4. Returns its directory in /sys, and its file.
fn zram(undo: &mut UndoList, bytes: u64) -> Result<(PathBuf, PathBuf), String> {
    if !Path::new(ZRAM_CONTROL).exists() {
        tool("modprobe", &["zram".as_ref()]).map_err(|e| format!("zram is not there ({e})"))?;
        undo.push("unloading zram", || {
            tool("modprobe", &["-r".as_ref(), "zram".as_ref()]).map_err(io::Error::other)
        });
    }
    let add = format!("{ZRAM_CONTROL}/hot_add");
    let number =
        fs::read_to_string(&add).map_err(|e| format!("{add}: {}", reason(&e)))?.trim().to_string();
    let block = PathBuf::from(format!("/sys/block/zram{number}"));
    let device = PathBuf::from(format!("/dev/zram{number}"));
    let reset = block.join("reset");
    undo.push(format!("removing {}", device.display()), move || {
        patiently(|| fs::write(&reset, "1"))?;
        patiently(|| fs::write(format!("{ZRAM_CONTROL}/hot_remove"), &number))
    });
    for (name, value) in [("comp_algorithm", "lz4".to_string()), ("disksize", bytes.to_string())] {
        let path = block.join(name);
        fs::write(&path, value).map_err(|e| format!("{}: {}", path.display(), reason(&e)))?;
    }
    patiently(|| fs::metadata(&device))
        .map_err(|e| format!("{}: {}", device.display(), reason(&e)))?;
    Ok((block, device))
}

/// Makes a swap file without holes and swaps to it.
fn swap_file(undo: &mut UndoList, directory: &Path, bytes: u64) -> Result<(), String> {
    let path = directory.join(format!("uzswap-bench-{}.swap", std::process::id()));
    let named = |e: io::Error| format!("{}: {}", path.display(), reason(&e));
    let file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(named)?;
    let undone = path.clone();
    undo.push(format!("removing {}", path.display()), move || fs::remove_file(&undone));
    nix::fcntl::posix_fallocate(&file, 0, bytes as i64).map_err(|e| named(e.into()))?;
    swap_on(undo, &path)
}

fn swap_on(undo: &mut UndoList, path: &Path) -> Result<(), String> {
    // Before any other swap there is, so that all pages come here.
    const HIGHEST_PRIORITY: &str = "32767";
    tool("mkswap", &[path])?;
    tool("swapon", &["-p".as_ref(), HIGHEST_PRIORITY.as_ref(), path])?;
    let path = path.to_path_buf();
    undo.push(format!("swapoff {}", path.display()), move || {
        tool("swapoff", &[&path]).map_err(io::Error::other)
    });
    Ok(())
}

/// Makes a memory cgroup with a limit, of whichever version is there.
fn group(undo: &mut UndoList, limit_bytes: u64) -> Result<PathBuf, String> {
    let name = format!("uzswap-bench-{}", std::process::id());
    let v1 = Path::new(CGROUP_V1).join("memory.limit_in_bytes").exists();
    let (root, limit) =
        if v1 { (CGROUP_V1, "memory.limit_in_bytes") } else { (CGROUP_V2, "memory.max") };
    let path = Path::new(root).join(name);
    let named = |path: &Path, e: io::Error| format!("{}: {}", path.display(), reason(&e));
    fs::create_dir(&path).map_err(|e| named(&path, e))?;
    let undone = path.clone();
    // A process that was reaped just now may still count as a member for a moment.
    undo.push(format!("removing {}", path.display()), move || {
        patiently(|| fs::remove_dir(&undone))
    });
    let limit = path.join(limit);
    fs::write(&limit, limit_bytes.to_string()).map_err(|e| named(&limit, e))?;
    Ok(path)
}

/// Repeats what may fail for a moment.
fn patiently<T>(mut action: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let started = Instant::now();
    loop {
        match action() {
            Err(_) if started.elapsed() < Duration::from_secs(3) => {
                sleep(Duration::from_millis(10))
            }
            result => return result,
        }
    }
}

/// Runs a tool of the system; its complaint is the error.
fn tool(name: &str, arguments: &[&Path]) -> Result<(), String> {
    // Users' search paths often lack the places where these are.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = (Command::new(name).args(arguments).env("PATH", path))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{name}: {}", reason(&e)))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or(name).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn plan(kind: Kind, directory: &Path) -> Plan<'_> {
        Plan { kind, page_cluster: 1, limit_bytes: 64 * MIB, swap_bytes: 16 * MIB, directory }
    }

    /// The changes of switching on, as the machine shows them. Other programs' swap devices are
    /// left out.
    fn state(own: &str) -> Vec<String> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut state: Vec<String> =
            read("/proc/swaps").lines().filter(|l| l.contains(own)).map(String::from).collect();
        for path in
            [PAGE_CLUSTER.to_string(), format!("{ZSWAP}/enabled"), format!("{ZSWAP}/compressor")]
        {
            state.push(read(&path));
        }
        let groups = |root: &str| fs::read_dir(root).into_iter().flatten().flatten();
        let is_ours =
            |name: &str| name.starts_with(&format!("uzswap-bench-{}", std::process::id()));
        for entry in groups(CGROUP_V1).chain(groups(CGROUP_V2)).chain(groups("/var/tmp")) {
            let name = entry.file_name().to_string_lossy().into_owned();
            state.extend(is_ours(&name).then_some(name));
        }
        for entry in groups("/sys/block") {
            let name = entry.file_name().to_string_lossy().into_owned();
            state.extend(name.starts_with("zram").then_some(name));
        }
        state
    }

    #[test]
    fn what_is_switched_on_is_put_back() {
        let lock = match privileged().and_then(|()| Lock::take()) {
            Ok(lock) => lock,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let directory = Path::new("/var/tmp");
        for kind in Kind::ALL {
            let own = if kind == Kind::Zram { "zram" } else { "uzswap-bench" };
            let before = state(own);
            let there = match kind {
                Kind::Zswap => Path::new(ZSWAP).exists(),
                Kind::Zram => Path::new(ZRAM_CONTROL).exists(),
                Kind::Swap => true,
            };
            if !there {
                eprintln!("skipped {}: this kernel has none", kind.name());
                continue;
            }
            let peer = Peer::switch_on(&lock, plan(kind, directory)).unwrap();
            let during = state(own);
            assert!(
                during.iter().any(|l| l.contains(own) && l.contains("32767")),
                "{kind:?}: no swap: {during:?}"
            );
            assert_eq!(fs::read_to_string(PAGE_CLUSTER).unwrap().trim(), "1");
            assert!(peer.group().join("cgroup.procs").exists());
            let enabled = fs::read_to_string(format!("{ZSWAP}/enabled")).unwrap_or_default();
            assert_eq!(enabled.trim() == "Y", kind == Kind::Zswap);
            peer.put_back().unwrap();
            assert_eq!(state(own), before, "{kind:?}");

            // Switched off without a word, as when a run fails.
            drop(Peer::switch_on(&lock, plan(kind, directory)).unwrap());
            assert_eq!(state(own), before, "{kind:?}");
        }

        // Half-way: the cgroup's name is taken, after all else was switched on.
        let mut undo = UndoList::default();
        group(&mut undo, 64 * MIB).unwrap();
        let before = state("uzswap-bench");
        let error =
            Peer::switch_on(&lock, plan(Kind::Swap, directory)).err().expect("the name is taken");
        assert!(error.contains("uzswap-bench"), "{error}");
        assert_eq!(state("uzswap-bench"), before);
    }

    #[test]
    fn undoing_goes_backwards_and_goes_on_after_a_failure() {
        use std::sync::{Arc, Mutex};
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut list = UndoList::default();
        for step in 1..=3 {
            let seen = Arc::clone(&seen);
            list.push(format!("step {step}"), move || {
                seen.lock().unwrap().push(step);
                if step == 2 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
            });
        }
        assert_eq!(list.run(), ["step 2: no space left"]);
        assert_eq!(*seen.lock().unwrap(), [3, 2, 1]);
    }
}
