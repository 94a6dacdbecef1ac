//! The machine and the time, as results and reports name them.

use std::fs;

use serde_json::{Value, json};

use crate::procfs::kib_of;

/// The machine, as far as times depend on it.
pub fn machine() -> Value {
    let read =
        |path: &str| fs::read_to_string(path).map_or(String::new(), |text| text.trim().to_string());
    let cpuinfo = read("/proc/cpuinfo");
    let cpu = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split(':').nth(1)).unwrap_or_default().trim().to_string()
    };
    json!({
        "cpu": cpu("model name"),
        "virtual": cpu("flags").split(' ').any(|flag| flag == "hypervisor"),
        "cores": std::thread::available_parallelism().map_or(0, |n| n.get()),
        "memory_bytes": kib_of("/proc/meminfo", "MemTotal:") * 1024,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "clock": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "transparent_hugepage": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "swappiness": read("/proc/sys/vm/swappiness"),
        "load": read("/proc/loadavg"),
    })
}

/// Seconds since 1970 as `2026-11-21T23:21:34Z`.
pub fn utc(seconds: u64) -> String {
    // Howard Hinnant's days-to-civil: years begin in March, eras have 400 of them.
    let (day, second) = (seconds / 86400, seconds % 86400);
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn the_machine_is_described() {
        let machine = machine();
        assert!(machine["cores"].as_u64().unwrap() > 0);
        assert!(machine["memory_bytes"].as_u64().unwrap() > 1 << 20);
        assert!(!machine["kernel"].as_str().unwrap().is_empty());
    }
}
