//! Reads the text format of Prometheus, strictly: what a lenient reader would let pass is an error
//! here.
//!
//! A *family* is what one `# TYPE` line announces; its samples follow at once, and no other family
//! comes in between.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// All samples of one answer, by name and labels, and the type of each family.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    pub types: BTreeMap<String, String>,
    pub samples: BTreeMap<String, f64>,
}

/// Asks for the metrics on a Unix socket.
pub fn scrape(socket: &Path) -> Result<String, String> {
    let io = |e: std::io::Error| format!("{}: {e}", socket.display());
    let mut stream = UnixStream::connect(socket).map_err(io)?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(io)?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
        .map_err(io)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(io)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no head")?;
    let length = format!("\r\nContent-Length: {}\r\n", body.len());
    let is_right = head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(&length);
    if is_right { Ok(body.to_string()) } else { Err(format!("an answer that is wrong: {head}")) }
}

fn is_name(text: &str) -> bool {
    let mut letters = text.bytes();
    letters.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && letters.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Splits `a="x",b="y"` and checks its quoting.
fn labels(text: &str) -> Result<Vec<(&str, String)>, String> {
    let (mut found, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").ok_or_else(|| format!("no label: {rest}"))?;
        let (mut end, mut plain, mut is_escaped) = (None, String::new(), false);
        for (at, c) in value.char_indices() {
            match (is_escaped, c) {
                (true, '\\' | '"' | 'n') => plain.push(c),
                (true, _) => return Err(format!("a wrong escape in {text}")),
                (false, '"') => {
                    end = Some(at);
                    break;
                }
                (false, '\\') => {}
                (false, c) => plain.push(c),
            }
            is_escaped = !is_escaped && c == '\\';
        }
        let end = end.ok_or_else(|| format!("a label without end: {text}"))?;
        if !is_name(name) || found.iter().any(|(other, _)| *other == name) {
            return Err(format!("a label's name in {text}"));
        }
        found.push((name, plain));
        rest = &value[end + 1..];
        rest = rest.strip_prefix(',').filter(|r| !r.is_empty()).unwrap_or(rest);
    }
    Ok(found)
}

impl Exposition {
    pub fn parse(text: &str) -> Result<Exposition, String> {
        if !text.ends_with('\n') {
            return Err("the last line does not end".to_string());
        }
        let mut all = Exposition::default();
        let (mut family, mut kind, mut helped) = (String::new(), String::new(), String::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped = help.split(' ').next().unwrap_or_default().to_string();
            } else if let Some(announced) = line.strip_prefix("# TYPE ") {
                let (name, type_name) = announced.split_once(' ').ok_or(line)?;
                if name != helped || !is_name(name) || !name.starts_with("uzswap_") {
                    return Err(format!("a family without help or with a wrong name: {line}"));
                }
                if type_name == "counter" && !name.ends_with("_total")
                    || type_name != "counter" && name.ends_with("_total")
                {
                    return Err(format!("a counter and no other ends in _total: {line}"));
                }
                if all.types.insert(name.to_string(), type_name.to_string()).is_some() {
                    return Err(format!("twice: {line}"));
                }
                (family, kind) = (name.to_string(), type_name.to_string());
            } else {
                all.sample(line, &family, &kind)?;
            }
        }
        all.check_histograms()?;
        Ok(all)
    }

    fn sample(&mut self, line: &str, family: &str, kind: &str) -> Result<(), String> {
        let (series, value) = line.rsplit_once(' ').ok_or(line)?;
        let (name, inside) = match series.split_once('{') {
            Some((name, rest)) => (name, rest.strip_suffix('}').ok_or(line)?),
            None => (series, ""),
        };
        let parsed = labels(inside)?;
        let of_family = match kind {
            "histogram" => name
                .strip_prefix(family)
                .is_some_and(|end| matches!(end, "_bucket" | "_sum" | "_count")),
            "counter" | "gauge" => name == family,
            _ => return Err(format!("a type that is none: {kind}")),
        };
        let value: f64 = value.parse().map_err(|_| format!("no number: {line}"))?;
        if !of_family
            || family.is_empty()
            || parsed.iter().any(|(l, _)| *l == "le") != name.ends_with("_bucket")
        {
            return Err(format!("a sample that is not of {family}: {line}"));
        }
        if kind != "gauge" && value < 0.0 || !value.is_finite() {
            return Err(format!("below zero: {line}"));
        }
        match self.samples.insert(series.to_string(), value) {
            Some(_) => Err(format!("twice: {series}")),
            None => Ok(()),
        }
    }

    /// Buckets grow, the last is the count, and where there is a count there is a sum.
    fn check_histograms(&self) -> Result<(), String> {
        for family in
            self.types.iter().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name)
        {
            let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
            for (series, value) in self.of(&format!("{family}_bucket")) {
                let inside = series.split_once('{').expect("it has le").1.trim_end_matches('}');
                let (rest, le) = inside.rsplit_once("le=\"").expect("it has le");
                let le = le.trim_end_matches('"').parse().map_err(|_| series.to_string())?;
                buckets
                    .entry(rest.trim_end_matches(',').to_string())
                    .or_default()
                    .push((le, value));
            }
            for (labels, mut ends) in buckets {
                ends.sort_by(|a, b| a.0.total_cmp(&b.0));
                let series = |end: &str| match labels.as_str() {
                    "" => format!("{family}_{end}"),
                    _ => format!("{family}_{end}{{{labels}}}"),
                };
                let is_right = ends.is_sorted_by_key(|(_, count)| *count)
                    && ends.last().is_some_and(|(le, count)| {
                        *le == f64::INFINITY && *count == self.get(&series("count"))
                    })
                    && self.samples.contains_key(&series("sum"));
                if !is_right {
                    return Err(format!("a histogram that is none: {}", series("bucket")));
                }
            }
        }
        Ok(())
    }

    /// The samples of one name, with their labels.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let is_of = move |series: &str| {
            series.strip_prefix(name).is_some_and(|r| r.is_empty() || r.starts_with('{'))
        };
        self.samples
            .iter()
            .filter(move |(series, _)| is_of(series))
            .map(|(series, value)| (series.as_str(), *value))
    }

    /// A sample's value; not a number if there is none.
    pub fn get(&self, series: &str) -> f64 {
        self.samples.get(series).copied().unwrap_or(f64::NAN)
    }

    /// The first counter that is smaller now than it was `before`. Of a process that is gone
    /// nothing can be said.
    pub fn fallen(&self, before: &Exposition) -> Option<String> {
        let is_counter = |series: &str| {
            let name = series.split('{').next().unwrap_or_default();
            let histogram = ["_bucket", "_count", "_sum"].iter().any(|end| name.ends_with(end));
            histogram || self.types.get(name).is_some_and(|kind| kind == "counter")
        };
        let fallen = |(series, old): &(&String, &f64)| {
            let is_of_run = !series.contains("pid=\"");
            match self.samples.get(*series) {
                Some(new) => is_counter(series) && new < *old,
                None => is_of_run,
            }
        };
        let (series, old) = before.samples.iter().find(fallen)?;
        Some(format!("{series}: {old}, then {:?}", self.samples.get(series)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP uzswap_x_total x\n# TYPE uzswap_x_total counter\n\
                        uzswap_x_total{a=\"b\\\"c\"} 1\n\
                        # HELP uzswap_h_seconds h\n# TYPE uzswap_h_seconds histogram\n\
                        uzswap_h_seconds_bucket{le=\"1\"} 1\n\
                        uzswap_h_seconds_bucket{le=\"+Inf\"} 2\nuzswap_h_seconds_sum 3\n\
                        uzswap_h_seconds_count 2\n";

    #[test]
    fn what_is_wrong_is_refused() {
        let good = Exposition::parse(GOOD).unwrap();
        assert_eq!(good.get("uzswap_h_seconds_count"), 2.0);
        for (part, wrong) in [
            (" counter", " gauge"),
            ("# HELP uzswap_x_total x\n", ""),
            ("\\\"c", "\\c"),
            ("} 1\n#", "} -1\n#"),
            ("\"} 1\n", "\"} 5\n"),
            ("_count 2", "_count 3"),
            ("uzswap_h_seconds_sum 3\n", ""),
            ("uzswap_h_seconds_sum 3", "uzswap_y 3"),
            ("_sum 3\n", "_sum 3\nuzswap_h_seconds_sum 3\n"),
        ] {
            let text = GOOD.replacen(part, wrong, if part.starts_with("\"}") { 3 } else { 1 });
            assert!(text != GOOD && Exposition::parse(&text).is_err(), "{part} -> {wrong}");
        }
    }

    #[test]
    fn counters_that_fall_are_found() {
        let (before, now) = (Exposition::parse(GOOD).unwrap(), GOOD.replace("} 1\n#", "} 0\n#"));
        let now = Exposition::parse(&now).unwrap();
        assert!(now.fallen(&before).unwrap().contains("uzswap_x_total"));
        assert_eq!(before.fallen(&now), None);
    }
}
