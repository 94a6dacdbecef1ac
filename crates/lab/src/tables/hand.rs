//! Figures that were taken by hand: what no benchmark measures, once, for a page of
//! `docs/experiments`. Their lines are written by hand, too:
//!
//! ```text
//!  benchmark   "by-hand"
//!  page        the document, by its name without .md
//!  table       which table of the page, where it has several; or "text", for its sentences
//!  arm, figures, date, machine, commit, settings     as in all lines; what is not known is null
//! ```
//!
//! A range has no median. Every figure of such a page is one of its lines', which a test of this
//! file sees to: so a page says nothing that nobody can ask for.

use serde_json::Value;

use super::{cases, head, row, wrapped};

/// A page's table: a row for each case, a column for each arm. Its end says where it comes from.
pub(super) fn table(page: &str, name: Option<&str>, lines: &[Value]) -> Result<String, String> {
    let is_its = |line: &&Value| is_of(line, page) && line["table"].as_str() == name;
    let lines: Vec<&Value> = lines.iter().filter(is_its).collect();
    if lines.is_empty() {
        return Err(format!("no lines of {page} by hand{}", name.map_or(String::new(), named)));
    }
    let arms = super::names(&lines);
    let mut text = head("", &arms);
    for case in cases(&lines) {
        let cells = lines.iter().map(|line| cell(&line["figures"][&case]));
        text += &row([case.clone()].into_iter().chain(cells));
    }
    let mut origins: Vec<String> = lines.iter().map(|line| origin(line)).collect();
    origins.dedup();
    Ok(text + wrapped(&format!("By hand: {}.", origins.join("; "))).trim_end() + "\n")
}

fn named(name: &str) -> String {
    format!(", table {name}")
}

fn is_of(line: &Value, page: &str) -> bool {
    line["benchmark"] == "by-hand" && line["page"] == page
}

/// The figures of one case, divided by bars: `7.1 / 6 to 6.5`.
fn cell(metrics: &Value) -> String {
    let of = |figure: &Value| match (&figure[0], &figure[1], &figure[2]) {
        (Value::Null, low, high) => format!("{} to {}", number(low), number(high)),
        (middle, ..) => number(middle),
    };
    let figures = metrics.as_object().into_iter().flatten().map(|(_, figure)| of(figure));
    figures.collect::<Vec<_>>().join(" / ")
}

/// A number with its thousands apart, or the words that stand for one ("killed").
fn number(value: &Value) -> String {
    let text = value.as_str().map_or(value.to_string(), str::to_string);
    if text.len() < 5 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text;
    }
    let (first, rest) = text.split_at(text.len() % 3);
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    let first = (!first.is_empty()).then(|| first.to_string());
    first.into_iter().chain(groups).collect::<Vec<_>>().join(" ")
}

