//! The disks that are measured: a server of ours, nbdkit's, and the kernel's zram; gone when they
//! go out of scope.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uzswap_cli::procfs::kib_of;
use uzswap_cli::program::reason;

use super::jobs::Place;
use super::writer::Way;
use crate::peers::{Lock, ZramDisk};
use crate::process::Running;

/// The time within which a server must listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// The name of our disk: in a directory of its own, so it may be any.
const NAME: &str = "bench";

/// A peer of `uzswap disk`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Peer {
    /// A zram device of the kernel with lz4, past the page cache (as root)
    Zram,
    /// nbdkit's memory disk, compressed by zstd
    Nbdkit,
}

impl Peer {
    pub fn name(self) -> &'static str {
        match self {
            Peer::Zram => "zram",
            Peer::Nbdkit => "nbdkit",
        }
    }
}

/// An empty disk.
pub enum Target {
    Server { server: Running, socket: PathBuf, export: &'static str, directory: PathBuf },
    Zram(ZramDisk),
}

impl Target {
    /// `uzswap disk`, as it is by default.
    pub fn uzswap(own: &Path, directory: &Path, bytes: u64) -> Result<Target, String> {
        let socket = directory.join("uzswap.sock");
        let mut command = Command::new(own);
        command.arg("disk").arg(bytes.to_string()).args(["--name", NAME, "--listen"]);
        command.arg(format!("unix:{}", socket.display())).env("XDG_RUNTIME_DIR", directory);
        Target::server(command, socket, NAME, directory)
    }

    pub fn nbdkit(directory: &Path, bytes: u64) -> Result<Target, String> {
        let socket = directory.join("nbdkit.sock");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        command.args(["memory", &format!("size={bytes}"), "allocator=zstd"]);
        Target::server(command, socket, "", directory)
    }

    pub fn zram(lock: &Lock, bytes: u64) -> Result<Target, String> {
        ZramDisk::make(lock, bytes).map(Target::Zram)
    }

    /// Waits until the server listens.
    fn server(
        mut command: Command,
        socket: PathBuf,
        export: &'static str,
        directory: &Path,
    ) -> Result<Target, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let program = command.get_program().display().to_string();
        let mut server = Running::start(&mut command)?;
        let started = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            if !server.is_alive() || started.elapsed() > PATIENCE {
                return Err(format!("{program}: no server at {}", socket.display()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Target::Server { server, socket, export, directory: directory.to_path_buf() })
    }

    /// The place where fio finds the target.
    pub fn place(&self) -> Place {
        match self {
            Target::Server { socket, export, .. } => {
                Place::Nbd { uri: format!("nbd+unix:///{export}?socket={}", socket.display()) }
            }
            Target::Zram(disk) => Place::Device { path: disk.device().display().to_string() },
        }
    }

    /// Ways for writers of ours.
    pub fn ways(&self, n: u32) -> Result<Vec<Way>, String> {
        let one = |_| match self {
            Target::Server { socket, export, .. } => Way::connect(socket, export),
            Target::Zram(disk) => Way::open(disk.device()),
        };
        (0..n).map(one).collect::<Result<_, _>>().map_err(|e| reason(&e))
    }

    /// The target's memory now, in bytes. `held_bytes`: all of a server's memory, or zram's own
    /// figure. `pool_bytes`: `mem_used_total` of `mm_stat`, which zram and our server have.
    pub fn memory(&self, own: &Path) -> Value {
        match self {
            Target::Zram(disk) => json!({"held_bytes": disk.used_bytes(),
                                         "pool_bytes": disk.used_bytes()}),
            Target::Server { server, export, directory, .. } => {
                let status = format!("/proc/{}/status", server.pid());
                let mut memory = json!({"held_bytes": kib_of(&status, "VmRSS:") * 1024});
                if *export == NAME
                    && let Some(used) = mm_stat(own, directory)
                {
                    memory["pool_bytes"] = used.into();
                }
                memory
            }
        }
    }

    /// Ends it; an error says what could not be put back.
    pub fn end(self) -> Result<(), String> {
        match self {
            Target::Zram(disk) => disk.put_back(),
            Target::Server { server, socket, .. } => {
                drop(server);
                // nbdkit leaves its socket.
                let _ = fs::remove_file(socket);
                Ok(())
            }
        }
    }
}

/// The third column of our `mm_stat`.
fn mm_stat(own: &Path, directory: &Path) -> Option<u64> {
    let mut command = Command::new(own);
    command.args(["disk", NAME, "mm_stat"]).env("XDG_RUNTIME_DIR", directory);
    let output = command.stdin(Stdio::null()).output().ok()?;
    String::from_utf8_lossy(&output.stdout).split_whitespace().nth(2)?.parse().ok()
}
