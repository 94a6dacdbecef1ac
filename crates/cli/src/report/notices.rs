//! Notices of a run, each in one line: what went wrong, and what helps.

use std::sync::atomic::Ordering;

use uzswap::control::{Counter, Notice, Tree};

use super::{Numbers, limit_bytes};
use crate::program::reason;
use crate::remote::valkey::address::is_one as is_values;
use crate::settings::{Backing, RunSettings};
use crate::size::human;

pub(super) fn notices(tree: &Tree) -> impl Iterator<Item = Notice> {
    let bits = tree.notices.load(Ordering::Acquire);
    Notice::ALL.into_iter().filter(move |n| bits & (1 << *n as u32) != 0)
}

pub(super) fn notice_name(notice: Notice) -> &'static str {
    match notice {
        Notice::StoreFailed => "store_failed",
        Notice::NoMechanism => "no_mechanism",
        Notice::OverLimit => "over_limit",
        Notice::TooManyProcesses => "too_many_processes",
        Notice::CorruptPage => "corrupt_page",
        Notice::Unmanaged => "unmanaged",
        Notice::NotTraced => "not_traced",
        Notice::PagingEnded => "paging_ended",
        Notice::Sandboxed => "sandboxed",
        Notice::LoadRefused => "load_refused",
        Notice::RemoteLost => "remote_lost",
        Notice::RemoteGone => "remote_gone",
    }
}

/// The name of the store, for messages.
fn shown(settings: &RunSettings) -> String {
    settings.store.as_ref().map_or("(none)".into(), Backing::shown)
}

/// Why a server does not have a page, and what helps.
fn explain_remote(notice: Notice, settings: &RunSettings) -> String {
    let shown = shown(settings);
    if notice == Notice::RemoteGone {
        return format!(
            "a server had a page no more that was written to it (it was started again, its keys \
             were deleted, or a failover lost them), and the program was stopped by SIGBUS: see \
             to {shown}"
        );
    }
    let how = match is_values(&shown) {
        true => "take a Cluster with replicas",
        false => "name two servers with --copies 2",
    };
    format!(
        "a page was on a server that did not answer any more, and the program was stopped by \
         SIGBUS: see to {shown}, and {how}"
    )
}

/// A notice in one line, with what helps.
pub(super) fn explain(
    notice: Notice,
    errno: i32,
    settings: &RunSettings,
    over: Option<&Over>,
) -> String {
    let because = match errno {
        0 => String::new(),
        _ => format!(" ({})", reason(&std::io::Error::from_raw_os_error(errno))),
    };
    match notice {
        Notice::StoreFailed => format!(
            "the backing store in {} failed{because}; nothing was lost, but pages stay in memory \
             until it works again: free space there (it is tried now and then, and by 'uzswap \
             reclaim') or choose another directory with --store",
            shown(settings)
        ),
        Notice::NoMechanism => format!(
            "no way to page the program was found{because}, it ran unmanaged: see 'uzswap doctor'"
        ),
        Notice::OverLimit => explain_over(over, settings),
        Notice::TooManyProcesses => format!(
            "the program ran more than {} processes at a time; the rest ran unmanaged",
            uzswap::control::MAX_PROCESSES
        ),
        Notice::CorruptPage => {
            "a page came back damaged from the backing store and the program was stopped by \
             SIGBUS: check the disk, and choose another directory with --store"
                .to_string()
        }
        Notice::Unmanaged => {
            "a program that was started along the way could not be taken over (setuid, not for \
             x86-64, in a chroot without the library, or a static or musl one that the library \
             could not start) and ran unmanaged; its memory is not counted"
                .to_string()
        }
        Notice::PagingEnded => format!(
            "a process could not be paged any more{because}, having given up rights or /proc: its \
             memory was brought back and it ran unmanaged from there"
        ),
        Notice::Sandboxed => {
            "a process put itself under a seccomp filter that refuses what paging \
             needs: its memory was brought back and it ran unmanaged from there"
                .to_string()
        }
        Notice::LoadRefused => format!(
            "a page could not be read back{because}: something, a sandbox say, refuses the \
             program's reads of the backing store, and it was stopped by SIGBUS: run it with \
             --store none"
        ),
        Notice::RemoteLost | Notice::RemoteGone => explain_remote(notice, settings),
        Notice::NotTraced => {
            format!(
                "a process had no room for --trace{because}: the trace does not have it; raise \
                 its limit on address space (ulimit -v)"
            )
        }
    }
}

/// How far a run was over its limit at most, and whether that was for pages that nobody took.
pub(super) struct Over {
    bytes: u64,
    is_refused: bool,
}

impl Over {
    /// `None`: it was not.
    pub(super) fn of(tree: &Tree, memory_bytes: u64) -> Option<Over> {
        let peak_bytes = Numbers::of(tree).peak_used_bytes;
        let bytes = peak_bytes.checked_sub(memory_bytes.max(limit_bytes(tree)))?;
        (bytes > 0).then(|| Over { bytes, is_refused: tree.total(Counter::EvictionsRefused) > 0 })
    }

    fn by(over: Option<&Over>) -> String {
        over.map_or(String::new(), |o| format!(", by {} at most", human(o.bytes)))
    }
}

/// Why the limit was not held, and what helps.
fn explain_over(over: Option<&Over>, settings: &RunSettings) -> String {
    let (why, how) = match &settings.store {
        _ if !over.is_some_and(|o| o.is_refused) => {
            ("what must stay in memory is larger".to_string(), "give it more with --memory")
        }
        None => (
            "there are pages that do not compress, or no longer fit into the pool, and no disk"
                .to_string(),
            "choose a directory with --store, or give it more with --memory",
        ),
        Some(store) => (
            format!("neither the pool nor the store in {} took more pages", store.shown()),
            "free space there, choose another directory with --store, or give it more with \
             --memory",
        ),
    };
    format!(
        "the limit of {} could not be held{}: {why}; {how}",
        human(settings.memory_bytes),
        Over::by(over)
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, settings};
    use super::*;

    #[test]
    fn notices_name_cause_and_remedy_in_one_line() {
        let settings = settings();
        for notice in Notice::ALL {
            let line = explain(notice, libc::ENOSPC, &settings, None);
            assert!(!line.contains('\n') && line.len() > 40, "{line}");
        }
        let line = explain(Notice::StoreFailed, libc::ENOSPC, &settings, None);
        assert!(
            line.contains("/var/tmp") && line.contains("no space left") && line.contains("--store"),
            "{line}"
        );
        let over = Over { bytes: 138 * MIB, is_refused: true };
        let line = explain(Notice::OverLimit, 0, &settings, Some(&over));
        assert!(
            line.contains("could not be held, by 138 MiB at most: neither")
                && line.contains("/var/tmp"),
            "{line}"
        );
        let line =
            explain(Notice::OverLimit, 0, &RunSettings { store: None, ..settings }, Some(&over));
        assert!(line.contains("by 138 MiB at most") && line.contains("no disk"), "{line}");
    }
}