fn origin(line: &Value) -> String {
    let [date, machine, commit] = ["date", "machine", "commit"].map(|key| line[key].as_str());
    let commit = commit.map(|commit| format!("commit {commit}"));
    let settings = line["settings"].as_object().into_iter().flatten().map(|(key, value)| {
        let value = value.as_str().map_or(value.to_string(), str::to_string);
        if key == "how" { value } else { format!("{key} {value}") }
    });
    let known = [date.map(str::to_string), machine.map(str::to_string), commit];
    known.into_iter().flatten().chain(settings).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::super::super::results;
    use super::*;

    fn line(arm: &str, figures: Value) -> Value {
        json!({
            "date": "2026-01-02", "benchmark": "by-hand", "page": "shares", "arm": arm,
            "machine": "EPYC, 2 cores", "commit": null, "settings": {"how": "two runs"},
            "figures": figures,
        })
    }

    #[test]
    fn a_table_has_the_arms_side_by_side_and_says_where_it_comes_from() {
        let lines = [
            line("before", json!({"loop": {"rounds": [null, 3411, 36760, 2]}})),
            line("shares", json!({"loop": {"a": [7.5, null, null, 1], "b": ["killed", 1, 1, 1]}})),
        ];
        assert_eq!(
            table("shares", None, &lines).unwrap(),
            "| | before | shares |\n|---|---|---|\n| loop | 3411 to 36 760 | 7.5 / killed |\n\n\
             By hand: 2026-01-02, EPYC, 2 cores, two runs.\n"
        );
        assert!(table("shares", Some("other"), &lines).unwrap_err().contains("table other"));
    }

    /// A document without its tables of results, code, comments and targets of links.
    fn prose(document: &str) -> String {
        let mut text = String::new();
        let (mut is_code, mut is_made) = (false, false);
        for line in document.lines() {
            is_made |= line.starts_with("<!-- results:");
            is_code ^= line.starts_with("```");
            if !is_code && !is_made {
                // Every second piece is between backticks.
                text.extend(line.split('`').step_by(2).flat_map(|piece| [piece, " "]));
                text.push('\n');
            }
            is_made &= !line.contains("<!-- end -->");
        }
        let mut pieces = text.split("](");
        let first = pieces.next().unwrap_or_default().to_string();
        pieces.fold(first, |all, piece| all + piece.split_once(')').map_or("", |(_, rest)| rest))
    }

    /// All numbers of a text, with the words before and behind them: `107 000` is one number.
    fn numbers(text: &str) -> Vec<(String, String, String)> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut found: Vec<(String, String, String)> = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let core = |word: &str| {
                word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '%').to_string()
            };
            let mut number = core(words[at]);
            let before = at.checked_sub(1).map_or(String::new(), |at| core(words[at]));
            let is_group = |word: &str| word.len() == 3 && word.bytes().all(|b| b.is_ascii_digit());
            let is_open = |at: usize| words[at].ends_with(|c: char| c.is_ascii_digit());
            while number.bytes().all(|b| b.is_ascii_digit())
                && !number.is_empty()
                && is_open(at)
                && words.get(at + 1).is_some_and(|next| is_group(&core(next)))
            {
                at += 1;
                number += &core(words[at]);
            }
            let behind = words.get(at + 1).map_or(String::new(), |word| core(word));
            let bare = number.trim_end_matches(['%', 'x']);
            if bare.parse::<f64>().is_ok() && bare.starts_with(|c: char| c.is_ascii_digit()) {
                let unit = number[bare.len()..].to_string();
                found.push((bare.to_string(), before, if unit.is_empty() { behind } else { unit }));
            }
            at += 1;
        }
        found
    }

    /// Whether a number was measured, and is no version: it has a fraction, or a unit of figures.
    fn is_figure((number, before, behind): &(String, String, String)) -> bool {
        const VERSIONED: [&str; 9] =
            ["Linux", "glibc", "Rust", "Go", "DuckDB", "Dask", "Redis", "Podman", "CPython"];
        const UNITS: [&str; 7] = ["ns", "us", "ms", "s", "%", "x", "times"];
        !VERSIONED.contains(&before.as_str())
            && (number.contains('.') || UNITS.contains(&behind.as_str()))
    }

    /// The numbers of lines, as a text has them.
    fn known(lines: &[&Value]) -> BTreeSet<String> {
        let mut known = BTreeSet::new();
        for line in lines {
            for value in [&line["figures"], &line["settings"]] {
                // A comma stays a word: figures beside each other are no group of thousands.
                let text: String = value
                    .to_string()
                    .replace(',', " , ")
                    .chars()
                    .map(|c| if "\":[]{}/()".contains(c) { ' ' } else { c })
                    .collect();
                known.extend(numbers(&text).into_iter().map(|(number, ..)| number));
            }
        }
        known
    }

    #[test]
    fn numbers_are_found_as_a_reader_finds_them() {
        let text = "some 107 000 pages, 7.5 us (2x), of Linux 6.18, in [b](9.9 us) and `8.8 us`";
        let found: Vec<String> = numbers(&prose(text))
            .into_iter()
            .filter(is_figure)
            .map(|(number, ..)| number)
            .collect();
        assert_eq!(found, ["7.5", "2"]);
        assert_eq!(numbers(text)[0].0, "107000");
    }

    #[test]
    fn no_document_has_a_measured_figure_without_a_line() {
        // The others describe: their numbers are constants of the code, and of examples.
        const SINGLE: [&str; 7] = [
            "../README.md",
            "codecs.md",
            "containers.md",
            "programs.md",
            "python.md",
            "rules.md",
            "troubleshooting.md",
        ];
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
        let all = results::read(&fs::read_to_string(docs.join("results.jsonl")).unwrap()).unwrap();
        let folders = ["experiments", "decisions"].map(|folder| docs.join(folder));
        let pages = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let pages = pages.map(|entry| entry.unwrap().path());
        let single = SINGLE.map(|name| docs.join(name));
        let (mut missing, mut seen) = (String::new(), 0);
        for path in pages.chain(single) {
            let page = path.file_stem().unwrap().to_string_lossy().into_owned();
            let own: Vec<&Value> = all.iter().filter(|line| is_of(line, &page)).collect();
            let known = known(&own);
            let document = fs::read_to_string(&path).unwrap();
            for figure in numbers(&prose(&document)).iter().filter(|figure| is_figure(figure)) {
                seen += 1;
                if !known.contains(&figure.0) {
                    let (number, before, behind) = figure;
                    missing += &format!("{page}: {before} {number} {behind}\n");
                }
            }
        }
        assert!(missing.is_empty(), "no line of docs/results.jsonl has these:\n{missing}");
        assert!(seen > 50, "only {seen} figures are found: are they written in another way now?");
    }
}
