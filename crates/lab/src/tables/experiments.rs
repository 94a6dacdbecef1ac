//! Tables of `docs/experiments`. Each has ratios of measurements that the page names by their
//! dates, and ends with the machine, the commit and the number of runs of each.

use serde_json::Value;

use super::{arm, cases, head, measured, middle, names, row, wrapped};

/// Off by more than this factor a foreseen time, or ratio of pages, is shown in bold.
const TIME_OFF: f64 = 1.5;
const RATIO_OFF: f64 = 1.1;

/// The best peer's time of a program by uzswap's, at each part of the program's need.
pub fn speeds(dates: &[&str], lines: &[Value]) -> Result<String, String> {
    let mut rows = Vec::new();
    let mut parts: Vec<String> = Vec::new();
    for date in dates {
        let own = measured("programs", date, lines)?;
        for case in cases(&own) {
            let Some((program, part)) = case.split_once(' ') else { continue };
            if !parts.iter().any(|known| known == part) {
                parts.push(part.to_string());
            }
            if !rows.contains(&(*date, program.to_string())) {
                rows.push((*date, program.to_string()));
            }
        }
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.parse::<u32>().unwrap_or(0)));
    let titles: Vec<String> = parts.iter().map(|part| format!("{part} %")).collect();
    let mut columns = vec!["measurement"];
    columns.extend(titles.iter().map(String::as_str));
    let mut text = head("program", &columns);
    for (date, program) in rows {
        let own = measured("programs", date, lines)?;
        let cells = parts.iter().map(|part| speed(&own, &format!("{program} {part}")));
        text += &row([program.clone(), format!("`{date}`")].into_iter().chain(cells));
    }
    Ok(text + &origins("programs", dates, lines)?)
}

/// A speed, or who ended.
fn speed(lines: &[&Value], case: &str) -> String {
    if !lines.iter().any(|line| line["figures"][case].is_object()) {
        return String::new();
    }
    let time = |name: &str| middle(arm(lines, name)?, case, "wall_seconds");
    let peers = names(lines).into_iter().filter(|name| !["uzswap", "free"].contains(name));
    match (time("uzswap"), peers.filter_map(time).reduce(f64::min)) {
        (Some(own), Some(best)) => format!("{:.2}", best / own),
        (Some(_), None) => "uzswap alone ends".to_string(),
        (None, Some(_)) => "uzswap does not end".to_string(),
        (None, None) => "none ends".to_string(),
    }
}

/// Time and I/O of builds with the most jobs of each measurement, by those of each peer.
pub fn builds(dates: &[&str], lines: &[Value]) -> Result<String, String> {
    let columns = ["jobs", "memory, % of the need", "beside", "time", "I/O"];
    let mut text = head("measurement", &columns);
    for date in dates {
        let own = measured("build", date, lines)?;
        let uzswap = arm(&own, "uzswap").ok_or(format!("build {date} is without uzswap"))?;
        let case = cases(&[uzswap]).pop().ok_or(format!("build {date} is without jobs"))?;
        let need = arm(&own, "free").and_then(|free| middle(free, "", "peak_anonymous_bytes"));
        let limit = uzswap["settings"]["limit_bytes"].as_f64();
        let part =
            limit.zip(need).map_or("-".to_string(), |(a, b)| format!("{:.0}", a / b * 100.0));
        for peer in own.iter().filter(|line| line["arm"] != "uzswap" && line["arm"] != "free") {
            let by = |metric: &str| {
                let (a, b) = (middle(uzswap, &case, metric)?, middle(peer, &case, metric)?);
                Some(format!("{:.2}", a / b))
            };
            let cell = |metric: &str| by(metric).unwrap_or("it failed".to_string());
            let jobs = case.split(' ').next().unwrap_or_default().to_string();
            let name = peer["arm"].as_str().unwrap_or_default().to_string();
            let time = cell("wall_seconds");
            text += &row([format!("`{date}`"), jobs, part.clone(), name, time, cell("io_pages")]);
        }
    }
    Ok(text + &origins("build", dates, lines)?)
}

