//! Results with their provenance: which machine, which commit, when, and every single run.
//!
//! A measurement leaves two things in the directory for results: a file of its own with every run,
//! and lines in `results.jsonl` (see `results`). By default that directory is outside of any source
//! tree: only lines are worth keeping there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::peers::kib_of;
use super::results;
use crate::Failure;
use crate::program::reason;

/// The files of one measurement: `DIR/<date>-<name>.json` and `.svg`, and lines in
/// `DIR/results.jsonl`.
pub struct Record {
    stem: PathBuf,
    name: String,
    date: String,
}

/// Where results go, as an option of every bench.
#[derive(clap::Args, Debug)]
pub struct Out {
    /// Directory for the results: every run as JSON, a plot, and a line for each arm in
    /// results.jsonl [default: uzswap/bench in XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Out {
    fn directory(&self) -> Result<PathBuf, Failure> {
        let absolute =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = || Some(absolute("XDG_STATE_HOME").unwrap_or(absolute("HOME")?.join(".local/state")));
        match self.out.clone().or_else(|| Some(state()?.join("uzswap/bench"))) {
            Some(directory) => Ok(directory),
            None => Err(Failure::usage("--out: HOME is not set, say where the results go".to_string())),
        }
    }
}

impl Record {
    /// Makes the directory, so that a wrong one is heard of before the work.
    pub fn begin(out: &Out, name: &str) -> Result<Record, Failure> {
        let directory = out.directory()?;
        fs::create_dir_all(&directory)
            .map_err(|e| Failure::usage(format!("--out: {}: {}", directory.display(), reason(&e))))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let date = utc(now);
        let stem = directory.join(format!("{}-{name}", date.replace([':', 'Z'], "")));
        Ok(Record { stem, name: name.to_string(), date })
    }

    /// Writes the JSON, `what` with machine, commit and date in front, and the lines of its arms.
    /// Returns the path of the JSON.
    pub fn write_json(&self, what: Value) -> Result<PathBuf, Failure> {
        let mut whole = json!({
            "uzswap": env!("CARGO_PKG_VERSION"),
            "benchmark": self.name,
            "commit": commit(),
            "date": self.date,
            "machine": machine(),
        });
        if let (Value::Object(whole), Value::Object(what)) = (&mut whole, what) {
            whole.extend(what);
        }
        let path = self.write("json", &format!("{whole:#}\n"))?;
        results::keep(&path.with_file_name("results.jsonl"), results::lines_of(&whole))?;
        Ok(path)
    }

    pub fn write(&self, extension: &str, text: &str) -> Result<PathBuf, Failure> {
        // `with_extension` would take a dot of the date for the beginning of one.
        let path = PathBuf::from(format!("{}.{extension}", self.stem.display()));
        match fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(e) => Err(Failure::failed(format!("{}: {}", path.display(), reason(&e)))),
        }
    }
}

/// The machine, as far as times depend on it.
pub fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).map_or(String::new(), |text| text.trim().to_string());
    let cpuinfo = read("/proc/cpuinfo");
    let cpu = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split(':').nth(1)).unwrap_or_default().trim().to_string()
    };
    json!({
        "cpu": cpu("model name"),
        "virtual": cpu("flags").split(' ').any(|flag| flag == "hypervisor"),
        "cores": std::thread::available_parallelism().map_or(0, |n| n.get()),
        "memory_bytes": kib_of("/proc/meminfo", "MemTotal:") * 1024,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "clock": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "transparent_hugepage": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "swappiness": read("/proc/sys/vm/swappiness"),
        "load": read("/proc/loadavg"),
    })
}

/// The commit of the source tree that this command lies in, or null.
fn commit() -> Value {
    let own = std::env::current_exe().unwrap_or_default();
    let git = |arguments: &[&str]| -> io::Result<String> {
        let directory = own.parent().unwrap_or(Path::new("/"));
        let output = Command::new("git").arg("-C").arg(directory).args(arguments).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    };
    let Ok(revision) = git(&["rev-parse", "--short=12", "HEAD"]) else { return Value::Null };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Ok(changes) if !changes.is_empty() => format!("{revision} with changes").into(),
        _ => revision.into(),
    }
}

/// Seconds since 1970 as `2026-11-21T23:21:34Z`.
pub fn utc(seconds: u64) -> String {
    // Howard Hinnant's days-to-civil: years begin in March, eras have 400 of them.
    let (day, second) = (seconds / 86400, seconds % 86400);
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The middle value; of an even number, the mean of the two in the middle. `None` of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The values a quarter and three quarters up the sorted list.
pub fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |quarters: usize| values.get((values.len().saturating_sub(1) * quarters + 2) / 4).copied();
    [at(1).unwrap_or(f64::NAN), at(3).unwrap_or(f64::NAN)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn the_machine_is_described() {
        let machine = machine();
        assert!(machine["cores"].as_u64().unwrap() > 0);
        assert!(machine["memory_bytes"].as_u64().unwrap() > 1 << 20);
        assert!(!machine["kernel"].as_str().unwrap().is_empty());
    }

    #[test]
    fn a_record_has_its_provenance_first_and_a_line_an_arm() {
        let directory = std::env::temp_dir().join(format!("uzswap-record-{}", std::process::id()));
        let record = Record::begin(&Out { out: Some(directory.clone()) }, "build").unwrap();
        let run = json!({"arm": "uzswap", "round": 1, "jobs": 8, "wall_seconds": 2});
        let path = record.write_json(json!({"runs": [run]})).unwrap();
        assert!(path.to_str().unwrap().ends_with("-build.json"));
        let whole: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let keys: Vec<&str> = whole.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["uzswap", "benchmark", "commit", "date", "machine", "runs"]);
        let lines = fs::read_to_string(directory.join("results.jsonl")).unwrap();
        assert!(lines.contains("\"8 jobs\":{\"wall_seconds\":[2,2,2,1]}"), "{lines}");
        fs::remove_dir_all(&directory).unwrap();
        let refused = Record::begin(&Out { out: Some("/proc/no".into()) }, "build").err().unwrap();
        assert!(refused.message.starts_with("--out: /proc/no: "), "{}", refused.message);
    }
}
