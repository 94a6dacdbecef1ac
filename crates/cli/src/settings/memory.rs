//! The limit of a run: as it was given, or as this machine and its memory groups leave it.

use crate::Failure;
use crate::budget::Budget;
use crate::options::{Given, MIN_MEMORY_BYTES};
use crate::size;

/// The limit of a run.
pub struct Memory {
    pub bytes: u64,
    /// Where it came from, in words.
    pub origin: String,
    /// See [`RunSettings::group_margin_bytes`].
    pub group_margin_bytes: Option<u64>,
}

/// The limit as somebody wants it, checked against what there is here.
pub fn memory(given: Option<Given<String>>, remarks: &mut Vec<String>) -> Result<Memory, Failure> {
    let budget = Budget::read().map_err(Failure::environment)?;
    let least = size::human(MIN_MEMORY_BYTES);
    let Some(given) = given else {
        let bytes = budget.default_memory_bytes();
        let source = describe(&budget);
        if bytes < MIN_MEMORY_BYTES {
            return Err(Failure::environment(format!(
                "{source} leaves {} after a margin of {}, and the least that works is {least}: \
                 raise the limit, or give --memory to try with less margin",
                size::human(bytes),
                size::human(budget.margin_bytes())
            )));
        }
        return Ok(Memory {
            bytes,
            origin: format!("{source}, less a margin of {}", size::human(budget.margin_bytes())),
            group_margin_bytes: budget.tightest_group().map(|_| budget.margin_bytes()),
        });
    };
    let parsed = size::parse(&given.value)
        .map_err(|why| Failure::usage(format!("{}: {why}", given.origin)))?;
    let bytes = parsed.of(budget.whole_bytes());
    if bytes < MIN_MEMORY_BYTES {
        let is = match parsed {
            size::Size::Bytes(_) => String::new(),
            size::Size::MilliPercent(_) => format!(" of {}", size::human(budget.whole_bytes())),
        };
        return Err(Failure::usage(format!(
            "{}: '{}'{is} is {}, and the least that works is {least}",
            given.origin,
            given.value,
            size::human(bytes)
        )));
    }
    if let Some(group) = budget.group.as_ref().filter(|g| bytes > g.limit_bytes) {
        remarks.push(format!(
            "{} {} is more than the limit of {}, {}: the kernel may kill the program",
            given.origin,
            size::human(bytes),
            group.directory.display(),
            size::human(group.limit_bytes)
        ));
    }
    Ok(Memory { bytes, origin: given.origin, group_margin_bytes: None })
}

/// Which constraint the default comes from, in words.
pub fn describe(budget: &Budget) -> String {
    match budget.tightest_group() {
        Some(group) => format!(
            "the memory cgroup {} ({} of {} free)",
            group.directory.display(),
            size::human(group.available_bytes),
            size::human(group.limit_bytes)
        ),
        None => format!(
            "the machine ({} of {} available)",
            size::human(budget.ram_available_bytes),
            size::human(budget.ram_bytes)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::given;
    use super::*;

    #[test]
    fn limits_at_their_borders() {
        let limit = |text: &str| memory(Some(given(text)), &mut Vec::new());
        let bytes = |text: &str| limit(text).map(|m| m.bytes).map_err(|f| f.message);
        assert_eq!(bytes("16M"), Ok(16 << 20));
        assert_eq!(bytes(" 512 M "), Ok(512 << 20));
        assert_eq!(bytes("9223372036854775807"), Ok(i64::MAX as u64));
        assert_eq!(bytes("100%"), Ok(Budget::read().unwrap().whole_bytes()));
        for (text, word) in [
            ("0", "'0' is 0 bytes, and the least that works is 16 MiB"),
            ("1", "'1' is 1 bytes"),
            ("16777215", "the least that works is 16 MiB"),
            ("0.001%", "'0.001%' of "),
            ("0%", "no percentage between 0 and 100: write"),
            ("100.001%", "no percentage between 0 and 100: write"),
            ("-5", "is negative: write"),
            ("1e3G", "is no size: write"),
            ("9223372036854775808", "is too large: write"),
            ("", "'' is empty: write"),
        ] {
            let why = bytes(text).unwrap_err();
            assert!(why.starts_with("--x: ") && why.contains(word), "{why}");
            assert!(why.contains(text) && !why.contains('\n'), "{why}");
        }
    }
}