/// Ratios of pages and times by the time without a limit, each as it was foreseen, and as it came.
pub fn estimate(date: &str, lines: &[Value]) -> Result<String, String> {
    let own = measured("estimate", date, lines)?;
    let mut programs: Vec<String> = Vec::new();
    let mut kinds = vec!["ratio".to_string()];
    for case in cases(&own) {
        let Some((program, kind)) = case.split_once(' ') else { continue };
        if !programs.iter().any(|known| known == program) {
            programs.push(program.to_string());
        }
        if !kinds.iter().any(|known| known == kind) {
            kinds.push(kind.to_string());
        }
    }
    let title = |kind: &String| if kind == "ratio" { kind.clone() } else { format!("{kind} %") };
    let titles: Vec<String> = kinds.iter().map(title).collect();
    let mut text = head("", &titles.iter().map(String::as_str).collect::<Vec<_>>());
    for program in programs {
        let cells = kinds.iter().map(|kind| {
            let (metric, off) = match kind.as_str() {
                "ratio" => ("needed_by_used", RATIO_OFF),
                _ => ("time_by_free", TIME_OFF),
            };
            let of = |name| middle(arm(&own, name)?, &format!("{program} {kind}"), metric);
            let (foreseen, came) = (of("estimated"), of("measured"));
            let is_off = foreseen.zip(came).is_some_and(|(a, b)| (a / b).max(b / a) > off);
            let both = format!("{}, {}", digits(foreseen), digits(came));
            if is_off { format!("**{both}**") } else { both }
        });
        text += &row([program.clone()].into_iter().chain(cells));
    }
    Ok(text + &origins("estimate", &[date], lines)?)
}

/// A figure of three digits.
fn digits(value: Option<f64>) -> String {
    match value {
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
        None => "-".to_string(),
    }
}

/// Loads under each policy, by those under uzswap's.
pub fn policies(date: &str, lines: &[Value]) -> Result<String, String> {
    let own = measured("policies", date, lines)?;
    let mut text = head("memory, of the need", &names(&own));
    for case in cases(&own) {
        let cells = own.iter().map(|line| digits(middle(line, &case, "loads_by_uzswap")));
        text += &row([case.clone()].into_iter().chain(cells));
    }
    Ok(text + &origins("policies", &[date], lines)?)
}

/// Throughput of writing through memory in huge pages, by that of each peer.
pub fn huge(dates: &[&str], lines: &[Value]) -> Result<String, String> {
    let mut text = head("measurement", &["content", "peers", "throughput", "in huge pages, %"]);
    for date in dates {
        let own = measured("swap-w-seq", date, lines)?;
        let uzswap = arm(&own, "uzswap").ok_or(format!("swap-w-seq {date} is without uzswap"))?;
        let peers: Vec<&str> = names(&own).into_iter().filter(|name| *name != "uzswap").collect();
        let by = |peer: &&str| {
            let of = |line| middle(line, "", "mib_per_second");
            Some(format!("{:.1}x", of(uzswap)? / of(arm(&own, peer)?)?))
        };
        let by: Vec<String> = peers.iter().map(|peer| by(peer).unwrap_or("-".into())).collect();
        let share = middle(uzswap, "", "huge_share").map(|share| share * 100.0);
        let content = uzswap["settings"]["content"].as_str().unwrap_or_default().to_string();
        text += &row([
            format!("`{date}`"),
            content,
            peers.join(", "),
            by.join(", "),
            share.map_or("-".to_string(), |share| format!("{share:.0}")),
        ]);
    }
    Ok(text + &origins("swap-w-seq", dates, lines)?)
}

/// Where, when and how often: a paragraph under a table.
fn origins(benchmark: &str, dates: &[&str], lines: &[Value]) -> Result<String, String> {
    let mut all: Vec<String> = Vec::new();
    for date in dates {
        let own = measured(benchmark, date, lines)?;
        let machine = own[0]["machine"].as_str().unwrap_or("an unknown machine");
        let commit = own[0]["commit"].as_str().unwrap_or("unknown");
        let runs = match own[0]["settings"]["rounds"].as_u64() {
            Some(1) => ", one run".to_string(),
            Some(n) => format!(", medians of {n} runs"),
            None => String::new(),
        };
        all.push(format!("`{date}`: {machine}, commit {commit}{runs}"));
    }
    Ok(wrapped(&(all.join("; ") + ".")).trim_end().to_string() + "\n")
}

