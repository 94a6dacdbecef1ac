//! Tables of the documents, made from `docs/results.jsonl`.
//!
//! A document has places for tables, `<!-- results: KIND DATES -->` to `<!-- end -->`. The kinds:
//!
//! ```text
//!  faults DATE [DATE]   time by touch, peers' by uzswap's; in brackets of the second measurement
//!  threads DATE         ratios of the touches of several threads
//!  build DATE           I/O and time of a build, by jobs
//!  summary DATE...      programs and faults of one machine and one commit, for README
//!  codecs DATE          time and size of each codec
//!  disk DATE            phases of a disk, by nbdkit's and zram's
//!  contention DATE      locks and claims by fault, and the projections
//!  speeds DATE...       programs: the best peer's time by uzswap's, at each part of the need
//!  builds DATE...       time and I/O of builds, by each peer's
//!  estimate DATE        ratios and times, foreseen and measured
//!  policies DATE        loads under each policy, by those under uzswap's
//!  huge DATE...         throughput in huge pages, by each peer's
//!  hand PAGE [TABLE]    figures that were taken by hand, for a page of the experiments
//!  variety              each program's newest run by each mechanism
//!  newest               of each benchmark and machine the newest measurement, every arm
//! ```
//!
//! The tests of this file keep them up to date, and see that each measurement that a document names
//! by its date has lines.

mod experiments;
mod hand;
mod newest;

use serde_json::Value;

/// Replaces all tables of a document.
pub fn renewed(document: &str, lines: &[Value]) -> Result<String, String> {
    const BEGIN: &str = "<!-- results: ";
    let mut text = String::new();
    let mut rest = document;
    while let Some(at) = rest.find(BEGIN) {
        let (before, place) = rest.split_at(at);
        let (head, after) =
            place.split_once(" -->\n").ok_or("a place for results without a head")?;
        let (_, after) =
            after.split_once("<!-- end -->").ok_or(format!("the place '{head}' does not end"))?;
        let table = table(head.trim_start_matches(BEGIN), lines)?;
        text += &format!("{before}{head} -->\n{table}<!-- end -->");
        rest = after;
    }
    Ok(text + rest)
}

fn table(what: &str, lines: &[Value]) -> Result<String, String> {
    let mut words = what.split(' ');
    let (kind, dates): (&str, Vec<&str>) = (words.next().unwrap_or_default(), words.collect());
    match (kind, &dates[..]) {
        ("faults" | "threads", [date]) => ratios(&measured(kind, date, lines)?, &[]),
        ("faults", [date, other]) => {
            ratios(&measured("faults", date, lines)?, &measured("faults", other, lines)?)
        }
        ("build", [date]) => build(&measured("build", date, lines)?),
        ("summary", [_, ..]) => summary(&dates, lines),
        ("contention", [date]) => contention(&measured("contention", date, lines)?),
        ("disk", [date]) => Ok(super::disk::table(&measured("disk", date, lines)?)),
        ("codecs", [date]) => codecs(&measured("codecs", date, lines)?),
        ("speeds", [_, ..]) => experiments::speeds(&dates, lines),
        ("builds", [_, ..]) => experiments::builds(&dates, lines),
        ("estimate", [date]) => experiments::estimate(date, lines),
        ("policies", [date]) => experiments::policies(date, lines),
        ("huge", [_, ..]) => experiments::huge(&dates, lines),
        ("overhead", [date]) => experiments::overhead(date, lines),
        ("hand", [page]) => hand::table(page, None, lines),
        ("hand", [page, name]) => hand::table(page, Some(name), lines),
        ("variety", []) => newest::variety(lines),
        ("newest", []) => Ok(newest::newest(lines)),
        _ => Err(format!(
            "no table '{what}': there are faults DATE [DATE], threads DATE, build DATE, summary \
             DATE..., codecs DATE, disk DATE, contention DATE, speeds DATE..., builds DATE..., \
             estimate DATE, policies DATE, huge DATE..., overhead DATE, \
             hand PAGE [TABLE], variety, newest"
        )),
    }
}

