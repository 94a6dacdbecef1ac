//! `uzswap disk` before foreign judges: libnbd's tools, QEMU's block layer, fio, nbdkit's filters,
//! and ext4 by way of a loop device. Each case is a script that runs on a disk of its own
//! (`programs/disk`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use uzswap_tests::suite::command;
use uzswap_tests::workshop::source;
use uzswap_tests::{Suite, User, Verdict, Workshop};

/// How long a case may take: it hangs after that.
const PATIENCE_SECONDS: &str = "240";

/// A script, what it needs, and the disk that it is run on.
struct Case {
    name: &'static str,
    script: &'static str,
    needs: &'static [&'static str],
    disk: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case { name: "nbdinfo", script: "info.sh", needs: &["nbdinfo", "nbdsh"], disk: &["64M"] },
    Case { name: "nbdcopy", script: "copy.sh", needs: &["nbdcopy"], disk: &["64M"] },
    Case {
        name: "nbdcopy_over_a_store",
        script: "copy.sh",
        needs: &["nbdcopy"],
        disk: &["64M", "--memory", "4M", "--store", "STORE"],
    },
    Case { name: "odd_offsets", script: "odd.sh", needs: &["nbdsh"], disk: &["4M"] },
    Case {
        name: "odd_offsets_over_a_store",
        script: "odd.sh",
        needs: &["nbdsh"],
        disk: &["4M", "--memory", "1M", "--store", "STORE", "--idle-after", "1s"],
    },
    Case { name: "qemu", script: "qemu.sh", needs: &["qemu-img", "qemu-io"], disk: &["64M"] },
    Case { name: "fio", script: "fio.sh", needs: &["fio"], disk: &["64M"] },
    Case { name: "nbdkit", script: "nbdkit.sh", needs: &["nbdkit", "nbdcopy"], disk: &["64M"] },
    Case { name: "killed_clients", script: "killed.sh", needs: &["nbdcopy"], disk: &["64M"] },
    Case {
        name: "orders",
        script: "orders.sh",
        needs: &["nbdcopy", "nbdsh", "python3"],
        disk: &["64M", "--memory", "80M", "--store", "STORE"],
    },
    Case {
        name: "full",
        script: "full.sh",
        needs: &["nbdcopy", "nbdsh"],
        disk: &["64M", "--memory", "8M"],
    },
];

const MOUNTED: Case = Case {
    name: "ext4_by_nbdfuse_and_loop",
    script: "mount.sh",
    needs: &["nbdfuse", "losetup", "mkfs.ext4", "fsck.ext4", "fusermount3"],
    disk: &["128M"],
};

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for case in CASES {
        let w = workshop.clone();
        suite.add(case.name, move || judge(&w, case));
    }
    let w = workshop.clone();
    suite.add(MOUNTED.name, move || mounted(&w));
    let w = workshop.clone();
    suite.add("started_on_a_socket", move || started_on_a_socket(&w));
    drop(workshop);
    suite.independent();
    suite.main()
}

/// `uzswap disk` with places of its own.
fn disk(workshop: &Workshop, dir: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", PATIENCE_SECONDS]).arg(workshop.uzswap()).arg("disk");
    // Debian's Python has libnbd's bindings, another one first on the PATH has not.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.current_dir(dir).env("XDG_RUNTIME_DIR", dir).env("UZSWAP", workshop.uzswap());
    command
        .env("PROGRAMS", source("disk"))
        .env("BASH_ENV", source("disk/common.sh"))
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end, and gives what it said, together.
fn run(mut command: Command, dir: &Path) -> (bool, String) {
    let log = dir.join("log");
    let file = File::create(&log).expect("a file in our own directory");
    let both = file.try_clone().expect("a descriptor");
    let status = command.stdout(file).stderr(both).status();
    let said = fs::read_to_string(&log).unwrap_or_default();
    match status {
        Ok(status) => (status.success(), format!("{status}\n{said}")),
        Err(e) => (false, format!("{e}")),
    }
}

fn judge(workshop: &Workshop, case: &Case) -> Result<Verdict, String> {
    for needed in case.needs {
        command(needed)?;
    }
    let dir = workshop.job_dir(User::Root);
    // A socket's path has a largest length.
    let socket = PathBuf::from(format!("/tmp/uzswap-tests-{}-{}", std::process::id(), case.name));
    let mut listen = OsString::from("unix:");
    listen.push(&socket);
    let mut command = disk(workshop, &dir);
    command.args(case.disk.iter().map(|a| if *a == "STORE" { "." } else { a }));
    command.args(["--name", case.name]).arg("--listen").arg(listen).env("SOCKET", &socket);
    command.args(["--", "bash", "-eu"]).arg(source(&format!("disk/{}", case.script)));
    let (is_right, said) = run(command, &dir);
    let is_left = socket.exists() || dir.join("uzswap").read_dir().is_ok_and(|d| d.count() > 0);
    let _ = fs::remove_dir_all(&dir);
    Ok(Verdict::check(is_right && !is_left, || {
        format!("{}: sockets left: {is_left}\n{said}", case.name)
    }))
}

fn mounted(workshop: &Workshop) -> Result<Verdict, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("mounting needs root".to_string());
    }
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        return Err("the kernel has no FUSE, or no loop devices".to_string());
    }
    judge(workshop, &MOUNTED)
}

/// libnbd starts the disk itself, on a socket that it listens on already.
fn started_on_a_socket(workshop: &Workshop) -> Result<Verdict, String> {
    command("nbdcopy")?;
    let dir = workshop.job_dir(User::Root);
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", PATIENCE_SECONDS, "sh", "-euc"]).arg(
        r#"head -c 3000000 /dev/urandom >data
           [ "$(nbdinfo --size [ "$0" disk 5M ])" = 5242880 ]
           nbdcopy data [ "$0" disk 3M ]"#,
    );
    command.arg(workshop.uzswap()).current_dir(&dir).env("XDG_RUNTIME_DIR", &dir);
    let (is_right, said) = run(command, &dir);
    let _ = fs::remove_dir_all(&dir);
    Ok(Verdict::check(is_right, || said))
}
