//! Options whose value is a number or a name: they are right or wrong whatever the machine is.

use std::time::Duration;

use uzswap::control::{HugePages, Mechanism};
use uzswap::pool::MOST_BYTES;

use crate::options::{self, Given};
use crate::{duration, size};

/// Says so where the pool's share of the limit is more than the pool of one process can be.
pub(super) fn pool_remark(memory_bytes: u64, pool_percent: u32) -> Option<String> {
    let percent = if pool_percent == 0 { options::POOL_PERCENT_MAX } else { pool_percent };
    let share_bytes = size::Size::MilliPercent(percent * 1000).of(memory_bytes);
    (share_bytes > MOST_BYTES as u64).then(|| {
        format!(
            "compressed pages may take {} ({percent} %), but those of one process take {} at most",
            size::human(share_bytes),
            size::human(MOST_BYTES as u64)
        )
    })
}

/// The time after which a process counts as idle, or none.
pub fn idle_after(given: Option<Given<String>>) -> Result<Option<Duration>, String> {
    let Some(given) = given.filter(|g| g.value.trim() != options::IDLE_AFTER_DEFAULT) else {
        return Ok(None);
    };
    let duration =
        duration::parse(&given.value).map_err(|why| format!("{}: {why}", given.origin))?;
    if duration < options::IDLE_AFTER_LEAST {
        return Err(format!(
            "{}: '{}' is less than a second, the least that works",
            given.origin, given.value
        ));
    }
    Ok(Some(duration))
}

pub(super) fn mechanism(given: Option<Given<String>>) -> Result<Mechanism, String> {
    let Some(given) = given else { return Ok(Mechanism::Auto) };
    let names: Vec<&str> = Mechanism::ALL.iter().map(|m| m.name()).collect();
    Mechanism::ALL.into_iter().find(|m| m.name() == given.value).ok_or_else(|| {
        format!(
            "{}: there is no mechanism '{}': take one of {}",
            given.origin,
            given.value,
            names.join(", ")
        )
    })
}

pub(super) fn huge_pages(given: Option<Given<String>>) -> Result<HugePages, String> {
    let Some(given) = given else { return Ok(HugePages::Madvise) };
    HugePages::ALL.into_iter().find(|h| h.name() == given.value).ok_or_else(|| {
        format!("{}: '{}' is none of always, madvise and never", given.origin, given.value)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::given;
    use super::*;

    #[test]
    fn a_limit_with_a_larger_share_than_a_pool_can_have() {
        let remark = pool_remark(2 << 40, 0).unwrap();
        assert!(remark.contains("1.8 TiB (90 %)") && remark.contains("1.0 TiB"), "{remark}");
        assert_eq!((pool_remark(200 << 30, 0), pool_remark(2 << 40, 40)), (None, None));
    }

    #[test]
    fn times_of_idleness() {
        let idle = |text: &str| idle_after(Some(given(text)));
        assert_eq!(idle("10m"), Ok(Some(Duration::from_secs(600))));
        assert_eq!((idle("never"), idle_after(None)), (Ok(None), Ok(None)));
        assert!(idle("0.5s").unwrap_err().contains("less than a second"));
        assert!(idle("soon").unwrap_err().starts_with("--x: 'soon'"));
    }

    #[test]
    fn mechanisms_by_name() {
        assert_eq!(mechanism(Some(given("protect"))), Ok(Mechanism::Protect));
        let error = mechanism(Some(given("magic"))).unwrap_err();
        assert!(error.contains("'magic'") && error.contains("userfaultfd-copy"), "{error}");
    }
}