/// The lines of one measurement.
fn measured<'a>(benchmark: &str, date: &str, lines: &'a [Value]) -> Result<Vec<&'a Value>, String> {
    let own: Vec<&Value> = lines
        .iter()
        .filter(|line| line["benchmark"] == benchmark && line["date"] == date)
        .collect();
    match own.is_empty() {
        true => Err(format!("no lines of {benchmark} {date}")),
        false => Ok(own),
    }
}

fn middle(line: &Value, case: &str, metric: &str) -> Option<f64> {
    line["figures"][case][metric][0].as_f64()
}

fn arm<'a>(lines: &[&'a Value], name: &str) -> Option<&'a Value> {
    lines.iter().copied().find(|line| line["arm"] == name)
}

/// The cases of a measurement, in the order of its first arm that has all.
fn cases(lines: &[&Value]) -> Vec<String> {
    let mut cases: Vec<String> = Vec::new();
    for line in lines {
        for case in line["figures"].as_object().into_iter().flat_map(serde_json::Map::keys) {
            if !case.is_empty() && !cases.contains(case) {
                cases.push(case.clone());
            }
        }
    }
    cases
}

fn names<'a>(lines: &[&'a Value]) -> Vec<&'a str> {
    lines.iter().filter_map(|line| line["arm"].as_str()).collect()
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cell = |cell: String| if cell.is_empty() { " |".to_string() } else { format!(" {cell} |") };
    format!("|{}\n", cells.into_iter().map(cell).collect::<String>())
}

fn head(first: &str, columns: &[&str]) -> String {
    let cells = std::iter::once(&first).chain(columns).map(|cell| cell.to_string());
    row(cells) + &format!("|{}\n", "---|".repeat(columns.len() + 1))
}

/// A figure of three digits or more, or that all runs failed.
fn shown(line: &Value, case: &str, metric: &str, factor: f64) -> Option<String> {
    match middle(line, case, metric) {
        Some(value) if value * factor < 100.0 => Some(format!("{:.2}", value * factor)),
        Some(value) => Some(format!("{:.0}", value * factor)),
        None => line["figures"][case]["failed_runs"].is_array().then(|| "failed".to_string()),
    }
}

