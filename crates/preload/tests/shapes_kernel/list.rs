//! Is there a row for every call that the running kernel has?

use uzswap::sys::nr;
use uzswap_preload::calls::shapes::{self, Disposition};

use crate::arena::{in_child, sys};

/// Entry points whose name is not the one in the table of numbers.
const RENAMED: [(&str, &str); 7] = [
    ("newstat", "stat"),
    ("newfstat", "fstat"),
    ("newlstat", "lstat"),
    ("newuname", "uname"),
    ("sendfile64", "sendfile"),
    ("umount", "umount2"),
    ("sysctl", "_sysctl"),
];

/// Entry points of 32-bit x86, of x32 and of other architectures, which the kernel's symbols name
/// as well.
const NOT_OF_X86_64: [&str; 38] = [
    "bdflush",
    "fadvise64_64",
    "fstatfs64",
    "gethostname",
    "ipc",
    "llseek",
    "mmap_pgoff",
    "ni_syscall",
    "nice",
    "oldumount",
    "olduname",
    "pciconfig_iobase",
    "pciconfig_read",
    "pciconfig_write",
    "recv",
    "rtas",
    "s390_ipc",
    "s390_pci_mmio_read",
    "s390_pci_mmio_write",
    "send",
    "sgetmask",
    "signal",
    "sigpending",
    "sigprocmask",
    "sigsuspend",
    "socketcall",
    "spu_create",
    "spu_run",
    "ssetmask",
    "statfs64",
    "stime",
    "stime32",
    "subpage_prot",
    "sync_file_range2",
    "vm86",
    "vm86old",
    "waitpid",
    "time32",
];

fn is_of_x86_64(entry: &str) -> bool {
    let foreign = entry.ends_with("_time32")
        || entry.ends_with("16")
        || entry.ends_with("time32")
        || entry.ends_with("adjtime32")
        || entry.ends_with("32") && (entry.starts_with("clock_") || entry.starts_with("timer"))
        || entry.ends_with("utime32")
        || entry.starts_with("ia32_")
        || entry.starts_with("old_")
        || entry.contains('.');
    !foreign && !NOT_OF_X86_64.contains(&entry)
}

/// The entry points of the running kernel, from its symbols; they need no privilege (the addresses
/// do).
fn kernel_entries() -> Vec<String> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let mut entries: Vec<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.strip_prefix("__x64_sys_"))
        .filter(|entry| is_of_x86_64(entry))
        .map(|entry| {
            let renamed = RENAMED.iter().find(|renamed| renamed.0 == entry);
            renamed.map_or(entry, |renamed| renamed.1).to_uppercase()
        })
        .collect();
    entries.sort();
    entries.dedup();
    entries
}

pub fn every_call_of_the_running_kernel_has_a_row() {
    let entries = kernel_entries();
    if entries.is_empty() {
        eprintln!("skipped: /proc/kallsyms cannot be read or names no entry point");
        return;
    }
    assert!(
        entries.len() > 300,
        "only {} entry points found: the kernel names them otherwise",
        entries.len()
    );
    let rows: Vec<&str> = (0..nr::COUNT).map(shapes::name).collect();
    let missing: Vec<_> = entries.iter().filter(|entry| !rows.contains(&entry.as_str())).collect();
    assert!(missing.is_empty(), "calls of this kernel without a row: {missing:?}");
}

pub fn numbers_and_names_are_those_of_the_kernel_headers() {
    let headers = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
    let Some(header) = headers.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
        eprintln!("skipped: asm/unistd_64.h is not installed");
        return;
    };
    let mut seen = 0;
    for line in header.lines() {
        let Some(definition) = line.strip_prefix("#define __NR_") else { continue };
        let Some((name, number)) = definition.split_once(' ') else { continue };
        let number: usize = number.trim().parse().expect("a number");
        assert_eq!(shapes::name(number), name.to_uppercase(), "number {number}");
        seen += 1;
    }
    assert!(seen > 300);
}

/// A newer kernel than the table knows answers more numbers; an older one fewer.
pub fn what_has_no_row_the_kernel_does_not_know() {
    const ENOSYS: isize = -38;
    // A sandbox's answer to a call that it does not know.
    const EPERM: isize = -1;
    for number in (0..nr::COUNT + 32)
        .filter(|&number| shapes::disposition(number) == Disposition::Unimplemented)
    {
        let answer =
            in_child(|_| Some([sys(number, &[0; 6]), 0, 0])).expect("the child ends by itself");
        let unknown = matches!(answer, Some([ENOSYS | EPERM, ..]));
        assert!(
            unknown,
            "call {number} ({}) has no shape, but answers {answer:?}",
            shapes::name(number)
        );
    }
}
