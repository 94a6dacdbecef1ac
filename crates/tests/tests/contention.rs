//! The library that counts how its locks are held: what `uzswap bench contention` says of a real
//! program is there, adds up, and belongs to its faults. No time is asked for.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;
use uzswap_tests::{Suite, Verdict};

const BUILD: &str = "cargo build --profile contention -p uzswap-cli --features contention";

fn main() -> ExitCode {
    let mut suite = Suite::new();
    suite.add("locks_and_claims_are_counted_by_fault", by_fault);
    suite.add("a_library_that_counts_nothing_is_refused", refused);
    suite.main()
}

/// The folder of the build, and the library that counts.
fn built() -> Result<(PathBuf, PathBuf), String> {
    let test = std::env::current_exe().expect("a test knows its path");
    let folder = test.ancestors().nth(2).expect("tests lie in TARGET/PROFILE/deps").to_owned();
    let library = folder.with_file_name("contention").join("libuzswap_preload");
    match library.is_file() {
        true => Ok((folder, library)),
        false => Err(format!("there is no {}: {BUILD}", library.display())),
    }
}

/// A small run of the bench; its record.
fn measure(folder: &Path, library: &Path, out: &Path) -> Result<Value, String> {
    let bench = folder.join("uzswap-bench");
    let output = Command::new(&bench)
        .args(["contention", "--memory=32M", "--size=64M", "--rounds=1", "--passes=1"])
        .args(["--threads=1,2", "--library"])
        .arg(library)
        .arg("--out")
        .arg(out)
        .output()
        .map_err(|e| format!("{}: {e}", bench.display()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let files = std::fs::read_dir(out).map_err(|e| format!("{}: {e}", out.display()))?.flatten();
    let record = files.map(|f| f.path()).find(|p| p.extension() == Some("json".as_ref()));
    let text = record.and_then(|path| std::fs::read_to_string(path).ok());
    let _ = std::fs::remove_dir_all(out);
    let record = text.and_then(|text| serde_json::from_str(&text).ok());
    record.filter(|_| output.status.success()).ok_or(said)
}

fn out(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("uzswap-contention-{name}-{}", std::process::id()))
}

fn by_fault() -> Result<Verdict, String> {
    let (folder, library) = built()?;
    let record = match measure(&folder, &library, &out("counts")) {
        Ok(record) => record,
        Err(said) => return Ok(Verdict::Failed(said)),
    };
    let run = &record["runs"][0];
    if run["stats"]["mechanisms"] != serde_json::json!(["userfaultfd"]) {
        return Err("without userfaultfd there are no claims".to_string());
    }
    let measurements = run["worker"]["measurements"].as_array();
    let measurements = measurements.expect("a worker that ended well has said what it measured");
    let wrong: Vec<String> = measurements.iter().flat_map(wrong_in).collect();
    Ok(Verdict::check(wrong.is_empty() && measurements.len() == 4, || {
        format!("{wrong:#?} in {record:#}")
    }))
}

/// The relations that the counts of a measurement break.
fn wrong_in(measurement: &Value) -> Vec<String> {
    let contention = &measurement["contention"];
    let count = |class: &str, half: &str, key: &str| {
        contention["classes"][class][half][key].as_f64().unwrap_or(-1.0)
    };
    let faults = contention["faults"].as_f64().unwrap_or(-1.0);
    // Half of the heap is out, so many a touch of it faults.
    let touches = measurement["touches"].as_f64().unwrap_or(0.0);
    let in_fault = |class: &str| count(class, "in_fault", "acquired");
    let mut checks = vec![
        ("a fault for every tenth touch", faults * 10.0 >= touches && touches > 0.0),
        ("the pager's lock in every fault", in_fault("pager") >= faults),
        // Of each fault's page; some are served by other threads, or are of guarded pages.
        ("a claim in most faults", in_fault("claims") * 2.0 >= faults),
        ("the cache's lock in most faults", in_fault("cache state") * 2.0 >= faults),
        ("a stream for what is compressed", count("streams", "all", "acquired") > 0.0),
        ("the codec under the stream", count("streams", "all", "codecs") > 0.0),
        ("what goes out is the evictor's", count("pager", "outside", "acquired") > 0.0),
        ("no codec under the pager's lock", count("pager", "all", "codecs") == 0.0),
    ];
    for class in ["pager", "cache state", "claims"] {
        let both = |key: &str| count(class, "in_fault", key) + count(class, "outside", key);
        let all = |key: &str| count(class, "all", key);
        checks.push(("the halves are the whole", both("acquired") == all("acquired")));
        checks.push(("a wait is of an acquisition", all("waits") <= all("acquired")));
        checks.push(("holds take time", all("held_ns") > 0.0));
        let is_in_order = all("held_p50_ns") <= all("held_p99_ns");
        checks.push(("quantiles are in order", is_in_order));
    }
    let wrong = checks.into_iter().filter(|(_, holds)| !holds);
    wrong.map(|(what, _)| format!("{what}: {}", measurement["threads"])).collect()
}

fn refused() -> Result<Verdict, String> {
    let (folder, _) = built()?;
    let said = measure(&folder, &folder.join("libuzswap_preload"), &out("refused"));
    Ok(match said {
        Ok(record) => Verdict::Failed(format!("it was measured: {record:#}")),
        Err(said) => Verdict::check(said.contains("counts nothing of its locks"), || said),
    })
}
