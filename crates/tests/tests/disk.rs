//! `uzswap disk` before foreign judges: libnbd's tools, QEMU's block layer, fio, nbdkit's filters,
//! ext4 by way of a loop device, and the kernel's client. Each case is a script that runs on a disk
//! of its own (`programs/disk`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;

use uzswap_tests::suite::command;
use uzswap_tests::workshop::source;
use uzswap_tests::{Suite, User, Verdict, Workshop, patience};

/// How long a case may take: it hangs after that.
const PATIENCE_SECONDS: u32 = 240;

/// A name, a script, what it needs (programs, files, root), and the disk that it is run on.
type Case = (&'static str, &'static str, &'static str, &'static str);

const CASES: &[Case] = &[
    ("nbdinfo", "info.sh", "nbdinfo nbdsh", "64M"),
    ("nbdcopy", "copy.sh", "nbdcopy", "64M"),
    ("nbdcopy_over_a_store", "copy.sh", "nbdcopy", "64M --memory 4M --store ."),
    ("odd_offsets", "odd.sh", "nbdsh", "4M"),
    ("odd_offsets_over_a_store", "odd.sh", "nbdsh", "4M --memory 1M --store . --idle-after 1s"),
    ("qemu", "qemu.sh", "qemu-img qemu-io", "64M"),
    ("fio", "fio.sh", "fio", "64M"),
    ("nbdkit", "nbdkit.sh", "nbdkit nbdcopy", "64M"),
    ("killed_clients", "killed.sh", "nbdcopy", "64M"),
    ("orders", "orders.sh", "nbdcopy nbdsh python3", "64M --memory 80M --store ."),
    ("full", "full.sh", "nbdcopy nbdsh", "64M --memory 8M"),
    ("started_on_a_socket", "socket.sh", "nbdcopy", "1M"),
    (
        "ext4_by_nbdfuse_and_loop",
        "mount.sh",
        "root /dev/fuse /dev/loop-control nbdfuse mkfs.ext4",
        "128M",
    ),
    (
        "ext4_and_swap_by_the_kernels_client",
        "nbd.sh",
        "root /dev/nbd0 /sys/fs/cgroup/cgroup.subtree_control nbd-client mkfs.ext4",
        "1G --locked",
    ),
];

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for case in CASES {
        let w = workshop.clone();
        suite.add(case.0, move || judge(&w, case));
    }
    drop(workshop);
    suite.independent();
    suite.main()
}

fn judge(workshop: &Workshop, case: &Case) -> Result<Verdict, String> {
    let (name, script, needs, disk) = case;
    for needed in needs.split(' ') {
        let is_there = match needed {
            "root" => rustix::process::geteuid().is_root(),
            file if file.starts_with('/') => Path::new(file).exists(),
            program => command(program).is_ok(),
        };
        if !is_there {
            return Err(format!("{needed} is missing"));
        }
    }
    let dir = workshop.job_dir(User::Root);
    // A socket's path has a largest length.
    let socket = PathBuf::from(format!("/tmp/uzswap-tests-{}-{name}", std::process::id()));
    let mut listen = OsString::from("unix:");
    listen.push(&socket);
    let mut command = Command::new("timeout");
    command.arg("--kill-after=10").arg((PATIENCE_SECONDS * patience()).to_string());
    // Debian's Python has libnbd's bindings, another one first on the PATH has not.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.current_dir(&dir).env("XDG_RUNTIME_DIR", &dir).stdin(Stdio::null());
    command.env("UZSWAP", workshop.uzswap()).env("TOUCH", workshop.program("touch"));
    command.env("PROGRAMS", source("disk")).env("BASH_ENV", source("disk/common.sh"));
    command.arg(workshop.uzswap()).arg("disk");
    command.args(disk.split(' '));
    command.args(["--name", name]).arg("--listen").arg(listen).env("SOCKET", &socket);
    command.args(["--", "bash", "-eu"]).arg(source(&format!("disk/{script}")));
    let log = File::create(dir.join("log")).expect("a file in our own directory");
    let status = command.stdout(log.try_clone().expect("a descriptor")).stderr(log).status();
    let is_right = status.as_ref().is_ok_and(ExitStatus::success);
    let said = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let is_left = socket.exists() || dir.join("uzswap").read_dir().is_ok_and(|d| d.count() > 0);
    let _ = fs::remove_dir_all(&dir);
    Ok(Verdict::check(is_right && !is_left, || {
        format!("{name}: {status:?}, sockets left: {is_left}\n{said}")
    }))
}