/// The price of uzswap where all fits: time with it by time without, and the difference.
pub fn overhead(date: &str, lines: &[Value]) -> Result<String, String> {
    let mut text = head("", &["by medians", "quartiles of the pairs", "more, ms"]);
    for line in measured("overhead", date, lines)? {
        for case in cases(&[line]).into_iter().filter(|case| case.ends_with("wall")) {
            let figures = &line["figures"][&case];
            let ratio = |i: usize| figures["ratio"][i].as_f64().map(|ratio| format!("{ratio:.2}"));
            let [Some(median), Some(low), Some(high)] = [0, 1, 2].map(ratio) else { continue };
            let more = middle(line, &case, "difference_seconds");
            let arm = line["arm"].as_str().unwrap_or_default();
            text += &row([
                format!("{arm}: {}", case.trim_start_matches("summary/").trim_end_matches(" wall")),
                median,
                format!("{low} to {high}"),
                more.map_or("-".into(), |seconds| {
                    format!("{:.1}", (seconds * 1e4).round() / 10.0 + 0.0)
                }),
            ]);
        }
    }
    Ok(text + &origins("overhead", &[date], lines)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DATE: &str = "2026-01-02T030405";

    fn line(benchmark: &str, arm: &str, settings: Value, figures: Value) -> Value {
        json!({
            "benchmark": benchmark, "date": DATE, "arm": arm, "machine": "M", "commit": "c",
            "settings": settings, "figures": figures,
        })
    }

    #[test]
    fn a_speed_is_the_best_peers_time_by_uzswaps_or_says_who_ended() {
        let ran = |seconds: f64| json!({"wall_seconds": [seconds, 1, 1, 1]});
        let failed = || json!({"failed_runs": [1, 1, 1, 1]});
        let of = |arm: &str, figures: Value| line("programs", arm, json!({"rounds": 1}), figures);
        let lines = [
            of("uzswap", json!({"a 75": ran(2.0), "a 25": ran(9.0), "b 75": failed()})),
            of("zswap pc0", json!({"a 75": ran(5.0), "a 25": failed(), "b 75": ran(1.0)})),
            of("zram pc0", json!({"a 75": ran(3.0), "a 25": failed(), "b 75": failed()})),
            of("free", json!({"a": ran(1.0)})),
        ];
        let text = speeds(&[DATE], &lines).unwrap();
        let expected = format!(
            "| program | measurement | 75 % | 25 % |\n|---|---|---|---|\n\
             | a | `{DATE}` | 1.50 | uzswap alone ends |\n\
             | b | `{DATE}` | uzswap does not end | |\n\
             \n`{DATE}`: M, commit c, one run.\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_build_is_that_with_the_most_jobs() {
        let figures = |seconds: f64, pages: f64| {
            json!({
                "8 jobs": {"wall_seconds": [9, 9, 9, 2], "io_pages": [9, 9, 9, 2]},
                "24 jobs": {"wall_seconds": [seconds, 1, 1, 2], "io_pages": [pages, 1, 1, 2]},
            })
        };
        let settings = json!({"rounds": 2, "limit_bytes": 50});
        let lines = [
            line("build", "zswap pc3", settings.clone(), figures(10.0, 400.0)),
            line("build", "zram pc3", settings.clone(), json!({})),
            line("build", "uzswap", settings.clone(), figures(7.0, 100.0)),
            line("build", "free", settings, json!({"": {"peak_anonymous_bytes": [100, 1, 1, 1]}})),
        ];
        let text = builds(&[DATE], &lines).unwrap();
        assert!(text.contains(&format!("| `{DATE}` | 24 | 50 | zswap pc3 | 0.70 | 0.25 |\n")));
        assert!(text.contains("| zram pc3 | it failed | it failed |\n"), "{text}");
        assert!(text.ends_with("commit c, medians of 2 runs.\n"), "{text}");
    }

    #[test]
    fn an_estimate_that_is_off_is_bold() {
        let of = |arm: &str, time: f64, ratio: f64| {
            let figures = json!({
                "a 50": {"time_by_free": [time, null, null, 2]},
                "a ratio": {"needed_by_used": [ratio, null, null, 2]},
            });
            line("estimate", arm, json!({"rounds": 2}), figures)
        };
        let lines = [of("estimated", 16.0, 2.0), of("measured", 10.0, 2.1)];
        let text = estimate(DATE, &lines).unwrap();
        assert!(text.contains("| a | 2.00, 2.10 | **16.0, 10.0** |\n"), "{text}");
    }

    #[test]
    fn the_price_where_all_fits_is_that_of_whole_runs() {
        let case = |seconds: f64| {
            json!({
                "ratio": [1.5, 1.2, 1.7, 1],
                "difference_seconds": [seconds, null, null, 1],
            })
        };
        let figures = json!({
            "summary/GET wall": case(-2e-5),
            "summary/all CPU": case(1.0),
            "summary/mean wall": {},
        });
        let lines = [line("overhead", "redis", json!({"rounds": 7}), figures)];
        let text = overhead(DATE, &lines).unwrap();
        assert!(text.contains("|\n| redis: GET | 1.50 | 1.20 to 1.70 | 0.0 |\n\n"), "{text}");
    }
}
