//! The side that gives orders: finds the disks of the user, and sends one of them a line.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::control::directories;
use crate::program::reason;
use crate::{Failure, console, os};

/// The beginning of the names of a disk's sockets, and the endings of the two: for clients of NBD,
/// and for orders.
pub const PREFIX: &str = "disk-";
pub const CLIENTS_SUFFIX: &str = ".nbd";
pub const ORDERS_SUFFIX: &str = ".orders";
/// The longest answer.
const ANSWER_BYTES: u64 = 1 << 20;
/// How long a disk may take to say what it is like.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The disks that are there, by name, with the sockets of their orders.
pub fn disks() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for directory in directories(&|name| std::env::var_os(name)) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let name =
                file.to_str().and_then(|f| f.strip_prefix(PREFIX)?.strip_suffix(ORDERS_SUFFIX));
            if let Some(name) = name {
                found.push((name.to_string(), entry.path()));
            }
        }
    }
    found.sort();
    found
}

/// Removes the socket that a killed disk has left: nobody listens there.
pub fn sweep(path: &Path) -> bool {
    let is_left =
        os::connect_at_once(path).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused);
    if is_left {
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(path.with_extension(&CLIENTS_SUFFIX[1..]));
    }
    is_left
}

/// Sends a line and returns the answer. Without `patience` it waits as long as the answer takes.
pub fn exchange(path: &Path, line: &str, patience: Option<Duration>) -> Result<String, String> {
    let fault = |e: std::io::Error| format!("the disk does not answer: {}", reason(&e));
    let stream = match patience {
        Some(_) => os::connect_at_once(path),
        None => UnixStream::connect(path),
    };
    let mut stream = stream.map_err(fault)?;
    stream.set_read_timeout(patience).map_err(fault)?;
    stream.write_all(format!("{line}\n").as_bytes()).map_err(fault)?;
    let mut answer = String::new();
    (&mut stream).take(ANSWER_BYTES).read_to_string(&mut answer).map_err(fault)?;
    match answer.split_once('\n') {
        Some(("ok", text)) => Ok(text.to_string()),
        Some(("error", why)) => Err(why.trim_end().to_string()),
        _ => Err("the disk ended before it answered".to_string()),
    }
}

/// `uzswap disk NAME ORDER...`
pub fn order(name: &str, words: &[String]) -> Result<u8, Failure> {
    let disks = disks();
    let found = disks.iter().find(|(n, path)| n == name && !sweep(path));
    let Some((_, path)) = found else {
        return Err(Failure::usage(format!(
            "there is no disk '{name}': 'uzswap disk ls' lists yours"
        )));
    };
    match exchange(path, &words.join(" "), None) {
        Ok(text) => console::print(&text).map(|()| 0),
        Err(why) => Err(Failure::failed(format!("disk {name}: {why}"))),
    }
}
