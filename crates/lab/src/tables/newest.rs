//! The tables that go by no date: of each benchmark and machine the newest measurement, of each
//! program the newest run.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{cases, head, measured, middle, names, row, shown, wrapped};

/// The metric by which a benchmark is shown, its factor and unit, and what its table says.
const SHOWN: [(&str, &str, f64, &str); 8] = [
    ("faults", "touch_ns", 1e-3, "us a touch"),
    ("threads", "touch_ns", 1e-3, "us a touch, of all threads together"),
    ("contention", "serial_ns", 1.0, "ns for which a fault holds locks that another could want"),
    ("swap-w-seq", "mib_per_second", 1.0, "MiB/s"),
    ("programs", "wall_seconds", 1.0, "seconds; the number is the part of the need in percent"),
    ("build", "wall_seconds", 1.0, "seconds"),
    ("disk", "mib_per_second", 1.0, "MiB/s, and what it takes at the end"),
    ("cache", "times_ns", 1e-3, "us a page: the bare compressor, the cache, and its faces"),
];

pub(super) fn newest(lines: &[Value]) -> String {
    let mut text = String::new();
    for (benchmark, metric, factor, unit) in SHOWN {
        let mut of_kinds: BTreeMap<String, &str> = BTreeMap::new();
        for line in lines.iter().filter(|line| line["benchmark"] == benchmark) {
            let date = of_kinds.entry(kind_of(line)).or_default();
            *date = (*date).max(line["date"].as_str().unwrap_or_default());
        }
        if of_kinds.is_empty() {
            continue;
        }
        text += &format!("\n## {benchmark}\n\nMedians, {unit}.\n");
        for date in of_kinds.into_values() {
            let own = measured(benchmark, date, lines).expect("its date is that of a line");
            let commit = own[0]["commit"].as_str().unwrap_or("an unknown commit");
            let kind = described(own[0], &[]);
            text += &wrapped(&format!("`{date}`, {kind}, commit {commit}:"));
            text += &match benchmark {
                "disk" => crate::disk::table(&own),
                "cache" => crate::cache::table(&own),
                _ => arms(&own, metric, factor),
            };
        }
    }
    text
}

/// The conditions of a measurement: machine, and the settings except how often it ran.
fn described(line: &Value, but: &[&str]) -> String {
    const REPEATS: [&str; 5] = ["rounds", "passes", "parts_percent", "files", "cflags"];
    let settings = line["settings"].as_object().into_iter().flatten();
    let mut kind: Vec<String> = settings
        .filter(|(name, _)| !REPEATS.contains(&name.as_str()) && !but.contains(&name.as_str()))
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    kind.insert(0, line["machine"].as_str().unwrap_or_default().to_string());
    kind.join(", ").replace('"', "")
}

/// The kind of a measurement: a limit that follows from the need is a result.
fn kind_of(line: &Value) -> String {
    described(line, &["limit_bytes"])
}

fn arms(lines: &[&Value], metric: &str, factor: f64) -> String {
    let arms = names(lines);
    let mut cases = cases(lines);
    if cases.is_empty() {
        cases.push(String::new());
    }
    let mut text = head("", &arms);
    for case in
        cases.iter().filter(|case| lines.iter().any(|line| middle(line, case, metric).is_some()))
    {
        let cell =
            |line: &&Value| shown(line, case, metric, factor).unwrap_or_else(|| "-".to_string());
        text += &row([case.clone()].into_iter().chain(lines.iter().map(cell)));
    }
    text
}

/// Of each program its newest measurement, by kind.
pub(super) fn variety(lines: &[Value]) -> Result<String, String> {
    const ARMS: [&str; 3] = ["userfaultfd", "protect", "alone"];
    let own = |line: &&Value| line["benchmark"] == "variety";
    let lines: Vec<&Value> = lines.iter().filter(own).collect();
    let columns = [
        "kind",
        "need",
        "time",
        "by userfaultfd",
        "by protection faults",
        "without, in that group",
    ];
    let mut text = head("program", &columns);
    // Machine and commit, with the dates of their measurements.
    let mut origins: Vec<(String, Vec<String>)> = Vec::new();
    let mut count = 0;
    for program in crate::variety::all() {
        let name = &program.name;
        let is_newest =
            |line: &&&Value| line["arm"] == "free" && middle(line, name, "need_bytes").is_some();
        let Some(free) = lines.iter().filter(is_newest).max_by_key(|line| line["date"].as_str())
        else {
            continue;
        };
        let figure = |metric: &str| middle(free, name, metric).unwrap_or(f64::NAN);
        let seconds = figure("wall_seconds");
        let cell = |arm: &&str| {
            let is_its = |line: &&&Value| line["arm"] == **arm && line["date"] == free["date"];
            let Some(line) = lines.iter().find(is_its) else { return "not run".to_string() };
            match middle(line, name, "wall_seconds") {
                Some(own) => format!("right, {:.1}x", own / seconds),
                None => failure(line, name),
            }
        };
        let need = format!("{:.0} MiB", figure("need_bytes") / f64::from(1 << 20));
        let shown = [name.clone(), program.kind, need, format!("{seconds:.1} s")];
        text += &row(shown.into_iter().chain(ARMS.iter().map(cell)));
        let word = |key: &str| free[key].as_str().unwrap_or("unknown").to_string();
        let origin = format!("{}, commit {}", word("machine"), word("commit"));
        let date = format!("`{}`", word("date"));
        match origins.iter_mut().find(|(known, _)| *known == origin) {
            Some((_, dates)) if dates.contains(&date) => {}
            Some((_, dates)) => dates.push(date),
            None => origins.push((origin, vec![date])),
        }
        count += 1;
    }
    let origins: Vec<String> =
        origins.iter().map(|(origin, dates)| format!("{} ({origin})", dates.join(", "))).collect();
    let measured = format!("{count} programs; measurements {}.", origins.join("; "));
    Ok(text + wrapped(&measured).trim_end() + "\n")
}

/// The words for a run that failed, by the metric that counts its kind.
fn failure(line: &Value, case: &str) -> String {
    let is_kind = |kind: &str| line["figures"][case][format!("{kind}_runs")].is_array();
    let words = [
        ("killed", "killed"),
        ("other", "**other output**"),
        ("not", "not ended in time"),
        ("nothing", "nothing was paged"),
        ("said", "with a warning"),
        ("ended", "ended with an error"),
    ];
    let found = words.iter().find(|(kind, _)| is_kind(kind));
    found.map_or("not run".to_string(), |(_, words)| words.to_string())
}
