//! Times as people write them: `30s`, `10m`, `1.5h`, `500ms`, `2d`; a number alone is seconds.

use std::time::Duration;

/// The longest that is understood: a hundred years.
const MOST_SECONDS: f64 = 100.0 * 365.0 * 86400.0;

/// Reads a time. The error says what is wrong with `text`, without naming the option.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong =
        |why: &str| Err(format!("'{text}' {why}: write 30s, 10m, 2h or a number of seconds"));
    let trimmed = text.trim();
    let digits_end =
        trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits_end);
    let seconds = match unit.trim_start() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return wrong("is no time"),
    };
    match number.parse::<f64>() {
        Ok(n) if n * seconds > MOST_SECONDS => wrong("is too long"),
        Ok(n) => Ok(Duration::from_secs_f64(n * seconds)),
        Err(_) => wrong("is no time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_write_them() {
        for (text, ms) in [
            ("10", 10_000),
            ("30s", 30_000),
            (" 10 m ", 600_000),
            ("1.5h", 5_400_000),
            ("2d", 172_800_000),
            ("250ms", 250),
            (".5s", 500),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for (text, why) in [
            ("", "no time"),
            ("-1s", "no time"),
            ("m", "no time"),
            ("1x", "no time"),
            ("1.2.3s", "no time"),
            ("1e9", "no time"),
            ("inf", "no time"),
            ("99999999999999999999h", "too long"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why) && error.contains(text), "{error}");
        }
    }
}
