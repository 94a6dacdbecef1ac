//! The page of `--report`: one HTML file with everything in it, to be looked at anywhere.
//!
//! ```text
//!   Outcome (counters, options) ─┐
//!   Series (samples) ────────────┼─> page.rs: text, tables, data as JSON ─> FILE.html
//!   page.css, page.js ───────────┘         the plots are drawn by page.js where the page is read
//! ```
//!
//! Text that comes from the program (names, arguments) is escaped in the text and in the data; a
//! policy in the head forbids everything from outside. Without scripts the figures and tables are
//! there, the plots are not.

use std::fmt::Write;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use uzswap::control::{Counter, Mechanism};
use uzswap::latency::{BUCKETS, FaultKind, Histogram, upper_ns};

use super::outcome::{Outcome, Told, settings_json};
use super::sampler::{Sample, Seen, Series};
use crate::machine::{machine, utc};
use crate::os::{self, How};
use crate::procfs::shortened;
use crate::size::{PAGE_BYTES, grouped, human};
use crate::written;

/// Processes in the table; of more only the largest are shown.
const ROWS_MAX: usize = 200;
/// Bytes of the program's command line that are shown: a screen full of it.
const COMMAND_BYTES_MAX: usize = 4096;

pub fn render(outcome: &Outcome, told: &Told, series: &Series) -> String {
    let command: Vec<_> = outcome.command.iter().map(|a| a.to_string_lossy()).collect();
    let command = escape(&shortened(&command.join(" "), COMMAND_BYTES_MAX));
    let latency =
        FaultKind::ALL.map(|kind| outcome.tree.map(|t| t.latency(kind)).unwrap_or_default());
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>uzswap: {command}</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<h1>uzswap: <code>{command}</code></h1>\n",
        include_str!("page.css")
    );
    head(&mut html, outcome, told);
    figures(&mut html, outcome, told, &latency);
    plots(&mut html, outcome, series, &latency);
    processes(&mut html, outcome, series);
    details(&mut html, outcome);
    let _ = write!(
        html,
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}</script>\n\
         </body>\n</html>\n",
        for_script(&data(series, &latency)),
        include_str!("page.js")
    );
    html
}

fn head(html: &mut String, outcome: &Outcome, told: &Told) {
    let began = outcome.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let ended = match outcome.end.how {
        How::Exited(0) => "ended well (exit code 0)".to_string(),
        How::Exited(code) => format!("ended with exit code {code}"),
        How::Killed(signal) => format!("was killed by {}", os::signal_name(signal)),
        How::Unknown => "ended".to_string(),
    };
    let _ = writeln!(html, "<p>{}</p>", escape(&told.summary));
    for warning in &told.warnings {
        let _ = writeln!(html, "<p class=\"warning\">{}</p>", escape(warning));
    }
    let _ = writeln!(
        html,
        "<p class=\"quiet\">Started {}, took {}, {ended}.</p>",
        utc(began).replace('T', " ").replace('Z', " UTC"),
        duration(outcome.wall_time.as_nanos() as u64)
    );
}

