//! `uzswap disk ls`: the disks that are there, as zramctl shows them.

use std::collections::HashMap;
use std::io;

use serde_json::{Map, Value, json};

use super::client::{self, PATIENCE};
use crate::program::reason;
use crate::size::PAGE_BYTES;
use crate::size::human;
use crate::{Failure, columns, console};

/// A disk's answer about itself.
struct Shown {
    name: String,
    values: HashMap<String, u64>,
}

impl Shown {
    fn get(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// The cells as zramctl has them: the disk, its data, their compressed size, their memory in
    /// all.
    fn cells(&self) -> [String; COLUMNS.len()] {
        let pages = |name: &str| human(self.get(name) * PAGE_BYTES);
        [
            self.name.clone(),
            human(self.get("bytes")),
            pages("stored_pages"),
            human(self.get("compr_data_bytes")),
            human(self.get("used_bytes")),
            human(self.get("memory_bytes")),
            pages("store_pages"),
            self.get("clients").to_string(),
            self.store(),
        ]
    }

    /// The store's state, or the error for which it takes nothing.
    fn store(&self) -> String {
        match (self.get("has_store"), i32::try_from(self.get("store_errno"))) {
            (0, _) => "none".to_string(),
            (_, Ok(0) | Err(_)) => "works".to_string(),
            (_, Ok(errno)) => reason(&io::Error::from_raw_os_error(errno)),
        }
    }
}

const COLUMNS: [&str; 9] =
    ["NAME", "DISKSIZE", "DATA", "COMPR", "TOTAL", "MEM-LIMIT", "WRITTEN", "CLIENTS", "STORE"];

fn parse(name: &str, text: &str) -> Shown {
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_string(), value.parse().ok()?))
    };
    Shown { name: name.to_string(), values: text.lines().filter_map(pair).collect() }
}

fn shown() -> Vec<Shown> {
    let mut all = Vec::new();
    for (name, path) in client::disks() {
        if client::sweep(&path) {
            continue;
        }
        match client::exchange(&path, "stats", Some(PATIENCE)) {
            Ok(text) => all.push(parse(&name, &text)),
            Err(why) => console::say(&format!("disk {name}: {why}")),
        }
    }
    all
}

pub fn list(as_json: bool) -> Result<u8, Failure> {
    let disks = shown();
    let text = if as_json {
        let one = |d: &Shown| {
            let mut names: Vec<_> = d.values.iter().collect();
            names.sort();
            let values: Map<String, Value> =
                names.into_iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
            json!({"name": d.name, "stats": values})
        };
        format!("{:#}\n", json!({"disks": disks.iter().map(one).collect::<Vec<_>>()}))
    } else {
        table(&disks)
    };
    console::print(&text)?;
    if disks.is_empty() && !as_json {
        console::say("you have no disks");
    }
    Ok(0)
}

fn table(disks: &[Shown]) -> String {
    if disks.is_empty() {
        return String::new();
    }
    let mut rows = vec![COLUMNS.map(str::to_string)];
    rows.extend(disks.iter().map(Shown::cells));
    columns::aligned(&rows, std::array::from_fn(|i| i > 0 && i + 1 < COLUMNS.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_says_becomes_a_row() {
        let disk = parse("a", "bytes 1073741824\nstored_pages 256\nused_bytes 4096\nodd\n");
        let text = table(&[disk]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words[..5], ["a", "1.0", "GiB", "1.0", "MiB"]);
        let store = |text: &str| parse("a", text).store();
        assert_eq!(store("has_store 0\nstore_errno 0\n"), "none");
        assert_eq!(store("has_store 1\nstore_errno 0\n"), "works");
        assert_eq!(store("has_store 1\nstore_errno 28\n"), "no space left");
    }
}
