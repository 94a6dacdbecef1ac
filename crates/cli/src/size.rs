//! Sizes, read and written: `512M`, `1.5G`, `1GiB`, `4096`, `50%`.
//!
//! K, M, G, T, P and KiB, MiB, ... are powers of 1024; KB, MB, ... are powers of 1000, as in
//! coreutils. Case does not matter. Fractions are exact: the arithmetic is in integers.

/// A page, as sums of bytes count it.
pub const PAGE_BYTES: u64 = uzswap::PAGE_BYTES as u64;

/// A size as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Bytes(u64),
    /// Thousandths of a percent.
    MilliPercent(u32),
}

impl Size {
    /// Bytes, where a percentage is one of `whole_bytes`.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::MilliPercent(p) => (whole_bytes as u128 * p as u128 / 100_000) as u64,
        }
    }
}

/// Reads a size. The error says what is wrong with `text`, without naming the option.
pub fn parse(text: &str) -> Result<Size, String> {
    let wrong = |why: &str| {
        Err(format!("'{text}' {why}: write 512M, 1.5G, 1GiB, a number of bytes, or 50%"))
    };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return wrong("is empty");
    }
    if trimmed.starts_with('-') {
        return wrong("is negative");
    }
    let digits_end =
        trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return wrong("is no size");
    }
    if fraction.len() > 12 {
        return wrong("has too many digits");
    }
    let unit = unit.trim_start().to_ascii_lowercase();
    let (factor, is_percent) = match unit.as_str() {
        "" | "b" => (1, false),
        "%" => (1000, true),
        _ => match factor(&unit) {
            Some(factor) => (factor, false),
            None => return wrong("is no size"),
        },
    };
    // An empty side ("1." or ".5") counts as zero; the only other way to fail is too many digits.
    let side = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>() };
    let (Ok(whole), Ok(parts)) = (side(whole), side(fraction)) else {
        return wrong("is too large");
    };
    let scale = 10u128.pow(fraction.len() as u32);
    let value = whole as u128 * factor as u128 + parts as u128 * factor as u128 / scale;
    if is_percent {
        return match value {
            1..=100_000 => Ok(Size::MilliPercent(value as u32)),
            _ => wrong("is no percentage between 0 and 100"),
        };
    }
    match u64::try_from(value) {
        // Offsets in files and memory are signed in the kernel.
        Ok(bytes) if bytes <= i64::MAX as u64 => Ok(Size::Bytes(bytes)),
        _ => wrong("is too large"),
    }
}

/// The factor of a unit such as `g`, `gib` or `gb`.
fn factor(unit: &str) -> Option<u64> {
    let power = 1 + "kmgtp".find(unit.chars().next()?)? as u32;
    match &unit[1..] {
        "" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// Bytes for people: `498 MiB`, `1.9 GiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    // The next unit as soon as this one would need four digits after rounding.
    while unit + 1 < UNITS.len() && bytes as u128 * 10 >= 9995u128 << (10 * unit) {
        unit += 1;
    }
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    match unit {
        0 => format!("{bytes} bytes"),
        _ if value < 9.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// A count for people: `123 456`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17b", 17),
            ("1k", 1024),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1.5G", 3 << 29),
            (".5g", 1 << 29),
            ("2.T", 2 << 40),
            ("1GiB", 1 << 30),
            ("1GB", 1_000_000_000),
            ("1kB", 1000),
            ("0.001kb", 1),
            (" 7M ", 7 << 20),
            ("1P", 1 << 50),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse(text), Ok(Size::Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn percentages() {
        assert_eq!(parse("50%").unwrap().of(1000), 500);
        assert_eq!(parse("12.5 %").unwrap().of(800), 100);
        assert_eq!(parse("100%").unwrap().of(u64::MAX), u64::MAX);
        for wrong in ["0%", "101%", "100.001%", "%", "-5%"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_size() {
        for (text, why) in [
            ("", "empty"),
            ("  ", "empty"),
            ("-1G", "negative"),
            ("-", "negative"),
            ("+1G", "no size"),
            ("G", "no size"),
            (".", "no size"),
            ("1.2.3G", "no size"),
            ("1X", "no size"),
            ("1Gx", "no size"),
            ("1GBi", "no size"),
            ("0x10", "no size"),
            ("1e9", "no size"),
            ("١G", "no size"),
            ("auto", "no size"),
            ("18446744073709551616", "too large"),
            ("9223372036854775808", "too large"),
            ("8192P", "too large"),
            ("99999999999999999999999999G", "too large"),
            ("0.0000000000001G", "too many digits"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn bytes_for_people() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1.0 KiB"),
            (4096, "4.0 KiB"),
            (498 << 20, "498 MiB"),
            (1023 << 20, "1.0 GiB"),
            (2_040_109_465, "1.9 GiB"),
            (10 << 30, "10 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn counts_for_people() {
        for (count, text) in
            [(0, "0"), (999, "999"), (1000, "1 000"), (123456, "123 456"), (1234567, "1 234 567")]
        {
            assert_eq!(grouped(count), text);
        }
    }
}