fn figures(html: &mut String, outcome: &Outcome, told: &Told, latency: &[Histogram; 4]) {
    let mut all = Histogram::default();
    latency.iter().for_each(|one| all.add(one));
    let total = |c: Counter| outcome.tree.map_or(0, |t| t.total(c));
    let mut figures = vec![
        ("peak memory", human(told.peak_used_bytes)),
        ("limit", human(outcome.settings.memory_bytes)),
        ("needed without uzswap", human(told.peak_needed_bytes)),
        ("saved", format!("{:.1}×", told.ratio)),
        ("faults", grouped(total(Counter::Faults))),
        ("written to the store", human(written::pages(total) * PAGE_BYTES)),
        ("read back", human(total(Counter::ReadBackPages) * PAGE_BYTES)),
        ("processes", grouped(total(Counter::Processes))),
    ];
    if all.count() > 0 {
        figures.push(("half of the faults within", duration(all.quantile_ns(0.5))));
        figures.push(("99 % within", duration(all.quantile_ns(0.99))));
    }
    *html += "<dl class=\"figures\">\n";
    for (name, value) in figures {
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    *html += "</dl>\n";
}

fn plots(html: &mut String, outcome: &Outcome, series: &Series, latency: &[Histogram; 4]) {
    if outcome.tree.is_none() {
        *html += "<p>The program ran unmanaged: there is nothing to plot.</p>\n";
        return;
    }
    if series.samples.len() < 2 {
        *html += "<p>No samples were taken.</p>\n";
        return;
    }
    *html += "<noscript><p>The plots need JavaScript.</p></noscript>\n";
    let plot = |html: &mut String, id: &str, title: &str, note: &str| {
        let _ = writeln!(
            html,
            "<h2>{title}</h2>\n<p class=\"quiet\">{note}</p>\n\
             <div class=\"plot\" id=\"{id}\" data-title=\"{title}\"></div>"
        );
    };
    let every = series.interval.as_millis();
    plot(
        html,
        "memory",
        "Memory",
        &format!(
            "Sampled every {every} ms. Reserved: what processes that do not page could hold at \
             most."
        ),
    );
    plot(html, "faults", "Faults per second", "By what was to be done.");
    if latency.iter().any(|one| one.count() > 0) {
        plot(
            html,
            "latency",
            "How long faults took",
            "Faults of all processes by the time in uzswap's handler; the time is on a logarithmic \
             scale.",
        );
        latency_table(html, latency);
    }
    plot(
        html,
        "disk",
        "Backing store",
        "Pages written and read back since the start, as uncompressed.",
    );
    plot(
        html,
        "ratio",
        "Memory saved",
        "Needed by used: of everything. Stored pages by pool: same-filled pages and those in the \
         store take none of it.",
    );
}

fn latency_table(html: &mut String, latency: &[Histogram; 4]) {
    *html += "<div class=\"scroll\"><table class=\"figured\">\n<tr><th>faults</th>\
              <th class=\"number\">count</th><th class=\"number\">mean</th>\
              <th class=\"number\">p50</th><th class=\"number\">p99</th>\
              <th class=\"number\">p99.9</th></tr>\n";
    for (kind, one) in FaultKind::ALL.iter().zip(latency).filter(|(_, one)| one.count() > 0) {
        let _ = write!(
            html,
            "<tr><td class=\"kind\">{}</td><td class=\"number\">{}</td>",
            kind.doc(),
            grouped(one.count())
        );
        for ns in [
            one.mean_ns() as u64,
            one.quantile_ns(0.5),
            one.quantile_ns(0.99),
            one.quantile_ns(0.999),
        ] {
            let _ = write!(html, "<td class=\"number\">{}</td>", duration(ns));
        }
        *html += "</tr>\n";
    }
    *html += "</table></div>\n";
}

fn processes(html: &mut String, outcome: &Outcome, series: &Series) {
    if series.processes.is_empty() {
        return;
    }
    *html += "<h2>Processes</h2>\n<div class=\"scroll\">\
              <table class=\"figured\" id=\"processes\">\n<tr><th>pid</th><th>command</th>\
              <th class=\"number\">needed</th><th class=\"number\">used</th>\
              <th class=\"number\">faults</th><th class=\"number\">loads</th>\
              <th class=\"number\">from</th><th class=\"number\">to</th><th>paging</th></tr>\n";
    for p in series.processes.iter().take(ROWS_MAX) {
        let _ = write!(
            html,
            "<tr><td>{}</td><td class=\"command\"><code>{}</code></td>",
            p.pid,
            escape(&p.command)
        );
        for cell in cells(p) {
            let _ = write!(html, "<td class=\"number\">{cell}</td>");
        }
        let _ = writeln!(html, "<td>{}</td></tr>", p.mechanism.map_or("off", Mechanism::name));
    }
    *html += "</table></div>\n";
    let all = outcome.tree.map_or(0, |t| t.total(Counter::Processes));
    let shown = series.processes.len().min(ROWS_MAX) as u64;
    if all > shown {
        let _ = writeln!(
            html,
            "<p class=\"quiet\">{} more ended before they were seen, or were smaller.</p>",
            grouped(all - shown)
        );
    }
}

fn cells(p: &Seen) -> [String; 6] {
    let bytes = |pages: u64| human(pages * PAGE_BYTES);
    // Without paging nobody counted more than what it could use at most.
    let used = match p.mechanism {
        Some(_) => bytes(p.peak_used_pages),
        None => format!("≤ {}", bytes(p.peak_used_pages)),
    };
    let needed =
        if p.peak_needed_pages > 0 { bytes(p.peak_needed_pages) } else { "–".to_string() };
    let at = |ms: u64| duration(ms * 1_000_000);
    [needed, used, grouped(p.faults), grouped(p.loads), at(p.first_ms), at(p.last_ms)]
}

/// Options, machine and every counter.
fn details(html: &mut String, outcome: &Outcome) {
    let table = |html: &mut String, rows: &[(String, String, &str)]| {
        *html += "<div class=\"scroll\"><table>\n";
        for (name, value, meaning) in rows {
            let _ = write!(html, "<tr><th>{}</th><td>{}</td>", escape(name), escape(value));
            let _ = match *meaning {
                "" => writeln!(html, "</tr>"),
                _ => writeln!(html, "<td class=\"quiet\">{}</td></tr>", escape(meaning)),
            };
        }
        *html += "</table></div>\n";
    };
    let rows = |value: &Value| -> Vec<(String, String, &str)> {
        let plain = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_string);
        value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.replace('_', " "), plain(v), ""))
            .collect()
    };
    *html += "<h2>Options</h2>\n";
    table(html, &rows(&settings_json(outcome.settings)));
    *html += "<h2>Machine</h2>\n";
    let mut described = rows(&machine());
    described.push(("uzswap".to_string(), env!("CARGO_PKG_VERSION").to_string(), ""));
    table(html, &described);
    if let Some(tree) = outcome.tree {
        *html += "<details>\n<summary>All counters</summary>\n";
        let counters =
            Counter::ALL.iter().map(|c| (c.name().to_string(), grouped(tree.total(*c)), c.doc()));
        table(html, &counters.collect::<Vec<_>>());
        *html += "</details>\n";
    }
}

