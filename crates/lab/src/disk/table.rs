//! The table of a measurement, for a terminal and for the documents.

use serde_json::Value;

use super::jobs::{Data, PHASES};
use super::{IDLE, IDLE_ARM};

const DATA: [Data; 3] = [Data::Zeros, Data::Half, Data::Heap];

/// For each number of writers a table: ours, in brackets by nbdkit and by zram, a column for each
/// kind of data.
pub fn table(lines: &[&Value]) -> String {
    let arm = |name: &str| lines.iter().copied().find(|line| line["arm"] == name);
    let Some(ours) = arm("uzswap") else { return String::new() };
    let mut writers: Vec<u64> = Vec::new();
    for case in ours["figures"].as_object().into_iter().flatten() {
        let number = case.0.split([' ', '/']).nth(1).and_then(|n| n.parse().ok());
        writers.extend(number.filter(|n| !writers.contains(n)));
    }
    let mut text = String::new();
    for writers in writers {
        let at_once = if writers == 1 { "one writer" } else { &format!("{writers} writers") };
        text += &block(&format!("{at_once}, MiB/s (by nbdkit, by zram)"), |data, phase| {
            let case = format!("{} {writers}", data.name());
            let (phase_case, metric) = match phase {
                "memory, MiB" => (case, "held_bytes"),
                "`mem_used_total`, MiB" => (case, "pool_bytes"),
                _ => (format!("{case}/{phase}"), "mib_per_second"),
            };
            cell(ours, &phase_case, metric)
        });
        text.push('\n');
    }
    if let Some(idle) = arm(IDLE_ARM) {
        let head = format!("one writer beside {IDLE} idle connections, by it alone");
        text += &block(&head, |data, phase| {
            let case = format!("{} 1/{phase}", data.name());
            Some(format!("{:.2}x", middle(idle, &case, "by_uzswap")?))
        });
        text.push('\n');
    }
    text.trim_end().to_string() + "\n"
}

fn middle(line: &Value, case: &str, metric: &str) -> Option<f64> {
    line["figures"][case][metric][0].as_f64()
}

/// A figure, with ratios where there are peers.
fn cell(ours: &Value, case: &str, metric: &str) -> Option<String> {
    let scale = if metric == "mib_per_second" { 1.0 } else { f64::from(1 << 20) };
    let value = middle(ours, case, metric)? / scale;
    let by = |peer: &str| {
        let metric = match metric {
            "mib_per_second" => format!("by_{peer}"),
            memory => format!("{memory}_by_{peer}"),
        };
        middle(ours, case, &metric).map_or("-".to_string(), |ratio| format!("{ratio:.2}x"))
    };
    let ratios = [by("nbdkit"), by("zram")];
    match ratios.iter().all(|ratio| ratio == "-") {
        true => Some(format!("{value:.0}")),
        false => Some(format!("{value:.0} ({})", ratios.join(", "))),
    }
}

/// A table with a row for each phase, and a column for each kind of data that is there.
fn block(head: &str, cell: impl Fn(Data, &str) -> Option<String>) -> String {
    let names = PHASES.iter().map(|phase| phase.name);
    let rows: Vec<&str> = names.chain(["memory, MiB", "`mem_used_total`, MiB"]).collect();
    let is_there = |data: &Data| rows.iter().any(|row| cell(*data, row).is_some());
    let columns: Vec<Data> = DATA.into_iter().filter(is_there).collect();
    let mut text = format!("| {head} |");
    columns.iter().for_each(|data| text += &format!(" {} |", data.name()));
    text += &format!("\n|{}\n", "---|".repeat(columns.len() + 1));
    for row in rows {
        let cells: Vec<Option<String>> = columns.iter().map(|data| cell(*data, row)).collect();
        if cells.iter().any(Option::is_some) {
            text += &format!("| {row} |");
            for cell in cells {
                text += &format!(" {} |", cell.unwrap_or("-".to_string()));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::results;

    #[test]
    fn a_table_is_made_of_runs() {
        let run = |arm: &str, writers: u32, speed: f64| {
            json!({"arm": arm, "data": "half", "writers": writers, "round": 1,
                   "phases": {"read": speed}, "held_bytes": 2 << 20})
        };
        let mut ours = run("uzswap", 12, 600.0);
        ours["by"] = json!({"nbdkit": {"read": 2.0, "held_bytes": 0.5},
                            "zram": {"read": 0.4}});
        let mut idle = run(IDLE_ARM, 1, 99.0);
        idle["by"] = json!({"uzswap": {"read": 0.99}});
        let runs = [ours, run("nbdkit", 12, 300.0), run("uzswap", 1, 100.0), idle];
        let record = json!({"benchmark": "disk", "runs": runs});
        let lines = results::lines_of(&record);
        let text = table(&lines.iter().collect::<Vec<_>>());
        let expected = "\
            | 12 writers, MiB/s (by nbdkit, by zram) | half |\n|---|---|\n\
            | read | 600 (2.00x, 0.40x) |\n| memory, MiB | 2 (0.50x, -) |\n\n\
            | one writer, MiB/s (by nbdkit, by zram) | half |\n|---|---|\n\
            | read | 100 |\n| memory, MiB | 2 |\n\n\
            | one writer beside 11 idle connections, by it alone | half |\n|---|---|\n\
            | read | 0.99x |\n";
        assert_eq!(text, expected);
    }
}
