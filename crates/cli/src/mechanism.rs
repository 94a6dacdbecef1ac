//! Which mechanism can page a program here, found by trying.
//!
//! | mechanism | needs |
//! |---|---|
//! | userfaultfd | `userfaultfd(UFFD_USER_MODE_ONLY)` with SIGBUS, write protection and MOVE (Linux 6.8) |
//! | userfaultfd-copy | the same without MOVE and the two WP features (Linux 5.11) |
//! | protect | writing a PROT_NONE page through /proc/self/mem |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use uzswap::control::Mechanism;
use uzswap::sys::userfaultfd::{self as uffd, Userfaultfd};

use crate::os::ForbiddenPage;

/// Mechanisms that the kernel and the sandbox allow.
#[derive(Debug)]
pub struct Probe {
    /// The feature bits of userfaultfd, or why there is none.
    pub userfaultfd: Result<u64, Refusal>,
    /// Whether /proc/self/mem reads and writes behind a protection.
    pub proc_self_mem: Result<(), Refusal>,
}

/// Why something is not there, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub cause: String,
    pub remedy: String,
}

const FOR_COPY: u64 = uffd::FEATURE_SIGBUS | uffd::FEATURE_PAGEFAULT_FLAG_WP;
const FOR_MOVE: u64 = FOR_COPY | uffd::FEATURE_MOVE;

impl Probe {
    pub fn run() -> Probe {
        Probe {
            // A filter may end whoever asks.
            userfaultfd: if is_filtered() {
                Userfaultfd::probe_in_child()
            } else {
                Userfaultfd::probe()
            }
            .map_err(|errno| {
                explain_userfaultfd(&io::Error::from_raw_os_error(errno.0), is_filtered())
            }),
            proc_self_mem: try_proc_self_mem().map_err(|e| Refusal {
                cause: format!("/proc/self/mem cannot write behind a protection: {e}"),
                remedy: "mount /proc in the container, and start the kernel without \
                         proc_mem.force_override=never"
                    .to_string(),
            }),
        }
    }

    /// Why `mechanism` cannot be used, or nothing.
    pub fn check(&self, mechanism: Mechanism) -> Result<(), Refusal> {
        let needs = |wanted: u64| {
            let features = self.userfaultfd.as_ref().map_err(Refusal::clone)?;
            let missing = wanted & !features;
            if missing == 0 {
                return Ok(());
            }
            Err(Refusal {
                cause: format!("this kernel's userfaultfd lacks {}", feature_names(missing)),
                remedy: match missing & !FOR_COPY {
                    0 => "use Linux 5.11 or later".to_string(),
                    _ => "use Linux 6.8 or later".to_string(),
                },
            })
        };
        match mechanism {
            Mechanism::Auto => self.choose().map(|_| ()),
            Mechanism::Userfaultfd => needs(FOR_MOVE),
            Mechanism::UserfaultfdCopy => needs(FOR_COPY),
            Mechanism::Protect => self.proc_self_mem.clone(),
        }
    }

    /// The choice of `auto`: the first that works, fastest first.
    pub fn choose(&self) -> Result<Mechanism, Refusal> {
        let works = |m: &Mechanism| self.check(*m).is_ok();
        let fastest_first =
            [Mechanism::Userfaultfd, Mechanism::UserfaultfdCopy, Mechanism::Protect];
        fastest_first.into_iter().find(works).ok_or_else(|| {
            let cause = |r: Option<&Refusal>| r.map_or(String::new(), |r| r.cause.clone());
            Refusal {
                cause: format!(
                    "no way to page a program: {}; {}",
                    cause(self.check(Mechanism::UserfaultfdCopy).err().as_ref()),
                    cause(self.proc_self_mem.as_ref().err())
                ),
                remedy: "allow userfaultfd in the sandbox, or mount /proc".to_string(),
            }
        })
    }
}

fn explain_userfaultfd(error: &io::Error, is_filtered: bool) -> Refusal {
    let refusal = |cause: &str, remedy: &str| Refusal {
        cause: cause.to_string(),
        remedy: remedy.to_string(),
    };
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if is_filtered => refusal(
            "userfaultfd is refused by a seccomp filter, as in a default container",
            "add userfaultfd to the container's seccomp profile (or run it with --security-opt \
             seccomp=unconfined)",
        ),
        Some(libc::EPERM | libc::EACCES) => refusal(
            "userfaultfd is refused by a security policy",
            "allow it in the policy (SELinux, AppArmor) of this process",
        ),
        Some(libc::ENOSYS) if is_filtered => refusal(
            "userfaultfd is hidden by a seccomp filter, or missing in this kernel",
            "add userfaultfd to the sandbox's seccomp profile",
        ),
        Some(libc::ENOSYS) => {
            refusal("this kernel has no userfaultfd", "use a kernel with CONFIG_USERFAULTFD")
        }
        Some(libc::EINVAL) => {
            refusal("this kernel has userfaultfd for root only", "use Linux 5.11 or later")
        }
        _ => refusal(&format!("userfaultfd fails: {error}"), "free descriptors or memory"),
    }
}

