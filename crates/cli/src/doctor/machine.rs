//! Findings about the machine: its processor and kernel, the mechanisms that this kernel allows,
//! the limits on mappings, addresses and memory.

use std::fs;

use uzswap::control::Mechanism;

use super::{Check, bad, good, note};
use crate::budget::{Budget, Version};
use crate::mechanism::{self, Probe, Refusal};
use crate::options::MIN_MEMORY_BYTES;
use crate::os;
use crate::settings::describe;
use crate::size::human;

pub(super) fn architecture() -> Check {
    match std::env::consts::ARCH {
        "x86_64" => good("processor", "x86-64"),
        other => bad("processor", other, "uzswap runs on x86-64 only"),
    }
}

pub(super) fn kernel() -> Check {
    let release = read_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_string());
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (6, 8..) | (7.., _) => good("kernel", format!("Linux {release}")),
        (5, 11..) | (6, _) => note(
            "kernel",
            format!("Linux {release}: pages are copied, not moved"),
            "6.8 and later are faster",
        ),
        _ => note(
            "kernel",
            format!("Linux {release}: protection faults only"),
            "6.8 and later are faster",
        ),
    }
}

pub(super) fn mechanisms(probe: &Probe) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.push(match &probe.userfaultfd {
        Ok(features) => {
            let names = mechanism::feature_names(*features);
            match probe.check(Mechanism::Userfaultfd) {
                Ok(()) => good("userfaultfd", format!("without privileges, with {names}")),
                Err(Refusal { cause, remedy }) => {
                    note("userfaultfd", format!("with {names}; {cause}"), remedy)
                }
            }
        }
        Err(Refusal { cause, remedy }) => note("userfaultfd", cause, remedy),
    });
    checks.push(match &probe.proc_self_mem {
        Ok(()) => good("/proc/self/mem", "writes behind a protection"),
        Err(Refusal { cause, remedy }) => note("/proc/self/mem", cause, remedy),
    });
    checks.push(match probe.choose() {
        Ok(Mechanism::Userfaultfd) => good("mechanism", "auto takes userfaultfd, the fastest"),
        Ok(Mechanism::UserfaultfdCopy) => {
            good("mechanism", "auto takes userfaultfd-copy: this userfaultfd cannot move pages")
        }
        Ok(other) => {
            good("mechanism", format!("auto takes {}: userfaultfd cannot be used", other.name()))
        }
        Err(Refusal { cause, remedy }) => bad("mechanism", cause, remedy),
    });
    checks
}

pub(super) fn mappings() -> Check {
    const NAME: &str = "max_map_count";
    const USUAL: u64 = 65530;
    match read_line("/proc/sys/vm/max_map_count").and_then(|v| v.parse::<u64>().ok()) {
        Some(count) if count < USUAL => note(
            NAME,
            format!("{count} mappings per process: protection faults need many"),
            format!("sysctl vm.max_map_count={USUAL}"),
        ),
        Some(count) => good(NAME, format!("{count} mappings per process")),
        None => note(NAME, "unknown", "mount /proc"),
    }
}

pub(super) fn overcommit() -> Check {
    const NAME: &str = "overcommit";
    match read_line("/proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => note(
            NAME,
            "strict: the kernel refuses mappings beyond its commit limit, whatever uzswap could \
             hold",
            "sysctl vm.overcommit_memory=1",
        ),
        Some("0") => {
            good(NAME, "heuristic: a single mapping larger than all RAM and swap is refused")
        }
        Some(_) => good(NAME, "unlimited"),
        None => note(NAME, "unknown", "mount /proc"),
    }
}

pub(super) fn address_space() -> Check {
    const NAME: &str = "address space";
    match os::address_space_limit() {
        None => good(NAME, "unlimited"),
        Some(bytes) => note(
            NAME,
            format!("limited to {}: the program and uzswap's tables share it", human(bytes)),
            "ulimit -v unlimited",
        ),
    }
}

pub(super) fn huge_pages() -> Check {
    const NAME: &str = "huge pages";
    let setting = read_line("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    match setting.split(['[', ']']).nth(1) {
        Some("always") => note(
            NAME,
            "transparent huge pages are always on: first touches take 2 MiB at once",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(other) => good(NAME, format!("transparent huge pages: {other}")),
        None => good(NAME, "no transparent huge pages"),
    }
}

/// Not a fault: gdb stops at each signal by which a page is asked for, until it is told not to.
pub(super) fn debugger(probe: &Probe) -> Check {
    let signal = match probe.choose() {
        Ok(Mechanism::Protect) => "SIGSEGV",
        _ => "SIGBUS",
    };
    good("debugger", format!("for gdb, in ~/.gdbinit: handle {signal} nostop noprint pass"))
}

pub(super) fn memory(budget: &Result<Budget, String>) -> Check {
    const NAME: &str = "memory";
    let budget = match budget {
        Ok(budget) => budget,
        Err(why) => return bad(NAME, why, "mount /proc"),
    };
    let bytes = budget.default_memory_bytes();
    let (from, kind) = match &budget.group {
        Some(group) => {
            let version = match group.version {
                Version::V1 => "v1",
                Version::V2 => "v2",
            };
            (describe(budget), format!("cgroup {version}"))
        }
        None => (describe(budget), "no memory cgroup limits it".to_string()),
    };
    let found = format!(
        "--memory is {} by default: {from}, less a margin of {}; {kind}",
        human(bytes),
        human(budget.margin_bytes())
    );
    match bytes >= MIN_MEMORY_BYTES {
        true => good(NAME, found),
        false => bad(
            NAME,
            found,
            format!("the least that works is {}: raise the limit", human(MIN_MEMORY_BYTES)),
        ),
    }
}

fn read_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn too_little_memory_is_a_failure() {
        let budget = |mib: u64| {
            Ok(Budget { group: None, ram_bytes: 1 << 30, ram_available_bytes: mib << 20 })
        };
        assert_eq!(memory(&budget(512)).verdict, Verdict::Good);
        assert_eq!(memory(&budget(70)).verdict, Verdict::Bad);
    }
}
