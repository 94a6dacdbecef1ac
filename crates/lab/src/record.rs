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

use uzswap_cli::machine::{machine, utc};
pub use uzswap_cli::statistics::{median, quartiles};

use super::results;
use uzswap_cli::Failure;
use uzswap_cli::program::reason;

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
        let absolute = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let state =
            || Some(absolute("XDG_STATE_HOME").unwrap_or(absolute("HOME")?.join(".local/state")));
        match self.out.clone().or_else(|| Some(state()?.join("uzswap/bench"))) {
            Some(directory) => Ok(directory),
            None => {
                Err(Failure::usage("--out: HOME is not set, say where the results go".to_string()))
            }
        }
    }
}

impl Record {
    /// Makes the directory, so that a wrong one is heard of before the work.
    pub fn begin(out: &Out, name: &str) -> Result<Record, Failure> {
        let directory = out.directory()?;
        fs::create_dir_all(&directory).map_err(|e| {
            Failure::usage(format!("--out: {}: {}", directory.display(), reason(&e)))
        })?;
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
        let mut path = self.stem.clone().into_os_string();
        path.push(".");
        path.push(extension);
        let path = PathBuf::from(path);
        match fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(e) => Err(Failure::failed(format!("{}: {}", path.display(), reason(&e)))),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

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
        // A name need not be text.
        let odd = std::ffi::OsStr::from_bytes(b"\xff");
        let record = Record::begin(&Out { out: Some(directory.join(odd)) }, "build").unwrap();
        let path = record.write_json(json!({"runs": []})).unwrap();
        assert!(path.exists() && path.parent() == Some(&directory.join(odd)));
        fs::remove_dir_all(&directory).unwrap();
        let refused = Record::begin(&Out { out: Some("/proc/no".into()) }, "build").err().unwrap();
        assert!(refused.message.starts_with("--out: /proc/no: "), "{}", refused.message);
    }
}