/// Data that page.js draws: columns, which are shorter than rows.
fn data(series: &Series, latency: &[Histogram; 4]) -> Value {
    let column = |of: fn(&Sample) -> u64| series.samples.iter().map(of).collect::<Vec<u64>>();
    let by_kind = |of: &dyn Fn(FaultKind) -> Vec<u64>| -> Value {
        FaultKind::ALL.iter().map(|kind| (kind.name().to_string(), json!(of(*kind)))).collect()
    };
    json!({
        "series": {
            "at_ms": column(|s| s.at_ms),
            "limit_pages": column(|s| s.limit_pages),
            "used_pages": column(|s| s.used_pages),
            "needed_pages": column(|s| s.needed_pages),
            "resident_pages": column(|s| s.resident_pages),
            "limbo_pages": column(|s| s.limbo_pages),
            "pool_pages": column(|s| s.pool_pages),
            "outside_pages": column(|s| s.outside_pages),
            "reserved_pages": column(|s| s.reserved_pages),
            "stored_pages": column(|s| s.stored_pages),
            "written_pages": column(|s| s.written_pages),
            "read_pages": column(|s| s.read_pages),
            "processes": column(|s| s.processes),
            "faults": by_kind(&|kind| {
                series.samples.iter().map(|s| s.faults[kind as usize]).collect()
            }),
        },
        "latency": by_kind(&|kind| latency[kind as usize].counts.to_vec()),
        "latency_upper_ns": (0..BUCKETS).map(upper_ns).collect::<Vec<_>>(),
    })
}

/// JSON that can stand in a script element: no `</script>` and no `<!--` can be in it.
fn for_script(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // Not allowed in HTML, and they could turn text around.
            c if c.is_control() && c != '\n'
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                escaped.push('\u{fffd}')
            }
            c => escaped.push(c),
        }
    }
    escaped
}

fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ if ns < 120_000_000_000 => (ns as f64 / 1e9, "s"),
        _ => {
            let s = ns / 1_000_000_000;
            return format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
        }
    };
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_the_program_cannot_leave_its_place() {
        assert_eq!(escape("<b a='\"&\u{1}\u{202e}"), "&lt;b a=&#39;&quot;&amp;\u{fffd}\u{fffd}");
        let script = for_script(&json!({"x": "</script><!--"}));
        assert!(!script.contains('<'), "{script}");
        assert_eq!(serde_json::from_str::<Value>(&script).unwrap()["x"], "</script><!--");
    }

    #[test]
    fn times_for_people() {
        assert_eq!(duration(900), "900 ns");
        assert_eq!(duration(1500), "1.5 µs");
        assert_eq!(duration(15_000_000), "15 ms");
        assert_eq!(duration(61_000_000_000), "61 s");
        assert_eq!(duration(3_725_000_000_000), "1:02:05");
    }
}