/// Whether a seccomp filter is installed for us: asked once, as we install none.
pub fn is_filtered() -> bool {
    static IS_FILTERED: LazyLock<bool> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.lines().any(|l| l.strip_prefix("Seccomp:").is_some_and(|v| v.trim() == "2"))
    });
    *IS_FILTERED
}

/// Writes and reads a PROT_NONE page through /proc/self/mem, as the protection mechanism does.
fn try_proc_self_mem() -> io::Result<()> {
    let page = ForbiddenPage::new(0x5a)?;
    let memory: File = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let mut seen = [0u8; 4096];
    memory.read_exact_at(&mut seen, page.address())?;
    memory.write_all_at(&[0xa5; 4096], page.address())?;
    let written = page.into_bytes()?;
    match seen == [0x5a; 4096] && written == [0xa5; 4096] {
        true => Ok(()),
        false => Err(io::Error::other("the bytes do not arrive")),
    }
}

/// The features that uzswap asks for, by the kernel's names.
pub fn feature_names(features: u64) -> String {
    const NAMES: [(u64, &str); 5] = [
        (uffd::FEATURE_SIGBUS, "SIGBUS"),
        (uffd::FEATURE_MOVE, "MOVE"),
        (uffd::FEATURE_WP_ASYNC, "WP_ASYNC"),
        (uffd::FEATURE_WP_UNPOPULATED, "WP_UNPOPULATED"),
        (uffd::FEATURE_PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"),
    ];
    let names: Vec<&str> =
        NAMES.iter().filter(|(bit, _)| features & bit != 0).map(|(_, n)| *n).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(features: Option<u64>, mem: bool) -> Probe {
        let no = |what: &str| Refusal { cause: format!("no {what}"), remedy: "none".to_string() };
        Probe {
            userfaultfd: features.ok_or(no("userfaultfd")),
            proc_self_mem: if mem { Ok(()) } else { Err(no("mem")) },
        }
    }

    #[test]
    fn the_fastest_that_works_is_chosen() {
        assert_eq!(probe(Some(u64::MAX), true).choose(), Ok(Mechanism::Userfaultfd));
        assert_eq!(probe(Some(!uffd::FEATURE_MOVE), true).choose(), Ok(Mechanism::UserfaultfdCopy));
        assert_eq!(probe(Some(FOR_COPY), false).choose(), Ok(Mechanism::UserfaultfdCopy));
        assert_eq!(probe(Some(uffd::FEATURE_SIGBUS), true).choose(), Ok(Mechanism::Protect));
        assert_eq!(probe(None, true).choose(), Ok(Mechanism::Protect));
        let refusal = probe(None, false).choose().unwrap_err();
        assert!(refusal.cause.contains("no userfaultfd; no mem"), "{refusal:?}");
    }

    #[test]
    fn a_forced_mechanism_says_what_it_lacks() {
        let refusal = probe(Some(FOR_COPY), true).check(Mechanism::Userfaultfd).unwrap_err();
        assert!(refusal.cause.ends_with("lacks MOVE"), "{refusal:?}");
        assert!(probe(Some(FOR_COPY), true).check(Mechanism::Protect).is_ok());
        assert!(probe(None, true).check(Mechanism::UserfaultfdCopy).is_err());
    }

    #[test]
    fn refusals_are_told_apart() {
        let explain =
            |errno, filtered| explain_userfaultfd(&io::Error::from_raw_os_error(errno), filtered);
        assert!(explain(libc::EPERM, true).cause.contains("seccomp"));
        assert!(explain(libc::EPERM, false).cause.contains("policy"));
        assert!(explain(libc::ENOSYS, false).remedy.contains("CONFIG_USERFAULTFD"));
        assert!(explain(libc::EINVAL, false).remedy.contains("5.11"));
    }

    #[test]
    fn proc_self_mem_is_really_tried() {
        assert_eq!(Probe::run().proc_self_mem, Ok(()));
    }
}