/// A paragraph of at most 100 columns.
fn wrapped(words: &str) -> String {
    const COLUMNS: usize = 100;
    let mut text = String::from("\n");
    let mut column = 0;
    for word in words.split(' ') {
        if column > 0 && column + 1 + word.len() > COLUMNS {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += word.len();
    }
    text + "\n\n"
}

/// Peers' time by touch, divided by uzswap's.
fn ratios(lines: &[&Value], others: &[&Value]) -> Result<String, String> {
    let peers: Vec<&str> = names(lines).into_iter().filter(|name| *name != "uzswap").collect();
    let ratio = |lines: &[&Value], peer: &str, case: &str| {
        let own = middle(arm(lines, "uzswap")?, case, "touch_ns")?;
        Some(middle(arm(lines, peer)?, case, "touch_ns")? / own)
    };
    let mut text = head("", &peers);
    for case in cases(lines) {
        let cell = |peer: &&str| {
            let first =
                ratio(lines, peer, &case).map_or("-".to_string(), |ratio| format!("{ratio:.2}x"));
            match ratio(others, peer, &case) {
                Some(second) => format!("{first} ({second:.2}x)"),
                None => first,
            }
        };
        text += &row([case.clone()].into_iter().chain(peers.iter().map(cell)));
    }
    Ok(text)
}

fn build(lines: &[&Value]) -> Result<String, String> {
    let arms: Vec<&str> = names(lines).into_iter().filter(|name| *name != "free").collect();
    let mut text = head("", &arms);
    for case in cases(lines) {
        let cell = |name: &&str| {
            let line = arm(lines, name)?;
            let pages = middle(line, &case, "io_pages")?;
            Some(format!("{pages:.0} pages, {:.1} s", middle(line, &case, "wall_seconds")?))
        };
        let cells = arms.iter().map(|name| cell(name).unwrap_or("failed".to_string()));
        text += &row([case.clone()].into_iter().chain(cells));
    }
    Ok(text)
}

// ---------------------------------------------------------------- README's

/// Programs at a part of their need, and ways to touch memory: a row for each case, a column for
/// each arm. All measurements must be of one machine and one commit, which the table's end names.
fn summary(dates: &[&str], lines: &[Value]) -> Result<String, String> {
    const ARMS: [(&str, &str); 4] = [
        ("uzswap", "uzswap"),
        ("zswap pc0", "zswap"),
        ("zram pc0", "zram"),
        ("free", "all its memory"),
    ];
    let mut text = head("", &ARMS.map(|(_, title)| title));
    let mut origins = Vec::new();
    for date in dates {
        let own: Vec<&Value> = lines.iter().filter(|line| line["date"] == *date).collect();
        let (metric, factor) = match own.first().and_then(|line| line["benchmark"].as_str()) {
            Some("programs") => ("wall_seconds", 1.0),
            Some("faults") => ("touch_ns", 1e-3),
            other => {
                return Err(format!("a summary has programs and faults, {date} is of {other:?}"));
            }
        };
        origins.extend(
            own.iter().map(|line| (line["machine"].to_string(), line["commit"].to_string())),
        );
        let cases = arm(&own, "uzswap").map_or(Vec::new(), |line| cases(&[line]));
        for case in cases {
            let (program, part) = case.split_once(' ').unwrap_or((&case, ""));
            let (title, free) = match metric {
                "wall_seconds" => (format!("{program}, {part} %, s"), program),
                _ => (format!("{case}, us"), ""),
            };
            let cell = |(name, _): (&str, &str)| {
                let line = arm(&own, name)?;
                shown(line, if name == "free" { free } else { &case }, metric, factor)
            };
            let cells = ARMS.map(|arm| cell(arm).unwrap_or_default());
            text += &row([title].into_iter().chain(cells));
        }
    }
    origins.dedup();
    let [(machine, commit)] = &origins[..] else {
        return Err(format!("a summary is of one machine and commit, not of {origins:?}"));
    };
    let dates = dates.iter().map(|date| format!("`{date}`")).collect::<Vec<_>>().join(", ");
    let origin =
        format!("{}, commit {}; measurements {dates}.", unquoted(machine), unquoted(commit));
    Ok(text + wrapped(&origin).trim_end() + "\n")
}

fn unquoted(json: &str) -> &str {
    json.trim_matches('"')
}

/// Time and size of each codec, on each program's pages.
fn codecs(lines: &[&Value]) -> Result<String, String> {
    const SIZES: [&str; 4] = ["cpython", "g++", "node", "redis"];
    let line = arm(lines, "codecs").ok_or("a measurement of codecs without the arm 'codecs'")?;
    let mut text = head(
        "`--compressor`",
        &["compress us", "decompress us", "size %", "CPython", "g++", "node", "redis"],
    );
    for codec in cases(&[line]).iter().filter(|case| !case.contains('/')) {
        let figure = |case: &str, metric: &str, factor: f64, digits: usize| {
            middle(line, case, metric)
                .map_or("-".to_string(), |value| format!("{:.digits$}", value * factor))
        };
        let each = format!("{codec}/size_of_each");
        let mut cells = vec![
            codec.clone(),
            figure(codec, "compress_us", 1.0, 1),
            figure(codec, "decompress_us", 1.0, 2),
            figure(codec, "size", 100.0, 1),
        ];
        cells.extend(SIZES.map(|name| figure(&each, name, 100.0, 1)));
        text += &row(cells);
    }
    Ok(text)
}

/// Locks and claims by fault, and what their serial part would allow.
fn contention(lines: &[&Value]) -> Result<String, String> {
    let line =
        arm(lines, "uzswap").ok_or("a measurement of contention without the arm 'uzswap'")?;
    let figure = |case: &str, metric: &str, factor: f64, digits: usize| {
        middle(line, case, metric)
            .map_or("-".to_string(), |value| format!("{:.digits$}", value * factor))
    };
    let cases = cases(&[line]);
    let columns = ["taken", "held, mean", "99 %", "in all", "waits, %", "waited", "system calls"];
    let mut text = head("", &columns);
    // Locks that are hardly ever taken would only lengthen the table.
    let is_shown = |case: &&String| middle(line, case, "held_ns").is_some_and(|ns| ns >= 5.0);
    for case in cases.iter().filter(|case| case.contains('/')).filter(is_shown) {
        let cells = [
            figure(case, "acquired", 1.0, 2),
            figure(case, "held_mean_ns", 1.0, 0),
            figure(case, "held_p99_ns", 1.0, 0),
            figure(case, "held_ns", 1.0, 0),
            figure(case, "wait_share", 100.0, 2),
            figure(case, "waited_ns", 1.0, 0),
            figure(case, "calls", 1.0, 3),
        ];
        text += &row([case.replace('/', ", ")].into_iter().chain(cells));
    }
    let columns =
        ["serial part", "of it in the fault", "by medians", "4 processors", "16", "64", "bound"];
    text += &format!("\n{}", head("", &columns));
    for case in cases.iter().filter(|case| !case.contains('/')) {
        let projected = |n: u32| {
            let of = |kind: &str| figure(case, &format!("projected_{kind}_{n}"), 1.0, 1);
            format!("{}x ({}x)", of("queue"), of("amdahl"))
        };
        let cells = [
            figure(case, "serial_ns", 1.0, 0),
            figure(case, "serial_in_fault_ns", 1.0, 0),
            figure(case, "serial_by_median_ns", 1.0, 0),
            projected(4),
            projected(16),
            projected(64),
            figure(case, "projected_bound", 1.0, 0) + "x",
        ];
        text += &row([case.clone()].into_iter().chain(cells));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::super::results;
    use super::newest::{newest, variety};
    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    const UPDATE: &str = "UPDATE_README=1 cargo test -p uzswap-lab tables";

    fn line(arm: &str, us: f64) -> Value {
        json!({
            "benchmark": "faults", "date": "2026-01-02T030405", "arm": arm,
            "machine": "M", "commit": "c",
            "settings": {"rounds": 3, "count_pool": true},
            "figures": {"random read": {"touch_ns": [us * 1000.0, 1, 2, 3]}},
        })
    }

    #[test]
    fn a_place_is_filled_and_what_is_around_it_stays() {
        let lines = [line("uzswap", 4.0), line("zram pc0", 10.0)];
        let document = "a\n<!-- results: faults 2026-01-02T030405 -->\nold\n<!-- end -->\nb\n";
        let made = renewed(document, &lines).unwrap();
        assert!(made.starts_with(
            "a\n<!-- results: faults 2026-01-02T030405 -->\n| | zram pc0 |\n|---|---|\n"
        ));
        assert!(made.ends_with("| random read | 2.50x |\n<!-- end -->\nb\n"), "{made}");
        assert_eq!(renewed(&made, &lines).unwrap(), made);
        let missing = renewed(&document.replace("030405", "030406"), &lines);
        assert_eq!(missing.unwrap_err(), "no lines of faults 2026-01-02T030406");
        assert!(
            renewed(&document.replace("end", "and"), &lines).unwrap_err().contains("does not end")
        );
    }

    #[test]
    fn of_each_machine_the_newest_is_shown() {
        let mut lines = vec![line("uzswap", 4.0)];
        lines.push(Value::clone(&lines[0]));
        lines[1]["date"] = "2026-01-03T000000".into();
        lines[1]["figures"]["random read"]["touch_ns"][0] = json!(5000);
        let text = newest(&lines);
        assert!(text.contains("`2026-01-03T000000`, M, count_pool true, commit c:"), "{text}");
        assert!(text.contains("| random read | 5.00 |") && !text.contains("4.00"), "{text}");
        let long = wrapped(&"word ".repeat(50));
        assert_eq!(long.lines().map(str::len).max(), Some(99), "{long}");
    }

    #[test]
    fn of_each_program_the_newest_runs_are_shown() {
        let of = |date: &str, arm: &str, figures: Value| {
            json!({
                "benchmark": "variety", "date": date, "arm": arm, "machine": "M", "commit": "c",
                "figures": {"ruby": figures},
            })
        };
        let run = |seconds: f64| json!({"wall_seconds": [seconds, null, null, 1]});
        let free =
            json!({"wall_seconds": [2, null, null, 1], "need_bytes": [104_857_600, null, null, 1]});
        let lines = [
            of("2026-01-02T030405", "free", free.clone()),
            of("2026-01-02T030405", "protect", run(2.0)),
            of("2026-01-03T000000", "free", free),
            of("2026-01-03T000000", "userfaultfd", run(5.0)),
            of(
                "2026-01-03T000000",
                "protect",
                json!({"failed_runs": [1, 1, 1, 1], "other_runs": [1, 1, 1, 1]}),
            ),
        ];
        let text = variety(&lines).unwrap();
        let expected =
            "| ruby | language | 100 MiB | 2.0 s | right, 2.5x | **other output** | not run |\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with("\n1 programs; measurements `2026-01-03T000000` (M, commit c).\n"));
    }

    /// Parses a date as the documents have it: `2026-11-24T215553`, or `T215553` alone.
    fn dates(document: &str) -> Vec<String> {
        let of = |at: usize| {
            let time = document.get(at + 1..at + 7)?;
            let is_time = time.bytes().all(|byte| byte.is_ascii_digit());
            // A longer number, or a part of a word, is no time.
            let ends = !document[at + 7..].starts_with(|c: char| c.is_ascii_alphanumeric());
            let begins = document[..at].ends_with(['`', '-'])
                || document[..at].ends_with(|c: char| c.is_ascii_digit());
            (is_time && ends && begins).then(|| format!("T{time}"))
        };
        document.match_indices('T').filter_map(|(at, _)| of(at)).collect()
    }

    fn collect_documents(folder: &Path, documents: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => collect_documents(&entry, documents),
                false => documents
                    .extend(Some(entry).filter(|path| path.extension() == Some("md".as_ref()))),
            }
        }
    }

    #[test]
    fn a_summary_is_of_one_machine_and_commit() {
        let mut lines = vec![line("uzswap", 4.0), line("zram pc0", 10.0)];
        let text = summary(&["2026-01-02T030405"], &lines).unwrap();
        assert!(text.contains("| random read, us | 4.00 | | 10.00 | |\n"), "{text}");
        assert!(text.ends_with("\nM, commit c; measurements `2026-01-02T030405`.\n"), "{text}");
        lines[1]["commit"] = "d".into();
        assert!(
            summary(&["2026-01-02T030405"], &lines).unwrap_err().contains("one machine and commit")
        );
    }

    #[test]
    fn the_documents_are_up_to_date_and_name_no_measurement_without_lines() {
        let text = fs::read_to_string(format!("{ROOT}/docs/results.jsonl")).unwrap();
        let lines = results::read(&text).unwrap();
        let mut documents: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"]
            .map(|name| format!("{ROOT}/{name}").into())
            .into();
        collect_documents(format!("{ROOT}/docs").as_ref(), &mut documents);
        let mut seen = 0;
        for path in documents {
            let document = fs::read_to_string(&path).unwrap();
            for date in dates(&document) {
                let is_there =
                    |line: &Value| line["date"].as_str().is_some_and(|own| own.ends_with(&date));
                assert!(lines.iter().any(is_there), "{}: no lines of {date}", path.display());
                seen += 1;
            }
            let current = renewed(&document, &lines)
                .unwrap_or_else(|why| panic!("{}: {why}", path.display()));
            if std::env::var_os("UPDATE_README").is_some() {
                fs::write(&path, &current).unwrap();
            } else {
                assert!(document == current, "{} is old: {UPDATE}", path.display());
            }
        }
        assert!(seen > 10, "only {seen} measurements are named: is their form another one now?");
    }
}
