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
use uzswap_cli::size::grouped;

use super::{cases, head, row, wrapped};

/// A page's table: a row for each case, a column for each arm. Its end says where it comes from.
pub(super) fn table(page: &str, name: Option<&str>, lines: &[Value]) -> Result<String, String> {
    let is_its = |line: &&Value| is_of(line, page) && line["table"].as_str() == name;
    let lines: Vec<&Value> = lines.iter().filter(is_its).collect();
    if lines.is_empty() {
        let table = name.map_or(String::new(), |name| format!(", table {name}"));
        return Err(format!("no lines of {page} by hand{table}"));
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

/// A number, from five digits on with its thousands apart, or the words that stand for one
/// ("killed").
fn number(value: &Value) -> String {
    match value.as_u64() {
        Some(count) if count >= 10_000 => grouped(count),
        _ => value.as_str().map_or(value.to_string(), str::to_string),
    }
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

    /// A number of a text, without its unit, and the words beside it.
    struct Number {
        bare: String,
        before: String,
        unit: String,
    }

    impl Number {
        /// Whether it was measured, and is no version: it has a fraction, or a unit of figures.
        fn is_figure(&self) -> bool {
            const VERSIONED: [&str; 9] =
                ["Linux", "glibc", "Rust", "Go", "DuckDB", "Dask", "Redis", "Podman", "CPython"];
            const UNITS: [&str; 7] = ["ns", "us", "ms", "s", "%", "x", "times"];
            !VERSIONED.contains(&self.before.as_str())
                && (self.bare.contains('.') || UNITS.contains(&self.unit.as_str()))
        }
    }

    /// A word without what stands around it.
    fn core(word: &str) -> &str {
        word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '%')
    }

    fn is_digits(word: &str) -> bool {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// All numbers of a text: `107 000` is one.
    fn numbers(text: &str) -> Vec<Number> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let beside = |at: usize| words.get(at).map_or(String::new(), |word| core(word).to_string());
        let goes_on = |at: usize| {
            let next = words.get(at + 1).map_or("", |word| core(word));
            words[at].ends_with(|c: char| c.is_ascii_digit()) && next.len() == 3 && is_digits(next)
        };
        let mut found = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let first = at;
            while is_digits(core(words[first])) && goes_on(at) {
                at += 1;
            }
            let number: String = words[first..=at].iter().map(|word| core(word)).collect();
            let bare = number.trim_end_matches(['%', 'x']).to_string();
            if bare.parse::<f64>().is_ok() && bare.starts_with(|c: char| c.is_ascii_digit()) {
                let own_unit = &number[bare.len()..];
                found.push(Number {
                    before: beside(first.wrapping_sub(1)),
                    unit: if own_unit.is_empty() { beside(at + 1) } else { own_unit.to_string() },
                    bare,
                });
            }
            at += 1;
        }
        found
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
                known.extend(numbers(&text).into_iter().map(|number| number.bare));
            }
        }
        known
    }

    #[test]
    fn numbers_are_found_as_a_reader_finds_them() {
        let text = "some 107 000 pages, 7.5 us (2x), of Linux 6.18, in [b](9.9 us) and `8.8 us`";
        let found = numbers(&prose(text));
        let figures: Vec<&str> =
            found.iter().filter(|number| number.is_figure()).map(|n| n.bare.as_str()).collect();
        assert_eq!(figures, ["7.5", "2"]);
        assert_eq!(numbers(text)[0].bare, "107000");
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
            for figure in numbers(&prose(&document)).iter().filter(|figure| figure.is_figure()) {
                seen += 1;
                if !known.contains(&figure.bare) {
                    let Number { bare, before, unit } = figure;
                    missing += &format!("{page}: {before} {bare} {unit}\n");
                }
            }
        }
        assert!(missing.is_empty(), "no line of docs/results.jsonl has these:\n{missing}");
        assert!(seen > 50, "only {seen} figures are found: are they written in another way now?");
    }
}
